"""What fine-tuning tasks read: sources of the splits, their vocabulary, what is said of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from etils import epath
from ml_collections import config_dict

from bertjax.config import stderr
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# In a workdir: the vocabulary that a run without init_from has learnt.
VOCABULARY = "vocabulary"
REQUEST = "request.json"  # beside that vocabulary: what it was learnt from
PLACES_NAMED = 3


def split_sources(config: config_dict.ConfigDict) -> dict[str, str]:
    """Split -> source: 'train', 'validation', 'test', and 'validation_NAME' for further sets.

    Raises:
        UserError: no training data and nothing else either.
    """
    sources = {"train": config.data.train} if config.data.train else {}
    for split in ("validation", "test"):
        for part in re.split(r",(?=\w+=)", config.data[split]):
            name, equals, source = part.partition("=")
            # A folder's name may hold the mark, too.
            named = bool(equals and re.fullmatch(r"\w+", name)) and not epath.Path(part).exists()
            key = f"{split}_{name}" if named else split
            if key in sources:
                raise UserError(
                    f"config.data.{split}={config.data[split]} gives two sets one name: write "
                    "FILE, or NAME=FILE,NAME=FILE with different names"
                )
            if part:
                sources[key] = source if named else part
    if not sources:
        raise UserError(
            f"config.task={config.task} needs labelled data: set --config.data.train=FILE and "
            "--config.data.validation=FILE (docs/finetuning.md shows each form)"
        )
    return sources


def say_all(notes: Iterable[str]) -> None:
    """Notes of reading, to the person at the terminal."""
    for note in notes:
        stderr(note)


def places(found: Sequence[str]) -> str:
    """'line 3, line 8 and 12 more'."""
    more = len(found) - PLACES_NAMED
    return ", ".join(found[:PLACES_NAMED]) + (f" and {more} more" if more > 0 else "")


def learn_vocabulary(
    config: config_dict.ConfigDict,
    workdir: str,
    tokenizer: Tokenizer | None,
    texts: Callable[[], Iterable[str]],
) -> None:
    """With data.vocab=train:SIZE, and without `tokenizer`, that of a checkpoint, learn the
    vocabulary of the training texts into the workdir, once."""
    folder, data = epath.Path(workdir) / VOCABULARY, config.data
    if tokenizer is not None or not data.vocab.startswith("train:"):
        return
    size = data.vocab.removeprefix("train:")
    if not size.isdigit():
        raise UserError(f"config.data.vocab={data.vocab}: train: needs a size, such as train:8000")
    request = folder / REQUEST
    wanted = {"vocab": data.vocab, "train": data.train, "lower_case": data.lower_case}
    if request.exists() and json.loads(request.read_text()) == wanted:
        return
    Tokenizer.train(texts(), int(size), do_lower_case=data.lower_case).save(folder)
    request.write_text(json.dumps(wanted))


def find_tokenizer(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None
) -> Tokenizer:
    """The vocabulary of the run, and its size and casing noted in the config.

    Raises:
        UserError: there is none, or one larger than the model's embedding.
    """
    if tokenizer is None:
        vocab = config.data.vocab
        if not vocab:
            raise UserError(
                f"config.task={config.task} starts from a checkpoint: set --config.init_from=PATH "
                "(or, for random weights, --config.data.vocab=FILE or train:SIZE)"
            )
        own = epath.Path(workdir) / VOCABULARY
        tokenizer = load_vocabulary(own if vocab.startswith("train:") else vocab, config)
    config.data.lower_case = tokenizer.settings["do_lower_case"]
    if config.model.vocab_size == 0:
        config.model.vocab_size = tokenizer.vocab_size
    if config.model.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} tokens, but config.model.vocab_size="
            f"{config.model.vocab_size}: set it to 0, or take the model's own vocabulary"
        )
    return tokenizer


def load_vocabulary(path: epath.PathLike, config: config_dict.ConfigDict) -> Tokenizer:
    """A given vocabulary. It decides on lower-casing; data.lower_case=False turns that off."""
    tokenizer = Tokenizer.load(path, do_lower_case=None if config.data.lower_case else False)
    if config.data.lower_case and not tokenizer.settings["do_lower_case"]:
        stderr(f"{path} is a vocabulary for text with capitals: nothing is lower-cased")
    return tokenizer


def drawn(count: int, split: str, config: config_dict.ConfigDict) -> np.ndarray:
    """The numbers, ascending, of the examples that are used of `count`: of a training set
    data.limit, drawn by the seed, of others the first data.eval_examples; 0 = all."""
    limit = config.data.limit if split == "train" else config.data.eval_examples
    if not limit or limit >= count:
        return np.arange(count)
    if split != "train":
        return np.arange(limit)
    return np.sort(np.random.default_rng(config.seed).choice(count, limit, replace=False))
