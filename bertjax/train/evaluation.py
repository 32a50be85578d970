"""Evaluation: of one split (sums over all of it, one division), and of a workdir's checkpoint."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import IO, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bertjax import fields
from bertjax.errors import UserError
from bertjax.parallel import mesh as meshes
from bertjax.tasks.task import Batch, Rows, Task
from bertjax.train import checkpoint
from bertjax.train.progress import Progress, figures_text
from bertjax.train.step import abstract_params, make_eval_step
from bertjax.train.workdir import on_first_process, read_config, write_json

Results = dict[str, dict[str, float]]  # split -> name -> figure
# In a folder of an evaluation: step, what is not as in the run, figures.
ABOUT = "evaluation.json"
# Keys that change no prediction; data is known by its digests.
_SAME_PREDICTIONS = (
    "mesh.*", "checkpoint.*", "train.*", "optimizer.*", "ablate.*", "loss.*", "seed", "init_from",
    "new_head", "encoder_only", "smoke", "model.remat", "data.workers", "data.batch_size",
    "data.eval_batch_size", "data.train", "data.validation", "data.test", "data.source",
    "data.vocab",
)  # fmt: skip


class Evaluator:
    """Evaluates the splits of a task; compiled once for each shape of batch.

    Warnings of the figures, such as one class being all that is predicted, go to `say`.
    """

    def __init__(self, task: Task, mesh: Mesh, rows: Rows, say: Callable[[str], None]) -> None:
        self._task, self._mesh, self._rows, self._say = task, mesh, rows, say
        self._step = make_eval_step(task, mesh)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def compile(self) -> None:
        """Compile for the first batch of every split, before any training."""
        for split in self._task.eval_splits:
            batch = next(iter(self._task.eval_batches(split, self._rows)), None)
            if batch is None:
                raise UserError(f"the {split} split has no example to evaluate")
            self._for_shape(meshes.to_global(self._mesh, batch))

    def _for_shape(self, batch: Mapping[str, jax.Array]) -> Callable[..., Any]:
        key = tuple(sorted((name, x.shape, x.dtype.name) for name, x in batch.items()))
        if key not in self._compiled:
            params = abstract_params(self._task, self._mesh)
            self._compiled[key] = self._step.lower(params, batch).compile()
        return self._compiled[key]

    def run(
        self, params: Any, split: str, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """The figures of a split: `task.metrics` of its means and outputs. None when stopped.

        Sums are added in float64 on the host; rows that only fill a batch are left out of outputs.
        """
        totals: dict[str, np.ndarray] = {}
        outputs: dict[str, list[np.ndarray]] = {}
        waiting: tuple[Batch, Any] | None = None
        for batch in self._task.eval_batches(split, self._rows):
            if stop():
                return None
            placed = meshes.to_global(self._mesh, batch)
            ahead = (batch, self._for_shape(placed)(params, placed))
            if waiting is not None:  # the device works on `ahead` meanwhile
                _add(totals, outputs, *waiting)
            waiting = ahead
        if waiting is not None:
            _add(totals, outputs, *waiting)
        means = {k: float(s / w) if w else math.nan for k, (s, w) in totals.items()}
        means["loss"] = sum(c * means[name] for name, c in self._task.loss_weights.items())
        whole = {name: np.concatenate(parts) for name, parts in outputs.items()}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            figures = self._task.metrics(split, means, whole)
        for warning in said:
            self._say(f"warning: {split}: {warning.message}")
        return figures


def _add(
    totals: dict[str, np.ndarray], outputs: dict[str, list[np.ndarray]], batch: Batch, result: Any
) -> None:
    means, rows = jax.device_get(result)
    for name, pair in means.items():
        totals[name] = totals.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
    if not rows:
        return
    weight = batch["weight"]
    if jax.process_count() > 1:
        weight = multihost_utils.process_allgather(weight, tiled=True)
    for name, values in rows.items():
        outputs.setdefault(name, []).append(values[np.asarray(weight) > 0])


def check_batches(config: Any, mesh: Mesh, *, train: bool) -> None:
    """UserError unless the devices share the rows evenly of an evaluation, and of training too."""
    processes = jax.process_count()
    if train:
        meshes.check_batch(config.data.batch_size, mesh, processes, config.train.accumulate)
    meshes.check_batch(config.data.eval_batch_size, mesh, processes, name="data.eval_batch_size")


def evaluate(
    config: Any,
    task: Task,
    workdir: str,
    *,
    mesh: Mesh | None = None,
    step: int | None = None,
    stream: IO[str] | None = None,
) -> dict[str, float]:
    """Evaluate the best checkpoint of a workdir (or the one of `step`) on every split."""
    mesh = mesh or meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    check_batches(config, mesh, train=False)
    rows = Rows(jax.process_index(), jax.process_count())
    progress = Progress((stream or sys.stdout) if rows.process == 0 else None)
    params, manifest = checkpoint.load_params(
        workdir, step=step, best=task.best_metric, abstract=abstract_params(task, mesh)
    )
    progress.say(f"evaluating the checkpoint of step {manifest.step}")
    evaluator = Evaluator(task, mesh, rows, progress.say)
    results: Results = {}
    for split in task.eval_splits:
        results[split] = evaluator.run(params, split)
        progress.say(f"{split}: {figures_text(results[split])}")
    place, changed = _place(task, workdir, manifest.step)
    summary = finish(task, place, params, results)
    progress.say(summary)
    if place != workdir:
        about = {"step": manifest.step, "changed": changed, "figures": results}
        on_first_process(lambda: write_json(place, ABOUT, about))
    return flat(results)


def _place(task: Task, workdir: str, step: int) -> tuple[str, dict[str, Any]]:
    """Where the predictions of an evaluation go, and what is not as in the run.

    Those in the workdir stay what the figures of its finished run were made of, so another step,
    other data and other settings have each a folder of their own.
    """
    best = checkpoint.find(workdir, None, task.best_metric).rpartition("/")[2]
    config, artifacts = read_config(workdir) or ({}, {})
    saved, now = artifacts.get("held_out"), task.artifacts().get("held_out", {})
    if saved is None:  # by an earlier version
        saved, now = ({k: c.get("data", {}).get(k, "") for k in ("validation", "test")}
                      for c in (config, task.config.to_dict()))  # fmt: skip
    before, after = fields.flat(config), fields.flat(task.config.to_dict())
    if "unanswerable" in artifacts:  # 'auto' in the config of the run
        before["data.unanswerable"] = "yes" if artifacts["unanswerable"] else "no"
    changed = {
        key: after[key]
        for key in sorted(before.keys() & after.keys())
        if before[key] != after[key]
        # Another metric has another best checkpoint.
        and (key == "train.metric" or not any(fnmatch(key, kind) for kind in _SAME_PREDICTIONS))
    }
    if saved != now:
        changed["held_out"] = now
    if str(step) == best and not changed:
        return workdir, {}
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
    return f"{workdir}/evaluate-step-{step}{f'-{digest}' if changed else ''}", changed


def finish(task: Task, workdir: str, params: Any, results: Results) -> str:
    """The task's end, on process 0 alone, which therefore needs all of the parameters."""
    if jax.process_count() > 1:
        params = multihost_utils.process_allgather(params, tiled=True)
    return on_first_process(lambda: task.finish(workdir, params, results)) or ""


def flat(results: Results) -> dict[str, float]:
    """Figures as 'SPLIT/NAME'."""
    return {
        f"{split}/{name}": v for split, figures in results.items() for name, v in figures.items()
    }


def unflat(metrics: Mapping[str, float]) -> Results:
    """The inverse of `flat`."""
    results: Results = {}
    for name, value in metrics.items():
        split, _, figure = name.partition("/")
        results.setdefault(split, {})[figure] = value
    return results
