"""Pretraining: masked language modelling and next-sentence prediction (Devlin et al. 2019, 3.1).

The corpus gives unmasked rows; which tokens are masked is drawn inside the step, anew each epoch.
Evaluation masks 15 % whatever training does, and always the same tokens of the same pairs, so that
figures of different runs on one corpus can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import config_dict

from bertjax.config import bert_config, stderr
from bertjax.data import builder
from bertjax.data.loader import PretrainLoader
from bertjax.data.masking import mask_counts, mask_tokens
from bertjax.data.report import NO_WORDS, lacks_words
from bertjax.data.store import FINGERPRINT, PreparedCorpus
from bertjax.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertjax.errors import UserError
from bertjax.model.heads import BertForPreTraining
from bertjax.tasks.corpus import corpus_folder, prepare_data
from bertjax.tasks.task import Batch, Mean, Rows, Task, bert_step_flops, steps_of
from bertjax.train.loss import accuracy, cross_entropy, ignore_labels

EVAL_MASK_RATE = 0.15
# Held-out pairs and masks do not depend on the run's seed.
EVAL_SEED = 0
# Folded into the seed, so that masks share no random bits with dropout or initialisation.
MASK_STREAM = 0x3A5C
EXAMPLES_SHOWN = 4
# Sequences a packed row of an ordinary corpus, where none is there to say it.
PACKED_SEQUENCES = 3

# `tasks` asks every task module for prepare_data and from_config.
__all__ = ["Pretrain", "from_config", "prepare_data", "without_data"]


def from_config(
    config: config_dict.ConfigDict, workdir: str, tokenizer: Tokenizer | None
) -> Pretrain:
    """The task of a resolved config, after `prepare_data`; fills in model.vocab_size."""
    folder = corpus_folder(config, workdir)
    corpus = builder.open_prepared(folder, tokenizer.fingerprint if tokenizer else None)
    tokenizer = tokenizer or Tokenizer.load(corpus)
    if config.model.vocab_size not in (0, tokenizer.vocab_size):
        raise UserError(
            f"config.model.vocab_size={config.model.vocab_size}, but the vocabulary of {corpus} "
            f"has {tokenizer.vocab_size} tokens: set it to that, or to 0 to follow the vocabulary"
        )
    config.model.vocab_size = tokenizer.vocab_size
    task = Pretrain(config, str(corpus), tokenizer)
    if jax.process_index() == 0:
        for note in task.notes():
            stderr(f"{corpus}: {note}")
    return task


def without_data(config: config_dict.ConfigDict) -> Pretrain:
    """The task of a resolved config with model.vocab_size, to plan and to time its step.

    It has no examples; its batches are shaped as those of a corpus of long documents.
    """
    words = [f"[unused{i}]" for i in range(config.model.vocab_size - len(SPECIAL_TOKENS))]
    return Pretrain(config, None, Tokenizer([*SPECIAL_TOKENS, *words]))


class Pretrain(Task):
    """BERT's two pretraining losses on a prepared corpus."""

    name = "pretrain"
    best_metric = ("validation/loss", False)

    def __init__(
        self, config: config_dict.ConfigDict, corpus: str | None, tokenizer: Tokenizer
    ) -> None:
        """`config` is resolved, with model.vocab_size that of `tokenizer`; `corpus` is a prepared
        folder, or None: no examples. UserError where the corpus cannot give examples for it."""
        data = config.data
        self.config, self.tokenizer = config, tokenizer
        self.model = BertForPreTraining(bert_config(config), nsp=data.nsp)
        self.loss_weights = {"mlm_loss": config.loss.mlm}
        if data.nsp:
            self.loss_weights["nsp_loss"] = config.loss.nsp
        limit = data.max_predictions or data.seq_length
        self._counts = {
            True: mask_counts(data.seq_length, data.mask_rate, limit),
            False: mask_counts(data.seq_length, EVAL_MASK_RATE, data.seq_length),
        }
        self.train_steps, self.eval_splits = config.train.steps, ()
        self._sequences_per_row = PACKED_SEQUENCES if data.packing else 1
        if corpus is not None:
            self._open(corpus)

    def _open(self, corpus: str) -> None:
        data, steps = self.config.data, self.config.train
        self._report = builder.read_report(corpus)
        self._fingerprint = json.loads((epath.Path(corpus) / FINGERPRINT).read_text())
        self._corpora: dict[str, PreparedCorpus]
        self._corpora = {s: PreparedCorpus(corpus, s) for s in builder.split_names(corpus)}
        self.eval_splits = tuple(split for split in self._corpora if split != "train")
        if self.eval_splits:
            first = "validation" if "validation" in self.eval_splits else self.eval_splits[0]
            self.best_metric = (f"{first}/loss", False)
        self._no_pairs: dict[str, str] = {}  # split -> why it has none
        self._loaders = {split: self._open_split(split) for split in self._corpora}
        self._sequences_per_row = self._loaders["train"].sequences_per_row
        rows = self._loaders["train"].rows_per_epoch
        self.train_steps = steps.steps or steps_of(steps.epochs, rows / data.batch_size)
        if self.train_steps < 1:
            raise UserError(
                f"config.train.steps={steps.steps} and config.train.epochs={steps.epochs} make no "
                "step: set one of them"
            )
        self._unigram = _unigram(self._corpora["train"].token_counts(self.tokenizer.vocab_size))

    def notes(self) -> list[str]:
        """What there is to train on, and what of it looks wrong, is cut, left out or not
        evaluated: one sentence each."""
        found = self._report
        sizes = [f"{s} {n['documents']:,} documents" for s, n in found["splits"].items()]
        warnings = [w for w in found["warnings"] if w != NO_WORDS]
        if self.config.data.whole_word and lacks_words(found):
            warnings.append(NO_WORDS)
        return [
            f"{found['splits']['train']['tokens']:,} tokens to train on ({', '.join(sizes)})",
            *(f"warning: {warning}" for warning in warnings),
            *self._loaders["train"].notes(),
            *self._no_pairs.values(),
        ]

    def _open_split(self, split: str) -> PretrainLoader:
        """Its loader. A held-out split of one document, say, has no sentence pairs: it is
        evaluated without next-sentence prediction rather than not at all."""
        nsp = self.config.data.nsp
        try:
            return self._loader(split, nsp)
        except UserError as error:
            if split == "train" or not nsp:
                raise
            loader = self._loader(split, False)
            self._no_pairs[split] = f"evaluated without next-sentence prediction: {error}"
            return loader

    def _loader(self, split: str, nsp: bool) -> PretrainLoader:
        data, train = self.config.data, split == "train"
        return PretrainLoader(
            self._corpora[split],
            cls_id=self.tokenizer.cls_id,
            sep_id=self.tokenizer.sep_id,
            pad_id=self.tokenizer.pad_id,
            vocab_size=self.tokenizer.vocab_size,
            seq_length=data.seq_length,
            batch_size=data.batch_size if train else data.eval_batch_size,
            seed=self.config.seed if train else EVAL_SEED,
            nsp=nsp,
            packing=data.packing and train,
            continuation=self.tokenizer.continuation if data.whole_word else None,
            workers=data.workers if train else 0,
        )

    def batch_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        data, pairs = self.config.data, self._sequences_per_row
        names = ["input_ids", "token_type_ids", "attention_mask"]
        shapes = {name: ((data.seq_length,), jnp.int32) for name in names}
        shapes |= {name: ((pairs,), jnp.int32) for name in ("nsp_positions", "nsp_labels")}
        shapes["example"] = ((2,), jnp.uint32)
        if pairs > 1:
            shapes["position_ids"] = ((data.seq_length,), jnp.int32)
        if data.whole_word:
            shapes["continues"] = ((data.seq_length,), jnp.bool_)
        return {
            name: jax.ShapeDtypeStruct((data.batch_size, *shape), dtype)
            for name, (shape, dtype) in shapes.items()
        }

    def train_batches(self, start_step: int, rows: Rows) -> Iterator[Batch]:
        return self._loaders["train"].batches(start_step, rows.of(self.config.data.batch_size))

    def eval_batches(self, split: str, rows: Rows) -> Iterator[Batch]:
        data = self.config.data
        return self._loaders[split].eval_batches(
            rows.of(data.eval_batch_size), limit=data.eval_examples or None
        )

    def init_params(self, key: jax.Array) -> Any:
        ids = jnp.zeros((1, self.config.data.seq_length), jnp.int32)
        return self.model.init(key, ids)["params"]

    def inputs(self, batch: Mapping[str, jax.Array], *, train: bool) -> Mapping[str, jax.Array]:
        """`batch` with its tokens masked and the positions, labels and weights of the masks."""
        data = self.config.data
        seed = self.config.seed if train else EVAL_SEED
        kept = max(0.0, 1.0 - data.replace_mask - data.replace_random)
        replace = (data.replace_mask, data.replace_random, kept) if train else (0.8, 0.1, 0.1)
        masked = mask_tokens(
            batch["input_ids"],
            batch["attention_mask"],
            batch["example"],
            jax.random.fold_in(jax.random.key(seed), MASK_STREAM),
            counts=self._counts[train],
            special_ids=self.tokenizer.special_ids,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.tokenizer.vocab_size,
            replace=replace,
            continues=batch.get("continues"),
        )
        if "weight" in batch:  # rows that only fill an evaluation batch
            masked["masked_weights"] *= batch["weight"][:, None]
        return {**batch, **masked}

    def losses(
        self, params: Any, inputs: Mapping[str, jax.Array], *, dropout_key: jax.Array | None
    ) -> dict[str, Mean]:
        mlm_logits, nsp_logits = self._apply(params, inputs, dropout_key)
        labels, weights = inputs["masked_labels"], inputs["masked_weights"]
        means = {
            "mlm_loss": cross_entropy(mlm_logits, labels, weights),
            "mlm_accuracy": accuracy(mlm_logits, labels, weights),
        }
        if nsp_logits is not None:
            rows = inputs["weight"][:, None] if "weight" in inputs else None
            nsp_labels, nsp_weights = ignore_labels(inputs["nsp_labels"], rows)
            means["nsp_loss"] = cross_entropy(nsp_logits, nsp_labels, nsp_weights)
            means["nsp_accuracy"] = accuracy(nsp_logits, nsp_labels, nsp_weights)
        if "weight" in inputs:
            unigram = -jnp.asarray(self._unigram)[labels]
            means["unigram_loss"] = (jnp.sum(unigram * weights), jnp.sum(weights))
        return means

    def _apply(
        self, params: Any, inputs: Mapping[str, jax.Array], dropout_key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        return self.model.apply(
            {"params": params},
            inputs["input_ids"],
            inputs["token_type_ids"],
            inputs["attention_mask"],
            inputs.get("position_ids"),
            masked_positions=inputs["masked_positions"],
            nsp_positions=inputs.get("nsp_positions"),
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )

    def metrics(
        self, split: str, means: Mapping[str, float], outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """The means and `perplexity`, exp of the MLM loss; NSP figures where there are pairs."""
        del outputs
        figures = {**means, "perplexity": float(np.exp(means["mlm_loss"]))}
        if split in self._no_pairs:
            figures["loss"] = self.config.loss.mlm * means["mlm_loss"]
            del figures["nsp_loss"], figures["nsp_accuracy"]
        return figures

    def chance_levels(self) -> dict[str, float]:
        entropy = float(-(np.exp(self._unigram) * self._unigram).sum())
        return {"mlm_loss": entropy} | ({"nsp_accuracy": 0.5} if self.config.data.nsp else {})

    def step_flops(self, batch: Mapping[str, Any]) -> int:
        return bert_step_flops(self, self.model.config, batch)

    def artifacts(self) -> dict[str, Any]:
        return {
            "corpus": self._fingerprint,
            "vocab": self.tokenizer.fingerprint,
            "best_metric": list(self.best_metric),
        }

    def save_assets(self, workdir: str) -> None:
        self.tokenizer.save(workdir)

    def finish(self, workdir: str, params: Any, results: Mapping[str, Mapping[str, float]]) -> str:
        del workdir
        tables = [_summary(split, results[split]) for split in self.eval_splits if split in results]
        return "\n".join([*tables, *self._filled_masks(params)])

    def _filled_masks(self, params: Any) -> list[str]:
        """A few held-out rows with their masks, what the model puts there and what stood there."""
        if not self.eval_splits:
            return ["no held-out split: nothing was evaluated"]
        batch = next(iter(self.eval_batches(self.eval_splits[0], Rows())))
        batch = {name: value[:EXAMPLES_SHOWN] for name, value in batch.items()}

        def guess(params: Any, batch: Batch) -> tuple[Mapping[str, jax.Array], jax.Array]:
            inputs = self.inputs(batch, train=False)
            return inputs, jnp.argmax(self._apply(params, inputs, None)[0], axis=-1)

        inputs, guesses = jax.device_get(jax.jit(guess)(params, batch))
        lines = ["held-out text, [guess|original] where they differ, [guess] where they agree:"]
        for row in range(len(guesses)):
            if not batch["weight"][row]:
                continue
            tokens = self.tokenizer.tokens(batch["input_ids"][row])
            chosen = inputs["masked_weights"][row] > 0
            for place, best in zip(
                inputs["masked_positions"][row][chosen], guesses[row][chosen], strict=True
            ):
                best = self.tokenizer.tokens([best])[0]
                original = tokens[place]
                tokens[place] = f"[{best}]" if best == original else f"[{best}|{original}]"
            real = [t for t, m in zip(tokens, batch["attention_mask"][row], strict=True) if m]
            lines.append("  " + " ".join(real).replace(" ##", ""))
        return lines


def _unigram(counts: np.ndarray) -> np.ndarray:
    """Log-probability of each token from its count, with add-one smoothing: [V] float32."""
    smoothed = counts + 1.0
    return np.log(smoothed / smoothed.sum()).astype(np.float32)


def _summary(split: str, figures: Mapping[str, float]) -> str:
    better = figures["unigram_loss"] - figures["mlm_loss"]
    side = "below" if better >= 0 else "ABOVE"
    text = (
        f"{split}: MLM loss {figures['mlm_loss']:.3f} nats (perplexity "
        f"{figures['perplexity']:.1f}), {abs(better):.3f} {side} the unigram loss of the same "
        f"tokens, {figures['unigram_loss']:.3f}; MLM accuracy {figures['mlm_accuracy']:.3f}"
    )
    if "nsp_accuracy" in figures:
        text += f"; NSP accuracy {figures['nsp_accuracy']:.3f}"
    return text
