"""The files of a Hugging Face folder: safetensors, their index, JSON; never a pickle."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  (safetensors asks NumPy for 'bfloat16', which this registers)
import numpy as np
from safetensors import SafetensorError, safe_open

from bertjax.errors import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Weights of other kinds, by a pattern of their names.
_OTHERS = {
    "tf_model*.h5": "TensorFlow 2 weights",
    "saved_model.pb": "a TensorFlow SavedModel",
    "flax_model*.msgpack": "Flax weights",
    "*.ckpt.data-*": "a TensorFlow checkpoint without its .index file",
    "*.safetensors": "safetensors of another name",
}


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


def _shards(index: pathlib.Path) -> dict[str, str]:
    """File name by tensor name, as an index says; the files are there, beside it."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"{index} has no weight_map; fetch it again.")
    shards = {name: str(file) for name, file in shards.items()}
    for name in sorted(set(shards.values())):
        if name != pathlib.PurePath(name).name or not (index.parent / name).is_file():
            raise UserError(f"{index} names the shard '{name}', which is not there.")
    return shards


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a folder: one, or the shards that its index names.

    Raises:
        UserError: there are none, or only ones of another kind, which is named.
    """
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        return [folder / name for name in sorted(set(_shards(folder / INDEX).values()))]
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if pickles:
        refuse_pickle(*pickles)
    for pattern, kind in _OTHERS.items():
        found = sorted(path for path in folder.glob(pattern) if path.name != WEIGHTS)
        if found:
            raise UserError(
                f"{folder} holds {found[0].name}, {kind}, which is not read here: {WEIGHTS} is."
            )
    raise UserError(f"{folder} holds no weights ({WEIGHTS} or {INDEX}).")


def refuse_pickle(*paths: pathlib.Path) -> None:
    """Raises UserError: a pickle can run any code, so it is never opened here."""
    target = paths[0].with_name(WEIGHTS)
    names = [str(path) for path in paths]
    raise UserError(
        f"{paths[0]} is a pickle, which is never opened here because it can run any code; where "
        f'torch is installed, convert it once: python -c "import torch, safetensors.torch as s; '
        f"s.save_file({{k: v.clone() for f in {names} for k, v in torch.load(f, weights_only=True)"
        f".items()}}, '{target}', {{'format': 'pt'}})\""
    )


def read_weights(files: list[pathlib.Path]) -> dict[str, np.ndarray]:
    """All arrays by name.

    Raises:
        UserError: a damaged file, a tensor in two shards, or one that the index names in vain.
    """
    arrays: dict[str, np.ndarray] = {}
    for path in files:
        try:
            with safe_open(path, "numpy") as file:
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path} is not a sound safetensors file ({reason}); fetch it again."
            ) from error
        twice = sorted(found.keys() & arrays.keys())
        if twice:
            raise UserError(f"{path} stores '{twice[0]}', which another shard stores, too.")
        arrays |= found
    index = files[0].with_name(INDEX)
    absent = sorted(_shards(index).keys() - arrays.keys()) if files[0].name != WEIGHTS else []
    if absent:
        raise UserError(f"{index} names the tensor '{absent[0]}', which no shard holds.")
    return arrays
