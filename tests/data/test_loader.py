"""The loader, read through the ids: every token of the test corpora is a number of its own."""

import itertools

import jax
import numpy as np
import pytest
from corpora import write_corpus

from bertjax.data.loader import PretrainLoader
from bertjax.data.masking import mask_counts, mask_tokens
from bertjax.data.store import PreparedCorpus
from bertjax.errors import UserError

CLS, SEP, PAD, FIRST = 2, 3, 0, 10
LENGTH, BATCH = 48, 12
ALL = slice(0, BATCH)


def numbered_documents(shapes):
    """Documents whose tokens are numbered through, and [token - FIRST] -> document, sentence."""
    documents, owners, token = [], [], FIRST
    for number, sizes in enumerate(shapes):
        document = []
        for sentence, size in enumerate(sizes):
            document.append(np.arange(token, token + size))
            owners += [(number, sentence)] * size
            token += size
        documents.append(document)
    return documents, np.array(owners)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    draw = np.random.default_rng(0)
    shapes = [draw.integers(1, 25, draw.integers(1, 9)) for _ in range(60)]
    shapes += [draw.integers(1, 70, 60)]  # several records
    documents, owners = numbered_documents(shapes)
    folder = tmp_path_factory.mktemp("prepared")
    held_out = [documents[number] for number in (0, 1, 2, 60)]
    write_corpus(folder, {"train": documents, "validation": held_out[:3]}, record_tokens=300)
    return folder, owners


def loader_of(prepared, split="train", **options):
    folder, owners = prepared
    options = dict(seq_length=LENGTH, batch_size=BATCH, seed=1) | options
    settings = dict(cls_id=CLS, sep_id=SEP, pad_id=PAD, vocab_size=FIRST + len(owners))
    return PretrainLoader(PreparedCorpus(str(folder), split), **(settings | options))


def take(iterator, count):
    """The first batches of an endless iterator, which is closed at once."""
    batches = list(itertools.islice(iterator, count))
    iterator.close()
    return batches


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def sequences_of(batch):
    """(row, number, ids, types, positions) of every sequence, from the attention mask alone."""
    for row, mask in enumerate(batch["attention_mask"]):
        for number in range(1, mask.max() + 1):
            columns = np.flatnonzero(mask == number)
            assert (np.diff(columns) == 1).all()
            positions = batch.get("position_ids", np.arange(LENGTH) + 0 * mask[:, None])[row]
            ids, types = batch["input_ids"][row], batch["token_type_ids"][row]
            yield row, number, ids[columns], types[columns], positions[columns], columns[0]


def check_pair(ids, types, label, owners):
    """[CLS] A [SEP] B [SEP] with the label that the token numbers prove."""
    ends = np.flatnonzero(ids == SEP)
    assert ids[0] == CLS and len(ends) == 2 and ends[1] == len(ids) - 1
    assert types.tolist() == [0] * (ends[0] + 1) + [1] * (len(ids) - ends[0] - 1)
    a, b = ids[1 : ends[0]], ids[ends[0] + 1 : -1]
    assert len(a) and len(b)
    for segment in (a, b):
        assert (np.diff(segment) == 1).all()
    (a_document, a_last), (b_document, b_first) = owners[a[-1] - FIRST], owners[b[0] - FIRST]
    if label == 1:
        assert a_document != b_document
    else:
        assert label == 0 and a_document == b_document and a[-1] < b[0]
        assert a_last < b_first or b[0] > a[-1] + 1


@pytest.mark.parametrize("packing", [False, True])
def test_rows_are_truthful_pairs(prepared, packing):
    loader = loader_of(prepared, packing=packing)
    labels = []
    for batch in take(loader.batches(0, ALL), 12):
        assert set(batch) - {"position_ids"} == {
            *("input_ids", "token_type_ids", "attention_mask"),
            *("nsp_positions", "nsp_labels", "example"),
        }
        assert all(array.dtype == np.int32 for key, array in batch.items() if key != "example")
        assert batch["example"].dtype == np.uint32
        assert batch["nsp_labels"].shape == (BATCH, loader.sequences_per_row)
        assert ("position_ids" in batch) == packing
        padding = batch["attention_mask"] == 0
        assert (batch["input_ids"][padding] == PAD).all()
        assert (batch["token_type_ids"][padding] == 0).all()
        seen = np.full_like(batch["nsp_labels"], -100)
        for row, number, ids, types, positions, column in sequences_of(batch):
            label = batch["nsp_labels"][row, number - 1]
            assert batch["nsp_positions"][row, number - 1] == column
            check_pair(ids, types, label, prepared[1])
            assert not packing or positions.tolist() == list(range(len(ids)))
            seen[row, number - 1] = label
            labels.append(label)
        np.testing.assert_array_equal(seen, batch["nsp_labels"])
    assert 0.35 < np.mean(labels) < 0.65


