"""manifest.json: what a checkpoint says of itself, and the proof that it is what was saved."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files import replace_text

NAME = "manifest.json"
# Orbax rewrites this file during the commit. It holds times and versions, nothing that is read
# here, and is only asked to be whole JSON.
_REWRITTEN = "_CHECKPOINT_METADATA"
# Written last of all; object stores, which cannot rename, have nothing else to show a commit.
COMMITTED = "commit_success.txt"
_BLOCK = 1 << 22


class Damaged(UserError):
    """A checkpoint whose files are not those that were saved."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int
    metrics: dict[str, float]  # 'SPLIT/NAME' of the evaluation at this step, if there was one
    arrays: dict[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
    files: dict[str, tuple[int, str]]  # path in the folder -> bytes, SHA-256

    def write(self, folder: epath.Path) -> None:
        """Write manifest.json, atomically where it replaces another one."""
        body = dataclasses.asdict(self)
        text = json.dumps({"digest": _digest_of(body), **body})
        replace_text(folder / NAME, text)

    @classmethod
    def read(cls, folder: epath.Path) -> Manifest:
        """Read and verify manifest.json itself; raises `Damaged`."""
        try:
            body = json.loads((folder / NAME).read_text())
            digest = body.pop("digest")
            if digest != _digest_of(body):
                raise ValueError("its digest differs")
            return cls(
                step=body["step"],
                metrics=body["metrics"],
                arrays={k: (d, tuple(s)) for k, (d, s) in body["arrays"].items()},
                files={k: (size, sha) for k, (size, sha) in body["files"].items()},
            )
        except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise Damaged(
                f"checkpoint {folder} is damaged: {NAME} is missing or unreadable ({error})"
            ) from error


def _digest_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def file_digest(path: epath.Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def files_below(folder: epath.Path) -> Iterator[str]:
    """Relative paths of all files below a checkpoint folder that a manifest vouches for."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from (f"{entry.name}/{below}" for below in files_below(entry))
        elif entry.name not in (NAME, COMMITTED):
            yield entry.name


def verify(folder: epath.Path) -> Manifest:
    """Compare every file of a checkpoint with its manifest; raises `Damaged` naming the file."""
    manifest = Manifest.read(folder)
    for name, expected in manifest.files.items():
        try:
            found = file_digest(folder / name)
            if name == _REWRITTEN:
                json.loads((folder / name).read_bytes())
                continue
        except FileNotFoundError:
            raise Damaged(f"checkpoint {folder} is damaged: {name} is missing") from None
        except ValueError:
            raise Damaged(f"checkpoint {folder} is damaged: {name} is no JSON") from None
        if found != expected:
            how = "has another size" if found[0] != expected[0] else "has other contents"
            raise Damaged(f"checkpoint {folder} is damaged: {name} {how} than when it was saved")
    return manifest
