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

import codecs
import dataclasses
import functools
import glob as globbing
import gzip
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from etils import epath

from bertjax.data import python_docs
from bertjax.errors import UserError

# Longer lines are cut, at a blank where there is one, and counted.
MAX_PARAGRAPH = 1 << 16
LAYOUTS = ("auto", "file", "blank_line", "line")
TEXT, MARKDOWN, ROWS = (".txt", ".text"), (".md", ".markdown"), (".jsonl", ".parquet")
COMPRESSED = (".gz", ".zst")

Document = Iterator[str]
Reader = Callable[["Reading"], Iterator[Document]]


@dataclasses.dataclass
class Reading:
    """How to read, and what was met on the way.

    Attributes:
        layout: which lines of a text file are a document. 'file': all of them; 'blank_line':
            those between blank lines, one sentence or one paragraph a line (the format of the
            published BERT code); 'line': each one; 'auto': 'file' for Markdown and for text files
            that a folder or a glob gave several of, 'blank_line' for a single text file.
        invalid_utf8: 'replace' puts U+FFFD, which the tokenizer drops, and counts; 'error' refuses.
        counts: things that are worth a word in the report (see `report.py`).
        notes: decisions, as sentences.
        bytes_read: of files, compressed as they are; the progress bar's position.
    """

    layout: str = "auto"
    invalid_utf8: str = "replace"
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    notes: list[str] = dataclasses.field(default_factory=list)
    bytes_read: int = 0

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UserError(f"unknown layout {self.layout!r}: choose from {', '.join(LAYOUTS)}")
        if self.invalid_utf8 not in ("replace", "error"):
            raise UserError(f"invalid_utf8={self.invalid_utf8!r}: choose replace or error")

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


class Source:
    """A corpus that can be read as often as wanted.

    Attributes:
        name: the source as it was named.
        parts: readers of the parts that can be read apart from each other, such as files.
        size: bytes of all its files, None where unknown; the progress bar's total.
        reading: how it is read; its counts are those of the latest `documents()`.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Reader],
        reading: Reading,
        size: int | None = None,
    ) -> None:
        self.name = name
        self.parts = parts
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
            parts = (line,) if len(line) <= MAX_PARAGRAPH else _cut(line, self.reading.counts)
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
    if "," in spec and not epath.Path(spec).exists():
        return _mixture(spec, reading)
    if spec == "python_docs":
        return Source(spec, [lambda _: map(iter, python_docs.documents())], reading)
    if spec.startswith(("tfds:", "hub:")):
        from bertjax.data import dataset_sources  # heavy imports, only where they are needed

        return Source(spec, [dataset_sources.reader(spec)], reading)
    return _files(spec, reading)


# Files


def _files(spec: str, reading: Reading) -> Source:
    spec, field = _split_field(spec)
    paths, several = _matches(spec)
    kinds = {_kind(path) for path in paths}
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

    parts = [functools.partial(_read_file, path, field, layouts[path]) for path in paths]
    return Source(spec, parts, reading, sum(path.stat().length for path in paths))


def _read_file(path: epath.Path, field: str, layout: str, reading: Reading) -> Iterator[Document]:
    match _kind(path):
        case ".jsonl":
            yield from _rows_to_documents(_read_jsonl(path, field, reading))
        case ".parquet":
            yield from _rows_to_documents(_read_parquet(path, field, reading))
        case _:
            yield from _text_documents(path, layout, reading)


def _split_field(spec: str) -> tuple[str, str]:
    """'data/*.jsonl:body' -> ('data/*.jsonl', 'body')."""
    match = re.fullmatch(r"(.+\.(?:jsonl|parquet)(?:\.gz|\.zst)?):([^/:]+)", spec)
    return match.groups() if match else (spec, "text")


def _kind(path: epath.Path) -> str:
    """The extension that says what is inside: '.txt' of 'a.txt.gz'; '' for an unknown one."""
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in COMPRESSED]
    last = suffixes[-1] if suffixes else ""
    return last if last in TEXT + MARKDOWN + ROWS else ""


def _matches(spec: str) -> tuple[list[epath.Path], bool]:
    """The files of a path, folder or glob, sorted; and whether it could give several."""
    path = epath.Path(spec).expanduser()
    if path.is_dir():
        found = sorted(p for p in _walk(path) if _kind(p))
        if not found:
            raise UserError(
                f"folder {spec} holds no {', '.join(TEXT + MARKDOWN + ROWS)} file: "
                f"name the files by a glob such as '{spec.rstrip('/')}/*'"
            )
        return found, True
    if path.exists():
        return [path], False
    if not globbing.has_magic(spec):
        raise UserError(
            f"no source {spec}: give an existing file or folder, a glob, python_docs, tfds:... or "
            "hub:..."
        )
    found = sorted(p for p in _glob(spec) if p.is_file())
    if not found:
        raise UserError(f"no file matches {spec}: check the path, and quote the glob in a shell")
    return found, True


def _walk(folder: epath.Path) -> Iterator[epath.Path]:
    """Every file below a folder; names that start with a dot are left out."""
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield from _walk(path) if path.is_dir() else (path,)


def _glob(spec: str) -> Iterator[epath.Path]:
    """Local globs may hold '**'; remote ones are left to the path library, which has none."""
    if "://" not in spec:
        return map(epath.Path, globbing.iglob(os.path.expanduser(spec), recursive=True))
    base, _, pattern = spec.partition("://")
    bucket, _, pattern = pattern.partition("/")
    return epath.Path(f"{base}://{bucket}").glob(pattern)


def _layout(path: epath.Path, several: bool, reading: Reading) -> str:
    if _kind(path) in ROWS:
        return ""
    if reading.layout != "auto":
        return reading.layout
    return "file" if several or _kind(path) in MARKDOWN else "blank_line"


def _uncompressed(raw: BinaryIO, suffix: str) -> BinaryIO:
    """The uncompressed bytes of an open file, by its extension."""
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if suffix == ".zst":
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), "zstd")
    return raw


def _blocks(path: epath.Path, reading: Reading) -> Iterator[bytes]:
    """The uncompressed bytes of a file, 1 MiB at a time."""
    position = 0
    try:
        with path.open("rb") as raw, _uncompressed(raw, path.suffix.lower()) as file:
            while block := file.read(1 << 20):
                reading.bytes_read += raw.tell() - position
                position = raw.tell()
                yield block
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        if path.suffix.lower() in COMPRESSED:
            raise UserError(
                f"{path} is cut short or damaged ({error}): fetch or compress it again"
            ) from None
        raise UserError(f"{path} cannot be read ({error}): check the file") from None


def _lines(path: epath.Path, reading: Reading) -> Iterator[str]:
    """Lines of a UTF-8 file without their ends; memory stays bounded whatever their length.

    A line ends at LF or CRLF alone. One that is much longer than `MAX_PARAGRAPH` comes in parts,
    which are counted.
    """
    rest = b""
    offset = 0  # of rest
    empty = True
    for block in _blocks(path, reading):
        if empty:
            if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise UserError(f"{path} is UTF-16: convert it to UTF-8 (iconv -f utf-16 -t utf-8)")
            if block.startswith(codecs.BOM_UTF8):
                block, offset = block[3:], 3
            empty = False
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield from _decoded_lines(whole, path, offset, reading)
            offset += len(whole) + 1
        if len(rest) >= 1 << 20:
            part, rest = _split_long(rest)
            reading.counts["cut_lines"] += 1
            yield _decode(part, path, offset, reading)
            offset += len(part)
    if rest:
        yield _decode(rest.removesuffix(b"\r"), path, offset, reading)
    if empty:
        reading.counts["empty_files"] += 1


def _decoded_lines(data: bytes, path: epath.Path, offset: int, reading: Reading) -> Iterator[str]:
    """The lines of `data`, decoded together where they are valid: several times as fast."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        for line in data.split(b"\n"):
            yield _decode(line.removesuffix(b"\r"), path, offset, reading)
            offset += len(line) + 1
    else:
        yield from text.removesuffix("\r").replace("\r\n", "\n").split("\n")


