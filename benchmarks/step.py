"""Seconds of a training step of BERT-base on this machine's CPU, against transformers.

    python benchmarks/step.py [--rounds=7] [--rows=8] [--length=128] [--variants]

float32, dropout on, the sides in turn in one run, medians. Needs the extra 'parity' for PyTorch;
makes an environment with transformers 4.57.6 for its Flax models. `--variants` adds PyTorch in
bfloat16, compiled, and with its MLM head on the predicted positions alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--variants", action="store_true", help="other ways to run PyTorch")
    options = parser.parse_args()
    shape = [str(options.rows), str(options.length)]
    kinds = {
        "bertjax": ("ours", sys.executable),
        "matrix products": ("matmul", sys.executable),
        "HF Flax": ("flax", sides.flax_python()),
        "HF PyTorch": ("torch:float32", sys.executable),
    }
    if options.variants:
        for variant in ("bfloat16", "masked", "compile"):
            kinds[f"HF PyTorch, {variant}"] = (f"torch:{variant}", sys.executable)
    running = []
    for name, (kind, python) in kinds.items():
        running.append(sides.Side(name, python, [kind, *shape]))
        running[-1].ready()  # one compiles at a time
    seconds: dict[str, list[float]] = {side.name: [] for side in running}
    cpu: dict[str, list[float]] = {side.name: [] for side in running}
    for _ in range(options.rounds):
        for side in running:
            figures = side.step()
            seconds[side.name].append(figures["seconds"])
            cpu[side.name].append(figures["cpu_seconds"])
    for side in running:
        side.close()
    report(seconds, cpu, options.rows, options.length)


def report(
    seconds: dict[str, list[float]], cpu: dict[str, list[float]], rows: int, length: int
) -> None:
    from bertjax.model.bert import BertConfig
    from bertjax.model.flops import train_flops

    rate = (
        rows
        * length
        * sides.MATMUL_FLOPS_PER_ROW
        / statistics.median(seconds.pop("matrix products"))
    )
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    mine = middle["bertjax"]
    print(f"BERT-base, batch {rows} x {length}, float32, dropout on; medians of a step")
    print(f"{'':24}{'seconds':>9}{'CPU s':>8}{'lowest':>9}{'bertjax is':>16}")
    for name, value in middle.items():
        ratio = f"{value / mine:.2f} x as fast" if name != "bertjax" else ""
        used = statistics.median(cpu[name])
        print(f"{name:24}{value:>9.3f}{used:>8.2f}{min(seconds[name]):>9.3f}{ratio:>16}")
    useful = train_flops(BertConfig(), rows, length, predictions=sides.PREDICTIONS) / mine
    print(f"useful work {useful / 1e9:.1f} GFLOP/s = {useful / rate:.2f} of {rate / 1e9:.1f} "
          "GFLOP/s, the rate of its largest matrix product in the same run")  # fmt: skip


if __name__ == "__main__":
    main()
