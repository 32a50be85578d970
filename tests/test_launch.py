"""The launchers: linted, started for real, and stopped; what cannot run here is printed."""

import contextlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import string
import subprocess
import sys
import sysconfig
import time

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = [
    *sorted(LAUNCH.glob("*.sh")),
    LAUNCH / "slurm.sbatch",
    ROOT / ".ci" / "run",
]
ARGUMENTS = [
    "--config=configs/large.py:smoke",
    "--workdir=gs://bucket/two words",
    "--config.seed=3",
]

# Whoever runs the tests may have set these.
SETTINGS = {"PYTHON": "", "EXTRAS": "", "PYTHONPATH": ""}


def run(command, **options) -> subprocess.CompletedProcess:
    environment = {**SETTINGS, **options.pop("env", {})}
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", 60),
        env={**os.environ, **environment},
        **options,
    )


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of what local.sh needs, in a folder with a space, with an environment that is up to
    date: a real one, whose packages are those of the Python that runs the tests."""
    copy = tmp_path / "a copy"
    for folder in ("launch", "bertjax", "configs"):
        shutil.copytree(ROOT / folder, copy / folder)
    shutil.copy(ROOT / "pyproject.toml", copy)
    venv = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    packages = sysconfig.get_paths()["purelib"]
    (site / "packages.pth").write_text(f"{packages}\n{copy}\n", encoding="utf8")
    in_shell(copy, 'wanted_stamp "$root/.venv" >"$root/.venv/.stamp"')
    return copy


def in_shell(repository: pathlib.Path, program: str, **options) -> subprocess.CompletedProcess:
    """Run a program with environment.sh's functions."""
    return run(
        ["bash", "-euc", f"source {shlex.quote(str(repository))}/launch/environment.sh\n{program}"],
        **options,
    )


def is_up_to_date(repository: pathlib.Path, **options) -> bool:
    return in_shell(repository, 'is_up_to_date "$root/.venv"', **options).returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_is_clean(script: pathlib.Path):
    done = run(["bash", "-n", script])
    assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        done = run(["shellcheck", "-x", script], cwd=ROOT)
        assert done.returncode == 0, done.stdout


def test_environment_is_up_to_date_until_something_changes(repository: pathlib.Path):
    assert is_up_to_date(repository)
    assert not is_up_to_date(repository, env={"EXTRAS": "parity"})
    in_shell(repository, 'EXTRAS=cuda,parity; wanted_stamp "$root/.venv" >"$root/.venv/.stamp"')
    for extras, expected in (("", True), ("parity", True), ("cuda,parity", True), ("tpu", False)):
        assert is_up_to_date(repository, env={"EXTRAS": extras}) == expected, extras
    moved = repository.rename(repository.with_name("moved"))
    assert not is_up_to_date(moved)  # the installed package is the one at the old place
    moved.rename(repository)
    assert is_up_to_date(repository)
    with open(repository / "pyproject.toml", "a", encoding="utf8") as file:
        file.write("# changed\n")
    assert not is_up_to_date(repository)


def test_environment_whose_python_is_gone_is_not_up_to_date(repository: pathlib.Path):
    (repository / ".venv" / "bin" / "python").unlink()
    assert not is_up_to_date(repository)


def test_environment_costs_no_time_once_it_is_there(repository: pathlib.Path):
    def cpu_seconds() -> float:  # of all that ended before; other work on the machine is left out
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    start = cpu_seconds()
    done = in_shell(repository, "prepare_environment")
    assert (done.returncode, done.stderr) == (0, "")
    assert cpu_seconds() - start < 0.3


def test_unusable_pythons_are_one_sentence(tmp_path: pathlib.Path):
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9\n", encoding="utf8")
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\nexit 127\n", encoding="utf8")
    for path in (old, broken):
        path.chmod(0o755)
    for python, sentence in (
        (old, "is Python 3.9, but 3.11 or newer is needed"),
        (broken, "does not run"),
        ("python3.99", "is not on the PATH"),
    ):
        done = run([LAUNCH / "local.sh", "--help"], env={"PYTHON": str(python)})
        assert (done.returncode, done.stdout) == (2, "")
        assert sentence in done.stderr and done.stderr.count("\n") == 1


