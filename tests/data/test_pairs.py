"""Which tokens make an example: labels, lengths and coverage, counted over whole epochs."""

import itertools

import numpy as np
import pytest
from corpora import LengthIndex

from bertjax.data.pairs import IS_NEXT, NO_LABEL, RANDOM, Examples
from bertjax.data.shuffle import mix, permute, uniforms
from bertjax.errors import UserError

generator = np.random.default_rng(0)


def sentence_lengths(count):
    """Like prose: mostly 5 to 60 tokens, some hundreds."""
    return np.clip(generator.lognormal(2.9, 0.7, count), 1, 600).astype(int).tolist()


LONG = LengthIndex([sentence_lengths(1500) for _ in range(6)])
SHORT = LengthIndex([sentence_lengths(generator.integers(1, 12)) for _ in range(1000)])
MIXED = LengthIndex([sentence_lengths(generator.integers(1, 200)) for _ in range(100)])
CORPORA = {"long": LONG, "short": SHORT, "mixed": MIXED}


def epoch_of(examples, epoch=0):
    return [examples.plan(epoch, example) for example in range(examples.per_epoch)]


@pytest.fixture(scope="module", params=[(n, s) for n in CORPORA for s in (128, 512)], ids=str)
def planned(request):
    name, length = request.param
    examples = Examples(CORPORA[name], length, seed=1)
    return CORPORA[name], examples, epoch_of(examples)


def test_labels_are_truthful(planned):
    index, _, pairs = planned
    for pair in pairs:
        assert 0 <= pair.a_start < pair.a_end and 0 <= pair.b_start < pair.b_end
        assert max(pair.a_end, 0) <= index.tokens(pair.a_record)
        assert pair.b_end <= index.tokens(pair.b_record)
        if pair.label == RANDOM:
            assert index.documents[pair.a_record] != index.documents[pair.b_record]
        else:
            assert pair.label == IS_NEXT and pair.a_record == pair.b_record
            # One sentence boundary between them; what lies beside it was cut off.
            between = index.starts(pair.a_record)
            between = between[(between >= pair.a_end) & (between <= pair.b_start)]
            assert len(between) >= 1


def test_half_of_the_pairs_are_random(planned):
    _, _, pairs = planned
    share = np.mean([pair.label == RANDOM for pair in pairs])
    index = planned[0]
    # A record of one sentence has no next one: its pairs are random, half of them perforce.
    single = np.mean([len(index.starts(pair.a_record)) == 2 for pair in pairs])
    assert abs(share - (0.5 + single / 2)) < 4 * 0.5 / np.sqrt(len(pairs))


def test_uncut_segments_are_whole_sentences(planned):
    index, examples, pairs = planned
    uncut = [pair for pair in pairs if pair.tokens < examples.room]
    assert uncut
    for pair in uncut:
        assert {pair.a_start, pair.a_end} <= set(index.starts(pair.a_record))
        assert {pair.b_start, pair.b_end} <= set(index.starts(pair.b_record))


def test_pairs_fill_the_length_and_one_in_ten_is_short():
    for length in (128, 512):
        examples = Examples(LONG, length, seed=1)
        tokens = np.array([pair.tokens for pair in epoch_of(examples)])
        assert tokens.max() == examples.room == length - 3
        # A short target is overshot by half a sentence, so some of the short ones are full, too.
        short = np.mean(tokens < examples.room)
        assert 0.06 < short < 0.11
        assert tokens[tokens < examples.room].min() < 0.3 * length


def test_an_epoch_uses_nearly_every_sentence_about_once(planned):
    index, examples, pairs = planned
    uses = index.token_uses(pairs)
    firsts = np.cumsum(index.lengths, dtype=int) - index.lengths
    sentences = np.maximum.reduceat(uses, firsts)
    assert (sentences > 0).mean() > 0.88
    assert (sentences > 2).mean() < 0.05
    # Long sentences are cut, but not left out.
    long = index.lengths > examples.room
    if long.sum() > 20:
        assert (sentences[long] > 0).mean() > 0.85
    assert examples.long_sentences == long.sum()
    # Other examples in other epochs: after three, hardly a sentence is new.
    for epoch in (1, 2):
        uses += index.token_uses(epoch_of(examples, epoch))
    sentences = np.maximum.reduceat(uses, firsts)
    assert (sentences > 0).mean() > 0.98
    assert 0.8 < uses.mean() / 3 < 1.2


