"""What a person sees of a run: a progress bar with the time left on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import IO

from rich import console, progress


def duration(seconds: float) -> str:
    """3 h 05 min, 4 min 10 s or 12 s."""
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
    if seconds >= 60:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds} s"


def figures_text(figures: Mapping[str, float]) -> str:
    """One line of figures: 'loss 7.02  learning_rate 1e-04  tokens_per_second 12,345'."""

    def show(value: float) -> str:
        if abs(value) >= 1000:
            return f"{value:,.0f}"
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"

    return "  ".join(f"{name} {show(value)}" for name, value in figures.items())


class Progress:
    """Says lines and, on a terminal, keeps a bar of `total` steps (0: none) below them.

    Silent where `stream` is None.
    """

    def __init__(self, stream: IO[str] | None, total: int = 0, start: int = 0) -> None:
        self._stream = stream
        self._bar: progress.Progress | None = None
        if stream is not None and stream.isatty() and total > 0:
            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[left]}"),
                console=console.Console(file=stream),
            )
            self._task = self._bar.add_task("training", total=total, completed=start, left="")
            self._bar.start()

    def say(self, text: str) -> None:
        """A line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self._stream is not None:
            print(text, file=self._stream, flush=True)

    def step(self, step: int, seconds_left: float | None) -> None:
        """`step` steps are done."""
        if self._bar is not None:
            left = "" if seconds_left is None else f"{duration(seconds_left)} left"
            self._bar.update(self._task, completed=step, left=left)

    def doing(self, what: str) -> None:
        """What the bar is called from now on: training, evaluating, saving."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


class Meter:
    """Real tokens and useful FLOPs a second, and seconds a step, of the time that training itself
    takes.

    Args:
        peak_flops: FLOP/s of the devices, what `flops_share` is a share of.
    """

    def __init__(self, peak_flops: float = math.inf) -> None:
        self._tokens = self._flops = self._steps = self._all_tokens = 0
        self._busy = self._all_busy = 0.0
        self._peak_flops = peak_flops
        self._since = time.monotonic()
        self.seconds_per_step = 0.0

    def restart(self) -> None:
        """Leave out the time since the last step: it went into a compile or an evaluation."""
        self._since = time.monotonic()

    def add(self, tokens: int, flops: int = 0) -> None:
        """A step of so many tokens and useful FLOPs is done."""
        now = time.monotonic()
        taken, self._since = now - self._since, now
        self._busy += taken
        self._tokens += tokens
        self._flops += flops
        self._all_busy += taken
        self._all_tokens += tokens
        smooth = min(0.98, self._steps / (self._steps + 1))
        self._steps += 1
        self.seconds_per_step = smooth * self.seconds_per_step + (1 - smooth) * taken

    def rates(self) -> dict[str, float]:
        """tokens_per_second, and flops_share where FLOPs are known, since this was last asked."""
        busy = max(self._busy, 1e-9)
        rates = {"tokens_per_second": self._tokens / busy}
        if self._flops:
            rates["flops_share"] = self._flops / busy / self._peak_flops
        self._tokens, self._flops, self._busy = 0, 0, 0.0
        return rates

    def summary(self) -> str:
        """Steps, time and rate since the start; '' without a step."""
        if not self._steps:
            return ""
        rate = self._all_tokens / max(self._all_busy, 1e-9)
        return f", {self._steps} steps in {duration(self._all_busy)}, {rate:,.0f} tokens/s"
