"""Several processes as one run: find each other, agree on the config, start JAX together.

jax.distributed waits in silence for a process that never comes and then aborts. So the processes
first meet over a plain socket at the coordinator, who knows after `init_timeout` which of them is
missing and can say so in a sentence.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import xla_bridge  # the only way to ask whether a backend has started

from bertjax.errors import UserError

PORT = 8476  # of the coordinator on TPU VMs, where nobody names one
_MESSAGE_BYTES = 1 << 20
_LINK_SECONDS = 5.0  # a process says hello at once; whoever is silent so long is none of ours
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where process `process` of `processes` finds process 0: `coordinator`, HOST:PORT."""

    coordinator: str
    processes: int
    process: int
    local_devices: tuple[int, ...] | None = None  # None: all that it sees

    def __post_init__(self) -> None:
        _, colon, port = self.coordinator.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"--coordinator={self.coordinator} is not HOST:PORT")
        if not 0 <= self.process < self.processes:
            raise UserError(
                f"--process_id={self.process} does not lie in 0 ... --num_processes - 1 = "
                f"{self.processes - 1}"
            )


def find_layout(
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    environ: Mapping[str, str] = os.environ,
) -> Layout | None:
    """The layout from flags, else from Slurm, GKE or a TPU VM; None for a run of one process."""
    given = (coordinator != "", num_processes > 0, process_id >= 0)
    if all(given):
        return Layout(coordinator, num_processes, process_id) if num_processes > 1 else None
    if any(given):
        raise UserError(
            "--coordinator, --num_processes and --process_id belong together: give all three or "
            "none"
        )
    return _slurm(environ) or _tpu(environ)


def _slurm(environ: Mapping[str, str]) -> Layout | None:
    """srun sets these for every task of a step."""
    if int(environ.get("SLURM_STEP_NUM_TASKS", 1)) < 2 or "SLURM_PROCID" not in environ:
        return None
    job = int(environ.get("SLURM_JOB_ID", 0))
    first = _first_host(environ["SLURM_STEP_NODELIST"])
    # Several tasks of one node that see all its GPUs take one each.
    tasks = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    shared = int(tasks[0] if tasks else 1) > 1 and "," in environ.get("CUDA_VISIBLE_DEVICES", "")
    return Layout(
        f"{first}:{61440 + job % 4096}",
        int(environ["SLURM_STEP_NUM_TASKS"]),
        int(environ["SLURM_PROCID"]),
        (int(environ["SLURM_LOCALID"]),) if shared else None,
    )


def _first_host(nodes: str) -> str:
    """'node[001-004,7],b' -> 'node001'."""
    match = re.match(r"([^,\[]+)(?:\[([^,\-\]]+))?", nodes)
    if match is None:
        raise UserError(f"SLURM_STEP_NODELIST={nodes} names no node")
    return match[1] + (match[2] or "")


def _tpu(environ: Mapping[str, str]) -> Layout | None:
    """GKE gives hosts and slices by environment, a TPU VM by its metadata server."""
    hosts = [h for h in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if h]
    worker = environ.get("TPU_WORKER_ID", "0")
    on_vm = os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")
    if not hosts and on_vm and "TPU_SKIP_MDS_QUERY" not in environ:
        endpoints = _metadata("worker-network-endpoints", environ)
        # HOST, or in the older form NAME:ID:HOST
        hosts = [entry.split(":")[-1] for entry in endpoints.split(",") if entry]
        worker = _metadata("agent-worker-number", environ) or "0"
    slices = int(environ.get("MEGASCALE_NUM_SLICES", 1))
    if len(hosts) * slices < 2:
        return None
    first = environ.get("MEGASCALE_COORDINATOR_ADDRESS", hosts[0]).split(":")[0]
    process = int(environ.get("MEGASCALE_SLICE_ID", 0)) * len(hosts) + int(worker)
    return Layout(f"{first}:{PORT}", len(hosts) * slices, process)


