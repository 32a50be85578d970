"""Peak bytes of a BERT-base training step on a TPU v5e, against transformers' Flax model.

    python benchmarks/memory.py [--rows=32] [--length=128]

Both are compiled in the same way for 8 chips that are not there, data parallel, bfloat16, `rows`
rows a chip. Needs the extra 'plan'; makes an environment with transformers 4.57.6.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import sides

CHIPS = 8


def devices():
    from bertjax.plan import hardware

    return hardware.devices("v5e:2x4")


def measure(compiled) -> dict[str, int]:
    memory = compiled.memory_analysis()
    # Arrays alive at once at most, and what the program sets aside for arguments, results and
    # temporaries together.
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {
        "peak": memory.peak_memory_in_bytes,
        "reserved": held - memory.alias_size_in_bytes + memory.temp_size_in_bytes,
    }


def ours(rows: int, length: int) -> dict[str, int]:
    from bertjax.train import step as steps

    task, mesh, optimizer, schedule = sides.our_task(rows * CHIPS, length, "bfloat16", devices())
    state = steps.abstract_state(task, optimizer, mesh)
    step = steps.make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    return measure(step.lower(state, steps.abstract_batch(task, mesh)).compile())


def flax(rows: int, length: int) -> dict[str, int]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    model, optimizer, step = sides.flax_step(jnp.bfloat16)
    mesh = Mesh(np.array(devices()), ("data",))
    copied = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("data"))

    def place(tree, sharding):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    params = jax.eval_shape(lambda k: model.init_weights(k, (1, length)), jax.random.PRNGKey(0))
    moments = jax.eval_shape(optimizer.init, params)
    ids = jax.ShapeDtypeStruct((rows * CHIPS, length), jnp.int32, sharding=split)
    key = place(jax.eval_shape(lambda: jax.random.PRNGKey(0)), copied)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
        place(params, copied), place(moments, copied), ids, ids, key
    )
    return measure(lowered.compile())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32, help="a chip")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--side", choices=("ours", "flax"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = {"ours": ours, "flax": flax}[options.side]
        print(json.dumps(side(options.rows, options.length)))
        return
    from importlib.metadata import version

    flax_python = sides.flax_python((f"libtpu=={version('libtpu')}",))
    found = {}
    for name, python in (("ours", sys.executable), ("flax", flax_python)):
        done = subprocess.run(
            [python, __file__, f"--side={name}", f"--rows={options.rows}",
             f"--length={options.length}"],
            env=os.environ | {"PYTHONPATH": str(sides.ROOT), "JAX_PLATFORMS": "cpu"},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"BERT-base on v5e, {options.rows} x {options.length} a chip, {CHIPS} chips, bfloat16")
    for name, label in (("ours", "bertjax"), ("flax", "HF Flax")):
        peak, reserved = found[name]["peak"] / 1e9, found[name]["reserved"] / 1e9
        print(
            f"{label:10}peak {peak:.2f} GB a chip; reserved, fragments included: {reserved:.2f} GB"
        )
    for what in ("peak", "reserved"):
        print(f"ratio of {what} bytes: {found['ours'][what] / found['flax'][what]:.2f}")


if __name__ == "__main__":
    main()
