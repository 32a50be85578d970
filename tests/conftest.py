"""Settings for every test: virtual CPU devices, real data by path, absl flags parsed."""

import os
import pathlib
import signal

# Before jax starts: tests of sharding need several devices.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    ).strip()

import pytest
from absl import flags

from bertjax import cli

cli.spare_threads()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell's script
        signal.signal(signal.SIGINT, signal.default_int_handler)  # programs under test inherit it
    # grain's worker processes read absl flags, which pytest never parses.
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of public data that is not part of this repository."""
    folder = os.environ.get("BERTJAX_REAL_DATA", "")
    if not folder or not pathlib.Path(folder).is_dir():
        pytest.skip("BERTJAX_REAL_DATA names no folder of real data")
    return pathlib.Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked long, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    skip = pytest.mark.skip(reason="long: run with --all")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(skip)
