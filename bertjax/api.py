"""bertjax from Python: `bertjax.load(path)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax import interop
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.interop.published import Published
from bertjax.model.bert import BertModel
from bertjax.model.config import BertConfig
from bertjax.model.heads import (
    BertForClassification,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTagging,
)

if TYPE_CHECKING:
    from bertjax.inference import Inside


@dataclasses.dataclass(frozen=True)
class Bert:
    """A checkpoint that is ready to compute.

    Attributes:
        model: a Linen module of `bertjax.model`: the encoder with the head that the checkpoint
            has, or `BertModel`, the encoder alone.
        params: its parameters, on the default device: `model.apply({"params": params}, ...)`.
        tokenizer: None where the checkpoint comes without a vocabulary.
        config: the sizes and numerics of the model.
        published: the checkpoint as it was read: heads, labels, coverage, notes.
    """

    model: nn.Module
    params: Any
    tokenizer: Tokenizer | None
    config: BertConfig
    published: Published

    @property
    def encoder_params(self) -> Any:
        """Parameters of `BertModel(config)`."""
        return self.params if isinstance(self.model, BertModel) else self.params["bert"]

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises UserError where there is none."""
        if self.tokenizer is None:
            raise UserError(
                f"{self.published.source} has no vocabulary (vocab.txt or tokenizer.json); put it "
                "into its folder."
            )
        return self.tokenizer

    def require_head(self, head: str) -> None:
        """Raises UserError where the checkpoint has no such head."""
        if head not in self.published.heads:
            has = ", ".join(self.published.heads) or "none"
            raise UserError(
                f"{self.published.source} has no {head} head (it has: {has}), which this needs."
            )

    @property
    def has_pooler(self) -> bool:
        """Whether the pooler came with the checkpoint."""
        return "pooler" in self.published.params["bert"]

    def attentions(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Inside:
        """`inference.attentions`: weights and hidden states of every layer, for each text.

        inside = bertjax.load("runs/tiny").attentions(["The cat sat on the mat."])
        inside.attentions[3][0, 7]  # layer 4, head 8: [S, S]
        """
        from bertjax import inference  # which imports this module

        return inference.attentions(self, texts, pairs)


def _module(published: Published, config: BertConfig) -> nn.Module:
    """The module for the heads that the checkpoint has."""
    heads = published.heads
    if "classifier" in heads or "tagger" in heads:
        kind = BertForClassification if "classifier" in heads else BertForTagging
        return kind(config, len(published.labels or ()))
    if "span" in heads:
        return BertForQuestionAnswering(config)
    return BertForPreTraining(config) if heads else BertModel(config)


def _filled(abstract: Any, given: Any) -> Any:
    """`given` in the structure of `abstract`; zeros for what a checkpoint does not have."""
    if isinstance(abstract, dict):
        given = given or {}
        return {key: _filled(leaf, given.get(key)) for key, leaf in abstract.items()}
    return jnp.zeros(abstract.shape, jnp.float32) if given is None else jnp.asarray(given)


def prepare(published: Published, dtype: str = "float32") -> Bert:
    """A `Bert` from a checkpoint in memory."""
    try:
        config = published.bert_config(dtype=dtype)
    except ValueError as error:
        raise UserError(f"{published.source}: {error}") from error
    model = _module(published, config)
    ids = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    boxed = jax.eval_shape(model.init, jax.random.key(0), ids)
    abstract = nn.meta.unbox(boxed)["params"]
    given = published.params["bert"] if isinstance(model, BertModel) else published.params
    return Bert(model, _filled(abstract, given), published.tokenizer, config, published)


def load(path: str, *, step: int | None = None, dtype: str = "float32") -> Bert:
    """Read a checkpoint of any kind and make its model.

        bert = bertjax.load("runs/tiny")
        ids = np.array([bert.tokenizer.encode("hello world").ids])
        mlm_logits, nsp_logits = bert.model.apply({"params": bert.params}, ids)

    A head or pooler that a module of `bertjax.model` has and the checkpoint has not is filled with
    zeros: `published.heads` and `has_pooler` say what is real.

    Args:
        path: a workdir or one of its steps, a Hugging Face folder or hub name, a Google TF1
            prefix, .index file or folder.
        step: which step of a workdir; None takes the best if one is kept, else the last.
        dtype: of the computation, float32, bfloat16 or float16; parameters stay float32.

    Raises:
        UserError: nothing readable is there, or its files are damaged or contradict each other.
    """
    return prepare(interop.read_checkpoint(path, step), dtype)
