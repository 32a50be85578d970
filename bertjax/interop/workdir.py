"""bertjax's own workdirs as `Published` checkpoints, in and out."""

from __future__ import annotations

import pathlib

import numpy as np
from etils import epath

from bertjax.config import default_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_files import CONFIG_FILE, JSON_FILE, VOCAB_FILE
from bertjax.errors import UserError
from bertjax.interop.names import HEADS, get, tensors_of
from bertjax.interop.published import (
    Coverage,
    Published,
    check_config,
    check_new_folder,
    checksum,
    whole_encoder,
)
from bertjax.train import checkpoint
from bertjax.train.workdir import CONFIG, LOCK, read_config, write_json

# Of a workdir, of one step's folder, of a workdir before its first checkpoint.
_MARKS = (checkpoint.FOLDER, "manifest.json", "metrics.jsonl")
_MODEL_FIELDS = (
    "vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "hidden_act", "hidden_dropout",
    "attention_dropout", "layer_norm_eps", "initializer_range",
)  # fmt: skip
_CONVERTED = "converted"  # artifact of a workdir that no run of ours made: where it is from
_TASKS = {"classifier": "classify", "tagger": "tag", "span": "answer"}


def is_workdir(path: str) -> bool:
    """Whether `path` is a workdir, its checkpoints or the folder of one step."""
    root = epath.Path(path)
    return any((root / name).exists() for name in _MARKS) or root.name == checkpoint.FOLDER


def runs_in(path: pathlib.Path) -> list[str]:
    """The runs of several seeds, or of an ablation, in a folder."""
    found = [x.parent for form in ("seed-*", "cells/*") for x in path.glob(f"{form}/{CONFIG}")]
    return sorted(str(run.relative_to(path)) for run in found)


def saved_nothing(path: pathlib.Path) -> bool:
    """Whether a path that is no workdir to read from is that of a run without a checkpoint."""
    return (path / LOCK).exists()


def _config_folder(path: str) -> epath.Path:
    """The workdir that `path` is or lies in."""
    root = epath.Path(path if "://" in path else pathlib.Path(path).expanduser().absolute())
    for folder in (root, root.parent, root.parent.parent):
        if (folder / CONFIG).exists():
            return folder
    raise UserError(
        f"{path} has no {CONFIG} beside its checkpoints, so the model's sizes and vocabulary are "
        "unknown; keep a step's folder in its workdir."
    )


def read(path: str, step: int | None = None) -> Published:
    """The parameters of a run, without the optimizer's state.

    Args:
        path: a workdir, its checkpoints or one step's folder.
        step: which step; None takes the best by the task's metric if one is kept, else the last.

    Raises:
        UserError: no checkpoint, a damaged one, or no config or vocabulary beside it.
    """
    folder = _config_folder(path)
    settings, artifacts = read_config(str(folder)) or ({}, {})
    best = artifacts.get("best_metric")
    stored, manifest = checkpoint.load_params(path, step=step, best=tuple(best) if best else None)
    params = whole_encoder(stored)
    try:
        config = {name: settings["model"][name] for name in _MODEL_FIELDS}
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG} has no model.{error.args[0]}.") from error
    tokenizer = None
    if any((folder / name).exists() for name in (VOCAB_FILE, JSON_FILE)):
        tokenizer = Tokenizer.load(folder)
        if artifacts.get("vocab", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise UserError(
                f"the vocabulary in {folder} is not the one that its run was trained with: restore "
                f"{VOCAB_FILE} and {CONFIG_FILE}"
            )
        config["vocab_size"] = config["vocab_size"] or tokenizer.vocab_size
    check_config(config, str(folder / CONFIG))
    heads = tuple(head for head in HEADS if head in params)
    encoder = list(tensors_of(()))
    missing = [t.path for t in encoder if get(params, t.path) is None and not t.optional]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing[:3])}, so it is no whole encoder.")
    for tensor in tensors_of(heads):
        array = get(params, tensor.path)
        if array is not None and not np.isfinite(array).all():
            raise UserError(
                f"{path}: '{tensor.path}' holds NaN or infinity, so the model can answer nothing; "
                "take another step."
            )
    expected, loaded = (
        sum(len(t.names("huggingface", config["num_layers"])) for t in tensors)
        for tensors in (encoder, [t for t in encoder if get(params, t.path) is not None])
    )
    absent = tuple(t.path for t in encoder if get(params, t.path) is None)
    notes = [f"step {manifest.step} of {folder}"]
    if tokenizer is None:
        notes.append(f"{folder} has no {VOCAB_FILE} or {JSON_FILE}: it works on ids alone")
    labels = artifacts.get("labels")
    if labels is None and "classifier" in params:
        labels = [f"LABEL_{i}" for i in range(params["classifier"]["dense"]["bias"].shape[0])]
    return Published(
        source=path,
        config=config,
        params=params,
        tokenizer=tokenizer,
        labels=None if labels is None else tuple(labels),
        problem_type=settings.get("data", {}).get("problem_type", "single_label"),
        coverage=Coverage(loaded, expected, heads, (), checksum(params), absent),
        notes=tuple(notes),
        settings={} if _CONVERTED in artifacts else {**settings, "artifacts": artifacts},
        step=manifest.step,
    )


def write(folder: str, published: Published) -> None:
    """Write a workdir whose checkpoint is step 0: the parameters, the config, the vocabulary.

    What a run of ours says of its training goes along. Of another checkpoint nothing is known, so
    that it is asked like before, by windows as long as the model.

    Raises:
        UserError: the folder holds files already or cannot be written.
    """
    root = epath.Path(folder)
    check_new_folder(folder, remote=True)
    config = default_config().to_dict()
    artifacts = dict(published.settings.get("artifacts", {_CONVERTED: published.source}))
    if published.settings:
        config = {name: x for name, x in published.settings.items() if name != "artifacts"}
    else:
        config["task"] = next((_TASKS[x] for x in published.heads if x in _TASKS), "pretrain")
        config["data"]["problem_type"] = published.problem_type
        positions = published.config["max_position_embeddings"]
        config["data"]["seq_length"] = min(positions, config["data"]["seq_length"])
    config["model"] = {**config["model"], **published.config}
    if published.labels is not None:
        artifacts["labels"] = list(published.labels)
    if published.tokenizer is not None and "vocab" in artifacts:
        artifacts["vocab"] = published.tokenizer.fingerprint
    try:
        root.mkdir(parents=True, exist_ok=True)
        write_json(folder, CONFIG, {"config": config, "artifacts": artifacts})
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from error
    if published.tokenizer is not None:
        published.tokenizer.save(folder)
    checkpoints = checkpoint.Checkpoints(folder)
    state = {"step": np.zeros((), np.int32), "params": published.params}
    checkpoints.save(0, state, {}, wait=True)
    checkpoints.close()
