"""Hugging Face folders and hub names, in and out, without PyTorch or transformers."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors asks NumPy for 'bfloat16', which this registers)
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.interop.names import HUGGINGFACE, export_tensor, get, tensors_of
from bertjax.interop.published import Published, assemble, check_config
from bertjax.interop.vocabulary import load_tokenizer, write_tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
# What a hub name brings: never a pickle.
_FILES = ["config.json", "*.safetensors", INDEX, "vocab.txt", "tokenizer*.json"]

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


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file; raises UserError naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UserError(f"{path} cannot be read: {reason}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, not a JSON object.")
    return value


def read_config(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of BertConfig from a config.json or bert_config.json, checked.

    Raises:
        UserError: another kind of model, an unknown activation or impossible sizes.
    """
    kind = raw.get("model_type", "bert")
    if kind != "bert":
        raise UserError(f"{where}: model_type is '{kind}'; only 'bert' can be read.")
    for field, expected in (("position_embedding_type", "absolute"), ("is_decoder", False)):
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


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a folder: one, or the shards that its index names."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise UserError(f"{folder / INDEX} has no weight_map; fetch it again.")
        names = sorted(set(map(str, shards.values())))
        for name in names:
            if name != pathlib.PurePath(name).name or not (folder / name).is_file():
                raise UserError(f"{folder / INDEX} names the shard '{name}', which is not there.")
        return [folder / name for name in names]
    if list(folder.glob("pytorch_model*.bin")):
        refuse_pickle(folder / PICKLED)
    raise UserError(f"{folder} holds no weights ({WEIGHTS} or {INDEX}).")


def refuse_pickle(path: pathlib.Path) -> None:
    """Raises UserError: a pickle can run any code, so it is never opened here."""
    target = path.with_name(WEIGHTS)
    raise UserError(
        f"{path} is a pickle, which is never opened here because it can run any code; where "
        f'torch is installed, convert it once: python -c "import torch, safetensors.torch as s; '
        f"s.save_file({{k: v.clone() for k, v in torch.load('{path}', weights_only=True).items()}}"
        f", '{target}', {{'format': 'pt'}})\""
    )


def _read_weights(files: list[pathlib.Path]) -> dict[str, np.ndarray]:
    """All arrays by name."""
    arrays: dict[str, np.ndarray] = {}
    for path in files:
        try:
            with safe_open(path, "numpy") as file:
                for name in file.keys():  # noqa: SIM118  (not a dict)
                    arrays[name] = file.get_tensor(name)
        except (SafetensorError, OSError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path} is not a sound safetensors file ({reason}); fetch it again."
            ) from error
    return arrays


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
    """The heads to look for, by the architecture's name, else by the names of the tensors."""
    for architecture in raw.get("architectures") or ():
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
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
    names = raw.get("id2label") or {str(i): f"LABEL_{i}" for i in range(len(bias))}
    if not isinstance(names, dict) or sorted(map(str, names)) != sorted(map(str, range(len(bias)))):
        raise UserError(
            f"{where}: id2label names {len(names)} classes, but the head has {len(bias)} outputs."
        )
    by_number = {int(number): str(name) for number, name in names.items()}
    return [by_number[i] for i in range(len(bias))]


def _problem_type(raw: Mapping[str, Any], labels: Sequence[str] | None, where: str) -> str:
    """Our name of what the classifier says; transformers' rule where config.json is silent."""
    name = raw.get("problem_type")
    if name is None:
        return "regression" if labels is not None and len(labels) == 1 else "single_label"
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
    files = _weight_files(folder)
    where = str(folder / "config.json")
    raw = read_json(folder / "config.json")
    config = read_config(raw, where)
    arrays = _canonical(_read_weights(files), str(folder))
    notes = _untie(arrays, str(folder))
    params, coverage = assemble(arrays, HUGGINGFACE, config, _heads(raw, arrays), str(folder))
    labels = _labels(raw, params, where)
    tokenizer, remarks = load_tokenizer(folder, config["vocab_size"])
    return Published(
        source=path,
        kind=HUGGINGFACE,
        config=config,
        params=params,
        tokenizer=tokenizer,
        labels=None if labels is None else tuple(labels),
        problem_type=_problem_type(raw, labels, where),
        coverage=coverage,
        notes=(*notes, *remarks),
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
        UserError: the folder holds files already or cannot be written, or the heads do not make
            a model that transformers knows.
    """
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
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; name a new folder.")
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
