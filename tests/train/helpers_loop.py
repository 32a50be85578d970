"""A small real task for tests of the loop, and a program that trains it.

    python tests/train/helpers_loop.py WORKDIR [--config.KEY=VALUE ...] [distributed flags]

The model predicts a label from the mean embedding of a row of random tokens; with dropout, so
that a resumed run must find the same random numbers again.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import config_dict

from bertjax.config import default_config
from bertjax.tasks.task import Rows, Task
from bertjax.train.loss import cross_entropy

VOCAB, LENGTH, CLASSES = 64, 8, 4
PER_EPOCH = 48  # rows: an epoch ends within a batch of 8 only at multiples of 6 steps


class Model(nn.Module):
    """Embedding, mean over real tokens, dropout, one dense layer."""

    @nn.compact
    def __call__(self, ids: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        normal = nn.initializers.normal(0.5)
        table = self.param(
            "embedding", nn.with_logical_partitioning(normal, ("vocab", "embed")), (VOCAB, 16)
        )
        kernel = self.param(
            "kernel", nn.with_logical_partitioning(normal, ("embed", "mlp")), (16, CLASSES)
        )
        x = (table[ids] * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return nn.Dropout(0.1, deterministic=deterministic)(x) @ kernel


class TinyTask(Task):
    """Labels are a function of the first token. Rows are a function of (seed, epoch, index)."""

    name = "tiny"
    loss_weights = {"class_loss": 1.0}  # noqa: RUF012
    best_metric = ("validation/accuracy", True)
    eval_splits = ("validation",)

    def __init__(self, config: Any) -> None:
        self.model = Model()
        self.config = config
        self.train_steps = config.train.steps
        self.batch_size = config.data.batch_size
        self.bad_steps: tuple[int, ...] = ()
        self.sleep = 0.0
        self.seen: list[list[int]] = []

    def batch_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        rows = self._rows(0, np.arange(self.batch_size))
        return {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in rows.items()}

    def _rows(self, epoch: int, indices: np.ndarray) -> dict[str, np.ndarray]:
        random = [np.random.default_rng((self.config.seed, epoch, int(i))) for i in indices]
        ids = np.stack([r.integers(0, VOCAB, LENGTH) for r in random]).astype(np.int32)
        lengths = np.array([r.integers(1, LENGTH + 1) for r in random])
        return {
            "input_ids": ids,
            "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int32),
            "labels": (ids[:, 0] % CLASSES).astype(np.int32),
            "example": np.stack([np.full(len(indices), epoch), indices], 1).astype(np.uint32),
            "scale": np.ones(len(indices), np.float32),
        }

    def train_batches(self, start_step: int, rows: Rows):
        step = start_step
        while True:
            first = step * self.batch_size
            positions = np.arange(first, first + self.batch_size)[rows.of(self.batch_size)]
            parts = [self._rows(int(p // PER_EPOCH), np.array([p % PER_EPOCH])) for p in positions]
            batch = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
            step += 1
            if step in self.bad_steps:
                batch["scale"] = batch["scale"] * np.nan
            self.seen.append(positions.tolist())
            time.sleep(self.sleep)
            yield batch

    def eval_batches(self, split: str, rows: Rows):
        size = self.config.data.eval_batch_size
        for first in range(0, 20, size):  # 20 examples, so the last batch is filled up
            batch = self._rows(10_000, np.arange(first, first + size)[rows.of(size)])
            batch["weight"] = (batch["example"][:, 1] < 20).astype(np.float32)
            time.sleep(self.sleep)
            yield batch

    def init_params(self, key: jax.Array) -> Any:
        rows = jnp.zeros((1, LENGTH), jnp.int32)
        return self.model.init(key, rows, jnp.ones((1, LENGTH)), True)["params"]

    def inputs(self, batch, *, train):
        return batch

    def _logits(self, params, inputs, dropout_key=None):
        rngs = {"dropout": dropout_key} if dropout_key is not None else None
        return self.model.apply(
            {"params": params},
            inputs["input_ids"],
            inputs["attention_mask"],
            dropout_key is None,
            rngs=rngs,
        )

    def losses(self, params, inputs, *, dropout_key):
        logits = self._logits(params, inputs, dropout_key)
        weights = inputs.get("weight", jnp.ones(logits.shape[0]))
        loss = cross_entropy(logits * inputs["scale"][:, None], inputs["labels"], weights)
        right = (logits.argmax(-1) == inputs["labels"]) * weights
        return {"class_loss": loss, "accuracy": (right.sum(), weights.sum())}

    def outputs(self, params, inputs):
        return {"prediction": self._logits(params, inputs).argmax(-1), "label": inputs["labels"]}

    def metrics(self, split, means, outputs):
        exact = float((outputs["prediction"] == outputs["label"]).mean())
        return {**means, "rows": float(len(outputs["label"])), "row_accuracy": exact}

    def artifacts(self):
        return {"labels": list(range(CLASSES))}

    def finish(self, workdir, params, results):
        return f"accuracy {results['validation']['accuracy']:.4f}"


def tiny_config(**overrides: Any) -> config_dict.ConfigDict:
    """The defaults, small; keys with '__' for '.' (train__steps=3)."""
    config = default_config()
    values = {
        "train.steps": 20, "train.log_every": 1, "train.eval_every": 6, "checkpoint.every": 4,
        "data.batch_size": 8, "data.eval_batch_size": 8, "optimizer.learning_rate": 0.05,
        "optimizer.warmup_steps": 3,
    }  # fmt: skip
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    for key, value in values.items():
        node = config
        *parents, last = key.split(".")
        for parent in parents:
            node = node[parent]
        node[last] = value
    return config


def main(arguments: list[str]) -> None:
    """Train in a process of its own, which a test can kill."""
    from bertjax.parallel import distributed
    from bertjax.train import loop

    options = dict(a.lstrip("-").split("=", 1) for a in arguments[1:])
    sleep = float(options.pop("sleep", 0))
    finish_with_best = options.pop("finish_with_best", "no") == "yes"
    kinds = {"coordinator": str, "num_processes": int, "process_id": int, "init_timeout": float}
    layout = {name: kind(options.pop(name)) for name, kind in kinds.items() if name in options}
    values = {k.removeprefix("config."): v for k, v in options.items()}
    values = {k: v if k in TEXTS else ast.literal_eval(v) for k, v in values.items()}
    config = tiny_config(**{k.replace(".", "__"): v for k, v in values.items()})
    distributed.start(config=config.to_dict(), say=print, **layout)
    task = TinyTask(config)
    task.sleep, task.finish_with_best = sleep, finish_with_best
    print(json.dumps(loop.train(config, task, arguments[0])))


TEXTS = ("train.on_nonfinite", "optimizer.schedule")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bertjax import cli

    cli.run(main, sys.argv[1:])
