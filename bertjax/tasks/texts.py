"""Texts and pairs as rows for the model: what happens to those that are too long.

One function serves training and prediction, so that a model reads a text as it was trained to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bertjax.data.windows import owned_windows


@dataclasses.dataclass(frozen=True)
class TextRow:
    """[CLS] text [SEP], or [CLS] text [SEP] second [SEP].

    ids: the tokens; second: the column where segment B begins, len(ids) where there is none.
    """

    ids: list[int]
    second: int


def text_rows(
    first: Sequence[int],
    second: Sequence[int] | None,
    *,
    size: int,
    rule: str,
    overlap: int,
    cls_id: int,
    sep_id: int,
) -> tuple[list[TextRow], bool]:
    """The rows of one text or pair, and whether tokens were cut off.

    Args:
        first, second: token ids without special tokens.
        size: the longest row.
        rule: 'head', 'tail' or 'head_tail' (the first quarter and the last three, Sun et al. 2019)
            of a text, and of a pair the longer text is cut until both fit; 'windows': all of the
            first text in overlapping windows, each with the second text, which has half the room,
            or what the first one leaves.
        overlap: tokens that neighbouring windows share.
    """
    room = size - (2 if second is None else 3)
    pair = [] if second is None else list(second)

    def row(ids: Sequence[int], pair: Sequence[int]) -> TextRow:
        tail = [*pair, sep_id] if second is not None else []
        return TextRow([cls_id, *ids, sep_id, *tail], len(ids) + 2)

    if len(first) + len(pair) <= room:
        return [row(first, pair)], False
    if rule == "windows":
        kept = pair[: max(room // 2, room - len(first))]
        room -= len(kept)
        rows = [
            row(first[start : start + room], kept)
            for start, _, _ in owned_windows(len(first), room, min(overlap, room - 1))
        ]
        return rows, len(kept) < len(pair)
    sizes = pair_sizes(len(first), len(pair), room)
    return [row(cut(first, sizes[0], rule), cut(pair, sizes[1], rule))], True


def pair_sizes(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each of two texts keeps: the longer one gives until both fit."""
    if first + second <= room:
        return first, second
    small = min(first, second, room // 2)
    return (small, room - small) if first <= second else (room - small, small)


def cut(ids: Sequence[int], size: int, rule: str) -> list[int]:
    """`size` of the ids: the first, the last, or the first quarter and the last of the rest."""
    if len(ids) <= size:
        return list(ids)
    before = {"head": size, "tail": 0, "head_tail": size // 4}[rule]
    return [*ids[:before], *ids[len(ids) - (size - before) :]]
