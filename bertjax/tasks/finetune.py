"""What the fine-tuning tasks share: splits, vocabulary, batches by length, files of predictions."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import config_dict

from bertjax.data.buckets import LengthBuckets
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.files import write_text
from bertjax.tasks.sources import split_sources
from bertjax.tasks.task import Batch, Rows, Task, bert_step_flops, steps_of
from bertjax.train.loss import IGNORED

PREDICTIONS = "predictions"  # in a workdir


@dataclasses.dataclass
class EncodedRows:
    """Rows for the model, ragged. One example may have several rows: windows of a long text.

    Attributes:
        ids: tokens of each row, special tokens among them.
        second: int [n], the column where segment B begins, len(ids) where there is none.
        example: int [n], which example of the split a row belongs to, ascending.
        weight: float32 [n], what a row counts: the rows of an example sum to 1, or to its tokens.
        by_row: arrays [n, ...], labels of rows.
        by_token: ragged int labels of tokens; IGNORED stands where a batch is padded.
    """

    ids: list[Sequence[int]]
    second: np.ndarray
    example: np.ndarray
    weight: np.ndarray
    by_row: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    by_token: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """A digest of every token and label."""
        digest = hashlib.sha256()
        for row in self.ids:
            digest.update(np.asarray(row, np.int32).tobytes())
        for name in sorted(self.by_row):
            digest.update(np.ascontiguousarray(self.by_row[name]).tobytes())
        for name in sorted(self.by_token):
            digest.update(np.concatenate(self.by_token[name]).astype(np.int32).tobytes())
        return digest.hexdigest()[:16]


class FineTune(Task):
    """A head on the encoder, trained on labelled examples that fit in memory."""

    # Figures of `score`, and whether larger is better; the first is the default train.metric.
    figures: ClassVar[Mapping[str, bool]]
    finish_with_best = True
    weighs_classes: ClassVar[bool] = False  # whether train.class_weights means something to it

    def __init__(
        self,
        config: config_dict.ConfigDict,
        tokenizer: Tokenizer,
        model: nn.Module,
        rows: Mapping[str, EncodedRows],
        metric: str,
    ) -> None:
        """`config` is resolved; `rows` has an entry for each split; `metric` is the default for
        train.metric. UserError where the config names no figure or makes no step."""
        data, train = config.data, config.train
        self.config, self.tokenizer, self.model = config, tokenizer, model
        self._rows = rows
        if train.class_weights and not self.weighs_classes:
            raise UserError(
                f"config.train.class_weights={train.class_weights} is for config.task=classify, "
                f"and this is {self.name}: leave it out"
            )
        self._buckets = {
            split: LengthBuckets(
                np.array([len(ids) for ids in encoded.ids]),
                data.batch_size, data.seq_length, config.seed, data.length_buckets,
            )
            for split, encoded in rows.items()
        }  # fmt: skip
        self.eval_splits = tuple(split for split in rows if split != "train")
        metric = train.metric or metric
        if metric not in self.figures:
            raise UserError(
                f"config.train.metric={metric} is no figure of task {self.name}: choose from "
                f"{', '.join(self.figures)}"
            )
        held_out = [split for split in self.eval_splits if split.startswith("validation")]
        self.best_metric = (f"{(held_out or ['validation'])[0]}/{metric}", self.figures[metric])
        if train.patience and not held_out:
            raise UserError(
                f"config.train.patience={train.patience} needs config.data.validation: "
                "set it, or patience to 0"
            )
        self.train_steps = train.steps
        if "train" in rows:
            per_epoch = self._buckets["train"].steps_per_epoch
            self.train_steps = train.steps or steps_of(train.epochs, per_epoch)
            if self.train_steps < 1:
                raise UserError(
                    f"config.train.steps={train.steps} and config.train.epochs={train.epochs} "
                    "make no step: set one of them"
                )
            if train.patience and not train.eval_every:
                train.eval_every = per_epoch
        self._outputs: dict[str, dict[str, np.ndarray]] = {}

    # What a task of this kind says of itself.

    @abc.abstractmethod
    def score(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The figures of a split from means and the outputs of its rows, in order."""

    @abc.abstractmethod
    def predictions(
        self, split: str, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, Any]]:
        """One JSON object for each example of a split, in order."""

    @abc.abstractmethod
    def report(
        self, split: str, outputs: Mapping[str, np.ndarray], figures: Mapping[str, float]
    ) -> tuple[str, dict[str, str]]:
        """The text of a split's result, and further files for it, by name."""

    # Batches.

    def batch_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The longest training batch there is; shorter ones have the same rows."""
        size, length = self.config.data.batch_size, self._buckets["train"].longest
        batch = self._assemble("train", np.zeros(0, int), length, range(1))
        return {
            name: jax.ShapeDtypeStruct((size, *value.shape[1:]), value.dtype)
            for name, value in batch.items()
        }

    def train_batches(self, start_step: int, rows: Rows) -> Iterator[Batch]:
        size = self.config.data.batch_size
        block = rows.of(size)
        for step in itertools.count(start_step):
            epoch, numbers, length = self._buckets["train"].batch(step)
            places = range(block.start, block.stop)
            yield self._assemble("train", numbers, length, places, epoch)

    def eval_batches(self, split: str, rows: Rows) -> Iterator[Batch]:
        """Rows by length, shortest first; `metrics` puts the outputs back in order."""
        size = self.config.data.eval_batch_size
        block = rows.of(size)
        for numbers, length in self._buckets[split].in_length_order(size):
            yield self._assemble(split, numbers, length, range(block.start, block.stop))

    def _assemble(
        self, split: str, numbers: np.ndarray, length: int, places: range, epoch: int = 0
    ) -> dict[str, np.ndarray]:
        """The batch's rows at `places`; places beyond `numbers` are empty, with weight 0."""
        rows = self._rows[split]
        count = len(places)
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        batch = {name: np.zeros((count, length), np.int32) for name in inputs}
        batch["weight"] = np.zeros(count, np.float32)
        batch["example"] = np.zeros((count, 2), np.uint32)
        for name, values in rows.by_row.items():
            batch[name] = np.zeros((count, *values.shape[1:]), values.dtype)
        for name in rows.by_token:
            batch[name] = np.full((count, length), IGNORED, np.int32)
        for row, place in enumerate(places):
            if place >= len(numbers):
                break
            number = numbers[place]
            size = len(rows.ids[number])
            batch["input_ids"][row, :size] = rows.ids[number]
            batch["token_type_ids"][row, rows.second[number] : size] = 1
            batch["attention_mask"][row, :size] = 1
            batch["weight"][row] = rows.weight[number]
            batch["example"][row] = epoch, rows.example[number]
            for name, values in rows.by_row.items():
                batch[name][row] = values[number]
            for name, ragged in rows.by_token.items():
                batch[name][row, :size] = ragged[number]
        return batch

    # The model.

    def init_params(self, key: jax.Array) -> Any:
        return self.model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]

    def inputs(self, batch: Mapping[str, jax.Array], *, train: bool) -> Mapping[str, jax.Array]:
        del train
        return batch

    def apply(
        self,
        params: Any,
        inputs: Mapping[str, jax.Array],
        dropout_key: jax.Array | None = None,
    ) -> Any:
        """The model's output for a batch; no dropout without a key."""
        return self.model.apply(
            {"params": params},
            inputs["input_ids"],
            inputs["token_type_ids"],
            inputs["attention_mask"],
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )

    # Figures and files.

    def metrics(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        self._outputs[split] = self._in_order(split, outputs)
        return self.score(split, means, self._outputs[split])

    def _in_order(self, split: str, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        parts = self._buckets[split].in_length_order(self.config.data.eval_batch_size)
        order = np.concatenate([numbers for numbers, _ in parts])
        whole = {name: np.empty_like(values) for name, values in outputs.items()}
        for name, values in outputs.items():
            whole[name][order] = values
        return whole

    def _outputs_of(self, split: str, params: Any) -> dict[str, np.ndarray]:
        """Of the latest evaluation; computed where there was none since the program started."""
        if split not in self._outputs:
            forward = jax.jit(self.outputs)
            parts: list[Mapping[str, np.ndarray]] = []
            for batch in self.eval_batches(split, Rows()):
                kept = batch["weight"] > 0
                result = jax.device_get(forward(params, batch))
                parts.append({name: values[kept] for name, values in result.items()})
            whole = {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
            self._outputs[split] = self._in_order(split, whole)
        return self._outputs[split]

    def step_flops(self, batch: Mapping[str, Any]) -> int:
        return bert_step_flops(self, self.model.config, batch)

    def artifacts(self) -> dict[str, Any]:
        train = self._rows.get("train")
        return {
            "data": train.fingerprint() if train else None,
            "held_out": {split: self.held_out_digest(split) for split in self.eval_splits},
            "vocab": self.tokenizer.fingerprint,
            "best_metric": list(self.best_metric),
        }

    def held_out_digest(self, split: str) -> str:
        """A digest of the rows of a split and of what they are scored against."""
        return self._rows[split].fingerprint()

    def save_assets(self, workdir: str) -> None:
        self.tokenizer.save(workdir)

    def finish(self, workdir: str, params: Any, results: Mapping[str, Mapping[str, float]]) -> str:
        """Write predictions/SPLIT.jsonl and what else the task has to say of each split."""
        folder = epath.Path(workdir) / PREDICTIONS
        texts = []
        for split in self.eval_splits:
            outputs = self._outputs_of(split, params)
            lines = (json.dumps(p, ensure_ascii=False) for p in self.predictions(split, outputs))
            text, files = self.report(split, outputs, results.get(split, {}))
            files = {f"{split}.jsonl": "".join(f"{line}\n" for line in lines), **files}
            for name, content in files.items():
                write_text(str(folder), name, content)
            texts.append(text)
        texts.append(f"predictions of {', '.join(self.eval_splits)}: {folder}")
        return "\n\n".join(texts) if self.eval_splits else ""

    def readme(self, summary: str) -> str:
        config = self.config
        data = "\n".join(f"- {split}: {x}" for split, x in split_sources(config).items())
        settings = {
            "start": config.init_from or "random weights",
            "steps": self.train_steps,
            "batch size": config.data.batch_size,
            "longest row": config.data.seq_length,
            "learning rate": config.optimizer.learning_rate,
            "seed": config.seed,
            "labels": ", ".join(self.artifacts().get("labels", ())) or "none",
        }
        listed = "\n".join(f"- {name}: {value}" for name, value in settings.items())
        return f"# bertjax {self.name}\n\n{data}\n\n{listed}\n\n```\n{summary}\n```\n"
