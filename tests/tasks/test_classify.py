"""Classification: rows, labels by name, losses, figures and files; and every bad input."""

import json

import jax
import numpy as np
import pytest
from helpers_finetune import (
    VOCAB,
    batches_of_an_epoch,
    config_of,
    evaluate,
    make,
    mean_losses,
    params_of,
    write,
    write_rows,
)

from bertjax.errors import UserError
from bertjax.tasks import glue, labels, make_task, prepare_data, results
from bertjax.tasks.texts import cut, pair_sizes, text_rows

COLUMNS = {"data__text_column": "0", "data__label_column": "1", "train__steps": 4}
FILMS = [("the film was good", "pos"), ("a dull film", "neg"), ("not bad", "pos"), ("bad", "neg")]


def films(count: int = 10) -> str:
    return "".join(f"{text}\t{label}\n" for text, label in (FILMS * count)[:count])


def message(*arguments, **options) -> str:
    with pytest.raises(UserError) as error:
        make(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


def task_of(tmp_path, train=None, validation=None, known=None, **values):
    values = COLUMNS | values
    train = write(tmp_path, "train.tsv", films() if train is None else train)
    if validation is not None:
        values["data__validation"] = write(tmp_path, "dev.tsv", validation)
    return make("classify", tmp_path, known, data__train=train, data__header="no", **values)


def message_of(*arguments, **options) -> str:
    with pytest.raises(UserError) as error:
        task_of(*arguments, **options)
    return str(error.value)


# Long texts


def test_long_text_rules():
    ids = list(range(10, 30))
    assert cut(ids, 8, "head") == ids[:8]
    assert cut(ids, 8, "tail") == ids[-8:]
    assert cut(ids, 8, "head_tail") == ids[:2] + ids[-6:]
    assert cut(ids, 20, "tail") == ids


@pytest.mark.parametrize(
    ("sizes", "room", "kept"),
    [((3, 4), 9, (3, 4)), ((10, 2), 9, (7, 2)), ((2, 10), 9, (2, 7)), ((10, 10), 9, (4, 5))],
)
def test_the_longer_text_of_a_pair_gives(sizes, room, kept):
    assert pair_sizes(*sizes, room) == kept


def test_pairs_are_cut_as_the_tokenizers_library_cuts_them():
    library = pytest.importorskip("tokenizers")
    engine = library.Tokenizer(library.models.WordLevel({str(i): i for i in range(99)}, "0"))
    engine.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    for first in range(1, 14, 3):
        for second in range(1, 14, 3):
            engine.enable_truncation(9, strategy="longest_first")
            pair = engine.encode(" ".join(["1"] * first), " ".join(["2"] * second))
            assert pair_sizes(first, second, 9) == (pair.ids.count(1), pair.ids.count(2))


def test_windows_of_a_pair_hold_all_of_the_first_text_and_the_second_each_time():
    rows, was_cut = text_rows(
        range(100, 150), [7, 8], size=20, rule="windows", overlap=4, cls_id=1, sep_id=2
    )
    assert not was_cut and all(len(row.ids) <= 20 for row in rows)
    assert {i for row in rows for i in row.ids} >= set(range(100, 150))
    for row in rows:
        assert row.ids[row.second :] == [7, 8, 2] and row.ids[row.second - 1] == 2


# Rows and batches


def test_every_example_counts_once_an_epoch(tmp_path):
    for batch_size in (1, 3, 4, 16):
        task = task_of(tmp_path, films(10), data__batch_size=batch_size)
        found = batches_of_an_epoch(task) + batches_of_an_epoch(task, 1)
        seen = [
            tuple(e) for b in found for e, w in zip(b["example"], b["weight"], strict=True) if w
        ]
        assert sorted(seen) == [(epoch, i) for epoch in (0, 1) for i in range(10)]
        assert all(len(b["weight"]) == batch_size for b in found)


def test_rows_that_fill_up_change_no_loss_and_no_gradient(tmp_path):
    task = task_of(tmp_path, films(3), data__batch_size=8)
    params = params_of(task)
    (batch,) = batches_of_an_epoch(task)
    real = {name: value[batch["weight"] > 0] for name, value in batch.items()}

    gradient = jax.jit(jax.value_and_grad(lambda p, b: mean_losses(task)(p, b)["loss"]))
    (a, ga), (b, gb) = gradient(params, batch), gradient(params, real)
    assert float(a) == pytest.approx(float(b), rel=1e-6)
    for x, y in zip(jax.tree.leaves(ga), jax.tree.leaves(gb), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 16])
