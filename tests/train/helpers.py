"""A small pretraining task on the real model: random tokens, given masks, nothing on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from bertjax.model.bert import BertConfig
from bertjax.model.heads import BertForPreTraining
from bertjax.parallel.mesh import make_mesh, to_global
from bertjax.tasks.task import Batch, Mean, Rows, Task
from bertjax.train import loss
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import (
    abstract_batch,
    abstract_params,
    abstract_state,
    create_state,
    make_train_step,
)

SIZES = {
    "vocab_size": 200,
    "num_layers": 2,
    "hidden_size": 64,
    "num_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 16,
}
# These programs run for moments: most of their time would go into compiling.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def bert_config(**overrides: Any) -> BertConfig:
    no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    return BertConfig(**(SIZES | no_dropout | overrides))


def optimizer_config(**overrides: Any) -> ml_collections.ConfigDict:
    fields = {
        "name": "adam_google",
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "warmup_ratio": 0.0,
        "schedule": "google",
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "grad_clip": 0.0,
        "layer_decay": 1.0,
    }
    return ml_collections.ConfigDict(fields | overrides)


class MaskedTask(Task):
    """MLM and NSP over rows of length S with P scored places; row r of a batch has r mod 4 of
    them, so every fourth row has none."""

    name = "masked"
    best_metric = ("validation/mlm_loss", False)
    train_steps = 100
    eval_splits = ("validation",)

    def __init__(
        self, config: BertConfig | None = None, batch: int = 16, length: int = 16, places: int = 3
    ) -> None:
        self.model = BertForPreTraining(config or bert_config())
        self.loss_weights = {"mlm_loss": 1.0, "nsp_loss": 1.0}
        self.shape = (batch, length, places)

    def batch_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        batch, length, places = self.shape
        whole, scored = (batch, length), (batch, places)
        shapes = {
            "input_ids": (whole, jnp.int32),
            "token_type_ids": (whole, jnp.int32),
            "attention_mask": (whole, jnp.int32),
            "masked_positions": (scored, jnp.int32),
            "masked_labels": (scored, jnp.int32),
            "masked_weights": (scored, jnp.float32),
            "nsp_labels": ((batch, 1), jnp.int32),
        }
        return {name: jax.ShapeDtypeStruct(*of) for name, of in shapes.items()}

    def batch(self, step: int) -> dict[str, np.ndarray]:
        size, length, places = self.shape
        draw = np.random.default_rng(step)
        vocab = self.model.config.vocab_size
        lengths = draw.integers(length // 2, length + 1, size)
        scored = np.arange(places)[None] < (np.arange(size) % 4)[:, None]
        scored[:2] = False  # the first of eight devices has none
        return {
            "input_ids": draw.integers(0, vocab, (size, length), np.int32),
            "token_type_ids": draw.integers(0, 2, (size, length), np.int32),
            "attention_mask": (np.arange(length)[None] < lengths[:, None]).astype(np.int32),
            "masked_positions": draw.integers(0, length // 2, (size, places), np.int32),
            "masked_labels": draw.integers(0, vocab, (size, places), np.int32),
            "masked_weights": scored.astype(np.float32),
            "nsp_labels": draw.integers(0, 2, (size, 1), np.int32),
        }

    def train_batches(self, start_step: int, rows: Rows) -> Iterator[Batch]:
        step = start_step
        while True:
            batch = self.batch(step)
            yield {name: value[rows.of(len(value))] for name, value in batch.items()}
            step += 1

    def eval_batches(self, split: str, rows: Rows) -> Iterator[Batch]:
        batch = self.batch(0)
        yield {name: value[rows.of(len(value))] for name, value in batch.items()}

    def init_params(self, key: jax.Array) -> Any:
        return self.model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]

    def inputs(self, batch: Mapping[str, jax.Array], *, train: bool) -> Mapping[str, jax.Array]:
        return batch

    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        mlm_logits, nsp_logits = self.model.apply(
            {"params": params},
            inputs["input_ids"],
            inputs["token_type_ids"],
            inputs["attention_mask"],
            masked_positions=inputs["masked_positions"],
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
        labels, weights = inputs["masked_labels"], inputs["masked_weights"]
        nsp_labels, nsp_weights = loss.ignore_labels(inputs["nsp_labels"])
        return {
            "mlm_loss": loss.cross_entropy(mlm_logits, labels, weights),
            "mlm_accuracy": loss.accuracy(mlm_logits, labels, weights),
            "nsp_loss": loss.cross_entropy(nsp_logits, nsp_labels, nsp_weights),
        }


@dataclasses.dataclass
class Run:
    """A task on a mesh, ready to take steps."""

    task: Task
    mesh: jax.sharding.Mesh
    optimizer: Any
    state: Any
    step: Any

    def take(self, batch: Batch) -> dict[str, jax.Array]:
        self.state, metrics = self.step(self.state, to_global(self.mesh, batch))
        return metrics


def start(
    task: Task,
    sizes: tuple[int, int, int] = (1, 1, 1),
    *,
    accumulate: int = 1,
    fresh: bool = False,
    **optimizer: Any,
) -> Run:
    """`task` on the first devices, a mesh of `sizes`; parameters from key 1, made on one device
    and moved unless `fresh`. Compiled once for tasks of one class and model."""
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    config = optimizer_config(**optimizer)
    schedule = make_schedule(config, task.train_steps)
    transform = make_optimizer(config, schedule, abstract_params(task, mesh))
    params = None if fresh else _parameters(task)
    state = create_state(task, transform, mesh, jax.random.key(1), params)
    key = (type(task), task.model.config, sizes, accumulate, *sorted(optimizer.items()))
    if key not in _compiled:
        step = make_train_step(
            task, transform, mesh, schedule=schedule, seed=0, accumulate=accumulate
        )
        state_like = abstract_state(task, transform, mesh)
        _compiled[key] = step.lower(state_like, abstract_batch(task, mesh)).compile(QUICK)
    return Run(task, mesh, transform, state, _compiled[key])


_compiled: dict[Any, Any] = {}
_made: dict[Any, Any] = {}


def _parameters(task: Task) -> Any:
    key = (type(task), task.model.config)
    if key not in _made:
        init = jax.jit(lambda key: nn.meta.unbox(task.init_params(key)))
        _made[key] = jax.device_get(init(jax.random.key(1)))
    return _made[key]
