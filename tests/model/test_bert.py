"""The encoder against hand-computed values, a plain loop, and the invariants of masks."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model import attention, bert, heads

SMALL = bert.BertConfig(
    vocab_size=100,
    num_layers=3,
    hidden_size=32,
    num_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
)


def init(model: nn.Module, *inputs, seed: int = 0, scale: float = 1.0, **kwargs):
    """Parameters with every entry moved by noise, so that no zero or one hides a fault."""
    params = nn.unbox(jax.jit(model.init)(jax.random.key(seed), *inputs, **kwargs))["params"]
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noise = [
        x + scale * 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
    ]
    return {"params": jax.tree.unflatten(tree, noise)}


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [(0, 100, "input_ids has 100, which is not in 0..99"), (0, -1, "input_ids has -1"),
     (1, 2, "token_type_ids has 2"), (3, 48, "position_ids has 48")],
)  # fmt: skip
def test_ids_beyond_their_table_are_refused_outside_of_jit(number, value, words):
    inputs = [np.ones((2, 4), np.int32), np.zeros((2, 4), np.int32), np.ones((2, 4), np.int32),
              np.zeros((2, 4), np.int32)]  # fmt: skip
    inputs[number][1, 2] = value
    with pytest.raises(ValueError, match=re.escape(words)):
        bert.BertModel(SMALL).apply({"params": {}}, *inputs)


@pytest.mark.parametrize(
    ("ids", "shape"), [([[1, 2]], "none: it is no array"), (np.ones(3, np.int32), r"(3,)")]
)
def test_ids_of_another_shape_are_refused(ids, shape):
    with pytest.raises(ValueError, match=re.escape(f"[B, S], but its shape is {shape}")):
        bert.BertModel(SMALL).apply({"params": {}}, ids)


def test_known_ids_inside_of_jit_are_looked_at_without_a_trace():
    ids = jnp.zeros((1, 4), jnp.int32)
    shapes = jax.eval_shape(lambda key: bert.BertModel(SMALL).init(key, ids), jax.random.key(0))
    assert shapes["params"]


def run(model: nn.Module, variables, *inputs, **kwargs):
    """`model.apply`, compiled whole: op by op it would take minutes."""
    return jax.jit(functools.partial(model.apply, **kwargs))(variables, *inputs)


def rows(lengths, width, seed=0):
    """input_ids, token_type_ids and attention_mask of random rows of these lengths."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    ids = rng.integers(5, 100, mask.shape).astype(np.int32) * mask
    types = (np.arange(width) >= np.array(lengths)[:, None] // 2).astype(np.int32) * mask
    return ids, types, mask


def count(config: bert.BertConfig) -> int:
    shapes = jax.eval_shape(
        bert.BertModel(config).init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32)
    )
    padding = (config.padded_vocab_size - config.vocab_size) * config.hidden_size
    return sum(x.size for x in jax.tree.leaves(shapes)) - padding


def test_parameter_counts_are_the_published_ones():
    assert count(bert.BertConfig()) == 109_482_240
    large = bert.BertConfig(num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096)
    assert count(large) == 335_141_888


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gelu", {-3.0: -0.004050, 1.0: 0.841345, 2.0: 1.954500}),
        ("gelu_tanh", {-3.0: -0.003637, 1.0: 0.841192, 2.0: 1.954598}),
    ],
)
def test_gelu_forms(name, expected):
    for x, y in expected.items():
        assert float(bert.ACTIVATIONS[name](jnp.float32(x))) == pytest.approx(y, abs=6e-7)


def test_layer_norm_uses_the_small_epsilon():
    norm = bert.LayerNorm(1e-12, jnp.float32)
    x = 1e-6 * jnp.arange(8, dtype=jnp.float32)
    y = norm.apply(nn.unbox(norm.init(jax.random.key(0), x)), x)
    exact = (np.arange(8) - 3.5) * 1e-6 / np.sqrt(5.25e-12 + 1e-12)
    np.testing.assert_allclose(y, exact, atol=1e-5)
    assert float(y[0]) == pytest.approx(-1.4, abs=1e-3)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, -3e6])
def test_layer_norm_of_rows_with_a_large_mean(offset):
    norm = bert.LayerNorm(1e-12, jnp.float32)
    x = (np.random.default_rng(0).normal(size=(4, 768)) + offset).astype(np.float32)
    params = nn.unbox(norm.init(jax.random.key(0), x))
    y = norm.apply(params, x)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(y, exact, atol=2e-6)
    # A constant row has no variance: its output is the bias, whatever the constant is.
    constant = jnp.full((1, 768), np.float32(offset + 0.1))
    np.testing.assert_allclose(norm.apply(params, constant), 0.0, atol=1e-6)


