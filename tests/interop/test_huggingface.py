"""Hugging Face folders: every quirk of stored names, bit-exact round trips, bad input."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import pickle
import re
import shlex
import struct
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from interop_models import VOCAB, published, same_trees, write_json
from safetensors.numpy import load_file, save_file

from bertjax.errors import UserError
from bertjax.interop import read_checkpoint, workdir, write_huggingface
from bertjax.interop.huggingface import read

ALL_HEADS = [(), ("mlm", "nsp"), ("mlm",), ("nsp",), ("classifier",), ("tagger",), ("span",)]
WEIGHTS = "model.safetensors"


@pytest.fixture
def pretrained(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a small pretraining model."""
    write_huggingface(tmp_path / "model", published(("mlm", "nsp")))
    return tmp_path / "model"


def rewrite(folder: pathlib.Path, change) -> None:
    """Replace the weights by `change(weights)`."""
    weights = load_file(folder / WEIGHTS)
    save_file(change(weights), folder / WEIGHTS)


def edit_config(folder: pathlib.Path, **values) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, **values})


@pytest.mark.parametrize("heads", ALL_HEADS, ids=lambda heads: "+".join(heads) or "none")
def test_export_then_import_keeps_every_bit(tmp_path: pathlib.Path, heads) -> None:
    model = published(heads)
    write_huggingface(tmp_path / "model", model)
    again = read_checkpoint(str(tmp_path / "model"))
    assert same_trees(model.params, again.params)
    assert again.config == model.config
    assert again.heads == heads
    assert again.labels == model.labels
    assert again.tokenizer.vocab == VOCAB
    assert again.tokenizer.settings == model.tokenizer.settings
    assert again.coverage.checksum == model.coverage.checksum
    assert again.coverage.left_over == ()


