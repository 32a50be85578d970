"""The vocabulary of a published checkpoint: loaded with it, written with it, extended."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertjax.data.tokenizer_files import CONFIG_FILE, JSON_FILE, VOCAB_FILE
from bertjax.errors import UserError
from bertjax.interop.names import get, padded
from bertjax.interop.published import Coverage, Published, checksum
from bertjax.interop.weights import read_json

ADDED_FILE = "added_tokens.json"
# A tensor's axis of vocabulary rows is its first.
_VOCAB_TENSORS = ("bert/embeddings/word_embeddings/embedding", "mlm/bias")


# Classes of transformers whose rules are BERT's.
_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "Funnel", "ConvBert", "LayoutLM")
_TOKENIZERS = {
    "PreTrainedTokenizerFast", "TokenizersBackend", "BasicTokenizer",
    *(f"{name}Tokenizer{fast}" for name in _CLASSES for fast in ("", "Fast")),
}  # fmt: skip
# A share of tokens with capitals above this tells of a vocabulary for text with capitals.
_CASED = 0.01
# Numbers of tokens of Google's uncased, cased, Chinese and multilingual vocabularies.
_PUBLISHED = (30522, 28996, 21128, 119547, 105879)


def load_tokenizer(
    folder: pathlib.Path, vocab_size: int
) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer in a checkpoint's folder, or None, and remarks about it.

    Tokens that were added to the vocabulary, in added_tokens.json or tokenizer.json, keep their
    rows. An embedding that was padded to a multiple of 64 or 128 may have more rows than the
    tokenizer has tokens: see `without_padding`.

    Raises:
        UserError: its number of tokens is not that of the embedding, its rules are not BERT's, or
            a file is damaged.
    """
    if not any((folder / name).exists() for name in (VOCAB_FILE, JSON_FILE)):
        return None, (f"{folder} has no {VOCAB_FILE} or {JSON_FILE}: it works on ids alone",)
    settings = _check_settings(folder)
    try:
        tokenizer, remarks = _with_added_tokens(folder, Tokenizer.load(folder), vocab_size)
    except UserError:
        raise
    except (AttributeError, IndexError, KeyError, MemoryError, TypeError, ValueError) as error:
        raise UserError(f"the tokenizer in {folder} is damaged ({error!r}); restore it.") from error
    left = vocab_size - tokenizer.vocab_size
    if _is_padding(folder, tokenizer.vocab_size, vocab_size):
        remarks.append(
            f"the embedding of {folder} is padded: its last {left} rows, which no token has, are "
            "left out"
        )
    elif left:
        raise UserError(
            f"the vocabulary in {folder} has {tokenizer.vocab_size} tokens but the embedding has "
            f"{vocab_size} rows; put the vocabulary of this model there (rows without a token "
            "need lines such as [unused1])."
        )
    if settings.get("never_split"):
        remarks.append(f"never_split of {folder / CONFIG_FILE} is not followed")
    capitals = sum(t.lower() != t and t[0] not in "[<" for t in tokenizer.vocab if t)
    if tokenizer.settings["do_lower_case"] and capitals > _CASED * vocab_size:
        remarks.append(
            f"{folder} says that text is lower-cased, but {capitals} tokens of its vocabulary have "
            f"capitals: should do_lower_case in {CONFIG_FILE} be false?"
        )
    return tokenizer, tuple(remarks)


def _is_padding(folder: pathlib.Path, tokens: int, rows: int) -> bool:
    """Whether the embedding has rows without a token because it was padded to 64 or 128.

    A vocabulary that has lost a line would look the same, with all ids after it wrong: it counts as
    whole if it is as long as a published one, or if tokenizer.json, too, is there and agrees.
    """
    padded_to = any(rows % multiple == 0 and 0 < rows - tokens < multiple for multiple in (64, 128))
    return padded_to and (tokens in _PUBLISHED or (folder / JSON_FILE).exists())


