"""From settings to cells: variants, grids, names, fine-tunings, budgets by hand, refusals."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from bertjax import config as configs
from bertjax.ablate import budget, cells, finetune, grid, run
from bertjax.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
TINY = {
    "data.source": "python_docs", "data.vocab": "train:500", "data.batch_size": 4,
    "data.seq_length": 16, "train.steps": 100, "model.num_layers": 1, "model.hidden_size": 8,
    "model.num_heads": 2,
}  # fmt: skip


def config_of(**values):
    keys = {key.replace("__", "."): value for key, value in values.items()}
    return configs.update(configs.default_config(), TINY | keys)


def names(**values) -> list[str]:
    return [cell.name for cell in run.expand(config_of(**values)).cells]


def message(**values) -> str:
    with pytest.raises(UserError) as error:
        run.expand(config_of(**values))
    assert "\n" not in str(error.value)
    return str(error.value)


# Variants and grids -----------------------------------------------------------------------------


def test_variants_and_grid_are_combined():
    found = run.expand(
        config_of(
            ablate__variants="L=1,H=8,A=2; L=2,H=16,A=4",
            ablate__grid="data.mask_rate=0.15,0.3; seed=0,1",
        )
    ).cells
    assert [cell.name for cell in found] == [
        f"L{size}_mask_rate-{rate}_seed-{seed}"
        for size in ("1_H8_A2", "2_H16_A4") for rate in ("0.15", "0.3") for seed in (0, 1)
    ]  # fmt: skip
    last = found[-1]
    assert last.group == "L2_H16_A4_mask_rate-0.3"
    chosen = ("model.num_layers", "model.hidden_size", "model.num_heads", "data.mask_rate", "seed")
    assert [last.config[key] for key in chosen] == [2, 16, 4, 0.3, 1]
    assert all(last.config[key] == value for key, value in TINY.items() if key not in chosen)
    assert last.config["ablate.grid"] == "", "a cell's own run knows nothing of the ablation"


def test_a_key_with_one_value_is_set_and_not_named():
    found = run.expand(config_of(ablate__grid="data.mask_rate=0.2; L=1,2")).cells
    assert [cell.name for cell in found] == ["L1_H8_A2", "L2_H8_A2"]
    assert {cell.config["data.mask_rate"] for cell in found} == {0.2}


def test_given_names_quotes_and_values_that_are_no_file_names():
    found = names(ablate__variants="wide: H=16; a.b: H=32", ablate__grid="seed=3,4")
    assert found == ["wide_seed-3", "wide_seed-4", "a.b_seed-3", "a.b_seed-4"]
    found = run.expand(config_of(ablate__variants="data.source='../a,b;c'; data.source=x")).cells
    assert [cell.config["data.source"] for cell in found] == ["../a,b;c", "x"]
    assert all(re.fullmatch(r"[\w.+-]+", cell.name) and "/" not in cell.name for cell in found)
    assert found[0].name != grid.label("data.source", "..-a-b-c")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["ablate.variants", "ablate.grid"]),
        ({"ablate__grid": "model.num_layer=1,2"}, ["model.num_layer", "'model.num_layers'"]),
        ({"ablate__grid": "L=1,two"}, ["model.num_layers=two", "int"]),
        ({"ablate__grid": "L=1,1"}, ["L=1,1", "twice"]),
        ({"ablate__grid": "L"}, ["'L'", "key=value"]),
        ({"ablate__grid": "L=1,2; model.num_layers=3"}, ["one key too many"]),
        ({"ablate__variants": "L=1; L"}, ["'L'", "key=value"]),
        ({"ablate__variants": "L=1,L=2"}, ["model.num_layers", "twice"]),
        ({"ablate__variants": "L=1; L=2", "ablate__grid": "L=3,4"}, ["model.num_layers", "too"]),
        ({"ablate__variants": "L=1; L=1"}, ["same run", "L1_H8_A2"]),
        ({"ablate__variants": "../up: L=1"}, ["'../up'", "name"]),
        ({"ablate__variants": "data.source='a"}, ["quote"]),
        ({"ablate__variants": "L=1,H=8,A=3"}, ["L1_H8_A3", "hidden_size=8", "num_heads=3", "skip"]),
        ({"ablate__grid": "train.seeds=1,2"}, ["seed=0,1,2"]),
        ({"ablate__grid": "L=1,2", "train__seeds": 3}, ["train.seeds=3", "seed=0,1,2"]),
        ({"ablate__grid": "ablate.budget=a,b"}, ["ablate.budget"]),
        ({"ablate__grid": "L=1,2", "ablate__budget": "time"}, ["budget=time", "flops"]),
        ({"ablate__grid": "L=1,2", "init_from": "x"}, ["model.num_layers", "init_from=x"]),
        ({"ablate__finetune": "mrcp"}, ["'mrcp'", "mrpc"]),
        ({"ablate__finetune": "data.train=a.tsv"}, ["no name", "NAME:"]),
        ({"ablate__finetune": "data.train=tfds:x:train,data.validation=v"}, ["no name", "NAME:"]),
        ({"ablate__finetune": "mrpc; mrpc: data.limit=9"}, ["mrpc twice"]),
        ({"ablate__finetune": "own: data.train=a.tsv"}, ["own", "development set"]),
        ({"ablate__finetune": "mrpc: H=16"}, ["model.hidden_size", "decides"]),
        ({"ablate__grid": "L=1,2", "ablate__finetune_grid": "seed=1,2"}, ["ablate.finetune"]),
        ({"task": "classify", "ablate__finetune_grid": "seed=1,2"}, ["ablate.grid"]),
        ({"task": "classify", "ablate__grid": "seed=1,2"}, ["development set"]),
        (
            {"task": "classify", "ablate__grid": "seed=1,2", "data__validation": "a",
             "ablate__budget": "flops"},
            ["budget=flops"],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(values, words):
    text = message(**values)
    assert all(word in text for word in words), text


def test_impossible_cells_are_skipped_where_the_config_says_so():
    found = run.expand(config_of(ablate__grid="H=8,9; A=2,3", ablate__impossible="skip"))
    assert [cell.name for cell in found.cells] == ["L1_H8_A2", "L1_H9_A3"]
    assert len(found.notes) == 2 and all("impossible" in note for note in found.notes)
    assert "every cell" in message(ablate__variants="A=3", ablate__impossible="skip")


# Fine-tuning ------------------------------------------------------------------------------------


def test_fine_tunings_follow_each_pretraining_and_start_from_it():
    found = run.expand(
        config_of(
            ablate__variants="L=1; L=2",
            ablate__finetune="rte; own: data.train=a.tsv,data.validation=b.tsv",
            ablate__finetune_grid="optimizer.learning_rate=1e-4,2e-5; seed=0,1; train.epochs=1",
        )
    )
    order = [cell.name for cell in found.cells]
    assert len(order) == 2 * (1 + 2 * 4) and order[0] == "L1_H8_A2" and order[9] == "L2_H8_A2"
    cell = next(c for c in found.tuned if c.name == "L2_H8_A2+own_learning_rate-2e-05_seed-1")
    assert cell.config["init_from"] == "{workdir}/cells/L2_H8_A2" and cell.parent == "L2_H8_A2"
    assert cell.group == "L2_H8_A2+own_learning_rate-2e-05"
    assert cell.setting == "optimizer.learning_rate=2e-05"
    wanted = {
        "task": "classify", "data.train": "a.tsv", "optimizer.learning_rate": 2e-5, "seed": 1,
        "train.epochs": 1.0, "optimizer.name": "adamw", "data.batch_size": 32, "train.steps": 0,
        "model.num_layers": 2, "data.source": "",
    }  # fmt: skip
    assert {key: cell.config[key] for key in wanted} == wanted
    rte = next(c for c in found.tuned if c.target == "rte")
    assert rte.config["data.glue"] == "rte" and rte.config["data.pair_column"]


def test_glue_means_all_nine_and_config_a_file():
    assert [t.name for t in finetune.targets("glue")] == [
        "cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"
    ]  # fmt: skip
    found = run.expand(
        config_of(
            ablate__variants="L=1",
            ablate__finetune=f"names: config={ROOT / 'configs' / 'tag.py'}, data.train=a,"
            "data.validation='b,far=c'",
        )
    ).tuned
    assert [cell.config["task"] for cell in found] == ["tag"]
    assert found[0].config["data.text_column"].startswith("words")
    assert found[0].config["data.validation"] == "b,far=c"


def test_a_grid_of_fine_tuning_alone():
    found = run.expand(
        config_of(
            task="classify",
            init_from="there",
            data__validation="b",
            ablate__finetune="cola; mrpc",
            ablate__grid="data.batch_size=16,32; seed=0,1",
            data__vocab="",
            data__source="",
        )
    )
    assert not found.pretrained and len(found.tuned) == 8
    assert found.tuned[0].name == "cola_batch_size-16_seed-0"
    assert {cell.config["init_from"] for cell in found.tuned} == {"there"}
    assert {cell.config["data.glue"] for cell in found.tuned} == {"cola", "mrpc"}


# Budgets ----------------------------------------------------------------------------------------


def flops_by_hand(layers: int, hidden: int, *, rows=4, length=16, vocab=500) -> int:
    """Devlin's model: four projections, scores and mean, two feed-forward products; the MLM head
    at round(0.15 * 16) = 2 places, the pooler at one; backward is twice forward."""
    layer = 2 * length * (4 * hidden**2 + 2 * hidden * 4 * hidden) + 4 * length**2 * hidden
    head = 2 * 2 * (hidden**2 + hidden * vocab) + 2 * hidden**2
    return 3 * rows * (layers * layer + head)


def test_cost_of_a_cell_by_hand():
    cost = budget.cost(run.expand(config_of(ablate__grid="L=1,2")).cells[1].resolved(), 500)
    assert cost.step_flops == flops_by_hand(2, 8)
    assert cost.step_tokens == 64
    embeddings = (500 + 512 + 2) * 8 + 16
    layer = 4 * (64 + 8) + 16 + (8 * 32 + 32) + (32 * 8 + 8) + 16
    assert cost.parameters == embeddings + 2 * layer + (64 + 8)


def test_parameters_are_the_published_ones():
    def count(layers: int, hidden: int, heads: int) -> int:
        values = {"model__num_layers": layers, "model__hidden_size": hidden}
        config = config_of(model__num_heads=heads, **values)
        return budget.parameters(configs.resolve(config), 30522)

    assert (count(12, 768, 12), count(24, 1024, 16)) == (109_482_240, 335_141_888)


def budgeted(**values) -> dict[str, int]:
    config = config_of(**values)
    found = run.expand(config).pretrained
    costs = {cell.name: budget.cost(cell.resolved(), 500) for cell in found}
    made = budget.with_budget(config, found, costs)
    return {cell.name: cell.config["train.steps"] for cell in made}


def test_equal_flops_give_each_cell_its_steps():
    grid_ = {"ablate__variants": "L=1,H=8; L=4,H=8; L=1,H=16"}
    total = 100 * flops_by_hand(1, 8)  # the first cell's own steps
    wanted = {
        "L1_H8_A2": 100, "L4_H8_A2": round(total / flops_by_hand(4, 8)),
        "L1_H16_A2": round(total / flops_by_hand(1, 16)),
    }  # fmt: skip
    assert budgeted(ablate__budget="flops", **grid_) == wanted
    assert 30 < wanted["L4_H8_A2"] < 100
    steps = budgeted(ablate__budget="flops", ablate__amount=1e9, **grid_)
    assert steps["L4_H8_A2"] == round(1e9 / flops_by_hand(4, 8))
    assert set(budgeted(**grid_).values()) == {100}


def test_equal_tokens_are_places_of_rows():
    steps = budgeted(
        ablate__budget="tokens", ablate__amount=64_000, ablate__grid="data.batch_size=4,8"
    )
    assert list(steps.values()) == [1000, 500]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ablate__amount": 10.0}, ["amount=10", "train.steps"]),
        ({"ablate__budget": "tokens", "ablate__amount": 3.0}, ["3 tokens", "no step", "L1_H8_A2"]),
        ({"ablate__budget": "flops", "train__steps": 0}, ["ablate.amount", "train.steps"]),
        ({"ablate__budget": "flops", "ablate__amount": -1.0}, ["-1", "negative"]),
        ({"ablate__budget": "flops", "ablate__grid": "train.steps=1,2"}, ["train.steps", "out"]),
    ],
    ids=str,
)
def test_budgets_that_cannot_be_are_one_sentence(values, words):
    with pytest.raises(UserError) as error:
        budgeted(**({"ablate__grid": "L=1,2"} | values))
    assert all(word in str(error.value) for word in words), error.value


# Folders ----------------------------------------------------------------------------------------


def test_a_changed_cell_is_refused_and_a_dropped_one_is_named(tmp_path):
    before = run.expand(config_of(ablate__variants="L=1; L=2")).cells
    for cell in before:
        cells.write(str(tmp_path), cell)
    more = run.expand(config_of(ablate__variants="L=2; L=3")).cells
    assert cells.check_unchanged(str(tmp_path), more) == ["L1_H8_A2"]
    free = run.expand(config_of(ablate__variants="L=1; L=2", checkpoint__every=7)).cells
    assert cells.check_unchanged(str(tmp_path), free) == []
    changed = run.expand(config_of(ablate__variants="L=1; L=2", data__mask_rate=0.4)).cells
    assert cells.check_unchanged(str(tmp_path), changed) == []  # none of them has begun
    (cells.path_of(str(tmp_path), "L1_H8_A2") / "checkpoints" / "1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"L1_H8_A2 .*data\.mask_rate: 0\.15 -> 0\.4"):
        cells.check_unchanged(str(tmp_path), changed)


def test_a_cell_whose_data_have_changed_is_refused(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text,label\ngood,yes\n")
    data = f"data.train={tmp_path}/a.csv,data.validation={tmp_path}/b.csv"
    config = config_of(ablate__variants="L=1", ablate__finetune=f"own: {data}")
    cell = run.expand(config).tuned[0]
    cells.write(str(tmp_path), cell)
    (tmp_path / "b.csv").write_text("text,label\ngood,perhaps\n")  # nothing was learnt yet
    assert cells.check_unchanged(str(tmp_path), [cell]) == []
    cells.write(str(tmp_path), cell, state="running")
    (cells.path_of(str(tmp_path), cell.name) / "checkpoints" / "1").mkdir(parents=True)
    cells.write(str(tmp_path), cell, state="finished")
    assert cells.check_unchanged(str(tmp_path), [cell]) == []
    (tmp_path / "b.csv").write_text("text,label\ngood,no\n")
    with pytest.raises(UserError, match=r"b\.csv \(config\.data\.validation\) has changed since"):
        cells.check_unchanged(str(tmp_path), [cell])


@pytest.mark.parametrize("what", ["data.source", "init_from"])
def test_a_corpus_or_start_that_has_changed_is_refused(tmp_path, what):
    corpus, start = tmp_path / "corpus", tmp_path / "start"
    (start / "checkpoints" / "10").mkdir(parents=True)
    corpus.mkdir()
    (corpus / "fingerprint.json").write_text('{"dataset": "1"}')
    config = config_of(ablate__variants="data.mask_rate=0.2", data__source=str(corpus),
                       init_from=str(start))  # fmt: skip
    (cell,) = run.expand(config).cells
    cells.write(str(tmp_path), cell)
    (cells.path_of(str(tmp_path), cell.name) / "checkpoints" / "1").mkdir(parents=True)
    assert cells.check_unchanged(str(tmp_path), [cell]) == []
    if what == "data.source":
        (corpus / "fingerprint.json").write_text('{"dataset": "2"}')
    else:
        (start / "checkpoints" / "20").mkdir()
    with pytest.raises(UserError, match=rf"\(config\.{what}\) has changed since the cell"):
        cells.check_unchanged(str(tmp_path), [cell])


def test_a_cell_that_another_process_trains_is_left_to_it(tmp_path):
    (cell,) = run.expand(config_of(ablate__variants="data.mask_rate=0.2")).cells
    cells.write(str(tmp_path), cell)
    hold = "import sys; from bertjax.train import workdir as w; f = w.lock(sys.argv[1]); print(1)"
    owner = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; sys.stdout.flush(); sys.stdin.read()",
         str(cells.path_of(str(tmp_path), cell.name))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert owner.stdout.readline() == b"1\n"
        with pytest.raises(UserError, match=f"is in use by process {owner.pid}"):
            cells.run(str(tmp_path), cell, os.environ, cells.Stop())
    finally:
        owner.communicate(b"")
    assert cells.read(cells.path_of(str(tmp_path), cell.name))["state"] == cells.WAITING


def test_a_cells_config_follows_a_moved_folder(tmp_path):
    config = config_of(
        ablate__variants="L=1", ablate__finetune="own: data.train=a,data.validation=b"
    )
    cell = run.expand(config).tuned[0]
    cells.write(str(tmp_path / "a"), cell)
    (tmp_path / "a").rename(tmp_path / "b")
    read = cells.read_config(str(cells.path_of(str(tmp_path / "b"), cell.name)))
    assert read["init_from"] == f"{tmp_path}/b/cells/L1_H8_A2"
    flag = cells.config_flag(cells.path_of(str(tmp_path / "b"), cell.name))
    assert configs.load([flag]).config.init_from == read["init_from"]


@pytest.mark.parametrize(
    ("code", "log", "sentence"),
    [
        (2, "loading\nerror: no data in x\n", "no data in x"),
        (-9, "step 5\n", "killed (signal 9), as the system does when memory runs out"),
        (137, "", "killed (signal 9), as the system does when memory runs out"),
        (-11, "", "ended by SIGSEGV"),
        (1, "Traceback\n  File\nValueError: too bad\n", "exit code 1: ValueError: too bad"),
        (1, "", "exit code 1: it printed nothing"),
    ],
)
def test_why_a_process_ended(code, log, sentence):
    assert cells.failure(code, log) == sentence
