"""Text sources: what is a document, what is counted, and what is refused."""

import gzip
import json
import os
import pathlib
import socket
import sys

import numpy as np
import pytest

from bertjax.data import corpus, python_docs
from bertjax.data.corpus import open_source
from bertjax.data.reading import MAX_PARAGRAPH, Reading
from bertjax.data.sentences import read_sentences
from bertjax.data.tables import read_table
from bertjax.errors import UserError


def read(spec, **options):
    """(documents as lists of paragraphs, counts, notes)"""
    source = open_source(str(spec), Reading(**options))
    documents = [list(document) for document in source.documents()]
    return documents, dict(source.reading.counts), source.reading.notes


def compress(path, data):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zst":
        import pyarrow

        path.write_bytes(pyarrow.compress(data, "zstd", asbytes=True))
    else:
        path.write_bytes(data)
    return path


# Text files


def test_blank_lines_divide_documents_of_a_single_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\nhello world\n\n\n  \na b\nc\n\n")
    documents, counts, notes = read(path)
    assert documents == [["hello world"], ["a b", "c"]]
    assert counts == {}
    assert "blank lines divide documents" in notes[0]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines_end_at_lf_or_crlf_alone(tmp_path, suffix):
    data = "\ufeffone\r\ntwo\u2028still two\x0b\u0085\n\r\nthree".encode()
    path = compress(tmp_path / f"a.txt{suffix}", data)
    assert read(path)[0] == [["one", "two\u2028still two"], ["three"]]


def test_layouts(tmp_path):
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(f"{name} one.\n\nTwo.\nThree.\n")
    first = [["a.txt one.", "Two.", "Three."], ["b.txt one.", "Two.", "Three."]]
    documents, _, notes = read(tmp_path)
    assert documents == first
    assert "2 text files, a file is a document" in notes[0]
    assert read(tmp_path / "*.txt")[0] == first
    assert len(read(tmp_path, layout="blank_line")[0]) == 4
    assert len(read(tmp_path, layout="line")[0]) == 6
    assert read(tmp_path / "a.txt", layout="file")[0] == first[:1]
    with pytest.raises(UserError, match="unknown layout 'lines'"):
        read(tmp_path, layout="lines")


