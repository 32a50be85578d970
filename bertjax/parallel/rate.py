"""What the devices of a run can do, measured: the yardstick of a run's useful FLOP/s."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

# A side of the square matrices: large enough to be fast, small enough to take no time.
_SIDE = {"cpu": 1024}
_SIDE_OF_ACCELERATORS = 8192
_TRIES = 5


def matmul_flops_per_second(dtype: str) -> float:
    """FLOP/s that a large matrix product of `dtype` reaches on all devices together.

    Measured on one device, the best of five; virtual CPU devices share one host's cores.
    """
    device = jax.local_devices()[0]
    parts = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return parts * _one_device(device, dtype)


@functools.cache
def _one_device(device: jax.Device, dtype: str) -> float:
    side = _SIDE.get(device.platform, _SIDE_OF_ACCELERATORS)
    ones = jax.device_put(np.ones((side, side), jnp.dtype(dtype)), device)
    precision = jax.lax.Precision.HIGHEST if dtype == "float32" else None
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
    product(ones).block_until_ready()
    seconds = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        product(ones).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds)
