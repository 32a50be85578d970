"""The BERT encoder as published: Devlin et al. 2019, https://arxiv.org/abs/1810.04805.

Post-LayerNorm transformer layers over the sum of token, segment and learned position embeddings,
scanned over layers so that compile time and code size do not grow with depth.

Letters: B batch, S sequence length, L layers, H hidden size, A heads, K = H / A head size,
F intermediate size, V vocabulary, N segment pairs a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model import attention, ops
from bertjax.model.config import ACTIVATIONS, REMAT_POLICIES, BertConfig
from bertjax.model.ops import dropout


class BertOutput(NamedTuple):
    """What the encoder returns."""

    sequence: jax.Array  # [B, S, H], the last layer
    pooled: jax.Array  # [B, N, H], tanh(dense) of the [CLS] positions
    hidden_states: jax.Array | None  # [L + 1, B, S, H], the embeddings first
    attentions: jax.Array | None  # [L, B, A, S, S], rows sum to one
    word_embedding: jax.Array  # [V padded, H], the table that the MLM decoder shares


class Dropout(nn.Module):
    """`dropout` with the module's stream 'dropout'; the identity when deterministic."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.rate, self.make_rng("dropout"))


def partitioned(init: Callable, *names: str | None) -> Callable:
    """An initializer whose parameter carries logical axis names."""
    return nn.with_logical_partitioning(init, names)


def truncated_normal(config: BertConfig) -> Callable:
    """Truncated at two standard deviations, as in Google's code; not rescaled for the cut."""
    return jax.nn.initializers.truncated_normal(config.initializer_range)


class ActivatedDense(nn.Dense):
    """nn.Dense of activation(input)."""

    activation: Callable[[jax.Array], jax.Array] | None = None

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        return super().__call__(self.activation(inputs) if self.activation else inputs)


def dense(
    config: BertConfig,
    features: int,
    axes: tuple[str, str],
    name: str,
    activation: Callable[[jax.Array], jax.Array] | None = None,
) -> nn.Dense:
    """A linear layer [..., in] -> [..., features], kernel [in, features] on logical `axes`.

    With `activation`, that of its input, which the backward pass computes anew, as it does the
    kernel in the compute dtype: the input before it and the parameters are kept anyway.
    """
    return nn.remat(ActivatedDense, prevent_cse=False)(
        features,
        activation=activation,
        dot_general=ops.linear_product,
        dtype=config.compute_dtype,
        param_dtype=jnp.float32,
        kernel_init=partitioned(truncated_normal(config), *axes),
        bias_init=partitioned(jax.nn.initializers.zeros, axes[1]),
        name=name,
    )


class LayerNorm(nn.Module):
    """`ops.normalize` with its two parameters; the result as `dtype`."""

    epsilon: float
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size = x.shape[-1:]
        scale = self.param(
            "scale", partitioned(jax.nn.initializers.ones, "norm"), size, jnp.float32
        )
        bias = self.param("bias", partitioned(jax.nn.initializers.zeros, "norm"), size, jnp.float32)
        return ops.normalize(x, scale, bias, self.epsilon).astype(self.dtype)


def layer_norm(config: BertConfig, name: str = "layer_norm") -> LayerNorm:
    return LayerNorm(config.layer_norm_eps, config.compute_dtype, name=name)


class Table(nn.Module):
    """An embedding table [rows, H]; rows past `real_rows` are padding and start as zeros."""

    config: BertConfig
    rows: int
    axis: str
    real_rows: int | None = None

    def setup(self) -> None:
        normal = truncated_normal(self.config)
        real = self.rows if self.real_rows is None else self.real_rows

        def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            values = normal(key, shape, dtype)
            return jnp.where(jnp.arange(shape[0])[:, None] < real, values, 0)

        shape = (self.rows, self.config.hidden_size)
        self.embedding = self.param(
            "embedding", partitioned(init, self.axis, "embed"), shape, jnp.float32
        )

    def __call__(self, ids: jax.Array) -> jax.Array:
        """[...] int32 -> [..., H] float32. Ids are checked on the host, not here."""
        return jnp.take(self.embedding, ids, axis=0, mode="clip")


