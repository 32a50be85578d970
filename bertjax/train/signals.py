"""SIGTERM and SIGINT, turned into a question that the loop asks between two steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils

_MESSAGE = b"stopping: the last finished step is being saved\n"


class StopSignals:
    """While entered, a first SIGTERM or SIGINT is remembered and further ones do nothing.

    One process: Python handlers, which run when a compile or a step has returned. Several: JAX's
    preemption service catches SIGTERM and makes all processes stop at the same question, whichever
    of them got the signal; a Python SIGTERM handler would disable it, so only SIGINT is caught
    here and passed on as SIGTERM.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._stopping = False
        self._questions = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            mine = (signal.SIGINT,) if jax.process_count() > 1 else (signal.SIGINT, signal.SIGTERM)
            self._before = {number: signal.signal(number, self._remember) for number in mine}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if self._signal == number and isinstance(outer, StopSignals):
                outer._signal = number  # it came when this one asked no more

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._signal is not None:
            return
        self._signal = number
        os.write(2, b"\n" * os.isatty(2) + _MESSAGE)  # print is not safe inside a handler
        if jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def due(self) -> bool:
        """Whether to stop now. Every process asks equally often; all get True at the same time."""
        if not self._stopping and jax.process_count() > 1:
            self._questions += 1
            self._stopping = multihost_utils.reached_preemption_sync_point(self._questions)
            if self._stopping and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif self._signal is not None:
            self._stopping = True
        return self._stopping

    @property
    def pending(self) -> bool:
        """Whether a signal has come to this process."""
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for SIGINT."""
        return 128 + (self._signal or signal.SIGTERM)
