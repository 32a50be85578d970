"""Hugging Face folders and hub names, in and out, without PyTorch or transformers."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.interop.names import HUGGINGFACE, export_tensor, get, tensors_of
from bertjax.interop.published import Published, assemble, check_config, check_new_folder
from bertjax.interop.vocabulary import ADDED_FILE, load_tokenizer, without_padding, write_tokenizer
from bertjax.interop.weights import INDEX, WEIGHTS, read_json, read_weights, weight_files

# What a hub name brings: never a pickle.
_FILES = ["config.json", "*.safetensors", INDEX, "vocab.txt", "tokenizer*.json", ADDED_FILE]

# Our name, its name in config.json, and the value that transformers takes where it is absent.
_CONFIG = (
    ("vocab_size", "vocab_size", 30522),
    ("num_layers", "num_hidden_layers", 12),
    ("hidden_size", "hidden_size", 768),
    ("num_heads", "num_attention_heads", 12),
    ("intermediate_size", "intermediate_size", 3072),
    ("max_position_embeddings", "max_position_embeddings", 512),
    ("type_vocab_size", "type_vocab_size", 2),
    ("hidden_dropout", "hidden_dropout_prob", 0.1),
    ("attention_dropout", "attention_probs_dropout_prob", 0.1),
    ("layer_norm_eps", "layer_norm_eps", 1e-12),
    ("initializer_range", "initializer_range", 0.02),
)
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_EXPORTED_ACTIVATIONS = {"gelu_tanh": "gelu_new"}
_ARCHITECTURES = {
    "BertModel": (),
    "BertForPreTraining": ("mlm", "nsp"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("nsp",),
    "BertForSequenceClassification": ("classifier",),
    "BertForTokenClassification": ("tagger",),
    "BertForQuestionAnswering": ("span",),
}
PROBLEM_TYPES = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def read_config(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of BertConfig from a config.json or bert_config.json, checked.

    Raises:
        UserError: another kind of model, an unknown activation or impossible sizes.
    """
    kind = raw.get("model_type", "bert")
    if kind != "bert":
        raise UserError(f"{where}: model_type is '{kind}'; only 'bert' can be read.")
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{where}: architectures is {names!r}, which is no list of class names.")
    if "model_type" not in raw and names and not any(name.startswith("Bert") for name in names):
        raise UserError(f"{where}: the architecture is {names[0]}; only BERT's can be read.")
    for field, expected in (
        ("position_embedding_type", "absolute"),
        ("is_decoder", False),
        ("add_cross_attention", False),
    ):
        if raw.get(field, expected) != expected:
            raise UserError(f"{where}: {field} is {raw[field]!r}; only {expected!r} can be read.")
    config = {ours: raw.get(theirs, default) for ours, theirs, default in _CONFIG}
    act = raw.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in _ACTIVATIONS:
        raise UserError(
            f"{where}: hidden_act is {act!r}, which is not one of {', '.join(_ACTIVATIONS)}."
        )
    config["hidden_act"] = _ACTIVATIONS[act]
    check_config(config, where)
    return config


