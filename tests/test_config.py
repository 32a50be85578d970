"""The config: every leaf can be overridden, every mistake is one sentence."""

import pathlib

import pytest

from bertjax import config as configs
from bertjax.errors import UserError

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
BASE = f"--config={CONFIGS / 'base.py'}"
MODE = (configs.Field("workdir", "", "folder"), configs.Field("mode", "train", "m", configs.MODES))


def load(*arguments: str) -> configs.CommandLine:
    return configs.load(arguments, MODE)


def message(*arguments: str) -> str:
    with pytest.raises(UserError) as error:
        configs.resolve(load(*arguments).config)
    text = str(error.value)
    assert "\n" not in text
    return text


def other(field: configs.Field):
    """A value of the field's type that is not its default."""
    if field.choices:
        return next(c for c in field.choices if c != field.default)
    value = field.default
    return {bool: lambda: not value, int: lambda: value + 1, float: lambda: value + 0.25,
            str: lambda: value + "x"}[type(value)]()  # fmt: skip


@pytest.mark.parametrize("field", configs.FIELDS, ids=lambda f: f.key)
def test_every_field_can_be_overridden_and_keeps_its_type(field):
    value = other(field)
    config = load(BASE, f"--config.{field.key}={value}").config
    assert configs.get(config, field.key) == value
    assert type(configs.get(config, field.key)) is type(field.default)
    if isinstance(field.default, bool):
        off = load(BASE, f"--noconfig.{field.key}").config
        assert configs.get(off, field.key) is False


def test_number_forms():
    config = load(BASE, "--config.train.steps=1_000", "--config.optimizer.learning_rate=1").config
    assert config.train.steps == 1000
    assert config.optimizer.learning_rate == 1.0
    assert isinstance(config.optimizer.learning_rate, float)
    for bad in ("1e3", "0.5", "many"):
        assert f"train.steps={bad}" in message(BASE, f"--config.train.steps={bad}")
    assert "fast" in message(BASE, "--config.optimizer.learning_rate=fast")
    assert "maybe" in message(BASE, "--config.data.nsp=maybe")


def test_unknown_keys_name_the_nearest():
    assert "'optimizer.learning_rate'" in message(BASE, "--config.lrr=1")
    assert "'model.num_layers'" in message(BASE, "--config.model.num_layer=1")
    assert "'model.num_layers'" in message(BASE, "--config.num_layers=1")
    assert "--workdir" in message(BASE, "--wrkdir=x")


def test_stray_words_are_refused_with_the_right_form():
    text = message(BASE, "--config.data.nsp", "False")
    assert "'False'" in text and "--config.key=False" in text
    assert "'extra'" in message(BASE, "extra")


def test_config_files_that_are_not_there():
    assert "no config" in message()
    assert "nowhere.py" in message("--config=nowhere.py")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("c.optimizer.lr = 1e-3", ["'optimizer.lr'", "'optimizer.learning_rate'"]),
        ("c.optim = dict(lr=1)", ["'optim.lr'"]),
        ("c.train.steps = 1e3", ["line 4", "TypeError"]),
        ("c = configs.update(c, {'train.steps': '100'})", ["config.train.steps='100'", "int"]),
        ("c = configs.update(c, {'train.steps': True})", ["config.train.steps=True", "int"]),
        ("c = configs.update(c, {'data.nsp': 1})", ["config.data.nsp=1", "bool"]),
        ("c.data.train = ['a', 'b']", ["line 4", "TypeError"]),
        ("c = None", ["NoneType", "default_config"]),
        ("c = c.to_dict()", ["dict", "default_config"]),
        ("c = type(c)({'lr': 1})", ["no 'task'"]),
        ("del c.data.limit", ["no 'data.limit'"]),
        ("import nothing_of_this_name", ["line 4", "ModuleNotFoundError"]),
        ("c.train.steps = stepz", ["line 4", "NameError", "stepz"]),
    ],
)
def test_config_files_that_are_wrong(tmp_path, lines, words):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bertjax import config as configs\ndef get_config(argument=''):\n"
        f"    c = configs.default_config()\n    {lines}\n    return c\n"
    )
    text = message(f"--config={path}")
    for word in words:
        assert word in text


