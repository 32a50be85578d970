"""Masking against the reference's counts, a plain greedy loop and its own invariants."""

import functools

import jax
import numpy as np
import pytest

from bertjax.data.masking import _greedy_fill, mask_counts, mask_tokens
from bertjax.errors import UserError

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = (PAD, UNK, CLS, SEP, MASK)
VOCAB = 50
SHORT = ((3, 1), (10, 2), (14, 2), (17, 3), (20, 3), (30, 4), (32, 5))


@functools.cache
def compiled(**settings):
    """The jitted function of one setting, so that equal shapes compile once."""
    counts = np.array(settings.pop("counts"), np.int32)
    settings = dict(special_ids=SPECIAL, mask_id=MASK, vocab_size=VOCAB) | settings

    def run(ids, attention, example, key, continues):
        return mask_tokens(
            ids, attention, example, key, counts=counts, continues=continues, **settings
        )

    return jax.jit(run)


def mask(ids, *, example=None, attention=None, key=0, counts=None, continues=None, **settings):
    ids = np.atleast_2d(np.asarray(ids, np.int32))
    attention = (ids != PAD).astype(np.int32) if attention is None else attention
    example = np.zeros((len(ids), 2), np.uint32) if example is None else example
    counts = mask_counts(ids.shape[1], 0.15, 20) if counts is None else counts
    run = compiled(counts=tuple(counts.tolist()), **settings)
    out = run(ids, attention, example, jax.random.key(key), continues)
    return {name: np.asarray(value) for name, value in out.items()}


def examples(count, epoch=0):
    return np.stack([np.full(count, epoch), np.arange(count)], 1).astype(np.uint32)


def pair_rows(count, length=32, real=25):
    """Padded two-segment rows of ordinary ids."""
    ids = np.random.default_rng(0).integers(5, VOCAB, (count, length)).astype(np.int32)
    ids[:, 0], ids[:, 11], ids[:, real - 1], ids[:, real:] = CLS, SEP, SEP, PAD
    return ids


@pytest.mark.parametrize(
    ("n", "k"),
    [*SHORT, (128, 19), (190, 28), (350, 52), (390, 58), (512, 77)],
)
def test_counts_are_those_of_the_reference(n, k):
    assert mask_counts(512, 0.15, 512)[n] == k
    assert mask_counts(512, 0.15, 20)[n] == min(k, 20)
    assert mask_counts(512, 0.15, 76)[n] == min(k, 76)


def test_counts_are_at_least_one_and_zero_only_for_nothing():
    counts = mask_counts(12, 0.15, 20)
    assert counts.dtype == np.int32
    assert counts.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(("rate", "limit"), [(0.0, 20), (1.0, 20), (0.15, 0)])
def test_counts_refuse_senseless_settings(rate, limit):
    with pytest.raises(UserError, match=str(rate) if limit else str(limit)):
        mask_counts(8, rate, limit)


def test_a_thousand_draws_choose_distinct_sorted_ordinary_positions():
    ids = np.repeat(pair_rows(1), 1000, 0)
    out = mask(ids, example=examples(1000))
    positions, weights = out["masked_positions"], out["masked_weights"]
    assert positions.shape == (1000, 5) and (weights[:, :4] == 1).all()  # 25 real tokens: 4
    assert (weights[:, 4] == 0).all() and (positions[:, 4] == 0).all()
    chosen = positions[:, :4]
    assert (np.diff(chosen, axis=1) > 0).all()
    original = np.take_along_axis(ids, chosen, 1)
    assert not np.isin(original, SPECIAL).any()
    assert (out["masked_labels"][:, :4] == original).all()
    untouched = np.ones_like(ids, bool)
    np.put_along_axis(untouched, chosen, False, 1)
    assert (out["input_ids"] == ids)[untouched].all()
    # Every ordinary position has the same chance: 4 of 22, within 5 standard deviations.
    shares = np.bincount(chosen.ravel(), minlength=32)[(ids[0] >= 5)] / 1000
    assert np.abs(shares - 4 / 22).max() < 5 * np.sqrt(4 / 22 * 18 / 22 / 1000)


def test_replacements_are_80_10_10_and_never_special():
    ids = np.full((8000, 128), 7, np.int32)
    out = mask(ids, example=examples(8000), attention=np.ones_like(ids))
    weights = out["masked_weights"] > 0
    new = np.take_along_axis(out["input_ids"], out["masked_positions"], 1)[weights]
    assert len(new) == 8000 * 19 > 100_000
    share_masked = (new == MASK).mean()
    drawn = new[(new != MASK) & (new != 7)]  # a random id is 7 once in 45
    assert abs(share_masked - 0.8) < 0.01
    assert abs(len(drawn) / len(new) - 0.1 * 44 / 45) < 0.01
    assert abs((new == 7).mean() - 0.1 - 0.1 / 45) < 0.01
    assert set(drawn) == set(range(5, VOCAB)) - {7}
    counts = np.bincount(drawn, minlength=VOCAB)[[i for i in range(5, VOCAB) if i != 7]]
    assert counts.min() > 0.7 * counts.mean() and counts.max() < 1.3 * counts.mean()


def test_masks_depend_on_key_epoch_and_index_alone():
    ids = pair_rows(64)
    whole = mask(ids, example=examples(64))
    again = mask(ids, example=examples(64))
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name])
        for row in (0, 17, 63):  # alone in its batch
            alone = mask(ids[row], example=examples(64)[row : row + 1])
            np.testing.assert_array_equal(alone[name][0], whole[name][row])
    for other in (mask(ids, example=examples(64, epoch=1)), mask(ids, example=examples(64), key=1)):
        differ = (other["masked_positions"] != whole["masked_positions"]).any(1)
        assert differ.mean() > 0.95
    positions = whole["masked_positions"][:, :4]
    assert len(np.unique(positions, axis=0)) > 60


