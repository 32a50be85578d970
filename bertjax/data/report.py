"""The data report: figures of a prepared corpus, and warnings where one looks wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.data.encoder import EncodedChunk
from bertjax.data.normalization import CJK
from bertjax.data.pairs import RANDOM, Examples, Index
from bertjax.errors import UserError

# Upper ends of the histogram of sentence lengths, in tokens.
LENGTH_BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MIN_HELD_OUT = 2000  # tokens: 300 of them are masked, which tell accuracies to some 3 points
NO_WORDS = (
    "no word segmenter: whole-word masking of Chinese would mask single characters "
    "(--segmenter=jieba, extra zh)"
)
_IDEOGRAPH = re.compile(f"[{CJK}]")
_WORDS = {
    "invalid_utf8": "invalid UTF-8 sequences were dropped",
    "empty_files": "files were empty",
    "empty_documents": "documents without text were left out",
    "cut_lines": "cuts were made in lines of more than 65,536 characters",
    "long_sentences": "sentences of more than 512 tokens were cut",
}


class DistinctCounter:
    """How many different 64-bit digests were seen: exact up to `size`, an estimate beyond.

    Keeps the `size` smallest digests (k minimum values, Bar-Yossef et al., 2002; standard error
    1 / sqrt(size), 0.3 % here), so memory is flat and the order of `add` does not matter.
    """

    def __init__(self, size: int = 1 << 17) -> None:
        self.size = size
        self.total = 0
        self._smallest = np.empty(0, np.uint64)
        self._waiting: list[np.ndarray] = []
        self._number_waiting = 0

    def add(self, digests: np.ndarray) -> None:
        self.total += len(digests)
        if len(self._smallest) == self.size:
            digests = digests[digests < self._smallest[-1]]
        self._waiting.append(digests)
        self._number_waiting += len(digests)
        if len(self._waiting) > 256:  # an array of one number takes fifteen times its room
            self._waiting = [np.concatenate(self._waiting)]
        if self._number_waiting > self.size:
            self._merge()

    def _merge(self) -> None:
        merged = np.unique(np.concatenate([self._smallest, *self._waiting]))
        self._smallest = merged[: self.size]
        self._waiting, self._number_waiting = [], 0

    @property
    def distinct(self) -> float:
        self._merge()
        if len(self._smallest) < self.size:
            return float(len(self._smallest))
        return (self.size - 1) / ((float(self._smallest[-1]) + 1) / 2.0**64)

    @property
    def duplicate_share(self) -> float:
        """Share of the digests that repeat an earlier one."""
        return max(0.0, 1.0 - self.distinct / self.total) if self.total else 0.0


class Statistics:
    """Figures of a corpus, gathered chunk by chunk."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lines = DistinctCounter()
        self.documents = DistinctCounter()
        self.lengths = np.zeros(2**16, np.int64)
        self.unknown = self.characters = self.one_sentence = 0

    def add(self, chunk: EncodedChunk) -> None:
        self.counts.update(chunk.counts)
        self.lines.add(chunk.lines)
        self.unknown += chunk.unknown
        self.characters += chunk.characters
        lengths = np.concatenate([piece.lengths for piece in chunk.pieces])
        self.lengths += np.bincount(lengths, minlength=len(self.lengths))

    def add_document(self, digest: int, sentences: int) -> None:
        self.documents.add(np.array([digest], np.uint64))
        self.one_sentence += sentences == 1

    def figures(self) -> dict[str, Any]:
        """What the report says of the text as a whole."""
        sentences = int(self.lengths.sum())
        tokens = int(self.lengths @ np.arange(len(self.lengths)))
        documents = self.documents.total
        edges = np.array((0, *LENGTH_BINS, len(self.lengths) - 1))
        cumulative = np.cumsum(self.lengths)
        histogram = np.diff(cumulative[edges], prepend=0)[1:]
        names = [f"<={end}" for end in LENGTH_BINS] + [f">{LENGTH_BINS[-1]}"]
        return {
            "documents": documents,
            "sentences": sentences,
            "tokens": tokens,
            "characters": self.characters,
            "tokens_per_sentence": _ratio(tokens, sentences),
            "sentences_per_document": _ratio(sentences, documents),
            "sentence_length_histogram": dict(zip(names, histogram.tolist(), strict=True)),
            "unk_share": _ratio(self.unknown, tokens),
            "duplicate_documents_share": self.documents.duplicate_share,
            "duplicate_lines_share": self.lines.duplicate_share,
            "one_sentence_documents_share": _ratio(self.one_sentence, documents),
        }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def pair_figures(corpus: Index, seq_length: int, sample: int = 2000) -> tuple[float | None, float]:
    """Expected share of random pairs, and of padding in unpacked rows, at a length.

    Both come from the examples that training would draw, a sample of the first epochs'.

    Returns:
        (share of pairs whose B comes from another document, None where no pairs can be made;
        share of positions that are padding)
    """
    try:
        examples, special = Examples(corpus, seq_length, seed=0), 3
    except UserError:  # one document, or none of two sentences
        examples, special = Examples(corpus, seq_length, seed=0, nsp=False), 2
    # An epoch of a small corpus has a handful of examples, whose share says nothing.
    chosen = np.linspace(0, examples.per_epoch - 1, min(sample, examples.per_epoch)).astype(int)
    epochs = range(-(-sample // len(chosen)) if len(chosen) < sample else 1)
    plans = [examples.plan(epoch, int(example)) for epoch in epochs for example in chosen]
    used = sum(plan.tokens + special for plan in plans)
    padding = 1.0 - used / (len(plans) * seq_length)
    if not examples.nsp:
        return None, padding
    return sum(plan.label == RANDOM for plan in plans) / len(plans), padding


def ideograph_share(counts: np.ndarray, vocab: Sequence[str]) -> float:
    """Share of the tokens that are one CJK ideograph, from how often each id occurs."""
    single = np.array([len(token) == 1 and bool(_IDEOGRAPH.match(token)) for token in vocab])
    return _ratio(int(counts[single[: len(counts)]].sum()), int(counts.sum()))


def lacks_words(report: Mapping[str, Any]) -> bool:
    """Whether whole-word masking would mask single characters, for want of a segmenter."""
    return report["ideograph_share"] > 0.3 and not report["segmenter"]


def warnings(report: Mapping[str, Any]) -> list[str]:
    """One sentence for each figure that looks wrong, with its likely cause."""
    found = []
    percent = {
        name: f"{100 * report[name]:.0f} %" for name in report if name.startswith(("dup", "one"))
    }
    if report["unk_share"] > 0.02:
        cause = "the vocabulary is for another language or script"
        if report["vocab"]["cased"] is False and not report["vocab"]["do_lower_case"]:
            cause = "the vocabulary is uncased but lower-casing is off (--lower_case=true)"
        found.append(f"{100 * report['unk_share']:.1f} % of the tokens are [UNK]: {cause}")
    invalid = report["counts"].get("invalid_utf8", 0)
    if invalid > 0.01 * report["characters"]:
        found.append(
            f"{invalid:,} invalid UTF-8 sequences to {report['characters']:,} characters: a file "
            "is in another encoding (of Chinese GBK, else Latin-1), and its text is lost: convert "
            "it, iconv -f GBK -t UTF-8, and prepare again"
        )
    if report["duplicate_documents_share"] > 0.1:
        found.append(
            f"{percent['duplicate_documents_share']} of the documents repeat another one: "
            "the source was read twice or was not deduplicated"
        )
    if report["duplicate_lines_share"] > 0.3:
        found.append(
            f"{percent['duplicate_lines_share']} of the lines repeat another one: "
            "boilerplate, or a corpus that was not deduplicated; the model will learn them by heart"
        )
    if report["documents"] > 1 and report["one_sentence_documents_share"] > 0.5:
        found.append(
            f"{percent['one_sentence_documents_share']} of the documents have one sentence, so "
            "next-sentence labels mean little: blank lines between sentences divide documents "
            "(--layout=file joins them), or the texts are short (train without nsp)"
        )
    random_share = report["nsp_random_share"]
    if random_share is not None and abs(random_share - 0.5) > 0.1:
        found.append(
            f"{100 * random_share:.0f} % of the next-sentence pairs would be random instead of "
            "50 %"
            + ": documents are too short to give true pairs (see --layout)"
            * (random_share > 0.5)
        )
    if report["documents"] == 1:
        found.append(
            "the corpus is one document, so there is no other one to take random sentences from "
            "and nothing is held out: divide it by blank lines or files (--layout), or train "
            "without nsp"
        )
    if lacks_words(report):
        found.append(NO_WORDS)
    return found + counted(report["counts"])


def held_out_warnings(splits: Mapping[str, Any], asked: float) -> list[str]:
    """What is questionable of the held-out split.

    `asked` is the share of the documents, 0 where a set of its own is held out. Whole documents
    are, so few or uneven ones give another share of the tokens.
    """
    if not asked or "validation" not in splits:
        return []
    tokens = {name: splits[name]["tokens"] for name in ("train", "validation")}
    share = _ratio(tokens["validation"], sum(tokens.values()))
    found = []
    if not asked / 2 <= share <= 2 * asked:
        found.append(
            f"{100 * share:.3g} % of the tokens are held out, where {100 * asked:.3g} % were asked "
            "for: documents are few or uneven (bertjax.prepare has --layout to divide text, and "
            "--held_out=0 --held_out=validation=SOURCE)"
        )
    if tokens["validation"] < MIN_HELD_OUT:
        found.append(
            f"only {tokens['validation']:,} tokens are held out: figures of so few say little"
        )
    return found


def counted(counts: Mapping[str, int], before: str = "") -> list[str]:
    """A sentence for each thing that was met in reading and encoding."""
    return [f"{before}{number:,} {_WORDS[name]}" for name, number in counts.items() if number]


def render(report: Mapping[str, Any]) -> str:
    """The report as lines to read."""
    lines = [f"{name:21}{text}" for name, text in rows(report)]
    return "\n".join([*lines, *remarks(report)])


def remarks(report: Mapping[str, Any]) -> list[str]:
    """Its notes and warnings, each a line."""
    notes = [f"note: {note}" for note in report["notes"]]
    return notes + [f"warning: {warning}" for warning in report["warnings"]]


def rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Its figures for a person: (name, text)."""
    splits = ", ".join(
        f"{name} {split['documents']:,} documents, {split['tokens']:,} tokens"
        for name, split in report["splits"].items()
    )
    vocab = report["vocab"]
    share = report["nsp_random_share"]
    random = "no pairs can be made" if share is None else f"{100 * share:.1f} % expected (aim: 50)"
    case = "uncased" if vocab["do_lower_case"] else "cased"
    histogram = report["sentence_length_histogram"]
    return [
        ("source", report["source"]),
        ("vocabulary", f"{vocab['size']:,} tokens, {case}"),
        ("documents", f"{report['documents']:,} "
                      f"({report['sentences_per_document']:.1f} sentences each; "
                      f"{100 * report['one_sentence_documents_share']:.1f} % have one)"),
        ("sentences", f"{report['sentences']:,} "
                      f"({report['tokens_per_sentence']:.1f} tokens each)"),
        ("tokens", f"{report['tokens']:,} from {report['characters']:,} characters"),
        ("splits", splits),
        ("[UNK]", f"{100 * report['unk_share']:.3f} % of tokens"),
        ("duplicates", f"{100 * report['duplicate_documents_share']:.1f} % of documents, "
                       f"{100 * report['duplicate_lines_share']:.1f} % of lines"),
        ("random pairs", random),
        ("padding", f"{100 * report['padding_share']:.1f} % expected at length "
                    f"{report['seq_length']}, unpacked"),
        ("sentence lengths", "  ".join(f"{name}: {n:,}" for name, n in histogram.items())),
    ]  # fmt: skip
