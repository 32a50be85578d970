"""What stands on the encoder: MLM and NSP for pretraining, and the fine-tuning heads.

Letters as in `bertjax.model.bert`; P masked positions a row, C classes, N segment pairs a row.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.model.attention import AttentionFn
from bertjax.model.bert import (
    ACTIVATIONS,
    BertConfig,
    BertModel,
    Dropout,
    dense,
    layer_norm,
    partitioned,
)

# Added to the logits of vocabulary rows that only pad the table: no probability, no NaN.
PADDED_LOGIT = -1e30


class MaskedLMHead(nn.Module):
    """Transform, LayerNorm and the decoder tied to the word embedding (appendix A of the paper)."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        """[B, P, H], [V padded, H] -> logits [B, P, V padded] in float32."""
        c = self.config
        x = dense(c, c.hidden_size, ("embed", "transform"), "dense")(hidden)
        x = layer_norm(c)(ACTIVATIONS[c.hidden_act](x))
        bias = self.param(
            "bias",
            partitioned(jax.nn.initializers.zeros, "vocab"),
            (c.padded_vocab_size,),
            jnp.float32,
        )
        bias = jnp.where(jnp.arange(c.padded_vocab_size) < c.vocab_size, bias, PADDED_LOGIT)
        logits = jnp.einsum(
            "bph,vh->bpv", x, embedding.astype(x.dtype), preferred_element_type=jnp.float32
        )
        return logits + bias


class Linear(nn.Module):
    """Dropout and one linear layer to a few outputs, in float32."""

    config: BertConfig
    outputs: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        x = Dropout(self.dropout)(x, deterministic)
        return dense(self.config, self.outputs, ("embed", "classes"), "dense")(x).astype(
            jnp.float32
        )


class BertForPreTraining(nn.Module):
    """The encoder with the MLM and NSP heads.

    The call takes `BertModel`'s inputs and
        masked_positions: [B, P] int32, the columns that the MLM head scores; all if absent.
        nsp_positions: [B, N] int32, the columns of [CLS]; column 0 if absent.

    Returns (mlm_logits [B, P, V padded] float32, nsp_logits [B, N, 2] float32). NSP class 0 is
    "B follows A", class 1 "B is random"; without `nsp` there is no such head and None stands for
    its logits. Vocabulary rows that only pad the table get a logit of about -1e30.
    """

    config: BertConfig
    attention_fn: AttentionFn | None = None
    nsp: bool = True

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array | None = None,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        *,
        masked_positions: jax.Array | None = None,
        nsp_positions: jax.Array | None = None,
        deterministic: bool = True,
    ) -> tuple[jax.Array, jax.Array | None]:
        output = BertModel(self.config, self.attention_fn, name="bert")(
            input_ids, token_type_ids, attention_mask, position_ids,
            cls_positions=nsp_positions, deterministic=deterministic,
        )  # fmt: skip
        hidden = output.sequence
        if masked_positions is not None:
            hidden = jnp.take_along_axis(hidden, masked_positions[..., None], axis=1)
        mlm_logits = MaskedLMHead(self.config, name="mlm")(hidden, output.word_embedding)
        if not self.nsp:
            return mlm_logits, None
        return mlm_logits, Linear(self.config, 2, name="nsp")(output.pooled, deterministic)


class BertForClassification(nn.Module):
    """Sentence or pair: dropout and a linear layer over the pooled [CLS] -> [B, C] float32.

    C = 1 is regression. `cls_dropout` None means the encoder's hidden dropout.
    """

    config: BertConfig
    num_classes: int
    attention_fn: AttentionFn | None = None
    cls_dropout: float | None = None

    @nn.compact
    def __call__(self, *inputs: jax.Array, deterministic: bool = True) -> jax.Array:
        output = BertModel(self.config, self.attention_fn, name="bert")(
            *inputs, deterministic=deterministic
        )
        rate = self.config.hidden_dropout if self.cls_dropout is None else self.cls_dropout
        head = Linear(self.config, self.num_classes, rate, name="classifier")
        return head(output.pooled[:, 0], deterministic)


class BertForTagging(nn.Module):
    """One label a token: dropout and a linear layer over every position -> [B, S, C] float32."""

    config: BertConfig
    num_classes: int
    attention_fn: AttentionFn | None = None

    @nn.compact
    def __call__(self, *inputs: jax.Array, deterministic: bool = True) -> jax.Array:
        output = BertModel(self.config, self.attention_fn, name="bert")(
            *inputs, deterministic=deterministic
        )
        head = Linear(self.config, self.num_classes, self.config.hidden_dropout, name="tagger")
        return head(output.sequence, deterministic)


class BertForQuestionAnswering(nn.Module):
    """Start and end of an answer: a linear layer over every position -> two [B, S] float32."""

    config: BertConfig
    attention_fn: AttentionFn | None = None

    @nn.compact
    def __call__(
        self, *inputs: jax.Array, deterministic: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        output = BertModel(self.config, self.attention_fn, name="bert")(
            *inputs, deterministic=deterministic
        )
        logits = Linear(self.config, 2, name="span")(output.sequence, deterministic)
        return logits[..., 0], logits[..., 1]