def test_evaluation_counts_ten_of_ten(tmp_path, batch_size):
    task = task_of(tmp_path, films(), films(), data__eval_batch_size=batch_size)
    params = params_of(task)
    figures = evaluate(task, "validation", params)
    rows = list(task.predictions("validation", task._outputs_of("validation", params)))
    assert [row["index"] for row in rows] == list(range(10))
    assert [row["label"] for row in rows] == [label for _, label in (FILMS * 3)[:10]]
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert figures["examples"] == 10 and figures["accuracy"] == right / 10
    sure = [-np.log(row["probabilities"][row["label"]]) for row in rows]
    assert figures["loss"] == pytest.approx(np.mean(sure), rel=1e-5)


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_change_no_figure(tmp_path, devices):
    task = task_of(tmp_path, films(), films(), data__eval_batch_size=8)
    one = evaluate(task, "validation", params_of(task))
    many = evaluate(task, "validation", params_of(task), devices)
    assert many == pytest.approx(one, rel=1e-5)


def test_one_example_to_evaluate(tmp_path):
    task = task_of(tmp_path, films(), "a dull film\tneg\n", data__eval_batch_size=8)
    assert evaluate(task, "validation", params_of(task))["examples"] == 1


def test_windows_of_a_text_count_as_one_example(tmp_path):
    long = " ".join(["good"] * 70)
    train = f"{long}\tpos\nbad\tneg\n"
    task = task_of(tmp_path, train, train, data__long_text="windows")
    rows = task._rows["validation"]
    assert len(rows) > 2 and rows.weight.sum() == pytest.approx(2)
    params = params_of(task)
    figures = evaluate(task, "validation", params)
    found = list(task.predictions("validation", task._outputs_of("validation", params)))
    assert figures["examples"] == 2 and len(found) == 2
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1)


def test_limit_draws_by_the_seed(tmp_path):
    rows = "".join(f"{'good' if i % 2 else 'bad'} {i}\t{i % 2}\n" for i in range(50))
    texts = [
        task_of(tmp_path, rows, data__limit=20, seed=s)._splits["train"].texts for s in (0, 0, 1)
    ]
    assert len(texts[0]) == 20 and texts[0] == texts[1] != texts[2]


def test_a_drawn_part_keeps_the_labels_of_the_whole_file(tmp_path, capsys):
    rows = "".join(f"{'good' if i % 2 else 'bad'} {i}\t{i % 2}\n" for i in range(50)) + "odd\t2\n"
    tasks = [task_of(tmp_path, rows, data__limit=4, seed=s) for s in range(3)]
    assert all(task.labels == ("0", "1", "2") for task in tasks)
    rare = [("2" in task._splits["train"].targets) for task in tasks]
    assert not all(rare)
    assert "no row" in capsys.readouterr().err


# Labels


def test_labels_are_matched_by_name_and_not_by_number(tmp_path):
    google = ("contradiction", "entailment", "neutral")
    other = ("entailment", "neutral", "contradiction")
    rows = [("red", "entailment"), ("green", "neutral"), ("blue", "contradiction")] * 3
    content = "".join(f"{text}\t{label}\n" for text, label in rows)
    own = task_of(tmp_path, content, content, known=google)
    assert own.labels == google and not own.fresh_head
    assert own._targets["train"].tolist()[:3] == [1, 2, 0]
    elsewhere = task_of(tmp_path, content, content, known=other)
    assert elsewhere._targets["train"].tolist()[:3] == [0, 1, 2]
    # A head that fits one order, its columns put into the other order, has the same figures.
    params = params_of(own)
    moved = jax.tree.map(lambda x: x, params)
    order = [google.index(name) for name in other]
    dense = params["classifier"]["dense"]
    moved["classifier"] = {"dense": {k: v[..., np.array(order)] for k, v in dense.items()}}
    a, b = evaluate(own, "validation", params), evaluate(elsewhere, "validation", moved)
    assert a == pytest.approx(b)