def _metadata(key: str, environ: Mapping[str, str]) -> str:
    host = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/attributes/{key}",
        headers={"Metadata-Flavor": "Google"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read(_MESSAGE_BYTES).decode().strip()
    except OSError:
        return ""  # a GPU host, or a TPU VM of another kind


def start(
    coordinator: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    init_timeout: float = 300.0,
    *,
    config: Mapping[str, Any],
    say: Callable[[str], None],
) -> None:
    """Start JAX for all processes of the run; nothing to do where there is only one.

    Call before anything asks JAX for its devices. `config` (nested, JSON values) is compared over
    the processes. Raises `UserError` when a process is missing after `init_timeout` seconds, when
    configs differ, or when the layout makes no sense.
    """
    layout = find_layout(coordinator, num_processes, process_id)
    if layout is None:
        return
    began = time.monotonic()
    meet(layout, config, init_timeout)
    # What CPU devices of several processes talk through; other devices do not look at it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    left = init_timeout - (time.monotonic() - began)
    try:
        jax.distributed.initialize(
            layout.coordinator,
            layout.processes,
            layout.process,
            local_device_ids=layout.local_devices,
            cluster_detection_method="deactivate",
            initialization_timeout=max(10, int(left)),
            # How long one that has failed waits for the others before it exits.
            shutdown_timeout_seconds=60,
        )
    except RuntimeError as error:
        raise UserError(f"JAX could not start {_this(layout)}: {error}") from error
    say(f"{_this(layout)}: {jax.local_device_count()} of {jax.device_count()} devices")


def _this(layout: Layout) -> str:
    return f"process {layout.process} of {layout.processes} (coordinator {layout.coordinator})"


def meet(layout: Layout, config: Mapping[str, Any], timeout: float) -> None:
    """Return when all processes are there with the same `config` (which may hold flags, too);
    else `UserError` in each."""
    deadline = time.monotonic() + timeout
    hello = {"process": layout.process, "processes": layout.processes, "config": config}
    if layout.process == 0:
        _receive_all(layout, json.loads(json.dumps(hello)), deadline, timeout)
    else:
        _report(layout, hello, deadline, timeout)


def _report(layout: Layout, hello: Mapping[str, Any], deadline: float, timeout: float) -> None:
    """Say hello to the coordinator, as soon as it is there, and wait for its word."""
    host, _, port = layout.coordinator.rpartition(":")
    while True:
        # Its word comes by the deadline; the seconds more are for the way.
        left = deadline - time.monotonic()
        try:
            with socket.create_connection((host, int(port)), max(left, 0.1)) as link:
                link.sendall(json.dumps(hello).encode() + b"\n")
                answer = json.loads(_line(link, max(left, 0.1) + 5))
            break
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"{_this(layout)} found no process 0 within {timeout:g} s ({error}): 1 of "
                    f"{layout.processes} processes is known here; start the same command on every "
                    "host"
                ) from error
            time.sleep(0.2)
    if answer["error"]:
        raise UserError(answer["error"])


def _receive_all(layout: Layout, own: Any, deadline: float, timeout: float) -> None:
    """Wait for every other process, then send all of them the word: go on, or what is wrong."""
    port = int(layout.coordinator.rpartition(":")[2])
    hellos, links = {0: own}, []
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(socket.create_server(("", port)))
        except OSError as error:
            raise UserError(
                f"{_this(layout)} cannot listen on port {port} ({error.strerror}): choose another "
                "one in --coordinator"
            ) from error
        error = ""
        while len(hellos) < layout.processes and not error:
            left = deadline - time.monotonic()
            if left <= 0:
                error = _missing(layout, hellos, timeout)
                break
            server.settimeout(left)
            link = None
            try:
                link = stack.enter_context(server.accept()[0])
                hello = json.loads(_line(link, min(left, _LINK_SECONDS)))
                error = _objection(hellos, hello)
                links.append(link)
                hellos[hello["process"]] = hello
            except (OSError, ValueError, KeyError, TypeError):
                # Nobody came, or not one of ours, or one that died: it is still missing.
                if link is not None:
                    link.close()
        for link in links:
            with contextlib.suppress(OSError):
                link.sendall(json.dumps({"error": error}).encode() + b"\n")
        for link in links:
            # The other side closes first, so that JAX can take the port at once.
            link.settimeout(5)
            with contextlib.suppress(OSError):
                link.recv(1)
    if error:
        raise UserError(error)


def _line(link: socket.socket, seconds: float) -> bytes:
    """One line, of bounded length, within `seconds`; TimeoutError where it does not come."""
    deadline, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n") and len(line) < _MESSAGE_BYTES:
        link.settimeout(max(deadline - time.monotonic(), 0.01))
        part = link.recv(1 << 16)
        if not part:
            break
        line += part
    return line


def _missing(layout: Layout, hellos: Mapping[int, Any], timeout: float) -> str:
    absent = [str(i) for i in range(layout.processes) if i not in hellos]
    listed = ", ".join(absent[:8]) + (" ..." if len(absent) > 8 else "")
    return (
        f"{len(hellos)} of {layout.processes} processes met at {layout.coordinator} within "
        f"{timeout:g} s; missing: {listed}. Start the same command on every host, or raise "
        "--init_timeout"
    )


def _objection(hellos: Mapping[int, Any], hello: Mapping[str, Any]) -> str:
    """What is wrong with a process that has just come; '' for nothing."""
    mine, process = hellos[0], hello["process"]
    if hello["processes"] != mine["processes"]:
        return (
            f"process 0 was told of {mine['processes']} processes and process {process} of "
            f"{hello['processes']}: give every process the same --num_processes"
        )
    if process in hellos or not 0 < process < mine["processes"]:
        return f"two processes came as --process_id={process}: each needs a number of its own"
    different = sorted(_differences(mine["config"], hello["config"]))
    if different:
        return (
            f"the command of process {process} differs from that of process 0 in "
            f"{', '.join(different[:5])}: start the same command on every host"
        )
    return ""


def _differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Dotted names of the values in which two nested dicts differ."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return [] if a == b else [name]
    return [
        found
        for key in a.keys() | b.keys()
        for found in _differences(a.get(key), b.get(key), f"{name}.{key}" if name else key)
    ]


def set_deterministic(say: Callable[[str], None]) -> None:
    """Ask XLA for GPU kernels that give the same bits each time (slower scatters and reductions).

    Call before JAX starts; too late, it warns.
    """
    if xla_bridge.backends_are_initialized():
        say("warning: train.deterministic has no effect: JAX had already started")
    elif _DETERMINISTIC not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
