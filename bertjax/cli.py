"""What every front door shares: one sentence for an expected error, and a quiet start of JAX."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pathlib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

from bertjax.errors import UserError

# Set to anything, it shows the traceback of an expected error, too.
TRACEBACK = "BERTJAX_TRACEBACK"


class ArgumentParser(argparse.ArgumentParser):
    """argparse whose complaints are one sentence, like every other expected error."""

    def __init__(self, **kwargs) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see --help)")


def _accelerator() -> bool:
    """Whether this machine shows a GPU or TPU, without starting JAX."""
    devices = ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")
    return any(pathlib.Path(device).exists() for device in devices)


def choose_platform() -> None:
    """Set JAX_PLATFORMS=cpu where there is no accelerator and nothing else was asked for.

    An installed libtpu or CUDA plugin prints errors otherwise. Call before JAX finds its devices.
    """
    if "JAX_PLATFORMS" not in os.environ and not _accelerator():
        use_cpu()


def spare_threads() -> None:
    """Where XLA_FLAGS makes several devices of the CPU, give XLA eight threads for each of them.

    By default it has one. But a device starts a collective while an earlier one is still waiting
    for the others, and each holds a thread, so that the last device may find none: all wait for
    ever, and XLA aborts the process after a minute. Call before JAX finds its devices.
    """
    flag = r"xla_force_host_platform_device_count=(\d+)"
    devices = int((re.findall(flag, os.environ.get("XLA_FLAGS", "")) or ["1"])[-1])
    if devices > 1:
        os.environ.setdefault("PJRT_NPROC", str(max(os.cpu_count() or 1, 8 * devices)))


def use_cpu() -> None:
    """Leave this machine's accelerator to others. Call before JAX finds its devices."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # it has read its environment already
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def read_text(flag: str, path: str) -> str:
    """The text of the UTF-8 file that a flag names, '-' for standard input.

    Raises:
        UserError: it cannot be read, or at which byte it is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else pathlib.Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{flag}={path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        where = "standard input" if path == "-" else f"{flag}={path}"
        raise UserError(f"{where} is not UTF-8 at byte {error.start}; convert it first.") from error


def check_out(flag: str, path: str) -> None:
    """UserError unless a file of this machine can be written there. Call before the work.

    What is there stays as it is until then.
    """
    target = pathlib.Path(path)
    if target.is_dir():
        raise UserError(f"{flag}={path} is a folder: name a file in it.")
    if not target.parent.is_dir():
        raise UserError(f"{flag}={path}: there is no folder {target.parent}; make it first.")
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        raise UserError(f"{flag}={path} may not be written by this user.")


def keep_memory() -> None:
    """On CPUs, let the C library (glibc) keep what one step frees for the next one.

    By default it gives large blocks back to the kernel, which must clear every page anew: a
    seventh of the CPU time of a small model's step. Call before JAX starts its threads.
    """
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    # One arena, grown by brk, that takes blocks of any size and is never trimmed (malloc.h).
    arena_max, mmap_max, trim_threshold, top_pad = -8, -4, -1, -2
    for parameter, value in (
        (arena_max, 1), (mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 2**26),
    ):  # fmt: skip
        mallopt(parameter, value)


def with_home(arguments: Sequence[str]) -> list[str]:
    """Arguments with the home folder for the ~ of --FLAG=~/..., which shells leave as it is."""
    return [
        f"{name}={os.path.expanduser(value)}"
        if name.startswith("--") and value.startswith("~/") else argument
        for argument in arguments
        for name, _, value in [argument.partition("=")]
    ]  # fmt: skip


@contextlib.contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """While entered, SIGTERM raises SystemExit(143): worker processes end, files are tidied up."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Call `main(arguments)` and exit: its code, or 2 with one sentence for an expected error."""
    choose_platform()
    spare_threads()
    try:
        code = main(with_home(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left. Nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except SystemExit as stopped:
        main_thread = threading.current_thread() is threading.main_thread()
        if stopped.code in (130, 143) and main_thread:
            # The run is saved: a second signal must not break into the exit.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        raise
    except KeyboardInterrupt:
        code = 130
    except UserError as error:
        if os.environ.get(TRACEBACK):
            raise
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
