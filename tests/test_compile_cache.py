"""The persistent compilation cache: where it lies, off, and what a second process finds."""

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from bertjax import start

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = """
import sys, jax, jax.numpy as jnp
from bertjax import start
start.compile_cache(sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))
scale = float(sys.argv[2])
print(float(jax.jit(lambda x: jnp.sin(x) * scale)(1.0)))
print(sum(name.endswith("cache_hits") for name in found))
"""


@pytest.fixture
def settings():
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_folder_is_apart_for_each_version_and_cpu(tmp_path, settings):
    start.compile_cache(str(tmp_path))
    folder = pathlib.Path(jax.config.jax_compilation_cache_dir)
    assert folder.parent == tmp_path and folder.is_dir()
    assert jax.__version__ in folder.name and start._cpu_fingerprint() in folder.name


def test_none_turns_it_off(settings):
    start.compile_cache("none")
    assert not jax.config.jax_enable_compilation_cache


def test_empty_keeps_the_cache_that_jax_has(tmp_path, settings):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    start.compile_cache("")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path, settings, capsys):
    (tmp_path / "file").write_text("")
    start.compile_cache(str(tmp_path / "file"))
    assert "no compilation cache" in capsys.readouterr().err


def test_a_second_process_finds_the_same_program_and_no_other(tmp_path):
    def run(scale: float) -> list[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(scale)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, again, other = run(2.0), run(2.0), run(3.0)
    assert first[0] == again[0] and float(other[0]) == pytest.approx(1.5 * float(first[0]))
    # What both need besides (the conversion of the argument, say) is found by the third, too.
    assert int(first[1]) == 0 and int(again[1]) > int(other[1])
