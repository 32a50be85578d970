"""One table of an ablation, from what its cells have left: as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import config_dict

from bertjax import config as configs
from bertjax.ablate import budget, cells
from bertjax.ablate.budget import Cost
from bertjax.ablate.grid import SHORT, Cell
from bertjax.files import replace_text
from bertjax.train import workdir as workdirs
from bertjax.train.progress import duration

NAME = "ablation"
PRETRAIN, FINETUNE = "pretrain", "finetune"
_SIZES = {letter: key.removeprefix("model.") for letter, key in SHORT.items()}
_SIZES["F"] = "intermediate_size"
_HELD_OUT = ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_accuracy")
_HEADS = {
    "training_flops": "training FLOPs", "mlm_loss": "MLM loss", "mlm_accuracy": "MLM accuracy",
    "nsp_accuracy": "NSP accuracy",
}  # fmt: skip

Row = dict[str, Any]


@dataclasses.dataclass
class Table:
    """What is known of the cells; a figure that is not known is None.

    Attributes:
        about: what the pretrained cells have in common; '' without any.
        rows: one of each cell, in the order of the grid.
        groups: pretrained cells of several seeds together.
        best: of each start and fine-tuning task the setting that is best on the development set.
        notes: what else a reader has to know, such as why impossible cells were left out.
    """

    about: str
    rows: list[Row]
    groups: list[Row]
    best: list[Row]
    notes: list[str]


def make(
    workdir: str,
    pretrained: Sequence[Cell],
    tuned: Sequence[Cell],
    costs: Mapping[str, Cost],
    about: str,
    notes: Sequence[str] = (),
) -> Table:
    """The table of the cells as they stand in their folders."""
    rows = [_pretrain_row(workdir, cell, costs[cell.name]) for cell in pretrained]
    tuned_rows = [_finetune_row(workdir, cell, costs) for cell in tuned]
    notes = list(notes)
    best = _best(tuned, tuned_rows, {cell.name: _held_out(workdir, cell) for cell in tuned}, notes)
    for row in rows:
        row["scores"] = {b["task"]: b["validation"] for b in best if b["start"] == row["cell"]}
    groups = _groups(pretrained, rows)
    for row in tuned_rows:  # the test set is looked at for the chosen settings alone
        if not row["chosen"]:
            row["test"] = None
    return Table(about, [*rows, *tuned_rows], groups, best, notes)


def _held_out(workdir: str, cell: Cell) -> str:
    """A digest of the development set that a cell was scored on, '' where it does not say."""
    saved = workdirs.read_config(str(cells.path_of(workdir, cell.name)))
    return str(saved[1].get("held_out", {}).get("validation", "")) if saved else ""


def _state(workdir: str, cell: Cell) -> tuple[Row, dict[str, Any] | None]:
    """How a cell stands, and finished.json where it has come to its end."""
    folder = cells.path_of(workdir, cell.name)
    how = cells.read(folder) or {"state": cells.WAITING, "sentence": "", "seconds": 0.0}
    end = workdirs.read_finished(str(folder))
    state = cells.FINISHED if end else how["state"]
    sentence = "" if end else how["sentence"]
    if end and not all(
        math.isfinite(value) for figures in end["results"].values() for value in figures.values()
    ):
        sentence = "with figures that are not finite"
    return {"seconds": how["seconds"] or None, "state": state, "sentence": sentence}, end


def _sizes(workdir: str, cell: Cell) -> Row:
    """L, H, A and F of a cell; of a run that has begun those that its checkpoint gave it."""
    saved = workdirs.read_config(str(cells.path_of(workdir, cell.name)))
    if saved is not None:
        model = saved[0]["model"]
    elif cell.config["init_from"] and not cell.parent:
        return dict.fromkeys(_SIZES)
    else:
        model = {key: cell.config[f"model.{key}"] for key in _SIZES.values()}
    sizes = {letter: model[key] for letter, key in _SIZES.items()}
    sizes["F"] = sizes["F"] or 4 * sizes["H"]
    return sizes


def _pretrain_row(workdir: str, cell: Cell, cost: Cost) -> Row:
    how, end = _state(workdir, cell)
    figures: Mapping[str, float] = {}
    if end and end["results"]:
        figures = end["results"].get("validation") or next(iter(end["results"].values()))
    steps = end["step"] if end else cell.config["train.steps"] or None
    return {
        "cell": cell.name, "stage": PRETRAIN, **_sizes(workdir, cell), **_shown(cell),
        "parameters": cost.parameters,
        "training_flops": None if steps is None else steps * cost.step_flops,
        "steps": steps, **{name: _finite(figures.get(name)) for name in _HELD_OUT}, **how,
    }  # fmt: skip


def _finite(value: float | None) -> float | None:
    """JSON knows no NaN, and a figure of a run that has diverged is none."""
    return value if value is not None and math.isfinite(value) else None


def _shown(cell: Cell) -> Row:
    """What varies beside the sizes, which have columns of their own."""
    own = {f"model.{key}" for key in _SIZES.values()}
    return {key: value for key, value in cell.varied.items() if key not in own}


def _finetune_row(workdir: str, cell: Cell, costs: Mapping[str, Cost]) -> Row:
    how, end = _state(workdir, cell)
    folder = str(cells.path_of(workdir, cell.name))
    saved = workdirs.read_config(folder)
    row = {
        "cell": cell.name, "stage": FINETUNE, "start": cell.parent or cell.config["init_from"],
        "task": cell.target or cell.config["task"], **_sizes(workdir, cell), **_shown(cell),
        "parameters": None, "steps": end["step"] if end else None,
        "metric": None, "validation": None, "test": None, "chosen": False, **how,
    }  # fmt: skip
    if cell.parent:
        row["parameters"] = costs[cell.parent].parameters
    elif saved is not None:
        row["parameters"] = _parameters(tuple(saved[0]["model"][k] for k in configs.SIZE_KEYS))
    if end and saved is not None:
        split, _, metric = saved[1]["best_metric"][0].partition("/")
        row["metric"], row["larger_is_better"] = metric, saved[1]["best_metric"][1]
        row["validation"] = _finite(end["results"].get(split, {}).get(metric))
        row["test"] = _finite(end["results"].get("test", {}).get(metric))
    return row


@functools.lru_cache
def _parameters(sizes: tuple[Any, ...]) -> int:
    config = configs.default_config()
    for key, value in zip(configs.SIZE_KEYS, sizes, strict=True):
        config.model[key] = value
    config.data.seq_length = min(config.data.seq_length, config.model.max_position_embeddings)
    return budget.parameters(config_dict.ConfigDict(config), config.model.vocab_size)


def _best(
    tuned: Sequence[Cell], rows: Sequence[Row], held_out: Mapping[str, str], notes: list[str]
) -> list[Row]:
    """Of each start and task the setting whose mean over its seeds is best on the development
    set. A setting counts when all of its seeds are finished; the first of equals is taken. None is
    where they were scored on other rows or by another metric, which becomes a note."""
    contests: dict[tuple[str, str], dict[str, list[Row]]] = {}
    setting_of: dict[str, str] = {}
    for cell, row in zip(tuned, rows, strict=True):
        settings = contests.setdefault((row["start"], row["task"]), {})
        settings.setdefault(cell.group, []).append(row)
        setting_of[cell.group] = cell.setting
    best = []
    for (start, task), settings in contests.items():
        whole = {
            group: runs
            for group, runs in settings.items()
            if all(run["validation"] is not None for run in runs)
        }
        row: Row = {
            "start": start, "task": task, "setting": None, "metric": None, "validation": None,
            "deviation": None, "test": None, "seeds": None,
            "settings_finished": len(whole), "settings": len(settings),
        }  # fmt: skip
        best.append(row)
        if not whole:
            continue
        runs = [run for group in whole.values() for run in group]
        if len({(held_out[run["cell"]], run["metric"]) for run in runs}) > 1:
            notes.append(
                f"{task}: no setting is chosen, since not all are scored on the same development "
                "set by the same metric"
            )
            continue
        sign = 1 if next(iter(whole.values()))[0]["larger_is_better"] else -1
        group = max(whole, key=lambda g: sign * statistics.fmean(r["validation"] for r in whole[g]))
        runs = whole[group]
        for run in runs:
            run["chosen"] = True
        tests = [run["test"] for run in runs]
        row |= {
            "setting": setting_of[group],
            "metric": runs[0]["metric"],
            "validation": statistics.fmean(run["validation"] for run in runs),
            "deviation": _deviation([run["validation"] for run in runs]),
            "test": None if None in tests else statistics.fmean(tests),
            "seeds": len(runs),
        }
    return best


def _deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation, None of one value."""
    return statistics.stdev(values) if len(values) > 1 else None


