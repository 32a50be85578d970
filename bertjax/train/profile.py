"""A trace of some steps, for TensorBoard's profiler or Perfetto."""

from __future__ import annotations

import os
from typing import Any

import jax

from bertjax.errors import UserError


class Profile:
    """Traces the steps FIRST to LAST of `steps` ('FIRST:LAST', '' for none) into a workdir."""

    def __init__(self, steps: str, workdir: str) -> None:
        self._first, self._last = parse(steps)
        self._folder = os.path.join(workdir, "profile")
        self._on = False

    def before(self, done: int) -> None:
        """`done` steps are done and another one is about to run."""
        if done + 1 == self._first:
            jax.profiler.start_trace(self._folder)
            self._on = True

    def after(self, done: int, result: Any) -> None:
        """Step number `done` has been started; `result` is what it will give."""
        if self._on and done >= self._last:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
            self._on = False


def parse(steps: str) -> tuple[int, int]:
    """(first, last) of 'FIRST:LAST'; (0, 0) of ''."""
    if not steps:
        return 0, 0
    first, _, last = steps.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise UserError(f"train.profile={steps} is not FIRST:LAST, two rising step numbers")
    return int(first), int(last)