def test_a_checkpoint_with_other_labels_is_refused_or_gets_a_new_head():
    with pytest.raises(UserError, match=r"'good'.*it knows neg, pos.*new_head"):
        labels.settle(["good", "neg"], ("neg", "pos"), False, "model")
    assert labels.settle(["good", "neg"], ("neg", "pos"), True, "model") == (("good", "neg"), True)
    assert labels.settle(["pos"], ("neg", "pos"), False, "model") == (("neg", "pos"), False)


def test_a_column_of_texts_makes_no_message_as_long_as_the_data(tmp_path):
    train = "".join(f"pos\ta film of {'very ' * 30}{i}\n" for i in range(60))
    text = message_of(tmp_path, train, "pos\tanother\n")
    assert len(text) < 2000 and "60 in all: is config.data.label_column right?" in text


def test_label_order():
    assert labels.ordered(["b", "10", "9", "a", "-1"]) == ("-1", "9", "10", "a", "b")


def test_class_weights():
    counts = {"a": 30, "b": 10}
    assert labels.class_weights("balanced", ["a", "b"], counts) == pytest.approx([2 / 3, 2])
    assert labels.class_weights("b=3", ["a", "b"], counts).tolist() == [1, 3]
    assert labels.class_weights(" a = 2, b=3 ", ["a", "b"], counts).tolist() == [2, 3]
    for bad in ("c=1", "a", "a=x", "a=-1", "a=1,a=2", "a=0,b=0"):
        with pytest.raises(UserError, match="class_weights"):
            labels.class_weights(bad, ["a", "b"], counts)


def test_weighted_loss_is_the_weighted_mean(tmp_path):
    task = task_of(tmp_path, films(3), train__class_weights="pos=3")
    params = params_of(task)
    (batch,) = batches_of_an_epoch(task)
    found = jax.jit(mean_losses(task))(params, batch)["loss"]
    real = batch["weight"] > 0
    logits = np.asarray(jax.jit(task.apply)(params, batch), np.float64)[real]
    target = batch["target"][real]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(target)), target]
    weights = np.array([1.0, 3.0])[target]
    assert float(found) == pytest.approx((weights * losses).sum() / weights.sum(), rel=1e-5)


# Scores and several labels


def test_class_weights_count_in_an_evaluation_without_the_training_data(tmp_path, capsys):
    rows = films()
    with_train = task_of(tmp_path, rows, rows, train__class_weights="neg=5")
    alone = {"data__validation": write(tmp_path, "dev.tsv", rows), "data__header": "no", **COLUMNS}
    held_out = make("classify", tmp_path, with_train.labels, train__class_weights="neg=5", **alone)
    params = params_of(with_train)
    loss = evaluate(with_train, "validation", params)["loss"]
    assert evaluate(held_out, "validation", params)["loss"] == pytest.approx(loss, rel=1e-6)
    make("classify", tmp_path, with_train.labels, train__class_weights="balanced", **alone)
    assert "told without config.train.class_weights=balanced" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (['["red", "blue"]', "[]", '["red"]'], {"red", "blue"}),
        (["['red', 'blue']", "['red']", "[]"], {"red", "blue"}),
        (["red,blue", "", "red"], {"red", "blue"}),
        (['["red", null]', '["\\ud83d\\ude00"]', "[]"], {"red", "\U0001f600"}),
        (["[red", "blue]", "red"], {"[red", "blue]", "red"}),
        (["('red', 'blue')", "{'red'}", "()"], {"red", "blue"}),
        (["(red)", "blue", "set()"], {"(red)", "blue"}),
    ],
)
def test_lists_of_labels_in_cells(tmp_path, cells, names):
    rows = "".join(f"a film\t{cell}\n" for cell in cells)
    task = task_of(tmp_path, rows, rows, data__problem_type="multi_label")
    assert set(task.labels) == names


def test_labels_that_are_no_names_are_refused(tmp_path):
    common = {"data__text_column": "text", "data__label_column": "label"}
    hot = [{"text": "a film", "label": [1, 0, 1]}, {"text": "bad", "label": [0, 1, 0]}]
    path = write_rows(tmp_path, "hot.jsonl", hot)
    text = message("classify", tmp_path, data__train=path, data__problem_type="multi_label",
                   **common)  # fmt: skip
    assert "line 1: [1, 0, 1]" in text and "names" in text
    cells = write(tmp_path, "hot.tsv", "a film\t[1, 0, 1]\nbad\t[0, 1, 0]\n")
    text = message("classify", tmp_path, data__train=cells, data__problem_type="multi_label",
                   data__header="no", **COLUMNS)  # fmt: skip
    assert "line 1: '[1, 0, 1]' marks labels by place" in text
    lists = write_rows(tmp_path, "lists.jsonl", [{"text": "a film", "label": ["x"]}] * 2)
    assert "multi_label" in message("classify", tmp_path, data__train=lists, **common)


