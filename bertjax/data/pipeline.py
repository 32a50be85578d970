"""Documents to stored records: one process reads and writes, N encode, that one among them.

The reader cuts documents into pieces that depend on the document alone, the writer stores their
records in the reader's order. So the result does not depend on the number of processes, and
memory holds a few chunks, whatever the size of the corpus.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from etils import epath

from bertjax.data import encoder as encoding
from bertjax.data import report as reporting
from bertjax.data.corpus import Source
from bertjax.data.encoder import EncodedChunk, Encoder, Piece, digest64
from bertjax.data.reading import Reading
from bertjax.data.report import Statistics
from bertjax.data.storage import SplitWriter, write_metadata
from bertjax.errors import UserError

CHUNK = 1 << 17  # characters in a chunk
# Below this many bytes, starting worker processes costs more than they save.
SMALL = 8 << 20
# Different documents of the smallest corpus that two are held out of: of fewer, one is.
TWO_HELD_OUT = 8

Progress = Callable[[str, Reading, int | None], None]  # (what, how far, total bytes)
Figures = dict[str, dict[str, int]]  # split -> documents, sentences, tokens, records


class Chooser:
    """Which split a document goes to, by a digest of (seed, its first chunk of text)."""

    def __init__(self, fraction: float, seed: int, below: int | None = None) -> None:
        self.fraction = fraction
        self.seed = seed
        self.below = int(fraction * 2.0**64) if below is None else below

    def digest(self, text: str) -> int:
        return digest64(text, key=str(self.seed).encode())

    def __call__(self, text: str) -> str:
        return "validation" if self.digest(text) < self.below else "train"

    def settled(self, source: Source) -> Chooser:
        """A chooser that leaves both splits what sentence pairs need, however small the corpus:
        two different documents each.

        Reads until that many are met: about forty documents of most corpora. Where they are not,
        two documents are held out, or one of fewer than `TWO_HELD_OUT`, or none of fewer than 3.
        """
        if not self.fraction:
            return self
        smallest: list[int] = []  # of the different digests, as many as are asked about
        train: set[int] = set()
        for document in source.documents():
            digest = self.digest("\n".join(next(pieces(document, self)).paragraphs))
            smallest = sorted({digest, *smallest})[:TWO_HELD_OUT]
            if len(train) < 2 and digest >= self.below:
                train.add(digest)
            if len(train) == 2 and smallest[1:2] and smallest[1] < self.below:
                return self
        held_out = 2 if len(smallest) == TWO_HELD_OUT else len(smallest) > 2
        below = smallest[held_out - 1] + 1 if held_out else 0
        return Chooser(self.fraction, self.seed, below)


def pieces(document: Iterator[str], choose: Callable[[str], str]) -> Iterator[Piece]:
    """A document in pieces of about `CHUNK` characters, which depend on the document alone."""
    digest = hashlib.blake2b(digest_size=8)
    split = ""
    paragraphs: list[str] = []
    size = 0
    for paragraph in document:
        if size + len(paragraph) > CHUNK and paragraphs:
            split = split or choose("\n".join(paragraphs))
            yield Piece(split, paragraphs, last=False)
            paragraphs, size = [], 0
        paragraphs.append(paragraph)
        size += len(paragraph)
        digest.update(paragraph.encode("utf-8", "surrogatepass") + b"\n")
    split = split or choose("\n".join(paragraphs))
    number = int.from_bytes(digest.digest(), "little")
    yield Piece(split, paragraphs, last=True, digest=number)


def _chunks(
    documents: Iterable[Iterator[str]], choose: Callable[[str], str]
) -> Iterator[list[Piece]]:
    """Pieces of documents in a row, at most about twice `CHUNK` characters together."""
    chunk: list[Piece] = []
    size = 0
    for document in documents:
        for piece in pieces(document, choose):
            chunk.append(piece)
            size += sum(map(len, piece.paragraphs))
            if size >= CHUNK:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


@contextlib.contextmanager
def _workers(encoder: Encoder, processes: int) -> Iterator[futures.Executor | None]:
    """The other encoding processes, which start at once; None where there is none.

    Raises:
        UserError: one of them was killed.
    """
    if processes == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # JAX's threads do not survive a fork
    pool = futures.ProcessPoolExecutor(processes - 1, context, encoding.start_worker, (encoder,))
    try:
        for _ in range(processes - 1):
            pool.submit(encoding.encode, [])
        yield pool
    except futures.process.BrokenProcessPool:
        raise UserError(
            "a worker process was killed, probably for memory: use fewer --processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _encoded(
    chunks: Iterator[list[Piece]], encoder: Encoder, pool: futures.Executor | None, processes: int
) -> Iterator[EncodedChunk]:
    """Chunks through the encoder, in order, with a bounded number on the way.

    This process is one of `processes`: it reads and writes, and encodes while every other one has
    work waiting. So N processes take N cores, and nobody waits for the others to start.
    """
    if pool is None:
        yield from map(encoder, chunks)
        return
    waiting: collections.deque[futures.Future[EncodedChunk]] = collections.deque()
    for chunk in chunks:
        if sum(not future.done() for future in waiting) < 3 * (processes - 1):
            waiting.append(pool.submit(encoding.encode, chunk))
        else:
            waiting.append(futures.Future())
            waiting[-1].set_result(encoder(chunk))
        while waiting and (waiting[0].done() or len(waiting) > 32 + 4 * processes):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """A process is a core: `tokenizers` starts no threads of its own."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def watched(
    items: Iterable[Any], source: Source, what: str, progress: Progress | None
) -> Iterator[Any]:
    """The items; tells `progress` now and then how much of the source was read."""
    for number, item in enumerate(items):
        if progress and number % 64 == 0:
            progress(what, source.reading, source.size)
        yield item
    if progress:
        progress(what, source.reading, source.size)


