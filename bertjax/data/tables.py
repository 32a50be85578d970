"""Labelled data in columns: TSV, CSV, JSONL, TFDS, the hub."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from bertjax.data.labelled import (
    JSON,
    dataset_rows,
    is_dataset,
    lines_of,
    listed_objects,
    objects,
    read_text,
)
from bertjax.errors import UserError

# The parts of a header that people give to the columns of labelled text.
_KNOWN_COLUMNS = {
    "id", "index", "idx", "label", "labels", "sentence", "sentence1", "sentence2", "text", "text_a",
    "text_b", "question", "question1", "question2", "premise", "hypothesis", "score", "category",
}  # fmt: skip
_NAME_CHARACTERS, _NAME_WORDS = 40, 3


@dataclasses.dataclass
class Table:
    """Rows of named columns.

    Attributes:
        source: what it was read from.
        columns: names; '0', '1', ... where there is no header.
        named: whether the columns have names of their own.
        rows: values in the order of the columns; strings, and lists where JSON has them.
        places: where each row stands, for messages: 'line 7'.
        notes: what was decided and what was met.
    """

    source: str
    columns: tuple[str, ...]
    named: bool
    rows: list[Sequence[Any]]
    places: list[str]
    notes: list[str]

    def find(self, spec: str) -> int | None:
        """The number of the column that `spec` means: a name or a number from 0, negative from
        the end; 'A|B' is the first that is there. None where none is."""
        for name in spec.split("|"):
            if name in self.columns:
                return self.columns.index(name)
            if re.fullmatch(r"-?\d+", name) and not (self.named and "|" in spec):
                number = int(name)
                if -len(self.columns) <= number < len(self.columns):
                    return number % len(self.columns)
        return None

    def column(self, spec: str, key: str) -> list[Any]:
        """The values of a column; `key` is the config key that named it.

        Raises:
            UserError: no such column, or a row that is too short for it.
        """
        number = self.find(spec)
        if number is None:
            have = ", ".join(self.columns)
            kind = "columns" if self.named else "columns (no header: they are numbered)"
            raise UserError(
                f"{self.source} has no column '{spec}': set config.{key} to one of its {kind}, "
                f"{have}{self._separator_hint()}"
            )
        last = key == "data.label_column" and number == len(self.columns) - 1
        for row, place in zip(self.rows, self.places, strict=True):
            if last and any(str(cell).strip() for cell in row[len(self.columns) :]):
                raise UserError(
                    f"{self.source}, {place}: {len(row)} fields where the first line has "
                    f"{len(self.columns)}, and the last one is the label: is there a separator "
                    "inside a text? (.csv can quote it, .jsonl needs not)"
                )
            if number >= len(row):
                raise UserError(
                    f"{self.source}, {place}: {len(row)} fields, but column "
                    f"'{self.columns[number]}' is number {number + 1}: complete or remove the row"
                )
        return [row[number] for row in self.rows]

    def _separator_hint(self) -> str:
        shown = self.columns[0] if self.named else str(self.rows[0][0])
        if len(self.columns) == 1 and ";" in shown and self.source.endswith(".csv"):
            return " (in a .csv fields are separated by commas, not by semicolons)"
        return ""


def read_table(
    source: str,
    *,
    header: str = "auto",
    named: Sequence[str] = (),
    like: Table | None = None,
    labels: Iterable[str] = (),
) -> Table:
    """A table from .csv, .jsonl (.ndjson), .json (a list of objects, or an object a line), a
    dataset, or else tab-separated values.

    Args:
        source: a file or a dataset.
        header: 'yes', 'no', or 'auto': decided by `looks_like_header`.
        named: the columns that will be asked for, which a header would hold.
        like: the training table of the same data; where this one's header is doubtful, that
            one's is not.
        labels: cells that no header has.

    Raises:
        UserError: nothing readable, or a row that is malformed.
    """
    if is_dataset(source):
        return _dataset(source)
    kind = epath.Path(source).suffix.lower()
    text = read_text(source)
    if kind in JSON:
        return _json(source, text)
    notes: list[str] = []
    rows = _csv_rows(source, text) if kind == ".csv" else _tsv_rows(source, text, notes)
    if not rows:
        raise UserError(f"{source} holds no row")
    if header == "auto":
        has_header = _has_header(source, [fields for _, fields in rows], named, like, labels)
        how = "as it looks; config.data.header=yes or no overrules"
    else:
        has_header, how = header == "yes", "as told"
    return _with_header(source, rows, notes, has_header, how)


def _tsv_rows(source: str, text: str, notes: list[str]) -> list[tuple[str, list[str]]]:
    """(place, fields); quotes are ordinary characters."""
    rows, blank = [], []
    for number, line in enumerate(lines_of(text), 1):
        if line:
            rows.append((f"line {number}", line.split("\t")))
        else:
            blank.append(number)
    if blank:
        notes.append(f"{source}: {len(blank)} blank lines are no rows (the first is {blank[0]})")
    return rows


def _csv_rows(source: str, text: str) -> list[tuple[str, list[str]]]:
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, line = [], 1
    try:
        for fields in reader:
            if fields:
                rows.append((f"line {line}", fields))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{source}, line {line}: {error}; quotes inside a quoted field are doubled"
        ) from None
    return rows


def looks_like_header(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns.

    Names are short, not numbers and not empty, all different. Beyond that one of them must be a
    usual name of a column, or head a column of repeated or numeric values where it occurs nowhere.
    """
    for cell in first:
        words = cell.split()
        if not words or len(cell) > _NAME_CHARACTERS or len(words) > _NAME_WORDS or _numeric(cell):
            return False
    if len(set(first)) < len(first):
        return False
    if _has_known_name(first, others):
        return True
    return _heads_numbers(first, others) or any(
        cell not in values and len(values) >= 4 and len(set(values)) * 2 <= len(values)
        for cell, values in _columns_below(first, others)
    )


