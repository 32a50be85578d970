"""The main front door: one sentence and exit code 2 for bad input, and a run end to end."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import jax
import pytest

from bertjax import cli, main, start
from bertjax import config as configs

ROOT = pathlib.Path(__file__).parent.parent
TINY = f"--config={ROOT / 'configs' / 'tiny.py'}"


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        cli.run(main.main, arguments)
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no config"]),
        (["--config=nowhere.py"], ["nowhere.py"]),
        ([TINY, "--config.lrr=1"], ["lrr", "optimizer.learning_rate"]),
        ([TINY, "--config.data.nsp", "False"], ["'False'", "--noconfig.key"]),
        ([TINY, "--config.model.num_heads=3"], ["hidden_size=128", "num_heads=3"]),
        ([TINY, "--config.data.seq_length=1000"], ["1000", "512"]),
        ([TINY, "--config.mesh.tensor=4"], ["num_heads=2", "mesh.tensor=4"]),
        ([TINY, "--config.mesh.data=3", "--config.mesh.fsdp=5"], ["15", "8"]),
        ([TINY, "--config.init_from=nowhere/at/all"], ["nowhere/at/all"]),
        ([TINY, "--workdir=/dev/null/x"], ["/dev/null/x"]),
        ([TINY, "--coordinator=here:1"], ["--num_processes", "--process_id"]),
        ([TINY, "--mode=evaluate", "--workdir=/nowhere/run"], ["/nowhere/run"]),
        ([TINY, "--config.data.eval_batch_size=7"], ["data.eval_batch_size", "7", "8"]),
        ([f"--config={ROOT / 'configs' / 'large.py'}"], ["data/english", "bertjax.prepare"]),
    ],
    ids=lambda x: " ".join(x)[-60:] if isinstance(x, list) else None,
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not any(a.startswith(("--workdir", "--config.init_from")) for a in arguments):
        arguments = [*arguments, f"--workdir={tmp_path / 'run'}"]
    code, _, err = run(*arguments, capsys=capsys)
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("error: ") and "Traceback" not in err
    assert all(word in last for word in words), last
    assert not list(tmp_path.glob("**/checkpoints"))


def test_help_lists_the_keys_and_exits_with_0(capsys):
    code, out, _ = run("--help", capsys=capsys)
    assert code in (0, None) and "--config.model.num_layers" in out and "--workdir" in out


def test_summary_prints_the_tree_and_the_published_counts(capsys):
    config = f"--config={ROOT / 'configs' / 'large.py'}"
    code, out, _ = run(config, "--mode=summary", capsys=capsys)
    assert code in (0, None) and "335,141,888" in out
    assert "bert/encoder/attention/query/kernel" in out and "layers 24" in out


def test_an_evaluation_fits_the_devices_and_files_of_this_machine(tmp_path, capsys):
    def fitted(mesh, train="gone.tsv", explicit=()):
        config = configs.default_config()
        config.task, config.data.validation, config.data.train = "classify", "dev.tsv", train
        config.mesh.update(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
        start._fit_devices(config, frozenset(explicit))
        start._do_without_training_file(config, frozenset(explicit))
        return tuple(config.mesh[key] for key in ("data", "fsdp", "tensor")), config.data.train

    assert jax.device_count() == 8
    assert fitted((4, 2, 2)) == ((-1, 1, 1), "")
    said = capsys.readouterr().err
    assert "mesh.data=4, mesh.fsdp=2, mesh.tensor=2 was for other devices" in said
    assert "gone.tsv is not there" in said
    (tmp_path / "a.tsv").write_text("good\tpos\n")
    assert fitted((2, 2, 2), f"{tmp_path}/a.tsv") == ((2, 2, 2), f"{tmp_path}/a.tsv")
    assert fitted((-1, 2, 2), "tfds:glue/mrpc:train") == ((-1, 2, 2), "tfds:glue/mrpc:train")
    assert fitted((-1, 3, 1))[0] == (-1, 1, 1)
    asked = ("mesh.data", "data.train")
    assert fitted((4, 2, 2), explicit=asked) == ((4, 2, 2), "gone.tsv")


def test_the_entry_file_stays_short():
    assert len((ROOT / "bertjax" / "main.py").read_text().splitlines()) < 60


@pytest.mark.long
def test_smoke_trains_resumes_and_evaluates(tmp_path):
    """The whole way in processes of its own: train, say that it is finished, evaluate, go on."""

    def call(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "bertjax.main", f"{TINY}:smoke", "--workdir=run", *arguments],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600,
        )  # fmt: skip

    first = call()
    assert "NSP accuracy" in first.stdout and "[MASK]" not in first.stdout
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if x["split"] == "train"] == [5, 10, 15, 20]
    assert [x["step"] for x in lines if x["split"] == "validation"] == [10, 20]
    again = call()
    assert "finished" in again.stdout and "NSP accuracy" in again.stdout
    evaluated = call("--mode=evaluate")
    assert f"mlm_loss {lines[-1]['mlm_loss']:.4g}" in evaluated.stdout
    with pytest.raises(subprocess.CalledProcessError) as refused:
        call("--mode=evaluate", "--config.data.eval_batch_size=7")
    assert refused.value.returncode == 2 and "data.eval_batch_size: " in refused.value.stderr
    with pytest.raises(subprocess.CalledProcessError) as refused:
        call("--mode=evaluate", "--config.data.source=texts/*.txt")
    assert "takes a prepared corpus" in refused.value.stderr
    more = call("--config.train.steps=25", "--config.data.workers=2")  # grain's processes
    assert "step 20" in more.stdout and "25/25" in more.stdout
