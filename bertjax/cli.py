"""What every front door shares: one sentence for an expected error, and a quiet start of JAX."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
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
    if "JAX_PLATFORMS" in os.environ or _accelerator():
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # it has read its environment already
        sys.modules["jax"].config.update("jax_platforms", "cpu")


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> NoReturn:
    """Call `main(arguments)` and exit: its code, or 2 with one sentence for an expected error."""
    choose_platform()
    try:
        code = main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left. Nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    except UserError as error:
        if os.environ.get(TRACEBACK):
            raise
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
