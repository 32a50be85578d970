"""The files of a tokenizer: vocab.txt, tokenizer_config.json and tokenizer.json."""

from __future__ import annotations

import json
from typing import Any

from etils import epath

from bertjax.errors import UserError

VOCAB_FILE, CONFIG_FILE, JSON_FILE = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
PREFIX = "##"  # of a piece that continues a word


def read_vocab(path: epath.PathLike) -> list[str]:
    """Tokens of a vocabulary file in id order: the id is the line number.

    Lines end at LF alone (or at CRLF, if the first line does), so that tokens such as U+2028 or
    U+0085 do not shift later ids; blank lines keep their id.

    Raises:
        UserError: the file is missing, empty or not UTF-8.
    """
    path = epath.Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"no vocabulary file {path}: give the path of a vocab.txt") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary {path} is not UTF-8 at byte {error.start}: convert it to UTF-8"
        ) from None
    text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise UserError(f"vocabulary {path} is empty: it needs one token a line")
    if lines[0].endswith("\r"):
        lines = [line.removesuffix("\r") for line in lines]
    return lines


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): restore the file") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object: restore the file")
    return content


_SETTINGS = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "family",
    "max_chars_per_word",
    "split_special_tokens",
)


def read_config(path: epath.Path) -> dict[str, Any]:
    config = _read_json(path)
    if config.get("do_basic_tokenize", True) is False:
        raise UserError(f"do_basic_tokenize=false in {path} is not supported: split words first")
    return {name: config[name] for name in _SETTINGS if config.get(name) is not None}


def read_tokenizer_json(path: epath.Path) -> tuple[list[str], dict[str, Any]]:
    """The vocabulary and the settings of a file that the `tokenizers` library wrote."""
    content = _read_json(path)
    model = content.get("model") or {}
    # Files of early versions do not name the model's type.
    if model.get("type", "WordPiece") != "WordPiece" or "unk_token" not in model:
        raise UserError(f"{path} is a {model.get('type')} tokenizer: BERT needs WordPiece")
    normalizer = content.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        raise UserError(
            f"{path} normalises text by {normalizer.get('type')}, not BertNormalizer: "
            f"give the model's {VOCAB_FILE} and {CONFIG_FILE}"
        )
    if model.get("continuing_subword_prefix", PREFIX) != PREFIX:
        raise UserError(f"{path} continues words by another prefix than {PREFIX}")
    ids = dict(model["vocab"]) | {t["content"]: t["id"] for t in content.get("added_tokens") or ()}
    vocab = [""] * (max(ids.values()) + 1)
    for token, i in ids.items():
        vocab[i] = token
    settings = {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars"),
        "max_chars_per_word": model.get("max_input_chars_per_word"),
    }
    return vocab, {name: value for name, value in settings.items() if value is not None}
