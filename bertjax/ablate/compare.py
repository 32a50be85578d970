"""Whether two runs differ: by their predictions, on the same held-out rows, or seed by seed."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.ablate import cells, examples, paired
from bertjax.ablate.paired import Result
from bertjax.errors import UserError
from bertjax.train import workdir as workdirs

_SEED = re.compile(r"(?:.*_)?seed-(-?\d+)")
_NOTE_ROWS = (
    "rows cut from one document are not independent, so the interval is rather too narrow; several "
    "seeds say more"
)
_NOTE_SOURCES = (
    "files of predictions hold no texts: that {} and {} have the same examples is seen from their "
    "labels alone"
)


def compare(pair: str, workdir: str, split: str) -> dict[str, Any]:
    """{'a', 'b', 'split', 'kind', 'results', 'notes'} of 'A,B': cells or groups of the ablation in
    `workdir`, or two workdirs.

    Raises:
        UserError: there is no such run, it is not finished, or the two were not scored alike.
    """
    names = [name.strip() for name in pair.split(",")]
    if len(names) != 2 or not all(names):
        raise UserError(f"--compare={pair}: give two cells or workdirs, as --compare=A,B")
    notes: list[str] = []
    runs = [_runs(name, workdir, notes) for name in names]
    if all(set(r) != {None} for r in runs):
        kind, results = "seeds", _by_seed(names, runs, split, notes)
    elif all(set(r) == {None} for r in runs):
        first, second = (r[None] for r in runs)
        tasks = [_config(folder)["task"] for folder in (first, second)]
        if tasks[0] != tasks[1]:
            raise UserError(
                f"--compare={pair}: {names[0]} is of task {tasks[0]}, {names[1]} of {tasks[1]}"
            )
        if tasks[0] == "pretrain":
            kind, results = "held-out rows", examples.by_rows(first, second, split)
            notes.append(_NOTE_ROWS)
        else:
            kind, results = "predictions", examples.by_predictions(first, second, split)
            sources = [_config(f)["data"].get(split.partition("_")[0]) for f in (first, second)]
            if tasks[0] == "classify" and sources[0] != sources[1]:
                notes.append(_NOTE_SOURCES.format(*sources))
    else:
        raise UserError(
            f"--compare={pair}: one of them is a single run, the other a group of seeds; name a "
            "run of each, or both groups"
        )
    return {
        "a": names[0], "b": names[1], "split": split, "kind": kind,
        "results": [dataclasses.asdict(result) for result in results], "notes": notes,
    }  # fmt: skip


def text(found: Mapping[str, Any]) -> str:
    """The comparison for a person."""
    lines = [f"{found['b']} less {found['a']}, {found['split']}, paired by {found['kind']}"]
    for r in found["results"]:
        lines += [
            "",
            f"{r['figure']}: {r['a']:.4f} -> {r['b']:.4f}, difference {r['difference']:+.4f}",
            f"  95 % interval  {r['low']:+.4f} to {r['high']:+.4f}",
            f"  p              {'-' if r['p'] is None else format(r['p'], '.2g')}",
            f"  n              {r['n']:,}",
            f"  test           {r['test']}",
            f"  source         {r['source']}",
        ]
    lines += ["", *(f"note: {note}" for note in found["notes"])] if found["notes"] else []
    return "\n".join(lines)


# Which runs -------------------------------------------------------------------------------------


def _runs(name: str, workdir: str, notes: list[str]) -> dict[int | None, pathlib.Path]:
    """The folders of a name by seed; {None: folder} of a single run. Where there are both, as of
    an ablation that was given seeds later, the seeds are taken, and that is noted."""
    places = [pathlib.Path(name)]
    inside = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name) is not None
    if workdir and inside:
        places.insert(0, cells.path_of(workdir, name))
    for place in places:
        found = {}
        among = [*place.glob("seed-*"), *(place.parent.glob(f"{place.name}_seed-*"))]
        for folder in among:
            match = _SEED.fullmatch(folder.name)
            if match and (folder / workdirs.CONFIG).exists():
                found[int(match.group(1))] = folder
        single = (place / workdirs.CONFIG).exists()
        if found:
            if single:
                notes.append(f"{place} is left out: there are runs of {name} with seeds")
            return dict(sorted(found.items()))
        if single:
            return {None: place}
    where = f"neither a cell of {workdir} nor" if workdir else "not"
    raise UserError(f"--compare: {name} is {where} a workdir of a run that has begun")


def _config(folder: pathlib.Path) -> dict[str, Any]:
    saved = workdirs.read_config(str(folder))
    assert saved is not None  # _runs has seen it
    return saved[0]


def _finished(folder: pathlib.Path) -> dict[str, Any]:
    end = workdirs.read_finished(str(folder))
    if end is None:
        raise UserError(f"--compare: the run in {folder} is not finished: let it go on first")
    return end


# Seed by seed -----------------------------------------------------------------------------------


def _by_seed(
    names: Sequence[str],
    runs: Sequence[Mapping[int | None, pathlib.Path]],
    split: str,
    notes: list[str],
) -> list[Result]:
    common = [seed for seed in runs[0] if seed in runs[1]]
    left = sorted({*runs[0], *runs[1]} - set(common))
    if left:
        notes.append(f"seeds of one of them alone are left out: {', '.join(map(str, left))}")
    if len(common) < 2:
        raise UserError(
            f"--compare: {names[0]} and {names[1]} have {len(common)} seeds in common: a paired "
            "test needs two"
        )
    both = [[_finished(r[seed])["results"].get(split, {}) for seed in common] for r in runs]
    figures = [name for name in both[0][0] if all(name in x for side in both for x in side)]
    if not figures:
        raise UserError(f"--compare: these runs have no figures of the split {split}")
    skip = {"examples", "words", "predicted_classes", "unigram_loss", "perplexity"}
    results = []
    for name in (figure for figure in figures if figure not in skip):
        sides = [[x[name] for x in side] for side in both]
        finite = np.isfinite(np.array(sides, np.float64)).all(axis=0)
        if not finite.all():
            seeds = ", ".join(str(s) for s, ok in zip(common, finite, strict=True) if not ok)
            notes.append(f"{name} is left out: it is not finite of seed {seeds}")
            continue
        results.append(paired.paired_t(name, *sides, "seeds"))
    return results