@pytest.mark.parametrize(
    "cell", ["['x' 'y']", "(x, y)", "[0 1 0]", "[x, y]", "{'x': 1}", '{"x": 1}']
)
def test_cells_that_are_no_list_of_labels_are_refused(tmp_path, cell):
    path = write(tmp_path, "odd.tsv", f"a film\tz\nbad\t{cell}\n")
    text = message("classify", tmp_path, data__train=path, data__problem_type="multi_label",
                   data__header="no", **COLUMNS)  # fmt: skip
    assert "line 2" in text and cell in text and "['a', 'b']" in text
    rows = [{"text": "a film", "label": ["z"]}, {"text": "bad", "label": {"x": 1, "y": 0}}]
    path = write_rows(tmp_path, "odd.jsonl", rows)
    text = message("classify", tmp_path, data__train=path, data__problem_type="multi_label",
                   data__text_column="text", data__label_column="label")  # fmt: skip
    assert "line 2" in text and "'x': 1" in text


def test_marks_with_commas_are_no_names_and_other_separators_are_said(tmp_path, capsys):
    path = write(tmp_path, "marks.tsv", "a film\t0,1,0\nbad\t1,0,0\n")
    text = message("classify", tmp_path, data__train=path, data__problem_type="multi_label",
                   data__header="no", **COLUMNS)  # fmt: skip
    assert "marks labels by place" in text and "label_column=A,B" in text
    rows = "a film\tx;y\nbad\tx\n"
    task_of(tmp_path, rows, rows, data__problem_type="multi_label")
    assert "'x;y' is one label" in capsys.readouterr().err


def test_a_column_of_zeros_and_ones_for_each_label(tmp_path, capsys):
    content = "id,text,toxic,rude\n1,a film,1,0\n2,bad,1,1\n3,fine,0,0\n"
    common = {"data__text_column": "text", "data__problem_type": "multi_label"}
    path = write(tmp_path, "marks.csv", content)
    task = make("classify", tmp_path, data__train=path, data__validation=path,
                data__label_column="toxic,rude", **common)  # fmt: skip
    assert task.labels == ("rude", "toxic")
    assert task._targets["train"].tolist() == [[0, 1], [1, 1], [0, 0]]
    # A column that no row of the training set marks is an output nevertheless.
    lines = zip(content.splitlines(), ("threat", "0", "0", "0"), strict=True)
    rare = write(tmp_path, "rare.csv", "".join(f"{line},{end}\n" for line, end in lines))
    task = make("classify", tmp_path, data__train=rare, data__label_column="toxic,rude,threat",
                **common)  # fmt: skip
    assert task.labels == ("rude", "threat", "toxic")
    assert "no row of" in (said := capsys.readouterr().err) and "is threat" in said
    path = write(tmp_path, "odd.csv", content.replace("2,bad,1", "2,bad,2"))
    text = message("classify", tmp_path, data__train=path, data__label_column="toxic,rude",
                   **common)  # fmt: skip
    assert "line 3: '2' in column 'toxic'" in text
    path = write(tmp_path, "marks.csv", content)
    text = message("classify", tmp_path, data__train=path, data__label_column="toxic,mean",
                   **common)  # fmt: skip
    assert "no column 'mean'" in text and "rude" in text
    hidden = write(tmp_path, "hidden.csv", "id,text,toxic,rude\n1,a film,-1,-1\n")
    task = make("classify", tmp_path, data__train=path, data__test=hidden,
                data__label_column="toxic,rude", **common)  # fmt: skip
    assert task.score("test", {"loss": 0.0}, {"logits": np.zeros((1, 2))}) == {"examples": 1.0}


