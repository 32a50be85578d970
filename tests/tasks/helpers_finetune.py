"""Small fine-tuning tasks on files that a test writes, and steps taken without the loop."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bertjax import config as configs
from bertjax.data.tokenizer import Tokenizer
from bertjax.parallel.mesh import make_mesh
from bertjax.tasks import make_task
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Rows
from bertjax.train.evaluation import Evaluator

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] un ##aff ##able ##ab ( ) ? , . the a world he jim good "
PIECES += "bad fine dull film was not is quick brown hello who what red green blue one two three"
VOCAB = PIECES.split()
SIZES = {
    "model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2,
    "model.intermediate_size": 32, "model.max_position_embeddings": 64,
    "model.hidden_dropout": 0.0, "model.attention_dropout": 0.0,
    "data.seq_length": 32, "data.batch_size": 4, "data.window_overlap": 2,
}  # fmt: skip


def tokenizer() -> Tokenizer:
    return Tokenizer(VOCAB, do_lower_case=True)


def config_of(task: str, **values: Any) -> Any:
    """A resolved config; keys are written with two underscores for the dot."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    base = {"task": task, **configs.FINETUNE, **SIZES, "optimizer.warmup_ratio": 0.0}
    return configs.resolve(configs.update(configs.default_config(), base | keys))


def make(task: str, tmp_path: pathlib.Path, known: Any = None, **values: Any) -> FineTune:
    config = config_of(task, **values)
    return make_task(config, str(tmp_path / "run"), tokenizer(), known)


def write(tmp_path: pathlib.Path, name: str, content: str) -> str:
    (tmp_path / name).write_text(content, encoding="utf-8")
    return str(tmp_path / name)


def write_rows(tmp_path: pathlib.Path, name: str, rows: list[Mapping[str, Any]]) -> str:
    return write(tmp_path, name, "".join(json.dumps(row) + "\n" for row in rows))


def params_of(task: FineTune) -> Any:
    """Random parameters of a size that matters, made without compiling anything."""
    boxed = jax.eval_shape(task.init_params, jax.random.key(0))
    draw = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: draw.normal(0, 0.3, x.shape).astype(np.float32), nn.meta.unbox(boxed)
    )


def mean_losses(task: FineTune) -> Callable[[Any, Mapping[str, Any]], dict[str, jax.Array]]:
    """(params, batch) -> the means of task.losses without dropout, and their weighted sum."""

    def means(params: Any, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        found = task.losses(params, batch, dropout_key=None)
        result = {name: total / weight for name, (total, weight) in found.items()}
        loss = sum(c * result[name] for name, c in task.loss_weights.items())
        return result | {"loss": loss}

    return means


def evaluate(task: FineTune, split: str, params: Any, devices: int = 1) -> dict[str, float]:
    mesh = make_mesh(devices, 1, 1, devices=jax.devices()[:devices])
    return Evaluator(task, mesh, Rows(), print).run(params, split)


def batches_of_an_epoch(task: FineTune, epoch: int = 0) -> list[dict[str, np.ndarray]]:
    steps = task._buckets["train"].steps_per_epoch
    found = task.train_batches(epoch * steps, Rows())
    return [next(found) for _ in range(steps)]
