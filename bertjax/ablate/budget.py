"""What a cell costs, and how many steps each cell gets so that all get the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from ml_collections import config_dict

from bertjax import config as configs
from bertjax.ablate.grid import Cell
from bertjax.errors import UserError
from bertjax.tasks import pretrain


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a pretraining cell.

    parameters: of encoder and pooler, real vocabulary rows (as the published 110M and 340M).
    step_flops: model FLOPs of a training step over the global batch (bertjax.model.flops).
    step_tokens: places of a training step, batch size times length.
    """

    parameters: int
    step_flops: int
    step_tokens: int


def cost(resolved: config_dict.ConfigDict, vocab_size: int) -> Cost:
    """The cost of a resolved pretraining config with a vocabulary of `vocab_size` tokens."""
    resolved = config_dict.ConfigDict(resolved.to_dict())
    resolved.model.vocab_size = vocab_size
    data, task = resolved.data, pretrain.without_data(resolved)
    return Cost(
        parameters(resolved, vocab_size),
        task.step_flops(task.batch_spec()),
        data.batch_size * data.seq_length,
    )


def parameters(resolved: config_dict.ConfigDict, vocab_size: int) -> int:
    """Encoder and pooler of a resolved config, without the rows that pad the vocabulary."""
    resolved = config_dict.ConfigDict(resolved.to_dict())
    resolved.model.vocab_size = vocab_size
    task = pretrain.without_data(resolved)
    leaves = jax.tree.leaves(jax.eval_shape(task.init_params, jax.random.key(0))["bert"])
    bert = configs.bert_config(resolved)
    return sum(x.size for x in leaves) - (bert.padded_vocab_size - vocab_size) * bert.hidden_size


def with_budget(
    config: config_dict.ConfigDict, cells: Sequence[Cell], costs: Mapping[str, Cost]
) -> list[Cell]:
    """The cells with the steps that `ablate.budget` gives each of them.

    Raises:
        UserError: the budget contradicts the grid, is not known, or makes no step of a cell.
    """
    kind = config.ablate.budget
    if kind == "steps":
        if amount := config.ablate.amount:
            raise UserError(
                f"config.ablate.amount={amount:g} is for ablate.budget=tokens or flops; steps are "
                "those of train.steps"
            )
        return list(cells)
    if config.ablate.amount < 0:
        raise UserError(f"config.ablate.amount={config.ablate.amount:g} must not be negative")
    for cell in cells:
        if fixed := [k for k in ("train.steps", "train.epochs") if k in cell.values]:
            raise UserError(
                f"config.ablate.budget={kind} decides the steps of every cell, but {cell.name} "
                f"sets {fixed[0]}: take it out"
            )
    amount = _amount(config, cells[0], costs)
    if not amount:
        raise UserError(f"config.ablate.budget={kind} needs config.ablate.amount or train.steps")
    result = []
    for cell in cells:
        each = _of_a_step(kind, costs[cell.name])
        steps = round(amount / each)
        if steps < 1:
            raise UserError(
                f"config.ablate.amount={amount:g} {kind} make no step of the cell {cell.name}, "
                f"which takes {each:g} a step"
            )
        result.append(dataclasses.replace(cell, config=cell.config | {"train.steps": steps}))
    return result


def _of_a_step(kind: str, cost: Cost) -> int:
    return cost.step_flops if kind == "flops" else cost.step_tokens


def _amount(config: config_dict.ConfigDict, first: Cell, costs: Mapping[str, Cost]) -> float:
    """What each cell gets of the budget's kind: as set, or what the first takes of train.steps."""
    each = _of_a_step(config.ablate.budget, costs[first.name])
    return config.ablate.amount or each * first.config["train.steps"]


def text(config: config_dict.ConfigDict, cells: Sequence[Cell], costs: Mapping[str, Cost]) -> str:
    """One sentence on what the cells have in common."""
    kind, first = config.ablate.budget, cells[0]
    if kind == "steps":
        steps = {cell.config["train.steps"] for cell in cells}
        if len(steps) > 1:
            return "each cell trains its own number of steps"
        return f"all cells train {steps.pop():,} steps" if steps != {0} else (
            f"all cells train {first.config['train.epochs']:g} epochs"
        )  # fmt: skip
    amount = _amount(config, first, costs)
    what = "training FLOPs" if kind == "flops" else "tokens (places of rows, padding counted)"
    return f"all cells train with {amount:.3g} {what}, to the nearest step"
