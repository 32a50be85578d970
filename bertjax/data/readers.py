"""Labelled data: tables (TSV, CSV, JSONL, TFDS, the hub), CoNLL columns and SQuAD JSON.

A source is a file or `tfds:NAME/CONFIG:SPLIT` or `hub:ORG/NAME/CONFIG:SPLIT`. Nothing is dropped
in silence: a row that cannot be read is an error that names its line, and what was decided or
skipped stands in `notes`.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError

DATASETS = ("tfds:", "hub:")
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
                f"{have}"
            )
        for row, place in zip(self.rows, self.places, strict=True):
            if number >= len(row):
                raise UserError(
                    f"{self.source}, {place}: {len(row)} fields, but column "
                    f"'{self.columns[number]}' is number {number + 1}: complete or remove the row"
                )
        return [row[number] for row in self.rows]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words and their labels (None: not labelled); sentences in a row with the same `document` are
    of one document (None: the source does not say)."""

    words: tuple[str, ...]
    labels: tuple[str, ...] | None
    place: str
    document: int | str | None = None


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to a context; `answers` are (text, first character in the context).

    `labelled` is False where the file gives no answers at all, for prediction; a question with
    no answers that is labelled has none in its context (SQuAD 2.0).
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    labelled: bool = True


def is_dataset(source: str) -> bool:
    """Whether a source names a dataset of a library and not a file."""
    return source.startswith(DATASETS)


def read_text(source: str) -> str:
    """The text of a UTF-8 file. UserError where there is none, or at which byte it is not UTF-8."""
    path = epath.Path(source)
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


def read_table(source: str, *, header: str = "auto", named: Sequence[str] = ()) -> Table:
    """A table from .csv, .jsonl (.ndjson), a dataset, or else tab-separated values.

    Args:
        source: a file or a dataset.
        header: 'yes', 'no', or 'auto': decided by `looks_like_header`.
        named: the columns that will be asked for, which a header would hold.

    Raises:
        UserError: nothing readable, or a row that is malformed.
    """
    if is_dataset(source):
        return _dataset(source)
    kind = epath.Path(source).suffix.lower()
    text = read_text(source)
    if kind in (".jsonl", ".ndjson"):
        return _jsonl(source, text)
    notes: list[str] = []
    rows = _csv_rows(source, text) if kind == ".csv" else _tsv_rows(source, text, notes)
    return _with_header(source, rows, notes, header, named)


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
    if {cell.strip().lower() for cell in first} & _KNOWN_COLUMNS:
        return True
    for number, cell in enumerate(first):
        values = [row[number] for row in others if number < len(row)]
        repeated = len(values) >= 4 and len(set(values)) * 2 <= len(values)
        numeric = bool(values) and all(map(_numeric, values))
        if cell not in values and (repeated or numeric):
            return True
    return False


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
    header: str,
    named: Sequence[str],
) -> Table:
    if not placed:
        raise UserError(f"{source} holds no row")
    places, rows = [place for place, _ in placed], [fields for _, fields in placed]
    first = rows[0]
    asked = {part for spec in named for part in spec.split("|") if not re.fullmatch(r"-?\d+", part)}
    has_header = header == "yes" or (
        header == "auto" and (bool(asked & set(first)) or looks_like_header(first, rows[1:]))
    )
    if has_header:
        places, rows, columns = places[1:], rows[1:], tuple(first)
        if not rows:
            raise UserError(f"{source} holds a header ({', '.join(columns)}) and no row")
    else:
        columns = tuple(map(str, range(len(first))))
    how = "as told" if header != "auto" else "as it looks; config.data.header=yes or no overrules"
    what = f"the first line is {'a header' if has_header else 'a row, not a header'} ({how})"
    notes.append(f"{source}: {len(rows):,} rows, columns {', '.join(columns)}; {what}")
    longer = [place for place, row in zip(places, rows, strict=True) if len(row) > len(columns)]
    if longer:
        notes.append(
            f"{source}: {len(longer)} rows have more than {len(columns)} fields (the first at "
            f"{longer[0]}); what is beyond is not read"
        )
    return Table(source, columns, has_header, rows, places, notes)


