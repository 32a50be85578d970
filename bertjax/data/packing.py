"""Packing: several sequences a row, so that nearly every position holds a real token.

The order of an epoch is cut into windows of some hundred examples, and the examples of a window
are packed into a fixed number of rows. So a row is still a function of (seed, epoch, row), found
by packing one window, and every epoch has the same number of rows. A row starts with the next
example of the window in order; the longest that fits comes next (best fit), and what is left of
the row in the end is closed by an example that is cut to it. Attention stays within a
sequence, its positions start at 0, and each has a [CLS] with a next-sentence label of its own.
"""

from __future__ import annotations

import bisect
import math

import numpy as np

from bertjax.data.pairs import Examples, Pair

_WINDOW = 512  # examples that are packed together
_SMALLEST = 8  # tokens of the shortest sequence that closes a row; smaller gaps stay empty
_SAMPLED = 4  # windows that set the number of rows a window fills
_MARGIN = 0.98  # of that number, since other windows fill fewer


class Packer:
    """Rows of packed examples.

    Attributes:
      sequences_per_row: N, at most this many sequences (and [CLS] tokens) a row: 3, or more
        where documents are short for the length; twice the mean of a full row.
      rows_per_epoch: fixed; measured on a sample of windows when the packer is made.
    """

    def __init__(self, examples: Examples):
        self._examples = examples
        self._special = 3 if examples.nsp else 2
        self._length = examples.room + self._special
        self._windows = max(1, examples.per_epoch // _WINDOW)
        self._cached: tuple[tuple[int, int], list[list[Pair]]] | None = None

        chosen = np.linspace(0, self._windows - 1, min(_SAMPLED, self._windows)).astype(int)
        pools = [self._pool(0, int(window)) for window in chosen]
        mean = np.mean([self._size(pair) for pool in pools for _, pair in pool])
        self.sequences_per_row = max(3, math.ceil(2 * self._length / mean))
        packed = [self._pack(0, pool) for pool in pools]
        full = [self._full(rows) for rows, _ in packed]
        share = min(count / len(pool) for count, pool in zip(full, pools, strict=True))
        # At least the smallest window's worth; other windows then have examples to spare.
        smallest = examples.per_epoch // self._windows
        self.rows_per_window = max(1, int(share * _MARGIN * smallest))
        self.rows_per_epoch = self.rows_per_window * self._windows
        kept = [rows[: self.rows_per_window] for rows, _ in packed]
        self._per_row = np.mean([len(row) for rows in kept for row in rows])
        self._cut = sum(cut for _, cut in packed) / sum(map(len, pools))

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> list[list[Pair]]:
        """The rows with these numbers of these epochs, each its sequences in order."""
        windows, places = np.divmod(indices, self.rows_per_window)
        return [
            self._window(int(epoch), int(window))[place]
            for epoch, window, place in zip(epochs, windows, places, strict=True)
        ]

    def notes(self) -> list[str]:
        """What packing does to the examples of an epoch, in figures from a sample."""
        used = self.rows_per_epoch * self._per_row / self._examples.per_epoch
        return [
            f"packing puts {self._per_row:.2f} sequences into a row on average (at most "
            f"{self.sequences_per_row}), cuts {self._cut:.1%} of them to close a row and leaves "
            f"about {max(0.0, 1 - used):.1%} out of each epoch, others in every epoch"
        ]

    def _window(self, epoch: int, window: int) -> list[list[Pair]]:
        """The rows of one window; the last one packed is kept, as a batch asks row by row."""
        cached = self._cached
        if cached is None or cached[0] != (epoch, window):
            rows, _ = self._pack(epoch, self._pool(epoch, window), self.rows_per_window)
            # A window that filled fewer rows than most: its sequences once more, one a row.
            missing = self.rows_per_window - len(rows)
            rows += [[row[0]] for row in rows * missing][:missing]
            cached = self._cached = (epoch, window), rows
        return cached[1]

    def _pool(self, epoch: int, window: int) -> list[tuple[int, Pair]]:
        """The examples of a window in the order of the epoch."""
        count = self._examples.per_epoch
        first, last = (n * count // self._windows for n in (window, window + 1))
        order = self._examples.order(epoch, np.arange(first, last))
        return [(int(example), self._examples.plan(epoch, int(example))) for example in order]

    def _size(self, pair: Pair) -> int:
        return pair.tokens + self._special

    def _full(self, rows: list[list[Pair]]) -> int:
        """How many rows there are before those that get the last examples of a window."""
        filled = np.array([sum(map(self._size, row)) for row in rows])
        enough = min(np.median(filled), self._length - _SMALLEST)
        return int(np.flatnonzero(filled >= enough)[-1]) + 1

    def _pack(
        self, epoch: int, pool: list[tuple[int, Pair]], limit: int | None = None
    ) -> tuple[list[list[Pair]], int]:
        """Rows from a pool, at most `limit`, and how many of the sequences in them were cut."""
        lengths = [self._size(pair) for _, pair in pool]
        free = sorted((length, place) for place, length in enumerate(lengths))
        waiting = iter(range(len(pool)))
        rows: list[list[Pair]] = []
        cut = 0
        while free and (limit is None or len(rows) < limit):
            first = next(place for place in waiting if _contains(free, (lengths[place], place)))
            row: list[Pair] = []
            gap, choice = self._length, (lengths[first], first)
            while choice:
                free.pop(bisect.bisect_left(free, choice))
                example, pair = pool[choice[1]]
                if choice[0] > gap:
                    pair = self._examples.cut(pair, gap - self._special, epoch, example)
                    cut += 1
                row.append(pair)
                gap -= self._size(pair)
                choice = self._choose(free, gap, self.sequences_per_row - len(row))
            rows.append(row)
        return rows, cut

    @staticmethod
    def _choose(free: list[tuple[int, int]], gap: int, slots: int) -> tuple[int, int] | None:
        """The (length, place) to add to a row with `gap` tokens left, or None to close it."""
        if gap < _SMALLEST or not slots or not free:
            return None
        above = bisect.bisect_left(free, (gap + 1, 0))
        if above and free[above - 1][0] == gap:
            return free[above - 1]
        # One that leaves room for another; else the shortest that can be cut to close the row.
        leaving = bisect.bisect_left(free, (gap - _SMALLEST + 1, 0))
        if slots > 1 and leaving:
            return free[leaving - 1]
        if above < len(free):
            return free[above]
        return free[above - 1]


def _contains(items: list[tuple[int, int]], item: tuple[int, int]) -> bool:
    place = bisect.bisect_left(items, item)
    return place < len(items) and items[place] == item
