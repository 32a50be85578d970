"""Dynamic masking for the masked language model: a pure function of (tokens, key).

It runs inside the jitted step, so the host pays nothing for it, and the same function serves
training (the key is folded with the epoch), evaluation (a fixed key: the same masks at every
evaluation) and tests. The choice for a row depends on its tokens, the key and the row's
(epoch, index) alone: not on the batch, the process or the device it happens to be on.

Source: Devlin et al. 2019, section 3.1 and appendix A.1; whole words as in the 2019 update of
the reference release.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import UserError


def mask_counts(length: int, rate: float, limit: int) -> np.ndarray:
    """The number of tokens to mask, k, for each number of real tokens n in 0..length.

    k = min(limit, max(1, round(rate * n))), and 0 for n = 0. [CLS] and [SEP] count in n, [PAD]
    does not. The product is exact (0.15 is 15/100) and halves round to even, as in the
    reference; in float32 n = 190, 350 and 390 would be off by one.

    Returns:
      int32 [length + 1].
    """
    if not 0 < rate < 1:
        raise UserError(f"mask_rate is {rate}; it must lie between 0 and 1, for instance 0.15")
    if limit < 1:
        raise UserError(f"max_predictions is {limit}; it must be at least 1")
    exact = Fraction(str(float(rate)))
    counts = [min(limit, max(1, round(exact * n))) for n in range(length + 1)]
    counts[0] = 0
    return np.array(counts, np.int32)


def mask_tokens(
    input_ids: jax.Array,
    attention_mask: jax.Array,
    example: jax.Array,
    key: jax.Array,
    *,
    counts: np.ndarray,
    special_ids: Sequence[int],
    mask_id: int,
    vocab_size: int,
    replace: tuple[float, float, float] = (0.8, 0.1, 0.1),
    continues: jax.Array | None = None,
) -> dict[str, jax.Array]:
    """Choose the tokens to predict and replace them, anew for each (key, epoch, index).

    Of n real tokens k = counts[n] are chosen, never a special one; fewer where a row has fewer
    candidates, none where it has none. Each chosen token, by a draw of its own, becomes [MASK],
    a random token or stays, with the probabilities of `replace`.

    With `continues` whole words are chosen. Words are tried in random order and one that no
    longer fits into what is left of k is skipped, so a word is never masked in part, k is never
    exceeded and a word of more than k pieces is never chosen. The replacement is still drawn
    for each piece. A piece at the start of a segment that was cut inside a word counts as the
    start of a word.

    Args:
      input_ids: [B, S] int32.
      attention_mask: [B, S] int32, 0 = padding.
      example: [B, 2] uint32, (epoch, index) of each row.
      key: a threefry key. (With the 'rbg' generators a row would depend on the batch.)
      counts: the table of `mask_counts`; its maximum is P.
      special_ids: ids that are never chosen and never drawn as a random token.
      mask_id: the id of [MASK].
      vocab_size: real entries of the vocabulary, without padding rows.
      replace: probabilities of [MASK], of a random token and of no change.
      continues: [B, S] bool, whether a token continues the word of the token before it.

    Returns:
      input_ids [B, S] with replacements; masked_positions [B, P] int32, ascending;
      masked_labels [B, P] int32, the original ids; masked_weights [B, P] float32. Where the
      weight is 0, position and label are 0.
    """
    if len(replace) != 3 or min(replace) < 0 or abs(sum(replace) - 1) > 1e-6:
        raise UserError(f"replace is {replace}; give three probabilities that add up to 1")
    special = np.unique(np.asarray(special_ids, np.int32))
    ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), special)
    size, length = int(np.max(counts)), input_ids.shape[1]

    def mask_row(ids, mask, which, joined):
        row_key = jax.random.fold_in(jax.random.fold_in(key, which[0]), which[1])
        choice, replacement, draw = jnp.split(
            jax.random.bits(row_key, (length + 2 * size,)), [length, length + size]
        )
        real = mask > 0
        candidate = real & (ids[:, None] != special).all(-1)
        budget = jnp.asarray(counts)[real.sum()]
        if joined is None:
            positions = _choose_tokens(choice, candidate, budget, size)
        else:
            positions = _choose_words(choice, candidate, joined, budget, size)

        chosen = positions < length
        labels = ids.at[positions].get(mode="fill", fill_value=0)
        random_ids = jnp.asarray(ordinary)[draw % len(ordinary)]
        share = (replacement >> 8) * jnp.float32(2**-24)  # uniform in [0, 1)
        new = jnp.where(share < replace[0] + replace[1], random_ids, labels)
        new = jnp.where(share < replace[0], mask_id, new)
        return {
            "input_ids": ids.at[positions].set(new, mode="drop"),
            "masked_positions": jnp.where(chosen, positions, 0),
            "masked_labels": labels,
            "masked_weights": chosen.astype(jnp.float32),
        }

    # One row at a time under vmap: every gather and scatter stays within its row, so that the
    # batch can be cut over devices without communication.
    in_axes = (0, 0, 0, None if continues is None else 0)
    return jax.vmap(mask_row, in_axes)(input_ids, attention_mask, example, continues)


def _random_order(bits: jax.Array, first: jax.Array) -> jax.Array:
    """The indices 0..S-1, those where `first` holds in random order before all others.

    Random bits and index share one word, so that one plain sort does it: several times as fast
    as an argsort or top_k on CPUs. Two of S entries tie once in some millions.
    """
    index = jnp.arange(bits.shape[0], dtype=jnp.uint32)
    low = jnp.uint32((1 << max(1, (bits.shape[0] - 1).bit_length())) - 1)
    words = jnp.where(first, bits >> 1 & ~low, ~low) | index
    return (jnp.sort(words) & low).astype(jnp.int32)


def _choose_tokens(
    bits: jax.Array, candidate: jax.Array, budget: jax.Array, size: int
) -> jax.Array:
    """Ascending positions [size] of `budget` random candidates; S where there is no more."""
    length = bits.shape[0]
    positions = _random_order(bits, candidate)[:size]
    taken = jnp.arange(len(positions)) < jnp.minimum(budget, candidate.sum())
    positions = jnp.sort(jnp.where(taken, positions, length))
    return jnp.pad(positions, (0, size - len(positions)), constant_values=length)


def _choose_words(
    bits: jax.Array, candidate: jax.Array, continues: jax.Array, budget: jax.Array, size: int
) -> jax.Array:
    """Ascending positions [size] of random whole words of together at most `budget` tokens."""
    length = bits.shape[0]
    index = jnp.arange(length)
    inside = continues & candidate & jnp.roll(candidate, 1).at[0].set(False)
    # The first token of each token's word, and where the next word (or a gap) begins.
    first = jax.lax.cummax(jnp.where(inside, 0, index))
    following = jnp.append(jnp.where(inside, length, index)[1:], length)
    end = jax.lax.cummin(following, reverse=True)

    # Words stand for their first tokens; what is no start of a word comes last, with size 0.
    starts = candidate & ~inside
    order = _random_order(bits, starts)
    sizes = jnp.where(starts, end - index, 0)[order]
    taken = jnp.zeros(length, bool).at[order].set(_greedy_fill(sizes, budget) & (sizes > 0))
    chosen = candidate & taken[first]
    positions = jnp.sort(jnp.where(chosen, index, length))[:size]
    return jnp.pad(positions, (0, size - len(positions)), constant_values=length)


def _greedy_fill(sizes: jax.Array, budget: jax.Array) -> jax.Array:
    """Which items fit, [W] bool, if each is taken in turn unless it exceeds what is left.

    Without a loop over items: all items are assumed to be taken up to the first that does not
    fit; every later one that is larger than what is left there is out for good. That repeats
    until nothing is too much, at most as many times as the largest item is long.
    """

    def too_much(kept):
        return (jnp.cumsum(jnp.where(kept, sizes, 0)) > budget) & kept

    def drop(kept):
        over = too_much(kept)
        reached = jnp.cumsum(over) > 0  # from the first item that does not fit on
        left = budget - jnp.sum(jnp.where(kept & ~reached, sizes, 0))
        return kept & ~(reached & (sizes > left))

    return jax.lax.while_loop(lambda kept: too_much(kept).any(), drop, jnp.ones(sizes.shape, bool))