def build(
    folder: epath.Path,
    source: Source,
    named: dict[str, Source],
    encoder: Encoder,
    processes: int,
    progress: Progress | None,
    choose: Chooser,
) -> tuple[Statistics, Figures]:
    """Write every split. The statistics are those of `source`, not of the named held-out sets."""
    if processes == 0:
        small = source.name == "python_docs" or (source.size or SMALL) < SMALL
        processes = 1 if small else os.cpu_count() or 1
    statistics = Statistics()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_core())
        pool = stack.enter_context(_workers(encoder, processes))
        choose = choose.settled(source)  # while the workers start
        splits = {
            name: stack.enter_context(SplitWriter(folder, name))
            for name in ("train", "validation", *named)
        }
        for name, part in {"": source, **named}.items():
            target = statistics if not name else Statistics()
            chunks = _chunks(part.documents(), (lambda _, n=name: n) if name else choose)
            encoded = _encoded(chunks, encoder, pool, processes)
            for chunk in watched(encoded, part, name or "corpus", progress):
                _store(chunk, splits, target)
            target.counts.update(part.reading.counts)
            if name:
                part.reading.notes += reporting.counted(target.counts, f"held-out set {name}: ")
            if not target.documents.total:
                raise UserError(
                    f"{part.name} has no text ({target.counts['empty_files']} empty files, "
                    f"{target.counts['empty_documents']} empty documents): check the source"
                )
        for split in splits.values():
            split.close()
    written = [split for split in splits.values() if split.index.documents]
    write_metadata(folder, written, encoder)
    return statistics, {split.name: split.index.figures() for split in written}


def _store(chunk: EncodedChunk, splits: dict[str, SplitWriter], statistics: Statistics) -> None:
    statistics.add(chunk)
    for piece in chunk.pieces:
        sentences = splits[piece.split].add(piece)
        if sentences:
            statistics.add_document(piece.digest, sentences)
        elif piece.last:
            statistics.counts["empty_documents"] += 1
