"""How much faster a step is with the lowest layers frozen, and what its optimizer keeps.

    python benchmarks/frozen.py [--layers=12] [--frozen=9] [--hidden=256] [--batch=16]
        [--length=64] [--steps=10] [--repeats=3]

Both steps run in turn on the same batch; the median time of each counts. Random weights.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax

from bertjax import config as configs
from bertjax import start
from bertjax.main import FLAGS
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.task import Rows
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step

RECIPE = pathlib.Path(__file__).parents[1] / "configs" / "classify.py"


def prepared(args: argparse.Namespace, frozen: int, folder: str) -> tuple[Any, Any, Any]:
    """(compiled step, state, batch) with so many layers frozen."""
    values = {
        "model.num_layers": args.layers, "model.hidden_size": args.hidden,
        "model.num_heads": args.hidden // 64, "model.intermediate_size": 4 * args.hidden,
        "data.seq_length": args.length, "data.batch_size": args.batch,
        "train.frozen_layers": frozen,
    }  # fmt: skip
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    task = start.prepare(configs.load([f"--config={RECIPE}:smoke", *flags], FLAGS), folder).task
    mesh = make_mesh(-1, 1, 1)
    schedule = make_schedule(task.config.optimizer, task.train_steps)
    optimizer = make_optimizer(task.config.optimizer, schedule, abstract_params(task, mesh))
    state = create_state(task, optimizer, mesh, jax.random.key(0))
    batch = to_global(mesh, next(task.train_batches(0, Rows())))
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    return step.lower(state, batch).compile(), state, batch


def main() -> None:
    """Print both times, their ratio and the moments kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("frozen", 9), ("hidden", 256), ("batch", 16),
                          ("length", 64), ("steps", 10), ("repeats", 3)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    sides: dict[int, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for frozen in (0, args.frozen):
            sides[frozen] = [*prepared(args, frozen, folder), []]
    for _ in range(args.repeats):
        for side in sides.values():
            step, state, batch, times = side
            began = time.monotonic()
            for _ in range(args.steps):
                state, metrics = step(state, batch)
            jax.block_until_ready(metrics)
            side[1] = state
            times.append((time.monotonic() - began) / args.steps)
    for frozen, (_, state, _, times) in sides.items():
        kept = sum(x.size for x in jax.tree.leaves(state.opt_state))
        milliseconds = 1000 * statistics.median(times)
        print(f"{frozen} of {args.layers} layers frozen: {milliseconds:.1f} ms a step, "
              f"{kept:,} numbers in the optimizer's state")  # fmt: skip
    medians = [statistics.median(sides[frozen][3]) for frozen in (0, args.frozen)]
    print(f"ratio: {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
