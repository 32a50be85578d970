"""Elementwise operations of the encoder whose derivatives keep little for the backward pass.

Inside a scan over layers everything that a derivative needs is written to memory for every layer,
and the compiler cannot recompute it. What automatic differentiation would keep of these functions
is several times what their derivatives need, so they say it themselves.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Which entries dropout keeps: bool, False with probability `rate` to within 1 / 65536.

    Four entries share the 64 bits of one call of the generator (Threefry, Salmon et al. 2011),
    counted by the place in the array, so the mask does not depend on how the array is sharded.
    """
    # Blocks along the length: no block of a row lies on another device than its neighbours.
    axis = len(shape) - (2 if len(shape) > 2 else 1)
    blocks = tuple(-(-n // 4) if i == axis else n for i, n in enumerate(shape))
    row = jax.lax.broadcasted_iota(jnp.uint32, blocks, 0)
    place = jnp.zeros(blocks, jnp.uint32)
    for i in range(1, len(blocks)):
        place = place * blocks[i] + jax.lax.broadcasted_iota(jnp.uint32, blocks, i)
    seed = jax.random.bits(key, (2,), jnp.uint32)
    words = threefry2x32_p.bind(seed[0], seed[1], row, place)
    threshold = round(rate * 65536)
    kept = [bits >= threshold for word in words for bits in (word & 0xFFFF, word >> 16)]
    return jax.lax.slice_in_dim(jnp.concatenate(kept, axis), 0, shape[axis], axis=axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zero a share `rate` of the entries and scale the others so that the mean stays.

    The backward pass draws the mask again from the key: that costs less than keeping it.
    """
    keep = keep_mask(key, rate, x.shape)
    scale = 65536 / (65536 - round(rate * 65536))
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), jnp.zeros((), x.dtype))


def _dropout_forward(x: jax.Array, rate: float, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return dropout(x, rate, key), key


def _dropout_backward(rate: float, key: jax.Array, dy: jax.Array) -> tuple[jax.Array, None]:
    return dropout(dy, rate, key), None


dropout.defvjp(_dropout_forward, _dropout_backward)


@jax.custom_jvp
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) with the exact normal distribution (Hendrycks & Gimpel 2016)."""
    x32 = x.astype(jnp.float32)
    return (x32 * _normal_cdf(x32)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (x,), (t,) = primals, tangents
    x32 = x.astype(jnp.float32)
    cdf = _normal_cdf(x32)
    density = jnp.exp(-0.5 * jnp.square(x32)) * (1 / math.sqrt(2 * math.pi))
    slope = (cdf + x32 * density).astype(x.dtype)
    return (x32 * cdf).astype(x.dtype), slope * t


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def linear_product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """[..., in], [in, out] -> [..., out], in the shape of call that nn.Dense has for its product.

    The gradient of the kernel is written as the product x^T dy over all rows at once. What
    automatic differentiation writes, its transpose, makes XLA copy dy first on CPUs.
    """
    return _linear_product(x, kernel)


@jax.custom_vjp
def _linear_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.dot(x, kernel)


def _linear_product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple]:
    return jnp.dot(x, kernel), (x, kernel)


def _linear_product_backward(kept: tuple, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = kept
    dx = jax.lax.dot_general(dy, kernel, (((dy.ndim - 1,), (1,)), ((), ())))
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dx, jax.lax.dot_general(x, dy, (((0,), (0,)), ((), ())))


_linear_product.defvjp(_linear_product_forward, _linear_product_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalize(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Layer normalisation over the last axis (Ba et al. 2016), statistics in float32.

    [..., H], [H], [H] -> [..., H] float32. The row is centred twice: rounding of a large mean
    would otherwise reach the variance, where an epsilon of 1e-12 does not hide it.
    """
    return _normalize_forward(x, scale, bias, epsilon)[0]


def _normalize_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple]:
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32, axis=-1, keepdims=True)
    rest = jnp.mean(x32 - mean, axis=-1, keepdims=True)
    centred = x32 - mean - rest
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * inverse * scale + bias, (x, mean, rest, inverse, scale)


def _normalize_backward(epsilon: float, kept: tuple, dy: jax.Array) -> tuple[jax.Array, ...]:
    del epsilon
    x, mean, rest, inverse, scale = kept
    unit = (x.astype(jnp.float32) - mean - rest) * inverse
    rows = tuple(range(x.ndim - 1))
    scaled = dy * scale
    along = jnp.mean(scaled * unit, axis=-1, keepdims=True)
    dx = inverse * (scaled - jnp.mean(scaled, axis=-1, keepdims=True) - unit * along)
    return dx.astype(x.dtype), jnp.sum(dy * unit, axis=rows), jnp.sum(dy, axis=rows)


normalize.defvjp(_normalize_forward, _normalize_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def masked_softmax(scores: jax.Array, allowed: jax.Array, dtype: Any) -> jax.Array:
    """softmax over the last axis where `allowed` (broadcast), computed in float32, as `dtype`.

    A row without an allowed entry gets equal, finite weights.
    """
    # The most negative finite number, not -inf: such a row stays finite.
    scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1).astype(dtype)


def _softmax_forward(scores: jax.Array, allowed: jax.Array, dtype: Any) -> tuple[jax.Array, tuple]:
    probabilities = masked_softmax(scores, allowed, dtype)
    return probabilities, (probabilities, allowed)


def _softmax_backward(dtype: Any, kept: tuple, dp: jax.Array) -> tuple[jax.Array, None]:
    del dtype
    probabilities, allowed = kept
    p, dp = probabilities.astype(jnp.float32), dp.astype(jnp.float32)
    ds = p * (dp - jnp.sum(p * dp, axis=-1, keepdims=True))
    return jnp.where(allowed, ds, 0.0), None


masked_softmax.defvjp(_softmax_forward, _softmax_backward)
