"""Files to documents: text in several layouts, JSONL and Parquet, each also compressed."""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from etils import epath

from bertjax.errors import UserError

# Longer lines are cut, at a blank where there is one, and counted.
MAX_PARAGRAPH = 1 << 16
LAYOUTS = ("auto", "file", "blank_line", "line")
TEXT, MARKDOWN, ROWS = (".txt", ".text"), (".md", ".markdown"), (".jsonl", ".parquet")
COMPRESSED = (".gz", ".zst")
# By the marks that files in them begin with; the marks of UTF-16 begin one of UTF-32, too.
_OTHER_ENCODINGS = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
# Packed files, by the marks that they begin with.
_PACKED = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "zip": b"PK\x03\x04", "PDF": b"%PDF-",
           "bzip2": b"BZh91AY&SY", "xz": b"\xfd7zXZ"}  # fmt: skip
_UNPACK = {"gzip": "give it a name that ends in .gz", "zstd": "give it a name that ends in .zst",
           "PDF": "extract its text first"}  # fmt: skip
_SURROGATES = re.compile("[\ud800-\udfff]")

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


def read_file(path: epath.Path, field: str, layout: str, reading: Reading) -> Iterator[Document]:
    match kind(path):
        case ".jsonl":
            yield from _rows_to_documents(_read_jsonl(path, field, reading))
        case ".parquet":
            yield from _rows_to_documents(_read_parquet(path, field, reading))
        case _:
            yield from _text_documents(path, layout, reading)


def kind(path: epath.Path) -> str:
    """The extension that says what is inside: '.txt' of 'a.txt.gz'; '' for an unknown one."""
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in COMPRESSED]
    last = suffixes[-1] if suffixes else ""
    return last if last in TEXT + MARKDOWN + ROWS else ""


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
                if not position:
                    _check_encoding(block, path)
                reading.bytes_read += raw.tell() - position
                position = raw.tell()
                yield block
    except (EOFError, zlib.error, OSError) as error:  # BadGzipFile is an OSError
        if path.suffix.lower() in COMPRESSED:
            raise UserError(
                f"{path} is cut short or damaged ({error}): fetch or compress it again"
            ) from None
        raise UserError(f"{path} cannot be read ({error}): check the file") from None


def _check_encoding(start: bytes, path: epath.Path) -> None:
    """UserError for a file whose first bytes are not UTF-8, nor anything near it."""
    for name, marks in _OTHER_ENCODINGS.items():
        if start.startswith(marks):
            raise UserError(
                f"{path} is {name.upper()}: convert it to UTF-8 (iconv -f {name} -t utf-8)"
            )
    for name, mark in _PACKED.items():
        if start.startswith(mark):
            raise UserError(f"{path} is {name}, not text: {_UNPACK.get(name, 'unpack it first')}")
    # English in UTF-16 without a mark is half NUL; text may hold a few, which are dropped.
    if start.count(0) > len(start) // 4:
        raise UserError(
            f"{path} is not text in UTF-8 (a quarter of its bytes or more are 0): convert it, or "
            "leave it out"
        )


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


def cut(line: str, counts: Counter[str]) -> Iterator[str]:
    """A line in parts of at most `MAX_PARAGRAPH` characters, cut at blanks where there are any."""
    while len(line) > MAX_PARAGRAPH:
        cut = line.rfind(" ", 1, MAX_PARAGRAPH) + 1 or MAX_PARAGRAPH
        counts["cut_lines"] += 1
        yield line[:cut]
        line = line[cut:]
    yield line


def _text_documents(path: epath.Path, layout: str, reading: Reading) -> Iterator[Document]:
    lines = _lines(path, reading)
    first = next(lines, "")
    if not kind(path) and first.startswith('{"') and first.rstrip().endswith("}"):
        raise UserError(f"{path} holds JSON lines: give it a name that ends in .jsonl")
    lines = itertools.chain([first], lines)
    if _is_wiki_start(first):
        reading.note(
            "of WikiExtractor's files what stands between <doc ...> and </doc> is a document"
        )
        yield from _wiki_documents(lines)
    elif layout == "line":
        for line in lines:
            if line.strip():
                yield iter((line,))
    elif layout == "blank_line":
        for blank, block in itertools.groupby(lines, lambda line: not line.strip()):
            if not blank:
                yield block
    else:
        yield _unwrapped(lines, markdown=kind(path) in MARKDOWN)


def _is_wiki_start(line: str) -> bool:
    return line.startswith('<doc id="') and line.rstrip().endswith(">")


def _wiki_documents(lines: Iterator[str]) -> Iterator[Document]:
    """Documents of a file that WikiExtractor wrote, without their tags."""
    document: list[str] = []
    for line in lines:
        if _is_wiki_start(line) or line.strip() == "</doc>":
            if document:
                yield iter(document)
            document = []
        else:
            document.append(line)
    if document:
        yield iter(document)


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
    what = type(value).__name__
    if isinstance(value, list):
        odd = next(part for part in value if not isinstance(part, str))
        what = f"a list with {odd!r:.40} in it"
    raise UserError(f"field {field!r} of {where} is {what}, not text or a list of texts")


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
        text = check_text(row[field], field, where)
        if "\\ud" in line.lower():
            text = _without_surrogates(text, where, reading)
        yield text


def _without_surrogates(text: str | list[str], where: str, reading: Reading) -> str | list[str]:
    """The text without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    if isinstance(text, list):
        return [_without_surrogates(part, where, reading) for part in text]
    text, found = _SURROGATES.subn("\ufffd", text)
    if found and reading.invalid_utf8 == "error":
        raise UserError(
            f"{where} has half a surrogate pair: repair it, or pass --invalid_utf8=replace"
        )
    reading.counts["invalid_utf8"] += found
    return text


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
    except (pyarrow.ArrowException, EOFError, zlib.error, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path} is cut short or no Parquet file ({reason}): fetch it again"
        ) from None
