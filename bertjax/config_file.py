"""The config file that a command line names: found, run, and its failures told in one sentence."""

from __future__ import annotations

import itertools
import os
import pathlib
import runpy
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import config_dict

from bertjax.errors import UserError

FLAG = "--config"


def read(arguments: Sequence[str]) -> tuple[str, config_dict.ConfigDict]:
    """The last --config=FILE[:ARGUMENT] and what the file's get_config(ARGUMENT) returns.

    Raises:
        UserError: no such flag or file, or the file fails, with the line where it does.
    """
    paths = [a.partition("=")[2] for a in arguments if a.startswith(f"{FLAG}=")]
    paths += [b for a, b in itertools.pairwise(arguments) if a == FLAG]
    if not paths:
        raise UserError("no config: give one with --config=configs/NAME.py")
    file, _, argument = paths[-1].partition(":")
    if not pathlib.Path(file).is_file():
        raise UserError(f"--config={paths[-1]}: no file {file} (seen from {os.getcwd()})")
    get_config = _called(paths[-1], file, lambda: runpy.run_path(file).get("get_config"))
    if get_config is None:
        raise UserError(f"--config={paths[-1]}: {file} defines no get_config(argument)")
    config = _called(paths[-1], file, lambda: get_config(argument))
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(
            f"--config={paths[-1]}: get_config returns {type(config).__name__}, and a ConfigDict "
            "is needed: start from config.default_config() and return it"
        )
    return paths[-1], config


def without(arguments: Sequence[str]) -> list[str]:
    """The arguments but for --config and its value."""
    kept = []
    for before, argument in zip([None, *arguments], arguments, strict=False):
        if not (argument == FLAG or before == FLAG or argument.startswith(f"{FLAG}=")):
            kept.append(argument)
    return kept


def _called(flag: str, file: str, function: Callable[[], Any]) -> Any:
    """What `function`, code of the file, returns."""
    try:
        return function()
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(
            f"--config={flag}: {file} is no Python, line {error.lineno}: {error.msg}"
        ) from None
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        where = f", line {lines[-1]}" if lines else ""
        what = " ".join(str(error).split())
        raise UserError(
            f"--config={flag}: {file}{where}: {type(error).__name__}: {what}"
        ) from error
