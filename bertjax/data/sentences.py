"""Labelled words: CoNLL columns, and JSONL or datasets with lists of words and labels."""

from __future__ import annotations

import dataclasses
import re

from etils import epath

from bertjax.data.labelled import OBJECTS, is_dataset, lines_of, read_text
from bertjax.data.tables import read_table
from bertjax.errors import UserError


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
    such lines in a row. A line that begins with '#' and has another number of columns than the
    first one without is a comment. Columns are numbers, negative from the end. A file whose lines
    have one column has no labels.

    Raises:
        UserError: a line with another number of columns, or without a label.
    """
    text = read_text(source)
    split_tabs = any("\t" in line.strip() for line in text.split("\n", 200)[:200])
    sentences: list[Sentence] = []
    words: list[str] = []
    labels: list[str] = []
    begin, comments, blanks = 1, 0, 0
    started = bool(re.search(r"^-DOCSTART-", text, re.MULTILINE))
    document = 0

    def end() -> None:
        if words:
            tags = tuple(labels) if labels else None
            sentences.append(Sentence(tuple(words), tags, f"line {begin}", document))
            words.clear()
            labels.clear()

    lines = [_fields(line, split_tabs) for line in lines_of(text)]
    widths = [len(fields) for fields in lines if fields and fields[0] != "-DOCSTART-"]
    plain = (len(x) for x in lines if x and x[0] != "-DOCSTART-" and not x[0].startswith("#"))
    width = next(plain, widths[0] if widths else 0)
    for number, fields in enumerate(lines, 1):
        if not fields or fields[0] == "-DOCSTART-":
            end()
            blanks = 0 if fields else blanks + 1
            document += bool(fields) or (not started and blanks == 2)
            continue
        if fields[0].startswith("#") and len(fields) != width:
            comments += 1
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
    notes = [
        f"{source}: {len(sentences):,} sentences, {count:,} words, {width} columns by "
        f"{'tabs' if split_tabs else 'blanks'}"
    ]
    if comments:
        notes.append(f"{source}: {comments} comment lines are left out")
    return sentences, notes


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
    if not is_dataset(source) and epath.Path(source).suffix.lower() not in OBJECTS:
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