def _split_long(data: bytes) -> tuple[bytes, bytes]:
    """Cut bytes of one line after the last blank, else between two characters."""
    cut = data.rfind(b" ") + 1
    if not cut:
        cut = len(data)
        while cut > len(data) - 4 and data[cut - 1] & 0xC0 == 0x80:
            cut -= 1
        cut -= 1  # before the last character's first byte
    return data[:cut], data[cut:]


def _decode(data: bytes, path: epath.Path, offset: int, reading: Reading) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if reading.invalid_utf8 == "error":
            raise UserError(
                f"{path} is not UTF-8 at byte {offset + error.start}: "
                "repair it, or pass --invalid_utf8=replace"
            ) from None
        text = data.decode("utf-8", errors="replace")
        reading.counts["invalid_utf8"] += text.count("\ufffd") - data.count(b"\xef\xbf\xbd")
        return text


def _cut(line: str, counts: Counter[str]) -> Iterator[str]:
    """A line in parts of at most `MAX_PARAGRAPH` characters, cut at blanks where there are any."""
    while len(line) > MAX_PARAGRAPH:
        cut = line.rfind(" ", 1, MAX_PARAGRAPH) + 1 or MAX_PARAGRAPH
        counts["cut_lines"] += 1
        yield line[:cut]
        line = line[cut:]
    yield line


def _text_documents(path: epath.Path, layout: str, reading: Reading) -> Iterator[Document]:
    lines = _lines(path, reading)
    if layout == "line":
        for line in lines:
            if line.strip():
                yield iter((line,))
    elif layout == "blank_line":
        for blank, block in itertools.groupby(lines, lambda line: not line.strip()):
            if not blank:
                yield block
    else:
        yield _unwrapped(lines, markdown=_kind(path) in MARKDOWN)


