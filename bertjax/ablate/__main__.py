"""Ablate: a grid of runs from one config, and one table of them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from bertjax import cli, config
from bertjax.errors import UserError

USAGE = """
usage: python -m bertjax.ablate --config=FILE[:ARGUMENTS] [--workdir=DIR] [--config.KEY=VALUE ...]
       python -m bertjax.ablate --config=FILE[:ARGUMENTS] --plan --topology=KIND:SHAPE
       python -m bertjax.ablate --compare=A,B [--workdir=DIR] [--split=SPLIT]

Trains every cell of a grid over L, H, A or any other config key, each a workdir of its own in
DIR/cells, and writes DIR/ablation.md, .csv and .json with parameters, training FLOPs, held-out
perplexity and accuracies, fine-tuning scores and time, and plots of perplexity over parameters and
FLOPs. The corpus is prepared once. A cell that fails leaves its sentence in the table and does not
stop the others. The same command goes on where it was stopped; what is finished is not run again.

  python -m bertjax.ablate --config=configs/ablate.py --workdir=runs/ablate
  python -m bertjax.ablate --config=configs/ablate.py:smoke
  python -m bertjax.ablate --config=configs/ablate.py:preset=paper --plan --topology=v5e:4x4
  python -m bertjax.ablate --config=configs/tiny.py --workdir=runs/masks \\
      --config.ablate.grid='data.mask_rate=0.15,0.3; seed=0,1,2'
  python -m bertjax.ablate --config=configs/classify.py:preset=mrpc --workdir=runs/mrpc_grid \\
      --config.init_from=CHECKPOINT \\
      --config.ablate.grid='optimizer.learning_rate=2e-5,3e-5,5e-5; seed=0,1,2'
  python -m bertjax.ablate --compare=L2_H128_A2,L4_H128_A2 --workdir=runs/ablate

What varies (docs/ablations.md has more):
  ablate.variants       settings to compare: 'L=3,H=768,A=12; wide: L=3,H=1024,A=16'
  ablate.grid           values to combine with each variant: 'data.mask_rate=0.15,0.3; seed=0,1'
  ablate.finetune       tasks after each pretraining: 'mrpc; sst2; own: data.train=FILE,...'
  ablate.finetune_grid  their settings; the best of each task is chosen on the development set
  ablate.budget         steps, tokens or flops: what every pretraining cell gets equally

--compare tests whether two cells, two groups of seeds or two workdirs differ, on the same held-out
examples or seed by seed, and names the test.
"""
FLAGS = (
    config.Field("workdir", "", "folder of the ablation; '' = runs/NAME of the config"),
    config.Field("json", False, "print the table, plan or comparison as one JSON document"),
    config.Field("plan", False, "say what each cell costs, and train nothing"),
    config.Field("topology", "", "--plan: the hardware, as for python -m bertjax.plan"),
    config.Field("compare", "", "A,B: cells or groups of --workdir, or two workdirs"),
    config.Field("split", "validation", "--compare: the split whose predictions are compared"),
)


def main(arguments: Sequence[str]) -> int:
    """Parse, then compare, plan or train; see USAGE."""
    if "--help" in arguments or "-h" in arguments:
        print(config.help_text(USAGE, FLAGS))
        return 0
    if any(a == "--compare" or a.startswith("--compare=") for a in arguments):
        return _compare(arguments)
    command = config.load(arguments, FLAGS)
    environment = dict(os.environ)
    cli.use_cpu()  # this process computes shapes alone; the devices are for the cells
    flags = command.flags
    if flags["plan"] or flags["topology"]:
        return _plan(command, environment)
    from bertjax.ablate import plots, run, table

    workdir = flags["workdir"] or f"runs/{command.name}"
    code, made = run.run(command.config, workdir, environment)
    if code < 128:
        plots.write(workdir, made)
    if flags["json"]:
        print(json.dumps(table.document(made), indent=2))
    else:
        print(table.markdown(made))
        print(f"written to {os.path.join(workdir, table.NAME)}.md, .csv and .json")
    return code


def _plan(command: config.CommandLine, environment: dict[str, str]) -> int:
    from bertjax.ablate import cost
    from bertjax.plan import hardware

    topology = command.flags["topology"]
    if not topology:
        raise UserError(f"no hardware: give --topology=KIND:SHAPE, as in {hardware.EXAMPLES}")
    made = cost.plan(command.config, topology, environment)
    print(json.dumps(made, indent=2) if command.flags["json"] else cost.text(made))
    return 0


def _compare(arguments: Sequence[str]) -> int:
    parser = cli.ArgumentParser(prog="python -m bertjax.ablate", add_help=False)
    parser.add_argument("--compare", required=True)
    parser.add_argument("--workdir", default="")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args(arguments)
    from bertjax.ablate import compare

    found = compare.compare(flags.compare, flags.workdir, flags.split)
    print(json.dumps(found, indent=2) if flags.json else compare.text(found))
    return 0


if __name__ == "__main__":
    cli.run(main)
