"""Tagging: labels stay on their words, each word is predicted once, spans score as conlleval."""

import json

import numpy as np
import pytest
from helpers_finetune import evaluate, make, params_of, tokenizer, write

from bertjax.errors import UserError
from bertjax.tasks import results
from bertjax.tasks.tag import scheme_of, sentence_windows, word_labels, word_pieces

COLUMNS = {"data__text_column": "0", "data__label_column": "-1", "train__steps": 2}
TWO = "he\tO\njim\tB-PER\n\nthe\tO\nworld\tO\n"


def task_of(tmp_path, train=TWO, validation=None, **values):
    path = write(tmp_path, "train.conll", train)
    if validation is not None:
        values["data__validation"] = write(tmp_path, "dev.conll", validation)
    return make("tag", tmp_path, data__train=path, **(COLUMNS | values))


def message(*arguments, **options) -> str:
    with pytest.raises(UserError) as error:
        task_of(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_split_without_entities_is_reported(tmp_path):
    """Hidden test files say O of every word; a weak model predicts nothing else."""
    gold = guess = [["O", "O"], ["O"]]
    assert "no entity" in results.entity_report(gold, guess)
    assert results.tag_figures(gold, guess, "entity_f1")["entity_f1"] == 0.0
    assert "PER" in results.entity_report([["B-PER", "O"], ["O"]], guess)


def test_a_tagger_that_always_says_the_same_is_told():
    figures = results.tag_figures([["B-P", "O"]], [["O", "O"]], "entity_f1")
    assert figures["predicted_classes"] == 1.0


def test_a_file_of_texts_is_noticed(tmp_path, capsys):
    task_of(tmp_path, "a good film\tpos\na bad film\tneg\n" * 60)
    assert "120 words have blanks in them" in capsys.readouterr().err
    task_of(tmp_path, "New York\tB-LOC\nis\tO\n\n" * 60)
    assert "blanks" not in capsys.readouterr().err


def test_weights_of_classes_are_not_for_taggers(tmp_path):
    assert "class_weights=balanced" in message(tmp_path, train__class_weights="balanced")


def test_labels_that_look_like_entities_but_are_not_of_their_form(tmp_path, capsys):
    task_of(tmp_path, "he\tO\njim\tPER-B\n")
    assert "there is a label O" in capsys.readouterr().err
    task_of(tmp_path, "he\tO\njim\tB\n")
    assert "there is a label O" not in capsys.readouterr().err


def test_the_first_piece_carries_the_label(tmp_path):
    task = task_of(tmp_path, "jim\tB-PER\nunaffable\tO\n")
    rows = task._rows["train"]
    tokens = tokenizer().tokens(rows.ids[0])
    assert tokens == ["[CLS]", "jim", "un", "##aff", "##able", "[SEP]"]
    assert task.labels == ("B-PER", "O")
    assert rows.by_token["target"][0].tolist() == [-100, 0, 1, -100, -100, -100]
    batch = next(task.eval_batches("train", _all()))
    assert batch["target"].shape == batch["input_ids"].shape
    assert (batch["target"] != -100).sum() == 2  # padding is not scored


def _all():
    from bertjax.tasks.task import Rows

    return Rows()


def test_a_word_that_leaves_no_piece_is_unknown_and_shifts_nothing(tmp_path, capsys):
    content = "he\tO\n\u200b\tB-X\nworld\tO\n"
    task = task_of(tmp_path, content, content)
    (ids,) = task._rows["validation"].ids
    assert tokenizer().tokens(ids) == ["[CLS]", "he", "[UNK]", "world", "[SEP]"]
    assert "nothing is left of 1 words" in capsys.readouterr().err
    params = params_of(task)
    evaluate(task, "validation", params)
    (row,) = task.predictions("validation", task._outputs["validation"])
    assert row["words"] == ["he", "\u200b", "world"] and len(row["prediction"]) == 3
    assert row["label"] == ["O", "B-X", "O"]


def test_a_long_sentence_has_a_prediction_for_every_word(tmp_path, capsys):
    words = [
        f"{'jim' if i % 7 == 0 else 'unaffable'}\t{'B-PER' if i % 7 == 0 else 'O'}"
        for i in range(300)
    ]
    content = "\n".join(words) + "\n"
    task = task_of(tmp_path, content, content + "\nhe\tO\n")
    assert "1 sentences are longer than config.data.seq_length=32" in capsys.readouterr().err
    for split in ("train", "validation"):
        scored = sum((t != -100).sum() for t in task._rows[split].by_token["target"])
        assert scored == 300 + (split == "validation")
        assert max(map(len, task._rows[split].ids)) <= 32
    figures = evaluate(task, "validation", params_of(task))
    rows = list(task.predictions("validation", task._outputs["validation"]))
    assert [len(row["prediction"]) for row in rows] == [300, 1] and figures["words"] == 301
    right = sum(
        a == b for row in rows for a, b in zip(row["label"], row["prediction"], strict=True)
    )
    assert figures["accuracy"] == pytest.approx(right / 301)


@pytest.mark.parametrize("overlap", [0, 3])
def test_windows_own_each_word_once_and_at_its_own_column(overlap):
    draw = np.random.default_rng(0)
    pieces = [list(draw.integers(10, 99, draw.integers(1, 5))) for _ in range(60)]
    windows = sentence_windows(pieces, 16, overlap, 2, 3)
    owned = [word for window in windows for word, _ in window.owned]
    assert owned == list(range(60))
    for window in windows:
        assert len(window.ids) <= 16 and window.ids[0] == 2 and window.ids[-1] == 3
        for word, column in window.owned:
            assert window.ids[column] == pieces[word][0]
    tokens = np.zeros((len(windows), 16), int)
    for row, window in enumerate(windows):
        tokens[row, : len(window.ids)] = window.ids
    (found,) = word_labels(windows, [0] * len(windows), tokens, [60])
    assert found.tolist() == [word[0] for word in pieces]


def test_a_word_longer_than_a_row_is_read_from_its_beginning():
    (window,) = sentence_windows([[5] * 40], 16, 3, 2, 3)
    assert window.ids == [2, *[5] * 14, 3] and window.owned == ((0, 1),)


def test_labels_are_those_of_the_whole_file_though_few_sentences_are_drawn(tmp_path):
    rare = "he\tO\n\n" * 9 + "jim\tB-PER\n"
    task = task_of(tmp_path, rare, rare, data__limit=2)
    assert task.labels == ("B-PER", "O") and len(task._rows["train"]) == 2


def test_pieces_of_distinct_words():
    pieces = word_pieces(tokenizer(), ["jim", "unaffable", "jim", "\u200b"])
    assert list(pieces) == ["jim", "unaffable", "\u200b"]
    assert pieces["\u200b"] == [tokenizer().unk_id]


DOCUMENTS = (
    "-DOCSTART-\n\nhe\tO\njim\tB-PER\n\nthe\tO\nworld\tO\n\nunaffable\tO\n\n-DOCSTART-\n\nfilm\tO\n"
)


def rows_of(task, split="train"):
    return [" ".join(tokenizer().tokens(ids)) for ids in task._rows[split].ids]


def test_sentences_around_one_fill_its_row_and_are_not_scored(tmp_path):
    plain = task_of(tmp_path, DOCUMENTS, DOCUMENTS)
    task = task_of(tmp_path, DOCUMENTS, DOCUMENTS, data__document_context=True)
    whole = "[CLS] he jim the world un ##aff ##able [SEP]"
    assert rows_of(task) == [whole, whole, whole, "[CLS] film [SEP]"]
    targets = [row.tolist() for row in task._rows["train"].by_token["target"]]
    none = -100
    assert targets[:3] == [
        [none, 1, 0, none, none, none, none, none, none],
        [none, none, none, 1, 1, none, none, none, none],
        [none, none, none, none, none, 1, none, none, none],
    ]
    params = params_of(task)
    found = []
    for one in (plain, task):
        figures = evaluate(one, "validation", params)
        assert figures["words"] == 6
        found.append(list(one.predictions("validation", one._outputs["validation"])))
    assert [row["words"] for row in found[0]] == [row["words"] for row in found[1]]
    # A document of one sentence reads as it does alone; the others see more.
    assert found[0][3] == found[1][3]
    assert found[0][0]["probabilities"] != found[1][0]["probabilities"]


def test_context_is_whole_words_of_the_same_document_from_the_whole_file(tmp_path):
    words = ["red\tO\n\n", "unaffable\tB-X\n\n", "jim\tO\n\n", "unaffable\tB-X\n\n", "blue\tO\n\n"]
    content = "-DOCSTART-\n\n" + "".join(words) + "-DOCSTART-\n\nthe\tO\nworld\tB-X\n"
    options = {"data__document_context": True, "data__window_overlap": 1}
    task = task_of(tmp_path, content, data__seq_length=8, **options)
    # Room for 5 tokens beside jim: half, 2, before it holds no whole word; the rest comes after.
    assert rows_of(task)[2] == "[CLS] jim un ##aff ##able blue [SEP]"
    assert rows_of(task)[5] == "[CLS] the world [SEP]"
    # What data.limit leaves out is still seen around the others.
    few = task_of(tmp_path, content, data__limit=3, data__seq_length=8, **options)
    assert len(few._rows["train"]) == 3 and set(rows_of(few)) <= set(rows_of(task))


def test_a_long_sentence_needs_no_context(tmp_path):
    content = "-DOCSTART-\n\n" + "jim\tB-PER\n" * 40 + "\nhe\tO\n"
    plain = task_of(tmp_path, content)
    task = task_of(tmp_path, content, data__document_context=True)
    assert rows_of(task)[:-1] == rows_of(plain)[:-1] and rows_of(task)[-1].count("jim") == 29


def test_documents_must_be_marked(tmp_path):
    text = message(tmp_path, TWO, data__document_context=True)
    assert "-DOCSTART-" in text and "config.data.document_context" in text
    blanks = TWO.replace("\n\n", "\n\n\n")
    task = task_of(tmp_path, blanks, data__document_context=True)
    assert rows_of(task) == ["[CLS] he jim [SEP]", "[CLS] the world [SEP]"]
    rows = [(["he", "jim"], 1), (["the", "world"], 1), (["film"], 2)]
    lines = (
        json.dumps({"words": words, "labels": ["O", "B-X"][: len(words)], "document": number})
        for words, number in rows
    )
    path = write(tmp_path, "a.jsonl", "\n".join(lines))
    columns = {"data__text_column": "words", "data__label_column": "labels"}
    task = make("tag", tmp_path, data__train=path, data__document_context=True, **columns)
    assert rows_of(task) == ["[CLS] he jim the world [SEP]"] * 2 + ["[CLS] film [SEP]"]


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        (["B-PER", "I-PER", "O"], "entities"),
        (["B-PER", "M-PER", "E-PER", "S-PER", "O"], "entities"),
        (["B", "M", "E", "S"], "words"), (["B", "I"], "words"), (["NN", "VB", "O"], "tokens"),
        (["B-PER", "NN"], "tokens"), (["O"], "tokens"), (["B", "I", "O"], "entities"),
        (["I", "O"], "entities"), (["B", "O"], "entities"), (["S", "O"], "tokens"),
    ],
)  # fmt: skip
def test_what_labels_say(names, scheme):
    assert scheme_of(names) == scheme


