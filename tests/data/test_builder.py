"""A prepared corpus: what is stored, for any number of processes, and what the report says."""

import filecmp
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bertjax.data import builder, report
from bertjax.data.builder import HeldOut, open_prepared, prepare, read_report
from bertjax.data.encoder import MAX_RECORD, MAX_SENTENCE, Encoder, Piece
from bertjax.data.store import PreparedCorpus
from bertjax.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertjax.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [a + b for a in ("ba", "ko", "mi", "nu", "le") for b in ("", "ra", "te", "so", "vi")]


@pytest.fixture(scope="session")
def vocab(tmp_path_factory):
    """A vocabulary file that knows every word of `text`, and a full stop."""
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, ".", *WORDS, "##x"]) + "\n")
    return str(path)


def sentence(rng, words):
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def text(documents, seed=0, sentences=6, words=8):
    """Documents of one sentence a line, divided by blank lines."""
    rng = random.Random(seed)
    return "\n\n".join(
        "\n".join(sentence(rng, words) for _ in range(sentences)) for _ in range(documents)
    )


def write(path, content):
    path.write_text(content)
    return str(path)


def stored(out, split):
    """The documents of a split as lists of sentences of ids, through TFDS and the index."""
    source = tfds.builder_from_directory(f"{out}/corpus/1.0.0").as_data_source(split)
    lengths, offsets, documents = (
        np.load(f"{out}/index/{split}.{name}.npy") for name in ("lengths", "offsets", "documents")
    )
    assert (lengths.dtype, offsets.dtype, documents.dtype) == (np.uint16, np.int64, np.int64)
    assert len(source) == len(documents) == len(offsets) - 1
    assert offsets[0] == 0 and offsets[-1] == len(lengths)
    found = {}
    for record, document in enumerate(documents.tolist()):
        ids = source[record]["ids"]
        assert ids.dtype == np.uint16 and 0 < len(ids) <= MAX_RECORD
        inside = lengths[offsets[record] : offsets[record + 1]].tolist()
        assert sum(inside) == len(ids)
        cuts = list(itertools.accumulate(inside, initial=0))
        found.setdefault(document, []).extend(
            ids[a:b].tolist() for a, b in itertools.pairwise(cuts)
        )
    assert list(found) == list(range(len(found)))  # numbered in order, without gaps
    return list(found.values())


def same_files(a, b):
    """Whether two folders hold the same files with the same bytes."""
    files = sorted(str(p.relative_to(a)) for p in pathlib.Path(a).rglob("*") if p.is_file())
    others = sorted(str(p.relative_to(b)) for p in pathlib.Path(b).rglob("*") if p.is_file())
    return files == others and filecmp.cmpfiles(a, b, files, shallow=False)[1:] == ([], [])


# What is stored


def test_blank_lines_divide_documents(tmp_path, vocab):
    source = write(tmp_path / "a.txt", "\n\nba koso\n\n\n  \nmi nu\nle\n\n")
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    tokenizer = Tokenizer.load(out)
    expected = [[["ba", "koso"]], [["mi", "nu"], ["le"]]]
    found = stored(out, "train")
    assert [[tokenizer.tokens(ids) for ids in document] for document in found] == expected
    figures = read_report(out)
    assert (figures["documents"], figures["sentences"], figures["tokens"]) == (2, 3, 5)
    assert list(figures["splits"]) == ["train"]
    assert figures["one_sentence_documents_share"] == 0.5
    assert tfds.builder_from_directory(f"{out}/corpus/1.0.0").info.splits["train"].num_examples == 2


def test_text_of_another_encoding_is_noticed(tmp_path, vocab):
    path = tmp_path / "a.txt"
    line = "ba koso mi nu"
    path.write_bytes("\n\n".join([f"{line} 中文文本"] * 9).encode("gbk"))
    warnings = read_report(prepare(str(path), vocab, tmp_path / "out"))["warnings"]
    assert any("in another encoding" in warning and "iconv" in warning for warning in warnings)
    path.write_bytes("\n\n".join([line * 40] * 9).encode() + b"\xff")
    warnings = read_report(prepare(str(path), vocab, tmp_path / "other"))["warnings"]
    assert not any("in another encoding" in warning for warning in warnings)
    assert any("1 invalid UTF-8" in warning for warning in warnings)


