"""Compile time of 24 layers, as a scan and as a loop; compiled FLOPs against the arithmetic.

    python benchmarks/compile.py [--rounds=3] [--layers=24]

The gradient of small layers, the two in turn, medians, without a compilation cache. The second
part compiles one wide layer with heads, where nothing is inside a loop, and compares the FLOPs that
XLA counts with bertjax.model.flops.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.model import flops
from bertjax.model.bert import BertConfig, EncoderLayer
from bertjax.model.heads import BertForPreTraining
from bertjax.train.loss import cross_entropy


class Stack(nn.Module):
    """Encoder layers alone, by nn.scan or one after another."""

    config: BertConfig
    loop: bool

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        if self.loop:
            for i in range(self.config.num_layers):
                x, _ = EncoderLayer(self.config, deterministic=False, name=f"layer{i}")(x, mask)
            return x
        scanned = nn.scan(
            EncoderLayer, variable_axes={"params": 0}, in_axes=nn.broadcast,
            split_rngs={"params": True, "dropout": True}, length=self.config.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )  # fmt: skip
        return scanned(self.config, deterministic=False)(x, mask)[0]


def seconds_to_compile(loop: bool, layers: int) -> float:
    config = BertConfig(num_layers=layers, hidden_size=128, num_heads=2, intermediate_size=512)
    stack = Stack(config, loop)
    x, mask = jnp.zeros((4, 32, 128)), jnp.ones((4, 32), jnp.int32)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    params = nn.meta.unbox(jax.eval_shape(stack.init, keys, x, mask))

    def loss(params):
        return jnp.sum(stack.apply(params, x, mask, rngs={"dropout": jax.random.key(2)}))

    jax.clear_caches()
    began = time.monotonic()
    jax.jit(jax.grad(loss)).lower(params).compile()
    return time.monotonic() - began


def counted_over_analytic() -> float:
    """FLOPs that XLA counts in a gradient, dropout on, over those of the arithmetic."""
    rows, length, places = 8, 128, 20
    config = BertConfig(num_layers=1)
    model = BertForPreTraining(config)
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    at = jax.ShapeDtypeStruct((rows, places), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), ids)["params"])

    def loss(params, ids, at):
        mlm, nsp = model.apply(
            {"params": params}, ids, masked_positions=at, deterministic=False,
            rngs={"dropout": jax.random.key(1)},
        )  # fmt: skip
        total, weight = cross_entropy(mlm, at, jnp.ones(at.shape))
        return total / weight + jnp.sum(nsp)

    cost = jax.jit(jax.grad(loss)).lower(params, ids, at).compile().cost_analysis()
    return cost["flops"] / flops.train_flops(config, rows, length, predictions=places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    times = {"scan": [], "loop": []}
    for _ in range(options.rounds):
        for name, values in times.items():
            values.append(seconds_to_compile(name == "loop", options.layers))
    scan, loop = (statistics.median(values) for values in times.values())
    print(f"{options.layers} layers: scan {scan:.1f} s, loop {loop:.1f} s; {loop / scan:.1f} times")
    print(f"FLOPs counted by XLA over the arithmetic: {counted_over_analytic():.3f}")


if __name__ == "__main__":
    main()
