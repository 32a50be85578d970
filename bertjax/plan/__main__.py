"""Plan a run: compile its training step for hardware that is not there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence

from ml_collections import config_dict

from bertjax import cli, config
from bertjax.errors import UserError

USAGE = """
usage: python -m bertjax.plan --config=FILE[:ARGUMENTS] --topology=KIND:SHAPE [--json]
                              [--config.KEY=VALUE ...]

Compiles the config's training step for a TPU slice or for hosts of GPUs and says what it needs of
memory, whether it fits, what to change if not, what the devices exchange, and how fast it can be
at best. Neither the hardware nor the corpus has to be there. It needs the extra 'plan'.

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
    # The compilers need no device, and none of this machine's is to be taken.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from bertjax.plan import estimate, hardware, program

    topology = command.flags["topology"]
    if not topology:
        raise UserError(f"no hardware: give --topology=KIND:SHAPE, as in {hardware.EXAMPLES}")
    kind, _ = hardware.parse(topology)
    resolved = config.resolve(command.config)
    devices = hardware.devices(topology)
    mesh = program.mesh_of(resolved, devices)
    with tempfile.TemporaryDirectory() as folder:
        if kind in hardware.GPU_TARGETS and resolved.model.attention != "einsum":
            resolved.model.attention = "einsum"
            config.stderr(
                "GPUs are planned with the einsum attention: the fused kernel needs cuDNN, which "
                "is not there; with it the step takes less memory and time"
            )
        task = make_task(command, resolved, folder)
        compiled = program.compile_step(resolved, task, mesh)
        plan = estimate.summarise(topology, resolved, task, hardware.KINDS[kind], compiled)
    print(json.dumps(plan, indent=2) if command.flags["json"] else estimate.text(plan))
    return 0


def make_task(command: config.CommandLine, resolved: config_dict.ConfigDict, folder: str):
    """The task of the config: a pretraining one without its corpus, others with their data."""
    if resolved.task != "pretrain":
        from bertjax import start

        return start.prepare(command, folder).task
    from bertjax.tasks import pretrain

    if resolved.init_from:
        config.stderr("init_from is not read: the sizes are those of the config")
    if not resolved.model.vocab_size:
        resolved.model.vocab_size, origin = _vocab_size(resolved.data.vocab)
        config.stderr(f"vocabulary: {resolved.model.vocab_size} tokens, {origin}")
    return pretrain.without_data(resolved)


def _vocab_size(vocab: str) -> tuple[int, str]:
    from bertjax.data.tokenizer import Tokenizer

    kind, _, size = vocab.partition(":")
    if kind == "train" and size.isdecimal():
        return int(size), f"by config.data.vocab={vocab}"
    if vocab:
        return Tokenizer.load(vocab).vocab_size, f"as in {vocab}"
    return 30522, "as in the published models, since config.model.vocab_size is 0"


if __name__ == "__main__":
    cli.run(main)
