"""Several runs of one config that differ in the seed alone: median, spread, degenerate runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import jax
from etils import epath
from ml_collections import config_dict

from bertjax import start
from bertjax.config import CommandLine
from bertjax.errors import UserError
from bertjax.train import loop
from bertjax.train import workdir as workdirs
from bertjax.train.record import Diverged
from bertjax.train.signals import StopSignals

SUMMARY = "seeds.json"


def train(command: CommandLine, workdir: str) -> None:
    """Train config.train.seeds runs in WORKDIR/seed-N, one after the other, and sum up.

    The same command goes on where it was stopped: finished runs are not repeated.

    Raises:
        UserError: as `loop.train`; that of a seed which diverged comes after the others.
    """
    first = command.config.seed
    seeds = range(first, first + command.config.train.seeds)
    figures: list[dict[str, float]] = []
    diverged: dict[int, Diverged] = {}
    for seed in seeds:
        config = config_dict.ConfigDict(command.config.to_dict())
        config.seed, config.train.seeds = seed, 1
        folder = f"{workdir}/seed-{seed}"
        run = start.prepare(dataclasses.replace(command, config=config), folder)
        with StopSignals() as stop:  # hears what comes when the run itself asks no more
            try:
                figures.append(
                    loop.train(
                        run.config, run.task, folder, mesh=run.mesh, load_initial=run.load_initial
                    )
                )
            except Diverged as error:
                diverged[seed] = error
        if stop.pending and seed != seeds[-1]:
            raise SystemExit(stop.exit_code)
    if not figures:
        raise UserError(f"all {len(seeds)} seeds diverged; seed {first}: {diverged[first]}")
    table = summary(figures)
    trained = [seed for seed in seeds if seed not in diverged]
    content = {"seeds": trained, "figures": figures, "summary": table}
    workdirs.on_first_process(lambda: workdirs.write_json(workdir, SUMMARY, content))
    if jax.process_index() == 0:
        print(summary_text(table, len(trained)))
    if diverged:
        listed = ", ".join(map(str, diverged))
        raise UserError(
            f"{len(diverged)} of {len(seeds)} seeds diverged ({listed}) and are not in the table: "
            f"{next(iter(diverged.values()))}"
        )


def check(workdir: str, seeds: int) -> None:
    """UserError where a workdir holds runs of several seeds and one is asked for, or one run and
    several are."""
    root = epath.Path(workdir)
    one, several = (root / workdirs.CONFIG).exists(), any(root.glob(f"seed-*/{workdirs.CONFIG}"))
    if one != several and several != (seeds > 1):
        has = "runs of several seeds" if several else "one run"
        raise UserError(
            f"{workdir} holds {has}, but config.train.seeds={seeds}: take another --workdir, or "
            f"{'give train.seeds as before' if several else 'leave train.seeds at 1'}"
        )


def summary(figures: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least, largest and standard deviation of each figure, and `degenerate` of a split:
    how many runs predict one class only."""
    table: dict[str, dict[str, float]] = {}
    for name in figures[0]:
        values = [run[name] for run in figures]
        split, _, figure = name.partition("/")
        if figure == "predicted_classes":
            table[f"{split}/degenerate"] = {"count": sum(value <= 1 for value in values)}
        elif figure not in ("examples", "words"):
            table[name] = {
                "median": statistics.median(values),
                "least": min(values),
                "largest": max(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            }
    return table


def summary_text(table: dict[str, dict[str, float]], runs: int) -> str:
    """The table as lines, for a person."""
    if not table:
        return f"{runs} seeds, and no figures: without config.data.validation nothing is evaluated"
    width = max(map(len, table))
    lines = [f"{'of ' + str(runs) + ' seeds':{width}}    median     least   largest  deviation"]
    for name, row in table.items():
        if "count" in row:
            lines.append(f"{name:{width}}  {row['count']} of {runs} runs predict one class only")
        else:
            values = (row[key] for key in ("median", "least", "largest", "deviation"))
            lines.append(f"{name:{width}}" + "".join(f"{value:10.4f}" for value in values))
    return "\n".join(lines)
