"""Questions with contexts as rows for the model, and answers from the logits of rows.

`question_windows` and `best_answers` are all that prediction needs beside the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.windows import overlapping_starts
from bertjax.errors import UserError

SPECIALS = 3  # [CLS] question [SEP] context [SEP]
LEAST_ROOM = 4  # tokens of context in a window


@dataclasses.dataclass(frozen=True)
class Window:
    """[CLS] question [SEP] a part of the context [SEP].

    ids: the tokens; first: the column of the first context token; start: its number in the context;
    count: context tokens.
    """

    ids: list[int]
    first: int
    start: int
    count: int


@dataclasses.dataclass(frozen=True)
class Span:
    """A candidate answer: characters [begin, end) of the context and start + end logit."""

    begin: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Answers:
    """Candidates for one question, the best first, and the score of there being none."""

    spans: list[Span]
    null_score: float

    @property
    def null_lead(self) -> float:
        """How much the score of no answer exceeds that of the best span."""
        return self.null_score - self.spans[0].score if self.spans else np.inf


def question_windows(
    question: Sequence[int],
    context: Sequence[int],
    *,
    size: int,
    max_question: int,
    overlap: int,
    cls_id: int,
    sep_id: int,
) -> list[Window]:
    """Windows that show every token of the context, in order.

    Args:
        question, context: ids without special tokens; of the question the first `max_question`.
        size: the longest row.
        overlap: tokens that neighbouring windows share, at most half of a window's.

    Raises:
        UserError: the question leaves no room; both settings are named.
    """
    head = [cls_id, *question[:max_question], sep_id]
    room = size - len(head) - 1
    if room < LEAST_ROOM:
        raise UserError(
            f"a question of {len(question)} tokens leaves {max(room, 0)} of config.data.seq_length="
            f"{size} for the context: raise that, or lower config.data.max_question_tokens="
            f"{max_question}"
        )
    return [
        Window([*head, *part, sep_id], len(head), start, len(part))
        for start in overlapping_starts(len(context), room, min(overlap, room // 2))
        for part in [list(context[start : start + room])]
    ]


def token_span(offsets: Sequence[tuple[int, int]], begin: int, end: int) -> tuple[int, int] | None:
    """First and last token that overlap characters [begin, end); None where none does."""
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > begin and a < b]
    return (inside[0], inside[-1]) if inside else None


def target_columns(window: Window, span: tuple[int, int] | None) -> tuple[int, int]:
    """Columns of an answer's first and last token; both 0, [CLS], where the window does not hold
    the whole answer or there is none."""
    if span is None or span[0] < window.start or span[1] >= window.start + window.count:
        return 0, 0
    shift = window.first - window.start
    return span[0] + shift, span[1] + shift


def best_answers(
    windows: Sequence[Window],
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    offsets: Sequence[tuple[int, int]],
    *,
    n_best: int,
    max_tokens: int,
) -> Answers:
    """The likeliest spans of one question over all its windows.

    Args:
        windows: the question's rows.
        start_logits, end_logits: [rows, S].
        offsets: characters of each context token.
        n_best: how many to keep; of each window as many starts and ends are looked at.
        max_tokens: the longest answer.

    The score of no answer is start + end at [CLS], the least of all windows: a window that does not
    show the answer says nothing (Devlin et al. 2019, section 4.3, for one window).
    """
    found: dict[tuple[int, int], float] = {}
    null_score = np.inf
    for window, start, end in zip(windows, start_logits, end_logits, strict=True):
        null_score = min(null_score, float(start[0]) + float(end[0]))
        inside = slice(window.first, window.first + window.count)
        first, last = np.asarray(start[inside]), np.asarray(end[inside])
        starts = np.argsort(-first, kind="stable")[:n_best]
        ends = np.argsort(-last, kind="stable")[:n_best]
        for a in starts:
            for b in ends:
                if a <= b < a + max_tokens:
                    key = (window.start + int(a), window.start + int(b))
                    score = float(first[a]) + float(last[b])
                    found[key] = max(score, found.get(key, -np.inf))
        if not found and len(first):  # no pair fits: the best start alone
            a = int(starts[0])
            found[(window.start + a,) * 2] = float(first[a]) + float(last[a])
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:n_best]
    spans = [Span(offsets[a][0], offsets[b][1], score) for (a, b), score in best]
    return Answers(spans, null_score)


def choose(
    answers: Answers, context: str, *, unanswerable: bool, threshold: float
) -> dict[str, Any]:
    """{answer, score, start, end} of a question: '' and None where there is no answer.

    Where questions may be unanswerable, none is given if the score of no answer exceeds that of the
    best span by more than `threshold`. `score` is a probability among the candidates.
    """
    scores = [span.score for span in answers.spans] + [answers.null_score] * unanswerable
    if not answers.spans or (unanswerable and answers.null_lead > threshold):
        chance = 1.0 if not answers.spans else _softmax(scores)[-1]
        return {"answer": "", "score": float(chance), "start": None, "end": None}
    best = answers.spans[0]
    return {
        "answer": context[best.begin : best.end],
        "score": float(_softmax(scores)[0]),
        "start": best.begin,
        "end": best.end,
    }


def _softmax(scores: Sequence[float]) -> np.ndarray:
    exponents = np.exp(np.array(scores) - max(scores))
    return exponents / exponents.sum()
