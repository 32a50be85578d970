"""Google's TF1 checkpoints: the table format, checksums, names, slots, bad input."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
from interop_models import (
    VOCAB,
    google_config,
    google_weights,
    published,
    same_trees,
    write_bundle,
    write_json,
    write_release,
)

from bertjax.errors import UserError
from bertjax.interop import read_checkpoint, write_huggingface
from bertjax.interop.crc32c import crc32c
from bertjax.interop.names import GOOGLE, export_tensor, get, tensors_of
from bertjax.interop.tensor_bundle import Bundle


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A Google release with optimizer slots."""
    write_release(tmp_path / "uncased_L-2_H-8_A-2", published(("mlm", "nsp")))
    return tmp_path / "uncased_L-2_H-8_A-2"


@pytest.mark.parametrize(
    ("data", "value"),
    [  # RFC 3720, appendix B.4, and the customary check value
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_crc32c_of_known_strings(data: bytes, value: int) -> None:
    assert crc32c(data) == value


def test_crc32c_in_lanes_equals_the_plain_loop() -> None:
    rng = np.random.default_rng(0)
    table = [0] * 256
    for i in range(256):
        register = i
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
        table[i] = register
    for size in (1, 511, 512, 513, 1025, 4097, 70_001):
        data, register = rng.bytes(size), 0xFFFFFFFF
        for byte in data:
            register = table[(register ^ byte) & 0xFF] ^ register >> 8
        assert crc32c(data) == register ^ 0xFFFFFFFF, size


@pytest.mark.parametrize(
    "given",
    ["", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"],
)
def test_every_weight_lands_and_slots_are_ignored(folder, given) -> None:
    expected = published(("mlm", "nsp"))
    model = read_checkpoint(str(folder / given) if given else str(folder))
    assert same_trees(model.params, expected.params)
    assert model.heads == ("mlm", "nsp")
    assert model.coverage.left_over == () and model.coverage.missing == ()
    assert model.coverage.loaded == model.coverage.expected == 39
    assert model.config == {**expected.config, "layer_norm_eps": 1e-12}
    assert "92 optimizer slots and 1 counters were ignored" in model.notes
    assert model.tokenizer.vocab == VOCAB


def test_output_layers_are_stored_transposed(folder) -> None:
    bundle = Bundle(folder / "bert_model.ckpt")
    params = read_checkpoint(str(folder)).params
    weights = bundle.read("cls/seq_relationship/output_weights")
    assert weights.shape == (2, 8)
    np.testing.assert_array_equal(params["nsp"]["dense"]["kernel"], weights.T)
    query = bundle.read("bert/encoder/layer_1/attention/self/query/kernel")
    stored = params["bert"]["encoder"]["attention"]["query"]["kernel"][1]
    np.testing.assert_array_equal(stored, query)


@pytest.mark.parametrize("head", ["classifier", "span"])
def test_heads_of_googles_fine_tuning_scripts(tmp_path, head) -> None:
    model = published((head,))
    write_bundle(tmp_path / "model.ckpt-100", google_weights(model))
    write_json(tmp_path / "bert_config.json", google_config())
    read = read_checkpoint(str(tmp_path / "model.ckpt-100"))
    assert same_trees(read.params, model.params)
    assert read.tokenizer is None and any("no vocab.txt" in note for note in read.notes)


def test_the_newest_of_several_checkpoints_is_named_by_the_folder(folder) -> None:
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(folder / f"bert_model.ckpt{suffix}", folder / f"model.ckpt-9{suffix}")
    with pytest.raises(UserError, match=r"several checkpoints \(bert_model.ckpt, model.ckpt-9\)"):
        read_checkpoint(str(folder))
    (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-9"\n')
    assert read_checkpoint(str(folder)).coverage.loaded == 39


def test_export_to_huggingface_has_the_same_parameters(folder, tmp_path) -> None:
    model = read_checkpoint(str(folder))
    write_huggingface(tmp_path / "out", model)
    assert same_trees(model.params, read_checkpoint(str(tmp_path / "out")).params)


def test_a_real_checkpoint_loads_whole(real_data) -> None:
    model = read_checkpoint(str(real_data / "models" / "google_tf1_toy"))
    assert model.coverage.left_over == () and model.coverage.missing == ()
    assert str(model.coverage).startswith("39 of 39 encoder tensors loaded and the heads mlm, nsp")
    raw = Bundle(real_data / "models" / "google_tf1_toy" / "bert_model.ckpt")
    for tensor in tensors_of(("mlm", "nsp")):
        array = get(model.params, tensor.path)
        parts = export_tensor(tensor, array, GOOGLE, model.config["vocab_size"])
        for name, part in parts.items():
            assert part.tobytes() == raw.read(name).tobytes(), name


# --- bad input ----------------------------------------------------------------------------------


def _flip(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("at", [0, 500, -60, -3])
def test_a_flipped_bit_in_the_index_is_noticed(folder, at) -> None:
    _flip(folder / "bert_model.ckpt.index", at)
    with pytest.raises(UserError, match=r"\.index is not a sound TensorFlow checkpoint index"):
        read_checkpoint(str(folder))


def test_a_flipped_bit_in_the_data_is_noticed(folder) -> None:
    _flip(folder / "bert_model.ckpt.data-00000-of-00001", 3)
    with pytest.raises(UserError, match=r"is damaged at tensor 'bert/embeddings/LayerNorm/beta'"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("keep", [0, 10, 47, 48, 300])
def test_a_truncated_index_is_noticed(folder, keep) -> None:
    path = folder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="is not a sound TensorFlow checkpoint index"):
        read_checkpoint(str(folder))


def test_missing_or_short_data(folder) -> None:
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-200])  # the last ones are slots
    with pytest.raises(UserError, match="checksum or length"):
        read_checkpoint(str(folder))
    path.unlink()
    with pytest.raises(UserError, match="data-00000-of-00001 cannot be read: No such file"):
        read_checkpoint(str(folder))


def test_a_tensorflow_2_checkpoint_is_refused_by_name(folder) -> None:
    graph = {"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1, np.float32)}
    write_bundle(folder / "bert_model.ckpt", graph)
    with pytest.raises(UserError, match="is a TensorFlow 2 object checkpoint"):
        read_checkpoint(str(folder))


def test_a_prefix_before_every_name_matches_nothing(folder) -> None:
    weights = google_weights(published(("mlm",)))
    write_bundle(folder / "bert_model.ckpt", {f"model/{n}": a for n, a in weights.items()})
    with pytest.raises(UserError, match="0 of 39 encoder tensors matched; its names begin with"):
        read_checkpoint(str(folder))


def test_a_config_that_contradicts_the_tensors(folder) -> None:
    config = json.loads((folder / "bert_config.json").read_text())
    write_json(folder / "bert_config.json", {**config, "hidden_size": 16})
    with pytest.raises(UserError, match=r"hidden_size=16, but tensor .* \(32, 8\)"):
        read_checkpoint(str(folder))
    (folder / "bert_config.json").unlink()
    with pytest.raises(UserError, match=r"bert_config\.json cannot be read"):
        read_checkpoint(str(folder))
