"""Questions for the language model and the encoder: fill-mask, score, embed."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.api import Bert
from bertjax.data.tokenizer import CLS, SEP
from bertjax.errors import UserError
from bertjax.inference.batching import Limits, Progress, Row, by_text, make_rows, no_progress, run
from bertjax.model.bert import BertModel
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForPreTraining

# A share of [UNK] above this is warned of.
HIGH_UNKNOWN = 0.1
POOLINGS = ("mean", "cls", "pooled")


def check_texts(texts: Iterable[str], what: str = "text") -> list[str]:
    """The texts as a list.

    Raises:
        UserError: a single string; a text that is blank or no string, by its number.
    """
    if isinstance(texts, str | bytes):  # would be asked letter by letter
        raise UserError(f"give a list of {what}s, even of one: ['...'], not a single string.")
    texts = list(texts)  # by place: a pandas Series counts by its index
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{what} {number + 1} is {text!r}, which is no text; remove it.")
        if not text.strip():
            raise UserError(f"{what} {number + 1} is empty; remove it or fill it in.")
    return texts


def check_pairs(
    texts: Iterable[str],
    others: Iterable[str] | None,
    what: str = "text",
    other: str = "second text",
) -> tuple[list[str], Any]:
    """Both as lists, the second one None where it is; raises UserError where `check_texts` does or
    there are not as many of both."""
    texts = check_texts(texts, what)
    if others is None:
        return texts, None
    others = check_texts(others, other)
    if len(texts) != len(others):
        raise UserError(
            f"there are {len(texts)} {what}s but {len(others)} {other}s; give as many of both."
        )
    return texts, others


def encode(
    bert: Bert,
    texts: Sequence[str],
    warn: Callable[[str], None],
    special_tokens: bool | None = None,
    what: str = "text",
) -> list[list[int]]:
    """Ids of texts without [CLS] and [SEP]; warns of what looks wrong.

    Two things are warned of: [CLS] and [SEP] typed by hand, and a share of [UNK] that tells of a
    wrong vocabulary or casing.

    Raises:
        UserError: a text of which nothing is left, such as one of control characters alone.
    """
    tokenizer = bert.require_tokenizer()
    encoded = tokenizer.encode_batch(list(texts), special_tokens)
    for number, ids in enumerate(encoded):
        if not ids:
            raise UserError(f"{what} {number + 1} has no characters that a token stands for.")
    typed = [i + 1 for i, text in enumerate(texts) if CLS in text or SEP in text]
    if typed:
        warn(
            f"text {typed[0]}{f' and {len(typed) - 1} more' if typed[1:] else ''} has {CLS} or "
            f"{SEP} typed in it; they are put around every text, so leave them out"
        )
    tokens = sum(map(len, encoded))
    unknown = sum(ids.count(tokenizer.unk_id) for ids in encoded)
    if unknown > HIGH_UNKNOWN * tokens:
        casing = "lower-cased" if tokenizer.settings["do_lower_case"] else "cased"
        warn(
            f"{unknown} of {tokens} tokens are [UNK]: is this {casing} vocabulary meant for these "
            "texts?"
        )
    return encoded


@functools.cache
def _top_k(config: BertConfig, k: int) -> Callable[..., Any]:
    """Jitted: probabilities and ids of the k likeliest tokens, both [B, P, k]."""

    def forward(params: Any, batch: dict[str, jax.Array]) -> Any:
        logits, _ = _mlm(config, params, batch)
        return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), k)

    return jax.jit(forward)


@functools.cache
def _log_likelihoods(config: BertConfig) -> Callable[..., Any]:
    """Jitted: log-probability of each target, [B, P]."""

    def forward(params: Any, batch: dict[str, jax.Array]) -> Any:
        logits, _ = _mlm(config, params, batch)
        scores = jax.nn.log_softmax(logits, axis=-1)
        return jnp.take_along_axis(scores, batch["targets"][..., None], axis=-1)[..., 0]

    return jax.jit(forward)


def _mlm(config: BertConfig, params: Any, batch: dict[str, jax.Array]) -> Any:
    return BertForPreTraining(config).apply(
        {"params": params}, *inputs_of(batch), masked_positions=batch["columns"]
    )


def inputs_of(batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(batch[name] for name in ("input_ids", "token_type_ids", "attention_mask"))


@functools.cache
def _vectors(config: BertConfig, pooling: str, layers: tuple[int, ...]) -> Callable[..., Any]:
    """Jitted: [B, H], the sum over owned columns (mean), [CLS], or the pooler's output."""

    def forward(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        last = layers == (-1,)
        output = BertModel(config).apply(
            {"params": params}, *inputs_of(batch), output_hidden_states=not last
        )
        if pooling == "pooled":
            return output.pooled[:, 0].astype(jnp.float32)
        if last:
            hidden = output.sequence.astype(jnp.float32)
        else:
            states = output.hidden_states[jnp.array(layers)]
            hidden = states.astype(jnp.float32).mean(axis=0)
        if pooling == "cls":
            return hidden[:, 0]
        return jnp.einsum("bsh,bs->bh", hidden, batch["owned"].astype(jnp.float32))

    return jax.jit(forward)


def fill_mask(
    bert: Bert,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """The likeliest tokens for every [MASK] in each text, in order of the texts.

    Yields {'text': ..., 'masks': [[{'token', 'probability'}, ... top_k], ... one a mask]}.
    Probabilities are over the real vocabulary and each mask's alone (the others stay masked).

    Raises:
        UserError: no MLM head, an empty text, a text without [MASK], top_k out of range.
    """
    bert.require_head("mlm")
    tokenizer = bert.require_tokenizer()
    if not isinstance(top_k, Integral) or not 1 <= top_k <= bert.config.vocab_size:
        raise UserError(f"top_k is {top_k}; it must be 1 to {bert.config.vocab_size}.")
    texts = check_texts(texts)
    rows = make_rows(bert, encode(bert, texts, warn, True), Limits.checked(bert, limits))
    for row in rows:
        row.columns = [c for c in range(*row.owned) if row.ids[c] == tokenizer.mask_id]
    masked = {row.text for row in rows if row.columns}
    for number, text in enumerate(texts):
        if number not in masked:
            raise UserError(f"text {number + 1} has no [MASK]: '{text[:60]}'.")
    rows = [row for row in rows if row.columns]
    results = run(bert, bert.params, rows, _top_k(bert.config, top_k), progress, len(rows))
    for text, group in zip(texts, by_text(results, len(texts)), strict=True):
        masks = [
            [
                {"token": tokenizer.vocab[i], "probability": float(p)}
                for p, i in zip(probabilities[place], ids[place], strict=True)
            ]
            for row, (probabilities, ids) in group
            for place in range(len(row.columns))
        ]
        yield {"text": text, "masks": masks}


def score(
    bert: Bert,
    texts: Sequence[str],
    *,
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """Pseudo-log-likelihood of each text: each token masked in turn (Salazar et al. 2020, eq. 1).

    Yields {'text', 'log_likelihood' (natural logarithm, summed over tokens), 'tokens'}. Special
    tokens are not scored.

    Raises:
        UserError: no MLM head or an empty text.
    """
    bert.require_head("mlm")
    tokenizer = bert.require_tokenizer()
    texts = check_texts(texts)
    encoded = encode(bert, texts, warn)
    special = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for number, ids in enumerate(encoded):
        if special.issuperset(ids):
            raise UserError(f"text {number + 1} has no token to score but special ones.")
    total = sum(i not in special for ids in encoded for i in ids)

    def masked_rows() -> Iterator[Row]:
        for row in make_rows(bert, encoded, Limits.checked(bert, limits)):
            for column in range(*row.owned):
                target = row.ids[column]
                if target not in special:
                    ids = [*row.ids[:column], tokenizer.mask_id, *row.ids[column + 1 :]]
                    yield dataclasses.replace(row, ids=ids, columns=[column], targets=[target])

    results = run(bert, bert.params, masked_rows(), _log_likelihoods(bert.config), progress, total)
    for text, group in zip(texts, by_text(results, len(texts)), strict=True):
        likelihoods = [float(values[0]) for _, values in group]
        yield {"text": text, "log_likelihood": math.fsum(likelihoods), "tokens": len(likelihoods)}


def embed(
    bert: Bert,
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    layers: Sequence[int] = (-1,),
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[np.ndarray]:
    """A vector [H] float32 of each text, in order.

    Args:
        pooling: 'mean' over the row's tokens, [CLS] and [SEP] among them; 'cls', the state of
            [CLS]; 'pooled', the pooler's output. A long text is cut into windows: 'mean' counts
            every token once, the others give the mean over windows.
        layers: the layers whose mean is pooled: 0 the embeddings, L or -1 the last.

    Raises:
        UserError: an empty text, an unknown pooling or layer, no pooler.
    """
    depth = bert.config.num_layers
    if pooling not in POOLINGS:
        raise UserError(f"pooling is '{pooling}'; it must be one of {', '.join(POOLINGS)}.")
    numbers = isinstance(layers, Sequence) and all(isinstance(x, Integral) for x in layers)
    if not numbers or not len(layers):
        raise UserError(f"layers is {layers!r}; give the numbers of layers, as in (-1,).")
    for layer in layers:
        if not -depth - 1 <= layer <= depth:
            raise UserError(f"layer {layer} is not there; the model has 0 (embeddings) to {depth}.")
    layers = tuple(-1 if layer == depth else layer for layer in layers)
    if pooling == "pooled" and (not bert.has_pooler or layers != (-1,)):
        why = "sees the last layer only" if bert.has_pooler else "did not come with the checkpoint"
        raise UserError(f"pooling is 'pooled', but the pooler {why}; choose mean or cls.")
    texts = check_texts(texts)
    rows = make_rows(bert, encode(bert, texts, warn), Limits.checked(bert, limits))
    for row, following in zip(rows, [*rows, None][1:], strict=True):
        first = 0 if row.owned[0] == 1 else row.owned[0]  # [CLS] and [SEP] of the outer windows
        last = following is None or following.text != row.text
        row.owned = (first, row.owned[1] + last)
    forward = _vectors(bert.config, pooling, layers)
    results = run(bert, bert.encoder_params, rows, forward, progress, len(rows))
    for group in by_text(results, len(texts)):
        total = np.sum([vector for _, vector in group], axis=0, dtype=np.float64)
        count = len(group)
        if pooling == "mean":
            count = sum(row.owned[1] - row.owned[0] for row, _ in group)
        yield (total / count).astype(np.float32)


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Cosine similarity of every two rows: [N, H] -> [N, N]."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T
