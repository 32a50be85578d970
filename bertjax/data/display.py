"""What a person sees of a preparation: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

from bertjax.data.reading import Reading


class Display(Protocol):
    """Something that shows how far a preparation is: called often, draws now and then."""

    def __call__(self, what: str, reading: Reading, total: int | None) -> None: ...

    def close(self) -> None: ...


class Bar:
    """A progress bar on standard error, with time left where the size is known."""

    def __init__(self) -> None:
        from rich import console, progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description:>12}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            console=console.Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}
        self._bar.start()

    def __call__(self, what: str, reading: Reading, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=reading.bytes_read)

    def close(self) -> None:
        self._bar.stop()


class Lines:
    """A plain line on standard error every ten seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._start = self._last = time.monotonic()

    def __call__(self, what: str, reading: Reading, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        share = f" of {total / 1e6:.0f}" if total else ""
        print(
            f"{what}: {reading.bytes_read / 1e6:.1f}{share} MB read, {now - self._start:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        pass


@contextlib.contextmanager
def display() -> Iterator[Display]:
    """A bar on a terminal, plain lines elsewhere."""
    shown: Display = Bar() if sys.stderr.isatty() else Lines()
    try:
        yield shown
    finally:
        shown.close()
