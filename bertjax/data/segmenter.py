"""Words of Chinese text, for whole-word masking: '##' groups nothing where every ideograph is a
token of its own. Needs the extra `zh` (jieba)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

NAMES = ("", "jieba")


def check(name: str) -> None:
    """Raises UserError unless the segmenter `name` is known and installed."""
    if name not in NAMES:
        raise UserError(f"unknown word segmenter {name!r}: choose jieba, or leave it out")
    if name:
        _jieba()


@functools.cache
def _jieba() -> Any:
    try:
        import jieba
    except ImportError:
        raise UserError(
            "the word segmenter jieba is not installed: pip install 'bertjax[zh]'"
        ) from None
    jieba.setLogLevel(logging.WARNING)
    return jieba


def continues(
    tokenizer: Tokenizer, sentences: Sequence[str], ids: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Whether each token continues the word of the token before it.

    Args:
        ids: int32 [tokens] of all sentences.
        lengths: [sentences]; the tokens of each.

    Returns:
        bool [tokens]: '##' pieces, and tokens that lie in the same word of the segmenter as the
        token before them. The first token of a sentence never continues.
    """
    jieba = _jieba()
    flags = tokenizer.continuation[ids]
    start = 0
    for sentence, length in zip(sentences, lengths.tolist(), strict=True):
        offsets = tokenizer.encode(sentence, special_tokens=False).offsets
        word = np.zeros(len(sentence) + 1, np.int64)  # number of the word at each character
        for number, (_, first, last) in enumerate(jieba.tokenize(sentence)):
            word[first:last] = number
        of_token = np.array([word[first] for first, _ in offsets], np.int64)
        assert len(of_token) == length, "one sentence gave two different encodings"
        flags[start + 1 : start + length] |= of_token[1:] == of_token[:-1]
        start += length
    return flags
