"""Scores against figures worked out by hand."""

import numpy as np
import pytest

from bertjax.train import metrics


def test_matthews():
    # TP 3, TN 1, FP 1, FN 1: (3 * 1 - 1 * 1) / sqrt(4 * 4 * 2 * 2) = 0.25
    assert metrics.matthews([1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1]) == pytest.approx(0.25)
    assert metrics.matthews([0, 1, 1], [1, 0, 0]) == pytest.approx(-1.0)


def test_f1_and_accuracy():
    assert metrics.f1([1, 1, 0, 1], [1, 0, 0, 1]) == pytest.approx(0.8)
    assert metrics.accuracy([1, 1, 0, 1], [1, 0, 0, 1]) == 0.75
    # The positive class is 1: with the classes exchanged the score is another.
    assert metrics.f1([0, 0, 1, 0], [0, 1, 1, 0]) == pytest.approx(2 / 3)


def test_correlations():
    labels, predictions = [0, 1, 2, 5], [0.5, 1, 2.5, 4]
    assert metrics.pearson(labels, predictions) == pytest.approx(0.975900, abs=5e-7)
    assert metrics.spearman(labels, predictions) == pytest.approx(1.0)
    # Ties take the mean of their ranks: ranks 1, 2.5, 2.5, 4 against 1..4.
    assert metrics.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833, abs=1e-7)


@pytest.mark.parametrize("score", ["matthews", "pearson", "spearman"])
def test_constant_predictions_score_zero_and_are_said(score):
    with pytest.warns(UserWarning, match=f"{score}: all 3 predictions are 1"):
        assert getattr(metrics, score)([0, 1, 1], [1, 1, 1]) == 0.0


def test_constant_labels_have_no_correlation():
    assert metrics.pearson([2, 2, 2], [1, 2, 3]) == 0.0


def test_f1_without_positives_is_zero():
    with pytest.warns(UserWarning, match="all 2 predictions are 0"):
        assert metrics.f1([1, 0], [0, 0]) == 0.0


def test_shapes_must_match():
    with pytest.raises(ValueError, match=r"\(2, 1\)"):
        metrics.pearson(np.array([1.0, 2.0]), np.array([[1.0], [2.0]]))
    with pytest.raises(ValueError, match="needed"):
        metrics.accuracy([], [])
