"""The training loop: from a config, a task and a workdir to a trained model.

    build the state -> compile -> (step, log, evaluate, save)* -> evaluate -> save -> finish

The state is, in this order: the workdir's newest good checkpoint; `init_from`; fresh parameters.
The batch of a step is a function of config, seed and step alone, so the step is all there is to
the position in the data. At a step where several things are due they come in one order: the line
of figures, the evaluation, the checkpoint. A checkpoint therefore vouches for every line of
metrics.jsonl up to its step, and a resumed run goes on from exactly there.

Config keys used here: train.log_every, eval_every, on_nonfinite, profile, accumulate;
checkpoint.every, every_seconds, keep, keep_every; mesh.*; optimizer.*; seed; data.batch_size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import IO, Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bertjax.errors import UserError
from bertjax.files import write_text
from bertjax.parallel import mesh as meshes
from bertjax.parallel.rate import matmul_flops_per_second
from bertjax.tasks.task import Batch, Rows, Task
from bertjax.train import checkpoint
from bertjax.train import workdir as folder
from bertjax.train.evaluation import Evaluator, Results, check_batches, finish, flat, unflat
from bertjax.train.manifest import Damaged, verify
from bertjax.train.optimizer import make_optimizer, make_schedule, warmup_steps
from bertjax.train.profile import Profile
from bertjax.train.progress import Meter, Progress, figures_text
from bertjax.train.record import Diverged, Record
from bertjax.train.signals import StopSignals
from bertjax.train.step import (
    StepByShape,
    TrainState,
    abstract_batch,
    abstract_params,
    abstract_state,
    create_state,
    make_train_step,
)
from bertjax.train.writers import Writers

# From the abstract parameters (ShapeDtypeStructs with shardings) to initial ones, or None.
LoadInitial = Callable[[Any], Any]


def train(
    config: Any,
    task: Task,
    workdir: str,
    *,
    mesh: Mesh | None = None,
    load_initial: LoadInitial | None = None,
    stream: IO[str] | None = None,
) -> dict[str, float]:
    """Train `task`, or go on with it, until `task.train_steps`; figures as 'SPLIT/NAME'.

    Lines and the progress bar go to `stream` (standard output by default) of process 0. A run
    that is finished says so and returns its figures again.

    Raises:
      UserError: another run holds the workdir, its config does not fit, no good checkpoint is
        left, saving fails, a step is not finite where train.on_nonfinite says stop, or a
        hundred in a row are skipped.
      SystemExit: 143 or 130 after a signal, when the last finished step is saved.
    """
    mesh = mesh or meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    rows = Rows(jax.process_index(), jax.process_count())
    check_batches(config, mesh, train=True)
    stream = (stream or sys.stdout) if rows.process == 0 else None
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        stack.enter_context(folder.on_first_process(lambda: folder.lock(workdir)) or ExitStack())
        say = Progress(stream).say
        finished = folder.from_first_process(lambda: _enter(config, task, workdir, say))
        if finished is not None:
            return flat(finished["results"])
        return _Run(config, task, workdir, mesh, rows, stop, stream, stack).train(load_initial)


def _enter(
    config: Any, task: Task, workdir: str, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Check and write what a workdir says of its run; the end of a finished run, else None."""
    steps = checkpoint.committed_steps(checkpoint.root(workdir) / checkpoint.FOLDER)
    if steps:
        folder.check_config(workdir, config.to_dict(), task.artifacts(), say)
    finished = folder.read_finished(workdir)
    if finished is not None:
        step = finished["step"]
        ended = step >= task.train_steps or _still_stopped(finished, config.train)
        if ended and steps and step == steps[-1] and _is_whole(workdir, step, say):
            more = ", which asks for no more" if step > task.train_steps else ""
            say(f"the run in {workdir} is finished: step {step} of {task.train_steps}{more}")
            say(finished["summary"])
            return finished
        (epath.Path(workdir) / folder.FINISHED).unlink()  # it goes on, so it is not finished
    content = {"config": config.to_dict(), "artifacts": task.artifacts()}
    folder.write_json(workdir, folder.CONFIG, content)
    task.save_assets(workdir)
    return None


