"""Batches of rows of like length, in a small fixed set of shapes.

The batch of a step is a function of (lengths, seed, step): every row comes once an epoch, in an
order drawn from (seed, epoch). Rows are shuffled, cut into blocks of many batches, sorted by length
inside a block and cut into batches, whose order is shuffled again. So a batch is padded little, and
which rows meet in it changes from epoch to epoch. The last batch of an epoch may be smaller; it is
filled up with empty rows of weight 0.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from bertjax.data.shuffle import mix

# The lengths that batches may be padded to, and how many of them one run compiles for.
LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST_SHAPES = 4
BATCHES_A_BLOCK = 50


def choose_lengths(lengths: np.ndarray, limit: int) -> tuple[int, ...]:
    """At most MOST_SHAPES of LENGTHS, ascending, that hold rows of these lengths with the least
    padding in all. None is above `limit`, which takes the place of the next larger one."""
    longest = min(next((n for n in LENGTHS if n >= lengths.max()), limit), limit)
    smaller = [n for n in LENGTHS if n < longest and n >= lengths.min()]
    sets = [
        (*chosen, longest)
        for count in range(min(MOST_SHAPES, len(smaller) + 1))
        for chosen in itertools.combinations(smaller, count)
    ]

    def padded(chosen: tuple[int, ...]) -> int:
        return int(np.array(chosen)[np.searchsorted(chosen, lengths)].sum())

    return min(sets, key=lambda chosen: (padded(chosen), len(chosen)))


class LengthBuckets:
    """Which rows make the batch of a training step.

    Args:
        lengths: int [n], tokens of each row, none above `limit`.
        batch_size: rows of a batch.
        limit: the longest row that the model takes.
        seed: of the order.
        by_length: False leaves the rows in the order drawn, all padded to `limit`.
    """

    def __init__(
        self, lengths: np.ndarray, batch_size: int, limit: int, seed: int, by_length: bool = True
    ) -> None:
        self.lengths, self.batch_size, self.limit = np.asarray(lengths), batch_size, limit
        self.seed, self.by_length = seed, by_length
        self.shapes = choose_lengths(self.lengths, limit) if by_length else (limit,)
        self.steps_per_epoch = -(-len(self.lengths) // batch_size)
        self._epoch = functools.lru_cache(maxsize=2)(self._plan)

    @property
    def longest(self) -> int:
        """The padded length of the longest batch there is."""
        return self.shapes[-1]

    def batch(self, step: int) -> tuple[int, np.ndarray, int]:
        """(epoch, row numbers [<= batch_size], padded length) of a training step from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows = self._epoch(epoch)[place]
        return epoch, rows, self._length(rows)

    def in_length_order(self, batch_size: int) -> list[tuple[np.ndarray, int]]:
        """Every row once, shortest first, as (row numbers, padded length): for evaluation."""
        order = np.argsort(self.lengths, kind="stable")
        parts = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        return [(rows, self._length(rows)) for rows in parts]

    def _length(self, rows: np.ndarray) -> int:
        return self.shapes[int(np.searchsorted(self.shapes, self.lengths[rows].max()))]

    def _plan(self, epoch: int) -> list[np.ndarray]:
        draw = np.random.default_rng(mix(self.seed, epoch))
        order = draw.permutation(len(self.lengths))
        if not self.by_length:
            return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        block = self.batch_size * BATCHES_A_BLOCK
        whole: list[np.ndarray] = []
        rest: list[np.ndarray] = []
        for start in range(0, len(order), block):
            rows = order[start : start + block]
            rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            for i in range(0, len(rows), self.batch_size):
                part = rows[i : i + self.batch_size]
                (whole if len(part) == self.batch_size else rest).append(part)
        return [whole[i] for i in draw.permutation(len(whole))] + rest
