"""The tasks: one file each."""

from __future__ import annotations

from ml_collections import config_dict

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks.task import Task


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
    # Imported when asked for: a task's libraries are no other task's business.
    if config.task == "pretrain":
        from bertjax.tasks import pretrain

        return pretrain.from_config(config, workdir, tokenizer)
    raise UserError(f"config.task={config.task} is not there yet")