def test_numbers_and_missing_values_of_json_as_labels(tmp_path, capsys):
    common = {"data__text_column": "text", "data__label_column": "label"}
    rows = [
        {"text": "a film", "label": 1},
        {"text": "fine", "label": 1.0},
        {"text": "bad", "label": 0.0},
        {"text": "x", "label": "-"},
    ]
    path = write_rows(tmp_path, "numbers.jsonl", rows)
    task = make("classify", tmp_path, data__train=path, **common)
    assert task.labels == ("0.0", "1", "-")  # '1.0' is '1' where both occur
    assert "1 rows have the label '-'" in capsys.readouterr().err
    path = write(tmp_path, "nan.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": NaN}\n')
    assert "line 2: no label" in message("classify", tmp_path, data__train=path, **common)
    test = write(tmp_path, "test.jsonl", '{"text": "a", "label": NaN}\n')
    path = write_rows(tmp_path, "numbers.jsonl", rows)
    task = make("classify", tmp_path, data__train=path, data__test=test, **common)
    assert task.score("test", {"loss": 0.0}, {"logits": np.zeros((1, 3))}) == {"examples": 1.0}


@pytest.mark.parametrize("first, second", [("1", "1.0"), ("1.0", "1"), ("1.0", "1.0")])
def test_one_number_written_in_two_ways_is_one_label(tmp_path, first, second):
    """Programs write integers as floats where a column once had a missing value."""
    zero, other = (x.replace("1", "0", 1) for x in (first, second))
    train = f"good\t{first}\nbad\t{zero}\n"
    task = task_of(tmp_path, train, f"good\t{second}\nbad\t{other}\n")
    assert task.labels == (zero, first)
    assert task._targets["validation"].tolist() == [1, 0]
    task = task_of(tmp_path, train, data__glue="sst2", known=None)
    assert task.labels == ("negative", "positive") and task._targets["train"].tolist() == [1, 0]


def test_no_label_at_all(tmp_path):
    text = message("classify", tmp_path, data__train=write(tmp_path, "no.tsv", "x\t\ny\t\n"),
                   data__text_column="0", data__label_column="1", data__header="no",
                   data__problem_type="multi_label")  # fmt: skip
    assert "no row of" in text and "has a label in '1'" in text


@pytest.mark.parametrize("label", ["-1", ""])
def test_hidden_labels_of_a_test_file(tmp_path, label):
    test = write(tmp_path, "test.tsv", f"a film\t{label}\nbad\t{label}\n")
    task = task_of(tmp_path, films(), data__test=test)
    assert task.score("test", {"loss": 0.0}, {"logits": np.zeros((2, 2))}) == {"examples": 2.0}


def test_held_out_data_that_change_are_other_artifacts(tmp_path):
    before = task_of(tmp_path, films(), films()).artifacts()["held_out"]
    assert set(before) == {"validation"}
    assert task_of(tmp_path, films(), films()).artifacts()["held_out"] == before
    other = films().replace("pos", "x").replace("neg", "pos").replace("x", "neg")
    assert task_of(tmp_path, films(), other).artifacts()["held_out"] != before


def test_a_label_known_is_no_header(tmp_path):
    rows = "good\tneutral\n" + "bad\tpos\nfine\tneg\n" * 4
    path = write(tmp_path, "test.tsv", rows)
    task = make("classify", tmp_path, ("neg", "neutral", "pos"), data__validation=path, **COLUMNS)
    assert len(task._splits["validation"].texts) == 9


def test_scores_stay_what_they_are(tmp_path):
    rows = "red\t3.8\ngreen\t0\nblue\t5.0\n"
    task = task_of(tmp_path, rows, rows, data__problem_type="regression")
    assert task._targets["train"].tolist() == pytest.approx([3.8, 0, 5])
    rows_told = task.predictions("validation", {"logits": np.zeros((3, 1), np.float32)})
    assert [row["label"] for row in rows_told] == [3.8, 0.0, 5.0]
    assert task.model.num_classes == 1 and task.best_metric == ("validation/spearman", True)
    assert "labels" not in task.artifacts()
    params = params_of(task)
    figures = evaluate(task, "validation", params)
    found = [
        row["prediction"] for row in task.predictions("validation", task._outputs["validation"])
    ]
    assert figures["squared_error"] == pytest.approx(np.mean((np.array(found) - [3.8, 0, 5]) ** 2))
    assert figures["loss"] == pytest.approx(figures["squared_error"], rel=1e-5)


def test_regression_figures():
    figures = results.regression_figures(np.array([0, 1, 2, 5.0]), np.array([0.5, 1, 2.5, 4]))
    assert figures["pearson"] == pytest.approx(0.975900, abs=1e-6)
    assert figures["spearman"] == pytest.approx(1.0)