def _groups(pretrained: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    """Of cells that differ in the seed alone the mean loss, its deviation and its perplexity."""
    found: dict[str, list[Row]] = {}
    for cell, row in zip(pretrained, rows, strict=True):
        found.setdefault(cell.group, []).append(row)
    result = []
    for group, members in found.items():
        losses = [row["mlm_loss"] for row in members if row["mlm_loss"] is not None]
        if len(members) > 1 and losses:
            mean = statistics.fmean(losses)
            result.append(
                {"group": group, "seeds": len(losses), "of_seeds": len(members), "mlm_loss": mean,
                 "deviation": _deviation(losses), "perplexity": math.exp(mean)}
            )  # fmt: skip
    return result


# Files ------------------------------------------------------------------------------------------


def document(made: Table) -> dict[str, Any]:
    """The table as JSON values; what is not known is null."""
    rows = [{k: v for k, v in row.items() if k != "larger_is_better"} for row in made.rows]
    return dataclasses.asdict(made) | {"rows": rows}


def write(workdir: str, made: Table) -> None:
    """Write ablation.json, ablation.csv and ablation.md."""
    workdirs.write_json(workdir, f"{NAME}.json", document(made))
    for ending, text in (("csv", csv_text(made)), ("md", markdown(made))):
        replace_text(epath.Path(workdir) / f"{NAME}.{ending}", text)


def csv_text(made: Table) -> str:
    """A line for each cell; figures that are not known are empty."""
    flat_rows = []
    for row in document(made)["rows"]:
        scores = row.pop("scores", {})
        flat_rows.append(row | {f"{task} (development)": score for task, score in scores.items()})
    names = list(dict.fromkeys(name for row in flat_rows for name in row))
    last = ("seconds", "state", "sentence")
    names = [name for name in names if name not in last] + list(last)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat_rows)
    return text.getvalue()


