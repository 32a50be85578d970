"""From a command line to a task that can run: what the training front doors share.

Where the parameters come from, in this order: the workdir's own checkpoint, `init_from`, fresh
ones. With `init_from`, sizes, casing and vocabulary are the checkpoint's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import platform
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epath
from ml_collections import config_dict

from bertjax import cli, interop
from bertjax import config as configs
from bertjax.data.labelled import is_dataset
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.model.heads import BertForPreTraining
from bertjax.parallel import distributed, rules
from bertjax.parallel import mesh as meshes
from bertjax.tasks import TASKS, corpus, make_task, prepare_data
from bertjax.tasks.task import Task
from bertjax.train import checkpoint, evaluation
from bertjax.train import workdir as workdirs


@dataclasses.dataclass(frozen=True)
class Run:
    """What the loop needs. `load_initial` turns abstract parameters into those of init_from."""

    config: config_dict.ConfigDict
    task: Task
    mesh: jax.sharding.Mesh
    load_initial: Callable[[Any], Any] | None
    lock: Any = None  # of the workdir, held as long as the run


def environment(config: config_dict.ConfigDict) -> None:
    """Settings that must be made before JAX finds its devices."""
    cli.keep_memory()
    if config.train.deterministic:
        distributed.set_deterministic(configs.stderr)
    compile_cache(config.train.compile_cache)


def compile_cache(folder: str) -> None:
    """Keep compiled programs in `folder` ('' = ~/.cache/bertjax, 'none' = nowhere).

    JAX's key covers program, options, devices and versions, but not the features of the host's
    CPU, for which XLA compiles too: each kind of CPU gets a folder of its own, since a home is
    often shared. Where JAX has a cache already (JAX_COMPILATION_CACHE_DIR), '' keeps that.
    """
    if folder == "none":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not folder and jax.config.jax_compilation_cache_dir:
        return
    root = epath.Path(folder or "~/.cache/bertjax").expanduser()
    path = root / f"compiled-{jax.__version__}-{_cpu_fingerprint()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        configs.stderr(f"no compilation cache: {path} cannot be made ({error})")
        return
    jax.config.update("jax_compilation_cache_dir", str(path))


def _cpu_fingerprint() -> str:
    """The same for CPUs of the same features."""
    about = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        lines = [line for line in file if line.startswith(("flags", "Features", "model name"))]
        about += "".join(sorted(set(lines)))
    return hashlib.sha256(about.encode()).hexdigest()[:12]


def connect(command: configs.CommandLine, workdir: str) -> None:
    """Find the other processes of the run, which must all have been started alike."""
    flags = {field.key: command.flags[field.key] for field in configs.PROCESSES}
    alike = {"--workdir": workdir} | {f"--{key}": command.flags[key] for key in ("mode", "step")}
    config = command.config.to_dict() | alike
    distributed.start(**flags, config=config, say=configs.stderr)


def prepare(command: configs.CommandLine, workdir: str) -> Run:
    """Resolve the config, check it, and build its task.

    Raises:
        UserError: whatever is wrong with config, checkpoint, corpus or vocabulary.
    """
    if command.flags["mode"] == "evaluate":
        return _evaluation(command, workdir)
    config = command.config
    published, tokenizer = None, None
    if config.init_from:
        resumed = _resumed(config, workdir)
        if resumed is not None:  # init_from was read when this run began
            sizes, tokenizer = resumed, Tokenizer.load(workdir)
        else:
            published = interop.read_checkpoint(config.init_from)
            for note in published.notes:
                configs.stderr(f"{config.init_from}: {note}")
            sizes, tokenizer = published.config, published.tokenizer
        config = with_sizes(config, sizes, command.explicit)
        if tokenizer is not None:
            _check_casing(config, tokenizer, command.explicit)
            if "data.vocab" in command.explicit and resumed is None:
                corpus.check_vocabulary(config, config.init_from, tokenizer.vocab)
    config = configs.resolve(config)
    # What a run has begun with, the same command goes on with.
    if config.task == "pretrain" and not _begun(workdir) and corpus.is_prepared(config.data.source):
        corpus.check_asked(config, command.explicit)
    mesh = _mesh(config, train=True)
    lock = workdirs.on_first_process(lambda: workdirs.lock(workdir))
    workdirs.on_first_process(lambda: prepare_data(config, workdir, tokenizer))
    task = make_task(config, workdir, tokenizer, _known_labels(config, workdir, published))
    load = None if published is None else _loader(task, published)
    return Run(config, task, mesh, load, lock)


def _evaluation(command: configs.CommandLine, workdir: str) -> Run:
    """The run of a workdir as it was, but for what the command line says itself."""
    saved = workdirs.read_config(workdir)
    if saved is None:
        seeds = sorted(str(path.parent) for path in epath.Path(workdir).glob("seed-*/config.json"))
        hint = f", such as {seeds[0]}" if seeds else ""
        raise UserError(f"there is no run in {workdir}: give the --workdir of one{hint}")
    config = configs.default_config()
    known = configs.flat(saved[0])
    configs.update(config, {key: known[key] for key in configs.BY_KEY if key in known})
    if "unanswerable" in saved[1]:  # older configs do not say
        config.data.unanswerable = "yes" if saved[1]["unanswerable"] else "no"
    for key in command.explicit:
        value, has = configs.get(command.config, key), configs.get(config, key)
        if value != has and key.removeprefix("model.") in configs.SIZE_KEYS:
            raise UserError(
                f"config.{key}={value} was asked for, but the run in {workdir} has {has}"
            )
        if key == "data.source" and value != has and not corpus.is_prepared(value):
            raise UserError(
                f"config.data.source={value}: --mode=evaluate takes a prepared corpus (python -m "
                "bertjax.prepare), or without this key the run's own"
            )
        configs.update(config, {key: value})
    _fit_devices(config, command.explicit)
    _do_without_training_file(config, command.explicit)
    config = configs.resolve(config)
    mesh = _mesh(config, train=False)
    task = make_task(config, workdir, Tokenizer.load(workdir), saved[1].get("labels"))
    return Run(config, task, mesh, None)


def _fit_devices(config: config_dict.ConfigDict, explicit: frozenset[str]) -> None:
    """Take this machine's devices where the saved mesh was for others, and say so; a mesh that the
    command line asks for stays."""
    sizes = {key: config.mesh[key] for key in ("data", "fsdp", "tensor")}
    given, count = math.prod(size for size in sizes.values() if size > 0), jax.device_count()
    fits = count % given == 0 if -1 in sizes.values() else count == given
    if not fits and not any(f"mesh.{key}" in explicit for key in sizes):
        listed = ", ".join(f"mesh.{key}={size}" for key, size in sizes.items())
        configs.stderr(f"{listed} was for other devices: these {count} are taken as mesh.data")
        config.mesh.update({"data": -1, "fsdp": 1, "tensor": 1})


def _do_without_training_file(config: config_dict.ConfigDict, explicit: frozenset[str]) -> None:
    """Leave a training file out that is not there, unless the command line asks for it."""
    train, others = config.data.train, config.data.validation or config.data.test
    if config.task != "pretrain" and train and others and "data.train" not in explicit:
        remote = "://" in train or is_dataset(train)
        if not remote and not epath.Path(train).expanduser().exists():
            configs.stderr(f"{train} is not there, and an evaluation does not need it")
            config.data.train = ""


def _mesh(config: config_dict.ConfigDict, *, train: bool) -> jax.sharding.Mesh:
    """The devices as config.mesh says, checked against the batches, before any data is read."""
    mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    rules.check_heads(config.model.num_heads, mesh)
    evaluation.check_batches(config, mesh, train=train)
    return mesh


def _begun(workdir: str) -> bool:
    """Whether the run of a workdir has a checkpoint."""
    return bool(checkpoint.committed_steps(checkpoint.root(workdir) / checkpoint.FOLDER))


def _resumed(config: config_dict.ConfigDict, workdir: str) -> dict[str, Any] | None:
    """The model's sizes of a run of this init_from that has a checkpoint, else None."""
    if not _begun(workdir):
        return None
    saved = workdirs.read_config(workdir)
    if saved is None or saved[0].get("init_from") != config.init_from:
        return None
    return {key: saved[0]["model"][key] for key in configs.SIZE_KEYS}


