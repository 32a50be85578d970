"""What a workdir says of its run, without its model: config, figures, curves, the data report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax import config as configs
from bertjax.data import report as data_report
from bertjax.data.builder import REPORT
from bertjax.errors import UserError
from bertjax.interop.workdir import is_workdir
from bertjax.tasks.corpus import own_corpus
from bertjax.train import checkpoint
from bertjax.train import workdir as workdirs
from bertjax.train.writers import METRICS

# Of a curve: a screen shows no more.
MOST_POINTS = 1000
# Significant digits of a figure on the page.
DIGITS = 6


def check_workdir(path: str) -> None:
    """Raises UserError where `path` is no folder of one run."""
    root = epath.Path(path)
    if not root.exists():
        raise UserError(f"--workdir={path} does not exist; name the folder of a run.")
    if not (root / workdirs.CONFIG).exists():
        # The seeds of a run, the cells of an ablation, or a folder of runs.
        runs = [*root.glob(f"*/{workdirs.CONFIG}"), *root.glob(f"cells/*/{workdirs.CONFIG}")]
        if runs:
            folders = sorted(str(found.parent) for found in runs)
            more = " ".join(f"--workdir={folder}" for folder in folders[:3])
            raise UserError(
                f"--workdir={path} holds {len(runs)} run{'s' * (len(runs) > 1)}; say {more}"
                f"{' or others' * (len(runs) > 3)}."
            )
        what = f"is no workdir: it has no {workdirs.CONFIG}"
        if is_workdir(path):
            what = f"is a part of a workdir, or a damaged one: it has no {workdirs.CONFIG}"
        raise UserError(f"--workdir={path} {what}; name the folder of a run.")


def names_of(paths: Sequence[str]) -> list[str]:
    """A short name for each workdir: the end of its path by which it differs from the others."""
    parts = [epath.Path(path).absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"--workdir={paths[0]} is given twice; name each run once.")


def read_run(path: str, name: str) -> dict[str, Any]:
    """Everything but what needs the model, as JSON values for the page.

    Returns:
        name, path, task, state (a sentence), config {dotted key: value}, splits {split: {steps,
        metrics {name: values}}}, figures {split: {name: value}}, summary (text), data (the data
        report or None), notes (sentences).
    """
    notes: list[str] = []
    config, artifacts = workdirs.read_config(path) or ({}, {})
    splits = read_metrics(path, notes)
    finished = workdirs.read_finished(path)
    return {
        "name": name,
        "path": path,
        "task": str(config.get("task", "")),
        "state": _state(path, finished, splits),
        "config": configs.flat(config),
        "labels": artifacts.get("labels"),
        "splits": splits,
        "figures": _figures(finished, splits),
        "summary": (finished or {}).get("summary", ""),
        "data": read_data_report(path, config),
        "notes": notes,
    }


def _state(path: str, finished: Mapping[str, Any] | None, splits: Mapping[str, Any]) -> str:
    if finished is not None:
        return f"finished at step {finished.get('step', 0):,}"
    written = [split["steps"][-1] for split in splits.values() if split["steps"]]
    figures = f"figures up to step {max(written):,}" if written else "no figures yet"
    steps = checkpoint.committed_steps(checkpoint.root(path) / checkpoint.FOLDER)
    saved = f"checkpoint of step {steps[-1]:,}" if steps else "no checkpoint yet"
    return f"not finished: {figures}, {saved}"


def _figures(finished: Mapping[str, Any] | None, splits: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a finished run, else the latest evaluation of each split."""
    if finished is not None and finished.get("results"):
        return {
            split: {name: number(value) for name, value in figures.items()}
            for split, figures in finished["results"].items()
        }
    return {
        split: {name: values[-1] for name, values in content["metrics"].items()}
        for split, content in splits.items()
        if content["steps"]
    }


def number(value: Any) -> float | None:
    """`value` with few digits; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _lines(path: str, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The entries of metrics.jsonl; lines that are none are counted and said."""
    file = epath.Path(path) / METRICS
    if not file.exists():
        notes.append(f"There is no {METRICS} yet: the run has written no figures.")
        return
    damaged = 0
    with file.open("r") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
                entry["step"], entry["split"] = int(entry["step"]), str(entry["split"])
            except (ValueError, KeyError, TypeError):
                damaged += 1
                continue
            yield entry
    if damaged:
        notes.append(
            f"{damaged} {'line' if damaged == 1 else 'lines'} of {METRICS} could not be read and "
            "are left out (the last one may be half written while the run goes on)."
        )


def read_metrics(path: str, notes: list[str]) -> dict[str, Any]:
    """Curves by split, thinned to MOST_POINTS steps each; thinning and damage go to `notes`.

    Returns:
        {split: {'steps': [...], 'metrics': {name: [value or None, ...]}}}
    """
    entries: dict[str, list[dict[str, Any]]] = {}
    for entry in _lines(path, notes):
        entries.setdefault(entry["split"], []).append(entry)
    result = {}
    for split, rows in entries.items():
        if len(rows) > MOST_POINTS:
            notes.append(f"{split}: {MOST_POINTS:,} of {len(rows):,} points of each curve.")
            rows = [rows[i * (len(rows) - 1) // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]
        names = dict.fromkeys(name for row in rows for name in row)
        result[split] = {
            "steps": [row["step"] for row in rows],
            "metrics": {
                name: [number(row.get(name)) for row in rows]
                for name in names
                if name not in ("step", "split")
            },
        }
    return result


def corpus_of(path: str, config: Mapping[str, Any]) -> str | None:
    """The prepared corpus of a pretraining run: its own, else the one its config names."""
    for folder in (own_corpus(path), config.get("data", {}).get("source", "")):
        if folder and (epath.Path(folder) / REPORT).exists():
            return str(folder)
    return None


def read_data_report(path: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The data report: rows [(what, text)], remarks, the histogram of sentence lengths."""
    folder = corpus_of(path, config)
    if folder is None:
        return None
    try:
        content = json.loads((epath.Path(folder) / REPORT).read_text())
        rows, remarks = data_report.rows(content), data_report.remarks(content)
        histogram = content["sentence_length_histogram"]
    except (ValueError, KeyError, TypeError) as error:
        return {"rows": [], "remarks": [f"{folder}/{REPORT} is damaged ({error!r})."], "bars": None}
    return {
        "rows": [list(row) for row in rows if row[0] != "sentence lengths"],  # they are the bars
        "remarks": remarks,
        "bars": {"names": list(histogram), "counts": list(histogram.values())},
    }
