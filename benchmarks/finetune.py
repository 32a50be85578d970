"""Fine-tuning beside transformers on PyTorch: the same data, batches and hyperparameters.

    python benchmarks/finetune.py TASK --data=FOLDER --weights=FOLDER [--seeds=0,1,2]
        [--side=both|ours|reference] [--speed=STEPS] [--config.KEY=VALUE ...]

TASK is a row of docs/finetuning.md: sst2, cola, rte, stsb, wnut17, squad, chnsenticorp. Each side
trains from the same published weights; a line of figures for each seed and the median are printed.
The reference is tests/golden/finetune_reference.py; what it computed once is kept beside it.
--speed only times so many steps of each side, at the same batches, and ours padded to length 128.
Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import jax

from bertjax import start
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows
from bertjax.train import loop
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "golden"))
import finetune_reference as golden


def ours(args: argparse.Namespace, extra: list[str], seed: int) -> dict[str, float]:
    """Figures of our run."""
    with tempfile.TemporaryDirectory() as folder:
        run, workdir = golden.run_of(args, pathlib.Path(folder), extra, seed)
        return loop.train(
            run.config, run.task, workdir, mesh=run.mesh, load_initial=run.load_initial
        )


def our_speed(args: argparse.Namespace, extra: list[str], steps: int) -> tuple[float, FineTune]:
    """Examples a second of our steps, every shape compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        run, _ = golden.run_of(args, pathlib.Path(folder), extra, 0)
    task, mesh = run.task, make_mesh(-1, 1, 1)
    abstract = abstract_params(task, mesh)
    schedule = make_schedule(task.config.optimizer, task.train_steps)
    optimizer = make_optimizer(task.config.optimizer, schedule, abstract)
    state = create_state(task, optimizer, mesh, jax.random.key(0), run.load_initial(abstract))
    step = make_train_step(task, optimizer, mesh, schedule=schedule, seed=0)
    source = task.train_batches(0, Rows())
    batches = [next(source) for _ in range(steps)]
    for batch in {b["input_ids"].shape: b for b in batches}.values():
        state, _ = step(state, to_global(mesh, batch))
    began = time.monotonic()
    for batch in batches:
        state, metrics = step(state, to_global(mesh, batch))
    jax.block_until_ready(metrics)
    return steps * task.config.data.batch_size / (time.monotonic() - began), task


def speed(args: argparse.Namespace, extra: list[str]) -> None:
    """Print examples a second of both sides and their ratios."""
    rate, task = our_speed(args, extra, args.speed)
    fixed = [*extra, "--config.data.length_buckets=False", "--config.data.seq_length=128"]
    padded, _ = our_speed(args, fixed, args.speed)
    model = golden.reference_model(task, args.weights, 0)
    golden.reference_steps(task, model, task.train_batches(0, Rows()), 3)
    began = time.monotonic()
    golden.reference_steps(task, model, task.train_batches(0, Rows()), args.speed)
    other = args.speed * task.config.data.batch_size / (time.monotonic() - began)
    print(f"examples a second: {rate:.1f}, padded to 128 {padded:.1f}, reference {other:.1f}")
    print(f"ratios: to padding {rate / padded:.2f}, to the reference {rate / other:.2f}")


def main() -> None:
    """Print the row of a task."""
    parser = golden.arguments(__doc__.splitlines()[0])
    parser.add_argument("--side", choices=("both", "ours", "reference"), default="both")
    parser.add_argument("--speed", type=int, default=0, metavar="STEPS")
    args, extra = parser.parse_known_args()
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
