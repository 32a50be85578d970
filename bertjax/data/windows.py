"""Long texts as overlapping windows."""

from __future__ import annotations

import itertools


def owned_windows(length: int, size: int, overlap: int) -> list[tuple[int, int, int]]:
    """Windows of at most `size` over `length` tokens, as (start, first owned, end of owned).

    Neighbours share at least `overlap` tokens; each token is owned by the window that shows most
    context on its poorer side. The last window ends at the last token.
    """
    last = max(length - size, 0)
    starts = [*range(0, last, size - overlap), last]
    cuts = [(a + size + b) // 2 for a, b in itertools.pairwise(starts)]
    return list(zip(starts, [0, *cuts], [*cuts, length], strict=True))


def overlapping_starts(length: int, size: int, overlap: int) -> list[int]:
    """Where windows of `size` over `length` tokens start when neighbours share exactly `overlap`.

    `overlap` is in tokens that are shared, not the step from window to window, which is
    size - overlap. The last window may be shorter.
    """
    starts = [0]
    while starts[-1] + size < length:
        starts.append(starts[-1] + size - overlap)
    return starts


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of `room` two sides get that want so much: half each, and what the other leaves."""
    left = min(first, max(room // 2, room - second))
    return left, min(second, room - left)
