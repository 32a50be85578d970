"""How fast the pretraining loader is, how full its rows are and what its index costs.

    python benchmarks/loader.py --corpus=DIR [--corpus=DIR ...] [--seconds=5]
    python benchmarks/loader.py --index=50000000

The first prints, for each prepared corpus, sequences a second of one core and the share of
padding at lengths 128 and 512, packed or not. The second makes the index of that many short
documents on disk, the worst case, and prints the time and the peak memory of a process that
opens it and puts the examples of an epoch in order. Seconds are of processor time, so that
other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np
from numpy.lib.format import open_memmap

from bertjax.data.loader import PretrainLoader
from bertjax.data.pairs import Examples
from bertjax.data.store import PreparedCorpus
from bertjax.data.tokenizer import Tokenizer

BATCH = 64
PIECE = 1 << 20  # documents written at a time
BLOCK = 1 << 14  # examples put in order at a time


def one_core() -> None:
    """Keep this process and its threads on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def measure(folder: str, length: int, packing: bool, nsp: bool, seconds: float) -> None:
    """Print one line: sequences and rows a second on one core, and the share of padding."""
    tokenizer = Tokenizer.load(folder)
    loader = PretrainLoader(
        PreparedCorpus(folder, "train"),
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        vocab_size=tokenizer.vocab_size,
        seq_length=length,
        batch_size=BATCH,
        seed=0,
        nsp=nsp,
        packing=packing,
    )
    batches = loader.batches(0, slice(0, BATCH))
    for _ in range(8):  # past the batches made ahead
        next(batches)
    rows = sequences = real = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        batch = next(batches)
        rows += BATCH
        real += int((batch["attention_mask"] > 0).sum())
        sequences += int(batch["attention_mask"].max(1).sum())
    elapsed = time.process_time() - start
    batches.close()
    kind = ("packed" if packing else "plain") + (" pairs" if nsp else " sentences")
    print(
        f"{pathlib.Path(folder).name:16} length {length:3} {kind:16} "
        f"{sequences / elapsed:7.0f} sequences/s  {rows / elapsed:7.0f} rows/s  "
        f"padding {1 - real / (rows * length):6.2%}"
    )


def write_index(folder: pathlib.Path, documents: int) -> None:
    """The index of a split of documents of 3 sentences of 20 to 30 tokens; no records."""
    (folder / "index").mkdir()
    (folder / "fingerprint.json").write_text("{}")

    def column(name: str, dtype: str, size: int) -> np.ndarray:
        path = folder / "index" / f"train.{name}.npy"
        return open_memmap(path, mode="w+", dtype=dtype, shape=(size,))

    lengths = column("lengths", "uint16", 3 * documents)
    offsets = column("offsets", "int64", documents + 1)
    numbers = column("documents", "int64", documents)
    generator = np.random.default_rng(0)
    for start in range(0, documents, PIECE):
        stop = min(start + PIECE, documents)
        lengths[3 * start : 3 * stop] = generator.integers(20, 30, 3 * (stop - start))
        offsets[start : stop + 1] = np.arange(3 * start, 3 * stop + 1, 3)
        numbers[start:stop] = np.arange(start, stop)


def open_index(folder: pathlib.Path) -> None:
    """Print time and peak memory of the index and of one epoch's order of all examples."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    examples = Examples(PreparedCorpus(str(folder), "train"), 128, seed=0)
    opened = time.process_time() - start
    for first in range(0, examples.per_epoch, BLOCK):
        examples.order(0, np.arange(first, min(first + BLOCK, examples.per_epoch)))
    shuffled = time.process_time() - start - opened
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{examples.per_epoch:,} examples: index {opened:.1f} s, the order of all of an epoch "
        f"{shuffled:.1f} s (drawn batch by batch in training); peak memory "
        f"{peak / 2**20:.2f} GiB of which {before / 2**20:.2f} before; nothing on a device"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", action="append", default=[], help="a prepared folder")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time of each line")
    parser.add_argument("--index", type=int, default=0, help="examples of the index to build")
    arguments = parser.parse_args()
    one_core()
    for folder in arguments.corpus:
        for length in (128, 512):
            for packing in (False, True):
                for nsp in (True, False):
                    measure(folder, length, packing, nsp, arguments.seconds)
    if arguments.index:
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()  # so that writing does not count in the peak of reading
            if not child:
                write_index(pathlib.Path(folder), arguments.index)
                os._exit(0)
            os.waitpid(child, 0)
            open_index(pathlib.Path(folder))
    if not arguments.corpus and not arguments.index:
        parser.error("give --corpus or --index")


if __name__ == "__main__":
    sys.exit(main())
