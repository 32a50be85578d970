"""Two runs scored on the same examples: by their files of predictions, or by their checkpoints."""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from seqeval.metrics.sequence_labeling import get_entities

from bertjax import config as configs
from bertjax import start
from bertjax.ablate import cells, paired
from bertjax.ablate.paired import Result
from bertjax.data.labelled import objects, read_text
from bertjax.errors import UserError
from bertjax.tasks import results as task_results
from bertjax.tasks import squad
from bertjax.tasks.task import Rows
from bertjax.train import checkpoint, metrics
from bertjax.train import workdir as workdirs
from bertjax.train.step import abstract_params

# Resamples of figures that take a pass over all examples each time.
_SLOW_RESAMPLES = 2_000

Predictions = list[dict[str, Any]]


def by_predictions(first: pathlib.Path, second: pathlib.Path, split: str) -> list[Result]:
    """Tests on predictions/SPLIT.jsonl of two fine-tunings of one kind.

    Raises:
        UserError: a file is missing, has no labels, or is of other examples.
    """
    a, b = (_predictions(folder, split) for folder in (first, second))
    known = ("label", "words", "id")  # what a file says of an example: of a classifier the label
    if [[row.get(name) for name in known] for row in a] != [
        [row.get(name) for name in known] for row in b
    ]:
        raise UserError(
            f"--compare: {first} and {second} have predictions of different {split} examples"
        )
    if any(row["label"] is None for row in a):
        raise UserError(f"--compare: the {split} examples have no labels, so neither run is right")
    saved = workdirs.read_config(str(first))
    assert saved is not None  # whoever calls has read it
    config, artifacts = saved
    metric = artifacts["best_metric"][0].partition("/")[2]
    if config["task"] == "answer":
        return _answers(a, b, squad.kind_of(config["data"]["language"]))
    if config["task"] == "tag":
        return _tags(a, b, metric)
    if config["data"]["problem_type"] == "regression":
        return [_correlation(a, b, name) for name in ("spearman", "pearson")]
    if config["data"]["problem_type"] == "multi_label":
        right = [[set(row["label"]) == set(row["prediction"]) for row in x] for x in (a, b)]
        return [paired.mcnemar("exact_match", np.array(right[0]), np.array(right[1]))]
    right = [[row["label"] == row["prediction"] for row in x] for x in (a, b)]
    found = [paired.mcnemar("accuracy", np.array(right[0]), np.array(right[1]))]
    if metric in _OF_CONFUSION:
        names = artifacts["labels"]
        if artifacts.get("positive"):  # the second of two, for `_f1`
            names = sorted(names, key=artifacts["positive"].__eq__)
        found.append(_of_confusion(a, b, metric, names))
    return found


def _predictions(folder: pathlib.Path, split: str) -> Predictions:
    path = folder / "predictions" / f"{split}.jsonl"
    if not re.fullmatch(r"\w+", split) or not path.exists():
        raise UserError(f"--compare: no file {path}: the run has no predictions of split {split}")
    return [row for _, row in objects(str(path), read_text(str(path)))]


def _f1(matrix: np.ndarray) -> float:
    """Of class 1: [2, 2] counts, gold by guess."""
    total = matrix[1].sum() + matrix[:, 1].sum()
    return float(2 * matrix[1, 1] / total) if total else 0.0


def _macro_f1(matrix: np.ndarray) -> float:
    """Over the classes that are given or predicted."""
    totals = matrix.sum(0) + matrix.sum(1)
    return float(np.mean(2 * np.diag(matrix)[totals > 0] / totals[totals > 0]))


def _matthews(matrix: np.ndarray) -> float:
    """Of any number of classes (Gorodkin 2004); 0 where it is not defined."""
    gold, guess, n = matrix.sum(1).astype(float), matrix.sum(0).astype(float), matrix.sum()
    scale = (n**2 - gold @ gold) * (n**2 - guess @ guess)
    return float((n * np.trace(matrix) - gold @ guess) / np.sqrt(scale)) if scale else 0.0


