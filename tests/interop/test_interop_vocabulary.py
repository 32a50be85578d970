"""A vocabulary extended for a domain on the way in."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from interop_models import VOCAB, published, same_trees

from bertjax.errors import UserError
from bertjax.interop import extend_vocabulary, read_checkpoint, write_huggingface


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("foxing\nDogs\n\nhello\nfoxing\n東\n", encoding="utf-8")
    return path


def test_new_rows_are_the_mean_of_their_pieces(words, tmp_path) -> None:
    model = published(("mlm", "nsp"))
    grown = extend_vocabulary(model, words)
    assert grown.tokenizer.vocab == [*VOCAB, "foxing", "dogs", "東"]
    assert grown.config["vocab_size"] == len(VOCAB) + 3
    assert model.tokenizer.encode("foxing Dogs").tokens == ["fox", "##ing", "dog", "##s"]
    assert grown.tokenizer.encode("foxing Dogs").tokens == ["foxing", "dogs"]
    for old, new in (
        (model.params["bert"]["embeddings"]["word_embeddings"]["embedding"],
         grown.params["bert"]["embeddings"]["word_embeddings"]["embedding"]),
        (model.params["mlm"]["bias"], grown.params["mlm"]["bias"]),
    ):  # fmt: skip
        size = len(VOCAB)
        np.testing.assert_array_equal(new[:size], old[:size])
        fox, ing, unk = (VOCAB.index(t) for t in ("fox", "##ing", "[UNK]"))
        np.testing.assert_allclose(new[size], (old[fox] + old[ing]) / 2, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(new[size + 2], old[unk], rtol=1e-6)
        assert not new[size + 3 :].any()
    assert "3 words" in grown.notes[-1]
    assert "1 were there already, 1 had no known pieces" in grown.notes[-1]
    write_huggingface(tmp_path / "out", grown)
    again = read_checkpoint(str(tmp_path / "out"))
    assert same_trees(again.params, grown.params) and again.tokenizer.vocab == grown.tokenizer.vocab


@pytest.mark.parametrize("count", [96, 97, 200])
def test_the_table_grows_by_whole_blocks(tmp_path, count) -> None:
    words = [f"a{'s' * i}" for i in range(1, 60)] + [f"b{'ing' * i}" for i in range(1, 30)]
    words += [f"c{'s' * i}" for i in range(1, 60)] + [f"fox{'s' * i}" for i in range(1, 60)]
    path = tmp_path / "words.txt"
    path.write_text("\n".join(words[:count]), encoding="utf-8")
    grown = extend_vocabulary(published(()), path)
    table = grown.params["bert"]["embeddings"]["word_embeddings"]["embedding"]
    size = len(VOCAB) + count
    assert grown.config["vocab_size"] == size and len(table) == -(-size // 128) * 128
    assert table[:size].any(axis=1).all() and not table[size:].any()


def test_bad_word_lists(tmp_path) -> None:
    path = tmp_path / "words.txt"
    for text, message in (
        ("hello\nthe\n", "has no word that the vocabulary lacks"),
        ("two words\n", "'two words', which the tokenizer cuts into 2 words"),
        ("covid-19\n", "cuts into 3 words"),
        ("x" * 101, "of 101 characters; words of more than 100 are"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            extend_vocabulary(published(()), path)
    with pytest.raises(UserError, match=r"nowhere\.txt cannot be read"):
        extend_vocabulary(published(()), tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="has no vocabulary to extend"):
        extend_vocabulary(dataclasses.replace(published(()), tokenizer=None), path)
