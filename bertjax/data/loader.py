"""Batches of pretraining examples: in one global order, read in parts, resumable by position.

The examples of epoch 0, 1, 2, ... in their shuffled orders are one endless sequence; step s of
batch size B takes rows s * B to (s + 1) * B of it. Every row is a function of (seed, epoch,
index), so the order is the same for any number of worker processes, hosts and devices, each
process assembles its own rows only, and the step is all that a checkpoint has to keep.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import grain
import numpy as np
from absl import flags

from bertjax.data.packing import Packer
from bertjax.data.pairs import NO_LABEL, Examples, Pair
from bertjax.data.store import PreparedCorpus
from bertjax.errors import UserError

Batch = Mapping[str, np.ndarray]

_AHEAD = 4  # batches that are made before they are asked for, by each worker


class PretrainLoader:
    """Unmasked pretraining batches from a prepared corpus (keys: docs/architecture.md).

    Masks are drawn from `example` = (epoch, row of the epoch) inside the training step.

    Args:
      corpus: a split of a prepared corpus.
      cls_id, sep_id, pad_id: ids of [CLS], [SEP] and [PAD].
      vocab_size: real entries of the vocabulary; ids are checked against it.
      seq_length: S, tokens of a row.
      batch_size: B, rows of a global batch.
      seed: another seed, other examples in another order.
      nsp: sentence pairs with labels; otherwise sentences of one document and no labels.
      packing: several sequences a row (see `packing.Packer`); training batches only.
      continuation: bool [vocab_size], '##' pieces: asks for `continues`, which whole-word
        masking needs. What a word segmenter stored in the corpus goes before it.
      workers: worker processes; 0 assembles in a background thread of this process.

    Attributes:
      examples_per_epoch: sequences of an epoch (a pair with `nsp`).
      rows_per_epoch: rows of an epoch; as many as examples unless packed.
      sequences_per_row: N of `nsp_positions`; 1 unless packed.
    """

    def __init__(
        self,
        corpus: PreparedCorpus,
        *,
        cls_id: int,
        sep_id: int,
        vocab_size: int,
        seq_length: int,
        batch_size: int,
        seed: int,
        pad_id: int = 0,
        nsp: bool = True,
        packing: bool = False,
        continuation: np.ndarray | None = None,
        workers: int = 0,
    ):
        if batch_size < 1:
            raise UserError(f"data.batch_size is {batch_size}; it must be at least 1")
        try:
            self.examples = Examples(corpus, seq_length, seed, nsp)
        except UserError as error:
            raise UserError(f"{corpus.folder}, split {corpus.split!r}: {error}") from None
        self.packer = Packer(self.examples) if packing else None
        self.batch_size, self._workers = batch_size, workers
        self._writer = _RowWriter(
            corpus, seq_length, cls_id, sep_id, pad_id, vocab_size, continuation
        )
        self.examples_per_epoch = self.examples.per_epoch
        self.rows_per_epoch = self.packer.rows_per_epoch if packing else self.examples.per_epoch
        self.sequences_per_row = self.packer.sequences_per_row if packing else 1

    def batches(self, start_step: int, rows: slice) -> Iterator[Batch]:
        """Rows `rows` of every global batch from step `start_step` on, without end."""
        steps = _TrainSteps(
            self.examples, self.packer, self._writer, self.batch_size, start_step, rows
        )
        return self._iterate(steps)

    def eval_batches(self, rows: slice, limit: int | None = None) -> Iterator[Batch]:
        """The examples of epoch 0 in corpus order, each once; or as many as `limit`: the first of
        them, or, beyond an epoch, those of the next epochs too, which are cut anew from the text.

        One sequence a row, packed or not in training. The last batch is filled up with copies
        of the last example that have weight 0.
        """
        count = limit or self.examples_per_epoch
        return self._iterate(_EvalSteps(self.examples, self._writer, self.batch_size, count, rows))

    def notes(self) -> list[str]:
        """What is cut or left out, one sentence each."""
        notes = []
        if self.examples.long_sentences:
            notes.append(
                f"{self.examples.long_sentences} sentences are longer than a row "
                f"({self.examples.room} tokens) and are cut to it"
            )
        return notes + (self.packer.notes() if self.packer else [])

    def _iterate(self, steps: _Steps) -> Iterator[Batch]:
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
        dataset = grain.MapDataset.source(steps).to_iter_dataset(options)
        if self._workers:
            if not flags.FLAGS.is_parsed():  # grain asks for its own flags, which nobody parses
                flags.FLAGS.mark_as_parsed()
            dataset = dataset.mp_prefetch(
                grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=_AHEAD)
            )
        iterator = iter(dataset)
        try:
            yield from iterator
        finally:  # ends threads and worker processes when the reader stops early
            iterator.close()


@dataclasses.dataclass(frozen=True)
class _RowWriter:
    """Writes planned rows into the arrays of a batch."""

    corpus: PreparedCorpus
    seq_length: int
    cls_id: int
    sep_id: int
    pad_id: int
    vocab_size: int
    continuation: np.ndarray | None

    def batch(
        self, rows: Sequence[Sequence[Pair]], example: np.ndarray, sequences: int
    ) -> dict[str, np.ndarray]:
        """One batch: each row's sequences one after the other, at most `sequences` of them."""
        shape = len(rows), self.seq_length
        batch = {
            "input_ids": np.full(shape, self.pad_id, np.int32),
            "token_type_ids": np.zeros(shape, np.int32),
            "attention_mask": np.zeros(shape, np.int32),
            "nsp_positions": np.zeros((len(rows), sequences), np.int32),
            "nsp_labels": np.full((len(rows), sequences), NO_LABEL, np.int32),
            "example": example.astype(np.uint32),
        }
        if sequences > 1:
            batch["position_ids"] = np.zeros(shape, np.int32)
        if self.continuation is not None:
            batch["continues"] = np.zeros(shape, bool)
        records = self._read(rows)
        for row, pairs in enumerate(rows):
            column = 0
            for number, pair in enumerate(pairs):
                column = self._write(batch, row, number, column, pair, records)
        ids = batch["input_ids"]
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            row, column = np.argwhere((ids < 0) | (ids >= self.vocab_size))[0]
            epoch, index = example[row]
            raise UserError(
                f"example {index} of epoch {epoch} holds id {ids[row, column]}, outside the "
                f"vocabulary of {self.vocab_size}: corpus and vocabulary do not belong together"
            )
        return batch

    def _read(self, rows: Sequence[Sequence[Pair]]) -> dict[int, Mapping[str, np.ndarray]]:
        """Every record that these rows need, read once."""
        wanted = {record for pairs in rows for pair in pairs for record in pair.records}
        return dict(zip(wanted, self.corpus.read(wanted), strict=True))

    def _write(
        self,
        batch: dict[str, np.ndarray],
        row: int,
        number: int,
        column: int,
        pair: Pair,
        records: Mapping[int, Mapping[str, np.ndarray]],
    ) -> int:
        """[CLS] A [SEP] B [SEP] from `column` on; returns the column behind it."""
        start = column
        ids = batch["input_ids"][row]
        ids[column] = self.cls_id
        column += 1
        for segment, (record, first, last) in enumerate(pair.segments):
            end = column + last - first
            text = records[record]["ids"][first:last]
            if len(text) < last - first:
                raise UserError(
                    f"record {record} of {self.corpus.folder}, split {self.corpus.split!r}, is "
                    "shorter than its index says; prepare the corpus again"
                )
            ids[column:end] = text
            ids[end] = self.sep_id
            if segment:
                batch["token_type_ids"][row, column : end + 1] = 1
            if "continues" in batch:
                batch["continues"][row, column:end] = self._continues(records[record])[first:last]
            column = end + 1
        batch["attention_mask"][row, start:column] = number + 1
        batch["nsp_positions"][row, number] = start
        batch["nsp_labels"][row, number] = pair.label
        if "position_ids" in batch:
            batch["position_ids"][row, start:column] = np.arange(column - start)
        return column

    def _continues(self, record: Mapping[str, np.ndarray]) -> np.ndarray:
        stored = record.get("continues")
        return self.continuation[record["ids"]] if stored is None else stored


