"""Plots of an ablation: held-out perplexity over parameters and over training FLOPs."""

from __future__ import annotations

import os
from typing import Any

from bertjax import config as configs
from bertjax.ablate.table import PRETRAIN, Row, Table

AXES = {"parameters": "parameters of encoder and pooler", "training_flops": "training FLOPs"}


def write(workdir: str, made: Table) -> list[str]:
    """Write perplexity_over_parameters.svg and perplexity_over_flops.svg; their paths.

    Without finished pretraining cells there is nothing to plot; without matplotlib one sentence
    says how to get it.
    """
    rows = [r for r in made.rows if r["stage"] == PRETRAIN and r["perplexity"] is not None]
    if not rows:
        return []
    try:
        import matplotlib
    except ImportError:
        configs.stderr("no plots: they need matplotlib (pip install 'bertjax[report]')")
        return []
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bertjax"  # the same figures give the same file
    paths = []
    for axis, name in (("parameters", "parameters"), ("training_flops", "flops")):
        path = os.path.join(workdir, f"perplexity_over_{name}.svg")
        figure(rows, axis, made.about).savefig(path, metadata={"Date": None})
        paths.append(path)
    return paths


def figure(rows: list[Row], axis: str, about: str) -> Any:
    """A matplotlib figure of one point for each row, colours by the number of layers."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = made.add_subplot()
    for layers in sorted({row["L"] for row in rows}):
        group = sorted((row for row in rows if row["L"] == layers), key=lambda row: row[axis])
        axes.plot(
            [row[axis] for row in group], [row["perplexity"] for row in group], "o-",
            label=f"L = {layers}", linewidth=1,
        )  # fmt: skip
    for row in rows:
        axes.annotate(
            f"{row['L']}/{row['H']}/{row['A']}", (row[axis], row["perplexity"]),
            textcoords="offset points", xytext=(6, 4), fontsize=8,
        )  # fmt: skip
    values = [row[axis] for row in rows]
    if max(values) > 2 * min(values):
        axes.set_xscale("log")
    axes.margins(x=0.15, y=0.12)
    axes.set_xlabel(AXES[axis])
    axes.set_ylabel("held-out MLM perplexity")
    axes.set_title(f"L/H/A; {about}", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)
    return made
