"""Kills real runs again and again and checks that nothing is lost.

    python benchmarks/kill.py [--kills=100] [--terms=20] [--seed=0] [--folder=DIR]

One undisturbed run of `bertjax.main` is the reference. Then the same run, in new workdirs, gets
SIGKILL at times drawn uniformly from its wall time and is started again until it is finished; its
last checkpoint must equal the reference bit for bit, and metrics.jsonl line for line (wall-clock
figures aside). SIGTERM likewise: exit code 143, and the newest checkpoint is at the last step that
metrics.jsonl tells of. Exits with 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

EVAL_EVERY = 5
# Saves at every step and long evaluations, so that many kills fall inside one.
CONFIG = (
    "--config=configs/tiny.py:smoke", "--config.train.steps=100", "--config.train.log_every=1",
    f"--config.train.eval_every={EVAL_EVERY}", "--config.data.eval_examples=256",
    "--config.checkpoint.every=1", "--config.checkpoint.keep=3",
)  # fmt: skip
CLOCK = ("tokens_per_second", "flops_share")
STARTED_LATE = -signal.SIGTERM  # before the loop, Python's own end: nothing had been done


class Lost(Exception):
    """Something that was promised did not hold."""


class Program:
    """The run under test, in one workdir."""

    def __init__(self, workdir: pathlib.Path, corpus: pathlib.Path) -> None:
        self.workdir = workdir
        self._command = [
            sys.executable, "-m", "bertjax.main", *CONFIG, f"--config.data.source={corpus}",
            f"--workdir={workdir}",
        ]  # fmt: skip

    def run(self, seconds: float | None, number: int) -> tuple[int, str, float]:
        """Start it, send signal `number` after `seconds`: exit code, output, seconds to its end."""
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
            sent = time.monotonic()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
                sent = time.monotonic()
            process.wait()
            output.seek(0)
            return process.returncode, output.read(), time.monotonic() - sent

    def lines(self) -> list[dict]:
        """metrics.jsonl without the wall clock; a half line at the end is no line yet."""
        path = self.workdir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [{k: v for k, v in json.loads(x).items() if k not in CLOCK} for x in whole]

    def arrays(self) -> dict[str, bytes]:
        """The bits of the last checkpoint."""
        from bertjax.train import checkpoint

        folder = checkpoint.root(self.workdir) / checkpoint.FOLDER
        arrays, _ = checkpoint.load_arrays(folder / str(checkpoint.committed_steps(folder)[-1]))
        return {name: array.tobytes() for name, array in arrays.items()}

    def newest(self) -> int:
        folder = self.workdir / "checkpoints"
        steps = (
            [int(p.name) for p in folder.iterdir() if p.name.isdigit()] if folder.exists() else []
        )
        return max(steps, default=0)

    def where(self, lines_before: int) -> list[str]:
        """What a kill has hit, as far as the workdir shows it."""
        found = []
        if any("tmp" in p.name for p in self.workdir.glob("checkpoints/*")):
            found.append("save")
        lines = self.lines()
        last = lines[-1] if lines else {"step": 0, "split": ""}
        if last["split"] == "train" and last["step"] % EVAL_EVERY == 0:
            found.append("evaluation")
        if len(lines) <= lines_before:
            found.append("start")
        return found or ["training"]


def until_done(
    program: Program, number: int, rng: random.Random, seconds: float, left: int
) -> list[list[str]]:
    """Disturb one run, `left` times at most, until it is finished; what each signal has hit."""
    hits: list[list[str]] = []
    while True:
        before = len(program.lines())
        wait = rng.uniform(0, seconds) if len(hits) < left else None
        code, output, took = program.run(wait, number)
        if code == 0:
            return hits
        if number == signal.SIGKILL:
            fine = code == -signal.SIGKILL
        else:
            steps = [line["step"] for line in program.lines() if line["split"] == "train"]
            saved = program.newest() >= max(steps, default=0) or code == STARTED_LATE
            fine = code in (143, STARTED_LATE) and saved and took < 30
        if not fine:
            raise Lost(f"{program.workdir}: exit code {code} after {took:.1f} s\n{output}")
        hits.append(program.where(before))
        print(f"  {signal.Signals(number).name} {len(hits)}: {' and '.join(hits[-1])}", flush=True)


def campaign(
    reference: Program, corpus: pathlib.Path, number: int, count: int, rng: random.Random,
    seconds: float,
) -> int:  # fmt: skip
    """`count` signals over as many runs as they need; returns how many runs were lost."""
    hits: list[list[str]] = []
    runs = lost = 0
    while len(hits) < count:
        name = f"{signal.Signals(number).name.lower()}-{runs}"
        program = Program(reference.workdir.parent / name, corpus)
        runs += 1
        try:
            hits += until_done(program, number, rng, seconds, count - len(hits))
            if program.arrays() != reference.arrays():
                raise Lost(f"{program.workdir}: the last checkpoint differs")
            if program.lines() != reference.lines():
                raise Lost(f"{program.workdir}: metrics.jsonl differs")
        except Lost as error:
            lost += 1
            print(f"LOST {error}", flush=True)
    places = collections.Counter(place for hit in hits for place in hit)
    print(
        f"{len(hits)} x {signal.Signals(number).name} in {runs} runs: {runs - lost} of {runs} "
        f"ended as the undisturbed one, bit for bit; hit "
        + ", ".join(f"{place} {n}" for place, n in places.most_common())
    )
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="SIGKILLs")
    parser.add_argument("--terms", type=int, default=20, help="SIGTERMs")
    parser.add_argument("--seed", type=int, default=0, help="of the times")
    parser.add_argument("--folder", default="", help="where to work; '' = a temporary folder")
    options = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="bertjax-kill-")).absolute()
    corpus = folder / "corpus"
    # Compiling once leaves more of the wall time to what is to be disturbed.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "cache")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    print(f"seed {options.seed}, in {folder}", flush=True)
    if not corpus.exists():
        prepare = [sys.executable, "-m", "bertjax.prepare", "--source=python_docs"]
        subprocess.run(
            [*prepare, "--vocab=train:2000", f"--out={corpus}"], check=True, capture_output=True
        )
    Program(folder / "warm", corpus).run(None, 0)  # fills the compilation cache
    reference = Program(folder / "undisturbed", corpus)
    began = time.monotonic()
    code, output, _ = reference.run(None, 0)
    seconds = time.monotonic() - began
    if code != 0:
        print(output)
        return 1
    print(f"the undisturbed run takes {seconds:.1f} s", flush=True)
    rng = random.Random(options.seed)
    lost = campaign(reference, corpus, signal.SIGKILL, options.kills, rng, seconds)
    lost += campaign(reference, corpus, signal.SIGTERM, options.terms, rng, seconds)
    return min(lost, 1)


if __name__ == "__main__":
    sys.exit(main())
