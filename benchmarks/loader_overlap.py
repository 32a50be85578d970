"""What the loader costs a training step: real batches against one batch used again and again.

    python benchmarks/loader_overlap.py --corpus=DIR [--config=configs/tiny.py] [--workers=0]

Two kinds of step: the train step of the config on this machine, which shares its cores with the
loader, and 20 ms of waiting for 64 sequences of length 128, the pace of an accelerator. Rounds of
steps on the fixed batch and on real batches take turns; printed is the ratio of their medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import jax

from bertjax import config as configs
from bertjax import start
from bertjax.main import FLAGS
from bertjax.parallel.mesh import to_global
from bertjax.tasks.task import Batch, Rows
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import abstract_params, create_state, make_train_step


def ratio(name: str, step: Callable[[Batch], None], real: Iterator[Batch], arguments) -> None:
    """Time `step` in rounds that take turns, and print what a real batch costs."""
    fixed = next(real)
    sources = {"fixed": itertools.repeat(fixed), "real": real}
    for source in sources.values():
        step(next(source))
    times: dict[str, list[float]] = {kind: [] for kind in sources}
    for _ in range(arguments.rounds):
        for kind, source in sources.items():
            began = time.perf_counter()
            for _ in range(arguments.steps):
                step(next(source))
            times[kind].append((time.perf_counter() - began) / arguments.steps)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    print(
        f"{name:20} fixed batch {medians['fixed'] * 1e3:7.1f} ms, real batches "
        f"{medians['real'] * 1e3:7.1f} ms a step: ratio {medians['real'] / medians['fixed']:.3f}"
    )


def trainer(run: start.Run) -> Callable[[Batch], None]:
    """The compiled train step of a run, with its state."""
    schedule = make_schedule(run.config.optimizer, run.task.train_steps)
    params = abstract_params(run.task, run.mesh)
    optimizer = make_optimizer(run.config.optimizer, schedule, params)
    state = create_state(run.task, optimizer, run.mesh, jax.random.key(0))
    train_step = make_train_step(run.task, optimizer, run.mesh, schedule=schedule, seed=0)

    def step(batch: Batch) -> None:
        nonlocal state
        state, metrics = train_step(state, to_global(run.mesh, batch))
        metrics["loss"].block_until_ready()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="a prepared folder")
    parser.add_argument("--config", default="configs/tiny.py")
    parser.add_argument("--workers", type=int, default=0, help="data.workers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=15, help="in a round")
    arguments = parser.parse_args()
    shared = [f"--config.data.source={arguments.corpus}", "--config.data.vocab=", "--config.seed=1"]
    shared += [f"--config.data.workers={arguments.workers}"]
    with tempfile.TemporaryDirectory() as workdir:
        command = configs.load([f"--config={arguments.config}", *shared], FLAGS)
        start.environment(command.config)
        run = start.prepare(command, workdir)
        batches = run.task.train_batches(0, Rows())
        ratio(f"{command.name}, this machine", trainer(run), batches, arguments)
        paced = ["--config=configs/tiny.py", *shared]
        paced += ["--config.data.batch_size=64", "--config.data.seq_length=128"]
        run = start.prepare(configs.load(paced, FLAGS), workdir + "/paced")
        batches = run.task.train_batches(0, Rows())
        ratio("a step of 20 ms", lambda batch: time.sleep(0.02), batches, arguments)


if __name__ == "__main__":
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # grain's worker processes read them
    sys.exit(main())
