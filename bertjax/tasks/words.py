"""Sentences of words as rows for the model, and what the model says of tokens back on words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.data.sentences import Sentence
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.windows import owned_windows, shares


@dataclasses.dataclass(frozen=True)
class Window:
    """A row of a sentence: its tokens, and for each word it owns (word number, first column)."""

    ids: list[int]
    owned: tuple[tuple[int, int], ...]


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, list[int]]:
    """Ids of each distinct word; one that leaves nothing (control characters) is one [UNK]."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer.encode_batch(distinct, special_tokens=False)
    return {word: ids or [tokenizer.unk_id] for word, ids in zip(distinct, encoded, strict=True)}


def sentence_windows(
    pieces: Sequence[Sequence[int]], size: int, overlap: int, cls_id: int, sep_id: int
) -> list[Window]:
    """Rows of at most `size` tokens that own every word of a sentence exactly once.

    Args:
        pieces: the ids of each word, at least one; of a word longer than a row, the beginning is
            read.
        size: the longest row, [CLS] and [SEP] included.
        overlap: tokens that neighbouring windows share.
    """
    room = size - 2
    pieces = [ids[:room] for ids in pieces]
    first = np.cumsum([0, *map(len, pieces)])
    ids = [i for word in pieces for i in word]
    windows = []
    for start, own_from, own_to in owned_windows(len(ids), room, min(overlap, room - 1)):
        words = np.flatnonzero((first[:-1] >= own_from) & (first[:-1] < own_to))
        owned = tuple((int(word), int(first[word]) - start + 1) for word in words)
        windows.append(Window([cls_id, *ids[start : start + room], sep_id], owned))
    return windows


def surrounded(
    window: Window, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], size: int
) -> Window:
    """A window that shows whole words from around its sentence, as many as fit.

    Args:
        window: all of a sentence.
        before, after: the ids of the words on each side, the nearest first. Each side gets half of
            the room, and what the other does not need.
        size: the longest row.
    """
    ids = window.ids[1:-1]
    room = size - len(window.ids)
    left_room, _ = shares(sum(map(len, before)), sum(map(len, after)), room)
    left = [i for word in reversed(_that_fit(before, left_room)) for i in word]
    right = [i for word in _that_fit(after, room - len(left)) for i in word]
    owned = tuple((word, column + len(left)) for word, column in window.owned)
    return Window([window.ids[0], *left, *ids, *right, window.ids[-1]], owned)


def _that_fit(words: Sequence[Sequence[int]], room: int) -> list[Sequence[int]]:
    """The first words, as long as they fit."""
    ends = np.cumsum([len(word) for word in words])
    return list(words[: int(np.searchsorted(ends, room, side="right"))])


def beside(
    sentences: Sequence[Sentence], place: int, step: int, pieces: Mapping[str, list[int]], room: int
) -> list[list[int]]:
    """Words of the sentences before (step -1) or after (1) one in its document, the nearest first:
    no more than `room` tokens."""
    found: list[list[int]] = []
    document, place = sentences[place].document, place + step
    while 0 <= place < len(sentences) and sentences[place].document == document:
        for word in sentences[place].words[::step]:
            room -= len(pieces[word])
            if room < 0:
                return found
            found.append(pieces[word])
        place += step
    return found


def word_labels(
    windows: Sequence[Window], example: Sequence[int], tokens: np.ndarray, counts: Sequence[int]
) -> list[np.ndarray]:
    """Values of words from those of tokens.

    Args:
        windows: the rows, and example: the sentence of each.
        tokens: [rows, S, ...], of each token of each row.
        counts: how many words each sentence has.

    Returns:
        For each sentence an array [words, ...].
    """
    found = [np.empty((count, *tokens.shape[2:]), tokens.dtype) for count in counts]
    for row, (window, number) in enumerate(zip(windows, example, strict=True)):
        for word, column in window.owned:
            found[number][word] = tokens[row, column]
    return found