class Embeddings(nn.Module):
    """Sum of token, segment and position embeddings, then LayerNorm and dropout (figure 2)."""

    config: BertConfig

    def setup(self) -> None:
        c = self.config
        self.word_embeddings = Table(c, c.padded_vocab_size, "vocab", c.vocab_size)
        self.position_embeddings = Table(c, c.max_position_embeddings, "position")
        self.token_type_embeddings = Table(c, c.type_vocab_size, "token_type")
        self.layer_norm = layer_norm(c, name=None)
        self.dropout = Dropout(c.hidden_dropout)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        position_ids: jax.Array | None,
        deterministic: bool,
    ) -> jax.Array:
        length = input_ids.shape[-1]
        if position_ids is None:
            positions = self.position_embeddings.embedding[None, :length]
        else:
            positions = self.position_embeddings(position_ids)
        # A product with a one-hot row: the gradient of a gather from so few rows is a slow scatter.
        segments = jax.nn.one_hot(token_type_ids, self.config.type_vocab_size, dtype=jnp.float32)
        segments @= self.token_type_embeddings.embedding
        x = self.layer_norm(self.word_embeddings(input_ids) + segments + positions)
        return self.dropout(x, deterministic)


class SelfAttention(nn.Module):
    """Multi-head attention, output projection, dropout, residual and LayerNorm."""

    config: BertConfig
    attention_fn: attention.AttentionFn | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, attention_mask: jax.Array, deterministic: bool, want_attention: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        c = self.config

        def heads(name: str) -> jax.Array:  # [B, S, H] -> [B, S, A, K]
            projected = dense(c, c.hidden_size, ("embed", "heads"), name)(x)
            return projected.reshape(*x.shape[:-1], c.num_heads, c.head_size)

        query, key, value = heads("query"), heads("key"), heads("value")
        probabilities = None
        dropped = not deterministic and c.attention_dropout > 0.0
        dropout_key = self.make_rng("dropout") if dropped else None
        if want_attention:
            probabilities = attention.attention_probabilities(query, key, attention_mask)
        if self.attention_fn is None or want_attention:
            context = attention.attend_by_scores(
                query, key, value, attention_mask, c.attention_dropout, dropout_key
            )
        else:
            context = self.attention_fn(query, key, value, attention_mask)
        context = context.reshape(x.shape)  # [B, S, A, K] -> [B, S, H]
        context = dense(c, c.hidden_size, ("heads", "embed"), "output")(context)
        context = Dropout(c.hidden_dropout)(context, deterministic)
        return layer_norm(c)(x + context), probabilities if want_attention else None


