"""A page of a real run of every task, as `bertjax.main` leaves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "classify", "tag", "answer"])
def test_a_run_of_every_task_has_a_whole_page(name, tmp_path):
    pytest.importorskip("plotly")
    folder = tmp_path / name
    run("bertjax.main", f"--config=configs/{name}.py:smoke", f"--workdir={folder}")
    answer = json.loads(run("bertjax.report", f"--workdir={folder}", "--json"))
    assert answer["missing"] == {} and answer["bytes"] < 6_000_000
    text = Path(answer["report"]).read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    (page,) = json.loads(data.group(1))["runs"]
    assert page["state"].startswith("finished at step")
    assert page["splits"]["train"]["steps"] and page["figures"]["validation"]
    assert page["attention"]["texts"] and page["vectors"]["x"]
    assert (page["data"] is not None) == (name == "tiny")
    examples = page["examples"]
    if name == "tiny":
        assert examples["rows"] and len(page["data"]["rows"]) > 8
        return
    lines = (folder / "predictions" / "validation.jsonl").read_text().splitlines()
    (split,) = examples["splits"]
    assert split["total"] == len(lines) and split["damaged"] == 0
    right = [row["right"] for row in split["rows"]]
    assert right == sorted(right) and right.count(False) == min(split["wrong"], len(right))
    assert all(row.get("text") or row.get("words") for row in split["rows"])
    if name == "classify":
        shown = sum(map(sum, split["confusion"]["counts"]))
        accuracy = sum(split["confusion"]["counts"][i][i] for i in range(2)) / shown
        assert accuracy == pytest.approx(page["figures"]["validation"]["accuracy"])
