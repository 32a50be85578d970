"""Small random published models for the tests: parameters in our layout, names as published."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.interop.names import HUGGINGFACE, get, padded, put, tensors_of
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
        kind=HUGGINGFACE,
        config=config,
        params=params,
        tokenizer=Tokenizer(VOCAB) if fits else None,
        labels=labels,
        regression=False,
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
