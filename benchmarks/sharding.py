"""Bytes of parameters and optimizer moments that each device really holds, mesh by mesh.

    python benchmarks/sharding.py [--size=mini] [--devices=8]

Runs on virtual CPU devices. A mesh of `data` alone copies everything; fsdp splits every matrix,
tensor the matrices of attention, feed-forward and vocabulary. The last column is the ratio to
copying everything.
"""

from __future__ import annotations

import argparse
import os


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="mini", help="a name of bertjax.config.SIZES")
    parser.add_argument("--devices", type=int, default=8)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"

    n = options.devices
    meshes = [(n, 1, 1), (1, n, 1), (1, 1, n), (2, n // 4, 2), (2, 1, n // 2)]
    heads = largest_heads(options.size, n)
    print(f"BERT-{options.size}, pretraining, {heads} heads, {n} devices, float32")
    print(f"{'data':>5}{'fsdp':>5}{'tensor':>7}{'MB a device':>13}{'of all':>9}")
    whole = None
    for sizes in meshes:
        held = bytes_held(options.size, heads, sizes)
        whole = whole or held
        print(f"{sizes[0]:>5}{sizes[1]:>5}{sizes[2]:>7}{held / 1e6:>13.1f}{held / whole:>9.4f}")


def largest_heads(size: str, devices: int) -> int:
    """The published number of heads, or `devices` where tensor could not divide it."""
    from bertjax.config import SIZES

    heads = SIZES[size]["num_heads"]
    return heads if heads % devices == 0 else devices


def bytes_held(size: str, heads: int, sizes: tuple[int, int, int]) -> int:
    """Bytes on the fullest device of parameters and both moments of Adam."""
    import collections

    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from bertjax.config import SIZES
    from bertjax.model.bert import BertConfig
    from bertjax.model.heads import BertForPreTraining
    from bertjax.parallel import rules
    from bertjax.parallel.mesh import make_mesh
    from bertjax.train.optimizer import scale_by_uncorrected_adam

    of = SIZES[size] | {"num_heads": heads}
    config = BertConfig(**of, intermediate_size=4 * of["hidden_size"])
    model, mesh = BertForPreTraining(config), make_mesh(*sizes)

    def init(key: jax.Array) -> jax.Array:
        return model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]

    boxed = jax.eval_shape(init, jax.random.key(0))
    places = rules.shardings(mesh, boxed)

    def state(key: jax.Array) -> tuple:
        params = nn.meta.unbox(init(key))
        return params, *scale_by_uncorrected_adam(0.9, 0.999, 1e-6).init(params)

    held: collections.Counter = collections.Counter()
    arrays = jax.jit(state, out_shardings=(places,) * 3)(jax.random.key(0))
    for array in jax.tree.leaves(arrays):
        for shard in array.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return max(held.values())


if __name__ == "__main__":
    main()