def test_tpu_pod_prints_what_would_run():
    done = run([LAUNCH / "tpu_pod.sh", "--dry-run", "pod", "us-west4-a", *ARGUMENTS])
    assert done.returncode == 0
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [command[4] for command in commands[:3]] == ["scp", "ssh", "ssh"]
    for command in commands[:3]:
        assert command[:4] == ["gcloud", "compute", "tpus", "tpu-vm"]
        assert {"--worker=all", "--zone=us-west4-a"} <= set(command)
    (start,) = (word for word in commands[2] if word.startswith("--command="))
    remote = shlex.split(start.removeprefix("--command="))
    assert remote[remote.index("bertjax/launch/tpu_worker.sh") + 1 :] == ARGUMENTS


@pytest.mark.parametrize("arguments", [[], ["pod"], ["pod", "--config=configs/tiny.py"]], ids=str)
def test_tpu_pod_wants_a_name_and_a_zone(arguments: list[str]):
    done = run([LAUNCH / "tpu_pod.sh", "--dry-run", *arguments])
    assert done.returncode == 2 and done.stderr.startswith("Usage: ")


def test_slurm_prints_what_would_run():
    done = run(["bash", LAUNCH / "slurm.sbatch", "--dry-run", *ARGUMENTS], cwd=ROOT)
    assert done.returncode == 0
    words = shlex.split(done.stdout)
    assert words[0] == "srun"
    assert words[words.index("bertjax.main") + 1 :] == ARGUMENTS


def test_slurm_outside_a_job_or_the_repository_is_one_sentence(tmp_path: pathlib.Path):
    for options in ({"cwd": tmp_path}, {"cwd": ROOT, "env": {"SLURM_JOB_ID": ""}}):
        done = run(["bash", LAUNCH / "slurm.sbatch", *ARGUMENTS], **options)
        assert done.returncode == 2 and done.stderr.count("\n") == 1


# Fields of jobset.x-k8s.io/v1alpha2 and of the batch/v1 and core/v1 objects inside it, as their
# published references name them.
JOBSET_FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {
        "coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs", "startupPolicy",
        "successPolicy", "suspend", "ttlSecondsAfterFinished",
    },
    "spec.failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "spec.failurePolicy.rules": {"action", "name", "onJobFailureReasons", "targetReplicatedJobs"},
    "spec.replicatedJobs": {"dependsOn", "groupName", "name", "replicas", "template"},
    "spec.replicatedJobs.template": {"metadata", "spec"},
    "spec.replicatedJobs.template.spec": {
        "activeDeadlineSeconds", "backoffLimit", "completionMode", "completions", "parallelism",
        "podFailurePolicy", "template", "ttlSecondsAfterFinished",
    },
    "spec.replicatedJobs.template.spec.podFailurePolicy": {"rules"},
    "spec.replicatedJobs.template.spec.podFailurePolicy.rules": {
        "action", "onExitCodes", "onPodConditions",
    },
    "spec.replicatedJobs.template.spec.podFailurePolicy.rules.onExitCodes": {
        "containerName", "operator", "values",
    },
    "spec.replicatedJobs.template.spec.template": {"metadata", "spec"},
    "spec.replicatedJobs.template.spec.template.spec": {
        "containers", "nodeSelector", "restartPolicy", "serviceAccountName",
        "terminationGracePeriodSeconds", "volumes",
    },
    "spec.replicatedJobs.template.spec.template.spec.containers": {
        "args", "command", "env", "image", "name", "ports", "resources", "volumeMounts",
        "workingDir",
    },
    "spec.replicatedJobs.template.spec.template.spec.containers.ports": {"containerPort", "name"},
    "spec.replicatedJobs.template.spec.template.spec.containers.resources": {"limits", "requests"},
}  # fmt: skip
FREE_FORM = {"metadata", "nodeSelector", "limits"}


def check_fields(value, path: str = "") -> None:
    if isinstance(value, list):
        for item in value:
            check_fields(item, path)
    elif isinstance(value, dict):
        assert set(value) <= JOBSET_FIELDS[path], path
        for key in value.keys() - FREE_FORM:
            check_fields(value[key], f"{path}.{key}".lstrip("."))


