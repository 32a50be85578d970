"""From the `ablate.*` settings of a config to the cells of an ablation.

A variant sets several keys at once; a grid lists values that are combined with each other and with
every variant. `seed` repeats a cell: cells that differ in the seed alone are a group.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from bertjax import config as configs
from bertjax.errors import UserError

SHORT = {"L": "model.num_layers", "H": "model.hidden_size", "A": "model.num_heads"}
_LETTERS = {key: letter for letter, key in SHORT.items()}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_NAME = 150

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of an ablation.

    Attributes:
        name: of its folder: letters, digits, '.', '_', '-' and '+'.
        group: `name` without the seed.
        values: what the cell sets, by dotted key; of a fine-tuning its task's settings, too.
        varied: those of `values` that differ within its stage, in order.
        config: every config key, `ablate.*` at its default.
        target: the fine-tuning task by name; '' for a pretraining, or where there is one task.
        setting: what a fine-tuning varies but for the seed, as text; '' where nothing.
        parent: the pretraining cell that it starts from; '' for none.
    """

    name: str
    group: str
    values: Values
    varied: Values
    config: Values
    target: str = ""
    setting: str = ""
    parent: str = ""

    def resolved(self) -> config_dict.ConfigDict:
        """The config as `config.resolve` gives it."""
        return configs.resolve(configs.update(configs.default_config(), self.config))


def split(text: str, separator: str, key: str) -> list[str]:
    """The parts of `text` between separators outside quotes, stripped; empty parts are left out."""
    parts, start, quote = [], 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == separator:
            parts.append(text[start:place])
            start = place + 1
    if quote:
        raise UserError(f"config.{key}={text} has a quote {quote} that is not closed")
    return [part for part in (p.strip() for p in [*parts, text[start:]]) if part]


def typed(key: str, text: str) -> Any:
    """The value of a config key from its text; UserError for an unknown key or another type."""
    configs.check_key(key)
    kind = type(configs.BY_KEY[key].default)
    text = text.strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        text = text[1:-1]
    if kind is bool:
        values = {"true": True, "false": False}
        if text.lower() in values:
            return values[text.lower()]
    else:
        try:
            return kind(text)
        except ValueError:
            pass
    raise UserError(f"config.{key}={text} is not of type {kind.__name__}")


def _key(text: str, where: str) -> str:
    key = SHORT.get(text.strip(), text.strip())
    if key.startswith("ablate.") or key == "smoke" or (key == "task" and "finetune" not in where):
        raise UserError(f"config.{where}: {key} cannot differ between cells")
    if key == "train.seeds":
        raise UserError(f"config.{where}: seeds are repetitions: write seed=0,1,2 in the grid")
    if key != "config":
        configs.check_key(key)
    return key


def parse_settings(text: str, where: str) -> list[tuple[str, Values]]:
    """'NAME: key=value,key=value; ...' as (name or '', values) each. `config` stays a text."""
    found = []
    for item in split(text, ";", where):
        name, colon, rest = item.partition(":")
        if colon and "=" not in name:
            name = name.strip()
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"config.{where}: '{name}' is no name for a cell: it takes up to 64 letters, "
                    "digits, '.', '_' and '-'"
                )
        else:
            name, rest = "", item
        values: Values = {}
        for part in split(rest, ",", where):
            key, equals, value = part.partition("=")
            if not equals:
                raise UserError(f"config.{where}: '{part}' is not of the form key=value")
            key = _key(key, where)
            if key in values:
                raise UserError(f"config.{where}: {key} stands twice in '{item}'")
            values[key] = value.strip("'\" ") if key == "config" else typed(key, value)
        found.append((name, values))
    return found


