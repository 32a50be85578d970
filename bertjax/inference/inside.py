"""What happens inside the encoder: attention weights and hidden states of every layer."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.api import Bert
from bertjax.errors import UserError
from bertjax.inference.batching import Row, batch_of
from bertjax.inference.language import check_pairs, encode, inputs_of
from bertjax.model.bert import BertModel
from bertjax.model.config import BertConfig


@dataclasses.dataclass(frozen=True)
class Inside:
    """Attention and hidden states of B texts, the longest of S tokens.

    A row of fewer tokens is filled up with zeros, in all arrays: `len(tokens[i])` says how many
    are real, and `text(i)` gives one text without any filling.

    Attributes:
        attentions: for each layer, from the lowest, float32 [B, A, S, S]: the weight with which a
            token (third axis) attends to another (last axis). Rows of real tokens sum to one.
        hidden_states: the embeddings, then for each layer, float32 [B, S, H].
        tokens: for each text, the tokens with [CLS] and [SEP].
        second: for each text, the column where the second text of a pair begins, None without one.
    """

    attentions: tuple[np.ndarray, ...]
    hidden_states: tuple[np.ndarray, ...]
    tokens: list[list[str]]
    second: list[int | None]

    def text(self, number: int) -> Inside:
        """One text alone (B = 1), of exactly its own length."""
        size, row = len(self.tokens[number]), slice(number, number + 1)
        return Inside(
            tuple(weights[row, :, :size, :size] for weights in self.attentions),
            tuple(states[row, :size] for states in self.hidden_states),
            [self.tokens[number]],
            [self.second[number]],
        )


@functools.cache
def _encoder(config: BertConfig) -> Callable[..., Any]:
    """Jitted: attentions [L, B, A, S, S] and hidden states [L + 1, B, S, H], float32."""

    def forward(params: Any, batch: dict[str, jax.Array]) -> Any:
        output = BertModel(config).apply(
            {"params": params},
            *inputs_of(batch),
            output_attentions=True,
            output_hidden_states=True,
        )
        return (
            output.attentions.astype(jnp.float32),
            output.hidden_states.astype(jnp.float32),
        )

    return jax.jit(forward)


def pair_rows(
    bert: Bert,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    warn: Callable[[str], None] = warnings.warn,
) -> list[Row]:
    """[CLS] text [SEP], or [CLS] text [SEP] second text [SEP], of any length.

    Raises:
        UserError: an empty text, or not as many second texts as texts.
    """
    tokenizer = bert.require_tokenizer()
    texts, pairs = check_pairs(texts, pairs)
    first = encode(bert, texts, warn)
    second: Sequence[list[int] | None] = [None] * len(texts)
    if pairs is not None:
        second = encode(bert, pairs, warn, what="second text")
    rows = []
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id]
        rows.append(Row(number, ids if b is None else [*ids, *b, tokenizer.sep_id], len(ids)))
    return rows


def look_inside(bert: Bert, rows: Sequence[Row]) -> Inside:
    """Attention and hidden states of rows of token ids, one after the other.

    Raises:
        UserError: no row, or one longer than the model's position table.
    """
    if not rows:
        raise UserError("there is no text to look at; give at least one.")
    most = bert.config.max_position_embeddings
    for row in rows:
        if len(row.ids) > most:
            raise UserError(
                f"text {row.text + 1} has {len(row.ids)} tokens with [CLS] and [SEP], more than "
                f"the model's {most}; shorten it: attention is shown of whole texts only."
            )
    precision = "highest" if bert.config.dtype == "float32" else "default"
    forward, found = _encoder(bert.config), []
    for row in rows:  # each alone: the arrays of a batch of long texts are gigabytes
        with jax.default_matmul_precision(precision):
            outputs = forward(bert.encoder_params, batch_of([row], most))
        weights, states = jax.device_get(outputs)
        size = len(row.ids)
        found.append((weights[:, 0, :, :size, :size], states[:, 0, :size]))
    longest = max(len(row.ids) for row in rows)
    depth, heads, hidden = found[0][0].shape[0], found[0][0].shape[1], found[0][1].shape[-1]
    attentions = np.zeros((depth, len(rows), heads, longest, longest), np.float32)
    hidden_states = np.zeros((depth + 1, len(rows), longest, hidden), np.float32)
    for number, (weights, states) in enumerate(found):
        size = states.shape[1]
        attentions[:, number, :, :size, :size] = weights
        hidden_states[:, number, :size] = states
    vocab = bert.require_tokenizer().vocab
    return Inside(
        tuple(attentions),
        tuple(hidden_states),
        [[vocab[i] for i in row.ids] for row in rows],
        [row.second if row.second < len(row.ids) else None for row in rows],
    )


def attentions(
    bert: Bert,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    warn: Callable[[str], None] = warnings.warn,
) -> Inside:
    """Attention weights and hidden states of every layer for texts, or for pairs of texts.

    The values are those of the ordinary forward pass without dropout, computed by einsum.

    Raises:
        UserError: no vocabulary, an empty text, or one longer than the model's position table.
    """
    return look_inside(bert, pair_rows(bert, texts, pairs, warn=warn))
