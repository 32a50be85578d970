"""What the pretraining cells would cost on hardware that is not there: one plan for each."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from bertjax import config as configs
from bertjax.ablate import budget, cells, run
from bertjax.ablate.grid import Cell
from bertjax.errors import UserError

COLUMNS = ("cell", "parameters", "steps", "training_flops", "peak_gib", "fits", "step_ms", "hours",
           "state")  # fmt: skip

HEADS = {"training_flops": "training FLOPs", "peak_gib": "peak GiB", "step_ms": "step ms",
         "hours": "hours at best"}  # fmt: skip


def plan(
    config: config_dict.ConfigDict, topology: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """{'topology', 'about', 'rows', 'skipped'}: a row for each pretraining cell.

    Needs no corpus: the vocabulary's size is that of model.vocab_size or data.vocab. Each plan is
    a process of `python -m bertjax.plan`; one that fails leaves its sentence in its row.
    """
    from bertjax.plan import hardware, program

    hardware.parse(topology)
    ablation = run.expand(config)
    if not ablation.pretrained:
        raise UserError(
            "--plan is for pretraining cells; of a fine-tuning, python -m bertjax.plan with its "
            "config says the cost"
        )
    if ablation.tuned:
        configs.stderr(f"{len(ablation.tuned)} fine-tuning cells are not planned")
    costs = {}
    for cell in ablation.pretrained:
        resolved = cell.resolved()
        costs[cell.name] = budget.cost(resolved, program.vocab_size(resolved))
    planned = budget.with_budget(config, ablation.pretrained, costs)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, cell in enumerate(planned, 1):
            configs.stderr(f"planning cell {number} of {len(planned)}, {cell.name}")
            cells.write(folder, cell)
            found = _plan_of(folder, cell, topology, environment)
            rows.append(_row(cell, costs[cell.name], found))
    about = budget.text(config, planned, costs)
    return {"topology": topology, "about": about, "rows": rows, "skipped": ablation.notes}


def _plan_of(
    folder: str, cell: Cell, topology: str, environment: Mapping[str, str]
) -> dict[str, Any] | str:
    """The plan's JSON values, or the sentence on why there is none."""
    flag = cells.config_flag(cells.path_of(folder, cell.name))
    done = subprocess.run(
        [sys.executable, "-m", "bertjax.plan", flag, f"--topology={topology}", "--json"],
        capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode in (130, 143, -2, -15):
        raise SystemExit(abs(done.returncode) % 128 + 128)
    if done.returncode:
        return cells.failure(done.returncode, done.stderr)
    return json.loads(done.stdout)


def _row(cell: Cell, cost: budget.Cost, found: dict[str, Any] | str) -> dict[str, Any]:
    steps = cell.config["train.steps"] or None
    row = {
        "cell": cell.name, "parameters": cost.parameters, "steps": steps,
        "training_flops": None if steps is None else steps * cost.step_flops,
    }  # fmt: skip
    if isinstance(found, str):
        return row | {"state": f"failed: {found}", "plan": None}
    step = found["estimated_step_seconds"]
    return row | {
        "peak_gib": found["peak_bytes_per_device"] / 2**30,
        "fits": "yes" if found["fits"] else "NO",
        "step_ms": None if step is None else step * 1e3,
        "hours": None if step is None or steps is None else step * steps / 3600,
        "state": "planned",
        "plan": found,
    }


def text(made: Mapping[str, Any]) -> str:
    """The rows for a person."""
    heads = {name: HEADS.get(name, name) for name in COLUMNS}
    shown = [heads] + [
        {name: _text(name, row.get(name)) for name in COLUMNS} for row in made["rows"]
    ]
    widths = {name: max(len(row[name]) for row in shown) for name in COLUMNS}
    lines = [f"{made['topology']}; {made['about']}; memory is per device, times are rooflines"]
    lines += ["  ".join(row[n].ljust(widths[n]) for n in COLUMNS).rstrip() for row in shown]
    return "\n".join([*lines, *(f"skipped: {sentence}" for sentence in made["skipped"])])


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "training_flops":
        return f"{value:.2e}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
