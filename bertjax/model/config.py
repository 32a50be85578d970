"""The sizes and numerics of one model, checked, and the names that they choose among."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.model import ops

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": ops.gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
# What the backward pass recomputes beside what cheap operations recompute of themselves: nothing,
# all but matrix products, or every layer whole.
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}
# The embedding table is padded to a multiple of this many rows, for the hardware's tiles.
VOCAB_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and numerics of one model. `vocab_size` counts real tokens, without padding rows.

    Raises ValueError, naming field and value, for sizes that make no model.
    """

    vocab_size: int = 30522
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    dtype: str = "float32"
    remat: str = "none"
    # Which attention the train and evaluation steps give the model (bertjax.parallel.kernels).
    attention: str = "auto"
    # The lowest layers, with the embeddings, that training leaves alone (fine-tuning).
    frozen_layers: int = 0

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size",
            "max_position_embeddings", "type_vocab_size",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by num_heads={self.num_heads}"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must lie in [0, 1)")
        for name, known in (
            ("hidden_act", ACTIVATIONS), ("dtype", DTYPES), ("remat", REMAT_POLICIES),
            ("attention", ("auto", "einsum", "fused")),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(known)}")
        if not 0 <= self.frozen_layers <= self.num_layers:
            raise ValueError(
                f"frozen_layers={self.frozen_layers} must lie in 0..num_layers={self.num_layers}"
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def compute_dtype(self) -> Any:
        return DTYPES[self.dtype]
