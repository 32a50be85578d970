"""Reads TensorFlow 1 checkpoints (V2 format: .index and .data files) without TensorFlow.

The .index file is a LevelDB table: blocks of key-value pairs whose keys share prefixes, an index
block over them, and a footer. A value is the protocol buffer BundleEntryProto, which says where
in which .data file a tensor lies. Formats: tensorflow/core/protobuf/tensor_bundle.proto and
LevelDB's doc/table_format.md.
"""

from __future__ import annotations

import dataclasses
import pathlib
import struct
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from bertjax.errors import UserError
from bertjax.interop.crc32c import masked_crc32c

_TABLE_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# tensorflow/core/framework/types.proto; other types never hold a weight.
_DTYPES = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    14: np.dtype(ml_dtypes.bfloat16),
    19: np.dtype("<f2"),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where a tensor lies. `dtype` is TensorFlow's number of the type."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class _Corrupt(Exception):
    """The bytes are not what the format promises; becomes a UserError that names the file."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The variable-length integer at `at`, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Corrupt("it ends inside a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of a serialised protocol buffer message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Corrupt(f"a field has the unknown wire type {wire}")
        piece = message[at : at + size]
        if len(piece) != size:
            raise _Corrupt("it ends inside a field")
        at += size
        yield tag >> 3, piece if wire == 2 else int.from_bytes(piece, "little")


def _dimensions(message: memoryview) -> tuple[int, ...]:
    """The sizes in a TensorShapeProto; a size of 0 is left out in the file."""
    return tuple(
        dict(_fields(dimension)).get(1, 0) for field, dimension in _fields(message) if field == 2
    )


def _entry(message: memoryview) -> Entry:
    """A BundleEntryProto."""
    fields = dict(_fields(message))
    return Entry(
        dtype=fields.get(1, 0),
        shape=_dimensions(fields.get(2, memoryview(b""))),
        shard=fields.get(3, 0),
        offset=fields.get(4, 0),
        size=fields.get(5, 0),
        crc=fields.get(6, 0),
        sliced=7 in fields,
    )


def _block(data: memoryview, handle: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and values of the block that `handle` (offset, size) points to."""
    offset, at = _varint(handle, 0)
    size, _ = _varint(handle, at)
    end = offset + size
    if end + 5 > len(data) or size < 4:
        raise _Corrupt("a block lies outside of the file")
    if masked_crc32c(data[offset : end + 1]) != struct.unpack_from("<I", data, end + 1)[0]:
        raise _Corrupt("a block has a wrong checksum")
    if data[end] != 0:
        raise _Corrupt("its blocks are compressed, which TensorFlow does not write")
    restarts = struct.unpack_from("<I", data, end - 4)[0]
    body = data[offset : end - 4 - 4 * restarts]
    key, at = b"", 0
    while at < len(body):
        shared, at = _varint(body, at)
        unshared, at = _varint(body, at)
        length, at = _varint(body, at)
        key = key[:shared] + bytes(body[at : at + unshared])
        at += unshared
        yield key, body[at : at + length]
        at += length


def _read_index(data: memoryview) -> tuple[int, dict[str, Entry]]:
    """Number of .data files, and every tensor's entry by name."""
    if len(data) < _FOOTER_BYTES:
        raise _Corrupt("it is shorter than a footer")
    footer = data[-_FOOTER_BYTES:]
    if struct.unpack_from("<Q", footer, _FOOTER_BYTES - 8)[0] != _TABLE_MAGIC:
        raise _Corrupt("its last bytes are not those of a table")
    _, at = _varint(footer, 0)  # the handle of the metaindex, which TensorFlow leaves empty
    _, at = _varint(footer, at)
    shards, entries = 0, {}
    for _, handle in _block(data, footer[at:]):
        for key, value in _block(data, handle):
            if key:
                entries[key.decode()] = _entry(value)
            else:  # the BundleHeaderProto
                header = dict(_fields(value))
                shards = header.get(1, 0)
                if header.get(2, 0) != 0:
                    raise _Corrupt("its tensors are big-endian")
    return shards, entries


class Bundle:
    """A TensorFlow 1 checkpoint on disk: names and shapes at once, tensors when asked for."""

    def __init__(self, prefix: pathlib.Path) -> None:
        """Reads PREFIX.index.

        Raises:
            UserError: the file is missing or damaged, or is a TensorFlow 2 object checkpoint.
        """
        self._prefix = prefix
        index = prefix.with_name(prefix.name + ".index")
        try:
            self._shards, self.entries = _read_index(memoryview(index.read_bytes()))
        except OSError as error:
            raise UserError(f"{index} cannot be read: {error.strerror}.") from error
        except (_Corrupt, UnicodeDecodeError, struct.error) as error:
            raise UserError(
                f"{index} is not a sound TensorFlow checkpoint index ({error}); fetch it again."
            ) from error
        if _OBJECT_GRAPH in self.entries:
            raise UserError(
                f"{index} is a TensorFlow 2 object checkpoint, which has other names than "
                "Google's TF1 releases; convert it to a Hugging Face folder first."
            )

    def read(self, name: str) -> np.ndarray:
        """The tensor `name`, its checksum verified.

        Raises:
            UserError: a .data file is missing, short or damaged, or the type is not numeric.
        """
        entry = self.entries[name]
        shard = f"{self._prefix.name}.data-{entry.shard:05d}-of-{self._shards:05d}"
        path = self._prefix.with_name(shard)
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or entry.sliced:
            kind = "is stored in slices" if entry.sliced else f"has the type {entry.dtype}"
            raise UserError(f"Tensor '{name}' of {self._prefix} {kind}, which is not read here.")
        if entry.size != int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize:
            raise UserError(
                f"Tensor '{name}' of {self._prefix} has {entry.size} bytes, which its shape "
                f"{entry.shape} contradicts; fetch the index again."
            )
        try:
            with path.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        if len(data) != entry.size or masked_crc32c(data) != entry.crc:
            raise UserError(
                f"{path} is damaged at tensor '{name}' (checksum or length); fetch it again."
            )
        return np.frombuffer(data, dtype).reshape(entry.shape)