def test_glue_figures():
    figures = results.single_label_figures(
        np.array([1, 1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1, 1]), 1
    )
    assert figures["matthews"] == pytest.approx(0.25)
    figures = results.single_label_figures(np.array([1, 1, 0, 1]), np.array([1, 0, 0, 1]), 1)
    assert figures["f1"] == pytest.approx(0.8) and figures["accuracy"] == 0.75
    with pytest.warns(UserWarning, match="all 3 predictions"):
        figures = results.single_label_figures(np.array([1, 0, 1]), np.array([1, 1, 1]), 1)
    assert figures["matthews"] == 0.0 and figures["predicted_classes"] == 1


def test_several_labels_at_once(tmp_path):
    rows = [
        {"text": "red", "label": ["a", "b"]},
        {"text": "green", "label": []},
        {"text": "blue", "label": ["c"]},
    ]
    path = write_rows(tmp_path, "a.jsonl", rows)
    task = make("classify", tmp_path, data__train=path, data__validation=path, train__steps=2,
                data__problem_type="multi_label")  # fmt: skip
    assert task.labels == ("a", "b", "c")
    assert task._targets["train"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    params = params_of(task)
    figures = evaluate(task, "validation", params)
    chance = 1 / (1 + np.exp(-task._outputs["validation"]["logits"].astype(np.float64)))
    given = task._targets["validation"]
    expected = -(given * np.log(chance) + (1 - given) * np.log(1 - chance)).mean()
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    found = list(task.predictions("validation", task._outputs["validation"]))
    assert found[0]["label"] == ["a", "b"]
    assert found[0]["prediction"] == [k for k, p in found[0]["probabilities"].items() if p > 0.5]


# GLUE


def test_f1_is_that_of_one_class_by_name_in_any_order_of_the_head(tmp_path):
    """3 of 4 "equivalent" found and one too many: F1 of that class is 0.75, of the other 0.5."""
    gold, guess = ["equivalent"] * 4 + ["not_equivalent"] * 2, [1, 1, 1, 0, 1, 0]
    rows = "".join(f"a film\tred\t{label}\n" for label in gold)
    columns = {"data__text_column": "0", "data__pair_column": "1", "data__label_column": "2"}
    of = glue.TASKS["mrpc"].labels
    nli = ("contradiction", "entailment", "neutral")
    for known, new_head in ((None, False), (of, False), (of[::-1], False), (nli, True)):
        task = task_of(tmp_path, rows, rows, known=known, data__glue="mrpc", new_head=new_head,
                       **columns)  # fmt: skip
        assert task.fresh_head == (known == nli)
        assert task.labels == (known if known in (of, of[::-1]) else of)
        logits = np.array([[task.labels.index(of[g]) == c for c in (0, 1)] for g in guess], float)
        figures = task.score("validation", {"loss": 0.0}, {"logits": logits})
        assert figures["f1"] == pytest.approx(0.75)
        assert task.artifacts()["positive"] == "equivalent"


def test_f1_needs_two_classes(tmp_path):
    rows = "a film\tred\nbad\tgreen\nfine\tblue\n"
    assert task_of(tmp_path, rows, rows).figures.keys() == {
        "accuracy", "matthews", "macro_f1", "loss"
    }  # fmt: skip
    path = write(tmp_path, "three.tsv", rows)
    text = message("classify", tmp_path, data__train=path, data__validation=path,
                   data__header="no", train__metric="f1", **COLUMNS)  # fmt: skip
    assert "train.metric=f1" in text and "macro_f1" in text


def test_f1_over_classes_and_labels():
    """A class that is neither given nor predicted (here 1, of three) is none of an evaluation's."""
    gold, guess = np.array([0, 2, 2]), np.array([0, 0, 2])
    found = results.single_label_figures(gold, guess, None)["macro_f1"]
    assert found == pytest.approx(2 / 3)  # 2 / 3 of both
    one = np.array([[True], [False], [False], [True]])
    assert results.multi_label_figures(one, ~one)["micro_f1"] == 0.0
    none = np.zeros_like(one)
    assert results.multi_label_figures(one, none)["micro_f1"] == 0.0


def test_glue_presets_name_columns_labels_and_metric(tmp_path):
    content = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tred\tred\n0\t3\t4\tred\tblue\n"
    path = write(tmp_path, "mrpc.tsv", content)
    test = write(
        tmp_path, "test.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tred\tgreen\n"
    )
    values = {key.replace(".", "__"): value for key, value in glue.presets()["mrpc"].items()}
    values |= {"data__train": path, "data__validation": path, "data__test": test, "train__steps": 1}
    task = make("classify", tmp_path, **values)
    assert task.labels == ("not_equivalent", "equivalent")
    assert task._targets["train"].tolist() == [1, 0]
    assert task.best_metric == ("validation/f1", True)
    assert len(task._splits["test"].texts) == 1 and task._splits["test"].targets is None
    params = params_of(task)
    results = {split: evaluate(task, split, params) for split in task.eval_splits}
    assert results["test"] == {"examples": 1}
    task.finish(str(tmp_path / "out"), params, results)
    submission = (tmp_path / "out/predictions/MRPC.tsv").read_text().splitlines()
    assert submission[0] == "index\tprediction" and submission[1] in ("0\t0", "0\t1")


def test_a_glue_task_is_checked_before_training(tmp_path):
    rows = write(tmp_path, "a.tsv", "sentence\tlabel\na\tpos\nb\tneg\n")
    values = {key.replace(".", "__"): value for key, value in glue.presets()["sst2"].items()}
    values |= {"data__train": rows, "data__validation": rows, "data__test": ""}
    assert "there is 'neg'" in message("classify", tmp_path, **values)
    scores = write(tmp_path, "b.tsv", "sentence\tlabel\na\t1\nb\t0\n")
    values |= {"data__train": scores, "data__validation": scores}
    values |= {"data__problem_type": "regression"}
    assert "data.glue=sst2 is single_label" in message("classify", tmp_path, **values)


def test_submissions():
    assert glue.submission(glue.TASKS["sst2"], "test_dev", ["positive"])[0] == "SST-2-dev.tsv"
    assert glue.submission(glue.TASKS["rte"], "test", ["entailment"])[1].endswith("0\tentailment\n")
    assert glue.submission(glue.TASKS["stsb"], "test", [5.2])[1].endswith("0\t5.000\n")
    assert glue.submission(glue.TASKS["mnli"], "test_mismatched", ["neutral"])[0] == "MNLI-mm.tsv"
    assert glue.submission(glue.TASKS["mnli"], "test_ax", ["neutral"])[0] == "AX.tsv"


# Files


def test_finish_writes_what_was_predicted(tmp_path):
    task = task_of(tmp_path, films(), films(), data__test=write(tmp_path, "t.tsv", "good\nbad\n"),
                   data__text_column="0")  # fmt: skip
    params = params_of(task)
    figures = {split: evaluate(task, split, params) for split in task.eval_splits}
    text = task.finish(str(tmp_path / "out"), params, figures)
    folder = tmp_path / "out/predictions"
    rows = [json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(10))
    wrong = [row["index"] for row in rows if row["label"] != row["prediction"]]
    errors = (folder / "validation.errors.tsv").read_text().splitlines()[1:]
    assert sorted(int(line.split("\t")[0]) for line in errors) == wrong
    unlabelled = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert [row["label"] for row in unlabelled] == [None, None]
    assert "precision" in text and "label \\ predicted" in text
    readme = task.readme(text)
    assert "neg, pos" in readme and "label \\ predicted" in readme and "train.tsv" in readme


def test_figures_by_class_are_those_of_the_confusion_matrix():
    gold, guess = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0])
    table = results.per_class(gold, guess, ["neg", "pos"]).splitlines()
    assert table[1].split() == ["neg", "0.5000", "0.5000", "0.5000", "2"]
    matrix = results.confusion(gold, guess, ["neg", "pos"]).splitlines()
    assert [line.split() for line in matrix[1:]] == [["neg", "1", "1"], ["pos", "1", "2"]]