@dataclasses.dataclass
class _TrainSteps:
    """Step `start + k` of training as item k of a practically endless source for grain."""

    examples: Examples
    packer: Packer | None
    writer: _RowWriter
    batch_size: int
    start: int
    rows: slice

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, item: int) -> Batch:
        offset = (self.start + int(item)) * self.batch_size
        places = offset + np.arange(self.rows.start, self.rows.stop)
        source = self.packer or self.examples
        epochs, indices = np.divmod(places, source.rows_per_epoch)
        rows = source.rows(epochs, indices)
        example = np.stack([epochs, indices], 1)
        return self.writer.batch(rows, example, source.sequences_per_row)


@dataclasses.dataclass
class _EvalSteps:
    """The batches of one evaluation as a source for grain."""

    examples: Examples
    writer: _RowWriter
    batch_size: int
    count: int
    rows: slice

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __getitem__(self, item: int) -> Batch:
        places = int(item) * self.batch_size + np.arange(self.rows.start, self.rows.stop)
        epochs, indices = np.divmod(np.minimum(places, self.count - 1), self.examples.per_epoch)
        pairs = zip(epochs.tolist(), indices.tolist(), strict=True)
        rows = [[self.examples.plan(epoch, index)] for epoch, index in pairs]
        example = np.stack([epochs, indices], 1)
        batch = self.writer.batch(rows, example, 1)
        return batch | {"weight": (places < self.count).astype(np.float32)}


_Steps = _TrainSteps | _EvalSteps
