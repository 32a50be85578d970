"""Text sources: a name becomes documents, read lazily, a paragraph at a time.

A source is named in the same way everywhere (`bertjax.prepare --source`, `data.source`):

    python_docs                        the documentation in every CPython installation
    PATH, FOLDER or GLOB               .txt and .md files, also .gz and .zst
    PATH or GLOB of .jsonl, .parquet   one document a row; another field than 'text' by PATH:FIELD
    tfds:NAME/CONFIG:SPLIT[:FIELD]     a dataset that TFDS has prepared
    hub:ORG/NAME/CONFIG:SPLIT[:FIELD]  a Hugging Face dataset, streamed (extra `hub`)
    SOURCE@3,SOURCE@1                  a mixture: these shares of the text; without shares, all
                                       of the first source, then all of the next

A document is an iterator of paragraphs: strings without line ends, at most `MAX_PARAGRAPH`
characters long. Take all of one document before the next.
"""

from __future__ import annotations

import functools
import glob as globbing
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from etils import epath

from bertjax.data import python_docs
from bertjax.data.reading import (
    MARKDOWN,
    MAX_PARAGRAPH,
    ROWS,
    TEXT,
    Document,
    Reader,
    Reading,
    cut,
    kind,
    read_file,
)
from bertjax.data.store import FINGERPRINT, UNFINISHED
from bertjax.errors import UserError

_REMEDIES = {  # of files that are no text, by their extension
    **dict.fromkeys((".json", ".csv", ".tsv"), "write its texts one a row in .jsonl or .parquet"),
    **dict.fromkeys((".bz2", ".xz", ".zip", ".tar", ".7z"), "unpack it, or use gzip or zstd"),
    **dict.fromkeys((".html", ".xml", ".pdf", ".docx", ".epub"), "convert it to .txt or .md"),
}


class Source:
    """A corpus that can be read as often as wanted.

    Attributes:
        name: the source as it was named.
        parts: readers of the parts that can be read apart from each other, such as files.
        origins: what it consists of: the real paths of its files, or the names of datasets.
        size: bytes of all its files, None where unknown; the progress bar's total.
        reading: how it is read; its counts are those of the latest `documents()`.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Reader],
        reading: Reading,
        origins: Iterable[str],
        size: int | None = None,
    ) -> None:
        self.name = name
        self.parts = parts
        self.origins = tuple(origins)
        self.size = size
        self.reading = reading

    def documents(self) -> Iterator[Document]:
        """Every document in the source's own order; empty ones are left out and counted."""
        self.reading.counts.clear()
        self.reading.bytes_read = 0
        for document in itertools.chain.from_iterable(read(self.reading) for read in self.parts):
            paragraphs = self._paragraphs(document)
            first = next(paragraphs, None)
            if first is None:
                self.reading.counts["empty_documents"] += 1
                continue
            document = itertools.chain([first], paragraphs)
            yield document
            for _ in document:  # what the caller has left
                pass

    def paragraphs(self) -> Iterator[str]:
        """The whole text, to learn a vocabulary from."""
        return itertools.chain.from_iterable(self.documents())

    def _paragraphs(self, lines: Iterable[str]) -> Document:
        for line in lines:
            parts = (line,) if len(line) <= MAX_PARAGRAPH else cut(line, self.reading.counts)
            for part in parts:
                if part := part.strip():
                    yield part


def open_source(spec: str, reading: Reading | None = None) -> Source:
    """The source that `spec` names (see the module's text). Nothing is read yet.

    Raises:
        UserError: nothing has that name; the message says what would.
    """
    reading = reading or Reading()
    spec = spec.strip()
    if not spec:
        raise UserError("the source is empty: name a file, a folder, a glob or python_docs")
    if "," in spec and not _is_one(spec):
        return _mixture(spec, reading)
    if spec == "python_docs":
        return Source(spec, [lambda _: map(iter, python_docs.documents())], reading, [spec])
    if spec.startswith(("tfds:", "hub:")):
        from bertjax.data import dataset_sources  # heavy imports, only where they are needed

        return Source(spec, [dataset_sources.reader(spec)], reading, [spec])
    return _files(spec, reading)