def _known_labels(
    config: config_dict.ConfigDict, workdir: str, published: interop.Published | None
) -> tuple[str, ...] | None:
    """The labels of the head that the run starts from or goes on with, None where it has none."""
    if published is not None and config.encoder_only:
        return None
    if published is not None:
        has_head = TASKS[config.task] in published.heads and not published.regression
        return published.labels if has_head else None
    if not _begun(workdir):
        return None
    saved = workdirs.read_config(workdir)
    labels = saved[1].get("labels") if saved else None
    return None if labels is None else tuple(labels)


def with_sizes(
    config: config_dict.ConfigDict, sizes: dict[str, Any], explicit: frozenset[str]
) -> config_dict.ConfigDict:
    """A copy with the checkpoint's sizes; UserError where the command line asks for others."""
    config = config_dict.ConfigDict(config.to_dict())
    for key in configs.SIZE_KEYS:
        asked, has = config.model[key], sizes[key]
        if f"model.{key}" in explicit and asked not in (has, 0):
            raise UserError(
                f"config.model.{key}={asked} was asked for, but {config.init_from} has {has}: "
                "leave it out, or start without init_from"
            )
        config.model[key] = has
    return config


def _check_casing(
    config: config_dict.ConfigDict, tokenizer: Tokenizer, explicit: frozenset[str]
) -> None:
    lower = tokenizer.settings["do_lower_case"]
    if "data.lower_case" in explicit and config.data.lower_case != lower:
        raise UserError(
            f"config.data.lower_case={config.data.lower_case} was asked for, but the vocabulary of "
            f"{config.init_from} was made with {lower}: leave it out"
        )
    config.data.lower_case = lower