def test_a_takes_any_share_of_a_pair_whatever_its_label():
    pairs = epoch_of(Examples(LONG, 512, seed=1))
    for label in (IS_NEXT, RANDOM):
        of = [pair for pair in pairs if pair.label == label and pair.tokens == 509]
        shares = np.array([(pair.a_end - pair.a_start) / pair.tokens for pair in of])
        assert 0.4 < shares.mean() < 0.6
        low, high = np.quantile(shares, [0.1, 0.9])
        assert low < 0.2 and high > 0.75


def test_a_sentence_longer_than_many_rows_starts_few_examples():
    """It fills one row, so that the text behind it is not begun again and again."""
    for nsp in (True, False):
        examples = Examples(LengthIndex([[1500] + [10] * 150] * 10), 128, seed=1, nsp=nsp)
        begun = [pair.a_record for pair in epoch_of(examples) if pair.a_start == 1500]
        assert np.bincount(begun, minlength=10).mean() < 2


def test_the_longer_segment_is_cut_at_its_front_or_its_back():
    examples = Examples(LONG, 128, seed=1)
    for a_tokens, b_tokens in itertools.product((1, 30, 62, 63, 64, 200), repeat=2):
        pair = examples.plan(0, 0)._replace(
            label=RANDOM, a_start=10, a_end=10 + a_tokens, b_start=20, b_end=20 + b_tokens
        )
        cuts = {examples.cut(pair, 125, 0, example) for example in range(40)}
        # The reference takes one token from the longer at a time, from B if they are equal.
        a_kept, b_kept = a_tokens, b_tokens
        while a_kept + b_kept > 125:
            if a_kept > b_kept:
                a_kept -= 1
            else:
                b_kept -= 1
        sizes = {(cut.a_end - cut.a_start, cut.b_end - cut.b_start) for cut in cuts}
        assert sizes == {(a_kept, b_kept)}
        front_or_back = (2 if a_kept < a_tokens else 1) * (2 if b_kept < b_tokens else 1)
        assert len(cuts) == front_or_back
        for cut in cuts:
            assert cut.a_start == 10 or cut.a_end == 10 + a_tokens
            assert cut.b_start == 20 or cut.b_end == 20 + b_tokens


def test_examples_are_functions_of_seed_epoch_and_number():
    first, again, other = (Examples(MIXED, 128, seed) for seed in (5, 5, 6))
    numbers = np.arange(first.per_epoch)
    assert first.per_epoch == again.per_epoch == other.per_epoch
    np.testing.assert_array_equal(first.order(3, numbers), again.order(3, numbers))
    backwards = {number: again.plan(3, int(number)) for number in numbers[::-1]}
    assert [first.plan(3, int(number)) for number in numbers] == [backwards[n] for n in numbers]
    for changed in (
        [first.plan(4, int(number)) for number in numbers],
        [other.plan(3, int(number)) for number in numbers],
    ):
        same = np.mean([changed[number] == backwards[number] for number in numbers])
        assert same < 0.05
    assert (first.order(3, numbers) == first.order(4, numbers)).mean() < 0.05


@pytest.mark.parametrize("nsp", [True, False])
def test_every_record_is_used_in_every_epoch(nsp):
    for epoch in range(3):
        pairs = epoch_of(Examples(SHORT, 128, seed=2, nsp=nsp), epoch)
        assert {pair.a_record for pair in pairs} == set(range(len(SHORT.documents)))


def test_sentences_without_pairs_stay_in_their_document():
    for name, length in itertools.product(CORPORA, (128, 512)):
        index = CORPORA[name]
        examples = Examples(index, length, seed=1, nsp=False)
        pairs = epoch_of(examples)
        assert {pair.label for pair in pairs} == {NO_LABEL}
        for pair in pairs:
            assert pair.tokens == min(examples.room, index.tokens(pair.a_record))
            assert len(pair.segments) == 1
        firsts = np.cumsum(index.lengths, dtype=int) - index.lengths
        sentences = np.maximum.reduceat(index.token_uses(pairs), firsts)
        assert (sentences > 0).mean() > 0.88


