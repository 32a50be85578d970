"""Tag words: entities, parts of speech, word segmentation.

The first piece of a word carries its label (Devlin et al. 2019, section 5.3); other pieces are not
scored. A sentence longer than the model is read in overlapping windows, and each word is scored and
predicted once, in the window that shows most context around it. With data.document_context the
sentences around a shorter one fill its row (Schweter & Akbik 2020).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import config_dict

from bertjax.config import bert_config
from bertjax.data.sentences import Sentence, read_sentences
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.model.heads import BertForTagging
from bertjax.tasks import labels, results, smoke, sources
from bertjax.tasks.finetune import EncodedRows, FineTune
from bertjax.tasks.task import Mean
from bertjax.tasks.words import (
    Window,
    beside,
    sentence_windows,
    surrounded,
    word_labels,
    word_pieces,
)
from bertjax.train import loss

# What is scored, by the form of the labels: entity F1, word F1, accuracy.
ENTITIES, WORDS, TOKENS = "entities", "words", "tokens"
METRIC = {ENTITIES: "entity_f1", WORDS: "word_f1", TOKENS: "accuracy"}
_PREFIXES = ("B", "I", "M", "E", "S", "L", "U")


@dataclasses.dataclass
class Examples:
    """The sentences of a split and where they come from.

    labelled: False where `sentences` have labels None; file: all sentences of the source in order,
    and places: which of them the split has.
    """

    source: str
    sentences: list[Sentence]
    labelled: bool
    file: list[Sentence]
    places: Sequence[int]


def read(config: config_dict.ConfigDict, split: str, source: str) -> Examples:
    """The sentences of a split; says what was decided. UserError for what cannot be used."""
    data = config.data
    sentences, notes = read_sentences(source, data.text_column, data.label_column)
    unlabelled = [sentence for sentence in sentences if sentence.labels is None]
    labelled = not unlabelled
    if unlabelled and (not split.startswith("test") or len(unlabelled) < len(sentences)):
        raise UserError(f"{source}, {unlabelled[0].place}: no labels ({len(unlabelled)} sentences)")
    if unlabelled:
        notes.append(f"{source} has no labels: it gets predictions, not scores")
    if data.document_context:
        notes.append(_documents(source, sentences))
    chosen = sources.drawn(len(sentences), split, config)
    if len(chosen) < len(sentences):
        notes.append(f"{source}: {len(chosen)} of {len(sentences)} sentences are used")
    sources.say_all(notes)
    return Examples(source, [sentences[i] for i in chosen], labelled, sentences, chosen)


def _documents(source: str, sentences: Sequence[Sentence]) -> str:
    """How many documents a source has. UserError where it does not say."""
    sizes = Counter(sentence.document for sentence in sentences)
    if None in sizes:
        raise UserError(
            f"{source} does not say which sentences make a document, but config.data."
            "document_context=True: begin each one with a line -DOCSTART- (.jsonl: a field "
            "'document'), or set that to False"
        )
    alone = sum(size == 1 for size in sizes.values())
    return f"{source}: {len(sizes):,} documents, {alone:,} of them of one sentence"


def encode(
    config: config_dict.ConfigDict,
    tokenizer: Tokenizer,
    examples: Examples,
    names: Sequence[str],
) -> tuple[EncodedRows, list[Window]]:
    """Rows of at most data.seq_length tokens with labels in by_token['target'], and the windows."""
    data, sentences = config.data, examples.sentences
    index = {name: i for i, name in enumerate(names)}
    seen = examples.file if data.document_context else sentences
    pieces = word_pieces(tokenizer, [word for s in seen for word in s.words])
    windows, example, targets = [], [], []
    for number, (sentence, place) in enumerate(zip(sentences, examples.places, strict=True)):
        own = sentence_windows(
            [pieces[word] for word in sentence.words], data.seq_length, data.window_overlap,
            tokenizer.cls_id, tokenizer.sep_id,
        )  # fmt: skip
        if len(own) > 1 and data.window_overlap > (data.seq_length - 2) // 2:
            raise UserError(
                f"{examples.source}, {sentence.place}: a sentence longer than config.data."
                f"seq_length={data.seq_length} needs windows that move on, but config.data."
                f"window_overlap={data.window_overlap} is more than half of their tokens: set it "
                f"to {(data.seq_length - 2) // 2} or less"
            )
        if data.document_context and len(own) == 1:
            room = data.seq_length - len(own[0].ids)
            sides = (beside(seen, place, step, pieces, room) for step in (-1, 1))
            own = [surrounded(own[0], *sides, data.seq_length)]
        for window in own:
            target = np.full(len(window.ids), loss.IGNORED, np.int32)
            for word, column in window.owned if sentence.labels else ():
                target[column] = index[sentence.labels[word]]
            windows.append(window)
            example.append(number)
            targets.append(target)
    sources.say_all(_notes(examples, data.seq_length, tokenizer, pieces, example))
    ids = [window.ids for window in windows]
    rows = EncodedRows(
        ids,
        np.array([len(row) for row in ids]),
        np.array(example),
        np.ones(len(ids), np.float32),
        by_token={"target": targets},
    )
    return rows, windows


def _notes(
    examples: Examples,
    size: int,
    tokenizer: Tokenizer,
    pieces: Mapping[str, list[int]],
    example: Sequence[int],
) -> Iterator[str]:
    """What became of long sentences, long words and words of which nothing is left."""
    source = examples.source
    blanks = sum(" " in word for s in examples.sentences for word in s.words)
    count = sum(len(s.words) for s in examples.sentences)
    if blanks * 2 > count and len(examples.sentences) * 100 < count:  # no blank lines, either
        yield (
            f"warning: {source}: {blanks:,} words have blanks in them; is it a file of texts, for "
            "configs/classify.py?"
        )
    rows = Counter(example)
    long = [count for count in rows.values() if count > 1]
    if long:
        yield (
            f"{source}: {len(long)} sentences are longer than config.data.seq_length={size} and "
            f"are read in {sum(long)} windows"
        )
    words = Counter(word for sentence in examples.sentences for word in sentence.words)
    long_words = sum(count for word, count in words.items() if len(pieces[word]) > size - 2)
    if long_words:
        yield f"{source}: {long_words} words are longer than a row and cut"
    unknown = [word for word in words if pieces[word] == [tokenizer.unk_id]]
    left = tokenizer.encode_batch(unknown, special_tokens=False)
    empty = sum(words[word] for word, ids in zip(unknown, left, strict=True) if not ids)
    if empty:
        yield (
            f"warning: {source}: nothing is left of {empty} words (control characters and the "
            "like); each is read as [UNK]"
        )


def scheme_of(names: Sequence[str]) -> str:
    """What labels say: entities (B-PER, I-PER, O; of one kind B, I, O), words (B, M, E, S) or
    something of each word."""
    typed = [name for name in names if name != "O"]
    bare = set(typed) <= set(_PREFIXES) and bool({"B", "I"} & set(typed))
    if bare and "O" not in names and len(names) > 1 and "B" in names:
        return WORDS
    if typed and all("-" in n and n.partition("-")[0] in _PREFIXES for n in typed):
        return ENTITIES
    return ENTITIES if bare and "O" in names else TOKENS


def prepare_data(config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None) -> None:
    """Make the smoke run's data, and a vocabulary where data.vocab asks to learn one."""
    smoke.write(config, workdir)

    def texts() -> list[str]:
        train = read(config, "train", sources.split_sources(config)["train"])
        return [" ".join(sentence.words) for sentence in train.sentences]

    sources.learn_vocabulary(config, workdir, tokenizer, texts)


