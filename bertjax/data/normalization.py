"""What becomes of a text before its words are cut into pieces, in the two families of tokenizers
(see `tokenizer.py`), as parts of the `tokenizers` library."""

from __future__ import annotations

import functools
import sys
import unicodedata
from typing import Any

import tokenizers
from tokenizers import normalizers, pre_tokenizers

# Blocks of CJK ideographs: each character is a word of its own.
CJK = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
# The part of them that BertNormalizer's table of blocks leaves out (it starts at 2B920).
CJK_FORGOTTEN = "\U0002b820-\U0002b91f"


Parts = tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]


def huggingface(settings: dict[str, Any], rare: bool) -> Parts:
    """BertNormalizer and BertPreTokenizer.

    Args:
        settings: of the `Tokenizer`.
        rare: whether the text may hold characters of `CJK_FORGOTTEN`.
    """
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings["tokenize_chinese_chars"],
        strip_accents=settings["strip_accents"],
        lowercase=settings["do_lower_case"],
    )
    words = pre_tokenizers.BertPreTokenizer()
    if rare and settings["tokenize_chinese_chars"]:
        words = pre_tokenizers.Sequence([_split(CJK_FORGOTTEN), words])
    return normalizer, words


def google(settings: dict[str, Any]) -> Parts:
    """Google's BasicTokenizer: clean-up, lower case, accents; white space, CJK, punctuation."""

    def remove(characters: str) -> normalizers.Normalizer:
        return normalizers.Replace(tokenizers.Regex(f"[{characters}]"), "")

    space = r"\t\n\r" + _character_class("Zs", "Zl", "Zp")
    control = r"(?:(?![\t\n\r])[\x{fffd}" + _character_class("Cc", "Cf") + "])"
    steps = [normalizers.Replace(tokenizers.Regex(control), "")]
    if settings["do_lower_case"]:
        steps.append(normalizers.Lowercase())
    strip = settings["strip_accents"]
    if settings["do_lower_case"] if strip is None else strip:
        steps += [normalizers.NFD(), remove(_character_class("Mn"))]
    punctuation = r"!-/:-@\[-`{-~" + _character_class("P")
    alone = punctuation + (CJK if settings["tokenize_chinese_chars"] else "")
    return (
        normalizers.Sequence(steps),
        pre_tokenizers.Sequence([_split(space, "removed"), _split(alone)]),
    )


def lower_sigma(text: str) -> str:
    """Replace each capital sigma by the form, medial or final, that str.lower gives it."""
    kept = [
        i
        for i, c in enumerate(text)
        if c in "\t\n\r" or (c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cf"))
    ]
    characters = list(text)
    lowered = "".join(text[i] for i in kept).lower()
    place = 0
    for i in kept:
        if text[i] == "Σ":
            characters[i] = lowered[place]
        place += len(text[i].lower())
    return "".join(characters)


def _split(characters: str, behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(f"[{characters}]"), behavior)


@functools.cache
def _character_class(*categories: str) -> str:
    """The inside of a regex class: every character whose Unicode category starts like these."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(categories) and not 0xD800 <= code < 0xE000:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
