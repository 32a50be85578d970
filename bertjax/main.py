"""Train or evaluate one config: the main front door."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax import cli, config
from bertjax.parallel import distributed

USAGE = """
usage: python -m bertjax.main --config=FILE[:ARGUMENTS] [--workdir=DIR] [--config.KEY=VALUE ...]

Pretrains or fine-tunes as the config says. The same command goes on from the last checkpoint of
its workdir. ARGUMENTS is a comma-separated list of smoke (everything shrunk to a minute on a CPU),
preset=NAME and model sizes such as num_layers=6.

  python -m bertjax.main --config=configs/tiny.py --workdir=runs/tiny
  python -m bertjax.main --config=configs/base.py:num_layers=6,hidden_size=512,num_heads=8
  python -m bertjax.main --config=configs/large.py:smoke
  python -m bertjax.main --config=configs/tiny.py --workdir=runs/tiny --mode=evaluate
"""
# How the processes of one run find each other; found by themselves under Slurm, GKE, on TPU VMs.
PROCESSES = (
    config.Field("coordinator", "", "several processes: HOST:PORT of process 0"),
    config.Field("num_processes", 0, "several processes: how many"),
    config.Field("process_id", -1, "several processes: which one this is, from 0"),
    config.Field("init_timeout", 300.0, "seconds to wait until all processes are there"),
)
FLAGS = (
    config.Field("workdir", "", "folder of the run; '' = runs/NAME of the config"),
    config.Field("mode", "train", "what to do; summary prints the model's tree", config.MODES),
    config.Field("step", -1, "--mode=evaluate: the checkpoint to take; -1 = the best"),
    *PROCESSES,
)


def main(arguments: Sequence[str]) -> int:
    """Parse, check, then run; see USAGE."""
    if "--help" in arguments or "-h" in arguments:
        print(config.help_text(USAGE, FLAGS))
        return 0
    command = config.load(arguments, FLAGS)
    workdir = command.flags["workdir"] or f"runs/{command.name}"
    from bertjax import start
    from bertjax.train import loop

    if command.flags["mode"] == "summary":
        print(start.summary(command))
        return 0
    start.environment(command.config)
    flags = {field.key: command.flags[field.key] for field in PROCESSES}
    distributed.start(**flags, config=command.config.to_dict(), say=config.stderr)
    run = start.prepare(command, workdir)
    if command.flags["mode"] == "evaluate":
        step = command.flags["step"]
        loop.evaluate(run.config, run.task, workdir, step=None if step < 0 else step)
    else:
        loop.train(run.config, run.task, workdir, load_initial=run.load_initial)
    return 0


if __name__ == "__main__":
    cli.run(main)
