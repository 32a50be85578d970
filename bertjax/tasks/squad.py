"""The scores of extractive question answering, as the official evaluations define them.

SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): exact match and F1 of words after articles,
punctuation and case are removed. CMRC 2018 (Cui et al. 2019): exact match without the punctuation
of a list, and F1 by the longest common run of characters and words.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The punctuation that CMRC's evaluation removes; other marks (. , % and round brackets) count.
_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_IDEOGRAPH = re.compile(r"([\u4e00-\u9fa5])")
# Words of other scripts by the rules of the Penn Treebank, but for its English contractions: marks
# are tokens of their own, a comma not before a digit, a full stop only at the end.
_MARK = r"[\]\[;@#$%&?!(){}<>\"‘«»„]|'(?=\s|$)|\.{2,}|,(?!\d)|\.(?=[\])}>\"']*\s*$)"
_WORD = re.compile(rf"{_MARK}|(?:(?!{_MARK})\S)+")

Score = Callable[[str, str], float]


def normalize(text: str) -> str:
    """Lower case without punctuation, articles and needless blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 where both are the same after `normalize`."""
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str) -> float:
    """Harmonic mean of the shares of common words; of two empty texts 1, of one 0."""
    given, wanted = normalize(prediction).split(), normalize(answer).split()
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted)) if common else 0.0


def _without_punctuation(text: str) -> str:
    return text.lower().strip().translate(_CMRC_PUNCTUATION)


def cmrc_exact_match(prediction: str, answer: str) -> float:
    """1 where both are the same without the punctuation of CMRC's list."""
    return float(_without_punctuation(prediction) == _without_punctuation(answer))


def cmrc_segments(text: str) -> list[str]:
    """Chinese characters, and the words and marks between them."""
    parts = _IDEOGRAPH.split(_without_punctuation(text))
    return [token for part in parts for token in _WORD.findall(part)]


def cmrc_f1(prediction: str, answer: str) -> float:
    """F1 of the longest common run of segments; of two answers that are none (CMRC has no such
    questions) 1."""
    if not prediction and not answer:
        return 1.0
    given, wanted = cmrc_segments(prediction), cmrc_segments(answer)
    common = _longest_run(given, wanted)
    return 2 * common / (len(given) + len(wanted)) if common else 0.0


def _longest_run(a: Sequence[str], b: Sequence[str]) -> int:
    best, above = 0, [0] * (len(b) + 1)
    for x in a:
        row = [0] * (len(b) + 1)
        for j, y in enumerate(b):
            if x == y:
                row[j + 1] = above[j] + 1
                best = max(best, row[j + 1])
        above = row
    return best


def kind_of(language: str) -> str:
    """Whose rule scores answers in a language, a key of `SCORES`: CMRC 2018's for Chinese."""
    first = re.split("[-_]", language.lower())[0]
    return "cmrc" if first in ("zh", "zho", "chi", "cmn") else "squad"


SCORES: Mapping[str, tuple[Score, Score]] = {
    "squad": (exact_match, f1),
    "cmrc": (cmrc_exact_match, cmrc_f1),
}


def best_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], kind: str = "squad"
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of each question, the best over its answers, both [n] in 0..1.

    A question without answers, or with none but empty ones, is answered by ''.
    """
    exact, overlap = SCORES[kind]
    rows = []
    for prediction, given in zip(predictions, answers, strict=True):
        wanted = [text for text in given if normalize(text) or kind == "cmrc"] or [""]
        rows.append(
            (
                max(exact(prediction, text) for text in wanted),
                max(overlap(prediction, text) for text in wanted),
            )
        )
    table = np.array(rows, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def best_threshold(
    null_leads: np.ndarray, scores: np.ndarray, has_answer: np.ndarray
) -> tuple[float, float]:
    """(best mean score, threshold) when a question whose `null_leads` exceeds it gets no answer.

    Args:
        null_leads: [n], the score of no answer less that of the best span.
        scores: [n], the score of the best span against the answers; 0 where there is none.
        has_answer: bool [n].
    """
    order = np.argsort(null_leads, kind="stable")
    # Answering the first k in this order and no others:
    gains = np.where(has_answer, scores, -1.0)[order]
    totals = np.sum(~has_answer) + np.concatenate([[0.0], np.cumsum(gains)])
    leads = null_leads[order]
    # k answers need a threshold between the k-th lead and the next.
    possible = np.concatenate([[True], leads[:-1] < leads[1:], [True]])
    k = int(np.argmax(np.where(possible, totals, -np.inf)))
    threshold = float(leads[k - 1]) if k else float(leads[0]) - 1.0
    return float(totals[k] / len(leads)), threshold
