"""Training examples from sentence lengths alone: which tokens of which records make a row.

Sentence pairs follow Devlin et al. 2019, section 3.1 and appendix A.2: A and B together fill
the length, one pair in ten has a shorter target, B is the text that follows A in half of the
pairs and a random piece of another document in the others. An example stays within one stored
record (whole sentences of one document, up to 4,096 tokens), so that it costs one read, or two.

How an epoch covers the corpus. Record r expects T_r / c examples, at least one, where T_r is its
number of tokens and c what an example uses up on average: all of its target where B follows A,
the part of A where B is random. Adding these up gives a fixed number of examples an epoch;
systematic sampling with a random phase gives each record its expected number, rounded up or
down anew each epoch. The n examples that a record gets draw their labels, targets and shares of
A from a hash of (seed, epoch, record); what they will use up, scaled to T_r, cuts the record
into n pieces at which they start. So each sentence begins about one example's use, none is left
out for long, and example i of epoch e is a function of (seed, e, i): nothing has to be stored,
passed on or replayed. A keyed permutation puts the examples of an epoch in order.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from bertjax.data.shuffle import mix, permute, uniform, uniforms
from bertjax.errors import UserError

IS_NEXT, RANDOM, NO_LABEL = 0, 1, -100

SHORT_SHARE = 0.1  # of pairs with a target drawn uniformly from 2 tokens up
_SLACK = 0.95  # examples start a little closer than they reach, so that few sentences are missed
_JITTER = 0.2  # without pairs: how much the distance between starts varies
_ONE = 1 << 20  # fixed point of expected counts: sums are exact and the same everywhere

# Streams of the hash, so that no two draws share their bits.
_ORDER, _PHASE, _PLAN, _CUT, _PIECE = range(5)


class Index(Protocol):
    """What is needed of a corpus here (see `store.PreparedCorpus`)."""

    lengths: np.ndarray
    offsets: np.ndarray
    documents: np.ndarray

    def chunks(self): ...


class Pair(NamedTuple):
    """Tokens [a_start, a_end) of record a and [b_start, b_end) of record b; B may be empty."""

    label: int
    a_record: int
    a_start: int
    a_end: int
    b_record: int
    b_start: int
    b_end: int

    @property
    def tokens(self) -> int:
        """Tokens of text, without [CLS] and [SEP]."""
        return self.a_end - self.a_start + self.b_end - self.b_start

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """(record, start, end) of A and, in a pair, of B."""
        a = self.a_record, self.a_start, self.a_end
        return (a,) if self.label == NO_LABEL else (a, (self.b_record, self.b_start, self.b_end))

    @property
    def records(self) -> set[int]:
        return {self.a_record, self.b_record}


class Examples:
    """The examples of every epoch: sentence pairs, or without `nsp` sentences of one document.

    Args:
      corpus: the index of a prepared corpus.
      seq_length: tokens of a row with [CLS] and [SEP].
      seed: another seed, other examples in another order.
      nsp: sentence pairs. Otherwise a row is [CLS] sentences [SEP]: sentences of one document
        that fill the length, none short on purpose (DOC-SENTENCES of Liu et al. 2019).

    Attributes:
      per_epoch: the number of examples of every epoch.
      long_sentences: sentences that no row can hold whole; they are cut.

    Raises:
      UserError: the corpus is empty, or pairs cannot be made from it: fewer than two documents
        or no document of two sentences.
    """

    def __init__(self, corpus: Index, seq_length: int, seed: int, nsp: bool = True):
        special = 3 if nsp else 2
        if seq_length < special + 2:
            raise UserError(f"data.seq_length is {seq_length}; it must be at least {special + 2}")
        self.room = seq_length - special  # tokens of text in a full row
        self.nsp, self.seed = nsp, seed
        self._corpus = corpus
        if nsp:
            target = (1 - SHORT_SHARE) * self.room + SHORT_SHARE * (self.room + 2) / 2
            use = target * 0.75 * _SLACK  # all of the target or, on average, half of it
        else:
            use = self.room * (1 - _JITTER / 2)
        self._expected, self._first_records = self._build_index(use)
        self.per_epoch = int(-(-self._expected[-1] // _ONE))
        self._expected[-1] = self.per_epoch * _ONE
        self.rows_per_epoch, self.sequences_per_row = self.per_epoch, 1

    def _build_index(self, use: float) -> tuple[np.ndarray, np.ndarray]:
        """Running sums of expected examples [records + 1]; the first record of each document."""
        corpus = self._corpus
        records = len(corpus.documents)
        expected = np.zeros(records + 1, np.int64)
        first_records = np.empty(records + 1, np.uint32)
        found, previous, done = 0, None, 0
        self.long_sentences = several = 0
        for lengths, offsets, documents in corpus.chunks():
            if not lengths.all() or not np.diff(offsets).all():
                raise UserError(
                    "the corpus holds a sentence or a record without tokens: prepare it again"
                )
            self.long_sentences += int((lengths > self.room).sum())
            several += int((np.diff(offsets) > 1).sum())
            longest = min(self.room, np.iinfo(lengths.dtype).max)
            tokens = np.add.reduceat(np.minimum(lengths, longest), offsets[:-1], dtype=np.int64)
            counts = np.maximum(_ONE, (tokens * (_ONE / use)).astype(np.int64))
            expected[done + 1 : done + 1 + len(counts)] = counts
            new = np.flatnonzero(np.diff(documents, prepend=documents[0] - 1)) + done
            new = new if documents[0] != previous else new[1:]
            first_records[found : found + len(new)] = new
            previous, done, found = documents[-1], done + len(counts), found + len(new)
        if not records:
            raise UserError("the corpus is empty: it has no sentence to train on")
        np.cumsum(expected, out=expected)
        first_records[found] = records
        first_records = first_records[: found + 1].copy() if found < records else first_records
        if self.nsp and len(first_records) < 3:
            raise UserError(
                "the corpus has one document, so there is no other one to take a random next "
                "sentence from: divide it into documents or set data.nsp=False"
            )
        if self.nsp and not several:
            raise UserError(
                "no document has two sentences, so no sentence has a next one: check that lines "
                "were not taken for documents, or set data.nsp=False"
            )
        return expected, first_records

    def order(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """The examples, in corpus order, that stand at these places of an epoch's order."""
        return permute(indices, self.per_epoch, mix(self.seed, _ORDER, epoch))

    def rows(self, epochs: np.ndarray, indices: np.ndarray) -> list[list[Pair]]:
        """The rows at these places of these epochs' orders, one example each."""
        rows: list[list[Pair]] = []
        for epoch in np.unique(epochs):  # ascending, as the rows are: one epoch, seldom two
            order = self.order(int(epoch), indices[epochs == epoch])
            rows += [[self.plan(int(epoch), int(example))] for example in order]
        return rows

    def plan(self, epoch: int, example: int) -> Pair:
        """Example `example` (in corpus order) of an epoch, at most `room` tokens long."""
        phase = mix(self.seed, _PHASE, epoch) % _ONE
        record = int(self._expected.searchsorted(example * _ONE + phase, "right")) - 1
        # The record's examples are the whole numbers in [expected[r], expected[r+1]) - phase.
        first = -((phase - int(self._expected[record])) // _ONE)
        count = -((phase - int(self._expected[record + 1])) // _ONE) - first
        sentences = self._sentence_starts(record)
        key = mix(self.seed, _PLAN, epoch, record)
        if self.nsp:
            pair = self._plan_pair(record, example - first, count, sentences, key)
        else:
            pair = self._plan_sentences(record, example - first, count, sentences, key)
        return self.cut(pair, self.room, epoch, example)

    def cut(self, pair: Pair, room: int, epoch: int, example: int) -> Pair:
        """The pair cut to `room` tokens: the longer segment first, at its front or its back."""
        a_tokens, b_tokens = pair.a_end - pair.a_start, pair.b_end - pair.b_start
        if a_tokens + b_tokens <= room:
            return pair
        if b_tokens <= room // 2:
            a_kept, b_kept = room - b_tokens, b_tokens
        elif a_tokens <= room - room // 2:
            a_kept, b_kept = a_tokens, room - a_tokens
        else:
            a_kept, b_kept = room - room // 2, room // 2
        coins = mix(self.seed, _CUT, epoch, example)
        a_start = pair.a_end - a_kept if coins & 1 else pair.a_start
        b_start = pair.b_end - b_kept if coins & 2 else pair.b_start
        return pair._replace(
            a_start=a_start, a_end=a_start + a_kept, b_start=b_start, b_end=b_start + b_kept
        )

    def _sentence_starts(self, record: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each sentence of a record starts, and where the last ends: [sentences + 1].

        And the same as if no sentence were longer than a row, so that a long one fills one row
        and not several with the same beginning.
        """
        first, last = self._corpus.offsets[record : record + 2]
        lengths = self._corpus.lengths[first:last]
        starts = np.zeros(last - first + 1, np.int64)
        lengths.cumsum(out=starts[1:])
        if lengths.max() <= self.room:
            return starts, starts
        capped = np.zeros_like(starts)
        np.minimum(lengths, self.room).cumsum(out=capped[1:])
        return starts, capped

    def _plan_sentences(
        self, record: int, which: int, count: int, sentences: tuple[np.ndarray, ...], key: int
    ) -> Pair:
        """Sentences from this example's start on that fill a row."""
        starts, scale = sentences
        weights = 1 - _JITTER * uniforms(key, (count,))
        begin = weights[:which].sum() / weights.sum() * scale[-1]
        first, last = _fill(scale, int(scale.searchsorted(begin)), self.room)
        return Pair(NO_LABEL, record, starts[first], starts[last], record, 0, 0)

    def _plan_pair(
        self, record: int, which: int, count: int, sentences: tuple[np.ndarray, ...], key: int
    ) -> Pair:
        """A pair that starts at this example's piece of the record."""
        starts, scale = sentences
        number, total = len(starts) - 1, scale[-1]
        coin, short, size, share = uniforms(key, (4, count))
        # Neighbours get opposite labels, by one coin for the two of them.
        index = np.arange(count)
        random = (coin[index & -2] < 0.5) ^ (index & 1 == 1)
        target = np.where(short < SHORT_SHARE, 2 + np.floor(size * (self.room - 1)), self.room)
        use = np.minimum(target, total) * np.where(random, share, 1)
        reach = use.cumsum() / use.sum() * total
        begin = 0 if which == 0 else reach[which - 1]
        first = min(int(scale.searchsorted(begin)), number - 1)
        wanted = int(target[which])
        if random[which] or number == 1:
            last = min(int(scale.searchsorted(reach[which])), _until(scale, first, wanted))
            last = max(last, first + 1)
            left = max(1, wanted - int(starts[last] - starts[first]))
            b_record, b_start, b_end = self._random_piece(record, left, mix(key, _PIECE, which))
            return Pair(RANDOM, record, starts[first], starts[last], b_record, b_start, b_end)
        first, last = _fill(scale, first, wanted)
        if last == first + 1:  # a sentence as long as the target: its neighbour comes along
            first, last = (first, last + 1) if last < number else (first - 1, last)
        middle = scale[first] + share[which] * (scale[last] - scale[first])
        middle = min(max(int(scale.searchsorted(middle)), first + 1), last - 1)
        return Pair(
            IS_NEXT, record, starts[first], starts[middle], record, starts[middle], starts[last]
        )

    def _random_piece(self, record: int, wanted: int, key: int) -> tuple[int, int, int]:
        """A random piece of another document: its record and tokens, `wanted` if it has them.

        The longer a document, the likelier; within it every sentence by its length.
        """
        own = int(self._first_records.searchsorted(record, "right")) - 1
        begin, end = self._expected[self._first_records[own : own + 2]]
        point = mix(key, 0) % int(self._expected[-1] - (end - begin))
        point += int(end - begin) if point >= begin else 0
        other = int(self._expected.searchsorted(point, "right")) - 1
        starts, _ = self._sentence_starts(other)
        first = int(starts.searchsorted(uniform(key, 1) * starts[-1], "right")) - 1
        first, last = _fill(starts, first, wanted)
        return other, starts[first], starts[last]


def _until(starts: np.ndarray, first: int, wanted: int) -> int:
    """The end of the sentences from `first` on that hold `wanted` tokens, or of the record."""
    return min(int(starts.searchsorted(starts[first] + wanted)), len(starts) - 1)


def _fill(starts: np.ndarray, first: int, wanted: int) -> tuple[int, int]:
    """Sentences [first, last) that hold `wanted` tokens, begun earlier at a record's end."""
    first = min(first, len(starts) - 2)
    if starts[-1] - starts[first] < wanted:
        first = max(0, int(starts.searchsorted(starts[-1] - wanted, "right")) - 1)
    return first, _until(starts, first, wanted)