# Bad input


def test_bad_input_is_one_sentence(tmp_path):
    ok = write(tmp_path, "ok.tsv", films())
    common = {"data__header": "no", **COLUMNS}
    text = message(
        "classify", tmp_path, data__train=ok, **(common | {"data__label_column": "label"})
    )
    assert "'label'" in text and "0, 1" in text
    unseen = write(tmp_path, "unseen.tsv", films(3) + "a film\tfair\n")
    text = message("classify", tmp_path, data__train=ok, data__validation=unseen, **common)
    assert "'fair'" in text and "line 4" in text and "neg, pos" in text
    one = write(tmp_path, "one.tsv", "good\tpos\nfine\tpos\n")
    assert "'pos'" in message("classify", tmp_path, data__train=one, **common)
    single = write(tmp_path, "single.tsv", "good\tpos\n")
    assert "all 1 rows" in message("classify", tmp_path, data__train=single, **common)
    short = write(tmp_path, "short.tsv", "good\tpos\nbad\n")
    assert "line 2" in message("classify", tmp_path, data__train=short, **common)
    assert "'pos' is no number" in message(
        "classify", tmp_path, data__train=ok, data__problem_type="regression", **common
    )
    assert "data.train" in message("classify", tmp_path)
    assert "train.metric=bleu" in message(
        "classify", tmp_path, data__train=ok, train__metric="bleu", **common
    )
    nothing = common | {"train__steps": 0, "train__epochs": 0.0}
    assert "make no step" in message("classify", tmp_path, data__train=ok, **nothing)
    assert "window_overlap=30" in message(
        "classify", tmp_path, data__train=ok, data__long_text="windows",
        **(common | {"data__window_overlap": 30}),
    )  # fmt: skip
    assert "data.glue=mrcp" in message(
        "classify", tmp_path, data__train=ok, data__glue="mrcp", **common
    )


