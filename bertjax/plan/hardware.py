"""Accelerators by name: peak figures as published, and compile-only devices for each.

A topology is written KIND:SHAPE, as in v5e:4x4, v5p:2x2x2 or h100:2x8 (hosts x GPUs). No device
is needed: libtpu and the CUDA plugin compile from a description.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Mapping

import jax
from jax.experimental import topologies

from bertjax.errors import UserError

GIB = 1024**3


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Peak figures of one device, in FLOP/s, bytes and bytes/s, one direction of its links."""

    name: str
    bfloat16_flops: float
    float32_flops: float  # of matrix products that keep float32 precision
    memory_bytes: int  # that one program may use
    memory_bandwidth: float
    link_bandwidth: float  # to other devices of the slice, or of the host, all links together
    network_bandwidth: float  # a device's share of what leaves the host; TPU slices: their links
    source: str
    dimensions: int = 2  # numbers in the shape of a topology


def _tpu(name, tflops, gib, memory, link, source, dimensions=2) -> Hardware:
    # 'highest' precision takes six bfloat16 passes. memory: what the compiler grants a program.
    return Hardware(
        f"TPU {name}", tflops * 1e12, tflops * 1e12 / 6, int(gib * GIB), memory * 1e9, link * 1e9,
        link * 1e9, source, dimensions,
    )  # fmt: skip


def _gpu(name, tflops, tflops32, gib, memory, link, network, source) -> Hardware:
    # JAX takes three quarters of a GPU's memory unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.
    return Hardware(
        f"NVIDIA {name}", tflops * 1e12, tflops32 * 1e12, int(0.75 * gib * GIB), memory * 1e9,
        link * 1e9, network * 1e9, source,
    )  # fmt: skip


KINDS: Mapping[str, Hardware] = {
    "v4": _tpu("v4", 275, 30.75, 1200, 300, "docs.cloud.google.com/tpu/docs/v4; links: Jouppi et "
               "al. 2023, arXiv:2304.01433, table 4", 3),
    "v5e": _tpu("v5e", 197, 15.75, 819, 200, "docs.cloud.google.com/tpu/docs/v5e"),
    "v5p": _tpu("v5p", 459, 95.74, 2765, 600, "docs.cloud.google.com/tpu/docs/v5p", 3),
    "v6e": _tpu("v6e", 918, 31.25, 1638, 400, "docs.cloud.google.com/tpu/docs/v6e"),
    "h100": _gpu("H100 80GB HBM3", 989, 67, 79.1, 3352, 450, 50, "NVIDIA H100 data sheet (SXM, "
                 "dense); network: DGX H100, 8 x 400 Gbit/s"),
    "a100": _gpu("A100-SXM4-80GB", 312, 19.5, 79.3, 2039, 300, 25, "NVIDIA A100 data sheet (SXM, "
                 "dense); network: DGX A100, 8 x 200 Gbit/s"),
}  # fmt: skip
EXAMPLES = "v4:2x2x1, v5e:2x4, v5e:16x16, v5p:2x2x2, v6e:4x4, a100:1x8, h100:2x8 (hosts x GPUs)"

# libtpu asks these of the machine's metadata server otherwise.
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
# The figures of each GPU that XLA compiles for: name -> compute capability, cores, shared memory
# of a core, largest of a block, level-2 cache, clock in GHz. CUDA programming guide, appendix on
# compute capabilities, and the data sheets.
GPU_TARGETS = {
    "h100": ((9, 0), 132, 233472, 232448, 52428800, 1.98),
    "a100": ((8, 0), 108, 167936, 166912, 41943040, 1.41),
}
GPU_LIMITS = """
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  device_address_bits: 64
  device_vendor: "NVIDIA Corporation"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
"""


def parse(topology: str) -> tuple[str, tuple[int, ...]]:
    """'v5e:4x4' -> ('v5e', (4, 4)). UserError, naming what there is, for anything else."""
    kind, _, text = topology.lower().partition(":")
    if kind not in KINDS:
        raise UserError(
            f"--topology={topology!r} is not known: its kind is one of {', '.join(KINDS)}, "
            f"as in {EXAMPLES}"
        )
    parts = text.split("x")
    dimensions = KINDS[kind].dimensions
    if len(parts) != dimensions or not all(p.isdecimal() and int(p) > 0 for p in parts):
        shape = "x".join("ABC"[:dimensions])
        raise UserError(f"--topology={topology}: {kind} takes a shape {shape}, as in {EXAMPLES}")
    return kind, tuple(map(int, parts))


def devices(topology: str) -> list[jax.Device]:
    """Compile-only devices. UserError: an unknown or impossible topology, or no compiler for it."""
    kind, shape = parse(topology)
    package = "jax_cuda13_plugin" if kind in GPU_TARGETS else "libtpu"
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"--topology={topology} needs the compiler in {package}: install the extra with "
            "pip install 'bertjax[plan]'"
        )
    try:
        if kind in GPU_TARGETS:
            return _gpus(kind, *shape)
        return _tpus(kind, shape)
    except Exception as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(
            f"--topology={topology} is no topology that its compiler knows ({reason}); known "
            f"forms are {EXAMPLES}"
        ) from error


def _tpus(kind: str, shape: tuple[int, ...]) -> list[jax.Device]:
    for name, value in TPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    name = f"{kind}:{'x'.join(map(str, shape))}"
    host = tuple(min(size, bound) for size, bound in zip((*shape, 1)[:3], (2, 2, 1), strict=True))
    options: dict = {"chips_per_host_bounds": host}
    if kind == "v4":
        options |= {"chip_config_name": "megacore", "num_slices": 1, "wrap": (False,) * 3}
    found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    if len(found) != math.prod(shape):
        raise ValueError(f"it has {len(found)} devices")
    return list(found)


def _gpus(kind: str, hosts: int, gpus: int) -> list[jax.Device]:
    found = topologies.get_topology_desc(
        platform="cuda",
        topology_name=f"{hosts}x{gpus}x1",
        topology=f"1x{hosts}x{gpus}",
        target_config=_gpu_target(kind),
    ).devices
    return list(found)


def _gpu_target(kind: str) -> str:
    """A GpuTargetConfigProto of XLA in text form."""
    (major, minor), cores, shared, shared_block, cache, clock = GPU_TARGETS[kind]
    peak = KINDS[kind]
    name = peak.name
    feature = "feature_extension: ACCELERATED_FEATURES" if major == 9 else ""
    return f"""
gpu_device_info {{
  name: "{name}"
  model_str: "{name}"
  cuda_compute_capability {{ major: {major} minor: {minor} {feature} }}
  core_count: {cores}
  shared_memory_per_core: {shared}
  shared_memory_per_block_optin: {shared_block}
  l2_cache_size: {cache}
  clock_rate_ghz: {clock}
  memory_bandwidth: {int(peak.memory_bandwidth)}
  device_memory_size: {int(peak.memory_bytes / 0.75)}
{GPU_LIMITS.format(fpus=128 if major == 9 else 64)}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""