def markdown(made: Table) -> str:
    """The tables for a person."""
    parts = ["# Ablation"]
    rows = [row for row in made.rows if row["stage"] == PRETRAIN]
    if rows:
        parts += [
            f"{made.about[0].upper()}{made.about[1:]}. Perplexity is exp of the held-out MLM loss; "
            "parameters are those of encoder and pooler.",
            _pretrain_table(rows, made.best),
        ]
    if made.groups:
        parts += ["## Seeds together", _markdown(made.groups)]
    tuned = [row for row in made.rows if row["stage"] == FINETUNE]
    if tuned:
        parts += [
            "## Fine-tuning",
            "Of each task the setting that is best on the development set, in the mean of its "
            "seeds; the test set is looked at for that setting alone.",
            _markdown([_for_a_person(row) for row in made.best]),
            "### Every run, on the development set",
            _markdown([_tuned_for_a_person(row) for row in tuned]),
        ]
    if made.notes:
        parts += ["## Notes", "\n".join(f"- {sentence}" for sentence in made.notes)]
    return "\n\n".join(parts) + "\n"


def _pretrain_table(rows: Sequence[Row], best: Sequence[Row]) -> str:
    metrics = {row["task"]: row["metric"] for row in best if row["metric"]}
    shown = []
    for row in rows:
        scores = {
            f"{task} ({metrics[task]})" if task in metrics else task: score
            for task, score in row["scores"].items()
        }
        shown.append(_without_usual_width(row) | scores | _end(row))
    drop = ("cell", "stage", "mlm_loss", "scores", "seconds", "sentence")
    # A name that the sizes do not tell is shown.
    if any(not row["cell"].startswith(f"L{row['L']}_H{row['H']}_A{row['A']}") for row in rows):
        drop = drop[1:]
    return _markdown([{k: v for k, v in row.items() if k not in drop} for row in shown])


def _without_usual_width(row: Row) -> Row:
    return {k: v for k, v in row.items() if k != "F" or row["H"] is None or v != 4 * row["H"]}


def _end(row: Row) -> Row:
    told = row["state"] + (f": {row['sentence']}" if row["sentence"] else "")
    seconds = row["seconds"]
    return {"time": None if seconds is None else duration(seconds), "state": told}


def outcome(row: Row) -> str:
    """How a cell has ended, in a line."""
    figure = ""
    if row.get("perplexity") is not None:
        figure = f", perplexity {row['perplexity']:.2f}"
    elif row.get("validation") is not None:
        figure = f", {row['metric']} {row['validation']:.4f} on the development set"
    return _end(row)["state"] + figure


def _for_a_person(best: Row) -> Row:
    left = {k: v for k, v in best.items() if k not in ("settings", "settings_finished")}
    return left | {"settings": f"{best['settings_finished']} of {best['settings']} finished"}


def _tuned_for_a_person(row: Row) -> Row:
    drop = {"stage", "test", "larger_is_better", "seconds", "sentence", "F", "start", "task",
            "parameters", "L", "H", "A", "chosen"}  # fmt: skip
    left = {key: value for key, value in row.items() if key not in drop}
    chosen = {"chosen": "yes" if row["chosen"] else None}
    return left | chosen | _end(row)


def _markdown(rows: Sequence[Row]) -> str:
    """Rows as one Markdown table; columns without any value are left out, `state` is the last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [n for n in names if any(row.get(n) not in (None, "") for row in rows)]
    names = [n for n in names if n not in ("time", "state")] + [
        n for n in ("time", "state") if n in names
    ]
    lines = [[_HEADS.get(name, name) for name in names], ["---"] * len(names)]
    lines += [[_text(name, row.get(name)) for name in names] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "parameters":
        return f"{value / 1e6:.2f} M"
    if name == "training_flops":
        return f"{value:.2e}"
    if name == "perplexity":
        return f"{value:.2f}"
    if name == "mlm_loss" or name.endswith(("accuracy", "deviation")):
        return f"{value:.4f}"
    if isinstance(value, float):
        return f"{value:.4f}" if 0.01 <= abs(value) < 100 else f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return str(value).replace("|", "\\|").replace("\n", " ")
