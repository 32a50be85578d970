"""Paired tests of whether two runs differ: differences are those of the second less the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import scipy.stats

LEVEL = 0.95
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Result:
    """A figure of both runs, their difference b - a with its 95 % interval, and a two-sided test.

    n: how many pairs; p: None where the test is not defined.
    """

    figure: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float | None
    n: int
    test: str
    source: str


def mcnemar(figure: str, right_a: np.ndarray, right_b: np.ndarray) -> Result:
    """Whether two classifiers are right equally often on the same examples (bool [n] each).

    The exact form of McNemar's test (Psychometrika 1947): under the hypothesis each example on
    which just one is right is a fair coin. Interval: Wald's with half an example added to each
    of the four counts (Agresti & Min 2005).
    """
    right_a, right_b = np.asarray(right_a, bool), np.asarray(right_b, bool)
    n = len(right_a)
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    apart = only_a + only_b
    p = scipy.stats.binomtest(only_b, apart).pvalue if apart else 1.0
    shift, size = (only_b - only_a) / (n + 2), n + 2
    error = np.sqrt(((apart + 1) / size - shift**2) / size)
    reach = scipy.stats.norm.ppf((1 + LEVEL) / 2) * error
    return Result(
        figure, float(right_a.mean()), float(right_b.mean()), (only_b - only_a) / n,
        float(max(-1.0, shift - reach)), float(min(1.0, shift + reach)), float(p), n,
        f"exact McNemar test, {only_a} and {only_b} examples that one alone has right",
        "McNemar 1947; interval: Agresti & Min 2005",
    )  # fmt: skip


def paired_t(figure: str, a: Sequence[float], b: Sequence[float], unit: str) -> Result:
    """Whether the mean of the differences of n >= 2 pairs is 0 (Student 1908)."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    differences, n = b - a, len(a)
    mean, test = differences.mean(), f"paired t test over {unit}"
    # But for rounding all equal: t is not defined.
    if np.ptp(differences) <= 1e-9 * max(np.abs(a).max(), np.abs(b).max()):
        low = high = mean
        p = None if differences.any() else 1.0
        test += ", not defined: the differences are all equal" * (p is None)
    else:
        found = scipy.stats.ttest_rel(b, a)
        (low, high), p = found.confidence_interval(LEVEL), float(found.pvalue)
    return Result(
        figure, float(a.mean()), float(b.mean()), float(mean), float(low), float(high), p, n,
        test, "Student 1908",
    )  # fmt: skip


def bootstrap(
    figure: str,
    statistic: Callable[[np.ndarray], tuple[float, float]],
    n: int,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Result:
    """The paired bootstrap over n examples: both runs are scored on the same resampled examples.

    Percentile interval (Efron & Tibshirani 1993, chapter 13); p is twice the share of resamples
    whose difference has the other sign or is 0, with one added to both counts.

    Args:
        statistic: from the numbers of examples, int [n], to the figure of both runs.
    """
    draw = np.random.default_rng(seed)
    a, b = statistic(np.arange(n))
    differences = np.empty(resamples)
    for i in range(resamples):
        one, other = statistic(draw.integers(0, n, n))
        differences[i] = other - one
    return _of_resamples(figure, a, b, differences, n)


def bootstrap_ratio(
    figure: str,
    sums_a: np.ndarray,
    sums_b: np.ndarray,
    weights: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Result:
    """As `bootstrap`, of figures that are sum over sum: sums and weights of each example, [n]."""
    draw = np.random.default_rng(seed)
    sums_a, sums_b, weights = (np.asarray(x, np.float64) for x in (sums_a, sums_b, weights))
    n = len(weights)
    apart = sums_b - sums_a
    differences = np.empty(resamples)
    for i in range(resamples):
        rows = draw.integers(0, n, n)
        differences[i] = apart[rows].sum() / weights[rows].sum()
    total = weights.sum()
    return _of_resamples(figure, sums_a.sum() / total, sums_b.sum() / total, differences, n)


def _of_resamples(figure: str, a: float, b: float, differences: np.ndarray, n: int) -> Result:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    beyond = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (beyond + 1) / (len(differences) + 1))
    return Result(
        figure, float(a), float(b), float(b - a), float(low), float(high), float(p), n,
        f"paired bootstrap, {len(differences):,} resamples of the examples",
        "Efron & Tibshirani 1993, chapters 13 and 15",
    )  # fmt: skip
