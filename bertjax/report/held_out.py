"""The texts of a page: a run's held-out examples, or those of the command line."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from ml_collections import config_dict

from bertjax import config as configs
from bertjax.data import builder
from bertjax.data.store import PreparedCorpus
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.report.gather import corpus_of
from bertjax.tasks.sources import split_sources
from bertjax.train import workdir as workdirs

# Of a held-out corpus: this many documents, evenly spread, and sentences of each.
DOCUMENTS, SENTENCES = 10, 20
SHORTEST_SENTENCE, LONGEST_SENTENCE = 6, 40  # tokens
LONGEST_LABEL = 60  # characters


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts for the model, with what is known of them.

    `labels` colour the map of vectors: the given label of an example, or its document; '' where
    there is none. `what` says where they come from; `given` whether a person chose them.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: list[str]
    what: str
    given: bool = False

    def spread(self, most: int) -> Texts:
        """At most `most` of them, evenly spread."""
        count = len(self.texts)
        if count <= most:
            return self
        kept = [i * count // most for i in range(most)]
        return dataclasses.replace(
            self,
            texts=[self.texts[i] for i in kept],
            pairs=None if self.pairs is None else [self.pairs[i] for i in kept],
            labels=[self.labels[i] for i in kept],
        )


def chosen(texts: list[str]) -> Texts:
    """Texts of the command line."""
    return Texts(texts, None, [""] * len(texts), "the texts of the command line", True)


def run_config(path: str) -> config_dict.ConfigDict:
    """The config of a run; keys of another version are left at their defaults."""
    saved = workdirs.read_config(path)
    known = configs.flat(saved[0]) if saved else {}
    config = configs.default_config()
    return configs.update(config, {key: known[key] for key in configs.BY_KEY if key in known})


def read(path: str) -> dict[str, Texts]:
    """The held-out texts of a run by split, in order, whole.

    Raises:
        UserError: the data is no longer there, or none was held out.
    """
    config = run_config(path)
    if config.task == "pretrain":
        return _corpus(path, config.to_dict())
    sources = {s: x for s, x in split_sources(config).items() if s != "train"}
    if not sources:
        raise UserError("the run has no held-out examples.")
    module = importlib.import_module(f"bertjax.tasks.{config.task}")
    more: dict[str, Any] = {}
    if config.task == "classify":  # the labels tell a header from a row
        saved = workdirs.read_config(path)
        more = {"known": (saved[1].get("labels") if saved else None) or ()}
    return {
        split: _examples(config.task, module.read(config, split, source, **more))
        for split, source in sources.items()
    }


def _examples(task: str, part: Any) -> Texts:
    what = f"the held-out examples of {epath.Path(part.source).name}"
    if task == "tag":
        texts = [" ".join(sentence.words) for sentence in part.sentences]
        return Texts(texts, None, [""] * len(texts), what)
    if task == "answer":
        questions = [question.question for question in part.questions]
        contexts = [question.context for question in part.questions]
        return Texts(questions, contexts, [""] * len(questions), what)
    labels = [""] * len(part.texts)
    if part.targets is not None:
        labels = [_label(target) for target in part.targets]
    return Texts(list(part.texts), part.pairs, labels, what)


def _label(target: Any) -> str:
    if isinstance(target, tuple):
        return ", ".join(target) or "(none)"
    return target[:LONGEST_LABEL] if isinstance(target, str) else ""


def _corpus(path: str, settings: Mapping[str, Any]) -> dict[str, Texts]:
    """Sentences of held-out documents. Their label is the document."""
    folder = corpus_of(path, settings)
    if folder is None:
        raise UserError("the prepared corpus of the run is no longer where it was.")
    splits = [split for split in builder.split_names(folder) if split != "train"]
    if not splits:
        raise UserError("nothing of the corpus was held out.")
    corpus, tokenizer = PreparedCorpus(folder, splits[0]), Tokenizer.load(folder)
    texts, labels = [], []
    records = np.unique(corpus.documents, return_index=True)[1]  # the first of each document
    wanted = records[np.linspace(0, len(records) - 1, min(DOCUMENTS, len(records))).astype(int)]
    for record, content in zip(wanted, corpus.read(wanted), strict=True):
        lengths = corpus.lengths[corpus.offsets[record] : corpus.offsets[record + 1]]
        sentences = np.split(content["ids"], np.cumsum(lengths.astype(int))[:-1])
        fitting = [s for s in sentences if SHORTEST_SENTENCE <= len(s) <= LONGEST_SENTENCE]
        for ids in fitting[:SENTENCES]:
            texts.append(tokenizer.decode(ids))
            labels.append(f"document {int(corpus.documents[record]) + 1}")
    if not texts:
        raise UserError(
            f"no held-out sentence has {SHORTEST_SENTENCE} to {LONGEST_SENTENCE} tokens."
        )
    what = f"held-out sentences of {len(wanted)} documents (split {splits[0]})"
    return {splits[0]: Texts(texts, None, labels, what)}
