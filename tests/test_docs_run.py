"""The commands of README and docs/ run, in the order of their page, each in a small form.

Small means: configs in their smoke form with two steps, grids of one value, slices of 2x2, made-up
texts and models of the names that the pages use. What needs a cluster is listed in `ELSEWHERE`
with the reason; a command that is neither run nor listed fails the test.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from test_docs import PAGES, ROOT, blocks, front_door, simple_commands

from bertjax import interop
from bertjax.data.tokenizer import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent / "interop"))
from interop_models import published

SENTENCES = (
    "the quick brown fox jumps over the lazy dog .",
    "hello world , the dog is not lazy .",
    "a fox is quick and the dog is good .",
    "is the brown dog bad ?",
)
PAIRS = [(text, SENTENCES[(i + 1) % 4]) for i, text in enumerate(SENTENCES)]
# Commands that are not run here, by how they begin, and why.
ELSEWHERE = {
    "launch/test.sh": "it is what runs this",
    "sbatch": "needs Slurm; test_launch.py runs the script",
    "kubectl": "needs a cluster; test_launch.py checks the JobSet",
    "envsubst": "test_launch.py checks the JobSet",
    "export": "a variable of the shell",
    "launch/tpu_pod.sh my": "needs a TPU slice; test_launch.py runs the script",
    "gcloud": "needs an account",
    "ssh": "needs another host",
    "source": "the environment is this one",
    "pip": "the environment is this one",
    "tensorboard": "a server, which does not end",
    "python -m bertjax.main --config=configs/tiny.py:smoke --workdir=runs/two": "two at once; "
    "test_distributed.py runs them",
    "python -m bertjax.ablate --compare=runs/": "of long runs; tests/ablate has small ones",
}
ARRANGED = ("checkpoints.md",)  # tests/test_predict.py runs these, on models made for them


def make_files(folder: pathlib.Path) -> None:
    """Texts, labelled files and published models of the names that the pages use."""
    for name in ("my_texts", "general_texts", "texts", "books"):
        (folder / name).mkdir()
        for i in range(12):
            text = "".join(f"{SENTENCES[(i + j) % 4]} number {i} {j}\n" for j in range(30))
            suffix = "md" if name == "books" else "txt"
            (folder / name / f"{i}.{suffix}").write_text(text)
    for name in ("reviews", "train", "dev", "test"):
        rows = "".join(f"{s}\t{('positive', 'negative')[i % 2]}\n" for i, s in enumerate(SENTENCES))
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + rows * 8)
    for name in ("pairs", "dev"):
        rows = "".join(f'"{s}","{t}",{("yes", "no")[i % 2]}\n' for i, (s, t) in enumerate(PAIRS))
        (folder / f"{name}.csv").write_text("premise,hypothesis,label\n" + rows * 8)
    for name in ("train", "dev"):
        (folder / f"{name}.conll").write_text("hello\tO\nfox\tB-PER\n\nthe\tO\ndog\tB-LOC\n\n" * 8)
        answers = [{"text": "fox", "answer_start": SENTENCES[0].index("fox")}]
        asked = [{"id": str(i), "question": "who jumps ?", "answers": answers} for i in range(9)]
        paragraphs = [{"context": SENTENCES[0], "qas": asked}]
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    (folder / "texts.txt").write_text("a good dog\nthe fox jumps\n")
    for name in ("bert-base-uncased", "CHECKPOINT", "sentence-transformers/all-MiniLM-L6-v2"):
        model = published(("mlm", "nsp"), max_position_embeddings=64)
        interop.write_huggingface(folder / name, model)
        assert Tokenizer.load(folder / name).vocab_size


def small(words: tuple[str, ...]) -> list[str] | None:
    """The command in its small form; None for one of `ELSEWHERE`."""
    line = " ".join(words)
    if any(line.startswith(start) for start in ELSEWHERE):
        return None
    door = front_door(words)
    if not door or "--dry-run" in words:  # a program of ours, by its path
        programs = ("launch/", "benchmarks/")
        line = [str(ROOT / word) if word.startswith(programs) else word for word in words]
        if words[0] == "python":
            return [sys.executable, *line[1:]]
        return line if words[0] == "bash" else ["bash", *line]
    start = 3 if words[1] == "-m" else 1
    summary = "--mode=summary" in words
    rest = [
        word.replace("--config=", f"--config={ROOT}/") if summary else shrunk(word)
        for word in words[start:]
    ]
    result = [sys.executable, "-m", door[0], *rest]
    training = door[0] in ("bertjax.main", "bertjax.ablate") and not summary
    if training and any(word.startswith("--config=") for word in words):
        result += ["--config.train.steps=2", "--config.data.batch_size=8"]
    return result


def shrunk(word: str) -> str:
    """A word of a command, smaller."""
    word = re.sub(r"gs://[\w-]+|/scratch", "cloud", word)
    if match := re.fullmatch(r"--config=(configs/\w+\.py)(?::(.*))?", word):
        items = [item for item in (match[2] or "").split(",") if item]
        items += ["smoke"] if "smoke" not in items else []
        return f"--config={ROOT / match[1]}:{','.join(items)}"
    if word.startswith("--config.ablate.grid="):
        return re.sub(r"(=[^=,;]*)(?:,[^=;]*)+(?=;|$)", r"\1", word)
    if match := re.match(r"--config\.ablate\.finetune(_grid)?=", word):
        return match[0]
    if word == "--compare=L2_H128_A2,L4_H128_A2":
        return "--compare=L1_H32_A1,L2_H64_A2"  # the cells of the smoke form
    if word.startswith("--config.ablate.amount="):
        return "--config.ablate.amount=1e9"
    if word.startswith("--vocab=train:"):
        return "--vocab=train:200"
    return re.sub(r"--topology=.*", "--topology=v5e:2x2", word)


def test_small_forms():
    grid = "--config.ablate.grid=optimizer.learning_rate=1e-4,3e-4; seed=0,1,2"
    assert shrunk(grid).endswith("grid=optimizer.learning_rate=1e-4; seed=0")
    assert small(("sbatch", "--nodes=2", "launch/slurm.sbatch")) is None
    command = small(("launch/local.sh", "--config=configs/base.py:preset=phase2"))
    assert command[1:3] == ["-m", "bertjax.main"] and "preset=phase2,smoke" in command[3]


@pytest.mark.long
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="once, on the oldest Python, is enough")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ARRANGED], ids=lambda page: page.name
)
def test_every_command_of_the_page_runs(page: pathlib.Path, tmp_path: pathlib.Path):
    make_files(tmp_path)
    failures, done = [], set()
    for words in (words for block in blocks(page) for words in simple_commands(block)):
        command = small(words)
        if command is None or tuple(command) in done:
            continue
        done.add(tuple(command))
        planned = "bertjax.plan" in command or "--plan" in command
        if planned and importlib.util.find_spec("libtpu") is None:
            continue
        devices = 8 if any("mesh." in word for word in command) else 1
        found = subprocess.run(
            command, cwd=ROOT if "--dry-run" in words else tmp_path,
            capture_output=True, text=True, timeout=900,
            env=os.environ | {
                "PYTHONPATH": str(ROOT),
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            },
        )  # fmt: skip
        if found.returncode:
            failures.append(f"{' '.join(words)}\n{found.stderr[-1500:]}")
    assert not failures, "\n\n".join(failures)
