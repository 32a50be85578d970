"""Extractive question answering: the span of a context that answers a question, or that there is
none (SQuAD 1.1 and 2.0; Devlin et al. 2019, sections 4.2 and 4.3).

Long contexts are read in overlapping windows. A window that does not hold the whole answer is
trained to point at [CLS]. The loss is the mean of two cross-entropies over the real tokens of a
row; padding gets no probability. Answers are cut from the original text by character offsets.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import config_dict

from bertjax.config import bert_config
from bertjax.data.questions import Question, read_questions
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.model.heads import PADDED_LOGIT, BertForQuestionAnswering
from bertjax.tasks import results, smoke, sources, spans, squad
from bertjax.tasks.finetune import EncodedRows, FineTune
from bertjax.tasks.task import Mean
from bertjax.train import loss

Offsets = list[tuple[int, int]]


@dataclasses.dataclass
class Examples:
    """The questions of a split and where they come from; of the whole source, drawn or not,
    `unanswered` have no answer."""

    source: str
    questions: list[Question]
    labelled: bool
    unanswered: int


@dataclasses.dataclass
class Encoded:
    """The rows of a split, the windows they are, and the offsets of each question's context."""

    rows: EncodedRows
    windows: list[spans.Window]
    offsets: list[Offsets]


def read(config: config_dict.ConfigDict, split: str, source: str) -> Examples:
    """The questions of a split; says what was decided. UserError for what cannot be used."""
    questions, notes = read_questions(source)
    for question in questions:
        if not question.context.strip() or not question.question.strip():
            raise UserError(f"{source}: question '{question.id}' has an empty question or context")
    if split.startswith("test") and not any(q.answers or q.impossible for q in questions):
        # Lists of answers that are all empty are those of a hidden test set.
        questions = [dataclasses.replace(q, labelled=False) for q in questions]
    unlabelled = [question for question in questions if not question.labelled]
    if unlabelled and (not split.startswith("test") or len(unlabelled) < len(questions)):
        raise UserError(
            f"{source}: question '{unlabelled[0].id}' has no answers ({len(unlabelled)} of "
            f"{len(questions)} have none): complete them, or leave them out"
        )
    if unlabelled:
        notes.append(f"{source} has no answers: it gets predictions, not scores")
    none = 0 if unlabelled else sum(not question.answers for question in questions)
    chosen = sources.drawn(len(questions), split, config)
    if len(chosen) < len(questions):
        notes.append(f"{source}: {len(chosen)} of {len(questions)} questions are used")
        questions = [questions[i] for i in chosen]
    sources.say_all(notes)
    return Examples(source, questions, not unlabelled, none)


def locate(question: Question) -> tuple[int, int] | None:
    """Characters of the first answer; where it is not at its place, of its nearest occurrence in
    the context. None where the context does not have it."""
    text, start = question.answers[0][0].strip(), _said(question)
    if not text:
        return None
    if question.context[start : start + len(text)] == text and start >= 0:
        return start, start + len(text)
    places = []
    place = question.context.find(text)
    while place >= 0:
        places.append(place)
        place = question.context.find(text, place + 1)
    if not places:
        return None
    place = min(places, key=lambda at: abs(at - start))
    return place, place + len(text)


def _said(question: Question) -> int:
    """Where the first answer is said to begin, blanks before it left out."""
    text, start = question.answers[0]
    return start + len(text) - len(text.lstrip())


def encode(
    config: config_dict.ConfigDict, tokenizer: Tokenizer, examples: Examples, train: bool
) -> Encoded:
    """Windows of at most data.seq_length tokens; says what was cut, moved and left out.

    In training a question whose answer is not in its context, or in no window as a whole, is left
    out, and counted.
    """
    data = config.data
    texts = dict.fromkeys(question.context for question in examples.questions)
    contexts = {text: tokenizer.encode(text, special_tokens=False) for text in texts}
    asked = tokenizer.encode_batch([q.question for q in examples.questions], special_tokens=False)
    result = Encoded(EncodedRows([], np.empty(0), np.empty(0), np.empty(0)), [], [])
    example, targets = [], []
    missing = moved = wide = 0
    for number, (question, ids) in enumerate(zip(examples.questions, asked, strict=True)):
        context = contexts[question.context]
        place = locate(question) if question.answers else None
        if question.answers and place is None:
            missing += 1
            if train:
                result.offsets.append([])
                continue
        elif question.answers and place[0] != _said(question):
            moved += 1
        span = spans.token_span(context.offsets, *place) if place else None
        windows = spans.question_windows(
            ids, context.ids, size=data.seq_length, max_question=data.max_question_tokens,
            overlap=data.window_overlap, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
        )  # fmt: skip
        columns = [spans.target_columns(window, span) for window in windows]
        if train and span and not any(map(any, columns)):  # would teach that there is no answer
            wide += 1
            result.offsets.append([])
            continue
        result.windows += windows
        example += [number] * len(windows)
        targets += columns
        result.offsets.append(context.offsets)
    cut = sum(len(ids) > data.max_question_tokens for ids in asked)
    counts = {"cut": cut, "moved": moved, "missing": missing if train else 0, "wide": wide}
    _say(examples.source, len(asked), len(result.windows), **counts)
    if not targets:
        raise UserError(f"{examples.source}: no question has its answer in its context")
    rows = [window.ids for window in result.windows]
    columns = np.array(targets, np.int32)
    result.rows = EncodedRows(
        rows,
        np.array([window.first for window in result.windows]),
        np.array(example),
        np.ones(len(rows), np.float32),
        by_row={"start": columns[:, 0], "end": columns[:, 1]},
    )
    return result