def test_an_empty_label_is_no_label(tmp_path):
    path = write(tmp_path, "a.tsv", "good\tpos\nbad\tneg\nfine\t\n")
    text = message("classify", tmp_path, data__train=path, data__header="no", **COLUMNS)
    assert "line 3: no label" in text


def test_sets_with_names(tmp_path):
    ok = write(tmp_path, "ok.tsv", films())
    common = {"data__train": ok, "data__header": "no", **COLUMNS}
    task = make("classify", tmp_path, data__validation=f"dev={ok},other={ok}", **common)
    assert task.eval_splits == ("validation_dev", "validation_other")
    assert task.best_metric == ("validation_dev/accuracy", True)
    twice = message("classify", tmp_path, data__validation=f"dev={ok},dev={ok}", **common)
    assert "one name" in twice
    assert "train.patience=2 needs" in message("classify", tmp_path, train__patience=2, **common)


def test_a_learnt_vocabulary_follows_what_it_is_asked_for(tmp_path):
    ok = write(tmp_path, "ok.tsv", films())
    other = write(tmp_path, "b.tsv", "zebra zebra\tpos\nyak yak\tneg\n")
    config = config_of(
        "classify", data__train=ok, data__vocab="train:100", data__header="no", **COLUMNS
    )
    vocab = tmp_path / "run" / "vocabulary" / "vocab.txt"
    for train, expected in ((ok, False), (other, True), (ok, False)):
        config.data.train = train
        prepare_data(config, str(tmp_path / "run"), None)
        assert ("z" in vocab.read_text().split()) == expected


def test_a_given_vocabulary_decides_on_lower_casing(tmp_path, capsys):
    cased = tmp_path / "cased.txt"
    cased.write_text("\n".join([*VOCAB, "Good"]) + "\n")
    values = {"data__train": write(tmp_path, "ok.tsv", films()), "data__header": "no", **COLUMNS}
    for vocab, asked, lower in ((cased, True, False), (cased, False, False)):
        config = config_of("classify", data__vocab=str(vocab), data__lower_case=asked, **values)
        task = make_task(config, str(tmp_path / "run"), None, None)
        assert task.tokenizer.settings["do_lower_case"] is lower
    assert "nothing is lower-cased" in capsys.readouterr().err


def test_empty_texts_are_counted(tmp_path, capsys):
    task_of(tmp_path, "good\tpos\n\tneg\n\u200b\tneg\n")
    said = capsys.readouterr().err
    assert "1 empty texts (line 2)" in said and "no token is left of 1 texts (line 3)" in said


def test_what_was_decided_is_said(tmp_path, capsys):
    task_of(tmp_path, films(8) + " ".join(["good"] * 50) + "\tpos\n")
    said = capsys.readouterr().err
    assert "neg 4 (44 %), pos 5 (56 %)" in said
    assert "1 of 9 texts are longer than config.data.seq_length=32" in said
    assert "9 rows" in said and "not a header" in said
