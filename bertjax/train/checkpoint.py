"""Checkpoints of a run: saved while training goes on, verified before they are believed.

The only file that knows Orbax. A checkpoint is a folder `checkpoints/STEP` that Orbax writes
under a temporary name and commits at once when it is whole. Orbax does not notice flipped bits, so
`manifest.json`, with size and SHA-256 of every file, is written into the folder before the commit
and checked before anything is restored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bertjax.errors import UserError
from bertjax.train import manifest as manifests
from bertjax.train.manifest import Damaged, Manifest, verify
from bertjax.train.workdir import from_first_process

FOLDER = "checkpoints"
_TEMPORARY = re.compile(r"\d+\.orbax-checkpoint-tmp")  # what Orbax calls a save under way
MANIFEST = manifests.NAME

# Orbax logs tracebacks of errors that it raises in the caller afterwards.
logging.getLogger("absl").addFilter(
    lambda record: not (record.exc_info and "orbax" in record.pathname)
)


class _Handler(ocp.PyTreeCheckpointHandler):
    """Orbax's handler of trees, which adds the manifest when all files are there."""

    unfinished: Manifest | None = None

    def finalize(self, directory: epath.Path) -> None:
        super().finalize(directory)
        if self.unfinished is not None:
            files = {
                name: manifests.file_digest(directory / name)
                for name in manifests.files_below(directory)
            }
            dataclasses.replace(self.unfinished, files=files).write(directory)


@ocp.args.register_with_handler(_Handler, for_save=True)
@dataclasses.dataclass
class _Save(ocp.args.PyTreeSave):
    pass


@ocp.args.register_with_handler(_Handler, for_restore=True)
@dataclasses.dataclass
class _Restore(ocp.args.PyTreeRestore):
    pass


