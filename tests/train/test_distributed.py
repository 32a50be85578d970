"""Several processes: finding and meeting each other, and real runs of two over loopback."""

import concurrent.futures
import contextlib
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from bertjax.errors import UserError
from bertjax.parallel import distributed
from bertjax.parallel.distributed import (
    Layout,
    _first_host,
    _metadata,
    find_layout,
    meet,
    set_deterministic,
)
from bertjax.train.checkpoint import committed_steps, root

HERE = pathlib.Path(__file__).parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_flags_come_first_and_belong_together():
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_STEP_NODELIST": "n[1-4]"}
    assert find_layout("host:1234", 2, 1, slurm) == Layout("host:1234", 2, 1)
    assert find_layout("host:1234", 1, 0, {}) is None
    assert find_layout(environ={}) is None
    for given in (("host:1", 0, -1), ("", 2, 0), ("host:1", 2, -1)):
        with pytest.raises(UserError, match="belong together"):
            find_layout(*given, environ={})
    for bad in (("host", 2, 0), ("host:x", 2, 0), ("host:70000", 2, 0), ("host:1", 2, 2)):
        with pytest.raises(UserError, match=r"is not HOST:PORT|--process_id=2"):
            find_layout(*bad, environ={})


def test_slurm():
    environ = {
        "SLURM_JOB_ID": "4100", "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "9",
        "SLURM_STEP_NODELIST": "gpu[007-008]", "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    }  # fmt: skip
    assert find_layout(environ=environ) == Layout("gpu007:61444", 16, 9)
    # Several tasks that all see the node's GPUs take one each; one task a node takes all of them.
    shared = environ | {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert find_layout(environ=shared).local_devices == (1,)
    alone = shared | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert find_layout(environ=alone).local_devices is None
    assert find_layout(environ=environ | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert [_first_host(n) for n in ("a", "a,b", "a[3,5],b", "a-b[01-15]")] == [
        "a", "a", "a3", "a-b01",
    ]  # fmt: skip


def test_tpu_hosts():
    environ = {"TPU_WORKER_HOSTNAMES": "t-0,t-1", "TPU_WORKER_ID": "1"}
    assert find_layout(environ=environ) == Layout("t-0:8476", 2, 1)
    slices = environ | {
        "MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": "s-0:8080",
    }  # fmt: skip
    assert find_layout(environ=slices) == Layout("s-0:8476", 6, 5)
    assert find_layout(environ={"TPU_WORKER_HOSTNAMES": "localhost"}) is None


def test_metadata_server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if self.path.endswith("agent-worker-number") else 404)
            self.end_headers()
            self.wfile.write(b"3\n")

        def log_message(self, *_) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = {"GCE_METADATA_IP": f"127.0.0.1:{server.server_port}"}
        assert _metadata("agent-worker-number", environ) == "3"
        assert _metadata("worker-network-endpoints", environ) == ""
        server.shutdown()


def meeting(processes, configs=None, present=None, timeout=10.0, told=None) -> list[str]:
    """What each of the present processes hears: '' or its error."""
    coordinator = f"127.0.0.1:{free_port()}"
    present = range(processes) if present is None else present

    def one(process: int) -> str:
        layout = Layout(coordinator, (told or {}).get(process, processes), process)
        try:
            meet(layout, (configs or {}).get(process, {"seed": 0, "a": {"b": 1}}), timeout)
        except UserError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, present))


def test_all_meet():
    assert meeting(4) == [""] * 4


def test_the_missing_process_is_named_within_the_time_set():
    began = time.monotonic()
    answers = meeting(4, present=[0, 2], timeout=1.5)
    assert time.monotonic() - began < 4
    for answer in answers:
        assert "2 of 4 processes met" in answer and "missing: 1, 3" in answer


def test_a_missing_coordinator():
    (answer,) = meeting(2, present=[1], timeout=1.0)
    assert "found no process 0 within 1 s" in answer and "1 of 2 processes" in answer


def test_differing_configs_are_refused_everywhere():
    answers = meeting(2, {1: {"seed": 1, "a": {"b": 2, "c": 3}}})
    for answer in answers:
        assert "command of process 1 differs from that of process 0 in a.b, a.c, seed" in answer


def test_differing_numbers_of_processes():
    for answer in meeting(2, told={1: 3}):
        assert "process 0 was told of 2 processes and process 1 of 3" in answer


def test_one_number_twice():
    answers = meeting(3, present=[0, 1, 1])
    assert any("two processes came as --process_id=1" in answer for answer in answers)


def test_a_stranger_at_the_port_does_no_harm():
    port = free_port()
    layouts = [Layout(f"127.0.0.1:{port}", 2, i) for i in (0, 1)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, layouts[0], {}, 10.0)
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\n", b"{}\n"):
            for _ in range(50):
                try:
                    with socket.create_connection(("127.0.0.1", port), 1) as link:
                        link.sendall(noise)
                    break
                except OSError:
                    time.sleep(0.05)
        meet(layouts[1], {}, 10.0)
        first.result()


def test_strangers_who_say_nothing_hold_nobody_up(monkeypatch):
    """One is silent, one sends a byte now and then and never ends its line."""
    monkeypatch.setattr(distributed, "_LINK_SECONDS", 0.5)
    port = free_port()
    layouts = [Layout(f"127.0.0.1:{port}", 2, i) for i in (0, 1)]
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(3))
        began = time.monotonic()
        first = pool.submit(meet, layouts[0], {}, 30.0)
        links = [stack.enter_context(connected(port)) for _ in range(2)]
        over = threading.Event()
        stack.callback(over.set)

        def drip() -> None:
            with contextlib.suppress(OSError):  # the other side has closed
                while not over.wait(0.2):
                    links[1].sendall(b" ")

        pool.submit(drip)
        time.sleep(0.2)
        meet(layouts[1], {}, 30.0)
        first.result()
        assert time.monotonic() - began < 10