def test_every_sentence_is_stored_as_the_tokenizer_encodes_it(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(300))
    out = prepare(source, vocab, tmp_path / "out", held_out=0.1)
    tokenizer = Tokenizer.load(vocab)
    documents = [
        [tokenizer.encode(line).ids for line in document.split("\n")]
        for document in (tmp_path / "a.txt").read_text().split("\n\n")
    ]
    train, held_out = stored(out, "train"), stored(out, "validation")
    assert sorted(train + held_out) == sorted(documents)
    order = iter(documents)
    assert all(document in order for document in train)  # in the order of the source
    assert 10 < len(held_out) < 60
    corpus = PreparedCorpus(str(out), "train")
    assert corpus.read([3])[0]["ids"].tolist() == [i for one in train[3] for i in one]


def test_the_result_is_the_same_for_any_number_of_processes(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(400, sentences=30))  # several chunks
    outs = [
        prepare(source, "train:120", tmp_path / f"out{n}", processes=n, held_out=0.2)
        for n in (1, 3)
    ]
    assert same_files(*outs)
    other = prepare(source, "train:120", tmp_path / "seed", held_out=0.2, seed=1)
    assert not same_files(outs[0], other)


def test_a_held_out_set_is_not_trained_on(tmp_path, vocab):
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "texts" / f"{name}.txt", text(8, seed=ord(name)))
    source = str(tmp_path / "texts")
    with pytest.raises(UserError, match=r"held_out=test=.*b\.txt is in source=.* too"):
        held_out = HeldOut(0, {"test": f"{source}/b.txt"})
        prepare(source, vocab, tmp_path / "out", held_out=held_out)
    held_out = HeldOut(0, {"test": f"{source}/b.txt"})
    out = prepare(f"{source}/a.txt", vocab, tmp_path / "out", held_out=held_out)
    assert builder.split_names(out) == ["train", "test"]


def test_an_uneven_or_small_held_out_split_is_told():
    def told(train: int, validation: int, asked: float = 0.05) -> str:
        splits = {"train": {"tokens": train}, "validation": {"tokens": validation}}
        return "; ".join(report.held_out_warnings(splits, asked))

    assert told(95_000, 5_000) == "" and told(95_000, 5_000, asked=0.0) == ""
    assert "46 % of the tokens are held out, where 5 %" in told(54_000, 46_000)
    assert "0.02 % of the tokens" in told(99_980, 20) and "only 20 tokens" in told(99_980, 20)
    assert told(9_500, 500) == "only 500 tokens are held out: figures of so few say little"


def test_a_prepared_corpus_is_no_source(tmp_path, vocab):
    source = tmp_path / "a.txt"
    source.write_text("One sentence here. Another one there.\n\nA document. Of two.\n" * 9)
    out = prepare(str(source), vocab, tmp_path / "out", held_out=0)
    with pytest.raises(UserError, match="is a prepared corpus already"):
        prepare(str(out), vocab, tmp_path / "again")


def test_what_a_held_out_set_met_is_told(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(8))
    (tmp_path / "b.txt").write_bytes(text(8, seed=1).encode() + b"\n\nba \xff ko.\n")
    held_out = HeldOut(0, {"test": str(tmp_path / "b.txt")})
    notes = read_report(prepare(source, vocab, tmp_path / "out", held_out=held_out))["notes"]
    assert "held-out set test: 1 invalid UTF-8 sequences were dropped" in notes


