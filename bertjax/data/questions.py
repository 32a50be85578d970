"""Questions to a context: SQuAD JSON (1.1 and 2.0), JSONL and datasets."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from bertjax.data.labelled import OBJECTS, dataset_rows, is_dataset, objects, parsed, read_text
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Question:
    """A question to a context; `answers` are (text, first character in the context).

    `labelled` is False where the file gives no answers at all, for prediction; a question with
    no answers that is labelled has none in its context (SQuAD 2.0), and `impossible` where the
    file says so in as many words.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    labelled: bool = True
    impossible: bool = False


def read_questions(source: str) -> tuple[list[Question], list[str]]:
    """Questions of a SQuAD file (1.1 or 2.0), or of JSONL or a dataset with a row a question.

    Raises:
        UserError: the file has another form; the message names the first place.
    """
    if is_dataset(source) or epath.Path(source).suffix.lower() in OBJECTS:
        questions = [
            _question_of_row(row, f"{source}, {place}", number)
            for number, (place, row) in enumerate(_rows(source))
        ]
    else:
        try:
            content = parsed(read_text(source), source)
        except ValueError as error:
            hint = "; a file with an object a line is a .jsonl" if "Extra" in str(error) else ""
            raise UserError(f"{source} is no JSON ({error}){hint}") from None
        rows = content.get("data") if isinstance(content, dict) else content
        try:
            if isinstance(rows, list) and rows and {"question", "context"} <= set(rows[0]):
                questions = [
                    _question_of_row(row, f"{source}, row {number}", number)
                    for number, row in enumerate(rows)
                ]
            else:
                questions = list(_squad(content))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(
                f"{source} is not of SQuAD's form, data > paragraphs > context, qas > question, "
                f"answers ({type(error).__name__} {error}): write it so, or as .jsonl with "
                "question, context and answers a line"
            ) from None
    if not questions:
        raise UserError(f"{source} holds no question")
    ids = Counter(question.id for question in questions)
    if len(ids) < len(questions):
        raise UserError(
            f"{source}: {ids.most_common(1)[0][1]} questions have the id "
            f"'{ids.most_common(1)[0][0]}', by which answers are told apart: give each its own"
        )
    doubtful = [q.id for q in questions if q.impossible and q.answers]
    questions = [dataclasses.replace(q, answers=()) if q.impossible else q for q in questions]
    none = sum(q.labelled and not q.answers for q in questions)
    contexts = len({q.context for q in questions})
    note = f"{source}: {len(questions):,} questions to {contexts:,} contexts"
    notes = [note + (f", {none:,} of them without an answer" if none else "")]
    if doubtful:
        notes.append(
            f"warning: {source}: {len(doubtful):,} questions are marked is_impossible and have "
            f"answers, which are left out (the first has the id {doubtful[0]})"
        )
    return questions, notes


def _squad(content: dict[str, Any]) -> Iterator[Question]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                impossible = _flag(qa.get("is_impossible"))
                labelled = "answers" in qa or impossible
                yield Question(
                    str(qa["id"]),
                    _text(qa["question"]),
                    _text(paragraph["context"]),
                    _answers(qa.get("answers") or ()),
                    labelled,
                    impossible,
                )


def _answers(found: Iterable[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    pairs = ((_text(answer["text"]), int(answer["answer_start"])) for answer in found)
    return tuple(pair for pair in pairs if pair[0])  # an empty answer says that there is none


def _flag(value: Any) -> bool:
    """A truth value, also as the text or number that some programs write."""
    text = str(value).lower()
    if text in ("true", "1", "1.0"):
        return True
    if text in ("false", "0", "0.0", "", "none", "nan"):
        return False
    raise ValueError(f"is_impossible {value!r:.40} is neither true nor false")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _rows(source: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """(place, row) of each question."""
    if is_dataset(source):
        return [(f"row {number}", row) for number, row in enumerate(dataset_rows(source))]
    return objects(source, read_text(source))


def _question_of_row(row: dict[str, Any], place: str, number: int) -> Question:
    """A row {question, context[, id, answers: {text: [...], answer_start: [...]}]}.

    Raises:
        UserError: a part is missing or of another kind.
    """
    for key in ("question", "context"):
        if not isinstance(row.get(key), str):
            raise UserError(f"{place}: no text {key!r}; question, context and answers are needed")
    found = row.get("answers")
    try:
        if isinstance(found, dict):
            if not isinstance(found["text"], list):
                raise TypeError("text is no list")
            starts = found.get("answer_start", [-1] * len(found["text"]))
            answers = zip(found["text"], starts, strict=True)
            pairs = _answers({"text": text, "answer_start": start} for text, start in answers)
        else:
            pairs = _answers(found or ())
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{place}: answers {found!r:.60}; {{text: [...], answer_start: [...]}} are "
            f"needed ({type(error).__name__} {error})"
        ) from None
    question, context = row["question"], row["context"]
    try:
        impossible = _flag(row.get("is_impossible"))
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None
    labelled = found is not None or impossible
    return Question(str(row.get("id", number)), question, context, pairs, labelled, impossible)
