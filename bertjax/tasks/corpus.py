"""The corpus of a pretraining run: one that is prepared, or prepared here from a raw source."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from etils import epath
from ml_collections import config_dict

from bertjax.config import get, stderr
from bertjax.data import builder
from bertjax.data.corpus import exists, open_source, path_of
from bertjax.data.display import display
from bertjax.data.store import FINGERPRINT, UNFINISHED
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks.sources import VOCABULARY

# In a workdir: what the corpus beside it was prepared from.
REQUEST = "corpus_request.json"


def prepare_data(config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None) -> None:
    """Prepare a raw `data.source` in the workdir, unless that is done. For one process.

    A vocabulary that the run starts from is kept; otherwise data.vocab says which to take or
    train.
    """
    data = config.data
    folder, request = own_corpus(workdir), epath.Path(workdir) / REQUEST

    def wanted() -> dict[str, Any]:
        return {
            "source": data.source, "vocab": tokenizer.fingerprint if tokenizer else data.vocab,
            "lower_case": data.lower_case, "language": data.language, "held_out": data.held_out,
        }  # fmt: skip

    # What is prepared is not asked of its source, which may be gone.
    has = _request(workdir)
    if has != wanted() and is_prepared(_source(config)):
        return
    source, vocab = data.source, data.vocab  # of a smoke run the embedded text by now
    if has == wanted():
        stderr(
            f"{folder} was prepared from {source}, which is not read again: a run has one corpus "
            "(another --workdir takes what is there now)"
        )
        return
    if not vocab:
        raise UserError(
            f"config.data.source={source} is a raw source and needs config.data.vocab: a "
            "vocabulary file, or train:SIZE to learn one"
        )
    kept = is_prepared(folder) and _has_checkpoints(workdir)
    target = folder.parent / "corpus.new" if kept else folder
    target.rmtree(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(epath.Path(workdir) / VOCABULARY)
        vocab = str(epath.Path(workdir) / VOCABULARY)
    # A given vocabulary decides on lower-casing, unless that is turned off.
    given = not vocab.startswith("train:")
    lower_case = None if given and data.lower_case else data.lower_case
    with display() as shown:
        builder.prepare(
            source, vocab, target, lower_case=lower_case, language=data.language,
            held_out=data.held_out, seq_length=data.seq_length, progress=shown,
        )  # fmt: skip
    if kept:
        if (folder / FINGERPRINT).read_text() != (target / FINGERPRINT).read_text():
            target.rmtree()
            raise UserError(
                f"config.data.source={source} gives another corpus than the one that the run in "
                f"{workdir} was trained on, which is kept: go back to its source and settings, or "
                "take another --workdir"
            )
        target.rmtree()
    request.write_text(json.dumps(wanted()))


def _request(workdir: str) -> dict[str, Any] | None:
    """What the corpus in a workdir was prepared from, None where there is none."""
    path = epath.Path(workdir) / REQUEST
    if not is_prepared(own_corpus(workdir)) or not path.exists():
        return None
    return json.loads(path.read_text())


def check_vocabulary(config: config_dict.ConfigDict, source: str, tokens: list[str]) -> None:
    """UserError unless data.vocab is empty or names the vocabulary that `source` has."""
    vocab = config.data.vocab
    if vocab and (vocab.startswith("train:") or Tokenizer.load(vocab).vocab != tokens):
        raise UserError(
            f"config.data.vocab={vocab} was asked for, but {source} has a vocabulary of its own: "
            "leave it out"
        )


def check_asked(config: config_dict.ConfigDict, explicit: frozenset[str]) -> None:
    """UserError where the command line asks for what a prepared corpus has decided otherwise."""
    folder = path_of(config.data.source)
    if "data.vocab" in explicit:
        check_vocabulary(config, config.data.source, Tokenizer.load(folder).vocab)
    report = builder.read_report(folder)
    decided = {
        "data.lower_case": report["vocab"]["do_lower_case"], "data.language": report["language"]
    }  # fmt: skip
    for key, has in decided.items():
        if key in explicit and get(config, key) != has:
            raise UserError(
                f"config.{key}={get(config, key)} was asked for, but {config.data.source} "
                f"was prepared with {has}: leave it out, or prepare the text anew"
            )
    if "data.held_out" in explicit:
        raise UserError(
            f"config.data.held_out={config.data.held_out} was asked for, but {config.data.source} "
            "is prepared and has its held-out documents: leave it out, or prepare the text anew "
            "(bertjax.prepare --held_out=SHARE)"
        )


def _has_checkpoints(workdir: str) -> bool:
    folder = epath.Path(workdir) / "checkpoints"
    return folder.is_dir() and any(path.name.isdigit() for path in folder.iterdir())


def own_corpus(workdir: epath.PathLike) -> epath.Path:
    """Where a run keeps the corpus that it has prepared from a raw source."""
    return epath.Path(workdir) / "corpus"


def corpus_folder(config: config_dict.ConfigDict, workdir: str) -> epath.Path:
    """The prepared corpus of a run: config.data.source itself, or what was made from it."""
    has = _request(os.fspath(workdir))
    if has is not None and has["source"] == config.data.source:
        return own_corpus(workdir)
    source = _source(config)
    return path_of(source) if is_prepared(source) else own_corpus(workdir)


def is_prepared(folder: epath.PathLike) -> bool:
    """Whether a path is a corpus of bertjax.prepare."""
    return bool(folder) and exists(path_of(os.fspath(folder)) / FINGERPRINT)


def _source(config: config_dict.ConfigDict) -> str:
    """config.data.source, or the embedded text where a smoke run finds nothing there."""
    source = config.data.source
    if is_prepared(source):
        return source
    if source and (path_of(source) / UNFINISHED).exists():
        raise UserError(
            f"config.data.source={source!r} was not finished: run its python -m bertjax.prepare "
            "again"
        )
    try:
        open_source(source)
    except UserError as error:
        name = source.strip()
        there = bool(name) and exists(path_of(name))
        if there or not config.smoke:
            message = f"config.data.source={source!r}: {error}"
            if not there and re.fullmatch(r"[^,:*]*", name):
                message += (
                    "; make a corpus with python -m bertjax.prepare --source=TEXT "
                    f"--vocab=train:30522 --out={name or 'DIR'}"
                )
            raise UserError(message) from None
        stderr(f"smoke: nothing at config.data.source={source!r}, so the embedded text is used")
        config.data.source, config.data.vocab = "python_docs", "train:2000"
        return config.data.source
    return source
