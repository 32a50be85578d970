"""Published checkpoints in and out: `read_checkpoint`, `initial_params`, `write_huggingface`."""

from __future__ import annotations

import os
import pathlib

from bertjax.errors import UserError
from bertjax.interop import google, huggingface, weights, workdir
from bertjax.interop.huggingface import write as write_huggingface
from bertjax.interop.published import Coverage, Published, checksum, initial_params
from bertjax.interop.vocabulary import extend_vocabulary

__all__ = [
    "Coverage",
    "Published",
    "checksum",
    "extend_vocabulary",
    "initial_params",
    "read_checkpoint",
    "write_huggingface",
]


def read_checkpoint(path: str, step: int | None = None) -> Published:
    """A checkpoint of any kind: what it is is seen from its files.

    Args:
        path: a bertjax workdir, its checkpoints or one step's folder; a Hugging Face folder or hub
            name; a Google TF1 prefix, .index file or folder.
        step: which step of a workdir; None takes the best by the task's metric if one is kept,
            else the last.

    Raises:
        UserError: nothing readable is there, or the files are damaged or contradict each other.
    """
    path = os.path.expanduser(path)
    local = _local(path)
    if workdir.is_workdir(path):
        return workdir.read(path, step)
    if step is not None:
        raise UserError(f"{path} is no bertjax workdir, so step={step} means nothing there.")
    if local.is_dir() and any((local / name).exists() for name in (weights.WEIGHTS, weights.INDEX)):
        return huggingface.read(path)
    if google.find_prefix(local) is not None:
        return google.read(path)
    if local.is_file() and local.name in (weights.WEIGHTS, weights.INDEX, "config.json"):
        return huggingface.read(str(local.parent))
    if local.is_file() and local.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        weights.refuse_pickle(local)
    if runs := workdir.runs_in(local):
        raise UserError(f"{path} holds several runs; name one: {', '.join(runs)}.")
    if workdir.saved_nothing(local):
        raise UserError(f"{path} is the workdir of a run that has saved no checkpoint.")
    if local.exists() and not local.is_dir():
        raise UserError(f"{path} is a file that is no checkpoint; name the checkpoint's folder.")
    return huggingface.read(path)


def _local(path: str) -> pathlib.Path:
    """`path` in the file system, whether anything is there or not.

    Raises:
        UserError: no path at all, or one of a kind of storage that cannot be opened here.
    """
    if not path.strip():
        raise UserError("the checkpoint's path is empty; name a folder, a file or a hub name.")
    try:
        local = pathlib.Path(path).expanduser()
        local.exists()
        if "://" in path:
            workdir.is_workdir(path)
    except (OSError, RuntimeError, KeyError, ImportError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{path[:120]} cannot be opened ({reason}).") from error
    return local
