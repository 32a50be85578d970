"""A real ablation in processes of its own: stopped, gone on with, with cells that fail."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from bertjax.ablate import cells, compare
from bertjax.train import workdir as workdirs

ROOT = pathlib.Path(__file__).parents[2]
BASE = [
    sys.executable, "-m", "bertjax.ablate", f"--config={ROOT / 'configs' / 'ablate.py'}:smoke",
    "--workdir=run", "--json", "--config.train.steps=300", "--config.train.log_every=50",
    "--config.train.eval_every=0", "--config.data.batch_size=8",
]  # fmt: skip
VARIANTS = "--config.ablate.variants=bad: L=1,H=32,A=1,mesh.data=3; good: L=1,H=32,A=1"
SETS = "own: data.train=train.tsv,data.validation=dev.tsv,data.test=dev.tsv"
FINETUNE = [
    f"--config.ablate.finetune={SETS},data.seq_length=16,train.epochs=2,data.batch_size=4",
    "--config.ablate.finetune_grid=optimizer.learning_rate=1e-3,1e-6",
]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"XLA_FLAGS": "", "PYTHONPATH": path}


def call(cwd: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*BASE, *arguments], cwd=cwd, capture_output=True, text=True, env=environment()
    )


def states(document: dict) -> dict[str, str]:
    return {row["cell"]: row["state"] for row in document["rows"]}


@pytest.mark.long
def test_stopped_gone_on_with_and_failing_cells(tmp_path):
    texts = [(f"a fine film number {i}", "good") for i in range(10)]
    texts += [(f"a dull play number {i}", "bad") for i in range(10)]
    lines = "".join(f"{text}\t{label}\n" for text, label in texts)
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("text\tlabel\n" + lines)
    run, good = tmp_path / "run", "good"

    # Stopped in the middle of a cell, after one that cannot run.
    process = subprocess.Popen(
        [*BASE, VARIANTS], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    )  # fmt: skip
    log = run / "cells" / good / cells.LOG
    deadline = time.monotonic() + 500
    while not (log.exists() and "step 50/300" in log.read_text()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 143, err
    assert states(json.loads(out)) == {"bad": "failed", good: "interrupted"}
    assert "stopped at step" in log.read_text()
    corpora = list(run.glob("corpora/*/corpus/fingerprint.json"))
    assert len(corpora) == 1 and not list(run.glob("cells/*/corpus"))
    prepared = corpora[0].stat().st_mtime_ns
    with workdirs.lock(str(run)):
        second = call(tmp_path, VARIANTS)
    assert second.returncode == 2 and f"in use by process {os.getpid()}" in second.stderr

    # Gone on with, now with fine-tunings.
    done = call(tmp_path, VARIANTS, *FINETUNE)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert "going on from the checkpoint of step" in log.read_text()
    assert corpora[0].stat().st_mtime_ns == prepared
    assert json.loads((run / "ablation.json").read_text()) == document
    rows = {row["cell"]: row for row in document["rows"]}
    assert rows["bad"]["state"] == "failed" and "3" in rows["bad"]["sentence"]
    assert rows["bad"]["perplexity"] is None
    assert "bad has failed" in rows["bad+own_learning_rate-0.001"]["sentence"]
    metrics = (run / "cells" / good / "metrics.jsonl").read_text().splitlines()
    last = [x for x in map(json.loads, metrics) if x["split"] == "validation"][-1]
    assert last["step"] == rows[good]["steps"] == 300
    for name in ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_accuracy"):
        assert rows[good][name] == pytest.approx(last[name], rel=1e-6)
    best = {row["start"]: row for row in document["best"]}
    chosen = [row for row in document["rows"] if row.get("chosen")]
    assert len(chosen) == 1 and best[good]["setting"] == "optimizer.learning_rate=0.001"
    end = workdirs.read_finished(str(run / "cells" / chosen[0]["cell"]))
    assert best[good]["validation"] == end["results"]["validation"]["accuracy"]
    assert best[good]["test"] == end["results"]["test"]["accuracy"]
    assert best["bad"]["validation"] is None

    # Once more: nothing that is finished is run again. A cell with another config is refused.
    size = log.stat().st_size
    again = call(tmp_path, VARIANTS, *FINETUNE)
    assert again.returncode == 1 and again.stderr.count("finished before") == 3
    assert log.stat().st_size == size
    dropped = call(tmp_path, "--config.ablate.variants=good: L=1,H=32,A=1")
    assert dropped.returncode == 0 and "no longer in the grid, left alone: bad" in dropped.stderr
    changed = call(tmp_path, VARIANTS, "--config.optimizer.learning_rate=0.5")
    assert changed.returncode == 2
    assert "optimizer.learning_rate: 0.002 -> 0.5" in changed.stderr

    # A run does not differ from itself, and its losses by row make its loss.
    path = str(run / "cells" / good)
    found = compare.compare(f"{good},{path}", str(run), "validation")
    loss = found["results"][0]
    assert loss["figure"] == "mlm_loss" and loss["difference"] == 0 and loss["p"] == 1
    assert loss["a"] == pytest.approx(last["mlm_loss"], rel=1e-4)


@pytest.mark.long
def test_plan_says_the_cost_and_trains_nothing(tmp_path):
    pytest.importorskip("libtpu")
    done = subprocess.run(
        [*BASE[:3], f"--config={ROOT / 'configs' / 'ablate.py'}:smoke", "--workdir=run",
         "--plan", "--topology=v5e:2x4", "--json", "--config.ablate.budget=flops"],
        cwd=tmp_path, capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    small, large = json.loads(done.stdout)["rows"]
    assert small["fits"] == large["fits"] == "yes" and large["steps"] < small["steps"] == 20
    for row in (small, large):
        step = row["training_flops"] / row["steps"]
        assert step == row["plan"]["model_flops_per_step"]
    assert not (tmp_path / "run").exists()