def _loader(task: Task, published: interop.Published) -> Callable[[Any], Any]:
    """Abstract parameters -> those of the checkpoint, with fresh ones where it has none."""

    def load(abstract: Any) -> Any:
        params, coverage = interop.initial_params(
            published,
            abstract,
            new_head=task.config.new_head,
            encoder_only=task.config.encoder_only or task.fresh_head,
        )
        configs.stderr(f"{published.source}: {coverage}")
        afresh = task.config.train.reinit_layers
        if not coverage.new and not afresh:
            return params
        shardings = jax.tree.map(lambda x: x.sharding, abstract)
        init = jax.jit(lambda key: nn.meta.unbox(task.init_params(key)), out_shardings=shardings)
        fresh = init(jax.random.key(task.config.seed))
        return _merged(fresh, _reinitialised(params, fresh, afresh) if afresh else params)

    return load


def _reinitialised(params: Any, fresh: Any, layers: int) -> Any:
    """`params` with the pooler and the top `layers` layers of `fresh` (Zhang et al. 2021)."""
    given, new = dict(params["bert"]), fresh["bert"]
    trained = len(jax.tree.leaves(new["encoder"])[0])  # at least `layers`, says the config
    given["encoder"] = jax.tree.map(
        lambda old, top: jnp.concatenate([old[: trained - layers], top[trained - layers :]]),
        given["encoder"],
        new["encoder"],
    )
    configs.stderr(f"afresh: the pooler and the top {layers} layers")
    return params | {"bert": given | {"pooler": new["pooler"]}}


def _merged(fresh: Any, given: Any) -> Any:
    """`fresh` with every leaf that `given` has."""
    if not isinstance(fresh, dict):
        return given
    return {k: _merged(v, given[k]) if k in given else v for k, v in fresh.items()}


def summary(command: configs.CommandLine) -> str:
    """The module tree of the config's encoder and heads, with shapes and counts; no allocation."""
    config = configs.resolve(command.config)
    if config.model.vocab_size == 0:
        config.model.vocab_size = 30522
    model = BertForPreTraining(configs.bert_config(config))
    ids = jax.ShapeDtypeStruct((1, config.data.seq_length), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    padding = (model.config.padded_vocab_size - model.config.vocab_size) * config.model.hidden_size
    lines, counts = [], {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda x: hasattr(x, "names")
    ):
        names = [key.key for key in path]
        shape = leaf.value.shape
        axes = ", ".join(f"{n} {s}" for n, s in zip(leaf.names, shape, strict=True))
        counts[names[0]] = counts.get(names[0], 0) + leaf.value.size
        lines.append(f"{'/'.join(names):58} {leaf.value.size:>13,}  [{axes}]")
    real = counts["bert"] - padding
    lines += [
        "",
        f"encoder and pooler: {real:,} parameters (vocabulary {model.config.vocab_size:,}, padded "
        f"to {model.config.padded_vocab_size:,} rows in memory)",
        f"MLM head: {counts['mlm'] - padding // config.model.hidden_size:,} (its decoder is the "
        f"word embedding); NSP head: {counts['nsp']:,}",
    ]
    return "\n".join(lines)
