"""Texts of any length as batches of few shapes, for inference.

A long text becomes overlapping windows (see `bertjax.data.windows`). Rows are batched by length
into a bounded number of shapes, and results come back in the order of the texts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.api import Bert
from bertjax.data.windows import owned_windows
from bertjax.errors import UserError

# Row lengths that programs are compiled for, up to the model's position table.
LENGTHS = (*range(16, 128, 16), *range(128, 256, 32), *range(256, 512, 64))
# Rows of a batch for each length: about this many tokens keep a CPU or an accelerator busy.
BATCH_TOKENS = 8192
MAX_ROWS = 64
# Rows that are sorted by length together: they are held in memory.
BLOCK = 4096
SPECIALS = 2  # [CLS] text [SEP]
SHORTEST = 8  # of max_length: fewer tokens say nothing

Progress = Callable[[int, int], None]  # (rows done, rows in all)


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


@dataclasses.dataclass
class Row:
    """One sequence for the model: a text, or a window of one.

    `owned` are the columns whose answer is taken from this row; `columns` those that the MLM head
    scores, `targets` the tokens it scores there.
    """

    text: int  # which text it belongs to
    ids: list[int]
    second: int  # the column where segment B begins
    owned: tuple[int, int] = (0, 0)
    columns: list[int] = dataclasses.field(default_factory=list)
    targets: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long texts are cut. `overlap` counts the tokens that neighbouring windows share."""

    max_length: int
    overlap: int

    @classmethod
    def of(cls, bert: Bert, max_length: int | None = None, overlap: int | None = None) -> Limits:
        """Checked limits; by default the model's own length and an eighth of it as overlap."""
        most = bert.config.max_position_embeddings
        length = most if max_length is None else max_length
        if not SHORTEST <= length <= most:
            raise UserError(f"max_length is {length}; it must be {SHORTEST} to the model's {most}.")
        if overlap is None:
            overlap = length // 8
        if not 0 <= overlap < length - SPECIALS:
            raise UserError(
                f"window_overlap is {overlap}; with max_length={length} it must be 0 to "
                f"{length - SPECIALS - 1}."
            )
        return cls(length, overlap)

    @classmethod
    def checked(cls, bert: Bert, limits: Limits | None) -> Limits:
        """`limits` as `of` checks them, or its defaults."""
        return cls.of(bert, limits.max_length, limits.overlap) if limits else cls.of(bert)


def make_rows(bert: Bert, texts: Sequence[Sequence[int]], limits: Limits) -> list[Row]:
    """[CLS] text [SEP] for each text, or for each window of it where it is too long."""
    tokenizer = bert.require_tokenizer()
    room = limits.max_length - SPECIALS
    rows = []
    for number, ids in enumerate(texts):
        for start, first, end in owned_windows(len(ids), room, limits.overlap):
            part = ids[start : start + room]
            rows.append(
                Row(
                    text=number,
                    ids=[tokenizer.cls_id, *part, tokenizer.sep_id],
                    second=len(part) + SPECIALS,
                    owned=(1 + first - start, 1 + end - start),
                )
            )
    return rows


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def batch_of(rows: Sequence[Row], max_positions: int) -> dict[str, np.ndarray]:
    """Padded arrays [B, S] of rows: the model's inputs, which columns are owned, MLM columns.

    S is the next of LENGTHS, B a power of two; rows that only fill up are empty.
    """
    longest = max(len(row.ids) for row in rows)
    length = min((n for n in LENGTHS if n >= longest), default=max_positions)
    shape = (_power_of_two(len(rows)), min(length, max_positions))
    masks = _power_of_two(max(1, *(len(row.columns) for row in rows)))
    batch = {
        name: np.zeros(shape, np.int32)
        for name in ("input_ids", "token_type_ids", "attention_mask", "owned")
    }
    batch |= {name: np.zeros((shape[0], masks), np.int32) for name in ("columns", "targets")}
    for i, row in enumerate(rows):
        batch["input_ids"][i, : len(row.ids)] = row.ids
        batch["token_type_ids"][i, row.second : len(row.ids)] = 1
        batch["attention_mask"][i, : len(row.ids)] = 1
        batch["owned"][i, slice(*row.owned)] = 1
        batch["columns"][i, : len(row.columns)] = row.columns
        batch["targets"][i, : len(row.targets)] = row.targets
    return batch


def run(
    bert: Bert,
    params: Any,
    rows: Iterable[Row],
    forward: Callable[[Any, dict[str, jax.Array]], Any],
    progress: Progress = no_progress,
    total: int = 0,
) -> Iterator[tuple[Row, Any]]:
    """(row, its outputs) in the order of `rows`, computed in blocks of BLOCK rows.

    Args:
        bert: the model.
        params: what `forward` takes first.
        rows: sequences of any lengths up to the model's.
        forward: jitted; (params, batch) -> a tree of arrays with the row as first axis.
        progress: called after each batch with the rows done and `total`.
    """
    precision = "highest" if bert.config.dtype == "float32" else "default"
    rows, finished = iter(rows), 0
    while block := list(itertools.islice(rows, BLOCK)):
        order = sorted(range(len(block)), key=lambda i: -len(block[i].ids))
        results: list[Any] = [None] * len(block)
        start = 0
        while start < len(order):
            most = max(1, min(MAX_ROWS, BATCH_TOKENS // len(block[order[start]].ids)))
            chunk = order[start : start + (1 << most.bit_length() - 1)]
            batch = batch_of([block[i] for i in chunk], bert.config.max_position_embeddings)
            with jax.default_matmul_precision(precision):
                outputs = jax.device_get(forward(params, batch))
            for place, i in enumerate(chunk):
                results[i] = jax.tree.map(lambda leaf, place=place: leaf[place], outputs)
            start += len(chunk)
            progress(finished + start, total)
        finished += len(block)
        yield from zip(block, results, strict=True)


def by_text(results: Iterator[tuple[Row, Any]], count: int) -> Iterator[list[tuple[Row, Any]]]:
    """The results of each of `count` texts, an empty list for one without rows."""
    groups = itertools.groupby(results, key=lambda pair: pair[0].text)
    number, group = next(groups, (count, ()))
    for text in range(count):
        if text != number:
            yield []
            continue
        yield list(group)
        number, group = next(groups, (count, ()))
