"""Learn a WordPiece vocabulary from text, with the trainer of the `tokenizers` library.

The library's trainer alone is not deterministic: it numbers the characters that continue a word
in the order of a randomly seeded hash map, and ties between merges are broken by those numbers.
Here words are counted first, and the whole alphabet is handed over in a fixed order.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertjax.data.tokenizer import FAMILIES, SPECIAL_TOKENS, Tokenizer
from bertjax.data.tokenizer_files import PREFIX
from bertjax.errors import UserError

# Distinct strings between white space that are counted at a time. Beyond it the rarest are
# dropped (lossy counting), so that memory does not grow with the corpus.
MAX_DISTINCT = 4_000_000


def train(
    texts: Iterable[str],
    vocab_size: int,
    *,
    do_lower_case: bool = True,
    min_frequency: int = 2,
    **settings: Any,
) -> Tokenizer:
    """A tokenizer with a new vocabulary: the same texts give the same one, on any machine.

    The ids are those of BERT's order: [PAD] 0, [UNK], [CLS], [SEP], [MASK], then the alphabet,
    then pieces from the most frequent on.

    Args:
        texts: read once; memory is bounded.
        vocab_size: tokens wanted; a corpus with fewer frequent pieces gives fewer, with a warning.
        do_lower_case: an uncased vocabulary.
        min_frequency: how often a piece must occur.
        settings: as for `Tokenizer`.

    Raises:
        UserError: no words in `texts`, or a size that leaves no room for an alphabet.
    """
    if vocab_size < 2 * len(SPECIAL_TOKENS):
        raise UserError(
            f"a vocabulary of {vocab_size} tokens is too small: "
            f"ask for {2 * len(SPECIAL_TOKENS)} or more"
        )
    words = _count_words(
        texts,
        normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
            strip_accents=settings.get("strip_accents"),
            lowercase=do_lower_case,
        ),
        settings.get("max_chars_per_word") or FAMILIES[settings.get("family", "huggingface")],
    )
    if not words:
        raise UserError("the text to learn a vocabulary from has no words: check the source")
    alphabet = _alphabet(words, min_frequency, 3 * (vocab_size - len(SPECIAL_TOKENS)) // 4)
    first = {token for token in alphabet if not token.startswith(PREFIX)}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        continuing_subword_prefix=PREFIX,
    )
    engine = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.train_from_iterator(_repeat(words, first), trainer)
    ids = engine.get_vocab()
    vocab = sorted(ids, key=ids.__getitem__)
    if len(vocab) < vocab_size:
        warnings.warn(
            f"the text gives a vocabulary of {len(vocab)} tokens, fewer than the {vocab_size} "
            f"asked for: no other piece of its words occurs {min_frequency} times",
            stacklevel=2,
        )
    return Tokenizer(vocab, do_lower_case=do_lower_case, **settings)


def _count_words(
    texts: Iterable[str], normalizer: normalizers.Normalizer, longest: int
) -> Counter[str]:
    """How often each word occurs; longer words than `longest` are [UNK] and are left out."""
    spaced: Counter[str] = Counter()
    floor = 0
    for text in texts:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        spaced.update(normalizer.normalize_str(text).split())
        while len(spaced) > MAX_DISTINCT:
            floor += 1
            spaced = Counter({word: n for word, n in spaced.items() if n > floor})
    if floor:
        warnings.warn(
            f"words that occurred at most {floor} times by then were dropped from the count: "
            f"the text has more than {MAX_DISTINCT} distinct words",
            stacklevel=3,
        )
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for chunk, n in spaced.items():
        for word, _ in [(chunk, None)] if chunk.isalpha() else splitter.pre_tokenize_str(chunk):
            if len(word) <= longest:
                words[word] += n
    return words


def _alphabet(words: Counter[str], min_frequency: int, limit: int) -> list[str]:
    """One-character pieces, first and continuing ones, of the most frequent characters."""
    characters: Counter[str] = Counter()
    continuing: set[str] = set()
    for word, n in words.items():
        for i, character in enumerate(word):
            characters[character] += n
            if i:
                continuing.add(character)
    frequent = [c for c, n in characters.items() if n >= min_frequency] or list(characters)
    frequent.sort(key=lambda c: (-characters[c], c))
    alphabet: list[str] = []
    for number, character in enumerate(frequent):
        pieces = [character, PREFIX + character] if character in continuing else [character]
        if len(alphabet) + len(pieces) > limit:
            warnings.warn(
                f"the vocabulary has room for the {number:,} most frequent of {len(frequent):,} "
                "characters, and words with another one are [UNK]: ask for a larger one if the "
                "share of [UNK] is high",
                stacklevel=3,
            )
            break
        alphabet += pieces
    return sorted(alphabet)


def _repeat(words: Counter[str], alphabet: set[str]) -> Iterator[str]:
    """Each word as often as it occurs, in a fixed order; words beyond the alphabet are left out."""
    for word in sorted(words):
        if set(word) <= alphabet:
            for start in range(0, words[word], 1000):
                yield f"{word} " * min(1000, words[word] - start)
