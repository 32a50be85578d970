"""The device mesh, and the way of a host's rows onto it.

Three axes: `data` copies the parameters and splits the rows, `fsdp` splits both, `tensor` splits
the work inside a layer. Rows go over data and fsdp together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertjax.errors import UserError

AXES = ("data", "fsdp", "tensor")
ROW_AXES = ("data", "fsdp")


def make_mesh(
    data: int, fsdp: int, tensor: int, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """A mesh of exactly `devices` (all of JAX's by default); one size may be -1, what is left.

    Raises UserError where the product is not the number of devices (none is ever left idle), or
    where `tensor` would split one row's work over hosts that read different rows.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = _fill(dict(zip(AXES, (data, fsdp, tensor), strict=True)), len(devices))
    shape = tuple(sizes.values())
    on_one_host = len(devices) // len({d.process_index for d in devices})
    if on_one_host < len(devices) and on_one_host % sizes["tensor"]:
        raise UserError(
            f"mesh.tensor is {sizes['tensor']}, but a process has {on_one_host} devices: choose a "
            "mesh.tensor that divides them, so that no row is split between processes."
        )
    return Mesh(_arrange(devices, shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _fill(sizes: dict[str, int], count: int) -> dict[str, int]:
    """The sizes with -1 replaced; their product is `count`."""
    text = ", ".join(f"mesh.{name}={size}" for name, size in sizes.items())
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UserError(f"{text}: only one mesh axis may be -1; give the others a size.")
    bad = [name for name, size in sizes.items() if size < 1 and size != -1]
    if bad:
        raise UserError(f"{text}: mesh.{bad[0]} must be -1 or at least 1.")
    product = math.prod(size for size in sizes.values() if size != -1)
    if free and count % product:
        raise UserError(
            f"{text}: {product} does not divide the {count} devices there are, so nothing whole "
            f"is left for mesh.{free[0]}; change the other sizes."
        )
    if free:
        return sizes | {free[0]: count // product}
    if product != count:
        raise UserError(
            f"{text}: the sizes make {product} devices, but there are {count}; their product must "
            "be the number of devices (one axis may be -1, what is left)."
        )
    return sizes


def _arrange(devices: list[jax.Device], shape: tuple[int, ...]) -> np.ndarray:
    """Devices in the order of the physical network where that keeps each process's rows together.

    A global batch goes to process i of n as its i-th block of rows, so the mesh, read row by row,
    must meet the processes in order, each once. Where the physical order does not, devices are
    ordered by process, which also keeps `tensor`, the innermost axis, inside a host.
    """
    by_process = sorted(devices, key=lambda d: (d.process_index, d.id))
    try:
        physical = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (NotImplementedError, ValueError, AssertionError):  # no mapping onto this network
        physical = np.array(by_process).reshape(shape)
    owners = [d.process_index for d in physical.flat]
    if owners == sorted(owners):
        return physical
    return np.array(by_process).reshape(shape)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows (the first axis) over data and fsdp; every other axis whole."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """A copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def row_shards(mesh: Mesh) -> int:
    """Into how many pieces the rows of a batch are cut."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def to_global(mesh: Mesh, local_batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Global arrays from this process's block of rows of each, [B / processes, ...]."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.make_array_from_process_local_data(sharding, np.asarray(rows))
        for name, rows in local_batch.items()
    }


def check_batch(
    global_batch: int,
    mesh: Mesh,
    processes: int = 1,
    accumulate: int = 1,
    name: str = "data.batch_size",
) -> None:
    """Raise UserError unless every device gets the same number of rows in each microbatch; `name`
    is the config key of the batch."""
    for count, what in (
        (accumulate, "train.accumulate"),
        (processes, "the number of processes"),
        (row_shards(mesh), "mesh.data * mesh.fsdp"),
        (row_shards(mesh) * accumulate, "mesh.data * mesh.fsdp * train.accumulate"),
    ):
        if global_batch < 1 or global_batch % count:
            raise UserError(
                f"{name}: a global batch of {global_batch} rows is not a multiple of {what} = "
                f"{count}: take {max(1, round(global_batch / count)) * count} rows, or change the "
                "other."
            )