def test_markdown_is_a_document_with_its_wrapped_lines_joined(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("# Title\nfirst line\nsecond line\n\n- one\n- two\n\nlast\n")
    assert read(path)[0] == [["# Title", "first line second line", "- one", "- two", "last"]]


def test_wrapped_plain_text_is_joined_and_verse_is_not(tmp_path):
    (tmp_path / "wrapped.txt").write_text("The sentence goes\non here. And\nthen ends.\n\nNext.\n")
    (tmp_path / "verse.txt").write_text("O wild West Wind,\nThou breath of autumn\nThou\n")
    documents, _, _ = read(tmp_path)
    assert documents == [
        ["O wild West Wind,", "Thou breath of autumn", "Thou"],
        ["The sentence goes on here. And then ends.", "Next."],
    ]


def test_a_folder_is_read_in_depth_and_in_order(tmp_path):
    for name in ("z.txt", "b/c/x.md", "b/y.txt.gz", ".hidden/h.txt", "b/.h.txt", "image.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        compress(path, name.encode())
    assert read(tmp_path)[0] == [["b/c/x.md"], ["b/y.txt.gz"], ["z.txt"]]
    assert read(tmp_path / "**" / "*.md")[0] == [["b/c/x.md"]]


def test_empty_files_and_documents_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("  \n\n")
    (tmp_path / "c.txt").write_text("text")
    documents, counts, _ = read(tmp_path)
    assert documents == [["text"]]
    assert counts == {"empty_files": 1, "empty_documents": 2}


def test_invalid_utf8_is_replaced_and_counted_or_refused_with_its_place(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine \xef\xbf\xbd\nab\xff\xfec\n")
    documents, counts, _ = read(path)
    assert documents == [["fine \ufffd", "ab\ufffd\ufffdc"]]
    assert counts == {"invalid_utf8": 2}
    with pytest.raises(UserError, match=r"a\.txt is not UTF-8 at byte 11:"):
        read(path, invalid_utf8="error")
    path.write_bytes("\ufefftext".encode("utf-16"))
    with pytest.raises(UserError, match="is UTF-16"):
        read(path)


def test_invalid_utf8_far_into_a_long_line_has_its_place(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"first\n" + "é".encode() * 1_500_000 + b"\xff")
    with pytest.raises(UserError, match=f"not UTF-8 at byte {6 + 3_000_000}:"):
        read(path, invalid_utf8="error")


@pytest.mark.parametrize("unit", ["word ", "é", "\U0001f600"])
def test_a_line_of_100_mb_comes_in_parts_and_nothing_is_lost(tmp_path, unit):
    path = tmp_path / "a.txt"
    block = (unit * 1_000_000)[: 1_000_000 // len(unit.encode())]
    block = block[: len(block) - len(block) % len(unit)]
    with path.open("w") as file:
        for _ in range(100):
            file.write(block)
    source = open_source(str(path))
    longest = characters = 0
    for paragraph in source.paragraphs():
        longest = max(longest, len(paragraph))
        characters += len(paragraph.replace(" ", ""))
    assert longest <= MAX_PARAGRAPH
    assert characters == 100 * len(block.replace(" ", ""))
    assert source.reading.counts["cut_lines"] >= 100 * len(block) // MAX_PARAGRAPH - 1
    assert source.reading.counts["invalid_utf8"] == 0


# Rows


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_jsonl(tmp_path, suffix):
    rows = [{"text": "a b\nc", "body": "x"}, {"text": ["d", "e"], "body": "y"}]
    data = "\n".join(map(json.dumps, rows)).encode() + b"\n\n"
    path = compress(tmp_path / f"a.jsonl{suffix}", data)
    assert read(path)[0] == [["a b", "c"], ["d", "e"]]
    assert read(f"{path}:body")[0] == [["x"], ["y"]]
    with pytest.raises(UserError, match=r"line 1 has no field 'no'.*one of body, text"):
        read(f"{path}:no")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": 1}', "line 2 is int, not text"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"text": "x', "line 2 is not JSON"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        read(path)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_parquet(tmp_path, suffix):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a b\nc", None, "d"], "n": [1, 2, 3], "ts": [["x"], [], ["y"]]})
    parquet.write_table(table, tmp_path / "plain.parquet")
    data = (tmp_path / "plain.parquet").read_bytes()
    path = compress(tmp_path / f"a.parquet{suffix}", data)
    documents, counts, _ = read(path)
    assert documents == [["a b", "c"], ["d"]]
    assert counts == {"empty_documents": 1}
    assert read(f"{path}:ts")[0] == [["x"], ["y"]]
    with pytest.raises(UserError, match=r"has no field 'no'.*one of n, text, ts"):
        read(f"{path}:no")
    with pytest.raises(UserError, match="is int, not text"):
        read(f"{path}:n")
    compress(path, data[: len(data) // 2])
    with pytest.raises(UserError, match=r"a\.parquet.* is cut short or no Parquet file"):
        read(path)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.parquet.gz"])
def test_a_truncated_file_is_named(tmp_path, name):
    data = b"".join(b'{"text": "%d"}\n' % (i * i) for i in range(10000))
    path = compress(tmp_path / name, data)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=rf"{name} is cut short"):
        read(path)
    whole = bytearray(compress(tmp_path / name, data).read_bytes())
    whole[len(whole) // 2] ^= 0x55
    path.write_bytes(whole)
    with pytest.raises(UserError, match=rf"{name} is cut short"):
        read(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"{name} is cut short"):
        read(path)


# Names


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "the source is empty"),
        ("absent.txt", "no source absent.txt"),
        ("absent/*.txt", "no file matches absent/"),
        ("*.nothing", "no file matches"),
        ("a.txt:body", "no source"),
        ("tfds:x", "is not tfds:NAME"),
        ("hub:x", "is not hub:ORG/NAME"),
        ("python_docs,", "a source of the mixture"),
        ("python_docs@1,python_docs", "to every source"),
        ("python_docs@0,python_docs@1", "above 0"),
        ("python_docs@1.1.1,python_docs@1", "is no number"),
    ],
)
def test_unknown_sources_are_refused_at_once(tmp_path, monkeypatch, spec, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        open_source(spec)


def test_a_folder_without_text_is_refused(tmp_path):
    (tmp_path / "image.png").write_text("x")
    with pytest.raises(UserError, match=r"holds no \.txt"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[]", r"a\.json is no text: write its texts one a row in \.jsonl"),
        ("a.csv", b"a,b", r"a\.csv is no text"),
        ("a.txt.bz2", b"BZh9", "unpack it"),
        ("a.PDF", b"%PDF", "convert it"),
        ("wiki_00", b'{"text": "one"}\n', "holds JSON lines"),
        ("a.txt", "one two".encode("utf-16"), "is UTF-16: .*iconv -f utf-16"),
        ("a.txt", "one two".encode("utf-32"), "is UTF-32: .*iconv -f utf-32"),
        ("a.txt", "one two".encode("utf-16-le"), "is not text in UTF-8"),
        ("a.jsonl", '{"text": "one"}'.encode("utf-16"), "is UTF-16"),
        ("a.txt", gzip.compress(b"one two"), r"is gzip, not text: .*\.gz"),
        ("a.txt", b"%PDF-1.7", "is PDF, not text: extract"),
        ("a.txt", b"PK\x03\x04", "is zip, not text: unpack"),
    ],
)
def test_what_is_no_text_in_utf8_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_articles_of_wikiextractor_are_documents(tmp_path):
    article = '<doc id="{}" url="https://x?curid=1" title="A > B">\n{}\n\nOne. {}\n\n</doc>\n'
    (tmp_path / "wiki_00.txt").write_text(
        article.format(1, "A", "two") + article.format(2, "B", "")
    )
    (tmp_path / "wiki_01.txt").write_text(article.format(3, "C", "three"))
    documents, _, notes = read(tmp_path)
    assert [[line for line in d if line] for d in documents] == [
        ["A", "One. two"], ["B", "One."], ["C", "One. three"]
    ]  # fmt: skip
    assert sum("WikiExtractor" in note for note in notes) == 1


def test_what_a_folder_leaves_out_is_said(tmp_path):
    for folder in ("sub", "corpus"):
        (tmp_path / folder).mkdir()
    for name in ("a.txt", "sub/b.txt", "c.rst", "README", "corpus/vocab.txt", "corpus/UNFINISHED"):
        (tmp_path / name).write_text(name)
    os.symlink("..", tmp_path / "sub" / "back")
    documents, _, notes = read(tmp_path)
    assert documents == [["a.txt"], ["sub/b.txt"]]
    said = "\n".join(notes)
    assert "2 files of other kinds are left out" in said
    assert ".rst: 1" in said and "no extension: 1" in said
    assert "corpus is a prepared corpus and is left out" in said
    assert "back is a link to a folder above it" in said
    assert read(f"{tmp_path}/**/*.txt")[0] == documents


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    os.symlink("nowhere", tmp_path / "b.txt")
    with pytest.raises(UserError, match=r"b\.txt cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("spec", ["http://host/a.txt", "http://host/*.txt", "ftp://a.txt,b.txt"])
def test_a_path_that_no_library_reads_is_refused(spec):
    with pytest.raises(UserError, match="cannot be reached"):
        open_source(spec)


def test_halves_of_surrogate_pairs_are_invalid_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": ["a\ud800b", "\ud83d\ude00", "\\ud800", "x\uDFFF"]}')
    documents, counts, _ = read(path)
    assert documents == [["a\ufffdb", "\U0001f600", r"\ud800", "x\ufffd"]]
    assert counts == {"invalid_utf8": 2}
    with pytest.raises(UserError, match="line 1 has half a surrogate pair"):
        read(path, invalid_utf8="error")


# Mixtures


def test_sources_one_after_the_other(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.jsonl").write_text('{"text": "three"}')
    assert read(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl")[0] == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("spec", ["my,texts/*.txt", "[a,b].txt", "q,r.jsonl:body"])
def test_a_comma_in_a_name_or_glob_divides_nothing(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my,texts").mkdir()
    for name in ("my,texts/a.txt", "a.txt", "b.txt"):
        (tmp_path / name).write_text("one")
    (tmp_path / "q,r.jsonl").write_text('{"body": "one"}')
    assert read(spec)[0] in ([["one"]], [["one"]] * 2)


def test_a_mixture_follows_its_shares_and_says_what_is_left(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(["aaaa"] * 100))
    (tmp_path / "b.txt").write_text("\n\n".join(["bbbbbbbb"] * 100))
    documents, _, notes = read(f"{tmp_path}/a.txt@1,{tmp_path}/b.txt@3")
    text = "".join(document[0] for document in documents)
    assert text.count("b") == 800
    assert text.count("b") / text.count("a") == pytest.approx(3, rel=0.05)
    assert "ends with source 2" in notes[-1]
    half = text[: len(text) // 2]
    assert half.count("b") / half.count("a") == pytest.approx(3, rel=0.1)


# The embedded corpus


def test_python_docs_is_text_of_this_python():
    documents = python_docs.documents()
    assert len(documents) > 400
    assert sum(len(p) for document in documents for p in document) > 1_500_000
    text = "\n".join(p for document in documents for p in document)
    assert "Return the absolute value of the argument." in text or "lambda" in text
    assert "\n" not in documents[0][0]
    assert open_source("python_docs").size is None
    source = open_source("python_docs")
    assert [list(d) for d in source.documents()] == [list(d) for d in documents]


def test_docstrings_are_read_in_order_and_nothing_is_imported(tmp_path):
    module = tmp_path / "m.py"
    module.write_text(
        '"""Module."""\nraise SystemExit\nclass A:\n    """Class."""\n    def f(self):\n'
        '        """Method\n        wrapped."""\nif 1:\n    def g():\n        """Last."""\n'
    )
    found = [p for text in python_docs._docstrings(module) for p in python_docs._paragraphs(text)]
    assert found == ["Module.", "Class.", "Method wrapped.", "Last."]


# Datasets of libraries


def write_tfds(root, name, texts, field="text", file_format="array_record", more=None):
    """A prepared TFDS dataset, written through TFDS's public interface; `more`: name -> (feature,
    values) of further fields."""
    import tensorflow_datasets as tfds
    from array_record.python import array_record_module

    folder = pathlib.Path(root) / name / "1.0.0"
    folder.mkdir(parents=True)
    more = more or {}
    kinds = {name: feature for name, (feature, _) in more.items()}
    features = tfds.features.FeaturesDict({field: tfds.features.Text()} | kinds)
    path = folder / f"{name.split('/')[0]}-train.{file_format}-00000-of-00001"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for row, text in enumerate(texts):
        values = {name: values[row] for name, (_, values) in more.items()}
        writer.write(features.serialize_example({field: text} | values))
    writer.close()
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features,
        split_infos=[
            tfds.core.SplitInfo(name="train", shard_lengths=[len(texts)], num_bytes=0),
        ],
        filename_template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        check_data=False,
    )


@pytest.fixture
def tfds_root(tmp_path, monkeypatch):
    """A data folder of TFDS, and no network."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail("called the network"))
    return tmp_path


def test_tfds_with_the_markers_of_wiki40b(tfds_root):
    article = (
        "\n_START_ARTICLE_\nTitle\n_START_SECTION_\nPart\n_START_PARAGRAPH_\nOne._NEWLINE_Two."
    )
    write_tfds(tfds_root, "wiki40b/en", [article, "plain"])
    write_tfds(tfds_root, "mine", ["a", "b"], field="body")
    expected = [["Title", "Part", "One.", "Two."], ["plain"]]
    assert read("tfds:wiki40b/en:train")[0] == expected
    assert read("tfds:wiki40b:train")[0] == expected
    assert read("tfds:mine:train:body")[0] == [["a"], ["b"]]
    assert read("tfds:mine:train[:1]:body")[0] == [["a"]]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds:min:train", "nearest names are mine"),
        ("tfds:imdb_review:train", "nearest names are imdb_reviews"),
        ("tfds:imdb_reviews:train", "is not prepared in .*tfds build imdb_reviews"),
        ("tfds:mine:test", "its splits are train"),
        ("tfds:mine:train", "no field 'text'.*one of body"),
        ("tfds:records:train", "stored as tfrecord, which needs TensorFlow"),
    ],
)
def test_tfds_names_are_looked_up_without_a_network(tfds_root, monkeypatch, spec, message):
    write_tfds(tfds_root, "mine", ["a"], field="body")
    write_tfds(tfds_root, "records", ["a"], file_format="tfrecord")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(UserError, match=message):
        read(spec)


def test_labels_in_lists_are_read_by_name(tfds_root):
    import tensorflow_datasets as tfds

    tags = tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-PER"]))
    words = tfds.features.Sequence(tfds.features.Text())
    more = {"tags": (tags, [[1, 0], []]), "tokens": (words, [["Jim", "ran"], []])}
    write_tfds(tfds_root, "entities", ["Jim ran", ""], more=more)
    (sentence,), _ = read_sentences("tfds:entities:train", "tokens", "tags")
    assert sentence.words == ("Jim", "ran") and sentence.labels == ("B-PER", "O")


def test_labels_of_the_hub_are_read_by_name(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra hub is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    classes = datasets.ClassLabel(names=["O", "B-PER"])
    columns = {"tokens": [["Jim", "ran"], ["a"]], "tags": [[1, 0], [-1]], "kind": [1, -1]}
    features = datasets.Features(
        tokens=datasets.Sequence(datasets.Value("string")), tags=datasets.Sequence(classes),
        kind=classes,
    )  # fmt: skip
    (tmp_path / "org" / "name").mkdir(parents=True)
    table = datasets.Dataset.from_dict(columns, features=features)
    table.to_parquet(str(tmp_path / "org" / "name" / "train.parquet"))
    monkeypatch.chdir(tmp_path)
    sentences, _ = read_sentences("hub:org/name:train", "tokens", "tags")
    assert [s.labels for s in sentences] == [("B-PER", "O"), None]  # -1: hidden
    assert read_table("hub:org/name:train").column("kind", "") == ["B-PER", None]
    with pytest.raises(UserError, match="could not be read"):
        read_table("hub:org/absent:train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"bertjax\[hub\]"):
        read_table("hub:org/name:train")


def test_hub_by_streaming(tmp_path, monkeypatch):
    """The library reads a folder in the way in which it reads the hub."""
    pytest.importorskip("datasets", reason="the extra hub is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "train.jsonl").write_text('{"text": "a\\nb"}\n{"text": "c"}\n')
    monkeypatch.chdir(tmp_path)
    assert read("hub:org/name:train")[0] == [["a", "b"], ["c"]]
    with pytest.raises(UserError, match="has no field 'body'"):
        read("hub:org/name:train:body")
    with pytest.raises(UserError, match="Bad split"):
        read("hub:org/name:nope")


def test_hub_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"bertjax\[hub\]"):
        read("hub:org/name:train")


# Real text


def test_real_corpora(real_data):
    books, _, _ = read(real_data / "corpora" / "books")
    assert len(books) == len(os.listdir(real_data / "corpora" / "books")) == 79
    rows, _, _ = read(real_data / "corpora" / "wikipedia_vital_summaries.jsonl")
    assert len(rows) == 10_033
    assert np.mean([len(document) for document in rows]) >= 1


def test_a_document_left_half_read_does_not_spill(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\nfour\n")
    firsts = [next(document) for document in corpus.open_source(f"{tmp_path}/a.txt").documents()]
    assert firsts == ["one", "three"]
