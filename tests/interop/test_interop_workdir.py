"""Workdirs as checkpoints: any path into one, steps, labels, damage."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from interop_models import published, same_trees

from bertjax.errors import UserError
from bertjax.interop import read_checkpoint, write_huggingface
from bertjax.interop import workdir as workdirs
from bertjax.train.checkpoint import Checkpoints

HEADS = [("mlm", "nsp"), ("classifier",), ("tagger",), ("span",)]


@pytest.mark.parametrize("heads", HEADS, ids="+".join)
def test_every_head_to_a_workdir_and_back(tmp_path, heads) -> None:
    model = published(heads)
    workdirs.write(str(tmp_path / "run"), model)
    for given in ("run", "run/checkpoints", "run/checkpoints/0"):
        again = read_checkpoint(str(tmp_path / given))
        assert again.heads == heads and not again.settings  # of no training of ours
        assert same_trees(again.params, model.params)
        assert again.config == model.config and again.labels == model.labels
        assert again.tokenizer.vocab == model.tokenizer.vocab
        assert again.tokenizer.settings == model.tokenizer.settings
    write_huggingface(tmp_path / "out", again)
    assert same_trees(read_checkpoint(str(tmp_path / "out")).params, model.params)


def test_what_a_run_says_of_its_training_goes_along(tmp_path) -> None:
    model = published(("classifier",))
    workdirs.write(str(tmp_path / "one"), model)
    path = tmp_path / "one" / "config.json"
    content = json.loads(path.read_text())
    content["config"]["data"] |= {"seq_length": 9, "long_text": "tail"}
    content["artifacts"] = {"labels": list(model.labels), "vocab": model.tokenizer.fingerprint}
    path.write_text(json.dumps(content))
    run = read_checkpoint(str(tmp_path / "one"))
    assert run.settings["data"]["long_text"] == "tail"
    workdirs.write(str(tmp_path / "two"), run)
    again = read_checkpoint(str(tmp_path / "two"))
    assert again.settings == run.settings and again.settings["data"]["seq_length"] == 9


def test_a_model_shorter_than_the_default_config(tmp_path) -> None:
    model = published(("classifier",))
    assert model.config["max_position_embeddings"] < 128
    workdirs.write(str(tmp_path / "run"), model)
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["data"]["seq_length"] == model.config["max_position_embeddings"]


def test_another_vocabulary_than_that_of_the_training_is_refused(tmp_path) -> None:
    model = published(("classifier",))
    workdirs.write(str(tmp_path / "run"), model)
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    content["artifacts"] |= {"vocab": model.tokenizer.fingerprint}
    path.write_text(json.dumps(content))
    read_checkpoint(str(tmp_path / "run"))
    vocab = tmp_path / "run" / "vocab.txt"
    lines = vocab.read_text().split("\n")
    lines[7], lines[8] = lines[8], lines[7]
    vocab.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"vocabulary in .*run is not the one .*restore vocab\.txt"):
        read_checkpoint(str(tmp_path / "run"))


def test_a_tilde_is_the_home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = published(("mlm", "nsp"))
    workdirs.write(str(tmp_path / "run"), model)
    write_huggingface(tmp_path / "folder", model)
    for given in ("~/run", "~/run/checkpoints/0", "~/folder"):
        assert same_trees(read_checkpoint(given).params, model.params)


def run_with_steps(folder, metrics) -> None:
    """A workdir whose step i holds the parameters of seed i and an optimizer's state."""
    workdirs.write(str(folder), published(("classifier",)))
    config = json.loads((folder / "config.json").read_text())
    config["artifacts"]["best_metric"] = ["validation/accuracy", True]
    (folder / "config.json").write_text(json.dumps(config))
    checkpoints = Checkpoints(folder, keep=9)
    for step, value in metrics.items():
        params = published(("classifier",), seed=step).params
        state = {"step": np.int32(step), "params": params, "opt_state": {"mu": params}}
        checkpoints.save(step, state, {"validation/accuracy": value}, wait=True)
    checkpoints.close()


def test_the_best_step_else_the_one_asked_for(tmp_path) -> None:
    run_with_steps(tmp_path / "run", {1: 0.5, 2: 0.9, 3: 0.7})

    def seed_of(**options) -> int:
        found = read_checkpoint(str(tmp_path / "run"), **options).params
        return next(
            s for s in range(4) if same_trees(found, published(("classifier",), seed=s).params)
        )

    assert seed_of() == 2
    assert seed_of(step=3) == 3
    with pytest.raises(UserError, match="no step 7"):
        read_checkpoint(str(tmp_path / "run"), step=7)


def test_what_a_workdir_lacks_is_counted(tmp_path) -> None:
    model = published(("mlm",))
    del model.params["bert"]["pooler"]
    workdirs.write(str(tmp_path / "run"), dataclasses.replace(model, tokenizer=None))
    found = read_checkpoint(str(tmp_path / "run"))
    assert (found.coverage.loaded, found.coverage.expected) == (37, 39)
    assert found.coverage.missing == ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
    assert "it works on ids alone" in found.notes[-1]


def test_a_run_that_diverged_is_refused(tmp_path) -> None:
    model = published(("mlm",))
    model.params["mlm"]["dense"]["bias"][2] = np.nan
    workdirs.write(str(tmp_path / "run"), model)
    with pytest.raises(UserError, match="'mlm/dense/bias' holds NaN or infinity"):
        read_checkpoint(str(tmp_path / "run"))


def test_bad_workdirs(tmp_path) -> None:
    workdirs.write(str(tmp_path / "run"), published(("mlm", "nsp")))
    with pytest.raises(UserError, match="is not empty"):
        workdirs.write(str(tmp_path / "run"), published(("mlm", "nsp")))
    data = next((tmp_path / "run/checkpoints/0/d").iterdir())
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_checkpoint(str(tmp_path / "run"))
    (tmp_path / "run/config.json").unlink()
    with pytest.raises(UserError, match=r"has no config\.json beside its checkpoints"):
        read_checkpoint(str(tmp_path / "run/checkpoints/0"))


def test_a_step_means_nothing_elsewhere(tmp_path) -> None:
    write_huggingface(tmp_path / "model", published(()))
    with pytest.raises(UserError, match="step=3 means nothing there"):
        read_checkpoint(str(tmp_path / "model"), step=3)
