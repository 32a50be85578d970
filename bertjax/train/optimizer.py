"""Learning-rate schedules and optimizers, each in its published form.

Two forms of Adam, since Google's BERT used one that hardly any library has:

    adam_google   m / (sqrt(v) + eps), without bias correction     google-research/bert
    adamw         bias-corrected moments                           Loshchilov & Hutter 2019
    lamb          adamw's update, scaled by |parameter| / |update| for each matrix of each layer
                                                                   You et al. 2020, algorithm 2

All of them decay weights apart from the gradient ("decoupled"), never biases or LayerNorms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.errors import UserError

DECAYED = ("kernel", "embedding")
NOT_DECAYED = ("bias", "scale")
# Parameters below these names carry a leading axis of layers.
STACKED = ("frozen_encoder", "encoder")

Path = tuple[str, ...]


def make_schedule(config: Any, steps: int) -> optax.Schedule:
    """step -> learning rate, float32: linear warm-up from 0, then linear decay to 0 at `steps`.

    config: the fields `optimizer.*`. Its `schedule` says where the decay starts:
        google                the line falls from step 0; warm-up cuts off its beginning, so the
                              peak is never reached (google-research/bert, optimization.py)
        linear_after_warmup   the line falls from the end of warm-up (transformers' linear)
    `warmup_steps`, or `warmup_ratio` of `steps`; with neither, step 0 has the full rate.
    """
    if config.warmup_steps and config.warmup_ratio:
        raise UserError(
            f"optimizer.warmup_steps={config.warmup_steps} and "
            f"optimizer.warmup_ratio={config.warmup_ratio} both ask for a warm-up: set one to 0."
        )
    warmup = warmup_steps(config, steps)
    starts = {"google": 0, "linear_after_warmup": warmup}
    if config.schedule not in starts:
        raise UserError(
            f"optimizer.schedule={config.schedule!r} is not known: choose {' or '.join(starts)}."
        )
    start, peak = starts[config.schedule], jnp.float32(config.learning_rate)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        rising = step / max(1, warmup)
        falling = (steps - step) / max(1, steps - start)
        return peak * jnp.where(step < warmup, rising, jnp.clip(falling, 0.0, 1.0))

    return schedule


def warmup_steps(config: Any, steps: int) -> int:
    """The steps of warm-up of a run of `steps`."""
    return config.warmup_steps or round(config.warmup_ratio * steps)


def make_optimizer(
    config: Any,
    schedule: optax.Schedule,
    params: Any,
) -> optax.GradientTransformationExtraArgs:
    """The optimizer of `optimizer.*`; its update takes `step`, the training step, beside params.

    The rate follows that step and not a count of its own, so skipped steps and resumed runs keep
    to the schedule. `grad_norm`, the gradient's global norm, saves clipping a pass of its own.
    Moments are float32. `params` (abstract will do) gives the names and the number of layers.
    Where the model has a frozen encoder, that and the embeddings below it are left alone and get
    no moments.

    Raises UserError for an unknown `optimizer.name`, ValueError for a parameter of which it is
    not known whether it decays.
    """
    decay_mask(params)  # unknown names raise here
    frozen = any(STACKED[0] in _names(path) for path, _ in jax.tree.leaves_with_path(params))
    parts = [_clip_by_global_norm(config.grad_clip, frozen)] if config.grad_clip else []
    parts += [
        _adam(config),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    ]
    if config.name == "lamb":
        parts.append(_scale_by_trust_ratio())
    if config.layer_decay != 1.0:
        parts.append(_scale_by_depth(config.layer_decay, _num_layers(params)))
    parts.append(_scale_by_schedule(schedule))
    optimizer = optax.chain(*parts)
    labels = _map_names(lambda path, _: _below_frozen(path), params)
    if frozen:
        optimizer = optax.partition({False: optimizer, True: optax.set_to_zero()}, labels)
    return optax.with_extra_args_support(optimizer)


def decay_mask(params: Any) -> Any:
    """True at parameters that decay: matrices and embeddings, by name; stacking changes nothing."""

    def decays(path: Path, _: Any) -> bool:
        if path[-1] not in DECAYED + NOT_DECAYED:
            raise ValueError(
                f"{'/'.join(path)}: is it decayed? Its name is none of {DECAYED + NOT_DECAYED}"
            )
        return path[-1] in DECAYED

    return _map_names(decays, params)


class MomentsState(NamedTuple):
    """Moving averages of the gradient and of its square."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(
    beta1: float, beta2: float, epsilon: float
) -> optax.GradientTransformation:
    """mu / (sqrt(nu) + epsilon), moments starting at 0 and not corrected for that."""

    def init(params: Any) -> MomentsState:
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return MomentsState(zeros, zeros)

    def update(grads: Any, state: MomentsState, params: Any = None) -> tuple[Any, MomentsState]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, MomentsState(mu, nu)

    return optax.GradientTransformation(init, update)


