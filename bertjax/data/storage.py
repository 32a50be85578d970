"""The files of a prepared corpus: ArrayRecord shards, the sentence index, TFDS metadata."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from etils import epath

from bertjax.data.encoder import EncodedPiece, Encoder
from bertjax.data.store import CORPUS, INDEX, NAME

SHARD = 64 << 20  # bytes of records in a shard, about
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """ArrayRecord raises RuntimeError, with the system's message, for a full disk and all else."""
    try:
        yield
    except RuntimeError as error:
        codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        code = next((code for code in codes if os.strerror(code) in str(error)), errno.EIO)
        raise OSError(code, str(error)) from error


class Column:
    """A one-dimensional .npy file that grows on disk, not in memory."""

    def __init__(self, path: epath.Path, dtype: Any) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self._values = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115  (closed by `close`)
        self.length = 0

    def append(self, values: Any) -> None:
        array = np.asarray(values, self.dtype)
        self._values.write(array.tobytes())
        self.length += array.size

    def close(self) -> None:
        """Write the header, now that the length is known, and the values after it."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        self._values.seek(0)
        with self.path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            while block := self._values.read(1 << 20):
                file.write(block)
        self._values.close()


class IndexWriter:
    """Writes the index of one split: sentence lengths, the place and document of records, and how
    often each token occurs.

    Attributes:
        documents, sentences, tokens, records: written so far.
    """

    def __init__(self, folder: epath.Path, name: str) -> None:
        self.documents = self.sentences = self.tokens = self.records = 0
        self._document_sentences = 0  # of the document that is not complete yet
        index = folder / INDEX
        index.mkdir(parents=True, exist_ok=True)
        self._lengths = Column(index / f"{name}.lengths.npy", np.uint16)
        self._offsets = Column(index / f"{name}.offsets.npy", np.int64)
        self._documents = Column(index / f"{name}.documents.npy", np.int64)
        self._offsets.append([0])
        self._counts, self._counts_path = np.zeros(0, np.int64), index / f"{name}.counts.npy"

    def add(
        self, sentences: Sequence[int], lengths: np.ndarray, tokens: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Records of the current document: their numbers of sentences, the lengths of these, and
        the different ids with their numbers."""
        ids, counts = tokens
        if len(ids):
            self._counts.resize(max(len(self._counts), int(ids.max()) + 1), refcheck=False)
            self._counts[ids] += counts
        ends = self.sentences + np.cumsum(sentences, dtype=np.int64)
        self._offsets.append(ends)
        self._documents.append(np.full(len(sentences), self.documents))
        self._lengths.append(lengths)
        self.records += len(sentences)
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self._document_sentences += len(lengths)

    def end_document(self) -> int:
        """The sentences of the document that ends here; one without any is not numbered."""
        sentences, self._document_sentences = self._document_sentences, 0
        self.documents += bool(sentences)
        return sentences

    def figures(self) -> dict[str, int]:
        names = ("documents", "sentences", "tokens", "records")
        return {name: getattr(self, name) for name in names}

    def close(self) -> None:
        """Write the files; an empty split leaves none."""
        for column in (self._lengths, self._offsets, self._documents):
            column.close()
            if not self.documents:
                column.path.unlink()
        if self.documents:
            with self._counts_path.open("wb") as file:
                np.save(file, self._counts)


class SplitWriter:
    """Appends the records of one split, in order, and its index.

    Attributes:
        index: what was written so far.
        shard_lengths: records of each finished shard.
        bytes: of all records.
    """

    def __init__(self, folder: epath.Path, name: str) -> None:
        self.name = name
        self.folder = folder / CORPUS
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index = IndexWriter(folder, name)
        self.shard_lengths: list[int] = []
        self.bytes = 0
        self._shard: Any = None
        self._shard_bytes = self._shard_records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._shard is not None:
            with contextlib.suppress(RuntimeError):  # a full disk has been reported already
                self._shard.close()

    def add(self, piece: EncodedPiece) -> int | None:
        """Store a piece; returns the document's number of sentences if it ends a document."""
        for record in piece.records:
            self._write(record)
        self.index.add(piece.sentences, piece.lengths, piece.tokens)
        return self.index.end_document() if piece.last else None

    def _write(self, record: bytes) -> None:
        if self._shard is None:
            from array_record.python import array_record_module

            path = self.folder / self._shard_name(len(self.shard_lengths))
            self._shard = array_record_module.ArrayRecordWriter(os.fspath(path), "group_size:1")
        with _as_os_error():
            self._shard.write(record)
        self._shard_records += 1
        self._shard_bytes += len(record)
        if self._shard_bytes >= SHARD:
            self._close_shard()

    def _shard_name(self, number: int) -> str:
        return f"{NAME}-{self.name}.array_record-{number:05d}"

    def _close_shard(self) -> None:
        from array_record.python import array_record_module

        path = os.fspath(self.folder / self._shard_name(len(self.shard_lengths)))
        with _as_os_error():
            self._shard.close()
            reader = array_record_module.ArrayRecordReader(path)
            stored = reader.num_records()
            reader.close()
        if stored != self._shard_records:
            raise OSError(errno.ENOSPC, f"{path} was not written whole")
        self.shard_lengths.append(self._shard_records)
        self.bytes += self._shard_bytes
        self._shard, self._shard_records, self._shard_bytes = None, 0, 0

    def close(self) -> None:
        """Finish the last shard and the index; an empty split leaves no file."""
        if self._shard is not None:
            self._close_shard()
        self.index.close()


def features(encoder: Encoder) -> Any:
    """Of a record: {'ids': uint16 or int32 [n]}, with a word segmenter {'continues': bool [n]}."""
    import tensorflow_datasets as tfds

    types = {"ids": encoder.dtype} | ({"continues": np.bool_} if encoder.segmenter else {})
    return tfds.features.FeaturesDict(
        {
            name: tfds.features.Tensor(shape=(None,), dtype=dtype, encoding="bytes")
            for name, dtype in types.items()
        }
    )


def write_metadata(folder: epath.Path, splits: Sequence[SplitWriter], encoder: Encoder) -> None:
    """What makes the shards a dataset for tfds.builder_from_directory."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        template=_TEMPLATE,
        data_dir=folder / CORPUS,
        dataset_name=NAME,
        filetype_suffix="array_record",
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder / CORPUS,
        features=features(encoder),
        split_infos=[
            tfds.core.SplitInfo(
                name=split.name,
                shard_lengths=split.shard_lengths,
                num_bytes=split.bytes,
                filename_template=template.replace(split=split.name),
            )
            for split in splits
        ],
        filename_template=template,
        description="Token ids of a text corpus, prepared by bertjax.",
        disable_shuffling=True,
        check_data=False,
    )


def digest_of_folder(folder: epath.Path) -> str:
    """A digest of what a finished corpus consists of.

    The index counts with its bytes, shards with their names and sizes: those are verified by
    ArrayRecord's own checksums when they are read.
    """
    digest = hashlib.sha256()
    for path in sorted((folder / CORPUS).iterdir()):
        if ".array_record-" in path.name:
            digest.update(f"{path.name} {path.stat().length}\n".encode())
    for path in sorted((folder / INDEX).iterdir()):
        digest.update(f"{path.name}\n".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
