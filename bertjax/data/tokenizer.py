"""WordPiece tokens, through the `tokenizers` library: load, train, encode, save.

Two families of the published tokenizer are in use and give different ids for some texts:

* 'huggingface' (default): words of more than 100 characters are unknown, special tokens typed
  in a text are understood, private-use characters are dropped, a final capital sigma lowers to
  the medial form.
* 'google' (Devlin et al., 2019, `tokenization.py`): 200 characters, typed special tokens are
  ordinary text, private-use characters stay, capital sigma lowers as Python's str.lower does;
  character classes are those of the running Python.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import tokenizers
from etils import epath
from tokenizers import decoders, models

from bertjax.data import normalization
from bertjax.data.normalization import CJK_FORGOTTEN
from bertjax.data.tokenizer_files import (
    CONFIG_FILE,
    JSON_FILE,
    PREFIX,
    VOCAB_FILE,
    read_config,
    read_tokenizer_json,
    read_vocab,
)
from bertjax.errors import UserError

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAMILIES = {"huggingface": 100, "google": 200}  # name: characters in the longest known word

_RARE = re.compile(f"[\ud800-\udfff{CJK_FORGOTTEN}]")
# The ASCII characters that end a word; everything else is up to the library.
_BLANK = re.compile("[\t\n\r]")
_BLANKS = {ord(c): " " for c in "\t\n\r"}
# Strings that `encode_flat` remembers, and the longest of them.
_MAX_KNOWN, _LONG_STRING = 1 << 16, 24
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A WordPiece vocabulary and the settings that turn text into its ids.

    Attributes:
        vocab: the tokens in id order; blank lines of the file are '' and are never produced.
        settings: do_lower_case, strip_accents (None follows do_lower_case),
            tokenize_chinese_chars, family, max_chars_per_word, split_special_tokens.
    """

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        family: str = "huggingface",
        max_chars_per_word: int | None = None,
        split_special_tokens: bool | None = None,
    ) -> None:
        """
        Args:
            vocab: tokens in id order, [UNK] among them.
            do_lower_case: None lets the vocabulary decide: it is cased if it holds capitals.
            strip_accents: remove combining marks; None follows do_lower_case.
            tokenize_chinese_chars: make each CJK ideograph a word.
            family: 'huggingface' or 'google', see the module's text.
            max_chars_per_word: longer words are [UNK]; None takes the family's (100, 200).
            split_special_tokens: '[MASK]' typed in a text is ordinary text; None takes the
                family's (False, True).

        Raises:
            UserError: no [UNK], an unknown family, a limit below 1, or a switch that is no bool.
        """
        if family not in FAMILIES:
            raise UserError(f"unknown tokenizer family {family!r}: choose from {list(FAMILIES)}")
        switches = {
            "do_lower_case": do_lower_case,
            "strip_accents": strip_accents,
            "tokenize_chinese_chars": tokenize_chinese_chars,
            "split_special_tokens": split_special_tokens,
        }
        for name, value in switches.items():
            if value is not None and not isinstance(value, bool):
                raise UserError(f"the tokenizer's {name} is {value!r}: it must be true or false")
        if max_chars_per_word is None:
            max_chars_per_word = FAMILIES[family]
        if type(max_chars_per_word) is not int or max_chars_per_word < 1:
            raise UserError(
                f"max_chars_per_word must be a whole number of at least 1, not "
                f"{max_chars_per_word!r}"
            )
        self.vocab = list(vocab)
        self._ids = {token: i for i, token in enumerate(self.vocab) if token}
        if UNK not in self._ids:
            raise UserError(f"the vocabulary of {len(self.vocab)} tokens has no {UNK}: add it")
        repeated = len(self.vocab) - self.vocab.count("") - len(self._ids)
        if repeated:
            warnings.warn(
                f"{repeated} tokens occur twice in the vocabulary; the last id of each is used",
                stacklevel=2,
            )
        if do_lower_case is None:
            do_lower_case = not is_cased(self.vocab)
        if split_special_tokens is None:
            split_special_tokens = family == "google"
        self.settings: dict[str, Any] = {
            "do_lower_case": do_lower_case,
            "strip_accents": strip_accents,
            "tokenize_chinese_chars": bool(tokenize_chinese_chars),
            "family": family,
            "max_chars_per_word": int(max_chars_per_word),
            "split_special_tokens": split_special_tokens,
        }
        self._known: dict[str, list[int]] = {}  # ids of strings between blanks
        self._engines: dict[tuple[bool, bool, bool], tokenizers.Tokenizer] = {}

    @classmethod
    def load(cls, path: epath.PathLike, **overrides: Any) -> Self:
        """A tokenizer from a folder (vocab.txt or tokenizer.json) or from a vocabulary file.

        The settings come from the folder's tokenizer_config.json, else from its tokenizer.json;
        where neither speaks of casing, the vocabulary decides.

        Raises:
            UserError: nothing usable at `path`, or an override that contradicts the folder.
        """
        path = epath.Path(path).expanduser()
        folder = path if path.is_dir() else path.parent
        vocab_path = folder / VOCAB_FILE if path.is_dir() else path
        settings: dict[str, Any] = {}
        vocab = None
        if (folder / JSON_FILE).exists() and (path.is_dir() or path.name == JSON_FILE):
            vocab, settings = read_tokenizer_json(folder / JSON_FILE)
        if path.name != JSON_FILE and (vocab is None or vocab_path.exists()):
            if path.is_dir() and not vocab_path.exists():
                raise UserError(f"no {VOCAB_FILE} and no {JSON_FILE} in {path}")
            stated, vocab = vocab, read_vocab(vocab_path)
            _check_same(folder, vocab, stated or ())
        if (folder / CONFIG_FILE).exists():
            settings |= read_config(folder / CONFIG_FILE)
        for name, value in overrides.items():
            if value is not None and settings.get(name) not in (None, value):
                raise UserError(
                    f"{name}={value} contradicts {name}={settings[name]} of the tokenizer "
                    f"settings in {folder}: leave it out, or change the file"
                )
        settings |= {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(vocab, **settings)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        *,
        do_lower_case: bool = True,
        min_frequency: int = 2,
        **settings: Any,
    ) -> Self:
        """Learn a WordPiece vocabulary; see `data/vocabulary.py`. Deterministic."""
        from bertjax.data import vocabulary

        return vocabulary.train(
            texts, vocab_size, do_lower_case=do_lower_case, min_frequency=min_frequency, **settings
        )

    def save(self, folder: epath.PathLike) -> None:
        """Write vocab.txt and tokenizer_config.json (a form that Hugging Face reads too)."""
        folder = epath.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / VOCAB_FILE).write_bytes("".join(f"{t}\n" for t in self.vocab).encode("utf-8"))
        names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
        config = {"tokenizer_class": "BertTokenizer", **names, **self.settings}
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest (hex, SHA-256) of the vocabulary and of every setting that changes ids."""
        content = json.dumps([self.vocab, sorted(self.settings.items())])
        return hashlib.sha256(content.encode()).hexdigest()

    def token_id(self, token: str) -> int:
        """The id of a token that has to be in the vocabulary."""
        try:
            return self._ids[token]
        except KeyError:
            raise UserError(
                f"the vocabulary of {self.vocab_size} tokens has no {token}: add it"
            ) from None

    pad_id = property(lambda self: self.token_id(PAD))
    unk_id = property(lambda self: self.token_id(UNK))
    cls_id = property(lambda self: self.token_id(CLS))
    sep_id = property(lambda self: self.token_id(SEP))
    mask_id = property(lambda self: self.token_id(MASK))

    @property
    def special_ids(self) -> list[int]:
        """Ids of the special tokens that the vocabulary has, ascending."""
        return sorted(self._ids[token] for token in SPECIAL_TOKENS if token in self._ids)

    @functools.cached_property
    def continuation(self) -> np.ndarray:
        """np.bool_ [vocab_size]: the piece continues a word ('##ing')."""
        return np.array([t.startswith(PREFIX) and len(t) > len(PREFIX) for t in self.vocab], bool)

    def encode(self, text: str, special_tokens: bool | None = None) -> tokenizers.Encoding:
        """Ids, tokens and character offsets of one text; adds no [CLS] or [SEP].

        Args:
            special_tokens: whether '[MASK]' typed in the text is the special token. None takes
                the setting; pass False for text from people you do not trust.
        """
        texts, engine = self._prepare([text], special_tokens)
        return engine.encode(texts[0], add_special_tokens=False)

    def encode_batch(
        self, texts: Sequence[str], special_tokens: bool | None = None
    ) -> list[list[int]]:
        """Ids of many texts, without offsets: about twice as fast as `encode`."""
        texts, engine = self._prepare(texts, special_tokens)
        encodings = engine.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of many texts in a row, for bulk work: several times as fast as `encode_batch`.

        What stands between blanks does not depend on its neighbours, so each such string is
        encoded once and remembered, in bounded memory. Typed special tokens are ordinary text.

        Returns:
            ids: int32 [tokens of all texts]
            lengths: int64 [texts]; the tokens of each, which may be 0
        """
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        lines = [text.translate(_BLANKS) if _BLANK.search(text) else text for text in texts]
        strings = " \n ".join(lines).split(" ")
        known = self._known
        missing = list(set(strings).difference(known))
        if missing:
            flat, lengths = self._encode_marked(missing)
            flat, ends = flat.tolist(), [0, *np.cumsum(lengths).tolist()]
            found = (flat[start:end] for start, end in itertools.pairwise(ends))
            known.update(zip(missing, found, strict=True))
        known["\n"] = [self.vocab_size]  # no token: the end of a text
        ids = np.array(list(itertools.chain.from_iterable(map(known.__getitem__, strings))))
        for string in missing:
            if len(string) > _LONG_STRING:
                del known[string]
        if len(known) > _MAX_KNOWN:
            known.clear()
        (marks,) = np.nonzero(ids == self.vocab_size)
        lengths = np.diff(marks, prepend=-1, append=len(ids)) - 1
        return np.delete(ids, marks).astype(np.int32), lengths

    def _encode_marked(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, by one call of the library.

        The texts are encoded as one, with a mark between them: a punctuation character that the
        vocabulary lacks. Where a text has that character, another one that is [UNK] takes its
        place.
        """
        if self._mark is None:
            ids = self.encode_batch(texts, special_tokens=False)
            flat = np.fromiter(itertools.chain.from_iterable(ids), np.int32)
            return flat, np.fromiter(map(len, ids), np.int64)
        mark, other = self._mark
        joined = f"\n{mark}\n".join(
            [text.replace(mark, other) if mark in text else text for text in texts]
        )
        (joined,), engine = self._prepare([joined], special_tokens=False, marked=True)
        ids = np.array(engine.encode_batch_fast([joined])[0].ids, np.int32)
        (marks,) = np.nonzero(ids == self.vocab_size)
        lengths = np.diff(marks, prepend=-1, append=len(ids)) - 1
        return np.delete(ids, marks), lengths

    @functools.cached_property
    def _mark(self) -> tuple[str, str] | None:
        """Two punctuation characters that the vocabulary lacks, or None."""
        known = set("".join(self.vocab))
        free = [mark for mark in "\u2042\u2031\u203b\u2047\u2049\u204e\u2055" if mark not in known]
        return (free[0], free[1]) if len(free) > 1 else None

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens of ids. UserError for an id that the vocabulary does not have."""
        ids = list(ids)
        wrong = [i for i in ids if not 0 <= i < self.vocab_size]
        if wrong:
            raise UserError(f"the id {wrong[0]} is not among the {self.vocab_size} of the tokens")
        return [self.vocab[i] for i in ids]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of ids: pieces joined to words, no blank before a full stop, and so on."""
        skipped = set(SPECIAL_TOKENS) if skip_special_tokens else set()
        tokens = [token for token in self.tokens(ids) if token not in skipped]
        return decoders.WordPiece(prefix=PREFIX).decode(tokens)

    def words(self, text: str) -> list[str]:
        """Normalised words of a text, before they are cut into pieces."""
        (text,), engine = self._prepare([text], special_tokens=False)
        pieces = engine.pre_tokenizer.pre_tokenize_str(engine.normalizer.normalize_str(text))
        return [word for word, _ in pieces]

    def _prepare(
        self, texts: Sequence[str], special_tokens: bool | None, marked: bool = False
    ) -> tuple[Sequence[str], tokenizers.Tokenizer]:
        """Texts that the library accepts, one character for one, and the engine for them."""
        rare = any(not text.isascii() and _RARE.search(text) for text in texts)
        if rare:  # a lone surrogate cannot be passed on; U+FFFD is dropped like it
            texts = [_SURROGATES.sub("\ufffd", text) for text in texts]
        google = self.settings["family"] == "google"
        if google and self.settings["do_lower_case"]:
            texts = [normalization.lower_sigma(text) if "Σ" in text else text for text in texts]
        if special_tokens is None:
            special_tokens = not self.settings["split_special_tokens"]
        key = (bool(special_tokens), rare, marked)
        if key not in self._engines:
            self._engines[key] = self._engine(*key)
        return texts, self._engines[key]

    def _engine(self, special_tokens: bool, rare: bool, marked: bool) -> tokenizers.Tokenizer:
        settings = self.settings
        mark = {self._mark[0]: self.vocab_size} if marked and self._mark else {}
        engine = tokenizers.Tokenizer(
            models.WordPiece(
                self._ids | mark,
                unk_token=UNK,
                max_input_chars_per_word=settings["max_chars_per_word"],
                continuing_subword_prefix=PREFIX,
            )
        )
        engine.add_special_tokens([token for token in SPECIAL_TOKENS if token in self._ids])
        engine.encode_special_tokens = not special_tokens
        if settings["family"] == "google":
            parts = normalization.google(settings)
        else:
            parts = normalization.huggingface(settings, rare)
        engine.normalizer, engine.pre_tokenizer = parts
        return engine


def _check_same(folder: epath.Path, lines: Sequence[str], stated: Sequence[str]) -> None:
    """UserError where vocab.txt and tokenizer.json give a number to two tokens."""
    for number, (line, token) in enumerate(zip(lines, stated, strict=False)):
        if line != token and token:  # of a token that is there twice tokenizer.json has the last
            raise UserError(
                f"{folder}: token {number} is {line!r} in {VOCAB_FILE} and {token!r} in "
                f"{JSON_FILE}: remove or mend the file that is wrong"
            )


def is_cased(vocab: Iterable[str]) -> bool:
    """Whether a vocabulary is for text with capitals: it holds a piece that lowering changes.

    Tokens in brackets ([MASK], [unused1], <S>) say nothing.
    """
    return any(t.lower() != t and t[0] not in "[<" and t != "İ" for t in vocab if t)