def _has_known_name(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether a cell is a usual name of a column and no value of it: 'id' is a language, too."""
    return any(
        cell.strip().lower() in _KNOWN_COLUMNS and cell not in values
        for cell, values in _columns_below(first, others)
    )


def _has_header(
    source: str,
    rows: Sequence[Sequence[str]],
    named: Sequence[str],
    like: Table | None,
    labels: Iterable[str],
) -> bool:
    first = rows[0]
    asked = {part for spec in named for part in spec.split("|") if not re.fullmatch(r"-?\d+", part)}
    if asked & set(first) or (like is not None and like.named and tuple(first) == like.columns):
        return True
    if {cell.strip() for cell in first} & set(labels):
        return False
    known_name = _has_known_name(first, rows[1:])
    if known_name or like is not None:
        # Few rows say little: beside a training table only the usual names are believed.
        return known_name and looks_like_header(first, rows[1:])
    if not looks_like_header(first, rows[1:]):
        return False
    if any(len(cell.split()) > 1 for cell in first) and not _heads_numbers(first, rows[1:]):
        raise UserError(
            f"{source}: it is not clear whether its first line ({', '.join(first)}) names the "
            "columns or is a row whose label no other row has: set config.data.header=yes or no"
        )
    return True


def _heads_numbers(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether some column has numbers alone below its first cell, which is none."""
    columns = _columns_below(first, others)
    return any(
        values and not _numeric(cell) and all(map(_numeric, values)) for cell, values in columns
    )


def _columns_below(
    first: Sequence[str], others: Sequence[Sequence[str]]
) -> Iterator[tuple[str, list[str]]]:
    """Each cell of the first row with the values below it."""
    return ((cell, [row[i] for row in others if i < len(row)]) for i, cell in enumerate(first))


def _numeric(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _with_header(
    source: str,
    placed: list[tuple[str, list[str]]],
    notes: list[str],
    has_header: bool,
    how: str,
) -> Table:
    """The table; `how` says why its first row is, or is not, a header."""
    places, rows = [place for place, _ in placed], [fields for _, fields in placed]
    columns = tuple(map(str, range(len(rows[0]))))
    if has_header:
        columns, places, rows = tuple(rows[0]), places[1:], rows[1:]
        if not rows:
            raise UserError(f"{source} holds a header ({', '.join(columns)}) and no row")
    what = f"the first line is {'a header' if has_header else 'a row, not a header'} ({how})"
    notes.append(f"{source}: {len(rows):,} rows, columns {', '.join(columns)}; {what}")
    longer = [place for place, row in zip(places, rows, strict=True) if len(row) > len(columns)]
    if longer:
        notes.append(
            f"{source}: {len(longer)} rows have more than {len(columns)} fields (the first at "
            f"{longer[0]}); what is beyond is not read"
        )
    return Table(source, columns, has_header, rows, places, notes)


def _json(source: str, text: str) -> Table:
    """A list of objects, or an object a line."""
    if text.lstrip().startswith("["):
        placed = listed_objects(source, text)
    else:
        placed = list(objects(source, text))
    if not placed:
        raise UserError(f"{source} holds no row")
    return _from_objects(source, placed)


def _from_objects(source: str, placed: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    columns = tuple(dict.fromkeys(name for _, row in placed for name in row))
    for name in columns:
        missing = [place for place, row in placed if name not in row]
        if missing and len(missing) < len(placed) and name in placed[0][1]:
            raise UserError(f"{source}, {missing[0]}: no '{name}', which other rows have")
    rows = [tuple(row.get(name) for name in columns) for _, row in placed]
    notes = [f"{source}: {len(rows):,} rows, columns {', '.join(columns)}"]
    return Table(source, columns, True, rows, [place for place, _ in placed], notes)


def _dataset(source: str) -> Table:
    rows = dataset_rows(source)
    if not rows:
        raise UserError(f"{source} holds no row")
    return _from_objects(source, [(f"row {i}", row) for i, row in enumerate(rows)])
