"""Small prepared corpora for tests, in the layout of docs/architecture.md."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow_datasets as tfds

Document = Sequence[Sequence[int]]  # sentences of token ids


class LengthIndex:
    """The index of a corpus in memory: documents are lists of sentence lengths."""

    def __init__(self, documents: Sequence[Sequence[int]], record_tokens: int = 4096):
        records = [
            (number, [len(sentence) for sentence in record])
            for number, document in enumerate(documents)
            for record in _records([range(size) for size in document], record_tokens)
        ]
        self.lengths = np.array([size for _, sizes in records for size in sizes], np.uint16)
        self.offsets = np.cumsum([0] + [len(sizes) for _, sizes in records])
        self.documents = np.array([number for number, _ in records], np.int64)

    def chunks(self):
        """In pieces of three records, so that documents go over the pieces' edges."""
        for start in range(0, len(self.documents), 3):
            offsets = self.offsets[start : start + 4]
            lengths = self.lengths[offsets[0] : offsets[-1]]
            yield lengths, offsets - offsets[0], self.documents[start : start + 3]

    def starts(self, record: int) -> np.ndarray:
        first, last = self.offsets[record : record + 2]
        return np.concatenate([[0], np.cumsum(self.lengths[first:last], dtype=int)])

    def tokens(self, record: int) -> int:
        return int(self.starts(record)[-1])

    def token_uses(self, pairs) -> np.ndarray:
        """How often each token of the corpus stands in A or follows A: random B not counted."""
        sizes = [self.tokens(record) for record in range(len(self.documents))]
        firsts = np.concatenate([[0], np.cumsum(sizes)])
        uses = np.zeros(firsts[-1], int)
        for pair in pairs:
            segments = pair.segments[:1] if pair.label == 1 else pair.segments
            for record, start, end in segments:
                uses[firsts[record] + start : firsts[record] + end] += 1
        return uses


def write_corpus(
    folder: pathlib.Path, splits: dict[str, list[Document]], record_tokens: int = 4096
) -> pathlib.Path:
    """A prepared corpus of these documents: each split's documents are lists of sentences."""
    version = folder / "corpus" / "1.0.0"
    version.mkdir(parents=True)
    (folder / "index").mkdir()
    features = tfds.features.FeaturesDict(
        {"ids": tfds.features.Tensor(shape=(None,), dtype=np.int32)}
    )
    identity = tfds.core.DatasetIdentity(
        name="corpus", version=tfds.core.Version("1.0.0"), data_dir=version, module_name=""
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(
        info, max_examples_per_shard=500, overwrite=True, file_format="array_record"
    )
    writer.initialize_splits(list(splits))
    for split, documents in splits.items():
        lengths, offsets, numbers = [], [0], []
        for number, document in enumerate(documents):
            for record in _records(document, record_tokens):
                ids = np.concatenate([np.asarray(s, np.int32) for s in record])
                writer.add_examples({split: [{"ids": ids}]})
                lengths += [len(s) for s in record]
                offsets.append(len(lengths))
                numbers.append(number)
        index = folder / "index"
        np.save(index / f"{split}.lengths.npy", np.array(lengths, np.uint16))
        np.save(index / f"{split}.offsets.npy", np.array(offsets, np.int64))
        np.save(index / f"{split}.documents.npy", np.array(numbers, np.int64))
    writer.close_all()
    (folder / "fingerprint.json").write_text(json.dumps({"dataset": "0", "vocab": "0"}))
    return folder


def _records(document: Document, record_tokens: int):
    """Whole sentences of one document, at most `record_tokens` tokens a record."""
    record, size = [], 0
    for sentence in document:
        if record and size + len(sentence) > record_tokens:
            yield record
            record, size = [], 0
        record.append(sentence)
        size += len(sentence)
    if record:
        yield record
