"""Losses against numpy in float64, hand-computed sums and their own invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.train import loss


def by_numpy(logits, labels, weights):
    logits = np.asarray(logits, np.float64)
    peak = logits.max(-1, keepdims=True)
    log_p = logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    return -(weights * picked).sum(), weights.sum()


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_cross_entropy_is_the_weighted_sum(shape):
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 5, (*shape, 11)).astype(np.float32)
    labels = draw.integers(0, 11, shape)
    weights = draw.uniform(0, 2, shape).astype(np.float32)
    expected = by_numpy(logits, labels, weights)
    total, weight = loss.cross_entropy(logits, labels, weights)
    assert total.dtype == weight.dtype == jnp.float32
    np.testing.assert_allclose([total, weight], expected, rtol=1e-6)


def test_cross_entropy_of_huge_logits_and_low_precision():
    logits = jnp.array([[3e4, -3e4, 0.0]])
    assert float(loss.cross_entropy(logits, jnp.array([0]), jnp.ones(1))[0]) == 0.0
    assert float(loss.cross_entropy(logits, jnp.array([1]), jnp.ones(1))[0]) == 6e4
    low = jnp.linspace(0, 1, 30000, dtype=jnp.bfloat16)[None]
    exact = by_numpy(np.asarray(low, np.float64), np.array([7]), np.ones(1))[0]
    np.testing.assert_allclose(
        loss.cross_entropy(low, jnp.array([7]), jnp.ones(1))[0], exact, rtol=1e-6
    )


def test_gradient_is_softmax_minus_label():
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 3, (4, 6)).astype(np.float32)
    labels, weights = draw.integers(0, 6, 4), np.array([1.0, 0.5, 0.0, 2.0], np.float32)
    grads = jax.grad(lambda x: loss.cross_entropy(x, labels, weights)[0])(logits)
    softmax = np.exp(logits.astype(np.float64))
    softmax /= softmax.sum(-1, keepdims=True)
    expected = weights[:, None] * (softmax - np.eye(6)[labels])
    np.testing.assert_allclose(grads, expected, atol=3e-7)


@pytest.mark.parametrize("logit", [0.0, 1e30, np.inf])
def test_weight_zero_everywhere_gives_zero_loss_and_zero_gradient(logit):
    logits = jnp.zeros((3, 4)).at[0, 0].set(logit)
    labels, weights = jnp.array([0, 1, 2]), jnp.zeros(3)

    def of(logits):
        return loss.mean(*loss.cross_entropy(logits, labels, weights))

    value, grads = jax.value_and_grad(of)(logits)
    assert float(value) == 0.0
    if np.isfinite(logit):
        np.testing.assert_array_equal(grads, 0.0)


def test_a_position_of_weight_zero_does_not_count_even_if_broken():
    logits = jnp.array([[jnp.nan, 0.0], [0.0, 0.0]])
    total, weight = loss.cross_entropy(logits, jnp.array([0, 0]), jnp.array([0.0, 1.0]))
    assert (float(total), float(weight)) == (pytest.approx(np.log(2)), 1.0)


def test_ignored_labels():
    labels, weights = loss.ignore_labels(jnp.array([[2, -100], [-100, 0]]))
    np.testing.assert_array_equal(labels, [[2, 0], [0, 0]])
    np.testing.assert_array_equal(weights, [[1, 0], [0, 1]])
    row = jnp.array([[1.0], [0.0]])  # a row that only fills up the batch
    _, weights = loss.ignore_labels(jnp.array([[2, -100], [-100, 0]]), row)
    np.testing.assert_array_equal(weights, [[1, 0], [0, 0]])


def test_all_labels_ignored_gives_zero():
    labels, weights = loss.ignore_labels(jnp.full((2, 3), -100))
    grads = jax.grad(lambda x: loss.mean(*loss.cross_entropy(x, labels, weights)))(
        jnp.ones((2, 3, 5))
    )
    np.testing.assert_array_equal(grads, 0.0)


def test_sigmoid_cross_entropy():
    logits = jnp.array([[0.0, 100.0], [-100.0, 2.0]])
    labels = jnp.array([[1, 1], [1, 0]])
    # ln 2 and 0; 100 and ln(1 + e^2): means over the two classes.
    expected = np.log(2) / 2 + (100 + np.log1p(np.exp(2))) / 2
    total, weight = loss.sigmoid_cross_entropy(logits, labels, jnp.ones(2))
    np.testing.assert_allclose([total, weight], [expected, 2.0], rtol=1e-6)


def test_squared_error_refuses_to_broadcast():
    predictions, targets = jnp.array([[1.0], [2.0]]), jnp.array([1.0, 2.0])
    with pytest.raises(ValueError, match="one shape"):
        loss.squared_error(predictions, targets, jnp.ones(2))
    total, weight = loss.squared_error(predictions[:, 0], targets, jnp.ones(2))
    assert (float(total), float(weight)) == (0.0, 2.0)
    total, _ = loss.squared_error(jnp.array([3.3]), jnp.array([3.8]), jnp.ones(1))
    assert float(total) == pytest.approx(0.25)


def test_accuracy_counts_only_what_has_weight():
    logits = jnp.eye(3)[jnp.array([0, 1, 2, 0])]
    total, weight = loss.accuracy(logits, jnp.array([0, 1, 0, 0]), jnp.array([1.0, 1, 1, 0]))
    assert (float(total), float(weight)) == (2.0, 3.0)


def test_mean_of_microbatches_is_not_the_mean_of_means():
    # One scored token with loss 4; three with mean 2.
    parts = [(jnp.float32(4), jnp.float32(1)), (jnp.float32(6), jnp.float32(3))]
    total, weight = (sum(column) for column in zip(*parts, strict=True))
    assert float(loss.mean(total, weight)) == 2.5
