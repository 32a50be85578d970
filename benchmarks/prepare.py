"""How fast, and in how much memory, text is prepared.

    python benchmarks/prepare.py --source='books/*.md' --vocab=vocab.txt [--repeats=3] [--memory]

Prints megabytes of raw text a second of one core's time, all in one run:

* the `tokenizers` library alone, encode_batch and encode_batch_fast, on documents (as pieces of
  about 128 KiB) and on sentences, on one thread: what preparation is measured against;
* bertjax.prepare from the files to the finished dataset, and by the clock with 1 and with 2
  processes, their start included: use 20 MB of text or more;
* with --memory, the peak resident memory at 20 MB and at 200 MB of text.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread


def rate(work: Callable[[], object], megabytes: float) -> tuple[float, float]:
    """Megabytes a second: of this process's CPU time, and of the clock."""
    start = time.process_time(), time.perf_counter()
    work()
    return (
        megabytes / (time.process_time() - start[0]),
        megabytes / (time.perf_counter() - start[1]),
    )


def library_rates(source: str, vocab: str, limit: int) -> dict[str, float]:
    """The library's own calls on the first `limit` characters of the source."""
    import sentencex

    from bertjax.data.corpus import open_source
    from bertjax.data.tokenizer import Tokenizer

    documents: list[str] = [""]
    sentences: list[str] = []
    taken = 0
    for paragraph in open_source(source).paragraphs():
        if len(documents[-1]) > 1 << 17:
            documents.append("")
        documents[-1] += paragraph + "\n"
        sentences += map(str.strip, sentencex.segment("en", paragraph))
        taken += len(paragraph.encode()) + 1
        if taken > limit:
            break
    (engine,) = [Tokenizer.load(vocab)._engine(special_tokens=False, rare=False, marked=False)]
    rates = {}
    for name, texts in (("documents", documents), ("sentences", sentences)):
        for call in (engine.encode_batch, engine.encode_batch_fast):
            key = f"{call.__name__} on {name}"
            work = functools.partial(call, texts, add_special_tokens=False)
            rates[key] = rate(work, taken / 1e6)[0]
    return rates


def prepare_rate(source: str, vocab: str, processes: int, megabytes: float) -> tuple[float, float]:
    """The whole preparation; the CPU time is that of this process without its workers."""
    from bertjax.data import builder

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            builder.prepare(source, vocab, f"{folder}/out", processes=processes)

    return rate(work, megabytes)


def peak_memory(source: str, vocab: str, processes: int) -> float:
    """Peak resident MB of a preparation, of the process that reads, encodes and writes."""
    # VmHWM, since ru_maxrss of a new process begins with what its parent had in memory.
    program = (
        "import pathlib, re, sys\n"
        "from bertjax.data import builder\n"
        "if __name__ == '__main__':\n"
        "    builder.prepare(sys.argv[1], sys.argv[2], sys.argv[3], processes=int(sys.argv[4]))\n"
        "    status = pathlib.Path('/proc/self/status').read_text()\n"
        "    print(re.search(r'VmHWM:\\s+(\\d+)', status)[1])\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "measure.py"
        script.write_text(program)
        arguments = [str(script), source, vocab, f"{folder}/out", str(processes)]
        found = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
        )
    kilobytes = int(found.stdout.split()[-1])
    return kilobytes / 1024


def repeated(source: str, folder: str, megabytes: int) -> str:
    """A text file of this size: the source over and over, with numbers so that no line repeats."""
    from bertjax.data.corpus import open_source

    path = f"{folder}/{megabytes}.txt"
    size = turn = 0
    with open(path, "w") as file:
        while size < megabytes * 1_000_000:
            turn += 1
            for document in open_source(source).documents():
                text = "".join(f"{turn} {paragraph}\n" for paragraph in document) + "\n"
                size += file.write(text)
                if size >= megabytes * 1_000_000:
                    break
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="also peak memory, takes minutes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from bertjax.data.corpus import open_source

    size = open_source(args.source).size
    assert size, "the source needs files, so that its size is known"
    megabytes = size / 1e6
    runs: list[dict[str, float]] = []
    ratios: dict[str, float] = {}
    for _ in range(args.repeats):  # in turns, so that a busy machine slows all of them
        run = library_rates(args.source, args.vocab, limit=10_000_000)
        fastest = max(run.values())
        run["prepare"], one = prepare_rate(args.source, args.vocab, 1, megabytes)
        _, two = prepare_rate(args.source, args.vocab, 2, megabytes)
        run |= {"prepare, by the clock": one, "prepare, 2 processes": two}
        run |= {
            "prepare to the fastest call": run["prepare"] / fastest,
            "2 processes to 1": two / one,
        }
        runs.append(run)
    figures = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    for name in ("prepare to the fastest call", "2 processes to 1"):
        ratios[name] = figures.pop(name)
    peaks = {}
    if args.memory:
        with tempfile.TemporaryDirectory() as folder:
            for size in (20, 200):
                source = repeated(args.source, folder, size)
                peaks[f"peak MB at {size} MB of text"] = peak_memory(source, args.vocab, 1)
        ratios["peak memory, 200 MB to 20 MB"] = peaks["peak MB at 200 MB of text"] / min(
            peaks.values()
        )
    if args.json:
        print(json.dumps({"MB/s": figures, "ratios": ratios, "memory": peaks}, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:8.2f} MB/s")
    for name, value in {**peaks, **ratios}.items():
        print(f"{name:32} {value:8.2f}")
    print(f"text: {megabytes:.1f} MB; peak of this program: ", end="")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
