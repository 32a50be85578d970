"""The true training step of a config, compiled for devices that are not there."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import config_dict

from bertjax import config as configs
from bertjax import interop, start, tasks
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.parallel import mesh as meshes
from bertjax.parallel import rules
from bertjax.plan.hlo import Collective, Program
from bertjax.tasks import pretrain
from bertjax.tasks.task import Task
from bertjax.train import step as steps
from bertjax.train.optimizer import make_optimizer, make_schedule

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """What the compiler says of one step; bytes are of one device.

    peak_bytes: arguments, results that do not take their place, temporaries and code together,
    or what the compiler asked for where it refused (`refused`: collectives and memory_traffic are
    not known then).
    """

    mesh: Mesh
    hosts: int
    parameter_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    compile_seconds: float
    refused: bool
    memory_traffic: int | None
    collectives: list[Collective]


def mesh_of(config: config_dict.ConfigDict, devices: list[jax.Device]) -> Mesh:
    """The mesh that a run on `devices` has; UserError as at the start of that run."""
    mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    hosts = len({device.process_index for device in devices})
    meshes.check_batch(config.data.batch_size, mesh, hosts, config.train.accumulate)
    rules.check_heads(config.model.num_heads, mesh)
    return mesh


def settle(
    command: configs.CommandLine,
) -> tuple[config_dict.ConfigDict, Tokenizer | None]:
    """The resolved config, and the vocabulary of the checkpoint that a fine-tuning starts from.

    That checkpoint decides the sizes. One to pretrain from is not read: it need not be there.

    Raises:
        UserError: a value is wrong, or the command line asks for other sizes than init_from has.
    """
    config = command.config
    if not config.init_from:
        return configs.resolve(config), None
    if config.task == "pretrain":
        configs.stderr("init_from is not read: the sizes are those of the config")
        return configs.resolve(config), None
    published = interop.read_checkpoint(config.init_from)
    config = start.with_sizes(config, published.config, command.explicit)
    return configs.resolve(config), published.tokenizer


def make_task(config: config_dict.ConfigDict, tokenizer: Tokenizer | None, folder: str) -> Task:
    """The task of what `settle` gives: a pretraining one without its corpus, others with their
    data, for which `folder` may be written to. Fills in model.vocab_size."""
    if config.task == "pretrain":
        config.model.vocab_size = vocab_size(config)
        return pretrain.without_data(config)
    if not (config.data.train or config.smoke):
        raise UserError("config.data.train is empty, so there is no training step to plan")
    tasks.prepare_data(config, folder, tokenizer)
    return tasks.make_task(config, folder, tokenizer)


def vocab_size(config: config_dict.ConfigDict) -> int:
    """Tokens of the vocabulary of a pretraining whose corpus is not prepared."""
    if config.model.vocab_size:
        return config.model.vocab_size
    kind, _, number = config.data.vocab.partition(":")
    if kind == "train" and number.isdecimal():
        size, origin = int(number), f"by config.data.vocab={config.data.vocab}"
    elif config.data.vocab:
        size = Tokenizer.load(config.data.vocab).vocab_size
        origin = f"as in {config.data.vocab}"
    else:
        size, origin = 30522, "as in the published models, since config.model.vocab_size is 0"
    configs.stderr(f"vocabulary: {size} tokens, {origin}")
    return size


def compile_step(task: Task, mesh: Mesh) -> StepProgram:
    """Lower and compile what bertjax.train.loop runs; an answer even where memory is exceeded."""
    config = task.config
    schedule = make_schedule(config.optimizer, max(1, task.train_steps))
    params = steps.abstract_params(task, mesh)
    optimizer = make_optimizer(config.optimizer, schedule, params)
    state = steps.abstract_state(task, optimizer, mesh)
    train_step = steps.make_train_step(
        task, optimizer, mesh, schedule=schedule, seed=config.seed,
        accumulate=config.train.accumulate,
    )  # fmt: skip
    began = time.monotonic()
    lowered = train_step.lower(state, steps.abstract_batch(task, mesh))
    hosts = [device.process_index for device in mesh.devices.flat]
    traffic, collectives, refused = None, [], False
    try:
        compiled = lowered.compile()
        peak = _peak_bytes(compiled.memory_analysis())
    except jax.errors.JaxRuntimeError as error:
        peak, refused = _wanted_bytes(str(error)), True
    seconds = time.monotonic() - began
    if not refused:
        program = Program(compiled.as_text())
        traffic, collectives = program.memory_bytes(), program.collectives(hosts)
    return StepProgram(
        mesh, len(set(hosts)), _device_bytes(params), _device_bytes(state.opt_state), peak,
        seconds, refused, traffic, collectives,
    )  # fmt: skip


def _peak_bytes(memory: Any) -> int:
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )


def _wanted_bytes(message: str) -> int:
    """The bytes that a program refused with RESOURCE_EXHAUSTED would have taken."""
    if "RESOURCE_EXHAUSTED" not in message:
        raise UserError(f"the compiler failed: {message.splitlines()[0][:300]}")
    for pattern in (r"Used ([\d.]+)([KMGT]?)i?B? of", r"\(([\d.]+)([KMGT]?)i?B?\) exceeds"):
        if match := re.search(pattern, message):
            return int(float(match.group(1)) * _UNITS[match.group(2)])
    raise UserError(f"the compiler ran out of memory: {message.splitlines()[0][:300]}")


def _device_bytes(tree: Any) -> int:
    """Bytes that one device holds of a tree of ShapeDtypeStructs with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
