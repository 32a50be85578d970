"""From workdirs to the values of a page: what is missing is said, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bertjax import api, config
from bertjax.errors import UserError
from bertjax.report import gather, held_out, inside, predictions
from bertjax.report.held_out import Texts
from bertjax.tasks import squad

# What all runs of a page share.
MOST_ROWS, MOST_MASKED = 200, 12  # predictions of a split, texts with masks
WEIGHT_BYTES = 1_500_000
FEWEST_ROWS = 20

T = TypeVar("T")


def build(paths: Sequence[str], texts: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """The page's values, and for each run its packed attention weights ('' where there are none).

    Args:
        paths: workdirs, each checked to be one.
        texts: those of the command line; None takes held-out examples.
    """
    names = gather.names_of(paths)
    runs, weights = [], []
    for path, name in zip(paths, names, strict=True):
        config.stderr(f"{path}: reading config, figures and predictions")
        run = gather.read_run(path, name)
        weights.append(_add_model(run, path, texts, len(paths)))
        runs.append(run)
    return {"runs": runs}, weights


def _tried(missing: dict[str, str], part: str, function: Callable[[], T]) -> T | None:
    """What `function` returns; for an expected error None, and a sentence in `missing`."""
    try:
        return function()
    except (UserError, OSError) as error:
        missing[part] = str(error)  # may begin with a path, so it stays as it is
        return None


def _add_model(run: dict[str, Any], path: str, given: list[str] | None, runs: int) -> str:
    """Examples, attention and vectors of one run, into `run`; its packed weights."""
    missing: dict[str, str] = {}
    warnings: dict[str, None] = {}
    rows = max(FEWEST_ROWS, MOST_ROWS // runs)
    run |= {"examples": None, "asked": [], "attention": None, "vectors": None, "missing": missing}
    read = None
    if not (given and run["task"] == "pretrain"):  # nothing of the corpus is shown then
        read = _tried(missing, "texts", lambda: held_out.read(path))
    shown = held_out.chosen(given) if given else next(iter(read.values())) if read else None
    if run["task"] != "pretrain":
        run["examples"] = _predictions(run, path, read or {}, rows)
    bert = _tried(missing, "model", lambda: api.load(path))
    if bert is None or shown is None:
        return ""
    run["model"] = next(iter(bert.published.notes), "")
    run["text_source"] = shown.what

    def warn(line: str) -> None:
        warnings[line] = None

    config.stderr(f"{path}: attention, vectors and examples from {run['model']}")
    if run["task"] == "pretrain":
        masked = max(4, MOST_MASKED // runs)
        filled = _tried(
            missing, "examples", lambda: predictions.fill_masks(bert, shown, warn, masked)
        )
        if filled is not None:
            run["examples"] = {"kind": "masks", "rows": filled, "total": len(shown.texts)}
    elif shown.given:
        run["asked"] = _tried(missing, "asked", lambda: predictions.ask(bert, shown, warn)) or []
    budget = WEIGHT_BYTES // runs
    found = _tried(missing, "attention", lambda: inside.attention(bert, shown, budget, warn))
    run["vectors"] = _tried(missing, "vectors", lambda: inside.vectors(bert, shown, warn))
    run["notes"] += [f"Warning: {line}." for line in warnings]
    if found is None:
        return ""
    run["attention"], weights = found
    return weights


def _predictions(
    run: dict[str, Any], path: str, texts: dict[str, Texts], rows: int
) -> dict[str, Any] | None:
    """Predictions that the run wrote, by split."""
    splits = predictions.splits_of(path)
    if not splits:
        run["missing"]["examples"] = (
            "The run has written no predictions; it does so when it finishes."
        )
        return None
    scores = squad.kind_of(run["config"].get("data.language", ""))
    found = [
        predictions.read(path, split, run["task"], texts.get(split), rows, scores)
        for split in splits
    ]
    return {"kind": "predictions", "splits": found}