def test_random_pieces_come_from_all_other_documents_by_their_size():
    """The own document is two records of three: it is left out as a whole."""
    index = LengthIndex([[10] * 60, [10] * 400, [10] * 20, [10] * 120], record_tokens=2100)
    assert index.documents.tolist() == [0, 1, 1, 2, 3]
    examples = Examples(index, 32, seed=1)
    drawn = [examples._random_piece(2, 20, mix(9, number)) for number in range(4000)]
    records = np.bincount([record for record, _, _ in drawn], minlength=5) / 4000
    np.testing.assert_allclose(records, np.array([60, 0, 0, 20, 120]) / 200, atol=0.04)
    starts = {start for record, start, _ in drawn if record == 4}
    assert starts == set(range(0, 1190, 10))
    assert {end - start for _, start, end in drawn} == {20}


def test_one_sentence_next_to_a_document_of_three():
    """Tiny corpora: no pair is labelled random within a document, and none pairs with itself."""
    index = LengthIndex([[4, 5, 6], [7]])
    labels = set()
    for seed in range(300):
        for pair in epoch_of(Examples(index, 64, seed)):
            labels.add((pair.a_record, pair.label))
            assert (pair.label == RANDOM) == (pair.a_record != pair.b_record)
            assert pair.label == RANDOM or pair.a_end <= pair.b_start
    assert labels == {(0, IS_NEXT), (0, RANDOM), (1, RANDOM)}


def test_random_small_corpora_hold_the_invariants():
    for trial in range(150):
        draw = np.random.default_rng(trial)
        sizes = draw.integers(1, draw.choice([3, 20, 300]), 40)
        documents = np.split(sizes, np.sort(draw.choice(np.arange(1, 40), 5, replace=False)))
        index = LengthIndex([d.tolist() for d in documents], record_tokens=400)
        nsp = bool(trial % 4) and bool((np.diff(index.offsets) > 1).any())
        examples = Examples(index, int(draw.integers(5, 80)), seed=trial, nsp=nsp)
        for pair in epoch_of(examples):
            assert 1 <= pair.tokens <= examples.room
            for record, start, end in pair.segments:
                assert 0 <= start < end <= index.tokens(record)
            if pair.label == RANDOM:
                assert index.documents[pair.a_record] != index.documents[pair.b_record]


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([[5, 5, 5]], {}, "one document"),
        ([[5], [6], [7]], {}, "no document has two sentences"),
        ([[5, 0], [6]], {}, "without tokens"),
        ([], {}, "empty"),
        ([[5, 5], [6]], {"seq_length": 4}, "data.seq_length is 4"),
    ],
)
def test_corpora_without_pairs_are_refused(documents, options, message):
    with pytest.raises(UserError, match=message):
        Examples(LengthIndex(documents), **({"seq_length": 32, "seed": 0} | options))


def test_one_document_is_enough_without_pairs():
    assert Examples(LengthIndex([[5, 5, 5]]), 32, 0, nsp=False).per_epoch == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097])
def test_permute_is_a_permutation(size):
    for key in (0, 1):
        values = permute(np.arange(size), size, key)
        assert sorted(values) == list(range(size))
        np.testing.assert_array_equal(permute(np.arange(size)[::-1], size, key), values[::-1])
    if size > 60:
        assert (values == permute(np.arange(size), size, 0)).mean() < 0.1
        assert abs(np.corrcoef(np.arange(size), values)[0, 1]) < 4 / np.sqrt(size)


def test_places_of_an_epoch_are_spread_evenly():
    """A tenth of the order holds a tenth of each tenth of the corpus."""
    values = permute(np.arange(20_000), 100_000, 3)
    counts = np.bincount(values // 10_000, minlength=10)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 0.9)


def test_uniforms_are_uniform():
    draws = uniforms(7, (4, 5000))
    assert draws.min() >= 0 and draws.max() < 1
    assert np.abs(draws.mean(1) - 0.5).max() < 5 * np.sqrt(1 / 12 / 5000)
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 5 / np.sqrt(5000)


def test_a_row_longer_than_any_sentence_can_be_stored():
    index = LengthIndex([[10, 20], [30, 40]])
    for pair in epoch_of(Examples(index, 100_000, seed=0)):
        assert 0 < pair.tokens <= 100