def spans(*tags: str) -> list[list[str]]:
    return [tag.split() for tag in tags]


@pytest.mark.parametrize(
    ("gold", "guess", "f1"),
    [
        ("B-P I-P O B-L", "B-P I-P O B-L", 1.0),
        ("B-P I-P O B-L", "B-P O O B-L", 0.5),  # a span cut short is wrong
        ("I-P I-P O I-L", "I-P I-P O I-L", 1.0),  # IOB1
        ("I-P B-P O O", "B-P B-P O O", 1.0),  # IOB1: the same two spans
        ("B-P E-P O S-L", "B-P E-P O S-L", 1.0),
        ("B-P M-P E-P O", "B-P I-P E-P O", 1.0),  # BMES
        ("B-P O O O", "O O O O", 0.0),
    ],
)
def test_entity_f1_by_hand(gold, guess, f1):
    assert results.tag_figures(spans(gold), spans(guess), "entity_f1")["entity_f1"] == f1


def test_word_f1_of_segmentation():
    # ab|c|de against a|b|c|de: two of three words right, of four found.
    figures = results.tag_figures(spans("B E S B E"), spans("S S S B E"), "word_f1")
    assert figures["word_recall"] == pytest.approx(2 / 3)
    assert figures["word_precision"] == pytest.approx(2 / 4)


