"""The config: command lines parsed, values checked; `fields.py` has the table of its keys.

A config file in configs/ starts from `default_config()`, sets how it differs and returns
`with_argument(config, argument)`. `load` reads a command line; `resolve` fills in what follows
from other fields and refuses what cannot run. Everything downstream sees resolved configs only.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import numbers
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict

from bertjax import config_file
from bertjax.errors import UserError
from bertjax.fields import (  # noqa: F401 - those who have the config have its tables
    BY_KEY,
    FIELDS,
    FINETUNE,
    MODES,
    PROCESSES,
    SIZE_KEYS,
    SIZES,
    SMOKE,
    Field,
    flat,
)
from bertjax.model.config import BertConfig
from bertjax.train import profile


def default_config() -> config_dict.ConfigDict:
    """A config with every field at its default."""
    config = config_dict.ConfigDict()
    for field in FIELDS:
        _set(config, field.key, field.default)
    return config


def _set(config: config_dict.ConfigDict, key: str, value: Any) -> None:
    *groups, name = key.split(".")
    for group in groups:
        if group not in config:
            config[group] = config_dict.ConfigDict()
        config = config[group]
    config[name] = value


def get(config: config_dict.ConfigDict, key: str) -> Any:
    """The value at a dotted key."""
    for name in key.split("."):
        config = config[name]
    return config


def update(config: config_dict.ConfigDict, values: Mapping[str, Any]) -> config_dict.ConfigDict:
    """Set known dotted keys in place. Returns the config.

    Raises:
        UserError: an unknown key, or a value of another type than the field's.
    """
    for key, value in values.items():
        _set(config, key, _typed(key, value))
    return config


def _typed(key: str, value: Any) -> Any:
    """The value, where a field takes it: a whole number where a float is due becomes one."""
    check_key(key)
    kind = type(BY_KEY[key].default)
    if hasattr(value, "item") and not getattr(value, "shape", True):  # a scalar of NumPy
        value = value.item()
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    if not isinstance(value, bool):
        if kind is int and isinstance(value, numbers.Integral):
            return int(value)
        if kind is float and isinstance(value, numbers.Real):
            return float(value)
    raise UserError(
        f"config.{key}={value!r} is of type {type(value).__name__}, and {kind.__name__} is needed"
    )


def check_key(key: str) -> None:
    """UserError, with the nearest known key, unless `key` is a field."""
    if key in BY_KEY:
        return

    def likeness(known: str) -> float:
        leaf = known.rsplit(".", 1)[-1]
        initials = "".join(word[0] for word in leaf.split("_"))  # lr for learning_rate
        names = (known, leaf, initials) if len(initials) > 1 else (known, leaf)
        wanted = (key, key.rsplit(".", 1)[-1])
        ratio = max(difflib.SequenceMatcher(None, a, b).ratio() for a in names for b in wanted)
        return ratio + 0.1 * (leaf[0] == wanted[1][:1])

    nearest = max(BY_KEY, key=likeness)
    raise UserError(f"unknown config key '{key}'; did you mean '{nearest}'? (--help lists all)")


def with_argument(
    config: config_dict.ConfigDict,
    argument: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> config_dict.ConfigDict:
    """Apply what follows ':' in `--config=FILE:ARGUMENT` and return the config.

    `argument` is a comma-separated list of 'smoke', 'preset=NAME' and key=value for the model's
    sizes. A preset maps dotted config keys to values; without `presets` the published sizes are
    offered. 'smoke' is applied last.
    """
    if presets is None:
        presets = {n: {f"model.{k}": v for k, v in size.items()} for n, size in SIZES.items()}
    smoke = False
    for item in filter(None, (part.strip() for part in (argument or "").split(","))):
        key, equals, value = item.partition("=")
        if item == "smoke":
            smoke = True
        elif key == "preset" and equals:
            if value not in presets:
                raise UserError(f"preset '{value}' is not one of {', '.join(presets)}")
            update(config, presets[value])
        elif key in SIZE_KEYS and equals:
            _set(config, f"model.{key}", _number(key, value))
        else:
            raise UserError(
                f"'{item}' after the config file is not understood: it takes smoke, preset=NAME "
                f"and {', '.join(SIZE_KEYS)} as key=value"
            )
    if smoke:
        update(config, SMOKE)
    return config


# The two phases of the published recipe (Devlin et al. 2019, A.2): the same but for these.
PHASES: Mapping[str, Mapping[str, Any]] = {
    "phase1": {"data.seq_length": 128, "data.max_predictions": 20, "train.steps": 900_000},
    "phase2": {"data.seq_length": 512, "data.max_predictions": 77, "train.steps": 100_000},
}


def published_recipe(
    size: str, argument: str, values: Mapping[str, Any] | None = None
) -> config_dict.ConfigDict:
    """The paper's pretraining of a size, phase 1; `values` are set before the argument."""
    sizes = {n: {f"model.{k}": v for k, v in s.items()} for n, s in SIZES.items()}
    recipe = {
        "model.dtype": "bfloat16",
        "data.source": "data/english",
        "data.batch_size": 256,
        "data.eval_examples": 10_000,
        "optimizer.learning_rate": 1e-4,
        "optimizer.warmup_steps": 10_000,
        "train.eval_every": 10_000,
        "checkpoint.every": 5_000,
    }
    config = update(default_config(), sizes[size] | recipe | PHASES["phase1"] | (values or {}))
    return with_argument(config, argument, sizes | PHASES)


