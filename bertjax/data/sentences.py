"""Labelled words: CoNLL columns, and JSONL or datasets with lists of words and labels."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from etils import epath

from bertjax.data.labelled import JSON, is_dataset, lines_of, read_text
from bertjax.data.tables import read_table
from bertjax.errors import UserError

_DOCUMENT = "-DOCSTART-"  # begins the line between two documents
# universaldependencies.org/format.html: ids of words, ranges of words and empty nodes
_CONLLU_COLUMNS, _CONLLU_ID = 10, re.compile(r"\d+([-.]\d+)?")

# What a first line calls the columns of words and of labels.
_WORD_NAMES = {"word", "words", "token", "tokens", "text", "form"}
_LABEL_NAMES = {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "upos"}


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
    such lines in a row. A first line that names columns, such as 'word tag', is left out. A line
    that begins with '#' is a comment if it has another number of columns than the first one
    without, or if it stands, with a blank after it, before a sentence and its label is no other
    line's. Of CoNLL-U's ten columns, ranges of words and empty nodes are left out. Columns are
    numbers, negative from the end. A file whose lines have one column has no labels.

    Raises:
        UserError: a line with another number of columns, or without a label.
    """
    lines = lines_of(read_text(source))
    some = (x.strip() for x in lines[:200] if not x.startswith(("# ", _DOCUMENT)))
    split_tabs = any("\t" in line for line in some)
    started = any(line.startswith(_DOCUMENT) for line in lines)
    rows, width, left_out = _without_comments(lines, split_tabs, label_column)
    word = _column(word_column, width, source) if width else 0
    label = _column(label_column, width, source) if width > 1 else None
    filled = _of_words(fields for _, fields in rows)
    _check_form(source, split_tabs, word == 0 and _is_conllu(filled, width))
    if label is not None and filled and _is_header(filled[0], word, label):
        rows = [row for row in rows if row[1] is not filled[0]]
        left_out["header line"] = 1
    sentences: list[Sentence] = []
    words: list[str] = []
    labels: list[str] = []
    begin, blanks, document = 1, 0, 0

    def end() -> None:
        if words:
            tags = tuple(labels) if labels else None
            sentences.append(Sentence(tuple(words), tags, f"line {begin}", document))
            words.clear()
            labels.clear()

    for number, fields in rows:
        if not fields or fields[0].startswith(_DOCUMENT):
            end()
            blanks = 0 if fields else blanks + 1
            document += bool(fields) or (not started and blanks == 2)
            continue
        if not words:
            begin, blanks = number, 0
        if len(fields) != width:
            raise UserError(
                f"{source}, line {number}: {len(fields)} column(s) where others have {width}: "
                "mend the line (a word with blanks in it needs tabs between all columns), or leave "
                "it blank to end the sentence"
            )
        words.append(fields[word].strip(" "))
        if label is not None:
            labels.append(fields[label].strip(" "))
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
    told = [found, *(f"{n} {what} left out" for what, n in left_out.items() if n)]
    return sentences, [f"{source}: {note}" for note in told]


def _check_form(source: str, split_tabs: bool, numbers: bool) -> None:
    """UserError for a .csv, and where `numbers` of words would be taken for words."""
    if epath.Path(source).suffix.lower() == ".csv" and not split_tabs:
        raise UserError(
            f"{source}: labelled words are no .csv: write a word and its label a line, a tab "
            "between them and a blank line after each sentence, or .jsonl with lists of words and "
            "labels"
        )
    if numbers:
        raise UserError(
            f"{source} is CoNLL-U, whose column 0 numbers the words: set config.data.text_column=1 "
            "and config.data.label_column=3 (part of speech)"
        )


def _of_words(lines: Iterable[list[str]]) -> list[list[str]]:
    """The fields of the lines that are neither blank nor between two documents."""
    return [fields for fields in lines if fields and not fields[0].startswith(_DOCUMENT)]


def _is_conllu(lines: list[list[str]], width: int) -> bool:
    return width == _CONLLU_COLUMNS and all(_CONLLU_ID.fullmatch(fields[0]) for fields in lines)


def _is_header(fields: list[str], word: int, label: int) -> bool:
    """Whether a first line names its columns."""
    found = tuple(fields[column].strip().lower() for column in (word, label))
    return found[0] in _WORD_NAMES and found[1] in _LABEL_NAMES


def _without_comments(
    lines: list[str], split_tabs: bool, label_column: str
) -> tuple[list[tuple[int, list[str]]], int, dict[str, int]]:
    """(line number, fields) of the lines that are words or ends, the number of columns, and how
    many lines of each kind were left out; see `read_conll`."""
    split = [_fields(line, split_tabs) for line in lines]
    filled = _of_words(split)
    plain = [fields for fields in filled if not fields[0].startswith("#")]
    width = len((plain or filled or [[]])[0])
    label = _find_column(label_column, width)
    used = {"#"} | {x[label] for x in plain if label is not None and len(x) == width}
    conllu = _is_conllu(plain, width)
    kept: list[tuple[int, list[str]]] = []
    comments = ranges = 0
    for number, (line, fields) in enumerate(zip(lines, split, strict=True), 1):
        first = not kept or not kept[-1][1] or kept[-1][1][0].startswith(_DOCUMENT)
        if fields and fields[0].startswith("#") and (
            len(fields) != width
            or (first and line.startswith("# ")
                and (label is None or fields[label] not in used))
        ):  # fmt: skip
            comments += 1
        elif conllu and fields and not fields[0].startswith(_DOCUMENT) and not fields[0].isdigit():
            ranges += 1
        else:
            kept.append((number, fields))
    return kept, width, {"comment lines": comments, "ranges of words and empty nodes": ranges}


def _fields(line: str, split_tabs: bool) -> list[str]:
    """Columns of a line, none of a blank one. Blanks are space and tab: a no-break or zero-width
    character may be a word."""
    if not line.strip(" \t"):
        return []
    return line.strip(" ").split("\t") if split_tabs else re.split("[ \t]+", line.strip(" \t"))


def _find_column(spec: str, width: int) -> int | None:
    """The number of the first column of 'A|B' that there is, from 0."""
    for name in spec.split("|"):
        if re.fullmatch(r"-?\d+", name) and -width <= int(name) < width:
            return int(name) % width
    return None


def _column(spec: str, width: int, source: str) -> int:
    number = _find_column(spec, width)
    if number is None:
        raise UserError(f"{source} has {width} columns, numbered from 0, and none is '{spec}'")
    return number


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
        if None in row:
            raise UserError(
                f"{source}, {place}: word {row.index(None) + 1} is null: give it a text"
            )
        if tags is not None and "" in tags:
            raise UserError(
                f"{source}, {place}: word {tags.index('') + 1} has an empty label: give it one (O "
                "if none)"
            )
        if tags is not None and (-100 in tags or "-100" in tags):
            raise UserError(
                f"{source}, {place}: -100 marks pieces of words that are not scored, but words are "
                "asked for: give each word its label, without pieces"
            )
        if row:
            hidden = tags is None or None in tags
            tags = None if hidden else tuple(map(str, tags))
            document = None if document is None else str(document)
            sentences.append(Sentence(tuple(map(str, row)), tags, place, document))
    if len(sentences) < len(words):
        table.notes.append(f"{source}: {len(words) - len(sentences)} rows without words left out")
    return sentences, table.notes