def _part(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _named(tree: Any) -> dict[str, Any]:
    """Leaves of any pytree by name: 'params/bert/...', 'opt_state/0/mu/...', 'step'."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_part(key) for key in path): leaf for path, leaf in leaves}


def _nested(named: Mapping[str, Any]) -> dict[str, Any]:
    """Plain nested dicts from names: what is stored, whatever classes the state is made of."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def _check_names(folder: epath.Path, manifest: Manifest, wanted: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that lacks a wanted array or has it in another shape, with the names."""

    def some(names: list[str]) -> str:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return ", ".join(names[:5]) + more

    missing = sorted(set(wanted) - set(manifest.arrays))
    if missing:
        raise UserError(f"checkpoint {folder} has no {some(missing)}, which this model needs")
    shapes = [
        f"{name} is {list(manifest.arrays[name][1])} there and {list(leaf.shape)} here"
        for name, leaf in sorted(wanted.items())
        if manifest.arrays[name][1] != tuple(leaf.shape)
    ]
    if shapes:
        raise UserError(f"checkpoint {folder} does not fit: {some(shapes)}")


def _restore(folder: epath.Path, manifest: Manifest, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays named in `wanted` (ShapeDtypeStructs), placed by their shardings, else on host."""
    _check_names(folder, manifest, wanted)

    def args(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
        if getattr(leaf, "sharding", None) is None:
            return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
        return ocp.ArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )

    abstract = _nested(wanted)
    with ocp.Checkpointer(_Handler()) as checkpointer:
        tree = checkpointer.restore(
            folder,
            args=_Restore(
                item=abstract, restore_args=jax.tree.map(args, abstract), partial_restore=True
            ),
        )
    return _named(tree)


def root(path: str | os.PathLike[str]) -> epath.Path:
    """An absolute path, which Orbax asks for; a remote one (gs://...) as it is."""
    text = os.fspath(path)
    return epath.Path(text if "://" in text else os.path.abspath(text))


def committed_steps(root: epath.Path) -> list[int]:
    """Steps of the committed checkpoints in a `checkpoints` folder, rising."""
    if not root.is_dir():
        return []
    return sorted(
        int(path.name)
        for path in root.iterdir()
        if path.name.isdigit() and ("://" not in str(path) or (path / manifests.COMMITTED).exists())
    )


def _best(metrics: Mapping[int, Mapping[str, float]], best: tuple[str, bool]) -> int | None:
    """The step with the best figure, the earlier one of equals; None where there is no figure."""
    name, larger = best
    scored = {s: m[name] * (1 if larger else -1) for s, m in metrics.items() if name in m}
    scored = {step: score for step, score in scored.items() if not np.isnan(score)}
    return max(scored, key=lambda step: (scored[step], -step), default=None)


class Checkpoints:
    """The checkpoints of one workdir. Every process of a run makes one and calls it alike.

    Kept are the newest `keep`, every one whose step is a multiple of `keep_every` (0: none) and
    the best by `best` ('SPLIT/NAME', larger is better), so never less than the newest good one.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int = 0,
        best: tuple[str, bool] | None = None,
    ) -> None:
        if keep < 1:
            raise UserError(f"checkpoint.keep is {keep}: at least 1 must be kept")
        self.root = root(workdir) / FOLDER
        self.keep, self.keep_every, self.best = keep, keep_every, best
        self._handler = _Handler()
        # Folders made in the background leave threads that wait for minutes where that fails.
        self._checkpointer = ocp.AsyncCheckpointer(
            self._handler,
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        self._metrics: dict[int, dict[str, float]] = {}

    def restore(
        self, abstract_state: Any, say: Callable[[str], None]
    ) -> tuple[Any, Manifest] | None:
        """The newest good checkpoint, laid out as `abstract_state`'s shardings say, or None.

        Works for any number of devices and processes. Unfinished folders are removed, damaged ones
        set aside as STEP.damaged, both told to `say`. Raises `UserError` when there are
        checkpoints and none is good, or when the good one does not fit the state.
        """
        # Every process knows the same figures: the best checkpoint steers the run.
        good = from_first_process(lambda: self._choose(say))
        self._metrics = {int(step): figures for step, figures in good.items()}
        if not good:
            return None
        folder = self.root / str(max(self._metrics))
        manifest = Manifest.read(folder)
        named = _restore(folder, manifest, _named(abstract_state))
        paths, treedef = jax.tree_util.tree_flatten_with_path(abstract_state)
        leaves = [named["/".join(_part(key) for key in path)] for path, _ in paths]
        return jax.tree.unflatten(treedef, leaves), manifest

    def _choose(self, say: Callable[[str], None]) -> dict[int, dict[str, float]]:
        """Tidy the folder; the figures of its checkpoints by step, of which the newest is good."""
        steps = committed_steps(self.root)
        for path in self.root.iterdir() if self.root.is_dir() else ():
            # Anything else, such as a copy under a name of its own, is its owner's.
            uncommitted = path.name.isdigit() and int(path.name) not in steps
            if uncommitted or _TEMPORARY.match(path.name):
                say(f"removing {path}: its saving was interrupted")
                path.rmtree()
        damaged: list[Damaged] = []
        while steps:
            try:
                verify(self.root / str(steps[-1]))
                break
            except Damaged as error:
                damaged.append(error)
                steps.pop()
        if damaged and not steps:
            raise UserError(
                f"no good checkpoint is left in {self.root} ({damaged[0]}); to begin anew, take "
                "another workdir"
            )
        for error in damaged:
            say(f"{error}; going on from the checkpoint before it, step {steps[-1]}")
        for path in list(self.root.iterdir()) if damaged else ():
            if path.name.isdigit() and int(path.name) > steps[-1]:
                aside = self.root / f"{path.name}.damaged"
                if aside.exists():
                    aside.rmtree()
                path.rename(aside)
        return {step: _metrics_or_none(self.root / str(step)) for step in steps}

    def save(self, step: int, state: Any, metrics: Mapping[str, float], *, wait: bool) -> None:
        """Begin to save; training may go on (and donate the state) as soon as this returns.

        Waits for the save before it. `wait` returns when the checkpoint is committed. Raises
        `UserError` with the path when this save or the one before it has failed.
        """
        self.wait()
        self._prune()
        named = _named(state)
        self._handler.unfinished = Manifest(
            step=step,
            metrics=dict(metrics),
            arrays={k: (str(v.dtype), tuple(v.shape)) for k, v in named.items()},
            files={},
        )
        with self._blame():
            self.root.mkdir(parents=True, exist_ok=True)
            self._checkpointer.save(self.root / str(step), args=_Save(item=_nested(named)))
        self._metrics[step] = dict(metrics)
        if wait:
            self.wait()

    def add_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the figures of an evaluation to the checkpoint that was saved at its step before."""
        self.wait()
        self._metrics[step] = dict(metrics)
        if jax.process_index() == 0:
            folder = self.root / str(step)
            with self._blame():
                dataclasses.replace(Manifest.read(folder), metrics=dict(metrics)).write(folder)

    def improves(self, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation beats every kept checkpoint."""
        if self.best is None:
            return False
        return _best({**self._metrics, _NEW: metrics}, self.best) == _NEW

    def best_step(self) -> int | None:
        """The kept checkpoint with the best figure."""
        return _best(self._metrics, self.best) if self.best else None

    def check(self) -> None:
        """Raise `UserError` if the save in the background has failed."""
        with self._blame():
            self._checkpointer.check_for_errors()

    def wait(self) -> None:
        """Wait until the save in the background is committed."""
        with self._blame():
            self._checkpointer.wait_until_finished()

    def close(self) -> None:
        """Wait, then remove what need not be kept."""
        self.wait()
        self._prune()
        with self._blame():
            self._checkpointer.close()

    def _blame(self) -> _Blame:
        return _Blame(self.root)

    def _prune(self) -> None:
        steps = sorted(self._metrics)
        kept = set(steps[-self.keep :]) | {self.best_step()}
        if self.keep_every:
            kept |= {step for step in steps if step % self.keep_every == 0}
        for step in set(steps) - kept:
            if jax.process_index() == 0:
                with self._blame():
                    (self.root / str(step)).rmtree()
            del self._metrics[step]


_NEW = 1 << 62  # a step later than any


def _metrics_or_none(folder: epath.Path) -> dict[str, float]:
    try:
        return Manifest.read(folder).metrics
    except Damaged:
        return {}


class _Blame:
    """Turns whatever goes wrong while saving into one sentence that names the folder."""

    def __init__(self, root: epath.Path) -> None:
        self.root = root

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            reason = " ".join(str(error).split()) or type(error).__name__
            if len(reason) > 300:  # the cause is said last
                reason = f"{reason[:100]} ... {reason[-200:]}"
            raise UserError(
                f"saving a checkpoint in {self.root} failed: {reason}; the checkpoints before it "
                "are untouched, free space or rights and run the same command again"
            ) from error


def find(path: str | os.PathLike[str], step: int | None, best: tuple[str, bool] | None) -> str:
    """The folder of one checkpoint, from a workdir, its `checkpoints` or one step's folder.

    `step` chooses; without it the best by `best`, else the newest. Raises `Damaged` where one has
    to be chosen and a manifest cannot be read: its checkpoint may be the best.
    """
    parent = root(path)
    if (parent / MANIFEST).exists():
        if step is not None and str(step) != parent.name:
            raise UserError(f"{parent} is the checkpoint of one step, not of step {step}")
        return str(parent)
    if (parent / FOLDER).is_dir():
        parent = parent / FOLDER
    steps = committed_steps(parent)
    if not steps:
        raise UserError(f"{path} holds no checkpoint (a workdir or one step's folder is needed)")
    if step is None:
        metrics = {s: Manifest.read(parent / str(s)).metrics for s in steps} if best else {}
        chosen = _best(metrics, best) if best else None
        step = steps[-1] if chosen is None else chosen
    if step not in steps:
        raise UserError(f"{parent} has no step {step}; it has {', '.join(map(str, steps))}")
    return str(parent / str(step))


def load_arrays(folder: epath.Path, part: str = "") -> tuple[dict[str, np.ndarray], Manifest]:
    """All arrays of one step's folder by name ('params/...', 'opt_state/...', 'step'), verified;
    `part` takes those whose names begin so. Raises `Damaged`."""
    manifest = verify(folder)
    wanted = {
        name: jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype))
        for name, (dtype, shape) in manifest.arrays.items()
        if name.startswith(part)
    }
    return _restore(folder, manifest, wanted), manifest


def load_params(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    best: tuple[str, bool] | None = None,
    abstract: Any = None,
) -> tuple[Any, Manifest]:
    """Parameters alone, without the optimizer's state, and the manifest of their checkpoint.

    Args:
      path: a workdir, its `checkpoints` or one step's folder.
      step: which step; None takes the best by `best` ('SPLIT/NAME', larger is better), else the
        newest.
      abstract: the parameters wanted, as ShapeDtypeStructs with shardings or without (then numpy
        arrays); None loads all of them as nested dicts of numpy arrays.

    Raises:
      Damaged: a file differs from what was saved.
      UserError: no checkpoint there, or names missing or shapes different, with the names.
    """
    folder = epath.Path(find(path, step, best))
    if abstract is None:
        arrays, manifest = load_arrays(folder, "params/")
        return _nested(arrays)["params"], manifest
    manifest = verify(folder)
    named = _restore(folder, manifest, _named({"params": abstract}))
    leaves = [named[name] for name in _named({"params": abstract})]
    return jax.tree.unflatten(jax.tree.structure(abstract), leaves), manifest