def _number(key: str, text: str) -> Any:
    default = BY_KEY[f"model.{key}"].default
    try:
        return type(default)(text)
    except ValueError:
        raise UserError(f"{key}={text} is not of type {type(default).__name__}") from None


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What a command line says: the config, the keys it sets itself, and the other flags."""

    config: config_dict.ConfigDict
    explicit: frozenset[str]
    name: str  # of the config file
    flags: Mapping[str, Any]


def load(arguments: Sequence[str], extra: Sequence[Field] = ()) -> CommandLine:
    """Parse `--config=FILE[:ARGUMENT] [--config.key=value ...]` and `extra` flags.

    Raises:
        UserError: anything unknown, malformed or left over.
    """
    path, config = config_file.read(arguments)
    values = flags.FlagValues()
    fields = [*extra, *(dataclasses.replace(f, key=f"config.{f.key}") for f in FIELDS)]
    for field in fields:
        define = {str: flags.DEFINE_string, int: flags.DEFINE_integer, float: flags.DEFINE_float,
                  bool: flags.DEFINE_boolean}[type(field.default)]  # fmt: skip
        define(field.key, field.default, field.line, flag_values=values)
    arguments = config_file.without(arguments)
    for argument, after in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        _check_override(argument)
        if after.startswith("--") and _needs_value(argument, values):
            raise UserError(f"{argument} has no value before {after}: write {argument}=VALUE")
    try:
        rest = values(["bertjax", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        near = difflib.get_close_matches(error.flagname, [*values, "help"], n=1)
        hint = f"; did you mean '--{near[0]}'?" if near else " (see --help)"
        raise UserError(f"unknown flag '--{error.flagname}'{hint}") from None
    except flags.Error as error:
        raise UserError(" ".join(str(error).split())) from error
    if rest:
        raise UserError(
            f"stray argument '{rest[0]}': write flags as --config.key=value "
            "(a boolean as --config.key=False or --noconfig.key)"
        )
    for field in extra:
        if field.choices and values[field.key].value not in field.choices:
            raise UserError(
                f"--{field.key}={values[field.key].value} is not one of {', '.join(field.choices)}"
            )
    overrides = {
        f.key: values[f"config.{f.key}"].value for f in FIELDS if values[f"config.{f.key}"].present
    }
    listed = {
        f"model.{item.partition('=')[0].strip()}"
        for item in path.partition(":")[2].split(",")
        if item.partition("=")[0].strip() in SIZE_KEYS
    }
    return CommandLine(
        update(config, overrides),
        frozenset(overrides) | listed,
        pathlib.Path(path.partition(":")[0]).stem,
        {field.key: values[field.key].value for field in extra},
    )


def checked(command: CommandLine) -> CommandLine:
    """The same, after a look at its values: wrong ones are told before the long imports.

    Raises:
        UserError: as `resolve`. With init_from the sizes are the checkpoint's, and wait for it.
    """
    if not command.config.init_from:
        resolve(command.config)
    return command


def _needs_value(argument: str, known: flags.FlagValues) -> bool:
    """Whether it is a flag that takes the next word as its value: absl would take a flag, too."""
    name = argument[2:] if argument.startswith("--") else ""
    return name in known and not known[name].boolean


def _check_override(argument: str) -> None:
    """UserError for `--config.KEY=VALUE` whose key is unknown or whose value has another type."""
    if not argument.startswith(("--config.", "--noconfig.")):
        return
    key, equals, text = argument.split("config.", 1)[1].partition("=")
    check_key(key)
    kind = type(BY_KEY[key].default)
    if not equals or kind is str:
        return
    try:
        if kind is bool and text.lower() not in ("true", "false", "0", "1", "t", "f"):
            raise ValueError
        kind(text)
    except ValueError:
        raise UserError(f"config.{key}={text} is not of type {kind.__name__}") from None


def help_text(usage: str, extra: Sequence[Field] = ()) -> str:
    """`usage`, the flags and every config key with type, default and a line."""

    def row(field: Field, prefix: str) -> str:
        kind = "|".join(field.choices) or type(field.default).__name__
        default = repr(field.default) if field.default == "" else field.default
        return f"  {prefix}{field.key}  ({kind}, default {default})\n      {field.line}"

    return "\n".join(
        [usage.strip(), "", "flags:", *(row(f, "--") for f in extra), "", "config keys:",
         *(row(f, "--config.") for f in FIELDS)]
    )  # fmt: skip


def bert_config(config: config_dict.ConfigDict) -> BertConfig:
    """The model's part of a resolved config. UserError for sizes that make no model."""
    fields = {f.name for f in dataclasses.fields(BertConfig)} - {"frozen_layers"}
    values = {name: config.model[name] for name in fields}
    try:
        return BertConfig(**values, frozen_layers=config.train.frozen_layers)
    except ValueError as error:
        raise UserError(f"config.model: {error}") from None


