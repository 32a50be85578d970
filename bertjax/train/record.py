"""What a run says of its steps: bar, lines, files of figures and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.task import Batch, Rows, Task
from bertjax.train.progress import Meter, Progress, duration, figures_text
from bertjax.train.watch import Watch
from bertjax.train.writers import Writers

# Steps in a row that are not finite and are skipped before the run ends.
SKIPPED_AT_MOST = 100


class Diverged(UserError):
    """Losses or gradients are not finite: the run is at an end, or nothing is learnt any more."""


class Record:
    """The figures of a run, step by step, one step behind the device.

    Args:
        task: whose `train_steps`, `chance_levels` and `step_flops` are meant.
        config: `train.log_every` and `train.on_nonfinite`.
        rows: how many processes share a batch.
        progress: where lines and the bar go.
        writers: where figures go; None on every process but the first.
        skipped: steps that were skipped before this start.
        saved: the step of the newest checkpoint, below 0 for none.
        check: called at every line of figures; raises `UserError` where saving has failed.
    """

    def __init__(
        self,
        task: Task,
        config: Any,
        rows: Rows,
        progress: Progress,
        writers: Writers | None,
        *,
        skipped: int,
        saved: Callable[[], int],
        check: Callable[[], None],
    ) -> None:
        self._task, self._steps, self._processes = task, task.train_steps, rows.processes
        self._log_every, self._on_nonfinite = config.train.log_every, config.train.on_nonfinite
        self._progress, self._writers = progress, writers
        self._skipped, self._in_a_row = skipped, 0
        self._saved, self._check = saved, check
        self._watch = Watch(task.chance_levels(), progress.say)
        self._waiting: tuple[int, Batch, Mapping[str, jax.Array]] | None = None
        self._flops: dict[int, int] = {}  # of a step, by the length of its rows
        self.meter = Meter()

    def compiled_for(self, batch: Mapping[str, Any]) -> None:
        """Steps over batches of this shape are to come."""
        self._flops[batch["input_ids"].shape[1]] = self._task.step_flops(batch)

    def step(self, step: int, batch: Batch, metrics: Mapping[str, jax.Array]) -> None:
        """Step number `step` has been started; the one before it is looked at meanwhile."""
        self.settle()
        self._waiting = (step, batch, metrics)

    def settle(self) -> None:
        """Look at the step before, whose figures are there or nearly so; log it where due."""
        if self._waiting is None:
            return
        (step, batch, metrics), self._waiting = self._waiting, None
        if float(metrics["nonfinite"]):
            self._nonfinite(step, batch, metrics)
        else:
            self._in_a_row = 0
        tokens = int(np.count_nonzero(batch["attention_mask"])) * self._processes
        self.meter.add(tokens, self._flops[batch["input_ids"].shape[1]])
        left = self.meter.seconds_per_step * (self._steps - step)
        self._progress.step(step, left)
        if step % self._log_every and step != self._steps:
            return
        self._check()
        values = jax.device_get(metrics)
        figures = {n: float(values[n]) for n in sorted(values, key=_order) if n != "nonfinite"}
        figures["skipped_steps"] = float(self._skipped)
        figures |= self.meter.rates()
        self._watch.look(step, figures)
        self.write(step, "train", figures)
        if not self._skipped:
            del figures["skipped_steps"]
        self._progress.say(
            f"step {step}/{self._steps}  {figures_text(figures)}  left {duration(left)}"
        )

    def _nonfinite(self, step: int, batch: Batch, metrics: Mapping[str, jax.Array]) -> None:
        values = {name: float(value) for name, value in metrics.items()}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        rows = batch["example"][:4].tolist() if "example" in batch else None
        where = f", whose first examples (epoch, index) are {rows}" if rows else ""
        what = f"step {step} is not finite ({', '.join(bad)}) at batch {step - 1}{where}"
        kept = f"step {self._saved()}" if self._saved() >= 0 else "none yet"
        if self._on_nonfinite == "stop":
            raise Diverged(
                f"{what}; train.on_nonfinite=stop ends the run (newest good checkpoint: {kept}). "
                "Lower the learning rate, look at that batch, or set train.on_nonfinite=skip"
            )
        self._skipped += 1
        self._in_a_row += 1
        if self._in_a_row == SKIPPED_AT_MOST:
            raise Diverged(
                f"{what}; it is the {SKIPPED_AT_MOST}th in a row that is skipped, so nothing is "
                f"learnt any more (newest checkpoint: {kept}). Lower the learning rate or look at "
                "that batch"
            )
        if self._skipped <= 10 or self._skipped % 100 == 0:
            self._progress.say(f"warning: {what}; skipped, {self._skipped} so far")

    def write(self, step: int, split: str, figures: Mapping[str, float]) -> None:
        """A line of figures to the files."""
        if self._writers is not None:
            self._writers.write(step, split, figures)

    def flush(self) -> None:
        """What has been written is on the disk."""
        if self._writers is not None:
            self._writers.flush()


_LAST = ("learning_rate", "grad_norm")


def _order(name: str) -> tuple[int, str]:
    """Losses first, then other means, then how the step went."""
    if name in _LAST:
        return 2 + _LAST.index(name), name
    return int(not name.endswith("loss")), name
