"""Every command in README.md, CONTRIBUTING.md and docs/ names what exists; the runs run, small."""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from bertjax import config

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
    if path.exists()
]
OPERATORS = {"|", "||", "&&", ";", "&", "(", ")"}
# Commands of others that the pages may use.
FOREIGN = """
    awk bash cat cd curl docker echo envsubst export gcloud git gsutil head jq kubectl ls mkdir
    pip ruff sbatch scancel squeue ssh sudo tail tensorboard unzip wget
"""
FOLDERS = ("launch", "configs", "benchmarks", "tests", "docs", ".ci")


def blocks(page: pathlib.Path) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf8"), re.DOTALL | re.M)


def simple_commands(block: str) -> Iterator[tuple[str, ...]]:
    """The commands of a block, word by word, cut at pipes and the like; comments are left out."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in OPERATORS:
                words.append(word)
                continue
            while words and re.fullmatch(r"\w+=.*", words[0], re.DOTALL):  # EXTRAS=cuda command
                words.pop(0)
            if words:
                yield tuple(words)
            words = []


COMMANDS = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:80]}")
    for page in PAGES
    for words in dict.fromkeys(words for block in blocks(page) for words in simple_commands(block))
]


def front_door(words: tuple[str, ...]) -> tuple[str, ...]:
    """The module of bertjax that a command runs, and its subcommand; () if it runs none."""
    if re.fullmatch(r"python3?|.*/bin/python", words[0]) and words[1:2] == ("-m",):
        subcommand = [word for word in words[3:4] if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)]
        return (words[2], *subcommand) if words[2].startswith("bertjax.") else ()
    launchers = {f"launch/{name}" for name in ("local.sh", "tpu_pod.sh", "slurm.sbatch")}
    return ("bertjax.main",) if launchers & set(words) else ()


@functools.cache
def help_of(door: tuple[str, ...]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *door, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, f"{' '.join(door)} --help: {done.stderr}"
    return done.stdout


def test_commands_are_read_as_meant():
    block = (
        "# why\ncd x && EXTRAS='a b' launch/local.sh --config=c.py \\\n --x='1 2' | head -3 # end"
    )
    assert list(simple_commands(block)) == [
        ("cd", "x"),
        ("launch/local.sh", "--config=c.py", "--x=1 2"),
        ("head", "-3"),
    ]


@pytest.mark.parametrize("words", COMMANDS)
def test_command_names_what_exists(words: tuple[str, ...]):
    for word in words:
        path = word.removeprefix("--config=").split(":")[0]
        if path.split("/")[0] in FOLDERS and "/" in path:
            assert any(ROOT.glob(path)), f"{path} does not exist"
    if door := front_door(words):
        help_text = help_of(door)
        # What stands before a launcher's name is sbatch's or ssh's own.
        start = max((i for i, word in enumerate(words) if word.startswith("launch/")), default=0)
        for flag in (word.split("=")[0] for word in words[start:]):
            if flag.startswith("--config."):
                config.check_key(flag.removeprefix("--config."))
            elif flag.startswith("--") and flag not in ("--help", "--dry-run"):
                assert re.search(rf"{flag}\b", help_text), f"{' '.join(door)} has no {flag}"
    elif words[0] in ("python", "python3"):
        assert words[1].endswith(".py") or words[1] in ("-m", "-c"), words
    else:
        assert words[0] in FOREIGN.split() or (ROOT / words[0]).is_file(), f"what is {words[0]}?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_extras_and_links_exist(page: pathlib.Path):
    text = page.read_text(encoding="utf8")
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for names in re.findall(r"(?:-e|--editable) '?\"?\.\[([\w,]+)\]|EXTRAS=([\w,]+)", text):
        assert set(",".join(filter(None, names)).split(",")) <= set(extras)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), f"link to {target}"


CONFIGS = sorted(
    {
        match.group(1)
        for param in COMMANDS
        if front_door(param.values[0]) == ("bertjax.main",)
        for word in param.values[0]
        if (match := re.fullmatch(r"--config=(configs/\w+\.py).*", word))
    }
)


@pytest.mark.long
@pytest.mark.parametrize("path", CONFIGS)
def test_documented_config_runs_in_its_smoke_form(path: str, tmp_path: pathlib.Path):
    command = [sys.executable, "-m", "bertjax.main", f"--config={path}:smoke"]
    done = subprocess.run(
        [*command, f"--workdir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
        env={**os.environ, "XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "metrics.jsonl").stat().st_size
