"""Classify a text or a pair: one label, several labels at once, or a score (regression).

The head sees the pooled [CLS] (Devlin et al. 2019, section 4.1). One label: softmax and
cross-entropy. Several: a sigmoid for each. A score: one output and the squared error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import config_dict

from bertjax.config import bert_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.model.heads import BertForClassification
from bertjax.tasks import glue, labels, results, smoke, sources
from bertjax.tasks.finetune import FineTune
from bertjax.tasks.task import Mean
from bertjax.tasks.text_examples import (
    MULTI,
    REGRESSION,
    SINGLE,
    Examples,
    encode,
    label_names,
    read,
)
from bertjax.train import loss

DEFAULT_METRIC = {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "spearman"}
FIGURES: Mapping[str, Mapping[str, bool]] = {
    SINGLE: {"accuracy": True, "matthews": True, "f1": True, "macro_f1": True, "loss": False},
    MULTI: {"micro_f1": True, "macro_f1": True, "exact_match": True, "loss": False},
    REGRESSION: {"spearman": True, "pearson": True, "squared_error": False, "loss": False},
}


def label_probabilities(logits: np.ndarray, problem_type: str) -> np.ndarray:
    """Probabilities [..., C] float64 of logits: softmax, or a sigmoid for each label."""
    logits = np.asarray(logits, np.float64)
    if problem_type == MULTI:
        return 1 / (1 + np.exp(-logits))
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def pooled(rows: np.ndarray, example: np.ndarray) -> np.ndarray:
    """The mean over the rows of each example: [rows, C], ascending int [rows] -> [examples, C]."""
    starts = np.flatnonzero(np.diff(example, prepend=-1))
    counts = np.diff([*starts, len(example)])
    return np.add.reduceat(rows, starts) / counts[:, None]


def prepare_data(config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None) -> None:
    """Make the smoke run's data, and a vocabulary where data.vocab asks to learn one."""
    smoke.write(config, workdir)

    def texts() -> list[str]:
        train = read(config, "train", sources.split_sources(config)["train"])
        return [*train.texts, *(train.pairs or ())]

    sources.learn_vocabulary(config, workdir, tokenizer, texts)


def from_config(
    config: config_dict.ConfigDict,
    workdir: str,
    tokenizer: Tokenizer | None,
    known_labels: Sequence[str] | None,
) -> Classify:
    """The task of a resolved config, after `prepare_data`; fills in model.vocab_size."""
    smoke.use(config, workdir)
    by_split = sources.split_sources(config)
    splits: dict[str, Examples] = {}
    for split, source in by_split.items():  # the training set first
        splits[split] = read(config, split, source, splits.get("train"), known_labels or ())
    tokenizer = sources.find_tokenizer(config, workdir, tokenizer)
    names, fresh = _settle_labels(config, splits, known_labels)
    task = Classify(config, tokenizer, splits, names)
    task.fresh_head = fresh
    return task


def _settle_labels(
    config: config_dict.ConfigDict, splits: Mapping[str, Examples], known: Sequence[str] | None
) -> tuple[tuple[str, ...], bool]:
    """The labels by the order of the outputs (none for a regression), and whether the head of the
    checkpoint cannot be used."""
    spec = glue.TASKS.get(config.data.glue)
    if spec:
        kept = () if config.new_head else known or ()
        glue.check(config.data.glue, config.data.problem_type, kept)
    if config.data.problem_type == REGRESSION:
        return (), known is not None
    train = splits.get("train")
    found: frozenset[str] = frozenset()
    if train is not None:
        found = train.labels
        if config.data.problem_type == SINGLE and len(found) < 2:
            raise UserError(
                f"all {len(train.texts)} rows of {train.source} have the label "
                f"'{next(iter(found))}': a classifier needs two or more"
            )
        if not found:
            raise UserError(
                f"no row of {train.source} has a label in '{config.data.label_column}': is "
                "config.data.label_column the right one?"
            )
    elif known is None:
        raise UserError("config.data.train is empty, and no checkpoint says what the labels are")
    if spec:
        glue.check(config.data.glue, config.data.problem_type, found)
        if known is None or (config.new_head and set(known) != set(spec.labels)):
            return spec.labels, known is not None
    names, fresh = labels.settle(found, known, config.new_head, config.init_from)
    if train is not None and not fresh:
        used = label_names(config, train.targets)
        missing = [name for name in names if name not in used]
        if missing:
            sources.say_all([f"warning: no row of {train.source} in use is {', '.join(missing)}"])
    return names, fresh