def _say(
    source: str, questions: int, windows: int, *, cut: int, moved: int, missing: int, wide: int
) -> None:
    notes = [f"{source}: {questions:,} questions in {windows:,} windows"]
    if cut:
        notes.append(f"{source}: {cut} questions are cut to config.data.max_question_tokens")
    if moved:
        notes.append(
            f"warning: {source}: {moved} answers stand elsewhere than said; the nearest occurrence "
            "is taken"
        )
    if missing:
        notes.append(
            f"warning: {source}: {missing} questions are left out: their answers are not in their "
            "contexts"
        )
    if wide:
        notes.append(
            f"warning: {source}: {wide} questions are left out: no window of config.data."
            "seq_length holds their whole answers"
        )
    sources.say_all(notes)


def prepare_data(config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None) -> None:
    """Make the smoke run's data, and a vocabulary where data.vocab asks to learn one."""
    smoke.write(config, workdir)

    def texts() -> list[str]:
        questions = read(config, "train", sources.split_sources(config)["train"]).questions
        contexts = dict.fromkeys(question.context for question in questions)
        return [*contexts, *(question.question for question in questions)]

    sources.learn_vocabulary(config, workdir, tokenizer, texts)


def from_config(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None
) -> Answer:
    """The task of a resolved config, after `prepare_data`; fills in model.vocab_size."""
    smoke.use(config, workdir)
    by_split = sources.split_sources(config)
    splits = {split: read(config, split, source) for split, source in by_split.items()}
    tokenizer = sources.find_tokenizer(config, workdir, tokenizer)
    return Answer(config, tokenizer, splits)


def _unanswerable(config: config_dict.ConfigDict, splits: Mapping[str, Examples]) -> bool:
    """Whether questions may have no answer (SQuAD 2.0): as told, or if some of the training data
    have none; without training data, of what there is."""
    if config.data.unanswerable != "auto":
        return config.data.unanswerable == "yes"
    none = {split: part.unanswered for split, part in splits.items() if part.labelled}
    if "train" not in none or none["train"]:
        return any(none.values())
    for split, count in none.items():
        if count:
            sources.say_all([
                f"warning: {count} questions of {split} have no answer, but all of the training "
                "data have one: an answer is always given (config.data.unanswerable=yes: or none)"
            ])  # fmt: skip
    return False