def test_jobset_has_the_published_structure():
    text = (LAUNCH / "gke_jobset.yaml").read_text(encoding="utf8")
    header, body = text.split("apiVersion:", 1)
    values = {
        "NAME": "bert-large", "IMAGE": "registry/bertjax:1", "ACCELERATOR": "tpu-v5-lite-podslice",
        "TOPOLOGY": "4x4", "HOSTS": "4", "CHIPS_PER_HOST": "4", "ARGUMENTS": json.dumps(ARGUMENTS),
    }  # fmt: skip
    assert set(re.findall(r"\$\{(\w+)\}", body)) == set(values)
    for name in values:
        assert f"{name}=" in header, f"the header does not say how to set {name}"
    jobset = yaml.safe_load(string.Template(text).substitute(values, NAME="bert-large"))
    check_fields(jobset)
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and jobset["kind"] == "JobSet"
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["parallelism"] == job["completions"] == 4 and job["backoffLimit"] == 0
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "bertjax.main"]
    assert container["args"] == ARGUMENTS
    assert container["resources"]["limits"] == {"google.com/tpu": 4}


def test_launchers_hold_no_hyperparameters():
    for path in LAUNCH.iterdir():
        assert "--config." not in path.read_text(encoding="utf8"), path.name


def test_configs_are_found_from_any_directory(repository: pathlib.Path, tmp_path: pathlib.Path):
    command = [repository / "launch" / "local.sh", "--mode=summary"]
    done = run([*command, "--config=configs/base.py:num_layers=2"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.py").write_text("raise SystemExit(77)", encoding="utf8")
    done = run([*command, "--config=configs/base.py:num_layers=2"], cwd=tmp_path)
    assert done.returncode == 77, "the caller's own file comes first"


@pytest.fixture
def start():
    """Start a command in a session of its own; whatever is left of it ends with the test."""
    processes = []

    def start(command, **environment) -> subprocess.Popen:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **SETTINGS, **environment},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)


@pytest.mark.long
def test_signals_and_exit_codes_pass_through(repository: pathlib.Path, tmp_path, start):
    workdir = tmp_path / "run"
    command = [repository / "launch" / "local.sh", "--config=configs/tiny.py:smoke"]
    process = start([*command, f"--workdir={workdir}", "--config.train.steps=100000"])
    metrics = workdir / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size, 500)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert any((workdir / "checkpoints").iterdir())


@pytest.mark.long
def test_tpu_worker_replaces_the_run_that_is_going_on(repository: pathlib.Path, start):
    """Here as on a worker, but for the hardware: local.sh runs on this machine's CPU."""
    command = [repository / "launch" / "tpu_worker.sh", "--config=configs/tiny.py:smoke"]
    first = start([*command, "--config.train.steps=100000"])
    metrics = repository / "runs" / "tiny" / "metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.stat().st_size, 500)
        second = run([*command, "--mode=summary"], timeout=180)
        assert second.returncode == 0, second.stdout
        assert "start: --config=configs/tiny.py:smoke --mode=summary" in second.stdout
        first.communicate(timeout=60)
        assert first.returncode == 143
    finally:  # the run has a session of its own, which outlives the worker's
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((repository / "run.pid").read_text(encoding="utf8")), signal.SIGKILL)


@pytest.mark.long
def test_fresh_clone_installs_and_starts(tmp_path: pathlib.Path, start):
    """An installation that is killed is begun again, and of two starts one installs."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    clone = tmp_path / "fresh clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    command = [clone / "launch" / "local.sh", "--help"]
    killed = start(command, PYTHON=sys.executable)
    wait_for(lambda: any(clone.glob(".venv-*/bin/pip")), 120)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not list(clone.glob(".venv-*/.stamp"))

    both = [start(command, PYTHON=sys.executable) for _ in range(2)]
    output = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    assert all("--workdir" in stdout for stdout, _ in output)
    messages = "".join(stderr for _, stderr in output)
    assert messages.count("Installing bertjax") == 1, messages
    assert messages.count("Another start is installing") == 1, messages

    again = run(command, env={"PYTHON": sys.executable})
    assert (again.returncode, again.stderr) == (0, "")
