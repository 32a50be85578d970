"""Wrong configs, files and arguments: each must give one clear sentence, and soon.

    python benchmarks/bad_input.py [--only=WORD]

Runs every wrong command as a process of its own, as a user would, and prints seconds, exit code
and sentence. A command passes when its exit code is 2, its last line is one sentence that holds the
expected words, there is no traceback and it took at most 5 s. Exit code 1 if any fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT_S = 5.0
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h i j k ##a ##b who is it . ?"


class Wrong(NamedTuple):
    """A command that cannot work, and words that its sentence must hold."""

    door: str
    arguments: tuple[str, ...]
    words: tuple[str, ...]


def make_files(folder: pathlib.Path) -> None:
    """The files that the commands below name as {d}/..."""
    vocab = "\n".join(PIECES.split()) + "\n"
    squad = {"data": [{"paragraphs": [{"context": "a b c d.", "qas": [
        {"id": "1", "question": "who is it " * 30 + "?",
         "answers": [{"text": "b", "answer_start": 2}]}]}]}]}  # fmt: skip
    texts = {
        "vocab.txt": vocab,
        "no_unk.txt": "[PAD]\na\nb\n",
        "empty.txt": "",
        "text.txt": "A b c d. E f g h.\n\nI j k a. B c d e.\n" * 30,
        "good.tsv": "text\tlabel\n" + "a b c\tyes\nd e f\tno\n" * 8,
        "unseen.tsv": "text\tlabel\na b c\tmaybe\n",
        "short_row.tsv": "text\tlabel\na b\tyes\nc d\n",
        "one_class.tsv": "text\tlabel\n" + "a b c\tyes\n" * 8,
        "empty_text.tsv": "text\tlabel\na b\tyes\n\tno\n" + "c d\tno\n" * 8,
        "scores.tsv": "text\tlabel\na b\t1.5\nc d\thigh\n",
        "header.tsv": "text\tlabel\n",
        "broken.jsonl": '{"text": "a b", "label": "yes"}\n{"text": \n',
        "list.jsonl": "[1, 2]\n",
        "good.conll": "a B-PER\nb O\n\nc O\nd B-LOC\n\n" * 4,
        "ragged.conll": "a B-PER\nb\n\n",
        "long_question.json": json.dumps(squad),
        "not_squad.json": json.dumps({"rows": []}),
        "broken.json": '{"data": [',
        "config_syntax.py": "def get_config(:\n",
        "config_empty.py": "x = 1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"A b.\nC \xe9 d.\n" * 20)
    (folder / "cut.txt.gz").write_bytes(
        gzip.compress(random.Random(0).randbytes(5000).hex().encode())[:-200]
    )
    (folder / "cut.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    hf = folder / "hf"
    hf.mkdir()
    (hf / "config.json").write_text("{}")
    (hf / "vocab.txt").write_text(vocab)
    bomb = folder / "bomb"
    bomb.mkdir()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32, "vocab_size": 23, "max_position_embeddings": 64}  # fmt: skip
    (bomb / "config.json").write_text(json.dumps(sizes | {"model_type": "bert"}))
    (bomb / "vocab.txt").write_text(vocab)
    (bomb / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    (folder / "folder").mkdir()


def _main(*arguments: str, words: tuple[str, ...], config: str = "tiny") -> Wrong:
    path = config if "/" in config else f"{ROOT}/configs/{config}"
    path = path if ".py" in path else f"{path}.py"
    return Wrong("main", (f"--config={path}", *arguments), words)


def _tune(task: str, *arguments: str, words: tuple[str, ...], sizes: str = "") -> Wrong:
    """A fine-tuning run of a small model that starts from random weights."""
    sizes = sizes or "num_layers=1,hidden_size=16,num_heads=2"
    known = ("--config.data.vocab={d}/vocab.txt", "--workdir={d}/run")
    return _main(*known, *arguments, words=words, config=f"{task}.py:{sizes}")


def _prepare(*arguments: str, words: tuple[str, ...]) -> Wrong:
    given = " ".join(arguments)
    source = () if "--source" in given else ("--source={d}/text.txt",)
    vocab = () if "--vocab" in given else ("--vocab={d}/vocab.txt",)
    out = () if "--out" in given else ("--out={d}/out",)
    return Wrong("prepare", (*source, *vocab, *out, *arguments), words)


WRONG: tuple[Wrong, ...] = (
    # The config and its values.
    Wrong("main", (), ("no config",)),
    _main(words=("nowhere.py",), config="{d}/nowhere.py"),
    _main(words=("config_syntax.py",), config="{d}/config_syntax.py"),
    _main(words=("config_empty.py", "get_config"), config="{d}/config_empty.py"),
    _main("--config.lrr=1", words=("lrr", "optimizer.learning_rate")),
    _main("--config.model.num_layer=3", words=("num_layer", "model.num_layers")),
    _main("--config.train.steps=many", words=("train.steps", "many")),
    _main("--config.data.nsp", "False", words=("'False'",)),
    _main("stray", words=("stray",)),
    _main("--mode=dance", words=("dance", "evaluate")),
    _main(words=("sized",), config="tiny.py:sized"),
    _main("--config.model.num_heads=3", words=("hidden_size=128", "num_heads=3")),
    _main("--config.model.num_layers=0", words=("num_layers=0",)),
    _main("--config.model.dtype=float61", words=("float61", "bfloat16")),
    _main("--config.model.hidden_dropout=1.0", words=("hidden_dropout=1.0",)),
    _main("--config.model.attention=fused", "--config.model.attention_dropout=0.1",
          words=("attention_dropout=0.1", "einsum")),
    _main("--config.data.seq_length=1000", words=("1000", "512")),
    _main("--config.data.mask_rate=0.0", words=("mask_rate=0.0",)),
    _main("--config.data.replace_mask=0.95", words=("0.95", "0.1")),
    _main("--config.data.batch_size=10", "--config.train.accumulate=4", words=("10", "4")),
    _main("--config.optimizer.name=sgd", words=("sgd", "adamw")),
    _main("--config.optimizer.learning_rate=nan", words=("learning_rate",)),
    _main("--config.optimizer.warmup_ratio=0.1", words=("warmup_steps", "warmup_ratio=0.1")),
    _main("--config.task=translate", words=("translate", "classify")),
    _main("--config.train.log_every=0", words=("train.log_every=0",)),
    _main("--config.mesh.tensor=4", words=("num_heads=2", "mesh.tensor=4")),
    _main("--config.mesh.data=3", "--config.mesh.fsdp=5", words=("15",)),
    _main("--coordinator=here:1", words=("--num_processes", "--process_id")),
    # Folders and files of a run.
    _main("--workdir={d}/big", words=("data/english", "bertjax.prepare"), config="large"),
    _main("--workdir=/dev/null/x", words=("/dev/null/x",)),
    _main("--workdir={d}/text.txt", words=("text.txt",)),
    _main("--mode=evaluate", "--workdir={d}/no_run", words=("no_run",)),
    _main("--config.data.source={d}/none*.txt", words=("none*.txt",)),
    _main("--config.data.source={d}/folder", words=("folder",)),
    _main("--config.data.vocab={d}/no.txt", words=("no.txt",)),
    _main("--config.data.vocab={d}/no_unk.txt", words=("[UNK]",)),
    _main("--config.init_from=nowhere/at/all", words=("nowhere/at/all",)),
    _main("--config.init_from={d}/hf", words=("hf",)),
    _main("--config.init_from={d}/bomb", words=("bomb",)),
    # Preparing a corpus.
    _prepare("--source={d}/none*.txt", words=("none*.txt",)),
    _prepare("--source={d}/empty.txt", words=("empty",)),
    _prepare("--source={d}/cut.txt.gz", words=("cut.txt.gz",)),
    _prepare("--source={d}/cut.parquet", words=("cut.parquet",)),
    _prepare("--source={d}/latin.txt", "--invalid_utf8=error", words=("latin.txt", "byte")),
    _prepare("--source=tfds:imdb_review:train", words=("imdb_reviews",)),
    _prepare("--source={d}/broken.jsonl", words=("broken.jsonl", "2")),
    _prepare("--vocab=train:0", words=("train:0",)),
    _prepare("--vocab={d}/empty.txt", words=("empty",)),
    _prepare("--held_out=2", words=("no share",)),
    _prepare("--out=http://o", words=("http://o",)),
    _prepare("--processes=-1", words=("processes",)),
    # Fine-tuning.
    _tune("classify", words=("data.train",)),
    _tune("classify", "--config.data.train={d}/nowhere.tsv", words=("nowhere.tsv",)),
    _tune("classify", "--config.data.train={d}/good.tsv", "--config.data.text_column=sentence",
          words=("sentence", "text", "label")),
    _tune("classify", "--config.data.train={d}/good.tsv",
          "--config.data.validation={d}/unseen.tsv", words=("maybe", "yes")),
    _tune("classify", "--config.data.train={d}/short_row.tsv", words=("short_row.tsv", "3")),
    _tune("classify", "--config.data.train={d}/one_class.tsv", words=("yes",)),
    _tune("classify", "--config.data.train={d}/header.tsv", words=("header.tsv",)),
    _tune("classify", "--config.data.train={d}/broken.jsonl", words=("broken.jsonl", "2")),
    _tune("classify", "--config.data.train={d}/list.jsonl", words=("list.jsonl",)),
    _tune("classify", "--config.data.train={d}/scores.tsv",
          "--config.data.problem_type=regression", words=("high",)),
    _tune("classify", words=("mrpcc", "mrpc"), sizes="preset=mrpcc"),
    _tune("classify", "--config.data.train={d}/good.tsv", "--config.train.frozen_layers=9",
          words=("frozen_layers=9",)),
    _tune("classify", "--config.data.train={d}/good.tsv", "--config.train.class_weights=oui=2",
          words=("oui",)),
    _tune("tag", "--config.data.train={d}/ragged.conll", words=("ragged.conll",)),
    _tune("answer", "--config.data.train={d}/not_squad.json", words=("not_squad.json",)),
    _tune("answer", "--config.data.train={d}/broken.json", words=("broken.json",)),
    _tune("answer", "--config.data.train={d}/long_question.json", "--config.data.seq_length=40",
          "--config.data.max_question_tokens=60", words=("max_question_tokens", "seq_length")),
    # The other front doors.
    Wrong("predict", (), ("COMMAND",)),
    Wrong("predict", ("translate", "a"), ("translate",)),
    Wrong("predict", ("embed", "--checkpoint={d}/nowhere", "a"), ("nowhere",)),
    Wrong("predict", ("embed", "--checkpoint={d}/bomb", "a"), ("bomb",)),
    Wrong("predict", ("embed", "--checkpoint={d}/hf", "--layers=x", "a"), ("'x'",)),
    Wrong("predict", ("embed", "--checkpoint={d}/hf", "--file={d}/no.txt"), ("no.txt",)),
    Wrong("convert", ("--from={d}/nowhere", "--to={d}/converted"), ("nowhere",)),
    Wrong("convert", ("--from={d}/hf",), ("--to",)),
    Wrong("plan", (f"--config={ROOT}/configs/base.py", "--topology=v9:2x2"), ("v9",)),
    Wrong("plan", (f"--config={ROOT}/configs/base.py", "--topology=v5e:3x5"), ("v5e",)),
    Wrong("ablate", (f"--config={ROOT}/configs/tiny.py",), ("ablate.variants",)),
    Wrong("ablate", (f"--config={ROOT}/configs/ablate.py",
                     "--config.ablate.variants=L=2,H=100,A=3"), ("100", "3")),
    Wrong("ablate", (f"--config={ROOT}/configs/tiny.py", "--config.ablate.grid=data.mask_rat=0.1"),
          ("data.mask_rat",)),
    Wrong("ablate", ("--compare=one,two", "--workdir={d}/none"), ("none",)),
    Wrong("report", ("--workdir={d}/nowhere",), ("nowhere",)),
    Wrong("report", (), ("--workdir",)),
)  # fmt: skip


class Outcome(NamedTuple):
    code: int
    output: str
    seconds: float


def run(wrong: Wrong, folder: pathlib.Path) -> Outcome:
    """The command in a process of its own, in `folder`."""
    arguments = [argument.replace("{d}", str(folder)) for argument in wrong.arguments]
    start = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", f"bertjax.{wrong.door}", *arguments],
        cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    return Outcome(found.returncode, found.stderr, time.monotonic() - start)


def complaint(wrong: Wrong, code: int, output: str) -> str:
    """What is not as it should be, '' if nothing."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    if "Traceback" in output:
        return "a traceback"
    if code != 2 or not last.startswith("error: "):
        return f"exit code {code}, last line {last!r}"
    missing = [word for word in wrong.words if word not in last]
    return f"no {missing} in {last!r}" if missing else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only commands that hold this word")
    only = parser.parse_args().only
    chosen = [w for w in WRONG if only in " ".join((w.door, *w.arguments))]
    failed, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_files(folder)
        for wrong in chosen:
            found = run(wrong, folder)
            fault = complaint(wrong, found.code, found.output)
            if found.seconds > LIMIT_S:
                fault = fault or f"took more than {LIMIT_S} s"
            failed, slowest = failed + bool(fault), max(slowest, found.seconds)
            last = (found.output.strip().splitlines() or [""])[-1]
            shown = f"FAILED, {fault}" if fault else last.replace(name, "DIR")
            print(f"{found.seconds:4.1f} s  {wrong.door:8} {shown}", flush=True)
    print(
        f"{len(chosen) - failed} of {len(chosen)} wrong commands gave one clear sentence; "
        f"the slowest took {slowest:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
