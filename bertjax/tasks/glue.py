"""The nine GLUE tasks (Wang et al. 2019): columns, label names, metric, submission file.

Column specs name the columns of the datasets first and those of the task's own TSV files second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """One task. `labels` are in the order of the numbers that the TSV files use, empty for a score.

    `submit_names`: the submission file has names and not numbers.
    """

    text: str
    pair: str
    label: str
    labels: tuple[str, ...]
    metric: str
    file: str
    submit_names: bool = False
    epochs: float = 3.0


_ENTAILMENT = ("entailment", "not_entailment")
TASKS: Mapping[str, GlueTask] = {
    "cola": GlueTask("sentence|3", "", "label|1", ("unacceptable", "acceptable"), "matthews",
                     "CoLA"),
    "sst2": GlueTask("sentence|0", "", "label|1", ("negative", "positive"), "accuracy", "SST-2"),
    "mrpc": GlueTask("sentence1|#1 String", "sentence2|#2 String", "label|Quality",
                     ("not_equivalent", "equivalent"), "f1", "MRPC"),
    "stsb": GlueTask("sentence1|0", "sentence2|1", "label|score|2", (), "spearman", "STS-B"),
    "qqp": GlueTask("question1", "question2", "label|is_duplicate",
                    ("not_duplicate", "duplicate"), "f1", "QQP"),
    "mnli": GlueTask("premise|sentence1", "hypothesis|sentence2", "label|gold_label",
                     ("entailment", "neutral", "contradiction"), "accuracy", "MNLI-m", True),
    "qnli": GlueTask("question", "sentence", "label", _ENTAILMENT, "accuracy", "QNLI", True),
    "rte": GlueTask("premise|sentence1", "hypothesis|sentence2", "label", _ENTAILMENT,
                    "accuracy", "RTE", True),
    "wnli": GlueTask("sentence1", "sentence2", "label", _ENTAILMENT[::-1], "accuracy", "WNLI"),
}  # fmt: skip


def presets() -> dict[str, dict[str, Any]]:
    """Config values of each task, by its name; the data are those that TFDS prepares."""
    return {name: _preset(name, task) for name, task in TASKS.items()}


def _preset(name: str, task: GlueTask) -> dict[str, Any]:
    source = f"tfds:glue/{name}"
    validation, test = f"{source}:validation", f"{source}:test"
    if name == "mnli":
        validation = f"{validation}_matched,mismatched={validation}_mismatched"
        test = f"{test}_matched,mismatched={test}_mismatched"
    return {
        "data.glue": name,
        "data.train": f"{source}:train",
        "data.validation": validation,
        "data.test": test,
        "data.text_column": task.text,
        "data.pair_column": task.pair,
        "data.label_column": task.label,
        "data.problem_type": "single_label" if task.labels else "regression",
        "train.epochs": task.epochs,
    }


def label_name(task: GlueTask, label: str) -> str:
    """The name of a label that may be given by its number, as the TSV files do."""
    return task.labels[int(label)] if label.isdecimal() and int(label) < len(task.labels) else label


def check(name: str, problem_type: str, labels: Iterable[str]) -> None:
    """UserError where a task cannot give a submission file: other labels, or another kind."""
    task = TASKS[name]
    kind = "single_label" if task.labels else "regression"
    if problem_type != kind:
        raise UserError(
            f"config.data.problem_type={problem_type}, but config.data.glue={name} is {kind}: "
            "change one of them"
        )
    if unknown := sorted(set(labels) - set(task.labels)):
        raise UserError(
            f"config.data.glue={name} has the labels {', '.join(task.labels)}, but there is "
            f"'{unknown[0]}': name them so, or set config.data.glue to ''"
        )


def submission(task: GlueTask, split: str, predictions: list[Any]) -> tuple[str, str]:
    """(file name, content) of a submission for gluebenchmark.com from label names or scores."""
    further = split.removeprefix("test").removeprefix("_")
    name = f"{task.file}-{further}" if further else task.file
    if task.file == "MNLI-m" and further in ("matched", "mismatched", "ax"):
        name = {"matched": "MNLI-m", "mismatched": "MNLI-mm", "ax": "AX"}[further]
    lines = ["index\tprediction"]
    for i, value in enumerate(predictions):
        if not task.labels:
            value = f"{min(max(value, 0.0), 5.0):.3f}"
        elif not task.submit_names:
            value = task.labels.index(value)
        lines.append(f"{i}\t{value}")
    return f"{name}.tsv", "\n".join(lines) + "\n"
