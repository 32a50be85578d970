"""Reading a prepared corpus: its index by memory map, its records by random access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.errors import UserError

# What a prepared folder holds.
NAME, VERSION = "corpus", "1.0.0"
CORPUS, INDEX, REPORT = f"{NAME}/{VERSION}", "index", "data_report.json"
# Files that mark it, finished or not.
FINGERPRINT, UNFINISHED = "fingerprint.json", "UNFINISHED"


class StoredIndex:
    """The index of one split: which sentences there are, in which records and documents.

    It is memory-mapped where the folder is local.

    Attributes:
      lengths: uint16 [sentences], tokens of each sentence in record order.
      offsets: int64 [records + 1], the first sentence of each record.
      documents: int64 [records], the document of each record; a document's records adjoin.
    """

    def __init__(self, folder: str, split: str):
        self.folder, self.split = str(folder), split
        self.lengths = self._index("lengths")
        self.offsets = self._index("offsets")
        self.documents = self._index("documents")
        records = len(self.documents)
        if len(self.offsets) != records + 1 or self.offsets[-1] != len(self.lengths):
            raise UserError(
                f"the index of {folder}, split {split!r}, is damaged: {records} records, "
                f"{len(self.offsets)} offsets, {len(self.lengths)} sentences; prepare it again"
            )

    def _index(self, name: str) -> np.ndarray:
        path = epath.Path(self.folder) / INDEX / f"{self.split}.{name}.npy"
        try:
            mapped = np.load(path, mmap_mode="r")
            return mapped.view(np.ndarray)  # whose slices cost less than a memmap's
        except (ValueError, OSError) as error:  # mapping needs a local file
            if not str(path).startswith(("gs://", "s3://")):
                raise UserError(f"cannot read {path} ({error}); prepare the corpus again") from None
            with path.open("rb") as file:
                return np.load(file)

    def __len__(self) -> int:
        """The number of records."""
        return len(self.documents)

    def chunks(self, records: int = 1 << 20) -> Iterable[tuple[np.ndarray, ...]]:
        """(lengths, offsets, documents) of `records` records at a time, in order.

        Each piece is mapped by itself, so that a pass over everything leaves nothing resident.
        """
        for start in range(0, len(self), records):
            stop = min(start + records, len(self))
            offsets = np.array(self._index("offsets")[start : stop + 1])
            lengths = np.array(self._index("lengths")[offsets[0] : offsets[-1]])
            documents = np.array(self._index("documents")[start:stop])
            yield lengths, offsets - offsets[0], documents

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token of the vocabulary occurs in this split: int64 [vocab_size]."""
        counts = np.array(self._index("counts"))
        return np.pad(counts, (0, max(0, vocab_size - len(counts))))[:vocab_size]


class PreparedCorpus(StoredIndex):
    """One split of a folder that `bertjax.prepare` made (layout: docs/architecture.md).

    Nothing of the corpus is loaded: a record is read when it is asked for. Opened again, not
    copied, in worker processes.
    """

    def __init__(self, folder: str, split: str):
        root = epath.Path(folder)
        if not (root / INDEX).is_dir():
            raise UserError(
                f"{folder} is not a prepared corpus (it has no folder {INDEX}); "
                "make one with python -m bertjax.prepare --out=FOLDER"
            )
        if not (root / FINGERPRINT).exists():
            raise UserError(
                f"the corpus in {folder} is unfinished (it has no {FINGERPRINT}); "
                "run python -m bertjax.prepare again"
            )
        if not (root / INDEX / f"{split}.lengths.npy").exists():
            names = sorted(path.name.split(".")[0] for path in root.glob(f"{INDEX}/*.lengths.npy"))
            raise UserError(f"{folder} has no split {split!r}; it has {', '.join(names)}")
        super().__init__(folder, split)
        self._source: Any = None

    def read(self, records: Iterable[int]) -> list[Mapping[str, np.ndarray]]:
        """The records with these numbers: 'ids' int32 [n], with a segmenter 'continues' too."""
        if self._source is None:
            self._source = self._open()
        features = self._source.dataset_info.features
        # One by one: array_record's own batch reads start threads, and are slower locally.
        raw = self._source.data_source
        read = (features.deserialize_example_np(raw[int(record)]) for record in records)
        return [{**record, "ids": record["ids"].astype(np.int32)} for record in read]

    def _open(self) -> Any:
        import tensorflow_datasets as tfds  # slow to import, and only reading needs it

        builder = tfds.builder_from_directory(epath.Path(self.folder) / CORPUS)
        source = builder.as_data_source(split=self.split)
        if len(source) != len(self):
            raise UserError(
                f"{self.folder}, split {self.split!r}, has {len(source)} records but an index of "
                f"{len(self)}; prepare it again"
            )
        return source

    def __getstate__(self) -> dict[str, str]:
        return {"folder": self.folder, "split": self.split}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(**state)
