"""Hugging Face folders that are odd, damaged or of another model: the right thing or a sentence."""

from __future__ import annotations

import json
import pathlib
import time

import numpy as np
import pytest
from interop_models import VOCAB, published, same_trees, write_json
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError
from bertjax.interop import read_checkpoint, write_huggingface
from bertjax.interop.weights import INDEX, WEIGHTS

WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    write_huggingface(tmp_path / "m", published(("mlm", "nsp")))
    return tmp_path / "m"


def edit(path: pathlib.Path, **values) -> None:
    """Change values of a JSON file; None removes one."""
    config = json.loads(path.read_text()) | values
    write_json(path, {name: value for name, value in config.items() if value is not None})


def store(folder: pathlib.Path, weights: dict[str, np.ndarray], name: str = WEIGHTS) -> None:
    save_file(weights, folder / name, metadata={"format": "pt"})


@pytest.mark.parametrize("names", [("seed-0", "seed-1"), ("cells/A", "cells/B")])
def test_a_folder_of_several_runs_names_them(tmp_path, names):
    (tmp_path / ".lock").touch()
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        write_json(tmp_path / name / "config.json", {})
    with pytest.raises(UserError, match=f"several runs; name one: {', '.join(names)}"):
        read_checkpoint(str(tmp_path))


def test_a_run_that_has_saved_nothing_is_named(tmp_path):
    (tmp_path / ".lock").touch()
    with pytest.raises(UserError, match="saved no checkpoint"):
        read_checkpoint(str(tmp_path))


def grow(folder: pathlib.Path, rows: int) -> None:
    """Give the embedding `rows` rows more."""
    weights = load_file(folder / WEIGHTS)
    weights[WORDS] = np.pad(weights[WORDS], ((0, rows), (0, 0)))
    weights["cls.predictions.bias"] = np.pad(weights["cls.predictions.bias"], (0, rows))
    store(folder, weights)
    edit(folder / "config.json", vocab_size=len(VOCAB) + rows)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_layers=1000000000, but only 46 tensors"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'; it must be a number"),
        ({"layer_norm_eps": -1}, "layer_norm_eps is -1"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout is 1.5"),
        ({"initializer_range": "x"}, "initializer_range is 'x'"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ({"architectures": 5}, "architectures is 5, which is no list"),
        (
            {"architectures": ["RobertaForMaskedLM"], "model_type": None},
            "the architecture is RobertaForMaskedLM",
        ),
        ({"model_type": "distilbert"}, "model_type is 'distilbert'"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "is a BertJapaneseTokenizer"),
    ],
)
def test_a_config_of_another_model_or_none(folder, values, message) -> None:
    edit(folder / "config.json", **values)
    start = time.monotonic()
    with pytest.raises(UserError, match=message):
        read_checkpoint(str(folder))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id2label": {"0": "a", "2": "b", "5": "c"}}, "has the numbers 0, 2, 5, but .* 0 to 2"),
        ({"id2label": {"0": "a", "1": "a", "2": "c"}}, "gives the name 'a' to two classes"),
        ({"id2label": ["a", "b", "c"]}, "id2label is a list"),
        ({"id2label": None, "num_labels": 5}, "num_labels is 5, but the head has 3 outputs"),
        ({"problem_type": "regression"}, "regression with 3 outputs"),
    ],
)
def test_classes_that_the_head_has_not(tmp_path, values, message) -> None:
    write_huggingface(tmp_path / "m", published(("classifier",)))
    edit(tmp_path / "m" / "config.json", **values)
    with pytest.raises(UserError, match=message):
        read_checkpoint(str(tmp_path / "m"))


def test_every_head_of_pretraining_is_taken(folder) -> None:
    """bert-base-uncased says BertForMaskedLM and has the NSP head, too."""
    edit(folder / "config.json", architectures=["BertForMaskedLM"])
    found = read_checkpoint(str(folder))
    assert found.heads == ("mlm", "nsp") and not found.coverage.left_over


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: np.where(np.arange(len(a))[:, None] == 3, np.nan, a), "holds NaN"),
        (lambda a: a.astype(np.float64) * 1e300, "holds NaN or infinity"),
        (lambda a: (a * 100).astype(np.int8), "holds int8, not floating point"),
    ],
    ids=["nan", "overflow", "quantised"],
)
def test_tensors_that_are_no_weights(folder, change, message) -> None:
    weights = load_file(folder / WEIGHTS)
    store(folder, weights | {WORDS: change(weights[WORDS])})
    with pytest.raises(UserError, match=f"'{WORDS}' {message}"):
        read_checkpoint(str(folder))


def test_a_head_that_is_not_whole(folder) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["cls.predictions.transform.dense.bias"]
    store(folder, weights)
    with pytest.raises(UserError, match=r"the mlm head lacks cls\.predictions\.transform\.dense"):
        read_checkpoint(str(folder))