def from_config(
    config: config_dict.ConfigDict,
    workdir: str,
    tokenizer: Tokenizer | None,
    known_labels: Sequence[str] | None,
) -> Tag:
    """The task of a resolved config, after `prepare_data`; fills in model.vocab_size."""
    smoke.use(config, workdir)
    by_split = sources.split_sources(config)
    splits = {split: read(config, split, source) for split, source in by_split.items()}
    tokenizer = sources.find_tokenizer(config, workdir, tokenizer)
    found: set[str] = set()
    if "train" in splits:
        # Of the whole file: the sentences that data.limit draws may lack a rare one.
        found = {label for s in splits["train"].file for label in s.labels}
        if len(found) < 2:
            raise UserError(
                f"every word of {by_split['train']} has the label '{next(iter(found))}': a tagger "
                "needs two or more"
            )
    elif known_labels is None:
        raise UserError("config.data.train is empty, and no checkpoint says what the labels are")
    names, fresh = labels.settle(found, known_labels, config.new_head, config.init_from)
    for part in splits.values():
        _check_labels(part, names)
    task = Tag(config, tokenizer, splits, names)
    task.fresh_head = fresh
    return task


def _check_labels(part: Examples, names: Sequence[str]) -> None:
    if part.labelled:
        found = [x for sentence in part.sentences for x in sentence.labels]
        where = [f"sentence at {s.place}" for s in part.sentences for _ in s.words]
        labels.numbers(found, names, part.source, where)


