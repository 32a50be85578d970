"""Figures of labelled evaluations and their tables as text."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import seqeval.metrics
import sklearn.metrics
from seqeval.metrics.sequence_labeling import get_entities

from bertjax.train import metrics

# Larger tables say less than the misclassified rows.
MOST_CLASSES = 20
_CORNER = "label \\ predicted"


def single_label_figures(
    labels: np.ndarray, predictions: np.ndarray, positive: int | None
) -> dict[str, float]:
    """accuracy, matthews, macro_f1 (of the classes that are given or predicted) and f1 of the class
    `positive`, None where there are more than two; also how many classes were predicted at all: 1
    is a degenerate run. Arrays int [n]."""
    figures = {
        "accuracy": metrics.accuracy(labels, predictions),
        "matthews": metrics.matthews(labels, predictions),
        "macro_f1": _f1(labels, predictions, "macro"),
        "predicted_classes": float(len(np.unique(predictions))),
    }
    if positive is not None:
        figures["f1"] = metrics.f1(1 * (labels == positive), 1 * (predictions == positive))
    return figures


def multi_label_figures(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """micro_f1, macro_f1 and exact_match (all labels of an example right) of bool [n, C]."""
    return {
        "micro_f1": _f1(labels, predictions, "micro"),
        "macro_f1": _f1(labels, predictions, "macro"),
        "exact_match": float(np.mean(np.all(labels == predictions, axis=1))),
    }


def _f1(labels: np.ndarray, predictions: np.ndarray, average: str) -> float:
    if labels.ndim == 2 and labels.shape[1] == 1:  # to scikit-learn these were two classes
        labels, predictions, average = labels[:, 0], predictions[:, 0], "binary"
    return float(sklearn.metrics.f1_score(labels, predictions, average=average, zero_division=0.0))


def regression_figures(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """pearson, spearman and the mean squared error of float [n]."""
    error = np.asarray(labels, np.float64) - predictions
    return {
        "pearson": metrics.pearson(labels, predictions),
        "spearman": metrics.spearman(labels, predictions),
        "squared_error": float(np.mean(error**2)),
    }


def figures_line(split: str, figures: Mapping[str, float]) -> str:
    """'validation: loss 0.31  accuracy 0.8731  examples 872'."""
    shown = (
        f"{name} {value:,.0f}" if float(value).is_integer() and abs(value) > 1
        else f"{name} {value:.4f}" for name, value in figures.items()
    )  # fmt: skip
    return f"{split}: " + "  ".join(shown)


def per_class(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> str:
    """Precision, recall and F1 of each class, of int [n]."""
    rows = sklearn.metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(len(names)), zero_division=0.0
    )
    return _table(names, *rows)


def per_label(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> str:
    """Precision, recall and F1 of each label, of bool [n, C]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = sklearn.metrics.precision_recall_fscore_support(
            labels, predictions, zero_division=0.0
        )
    return _table(names, *rows)


def _table(
    names: Sequence[str],
    precision: np.ndarray,
    recall: np.ndarray,
    f1: np.ndarray,
    support: np.ndarray,
) -> str:
    width = max(len("class"), *map(len, names))
    lines = [f"  {'class':{width}}  precision  recall     f1  examples"]
    for i, name in enumerate(names):
        lines.append(
            f"  {name:{width}}     {precision[i]:.4f}  {recall[i]:.4f} {f1[i]:.4f}  {support[i]:8,}"
        )
    return "\n".join(lines)


def confusion(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> str:
    """The confusion matrix: a row for each label, a column for each prediction."""
    if len(names) > MOST_CLASSES:
        return f"  (a confusion matrix of {len(names)} classes is not shown)"
    matrix = sklearn.metrics.confusion_matrix(labels, predictions, labels=range(len(names)))
    width = max(5, *(len(name) + 1 for name in names), *(len(str(n)) + 1 for n in matrix.flat))
    first = max(len(_CORNER), *map(len, names))
    lines = [f"  {_CORNER:{first}}" + "".join(f"{name:>{width}}" for name in names)]
    for name, row in zip(names, matrix, strict=True):
        lines.append(f"  {name:{first}}" + "".join(f"{count:>{width}}" for count in row))
    return "\n".join(lines)


def tag_figures(
    labels: list[list[str]], predictions: list[list[str]], metric: str
) -> dict[str, float]:
    """accuracy over words and, for entities or words in segmentation, precision, recall and F1 of
    whole spans: seqeval's default mode, which gives conlleval's numbers (Tjong Kim Sang 2000)."""
    pairs = [
        (a, b) for x, y in zip(labels, predictions, strict=True) for a, b in zip(x, y, strict=True)
    ]
    figures = {
        "accuracy": sum(a == b for a, b in pairs) / len(pairs),
        "predicted_classes": float(len({guess for _, guess in pairs})),
    }
    if metric != "accuracy":
        gold, guess = spans(labels), spans(predictions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("precision", "recall", "f1"):
                function = getattr(seqeval.metrics, f"{name}_score")
                figures[metric.replace("f1", name)] = float(function(gold, guess, zero_division=0))
    return figures


def spans(tags: list[list[str]]) -> list[list[str]]:
    """M (middle) as I and the letters of BILOU as those of IOBES, which seqeval knows."""
    letters = {"M": "I", "L": "E", "U": "S"}

    def rename(tag: str) -> str:
        letter, dash, kind = tag.partition("-")
        return letters.get(letter, letter) + dash + kind

    return [[rename(tag) for tag in sentence] for sentence in tags]


def entity_report(labels: list[list[str]], predictions: list[list[str]]) -> str:
    """Precision, recall and F1 of each kind of entity."""
    if not any(get_entities(tags) for tags in (*spans(labels), *spans(predictions))):
        return "  no entity, neither among the labels nor among the predictions"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return seqeval.metrics.classification_report(
            spans(labels), spans(predictions), digits=4, zero_division=0
        )


def json_text(content: object) -> str:
    """JSON for a file."""
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