def test_rows_without_pairs(prepared):
    loader = loader_of(prepared, nsp=False)
    for batch in take(loader.batches(0, ALL), 5):
        assert (batch["nsp_labels"] == -100).all() and (batch["token_type_ids"] == 0).all()
        for _, _, ids, _, _, _ in sequences_of(batch):
            text = ids[1:-1]
            assert ids[0] == CLS and ids[-1] == SEP and (np.diff(text) == 1).all()
            assert len(set(prepared[1][text - FIRST, 0])) == 1


@pytest.mark.parametrize("packing", [False, True])
def test_resumed_runs_go_on_with_the_very_next_example(prepared, packing):
    """20 steps = 8 + 7 + 5 over an epoch's end, without and with worker processes."""
    loader = loader_of(prepared, packing=packing)
    start = loader.rows_per_epoch // BATCH - 10  # the epoch ends within these 20 steps
    whole = take(loader.batches(start, ALL), 20)
    examples = np.concatenate([batch["example"] for batch in whole])
    assert set(examples[:, 0]) == {0, 1}
    places = examples[:, 0] * loader.rows_per_epoch + examples[:, 1]
    np.testing.assert_array_equal(places, start * BATCH + np.arange(20 * BATCH))
    parts = [(start, 8), (start + 8, 7), (start + 15, 5)]
    resumed = [
        batch
        for first, count in parts
        for batch in take(loader_of(prepared, packing=packing).batches(first, ALL), count)
    ]
    assert_same(resumed, whole)
    two_workers = loader_of(prepared, packing=packing, workers=2)
    assert_same(take(two_workers.batches(start + 8, ALL), 12), whole[8:])


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_read_the_same_global_batches(prepared, processes):
    whole = take(loader_of(prepared).batches(3, ALL), 4)
    size = BATCH // processes
    parts = [
        take(loader_of(prepared).batches(3, slice(i * size, (i + 1) * size)), 4)
        for i in range(processes)
    ]
    joined = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in whole[0]}
        for step in range(4)
    ]
    assert_same(joined, whole)


def test_an_epoch_holds_every_example_once_and_the_next_is_another(prepared):
    loader = loader_of(prepared, batch_size=1)
    count = loader.examples_per_epoch
    rows = [batch["input_ids"][0] for batch in take(loader.batches(0, slice(0, 1)), 2 * count)]
    first, second = np.array(rows[:count]), np.array(rows[count:])
    evaluated = np.concatenate([b["input_ids"] for b in loader.eval_batches(slice(0, 1))])
    assert sorted(map(tuple, first)) == sorted(map(tuple, evaluated))
    assert (first != second).any(1).mean() > 0.95


@pytest.mark.parametrize("batch_size", [1, 3, 4, 16])
def test_evaluation_counts_every_example_once(prepared, batch_size):
    rows = slice(0, batch_size)
    expected = take(loader_of(prepared, batch_size=1).eval_batches(slice(0, 1)), 10_000)
    for workers, limits in ((0, (None, 10)), (2, (None,) if batch_size == 4 else ())):
        loader = loader_of(prepared, batch_size=batch_size, workers=workers, packing=True)
        for limit in limits:
            count = limit or loader.examples_per_epoch
            batches = list(loader.eval_batches(rows, limit))
            assert len(batches) == -(-count // batch_size)
            joined = {n: np.concatenate([b[n] for b in batches]) for n in batches[0]}
            assert joined["weight"].dtype == np.float32
            assert joined["weight"].tolist() == [1] * count + [0] * (
                len(batches) * batch_size - count
            )
            for name in expected[0]:
                wanted = np.concatenate([b[name] for b in expected[:count]])
                np.testing.assert_array_equal(joined[name][:count], wanted)
            assert (joined["attention_mask"][:, 0] == 1).all()  # also in rows that fill up
            assert joined["nsp_labels"].shape[1] == 1


def test_evaluation_of_one_example_and_of_processes(prepared):
    batches = list(loader_of(prepared).eval_batches(ALL, limit=1))
    assert len(batches) == 1 and batches[0]["weight"].tolist() == [1] + [0] * 11
    whole = list(loader_of(prepared).eval_batches(ALL, limit=13))
    parts = [
        list(loader_of(prepared).eval_batches(rows, limit=13))
        for rows in (slice(0, 6), slice(6, 12))
    ]
    assert [len(part) for part in parts] == [2, 2]
    joined = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in whole[0]}
        for step in range(2)
    ]
    assert_same(joined, whole)


