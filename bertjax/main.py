"""Train or evaluate one config: the main front door."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax import cli, config

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
FLAGS = (
    config.Field("workdir", "", "folder of the run; '' = runs/NAME of the config"),
    config.Field("mode", "train", "what to do; summary prints the model's tree", config.MODES),
    config.Field("step", -1, "--mode=evaluate: the checkpoint to take; -1 = the best"),
    *config.PROCESSES,
)


def main(arguments: Sequence[str]) -> int:
    """Parse, check, then run; see USAGE."""
    if "--help" in arguments or "-h" in arguments:
        print(config.help_text(USAGE, FLAGS))
        return 0
    command = config.checked(config.load(arguments, FLAGS))
    workdir = command.flags["workdir"] or f"runs/{command.name}"
    from bertjax import seeds, start
    from bertjax.train import evaluation, loop

    if command.flags["mode"] == "summary":
        print(start.summary(command))
        return 0
    start.environment(command.config)
    start.connect(command, workdir)
    if command.flags["mode"] == "train":
        seeds.check(workdir, command.config.train.seeds)
        if command.config.train.seeds > 1:
            seeds.train(command, workdir)
            return 0
    run = start.prepare(command, workdir)
    if command.flags["mode"] == "evaluate":
        step = command.flags["step"] if command.flags["step"] >= 0 else None
        evaluation.evaluate(run.config, run.task, workdir, mesh=run.mesh, step=step)
    else:
        loop.train(run.config, run.task, workdir, mesh=run.mesh, load_initial=run.load_initial)
    return 0


if __name__ == "__main__":
    cli.run(main)
