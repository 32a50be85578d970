"""Files that are replaced in one step, so that a kill leaves the old one or the new one."""

from __future__ import annotations

import os

from etils import epath

from bertjax.errors import UserError


def write_text(folder: str, name: str, text: str) -> None:
    """Write one file of a folder, which is made where it is missing. UserError where it cannot."""
    path = epath.Path(folder) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error})") from error


def replace_text(path: epath.Path, text: str) -> None:
    """Write a UTF-8 file in one step: whoever reads it, even after a crash, has all of it or the
    one before."""
    if "://" in os.fspath(path):  # an object store replaces objects in one step
        path.write_text(text)
        return
    temporary = f"{os.fspath(path)}.tmp"
    with open(temporary, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