def test_masks_do_not_depend_on_the_batch_and_change_with_the_epoch(prepared):
    settings = dict(counts=mask_counts(LENGTH, 0.15, 20), special_ids=(0, 1, 2, 3, 4), mask_id=4)
    settings["vocab_size"] = FIRST + len(prepared[1])

    @jax.jit
    def mask(batch):
        arrays = (batch["input_ids"], batch["attention_mask"], batch["example"])
        return mask_tokens(*arrays, jax.random.key(5), **settings)

    def masked(batch_size, steps, start=0):
        loader = loader_of(prepared, batch_size=batch_size)
        batches = take(loader.batches(start, slice(0, batch_size)), steps)
        outs = [mask(batch) for batch in batches]
        return {name: np.concatenate([out[name] for out in outs]) for name in outs[0]}

    assert_same([masked(4, 6)], [masked(12, 2)])
    # The same rows in another epoch, everything else equal, have other masks.
    batch = take(loader_of(prepared).batches(0, ALL), 1)[0]
    next_epoch = batch | {"example": batch["example"] + np.array([1, 0], np.uint32)}
    differ = mask(batch)["masked_positions"] != mask(next_epoch)["masked_positions"]
    assert np.asarray(differ).any(1).mean() > 0.9


def test_continues_comes_from_the_vocabulary(prepared):
    continuation = np.random.default_rng(0).random(FIRST + len(prepared[1])) < 0.3
    continuation[:FIRST] = False
    for packing in (False, True):
        loader = loader_of(prepared, continuation=continuation, packing=packing)
        for batch in take(loader.batches(0, ALL), 3):
            np.testing.assert_array_equal(batch["continues"], continuation[batch["input_ids"]])
            assert batch["continues"].dtype == bool


def test_ids_outside_the_vocabulary_name_the_example(prepared):
    loader = loader_of(prepared, vocab_size=len(prepared[1]))
    with pytest.raises(UserError, match=r"example \d+ of epoch \d+ holds id \d+, outside"):
        take(loader.batches(0, ALL), 200)


def test_reader_finds_what_was_written(prepared):
    corpus = PreparedCorpus(str(prepared[0]), "train")
    tokens = [record["ids"] for record in corpus.read(range(len(corpus)))]
    np.testing.assert_array_equal(np.concatenate(tokens), FIRST + np.arange(len(prepared[1])))
    sizes = np.add.reduceat(corpus.lengths, corpus.offsets[:-1], dtype=int)
    assert [len(ids) for ids in tokens] == sizes.tolist()
    assert len(corpus) > 61  # the long document is several records
    pieces = list(corpus.chunks(records=7))
    np.testing.assert_array_equal(np.concatenate([p[0] for p in pieces]), corpus.lengths)
    np.testing.assert_array_equal(np.concatenate([p[2] for p in pieces]), corpus.documents)
    ends = np.concatenate([np.diff(p[1]) for p in pieces])
    np.testing.assert_array_equal(ends, np.diff(corpus.offsets))


def test_folders_that_are_no_finished_corpus(prepared, tmp_path):
    with pytest.raises(UserError, match=r"not a prepared corpus.*bertjax.prepare"):
        PreparedCorpus(str(tmp_path), "train")
    with pytest.raises(UserError, match="no split 'test'; it has train, validation"):
        PreparedCorpus(str(prepared[0]), "test")
    folder = write_corpus(tmp_path / "unfinished", {"train": [[[5, 6], [7]]]})
    (folder / "fingerprint.json").unlink()
    with pytest.raises(UserError, match="unfinished"):
        PreparedCorpus(str(folder), "train")
    folder = write_corpus(tmp_path / "damaged", {"train": [[[5, 6], [7]], [[8]]]})
    np.save(folder / "index" / "train.documents.npy", np.array([0]))
    with pytest.raises(UserError, match="damaged"):
        PreparedCorpus(str(folder), "train")
    folder = write_corpus(tmp_path / "short", {"train": [[[5, 6], [7]], [[8, 9], [7]]]})
    for name in ("offsets", "documents"):
        path = folder / "index" / f"train.{name}.npy"
        np.save(path, np.load(path)[:-1])
    np.save(folder / "index" / "train.lengths.npy", np.array([2, 1], np.uint16))
    with pytest.raises(UserError, match="has 2 records but an index of 1"):
        PreparedCorpus(str(folder), "train").read([0])
