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

from bertjax.errors import UserError
from bertjax.parallel import mesh as meshes
from bertjax.parallel import rules
from bertjax.plan.hlo import Collective, Program
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


def compile_step(config: config_dict.ConfigDict, task: Task, mesh: Mesh) -> StepProgram:
    """Lower and compile what bertjax.train.loop runs; an answer even where memory is exceeded."""
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