# Files


def _is_one(spec: str) -> bool:
    """Whether a spec with a comma in it is one path or glob and not a mixture."""
    path = _split_field(spec)[0]
    local = "://" not in path and globbing.has_magic(path)
    return exists(path_of(path)) or (local and any(map(exists, _glob(path))))


def _files(spec: str, reading: Reading) -> Source:
    spec, field = _split_field(spec)
    paths, several = _matches(spec, reading)
    for path in paths:
        if remedy := _REMEDIES.get(path.suffix.lower()):
            raise UserError(f"{path} is no text: {remedy}")
    kinds = {kind(path) for path in paths}
    layouts = {path: _layout(path, several and len(paths) > 1, reading) for path in paths}
    for layout in sorted(set(filter(None, layouts.values()))):
        number = sum(value == layout for value in layouts.values())
        meaning = {
            "file": "a file is a document",
            "blank_line": "blank lines divide documents",
            "line": "a line is a document",
        }[layout]
        reading.note(f"{spec}: {number} text file{'s' * (number > 1)}, {meaning}")
    if field != "text" and not kinds & set(ROWS):
        raise UserError(f"{spec} has no fields: leave out ':{field}'")

    parts = [functools.partial(read_file, path, field, layouts[path]) for path in paths]
    return Source(spec, parts, reading, map(_real, paths), sum(map(_size, paths)))


def _split_field(spec: str) -> tuple[str, str]:
    """'data/*.jsonl:body' -> ('data/*.jsonl', 'body')."""
    match = re.fullmatch(r"(.+\.(?:jsonl|parquet)(?:\.gz|\.zst)?):([^/:]+)", spec)
    return match.groups() if match else (spec, "text")


def _size(path: epath.Path) -> int:
    try:
        return path.stat().length
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): repair or remove it") from None


def exists(path: epath.Path) -> bool:
    """Whether there is something; UserError where a package for such remote paths is missing."""
    try:
        return path.exists()
    except ImportError as error:  # of what the path library needs for remote paths
        raise UserError(f"{path} cannot be reached here ({error})") from None


def path_of(spec: str) -> epath.Path:
    """A path, local or remote; UserError for a kind that the path library does not know."""
    try:
        return epath.Path(spec).expanduser()
    except KeyError:
        raise UserError(
            f"{spec} cannot be reached: give a local path, or one in a bucket (gs://, s3://)"
        ) from None


def _matches(spec: str, reading: Reading) -> tuple[list[epath.Path], bool]:
    """The files of a path, folder or glob, sorted; and whether it could give several."""
    path = path_of(spec)
    if exists(path) and path.is_dir():
        if (path / FINGERPRINT).exists():
            raise UserError(
                f"{spec} is a prepared corpus already: train on it, --config.data.source={spec}"
            )
        files = sorted(_walk(path, reading, set()))
        found = [p for p in files if kind(p)]
        others = Counter(p.suffix or "no extension" for p in files if not kind(p))
        if others:
            kinds = ", ".join(f"{name}: {number}" for name, number in others.most_common(5))
            reading.note(f"{spec}: {others.total()} files of other kinds are left out ({kinds})")
        if not found:
            raise UserError(
                f"folder {spec} holds no {', '.join(TEXT + MARKDOWN + ROWS)} file: "
                f"name the files by a glob such as '{spec.rstrip('/')}/*'"
            )
        return found, True
    if exists(path):
        return [path], False
    if not globbing.has_magic(spec):
        raise UserError(
            f"no source {spec}: give an existing file or folder, a glob, python_docs, tfds:... or "
            "hub:..."
        )
    files = sorted(p for p in _glob(spec) if p.is_file() and not _is_prepared(p.parent))
    found = list({_real(path): path for path in reversed(files)}.values())[::-1]
    if len(found) < len(files):
        reading.note(f"{spec}: {len(files) - len(found)} links to files in it are left out")
    if not found:
        raise UserError(f"no file matches {spec}: check the path, and quote the glob in a shell")
    return found, True