def _unwrapped(lines: Iterator[str], markdown: bool) -> Iterator[str]:
    """Paragraphs of a file that is one document.

    Markdown joins the lines between blank ones, other than headings, lists, tables and code. Of
    plain text the lines are joined where its first 1,000 lines look broken at a fixed width: more
    than half of those with a line after them go on there with a small letter.
    """
    head = list(itertools.islice(lines, 1000))
    if not (markdown or _is_wrapped(head)):
        yield from itertools.chain(head, lines)
        return
    parts: list[str] = []  # lines of the paragraph so far
    size = 0
    alone = False  # nothing may be joined to the line before this one
    for line in itertools.chain(head, lines):
        text = line.strip()
        block = text[:1] in _BLOCK_FIRST and _BLOCK_START.match(text) is not None
        if parts and (not text or alone or block or size > MAX_PARAGRAPH // 2):
            yield " ".join(parts)
            parts, size, alone = [], 0, False
        if text:
            alone = block
            parts.append(text)
            size += len(text)
    if parts:
        yield " ".join(parts)


_BLOCK_FIRST = frozenset("#-*+|`=0123456789")
_BLOCK_START = re.compile(r"#{1,6} |[-*+] |\d+[.)] |\||```|-{3,}|={3,}")


def _is_wrapped(lines: list[str]) -> bool:
    pairs = [(a, b) for a, b in itertools.pairwise(lines) if a.strip() and b.strip()]
    small = sum(b.lstrip()[0].islower() and a.rstrip()[-1] not in ".!?" for a, b in pairs)
    return 2 * small > len(pairs)


# Rows


def _rows_to_documents(rows: Iterable[Any]) -> Iterator[Document]:
    """A row's text is a string of lines, or a list of strings."""
    for value in rows:
        parts = [value] if isinstance(value, str) else value
        yield itertools.chain.from_iterable(part.split("\n") for part in parts)


def check_text(value: Any, field: str, where: str) -> Any:
    """`value` if it is a text or a list of texts.

    Raises:
        UserError: it is something else.
    """
    if value is None:
        return ""
    if isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(part, str) for part in value)
    ):
        return value
    raise UserError(f"field {field!r} of {where} is {type(value).__name__}, not text")


def missing_field(field: str, fields: Iterable[str], where: str) -> UserError:
    return UserError(
        f"{where} has no field {field!r}: append ':FIELD' to the source, one of "
        f"{', '.join(sorted(fields)) or '(none)'}"
    )


def _read_jsonl(path: epath.Path, field: str, reading: Reading) -> Iterator[Any]:
    for number, line in enumerate(_whole_lines(path, reading), start=1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is not JSON ({error}): repair or remove it") from None
        if not isinstance(row, dict):
            raise UserError(f"{where} is not a JSON object: write {{{json.dumps(field)}: ...}}")
        if field not in row:
            raise missing_field(field, row, where)
        yield check_text(row[field], field, where)


def _whole_lines(path: epath.Path, reading: Reading) -> Iterator[str]:
    """Lines that must not be cut: a JSON object is parsed as a whole."""
    rest: list[bytes] = []
    offset = 0
    for block in itertools.chain(_blocks(path, reading), (b"\n",)):
        head, *tail = block.split(b"\n")
        rest.append(head)
        for start in tail:
            line = b"".join(rest)
            yield _decode(line.removeprefix(codecs.BOM_UTF8), path, offset, reading)
            offset += len(line) + 1
            rest = [start]
    if offset <= 1:
        reading.counts["empty_files"] += 1


def _read_parquet(path: epath.Path, field: str, reading: Reading) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        with path.open("rb") as raw, _uncompressed(raw, path.suffix.lower()) as plain:
            seekable = path.suffix.lower() not in COMPRESSED
            file = parquet.ParquetFile(plain if seekable else pyarrow.BufferReader(plain.read()))
            if field not in file.schema_arrow.names:
                raise missing_field(field, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield check_text(value, field, str(path))
        reading.bytes_read += path.stat().length
    except (pyarrow.ArrowException, EOFError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} is cut short or no Parquet file ({reason}): fetch it again"
        ) from None


# Mixtures


def _mixture(spec: str, reading: Reading) -> Source:
    parts = [re.fullmatch(r"(.+?)(?:@([0-9.]+))?", part.strip()) for part in spec.split(",")]
    if not all(parts):
        raise UserError(f"a source of the mixture {spec!r} is empty: write SOURCE@SHARE,...")
    weights = [match[2] for match in parts]
    if any(weights) and not all(weights):
        raise UserError(f"give a share (SOURCE@SHARE) to every source of {spec!r}, or to none")
    sources = [open_source(match[1], reading) for match in parts]
    size = None if any(s.size is None for s in sources) else sum(s.size for s in sources)
    if not any(weights):
        return Source(spec, [part for source in sources for part in source.parts], reading, size)
    try:
        shares = [float(weight) for weight in weights]
    except ValueError:
        raise UserError(f"a share in {spec!r} is no number: write SOURCE@SHARE") from None
    if min(shares) <= 0:
        raise UserError(f"shares must be above 0: change {spec!r}")
    parts = [source.parts for source in sources]
    return Source(spec, [functools.partial(_interleave, spec, parts, shares)], reading)


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
