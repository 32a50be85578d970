"""A cell on disk: its folder, what it was made with, its run as a process of its own, its end.

DIR/cells/NAME/cell.json    the cell's config and how it stands
DIR/cells/NAME/cell.log     what its process printed
DIR/cells/NAME/...          the workdir that `python -m bertjax.main` makes of it
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from bertjax.ablate.grid import Cell, Values
from bertjax.data.store import FINGERPRINT
from bertjax.errors import UserError
from bertjax.train import workdir as workdirs

FOLDER, FILE, LOG = "cells", "cell.json", "cell.log"
WAITING, FINISHED, FAILED, INTERRUPTED = "waiting", "finished", "failed", "interrupted"
PLACEHOLDER = "{workdir}"
_WEIGHTS = (".safetensors", ".bin", ".index")  # files of published checkpoints
# Keys in which a cell may differ from its earlier start: none of them changes its figures.
MAY_CHANGE = (
    "checkpoint.*", "mesh.*", "model.remat", "data.workers", "train.log_every", "train.profile",
    "train.compile_cache", "data.eval_batch_size",
)  # fmt: skip


def path_of(workdir: str, name: str) -> pathlib.Path:
    """The folder of a cell."""
    return pathlib.Path(workdir) / FOLDER / name


def read(folder: pathlib.Path) -> dict[str, Any] | None:
    """{'config', 'state', 'sentence', 'seconds'} of a cell's folder, None where it is no cell."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return {"state": WAITING, "sentence": "", "seconds": 0.0} | content
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UserError(f"{folder / FILE} is damaged ({error}): delete {folder}") from error


def read_config(folder: str) -> Values:
    """The config in a cell's folder, with the paths inside its ablation filled in, absolute."""
    path = pathlib.Path(folder)
    content = read(path)
    if content is None:
        raise UserError(f"{folder} is no cell of an ablation: it has no {FILE}")
    workdir = str(path.absolute().parent.parent)
    return {
        key: value.replace(PLACEHOLDER, workdir) if isinstance(value, str) else value
        for key, value in content["config"].items()
    }


def write(workdir: str, cell: Cell, **how: Any) -> None:
    """Write a cell's file: its config, and of `how` it stands what is given."""
    folder = path_of(workdir, cell.name)
    before = read(folder) or {}
    if not _begun(folder):
        before["data"] = data_digests(cell.config)
    folder.mkdir(parents=True, exist_ok=True)
    workdirs.write_json(str(folder), FILE, before | {"config": cell.config} | how)


def _begun(folder: pathlib.Path) -> bool:
    """Whether something in a cell's folder was learnt from its data."""
    return (folder / workdirs.FINISHED).exists() or any((folder / "checkpoints").glob("*"))


def data_digests(config: Values) -> dict[str, str]:
    """Digests of what a config names on this machine, by its key: each file of labelled data, a
    prepared corpus by its fingerprint, the files and steps of a checkpoint by their names and
    sizes."""
    keys = ("data.train", "data.validation", "data.test", "data.source")
    paths = {key: pathlib.Path(str(config.get(key, ""))) for key in keys}
    paths["data.source"] /= FINGERPRINT
    found = {key: (path, path.stat()) for key, path in paths.items() if path.is_file()}
    digests = {k: _file_digest(path, x.st_size, x.st_mtime_ns) for k, (path, x) in found.items()}
    start = config.get("init_from")
    if start and pathlib.Path(start).is_dir():
        digests["init_from"] = _start_digest(pathlib.Path(start))
    return digests


def _start_digest(folder: pathlib.Path) -> str:
    """Of the names and sizes of a checkpoint's files, and the steps of a workdir."""
    files = (p for p in folder.iterdir() if p.suffix in _WEIGHTS or ".data-" in p.name)
    listed = [(p.name, p.stat().st_size) for p in files]
    listed += [(p.name, 0) for p in (folder / "checkpoints").glob("*") if p.name.isdigit()]
    return hashlib.sha256(repr(sorted(listed)).encode()).hexdigest()[:16]


