"""What the front doors share."""

import os
import platform
import subprocess
import sys

import pytest

from bertjax import cli
from bertjax.errors import UserError


@pytest.mark.parametrize(
    ("flags", "given", "threads"),
    [("--xla_force_host_platform_device_count=8", None, 64),
     ("--xla_force_host_platform_device_count=8 --xla_force_host_platform_device_count=9", "", 72),
     ("--xla_force_host_platform_device_count=8", "3", 3), ("--other=8", None, 0), ("", None, 0)],
)  # fmt: skip
def test_virtual_devices_have_threads_to_spare(monkeypatch, flags, given, threads):
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    if given:
        monkeypatch.setenv("PJRT_NPROC", given)
    cli.spare_threads()
    assert int(os.environ.get("PJRT_NPROC", 0)) == threads


FAULTS = """
import resource, sys
import numpy as np
from bertjax import cli
if sys.argv[1] == "keep":
    cli.keep_memory()
for i in range(21):
    block = np.ones(2**24, np.uint8)
    del block
    if i == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's allocator")
def test_memory_is_kept_between_steps():
    """Twenty blocks of 4,096 pages: faults at every page by default, at none when kept."""

    def faults(how: str, platforms: str = "cpu") -> int:
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True,
            env={"JAX_PLATFORMS": platforms, "PYTHONPATH": ":".join(sys.path),
                 "MALLOC_MMAP_THRESHOLD_": "131072"},
        )  # fmt: skip
        return int(done.stdout)

    kept = faults("keep")
    assert kept < 100 and faults("default") > 2 * kept
    assert faults("keep", platforms="cuda") > 2 * kept  # CPUs alone


def test_a_place_to_write_is_checked_before_the_work(tmp_path):
    cli.check_out("--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    for path, words in ((tmp_path, "is a folder"), (tmp_path / "no/a", "there is no folder")):
        with pytest.raises(UserError, match=f"--out={path}.*{words}"):
            cli.check_out("--out", str(path))


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("--workdir=~/runs/a", "--workdir=/home/kim/runs/a"),
        ("--config.data.train=~/a=b.tsv", "--config.data.train=/home/kim/a=b.tsv"),
        ("--pair=~ 5 metres", "--pair=~ 5 metres"),
        ("path=~/x", "path=~/x"),  # a text
        ("~/x stays: the shell had it before", "~/x stays: the shell had it before"),
    ],
)
def test_home_after_an_equals_sign(given: str, taken: str, monkeypatch: pytest.MonkeyPatch):
    """As POSIX shells do in assignments, but not in flags."""
    monkeypatch.setenv("HOME", "/home/kim")
    assert cli.with_home([given]) == [taken]