def test_layer_norm_gradient_ignores_the_second_centring():
    norm = bert.LayerNorm(1e-12, jnp.float32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 16)) * 2 + 5, jnp.float32)
    weights = jnp.asarray(np.random.default_rng(2).normal(size=(3, 16)), jnp.float32)
    params = nn.unbox(norm.init(jax.random.key(0), x))

    def plain(x):
        centred = x - x.mean(-1, keepdims=True)
        return jnp.sum(weights * centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12))

    ours = jax.grad(lambda x: jnp.sum(weights * norm.apply(params, x)))(x)
    np.testing.assert_allclose(ours, jax.grad(plain)(x), atol=1e-5)


def loop_encoder(config, params, x, mask):
    """The encoder written out as a plain loop over layers: the reference for the scan."""
    states, probabilities = [x], []
    for i in range(config.num_layers):
        p = jax.tree.map(lambda a, i=i: a[i], params)
        layer = bert.EncoderLayer(config, None, True, True, True)
        x, (_, weights) = run(layer, {"params": p}, x, mask)
        states.append(x)
        probabilities.append(weights)
    return x, jnp.stack(states), jnp.stack(probabilities)


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_scan_equals_a_plain_loop_and_remat_changes_nothing(remat):
    config = dataclasses.replace(SMALL, remat=remat)
    ids, types, mask = rows([20, 13], 20)
    model = bert.BertModel(config)
    variables = init(model, ids)
    out = run(model, variables, ids, types, mask, output_hidden_states=True, output_attentions=True)
    embeddings = bert.Embeddings(config)
    x = embeddings.apply({"params": variables["params"]["embeddings"]}, ids, types, None, True)
    last, states, weights = loop_encoder(SMALL, variables["params"]["encoder"], x, mask)
    np.testing.assert_allclose(out.sequence, last, atol=1e-6)
    np.testing.assert_allclose(out.hidden_states, states, atol=1e-6)
    np.testing.assert_allclose(out.attentions, weights, atol=1e-6)
    assert out.hidden_states.shape == (4, 2, 20, 32)
    assert out.attentions.shape == (3, 2, 4, 20, 20)
    np.testing.assert_allclose(out.attentions.sum(-1), 1.0, atol=1e-6)

    def loss(variables, c):
        return jnp.sum(bert.BertModel(c).apply(variables, ids, types, mask).sequence ** 2)

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    ours, plain = gradient(variables, config), gradient(variables, SMALL)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), ours, plain)


def test_padding_never_changes_real_tokens():
    model = bert.BertModel(SMALL)
    ids, types, mask = rows([17, 9, 17], 17)
    variables = init(model, ids)
    short = run(model, variables, ids, types, mask)
    wide = [np.pad(a, ((0, 0), (0, 10))) for a in (ids, types, mask)]
    wide[0][:, 17:] = 77  # whatever stands at padding
    long = run(model, variables, *wide)
    real = mask.astype(bool)
    np.testing.assert_allclose(long.sequence[:, :17][real], short.sequence[real], atol=1e-5)
    np.testing.assert_allclose(long.pooled, short.pooled, atol=1e-5)
    alone = run(model, variables, ids[1:2], types[1:2], mask[1:2])
    np.testing.assert_allclose(alone.sequence[0, :9], short.sequence[1, :9], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_of_padding_alone_stays_finite(dtype):
    config = dataclasses.replace(SMALL, dtype=dtype)
    model = bert.BertModel(config)
    ids, types, mask = rows([12, 0], 12)
    variables = init(model, ids)

    def loss(variables):
        return jnp.sum(run(model, variables, ids, types, mask).sequence.astype(jnp.float32) ** 2)

    out = run(model, variables, ids, types, mask)
    assert np.isfinite(np.asarray(out.sequence, np.float32)).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.grad(loss)(variables)))


def test_packed_row_equals_its_sequences_alone():
    model = bert.BertModel(SMALL)
    ids, types, _ = rows([20], 20)
    variables = init(model, ids)
    numbers = np.array([[1] * 8 + [2] * 9 + [0] * 3], np.int32)
    positions = np.array([[*range(8), *range(9), 0, 0, 0]], np.int32)
    packed = run(model, variables, ids, types, numbers, positions, cls_positions=np.array([[0, 8]]))
    for row, (start, stop) in enumerate([(0, 8), (8, 17)]):
        alone = run(model, variables, ids[:, start:stop], types[:, start:stop])
        np.testing.assert_allclose(packed.sequence[0, start:stop], alone.sequence[0], atol=1e-5)
        np.testing.assert_allclose(packed.pooled[0, row], alone.pooled[0, 0], atol=1e-5)


def test_padded_vocabulary_rows_never_get_probability():
    model = heads.BertForPreTraining(SMALL)
    ids, types, mask = rows([12, 7], 12)
    variables = init(model, ids)
    logits, nsp = run(model, variables, ids, types, mask, masked_positions=ids[:, :3] % 7)
    assert logits.shape == (2, 3, 128) and nsp.shape == (2, 1, 2)
    probabilities = jax.nn.softmax(logits)
    np.testing.assert_allclose(probabilities[..., :100].sum(-1), 1.0, atol=1e-6)
    assert np.all(probabilities[..., 100:] == 0.0)
    fresh = nn.unbox(model.init(jax.random.key(0), ids))["params"]
    table = fresh["bert"]["embeddings"]["word_embeddings"]["embedding"]
    assert np.all(table[100:] == 0) and np.all(np.any(table[:100] != 0, axis=1))


