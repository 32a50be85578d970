"""The tasks: one file each, imported when asked for: one's libraries are no other's business."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from ml_collections import config_dict

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks.task import Task

# config.task -> the module of the task, and the head whose labels it has.
TASKS = {"pretrain": "", "classify": "classifier", "tag": "tagger", "answer": ""}


def _module(config: config_dict.ConfigDict) -> ModuleType:
    if config.task not in TASKS:
        raise UserError(f"config.task={config.task} is not one of {', '.join(TASKS)}")
    return importlib.import_module(f"bertjax.tasks.{config.task}")


def prepare_data(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None = None
) -> None:
    """Make what the task reads where it is not there yet; arguments as for `make_task`.

    For one process; the others wait.
    """
    _module(config).prepare_data(config, workdir, tokenizer)


def make_task(
    config: config_dict.ConfigDict,
    workdir: str,
    tokenizer: Tokenizer | None = None,
    known_labels: Sequence[str] | None = None,
) -> Task:
    """The task of a resolved config.

    Args:
        config: resolved; vocab_size and epochs may still be open and are filled in here.
        workdir: where a task may keep what it prepares.
        tokenizer: the vocabulary of the checkpoint that the run starts from, if it starts from one.
        known_labels: those of the head that the run starts from, in the order of its outputs.

    Raises:
        UserError: the data, the vocabulary and the config do not fit together.
    """
    module = _module(config)
    if TASKS[config.task]:
        return module.from_config(config, workdir, tokenizer, known_labels)
    return module.from_config(config, workdir, tokenizer)
