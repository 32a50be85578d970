"""A trace of some steps, for TensorBoard's profiler or Perfetto."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from bertjax.errors import UserError


class Profile:
    """Traces the steps FIRST to LAST of `steps` ('FIRST:LAST', '' for none) into a workdir.

    `close` however the run ends: a trace that is under way is written up to there, and `say` is
    told so.
    """

    def __init__(self, steps: str, workdir: str, say: Callable[[str], None]) -> None:
        self._steps, self._say = steps, say
        self._first, self._last = parse(steps)
        self._folder = os.path.join(workdir, "profile")
        self._on, self._traced, self._done = False, False, 0

    def before(self, done: int) -> None:
        """`done` steps are done and another one is about to run."""
        if not self._on and not self._traced and self._first <= done + 1 <= self._last:
            jax.profiler.start_trace(self._folder)
            self._on = self._traced = True
        self._done = done + 1

    def after(self, done: int, result: Any) -> None:
        """Step number `done` has been started; `result` is what it will give."""
        if self._on and done >= self._last:
            jax.block_until_ready(result)
            self._stop()

    def _stop(self) -> None:
        self._on = False
        jax.profiler.stop_trace()

    def close(self) -> None:
        """Write what has been traced where the run ends before step LAST; say if nothing has."""
        if self._last and not self._traced and self._done:
            self._say(
                f"warning: train.profile={self._steps}: no trace, since these steps were not among "
                f"those that ran (the last was {self._done})"
            )
        if self._on:
            self._say(f"train.profile={self._steps}: the trace ends with step {self._done}")
            self._stop()


def parse(steps: str) -> tuple[int, int]:
    """(first, last) of 'FIRST:LAST'; (0, 0) of ''."""
    if not steps:
        return 0, 0
    first, _, last = steps.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise UserError(f"config.train.profile={steps} is not FIRST:LAST, two rising step numbers")
    return int(first), int(last)