class Classify(FineTune):
    """A classifier or regressor over the pooled [CLS]."""

    name = "classify"
    weighs_classes = True

    def __init__(
        self,
        config: config_dict.ConfigDict,
        tokenizer: Tokenizer,
        splits: Mapping[str, Examples],
        names: Sequence[str],
    ) -> None:
        """`names`: the labels in the order of the outputs, none for a regression."""
        self.problem_type = config.data.problem_type
        self.labels = tuple(names)
        spec = glue.TASKS.get(config.data.glue)
        # Whose f1 is told, of two: by name, so that no order of a checkpoint's head changes it.
        two = (spec.labels if spec else labels.ordered(names)) if len(names) == 2 else ()
        self.positive = two[1] if two and self.problem_type == SINGLE else None
        self.figures = {
            name: larger
            for name, larger in FIGURES[self.problem_type].items()
            if name != "f1" or self.positive is not None
        }
        self._splits = splits
        self._targets = {split: self._numbers(part) for split, part in splits.items()}
        rows = {}
        for split, part in splits.items():
            rows[split] = encode(config, tokenizer, part)
            rows[split].by_row["target"] = self._targets[split][rows[split].example]
        self.loss_weights = {self._loss_name: 1.0}
        self._class_weights = self._weights(config)
        model = BertForClassification(bert_config(config), max(1, len(names)))
        metric = spec.metric if spec else DEFAULT_METRIC[self.problem_type]
        super().__init__(config, tokenizer, model, rows, metric)
        self._describe()

    @property
    def _loss_name(self) -> str:
        return "squared_error" if self.problem_type == REGRESSION else "classification_loss"

    def _numbers(self, part: Examples) -> np.ndarray:
        """Targets [n] int32, [n, C] float32 (several labels) or [n] float32 (scores).

        An unlabelled split has IGNORED, or NaN.
        """
        count, classes = len(part.texts), len(self.labels)
        if self.problem_type == SINGLE:
            if part.targets is None:
                return np.full(count, loss.IGNORED, np.int32)
            return labels.numbers(part.targets, self.labels, part.source, part.places)
        if self.problem_type == REGRESSION:
            return np.array([np.nan] * count if part.targets is None else part.targets, np.float32)
        table = np.full((count, classes), np.nan if part.targets is None else 0, np.float32)
        for row, (target, place) in enumerate(zip(part.targets or (), part.places, strict=False)):
            table[row, labels.numbers(target, self.labels, part.source, [place] * len(target))] = 1
        return table

    def _weights(self, config: config_dict.ConfigDict) -> np.ndarray | None:
        spec = config.train.class_weights
        if not spec:
            return None
        if spec == "balanced" and "train" not in self._splits:
            sources.say_all(["the loss is told without config.train.class_weights=balanced: there "
                             "is no config.data.train to count"])  # fmt: skip
            return None
        if self.problem_type != SINGLE:
            raise UserError(
                f"config.train.class_weights={spec} is for config.data.problem_type=single_label"
            )
        counts = Counter(self._splits["train"].targets if "train" in self._splits else ())
        return labels.class_weights(spec, self.labels, counts)

    def _describe(self) -> None:
        """Say what will be trained on."""
        for split, part in self._splits.items():
            count = len(part.texts)
            if part.targets is None:
                continue
            if self.problem_type == REGRESSION:
                values = self._targets[split]
                text = f"scores from {values.min():g} to {values.max():g}, mean {values.mean():.3g}"
            elif self.problem_type == MULTI:
                text = labels.counts_text([x for t in part.targets for x in t], self.labels)
            else:
                text = labels.counts_text(part.targets, self.labels)
            sources.say_all([f"{split}: {count:,} examples; {text}"])
        if self.positive is not None:
            sources.say_all([f"f1 is that of '{self.positive}'"])

    # The model's side.

    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        logits = self.apply(params, inputs, dropout_key)
        target, weight = inputs["target"], inputs["weight"]
        if self.problem_type == REGRESSION:
            scored = weight * jnp.isfinite(target)
            return {self._loss_name: loss.squared_error(logits[:, 0], target, scored)}
        if self.problem_type == MULTI:
            scored = weight * jnp.isfinite(target[:, 0])
            return {self._loss_name: loss.sigmoid_cross_entropy(logits, target, scored)}
        target, scored = loss.ignore_labels(target, weight)
        weighted = scored
        if self._class_weights is not None:
            weighted = scored * jnp.asarray(self._class_weights)[target]
        return {
            self._loss_name: loss.cross_entropy(logits, target, weighted),
            "accuracy": loss.accuracy(logits, target, scored),
        }

    def outputs(self, params: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"logits": self.apply(params, inputs)}

    def chance_levels(self) -> dict[str, float]:
        if self.problem_type != SINGLE or self._class_weights is not None or not self.train_steps:
            return {}
        shares = np.bincount(self._targets["train"]) / len(self._targets["train"])
        shares = shares[shares > 0]
        return {self._loss_name: float(-(shares * np.log(shares)).sum())}

    def artifacts(self) -> dict[str, Any]:
        found = super().artifacts()
        if self.problem_type != REGRESSION:
            found |= {"labels": list(self.labels), "positive": self.positive}
        return found

    # Figures and files.

    def values(self, split: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Of each example: probabilities [n, C], or the score [n]."""
        example = self._rows[split].example
        if self.problem_type == REGRESSION:
            return pooled(outputs["logits"].astype(np.float64), example)[:, 0]
        return pooled(label_probabilities(outputs["logits"], self.problem_type), example)

    def score(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        values, target = self.values(split, outputs), self._targets[split]
        figures: dict[str, float] = {"examples": float(len(values))}
        if self._splits[split].targets is None:
            return figures
        figures = {"loss": means["loss"], **figures}
        if self.problem_type == REGRESSION:
            return figures | results.regression_figures(target, values)
        if self.problem_type == MULTI:
            return figures | results.multi_label_figures(target > 0.5, values > 0.5)
        positive = None if self.positive is None else self.labels.index(self.positive)
        return figures | results.single_label_figures(target, values.argmax(1), positive)

    def predictions(
        self, split: str, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, Any]]:
        """{index, label (None: not labelled), prediction, probabilities}; of a regression
        {index, label, prediction}."""
        targets = self._splits[split].targets
        for index, value in enumerate(self.values(split, outputs)):
            given = None if targets is None else targets[index]
            if self.problem_type == REGRESSION:
                label = None if given is None else float(given)
                yield {"index": index, "label": label, "prediction": float(value)}
                continue
            label = list(given) if isinstance(given, tuple) else given
            yield {
                "index": index,
                "label": label,
                "prediction": predicted(value, self.labels, self.problem_type),
                "probabilities": dict(zip(self.labels, map(float, value), strict=True)),
            }

    def report(
        self, split: str, outputs: Mapping[str, np.ndarray], figures: Mapping[str, float]
    ) -> tuple[str, dict[str, str]]:
        part, values = self._splits[split], self.values(split, outputs)
        text, files = results.figures_line(split, figures), {}
        spec = glue.TASKS.get(self.config.data.glue)
        if spec and split.startswith("test"):
            rows = [p["prediction"] for p in self.predictions(split, outputs)]
            name, content = glue.submission(spec, split, rows)
            files[name] = content
        if part.targets is None or self.problem_type == REGRESSION:
            return text, files
        if self.problem_type == MULTI:
            table = results.per_label(self._targets[split] > 0.5, values > 0.5, self.labels)
            return f"{text}\n{table}", files
        target, guess = self._targets[split], values.argmax(1)
        text += "\n" + results.per_class(target, guess, self.labels)
        text += "\n" + results.confusion(target, guess, self.labels)
        files[f"{split}.errors.tsv"] = self._errors(part, target, guess, values)
        return text, files

    def _errors(
        self, part: Examples, target: np.ndarray, guess: np.ndarray, values: np.ndarray
    ) -> str:
        """The misclassified rows, the surest mistakes first."""
        wrong = np.flatnonzero(target != guess)
        wrong = wrong[np.argsort(-values[wrong, guess[wrong]], kind="stable")]
        lines = ["index\tlabel\tprediction\tprobability\ttext" + ("\tpair" if part.pairs else "")]
        for i in wrong:
            texts = [part.texts[i], *([part.pairs[i]] if part.pairs else [])]
            names = self.labels[target[i]], self.labels[guess[i]]
            cells = [str(i), *names, f"{values[i, guess[i]]:.4f}"]
            lines.append("\t".join([*cells, *(" ".join(text.split()) for text in texts)]))
        return "\n".join(lines) + "\n"


def predicted(probabilities: np.ndarray, names: Sequence[str], problem_type: str) -> Any:
    """The likeliest label, or the list of those above one half."""
    if problem_type == MULTI:
        return [name for name, p in zip(names, probabilities, strict=True) if p > 0.5]
    return names[int(np.argmax(probabilities))]
