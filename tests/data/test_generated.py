"""Ten thousand generated texts and files: no crash, and no row lost in silence.

Two kinds of file: sound ones, written by an independent writer (csv, json), come back whole;
hostile ones (mutated or random bytes) are read or refused in one sentence.
"""

import csv
import io
import json
import pathlib
import tempfile

import hypothesis
import numpy as np
import pytest
import sentencex
from hypothesis import strategies as st

from bertjax.data import encoder
from bertjax.data.corpus import open_source
from bertjax.data.questions import read_questions
from bertjax.data.reading import Reading
from bertjax.data.sentences import read_sentences
from bertjax.data.tables import read_table
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abc中文,.!'\"éß",
    "##a",
    "##b",
    "##文",
    "ab",
]
TEXTS_AN_EXAMPLE = 20  # 250 examples of 20 texts, two families: 10,000 texts


def generated(examples: int):
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


# Any Unicode at all, letters of the vocabulary with awkward neighbours, and typed special tokens.
awkward = st.text(
    st.sampled_from("abc中文é'\"# \t\n\r\x00\x0b\x85\u200b\u2028\u0301\ufeff\ufffd\U0001f600İß")
)
texts = st.one_of(st.text(max_size=60), awkward, st.sampled_from(["[MASK]", "[CLS]a[SEP]", "##a"]))
# A cell of a table: one line, no separator of its own kind.
cell = st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"]), min_size=1)


@pytest.fixture(scope="module", params=["huggingface", "google"])
def tokenizer(request) -> Tokenizer:
    return Tokenizer(PIECES, do_lower_case=True, family=request.param)


@generated(250)
@hypothesis.given(st.lists(texts, min_size=TEXTS_AN_EXAMPLE, max_size=TEXTS_AN_EXAMPLE))
def test_every_way_to_encode_gives_the_same_ids(tokenizer, batch):
    """One by one with offsets, as a batch, and the bulk way: three implementations agree."""
    batch = [text.encode("utf-8", "replace").decode() for text in batch]  # no lone surrogates
    flat, lengths = tokenizer.encode_flat(batch)
    many = tokenizer.encode_batch(batch, special_tokens=False)
    bulk = [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]
    assert bulk == many
    for text, ids in zip(batch, many, strict=True):
        encoding = tokenizer.encode(text, special_tokens=False)
        assert encoding.ids == ids
        assert all(0 <= i < len(PIECES) for i in ids)
        offsets = encoding.offsets
        assert all(0 <= start <= end <= len(text) for start, end in offsets)
        assert offsets == sorted(offsets)
        # A letter of the vocabulary is never swallowed.
        if any(letter in text for letter in "abc中文"):
            assert ids


@generated(100)
@hypothesis.given(st.lists(texts, min_size=1, max_size=20))
def test_the_encoder_stores_every_token(tokenizer, paragraphs):
    paragraphs = [text.encode("utf-8", "replace").decode() for text in paragraphs]
    chunk = encoder.Encoder(tokenizer)([encoder.Piece("train", paragraphs, last=True)])
    sentences = [s for p in paragraphs for s in sentencex.segment("en", p)]
    expected = [tokenizer.encode(s.strip(), special_tokens=False).ids for s in sentences]
    lengths = [len(ids) for ids in expected if ids]
    assert chunk.pieces[0].lengths.tolist() == lengths
    assert sum(chunk.pieces[0].tokens[1]) == sum(lengths)
    assert chunk.unknown == sum(ids.count(1) for ids in expected)