def _check_settings(folder: pathlib.Path) -> dict[str, Any]:
    """The tokenizer's settings as stored; raises UserError where they cannot be followed."""
    path = folder / CONFIG_FILE
    config = read_json(path) if path.exists() else {}
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "do_basic_tokenize"):
        if config.get(name) not in (None, True, False):
            raise UserError(f"{path}: {name} is {config[name]!r}; it must be true or false.")
    kinds = [config.get("tokenizer_class")]
    if (folder / "config.json").exists():
        kinds.append(read_json(folder / "config.json").get("tokenizer_class"))
    for kind in filter(None, kinds):
        if kind not in _TOKENIZERS:
            raise UserError(
                f"the tokenizer in {folder} is a {kind}, whose rules are not those of "
                "BertTokenizer; only those can be followed."
            )
    if (folder / JSON_FILE).exists():
        words = read_json(folder / JSON_FILE).get("pre_tokenizer") or {}
        kind = words.get("type", "BertPreTokenizer") if isinstance(words, dict) else words
        if kind != "BertPreTokenizer":
            raise UserError(
                f"{folder / JSON_FILE} finds words by {kind}, not by BertPreTokenizer; only its "
                "rules can be followed."
            )
    for token in SPECIAL_TOKENS:
        name = f"{token[1:-1].lower()}_token"
        given = config.get(name)
        given = given.get("content") if isinstance(given, dict) else given
        if given not in (None, token):
            raise UserError(f"{path}: {name} is {given!r}; only {token!r} can be read.")
    return config


def _with_added_tokens(
    folder: pathlib.Path, tokenizer: Tokenizer, vocab_size: int
) -> tuple[Tokenizer, list[str]]:
    """The tokenizer with the tokens that follow its vocabulary, and a remark about them."""
    added: dict[str, int] = {}
    if (folder / ADDED_FILE).exists():
        added |= read_json(folder / ADDED_FILE)
    if (folder / JSON_FILE).exists():
        found = read_json(folder / JSON_FILE).get("added_tokens") or ()
        added |= {token["content"]: token["id"] for token in found}
    size = tokenizer.vocab_size
    following = sorted((i, token) for token, i in added.items() if size <= i < vocab_size)
    if following and [i for i, _ in following] == list(range(size, size + len(following))):
        vocab = [*tokenizer.vocab, *(token for _, token in following)]
        tokenizer = Tokenizer(vocab, **tokenizer.settings)
    known = [t for t, i in added.items() if i < tokenizer.vocab_size and t not in SPECIAL_TOKENS]
    cut = [t for t in known if tokenizer.encode(t).tokens != [t]]
    if not cut:
        return tokenizer, []
    more = f" and {len(cut) - 1} more" if cut[1:] else ""
    return tokenizer, [
        f"the added token '{cut[0]}'{more} of {folder} keeps its row, but is cut like other text "
        "where it is typed"
    ]


def without_padding(
    config: dict[str, Any], params: dict[str, Any], coverage: Coverage, tokenizer: Tokenizer | None
) -> tuple[dict[str, Any], dict[str, Any], Coverage]:
    """The same without the rows of the embedding that no token has."""
    if tokenizer is None or tokenizer.vocab_size == config["vocab_size"]:
        return config, params, coverage
    size = tokenizer.vocab_size
    for name in _VOCAB_TENSORS:
        table = get(params, name)
        if table is not None:
            cut = np.zeros((padded(size), *table.shape[1:]), np.float32)
            cut[:size] = table[:size]
            params = _with(params, name, cut)
    coverage = dataclasses.replace(coverage, checksum=checksum(params))
    return {**config, "vocab_size": size}, params, coverage


def write_tokenizer(folder: pathlib.Path, tokenizer: Tokenizer, max_length: int) -> None:
    """vocab.txt, tokenizer_config.json with the model's length, and tokenizer.json if it can be."""
    tokenizer.save(folder)
    path = folder / CONFIG_FILE
    config = {**json.loads(path.read_text()), "model_max_length": max_length}
    path.write_text(json.dumps(config, indent=2) + "\n")
    _write_tokenizer_json(folder, tokenizer)


