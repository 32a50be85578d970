"""Fine-tuning beside transformers on PyTorch: the same data, batches and hyperparameters.

    python benchmarks/finetune.py TASK --data=FOLDER --weights=FOLDER [--seeds=0,1,2]
        [--side=both|ours|reference] [--speed=STEPS] [--config.KEY=VALUE ...]

TASK is a row of docs/finetuning.md: sst2, cola, rte, stsb, wnut17, squad, chnsenticorp. Each side
trains from the same published weights; a line of figures for each seed and the median are printed.
The reference is tests/golden/finetune_reference.py; what it computed once is kept beside it.
--speed only times so many steps of each side, in turn, at the same batches, and ours padded to
length 128.
Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax

from bertjax import cli, start
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows
from bertjax.train import loop
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "golden"))
import finetune_reference as golden

ROUNDS = 3  # of --speed


def ours(args: argparse.Namespace, extra: list[str], seed: int) -> dict[str, float]:
    """Figures of our run."""
    with tempfile.TemporaryDirectory() as folder:
        run, workdir = golden.run_of(args, pathlib.Path(folder), extra, seed)
        return loop.train(
            run.config, run.task, workdir, mesh=run.mesh, load_initial=run.load_initial
        )


def our_steps(args: argparse.Namespace, extra: list[str]) -> tuple[Callable[[], Any], FineTune]:
    """What takes args.speed of our steps, every shape compiled before; and the task."""
    with tempfile.TemporaryDirectory() as folder:
        run, _ = golden.run_of(args, pathlib.Path(folder), extra, 0)
    task, mesh = run.task, make_mesh(-1, 1, 1)
    abstract = abstract_params(task, mesh)
    schedule = make_schedule(task.config.optimizer, task.train_steps)
    optimizer = make_optimizer(task.config.optimizer, schedule, abstract)
    state = create_state(task, optimizer, mesh, jax.random.key(0), run.load_initial(abstract))
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    source = task.train_batches(0, Rows())
    batches = [next(source) for _ in range(args.speed)]
    for batch in {b["input_ids"].shape: b for b in batches}.values():
        state, _ = step(state, to_global(mesh, batch))

    def take() -> None:
        nonlocal state
        for batch in batches:
            state, metrics = step(state, to_global(mesh, batch))
        jax.block_until_ready(metrics)

    return take, task


def speed(args: argparse.Namespace, extra: list[str]) -> None:
    """Print examples a second of the sides, in turn, and the ratios of their medians."""
    ours_of, task = our_steps(args, extra)
    fixed = [*extra, "--config.data.length_buckets=False", "--config.data.seq_length=128"]
    padded, _ = our_steps(args, fixed)
    model = golden.reference_model(task, args.weights, 0)

    def reference(steps: int = args.speed) -> None:
        golden.reference_steps(task, model, task.train_batches(0, Rows()), steps)

    reference(3)  # whatever it sets up at first
    sides = {"ours": ours_of, "reference": reference, "padded to 128": padded}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, take in sides.items():
            began = time.monotonic()
            take()
            taken = time.monotonic() - began
            rates[name].append(args.speed * task.config.data.batch_size / taken)
    for name, found in rates.items():
        print(f"{name}: {', '.join(f'{rate:.1f}' for rate in found)} examples a second")
    median = {name: statistics.median(found) for name, found in rates.items()}
    for name in ("reference", "padded to 128"):
        print(f"ours to {name}: {median['ours'] / median[name]:.2f}")


def main() -> None:
    """Print the row of a task."""
    parser = golden.arguments(__doc__.splitlines()[0])
    parser.add_argument("--side", choices=("both", "ours", "reference"), default="both")
    parser.add_argument("--speed", type=int, default=0, metavar="STEPS")
    args, extra = parser.parse_known_args()
    cli.keep_memory()  # as bertjax.main does
    start.compile_cache("")
    if args.speed:
        return speed(args, extra)
    figure = golden.TASKS[args.task][-1]
    for name, side in (("ours", ours), ("reference", golden.reference)):
        if args.side not in ("both", name):
            continue
        values = []
        for seed in args.seeds:
            began = time.monotonic()
            found = side(args, extra, seed)
            values.append(found[figure])
            text = "  ".join(f"{key} {value:.4f}" for key, value in found.items())
            seconds = time.monotonic() - began
            print(f"{args.task} {name} seed {seed}: {text} ({seconds:.0f} s)", flush=True)
        shown = ", ".join(f"{value:.4f}" for value in values)
        median = statistics.median(values)
        print(f"{args.task} {figure} {name}: median {median:.4f} of {shown}", flush=True)


if __name__ == "__main__":
    main()