def connected(port: int) -> socket.socket:
    """A link to a port where somebody is about to listen."""
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", port), 1)
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nobody listens on {port}")


def test_deterministic_too_late_is_said(monkeypatch):
    import jax

    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "--other")
    said: list[str] = []
    set_deterministic(said.append)
    assert "no effect" in said[0] and os.environ["XLA_FLAGS"] == "--other"


def start(workdir, *arguments: str, devices: int) -> subprocess.Popen:
    env = dict(os.environ, PYTHONPATH=str(HERE.parent.parent))
    env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, str(HERE / "helpers_loop.py"), str(workdir), *arguments],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def pair(workdir, *arguments: str, devices: int = 2) -> list[subprocess.Popen]:
    port = free_port()
    layout = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", "--init_timeout=60"]
    return [
        start(workdir, *arguments, *layout, f"--process_id={i}", devices=devices) for i in (0, 1)
    ]


def finish(processes, timeout=120) -> list[str]:
    return [process.communicate(timeout=timeout)[0] for process in processes]


def lines(workdir) -> list[dict]:
    text = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in text]


def compare(a: list[dict], b: list[dict]) -> None:
    """The same lines, and losses within 1e-5 relative."""
    for x, y in zip(a, b, strict=True):
        assert (x["step"], x["split"]) == (y["step"], y["split"])
        assert x["loss"] == pytest.approx(y["loss"], rel=1e-5)


SLOW = "--config.optimizer.learning_rate=5e-4"


@pytest.mark.long
def test_two_processes_follow_one(tmp_path):
    """1 process of 8 devices, 2 of 4, and a run begun by 1 process, stopped, ended by 2."""
    (one,) = finish([start(tmp_path / "one", SLOW, devices=8)])
    two = pair(tmp_path / "two", SLOW, devices=4)
    texts = finish(two)
    assert [p.returncode for p in two] == [0, 0], texts
    assert "process 1 of 2" in texts[1] and "4 of 8 devices" in texts[1]
    assert "step 20/20" in texts[0] and "step 20/20" not in texts[1]  # one process speaks
    compare(lines(tmp_path / "one"), lines(tmp_path / "two"))
    assert json.loads(one.splitlines()[-1])["validation/rows"] == 20

    begun = start(tmp_path / "both", SLOW, "--sleep=0.3", devices=8)
    wait_for_step(tmp_path / "both", 3, [begun])
    begun.terminate()
    finish([begun])
    assert begun.returncode == 143
    ended = pair(tmp_path / "both", SLOW, devices=4)
    texts = finish(ended)
    assert [p.returncode for p in ended] == [0, 0], texts
    assert "going on from the checkpoint of step" in texts[0]
    compare(lines(tmp_path / "one"), lines(tmp_path / "both"))


@pytest.mark.long
def test_processes_of_a_resumed_run_agree_on_the_best_checkpoint(tmp_path):
    """At a learning rate of 0 the first evaluation, at step 6, stays the best: patience ends the
    resumed run 3 evaluations later, on both processes, and a finished run gives both its figures.
    """
    flags = ["--config.optimizer.learning_rate=0.0", "--config.train.patience=3"]
    flags += ["--finish_with_best=yes"]
    for steps in (12, 60, 60):
        both = pair(tmp_path, *flags, f"--config.train.steps={steps}", devices=1)
        try:
            texts = finish(both, timeout=90)
        finally:
            for process in both:
                process.kill()
        assert [p.returncode for p in both] == [0, 0], texts
        answers = [json.loads(text.splitlines()[-1]) for text in texts]
        assert answers[0] == answers[1] and answers[0]["validation/rows"] == 20
        if steps == 60:
            assert "step 24 of 60" in texts[0] and "checkpoint of step 6" in texts[0]
    assert "is finished: step 24 of 60" in texts[0]


def wait_for_step(workdir, step: int, processes) -> None:
    deadline = time.monotonic() + 90
    path = workdir / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < step:
        assert time.monotonic() < deadline and all(p.poll() is None for p in processes)
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    "process, number, codes", [(1, signal.SIGTERM, {143}), (0, signal.SIGINT, {130, 143})]
)
def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path, process, number, codes):
    both = pair(tmp_path, "--config.train.steps=5000", "--sleep=0.05")
    wait_for_step(tmp_path, 15, both)
    began = time.monotonic()
    both[process].send_signal(number)
    time.sleep(0.1)
    both[process].send_signal(number)  # a second one does no harm
    texts = finish(both, timeout=40)
    assert time.monotonic() - began < 30
    assert {p.returncode for p in both} == codes, texts
    step = [line["step"] for line in lines(tmp_path) if line["split"] == "train"][-1]
    assert committed_steps(root(tmp_path) / "checkpoints")[-1] == step
    assert f"stopped at step {step} of 5000" in texts[0]


@pytest.mark.long
def test_processes_that_do_not_fit_together_end_with_a_sentence(tmp_path):
    port = free_port()
    flags = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", "--init_timeout=20"]
    began = time.monotonic()
    (text,) = finish([start(tmp_path, *flags, "--process_id=0", "--init_timeout=2", devices=1)])
    assert "error: 1 of 2 processes met" in text and "Traceback" not in text
    assert time.monotonic() - began < 40
    both = [
        start(tmp_path, *flags, f"--process_id={i}", f"--config.seed={i}", devices=1)
        for i in (0, 1)
    ]
    texts = finish(both)
    assert [p.returncode for p in both] == [2, 2]
    assert all("differs from that of process 0 in seed" in text for text in texts)
