"""Labelled sets made from the documentation in every CPython, for smoke runs without data."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from etils import epath
from ml_collections import config_dict

from bertjax.config import stderr
from bertjax.data import dataset_sources, python_docs
from bertjax.data.labelled import is_dataset
from bertjax.errors import UserError

FOLDER, VOCAB = "smoke_data", "train:2000"
TRAIN_EXAMPLES, HELD_OUT_EXAMPLES = 240, 64
WORDS = 40  # of a text at most


def is_needed(config: config_dict.ConfigDict) -> bool:
    """Whether this is a smoke run whose training data is not there."""
    source = config.data.train
    if not config.smoke or source.startswith("hub:"):
        return False
    if not is_dataset(source):
        return not source or not epath.Path(source).exists()
    try:
        dataset_sources.find_tfds(source.split(":")[1])
    except UserError:
        return True
    return False


def write(config: config_dict.ConfigDict, workdir: str) -> None:
    """Write the set for config.task into the workdir, where it is needed; for one process."""
    if is_needed(config):
        folder = epath.Path(workdir) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        made = _MAKERS[config.task](config)
        for split, count in (("train", TRAIN_EXAMPLES), ("validation", HELD_OUT_EXAMPLES)):
            lines = (json.dumps(row) + "\n" for row in itertools.islice(made, count))
            (folder / f"{split}.jsonl").write_text("".join(lines))
        stderr(
            f"smoke: nothing at config.data.train={config.data.train!r}, so a labelled set is made "
            f"from the embedded text, in {folder}"
        )
    use(config, workdir)


def use(config: config_dict.ConfigDict, workdir: str) -> None:
    """Point the config at the set, where it is needed, and at a vocabulary."""
    if not is_needed(config):
        return
    data = config.data
    data.train = f"{workdir}/{FOLDER}/train.jsonl"
    data.validation, data.test = f"{workdir}/{FOLDER}/validation.jsonl", ""
    data.glue, data.text_column, data.label_column = "", "text", "label"
    data.pair_column = "pair" if data.pair_column else ""
    if not config.init_from and not data.vocab:
        data.vocab = VOCAB


def _paragraphs() -> Iterator[tuple[str, bool]]:
    """(a paragraph's first words, whether it stands in a topic), topics and docstrings in turn."""
    from pydoc_data.topics import topics

    documents = python_docs.documents()
    kinds = documents[: len(topics)], documents[len(topics) :]
    streams = [
        [" ".join(p.split()[:WORDS]) for d in kind for p in d if len(p.split()) > 8]
        for kind in kinds
    ]
    for topic, docstring in zip(*streams, strict=False):
        yield topic, True
        yield docstring, False


def _classify(config: config_dict.ConfigDict) -> Iterator[dict[str, Any]]:
    """Topic of the language reference, or docstring?"""
    kind = config.data.problem_type
    for (text, is_topic), (pair, _) in itertools.pairwise(_paragraphs()):
        label: Any = "topic" if is_topic else "docstring"
        if kind == "regression":
            label = len(text.split()) / WORDS
        elif kind == "multi_label":
            label = [label, "code"] if "()" in text else [label]
        yield {"text": text, "pair": pair, "label": label}


def _tag(config: config_dict.ConfigDict) -> Iterator[dict[str, Any]]:
    """Runs of words in capitals are names."""
    del config
    for text, _ in _paragraphs():
        words = re.findall(r"\w+|[^\w\s]", text)
        names = [bool(re.match(r"[A-Z]\w", word)) for word in words]
        tags = [
            "O" if not name else "I-NAME" if before else "B-NAME"
            for before, name in zip([False, *names], names, strict=False)
        ]
        yield {"text": words, "label": tags}


def _answer(config: config_dict.ConfigDict) -> Iterator[dict[str, Any]]:
    """Which word follows another one?"""
    del config
    for text, _ in _paragraphs():
        words = list(re.finditer(r"\w{3,}", text))
        if len(words) < 4:
            continue
        place = len(words) // 2
        answer = {"text": words[place + 1].group(), "answer_start": words[place + 1].start()}
        question = f"which word follows {words[place].group()}?"
        yield {"question": question, "context": text, "answers": [answer]}


_MAKERS = {"classify": _classify, "tag": _tag, "answer": _answer}
