"""Batches by length: each row once an epoch, few shapes, a function of the step alone."""

import numpy as np
import pytest

from bertjax.data.buckets import LENGTHS, MOST_SHAPES, LengthBuckets, choose_lengths
from bertjax.data.windows import overlapping_starts, owned_windows


def lengths(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 120, count)


@pytest.mark.parametrize("count", [1, 7, 32, 33, 1000])
@pytest.mark.parametrize("batch_size", [1, 4, 16, 32])
@pytest.mark.parametrize("by_length", [True, False])
def test_every_row_once_an_epoch(count, batch_size, by_length):
    buckets = LengthBuckets(lengths(count), batch_size, 128, seed=3, by_length=by_length)
    for epoch in range(2):
        steps = range(epoch * buckets.steps_per_epoch, (epoch + 1) * buckets.steps_per_epoch)
        batches = [buckets.batch(step) for step in steps]
        assert {found for found, _, _ in batches} == {epoch}
        rows = np.concatenate([rows for _, rows, _ in batches])
        assert sorted(rows) == list(range(count))
        assert all(len(rows) <= batch_size for _, rows, _ in batches)


def test_batches_are_a_function_of_the_step():
    one, other = (LengthBuckets(lengths(500), 16, 128, seed=1) for _ in range(2))
    steps = [70, 3, 40, 3]
    assert [one.batch(s)[1].tolist() for s in steps] == [other.batch(s)[1].tolist() for s in steps]
    changed = LengthBuckets(lengths(500), 16, 128, seed=2)
    assert changed.batch(3)[1].tolist() != one.batch(3)[1].tolist()
    assert one.batch(0)[1].tolist() != one.batch(one.steps_per_epoch)[1].tolist()


def test_rows_fit_and_shapes_are_few():
    buckets = LengthBuckets(lengths(2000), 16, 128, seed=0)
    shapes = set()
    for step in range(buckets.steps_per_epoch):
        _, rows, length = buckets.batch(step)
        assert buckets.lengths[rows].max() <= length
        shapes.add(length)
    assert shapes <= set(buckets.shapes) and len(shapes) <= MOST_SHAPES
    assert buckets.longest == max(buckets.shapes)


def test_padding_is_little():
    buckets = LengthBuckets(lengths(4000), 32, 128, seed=0)
    padded = sum(buckets.batch(s)[2] * 32 for s in range(buckets.steps_per_epoch))
    assert padded < 1.3 * buckets.lengths.sum()
    assert padded < 0.65 * 4000 * 128


def test_batches_mix_rows_differently_each_epoch():
    buckets = LengthBuckets(lengths(4000), 32, 128, seed=0)
    first, second = (buckets.batch(s)[1] for s in (0, buckets.steps_per_epoch))
    assert len(set(first) & set(second)) < 16
    means = [buckets.lengths[buckets.batch(s)[1]].mean() for s in range(50)]
    assert np.abs(np.corrcoef(means, range(50))[0, 1]) < 0.5  # short ones do not come first


def test_evaluation_order_has_every_row_once():
    buckets = LengthBuckets(lengths(101), 16, 128, seed=0)
    parts = buckets.in_length_order(10)
    assert sorted(np.concatenate([rows for rows, _ in parts])) == list(range(101))
    assert all(buckets.lengths[rows].max() <= length for rows, length in parts)


@pytest.mark.parametrize(
    ("found", "limit", "expected"),
    [
        ([5, 6], 64, (16,)),
        ([38], 40, (40,)),
        ([512], 512, (512,)),
        ([5] * 9 + [100], 128, (16, 128)),
    ],
)
def test_chosen_lengths(found, limit, expected):
    assert choose_lengths(np.array(found), limit) == expected
    assert set(expected) <= {*LENGTHS, limit}


def test_windows_by_overlap_start_where_the_overlap_says():
    assert overlapping_starts(12, 7, 3) == [0, 4, 8]
    assert overlapping_starts(7, 7, 3) == [0]
    assert overlapping_starts(0, 7, 3) == [0]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 12, 50])
@pytest.mark.parametrize("overlap", [0, 3, 6])
def test_windows_hold_and_own_every_token(length, overlap):
    starts = overlapping_starts(length, 7, overlap)
    assert {i for s in starts for i in range(s, min(s + 7, length))} == set(range(length))
    owned = [i for _, a, b in owned_windows(length, 7, overlap) for i in range(a, b)]
    assert owned == list(range(length))
    assert all(s <= a and b <= s + 7 for s, a, b in owned_windows(length, 7, overlap))
