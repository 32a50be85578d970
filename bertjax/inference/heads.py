"""Questions for the fine-tuned heads: classify, tag, answer."""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax.api import Bert
from bertjax.data.normalization import CJK
from bertjax.errors import UserError
from bertjax.inference.batching import Limits, Progress, Row, by_text, no_progress, run
from bertjax.inference.language import check_pairs, check_texts, encode, inputs_of
from bertjax.tasks.classify import label_probabilities, predicted
from bertjax.tasks.spans import best_answers, choose, question_windows
from bertjax.tasks.tag import sentence_windows, word_pieces
from bertjax.tasks.text_examples import MULTI, REGRESSION
from bertjax.tasks.texts import text_rows

# Of answers, where no run says otherwise: what the config's defaults are.
MAX_QUESTION, MAX_ANSWER, N_BEST = 64, 30, 20


@functools.cache
def _logits(model: nn.Module) -> Callable[..., Any]:
    """Jitted: what the model's head gives."""
    return jax.jit(lambda params, batch: model.apply({"params": params}, *inputs_of(batch)))


@functools.cache
def _likeliest(model: nn.Module) -> Callable[..., Any]:
    """Jitted: the number of the likeliest label of each token, [B, S]."""
    return jax.jit(
        lambda params, batch: jnp.argmax(
            model.apply({"params": params}, *inputs_of(batch)), axis=-1
        )
    )


