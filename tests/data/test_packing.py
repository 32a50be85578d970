"""Packed rows: how full they are, what they hold, and that a row needs no other row."""

import numpy as np
import pytest
from corpora import LengthIndex

from bertjax.data.packing import Packer
from bertjax.data.pairs import RANDOM, Examples

generator = np.random.default_rng(0)


def sentence_lengths(count):
    return np.clip(generator.lognormal(2.9, 0.7, count), 1, 600).astype(int).tolist()


CORPORA = {
    "long": LengthIndex([sentence_lengths(2000) for _ in range(6)]),
    "short": LengthIndex([sentence_lengths(generator.integers(1, 12)) for _ in range(2500)]),
    "equal": LengthIndex([[20] * 5 for _ in range(1500)]),
}


def rows_of(packer, epoch=0, count=None):
    count = min(count or packer.rows_per_epoch, packer.rows_per_epoch)
    return packer.rows(np.full(count, epoch), np.arange(count))


def filled(rows, special):
    return np.array([sum(pair.tokens + special for pair in row) for row in rows])


@pytest.mark.parametrize("nsp", [True, False])
@pytest.mark.parametrize("length", [128, 512])
@pytest.mark.parametrize("name", CORPORA)
def test_at_least_99_of_100_tokens_are_real(name, length, nsp):
    packer = Packer(Examples(CORPORA[name], length, seed=1, nsp=nsp))
    rows = rows_of(packer)
    tokens = filled(rows, 3 if nsp else 2)
    assert tokens.max() <= length
    assert tokens.mean() >= 0.99 * length
    assert max(map(len, rows)) <= packer.sequences_per_row
    assert min(map(len, rows)) >= 1


def test_an_epoch_holds_nearly_every_example_once():
    for name, index in CORPORA.items():
        examples = Examples(index, 128, seed=1)
        packer = Packer(examples)
        rows = rows_of(packer)
        sequences = sum(map(len, rows))
        assert 0.9 * examples.per_epoch < sequences <= examples.per_epoch, name
        # What a pair starts from tells examples apart, cut or not: none stands in two rows.
        plans = [examples.plan(0, example) for example in range(examples.per_epoch)]
        packed = {pair for row in rows for pair in row}
        whole = packed & set(plans)
        assert len(packed) > 0.97 * sequences  # equal ones are those of equal documents
        # Most are as they were planned; the others are cut to close a row.
        assert len(whole) > 0.7 * len(packed)
        uses = index.token_uses([pair for row in rows for pair in row])
        assert (uses > 0).mean() > 0.65
    assert any("leaves about" in note for note in packer.notes())


def test_labels_stay_truthful_in_packed_rows():
    index = CORPORA["short"]
    pairs = [pair for row in rows_of(Packer(Examples(index, 512, seed=1))) for pair in row]
    random = np.mean([pair.label == RANDOM for pair in pairs])
    assert 0.4 < random < 0.6
    for pair in pairs:
        assert pair.a_end > pair.a_start and pair.b_end > pair.b_start
        if pair.label == RANDOM:
            assert index.documents[pair.a_record] != index.documents[pair.b_record]
        else:
            assert pair.a_record == pair.b_record and pair.a_end <= pair.b_start


def test_a_row_is_a_function_of_seed_epoch_and_number():
    first, again = (Packer(Examples(CORPORA["short"], 128, seed=3)) for _ in range(2))
    assert first.rows_per_epoch == again.rows_per_epoch
    rows = rows_of(first, epoch=2)
    for number in (len(rows) - 1, 0, 700, 3, 2, 701):
        assert again.rows(np.array([2]), np.array([number])) == [rows[number]]
    # Rows of two epochs in one batch.
    border = again.rows(np.array([2, 3]), np.array([len(rows) - 1, 0]))
    assert border == [rows[-1], rows_of(first, epoch=3)[0]]
    other = rows_of(first, epoch=3)
    assert np.mean([row == changed for row, changed in zip(rows, other, strict=True)]) < 0.01


@pytest.mark.parametrize("documents", [2, 3, 40])
def test_tiny_corpora_fill_their_rows_as_well_as_they_can(documents):
    index = LengthIndex([[9, 10] for _ in range(documents)])
    packer = Packer(Examples(index, 64, seed=1))
    rows = rows_of(packer)
    assert len(rows) == packer.rows_per_epoch >= 1
    assert all(1 <= len(row) <= packer.sequences_per_row for row in rows)
    assert filled(rows, 3).max() <= 64


def test_the_window_that_fills_few_rows_repeats_its_own():
    packer = Packer(Examples(CORPORA["equal"], 128, seed=1))
    packer.rows_per_window *= 2
    rows = packer.rows(np.zeros(packer.rows_per_window, int), np.arange(packer.rows_per_window))
    assert all(rows) and len(rows) == packer.rows_per_window
