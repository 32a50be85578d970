"""The table of an ablation: figures of the cells themselves, and the choice of settings."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import sys

import pytest

from bertjax import cli
from bertjax import config as configs
from bertjax.ablate import __main__ as ablate
from bertjax.ablate import budget, cells, plots, run, table
from bertjax.errors import UserError
from bertjax.train import workdir as workdirs

ROOT = pathlib.Path(__file__).parents[2]
TINY = {
    "data.source": "python_docs", "data.vocab": "train:500", "data.batch_size": 4,
    "data.seq_length": 16, "train.steps": 100, "model.num_layers": 1, "model.hidden_size": 8,
    "model.num_heads": 2,
}  # fmt: skip


def config_of(**values):
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return configs.update(configs.default_config(), TINY | keys)


def finish(workdir, cell, results, *, metric=("loss", False), step=100):
    """Leave what a finished run leaves."""
    cells.write(str(workdir), cell, state=cells.FINISHED, seconds=75.0)
    folder = str(cells.path_of(str(workdir), cell.name))
    model = {key: cell.config[f"model.{key}"] for key in configs.SIZE_KEYS}
    model |= {"vocab_size": 500, "intermediate_size": 4 * model["hidden_size"]}
    artifacts = {"best_metric": [f"validation/{metric[0]}", metric[1]]}
    config = {"config": {"model": model}, "artifacts": artifacts}
    workdirs.write_json(folder, workdirs.CONFIG, config)
    end = {"step": step, "results": results, "summary": ""}
    workdirs.write_json(folder, workdirs.FINISHED, end)


def held_out(loss: float) -> dict:
    figures = {"mlm_loss": loss, "perplexity": math.exp(loss), "mlm_accuracy": 0.25,
               "nsp_accuracy": 0.75, "loss": loss + 0.5}  # fmt: skip
    return {"validation": figures}


def made(workdir, config) -> table.Table:
    found = run.expand(config)
    costs = {cell.name: budget.cost(cell.resolved(), 500) for cell in found.pretrained}
    return run.write_table(found, str(workdir), costs)


def lines_of(workdir) -> dict[str, dict[str, str]]:
    with open(workdir / "ablation.csv", encoding="utf-8", newline="") as file:
        return {line["cell"]: line for line in csv.DictReader(file)}


def test_pretraining_rows(tmp_path):
    config = config_of(ablate__variants="L=1; L=2; L=4", ablate__grid="data.mask_rate=0.15,0.4")
    found = run.expand(config).pretrained
    finish(tmp_path, found[0], held_out(2.0), step=90)
    sentence = "memory | ran\nout"
    cells.write(str(tmp_path), found[1], state=cells.FAILED, sentence=sentence, seconds=3.0)
    document = table.document(made(tmp_path, config))
    assert document == json.loads((tmp_path / "ablation.json").read_text())
    first, failed, waiting = document["rows"][:3]
    cost = budget.cost(found[0].resolved(), 500)
    wanted = {
        "L": 1, "H": 8, "A": 2, "data.mask_rate": 0.15, "parameters": cost.parameters,
        "training_flops": 90 * cost.step_flops, "steps": 90, "perplexity": math.exp(2.0),
        "mlm_accuracy": 0.25, "nsp_accuracy": 0.75, "seconds": 75.0, "state": "finished",
    }  # fmt: skip
    assert {key: first[key] for key in wanted} == wanted
    assert failed["state"] == "failed" and failed["sentence"] == sentence
    assert failed["perplexity"] is None and failed["steps"] == 100
    assert waiting["state"] == "waiting" and waiting["seconds"] is None
    lines = lines_of(tmp_path)
    assert lines[found[1].name]["perplexity"] == "" and len(lines) == 6
    assert float(lines[found[0].name]["perplexity"]) == math.exp(2.0)
    shown = (tmp_path / "ablation.md").read_text()
    assert "All cells train 100 steps" in shown
    assert "| 1 | 8 | 2 | 0.1500 |" in shown and "7.39" in shown and "1 min 15 s" in shown
    assert "failed: memory \\| ran out" in shown


def test_names_that_a_user_has_given_are_shown(tmp_path):
    made(tmp_path, config_of(ablate__variants="thin: L=1; L=2"))
    shown = (tmp_path / "ablation.md").read_text()
    assert "| thin | 1 | 8 | 2 |" in shown and "| L2_H8_A2 | 2 | 8 | 2 |" in shown
    made(tmp_path, config_of(ablate__variants="L=1; L=2"))
    assert "L2_H8_A2" not in (tmp_path / "ablation.md").read_text()


def test_figures_that_are_not_finite_are_none(tmp_path):
    config = config_of(ablate__variants="L=1")
    finish(tmp_path, run.expand(config).pretrained[0], {"validation": {"mlm_loss": math.nan}})
    (row,) = made(tmp_path, config).rows
    assert row["mlm_loss"] is None and row["perplexity"] is None
    assert row["state"] == "finished" and "not finite" in row["sentence"]
    json.loads((tmp_path / "ablation.json").read_text(), parse_constant=pytest.fail)


def test_seeds_of_a_pretraining_are_summed_up(tmp_path):
    config = config_of(ablate__grid="L=1,2; seed=0,1,2")
    for cell, loss in zip(run.expand(config).pretrained[:2], (2.0, 2.4), strict=True):
        finish(tmp_path, cell, held_out(loss))
    (group,) = made(tmp_path, config).groups
    assert group == {
        "group": "L1_H8_A2", "seeds": 2, "of_seeds": 3, "mlm_loss": pytest.approx(2.2),
        "deviation": pytest.approx(0.4 / math.sqrt(2)), "perplexity": pytest.approx(math.exp(2.2)),
    }  # fmt: skip


def test_the_setting_is_chosen_on_the_development_set_alone(tmp_path):
    config = config_of(
        ablate__variants="L=1",
        ablate__finetune="own: data.train=a,data.validation=b",
        ablate__finetune_grid="optimizer.learning_rate=1e-4,2e-4,3e-4; seed=0,1",
    )
    found = run.expand(config)
    finish(tmp_path, found.pretrained[0], held_out(2.0))
    # The third setting is best on the test set, and its one finished seed on the other, too.
    scores = [(0.7, 0.9), (0.8, 0.9), (0.9, 0.6), (0.8, 0.5), (0.99, 1.0)]
    for cell, (dev, test) in zip(found.tuned[:5], scores, strict=True):
        results = {"validation": {"accuracy": dev}, "test": {"accuracy": test}}
        finish(tmp_path, cell, results, metric=("accuracy", True))
    result = made(tmp_path, config)
    (best,) = result.best
    assert best["setting"] == "optimizer.learning_rate=0.0002" and best["seeds"] == 2
    assert best["validation"] == pytest.approx(0.85) and best["test"] == pytest.approx(0.55)
    assert (best["settings_finished"], best["settings"]) == (2, 3)
    assert result.rows[0]["scores"] == {"own": best["validation"]}
    lines = lines_of(tmp_path)
    assert [lines[c.name]["test"] for c in found.tuned] == ["", "", "0.6", "0.5", "", ""]
    assert lines["L1_H8_A2"]["own (development)"] == str(best["validation"])
    assert "own (accuracy)" in (tmp_path / "ablation.md").read_text()


def test_no_setting_is_chosen_over_different_development_sets(tmp_path):
    config = config_of(task="classify", data__validation="b",
                       ablate__grid="data.validation=b,c; seed=0,1")  # fmt: skip
    found = run.expand(config).tuned
    for number, cell in enumerate(found):
        finish(tmp_path, cell, {"validation": {"loss": 0.1 * number}})
        path = cells.path_of(str(tmp_path), cell.name) / workdirs.CONFIG
        content = json.loads(path.read_text())
        content["artifacts"]["held_out"] = {"validation": cell.config["data.validation"]}
        path.write_text(json.dumps(content))
    result = made(tmp_path, config)
    (best,) = result.best
    assert best["setting"] is None and best["validation"] is None
    assert any("no setting is chosen" in note for note in result.notes)
    assert not any(row["chosen"] for row in result.rows)


def test_a_fine_tuning_without_its_file_is_refused_before_the_pretraining(tmp_path):
    (tmp_path / "a.tsv").write_text("good\tpos\n")
    data = f"data.train={tmp_path}/a.tsv,data.validation={tmp_path}/none.tsv"
    found = run.expand(config_of(ablate__variants="L=1", ablate__finetune=f"own: {data}"))
    with pytest.raises(UserError, match=r"no file .*none\.tsv \(data\.validation\)"):
        run._check_files(found.tuned)
    (tmp_path / "none.tsv").write_text("good\tpos\n")
    run._check_files(found.tuned)


def test_smaller_is_better_where_the_metric_says_so(tmp_path):
    config = config_of(task="classify", data__validation="b", ablate__grid="data.batch_size=2,4")
    for cell, loss in zip(run.expand(config).tuned, (0.5, 0.3), strict=True):
        finish(tmp_path, cell, {"validation": {"loss": loss}}, metric=("loss", False))
    (best,) = made(tmp_path, config).best
    assert best["setting"] == "data.batch_size=4" and best["test"] is None


def test_cells_that_are_scored_on_other_rows_are_pointed_out(tmp_path):
    (note,) = made(tmp_path, config_of(ablate__grid="data.seq_length=16,32")).notes
    assert "data.seq_length" in note and "compared" in note
    assert made(tmp_path, config_of(ablate__grid="data.mask_rate=0.1,0.2")).notes == []


def test_plots_have_every_finished_cell(tmp_path, monkeypatch, capsys):
    config = config_of(ablate__grid="L=1,2,4")
    for cell, loss in zip(run.expand(config).pretrained[:2], (2.0, 1.5), strict=True):
        finish(tmp_path, cell, held_out(loss))
    result = made(tmp_path, config)
    assert not plots.write(str(tmp_path), table.Table("", [], [], [], []))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert plots.write(str(tmp_path), result) == []
    assert "bertjax[report]" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    paths = plots.write(str(tmp_path), result)
    for path, axis in zip(paths, ("parameters", "training_flops"), strict=True):
        content = pathlib.Path(path).read_text(encoding="utf-8")
        assert content.count("<svg") == 1 and "1/8/2" in content and "4/8/2" not in content
        points = {
            (x, y)
            for line in plots.figure(result.rows[:2], axis, "").axes[0].lines
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
        }
        assert points == {(row[axis], row["perplexity"]) for row in result.rows[:2]}


# The front door ---------------------------------------------------------------------------------


def call(*arguments: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        cli.run(ablate.main, arguments)
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def test_help(capsys):
    code, out, _ = call("--help", capsys=capsys)
    assert code in (0, None)
    for part in ("--compare", "--topology", "--config.ablate.grid", "ablation.md"):
        assert part in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config.ablate.grid=L=1,2"], ["no config"]),
        (["{tiny}"], ["nothing to compare", "ablate.grid"]),
        (["{tiny}", "--config.ablate.gird=L=1,2"], ["ablate.gird", "'ablate.grid'"]),
        (["{tiny}", "--config.ablate.grid=L=1,2", "--plan"], ["--topology"]),
        (["{tiny}", "--config.ablate.grid=L=1,2", "--topology=v9:1x1"], ["v9", "v5e:2x4"]),
        (["{tiny}", "--config.ablate.grid=L=1,2", "--workdir=gs://x/y"], ["gs://x/y"]),
        (["{tiny}", "--config.ablate.grid=A=1,3"], ["L2_H128_A3", "num_heads=3"]),
        (["--compare=a,b", "--plan"], ["--plan"]),
        (["--compare=a", "--workdir=x"], ["two cells"]),
        (["--compare=a,b", "--workdir=x"], ["a is neither a cell of x"]),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    arguments = [a.format(tiny=f"--config={ROOT}/configs/tiny.py") for a in arguments]
    code, out, err = call(*arguments, capsys=capsys)
    last = err.strip().splitlines()[-1]
    assert code == 2 and last.startswith("error: ") and "Traceback" not in err and not out
    assert all(word in last for word in words), last
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["", "preset=paper", "preset=glue", "smoke",
                                      "preset=paper,smoke", "preset=glue,smoke"])  # fmt: skip
def test_every_preset_makes_cells(argument):
    config = configs.load([f"--config={ROOT}/configs/ablate.py:{argument}"]).config
    found = run.expand(config if "glue" not in argument else _with_start(config))
    if argument == "preset=paper":
        sizes = [tuple(cell.varied.values()) for cell in found.pretrained]
        assert sizes == [(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16),
                         (24, 1024, 16)]  # fmt: skip
        assert found.pretrained[0].config["train.steps"] == 900_000
    elif argument == "preset=glue":
        assert len(found.tuned) == 9 * 3 * 3 * 2 * 3
    elif "smoke" in argument:
        assert len(found.cells) == 2


def _with_start(config):
    return configs.update(config, {"init_from": "a checkpoint"})