def _hub_folder(name: str) -> pathlib.Path:
    """The folder in huggingface_hub's cache that holds the model `name`, fetched if need be."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise UserError(
            f"'{name}' is no path here, and to fetch it from the hub the package huggingface_hub "
            "is needed: pip install 'bertjax[hub]'."
        ) from error
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # its own classes, and those of its HTTP library
        try:
            local = huggingface_hub.snapshot_download(name, local_files_only=True)
            return pathlib.Path(local)
        except Exception:
            raise UserError(
                f"'{name}' is no path here, is not in the hub's cache and could not be fetched "
                f"from the hub ({type(error).__name__}); check the name and the network."
            ) from error


def _canonical(arrays: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
    """Today's names: with 'bert.', LayerNorm's weight and bias, without buffers."""
    prefixed = any(name.startswith("bert.") for name in arrays)
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if name.endswith(_BUFFERS):
            continue
        if not prefixed and name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        if name in result:
            raise UserError(f"{where} stores '{name}' twice, under an old and a new name.")
        result[name] = array
    return result


def _untie(arrays: dict[str, np.ndarray], where: str) -> list[str]:
    """Drop the decoder's copies of what it shares; notes about an MLM head that is not tied.

    An untied decoder cannot be held here: its head stays behind, whole.
    """
    bias = arrays.pop("cls.predictions.decoder.bias", None)
    own = arrays.get("cls.predictions.bias")
    weight = arrays.get("cls.predictions.decoder.weight")
    words = arrays.get("bert.embeddings.word_embeddings.weight")
    if bias is not None and own is None:
        arrays["cls.predictions.bias"] = own = bias
    different = [
        name
        for name, copy, shared in (
            ("decoder.weight", weight, words),
            ("decoder.bias", bias, own),
        )
        if copy is not None and shared is not None and not np.array_equal(copy, shared)
    ]
    if not different:
        arrays.pop("cls.predictions.decoder.weight", None)
        return []
    for name in [name for name in arrays if name.startswith("cls.predictions.")]:
        arrays[f"{name} (untied)"] = arrays.pop(name)
    return [
        f"{where}: cls.predictions.{different[0]} differs from what it should share with the "
        "embedding, so the MLM head is left out"
    ]


def _heads(raw: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """The heads to look for, by the architecture's name, else by the names of the tensors.

    bert-base-uncased is a BertForMaskedLM with the NSP head beside it: of pretraining, every head
    that is there is taken.
    """
    for architecture in raw.get("architectures") or ():
        if architecture in _ARCHITECTURES:
            heads = _ARCHITECTURES[architecture]
            return ("mlm", "nsp") if set(heads) <= {"mlm", "nsp"} else heads
        if "classifier.weight" in arrays:  # BertForMultipleChoice and strangers
            return ("mlm", "nsp", "span")
    pooled = "bert.pooler.dense.weight" in arrays
    return ("mlm", "nsp", "classifier" if pooled else "tagger", "span")


def _labels(raw: Mapping[str, Any], params: Mapping[str, Any], where: str) -> list[str] | None:
    """Names of the classes; raises UserError if they are fewer or more than the head's outputs."""
    bias = get(params, "classifier/dense/bias")
    bias = get(params, "tagger/dense/bias") if bias is None else bias
    if bias is None:
        return None
    count = len(bias)
    stated = raw.get("num_labels", count)
    names = raw.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    if not isinstance(names, dict):
        raise UserError(f"{where}: id2label is a {type(names).__name__}, not a JSON object.")
    if len(names) != count or stated != count:
        what = (
            f"id2label names {len(names)} classes" if stated == count else f"num_labels is {stated}"
        )
        raise UserError(f"{where}: {what}, but the head has {count} outputs.")
    by_number = {str(number): str(name) for number, name in names.items()}
    if set(by_number) != set(map(str, range(count))):
        raise UserError(
            f"{where}: id2label has the numbers {', '.join(by_number)}, but the outputs of the "
            f"head are 0 to {count - 1}."
        )
    labels = [by_number[str(i)] for i in range(count)]
    twice = next((name for name in labels if labels.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where}: id2label gives the name '{twice}' to two classes.")
    return labels


def _contradictions(raw: Mapping[str, Any], labels: Sequence[str] | None, where: str) -> list[str]:
    """A remark where label2id gives the names of id2label to other classes."""
    numbers = raw.get("label2id")
    if labels is None or not isinstance(numbers, dict) or set(numbers) != set(labels):
        return []
    wrong = [name for i, name in enumerate(labels) if str(numbers[name]) != str(i)]
    if not wrong:
        return []
    return [
        f"{where}: label2id contradicts id2label ('{wrong[0]}' is {numbers[wrong[0]]} and "
        f"{labels.index(wrong[0])}): id2label is followed, as in transformers"
    ]


def _problem_type(raw: Mapping[str, Any], labels: Sequence[str] | None, where: str) -> str:
    """Our name of what the classifier says; transformers' rule where config.json is silent."""
    name = raw.get("problem_type")
    if name is None:
        return "regression" if labels is not None and len(labels) == 1 else "single_label"
    if name == PROBLEM_TYPES["regression"] and labels is not None and len(labels) > 1:
        raise UserError(f"{where}: {name} with {len(labels)} outputs; only one number can be read.")
    for ours, theirs in PROBLEM_TYPES.items():
        if name == theirs:
            return ours
    raise UserError(
        f"{where}: problem_type is {name!r}, not one of {', '.join(PROBLEM_TYPES.values())}."
    )


def read(path: str) -> Published:
    """A Hugging Face folder or hub name as a `Published` checkpoint.

    Reads config.json, safetensors weights (also sharded) and the tokenizer's files; float16 and
    bfloat16 become float32. Names may have the prefix 'bert.' or not, gamma and beta or weight and
    bias.

    Raises:
        UserError: see the list in docs/checkpoints.md; nothing is unpickled.
    """
    folder = pathlib.Path(path).expanduser()
    if not folder.is_dir():
        if not _HUB_NAME.fullmatch(path):
            raise UserError(f"{path} does not exist.")
        folder = _hub_folder(path)
    files = weight_files(folder)
    where = str(folder / "config.json")
    raw = read_json(folder / "config.json")
    config = read_config(raw, where)
    arrays = _canonical(read_weights(files), str(folder))
    notes = _untie(arrays, str(folder))
    params, coverage = assemble(arrays, HUGGINGFACE, config, _heads(raw, arrays), str(folder))
    labels = _labels(raw, params, where)
    tokenizer, remarks = load_tokenizer(folder, config["vocab_size"])
    config, params, coverage = without_padding(config, params, coverage, tokenizer)
    return Published(
        source=path,
        config=config,
        params=params,
        tokenizer=tokenizer,
        labels=None if labels is None else tuple(labels),
        problem_type=_problem_type(raw, labels, where),
        coverage=coverage,
        notes=(*notes, *remarks, *_contradictions(raw, labels, where)),
    )


def _config_json(published: Published, architecture: str) -> dict[str, Any]:
    """What transformers reads as config.json."""
    config = published.config
    raw: dict[str, Any] = {"architectures": [architecture], "model_type": "bert"}
    raw.update({theirs: config[ours] for ours, theirs, _ in _CONFIG})
    act = config["hidden_act"]
    raw["hidden_act"] = _EXPORTED_ACTIVATIONS.get(act, act)
    raw.update(
        pad_token_id=0 if published.tokenizer is None else published.tokenizer.pad_id,
        position_embedding_type="absolute",
        tie_word_embeddings=True,
        dtype="float32",
        torch_dtype="float32",  # the same, for transformers 4
    )
    if published.labels is not None:
        raw["id2label"] = {str(i): name for i, name in enumerate(published.labels)}
        raw["label2id"] = {name: i for i, name in enumerate(published.labels)}
    if "classifier" in published.heads:
        raw["problem_type"] = PROBLEM_TYPES[published.problem_type]
    return raw


def architecture_of(published: Published) -> str:
    """transformers' class for these heads; raises UserError where there is none."""
    for name, heads in _ARCHITECTURES.items():
        if set(heads) == set(published.heads):
            return name
    raise UserError(
        f"{published.source} has the heads {', '.join(published.heads)} together, for which "
        "transformers has no model."
    )


def _readme(published: Published, architecture: str) -> str:
    config = published.config
    return (
        "---\nlibrary_name: transformers\ntags: [bert, bertjax]\n---\n\n"
        f"# {architecture}\n\nExported by bertjax from `{published.source}`: "
        f"{config['num_layers']} layers, hidden size {config['hidden_size']}, "
        f"{config['num_heads']} heads, vocabulary {config['vocab_size']}.\n\n"
        f"    from transformers import {architecture}, AutoTokenizer\n\n"
        f"    model = {architecture}.from_pretrained(FOLDER)\n"
        "    tokenizer = AutoTokenizer.from_pretrained(FOLDER)\n"
    )


def write(folder: str | pathlib.Path, published: Published) -> str:
    """Write a folder that `transformers` opens; returns the name of its model class.

    The weights are those of `published`, bit for bit, kernels transposed and the rows that pad
    the vocabulary cut off. The MLM decoder is tied, so its matrix is stored once.

    Raises:
        UserError: the folder holds files already, cannot be written or is not of this machine, or
            the heads do not make a model that transformers knows.
    """
    check_new_folder(str(folder), remote=False)
    folder = pathlib.Path(folder)
    architecture = architecture_of(published)
    config = _config_json(published, architecture)
    weights: dict[str, np.ndarray] = {}
    for tensor in tensors_of(published.heads):
        array = get(published.params, tensor.path)
        if array is not None:
            weights |= export_tensor(
                tensor, np.asarray(array), HUGGINGFACE, published.config["vocab_size"]
            )
    if not published.heads:  # BertModel's own names
        weights = {name.removeprefix("bert."): array for name, array in weights.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if published.tokenizer is not None:
            write_tokenizer(
                folder, published.tokenizer, published.config["max_position_embeddings"]
            )
        (folder / "README.md").write_text(_readme(published, architecture), encoding="utf-8")
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(folder / "README.md", folder / WEIGHTS)  # it is made for the owner alone
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (folder / "config.json").write_text(text, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder} cannot be written: {error}.") from error
    return architecture
