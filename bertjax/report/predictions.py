"""Examples with their predictions: of files that a run wrote, or of its model."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from bertjax import inference
from bertjax.api import Bert
from bertjax.errors import UserError
from bertjax.report.gather import number
from bertjax.report.held_out import Texts
from bertjax.tasks import squad
from bertjax.tasks.finetune import PREDICTIONS
from bertjax.tasks.results import MOST_CLASSES

LONGEST_TEXT, LONGEST_SENTENCE = 600, 80  # characters of a text, words of a tagged sentence
MASKED_EVERY = 7  # words: about BERT's 15 %
GUESSES = 5


def shortened(text: str) -> str:
    """`text`, cut with an ellipsis where it is longer than the page shows."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def splits_of(path: str) -> list[str]:
    """The splits that a run has written predictions of."""
    folder = epath.Path(path) / PREDICTIONS
    return sorted(file.stem for file in folder.glob("*.jsonl")) if folder.exists() else []


def read(
    path: str, split: str, task: str, texts: Texts | None, most: int, scores: str = "squad"
) -> dict[str, Any]:
    """The predictions of one split, the wrong ones first, the surest mistakes before others.

    Args:
        texts: the examples of the split in order; None where they cannot be read.
        most: how many rows to return.
        scores: whose rule says when an answer is right, of `squad.SCORES`.

    Returns:
        {split, total, labelled, wrong, damaged, rows, confusion}; a row has text, pair, label,
        prediction, probability and right (None without a label), of words {word, label,
        prediction, right} too; confusion is None or {labels, counts [label][prediction]}.
    """
    counts: Counter[str] = Counter()
    confusion: Counter[tuple[str, str]] = Counter()
    names: dict[str, None] = {}

    def rows() -> Iterator[tuple[float, int, dict[str, Any]]]:
        for entry in _entries(path, split, counts):
            try:
                row, badness = _row(task, entry, texts, scores)
                place = int(entry["index"])
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                counts["damaged"] += 1
                continue
            counts["total"] += 1
            counts["labelled"] += row["right"] is not None
            counts["wrong"] += row["right"] is False
            if task == "classify" and isinstance(entry.get("label"), str):
                names.update(dict.fromkeys(entry["probabilities"]))
                confusion[entry["label"], entry["prediction"]] += 1
            yield badness, place, row

    best = heapq.nsmallest(most, rows(), key=lambda item: item[:2])
    return {
        "split": split,
        **{name: counts[name] for name in ("total", "labelled", "wrong", "damaged")},
        "rows": [row for _, _, row in best],
        "confusion": _matrix(confusion, list(names)),
    }