def _is_whole(workdir: str, step: int, say: Callable[[str], None]) -> bool:
    """Whether the last checkpoint of a finished run is good; says it where it is not."""
    try:
        verify(checkpoint.root(workdir) / checkpoint.FOLDER / str(step))
    except Damaged as error:
        say(f"warning: {error}: the run goes on from an earlier one")
        return False
    return True


def _still_stopped(finished: Mapping[str, Any], train: Any) -> bool:
    """Whether train.patience, as it is now, ends a run where it had ended it before."""
    before = finished.get("stopped")
    if not before or not train.patience:
        return False
    return train.patience * train.eval_every <= before["patience"] * before["eval_every"]


class _Run:
    """One run while it lasts."""

    def __init__(
        self,
        config: Any,
        task: Task,
        workdir: str,
        mesh: Mesh,
        rows: Rows,
        stop: StopSignals,
        stream: IO[str] | None,
        stack: ExitStack,
    ) -> None:
        self.config, self.task, self.workdir = config, task, workdir
        self.mesh, self.rows, self.stop, self.stream, self.stack = mesh, rows, stop, stream, stack
        self.steps = task.train_steps
        self.progress = Progress(stream)
        self.checkpoints = checkpoint.Checkpoints(
            workdir,
            keep=config.checkpoint.keep,
            keep_every=config.checkpoint.keep_every,
            best=task.best_metric,
        )
        self.evaluator = Evaluator(task, mesh, rows, lambda text: self.progress.say(text))
        self.results: Results = {}  # of the evaluation at `evaluated`
        self.evaluated = self.saved = -1  # the steps of the last ones
        self.saved_at = time.monotonic()

    def train(self, load_initial: LoadInitial | None) -> dict[str, float]:
        schedule = make_schedule(self.config.optimizer, self.steps)
        warmup = warmup_steps(self.config.optimizer, self.steps)
        if warmup >= self.steps:
            self.progress.say(
                f"warning: the warm-up of {warmup} steps does not end in the {self.steps} steps of "
                "this run: the learning rate only rises (config.optimizer.warmup_ratio is a share)"
            )
        params = abstract_params(self.task, self.mesh)
        optimizer = make_optimizer(self.config.optimizer, schedule, params)
        abstract = abstract_state(self.task, optimizer, self.mesh)
        state = self._state(abstract, optimizer, load_initial)
        start = int(state.step)
        self._open(start, int(state.skipped))
        step = start
        if step < self.steps:
            self._compile(optimizer, schedule, abstract)
        if self._evaluation_due(step) and self.evaluated != step:
            self._evaluate(step, state)
        if step < self.steps:
            batches = self.task.train_batches(step, self.rows)
        self.record.meter.restart()
        while step < self.steps and not self.stop.due() and not self._stalled(step):
            batch = self._next(batches, step)
            self.profile.before(step)
            state, metrics = self._take(state, meshes.to_global(self.mesh, batch))
            step += 1
            self.profile.after(step, metrics)
            self.record.step(step, batch, metrics)
            if self._evaluation_due(step):
                self._evaluate(step, state)
            if self._save_due(step):
                self._save(step, state)
        if self.stop.due():
            self._leave(step, state)
        return self._end(step, state)

    def _state(
        self, abstract: TrainState, optimizer: Any, load_initial: LoadInitial | None
    ) -> TrainState:
        """The state of the newest good checkpoint, else of init_from, else a fresh one."""
        found = self.checkpoints.restore(abstract, self.progress.say)
        if found is not None:
            state, manifest = found
            self.saved = manifest.step
            self.progress.say(f"going on from the checkpoint of step {manifest.step}")
            if manifest.metrics:
                self.evaluated, self.results = manifest.step, unflat(manifest.metrics)
            return state
        params = load_initial(abstract.params) if load_initial else None
        key = jax.random.key(self.config.seed)
        return create_state(self.task, optimizer, self.mesh, key, params)

    def _open(self, start: int, skipped: int) -> None:
        """Bar, trace and writers, from step `start`. All are closed however the run ends."""
        self.progress = Progress(self.stream, self.steps, start)
        self.stack.callback(self.progress.close)
        self.stack.callback(self._after_error)
        self.profile = Profile(self.config.train.profile, self.workdir, self.progress.say)
        self.stack.callback(self.profile.close)
        writers = folder.on_first_process(
            lambda: Writers(self.workdir, start_step=start, evaluated=self.evaluated == start)
        )
        if writers is not None:
            self.stack.callback(writers.close)
        self.record = Record(
            self.task,
            self.config,
            self.rows,
            self.progress,
            writers,
            skipped=skipped,
            saved=lambda: self.saved,
            check=self.checkpoints.check,
        )

    def _after_error(self) -> None:
        """Whatever ended the run, a save that is under way is finished first."""
        try:
            self.checkpoints.wait()
        except UserError as error:
            self.progress.say(f"error: {error}")

    def _compile(self, optimizer: Any, schedule: Any, abstract: TrainState) -> None:
        """Both steps, before the first of them runs: Python sees no signal during a compile."""
        self.progress.doing("compiling")
        began = time.monotonic()
        jitted = make_train_step(
            self.task,
            optimizer,
            self.mesh,
            schedule=schedule,
            seed=self.config.seed,
            accumulate=self.config.train.accumulate,
        )
        self.train_step = StepByShape(jitted, abstract)
        self._compile_for(abstract_batch(self.task, self.mesh))
        between = time.monotonic()
        self.evaluator.compile()
        self.progress.say(
            f"compiled the training step in {between - began:.1f} s and the evaluation in "
            f"{time.monotonic() - between:.1f} s"
        )
        self.record.meter = Meter(matmul_flops_per_second(self.config.model.dtype))
        self.progress.doing("training")

    def _compile_for(self, batch: Mapping[str, Any]) -> None:
        self.train_step.compile(batch)
        self.record.compiled_for(batch)

    def _take(self, state: TrainState, batch: Batch) -> tuple[TrainState, Mapping[str, jax.Array]]:
        """One step; a shape of batch that is new to it is compiled first, and the time is said."""
        if not self.train_step.knows(batch):
            self.record.settle()
            began = time.monotonic()
            self._compile_for(batch)
            shape = " x ".join(map(str, batch["input_ids"].shape))
            self.progress.say(
                f"compiled the training step for batches of {shape} in "
                f"{time.monotonic() - began:.1f} s"
            )
            self.record.meter.restart()
        return self.train_step(state, batch)

    def _next(self, batches: Any, step: int) -> Batch:
        try:
            return next(batches)
        except OSError as error:
            raise UserError(
                f"reading the training data for step {step + 1} failed: {error}; the checkpoints "
                f"in {self.workdir} are untouched"
            ) from error

    def _evaluation_due(self, step: int) -> bool:
        every = self.config.train.eval_every
        return step >= self.steps or (step > 0 and every > 0 and step % every == 0)

    def _evaluate(self, step: int, state: TrainState) -> None:
        """Evaluate every split; nothing is noted of an evaluation that a signal breaks off."""
        self.record.settle()
        self.progress.doing("evaluating")
        results: Results = {}
        for split in self.task.eval_splits:
            figures = self.evaluator.run(state.params, split, self.stop.due)
            if figures is None:
                return
            results[split] = figures
        for split, figures in results.items():
            self.record.write(step, split, figures)
            self.progress.say(f"step {step}/{self.steps}  {split}: {figures_text(figures)}")
        self.evaluated, self.results = step, results
        if self.saved == step:  # resumed at a step whose evaluation had been broken off
            self.checkpoints.add_metrics(step, flat(results))
        self.progress.doing("training")
        self.record.meter.restart()

    def _stalled(self, step: int) -> bool:
        """Whether train.patience evaluations have passed since the best one."""
        train, best = self.config.train, self.checkpoints.best_step()
        if not train.patience or self.evaluated != step or best is None:
            return False
        return step - best >= train.patience * train.eval_every > 0

    def _save_due(self, step: int) -> bool:
        every, seconds = self.config.checkpoint.every, self.config.checkpoint.every_seconds
        if step == self.steps or (every and step % every == 0):
            return True
        if self.evaluated == step and _agree(self.checkpoints.improves(flat(self.results))):
            return True
        if not seconds or (self.rows.processes > 1 and step % self.config.train.log_every):
            return False
        return _agree(time.monotonic() - self.saved_at >= seconds)

    def _save(self, step: int, state: TrainState, *, wait: bool = False) -> None:
        self.record.settle()
        if self.saved == step:
            return
        self.record.flush()
        metrics = flat(self.results) if self.evaluated == step else {}
        self.checkpoints.save(step, state, metrics, wait=wait)
        self.saved, self.saved_at = step, time.monotonic()
        self.record.meter.restart()

    def _leave(self, step: int, state: TrainState) -> None:
        """A signal has come: save the last finished step, once, and exit."""
        if step > 0:
            self._save(step, state, wait=True)
        self.checkpoints.close()
        self.progress.say(
            f"stopped at step {step} of {self.steps}; the same command goes on from there"
        )
        raise SystemExit(self.stop.exit_code)

    def _end(self, step: int, state: TrainState) -> dict[str, float]:
        """The last evaluation has been made and saved: predictions, summary, finished.json."""
        self.record.settle()
        self.progress.doing("finishing")
        self._save(step, state, wait=True)
        self.checkpoints.close()
        for split, figures in self.results.items():
            if not np.isfinite(figures.get("loss", 0.0)):
                raise Diverged(
                    f"the run has diverged: the loss of {split} is {figures['loss']} at step {step}"
                    f", and {int(state.skipped)} steps were skipped because they were not finite. "
                    "Begin again in another workdir with a lower learning rate or a longer warm-up"
                    f"{self._best_so_far()}"
                )
        params, best, notes = state.params, self.checkpoints.best_step(), []
        scored = step
        if skipped := int(state.skipped):
            notes.append(f"warning: {skipped} of {step} steps were skipped: they were not finite")
        if step < self.steps:
            notes.append(f"stopped early, at step {step}, by train.patience")
        if best not in (None, step):
            notes.append(f"best {self.task.best_metric[0]}: the checkpoint of step {best}")
            if self.task.finish_with_best:
                params, scored = self._best(best), best
                notes.append(f"figures and predictions are those of step {best}")
        summary = "\n".join([finish(self.task, self.workdir, params, self.results), *notes])
        stopped = {k: self.config.train[k] for k in ("patience", "eval_every")}
        end = {
            "step": step,
            "scored": scored,
            "results": self.results,
            "summary": summary.strip("\n"),
            "stopped": stopped if step < self.steps else None,
        }
        folder.on_first_process(lambda: _write_end(self.workdir, self.task.readme(summary), end))
        self.progress.close()
        self.progress.say(
            f"finished: step {step} of {self.steps}, in {self.workdir}{self.record.meter.summary()}"
        )
        self.progress.say(end["summary"])
        return flat(self.results)

    def _best_so_far(self) -> str:
        best = self.checkpoints.best_step()
        return "" if best is None else f" (the best checkpoint, of step {best}, is kept)"

    def _best(self, step: int) -> Any:
        """The parameters of the best checkpoint, after `results` has been made theirs."""
        params, _ = checkpoint.load_params(
            self.workdir, step=step, abstract=abstract_params(self.task, self.mesh)
        )
        for split in self.task.eval_splits:
            self.results[split] = self.evaluator.run(params, split)
        return params


def _write_end(workdir: str, readme: str, end: dict[str, Any]) -> None:
    if readme:
        write_text(workdir, "README.md", readme)
    folder.write_json(workdir, folder.FINISHED, end)


def _agree(here: bool) -> bool:
    """What process 0 says."""
    if jax.process_count() == 1:
        return here
    return bool(multihost_utils.broadcast_one_to_all(np.int32(here)))
