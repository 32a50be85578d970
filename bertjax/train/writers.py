"""Where figures go: metrics.jsonl and TensorBoard files, written by one process."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from bertjax.errors import UserError
from bertjax.files import replace_text

METRICS = "metrics.jsonl"
# It warns of each figure that is not finite; the run itself says so once.
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)


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


class TensorBoard:
    """One event file, written by the caller itself.

    tensorboardX's SummaryWriter writes in a thread whose errors, a full disk's among them, nobody
    sees; once it has died, the next figure but ten waits for ever.
    """

    def __init__(self, folder: str, start_step: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self._events = EventsWriter(os.path.join(folder, "events"), f".{os.getpid()}")
        # TensorBoard forgets what an earlier process wrote from this step on.
        session = SessionLog(status=SessionLog.START)
        self._write(Event(step=start_step + 1, session_log=session))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._events.write_event(event)

    def write(self, step: int, split: str, figures: Mapping[str, Any]) -> None:
        """One curve for each figure, named SPLIT/NAME."""
        for name, value in figures.items():
            self._write(Event(step=step, summary=scalar(f"{split}/{name}", value)))

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()


class Writers:
    """metrics.jsonl and TensorBoard files of a workdir, cut back to the step a run begins at.

    A remote workdir (gs://...) cannot be appended to: there metrics.jsonl is written whole at
    every `flush`, and there are no TensorBoard files.
    """

    def __init__(self, workdir: str, *, start_step: int, evaluated: bool) -> None:
        self._remote = "://" in workdir
        self._path = epath.Path(workdir) / METRICS
        self._failed = False
        try:
            before = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
            self._lines = cut_back(before, start_step, evaluated)
            if len(self._lines) < len(before):
                self._replace()
            if not self._remote:
                # Kept open for the whole run; each line is one write.
                self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115
                self._board = TensorBoard(os.path.join(workdir, "tensorboard"), start_step)
        except OSError as error:
            raise self._fail(error) from error

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
                self._board.write(step, split, figures)
        except OSError as error:
            raise self._fail(error) from error

    def flush(self) -> None:
        """Bring everything written so far to its place; called before a checkpoint is saved."""
        try:
            if self._remote:
                self._replace()
            else:
                os.fsync(self._file.fileno())
                self._board.flush()
        except OSError as error:
            raise self._fail(error) from error

    def close(self) -> None:
        """Flush and close; after a failure, whatever can still be closed."""
        if not self._failed:
            self.flush()
        if not self._remote:
            for file in (self._file, self._board):
                with contextlib.suppress(OSError):
                    file.close()

    def _replace(self) -> None:
        replace_text(self._path, "".join(self._lines))

    def _fail(self, error: OSError) -> UserError:
        self._failed = True
        return UserError(
            f"writing figures to {self._path} failed ({error.strerror or error}): free space or "
            "rights and run the same command again"
        )
