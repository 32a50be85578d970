"""Preparation on Apache Beam gives the documents, splits and records of the local one."""

import collections

import numpy as np
import pytest
from test_builder import text, vocab, write  # noqa: F401  (a fixture)

from bertjax.data.builder import HeldOut, open_prepared, prepare, read_report
from bertjax.data.store import PreparedCorpus
from bertjax.errors import UserError

pytest.importorskip("apache_beam", reason="the extra beam is not installed")
OPTIONS = "runner=DirectRunner"


def documents(out, split):
    """Each document as a tuple of (ids, sentence lengths) of its records, in order."""
    corpus = PreparedCorpus(str(out), split)
    found = collections.defaultdict(list)
    for i, record in enumerate(corpus.read(range(len(corpus)))):
        lengths = corpus.lengths[corpus.offsets[i] : corpus.offsets[i + 1]]
        assert lengths.sum() == len(record["ids"])
        found[int(corpus.documents[i])].append((tuple(record["ids"]), tuple(lengths)))
    assert list(found) == list(range(len(found)))
    return collections.Counter(map(tuple, found.values()))


def test_the_same_documents_as_without_beam(tmp_path, vocab):  # noqa: F811
    for part in range(3):
        write(tmp_path / f"{part}.txt", text(60, seed=part))
    write(tmp_path / "long.txt", "Ba ko mi.\n" * 30_000)  # several pieces, many records
    write(tmp_path / "empty.txt", "\u200b\n")
    held_out = HeldOut.parse(["0.2", f"more={write(tmp_path / 'more.md', text(3, seed=9))}"])
    options = {"vocab": vocab, "held_out": held_out, "layout": "blank_line"}
    here = prepare(f"{tmp_path}/*.txt", out=tmp_path / "here", **options)
    beam = prepare(
        f"{tmp_path}/*.txt", out=tmp_path / "beam", beam_pipeline_options=OPTIONS, **options
    )
    open_prepared(beam)
    for split in ("train", "validation", "more"):
        assert documents(here, split) == documents(beam, split)
    figures, expected = read_report(beam), read_report(here)
    assert figures["splits"] == expected["splits"]
    for name in ("documents", "sentences", "tokens", "characters", "unk_share"):
        assert figures[name] == expected[name], name
    assert figures["duplicate_documents_share"] == expected["duplicate_documents_share"]
    assert figures["sentence_length_histogram"] == expected["sentence_length_histogram"]
    assert np.isclose(figures["nsp_random_share"], expected["nsp_random_share"], atol=0.1)


def test_errors_of_workers_are_sentences(tmp_path, vocab):  # noqa: F811
    bad = tmp_path / "a.jsonl"
    bad.write_text('{"text": "Ba ko."}\n{"no": 1}\n')
    with pytest.raises(UserError, match=r"^\S*a\.jsonl line 2 has no field 'text'"):
        prepare(str(bad), vocab, tmp_path / "out", beam_pipeline_options=OPTIONS)
    with pytest.raises(UserError, match="a folder that every worker sees"):
        prepare(str(bad), vocab, "gs://bucket/out", beam_pipeline_options=OPTIONS)
    one = write(tmp_path / "a.txt", text(1))  # nothing can be held out
    with pytest.raises(UserError, match="a split stayed empty"):
        prepare(one, vocab, tmp_path / "out2", beam_pipeline_options=OPTIONS)
