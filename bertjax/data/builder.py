"""Prepare a corpus: documents to a TFDS dataset of token ids in ArrayRecord.

The layout of the folder is in docs/architecture.md, "A prepared corpus"; how documents become
records is in `pipeline.py`, or in `beam_builder.py` on Apache Beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import tempfile
import warnings as python_warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax.data import pipeline
from bertjax.data import report as reporting
from bertjax.data import segmenter as segmenting
from bertjax.data.corpus import (
    Source,
    exists,
    open_source,
    path_of,
)
from bertjax.data.encoder import Encoder
from bertjax.data.pipeline import Chooser, Figures, Progress, watched
from bertjax.data.reading import Reading
from bertjax.data.storage import digest_of_folder
from bertjax.data.store import CORPUS, FINGERPRINT, INDEX, REPORT, UNFINISHED, StoredIndex
from bertjax.data.tokenizer import Tokenizer, is_cased
from bertjax.data.tokenizer_files import CONFIG_FILE, VOCAB_FILE
from bertjax.errors import UserError

MOST_TOKENS = 10_000_000  # of a vocabulary that is trained: memory for more is refused
_UNFINISHED_TEXT = "This corpus is being prepared, or was interrupted: run bertjax.prepare again.\n"


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """What is kept from training.

    Attributes:
        fraction: of the documents of the source, chosen by a digest of their text, so that
            copies of a document stay together; they make the split 'validation'.
        sources: name of a further split -> its source.
    """

    fraction: float = 0.05
    sources: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise UserError(f"held_out={self.fraction} is no share of the documents: give 0 to 1")
        for name in self.sources:
            if not re.fullmatch("[a-z][a-z0-9_]*", name) or name == "train":
                raise UserError(
                    f"{name!r} cannot name a held-out set: use small letters, not train"
                )
            if name == "validation" and self.fraction:
                raise UserError("a held-out set named validation needs --held_out=0 beside it")

    @classmethod
    def parse(cls, values: Iterable[str | float]) -> HeldOut:
        """From ['0.01', 'general=wiki.jsonl']: a share, and named sources."""
        fraction, sources = None, {}
        for value in map(str, values):
            name, equals, source = value.partition("=")
            if name in sources or (not equals and fraction is not None):
                raise UserError(
                    f"held_out={value!r} comes after another {name if equals else 'share'}: give "
                    "each once, several sources of a set as NAME=SOURCE,SOURCE"
                )
            if equals:
                sources[name] = source
                continue
            try:
                fraction = float(value)
            except ValueError:
                raise UserError(f"held_out={value!r} is neither a share nor NAME=SOURCE") from None
        return cls(cls.fraction if fraction is None else fraction, sources)


def prepare(
    source: str,
    vocab: str,
    out: epath.PathLike,
    *,
    processes: int = 0,
    lower_case: bool | None = None,
    language: str = "en",
    held_out: HeldOut | float = HeldOut(),
    seed: int = 0,
    invalid_utf8: str = "replace",
    layout: str = "auto",
    seq_length: int = 128,
    segmenter: str = "",
    beam_pipeline_options: str = "",
    progress: Progress | None = None,
) -> epath.Path:
    """Turn a text source into a prepared corpus; the result does not depend on `processes`.

    Args:
        source: see `corpus.py`.
        vocab: a vocab.txt, a folder with one, or 'train:SIZE' to learn one from the source.
        out: a folder that is absent, empty, or an interrupted preparation (it is started anew).
        processes: 0 takes all cores, and 1 for a small corpus.
        lower_case: None follows the vocabulary, and is True for a new one.
        language: of the text, for sentence ends.
        held_out: documents kept for evaluation; a number is the share of documents.
        seed: of the choice of held-out documents.
        invalid_utf8: 'replace' (and count) or 'error'.
        layout: which lines are a document, see `corpus.Reading`.
        seq_length: the length that the report's padding share is for.
        segmenter: '' or 'jieba', for whole-word masking of Chinese.
        beam_pipeline_options: prepare on Apache Beam with these, 'runner=DirectRunner,...'.
        progress: called now and then.

    Returns:
        `out`, finished: fingerprint.json is written last.

    Raises:
        UserError: a bad source, vocabulary or folder, or a full disk.
    """
    if not os.fspath(out).strip():
        raise UserError("out is empty: name a new folder")
    out = path_of(os.fspath(out))
    if not isinstance(held_out, HeldOut):
        held_out = HeldOut(held_out)
    if processes < 0:
        raise UserError(f"processes={processes} must be 0 (all cores) or more")
    if beam_pipeline_options and "://" in os.fspath(out):
        raise UserError(
            f"on Beam, out={out} must be a folder that every worker sees (a shared file system or "
            "a mounted bucket): ArrayRecord writes no remote paths"
        )
    segmenting.check(segmenter)
    _check_language(language)
    opened = open_source(source, Reading(layout, invalid_utf8))
    named = {
        name: open_source(spec, Reading(layout, invalid_utf8))
        for name, spec in held_out.sources.items()
    }
    _check_apart(opened, named)
    _check_out(out)
    make_tokenizer = _vocabulary(vocab, opened, lower_case, progress)
    with _local(out) as folder:
        _start(folder)
        tokenizer = make_tokenizer()
        tokenizer.save(folder)
        encoder = Encoder(tokenizer, language, segmenter)
        choose = Chooser(held_out.fraction, seed)
        if beam_pipeline_options:
            statistics, figures = _on_beam(
                folder, opened, named, encoder, choose.settled(opened), beam_pipeline_options
            )
        else:
            statistics, figures = pipeline.build(
                folder, opened, named, encoder, processes, progress, choose
            )
        notes = [note for part in (opened, *named.values()) for note in part.reading.notes]
        _finish(folder, source, encoder, statistics, figures, notes, seq_length, held_out)
    return out


def open_prepared(path: epath.PathLike, vocab_fingerprint: str | None = None) -> epath.Path:
    """The folder of a finished prepared corpus.

    Args:
        vocab_fingerprint: `Tokenizer.fingerprint` of the vocabulary that the corpus must have.

    Raises:
        UserError: it is absent, unfinished, incomplete, or of another vocabulary.
    """
    path = path_of(os.fspath(path))
    if not path.is_dir():
        raise UserError(f"no prepared corpus {path}: make one with python -m bertjax.prepare")
    if not (path / FINGERPRINT).exists():
        state = "was not finished" if (path / UNFINISHED).exists() else "is no prepared corpus"
        raise UserError(f"{path} {state}: run python -m bertjax.prepare --out={path}")
    fingerprint = json.loads((path / FINGERPRINT).read_text())
    found = Tokenizer.load(path).fingerprint
    if found != fingerprint["vocab"]:
        raise UserError(f"the vocabulary in {path} is not the one it was prepared with: restore it")
    if vocab_fingerprint not in (None, found):
        raise UserError(
            f"{path} was prepared with another vocabulary than the model's: prepare it again with "
            "the model's --vocab"
        )
    if digest_of_folder(path) != fingerprint["dataset"]:
        raise UserError(f"files of {path} are missing or changed since it was prepared: restore it")
    return path


def _check_apart(source: Source, named: dict[str, Source]) -> None:
    """UserError where a named held-out set is a part of what is trained on."""
    for name, part in named.items():
        if both := sorted(set(part.origins) & set(source.origins)):
            raise UserError(
                f"held_out={name}={part.name}: {both[0]} is in source={source.name} too, so it "
                "would be trained on: take it out of one of them"
            )


def _check_language(language: str) -> None:
    if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]+)?", language):
        raise UserError(f"language {language!r} is no language code such as en, de or zh")


def _check_out(out: epath.Path) -> None:
    if not exists(out):
        return
    if not out.is_dir():
        raise UserError(f"{out} is a file: name a new folder")
    if (out / FINGERPRINT).exists():
        raise UserError(f"{out} holds a finished corpus: use it, remove it, or name another folder")
    if not (out / UNFINISHED).exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: name a new folder")


def _vocabulary(
    vocab: str, source: Source, lower_case: bool | None, progress: Progress | None
) -> Callable[[], Tokenizer]:
    """How to get the tokenizer; a bad name or size is refused at once."""
    if not vocab.strip():
        raise UserError("vocab is empty: give a vocab.txt, a folder with one, or train:30522")
    if not vocab.startswith("train:"):
        with _noted(source):
            tokenizer = Tokenizer.load(vocab, do_lower_case=lower_case)
        for name in ("pad_id", "cls_id", "sep_id", "mask_id"):
            getattr(tokenizer, name)
        return lambda: tokenizer
    size = vocab.removeprefix("train:").replace("_", "")
    if not size.isdecimal() or not 100 <= int(size) <= MOST_TOKENS:
        raise UserError(
            f"vocab={vocab!r} needs a number of tokens, 100 to {MOST_TOKENS:,}: train:30522"
        )

    def train() -> Tokenizer:
        texts = watched(source.paragraphs(), source, "vocabulary", progress)
        with _noted(source):
            return Tokenizer.train(texts, int(size), do_lower_case=lower_case is not False)

    return train


@contextlib.contextmanager
def _noted(source: Source) -> Iterator[None]:
    """Warnings of the tokenizer become notes of the report."""
    with python_warnings.catch_warnings(record=True) as caught:
        python_warnings.simplefilter("always")
        yield
    for warning in caught:
        source.reading.note(str(warning.message))


@contextlib.contextmanager
def _local(out: epath.Path) -> Iterator[epath.Path]:
    """Where to build: `out`, or a local folder that is copied to a remote `out` at the end."""
    try:
        if "://" not in os.fspath(out):
            yield out
            return
        with tempfile.TemporaryDirectory() as folder:
            yield epath.Path(folder)
            _publish(epath.Path(folder), out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            reason = "the disk is full"
        else:
            reason = str(error)
        if not out.exists():
            raise UserError(f"{out} could not be made ({reason}): name another folder") from error
        raise UserError(
            f"{out} could not be written ({reason}); it is left marked as unfinished: make room "
            "and run the command again"
        ) from error


def _publish(folder: epath.Path, out: epath.Path) -> None:
    """Copy a finished corpus to a remote folder, which is marked as unfinished meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    (out / UNFINISHED).write_text(_UNFINISHED_TEXT)
    files = sorted(p for p in map(epath.Path, _walk(os.fspath(folder))) if p.name != FINGERPRINT)
    for path in files:
        target = out / os.path.relpath(path, folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.copy(target, overwrite=True)
    (out / UNFINISHED).unlink()
    (folder / FINGERPRINT).copy(out / FINGERPRINT, overwrite=True)


def _walk(folder: str) -> Iterator[str]:
    for base, _, names in os.walk(folder):
        yield from (os.path.join(base, name) for name in names)


def _start(folder: epath.Path) -> None:
    """Mark the folder as unfinished and clear what an interrupted preparation left."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED).write_text(_UNFINISHED_TEXT)
    for name in (CORPUS.split("/")[0], INDEX):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (REPORT, VOCAB_FILE, CONFIG_FILE):
        (folder / name).unlink(missing_ok=True)


def _on_beam(
    folder: epath.Path,
    source: Source,
    named: dict[str, Source],
    encoder: Encoder,
    choose: Chooser,
    options: str,
) -> tuple[reporting.Statistics, Figures]:
    try:
        from bertjax.data import beam_builder
    except ImportError:
        raise UserError("Apache Beam is not installed: pip install 'bertjax[beam]'") from None
    requests = [
        beam_builder.Request(
            part.name, part.reading.layout, part.reading.invalid_utf8, name, choose, encoder
        )
        for name, part in {"": source, **named}.items()
    ]
    splits = ["train", *(["validation"] if choose.fraction else []), *named]
    return beam_builder.build(folder, requests, splits, options)


def _finish(
    folder: epath.Path,
    source: str,
    encoder: Encoder,
    statistics: reporting.Statistics,
    splits: Figures,
    notes: list[str],
    seq_length: int,
    held_out: HeldOut,
) -> None:
    """The report and, last of all, the fingerprint."""
    tokenizer = encoder.tokenizer
    random_share, padding = reporting.pair_figures(
        StoredIndex(os.fspath(folder), "train"), seq_length
    )
    report: dict[str, Any] = {
        "source": source,
        "language": encoder.language,
        "segmenter": encoder.segmenter,
        "vocab": {
            "size": tokenizer.vocab_size,
            "cased": is_cased(tokenizer.vocab),
            "fingerprint": tokenizer.fingerprint,
            **tokenizer.settings,
        },
        "splits": splits,
        **statistics.figures(),
        "ideograph_share": reporting.ideograph_share(
            np.load(folder / INDEX / "train.counts.npy"), tokenizer.vocab
        ),
        "nsp_random_share": random_share,
        "seq_length": seq_length,
        "padding_share": padding,
        "counts": dict(sorted(statistics.counts.items())),
        "notes": notes,
    }
    report["warnings"] = reporting.warnings(report)
    report["warnings"] += reporting.held_out_warnings(splits, held_out.fraction)
    if held_out.fraction and "validation" not in splits and report["documents"] > 1:
        report["warnings"].append(
            "nothing is held out, since that would leave fewer than two different documents to "
            "train on: divide the text into documents (--layout), or add --held_out=NAME=SOURCE"
        )
    (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    fingerprint = {"dataset": digest_of_folder(folder), "vocab": tokenizer.fingerprint}
    (folder / UNFINISHED).unlink()
    (folder / FINGERPRINT).write_text(json.dumps(fingerprint, indent=2) + "\n")


def read_report(path: epath.PathLike) -> dict[str, Any]:
    """The data report of a prepared corpus."""
    return json.loads((epath.Path(path) / REPORT).read_text())


def split_names(path: epath.PathLike) -> Sequence[str]:
    """The splits of a prepared corpus, 'train' first."""
    return list(read_report(path)["splits"])