def test_masks_are_the_same_on_eight_devices():
    ids, which = pair_rows(64), examples(64)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    settings = dict(counts=mask_counts(32, 0.15, 20), special_ids=SPECIAL)
    settings |= dict(mask_id=MASK, vocab_size=VOCAB)
    continues = np.zeros_like(ids, bool)
    continues[:, 5:8] = True

    def run(*arrays):
        plain = mask_tokens(*arrays[:3], jax.random.key(0), **settings)
        words = mask_tokens(*arrays[:3], jax.random.key(0), continues=arrays[3], **settings)
        return plain, words

    arrays = [ids, (ids != PAD).astype(np.int32), which, continues]
    one = jax.jit(run)(*arrays)
    eight = jax.jit(run)(*jax.device_put(arrays, rows))
    jax.tree.map(np.testing.assert_array_equal, one, eight)


def test_a_row_without_candidates_predicts_nothing():
    for continues in (None, np.zeros((2, 16), bool)):
        ids = np.array([[CLS, SEP] + [PAD] * 14, [CLS, 9, SEP] + [PAD] * 13])
        out = mask(ids, example=examples(2), continues=continues)
        assert out["masked_weights"].tolist() == [[0, 0], [1, 0]]
        assert out["masked_positions"].tolist() == [[0, 0], [1, 0]]
        assert out["masked_labels"].tolist() == [[0, 0], [9, 0]]
        assert out["input_ids"][0].tolist() == ids[0].tolist()


def test_more_predictions_than_tokens():
    out = mask([CLS, 8, 9, SEP], counts=np.array([0, 1, 2, 3, 6], np.int32))
    assert out["masked_positions"].tolist() == [[1, 2, 0, 0, 0, 0]]
    assert out["masked_weights"].sum() == 2


def test_whole_words_of_the_small_example():
    """[CLS] un ##aff ##able dog [SEP] at rate 0.5: either the dog or the whole other word."""
    ids = np.repeat([[CLS, 10, 11, 12, 13, SEP]], 400, 0)
    continues = np.repeat([[False, False, True, True, False, False]], 400, 0)
    half = mask_counts(6, 0.5, 20)
    out = mask(ids, example=examples(400), counts=half, continues=continues)
    chosen = {
        tuple(row[weight > 0])
        for row, weight in zip(out["masked_positions"], out["masked_weights"], strict=True)
    }
    assert chosen == {(4,), (1, 2, 3)}
    # At rate 0.15 one token may be chosen, so it is always the dog, as in the reference.
    out = mask(ids, example=examples(400), continues=continues)
    assert out["masked_positions"].tolist() == [[4]] * 400


def words_of(ids, continues):
    """Lists of positions, one a word: the grouping of the reference, written as a loop."""
    words = []
    for position, token in enumerate(ids):
        if token in SPECIAL:
            continue
        joined = continues[position] and words and words[-1][-1] == position - 1
        words[-1].append(position) if joined else words.append([position])
    return words


def test_whole_words_are_those_a_greedy_loop_can_choose():
    generator = np.random.default_rng(1)
    rows = 300
    ids = pair_rows(rows, 64, 57)
    continues = generator.random(ids.shape) < 0.45
    continues[:, 12] = True  # a segment that was cut inside a word
    counts = mask_counts(64, 0.3, 20)
    budget = counts[57]
    out = mask(ids, example=examples(rows), counts=counts, continues=continues)
    totals = []
    for row in range(rows):
        weights = out["masked_weights"][row] > 0
        chosen = set(out["masked_positions"][row][weights].tolist())
        words = words_of(ids[row], continues[row])
        taken = [word for word in words if chosen & set(word)]
        assert chosen == {position for word in taken for position in word}  # no word in part
        left = budget - len(chosen)
        assert left >= 0
        # Greedy to the end: no word that was left out would still fit.
        assert all(len(word) > left for word in words if word not in taken)
        assert (out["masked_labels"][row][weights] == ids[row][sorted(chosen)]).all()
        totals.append(len(chosen))
    assert np.mean(totals) > budget - 0.1


def test_greedy_fill_equals_the_loop():
    generator = np.random.default_rng(2)
    sizes = generator.integers(0, 9, (1000, 24)).astype(np.int32)
    budgets = generator.integers(0, 40, 1000)
    kept = np.asarray(jax.jit(jax.vmap(_greedy_fill))(sizes, budgets))
    for row, left in enumerate(budgets):
        for item, size in enumerate(sizes[row]):
            assert kept[row, item] == (size <= left)
            left -= size if size <= left else 0


def test_packed_rows_mask_within_every_sequence():
    ids = np.repeat(pair_rows(1, 32, 32), 500, 0)
    ids[:, 15], ids[:, 16] = SEP, CLS
    attention = np.where(np.arange(32) < 16, 1, 2) * np.ones((500, 1), np.int32)
    out = mask(ids, example=examples(500), attention=attention)
    assert (out["masked_weights"] == 1).all()  # 32 tokens: 5
    sequences = np.take_along_axis(attention, out["masked_positions"], 1)
    assert abs((sequences == 2).mean() - 14 / 27) < 0.05


def test_bad_replacement_probabilities():
    with pytest.raises(UserError, match="add up to 1"):
        mask([CLS, 7, SEP], replace=(0.8, 0.1, 0.2))
