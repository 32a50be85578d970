"""Labelled data, a row an example: what the readers of its forms share.

A source is a file or `tfds:NAME/CONFIG:SPLIT` or `hub:ORG/NAME/CONFIG:SPLIT`. Nothing is dropped
in silence: a row that cannot be read is an error that names its line, and what was decided or
skipped is told in the reader's notes. `tables.py` reads columns, `sentences.py` labelled words,
`questions.py` questions to a context.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from bertjax.errors import UserError

DATASETS = ("tfds:", "hub:")
OBJECTS = (".jsonl", ".ndjson")  # files with a JSON object a line
JSON = (*OBJECTS, ".json")
_SURROGATE = re.compile("[\ud800-\udfff]")


def is_dataset(source: str) -> bool:
    """Whether a source names a dataset of a library and not a file."""
    return source.startswith(DATASETS)


def read_text(source: str) -> str:
    """The text of a UTF-8 file. UserError where there is none, or at which byte it is not UTF-8."""
    path = epath.Path(source).expanduser()
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"no file {source}: give a file, tfds:NAME:SPLIT or hub:NAME:SPLIT"
        ) from None
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 at byte {error.start}: convert it") from None


def lines_of(text: str) -> list[str]:
    """Lines that end at LF or CRLF alone: other separators of Unicode are text."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def parsed(text: str, where: str) -> Any:
    """The value that JSON text spells.

    Raises:
        UserError: half a surrogate pair in it, which JSON can spell and no file of text can hold.
        ValueError: it is no JSON.
    """
    value = json.loads(text)
    if "\\ud" in text.lower() and (
        half := _SURROGATE.search(json.dumps(value, ensure_ascii=False))
    ):
        raise UserError(
            f"{where}: half a surrogate pair, \\u{ord(half[0]):04x} (an emoji that was cut?): "
            "remove it, or put \\ufffd in its place"
        )
    return value


def objects(source: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of `text` that is not blank. UserError for one that is none."""
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        try:
            value = parsed(line, f"{source}, line {number}")
        except ValueError as error:
            raise UserError(f"{source}, line {number}: no JSON ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{source}, line {number}: a JSON object is needed, {{...}}")
        yield f"line {number}", value


def listed_objects(source: str, text: str) -> list[tuple[str, dict[str, Any]]]:
    """(place, object) of each object of a JSON list. UserError where it is something else."""
    try:
        rows = parsed(text, source)
    except ValueError as error:
        raise UserError(f"{source} is no JSON ({error})") from None
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{source} is no list of JSON objects, [{{...}}, ...]")
    return [(f"row {number}", row) for number, row in enumerate(rows)]


def dataset_rows(source: str) -> list[dict[str, Any]]:
    """Every row of a TFDS or hub split, with classes by name; class -1 (hidden) is None."""
    from bertjax.data import dataset_sources

    return [
        {name: _plain(value) for name, value in row.items()}
        for row in dataset_sources.labelled_rows(source)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value
