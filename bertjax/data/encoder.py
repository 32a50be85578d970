"""Chunks of documents to serialised records: the part of preparation that runs in N processes.

What a chunk holds is decided by the reader alone, so the result does not depend on how many
processes share the work.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import sentencex

from bertjax.data.tokenizer import Tokenizer

MAX_RECORD = 4096  # tokens in a record; a long document is several records
MAX_SENTENCE = 512  # tokens in a sentence; longer ones are cut, and counted


@dataclasses.dataclass
class Piece:
    """A document, or a part of a long one.

    Attributes:
        split: the split it goes to.
        paragraphs: its text.
        last: whether the document ends with it.
        digest: of the whole document, 64 bits; set on the last piece.
    """

    split: str
    paragraphs: list[str]
    last: bool
    digest: int = 0


@dataclasses.dataclass
class EncodedPiece:
    """What becomes of a `Piece`: records, and the lengths of their sentences.

    Attributes:
        records: serialised tf.train.Example, whole sentences of at most `MAX_RECORD` tokens.
        sentences: how many sentences each record holds.
        lengths: uint16; the tokens of each sentence, in record order.
        tokens: the different ids and how often each occurs.
    """

    split: str
    last: bool
    digest: int
    records: list[bytes]
    sentences: list[int]
    lengths: np.ndarray
    tokens: tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass
class EncodedChunk:
    """Encoded pieces and the figures of their text.

    Attributes:
        lines: uint64 [paragraphs]; a digest of each.
        unknown: how many tokens are [UNK].
        characters: of text.
        counts: cut or empty sentences.
    """

    pieces: list[EncodedPiece]
    lines: np.ndarray
    unknown: int
    characters: int
    counts: Counter[str]


def digest64(text: str, key: bytes = b"") -> int:
    """A stable 64-bit digest of a text."""
    return digest_bytes(text.encode("utf-8", "surrogatepass"), key)


def digest_bytes(data: bytes, key: bytes = b"") -> int:
    """A stable 64-bit digest of bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little")


class Encoder:
    """Text to records: sentences by sentencex, ids by the tokenizer.

    Args:
        tokenizer: with the vocabulary of the corpus.
        language: of the text, for sentence ends ('en', 'zh', ...).
        segmenter: '' or 'jieba'; words for whole-word masking of Chinese, see `segmenter.py`.
    """

    def __init__(self, tokenizer: Tokenizer, language: str = "en", segmenter: str = "") -> None:
        self.tokenizer = tokenizer
        self.language = language
        self.segmenter = segmenter
        # Of the ids in a record; two bytes are enough for most vocabularies.
        self.dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)

    def __call__(self, pieces: Sequence[Piece]) -> EncodedChunk:
        counts: Counter[str] = Counter()
        sentences: list[str] = []
        bounds = []  # of the pieces, in sentences
        for piece in pieces:
            start = len(sentences)
            for paragraph in piece.paragraphs:
                sentences += map(str.strip, sentencex.segment(self.language, paragraph))
            bounds.append((start, len(sentences)))
        ids, lengths = self.tokenizer.encode_flat(sentences)
        continues = self._continues(sentences, ids, lengths) if self.segmenter else None
        starts = np.concatenate([[0], np.cumsum(lengths)])
        encoded = []
        for piece, (first, last) in zip(pieces, bounds, strict=True):
            tokens = slice(starts[first], starts[last])
            encoded.append(
                self._records(
                    piece,
                    ids[tokens],
                    lengths[first:last],
                    None if continues is None else continues[tokens],
                    counts,
                )
            )
        paragraphs = list(itertools.chain.from_iterable(piece.paragraphs for piece in pieces))
        return EncodedChunk(
            encoded,
            np.fromiter(map(digest64, paragraphs), np.uint64, len(paragraphs)),
            int(np.count_nonzero(ids == self.tokenizer.unk_id)),
            sum(map(len, paragraphs)),
            counts,
        )

    def _records(
        self,
        piece: Piece,
        ids: np.ndarray,
        lengths: np.ndarray,
        continues: np.ndarray | None,
        counts: Counter[str],
    ) -> EncodedPiece:
        """Cut one piece into records of whole sentences."""
        if len(lengths) and lengths.max() > MAX_SENTENCE:
            counts["long_sentences"] += int(np.count_nonzero(lengths > MAX_SENTENCE))
            lengths = self._cut(ids, lengths)
        lengths = lengths[lengths > 0]  # nothing but control characters, for example
        records, sizes = [], []
        ends = np.cumsum(lengths)
        start = first = 0
        while first < len(lengths):
            last = int(np.searchsorted(ends, start + MAX_RECORD, side="right"))
            end = int(ends[last - 1])
            records.append(
                serialize(
                    ids[start:end].astype(self.dtype),
                    None if continues is None else continues[start:end],
                )
            )
            sizes.append(last - first)
            start, first = end, last
        lengths = lengths.astype(np.uint16)
        tokens = np.unique(ids, return_counts=True)
        return EncodedPiece(piece.split, piece.last, piece.digest, records, sizes, lengths, tokens)

    def _cut(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Lengths after long sentences are cut, before a piece that begins a word if possible."""
        begins = ~self.tokenizer.continuation[ids]
        cut: list[int] = []
        start = 0
        for length in lengths.tolist():
            end = start + length
            while end - start > MAX_SENTENCE:
                (words,) = np.nonzero(begins[start + 1 : start + MAX_SENTENCE + 1])
                size = int(words[-1]) + 1 if len(words) else MAX_SENTENCE
                cut.append(size)
                start += size
            cut.append(end - start)
            start = end
        return np.array(cut, np.int64)

    def _continues(self, sentences: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        from bertjax.data import segmenter

        return segmenter.continues(self.tokenizer, sentences, ids, lengths)


def serialize(ids: np.ndarray, continues: np.ndarray | None = None) -> bytes:
    """A record as TFDS stores it: a tf.train.Example with the bytes of each array.

    Numbers one by one would take ten times as long to read as these.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    example = tf_example_pb2.Example()
    features = example.features.feature
    features["ids"].bytes_list.value.append(ids.tobytes())
    if continues is not None:
        features["continues"].bytes_list.value.append(continues.astype(np.bool_).tobytes())
    return example.SerializeToString(deterministic=True)


_encoder: Encoder | None = None  # of this worker process


def start_worker(encoder: Encoder) -> None:
    """Make this process a worker that ends with its parent, however that ends."""
    global _encoder
    import multiprocessing

    _encoder = encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process is a core
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True)
        watch.start()


def encode(pieces: Sequence[Piece]) -> EncodedChunk:
    """`Encoder.__call__` of this worker's encoder."""
    assert _encoder is not None, "start_worker was not called"
    return _encoder(pieces)
