"""A run's folder: who may write in it, which config it was made with, whether it is finished."""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from bertjax.errors import UserError
from bertjax.fields import flat
from bertjax.files import write_text

CONFIG = "config.json"
FINISHED = "finished.json"
_CORPUS, _HELD_OUT = "artifacts.corpus.", "artifacts.held_out."  # digests
_LABELLED = ("data.train", "data.validation", "data.test")  # paths
LOCK = ".lock"

# Config keys that may change when a run goes on; every other one would make it another run.
MAY_CHANGE = (
    "train.*", "checkpoint.*", "mesh.*", "init_from", "new_head", "encoder_only", "model.attention",
    "model.remat", "data.workers", "data.source", "data.vocab", "data.eval_batch_size",
)  # fmt: skip
# The data's own fingerprint is among the artifacts, so its path may change. Frozen layers have
# no moments: thawing them is another run. Other class weights are another loss; another metric, or
# other examples to evaluate (data.eval_examples), could not be compared with the best so far.
MAY_NOT_CHANGE = ("train.frozen_layers", "train.seeds", "train.class_weights", "train.metric")

T = TypeVar("T")


def on_first_process(function: Callable[[], T]) -> T | None:
    """Call `function` on process 0 alone; all processes fail if it fails there.

    Raises whatever it raises on process 0, and `UserError` on the others.
    """
    if jax.process_count() == 1:
        return function()
    result, error = None, None
    if jax.process_index() == 0:
        try:
            result = function()
        except Exception as caught:
            error = caught
    failed = bool(multihost_utils.broadcast_one_to_all(np.int32(error is not None)))
    if error is not None:
        raise error
    if failed:
        raise UserError("process 0 has stopped the run; its own message says why")
    return result


def from_first_process(function: Callable[[], T]) -> T:
    """As `on_first_process`, and every process gets the value, which must be one of JSON.

    Over JSON, as others get it, keys are texts and tuples are lists.
    """
    value = on_first_process(function)
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    same = text if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return json.loads(multihost_utils.broadcast_one_to_all(same).tobytes())


def lock(workdir: str) -> IO[str] | None:
    """Hold the workdir until the returned file is closed; `UserError` if another run does.

    The lock is the kernel's, so it ends with its process however that dies. Object stores have
    none (None is returned): two runs in one remote workdir are not noticed.
    """
    if "://" in workdir:
        return None
    path = os.path.join(workdir, LOCK)
    try:
        os.makedirs(workdir, exist_ok=True)
        # lockf, not flock: a forked worker that outlives the run must not keep the lock.
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write in the workdir {workdir} ({error.strerror})") from error
    _take(file, workdir)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _take(file: Any, workdir: str) -> None:
    deadline = time.monotonic() + 3  # a killed run may take a moment to be gone
    while True:
        try:
            return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                file.seek(0)
                owner = file.read(200).strip() or "another process"
                raise UserError(
                    f"the workdir {workdir} is in use by {owner}: wait for it, or choose another "
                    "--workdir"
                ) from None
        except OSError as error:
            raise UserError(f"cannot lock {workdir} ({error.strerror})") from error
        time.sleep(0.1)


def compare_configs(
    saved: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Any, Any]]]:
    """What differs between two nested configs, as dotted key -> (saved, new).

    Returns (refused, said): those that would make another run of this one, and those that may
    change while a run goes on. Keys that only one of them has are of another version: no
    difference.
    """
    before, after = flat(saved), flat(json.loads(json.dumps(new)))
    refused: dict[str, tuple[Any, Any]] = {}
    said: dict[str, tuple[Any, Any]] = {}
    for key in before.keys() & after.keys():
        if before[key] != after[key]:
            free = any(fnmatch.fnmatch(key, pattern) for pattern in MAY_CHANGE)
            where = said if free and key not in MAY_NOT_CHANGE else refused
            where[key] = (before[key], after[key])
    return dict(sorted(refused.items())), dict(sorted(said.items()))


def read_config(workdir: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(config, artifacts) of a workdir as nested dicts, None where there are none yet."""
    path = epath.Path(workdir) / CONFIG
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        return content["config"], content["artifacts"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a config that bertjax has written ({error!r}); a published model's "
            "folder becomes a workdir by python -m bertjax.convert --format=orbax"
        ) from error


def check_config(
    workdir: str,
    config: Mapping[str, Any],
    artifacts: Mapping[str, Any],
    say: Callable[[str], None],
) -> None:
    """Compare the config of a run that goes on with the one that it began with.

    Raises `UserError` that lists the differences under which it must not go on.
    """
    saved = read_config(workdir)
    if saved is not None:
        refused, said = compare_configs(saved[0], config)
        refused |= compare_configs({"artifacts": saved[1]}, {"artifacts": artifacts})[0]
        now = json.loads(json.dumps(artifacts))
        if all(key in now and now[key] == saved[1].get(key) for key in ("data", "held_out")):
            # The same examples, wherever they lie now.
            said |= {key: refused.pop(key) for key in _LABELLED if key in refused}

        def listed(differences: Mapping[str, tuple[Any, Any]]) -> str:
            parts = {
                _digest_of(key) or f"{key}: {_short(a)} -> {_short(b)}": None
                for key, (a, b) in differences.items()
            }
            return ", ".join(parts)

        if refused:
            held_out = all(
                key in ("data.validation", "data.test") or key.startswith(_HELD_OUT)
                for key in refused
            )
            raise UserError(
                f"the run in {workdir} was made with another config ({listed(refused)}): take its "
                f"values, or another --workdir{', or --mode=evaluate' if held_out else ''}"
            )
        if said:
            say(f"the config has changed since this run began: {listed(said)}")


def _digest_of(key: str) -> str:
    """What a digest is of, which itself tells a person nothing; '' for another key."""
    if key.startswith(_CORPUS):
        return "another prepared corpus"
    if key.startswith(_HELD_OUT):
        return f"the {key.removeprefix(_HELD_OUT)} data are others"
    if key == "artifacts.vocab":
        return "another vocabulary"
    return "the training data are others" if key == "artifacts.data" else ""


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def write_json(workdir: str, name: str, content: Any) -> None:
    """Write one JSON file of a workdir; see `files.write_text`."""
    write_text(workdir, name, json.dumps(content, indent=2) + "\n")


def read_finished(workdir: str) -> dict[str, Any] | None:
    """{'step', 'scored', 'results', 'summary', 'stopped'} of a finished run, else None.

    'scored' is the step whose parameters have the results.
    'stopped' is None, or {'patience', 'eval_every'} of a run that train.patience has ended.
    """
    path = epath.Path(workdir) / FINISHED
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
