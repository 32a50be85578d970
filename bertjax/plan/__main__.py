"""Plan a run: compile its training step for hardware that is not there."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence

from bertjax import cli, config
from bertjax.errors import UserError

USAGE = """
usage: python -m bertjax.plan --config=FILE[:ARGUMENTS] --topology=KIND:SHAPE [--json]
                              [--config.KEY=VALUE ...]

Compiles the config's training step for a TPU slice or for hosts of GPUs and says what it needs of
memory, whether it fits, what to change if not, what the devices exchange, and how fast it can be
at best. Neither the hardware nor the corpus has to be there; a fine-tuning's labelled data does.
It needs the extra 'plan'.

  python -m bertjax.plan --config=configs/base.py --topology=v5e:2x4
  python -m bertjax.plan --config=configs/large.py:preset=phase2 --topology=v5p:2x2x2 --json
  python -m bertjax.plan --config=configs/large.py --topology=h100:2x8 --config.mesh.fsdp=8
"""
FLAGS = (
    config.Field("topology", "", "v4:AxBxC, v5e:AxB, v5p:AxBxC or v6e:AxB chips; a100:AxB or "
                 "h100:AxB hosts x GPUs"),
    config.Field("json", False, "print one JSON document"),
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Parse, check, compile, print; see USAGE."""
    if "--help" in arguments or "-h" in arguments:
        print(config.help_text(USAGE, FLAGS))
        return 0
    command = config.load(arguments, FLAGS)
    cli.use_cpu()  # the compilers need no device
    from bertjax.plan import estimate, hardware, program

    topology = command.flags["topology"]
    if not topology:
        raise UserError(f"no hardware: give --topology=KIND:SHAPE, as in {hardware.EXAMPLES}")
    kind, _ = hardware.parse(topology)
    resolved, tokenizer = program.settle(command)
    if kind in hardware.GPU_TARGETS and resolved.model.attention != "einsum":
        resolved.model.attention = "einsum"
        config.stderr(
            "GPUs are planned with the einsum attention: the fused kernel needs cuDNN, which "
            "is not there; with it the step takes less memory and time"
        )
    mesh = program.mesh_of(resolved, hardware.devices(topology))
    with tempfile.TemporaryDirectory() as folder:
        task = program.make_task(resolved, tokenizer, folder)
        compiled = program.compile_step(task, mesh)
        plan = estimate.summarise(topology, task, hardware.KINDS[kind], compiled)
    print(json.dumps(plan, indent=2) if command.flags["json"] else estimate.text(plan))
    return 0


if __name__ == "__main__":
    cli.run(main)