def test_numbers_of_a_config_file_take_the_type_of_their_field(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom bertjax import config as configs\n"
        "def get_config(argument=''):\n    c = configs.default_config()\n"
        "    c.optimizer.weight_decay = 0\n"
        "    c.data.language = 'pt_BR'\n"
        "    return configs.update(c, {'train.steps': np.int64(7), 'data.nsp': np.bool_(False),\n"
        "                              'model.hidden_dropout': 0})\n"
    )
    config = configs.resolve(load(f"--config={path}").config)
    values = [config.train.steps, config.model.hidden_dropout, config.optimizer.weight_decay]
    assert values == [7, 0, 0] and [type(value) for value in values] == [int, float, float]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config.model.num_heads=7"], ["hidden_size=768", "num_heads=7"]),
        (["--config.model.num_layers=0"], ["num_layers=0"]),
        (["--config.model.dtype=float61"], ["float61", "bfloat16"]),
        (["--config.model.hidden_dropout=1.0"], ["hidden_dropout=1.0"]),
        (["--config.data.seq_length=513"], ["513", "max_position_embeddings=512"]),
        (["--config.mesh.tensor=5"], ["num_heads=12", "mesh.tensor=5"]),
        (["--config.model.attention=fused"], ["attention_dropout=0.1", "einsum"]),
        (["--config.data.batch_size=10", "--config.train.accumulate=4"], ["10", "4"]),
        (["--config.data.mask_rate=0.0"], ["mask_rate=0.0"]),
        (["--config.data.replace_mask=0.95"], ["0.95", "0.1"]),
        (["--config.optimizer.warmup_ratio=0.1"], ["warmup_steps=10000", "warmup_ratio=0.1"]),
        (["--config.train.log_every=0"], ["train.log_every=0"]),
        (["--config.task=translate"], ["translate", "classify"]),
        (
            ["--config.train.reinit_layers=1", "--config.train.frozen_layers=12"],
            ["reinit_layers=1", "only 0 layers"],
        ),
        (["--config.train.profile=10"], ["train.profile=10", "FIRST:LAST"]),
        (["--config.optimizer.beta1=1.0"], ["beta1=1.0", "[0, 1)"]),
        (["--config.optimizer.beta2=1"], ["beta2=1.0", "[0, 1)"]),
        (["--config.data.mask_rate=1"], ["mask_rate=1.0", "between 0 and 1"]),
        (["--config.optimizer.learning_rate=inf"], ["learning_rate=inf", "finite"]),
        (["--config.optimizer.weight_decay=nan"], ["weight_decay=nan", "finite"]),
        (["--config.model.layer_norm_eps=-1"], ["layer_norm_eps=-1.0", "above 0"]),
        (["--config.model.initializer_range=0"], ["initializer_range=0.0", "above 0"]),
        (["--config.seed=-1"], ["seed=-1"]),
        (["--config.seed=2147483647", "--config.train.seeds=2"], ["seed=2147483647", "seeds"]),
        (["--config.loss.mlm=0", "--config.loss.nsp=0"], ["loss.mlm=0.0", "nothing"]),
        (["--config.loss.mlm=0", "--config.data.nsp=False"], ["loss.mlm=0.0", "data.nsp=False"]),
        (["--config.data.language=English"], ["data.language=English", "zh"]),
        (["--workdir", "--mode=train"], ["--workdir has no value", "--workdir=VALUE"]),
        (["--config.data.train", "--mode=train"], ["--config.data.train has no value"]),
        (["--mode=dance"], ["--mode=dance", "summary"]),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_values_that_cannot_run_are_named(arguments, words):
    text = message(BASE, *arguments)
    assert all(word in text for word in words), text


def test_sizes_after_the_file_name():
    command = load(f"{BASE}:num_layers=6,hidden_size=512,num_heads=8")
    config = configs.resolve(command.config)
    assert (config.model.num_layers, config.model.hidden_size, config.model.num_heads) == (
        6,
        512,
        8,
    )
    assert config.model.intermediate_size == 2048
    assert "model.num_layers" in command.explicit and "model.dtype" not in command.explicit
    assert "'dtype=bfloat16'" in message(f"{BASE}:dtype=bfloat16")
    assert "'smok'" in message(f"{BASE}:smok")
    assert "num_layers=six" in message(f"{BASE}:num_layers=six")
    assert "huge" in message(f"{BASE}:preset=huge")


def test_the_width_follows_the_last_word_on_the_size():
    config = configs.resolve(load(BASE, "--config.model.hidden_size=96").config)
    assert config.model.intermediate_size == 384


def test_smoke_comes_after_the_list_and_before_overrides():
    command = load(f"{BASE}:smoke,num_layers=6", "--config.train.steps=3")
    assert command.config.model.num_layers == configs.SMOKE["model.num_layers"]
    assert command.config.train.steps == 3 and command.config.smoke


@pytest.mark.parametrize("size", configs.SIZES)
def test_presets_are_the_published_sizes(size):
    config = configs.resolve(load(f"{BASE}:preset={size}").config)
    assert config.model.num_layers == configs.SIZES[size]["num_layers"]
    assert config.model.hidden_size == 64 * config.model.num_heads


def test_help_lists_every_key():
    text = configs.help_text("usage: x", MODE)
    assert all(f"--config.{field.key} " in text for field in configs.FIELDS)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.py")), ids=lambda p: p.stem)
def test_every_config_file_resolves_and_shrinks(path):
    for argument in ("", ":smoke"):
        command = load(f"--config={path}{argument}")
        config = configs.resolve(command.config)
        assert config.smoke == bool(argument)
    # Smoke leaves nothing of the size that the recipe has.
    assert config.model.num_layers == 2 and config.train.steps <= 20
