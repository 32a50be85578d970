"""The model against stored outputs of transformers on PyTorch (tests/golden/make_reference.py).

Measure: max|difference| <= 1e-5 * max(1, max|reference|) for each tensor at real tokens, float32.
"""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden"))

import make_reference

from bertjax.interop.names import HUGGINGFACE
from bertjax.interop.published import assemble
from bertjax.model.bert import BertConfig, BertModel
from bertjax.model.heads import BertForPreTraining


@pytest.fixture(scope="module")
def golden():
    with np.load(make_reference.FILE) as file:
        return dict(file)


@pytest.fixture(scope="module")
def params():
    tree, coverage = assemble(
        make_reference.weights(), HUGGINGFACE, make_reference.SIZES, ("mlm", "nsp"), "golden"
    )
    assert not coverage.left_over and not coverage.new
    return tree


def close(ours, reference):
    difference = np.abs(np.asarray(ours) - reference).max()
    assert difference <= 1e-5 * max(1.0, np.abs(reference).max()), difference


def test_hidden_states_attentions_and_pooled_output(golden, params):
    given = {name: jnp.asarray(value, jnp.int32) for name, value in make_reference.inputs().items()}
    out = BertModel(BertConfig(**make_reference.SIZES)).apply(
        {"params": params["bert"]}, **given, output_hidden_states=True, output_attentions=True
    )
    real = make_reference.inputs()["attention_mask"].astype(bool)
    close(out.hidden_states[:, real], golden["hidden_states"][:, real])
    close(out.pooled[:, 0], golden["pooled"])
    # Queries at real tokens, all keys.
    ours = np.moveaxis(np.asarray(out.attentions), 2, 3)[:, real]
    close(ours, np.moveaxis(golden["attentions"], 2, 3)[:, real])


def test_pretraining_logits(golden, params):
    given = {name: jnp.asarray(value, jnp.int32) for name, value in make_reference.inputs().items()}
    model = BertForPreTraining(BertConfig(**make_reference.SIZES))
    mlm_logits, nsp_logits = model.apply({"params": params}, **given)
    real = given["attention_mask"].astype(bool)
    close(mlm_logits[real][:, : make_reference.SIZES["vocab_size"]], golden["mlm_logits"][real])
    close(nsp_logits[:, 0], golden["nsp_logits"])
    positions = jnp.array([[3, 11], [0, 7], [1, 1]])
    some, _ = model.apply({"params": params}, **given, masked_positions=positions)
    np.testing.assert_allclose(some, jnp.take_along_axis(mlm_logits, positions[..., None], 1),
                               atol=1e-5)  # fmt: skip