def _write_tokenizer_json(folder: pathlib.Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json, the whole pipeline in one file, for Hugging Face's fast tools.

    Not written where the format cannot say the same: a vocabulary with blank or repeated lines,
    and Google's family of rules. Readers then build it from vocab.txt.
    """
    vocab, settings = tokenizer.vocab, tokenizer.settings
    ids = {token: i for i, token in enumerate(vocab)}
    if len(ids) != len(vocab) or "" in ids or settings["family"] != "huggingface":
        return
    engine = tokenizers.Tokenizer(
        models.WordPiece(
            ids,
            unk_token="[UNK]",
            max_input_chars_per_word=settings["max_chars_per_word"],
            continuing_subword_prefix="##",
        )
    )
    engine.add_special_tokens([token for token in SPECIAL_TOKENS if token in ids])
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings["tokenize_chinese_chars"],
        strip_accents=settings["strip_accents"],
        lowercase=settings["do_lower_case"],
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    engine.decoder = decoders.WordPiece(prefix="##")
    engine.save(str(folder / JSON_FILE))


def _new_words(tokenizer: Tokenizer, path: pathlib.Path) -> tuple[list[str], int]:
    """Words of a file, one a line, that the vocabulary lacks; and how many it has already."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the word list {path} cannot be read: {error}.") from error
    known, new, present = set(tokenizer.vocab), {}, 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        words = tokenizer.words(line)
        if len(words) != 1:
            raise UserError(
                f"the word list {path} has '{line.strip()}', which the tokenizer cuts into "
                f"{len(words)} words; a new token must be one word without punctuation."
            )
        limit = tokenizer.settings["max_chars_per_word"]
        if len(words[0]) > limit:
            raise UserError(
                f"the word list {path} has '{words[0][:40]}...' of {len(words[0])} characters; "
                f"words of more than {limit} are [UNK] here (max_chars_per_word)."
            )
        present += words[0] in known
        if words[0] not in known:
            new[words[0]] = None
    return list(new), present


def extend_vocabulary(published: Published, path: str | pathlib.Path) -> Published:
    """A checkpoint whose vocabulary also has the words of a file, one a line.

    Words are normalised as the tokenizer does. A new row of the embedding (and of the MLM bias)
    starts as the mean of the rows of the pieces that the word was cut into before. What happened
    is said in `notes`.

    Raises:
        UserError: no tokenizer, an unreadable file, a line that is not one word, nothing new.
    """
    tokenizer = published.tokenizer
    if tokenizer is None:
        raise UserError(f"{published.source} has no vocabulary to extend.")
    words, present = _new_words(tokenizer, pathlib.Path(path))
    if not words:
        raise UserError(f"the word list {path} has no word that the vocabulary lacks.")
    pieces = tokenizer.encode_batch(words, special_tokens=False)
    old, size = tokenizer.vocab_size, tokenizer.vocab_size + len(words)
    params = dict(published.params)
    for name in _VOCAB_TENSORS:
        table = get(params, name)
        if table is None:
            continue
        rows = [table[ids].mean(axis=0, dtype=np.float64) for ids in pieces]
        grown = np.zeros((padded(size), *table.shape[1:]), np.float32)
        grown[:old] = table[:old]
        grown[old:size] = rows
        params = _with(params, name, grown)
    unknown = sum(tokenizer.unk_id in ids for ids in pieces)
    note = (
        f"{len(words)} words of {path} were added to the vocabulary, now {size}; "
        f"{present} were there already, {unknown} had no known pieces"
    )
    return dataclasses.replace(
        published,
        config={**published.config, "vocab_size": size},
        params=params,
        tokenizer=Tokenizer([*tokenizer.vocab, *words], **tokenizer.settings),
        notes=(*published.notes, note),
    )


def _with(tree: dict, path: str, value: np.ndarray) -> dict:
    """A copy of a tree in which the node at 'a/b/c' is `value`; the rest is shared."""
    first, _, rest = path.partition("/")
    return {**tree, first: _with(tree[first], rest, value) if rest else value}