_OF_CONFUSION = {"f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews}


def _of_confusion(a: Predictions, b: Predictions, metric: str, labels: list[str]) -> Result:
    number, size = {name: i for i, name in enumerate(labels)}, len(labels)
    gold = np.array([number[row["label"]] for row in a])
    pairs = [gold * size + [number[row["prediction"]] for row in rows] for rows in (a, b)]

    def statistic(rows: np.ndarray) -> tuple[float, float]:
        matrices = (np.bincount(p[rows], minlength=size**2).reshape(size, size) for p in pairs)
        one, other = map(_OF_CONFUSION[metric], matrices)
        return one, other

    return paired.bootstrap(metric, statistic, len(gold))


def _correlation(a: Predictions, b: Predictions, name: str) -> Result:
    score: Callable[..., float] = getattr(metrics, name)
    gold = np.array([row["label"] for row in a])
    guesses = [np.array([row["prediction"] for row in rows]) for rows in (a, b)]
    return paired.bootstrap(
        name,
        lambda rows: (score(gold[rows], guesses[0][rows]), score(gold[rows], guesses[1][rows])),
        len(gold),
        resamples=_SLOW_RESAMPLES,
    )


def _answers(a: Predictions, b: Predictions, kind: str) -> list[Result]:
    """Exact match and F1 of each question, in percent as in the runs' own figures."""
    answers = [row["label"] for row in a]
    scores = [
        squad.best_scores([row["prediction"] for row in rows], answers, kind) for rows in (a, b)
    ]
    ones = np.ones(len(answers))
    return [
        paired.bootstrap_ratio(name, 100 * scores[0][i], 100 * scores[1][i], ones)
        for i, name in enumerate(("exact_match", "f1"))
    ]


def _tags(a: Predictions, b: Predictions, metric: str) -> list[Result]:
    """Accuracy over words and, where spans are scored, their F1; sentences are resampled."""
    words = np.array([len(row["label"]) for row in a])
    right = [
        np.array([sum(map(str.__eq__, r["label"], r["prediction"])) for r in x]) for x in (a, b)
    ]
    found = [paired.bootstrap_ratio("accuracy", *right, words)]
    if metric == "accuracy":
        return found
    gold = _entities([row["label"] for row in a])
    guesses = [_entities([row["prediction"] for row in rows]) for rows in (a, b)]
    hits = [np.array([len(g & p) for g, p in zip(gold, guess, strict=True)]) for guess in guesses]
    totals = [
        np.array([len(g) + len(p) for g, p in zip(gold, guess, strict=True)]) for guess in guesses
    ]

    def statistic(rows: np.ndarray) -> tuple[float, float]:
        one, other = (
            2 * float(hit[rows].sum()) / max(1, total[rows].sum())
            for hit, total in zip(hits, totals, strict=True)
        )
        return one, other

    return [*found, paired.bootstrap(metric, statistic, len(words))]


def _entities(tags: list[list[str]]) -> list[set[tuple]]:
    """The spans of each sentence, as the runs' own figures count them."""
    return [set(get_entities(sentence)) for sentence in task_results.spans(tags)]


# Held-out rows of pretraining -------------------------------------------------------------------


def by_rows(first: pathlib.Path, second: pathlib.Path, split: str) -> list[Result]:
    """Both checkpoints on the same rows with the same masks; sums over a row's masked tokens."""
    a, b = (row_losses(str(folder), split) for folder in (first, second))
    if a["digest"] != b["digest"]:
        raise UserError(
            f"--compare: {first} and {second} were not evaluated on the same {split} rows and "
            "masks: they need one corpus, vocabulary, length and data.eval_examples"
        )
    results = []
    for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy"):
        if name in a["sums"] and name in b["sums"]:
            weights = a["weights"][name]
            if not np.any(weights):  # no pairs could be made of these rows
                continue
            results.append(paired.bootstrap_ratio(name, a["sums"][name], b["sums"][name], weights))
    return results


def row_losses(workdir: str, split: str) -> dict[str, Any]:
    """{'digest', 'sums', 'weights'}: of each held-out row and mean of the task its sum and weight.

    The checkpoint is the one that evaluation takes. The digest is of rows, masks and labels.
    """
    config, explicit = configs.default_config(), frozenset()
    if cells.read(pathlib.Path(workdir)) is not None:  # its ablation may have been moved
        config.data.source = cells.read_config(workdir)["data.source"]
        explicit = frozenset({"data.source"})
    command = configs.CommandLine(config, explicit, "compare", {"mode": "evaluate"})
    run = start.prepare(command, workdir)
    task = run.task
    if split not in task.eval_splits:
        raise UserError(
            f"--compare: {workdir} has no split {split}, but {', '.join(task.eval_splits)}"
        )
    params, _ = checkpoint.load_params(
        workdir, best=task.best_metric, abstract=abstract_params(task, run.mesh)
    )

    @jax.jit
    def of_rows(params: Any, batch: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        inputs = task.inputs(batch, train=False)
        one_row = lambda row: task.losses(  # noqa: E731
            params, {name: value[None] for name, value in row.items()}, dropout_key=None
        )
        return jax.vmap(one_row)(inputs), {
            name: inputs[name] for name in ("input_ids", "masked_positions", "masked_labels")
        }

    digest, sums, weights = hashlib.sha256(), {}, {}
    for batch in task.eval_batches(split, Rows()):
        kept = batch["weight"] > 0
        means, seen = jax.device_get(of_rows(params, batch))
        for name in sorted(seen):
            digest.update(np.ascontiguousarray(seen[name][kept]).tobytes())
        for name, (total, weight) in means.items():
            sums.setdefault(name, []).append(total[kept])
            weights.setdefault(name, []).append(weight[kept])
    return {
        "digest": digest.hexdigest(),
        "sums": {name: np.concatenate(parts) for name, parts in sums.items()},
        "weights": {name: np.concatenate(parts) for name, parts in weights.items()},
    }
