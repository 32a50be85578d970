"""What a page is made of: curves, predictions, weights, vectors; hand-computed."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from report_runs import (
    LABELS,
    change_config,
    classifier,
    published,
    workdirs,
    write_figures,
    write_lines,
)

from bertjax import api
from bertjax.errors import UserError
from bertjax.inference.batching import Row
from bertjax.report import build, gather, held_out, inside, predictions
from bertjax.report.held_out import Texts


@pytest.fixture(scope="module")
def mlm() -> api.Bert:
    return api.prepare(published(("mlm", "nsp")))


def texts_of(*texts: str, pairs: list[str] | None = None) -> Texts:
    return Texts(list(texts), pairs, [""] * len(texts), "some")


def test_curves_are_those_of_the_file(tmp_path):
    write_figures(tmp_path, 10, "speed")
    notes: list[str] = []
    curves = gather.read_metrics(str(tmp_path), notes)
    assert curves["train"]["steps"] == list(range(1, 11))
    assert curves["train"]["metrics"]["loss"][:3] == [4, 2, pytest.approx(4 / 3, rel=1e-5)]
    assert curves["validation"] == {
        "steps": [5, 10], "metrics": {"loss": [1, 0.5], "accuracy": [None, 1]}
    }  # fmt: skip
    assert notes == []


def test_half_lines_and_thinning_are_said(tmp_path):
    write_figures(tmp_path, 2500)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('not json\n{"step": 9}\n{"step": 2501, "split": "tra')
    notes: list[str] = []
    curves = gather.read_metrics(str(tmp_path), notes)
    steps = curves["train"]["steps"]
    assert len(steps) == 1000 and steps[0] == 1 and steps[-1] == 2500
    assert any(note.startswith("3 lines of metrics.jsonl could not be read") for note in notes)
    assert any("1,000 of 2,500 points" in note for note in notes)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a"], ["a"]),
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["x/run", "y/run"], ["x/run", "y/run"]),
    ],
)
def test_runs_get_the_shortest_names_that_differ(paths, names):
    assert gather.names_of(paths) == names


def test_the_same_run_twice_is_refused():
    with pytest.raises(UserError, match="given twice"):
        gather.names_of(["runs/a", "runs/a"])


def test_wrong_predictions_come_first_the_surest_before(tmp_path):
    classifier(tmp_path / "run")
    texts = held_out.read(str(tmp_path / "run"))["validation"]
    found = predictions.read(str(tmp_path / "run"), "validation", "classify", texts, 5)
    assert (found["total"], found["labelled"], found["wrong"]) == (12, 12, 3)
    # Wrong are 0, 4 and 8; probabilities grow with the index. Then 11 and 10, which are right.
    assert [row["text"].split()[-1] for row in found["rows"]] == ["8", "4", "0", "11", "10"]
    assert [row["right"] for row in found["rows"]] == [False] * 3 + [True] * 2
    assert found["rows"][0]["probability"] == pytest.approx(0.66)
    # Labels 0 1 2 0 1 2 ...; 0 is wrong as 1, 4 (label 1) as 2, 8 (label 2) as 0.
    assert set(found["confusion"]["labels"]) == set(LABELS)
    order = [found["confusion"]["labels"].index(label) for label in LABELS]
    counts = np.array(found["confusion"]["counts"])[np.ix_(order, order)]
    assert counts.tolist() == [[3, 1, 0], [0, 3, 1], [1, 0, 3]]


def test_predictions_of_other_tasks(tmp_path):
    rows = [
        {"index": 0, "words": ["a", "b"], "label": ["O", "O"], "prediction": ["O", "O"]},
        {"index": 1, "words": ["c", "d"], "label": ["B", "I"], "prediction": ["O", "I"]},
    ]
    write_lines(tmp_path / "predictions" / "validation.jsonl", rows)
    found = predictions.read(str(tmp_path), "validation", "tag", None, 9)
    assert [row["right"] for row in found["rows"]] == [False, True] and found["wrong"] == 1
    assert [w["right"] for w in found["rows"][0]["words"]] == [False, True]
    answers = [
        {"index": 0, "label": ["x", "y"], "prediction": "y", "probability": 0.4},
        {"index": 1, "label": [], "prediction": "", "probability": 0.5},
        {"index": 2, "label": ["x"], "prediction": "", "probability": 0.6},
        {"index": 3, "label": None, "prediction": "z", "probability": 0.7},
        {"broken": 1},
    ]
    write_lines(tmp_path / "predictions" / "validation.jsonl", answers)
    found = predictions.read(str(tmp_path), "validation", "answer", texts_of("q0"), 9)
    assert (found["total"], found["labelled"], found["wrong"], found["damaged"]) == (4, 3, 1, 1)
    assert [row["right"] for row in found["rows"]] == [False, None, True, True]
    assert found["rows"][0]["prediction"] == "(no answer)" and found["rows"][3]["text"] == "q0"
    rivers = [
        {"index": 0, "label": ["Rhine"], "prediction": "the Rhine!", "probability": 0.4},
        {"index": 1, "label": ["莱茵河"], "prediction": "《莱茵河》", "probability": 0.4},
    ]
    write_lines(tmp_path / "predictions" / "validation.jsonl", rivers)
    # SQuAD's rule takes off articles and ASCII's punctuation, CMRC's the punctuation of any script.
    for rule, right in (("squad", {0: True, 1: False}), ("cmrc", {0: False, 1: True})):
        found = predictions.read(str(tmp_path), "validation", "answer", texts_of("0", "1"), 9, rule)
        assert {int(row["text"]): row["right"] for row in found["rows"]} == right
    scores = [{"index": i, "label": 1.0, "prediction": 1.0 + i} for i in range(3)]
    write_lines(tmp_path / "predictions" / "validation.jsonl", scores)
    found = predictions.read(str(tmp_path), "validation", "classify", None, 2)
    assert [row["prediction"] for row in found["rows"]] == [3, 2]  # the largest error first


def test_masks_stand_for_whole_words(mlm):
    text = "The dogs is over the lazy fox , hello world ."  # dogs is two pieces
    masked, words = predictions.masked_text(mlm, text, 0)  # the first and the eighth whole word
    assert words == ["the", "world"]
    assert masked == "[MASK] dogs is over the lazy fox , hello [MASK] ."
    for first in range(7):
        assert not {"dog", "dogs", ",", "."} & set(predictions.masked_text(mlm, text, first)[1])
    rows = predictions.fill_masks(mlm, texts_of(text, "the [MASK] fox"), print, 9)
    assert "[MASK]".join(rows[0]["parts"]) == predictions.masked_text(mlm, text, 0)[0]
    assert rows[1]["parts"] == ["the ", " fox"]
    assert rows[1]["masks"][0]["original"] is None and len(rows[1]["masks"][0]["guesses"]) == 5
    first = rows[0]["masks"][0]
    assert first["right"] is (first["guesses"][0]["token"] == first["original"])


def test_weights_on_the_page_are_those_of_the_model(mlm):
    content, blob = inside.attention(mlm, texts_of("hello world", "the fox"), 10**6, print)
    weights = np.frombuffer(gzip.decompress(base64.b64decode(blob)), np.uint8)
    assert [text["tokens"][1] for text in content["texts"]] == ["hello", "the"]
    for text, own in zip(content["texts"], ("hello world", "the fox"), strict=True):
        expected = np.stack([layer[0] for layer in mlm.attentions([own]).attentions])
        ours = weights[text["start"] :][: expected.size].reshape(expected.shape)
        assert np.abs(ours / 255 - expected).max() <= 0.5 / 255 + 1e-6


def test_attention_keeps_to_its_budget_and_says_so(mlm):
    texts = texts_of(*["the quick brown fox jumps over the lazy dog"] * 6)
    heads = mlm.config.num_layers * mlm.config.num_heads
    content, blob = inside.attention(mlm, texts, 2 * heads * 8 * 8 + 9, print)
    assert len(content["texts"]) == 2
    assert len(gzip.decompress(base64.b64decode(blob))) <= 2 * heads * 64 + 9
    assert content["notes"] == [
        "4 of 4 texts were cut to their first 8 tokens.", "2 of 6 texts are shown."
    ]  # fmt: skip


def test_a_run_that_has_diverged_has_no_attention_to_show(mlm):
    nothing = jax.tree.map(lambda x: x * np.nan, mlm.params)
    diverged = dataclasses.replace(mlm, params=nothing)
    with pytest.raises(UserError, match="the run has diverged"):
        inside.attention(diverged, texts_of("hello world"), 10**6, print)


def test_a_pair_is_cut_at_its_longer_text():
    row = inside.shorten(Row(0, [2, 10, 11, 12, 13, 14, 3, 20, 21, 3], 7), 7, 3)
    assert row.ids == [2, 10, 11, 3, 20, 21, 3] and row.second == 4
    alone = inside.shorten(Row(0, [2, 10, 11, 12, 3], 5), 4, 3)
    assert alone.ids == [2, 10, 11, 3] and alone.second == 4


def test_the_map_keeps_clusters_apart():
    rng = np.random.default_rng(0)
    table = rng.normal(0, 0.1, (40, 8))
    table[20:] += 5
    places = inside.tsne(table, 10)
    centre = places[:20].mean(0), places[20:].mean(0)
    spread = max(np.linalg.norm(places[:20] - centre[0], axis=1).max(),
                 np.linalg.norm(places[20:] - centre[1], axis=1).max())  # fmt: skip
    assert np.linalg.norm(centre[0] - centre[1]) > 2 * spread
    np.testing.assert_array_equal(places, inside.tsne(table, 10))


def test_vectors_and_cosines(mlm):
    few = inside.vectors(mlm, texts_of("the fox", "the fox", "hello"), print)
    assert few["x"] is None and any("at least 5 different texts" in note for note in few["notes"])
    assert few["cosines"][0][1] == pytest.approx(1, abs=1e-5)
    many = texts_of(*[f"{'hello ' * (i % 7 + 1)} {'fox ' * (i % 5)}" for i in range(250)])
    content = inside.vectors(mlm, many, print)
    assert len(content["x"]) == len(content["texts"]) == 200 and len(content["cosines"]) == 40
    assert content["notes"] == ["200 of 250 texts, evenly spread."]


def test_a_run_without_model_texts_or_figures_says_so(tmp_path):
    folder = classifier(tmp_path / "run")
    for name in ("checkpoints", "predictions"):
        (folder / name).rename(tmp_path / name)
    (folder / "finished.json").unlink()
    (folder / "metrics.jsonl").unlink()
    (folder / "validation.jsonl").unlink()
    data, weights = build.build([str(folder)], None)
    (run,) = data["runs"]
    assert weights == [""] and run["attention"] is run["vectors"] is run["examples"] is None
    assert run["state"] == "not finished: no figures yet, no checkpoint yet"
    assert set(run["missing"]) == {"texts", "model", "examples"}
    assert "validation.jsonl" in run["missing"]["texts"]
    assert "when it finishes" in run["missing"]["examples"]
    json.dumps(data, allow_nan=False)


def test_texts_of_the_command_line_are_asked_about(tmp_path):
    folder = classifier(tmp_path / "run")
    data, _ = build.build([str(folder)], ["the fox", "hello world"])
    (run,) = data["runs"]
    assert [row["text"] for row in run["asked"]] == ["the fox", "hello world"]
    assert {row["prediction"] for row in run["asked"]} <= set(LABELS)
    assert len(run["attention"]["texts"]) == 2 and run["missing"] == {}


@pytest.mark.parametrize("names", [["seed-1"], ["cells/L2_H128_A2", "cells/L4_H128_A2"]])
def test_a_folder_of_runs_names_them(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(UserError) as raised:
        gather.check_workdir(str(tmp_path))
    assert f"holds {len(names)} run" in str(raised.value)
    assert all(f"--workdir={tmp_path}/{name}" in str(raised.value) for name in names)


def test_config_of_another_version_is_read(tmp_path: Path):
    workdirs.write(str(tmp_path / "run"), published(("mlm",)))
    change_config(tmp_path / "run", data__not_a_key=1, seed=7)
    assert held_out.run_config(str(tmp_path / "run")).seed == 7
