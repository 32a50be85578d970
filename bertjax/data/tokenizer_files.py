"""The files of a tokenizer: vocab.txt, tokenizer_config.json and tokenizer.json."""

from __future__ import annotations

import json
import warnings
from typing import Any

from etils import epath

from bertjax.errors import UserError

VOCAB_FILE, CONFIG_FILE, JSON_FILE = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
PREFIX = "##"  # of a piece that continues a word


def read_vocab(path: epath.PathLike) -> list[str]:
    """Tokens of a vocabulary file in id order: the id is the line number.

    Lines end at LF or CRLF alone, so that tokens such as U+2028 or U+0085 do not shift later ids;
    blank lines keep their id. Warns of tokens that begin or end with a blank.

    Raises:
        UserError: the file is missing, empty, not UTF-8 or a pointer of Git LFS.
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
    if text.startswith("version https://git-lfs"):
        raise UserError(f"{path} is a pointer of Git LFS: fetch the file itself (git lfs pull)")
    lines = [line.removesuffix("\r") for line in lines]
    odd = [i for i, line in enumerate(lines) if line.strip() and line != line.strip(" \t")]
    if odd:
        warnings.warn(
            f"{len(odd)} tokens of {path} begin or end with a blank, so no text gives them (first "
            f"in line {odd[0] + 1}, {lines[odd[0]]!r}): remove the blanks",
            stacklevel=2,
        )
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
    if not isinstance(model.get("vocab"), dict):
        raise UserError(f"{path} holds no vocabulary: restore the file")
    ids = model["vocab"] | {t["content"]: t["id"] for t in content.get("added_tokens") or ()}
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