def _objects(source: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{source}, line {number}: no JSON ({error})") from None
        if not isinstance(value, dict):
            raise UserError(f"{source}, line {number}: a JSON object is needed, {{...}}")
        yield f"line {number}", value


def _jsonl(source: str, text: str) -> Table:
    placed = list(_objects(source, text))
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


# CoNLL


def read_conll(
    source: str, word_column: str, label_column: str
) -> tuple[list[Sentence], list[str]]:
    """Sentences of a file with a word a line, columns by tabs or blanks, and the notes.

    A line of white space ends a sentence; -DOCSTART- begins a document, or where there is none two
    such lines in a row; '#' begins a comment where the line has no other column. Columns are
    numbers, negative from the end. A file whose lines have one column has no labels.

    Raises:
        UserError: a line with fewer columns than the ones before it.
    """
    text = read_text(source)
    split_tabs = any("\t" in line.strip() for line in text.split("\n", 200)[:200])
    sentences: list[Sentence] = []
    words: list[str] = []
    labels: list[str] = []
    begin, width, comments, blanks = 1, 0, 0, 0
    started = bool(re.search(r"^-DOCSTART-", text, re.MULTILINE))
    document = 0

    def end() -> None:
        if words:
            tags = tuple(labels) if labels else None
            sentences.append(Sentence(tuple(words), tags, f"line {begin}", document))
            words.clear()
            labels.clear()

    for number, line in enumerate(lines_of(text), 1):
        # Blanks are space and tab: a no-break or zero-width character may be a word.
        line = line.strip(" ")
        fields = re.split("\t" if split_tabs else "[ \t]+", line) if line.strip(" \t") else []
        if not fields or fields[0] == "-DOCSTART-":
            end()
            blanks = 0 if fields else blanks + 1
            document += bool(fields) or (not started and blanks == 2)
            continue
        if fields[0].startswith("#") and len(fields) == 1 and width > 1:
            comments += 1
            continue
        if not words:
            begin, blanks = number, 0
        width = width or len(fields)
        if len(fields) < width:
            raise UserError(
                f"{source}, line {number}: {len(fields)} column(s) where others have {width}: "
                "complete the line, or leave it blank to end the sentence"
            )
        words.append(fields[_column(word_column, width, source)].strip(" "))
        if width > 1:
            labels.append(fields[_column(label_column, width, source)].strip(" "))
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


def _column(spec: str, width: int, source: str) -> int:
    for name in spec.split("|"):
        if re.fullmatch(r"-?\d+", name) and -width <= int(name) < width:
            return int(name) % width
    raise UserError(f"{source} has {width} columns, numbered from 0, and none is '{spec}'")


def read_sentences(
    source: str, word_column: str, label_column: str
) -> tuple[list[Sentence], list[str]]:
    """Sentences of a JSONL file or dataset (lists of words and labels), else of CoNLL columns."""
    if not is_dataset(source) and epath.Path(source).suffix.lower() not in (".jsonl", ".ndjson"):
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
            tags = None if tags is None else tuple(map(str, tags))
            document = None if document is None else str(document)
            sentences.append(Sentence(tuple(map(str, row)), tags, place, document))
    if len(sentences) < len(words):
        table.notes.append(f"{source}: {len(words) - len(sentences)} rows without words left out")
    return sentences, table.notes


# SQuAD


def read_questions(source: str) -> tuple[list[Question], list[str]]:
    """Questions of a SQuAD file (1.1 or 2.0), or of JSONL or a dataset with a row a question.

    Raises:
        UserError: the file has another form; the message names the first place.
    """
    if is_dataset(source) or epath.Path(source).suffix.lower() in (".jsonl", ".ndjson"):
        questions = [_question_of_row(row, i) for i, row in enumerate(_rows(source))]
    else:
        try:
            content = json.loads(read_text(source))
        except ValueError as error:
            raise UserError(f"{source} is no JSON ({error})") from None
        try:
            questions = list(_squad(content))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{source} is not of SQuAD's form, data > paragraphs > context, qas > question, "
                f"answers: {type(error).__name__} {error}"
            ) from None
    if not questions:
        raise UserError(f"{source} holds no question")
    none = sum(q.labelled and not q.answers for q in questions)
    contexts = len({q.context for q in questions})
    note = f"{source}: {len(questions):,} questions to {contexts:,} contexts"
    return questions, [note + (f", {none:,} of them without an answer" if none else "")]


def _squad(content: dict[str, Any]) -> Iterator[Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                labelled = "answers" in qa
                impossible = qa.get("is_impossible", False)
                answers = () if impossible else _answers(qa.get("answers", ()))
                yield Question(
                    str(qa["id"]),
                    _text(qa["question"]),
                    _text(paragraph["context"]),
                    answers,
                    labelled,
                )


def _answers(found: Iterable[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    return tuple((_text(answer["text"]), int(answer["answer_start"])) for answer in found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _rows(source: str) -> Iterable[dict[str, Any]]:
    if is_dataset(source):
        return dataset_rows(source)
    return [row for _, row in _objects(source, read_text(source))]


def _question_of_row(row: dict[str, Any], number: int) -> Question:
    """A row {question, context[, id, answers: {text: [...], answer_start: [...]}]}.

    Raises:
        UserError: a part is missing or of another kind.
    """
    for key in ("question", "context"):
        if not isinstance(row.get(key), str):
            raise UserError(
                f"row {number} has no text {key!r}: question, context and answers are needed"
            )
    found = row.get("answers")
    try:
        if isinstance(found, dict):
            starts = found.get("answer_start", [-1] * len(found["text"]))
            pairs = tuple(zip(map(_text, found["text"]), map(int, starts), strict=True))
        else:
            pairs = _answers(found or ())
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"row {number} has answers {found!r:.60}: {{text: [...], answer_start: [...]}} are "
            f"needed ({type(error).__name__} {error})"
        ) from None
    question, context = row["question"], row["context"]
    return Question(str(row.get("id", number)), question, context, pairs, found is not None)