def _clip_by_global_norm(limit: float, frozen: bool) -> optax.GradientTransformationExtraArgs:
    """Scale the gradient down to the global norm `limit`, by one factor that later operations
    take in passing. Where parameters are `frozen`, the norm is that of the others."""

    def update(
        grads: Any, state: Any, params: Any = None, *, grad_norm: jax.Array | None = None, **_: Any
    ) -> Any:
        del params
        norm = optax.global_norm(grads) if frozen or grad_norm is None else grad_norm
        factor = jnp.where(norm < limit, 1.0, limit / norm)
        return jax.tree.map(lambda g: g * factor, grads), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _adam(config: Any) -> optax.GradientTransformation:
    b1, b2, epsilon = config.beta1, config.beta2, config.epsilon
    if config.name == "adam_google":
        return scale_by_uncorrected_adam(b1, b2, epsilon)
    if config.name in ("adamw", "lamb"):
        return optax.scale_by_adam(b1, b2, epsilon, mu_dtype=jnp.float32)
    raise UserError(
        f"optimizer.name={config.name!r} is not known: choose adam_google, adamw or lamb."
    )


def _scale_by_schedule(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    def update(updates: Any, state: Any, params: Any = None, *, step: jax.Array, **_: Any) -> Any:
        del params
        rate = jnp.asarray(schedule(step), jnp.float32)
        return jax.tree.map(lambda u: -rate * u, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
    """|parameter| / |update| over each decayed matrix, for each layer of a stack by itself."""

    def scale(path: Path, update: jax.Array, param: jax.Array) -> jax.Array:
        if path[-1] not in DECAYED:
            return update
        axes = tuple(range(1 if _stack(path) else 0, update.ndim))
        norm = lambda x: jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))  # noqa: E731
        wanted, given = norm(param), norm(update)
        usable = (wanted > 0) & (given > 0)
        return update * jnp.where(usable, wanted / jnp.where(usable, given, 1.0), 1.0)

    return optax.stateless(lambda updates, params: _map_names(scale, updates, params))


def _scale_by_depth(decay: float, num_layers: int) -> optax.GradientTransformation:
    """decay ** (layers above): 1 for heads and pooler, decay for the last layer, decay ** (L + 1)
    for the embeddings (Howard & Ruder 2018, section 3.2)."""

    def scale(path: Path, update: jax.Array) -> jax.Array:
        stack = _stack(path)
        if stack is None:
            above = num_layers + 1 if "embeddings" in path else 0
            return update * jnp.float32(decay**above)
        layers = update.shape[0]
        # A frozen stack lies below the other.
        first = 0 if stack == STACKED[0] else num_layers - layers
        above = num_layers - first - jnp.arange(layers)
        factors = jnp.power(jnp.float32(decay), above)
        return update * factors.reshape(layers, *(1,) * (update.ndim - 1))

    return optax.stateless(lambda updates, _: _map_names(scale, updates))


def _num_layers(params: Any) -> int:
    sizes: dict[str, int] = {}

    def note(path: Path, param: Any) -> None:
        if (stack := _stack(path)) is not None:
            sizes[stack] = param.shape[0]

    _map_names(note, params)
    return sum(sizes.values())


def _stack(path: Path) -> str | None:
    return next((name for name in path if name in STACKED), None)


def _below_frozen(path: Path) -> bool:
    """Whether the path lies in the frozen encoder or below it."""
    return STACKED[0] in path or "embeddings" in path


def _names(path: jax.tree_util.KeyPath) -> Path:
    return tuple(str(key.key) for key in path)


def _map_names(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """tree.map of function(path as names, leaf, ...)."""

    def one(path: jax.tree_util.KeyPath, *leaves: Any) -> Any:
        return function(_names(path), *leaves)

    return jax.tree_util.tree_map_with_path(one, tree, *rest)
