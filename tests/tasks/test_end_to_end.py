"""The three commands of docs/finetuning.md for each task, without any data: train, ask, export."""

import json
import pathlib

import pytest

from bertjax import convert, main, predict

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
QUESTIONS = {
    "classify": (["Return a new array of bytes."], {"text", "label", "probabilities"}),
    "tag": (["Guido made Python"], {"words", "labels"}),
    "answer": (
        ["Guido made Python", "--pair=which word follows Guido?"],
        {"question", "answer", "score", "start", "end"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("task", QUESTIONS)
def test_train_ask_and_export(task, tmp_path, capsys):
    workdir, exported = str(tmp_path / "run"), str(tmp_path / "exported")
    size = ["--config.model.num_layers=1", "--config.train.eval_every=0", "--config.train.steps=4"]
    assert main.main([f"--config={CONFIGS / task}.py:smoke", f"--workdir={workdir}", *size]) == 0
    said = capsys.readouterr()
    assert "smoke: nothing at config.data.train" in said.err
    held_out = (tmp_path / "run/predictions/validation.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in held_out]
    assert [row["index"] for row in rows] == list(range(64))
    assert all({"label", "prediction"} <= set(row) for row in rows)

    assert convert.main([f"--from={workdir}", f"--to={exported}"]) == 0
    readme = (tmp_path / "exported/README.md").read_text()
    assert f"# bertjax {task}" in readme and "smoke_data/train.jsonl" in readme

    steps = sorted(int(path.name) for path in (tmp_path / "run/checkpoints").glob("[0-9]*"))
    other = f"--to={tmp_path / 'other'}"
    (tmp_path / "run/finished.json").write_text(
        (tmp_path / "run/finished.json").read_text().replace('"scored": 4', '"scored": 2')
    )
    assert convert.main([f"--from={workdir}", other, f"--step={steps[-1]}"]) == 0
    readme = (tmp_path / "other/README.md").read_text()
    assert "These are the weights of step 4" in readme and "is of step 2" in readme
    assert f"# bertjax {task}" not in readme
    (tmp_path / "run/finished.json").write_text(
        (tmp_path / "run/finished.json").read_text().replace('"scored": 2', '"scored": 4')
    )

    texts, keys = QUESTIONS[task]
    answers = []
    for checkpoint in (workdir, exported):
        capsys.readouterr()
        assert predict.main([task, f"--checkpoint={checkpoint}", "--json", *texts]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        assert keys <= set(answers[-1])
    for key in ("label", "labels", "answer", "start"):
        assert answers[0].get(key) == answers[1].get(key)

    own = (tmp_path / "run/README.md").read_text()
    assert main.main([f"--config={CONFIGS / task}.py:smoke", f"--workdir={workdir}", *size,
                      "--mode=evaluate"]) == 0  # fmt: skip
    assert (tmp_path / "run/README.md").read_text() == own  # which tells of the training
    figures = json.loads((tmp_path / "run/finished.json").read_text())["results"]["validation"]
    assert f"loss {figures['loss']:.4g}" in capsys.readouterr().out