def test_a_broken_off_upload_can_be_done_again(tmp_path, vocab, monkeypatch):
    built = prepare(write(tmp_path / "a.txt", text(8)), vocab, tmp_path / "built")
    out = builder.epath.Path(tmp_path / "out")
    copied = []

    def copy(path, target, overwrite):
        if len(copied) == 3:
            raise OSError("the network is gone")
        copied.append(path)
        shutil.copy(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(type(out), "copy", copy)
        with pytest.raises(OSError, match="network"):
            builder._publish(built, out)
    with pytest.raises(UserError, match="was not finished"):
        open_prepared(out)
    builder._check_out(out)  # may be used again
    builder._publish(built, out)
    assert same_files(built, out) and open_prepared(out)


def test_a_long_document_is_several_records_of_whole_sentences(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(1, sentences=6000, words=9) + "\n\nBa ko.\nMi nu.")
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    documents = np.load(out / "index" / "train.documents.npy")
    train = stored(out, "train")
    assert [len(document) for document in train] == [6000, 2]
    assert (documents == 0).sum() > 6000 * 10 // MAX_RECORD
    assert {len(sentence) for sentence in train[0]} == {10}
    tokens = [len(r["ids"]) for r in PreparedCorpus(str(out), "train").read(range(5))]
    assert all(n == MAX_RECORD // 10 * 10 for n in tokens)


def test_long_sentences_are_cut_before_a_word_and_counted(tmp_path, vocab):
    tokenizer = Tokenizer.load(vocab)
    words = "bax " * 600  # two tokens each: ba ##x
    chunk = Encoder(tokenizer)([Piece("train", [words, "ba ko"], last=True)])
    lengths = chunk.pieces[0].lengths.tolist()
    assert lengths == [512, 512, 176, 2]
    assert chunk.counts == {"long_sentences": 1}
    odd = Encoder(tokenizer)([Piece("train", ["ko " + words], last=True)])
    assert odd.pieces[0].lengths.tolist()[0] == MAX_SENTENCE - 1  # not between ba and ##x
    source = write(tmp_path / "a.txt", words + "\n\nba ko\nmi")
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    assert sum(map(len, stored(out, "train")[0])) == 1200
    assert "1 sentences of more than 512 tokens were cut" in read_report(out)["warnings"]


def test_special_tokens_typed_in_a_text_are_text(tmp_path, vocab):
    source = write(tmp_path / "a.txt", "ba [MASK] ko\n\nmi [SEP]\nnu")
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    ids = {i for document in stored(out, "train") for one in document for i in one}
    assert not ids & {0, 2, 3, 4}


def test_chinese_without_a_segmenter_is_warned_of_whatever_its_language_is_called(tmp_path):
    lines = "这是一个句子。那是另一个。\n他们来了。\n\n我们走了。\n天气很好。\n\n" * 5
    source = write(tmp_path / "a.txt", lines)
    for language in ("zh", "zh-Hant", "en"):
        figures = read_report(prepare(source, "train:100", tmp_path / language, language=language))
        assert 0.7 < figures["ideograph_share"] < 1  # the others are full stops
        assert report.NO_WORDS in figures["warnings"]
        assert not report.lacks_words(figures | {"segmenter": "jieba"})


# Held-out documents


def test_copies_of_a_document_stay_together(tmp_path, vocab):
    documents = text(200).split("\n\n")
    source = write(tmp_path / "a.txt", "\n\n".join(documents * 3))
    out = prepare(source, vocab, tmp_path / "out", held_out=0.2)
    train, held_out = stored(out, "train"), stored(out, "validation")
    assert len(train) + len(held_out) == 600
    assert not [document for document in held_out if document in train]
    assert read_report(out)["duplicate_documents_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("documents", "held_out"), [(2, 0), (3, 1), (5, 1), (7, 1), (8, 2), (20, 2)]
)
def test_a_small_corpus_keeps_enough_for_pairs_on_both_sides(tmp_path, vocab, documents, held_out):
    source = write(tmp_path / "a.txt", text(documents))
    for seed in range(3):
        out = prepare(source, vocab, tmp_path / f"out{seed}", seed=seed, held_out=0.001)
        assert len(stored(out, "train")) == documents - held_out
        assert read_report(out)["splits"].get("validation", {}).get("documents", 0) == held_out
        said = any("nothing is held out" in w for w in read_report(out)["warnings"])
        assert said == (held_out == 0)


def test_copies_do_not_count_as_different_documents(tmp_path, vocab):
    documents = text(2).split("\n\n")
    source = write(tmp_path / "a.txt", "\n\n".join(documents * 10))
    out = prepare(source, vocab, tmp_path / "out", held_out=0.5)
    assert builder.split_names(out) == ["train"]


@pytest.mark.parametrize("seed", range(4))
def test_a_corpus_of_one_document_is_all_for_training_and_warned_of(tmp_path, vocab, seed):
    source = write(tmp_path / "a.txt", text(1))
    out = prepare(source, vocab, tmp_path / "out", held_out=0.5, seed=seed)
    assert len(stored(out, "train")) == 1
    figures = read_report(out)
    assert figures["nsp_random_share"] is None
    assert any("the corpus is one document" in warning for warning in figures["warnings"])
    assert "no pairs can be made" in report.render(figures)


def test_named_held_out_sets(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(40))
    general = write(tmp_path / "b.txt", text(5, seed=7))
    held_out = HeldOut.parse(["0.1", f"general={general}"])
    outs = [
        prepare(source, vocab, tmp_path / f"out{n}", held_out=held_out, processes=n) for n in (1, 2)
    ]
    assert same_files(*outs)
    assert builder.split_names(outs[0]) == ["train", "validation", "general"]
    assert len(stored(outs[0], "general")) == 5
    assert read_report(outs[0])["documents"] == 40  # the report is about the training corpus


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["x"], "neither a share nor NAME=SOURCE"),
        (["1.5"], "no share"),
        (["train=a.txt"], "cannot name"),
        (["A b=a.txt"], "cannot name"),
        (["validation=a.txt"], "needs --held_out=0"),
        (["a=a.txt", "a=b.txt"], "after another a"),
        (["0.1", "0.2"], "after another share"),
    ],
)
def test_bad_held_out(values, message):
    with pytest.raises(UserError, match=message):
        HeldOut.parse(values)