@functools.cache  # many cells share a file
def _file_digest(path: pathlib.Path, size: int, changed: int) -> str:
    del size, changed  # another file under the same name
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def check_unchanged(workdir: str, cells: list[Cell]) -> list[str]:
    """Names of cells in the folder that are not in `cells`.

    Raises:
        UserError: a cell of the same name was begun with another config, whose differences are
            named, or with other data in a file.
    """
    for cell in cells:
        before = read(path_of(workdir, cell.name))
        if before is None:
            continue
        differ = {
            key: (before["config"][key], value)
            for key, value in cell.config.items()
            if key in before["config"]
            and before["config"][key] != value
            and not any(fnmatch.fnmatch(key, pattern) for pattern in MAY_CHANGE)
        }
        now = data_digests(cell.config)
        changed = [
            k for k, digest in before.get("data", {}).items() if now.get(k, digest) != digest
        ]
        if changed and _begun(path_of(workdir, cell.name)):
            raise UserError(
                f"{cell.config[changed[0]]} (config.{changed[0]}) has changed since the cell "
                f"{cell.name} in {workdir} began: put it back, or take another --workdir"
            )
        if differ and _begun(path_of(workdir, cell.name)):
            listed = ", ".join(f"{k}: {a!r} -> {b!r}" for k, (a, b) in differ.items())
            raise UserError(
                f"the cell {cell.name} in {workdir} was made with another config ({listed}): take "
                "its values, or another --workdir"
            )
    known = {cell.name for cell in cells}
    root = pathlib.Path(workdir) / FOLDER
    found = sorted(path.parent.name for path in root.glob(f"*/{FILE}"))
    return [name for name in found if name not in known]


def is_finished(workdir: str, name: str) -> bool:
    """Whether the run of a cell has come to its end."""
    return workdirs.read_finished(str(path_of(workdir, name))) is not None


class Stop:
    """While entered, a first SIGTERM or SIGINT goes on to the running cell and is remembered."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.process: subprocess.Popen | None = None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is None:
            self.signal = number
            self.forward()

    def forward(self) -> None:
        """Send the remembered signal to the cell that runs, if there is one."""
        if self.signal is not None and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(self.signal)

    @contextlib.contextmanager
    def entered(self) -> Iterator[Stop]:
        before = {n: signal.signal(n, self._remember) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(workdir: str, cell: Cell, environment: Mapping[str, str], stop: Stop) -> str:
    """Train a cell in a process of its own, or go on with it; returns its state.

    A process that ends badly ends alone: its sentence is kept in the cell's file.

    Raises:
        UserError: another process is training the cell.
    """
    folder = path_of(workdir, cell.name)
    seconds = (read(folder) or {}).get("seconds", 0.0)
    # The process of an ablation that was killed may be training yet: no other cell beside it.
    with contextlib.closing(workdirs.lock(str(folder))):
        pass
    write(workdir, cell, state=INTERRUPTED, sentence="")  # what a kill of this process leaves
    began = time.monotonic()
    with open(folder / LOG, "ab") as log:
        start = log.tell()
        stop.process = subprocess.Popen(
            [sys.executable, "-m", "bertjax.main", config_flag(folder), f"--workdir={folder}"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        stop.forward()  # a signal that came before there was a process to pass it to
        code = stop.process.wait()
        stop.process = None
    if code == 0 and is_finished(workdir, cell.name):
        state, sentence = FINISHED, ""
    elif stop.signal is not None:
        state, sentence = INTERRUPTED, "goes on from its last checkpoint"
    else:
        state, sentence = FAILED, failure(code, _tail(folder / LOG, start))
    seconds += time.monotonic() - began
    write(workdir, cell, state=state, sentence=sentence, seconds=round(seconds, 1))
    return state


def config_flag(folder: pathlib.Path) -> str:
    """The flag that gives a front door the config of a cell's folder."""
    return f"--config={pathlib.Path(__file__).with_name('cell.py')}:{folder}"


def failure(code: int, log: str) -> str:
    """One sentence on why a process ended with `code`, from what it printed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if code == 2 and errors:
        return errors[-1]
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGKILL:
        return "killed (signal 9), as the system does when memory runs out"
    if number:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(number).name}"
    told = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    last = (told or lines or ["it printed nothing"])[-1]
    return f"exit code {code}: {last[:300]}"


def _tail(path: pathlib.Path, start: int, size: int = 200_000) -> str:
    with open(path, "rb") as file:
        file.seek(max(start, os.path.getsize(path) - size))
        return file.read().decode("utf-8", "replace")
