"""Self-attention over rows that may be padded or packed (Vaswani et al. 2017, section 3.2).

One mask convention for every path, `attention_mask` [B, S] int32: 0 is padding, and a token
attends to the tokens that carry its own number. A plain row is 1 at its real tokens; a packed row
numbers its sequences 1, 2, ... What stands at padding is finite and means nothing.

Letters: B batch, S sequence length, A heads, K head size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

# (query, key, value [B, S, A, K], attention_mask [B, S]) -> [B, S, A, K]: a kernel that replaces
# `attend`, already wrapped for the mesh it runs on.
AttentionFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def allowed_pairs(attention_mask: jax.Array) -> jax.Array:
    """Which key each query may see: [B, S] int32 -> [B, 1, S (query), S (key)] bool."""
    same = attention_mask[:, :, None] == attention_mask[:, None, :]
    return (same & (attention_mask != 0)[:, None, :])[:, None]


def attention_probabilities(
    query: jax.Array, key: jax.Array, attention_mask: jax.Array
) -> jax.Array:
    """softmax(q k^T / sqrt(K)) over the allowed keys, in float32 whatever the input dtype.

    [B, S, A, K] twice and [B, S] -> [B, A, S (query), S (key)]. A query without any allowed key
    gets equal, finite weights.
    """
    scores = jnp.einsum("bqak,bpak->baqp", query, key, preferred_element_type=jnp.float32)
    scores *= query.shape[-1] ** -0.5
    # The most negative finite number, not -inf: a row without allowed keys stays finite.
    scores = jnp.where(allowed_pairs(attention_mask), scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


def attend(probabilities: jax.Array, value: jax.Array) -> jax.Array:
    """Weighted mean of the values: [B, A, S, S], [B, S, A, K] -> [B, S, A, K]."""
    return jnp.einsum("baqp,bpak->bqak", probabilities.astype(value.dtype), value)
