"""The fine-tuning cells of an ablation: tasks times settings, for each checkpoint to start from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ml_collections import config_dict

from bertjax import config as configs
from bertjax.ablate import grid
from bertjax.ablate.grid import Cell, Values
from bertjax.errors import UserError
from bertjax.tasks import glue

ALL = "glue"
# What a fine-tuning takes over from the config of the pretraining: where and how it computes.
CARRIED = ("mesh.", "model.dtype", "model.remat", "train.compile_cache", "train.deterministic")
# Sizes come from the checkpoint; the rest of ':smoke' holds for fine-tunings, too.
_SMOKE = {key: value for key, value in configs.SMOKE.items() if not key.startswith("model.")}


@dataclasses.dataclass(frozen=True)
class Target:
    """A fine-tuning task: its name, the config file to begin with ('' = none), what it sets."""

    name: str
    file: str
    values: Values


def targets(text: str) -> list[Target]:
    """The tasks of `ablate.finetune`. UserError for a name that is neither GLUE's nor defined."""
    presets, found = glue.presets(), []
    for name, given in grid.parse_settings(_named(text), "ablate.finetune"):
        values = dict(given)
        file = values.pop("config", "")
        if name == ALL and not given:
            found += [Target(task, "", preset) for task, preset in presets.items()]
            continue
        if not given and name not in presets:
            raise UserError(
                f"config.ablate.finetune: '{name}' is no GLUE task ({', '.join(presets)}): for a "
                f"task of your own write '{name}: data.train=FILE,data.validation=FILE'"
            )
        found.append(Target(name, file, presets.get(name, {}) | values))
    names = [target.name for target in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"config.ablate.finetune names {twice[0]} twice")
    return found


def _named(text: str) -> str:
    """`text` with a colon after names that stand alone; UserError where settings have no name."""
    items = []
    for item in grid.split(text, ";", "ablate.finetune"):
        name, colon, _ = item.partition(":")
        if "=" in name:  # a colon after it is one of a value
            raise UserError(
                f"config.ablate.finetune: '{item}' has no name: write 'NAME: {item}', or a GLUE "
                "task by name"
            )
        items.append(item if colon else item + ":")
    return ";".join(items)


def after_pretraining(config: config_dict.ConfigDict, parents: Sequence[Cell]) -> list[Cell]:
    """The fine-tunings of every pretraining cell, in the order of the cells.

    Each starts from the workdir of its cell; a cell with a seed starts fine-tunings of its own.
    """
    settings = grid.combinations(
        grid.parse_grid(config.ablate.finetune_grid, "ablate.finetune_grid")
    )
    found = targets(config.ablate.finetune)
    if settings != [{}] and not found:
        raise UserError("config.ablate.finetune_grid is set, but no task: set ablate.finetune")
    bases = {target.name: _base(config, target) for target in found}
    return [
        cell
        for parent in parents
        for target in found
        for cell in _cells(target, bases[target.name], settings, parent)
    ]


def alone(config: config_dict.ConfigDict) -> list[Cell]:
    """The cells of a config that is itself a fine-tuning: its grid, for each task of
    `ablate.finetune`, or for its own data where none is named."""
    if config.ablate.finetune_grid:
        raise UserError(
            f"config.ablate.finetune_grid is for fine-tuning after a pretraining; this config is "
            f"task={config.task}: use ablate.grid"
        )
    cells = grid.primary_cells(config)
    found = targets(config.ablate.finetune)
    if not found:
        return [dataclasses.replace(cell, setting=_setting(cell.varied)) for cell in cells]
    own = grid.plain(config)
    result = []
    for target in found:
        base = _base(config, target) if target.file else own | target.values
        for cell in cells:
            values = target.values | cell.values
            named = [target.name, *([cell.group] if cell.group != "run" else [])]
            group = "_".join(named)
            name = group + cell.name.removeprefix(cell.group)
            if cell.name == "run":
                name = group
            made = base | ({"init_from": own["init_from"]} if target.file else {}) | cell.values
            result.append(
                Cell(name, group, values, cell.varied, made, target.name, _setting(cell.varied))
            )
    return result


def _base(config: config_dict.ConfigDict, target: Target) -> Values:
    """The config of a fine-tuning before its grid: of its file, or the paper's for classifiers."""
    if target.file:
        base = configs.load([f"--config={target.file}"]).config
    else:
        base = configs.update(configs.default_config(), configs.FINETUNE | {"task": "classify"})
    if config.smoke:
        configs.update(base, _SMOKE)
    carried = {key: v for key, v in grid.plain(config).items() if key.startswith(CARRIED)}
    made = grid.plain(base) | carried | target.values
    if made["task"] == "pretrain":
        raise UserError(f"config.ablate.finetune: {target.name} is no fine-tuning task")
    return made


def _cells(target: Target, base: Values, settings: Sequence[Values], parent: Cell) -> list[Cell]:
    keys = grid.varied_keys(settings)
    sizes = [f"model.{key}" for key in configs.SIZE_KEYS if key != "vocab_size"]
    start = {key: parent.config[key] for key in sizes} | {"init_from": workdir_of(parent.name)}
    if sized := [key for key in target.values | settings[0] if key in [*start, "model.vocab_size"]]:
        raise UserError(
            f"config.ablate.finetune: {sized[0]} cannot be set: each pretrained cell decides it"
        )
    cells = []
    for values in settings:
        shown = {key: values[key] for key in keys}
        parts = [grid.label(k, v, keys) for k, v in shown.items() if k != "seed"]
        setting = "_".join([target.name, *parts])
        seed = f"_seed-{shown['seed']}" if "seed" in shown else ""
        config = base | values | start
        group = f"{parent.name}+{setting}"
        cells.append(
            Cell(group + seed, group, target.values | values, shown, config, target.name,
                 _setting(shown), parent.name)
        )  # fmt: skip
    return cells


def workdir_of(cell: str) -> str:
    """Of a cell, as its own and other cells' configs write it: seen from the ablation's folder."""
    return f"{{workdir}}/cells/{cell}"


def _setting(varied: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in varied.items() if key != "seed")
