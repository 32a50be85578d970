"""Self-attention over rows that may be padded or packed (Vaswani et al. 2017, section 3.2).

One mask convention for every path, `attention_mask` [B, S] int32: 0 is padding, and a token
attends to the tokens that carry its own number. A plain row is 1 at its real tokens; a packed row
numbers its sequences 1, 2, ... What stands at padding is finite and means nothing.

Letters: B batch, S sequence length, A heads, K head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.model import ops

# (query, key, value [B, S, A, K], attention_mask [B, S]) -> [B, S, A, K]: a kernel that replaces
# `attend`, already wrapped for the mesh it runs on.
AttentionFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def allowed_pairs(attention_mask: jax.Array) -> jax.Array:
    """Which key each query may see: [B, S] int32 -> [B, 1, S (query), S (key)] bool."""
    same = attention_mask[:, :, None] == attention_mask[:, None, :]
    return (same & (attention_mask != 0)[:, None, :])[:, None]


def attention_probabilities(
    query: jax.Array, key: jax.Array, attention_mask: jax.Array, dtype: Any = jnp.float32
) -> jax.Array:
    """softmax(q k^T / sqrt(K)) over the allowed keys, computed in float32, given as `dtype`.

    [B, S, A, K] twice and [B, S] -> [B, A, S (query), S (key)]. A query without any allowed key
    gets equal, finite weights.
    """
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    scores = jnp.einsum("bqak,bpak->baqp", query, key, preferred_element_type=jnp.float32)
    return ops.masked_softmax(scores, allowed_pairs(attention_mask), dtype)


def attend(probabilities: jax.Array, value: jax.Array) -> jax.Array:
    """Weighted mean of the values: [B, A, S, S], [B, S, A, K] -> [B, S, A, K]."""
    return jnp.einsum("baqp,bpak->bqak", probabilities.astype(value.dtype), value)


def attend_by_scores(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attention_mask: jax.Array,
    rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Attention in plain operations: [B, S, A, K] three times, [B, S] -> [B, S, A, K].

    `rate` of the probabilities is dropped where there is a key. For the backward pass the inputs
    alone are kept and the probabilities computed anew: they are most of a layer's memory and
    little of its work.
    """
    shape = query.shape

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def context(*kept: jax.Array) -> jax.Array:
        query, key, value = (x.reshape(shape) for x in kept)
        probabilities = attention_probabilities(query, key, attention_mask, value.dtype)
        if dropout_key is not None and rate > 0.0:
            probabilities = ops.dropout(probabilities, rate, dropout_key)
        return attend(probabilities, value)

    # Kept with heads side by side: a last axis of K would be padded to 128 on a TPU.
    return context(*(x.reshape(*shape[:2], -1) for x in (query, key, value)))