def test_missed_entities_count_as_misses():
    figures = results.tag_figures(spans("B-P O", "B-P O"), spans("B-P O", "O O"), "entity_f1")
    assert figures["entity_recall"] == 0.5 and figures["entity_precision"] == 1.0


def test_files_of_predictions(tmp_path):
    test = write(tmp_path, "t.conll", "he\nworld\n\njim\n")
    task = task_of(tmp_path, TWO, TWO, data__test=test)
    params = params_of(task)
    figures = {split: evaluate(task, split, params) for split in task.eval_splits}
    assert figures["test"] == {"examples": 2, "words": 3}
    task.finish(str(tmp_path / "out"), params, figures)
    lines = (tmp_path / "out/predictions/test.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["words"] for row in rows] == [["he", "world"], ["jim"]]
    assert all(row["label"] is None and len(row["prediction"]) == len(row["words"]) for row in rows)


def test_bad_input_is_one_sentence(tmp_path):
    text = message(tmp_path, TWO, "he\tB-LOC\n")
    assert "'B-LOC'" in text and "or train on an example of it" in text
    text = message(tmp_path, TWO, "he\tB-LOC\njim\tB-LOC\nhe\tB-X\n\nhe\tO\njim\tB-LOC\n")
    assert "'B-LOC' (sentence at line 1, sentence at line 5)" in text
    assert "every word" in message(tmp_path, "he\tO\nhe\tO\n")
    assert "line 2" in message(tmp_path, "he\tO\njim\n")
    assert "no labels" in message(tmp_path, "he\njim\n")
    assert "no sentence" in message(tmp_path, "\n\n")
    task_of(tmp_path, data__window_overlap=20)  # no sentence needs windows
    long = "he\tO\njim\tB-PER\n" * 20
    text = message(tmp_path, long, data__window_overlap=20)
    assert "window_overlap=20" in text and "15 or less" in text and "line 1" in text
    assert "none is '4'" in message(tmp_path, data__label_column="4")