def test_export_cuts_the_padded_vocabulary_and_shapes_are_published(pretrained) -> None:
    weights = load_file(pretrained / WEIGHTS)
    assert weights["bert.embeddings.word_embeddings.weight"].shape == (len(VOCAB), 8)
    assert weights["cls.predictions.bias"].shape == (len(VOCAB),)
    assert weights["bert.encoder.layer.1.intermediate.dense.weight"].shape == (16, 8)
    assert weights["cls.seq_relationship.weight"].shape == (2, 8)
    config = json.loads((pretrained / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["layer_norm_eps"] == 1e-12 and config["tie_word_embeddings"] is True
    tokenizer = json.loads((pretrained / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == config["max_position_embeddings"] == 24
    modes = {path.stat().st_mode for path in pretrained.iterdir()}
    assert len(modes) == 1  # who may read one file may read all
    with (pretrained / WEIGHTS).open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        assert json.loads(file.read(size))["__metadata__"] == {"format": "pt"}


def test_import_pads_the_vocabulary_with_zeros(pretrained) -> None:
    table = read(str(pretrained)).params["bert"]["embeddings"]["word_embeddings"]["embedding"]
    assert table.shape == (128, 8)
    assert not table[len(VOCAB) :].any() and table[: len(VOCAB)].any(axis=1).all()


def _without_prefix(w):
    return {n.removeprefix("bert."): a for n, a in w.items()}


def _gamma_beta(w):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return {re.sub("LayerNorm.*", lambda m: old[m[0]], n): a for n, a in w.items()}


def _position_ids(w):
    return w | {"bert.embeddings.position_ids": np.arange(24)[None]}


def _token_type_ids(w):
    return w | {"bert.embeddings.token_type_ids": np.zeros((1, 24), np.int64)}


def _duplicate_decoder(w):
    return w | {
        "cls.predictions.decoder.weight": w["bert.embeddings.word_embeddings.weight"],
        "cls.predictions.decoder.bias": w["cls.predictions.bias"],
    }


def _decoder_bias_alone(w):
    renamed = dict(w)
    renamed["cls.predictions.decoder.bias"] = renamed.pop("cls.predictions.bias")
    return renamed


QUIRKS = [
    _without_prefix,
    _gamma_beta,
    _position_ids,
    _token_type_ids,
    _duplicate_decoder,
    _decoder_bias_alone,
    dict,
]


@pytest.mark.parametrize("quirk", QUIRKS)
def test_quirks_of_stored_names_import_to_equal_parameters(pretrained, quirk) -> None:
    before = read(str(pretrained))
    rewrite(pretrained, quirk)
    after = read(str(pretrained))
    assert same_trees(before.params, after.params)
    assert after.coverage.left_over == ()
    assert after.coverage.loaded == after.coverage.expected == 5 + 16 * 2 + 2


def test_absent_pooler_and_nsp_head_are_listed(pretrained) -> None:
    rewrite(
        pretrained,
        lambda w: {n: a for n, a in w.items() if "pooler" not in n and "seq_rel" not in n},
    )
    model = read(str(pretrained))
    assert model.heads == ("mlm",)
    assert model.coverage.missing == ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
    assert "37 of 39 encoder tensors loaded and the heads mlm" in str(model.coverage)


def test_left_over_names_are_listed(pretrained) -> None:
    rewrite(pretrained, lambda w: w | {"adapter.weight": np.ones(3, np.float32)})
    model = read(str(pretrained))
    assert model.coverage.left_over == ("adapter.weight",)
    assert "left over: adapter.weight," in str(model.coverage)


def test_an_untied_decoder_leaves_its_head_behind_and_says_so(pretrained) -> None:
    rewrite(
        pretrained,
        lambda w: (
            w | {"cls.predictions.decoder.weight": w["bert.embeddings.word_embeddings.weight"] + 1}
        ),
    )
    model = read(str(pretrained))
    assert model.heads == ("nsp",)
    assert any("decoder.weight differs" in note for note in model.notes)
    assert len(model.coverage.left_over) == 6


def test_sharded_weights_and_their_index(pretrained) -> None:
    before = read(str(pretrained))
    weights = load_file(pretrained / WEIGHTS)
    names = sorted(weights)
    shards = {f"model-{i:05d}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, part in shards.items():
        save_file({n: weights[n] for n in part}, pretrained / file)
    (pretrained / WEIGHTS).unlink()
    index = {"weight_map": {n: file for file, part in shards.items() for n in part}}
    write_json(pretrained / f"{WEIGHTS}.index.json", index)
    assert same_trees(before.params, read_checkpoint(str(pretrained)).params)
    (pretrained / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match="names the shard 'model-00001-of-00002"):
        read(str(pretrained))
    write_json(pretrained / f"{WEIGHTS}.index.json", {"weight_map": {"a": "../other"}})
    with pytest.raises(UserError, match=r"names the shard '\.\./other'"):
        read(str(pretrained))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_becomes_float32_exactly(pretrained, dtype) -> None:
    rewrite(pretrained, lambda w: {n: a.astype(dtype) for n, a in w.items()})
    stored = load_file(pretrained / WEIGHTS)["bert.pooler.dense.weight"]
    kernel = read(str(pretrained)).params["bert"]["pooler"]["dense"]["kernel"]
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, stored.astype(np.float32).T)


def test_tokenizer_json_alone_gives_the_vocabulary_and_casing(tmp_path) -> None:
    model = published(())
    write_huggingface(tmp_path / "model", model)
    (tmp_path / "model" / "vocab.txt").unlink()
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    tokenizer = read(str(tmp_path / "model")).tokenizer
    assert tokenizer.vocab == VOCAB
    assert tokenizer.settings == model.tokenizer.settings


def test_casing_travels_with_the_folder(pretrained) -> None:
    config = json.loads((pretrained / "tokenizer_config.json").read_text())
    write_json(pretrained / "tokenizer_config.json", {**config, "do_lower_case": False})
    tokenizer = read(str(pretrained)).tokenizer
    assert tokenizer.settings["do_lower_case"] is False
    assert tokenizer.encode("The the").tokens == ["[UNK]", "the"]


def test_regression_head(tmp_path) -> None:
    write_huggingface(tmp_path / "m", published(("classifier",)))

    def one_output(w):
        return w | {
            "classifier.weight": w["classifier.weight"][:1],
            "classifier.bias": w["classifier.bias"][:1],
        }

    rewrite(tmp_path / "m", one_output)
    for kind in ("regression", None):  # transformers takes one output for a regression
        edit_config(tmp_path / "m", id2label={"0": "LABEL_0"}, problem_type=kind)
        assert read(str(tmp_path / "m")).regression
    with pytest.raises(UserError, match="problem_type is 'ranking', not one of single_label"):
        edit_config(tmp_path / "m", problem_type="ranking")
        read(str(tmp_path / "m"))


@pytest.mark.parametrize("kind", ["single_label", "multi_label", "regression"])
def test_what_a_classifier_says_is_kept(tmp_path, kind) -> None:
    model = dataclasses.replace(published(("classifier",)), problem_type=kind)
    if kind == "regression":  # of one number
        dense = {k: v[..., :1] for k, v in model.params["classifier"]["dense"].items()}
        params = {**model.params, "classifier": {"dense": dense}}
        model = dataclasses.replace(model, params=params, labels=model.labels[:1])
    write_huggingface(tmp_path / "m", model)
    workdir.write(str(tmp_path / "w"), read(str(tmp_path / "m")))
    assert read_checkpoint(str(tmp_path / "w")).problem_type == kind


# --- bad input: one clear sentence each ---------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 16}, r"hidden_size=16, but tensor .* \(32, 8\)"),
        ({"vocab_size": 30}, r"vocab_size=30, but tensor .* \(32, 8\)"),
        ({"intermediate_size": 17}, r"intermediate_size=17, but tensor"),
        ({"max_position_embeddings": 512}, r"max_position_embeddings=512, but tensor .*\(24, 8\)"),
        ({"type_vocab_size": 1}, r"type_vocab_size=1, but tensor .*\(2, 8\)"),
        ({"num_hidden_layers": 1}, r"num_layers=1, but the weights hold more"),
        ({"num_hidden_layers": 4}, r"39 of 71 .*missing.*layer\.2.*num_layers=4"),
        ({"num_attention_heads": 3}, "hidden_size=8 is not divisible by num_heads=3"),
        ({"hidden_size": "8"}, "hidden_size is '8', which is not a whole number"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish', which is not one of gelu"),
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_a_config_that_contradicts_the_weights(pretrained, values, message) -> None:
    edit_config(pretrained, **values)
    with pytest.raises(UserError, match=message):
        read(str(pretrained))


def test_labels_that_contradict_the_head(tmp_path) -> None:
    write_huggingface(tmp_path / "m", published(("classifier",)))
    edit_config(tmp_path / "m", id2label={"0": "a", "1": "b"})
    with pytest.raises(UserError, match="id2label names 2 classes, but the head has 3 outputs"):
        read(str(tmp_path / "m"))


def test_half_an_encoder_is_an_error(pretrained) -> None:
    rewrite(pretrained, lambda w: {n: a for n, a in w.items() if ".layer.1." not in n})
    with pytest.raises(UserError, match=r"only 23 of 39 encoder tensors are there, missing"):
        read(str(pretrained))


def test_nothing_matched_is_an_error(pretrained) -> None:
    rewrite(pretrained, lambda w: {f"model/{n}": a for n, a in w.items()})
    with pytest.raises(UserError, match="0 of 39 encoder tensors matched"):
        read(str(pretrained))


def _truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _cut_header(data: bytes) -> bytes:
    return data[:20]


def _huge_header(data: bytes) -> bytes:
    return struct.pack("<Q", 1 << 62) + data[8:]


def _overlapping(data: bytes) -> bytes:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _outside(data: bytes) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _cut_header, _huge_header, _overlapping, _outside, lambda data: b""],
)
def test_a_damaged_or_hostile_file_is_refused_quickly(pretrained, damage) -> None:
    path = pretrained / WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    start = time.monotonic()
    with pytest.raises(UserError, match="is not a sound safetensors file"):
        read(str(pretrained))
    assert time.monotonic() - start < 1


def test_a_vocabulary_of_another_length_is_refused(pretrained) -> None:
    (pretrained / "tokenizer.json").unlink()
    (pretrained / "vocab.txt").write_text("\n".join(VOCAB[:-3]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="has 29 tokens but the embedding has 32 rows"):
        read(str(pretrained))


def pad_rows(folder, rows: int) -> None:
    """Rows of ones below the embedding and the MLM bias, as a resized model has."""
    arrays = load_file(folder / WEIGHTS)
    for name, array in arrays.items():
        if name.endswith(("word_embeddings.weight", "predictions.bias")):
            more = np.ones((rows - len(array), *array.shape[1:]), array.dtype)
            arrays[name] = np.concatenate([array, more])
    save_file(arrays, folder / WEIGHTS)
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), "vocab_size": rows})


@pytest.mark.parametrize("rows, sure", [(64, True), (64, False), (40, True), (192, True)])
def test_a_padded_embedding_is_cut_to_its_tokens(pretrained, rows, sure) -> None:
    """To a multiple of 64; and if only vocab.txt is there, it may have lost its lines."""
    before = read(str(pretrained))
    pad_rows(pretrained, rows)
    if not sure:
        (pretrained / "tokenizer.json").unlink()
    if rows != 64 or not sure:
        with pytest.raises(UserError, match=f"has 32 tokens but the embedding has {rows} rows"):
            read(str(pretrained))
        return
    after = read(str(pretrained))
    assert after.config == before.config and same_trees(after.params, before.params)
    assert any("its last 32 rows" in note for note in after.notes)
    assert after.coverage.checksum == before.coverage.checksum


def test_labels_that_contradict_each_other_are_said(tmp_path) -> None:
    write_huggingface(tmp_path / "m", published(("classifier",)))
    names = read(str(tmp_path / "m")).labels
    assert not any("label2id" in note for note in read(str(tmp_path / "m")).notes)
    edit_config(tmp_path / "m", label2id={name: len(names) - 1 - i for i, name in enumerate(names)})
    found = read(str(tmp_path / "m"))
    assert found.labels == names and "label2id contradicts id2label" in found.notes[-1]


def test_vocabularies_that_contradict_each_other_are_refused(pretrained) -> None:
    lines = (pretrained / "vocab.txt").read_text(encoding="utf-8").split("\n")
    lines[7], lines[8] = lines[8], lines[7]
    (pretrained / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        UserError, match=r"token 7 is '.*' in vocab\.txt and '.*' in tokenizer\.json"
    ):
        read(str(pretrained))


def test_no_weights_no_config_no_folder(tmp_path, pretrained) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no weights"):
        read_checkpoint(str(tmp_path / "empty"))
    (pretrained / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json cannot be read"):
        read_checkpoint(str(pretrained))
    (pretrained / "config.json").write_text("{")
    with pytest.raises(UserError, match="it is not JSON"):
        read_checkpoint(str(pretrained))
    with pytest.raises(UserError, match="does not exist"):
        read_checkpoint(str(tmp_path / "nowhere"))


def test_a_pickle_is_never_opened(tmp_path) -> None:
    class Boom:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Boom()))
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    for given in (path, tmp_path):
        with pytest.raises(UserError, match=r"is a pickle.*weights_only=True.*save|is a pickle"):
            read_checkpoint(str(given))
    assert not (tmp_path / "executed").exists()