# The report


def test_one_repeated_line_is_seen_and_warned_of(tmp_path, vocab):
    source = write(tmp_path / "a.txt", "ba ko mi.\n" * 1000 + "\n" + text(2))
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    figures = read_report(out)
    assert figures["duplicate_lines_share"] == pytest.approx(999 / 1012)
    assert any("99 % of the lines repeat another" in warning for warning in figures["warnings"])


def test_blank_lines_between_sentences_are_warned_of(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(20, sentences=1) + "\n\n" + text(10, seed=1))
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    figures = read_report(out)
    assert figures["one_sentence_documents_share"] == pytest.approx(2 / 3)
    assert any("blank lines between sentences" in warning for warning in figures["warnings"])
    assert any("pairs would be random" in warning for warning in figures["warnings"])


def test_unknown_tokens_are_counted_and_their_cause_is_named(tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL, "she", "ran", "home", "."]))
    source = write(tmp_path / "a.txt", "She ran home.\nShe ran.\n\nShe ran home.")
    out = prepare(source, str(vocab), tmp_path / "cased", held_out=0, lower_case=False)
    figures = read_report(out)
    assert figures["unk_share"] == pytest.approx(3 / 11)
    assert any("lower-casing is off" in warning for warning in figures["warnings"])
    out = prepare(source, str(vocab), tmp_path / "uncased", held_out=0)
    assert read_report(out)["unk_share"] == 0


def test_a_handful_of_examples_says_nothing_of_random_pairs(tmp_path, vocab):
    """An epoch of this corpus has two or three: more of them are drawn."""
    source = write(tmp_path / "a.txt", text(3, sentences=8))
    figures = read_report(prepare(source, vocab, tmp_path / "out", held_out=0, seq_length=64))
    assert figures["nsp_random_share"] == pytest.approx(0.5, abs=0.05)
    assert not any("next-sentence pairs would be random" in x for x in figures["warnings"])


def test_the_expected_share_of_random_pairs(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(100, sentences=40))
    out = prepare(source, vocab, tmp_path / "out", held_out=0, seq_length=64)
    figures = read_report(out)
    assert figures["nsp_random_share"] == pytest.approx(0.5, abs=0.02)
    assert 0 <= figures["padding_share"] < 0.15
    assert figures["seq_length"] == 64


def test_lengths_and_counts_are_those_of_the_text(tmp_path, vocab):
    source = write(tmp_path / "a.txt", "ba\nba ko\nba ko mi nu le.\n\nba ko.\n\n\u200b\n")
    figures = read_report(prepare(source, vocab, tmp_path / "out", held_out=0))
    histogram = {name: n for name, n in figures["sentence_length_histogram"].items() if n}
    assert histogram == {"<=1": 1, "<=2": 1, "<=4": 1, "<=8": 1}
    assert figures["counts"] == {"empty_documents": 1}
    assert figures["tokens"] == 12


def test_digests_that_come_one_by_one_take_little_room():
    counter = report.DistinctCounter()
    tracemalloc.start()
    for digest in range(20_000):
        counter.add(np.array([digest], np.uint64))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000  # 8 bytes each, and a few that wait
    assert counter.distinct == 20_000


