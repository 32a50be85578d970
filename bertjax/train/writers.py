"""Where figures go: metrics.jsonl and TensorBoard files, written by one process."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from bertjax.errors import UserError

METRICS = "metrics.jsonl"


def cut_back(lines: list[str], step: int, evaluated: bool) -> list[str]:
    """The lines of metrics.jsonl that a run resumed at `step` would have written by then.

    Later steps go, and half lines; so do evaluations at `step` itself unless it was `evaluated`
    to the end, for they are made again. Lines are in the order of steps, so this is a cut.
    """
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            at, split = entry["step"], entry["split"]
        except (ValueError, KeyError, TypeError):
            return lines[:number]
        unfinished = at == step and split != "train" and not evaluated
        if not line.endswith("\n") or at > step or unfinished:
            return lines[:number]
    return lines


class Writers:
    """metrics.jsonl and TensorBoard files of a workdir, cut back to the step a run begins at.

    A remote workdir (gs://...) cannot be appended to: there metrics.jsonl is written whole at
    every `flush`, and there are no TensorBoard files.
    """

    def __init__(self, workdir: str, *, start_step: int, evaluated: bool) -> None:
        self._remote = "://" in workdir
        self._path = epath.Path(workdir) / METRICS
        self._board = None
        try:
            before = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
            self._lines = cut_back(before, start_step, evaluated)
            if len(self._lines) < len(before):
                self._replace()
            if not self._remote:
                # Kept open for the whole run; each line is one write.
                self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
                self._board = SummaryWriter(
                    os.path.join(workdir, "tensorboard"), purge_step=start_step + 1
                )
        except OSError as error:
            raise self._failed(error) from error

    def write(self, step: int, split: str, figures: Mapping[str, Any]) -> None:
        """Add one line {step, split, ...figures}; figures that are not finite become null."""
        finite = {k: v if math.isfinite(v) else None for k, v in figures.items()}
        line = json.dumps({"step": step, "split": split, **finite}) + "\n"
        try:
            if self._remote:
                self._lines.append(line)
            else:
                self._file.write(line)
                self._file.flush()
                for name, value in figures.items():
                    self._board.add_scalar(f"{split}/{name}", value, step)
        except OSError as error:
            raise self._failed(error) from error

    def flush(self) -> None:
        """Bring everything written so far to its place; called before a checkpoint is saved."""
        try:
            if self._remote:
                self._replace()
            else:
                os.fsync(self._file.fileno())
                self._board.flush()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if not self._remote:
            self._file.close()
            self._board.close()

    def _replace(self) -> None:
        text = "".join(self._lines)
        if self._remote:
            self._path.write_text(text)
            return
        temporary = f"{self._path}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)

    def _failed(self, error: OSError) -> UserError:
        return UserError(
            f"writing figures to {self._path} failed ({error.strerror or error}): free space or "
            "rights and run the same command again"
        )
