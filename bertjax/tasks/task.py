"""What the training loop asks of a task; tasks/ holds one file for each.

A task owns its model, its data and its metrics. The loop owns steps, devices, checkpoints and
logging, and never looks at a task's name.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
from ml_collections import config_dict

from bertjax.model import flops
from bertjax.model.config import BertConfig

# A batch on the host: arrays whose first axis is the row.
Batch = Mapping[str, np.ndarray]
# A quantity that is summed over rows, devices, microbatches and batches before one division.
Mean = tuple[jax.Array, jax.Array]  # (sum, weight), both scalars, float32


@dataclasses.dataclass(frozen=True)
class Rows:
    """The contiguous block of each global batch that one process reads.

    A global batch of B rows goes to process i of n as rows [i * B / n, (i + 1) * B / n).
    """

    process: int = 0
    processes: int = 1

    def of(self, batch_size: int) -> slice:
        """The block of a global batch of `batch_size` rows, which `processes` divides."""
        size = batch_size // self.processes
        return slice(self.process * size, (self.process + 1) * size)


def steps_of(epochs: float, steps_per_epoch: float) -> int:
    """Whole steps in so many epochs; what floats lose (0.29 times 100) is no step less."""
    return math.floor(epochs * steps_per_epoch + 1e-6)


class Task(abc.ABC):
    """A way to train and evaluate a model. Built from a resolved config before JAX allocates."""

    name: ClassVar[str]
    config: config_dict.ConfigDict  # resolved
    model: nn.Module
    # Names among `losses` that are minimised, with their coefficients.
    loss_weights: Mapping[str, float]
    # The metric of `metrics` that the best checkpoint is chosen by, as 'SPLIT/NAME', and
    # whether larger is better.
    best_metric: tuple[str, bool]
    # Steps of the whole training run.
    train_steps: int
    # Whether `finish` gets the best checkpoint's parameters and figures, not the last ones.
    finish_with_best: ClassVar[bool] = False
    # Whether the head starts afresh although the checkpoint has one of this size: it is another.
    fresh_head: bool = False
    # In the order of reporting.
    eval_splits: tuple[str, ...]

    @abc.abstractmethod
    def batch_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of one global training batch: what the step is compiled for."""

    @abc.abstractmethod
    def train_batches(self, start_step: int, rows: Rows) -> Iterator[Batch]:
        """Training batches from step `start_step` on, this process's rows only, without end.

        The batch of a step is a function of (config, seed, step) alone.
        """

    @abc.abstractmethod
    def eval_batches(self, split: str, rows: Rows) -> Iterator[Batch]:
        """Every example of `split` once, in order. Every batch is whole: rows that only fill up
        carry weight 0 in key 'weight' ([B] float32), and every process yields as many batches."""

    @abc.abstractmethod
    def init_params(self, key: jax.Array) -> Any:
        """Fresh parameters, boxed with logical axis names (flax LogicallyPartitioned)."""

    @abc.abstractmethod
    def inputs(self, batch: Mapping[str, jax.Array], *, train: bool) -> Mapping[str, jax.Array]:
        """Inside jit, before microbatches are cut: model inputs and labels (dynamic masking)."""

    @abc.abstractmethod
    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        """Inside jit: losses and other means as (sum, weight). No key: no dropout."""

    def with_attention(self, attention_fn: Callable[..., jax.Array] | None) -> Task:
        """This task with a model whose layers attend by `attention_fn`; itself for None.

        Parameters are still made by this one: a single row cannot be cut for a mesh.
        """
        if attention_fn is None:
            return self
        task = copy.copy(self)
        task.model = self.model.clone(attention_fn=attention_fn)
        task.init_params = self.init_params
        return task

    def outputs(self, params: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Inside jit, evaluation: arrays [B, ...] that `metrics` needs row by row (none here)."""
        del params, inputs
        return {}

    def metrics(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """On the host: the figures of one evaluation. `outputs` are whole, in input order."""
        del split, outputs
        return dict(means)

    def chance_levels(self) -> dict[str, float]:
        """What a model that ignores its input reaches in training, by name among `losses`
        ('mlm_loss': unigram entropy, 'nsp_accuracy': 0.5); the loop warns of a run stuck there."""
        return {}

    def step_flops(self, batch: Mapping[str, Any]) -> int:
        """Model FLOPs of a training step over a global batch (arrays or ShapeDtypeStructs): the
        work of the mathematics at these shapes, recomputation left out. 0: not known."""
        del batch
        return 0

    def artifacts(self) -> dict[str, Any]:
        """JSON values that a workdir keeps in config.json beside the config (labels, ...)."""
        return {}

    def save_assets(self, workdir: str) -> None:  # noqa: B027 - nothing to write is right for some
        """Write the vocabulary, tokenizer settings and whatever prediction needs (one process)."""

    def finish(self, workdir: str, params: Any, results: Mapping[str, Mapping[str, float]]) -> str:
        """After the last evaluation, one process: write predictions; return the summary text."""
        del workdir, params, results
        return ""

    def readme(self, summary: str) -> str:
        """What a person who is given this model wants to know: data, settings, figures (the
        summary of the run's end), labels. '': nothing."""
        del summary
        return ""


def bert_step_flops(task: Task, config: BertConfig, batch: Mapping[str, Any]) -> int:
    """`Task.step_flops` of a task whose model is a BERT of `config` (see bertjax.model.flops)."""
    inputs = jax.eval_shape(lambda batch: task.inputs(batch, train=True), dict(batch))
    rows, length = inputs["input_ids"].shape
    predictions = inputs["masked_positions"].shape[1] if "masked_positions" in inputs else 0
    pooled = inputs["nsp_positions"].shape[1] if "nsp_positions" in inputs else 1
    return flops.train_flops(config, rows, length, predictions=predictions, pooled=pooled)