def test_shards_that_contradict_their_index(folder) -> None:
    weights = load_file(folder / WEIGHTS)
    names = sorted(weights)
    (folder / WEIGHTS).unlink()
    store(folder, {name: weights[name] for name in names[:20]}, "a.safetensors")
    store(folder, {name: weights[name] for name in names[19:]}, "b.safetensors")
    shards = {n: "a.safetensors" if i < 20 else "b.safetensors" for i, n in enumerate(names)}
    write_json(folder / INDEX, {"weight_map": shards})
    with pytest.raises(UserError, match=f"stores '{names[19]}', which another shard stores"):
        read_checkpoint(str(folder))
    store(folder, {name: weights[name] for name in names[20:]}, "b.safetensors")
    assert same_trees(read_checkpoint(str(folder)).params, published(("mlm", "nsp")).params)
    write_json(folder / INDEX, {"weight_map": shards | {"extra": "a.safetensors"}})
    with pytest.raises(UserError, match="names the tensor 'extra', which no shard holds"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tf_model.h5", "TensorFlow 2 weights"),
        ("flax_model.msgpack", "Flax weights"),
        ("weights.safetensors", "another name"),
        ("pytorch_model-00001-of-00002.bin", r"is a pickle.*pytorch_model-00001-of-00002\.bin'\]"),
    ],
)
def test_weights_of_another_kind_are_named(folder, name, message) -> None:
    (folder / WEIGHTS).rename(folder / name)
    with pytest.raises(UserError, match=message):
        read_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "path is empty"),
        (".", "holds no weights"),
        ("~nobody-of-this-name/x", "cannot be opened"),
        ("a" * 5000, "cannot be opened"),
        ("nowhere://a/b", "cannot be opened"),
        ("{folder}/vocab.txt", "is a file that is no checkpoint"),
    ],
)
def test_paths_that_are_no_checkpoint(folder, monkeypatch, path, message) -> None:
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    with pytest.raises(UserError, match=message):
        read_checkpoint(path.format(folder=folder))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_lower_case": "false"}, "do_lower_case is 'false'; it must be true or false"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize=false"),
        ({"tokenizer_class": "RobertaTokenizer"}, "is a RobertaTokenizer"),
        ({"mask_token": "<mask>"}, "mask_token is '<mask>'"),
        ({"max_chars_per_word": "x"}, "max_chars_per_word must be .* not 'x'"),
        ({"max_chars_per_word": "100"}, "max_chars_per_word must be .* not '100'"),
    ],
)
def test_tokenizer_settings_that_cannot_be_followed(folder, values, message) -> None:
    edit(folder / "tokenizer_config.json", **values)
    with pytest.raises(UserError, match=message):
        read_checkpoint(str(folder))


def test_words_found_by_other_rules(folder) -> None:
    edit(folder / "tokenizer.json", pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(UserError, match="finds words by Whitespace, not by BertPreTokenizer"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("vocab", [{}, {"[UNK]": 10**12}, {"[UNK]": -1}, [1]])
def test_a_hostile_tokenizer_json(folder, vocab) -> None:
    (folder / "vocab.txt").unlink()
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab}
    write_json(
        folder / "tokenizer.json", {"model": model, "normalizer": {"type": "BertNormalizer"}}
    )
    with pytest.raises(UserError, match="tokenizer"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("kind", ["added_tokens.json", "tokenizer.json"])
def test_added_tokens_keep_their_rows(folder, kind) -> None:
    grow(folder, 2)
    if kind == "tokenizer.json":
        content = json.loads((folder / kind).read_text())
        content["added_tokens"] += [{"id": 32, "content": "zebra"}, {"id": 33, "content": "<E>"}]
        write_json(folder / kind, content)
    else:
        (folder / "tokenizer.json").unlink()
        write_json(folder / kind, {"<E>": 33, "zebra": 32})
    found = read_checkpoint(str(folder))
    assert found.tokenizer.encode("a zebra").tokens == ["a", "zebra"]
    assert found.tokenizer.vocab[33] == "<E>"
    assert [note for note in found.notes if "the added token '<E>'" in note]


def test_what_is_not_followed_is_said(folder) -> None:
    edit(folder / "tokenizer_config.json", never_split=["hello world"])
    (note,) = read_checkpoint(str(folder)).notes
    assert note.startswith("never_split")
    (folder / "tokenizer.json").unlink()
    vocab = (folder / "vocab.txt").read_text(encoding="utf-8").replace("hello", "Hello")
    (folder / "vocab.txt").write_text(vocab, encoding="utf-8")
    edit(folder / "tokenizer_config.json", never_split=None)
    (note,) = read_checkpoint(str(folder)).notes
    assert "1 tokens of its vocabulary have capitals" in note