def test_fresh_kernels_are_truncated_at_two_standard_deviations():
    params = nn.unbox(bert.BertModel(SMALL).init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32)))
    kernel = params["params"]["encoder"]["mlp"]["intermediate"]["kernel"]
    assert float(jnp.abs(kernel).max()) <= 0.04
    # A unit normal cut at 2 has a standard deviation of 0.8796; it is not scaled back to 1.
    assert float(kernel.std()) == pytest.approx(0.02 * 0.8796, rel=0.03)
    assert len({float(k.sum()) for k in kernel}) == SMALL.num_layers  # no two layers alike


def test_frozen_layers_get_no_gradient_and_change_no_output():
    ids, types, mask = rows([12, 7], 12)
    variables = init(bert.BertModel(SMALL), ids)
    frozen = bert.BertModel(dataclasses.replace(SMALL, frozen_layers=2))
    split = dict(variables["params"])
    split["frozen_encoder"] = jax.tree.map(lambda a: a[:2], split["encoder"])
    split["encoder"] = jax.tree.map(lambda a: a[2:], split["encoder"])
    whole = run(bert.BertModel(SMALL), variables, ids, types, mask)
    out = run(frozen, {"params": split}, ids, types, mask)
    np.testing.assert_allclose(out.sequence, whole.sequence, atol=1e-6)
    grads = jax.grad(lambda p: run(frozen, {"params": p}, ids, types, mask).pooled.sum())(split)
    assert all(np.all(g == 0) for g in jax.tree.leaves(grads["frozen_encoder"]))
    assert all(np.all(g == 0) for g in jax.tree.leaves(grads["embeddings"]))
    assert any(np.any(g != 0) for g in jax.tree.leaves(grads["encoder"]))


def test_dropout_rate_scale_and_independence():
    x = jnp.ones((16, 64, 33))
    y = np.asarray(bert.dropout(x, 0.1, jax.random.key(0)))
    assert set(np.unique(y)) == {0.0, np.float32(65536 / (65536 - 6554))}
    assert (y == 0).mean() == pytest.approx(0.1, abs=0.005)  # 33,792 draws: 3 sigma is 0.005
    assert y.mean() == pytest.approx(1.0, abs=0.006)
    assert len({row.tobytes() for row in y}) == 16
    model = bert.BertModel(SMALL)
    ids, types, mask = rows([12, 12], 12)
    variables = init(model, ids)

    def draw(seed):
        return run(
            model, variables, ids, types, mask, deterministic=False,
            rngs={"dropout": jax.random.key(seed)},
        ).sequence  # fmt: skip

    assert np.array_equal(draw(0), draw(0)) and not np.array_equal(draw(0), draw(1))


def test_layers_draw_different_dropout():
    config = dataclasses.replace(SMALL, attention_dropout=0.0, hidden_dropout=0.5)
    model = bert.BertModel(config)
    ids, types, mask = rows([12], 12)
    variables = init(model, ids)
    # With every sublayer's output far above the residual, zeros of the dropout show as the
    # smallest entries; equal draws in all layers would give equal patterns.
    out = run(
        model, variables, ids, types, mask, deterministic=False, output_hidden_states=True,
        rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    again = run(model, variables, ids, types, mask, deterministic=True, output_hidden_states=True)
    moved = np.asarray(out.hidden_states - again.hidden_states)
    assert len({np.sign(layer).tobytes() for layer in moved}) == len(moved)


def test_an_attention_function_replaces_the_einsum_path():
    ids, types, mask = rows([12, 7], 12)
    plain = bert.BertModel(SMALL)
    variables = init(plain, ids)

    def fn(q, k, v, m):
        return attention.attend(attention.attention_probabilities(q, k, m), v)

    with_fn = bert.BertModel(SMALL, attention_fn=fn)
    np.testing.assert_array_equal(
        run(with_fn, variables, ids, types, mask).sequence,
        run(plain, variables, ids, types, mask).sequence,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 512, "num_heads": 6}, ["512", "6"]),
        ({"num_layers": 0}, ["num_layers", "0"]),
        ({"dtype": "float61"}, ["float61", "bfloat16"]),
        ({"hidden_act": "mish"}, ["mish", "gelu_tanh"]),
        ({"hidden_dropout": 1.0}, ["hidden_dropout", "1.0"]),
        ({"remat": "some"}, ["some", "dots"]),
        ({"frozen_layers": 13}, ["13", "12"]),
    ],
)
def test_sizes_that_make_no_model_are_named(change, words):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(bert.BertConfig(), **change)
    assert all(word in str(error.value) for word in words)


def test_more_tokens_than_positions():
    with pytest.raises(ValueError, match=r"49.*48"):
        jax.eval_shape(bert.BertModel(SMALL).init, jax.random.key(0), jnp.zeros((1, 49), jnp.int32))