def parse_grid(text: str, where: str) -> dict[str, list[Any]]:
    """'key=value,value; key=value' as the values of each key."""
    grid: dict[str, list[Any]] = {}
    for item in split(text, ";", where):
        key, equals, listed = item.partition("=")
        if not equals or not listed.strip():
            raise UserError(f"config.{where}: '{item}' is not of the form key=value,value")
        key = _key(key, where)
        if key == "config" or key in grid:
            raise UserError(f"config.{where}: '{item}' is one key too many")
        grid[key] = [typed(key, value) for value in split(listed, ",", where)]
        if len(set(grid[key])) < len(grid[key]):
            raise UserError(f"config.{where}: '{item}' has the same value twice")
    return grid


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """Every combination of the values, the last key changing fastest; [{}] of an empty grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def varied_keys(settings: Sequence[Values]) -> list[str]:
    """Keys that are not the same in all settings, `seed` last."""
    keys = list(dict.fromkeys(key for values in settings for key in values))
    differ = [k for k in keys if len({repr(values.get(k)) for values in settings}) > 1]
    return sorted(differ, key=lambda key: key == "seed")


def label(key: str, value: Any, among: Sequence[str] = ()) -> str:
    """A key and its value as part of a folder's name, without anything that a path reads."""
    leaf = key.rsplit(".", 1)[-1]
    if sum(other.rsplit(".", 1)[-1] == leaf for other in among) > 1:
        leaf = key
    text = str(value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        text = f"{value:g}"
    safe = re.sub(r"[^A-Za-z0-9.-]", "-", text)[:40]
    if safe != text:
        safe += "-" + hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{_LETTERS[key]}{safe}" if key in _LETTERS else f"{leaf}-{safe}"


def _joined(parts: Sequence[str]) -> str:
    name = "_".join(parts)
    if len(name) > _LONGEST_NAME:
        name = name[:120] + "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return name


def plain(config: config_dict.ConfigDict) -> Values:
    """Every key of a config, `ablate.*` at its default: what a cell's own run is made with."""
    known = configs.flat(config.to_dict())
    return {
        key: field.default if key.startswith("ablate.") else known[key]
        for key, field in configs.BY_KEY.items()
    }


def check_possible(
    cells: Sequence[Cell], rule: str, skipped: list[str] | None = None
) -> list[Cell]:
    """The cells that make a model. Others raise UserError, or where `rule` is 'skip' are left out
    and named in `skipped`."""
    kept = []
    for cell in cells:
        try:
            cell.resolved()
        except UserError as error:
            sentence = f"the cell {cell.name} is impossible: {error}"
            if rule != "skip":
                raise UserError(
                    f"{sentence}; take it out, or set --config.ablate.impossible=skip"
                ) from None
            if skipped is not None:
                skipped.append(sentence)
            continue
        kept.append(cell)
    return kept


def check_distinct(cells: Sequence[Cell]) -> None:
    """UserError where two cells have one name or one config."""
    names: dict[str, Cell] = {}
    made: dict[str, str] = {}
    for cell in cells:
        config = repr(sorted(cell.config.items())) + cell.parent
        if made.setdefault(config, cell.name) != cell.name or cell.name in names:
            raise UserError(
                f"the cells {made[config]} and {cell.name} are the same run: take one out, or give "
                "a variant a name (NAME: key=value,...)"
            )
        names[cell.name] = cell


def primary_cells(config: config_dict.ConfigDict) -> list[Cell]:
    """Variants times grid of the config itself: of pretraining, or of fine-tuning alone."""
    variants = parse_settings(config.ablate.variants, "ablate.variants") or [("", {})]
    grid = parse_grid(config.ablate.grid, "ablate.grid")
    for _, values in variants:
        if twice := [key for key in values if key in grid or key == "config"]:
            raise UserError(f"config.ablate.variants: {twice[0]} stands in ablate.grid, too")
    base, sizes = plain(config), config.task == "pretrain" and not config.init_from
    found = [(n, values, combo) for n, values in variants for combo in combinations(grid)]
    _check_sizes(base, [values | combo for _, values, combo in found])
    keys = varied_keys([values | combo for _, values, combo in found])
    cells = []
    for given, values, combo in found:
        every = values | combo
        shown = {key: every.get(key, base[key]) for key in keys}
        named = dict(shown)
        if sizes:
            named = {key: every.get(key, base[key]) for key in SHORT.values()} | named
        if given:  # the name stands for all that the variant sets
            named = {key: value for key, value in shown.items() if key in grid}
        parts = [given] if given else []
        parts += [label(k, v, keys) for k, v in named.items() if k != "seed"]
        group = _joined(parts) or "run"
        name = f"{group}_seed-{shown['seed']}" if "seed" in shown else group
        cells.append(Cell(name, group, every, shown, base | every))
    return cells


def _check_sizes(base: Values, settings: Sequence[Values]) -> None:
    """A checkpoint decides the sizes, so that cells cannot differ in them."""
    for values in settings:
        if values.get("init_from", base["init_from"]):
            for key in values:
                if key.removeprefix("model.") in configs.SIZE_KEYS:
                    raise UserError(
                        f"{key} cannot differ between cells that start from init_from="
                        f"{values.get('init_from', base['init_from'])}: the checkpoint decides it"
                    )
