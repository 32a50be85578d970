"""Schedules and optimizers: published figures, optax's own AdamW, LAMB written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import bert_config, optimizer_config

from bertjax.errors import UserError
from bertjax.model.heads import BertForClassification, BertForPreTraining
from bertjax.train.optimizer import decay_mask, make_optimizer, make_schedule


def abstract(model):
    boxed = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return jax.tree.map(
        lambda box: box.value, boxed["params"], is_leaf=lambda x: hasattr(x, "names")
    )


def random_like(tree, seed, scale=1.0):
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(draw.normal(0, scale, x.shape), jnp.float32), tree)


def names(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def take(optimizer, params, grads, steps=1):
    state = optimizer.init(params)

    @jax.jit
    def once(params, state, step):
        updates, state = optimizer.update(grads, state, params, step=step)
        return optax.apply_updates(params, updates), state

    history = []
    for step in range(steps):
        params, state = once(params, state, step)
        history.append(params)
    return history


def constant(rate):
    return lambda step: jnp.float32(rate)


# Schedules


def figures(schedule, *steps):
    return [float(schedule(step)) for step in steps]


def test_google_schedule_decays_over_all_steps():
    config = optimizer_config(schedule="google", learning_rate=1e-4, warmup_steps=10)
    np.testing.assert_allclose(
        figures(make_schedule(config, 100), 0, 5, 9, 10, 50, 100, 150),
        [0, 5e-5, 9e-5, 9e-5, 5e-5, 0, 0],
        rtol=1e-6,
    )


def test_schedule_after_warmup_decays_from_the_peak():
    config = optimizer_config(schedule="linear_after_warmup", learning_rate=1e-4, warmup_ratio=0.1)
    np.testing.assert_allclose(
        figures(make_schedule(config, 100), 0, 5, 10, 11, 50, 100, 150),
        [0, 5e-5, 1e-4, 9.8888889e-5, 5.5555556e-5, 0, 0],
        rtol=1e-6,
    )


@pytest.mark.parametrize("form", ["google", "linear_after_warmup"])
def test_without_warmup_the_first_step_has_the_full_rate(form):
    schedule = make_schedule(optimizer_config(schedule=form, learning_rate=1e-4), 100)
    np.testing.assert_allclose(figures(schedule, 0, 50), [1e-4, 5e-5], rtol=1e-6)
    assert schedule(jnp.int32(3)).dtype == jnp.float32


def test_a_run_shorter_than_its_warmup_stays_finite():
    config = optimizer_config(schedule="linear_after_warmup", warmup_steps=50)
    assert np.isfinite(figures(make_schedule(config, 20), 0, 19, 20, 50, 60)).all()


def test_schedule_is_checked():
    with pytest.raises(UserError, match="'cosine'"):
        make_schedule(optimizer_config(schedule="cosine"), 10)
    with pytest.raises(UserError, match=r"warmup_ratio=0\.1"):
        make_schedule(optimizer_config(warmup_steps=5, warmup_ratio=0.1), 10)


# The update


def one_weight(name):
    config = optimizer_config(
        name=name, learning_rate=1e-3, weight_decay=0.01, epsilon=1e-6, grad_clip=0.0
    )
    params = {"kernel": jnp.array([1.0])}
    optimizer = make_optimizer(config, constant(1e-3), params)
    history = take(optimizer, params, {"kernel": jnp.array([0.1])}, 10)
    return [float(p["kernel"][0]) for p in history]


def test_google_adam_figures():
    history = one_weight("adam_google")
    np.testing.assert_allclose(
        [history[0], history[1], history[2], history[9]],
        [0.9968287220, 0.9925701123, 0.9876108554, 0.9446312509],
        rtol=2e-7,  # float32 parameters
    )


def test_adamw_first_step_figure():
    np.testing.assert_allclose(one_weight("adamw")[0], 0.9989900100, rtol=1e-7)


def test_adamw_is_that_of_optax():
    params = random_like(abstract(BertForClassification(bert_config(), 3)), 0)
    grads = random_like(params, 1, 0.1)
    config = optimizer_config(name="adamw", weight_decay=0.1, grad_clip=0.5)
    ours = take(make_optimizer(config, constant(1e-2), params), params, grads, 3)[-1]
    reference = optax.with_extra_args_support(
        optax.chain(
            optax.clip_by_global_norm(0.5),
            optax.adamw(1e-2, 0.9, 0.999, 1e-6, weight_decay=0.1, mask=decay_mask),
        )
    )
    theirs = take(reference, params, grads, 3)[-1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), ours, theirs)


def test_clipping_is_by_the_global_norm():
    # Adam does not see a common factor, so look at the first moment of a single step.
    params = {"a": {"kernel": jnp.zeros((2, 2))}, "b": {"bias": jnp.zeros(1)}}
    grads = {"a": {"kernel": jnp.full((2, 2), 3.0)}, "b": {"bias": jnp.array([8.0])}}  # norm 10
    optimizer = make_optimizer(optimizer_config(grad_clip=1.0), constant(0.1), params)
    _, state = optimizer.update(grads, optimizer.init(params), params, step=0)
    mu = optax.tree_utils.tree_get(state, "mu")
    np.testing.assert_allclose(mu["a"]["kernel"], 0.1 * 0.3, rtol=1e-6)
    np.testing.assert_allclose(mu["b"]["bias"], 0.1 * 0.8, rtol=1e-6)


@pytest.mark.parametrize("name", ["adam_google", "adamw"])
def test_decay_touches_kernels_and_embeddings_and_nothing_else(name):
    params = random_like(abstract(BertForPreTraining(bert_config())), 2)
    zeros = jax.tree.map(jnp.zeros_like, params)
    config = optimizer_config(name=name, weight_decay=0.1)
    after = names(take(make_optimizer(config, constant(1.0), params), params, zeros)[-1])
    decayed = set()
    for path, before in names(params).items():
        if np.array_equal(after[path], before):
            continue
        decayed.add(path)
        np.testing.assert_allclose(after[path], 0.9 * before, rtol=1e-6)
    layer = "bert/encoder"
    assert decayed == {
        "bert/embeddings/word_embeddings/embedding",
        "bert/embeddings/position_embeddings/embedding",
        "bert/embeddings/token_type_embeddings/embedding",
        *(f"{layer}/attention/{part}/kernel" for part in ("query", "key", "value", "output")),
        f"{layer}/mlp/intermediate/kernel",
        f"{layer}/mlp/output/kernel",
        "bert/pooler/dense/kernel",
        "mlm/dense/kernel",
        "nsp/dense/kernel",
    }
    assert len(after) == 30  # a stack counts as one: 5 + 16 in the encoder, 2, 5 and 2 in heads


def test_a_parameter_of_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="bert/gamma"):
        make_optimizer(optimizer_config(), constant(1.0), {"bert": {"gamma": jnp.ones(2)}})


def test_lamb_scales_each_matrix_of_each_layer():
    params = random_like(abstract(BertForClassification(bert_config(), 3)), 3)
    grads = random_like(params, 4)
    config = optimizer_config(name="lamb", weight_decay=0.1, grad_clip=0.0)
    after = names(take(make_optimizer(config, constant(0.5), params), params, grads)[-1])
    grads = names(grads)
    for path, before in names(params).items():
        p, g = np.float64(before), np.float64(grads[path])
        # After one step the corrected moments are g and g^2.
        update = g / (np.abs(g) + 1e-6)
        if path.endswith(("kernel", "embedding")):
            update += 0.1 * p
            axes = tuple(range(1 if "encoder" in path else 0, p.ndim))
            norm = lambda x: np.sqrt((x * x).sum(axis=axes, keepdims=True))  # noqa: B023, E731
            update *= norm(p) / norm(update)
        np.testing.assert_allclose(after[path], p - 0.5 * update, rtol=1e-4, atol=1e-4)


def test_layer_decay_slows_the_lower_layers():
    params = random_like(abstract(BertForClassification(bert_config(num_layers=3), 2)), 5)
    grads = random_like(params, 6)
    moved = []
    for decay in (1.0, 0.5):
        config = optimizer_config(layer_decay=decay, weight_decay=0.0)
        after = take(make_optimizer(config, constant(1e-2), params), params, grads)[-1]
        moved.append(names(jax.tree.map(jnp.subtract, after, params)))
    ratio = {path: np.median(moved[1][path] / moved[0][path]) for path in moved[0]}
    assert ratio["classifier/dense/kernel"] == pytest.approx(1.0, rel=1e-3)
    assert ratio["bert/pooler/dense/bias"] == pytest.approx(1.0, rel=1e-3)
    assert ratio["bert/embeddings/word_embeddings/embedding"] == pytest.approx(1 / 16, rel=1e-3)
    layers = moved[1]["bert/encoder/mlp/output/kernel"] / moved[0]["bert/encoder/mlp/output/kernel"]
    np.testing.assert_allclose(np.median(layers, axis=(1, 2)), [1 / 8, 1 / 4, 1 / 2], rtol=1e-3)


def test_frozen_layers_keep_still_and_have_no_moments():
    params = random_like(
        abstract(BertForClassification(bert_config(num_layers=3, frozen_layers=2), 2)), 7
    )
    config = optimizer_config(layer_decay=0.5)
    optimizer = make_optimizer(config, constant(1e-2), params)
    moments = sum(x.size for x in jax.tree.leaves(optimizer.init(params)) if x.ndim)
    after = names(take(optimizer, params, random_like(params, 8))[-1])
    trained = 0
    for path, before in names(params).items():
        frozen = "frozen_encoder" in path or "embeddings" in path
        assert np.array_equal(after[path], before) == frozen, path
        trained += 0 if frozen else before.size
    assert moments == 2 * trained


def test_moments_are_float32():
    params = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16),
        random_like(abstract(BertForClassification(bert_config(), 2)), 9),
    )
    for name in ("adam_google", "adamw", "lamb"):
        state = make_optimizer(optimizer_config(name=name), constant(1.0), params).init(params)
        mu = optax.tree_utils.tree_get(state, "mu")
        assert {x.dtype for x in jax.tree.leaves(mu)} == {np.dtype("float32")}


def test_unknown_optimizer():
    with pytest.raises(UserError, match="'adafactor'"):
        make_optimizer(optimizer_config(name="adafactor"), constant(1.0), {})
