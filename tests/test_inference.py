"""Inference against the model applied text by text, and the invariants of windows and batches."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax import api, inference
from bertjax.errors import UserError
from bertjax.inference import Limits, batching
from bertjax.model.bert import BertModel

sys.path.insert(0, str(Path(__file__).parent / "interop"))
from interop_models import CONFIG, VOCAB, published

TEXTS = ["hello world", "the quick brown fox jumps over the lazy dog", "京", "a b c " * 4]


@pytest.fixture(scope="module")
def mlm() -> api.Bert:
    return api.prepare(published(("mlm", "nsp")))


@pytest.fixture(scope="module")
def classifier() -> api.Bert:
    return api.prepare(published(("classifier",)))


LENGTH = CONFIG["max_position_embeddings"]


def ids_of(bert: api.Bert, text: str, pair: str | None = None) -> tuple[list[int], int]:
    """Ids of [CLS] text [SEP] pair [SEP], and where the second text begins."""
    tokenizer = bert.tokenizer
    ids = [tokenizer.cls_id, *tokenizer.encode(text, True).ids, tokenizer.sep_id]
    second = len(ids)
    if pair is not None:
        ids += [*tokenizer.encode(pair).ids, tokenizer.sep_id]
    return ids, second


@functools.cache
def jitted(model, hidden: bool):
    options = {"output_hidden_states": True} if hidden else {}
    return jax.jit(lambda params, *inputs: model.apply({"params": params}, *inputs, **options))


def apply(model, params, ids: list[int], second: int = LENGTH):
    """The model's outputs for one row alone, padded to the longest length so that it compiles
    once."""
    inputs = np.zeros((3, 1, LENGTH), np.int32)
    inputs[0, 0, : len(ids)] = ids
    inputs[1, 0, second : len(ids)] = 1
    inputs[2, 0, : len(ids)] = 1
    return jitted(model, isinstance(model, BertModel))(params, *inputs)


def test_the_dtype_is_checked() -> None:
    with pytest.raises(UserError, match="dtype='fp16' is not one of float32, bfloat16"):
        api.prepare(published(("mlm", "nsp")), "fp16")


def test_limits_are_checked(mlm) -> None:
    assert Limits.of(mlm) == Limits(24, 3)
    for length in (7, 25):
        with pytest.raises(UserError, match="it must be 8 to the model's 24"):
            Limits.of(mlm, length)
    for overlap in (-1, 22):
        with pytest.raises(UserError, match="it must be 0 to 21"):
            Limits.of(mlm, 24, overlap)


def test_shapes_are_few_and_results_keep_the_order(mlm) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(VOCAB[5:15], n)) for n in rng.integers(1, 22, 300)]
    shapes = set()

    def forward(params, batch):
        shapes.add(batch["input_ids"].shape)
        return batch["input_ids"].sum(axis=1)

    encoded = mlm.tokenizer.encode_batch(texts)
    rows = batching.make_rows(mlm, encoded, Limits.of(mlm))
    found = list(batching.run(mlm, None, rows, forward))
    assert [row.text for row, _ in found] == list(range(300))
    assert [int(total) for _, total in found] == [sum(ids) + 2 + 3 for ids in encoded]
    assert len(shapes) <= 4


def test_an_embedding_is_the_models_whatever_the_batch(mlm) -> None:
    model = BertModel(mlm.config)
    for pooling in ("mean", "cls", "pooled"):
        found = list(inference.embed(mlm, TEXTS, pooling=pooling))
        for text, vector in zip(TEXTS, found, strict=True):
            ids, _ = ids_of(mlm, text)
            output = apply(model, mlm.encoder_params, ids)
            expected = {
                "mean": output.sequence[0, : len(ids)].mean(axis=0),
                "cls": output.sequence[0, 0],
                "pooled": output.pooled[0, 0],
            }[pooling]
            np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_layers_are_averaged(mlm) -> None:
    model = BertModel(mlm.config)
    ids, _ = ids_of(mlm, TEXTS[1])
    states = apply(model, mlm.encoder_params, ids).hidden_states
    hidden = np.asarray(states[:, 0, : len(ids)])
    (vector,) = inference.embed(mlm, [TEXTS[1]], layers=(-1, 0))
    np.testing.assert_allclose(vector, (hidden[2] + hidden[0]).mean(axis=0) / 2, atol=1e-5)
    (first,) = inference.embed(mlm, [TEXTS[1]], layers=(1,), pooling="cls")
    np.testing.assert_allclose(first, hidden[1][0], atol=1e-5)


def test_a_long_text_counts_every_token_once(mlm) -> None:
    text = "the quick brown fox jumps over lazy dog hello world " * 10
    limits = Limits.of(mlm, 24, 6)
    rows = batching.make_rows(mlm, mlm.tokenizer.encode_batch([text]), limits)
    assert len(rows) > 5 and all(len(row.ids) <= 24 for row in rows)
    (vector,) = inference.embed(mlm, [text], limits=limits)
    total, count = np.zeros(8), 0
    for i, row in enumerate(rows):
        hidden = apply(BertModel(mlm.config), mlm.encoder_params, row.ids).sequence[0]
        first = 0 if i == 0 else row.owned[0]
        last = len(row.ids) if i == len(rows) - 1 else row.owned[1]
        total += np.asarray(hidden[first:last]).sum(axis=0)
        count += last - first
    assert count == 100 + 2
    np.testing.assert_allclose(vector, total / count, atol=1e-5)


def test_fill_mask_is_softmax_over_real_tokens(mlm) -> None:
    texts = ["[MASK]京是中国的首都", "the [MASK] fox [MASK] .", "hello [MASK]"]
    found = list(inference.fill_mask(mlm, texts, top_k=len(VOCAB)))
    assert [answer["text"] for answer in found] == texts
    assert [len(answer["masks"]) for answer in found] == [1, 2, 1]
    for text, answer in zip(texts, found, strict=True):
        ids, _ = ids_of(mlm, text)
        logits, _ = apply(mlm.model, mlm.params, ids)
        columns = np.flatnonzero(np.array(ids) == mlm.tokenizer.mask_id)
        for column, candidates in zip(columns, answer["masks"], strict=True):
            expected = np.asarray(jax.nn.softmax(logits[0, column, : len(VOCAB)]))
            given = {c["token"]: c["probability"] for c in candidates}
            assert sum(given.values()) == pytest.approx(1, abs=1e-5)
            np.testing.assert_allclose([given[t] for t in VOCAB], expected, atol=1e-5)
            values = [c["probability"] for c in candidates]
            assert values == sorted(values, reverse=True)


def test_a_mask_in_a_long_text_is_filled_once(mlm) -> None:
    text = "the quick brown fox " * 20 + "[MASK] " + "jumps over lazy dog " * 20 + "[MASK]"
    (answer,) = inference.fill_mask(mlm, [text], top_k=2, limits=Limits.of(mlm, 24, 8))
    assert len(answer["masks"]) == 2


def test_score_masks_each_token_in_turn(mlm) -> None:
    found = list(inference.score(mlm, ["the quick fox", "dog"]))
    assert [answer["tokens"] for answer in found] == [3, 1]
    ids, _ = ids_of(mlm, "the quick fox")
    expected = 0.0
    for column in (1, 2, 3):
        masked = list(ids)
        masked[column] = mlm.tokenizer.mask_id
        logits, _ = apply(mlm.model, mlm.params, masked)
        expected += float(jax.nn.log_softmax(logits[0, column])[ids[column]])
    assert found[0]["log_likelihood"] == pytest.approx(expected, abs=1e-4)


def test_classes_of_texts_and_pairs(classifier) -> None:
    for pairs in (None, ["the dog", "京", "is not good", "a"]):
        found = list(inference.classify(classifier, TEXTS, pairs))
        for i, answer in enumerate(found):
            ids, second = ids_of(classifier, TEXTS[i], pairs and pairs[i])
            logits = apply(classifier.model, classifier.params, ids, second)
            expected = np.asarray(jax.nn.softmax(logits[0]))
            given = list(answer["probabilities"].values())
            np.testing.assert_allclose(given, expected, atol=1e-5)
            assert answer["label"] == f"label {expected.argmax()}"
            assert list(answer["probabilities"]) == ["label 0", "label 1", "label 2"]


def test_a_long_text_is_classified_by_the_mean_of_its_windows(classifier) -> None:
    text, limits = "not good " * 15 + "bad dog " * 15, Limits.of(classifier, 24, 2)
    (answer,) = inference.classify(classifier, [text], limits=limits)
    rows = batching.make_rows(classifier, classifier.tokenizer.encode_batch([text]), limits)
    logits = [apply(classifier.model, classifier.params, row.ids)[0] for row in rows]
    expected = np.mean([jax.nn.softmax(x) for x in logits], axis=0)
    np.testing.assert_allclose(list(answer["probabilities"].values()), expected, atol=1e-5)


def test_a_classifier_reads_as_its_run_did(classifier) -> None:
    settings = {
        "task": "classify",
        "data": {"seq_length": 10, "long_text": "tail", "window_overlap": 2},
    }
    trained = dataclasses.replace(classifier.published, settings=settings)
    bert = dataclasses.replace(classifier, published=trained)
    with pytest.warns(UserWarning, match=r"1 of 2 texts are longer than 10 tokens .*rule tail"):
        short, long = inference.classify(bert, ["the dog", "not " * 20 + "the quick fox " * 3])
    ids, _ = ids_of(bert, "quick fox the quick fox the quick fox")
    expected = jax.nn.softmax(apply(bert.model, bert.params, ids)[0])
    np.testing.assert_allclose(list(long["probabilities"].values()), expected, atol=1e-5)
    ids, _ = ids_of(bert, "the dog")
    expected = jax.nn.softmax(apply(bert.model, bert.params, ids)[0])
    np.testing.assert_allclose(list(short["probabilities"].values()), expected, atol=1e-5)


def test_several_labels_at_once(classifier) -> None:
    several = dataclasses.replace(classifier.published, problem_type="multi_label")
    bert = dataclasses.replace(classifier, published=several)
    (answer,) = inference.classify(bert, ["the dog"])
    logits = apply(bert.model, bert.params, ids_of(bert, "the dog")[0])[0]
    expected = 1 / (1 + np.exp(-np.asarray(logits)))
    np.testing.assert_allclose(list(answer["probabilities"].values()), expected, atol=1e-5)
    assert answer["labels"] == [f"label {i}" for i in np.flatnonzero(expected > 0.5)]
    assert "label" not in answer
    # One half is no more than one half, as in the files of predictions of a run.
    zeros = jax.tree.map(np.zeros_like, bert.params["classifier"])
    undecided = dataclasses.replace(bert, params=bert.params | {"classifier": zeros})
    (answer,) = inference.classify(undecided, ["the dog"])
    assert answer["labels"] == [] and set(answer["probabilities"].values()) == {0.5}


def test_a_regression_gives_a_value() -> None:
    model = published(("classifier",))
    dense = model.params["classifier"]["dense"]
    dense["kernel"], dense["bias"] = dense["kernel"][:, :1], dense["bias"][:1]
    bert = api.prepare(dataclasses.replace(model, labels=("LABEL_0",), problem_type="regression"))
    (answer,) = inference.classify(bert, ["the dog"])
    expected = apply(bert.model, bert.params, ids_of(bert, "the dog")[0])
    assert answer == {"text": "the dog", "value": pytest.approx(float(expected[0, 0]), abs=1e-5)}


@pytest.fixture(scope="module")
def tagger() -> api.Bert:
    return api.prepare(published(("tagger",)))


def test_the_first_piece_of_a_word_carries_its_label(tagger) -> None:
    words = ["the", "foxs", "jumps", "\u200b", "京", "都", "dogs"]
    (answer,) = inference.tag(tagger, ["the foxs jumps \u200b 京都 dogs"])
    assert answer["words"] == words
    tokenizer, ids, columns = tagger.tokenizer, [tagger.tokenizer.cls_id], []
    for word in words:
        columns.append(len(ids))
        ids += tokenizer.encode(word).ids or [tokenizer.unk_id]
    logits = apply(tagger.model, tagger.params, [*ids, tokenizer.sep_id])[0]
    expected = [f"label {int(np.argmax(logits[column]))}" for column in columns]
    assert answer["labels"] == expected and len(set(expected)) > 1


def test_each_word_of_a_long_text_is_tagged_once(tagger) -> None:
    text = "the quick brown foxs jumps over lazy dogs " * 12
    limits = Limits.of(tagger, 24, 6)
    short, long = inference.tag(tagger, ["京", text], limits=limits)
    assert len(short["labels"]) == 1
    assert long["words"] == text.split() and all(long["labels"])
    rows = batching.make_rows(tagger, tagger.tokenizer.encode_batch([text]), limits)
    labels = []
    for row in rows:
        logits = apply(tagger.model, tagger.params, row.ids)[0]
        for column in range(*row.owned):
            if not tagger.tokenizer.continuation[row.ids[column]]:
                labels.append(f"label {int(np.argmax(logits[column]))}")
    assert long["labels"] == labels


@pytest.fixture(scope="module")
def reader() -> api.Bert:
    return api.prepare(published(("span",)))


def test_an_answer_is_the_best_span_of_the_text(reader) -> None:
    context, question = "The quick  brown\tFOX jumps, the dog.", "is the fox lazy ?"
    (found,) = inference.answer(reader, [context], [question])
    tokenizer = reader.tokenizer
    asked, encoding = tokenizer.encode(question).ids, tokenizer.encode(context)
    ids = [tokenizer.cls_id, *asked, tokenizer.sep_id, *encoding.ids, tokenizer.sep_id]
    first, count = len(asked) + 2, len(encoding.ids)
    start, end = (x[0] for x in apply(reader.model, reader.params, ids, first))
    best = max(
        (float(start[first + a] + end[first + b]), a, b)
        for a in range(count)
        for b in range(a, count)
    )
    begin, stop = encoding.offsets[best[1]][0], encoding.offsets[best[2]][1]
    assert found["answer"] == context[begin:stop] and found["question"] == question
    assert (found["start"], found["end"]) == (begin, stop) and 0 < found["score"] < 1
    null = float(start[0] + end[0])
    (maybe,) = inference.answer(reader, [context], [question], unanswerable=True)
    assert maybe["answer"] == ("" if null > best[0] else found["answer"])


def test_an_answer_in_a_long_text(reader) -> None:
    text = "the quick brown fox jumps over lazy dogs . " * 30
    limits = Limits.of(reader, 24, 4)
    found = list(inference.answer(reader, [text, "a dog"], ["is it ?", "京"], limits=limits))
    assert text[found[0]["start"] : found[0]["end"]] == found[0]["answer"]
    with (
        pytest.warns(UserWarning, match="longer than 64 tokens and were cut"),
        pytest.raises(UserError, match="a question of 70 tokens leaves 0"),
    ):
        list(inference.answer(reader, ["a dog"], ["the " * 70]))


def test_hand_typed_special_tokens_are_warned_of(mlm) -> None:
    with pytest.warns(UserWarning, match=r"text 1 has \[CLS\] or \[SEP\] typed"):
        list(inference.embed(mlm, ["[CLS] the dog [SEP]"]))


def test_a_wrong_vocabulary_is_warned_of() -> None:
    model = published(("mlm",))
    cased = type(model.tokenizer)(VOCAB, do_lower_case=False)
    bert = api.prepare(dataclasses.replace(model, tokenizer=cased))
    with pytest.warns(UserWarning, match=r"2 of 3 tokens are \[UNK\]: is this cased vocabulary"):
        list(inference.score(bert, ["The Quick fox"]))


@pytest.mark.parametrize("text", ["\u200b", "\x00\x08", "\u0301", "\ud800"])
def test_a_text_of_which_nothing_is_left_is_refused(mlm, classifier, tagger, reader, text) -> None:
    for question in (
        inference.embed(mlm, ["a", text]),
        inference.score(mlm, ["a", text]),
        inference.classify(classifier, ["a", text]),
        inference.tag(tagger, ["a", text]),
        inference.answer(reader, ["the dog", text], ["is it ?"] * 2),
    ):
        with pytest.raises(UserError, match="text 2 has no characters that a token stands for"):
            next(question)
    with pytest.raises(UserError, match="question 1 has no characters"):
        next(inference.answer(reader, ["the dog"], [text]))
    with pytest.raises(UserError, match="text 1 has no token to score"):
        next(inference.score(mlm, ["[MASK]"]))


def test_texts_may_come_in_any_collection(mlm, classifier, reader) -> None:
    """A shuffled pandas Series answers to its index, not to places; a generator only once."""

    class Series(dict):
        """As of pandas: goes through the values, in order; [i] is the value of index i."""

        __iter__ = lambda self: iter(self.values())  # noqa: E731

    shuffled = lambda *values: Series(zip([2, 0, 1], values, strict=False))  # noqa: E731
    texts, questions = ["hello world", "the fox", "lazy"], ["the dog", "hello", "fox"]
    mask = ["[MASK] a", "b [MASK]", "[MASK]"]

    def check(ask) -> None:
        listed = ask(lambda values: values)
        assert len(listed) == 3
        assert str(ask(lambda values: shuffled(*values))) == str(listed)
        assert str(ask(lambda values: (value for value in values))) == str(listed)

    check(lambda of: list(inference.classify(classifier, of(texts))))
    check(lambda of: list(inference.classify(classifier, of(texts), of(questions))))
    check(lambda of: list(inference.answer(reader, of(texts), of(questions))))
    check(lambda of: list(inference.embed(mlm, of(texts))))
    check(lambda of: list(inference.score(mlm, of(texts))))
    check(lambda of: list(inference.fill_mask(mlm, of(mask))))
    for nothing in (inference.embed, inference.score, inference.fill_mask):
        assert list(nothing(mlm, [])) == []


def test_questions_that_cannot_be_answered(mlm, classifier, tagger, reader) -> None:
    no_pooler = api.prepare(published(("tagger",)))
    del no_pooler.published.params["bert"]["pooler"]
    cases = [
        (inference.fill_mask(classifier, ["[MASK]"]), "no mlm head .it has: classifier"),
        (inference.classify(mlm, ["a"]), "no classifier head"),
        (inference.tag(mlm, ["a"]), "no tagger head"),
        (inference.answer(mlm, ["a"], ["b"]), "no span head"),
        (inference.fill_mask(mlm, ["hello"]), r"text 1 has no \[MASK\]: 'hello'"),
        (inference.fill_mask(mlm, ["[mask]"]), r"text 1 has no \[MASK\]"),
        (inference.fill_mask(mlm, ["[MASK]"], top_k=99), "top_k is 99; it must be 1 to 32"),
        (inference.embed(mlm, ["a", " \t"]), "text 2 is empty"),
        (inference.embed(mlm, ["a"], layers=(3,)), "layer 3 is not there"),
        (inference.embed(mlm, ["a"], pooling="max"), "pooling is 'max'"),
        (inference.embed(mlm, ["a"], pooling="pooled", layers=(1,)), "sees the last layer only"),
        (inference.embed(no_pooler, ["a"], pooling="pooled"), "did not come with the checkpoint"),
        (inference.classify(classifier, ["a"], [""]), "second text 1 is empty"),
        (inference.classify(classifier, ["a", "b"], "xy"), "a list of second texts"),
        (inference.classify(classifier, ["a", "b"], ["x"]), "2 texts but 1 second texts"),
        (inference.answer(reader, "a", "b"), "a list of contexts, even of one"),
        (inference.answer(reader, ["a"], ["b", "c"]), "1 contexts but 2 questions"),
        (inference.tag(tagger, "hello"), "a list of texts, even of one"),
        (inference.embed(mlm, "京"), "a list of texts, even of one"),
        (inference.score(mlm, ["a", None]), "text 2 is None, which is no text"),
        (inference.score(mlm, ["a", float("nan")]), "text 2 is nan, which is no text"),
        (inference.embed(mlm, [b"a"]), "text 1 is b'a', which is no text"),
        (inference.embed(mlm, ["a"], layers=-1), "layers is -1; give the numbers of layers"),
        (inference.embed(mlm, ["a"], layers=()), r"layers is \(\); give the numbers of layers"),
        (inference.fill_mask(mlm, ["[MASK]"], top_k=2.0), "top_k is 2.0; it must be 1 to 32"),
        (inference.embed(mlm, ["a"], limits=Limits(1000, 10)), "max_length is 1000; it must be 8"),
        (inference.tag(tagger, ["a"], limits=Limits(2, 0)), "max_length is 2; it must be 8"),
        (
            inference.embed(api.prepare(dataclasses.replace(mlm.published, tokenizer=None)), ["a"]),
            "has no vocabulary",
        ),
    ]
    for answers, message in cases:
        with pytest.raises(UserError, match=message):
            list(answers)
