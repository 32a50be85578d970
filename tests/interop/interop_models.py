"""Small random published models for the tests: parameters in our layout, names as published."""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.interop.crc32c import masked_crc32c
from bertjax.interop.names import (
    GOOGLE,
    HUGGINGFACE,
    export_tensor,
    get,
    padded,
    put,
    tensors_of,
)
from bertjax.interop.published import Coverage, Published, checksum

VOCAB = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "brown", "fox", "jumps", "over",
    "lazy", "dog", "a", "b", "c", "##s", "##ing", "hello", "world", "京", "中", "国", "的",
    "首", "都", "is", "not", "good", "bad", "?", ".",
]  # fmt: skip
CONFIG = {
    "vocab_size": len(VOCAB),
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
CLASSES = {"classifier": 3, "tagger": 4}


def random_params(heads: tuple[str, ...], seed: int = 0, **sizes: int) -> dict[str, Any]:
    """A parameter tree in our layout with random values; padded vocabulary rows are zero."""
    config = CONFIG | sizes
    rng = np.random.default_rng(seed)
    by_letter = {
        "V": config["vocab_size"],
        "N": config["max_position_embeddings"],
        "T": config["type_vocab_size"],
        "H": config["hidden_size"],
        "F": config["intermediate_size"],
        "2": 2,
    }
    params: dict[str, Any] = {}
    for tensor in tensors_of(heads):
        letters = by_letter | {"C": CLASSES.get(tensor.head, 0)}
        shape = [letters[letter] for letter in tensor.dims]
        if tensor.layered:
            shape = [config["num_layers"], *shape]
        array = rng.normal(0, 0.3, shape).astype(np.float32)
        if tensor.path.endswith("scale"):
            array += 1
        if tensor.dims[0] == "V":
            rows = padded(config["vocab_size"]) - config["vocab_size"]
            array = np.pad(array, [(0, rows)] + [(0, 0)] * (array.ndim - 1))
        put(params, tensor.path, array)
    return params


def published(heads: tuple[str, ...], seed: int = 0, **sizes: int) -> Published:
    """A `Published` of random parameters, with a tokenizer where the sizes allow."""
    params = random_params(heads, seed, **sizes)
    config = CONFIG | sizes
    count = next((CLASSES[head] for head in heads if head in CLASSES), 0)
    labels = tuple(f"label {i}" for i in range(count)) or None
    fits = config["vocab_size"] == len(VOCAB)
    names = [n for t in tensors_of(()) for n in t.names(HUGGINGFACE, config["num_layers"])]
    return Published(
        source="random",
        config=config,
        params=params,
        tokenizer=Tokenizer(VOCAB) if fits else None,
        labels=labels,
        problem_type="single_label",
        coverage=Coverage(len(names), len(names), heads, (), checksum(params)),
    )


def same_trees(one: Any, other: Any) -> bool:
    """Whether two parameter trees have the same paths and the same bits."""
    tensors = [t.path for t in tensors_of(("mlm", "nsp", "classifier", "tagger", "span"))]
    for path in tensors:
        left, right = get(one, path), get(other, path)
        if (left is None) != (right is None):
            return False
        if left is not None and (left.dtype != right.dtype or left.tobytes() != right.tobytes()):
            return False
    return True


def write_json(path: pathlib.Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


# A writer of the same format, as small as it can be: one data block, no shared prefixes.


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _entry(array: np.ndarray, offset: int, dtype: int) -> bytes:
    shape = b"".join(_field(2, _field(1, size)) for size in array.shape)
    body = _field(1, dtype) + _field(2, shape) + _field(4, offset) + _field(5, array.nbytes)
    return body + _varint(6 << 3 | 5) + struct.pack("<I", masked_crc32c(array.tobytes()))


def _table_block(pairs: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(b"\0" + _varint(len(k)) + _varint(len(v)) + k + v for k, v in pairs)
    body += struct.pack("<II", 0, 1) + b"\0"  # one restart at 0; no compression
    return body + struct.pack("<I", masked_crc32c(body))


def write_bundle(prefix: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """A TensorFlow 1 checkpoint of float32 and int64 arrays."""
    header = _field(1, 1)
    pairs, data = [(b"", header)], b""
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        dtype = {"float32": 1, "int64": 9}[str(array.dtype)]
        pairs.append((name.encode(), _entry(array, len(data), dtype)))
        data += array.tobytes()
    block, meta = _table_block(pairs), _table_block([])
    handle = _varint(0) + _varint(len(block) - 5)
    index = _table_block([(b"~", handle)])
    footer = _varint(len(block)) + _varint(len(meta) - 5)
    footer += _varint(len(block) + len(meta)) + _varint(len(index) - 5)
    footer = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.with_name(prefix.name + ".index").write_bytes(block + meta + index + footer)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)


def google_weights(model: Published) -> dict[str, np.ndarray]:
    """A model's weights under Google's names."""
    weights: dict[str, np.ndarray] = {}
    for tensor in tensors_of(model.heads):
        array = get(model.params, tensor.path)
        weights |= export_tensor(tensor, array, GOOGLE, model.config["vocab_size"])
    return weights


def google_config() -> dict:
    return {
        "vocab_size": len(VOCAB),
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 24,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    }


def write_release(root: pathlib.Path, model: Published) -> None:
    """A folder as Google released them, with optimizer slots and a step counter."""
    weights = google_weights(model)
    slots = {f"{n}/{s}": np.zeros_like(a) for n, a in weights.items() for s in ("adam_m", "adam_v")}
    root.mkdir(parents=True)
    state = {"global_step": np.asarray(20, np.int64)}
    write_bundle(root / "bert_model.ckpt", weights | slots | state)
    write_json(root / "bert_config.json", google_config())
    (root / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