def _walk(folder: epath.Path, reading: Reading, above: set[str]) -> Iterator[epath.Path]:
    """Every file below a folder, but for names that start with a dot and prepared corpora.

    `above` are the real paths of the folders on the way: a link to one of them is not followed.
    """
    real = _real(folder)
    if real in above:
        reading.note(f"{folder} is a link to a folder above it and is left out")
        return
    if _is_prepared(folder):
        reading.note(f"{folder} is a prepared corpus and is left out")
        return
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): make it readable") from None
    for path in names:
        if not path.name.startswith("."):
            yield from _walk(path, reading, above | {real}) if path.is_dir() else (path,)


def _real(path: epath.Path) -> str:
    """A local path without links."""
    return os.fspath(path) if "://" in os.fspath(path) else os.path.realpath(path)


def _is_prepared(folder: epath.Path) -> bool:
    return any((folder / name).exists() for name in (FINGERPRINT, UNFINISHED))


def _glob(spec: str) -> Iterator[epath.Path]:
    """Local globs may hold '**'; remote ones are left to the path library, which has none."""
    if "://" not in spec:
        return map(epath.Path, globbing.iglob(os.path.expanduser(spec), recursive=True))
    base, _, pattern = spec.partition("://")
    bucket, _, pattern = pattern.partition("/")
    return epath.Path(f"{base}://{bucket}").glob(pattern)


def _layout(path: epath.Path, several: bool, reading: Reading) -> str:
    if kind(path) in ROWS:
        return ""
    if reading.layout != "auto":
        return reading.layout
    return "file" if several or kind(path) in MARKDOWN else "blank_line"


# Mixtures


def _mixture(spec: str, reading: Reading) -> Source:
    parts = [re.fullmatch(r"(.+?)(?:@([0-9.]+))?", part.strip()) for part in spec.split(",")]
    if not all(parts):
        raise UserError(f"a source of the mixture {spec!r} is empty: write SOURCE@SHARE,...")
    weights = [match[2] for match in parts]
    if any(weights) and not all(weights):
        raise UserError(f"give a share (SOURCE@SHARE) to every source of {spec!r}, or to none")
    sources = [open_source(match[1], reading) for match in parts]
    origins = [origin for source in sources for origin in source.origins]
    size = None if any(s.size is None for s in sources) else sum(s.size for s in sources)
    if not any(weights):
        together = [part for source in sources for part in source.parts]
        return Source(spec, together, reading, origins, size)
    try:
        shares = [float(weight) for weight in weights]
    except ValueError:
        raise UserError(f"a share in {spec!r} is no number: write SOURCE@SHARE") from None
    if min(shares) <= 0:
        raise UserError(f"shares must be above 0: change {spec!r}")
    parts = [source.parts for source in sources]
    return Source(spec, [functools.partial(_interleave, spec, parts, shares)], reading, origins)


def _interleave(
    spec: str,
    sources: Sequence[Sequence[Reader]],
    shares: list[float],
    reading: Reading,
) -> Iterator[Document]:
    """Documents in turn, so that the characters taken so far follow the shares.

    Ends when the source that is due has no more documents; what the others have left is said.
    """
    streams = [itertools.chain.from_iterable(read(reading) for read in parts) for parts in sources]
    taken = [0] * len(streams)

    def counted(document: Document, i: int) -> Document:
        for paragraph in document:
            taken[i] += len(paragraph)
            yield paragraph

    while True:
        due = min(range(len(streams)), key=lambda i: (taken[i] / shares[i], i))
        document = next(streams[due], None)
        if document is None:
            break
        before = taken[due]
        yield counted(document, due)
        if taken[due] == before:
            taken[due] += 1  # an empty document must not leave its source due for ever
    parts = ", ".join(f"{n:,}" for n in taken)
    reading.note(
        f"{spec}: the mixture ends with source {due + 1}, the first without more text; "
        f"characters taken of each: {parts}"
    )
