"""Paired tests against hand arithmetic, scipy and sklearn; comparing folders of predictions."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from bertjax.ablate import compare, examples, paired
from bertjax.errors import UserError


def test_rows_without_pairs_have_no_nsp_to_compare(monkeypatch):
    ones, none = np.ones(20), np.zeros(20)
    rows = {
        "digest": "same",
        "sums": {"mlm_loss": ones, "nsp_accuracy": none},
        "weights": {"mlm_loss": ones, "nsp_accuracy": none},
    }
    monkeypatch.setattr(examples, "row_losses", lambda workdir, split: rows)
    found = examples.by_rows(pathlib.Path("a"), pathlib.Path("b"), "validation")
    assert [result.figure for result in found] == ["mlm_loss"]


def test_mcnemar_by_hand():
    """1 example that A alone has right, 9 that B alone has: p = 2 (C(10,0) + C(10,1)) / 2^10."""
    a = np.array([1] * 30 + [1] + [0] * 9 + [0] * 10, bool)
    b = np.array([1] * 30 + [0] + [1] * 9 + [0] * 10, bool)
    found = paired.mcnemar("accuracy", a, b)
    assert found.p == pytest.approx(2 * 11 / 1024, rel=1e-12)
    assert (found.a, found.b, found.n) == (31 / 50, 39 / 50, 50)
    assert found.difference == pytest.approx(8 / 50)
    # Half an example more in each cell: b = 1.5, c = 9.5, n = 52.
    centre = 8 / 52
    reach = 1.959964 * math.sqrt((11 - 8**2 / 52) / 52**2)
    assert (found.low, found.high) == pytest.approx((centre - reach, centre + reach), abs=1e-6)
    assert "1 and 9" in found.test
    other = paired.mcnemar("accuracy", b, a)
    assert (other.p, other.difference) == pytest.approx((found.p, -found.difference))


def test_mcnemar_without_any_difference():
    found = paired.mcnemar("accuracy", np.array([True, False]), np.array([True, False]))
    assert found.p == 1 and found.difference == 0 and found.low < 0 < found.high


def test_paired_t_is_scipys_and_by_hand():
    a, b = [1.0, 2.0, 3.0, 4.0], [1.5, 2.1, 3.7, 4.3]
    found = paired.paired_t("loss", a, b, "seeds")
    wanted = scipy.stats.ttest_rel(b, a)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-12)
    interval = wanted.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    # Differences 0.5, 0.1, 0.7, 0.3: mean 0.4, variance 0.2 / 3; t_3(0.975) = 3.182446.
    assert found.difference == pytest.approx(0.4)
    assert found.high == pytest.approx(0.4 + 3.182446 * math.sqrt(0.2 / 3 / 4), abs=1e-6)
    # Equal differences, but for rounding: t is not defined, however sure they look.
    for other in ([0.2, 0.3, 0.4], [0.6, 0.7, 0.8]):
        equal = paired.paired_t("loss", [0.1, 0.2, 0.3], other, "seeds")
        assert equal.p is None and "not defined" in equal.test
        assert equal.low == equal.high == pytest.approx(other[0] - 0.1)
    same = paired.paired_t("loss", a, a, "seeds")
    assert (same.p, same.low, same.high) == (1, 0, 0)


def test_bootstrap_interval_agrees_with_scipy_and_normal_theory():
    draw = np.random.default_rng(1)
    a = draw.normal(2.0, 1.0, 400)
    b = a + draw.normal(0.1, 0.6, 400)
    found = paired.bootstrap_ratio("loss", a, b, np.ones(400))
    slow = paired.bootstrap("loss", lambda rows: (a[rows].mean(), b[rows].mean()), 400)
    assert (found.low, found.high, found.p) == pytest.approx((slow.low, slow.high, slow.p))
    scipys = scipy.stats.bootstrap(
        (b - a,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)
    ).confidence_interval
    error = (b - a).std(ddof=1) / 20
    assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high), abs=0.1 * error)
    assert found.difference == pytest.approx((b - a).mean())
    p = 2 * scipy.stats.norm.sf(abs(found.difference) / error)
    assert found.p == pytest.approx(p, rel=0.5) and 0.0001 < p < 0.05


def test_bootstrap_weighs_rows_as_the_loss_does():
    sums, weights = np.array([10.0, 1.0]), np.array([10.0, 2.0])
    found = paired.bootstrap_ratio("loss", sums, 2 * sums, weights)
    assert (found.a, found.b, found.difference) == pytest.approx((11 / 12, 22 / 12, 11 / 12))
    same = paired.bootstrap_ratio("loss", sums, sums, weights)
    assert same.p == 1 and same.low == same.high == 0


def test_p_values_are_spread_evenly_where_nothing_differs():
    """Of 200 comparisons of equals about 5 % fall below 0.05 (binomial: at most 20)."""
    draw = np.random.default_rng(0)
    small = {"bootstrap": 0, "mcnemar": 0}
    for trial in range(200):
        a, b = draw.normal(size=(2, 100))
        found = paired.bootstrap_ratio("x", a, b, np.ones(100), resamples=400, seed=trial)
        small["bootstrap"] += found.p < 0.05
        small["mcnemar"] += paired.mcnemar("x", a > 0, b > 0).p < 0.05
    assert 1 <= small["bootstrap"] <= 20 and small["mcnemar"] <= 20, small


def test_figures_of_a_confusion_matrix_are_sklearns():
    draw = np.random.default_rng(0)
    for classes in (2, 3):
        gold, guess = draw.integers(0, classes, (2, 60))
        matrix = sklearn.metrics.confusion_matrix(gold, guess, labels=range(classes))
        wanted = sklearn.metrics.f1_score(gold, guess, average="macro")
        assert examples._macro_f1(matrix) == pytest.approx(wanted)
        assert examples._matthews(matrix) == pytest.approx(
            sklearn.metrics.matthews_corrcoef(gold, guess)
        )
    binary = np.array([[5, 3], [2, 7]])
    assert examples._f1(binary) == pytest.approx(2 * 7 / (2 * 7 + 3 + 2))
    assert examples._matthews(np.array([[4, 0], [6, 0]])) == 0


# Folders ----------------------------------------------------------------------------------------


def finished(folder: pathlib.Path, *, task="classify", metric="f1", rows=(), results=None, **data):
    """A finished run as the loop leaves it, but for its checkpoints."""
    data = {"problem_type": "single_label", "language": "en"} | data
    config = {"task": task, "data": data}
    artifacts = {"best_metric": [f"validation/{metric}", True], "labels": ["no", "yes"]}
    (folder / "predictions").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"config": config, "artifacts": artifacts}))
    end = {"step": 3, "results": {"validation": results or {}}, "summary": ""}
    (folder / "finished.json").write_text(json.dumps(end))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "predictions" / "validation.jsonl").write_text(lines)
    return folder


def of(labels, predictions):
    return [
        {"index": i, "label": label, "prediction": guess}
        for i, (label, guess) in enumerate(zip(labels, predictions, strict=True))
    ]


def test_classifiers_by_their_predictions(tmp_path):
    labels = ["yes", "no"] * 20
    right, wrong = labels, ["no", "yes"] * 20
    finished(tmp_path / "cells" / "a", rows=of(labels, right[:30] + wrong[30:]))
    finished(tmp_path / "cells" / "b", rows=of(labels, right[:38] + wrong[38:]))
    found = compare.compare("a, b", str(tmp_path), "validation")
    accuracy, f1 = found["results"]
    assert accuracy["p"] == pytest.approx(2 / 2**8) and accuracy["n"] == 40
    assert (accuracy["a"], accuracy["b"]) == (0.75, 0.95)
    assert f1["figure"] == "f1" and f1["b"] == pytest.approx(0.95) and f1["p"] < 0.05
    shown = compare.text(found)
    for part in ("95 % interval", "p  ", "n  ", "McNemar 1947", "0.7500 -> 0.9500"):
        assert part in shown
    paths = compare.compare(f"{tmp_path}/cells/a,{tmp_path}/cells/b", "", "validation")
    assert paths["results"] == found["results"]


def test_several_labels_are_compared_as_sets(tmp_path):
    """A row that names a label twice, as 'a,a' in a file does, is right where the label is."""
    gold = [["a", "a"], ["b", "a"], []]
    finished(tmp_path / "a", problem_type="multi_label", rows=of(gold, [["a"], ["a", "b"], ["a"]]))
    finished(tmp_path / "b", problem_type="multi_label", rows=of(gold, [["a"], ["a", "b"], []]))
    (found,) = compare.compare(f"{tmp_path}/a,{tmp_path}/b", "", "validation")["results"]
    assert (found["a"], found["b"]) == (2 / 3, 1)


def test_the_same_labels_of_other_examples(tmp_path):
    """Words and questions tell; of a classifier the sources alone do, and a note says so."""
    for name in ("x", "y"):
        rows = of([["O"]], [["O"]])
        finished(tmp_path / f"{name}t", task="tag", rows=[rows[0] | {"words": [name]}])
        finished(tmp_path / f"{name}q", task="answer", rows=[rows[0] | {"id": name}])
        finished(tmp_path / f"{name}c", rows=of(["yes"], ["no"]), validation=f"{name}.tsv")
    for kind in ("t", "q"):
        with pytest.raises(UserError, match="different validation examples"):
            compare.compare(f"{tmp_path}/x{kind},{tmp_path}/y{kind}", "", "validation")
    (note,) = compare.compare(f"{tmp_path}/xc,{tmp_path}/yc", "", "validation")["notes"]
    assert "x.tsv and y.tsv" in note and "labels alone" in note


def test_scores_tags_and_answers_by_their_predictions(tmp_path):
    gold = list(np.linspace(0, 5, 30))
    noise = np.random.default_rng(0).normal(size=(2, 30))
    for name, scale, row in (("a", 3.0, 0), ("b", 0.1, 1)):
        guess = list(gold + scale * noise[row])
        finished(tmp_path / name, rows=of(gold, guess), problem_type="regression")
    found = compare.compare(f"{tmp_path}/a,{tmp_path}/b", "", "validation")["results"]
    assert [r["figure"] for r in found] == ["spearman", "pearson"]
    wanted = scipy.stats.spearmanr(gold, gold + 0.1 * noise[1]).statistic
    assert found[0]["b"] == pytest.approx(wanted) and found[0]["low"] > 0

    tags = [["B-X", "I-X", "O"], ["O", "B-Y", "O"]] * 10
    bad = [["B-X", "O", "O"], ["O", "B-Y", "O"]] * 10
    finished(tmp_path / "t", task="tag", metric="f1", rows=of(tags, bad))
    finished(tmp_path / "u", task="tag", metric="f1", rows=of(tags, tags))
    words, spans = compare.compare(f"{tmp_path}/t,{tmp_path}/u", "", "validation")["results"]
    assert (words["a"], words["b"]) == pytest.approx((5 / 6, 1)) and words["n"] == 20
    assert (spans["a"], spans["b"]) == (0.5, 1.0)

    answers = [["the cat"], ["a dog", "dog"]] * 5
    finished(tmp_path / "q", task="answer", rows=of(answers, ["cat", "big dog"] * 5))
    finished(tmp_path / "r", task="answer", rows=of(answers, ["cat", "dog"] * 5))
    exact, f1 = compare.compare(f"{tmp_path}/q,{tmp_path}/r", "", "validation")["results"]
    assert (exact["a"], exact["b"]) == (50, 100)
    assert f1["a"] == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_groups_are_paired_seed_by_seed(tmp_path):
    for name, losses in (("x", {0: 2.0, 1: 2.2, 5: 2.1}), ("y", {0: 1.8, 1: 2.1, 7: 0.0})):
        for seed, loss in losses.items():
            finished(tmp_path / "cells" / f"{name}_seed-{seed}", results={"mlm_loss": loss})
    found = compare.compare("x,y", str(tmp_path), "validation")
    (result,) = found["results"]
    assert result["n"] == 2 and result["difference"] == pytest.approx(-0.15)
    assert result["p"] == pytest.approx(scipy.stats.ttest_rel([1.8, 2.1], [2.0, 2.2]).pvalue)
    assert "5, 7" in found["notes"][0] and found["kind"] == "seeds"
    # A single run of before the seeds; a figure that is not finite.
    finished(tmp_path / "cells" / "v", results={"mlm_loss": 9.0})
    for name, first, second in (("v", 0.3, float("nan")), ("w", 0.4, 2.1)):
        results = {"mlm_loss": 1.0, "nsp_loss": first}
        finished(tmp_path / "cells" / f"{name}_seed-0", results=results)
        results = {"mlm_loss": second, "nsp_loss": 0.1}
        finished(tmp_path / "cells" / f"{name}_seed-1", results=results)
    found = compare.compare("v,w", str(tmp_path), "validation")
    assert [r["figure"] for r in found["results"]] == ["nsp_loss"]
    assert any("cells/v is left out" in note for note in found["notes"])
    assert any("mlm_loss is left out: it is not finite of seed 1" in x for x in found["notes"])
    json.loads(json.dumps(found, allow_nan=False))
    assert "nsp_loss" in compare.text(found)


@pytest.mark.parametrize(
    ("pair", "split", "words"),
    [
        ("a", "validation", ["two cells"]),
        ("a,nowhere", "validation", ["nowhere", "neither"]),
        ("a,../../etc", "validation", ["../../etc"]),
        ("a,g", "validation", ["single run", "group"]),
        ("g,h", "validation", ["1 seeds in common", "two"]),
        ("a,other", "validation", ["different validation examples"]),
        ("a,b", "test", ["test.jsonl"]),
        ("a,b", "../x", ["no predictions"]),
        ("a,tagger", "validation", ["classify", "tag"]),
        ("hidden,hidden", "validation", ["no labels"]),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, pair, split, words):
    root = tmp_path / "cells"
    for name, labels in (("a", ["yes", "no"]), ("b", ["yes", "no"]), ("other", ["no", "no"])):
        finished(root / name, rows=of(labels, ["yes", "no"]))
    finished(root / "hidden", rows=of([None], ["yes"]))
    finished(root / "tagger", task="tag")
    for name in ("g_seed-0", "g_seed-1", "h_seed-1"):
        finished(root / name, results={"accuracy": 0.5})
    with pytest.raises(UserError) as error:
        compare.compare(pair, str(tmp_path), split)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)
