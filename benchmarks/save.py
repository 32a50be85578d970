"""What an asynchronous checkpoint costs the training of BERT-base.

    python benchmarks/save.py [--rounds=3] [--every_seconds=300]

Takes real steps (batch 8 x 128, float32) on this machine's devices, saves now and then as a run
does, and goes on stepping until the save is finished. The cost of a save is the time that training
stood still for it, and that the steps beside it were slower than those without one; the share is of
a run that saves every --every_seconds. On CPUs the background work takes its time from the steps;
on an accelerator it runs on the host beside them.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]


def timed(call: Callable[[], object]) -> float:
    start = time.monotonic()
    call()
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every_seconds", type=float, default=300.0)
    options = parser.parse_args()
    import sides

    from bertjax import cli
    from bertjax.train import checkpoint

    cli.choose_platform()
    take, state = sides.ours_with_state(8, 128)
    take()
    plain, costs = [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = checkpoint.Checkpoints(folder, keep=1)
        for number in range(1, options.rounds + 1):
            plain += [timed(take) for _ in range(4)]
            step = statistics.median(plain)
            blocked = timed(lambda n=number: checkpoints.save(n, state(), {}, wait=False))
            beside = []
            while number not in checkpoint.committed_steps(checkpoints.root):
                beside.append(timed(take))
            blocked += timed(checkpoints.wait)
            costs.append(blocked + sum(beside) - step * len(beside))
            print(
                f"save {number}: stood still {blocked:.2f} s, {len(beside)} steps beside it took "
                f"{sum(beside):.2f} s instead of {step * len(beside):.2f} s",
                flush=True,
            )
        checkpoints.close()
        size = sum(f.stat().st_size for f in pathlib.Path(folder).rglob("*") if f.is_file())
    cost = statistics.median(costs)
    print(
        f"a checkpoint of {size / 1e9:.2f} GB costs {cost:.2f} s (median of {options.rounds}), "
        f"{100 * cost / options.every_seconds:.2f} % of {options.every_seconds:.0f} s; "
        f"a step takes {statistics.median(plain):.2f} s"
    )


if __name__ == "__main__":
    main()