def classify(
    bert: Bert,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """The class of each text or pair.

    Texts are read as the run that made the checkpoint read them (data.seq_length, data.long_text);
    with `limits`, or where no run says so, a long first text is read in windows and its
    probabilities are their mean. What is cut is counted and warned of.

    Yields {'text', 'label', 'probabilities': {label: probability}}, with 'pair' for pairs; of
    several labels at once 'labels', those above 1/2; of a regression {'text', 'value'}.

    Raises:
        UserError: no classifier, an empty text, not as many second texts as texts.
    """
    bert.require_head("classifier")
    texts, pairs = check_pairs(texts, pairs)
    settings = bert.published.settings
    if settings.get("task") == "classify" and bool(settings["data"].get("pair_column")) == (
        pairs is None
    ):
        was, now = ("single texts", "pairs") if pairs is not None else ("pairs", "single texts")
        warn(f"this classifier was trained on {was}, and is asked about {now}")
    rows = _text_rows(bert, texts, pairs, limits, warn)
    results = run(bert, bert.params, rows, _logits(bert.model), progress, len(rows))
    kind = bert.published.problem_type
    for number, group in enumerate(by_text(results, len(texts))):
        answer: dict[str, Any] = {"text": texts[number]}
        if pairs is not None:
            answer["pair"] = pairs[number]
        logits = np.stack([output for _, output in group])
        if kind == REGRESSION:
            yield {**answer, "value": float(logits.mean(dtype=np.float64))}
            continue
        means = label_probabilities(logits, kind).mean(axis=0)
        labels = bert.published.labels
        answer["labels" if kind == MULTI else "label"] = predicted(means, labels, kind)
        probabilities = dict(zip(labels, map(float, means), strict=True))
        yield {**answer, "probabilities": probabilities}


def _text_rows(
    bert: Bert,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    limits: Limits | None,
    warn: Callable[[str], None],
) -> list[Row]:
    """Rows of texts or pairs for a classifier, as in training; says how many were cut."""
    tokenizer = bert.require_tokenizer()
    trained = bert.published.settings.get("data", {})
    size, rule, overlap = (trained.get(k) for k in ("seq_length", "long_text", "window_overlap"))
    if limits is not None or bert.published.settings.get("task") != "classify":
        limits = Limits.checked(bert, limits)
        size, rule, overlap = limits.max_length, "windows", limits.overlap
    # As in training, special tokens typed in a text that is classified are text.
    first = encode(bert, texts, warn, False)
    second = (
        [None] * len(first) if pairs is None else encode(bert, pairs, warn, False, "second text")
    )
    rows, cut = [], 0
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        parts, was_cut = text_rows(
            a, b, size=size, rule=rule, overlap=overlap,
            cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
        )  # fmt: skip
        rows += [Row(number, part.ids, part.second) for part in parts]
        cut += was_cut
    if cut:
        warn(
            f"{cut} of {len(texts)} texts are longer than {size} tokens and were cut (rule "
            f"{rule}{'' if rule == 'windows' else ', as in training'}); a larger max_length reads "
            "more of them"
        )
    return rows


def words_of(text: str) -> list[str]:
    """What stands between blanks; each CJK ideograph is a word of its own."""
    return re.sub(f"([{CJK}])", r" \1 ", text).split()


def tag(
    bert: Bert,
    texts: Sequence[str],
    *,
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """The label of each word (see `words_of`) of each text, taken from its first piece.

    Yields {'words': [...], 'labels': [...]}. A long text is read in windows, by default those of
    the run that made the checkpoint (data.seq_length, data.window_overlap).

    Raises:
        UserError: no tagger or an empty text.
    """
    bert.require_head("tagger")
    tokenizer = bert.require_tokenizer()
    texts = check_texts(texts)
    encode(bert, texts, warn, False)  # for its warnings
    trained = bert.published.settings
    if limits is None and trained.get("task") == "tag":
        limits = Limits(trained["data"]["seq_length"], trained["data"]["window_overlap"])
    limits = Limits.checked(bert, limits)
    sentences = [words_of(text) for text in texts]
    pieces = word_pieces(tokenizer, [word for words in sentences for word in words])
    rows, owned = [], []
    for number, words in enumerate(sentences):
        for window in sentence_windows(
            [pieces[word] for word in words], limits.max_length, limits.overlap,
            tokenizer.cls_id, tokenizer.sep_id,
        ):  # fmt: skip
            rows.append(Row(number, window.ids, len(window.ids)))
            owned.append(window.owned)
    results = run(bert, bert.params, rows, _likeliest(bert.model), progress, len(rows))
    places = iter(owned)
    for words, group in zip(sentences, by_text(results, len(texts)), strict=True):
        labels = [""] * len(words)
        for _, numbers in group:
            for word, column in next(places):
                labels[word] = bert.published.labels[int(numbers[column])]
        yield {"words": words, "labels": labels}


def answer(
    bert: Bert,
    contexts: Sequence[str],
    questions: Sequence[str],
    *,
    unanswerable: bool | None = None,
    null_threshold: float | None = None,
    limits: Limits | None = None,
    warn: Callable[[str], None] = warnings.warn,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:
    """The span of each context that answers its question.

    Yields {'question', 'answer', 'score' (a probability among the candidates), 'start', 'end'
    (characters of the context)}; 'answer' is '' and the places None where there is none.

    Args:
        contexts, questions: as many of both.
        unanswerable: whether there may be no answer; None takes what the run was trained to, and
            False for a checkpoint of another origin.
        null_threshold: by how much the score of no answer must lead for there to be none; None
            takes that of the run, 0 for a checkpoint of another origin.
        limits: windows of a long context; by default those of the run that made the checkpoint.

    Raises:
        UserError: no span head, an empty text, not as many questions as contexts, a question that
            fills the row.
    """
    bert.require_head("span")
    tokenizer = bert.require_tokenizer()
    contexts, questions = check_pairs(contexts, questions, "context", "question")
    settings = bert.published.settings
    trained = settings["data"] if settings.get("task") == "answer" else {}
    if unanswerable is None:
        unanswerable = bool(settings.get("artifacts", {}).get("unanswerable", False))
    if null_threshold is not None and math.isnan(null_threshold):
        raise UserError("null_threshold is nan; give a number.")
    if null_threshold is not None and not unanswerable:
        warn(f"null_threshold={null_threshold} does nothing where there must be an answer")
    if null_threshold is None:
        null_threshold = trained.get("null_threshold", 0.0)
    if limits is None and trained:
        limits = Limits(trained["seq_length"], trained["window_overlap"])
    limits = Limits.checked(bert, limits)
    most = trained.get("max_question_tokens", MAX_QUESTION)
    asked = encode(bert, questions, warn, False, "question")
    cut = sum(len(ids) > most for ids in asked)
    if cut:
        warn(f"{cut} of {len(asked)} questions are longer than {most} tokens and were cut")
    encode(bert, list(dict.fromkeys(contexts)), warn, False)  # for its warnings
    rows, windows, offsets = [], [], []
    for number, (context, question) in enumerate(zip(contexts, asked, strict=True)):
        encoded = tokenizer.encode(context, special_tokens=False)
        offsets.append(encoded.offsets)
        windows.append(
            question_windows(
                question, encoded.ids, size=limits.max_length, max_question=most,
                overlap=limits.overlap, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
            )
        )  # fmt: skip
        rows += [Row(number, window.ids, window.first) for window in windows[-1]]
    results = run(bert, bert.params, rows, _logits(bert.model), progress, len(rows))
    for number, group in enumerate(by_text(results, len(contexts))):
        found = best_answers(
            windows[number], [start for _, (start, _) in group], [end for _, (_, end) in group],
            offsets[number], n_best=trained.get("n_best", N_BEST),
            max_tokens=trained.get("max_answer_tokens", MAX_ANSWER),
        )  # fmt: skip
        chosen = choose(
            found, contexts[number], unanswerable=unanswerable, threshold=null_threshold
        )
        yield {"question": questions[number], **chosen}