class Tag(FineTune):
    """A linear layer over every token."""

    name = "tag"

    def __init__(
        self,
        config: config_dict.ConfigDict,
        tokenizer: Tokenizer,
        splits: Mapping[str, Examples],
        names: Sequence[str],
    ) -> None:
        """`names`: the labels in the order of the outputs, those of every split among them."""
        self.labels, self.scheme = tuple(names), scheme_of(names)
        self.figures = {METRIC[self.scheme]: True, "accuracy": True, "loss": False}
        self.loss_weights = {"tagging_loss": 1.0}
        self._splits = splits
        encoded = {split: encode(config, tokenizer, part, names) for split, part in splits.items()}
        self._windows = {split: windows for split, (_, windows) in encoded.items()}
        model = BertForTagging(bert_config(config), len(names))
        rows = {split: rows for split, (rows, _) in encoded.items()}
        super().__init__(config, tokenizer, model, rows, METRIC[self.scheme])
        mode = ", seqeval's default mode, which equals conlleval"
        sources.say_all([
            f"labels: {', '.join(names)}; scored by {METRIC[self.scheme]}"
            f"{'' if self.scheme == TOKENS else mode}"
        ])  # fmt: skip
        if self.scheme == TOKENS and "O" in names:
            sources.say_all([
                "warning: there is a label O as beside entities, but others are not B-NAME or "
                "I-NAME, so words are scored and not entities"
            ])  # fmt: skip
        for split, part in splits.items():
            if part.labelled:
                given = [label for s in part.sentences for label in s.labels]
                text = labels.counts_text(given, names)
                sources.say_all([f"{split}: {len(part.sentences):,} sentences; {text}"])

    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        logits = self.apply(params, inputs, dropout_key)
        target, weight = loss.ignore_labels(inputs["target"], inputs["weight"][:, None])
        return {
            "tagging_loss": loss.cross_entropy(logits, target, weight),
            "accuracy": loss.accuracy(logits, target, weight),
        }

    def outputs(self, params: Any, inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The likeliest label of each token and its probability, padded to data.seq_length."""
        probabilities = jax.nn.softmax(self.apply(params, inputs), axis=-1)
        more = self.config.data.seq_length - probabilities.shape[1]
        best = {"label": jnp.argmax(probabilities, axis=-1), "probability": probabilities.max(-1)}
        return {name: jnp.pad(value, ((0, 0), (0, more))) for name, value in best.items()}

    def chance_levels(self) -> dict[str, float]:
        if "train" not in self._splits:
            return {}
        counts = Counter(x for s in self._splits["train"].sentences for x in s.labels)
        shares = np.array(list(counts.values())) / sum(counts.values())
        return {"tagging_loss": float(-(shares * np.log(shares)).sum())}

    def artifacts(self) -> dict[str, Any]:
        return super().artifacts() | {"labels": list(self.labels)}

    def _of_words(self, split: str, values: np.ndarray) -> list[np.ndarray]:
        counts = [len(sentence.words) for sentence in self._splits[split].sentences]
        return word_labels(self._windows[split], self._rows[split].example, values, counts)

    def predicted(self, split: str, outputs: Mapping[str, np.ndarray]) -> list[list[str]]:
        """The label of every word of every sentence."""
        return [
            [self.labels[i] for i in sentence]
            for sentence in self._of_words(split, outputs["label"])
        ]

    def score(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        part = self._splits[split]
        words = sum(len(sentence.words) for sentence in part.sentences)
        figures = {"examples": float(len(part.sentences)), "words": float(words)}
        if not part.labelled:
            return figures
        gold = [list(sentence.labels) for sentence in part.sentences]
        guess = self.predicted(split, outputs)
        scores = results.tag_figures(gold, guess, METRIC[self.scheme])
        return {"loss": means["loss"], **figures, **scores}

    def predictions(
        self, split: str, outputs: Mapping[str, np.ndarray]
    ) -> Iterator[dict[str, Any]]:
        """{index, words, label (None: not labelled), prediction, probabilities of the labels
        predicted}; each a list with a value a word."""
        guess = self.predicted(split, outputs)
        sure = self._of_words(split, outputs["probability"])
        for index, sentence in enumerate(self._splits[split].sentences):
            yield {
                "index": index,
                "words": list(sentence.words),
                "label": None if sentence.labels is None else list(sentence.labels),
                "prediction": guess[index],
                "probabilities": [round(float(p), 6) for p in sure[index]],
            }

    def report(
        self, split: str, outputs: Mapping[str, np.ndarray], figures: Mapping[str, float]
    ) -> tuple[str, dict[str, str]]:
        part, text = self._splits[split], results.figures_line(split, figures)
        if not part.labelled:
            return text, {}
        gold = [list(sentence.labels) for sentence in part.sentences]
        guess = self.predicted(split, outputs)
        if self.scheme != TOKENS:
            text += "\n" + results.entity_report(gold, guess)
        lines = []
        for sentence, labelled, predicted in zip(part.sentences, gold, guess, strict=True):
            if labelled != predicted:
                rows = zip(sentence.words, labelled, predicted, strict=True)
                lines += ["\t".join(row) + "\n" for row in rows] + ["\n"]
        return text, {f"{split}.errors.conll": "".join(lines)}
