"""Losses and accuracies as (sum, weight), in float32; whoever has all of a batch divides once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

IGNORED = -100  # the label of a position that is not scored


def _weigh(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(sum of weights * values, sum of weights); a value of weight 0 counts for nothing, even if
    it is not finite."""
    weights = weights.astype(jnp.float32)
    values = jnp.where(weights > 0, values, 0.0)
    return jnp.sum(weights * values), jnp.sum(weights)


def ignore_labels(
    labels: jax.Array, weights: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Labels [...] with -100 replaced by class 0, and their weights [...] float32, 0 there.

    `weights` [...] multiplies in, if given.
    """
    scored = labels != IGNORED
    kept = scored.astype(jnp.float32)
    return jnp.where(scored, labels, 0), kept if weights is None else kept * weights


def cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Softmax cross-entropy: logits [..., C], integer labels [...], weights [...] -> (sum, weight).

    In nats. Where every weight is 0 the sum is 0 and so is every gradient.
    """
    logits = logits.astype(jnp.float32)
    target = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return _weigh(jax.nn.logsumexp(logits, axis=-1) - target, weights)


def sigmoid_cross_entropy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Binary cross-entropy of each class by itself, averaged over classes -> (sum, weight).

    logits [..., C], labels [..., C] in {0, 1}, weights [...].
    """
    logits, labels = logits.astype(jnp.float32), labels.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - logits * labels
    return _weigh(losses.mean(axis=-1), weights)


def squared_error(
    predictions: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(prediction - target)^2 -> (sum, weight); all three of one shape.

    Raises ValueError where the shapes differ: [B, 1] less [B] would broadcast to [B, B].
    """
    if not predictions.shape == targets.shape == weights.shape:
        raise ValueError(
            f"squared_error takes one shape, not {predictions.shape}, {targets.shape} and "
            f"{weights.shape}"
        )
    error = predictions.astype(jnp.float32) - targets.astype(jnp.float32)
    return _weigh(jnp.square(error), weights)


def accuracy(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How often the largest of logits [..., C] is the label [...] -> (sum, weight)."""
    return _weigh((jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32), weights)


def mean(total: jax.Array, weight: jax.Array) -> jax.Array:
    """total / weight, and 0 where the weight is 0, with a gradient of 0 there."""
    scored = weight > 0
    return jnp.where(scored, total / jnp.where(scored, weight, 1.0), 0.0)