def resolve(config: config_dict.ConfigDict) -> config_dict.ConfigDict:
    """A checked copy, with every derived field filled in (vocab_size 0 waits for the vocabulary).

    Raises:
        UserError: a value out of range, or values that contradict one another.
    """
    given = flat(config.to_dict())
    if missing := [key for key in BY_KEY if key not in given]:
        raise UserError(f"the config has no '{missing[0]}': start from config.default_config()")
    config = update(config_dict.ConfigDict(), given)
    for field in FIELDS:
        value = get(config, field.key)
        if field.choices and value not in field.choices:
            raise UserError(f"config.{field.key}={value} is not one of {', '.join(field.choices)}")
    if config.model.intermediate_size == 0:
        config.model.intermediate_size = 4 * config.model.hidden_size
    if config.data.eval_batch_size == 0:
        config.data.eval_batch_size = config.data.batch_size
    _check_model(config)
    _check_ranges(config)
    _check_together(config)
    profile.parse(config.train.profile)
    return config


def _check_model(config: config_dict.ConfigDict) -> None:
    model, data = config.model, config.data
    sized = config_dict.ConfigDict(config.to_dict())
    sized.model.vocab_size = model.vocab_size or 128  # checked again with the vocabulary
    bert_config(sized)
    if data.seq_length > model.max_position_embeddings:
        raise UserError(
            f"config.data.seq_length={data.seq_length} is beyond the position table, "
            f"config.model.max_position_embeddings={model.max_position_embeddings}"
        )
    if model.attention == "fused" and model.attention_dropout > 0:
        raise UserError(
            f"config.model.attention=fused has no attention dropout, but "
            f"config.model.attention_dropout={model.attention_dropout}: set it to 0 or choose "
            "auto or einsum"
        )
    if config.mesh.tensor > 0 and model.num_heads % config.mesh.tensor:
        raise UserError(
            f"config.model.num_heads={model.num_heads} is not divisible by "
            f"config.mesh.tensor={config.mesh.tensor}: heads are split over that axis"
        )


