"""The tasks: one file each, imported when asked for: one's libraries are no other's business."""

from __future__ import annotations

from ml_collections import config_dict

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks.task import Task


def prepare_data(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None = None
) -> None:
    """Make what the task reads where it is not there yet; arguments as for `make_task`.

    For one process; the others wait.
    """
    if config.task == "pretrain":
        from bertjax.tasks import pretrain

        pretrain.prepare_data(config, workdir, tokenizer)


def make_task(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None = None
) -> Task:
    """The task of a resolved config.

    Args:
        config: resolved; vocab_size and epochs may still be open and are filled in here.
        workdir: where a task may keep what it prepares.
        tokenizer: the vocabulary of the checkpoint that the run starts from, if it starts from one.

    Raises:
        UserError: the data, the vocabulary and the config do not fit together.
    """
    if config.task == "pretrain":
        from bertjax.tasks import pretrain

        return pretrain.from_config(config, workdir, tokenizer)
    raise UserError(f"config.task={config.task} is not there yet")