class Answer(FineTune):
    """Start and end of an answer by a linear layer over every token."""

    name = "answer"

    def __init__(
        self,
        config: config_dict.ConfigDict,
        tokenizer: Tokenizer,
        splits: Mapping[str, Examples],
    ) -> None:
        self.loss_weights = {"start_loss": 0.5, "end_loss": 0.5}
        self._splits = splits
        self.unanswerable = _unanswerable(config, splits)
        # Kept with the run: an evaluation without the training data must not decide anew.
        config.data.unanswerable = "yes" if self.unanswerable else "no"
        best = ("best_f1", "best_exact_match") if self.unanswerable else ()
        self.figures = dict.fromkeys(("f1", "exact_match", *best), True) | {"loss": False}
        self.score_kind = squad.kind_of(config.data.language)
        self._encoded = {
            split: encode(config, tokenizer, part, split == "train")
            for split, part in splits.items()
        }
        model = BertForQuestionAnswering(bert_config(config))
        rows = {split: encoded.rows for split, encoded in self._encoded.items()}
        super().__init__(config, tokenizer, model, rows, "f1")
        sources.say_all([
            f"questions {'may have no answer' if self.unanswerable else 'all have an answer'}; "
            f"scored as {'CMRC, by characters' if self.score_kind == 'cmrc' else 'SQuAD, by words'}"
        ])  # fmt: skip

    def _logits(
        self, params: Any, inputs: Mapping[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Start and end logits [B, S]; padding has no probability."""
        real = inputs["attention_mask"] > 0
        start, end = self.apply(params, inputs, dropout_key)
        return jnp.where(real, start, PADDED_LOGIT), jnp.where(real, end, PADDED_LOGIT)

    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        start, end = self._logits(params, inputs, dropout_key)
        weight = inputs["weight"]
        return {
            "start_loss": loss.cross_entropy(start, inputs["start"], weight),
            "end_loss": loss.cross_entropy(end, inputs["end"], weight),
            "start_accuracy": loss.accuracy(start, inputs["start"], weight),
        }

    def outputs(self, params: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Start and end logits, padded to data.seq_length."""
        start, end = self._logits(params, inputs)
        more = ((0, 0), (0, self.config.data.seq_length - start.shape[1]))
        pad = lambda x: jnp.pad(x, more, constant_values=PADDED_LOGIT)  # noqa: E731
        return {"start": pad(start), "end": pad(end)}

    def held_out_digest(self, split: str) -> str:
        gold = repr([(q.id, q.answers) for q in self._splits[split].questions])
        return hashlib.sha256((super().held_out_digest(split) + gold).encode()).hexdigest()[:16]

    def artifacts(self) -> dict[str, Any]:
        return super().artifacts() | {"unanswerable": self.unanswerable}

    def candidates(self, split: str, outputs: Mapping[str, np.ndarray]) -> list[spans.Answers]:
        """The candidates of each question of a split."""
        data, encoded = self.config.data, self._encoded[split]
        rows: list[list[int]] = [[] for _ in self._splits[split].questions]
        for row, number in enumerate(encoded.rows.example):
            rows[number].append(row)
        return [
            spans.best_answers(
                [encoded.windows[i] for i in mine],
                outputs["start"][mine], outputs["end"][mine], encoded.offsets[number],
                n_best=data.n_best, max_tokens=data.max_answer_tokens,
            )
            for number, mine in enumerate(rows)
        ]  # fmt: skip

    def _choose(self, question: Question, found: spans.Answers) -> dict[str, Any]:
        return spans.choose(
            found, question.context, unanswerable=self.unanswerable,
            threshold=self.config.data.null_threshold,
        )  # fmt: skip

    def score(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        part = self._splits[split]
        figures = {"examples": float(len(part.questions))}
        if not part.labelled:
            return figures
        found = self.candidates(split, outputs)
        answers = [[text for text, _ in q.answers] for q in part.questions]
        chosen = [self._choose(q, f)["answer"] for q, f in zip(part.questions, found, strict=True)]
        exact, f1 = squad.best_scores(chosen, answers, self.score_kind)
        figures = {"loss": means["loss"], **figures}
        figures |= {"exact_match": 100 * exact.mean(), "f1": 100 * f1.mean()}
        if self.unanswerable:
            figures |= self._thresholds(part, found, answers)
        return {name: float(value) for name, value in figures.items()}

    def _thresholds(
        self, part: Examples, found: Sequence[spans.Answers], answers: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """What the best data.null_threshold for these questions would give, and what it is."""
        best = [
            q.context[f.spans[0].begin : f.spans[0].end] if f.spans else ""
            for q, f in zip(part.questions, found, strict=True)
        ]
        has_answer = np.array([bool(given) for given in answers])
        leads = np.minimum([f.null_lead for f in found], 1e9)
        exact, f1 = squad.best_scores(best, answers, self.score_kind)
        figures = {}
        for name, scores in (("exact_match", exact), ("f1", f1)):
            value, threshold = squad.best_threshold(leads, scores, has_answer)
            figures |= {f"best_{name}": 100 * value, f"best_{name}_threshold": threshold}
        return figures

    def predictions(
        self, split: str, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, Any]]:
        """{index, id, label (answers, None: not labelled), prediction, probability, start, end,
        null_lead, n_best: [{text, score}]}."""
        part, found = self._splits[split], self.candidates(split, outputs)
        for index, (question, answers) in enumerate(zip(part.questions, found, strict=True)):
            chosen = self._choose(question, answers)
            yield {
                "index": index,
                "id": question.id,
                "label": [text for text, _ in question.answers] if question.labelled else None,
                "prediction": chosen["answer"],
                "probability": chosen["score"],
                "start": chosen["start"],
                "end": chosen["end"],
                "null_lead": float(min(answers.null_lead, 1e9)),
                "n_best": [
                    {"text": question.context[s.begin : s.end], "score": s.score}
                    for s in answers.spans
                ],
            }

    def report(
        self, split: str, outputs: Mapping[str, np.ndarray], figures: Mapping[str, float]
    ) -> tuple[str, dict[str, str]]:
        """Also the file that the official evaluation reads: {id: answer}."""
        text = results.figures_line(split, figures)
        return text, {f"{split}.official.json": results.json_text(
            {row["id"]: row["prediction"] for row in self.predictions(split, outputs)}
        )}  # fmt: skip