def _check_ranges(config: config_dict.ConfigDict) -> None:
    def require(ok: bool, key: str, what: str) -> None:
        if not ok:
            raise UserError(f"config.{key}={get(config, key)} {what}")

    for field in FIELDS:
        if isinstance(field.default, float):
            require(math.isfinite(get(config, field.key)), field.key, "must be a finite number")
    for key in ("data.batch_size", "data.eval_batch_size", "train.accumulate", "train.log_every",
                "checkpoint.keep", "train.seeds", "data.max_question_tokens",
                "data.max_answer_tokens", "data.n_best"):  # fmt: skip
        require(get(config, key) >= 1, key, "must be at least 1")
    for key in ("train.steps", "train.epochs", "train.eval_every", "data.eval_examples",
                "data.max_predictions", "data.workers", "optimizer.warmup_steps",
                "optimizer.weight_decay", "optimizer.grad_clip", "optimizer.learning_rate",
                "checkpoint.every", "checkpoint.every_seconds", "checkpoint.keep_every",
                "loss.mlm", "loss.nsp", "data.limit", "data.window_overlap", "train.patience",
                "train.reinit_layers"):  # fmt: skip
        require(get(config, key) >= 0, key, "must not be negative")
    for key in ("data.replace_mask", "data.replace_random", "optimizer.warmup_ratio"):
        require(0 <= get(config, key) <= 1, key, "must lie in [0, 1]")
    for key in ("optimizer.beta1", "optimizer.beta2"):  # 1: no gradient would ever be seen
        require(0 <= get(config, key) < 1, key, "must lie in [0, 1)")
    for key in ("data.mask_rate", "data.held_out"):
        require(0 < get(config, key) < 1, key, "must lie between 0 and 1")
    for key in ("optimizer.epsilon", "model.layer_norm_eps", "model.initializer_range"):
        require(get(config, key) > 0, key, "must be above 0")
    require(0 < config.optimizer.layer_decay <= 1, "optimizer.layer_decay", "must lie in (0, 1]")
    code = re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", config.data.language or "en")
    require(code is not None, "data.language", "is no language code such as en, de or zh")
    require(config.data.seq_length >= 8, "data.seq_length", "must be at least 8")
    last = config.seed + config.train.seeds - 1  # numpy's generators take no negative seed
    require(config.seed >= 0 and last < 2**31, "seed", "must lie, with train.seeds, in 0 ... 2^31")


def _check_together(config: config_dict.ConfigDict) -> None:
    """UserError for values that contradict one another."""
    trained = config.model.num_layers - config.train.frozen_layers
    if config.train.reinit_layers > trained:
        raise UserError(
            f"config.train.reinit_layers={config.train.reinit_layers}, but only {trained} layers "
            "are trained: lower it or config.train.frozen_layers"
        )
    pairs = config.loss.nsp if config.data.nsp else 0.0
    if config.task == "pretrain" and config.loss.mlm == pairs == 0:
        raise UserError(
            f"config.loss.mlm={config.loss.mlm} and config.loss.nsp={config.loss.nsp} with "
            f"config.data.nsp={config.data.nsp}: nothing would be learnt"
        )
    shares = config.data.replace_mask + config.data.replace_random
    if shares > 1 + 1e-9:
        raise UserError(
            f"config.data.replace_mask={config.data.replace_mask} and "
            f"config.data.replace_random={config.data.replace_random} exceed 1 together"
        )
    if config.optimizer.warmup_steps and config.optimizer.warmup_ratio:
        raise UserError(
            f"config.optimizer.warmup_steps={config.optimizer.warmup_steps} and "
            f"config.optimizer.warmup_ratio={config.optimizer.warmup_ratio}: give only one"
        )
    if config.data.batch_size % config.train.accumulate:
        raise UserError(
            f"config.data.batch_size={config.data.batch_size} is not divisible by "
            f"config.train.accumulate={config.train.accumulate}"
        )


def stderr(text: str) -> None:
    """A line for the person at the terminal, apart from results on standard output."""
    print(text, file=sys.stderr, flush=True)