def test_the_conversion_offered_for_a_pickle_works(tmp_path, pretrained) -> None:
    torch = pytest.importorskip("torch")
    before = read(str(pretrained))
    weights = {n: torch.from_numpy(a) for n, a in load_file(pretrained / WEIGHTS).items()}
    torch.save(weights, pretrained / "pytorch_model.bin")
    (pretrained / WEIGHTS).unlink()
    with pytest.raises(UserError) as caught:
        read_checkpoint(str(pretrained))
    command = shlex.split(re.search(r"python -c .*\"$", str(caught.value))[0])
    subprocess.run([sys.executable, *command[1:]], check=True)
    assert same_trees(before.params, read_checkpoint(str(pretrained)).params)


def test_a_hub_name_without_a_network(monkeypatch, tmp_path) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(UserError, match="'nobody/no-such-model' is no path here"):
        read_checkpoint("nobody/no-such-model")
    assert time.monotonic() - start < 5


def test_a_hub_name_in_the_cache_is_read_offline(monkeypatch, tmp_path, pretrained) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--someone--small-bert"
    (repository / "refs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    pretrained.rename(repository / "snapshots" / ("a" * 40))
    assert read_checkpoint("someone/small-bert").heads == ("mlm", "nsp")


def test_an_export_does_not_overwrite(pretrained) -> None:
    for other in ("gs://bucket/model", "s3://bucket/model"):
        with pytest.raises(UserError, match="no folder of this machine"):
            write_huggingface(other, published(("mlm", "nsp")))
    with pytest.raises(UserError, match="is not empty"):
        write_huggingface(pretrained, published(()))
    with pytest.raises(UserError, match="cannot be written"):
        write_huggingface(pretrained / "vocab.txt" / "below", published(()))


def test_heads_that_no_published_model_has(tmp_path) -> None:
    with pytest.raises(UserError, match="has the heads mlm, classifier together"):
        write_huggingface(tmp_path / "m", published(("mlm", "classifier")))