class FeedForward(nn.Module):
    """Two linear layers with the activation between, dropout, residual and LayerNorm."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        c = self.config
        y = dense(c, c.intermediate_size, ("embed", "mlp"), "intermediate")(x)
        activation = ACTIVATIONS[c.hidden_act]
        y = dense(c, c.hidden_size, ("mlp", "embed"), "output", activation)(y)
        y = Dropout(c.hidden_dropout)(y, deterministic)
        return layer_norm(c)(x + y)


class EncoderLayer(nn.Module):
    """One transformer layer, in the shape that nn.scan wants: (carry, ...) -> (carry, output)."""

    config: BertConfig
    attention_fn: attention.AttentionFn | None = None
    deterministic: bool = True
    want_attention: bool = False
    want_hidden: bool = False

    @nn.compact
    def __call__(
        self, x: jax.Array, attention_mask: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array | None, jax.Array | None]]:
        x, probabilities = SelfAttention(self.config, self.attention_fn, name="attention")(
            x, attention_mask, self.deterministic, self.want_attention
        )
        x = FeedForward(self.config, name="mlp")(x, self.deterministic)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        return x, (x if self.want_hidden else None, probabilities)


def _check_range(name: str, ids: jax.Array | None, size: int) -> None:
    """ValueError for an id outside of 0..size-1, where the values are known."""
    if ids is None or isinstance(ids, jax.core.Tracer) or not ids.size:
        return
    if isinstance(ids, jax.Array) and not ids.is_fully_addressable:  # parts of other processes
        return
    values = np.asarray(ids)  # NumPy: inside of jit even known values become unknown by jnp.min
    least, most = int(values.min()), int(values.max())
    if least < 0 or most >= size:
        raise ValueError(
            f"{name} has {least if least < 0 else most}, which is not in 0..{size - 1}"
        )


class BertModel(nn.Module):
    """Embeddings, encoder and pooler.

    Args of the call:
        input_ids: [B, S] int32 in 0..V-1.
        token_type_ids: [B, S] int32; zeros if absent.
        attention_mask: [B, S] int32, see `bertjax.model.attention`; ones if absent.
        position_ids: [B, S] int32; the column index if absent.
        cls_positions: [B, N] int32, where the pooler looks; column 0 if absent.
        deterministic: no dropout. Otherwise the call needs the random stream 'dropout'.
        output_hidden_states, output_attentions: fill the fields of `BertOutput`. Attentions come
            from the einsum path.

    Raises:
        ValueError: S is larger than max_position_embeddings; or, outside of `jax.jit`, which sees
            no values, an id is not in the range of its table: XLA would take another row.
    """

    config: BertConfig
    attention_fn: attention.AttentionFn | None = None

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BertOutput:
        c = self.config
        shape = getattr(input_ids, "shape", "none: it is no array")
        if isinstance(shape, str) or len(shape) != 2:
            raise ValueError(f"input_ids is to be an array [B, S], but its shape is {shape}")
        if input_ids.shape[-1] > c.max_position_embeddings:
            raise ValueError(
                f"the input has {input_ids.shape[-1]} tokens a row but the model has only "
                f"max_position_embeddings={c.max_position_embeddings}"
            )
        _check_range("input_ids", input_ids, c.vocab_size)
        _check_range("token_type_ids", token_type_ids, c.type_vocab_size)
        _check_range("position_ids", position_ids, c.max_position_embeddings)
        if token_type_ids is None:
            token_type_ids = jnp.zeros_like(input_ids)
        if attention_mask is None:
            attention_mask = jnp.ones_like(input_ids)
        embed = Embeddings(c, name="embeddings")
        x = embed(input_ids, token_type_ids, position_ids, deterministic)
        x = nn.with_logical_constraint(x, ("batch", "length", None))
        hidden, attentions = [x[None]], []
        for name, layers in (
            ("frozen_encoder", c.frozen_layers),
            ("encoder", c.num_layers - c.frozen_layers),
        ):
            if layers:
                encoder = self._stack(layers, name, deterministic, output_hidden_states,
                                      output_attentions)  # fmt: skip
                x, (states, probabilities) = encoder(x, attention_mask)
                hidden.append(states)
                attentions.append(probabilities)
            if name == "frozen_encoder" and layers:
                x = jax.lax.stop_gradient(x)  # the backward pass ends here
        if cls_positions is None:
            first = x[:, :1]
        else:
            first = jnp.take_along_axis(x, cls_positions[..., None], axis=1)
        pooled = Pooler(c, name="pooler")(first)
        return BertOutput(
            x,
            pooled,
            jnp.concatenate(hidden) if output_hidden_states else None,
            jnp.concatenate(attentions) if output_attentions else None,
            embed.word_embeddings.embedding,
        )

    def _stack(
        self, layers: int, name: str, deterministic: bool, want_hidden: bool, want_attention: bool
    ) -> nn.Module:
        """`layers` encoder layers whose parameters are stacked on a leading axis 'layers'."""
        layer: Any = EncoderLayer
        if self.config.remat != "none":
            # Inside scan the loop itself keeps XLA from undoing the recomputation.
            layer = nn.remat(layer, policy=REMAT_POLICIES[self.config.remat], prevent_cse=False)
        scanned = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scanned(
            self.config, self.attention_fn, deterministic, want_attention, want_hidden, name=name
        )


class Pooler(nn.Module):
    """tanh of a linear layer over [CLS]: [B, N, H] -> [B, N, H]."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(
            dense(self.config, self.config.hidden_size, ("embed", "pooled"), "dense")(x)
        )