@generated(200)
@hypothesis.given(
    st.lists(st.tuples(cell, cell), min_size=1, max_size=20), st.sampled_from([".tsv", ".jsonl"])
)
def test_rows_of_sound_files_come_back(rows, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"rows{suffix}")
        if suffix == ".tsv":
            lines = [("text", "label"), *rows]
            path.write_text("".join("\t".join(r) + "\n" for r in lines), "utf-8", newline="")
        else:
            objects = [{"text": a, "label": b} for a, b in rows]
            path.write_text("".join(json.dumps(o) + "\n" for o in objects))
        table = read_table(str(path), header="yes")
    blank = 0 if suffix == ".jsonl" else sum(not "".join(row).strip(" ") for row in rows)
    found = zip(table.column("text", "x"), table.column("label", "x"), strict=True)
    assert len(table.rows) + blank >= len(rows)
    expected = [row for row in rows if suffix == ".jsonl" or "".join(row).strip()]
    assert [tuple(map(str.strip, row)) for row in found] == [
        tuple(map(str.strip, row)) for row in expected
    ]


@generated(200)
@hypothesis.given(st.lists(st.tuples(st.text(min_size=1), cell), min_size=1, max_size=20))
def test_rows_of_csv_come_back_with_their_quotes_and_lines(rows):
    rows = [[c.encode("utf-8", "replace").decode() for c in row] for row in rows]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["text", "label"], *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.csv")
        path.write_text(buffer.getvalue(), "utf-8", newline="")
        table = read_table(str(path), header="yes")
    assert [list(row) for row in table.rows] == rows


word = st.text(
    st.characters(exclude_characters=" \t\r\n\ufeff#", exclude_categories=["Cs"]), min_size=1
).filter(lambda w: w != "-DOCSTART-")


@generated(200)
@hypothesis.given(
    st.lists(st.lists(st.tuples(word, word), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from(["\t", " "]),
)
def test_words_of_conll_come_back(sentences, separator):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.conll")
        blocks = ("".join(separator.join(row) + "\n" for row in rows) for rows in sentences)
        path.write_text("\n".join(blocks), "utf-8", newline="")
        found, _ = read_sentences(str(path), "0", "-1")
    assert [list(zip(s.words, s.labels, strict=True)) for s in found] == sentences


# Mutations of files that are nearly right reach further into a reader than random bytes do.
SEEDS = {
    ".tsv": b"text\tlabel\na b\t1\nc\t0\n",
    ".csv": b'text,label\n"a, b",1\nc,0\n',
    ".jsonl": b'{"text": "a", "label": 1, "words": ["a"], "question": "q", "context": "c", '
    b'"answers": {"text": ["c"], "answer_start": [0]}}\n',
    ".conll": b"a B-X\nb O\n\nc O\n",
    ".json": b'{"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "q",'
    b' "answers": [{"text": "a", "answer_start": 0}]}]}]}]}',
    ".txt": b"a b c.\nd e.\n\nf.\n",
}
edit = st.tuples(
    st.integers(0, 10_000), st.integers(0, 12),
    st.one_of(st.binary(max_size=6), st.sampled_from([
        b"null", b"[]", b"{}", b'"a"', b"-1", b"1e999", b"NaN", b"\xff\xfe", b"\n", b"\t", b"\x00",
        b'"', b"[" * 50, b"\xed\xa0\x80", b'"\\ud800"',
    ])),
)  # fmt: skip


def read_everything(path: str) -> None:
    """Every reader that a task might point at the file; a refusal is one sentence."""
    for read in (
        lambda: read_table(path).column("text", "data.text_column"),
        lambda: read_sentences(path, "words|0", "label|-1"),
        lambda: read_questions(path),
        lambda: [list(document) for document in open_source(path, Reading()).documents()],
    ):
        try:
            read()
        except UserError as error:
            assert "\n" not in str(error)


@generated(1500)
@hypothesis.given(st.sampled_from(sorted(SEEDS)), st.lists(edit, min_size=1, max_size=4))
def test_hostile_files_are_read_or_refused(suffix, edits):
    data = SEEDS[suffix]
    for position, length, new in edits:
        position %= len(data) + 1
        data = data[:position] + new + data[position + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"hostile{suffix}")
        path.write_bytes(data)
        read_everything(str(path))