def test_distinct_digests_are_counted_exactly_then_estimated():
    rng = np.random.default_rng(0)
    digests = rng.integers(0, 2**64, 200_000, dtype=np.uint64)
    counter = report.DistinctCounter(size=1 << 14)
    counter.add(digests[:1000])
    counter.add(digests[:1000])
    assert counter.distinct == 1000
    assert counter.duplicate_share == 0.5
    shuffled = report.DistinctCounter(size=1 << 14)
    for part in np.array_split(np.concatenate([digests, digests[:50_000]]), 50):
        counter.add(part)
    for part in np.array_split(rng.permutation(np.concatenate([digests, digests[:1000]])), 7):
        shuffled.add(part)
    # Standard error 1 / sqrt(size) = 0.8 %; four of them.
    assert counter.distinct == pytest.approx(200_000, rel=0.032)
    assert counter.distinct == shuffled.distinct
    assert len(counter._smallest) == 1 << 14


# Finished or not


def command(out, source, vocab, *more):
    arguments = [f"--source={source}", f"--vocab={vocab}", f"--out={out}", *more]
    return [sys.executable, "-m", "bertjax.prepare", *arguments]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_preparation_is_seen_and_starts_again(tmp_path, vocab, stop):
    source = write(tmp_path / "a.txt", text(1500, sentences=20))
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(out, source, vocab, "--processes=2"),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not list(out.glob("corpus/1.0.0/*")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(stop)
    process.wait(timeout=60)
    codes = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
    assert process.returncode == codes[stop]
    assert (out / builder.UNFINISHED).exists() and not (out / builder.FINGERPRINT).exists()
    with pytest.raises(UserError, match="was not finished"):
        open_prepared(out)
    with pytest.raises(UserError):
        PreparedCorpus(str(out), "train")
    deadline = time.monotonic() + 20
    while group_is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not group_is_alive(process.pid), "worker processes outlived their parent"
    if stop != signal.SIGKILL:
        return
    prepare(source, vocab, out, processes=1)
    fresh = prepare(source, vocab, tmp_path / "fresh", processes=1)
    assert same_files(out, fresh)


def group_is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_full_disk_is_one_sentence(tmp_path, vocab):
    """A limit on the size of files stands for the disk: the same calls fail in the same way."""
    source = write(tmp_path / "a.txt", text(3000, sentences=30))
    for limit in (100, 400):  # KiB: the index first, or the shard
        out = tmp_path / f"out{limit}"
        line = " ".join(command(out, source, vocab, "--processes=1"))
        found = subprocess.run(
            ["bash", "-c", f"ulimit -f {limit}; exec {line}"], capture_output=True, text=True
        )
        assert found.returncode == 2, found.stderr
        last = found.stderr.splitlines()[-1]  # lines of progress come before it where it is slow
        assert "disk is full" in last and "Traceback" not in found.stderr
        assert (out / builder.UNFINISHED).exists()


def test_what_was_changed_since_is_refused(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(30))
    out = prepare(source, vocab, tmp_path / "out")
    tokenizer = Tokenizer.load(vocab)
    assert open_prepared(out, tokenizer.fingerprint) == out
    with pytest.raises(UserError, match="prepared with another vocabulary than the model's"):
        open_prepared(out, Tokenizer([*SPECIAL, "a"]).fingerprint)
    changed = out / "vocab.txt"
    original = changed.read_text()
    changed.write_text(original + "new\n")
    with pytest.raises(UserError, match="is not the one it was prepared with"):
        open_prepared(out)
    changed.write_text(original)
    lengths = out / "index" / "train.lengths.npy"
    content = lengths.read_bytes()
    lengths.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="missing or changed"):
        open_prepared(out)
    lengths.write_bytes(content)
    next(out.glob("corpus/1.0.0/*train*")).unlink()
    with pytest.raises(UserError, match="missing or changed"):
        open_prepared(out)
    with pytest.raises(UserError, match="no prepared corpus"):
        open_prepared(tmp_path / "absent")


