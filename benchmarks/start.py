"""Seconds from the command to the first training step of configs/tiny.py.

    python benchmarks/start.py [--rounds=3]

The corpus is prepared beforehand, as it is from the second run on. The first start compiles, the
others find the programs in the compilation cache; each is a fresh process and a fresh workdir.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def seconds_to_first_step(corpus: str, workdir: str, cache: str) -> float:
    command = [
        sys.executable, "-m", "bertjax.main", "--config=configs/tiny.py", f"--workdir={workdir}",
        f"--config.data.source={corpus}", f"--config.train.compile_cache={cache}",
        "--config.train.log_every=1",
    ]  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    seen = []
    try:
        for line in process.stdout:
            seen.append(line)
            if re.search(r"\bstep 1/", line):
                return time.monotonic() - began
    finally:
        process.kill()
        process.wait()
    raise SystemExit("no first step:\n" + "".join(seen[-20:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = f"{folder}/corpus"
        subprocess.run(
            [sys.executable, "-m", "bertjax.prepare", "--source=python_docs",
             "--vocab=train:8000", f"--out={corpus}"],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        first, *warm = [
            seconds_to_first_step(corpus, f"{folder}/run{i}", f"{folder}/cache")
            for i in range(options.rounds + 1)
        ]
    print(f"configs/tiny.py, command to first step: {first:.1f} s with an empty cache, "
          f"{statistics.median(warm):.1f} s with a warm one (median of {len(warm)})")  # fmt: skip


if __name__ == "__main__":
    main()
