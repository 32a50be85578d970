"""Meshes: exactly the devices there are, and each row where its process is."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.parallel.mesh import AXES, batch_sharding, check_batch, make_mesh, to_global


@dataclasses.dataclass(frozen=True)
class Device:
    """As much of a device of another machine as its place in a mesh needs."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


def test_sizes_and_types():
    mesh = make_mesh(2, 2, 2)
    assert mesh.axis_names == AXES and mesh.devices.shape == (2, 2, 2)
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)), ((2, 4, -1), (2, 4, 1))],
)
def test_minus_one_is_what_is_left(sizes, expected):
    assert make_mesh(*sizes).devices.shape == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4, 1, 1), r"make 4 devices, but there are 8"),  # four would be idle
        ((4, 4, 1), r"make 16 devices, but there are 8"),
        ((-1, 3, 1), r"3 does not divide the 8 devices"),
        ((-1, -1, 1), r"only one mesh axis"),
        ((8, 0, 1), r"mesh\.fsdp must be -1 or at least 1"),
        ((8, 1, -2), r"mesh\.tensor must be"),
    ],
)
def test_bad_sizes(sizes, message):
    with pytest.raises(UserError, match=message):
        make_mesh(*sizes)


def test_processes_follow_in_order_and_tensor_stays_inside_one():
    # Ids that alternate between two hosts, given in a mixed order.
    devices = [Device(id=i, process_index=i % 2) for i in (5, 0, 3, 6, 1, 4, 7, 2)]
    mesh = make_mesh(2, 2, 2, devices=devices)
    assert [d.process_index for d in mesh.devices.flat] == [0] * 4 + [1] * 4
    with pytest.raises(UserError, match=r"mesh\.tensor is 8, but a process has 4 devices"):
        make_mesh(1, 1, 8, devices=devices)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_rows_lie_in_blocks_over_data_and_fsdp(sizes):
    mesh = make_mesh(*sizes)
    rows = np.arange(32).reshape(16, 2)
    array = to_global(mesh, {"x": rows})["x"]
    assert array.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(array, rows)
    blocks = np.split(rows, sizes[0] * sizes[1])
    by_device = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    for place, device in enumerate(mesh.devices.flat):
        np.testing.assert_array_equal(by_device[device], blocks[place // sizes[2]])


def test_batches_must_divide():
    mesh = make_mesh(4, 1, 2)
    check_batch(32, mesh, processes=2, accumulate=8)
    with pytest.raises(UserError, match=r"batch of 30 .* mesh\.fsdp = 4"):
        check_batch(30, mesh)
    with pytest.raises(UserError, match=r"train\.accumulate = 3"):
        check_batch(32, mesh, accumulate=3)
    with pytest.raises(UserError, match=r"16 rows .* train\.accumulate = 32: take 32 rows"):
        check_batch(16, mesh, accumulate=8)
    with pytest.raises(UserError, match="batch of 0"):
        check_batch(0, mesh)
