"""The published names of BERT's tensors, and the way between them and our parameter tree.

One table serves Hugging Face's and Google's names. Our kernels are [in, out], as Google's; PyTorch
stores [out, in], and so does Google for the output layers it calls `output_weights`. Our encoder
parameters carry a leading axis of layers; published ones are a tensor a layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from bertjax.model.config import VOCAB_MULTIPLE

# Dimension letters of the table, and the config field that gives the size.
FIELDS = {
    "V": "vocab_size",
    "N": "max_position_embeddings",
    "T": "type_vocab_size",
    "H": "hidden_size",
    "F": "intermediate_size",
}
HEADS = ("mlm", "nsp", "classifier", "tagger", "span")
HUGGINGFACE, GOOGLE = "huggingface", "google"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of the model: its place in our tree and its published names.

    `dims` are the dimension letters of our layout, without the axis of layers. Names hold
    '{layer}' where every layer has one. An empty name: that format does not have the tensor.
    """

    path: str
    dims: str
    huggingface: str
    google: str

    @property
    def head(self) -> str:
        """'bert' or the name of the head."""
        return self.path.partition("/")[0]

    @property
    def layered(self) -> bool:
        """Whether every layer has one."""
        return "{layer}" in self.huggingface

    @property
    def optional(self) -> bool:
        """Whether models are published without it: heads and the pooler."""
        return not self.path.startswith(("bert/embeddings", "bert/encoder"))

    def names(self, style: str, num_layers: int) -> list[str]:
        """Published names, one a layer, or a single one."""
        name = self.huggingface if style == HUGGINGFACE else self.google
        if not name:
            return []
        return [name.format(layer=i) for i in range(num_layers)] if self.layered else [name]

    def transposed(self, style: str) -> bool:
        """Whether the published tensor is the transpose of ours."""
        if style == HUGGINGFACE:
            return self.path.endswith("/kernel")
        return self.google.endswith("output_weights")


def _embedding(path: str, dims: str, name: str) -> list[Tensor]:
    return [Tensor(f"{path}/embedding", dims, f"{name}.weight", _google(name))]


def _dense(path: str, dims: str, name: str) -> list[Tensor]:
    return [
        Tensor(f"{path}/kernel", dims, f"{name}.weight", f"{_google(name)}/kernel"),
        Tensor(f"{path}/bias", dims[1], f"{name}.bias", f"{_google(name)}/bias"),
    ]


def _norm(path: str, name: str) -> list[Tensor]:
    return [
        Tensor(f"{path}/scale", "H", f"{name}.weight", f"{_google(name)}/gamma"),
        Tensor(f"{path}/bias", "H", f"{name}.bias", f"{_google(name)}/beta"),
    ]


def _output(path: str, dims: str, name: str, google: str | None) -> list[Tensor]:
    """An output layer, which Google stores as output_weights [out, in] and output_bias."""
    weights, bias = (
        ("", "") if google is None else (google + "output_weights", google + "output_bias")
    )
    return [
        Tensor(f"{path}/kernel", dims, f"{name}.weight", weights),
        Tensor(f"{path}/bias", dims[1], f"{name}.bias", bias),
    ]


def _google(name: str) -> str:
    return name.replace("layer.{layer}", "layer_{layer}").replace(".", "/")


_LAYER = "bert.encoder.layer.{layer}"
TENSORS: tuple[Tensor, ...] = (
    *_embedding("bert/embeddings/word_embeddings", "VH", "bert.embeddings.word_embeddings"),
    *_embedding("bert/embeddings/position_embeddings", "NH", "bert.embeddings.position_embeddings"),
    *_embedding(
        "bert/embeddings/token_type_embeddings", "TH", "bert.embeddings.token_type_embeddings"
    ),
    *_norm("bert/embeddings/layer_norm", "bert.embeddings.LayerNorm"),
    *_dense("bert/encoder/attention/query", "HH", f"{_LAYER}.attention.self.query"),
    *_dense("bert/encoder/attention/key", "HH", f"{_LAYER}.attention.self.key"),
    *_dense("bert/encoder/attention/value", "HH", f"{_LAYER}.attention.self.value"),
    *_dense("bert/encoder/attention/output", "HH", f"{_LAYER}.attention.output.dense"),
    *_norm("bert/encoder/attention/layer_norm", f"{_LAYER}.attention.output.LayerNorm"),
    *_dense("bert/encoder/mlp/intermediate", "HF", f"{_LAYER}.intermediate.dense"),
    *_dense("bert/encoder/mlp/output", "FH", f"{_LAYER}.output.dense"),
    *_norm("bert/encoder/mlp/layer_norm", f"{_LAYER}.output.LayerNorm"),
    *_dense("bert/pooler/dense", "HH", "bert.pooler.dense"),
    *_dense("mlm/dense", "HH", "cls.predictions.transform.dense"),
    *_norm("mlm/layer_norm", "cls.predictions.transform.LayerNorm"),
    Tensor("mlm/bias", "V", "cls.predictions.bias", "cls/predictions/output_bias"),
    *_output("nsp/dense", "H2", "cls.seq_relationship", "cls/seq_relationship/"),
    *_output("classifier/dense", "HC", "classifier", ""),
    *_output("tagger/dense", "HC", "classifier", None),
    *_output("span/dense", "H2", "qa_outputs", "cls/squad/"),
)


def tensors_of(heads: Sequence[str]) -> Iterator[Tensor]:
    """The tensors of the encoder and of these heads."""
    return (tensor for tensor in TENSORS if tensor.head in ("bert", *heads))


def padded(rows: int) -> int:
    """The number of rows that the vocabulary takes in memory."""
    return -(-rows // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def import_tensor(
    tensor: Tensor, source: Mapping[str, np.ndarray], style: str, num_layers: int
) -> np.ndarray:
    """Our array, float32, vocabulary rows padded with zeros, from the published arrays."""
    parts = [
        source[name].T if tensor.transposed(style) else source[name]
        for name in tensor.names(style, num_layers)
    ]
    array = np.stack(parts) if tensor.layered else parts[0]
    array = np.ascontiguousarray(array, dtype=np.float32)
    if tensor.dims[0] == "V":
        missing = padded(len(array)) - len(array)
        array = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
    return array


def export_tensor(
    tensor: Tensor, array: np.ndarray, style: str, vocab_size: int
) -> dict[str, np.ndarray]:
    """The published arrays by name, vocabulary rows cut to `vocab_size`; bits are kept."""
    if tensor.dims[0] == "V":
        array = array[:vocab_size]
    parts = list(array) if tensor.layered else [array]
    if tensor.transposed(style):
        parts = [part.T for part in parts]
    names = tensor.names(style, len(parts))
    return {n: np.ascontiguousarray(part) for n, part in zip(names, parts, strict=True)}


def get(tree: Mapping[str, Any], path: str) -> Any:
    """The node at 'a/b/c', or None."""
    node: Any = tree
    for key in path.split("/"):
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node


def put(tree: MutableMapping[str, Any], path: str, value: Any) -> None:
    """Set the node at 'a/b/c', making the dicts on the way."""
    *parents, last = path.split("/")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value
