"""The count of FLOPs: by hand, against XLA's own count, and what frozen layers save."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from bertjax.model import flops
from bertjax.model.bert import BertConfig
from bertjax.model.heads import BertForPreTraining


def test_layer_by_hand():
    config = BertConfig(hidden_size=4, num_heads=2, intermediate_size=8, vocab_size=10)
    # 3 tokens: q, k, v, output 4 * 3*4*4, feed-forward 2 * 3*4*8, scores and mean 2 * 3*3*4.
    assert flops.layer_flops(config, 3) == 2 * (4 * 48 + 2 * 96 + 2 * 36)
    # 2 places: transform 2*4*4, decoder 2*4*10.
    assert flops.masked_lm_flops(config, 2) == 2 * (32 + 80)
    assert flops.pooler_flops(config) == 2 * 16


def test_published_figure_of_base():
    # A sequence of 128 tokens with 20 predictions, forward and backward, as in configs/base.py.
    total = flops.train_flops(BertConfig(), 1, 128, predictions=20)
    layers = 12 * 2 * 128 * (12 * 768**2 + 2 * 128 * 768)
    heads = 2 * 20 * 768 * (768 + 30522) + 2 * 768**2
    assert total == 3 * (layers + heads)
    assert total == pytest.approx(69.9e9, rel=1e-3)


def test_frozen_layers_have_no_backward_pass():
    config = BertConfig()
    frozen = dataclasses.replace(config, frozen_layers=5)
    saved = flops.train_flops(config, 2, 64) - flops.train_flops(frozen, 2, 64)
    assert saved == 2 * flops.BACKWARD * 5 * flops.layer_flops(config, 64)


def test_xla_counts_as_much():
    """One wide layer, so that nothing hides in a loop; elementwise work is what it counts more."""
    rows, length, places = 4, 64, 8
    config = BertConfig(num_layers=1, vocab_size=2000, max_position_embeddings=64)
    model = BertForPreTraining(config)
    ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    at = jax.ShapeDtypeStruct((rows, places), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), ids)["params"])

    def loss(params, ids, at):
        mlm, nsp = model.apply({"params": params}, ids, masked_positions=at)
        return jnp.sum(jax.nn.logsumexp(mlm, axis=-1)) + jnp.sum(nsp)

    cost = jax.jit(jax.grad(loss)).lower(params, ids, at).compile().cost_analysis()
    counted = flops.train_flops(config, rows, length, predictions=places)
    assert 1.0 <= cost["flops"] / counted <= 1.05
