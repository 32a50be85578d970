"""Attention and hidden states against the plain forward pass, transformers and BertViz."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import api, inference
from bertjax.errors import UserError
from bertjax.model.bert import BertModel

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
from interop_models import CONFIG, published

TEXTS = ["hello world", "the quick brown fox jumps over the lazy dog .", "京"]


@pytest.fixture(scope="module")
def bert() -> api.Bert:
    return api.prepare(published(("mlm", "nsp")))


def test_shapes_tokens_and_filling(bert):
    inside = bert.attentions(TEXTS)
    assert len(inside.attentions) == CONFIG["num_layers"]
    assert len(inside.hidden_states) == CONFIG["num_layers"] + 1
    assert all(x.shape == (3, CONFIG["num_heads"], 12, 12) for x in inside.attentions)
    assert all(x.shape == (3, 12, CONFIG["hidden_size"]) for x in inside.hidden_states)
    assert inside.tokens[2] == ["[CLS]", "京", "[SEP]"] and inside.second == [None] * 3
    for number, tokens in enumerate(inside.tokens):
        size = len(tokens)
        for weights in inside.attentions:
            np.testing.assert_allclose(weights[number, :, :size].sum(-1), 1, atol=1e-5)
            assert not weights[number, :, size:].any() and not weights[number, :, :, size:].any()
        one = inside.text(number)
        assert one.attentions[0].shape == (1, CONFIG["num_heads"], size, size)
        assert one.hidden_states[0].shape == (1, size, CONFIG["hidden_size"])
        assert one.tokens == [tokens]


def test_a_text_does_not_depend_on_its_neighbours(bert):
    together = bert.attentions(TEXTS).text(0)
    alone = bert.attentions(TEXTS[:1])
    for a, b in zip(together.attentions, alone.attentions, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert alone.attentions[0].shape[-1] == len(alone.tokens[0]) == 4


def test_hidden_states_are_those_of_the_ordinary_and_the_fused_path(bert):
    inside = bert.attentions(["hello world"], ["the quick fox ?"])
    assert inside.second == [4]
    ids = np.array([[bert.tokenizer.vocab.index(t) for t in inside.tokens[0]]])
    types = (np.arange(ids.shape[1]) >= 4).astype(np.int32)[None]
    mask = np.ones_like(ids)

    def fused(query, key, value, mask):
        return jax.nn.dot_product_attention(query, key, value, mask=(mask > 0)[:, None, None])

    for attention_fn in (None, fused):
        model = BertModel(bert.config, attention_fn)
        with jax.default_matmul_precision("highest"):
            output = model.apply({"params": bert.encoder_params}, ids, types, mask)
        np.testing.assert_allclose(inside.hidden_states[-1], output.sequence, atol=1e-5)


def test_a_special_token_in_a_text_is_seen(bert):
    assert bert.attentions(["the [MASK] fox"]).tokens[0][2] == "[MASK]"


@pytest.mark.parametrize(
    ("texts", "pairs", "message"),
    [
        ([], None, "no text"),
        (["  "], None, "text 1 is empty"),
        (["a"], ["b", "c"], "1 texts but 2 second texts"),
        ("a", None, "a list of texts"),
        (["a", "a b c " * 8], None, "text 2 has 26 tokens .* more than the model's 24"),
    ],
)
def test_bad_input_is_one_sentence(bert, texts, pairs, message):
    with pytest.raises(UserError, match=message):
        bert.attentions(texts, pairs)


def test_half_precision_comes_as_float32(bert):
    half = dataclasses.replace(bert, config=dataclasses.replace(bert.config, dtype="bfloat16"))
    inside = inference.attentions(half, ["hello world"])
    assert inside.attentions[0].dtype == inside.hidden_states[0].dtype == jnp.float32


@pytest.fixture(scope="module")
def minilm() -> str:
    folder = Path(os.environ.get("BERTJAX_WEIGHTS", "")) / "minilm"
    if not os.environ.get("BERTJAX_WEIGHTS") or not folder.is_dir():
        pytest.skip("BERTJAX_WEIGHTS names no folder with the published weights minilm")
    return str(folder)


PAIR = ("The animal didn't cross the street.", "It was too tired, wasn't it?")


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())


@pytest.mark.long
@pytest.mark.parity
def test_published_weights_give_what_transformers_gives(minilm):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    tokenizer = transformers.BertTokenizer.from_pretrained(minilm)
    bert = api.load(minilm)
    for texts, pairs in ((list(PAIR), None), (list(PAIR[:1]), list(PAIR[1:]))):
        inside = bert.attentions(texts, pairs)
        for number, text in enumerate(texts):
            inputs = tokenizer(text, pairs and pairs[number], return_tensors="pt")
            with torch.no_grad():
                output = theirs(**inputs, output_attentions=True, output_hidden_states=True)
            one = inside.text(number)
            assert one.tokens[0] == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
            assert len(one.attentions) == len(output.attentions) == 6
            for a, b in zip(one.attentions, output.attentions, strict=True):
                close(a, b.numpy())
            for a, b in zip(one.hidden_states, output.hidden_states, strict=True):
                close(a, b.numpy())


def test_bertviz_takes_them(bert):
    torch = pytest.importorskip("torch")
    bertviz = pytest.importorskip("bertviz")
    one = bert.attentions(["hello world"], ["the quick fox"]).text(0)
    attention = [torch.from_numpy(weights) for weights in one.attentions]
    for view in (bertviz.head_view, bertviz.model_view):
        page = view(attention, one.tokens[0], one.second[0], html_action="return")
        assert "quick" in page.data
