"""Labelled words: CoNLL columns, and JSONL or datasets with lists of words and labels."""

from __future__ import annotations

import dataclasses
import re

from etils import epath

from bertjax.data.labelled import JSON, is_dataset, lines_of, read_text
from bertjax.data.tables import read_table
from bertjax.errors import UserError

_DOCUMENT = "-DOCSTART-"  # begins the line between two documents
# universaldependencies.org/format.html: ids of words, ranges of words and empty nodes
_CONLLU_COLUMNS, _CONLLU_ID = 10, re.compile(r"\d+([-.]\d+)?")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words and their labels (None: not labelled); sentences in a row with the same `document` are
    of one document (None: the source does not say)."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    place: str
    document: int | str | None = None


def read_conll(
    source: str, word_column: str, label_column: str
) -> tuple[list[Sentence], list[str]]:
    """Sentences of a file with a word a line, columns by tabs or blanks, and the notes.

    A line of white space ends a sentence; -DOCSTART- begins a document, or where there is none two
    such lines in a row. A line that begins with '#' is a comment if it has another number of
    columns than the first one without, or if it stands, with a blank after it, before a sentence
    and its label is no other line's. Of CoNLL-U's ten columns, ranges of words and empty nodes are
    left out. Columns are numbers, negative from the end. A file whose lines have one column has no
    labels.

    Raises:
        UserError: a line with another number of columns, or without a label.
    """
    text = read_text(source)
    lines_read = lines_of(text)
    some = (x.strip() for x in lines_read[:200] if not x.startswith(("# ", _DOCUMENT)))
    split_tabs = any("\t" in line for line in some)
    sentences: list[Sentence] = []
    words: list[str] = []
    labels: list[str] = []
    begin, comments, ranges, blanks = 1, 0, 0, 0
    started = any(line.startswith(_DOCUMENT) for line in lines_read)
    document = 0

    def end() -> None:
        if words:
            tags = tuple(labels) if labels else None
            sentences.append(Sentence(tuple(words), tags, f"line {begin}", document))
            words.clear()
            labels.clear()

    lines = [_fields(line, split_tabs) for line in lines_read]
    rows = [fields for fields in lines if fields and not fields[0].startswith(_DOCUMENT)]
    plain = [fields for fields in rows if not fields[0].startswith("#")]
    width = len((plain or rows or [[]])[0])
    used = {"#", *(_label(fields, label_column, width) for fields in plain)}
    conllu = width == _CONLLU_COLUMNS and all(_CONLLU_ID.fullmatch(row[0]) for row in plain)
    for number, fields in enumerate(lines, 1):
        if not fields or fields[0].startswith(_DOCUMENT):
            end()
            blanks = 0 if fields else blanks + 1
            document += bool(fields) or (not started and blanks == 2)
            continue
        if fields[0].startswith("#") and (
            len(fields) != width
            or (not words and lines_read[number - 1].startswith("# ")
                and _label(fields, label_column, width) not in used)
        ):  # fmt: skip
            comments += 1
            continue
        if conllu and not fields[0].isdigit():
            ranges += 1
            continue
        if not words:
            begin, blanks = number, 0
        if len(fields) != width:
            raise UserError(
                f"{source}, line {number}: {len(fields)} column(s) where others have {width}: "
                "mend the line (a word with blanks in it needs tabs between all columns), or leave "
                "it blank to end the sentence"
            )
        words.append(fields[_column(word_column, width, source)].strip(" "))
        if width > 1:
            labels.append(fields[_column(label_column, width, source)].strip(" "))
            if not labels[-1]:
                raise UserError(f"{source}, line {number}: no label: give the word one (O if none)")
    end()
    if not sentences:
        raise UserError(f"{source} holds no sentence")
    if not started and len({sentence.document for sentence in sentences}) == 1:
        sentences = [dataclasses.replace(sentence, document=None) for sentence in sentences]
    count = sum(len(sentence.words) for sentence in sentences)
    by = "tabs" if split_tabs else "blanks"
    found = f"{len(sentences):,} sentences, {count:,} words, {width} columns by {by}"
    left_out = {"comment lines": comments, "ranges of words and empty nodes": ranges}
    told = [found, *(f"{n} {what} are left out" for what, n in left_out.items() if n)]
    return sentences, [f"{source}: {note}" for note in told]


def _label(fields: list[str], label_column: str, width: int) -> str | None:
    """The label of a line, None where it has no such column."""
    for name in label_column.split("|"):
        number = int(name) if re.fullmatch(r"-?\d+", name) else width
        if len(fields) == width and -width <= number < width:
            return fields[number]
    return None


def _fields(line: str, split_tabs: bool) -> list[str]:
    """Columns of a line, none of a blank one. Blanks are space and tab: a no-break or zero-width
    character may be a word."""
    if not line.strip(" \t"):
        return []
    return line.strip(" ").split("\t") if split_tabs else re.split("[ \t]+", line.strip(" \t"))


def _column(spec: str, width: int, source: str) -> int:
    for name in spec.split("|"):
        if re.fullmatch(r"-?\d+", name) and -width <= int(name) < width:
            return int(name) % width
    raise UserError(f"{source} has {width} columns, numbered from 0, and none is '{spec}'")


def read_sentences(
    source: str, word_column: str, label_column: str
) -> tuple[list[Sentence], list[str]]:
    """Sentences of a JSONL file or dataset (lists of words and labels), else of CoNLL columns."""
    if not is_dataset(source) and epath.Path(source).suffix.lower() not in JSON:
        return read_conll(source, word_column, label_column)
    table = read_table(source)
    words = table.column(word_column, "data.text_column")
    labelled = table.find(label_column) is not None
    labels = table.column(label_column, "data.label_column") if labelled else [None] * len(words)
    marked = "document" in table.columns
    documents = table.column("document", "data.text_column") if marked else [None] * len(words)
    sentences = []
    for row, tags, document, place in zip(words, labels, documents, table.places, strict=True):
        if not isinstance(row, list) or not isinstance(tags, list | None):
            wrong = row if not isinstance(row, list) else tags
            raise UserError(f"{source}, {place}: {wrong!r:.40} is no list: words and labels are")
        if tags is not None and len(tags) != len(row):
            raise UserError(
                f"{source}, {place}: {len(row)} words have {len(tags)} labels: give each word one"
            )
        if row:
            hidden = tags is None or None in tags
            tags = None if hidden else tuple(map(str, tags))
            document = None if document is None else str(document)
            sentences.append(Sentence(tuple(map(str, row)), tags, place, document))
    if len(sentences) < len(words):
        table.notes.append(f"{source}: {len(words) - len(sentences)} rows without words left out")
    return sentences, table.notes