def test_a_folder_in_use_is_left_alone(tmp_path, vocab):
    source = write(tmp_path / "a.txt", text(30))
    out = prepare(source, vocab, tmp_path / "out")
    before = (out / "fingerprint.json").read_text()
    with pytest.raises(UserError, match="holds a finished corpus"):
        prepare(source, vocab, out)
    with pytest.raises(UserError, match="is not empty"):
        prepare(source, vocab, tmp_path)
    with pytest.raises(UserError, match="is a file"):
        prepare(source, vocab, source)
    assert (out / "fingerprint.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab": "absent.txt"}, "no vocabulary file"),
        ({"vocab": "train:x"}, "needs a number"),
        ({"vocab": "train:5"}, "needs a number"),
        ({"vocab": "train:99999999999"}, "100 to 10,000,000"),
        ({"source": "absent*"}, "no file matches"),
        ({"language": "english!"}, "no language code"),
        ({"segmenter": "mecab"}, "unknown word segmenter"),
        ({"processes": -1}, "must be 0"),
        ({"layout": "x"}, "unknown layout"),
        ({"invalid_utf8": "ignore"}, "choose replace or error"),
        ({"held_out": 2}, "no share"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, vocab, arguments, message):
    good = {"source": write(tmp_path / "a.txt", text(3)), "vocab": vocab}
    with pytest.raises(UserError, match=message):
        prepare(**{**good, **arguments}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_without_mask_is_refused(tmp_path):
    vocab = write(tmp_path / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\nba\n")
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        prepare("python_docs", vocab, tmp_path / "out")


def test_nothing_but_empty_files_is_an_error(tmp_path, vocab):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.txt", "")
    write(tmp_path / "in" / "b.txt", "\n \n")
    with pytest.raises(UserError, match=r"no text \(1 empty files, 2 empty documents\)"):
        prepare(str(tmp_path / "in"), vocab, tmp_path / "out")


# Chinese words


def test_words_of_a_segmenter_are_stored(tmp_path):
    pytest.importorskip("jieba", reason="the extra zh is not installed")
    sentences = ["我来到北京清华大学。", "unaffable 北京"]
    vocab = [*SPECIAL, *sorted(set(sentences[0] + "北京")), "un", "##aff", "##able"]
    Tokenizer(vocab).save(tmp_path / "vocab")
    source = write(tmp_path / "a.txt", "\n".join(sentences))
    arguments = dict(vocab=str(tmp_path / "vocab"), held_out=0, language="zh")
    out = prepare(source, out=tmp_path / "out", segmenter="jieba", **arguments)
    record = PreparedCorpus(str(out), "train").read([0])[0]
    # 我 / 来到 / 北京 / 清华大学 / 。 and un ##aff ##able / 北京
    expected = [*(0, 0, 1, 0, 1, 0, 1, 1, 1, 0), *(0, 1, 1, 0, 1)]
    assert record["continues"].astype(int).tolist() == expected
    plain = prepare(source, out=tmp_path / "plain", **arguments)
    assert any("no word segmenter" in warning for warning in read_report(plain)["warnings"])


# Size


@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(tmp_path, vocab):
    """Peak resident memory at 20 MB and at 80 MB of text: within 20 %, below 1.5 GB."""
    # VmHWM, since ru_maxrss of a new process begins with what its parent had in memory.
    program = (
        "import pathlib, re, sys; from bertjax import prepare; prepare.main(sys.argv[1:]);"
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    peaks = []
    for factor in (1, 4):
        path = tmp_path / f"{factor}.txt"
        with path.open("w") as file:
            for seed in range(20 * factor):
                file.write(text(1000, seed=seed, sentences=20, words=9) + "\n\n")
        assert path.stat().st_size > factor * 15_000_000
        arguments = command(tmp_path / f"out{factor}", path, vocab, "--processes=1")[3:]
        found = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
        )
        peaks.append(int(found.stdout.split()[-1]) / 1024)
    print(f"peak memory {peaks[0]:.0f} MB and {peaks[1]:.0f} MB")
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 1500


@pytest.mark.long
def test_one_line_of_100_mb(tmp_path, vocab):
    path = tmp_path / "a.txt"
    with path.open("w") as file:
        for _ in range(100):
            file.write("ba ko mi nu le " * 66_667)
    out = prepare(str(path), vocab, tmp_path / "out", processes=2)
    figures = read_report(out)
    assert figures["tokens"] == 100 * 66_667 * 5
    assert figures["counts"]["cut_lines"] > 1000
    assert json.dumps(figures)


def test_ids_beyond_two_bytes_are_kept(tmp_path):
    words = [f"w{i}" for i in range(1 << 16)]
    vocab = write(tmp_path / "vocab.txt", "\n".join([*SPECIAL_TOKENS, *words, "."]) + "\n")
    source = write(tmp_path / "a.txt", "w65535 w0.\nw1 w65534.\n\nw65533.\nw2.\n\nw3.\nw4.\n")
    out = prepare(source, vocab, tmp_path / "out", held_out=0)
    corpus = PreparedCorpus(str(out), "train")
    ids = np.concatenate([record["ids"] for record in corpus.read(range(len(corpus)))])
    assert ids.dtype == np.int32 and {5 + 65535, 5, 6, 5 + 65534} <= set(ids.tolist())
