"""Scores of whole evaluations, on the host: arrays [n] in, one float out, never NaN.

Where a score is not defined (a classifier that always says the same) it is 0, as GLUE counts it,
and a warning says so. An empty or mismatched pair of arrays raises ValueError.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import scipy.stats
import sklearn.metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of predictions that are right."""
    labels, predictions = _pair(labels, predictions)
    return float(np.mean(labels == predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 against class 0: 2 TP / (2 TP + FP + FN); 0 where nothing is 1."""
    labels, predictions = _pair(labels, predictions)
    _warn_if_constant("f1", predictions)
    return float(sklearn.metrics.f1_score(labels, predictions, pos_label=1, zero_division=0.0))


def matthews(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation coefficient of two or more classes, -1..1."""
    labels, predictions = _pair(labels, predictions)
    _warn_if_constant("matthews", predictions)
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's linear correlation of real-valued labels and predictions."""
    return _correlation("pearson", scipy.stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's correlation of ranks."""
    return _correlation("spearman", scipy.stats.spearmanr, labels, predictions)


def _correlation(
    name: str, function: Callable, labels: np.ndarray, predictions: np.ndarray
) -> float:
    labels, predictions = (x.astype(np.float64) for x in _pair(labels, predictions))
    constant = [_warn_if_constant(name, predictions), len(np.unique(labels)) == 1]
    return 0.0 if any(constant) else float(function(labels, predictions)[0])


def _warn_if_constant(name: str, predictions: np.ndarray) -> bool:
    constant = len(np.unique(predictions)) == 1
    if constant:
        warnings.warn(
            f"{name}: all {len(predictions)} predictions are {predictions[0]}, so the score says "
            "nothing",
            stacklevel=3,
        )
    return constant


def _pair(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.ndim != 1 or labels.shape != predictions.shape or not len(labels):
        raise ValueError(
            f"labels {labels.shape} and predictions {predictions.shape}: two arrays [n] are needed"
        )
    return labels, predictions
