"""Dropout: its backward pass uses the mask of the forward pass and keeps none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model import attention, ops


def residual_sizes(function, *inputs) -> list[int]:
    """Entries of each array that the backward pass of a function holds on to."""
    return [leaf.size for leaf in jax.tree.leaves(jax.vjp(function, *inputs)[1])]


@pytest.mark.parametrize("shape", [(4, 32, 16), (2, 3, 30, 30), (7, 5)])
def test_dropout_drops_the_gradient_where_it_drops_the_input(shape):
    key, x = jax.random.key(3), jnp.ones(shape)
    forward = ops.dropout(x, 0.5, key)
    gradient = jax.grad(lambda x: jnp.sum(ops.dropout(x, 0.5, key)))(x)
    np.testing.assert_array_equal(forward, gradient)
    assert set(np.unique(forward)) == {0.0, 2.0}


def test_dropout_keeps_no_mask():
    x = jnp.ones((8, 64, 32))
    sizes = residual_sizes(lambda x: ops.dropout(x, 0.1, jax.random.key(0)), x)
    assert sum(sizes) < 16


def test_attention_keeps_its_inputs_alone():
    rows, length, heads, size = 2, 64, 2, 8
    inputs = jax.random.normal(jax.random.key(0), (3, rows, length, heads, size))
    mask = jnp.ones((rows, length), jnp.int32)

    def attend(query, key, value):
        return attention.attend_by_scores(query, key, value, mask, 0.1, jax.random.key(1))

    largest = rows * length * heads * size
    assert max(residual_sizes(attend, *inputs)) == largest < rows * heads * length**2