def _entries(path: str, split: str, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    with (epath.Path(path) / PREDICTIONS / f"{split}.jsonl").open("r") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                counts["damaged"] += 1


def _matrix(counts: Mapping[tuple[str, str], int], names: list[str]) -> dict[str, Any] | None:
    """Counts as rows of labels by columns of predictions, in the order of the model's outputs."""
    if not counts or len(names) > MOST_CLASSES:
        return None
    table = [[counts.get((label, guess), 0) for guess in names] for label in names]
    return {"labels": names, "counts": table}


def _row(
    task: str, entry: Mapping[str, Any], texts: Texts | None, scores: str
) -> tuple[dict[str, Any], float]:
    """A row for the page and its place in the order: mistakes below 0, the surest lowest."""
    if task == "tag":
        return _tagged(entry)
    row: dict[str, Any] = {"text": None, "pair": None}
    index = int(entry["index"])
    if texts is not None and index < len(texts.texts):
        row["text"] = shortened(texts.texts[index])
        row["pair"] = None if texts.pairs is None else shortened(texts.pairs[index])
    label, guess = entry["label"], entry["prediction"]
    if task == "answer":
        right = None
        if label is not None:
            right = bool(squad.best_scores([guess], [label], scores)[0][0])
        sure = float(entry["probability"])
    elif isinstance(guess, float | int):  # a regression: no answer is quite right
        error = 0.0 if label is None else abs(guess - label)
        return row | {"label": number(label), "prediction": number(guess), "probability": None,
                      "right": None}, -error  # fmt: skip
    else:
        several = isinstance(guess, list)
        right = None if label is None else (set(guess) == set(label) if several else guess == label)
        sure = max(entry["probabilities"].values())
        if not several:
            sure = float(entry["probabilities"][guess])
    row |= {
        "label": _text_of(label, task), "prediction": _text_of(guess, task),
        "probability": number(sure), "right": right,
    }  # fmt: skip
    return row, -1 - sure if right is False else -sure


def _text_of(value: Any, task: str) -> str | None:
    if task == "answer":
        value = value if value else "(no answer)" if value is not None else None
    if isinstance(value, list):
        value = " | ".join(dict.fromkeys(map(str, value))) or "(none)"
    return None if value is None else shortened(str(value))


def _tagged(entry: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """A tagged sentence; those with more wrong words come first."""
    words, guesses, labels = entry["words"], entry["prediction"], entry["label"]
    wrong = 0 if labels is None else sum(a != b for a, b in zip(labels, guesses, strict=True))
    shown = [
        {
            "word": shortened(word),
            "prediction": guess,
            "label": None if labels is None else labels[i],
            "right": None if labels is None else labels[i] == guess,
        }
        for i, (word, guess) in enumerate(zip(words, guesses, strict=True))
    ]
    row = {
        "words": shown[:LONGEST_SENTENCE],
        "left_out": max(0, len(shown) - LONGEST_SENTENCE),
        "right": None if labels is None else not wrong,
    }
    return row, float(-wrong)


def masked_text(bert: Bert, text: str, first: int) -> tuple[str, list[str]]:
    """`text` with about every seventh word masked, and the words that stood there.

    Only words that are one token can be: the mask stands for one. `first` moves the choice.
    """
    encoded = bert.require_tokenizer().encode(text, special_tokens=False)
    tokens, spans = encoded.tokens, encoded.offsets
    whole = [
        i
        for i, token in enumerate(tokens)
        if token[:1].isalnum() and not "".join(tokens[i + 1 : i + 2]).startswith("##")
    ]
    places = whole[first % MASKED_EVERY :: MASKED_EVERY] or whole[:1]
    result, end = "", 0
    for place in places:
        begin, after = spans[place]
        result, end = result + text[end:begin] + "[MASK]", after
    return result + text[end:], [tokens[place] for place in places]


def fill_masks(
    bert: Bert, texts: Texts, warn: Callable[[str], None], most: int
) -> list[dict[str, Any]]:
    """Texts with masks, what the model puts there and what stood there.

    A text that has a [MASK] already is taken as it is. Returns rows {parts: texts around the
    masks, masks: [{original (None: not known), right, guesses: [{token, probability}]}]}.
    """
    masked, originals = [], []
    for place, text in enumerate(texts.spread(most).texts):
        words: list[str] = []
        if "[MASK]" not in text:
            text, words = masked_text(bert, text, place)
        if "[MASK]" in text:
            masked.append(text)
            originals.append(words)
    if not masked:
        raise UserError("no text has a word that one mask can stand for.")
    rows = []
    answers = inference.fill_mask(bert, masked, top_k=GUESSES, warn=warn)
    for text, words, answer in zip(masked, originals, answers, strict=True):
        known: list[str | None] = list(words) if len(words) == len(answer["masks"]) else []
        known = known or [None] * len(answer["masks"])
        masks = [
            {
                "original": word,
                "right": None if word is None else guesses[0]["token"] == word,
                "guesses": [g | {"probability": number(g["probability"])} for g in guesses],
            }
            for word, guesses in zip(known, answer["masks"], strict=True)
        ]
        rows.append({"parts": text.split("[MASK]"), "masks": masks})
    return rows


def ask(bert: Bert, texts: Texts, warn: Callable[[str], None]) -> list[dict[str, Any]]:
    """What a classifier or tagger says of the texts of the command line; rows as `read` gives."""
    if "classifier" in bert.published.heads:
        rows = []
        for answer in inference.classify(bert, texts.texts, texts.pairs, warn=warn):
            guess = answer.get("label", answer.get("labels", answer.get("value")))
            sure = max(answer.get("probabilities", {"": None}).values(), key=lambda p: p or 0.0)
            guess = number(guess) if isinstance(guess, float) else _text_of(guess, "classify")
            rows.append(
                {
                    "text": shortened(answer["text"]),
                    "pair": None,
                    "label": None,
                    "prediction": guess,
                    "probability": number(sure),
                    "right": None,
                }
            )
        return rows
    if "tagger" in bert.published.heads:
        answers = inference.tag(bert, texts.texts, warn=warn)
        return [
            _tagged({"words": a["words"], "prediction": a["labels"], "label": None})[0]
            for a in answers
        ]
    return []
