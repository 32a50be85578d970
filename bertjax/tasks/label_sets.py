"""Several labels at once: the cells of a table as sets of label names."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any

from bertjax.data.tables import Table
from bertjax.errors import UserError
from bertjax.tasks.labels import name_of

# Of a column, or of a list that marks labels by place.
_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
# A NumPy array of strings as text has blanks between them, and Python would join the strings.
_JOINED = re.compile(r"""(['"])\s+(['"])""")


def column_names(spec: str, table: Table) -> list[str]:
    """The columns of 'A,B,...', one for each label; none where the spec is one column."""
    names = [name.strip() for name in spec.split(",")]
    return names if len(names) > 1 and table.find(spec) is None else []


def of_columns(table: Table, names: Sequence[str], key: str) -> list[tuple[str, ...]]:
    """The labels of each row where every label has a column of zeros and ones.

    Raises:
        UserError: no such column, or a cell that is neither.
    """
    rows: list[list[str]] = [[] for _ in table.rows]
    for name in names:
        for row, value, place in zip(rows, table.column(name, key), table.places, strict=True):
            mark = _MARKS.get(name_of(value).lower())
            if mark is None:
                raise UserError(
                    f"{table.source}, {place}: {value!r:.40} in column '{name}' is neither 0 nor 1"
                )
            if mark:
                row.append(name)
    return [tuple(row) for row in rows]


def of_cells(table: Table, values: Sequence[Any]) -> list[tuple[str, ...]]:
    """The labels of each cell: a list, one written as in JSON or Python, or a text with commas.

    Raises:
        UserError: a cell of another form, or rows of zeros and ones, which name nothing.
    """
    parts = [
        _parts(value, f"{table.source}, {place}")
        for value, place in zip(values, table.places, strict=True)
    ]
    sets = [
        tuple(name for part in row if part is not None and (name := name_of(part))) for row in parts
    ]
    alike = len(set(map(len, sets))) == 1 and len(sets[0]) > 1
    if alike and {name.lower() for row in sets for name in row} <= set(_MARKS):
        raise UserError(
            f"{table.source}, {table.places[0]}: {values[0]!r:.40} marks labels by place: list "
            "their names instead, or give each label a column and name them all, "
            "config.data.label_column=A,B,..."
        )
    odd = sorted({name for row in sets for name in row if re.search(r"[;|\[\]{}\"]", name)})
    if odd:
        table.notes.append(
            f"warning: {table.source}: '{odd[0]}' is one label: only commas and lists divide them"
        )
    return sets


def _parts(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, list):
        return value
    text = name_of(value)
    if text == "set()":  # how Python writes the empty one
        return []
    if not isinstance(value, dict) and text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return text.split(",")
    found = None if isinstance(value, dict) or _JOINED.search(text) else _literal(text)
    if isinstance(found, list | tuple | set):
        return sorted(found, key=str) if isinstance(found, set) else found
    if text.startswith("(") and "," not in text:
        return [text]
    raise UserError(
        f"{where}: {text:.60} is no list of labels: write ['a', 'b'], or a, b, the names of those "
        "that hold"
    )


def _literal(text: str) -> Any:
    """The value that a text spells in JSON or Python; None where it spells none."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return parse(text)
    return None
