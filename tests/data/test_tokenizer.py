"""The tokenizer against the published algorithm written out plainly, and against `transformers`."""

import json
import random
import subprocess
import sys
import unicodedata
import warnings

import numpy as np
import pytest
from tokenizers import normalizers

from bertjax.data import tokenizer as module
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CJK = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def published(text, vocab, lower_case, limit=200):
    """Devlin et al.'s tokenization, step by step, in plain Python."""
    characters = []
    for c in text:
        category = unicodedata.category(c)
        if c in " \t\n\r" or category == "Zs":
            characters.append(" ")
        elif ord(c) in (0, 0xFFFD) or category in ("Cc", "Cf"):
            continue
        elif any(first <= ord(c) <= last for first, last in CJK):
            characters.append(f" {c} ")
        else:
            characters.append(c)
    pieces = []
    for word in "".join(characters).split():
        if lower_case:
            word = word.lower()
            word = "".join(
                c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn"
            )
        part = ""
        for c in word:
            ascii_symbol = c.isascii() and not c.isalnum() and c.isprintable() and c != " "
            if ascii_symbol or unicodedata.category(c).startswith("P"):
                pieces += [part, c]
                part = ""
            else:
                part += c
        pieces.append(part)
    return [t for piece in pieces if piece for t in word_pieces(piece, vocab, limit)]


def word_pieces(word, vocab, limit):
    if len(word) > limit:
        return ["[UNK]"]
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocab:
                found.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return found


def make(*tokens, **settings):
    return Tokenizer([*SPECIAL, *tokens], **settings)


@pytest.fixture(scope="session")
def vocab_file(real_data):
    return lambda name: real_data / "vocab" / f"bert-base-{name}.vocab.txt"


# Clean-up


@pytest.mark.parametrize(
    "text",
    ["he\ufffdllo", "he\x00llo", "he\x08llo", "he\u200bllo", "he\u00adllo", "\ufeffhello"],
)
@pytest.mark.parametrize("family", ["huggingface", "google"])
def test_invisible_characters_are_dropped_before_splitting(text, family):
    assert make("hello", family=family).encode(text).tokens == ["hello"]


@pytest.mark.parametrize("text", ["", "   "])
def test_nothing_gives_nothing(text):
    assert make("hello").encode(text).tokens == []


def test_a_lone_surrogate_is_dropped_and_keeps_offsets():
    encoding = make("hello", "you").encode("hel\ud800lo you")
    assert encoding.tokens == ["hello", "you"]
    assert encoding.offsets == [(0, 6), (7, 10)]


# Special tokens in a text


def test_typed_special_tokens(vocab_file):
    tokenizer = Tokenizer.load(vocab_file("uncased"))
    assert tokenizer.mask_id == 103
    assert tokenizer.special_ids == [0, 100, 101, 102, 103]
    assert tokenizer.encode("the [MASK] world").ids[1] == 103
    assert len(tokenizer.encode("the [MASK] world").ids) == 3
    assert tokenizer.encode("[mask]").tokens == ["[", "mask", "]"]
    assert tokenizer.encode("[MASK]", special_tokens=False).ids == [1031, 7308, 1033]
    assert tokenizer.encode_batch(["[MASK]"], special_tokens=False) == [[1031, 7308, 1033]]


def test_mask_beside_chinese():
    tokenizer = make(*"京是中国的首都", do_lower_case=True)
    expected = ["[MASK]", *"京是中国的首都"]
    assert tokenizer.encode("[MASK]京是中国的首都").tokens == expected


def test_the_google_family_never_understands_typed_special_tokens():
    tokenizer = make("[", "]", "mask", family="google")
    assert tokenizer.encode("[MASK]").tokens == ["[", "mask", "]"]
    assert tokenizer.encode("[MASK]", special_tokens=True).tokens == ["[MASK]"]


# Accents and case


@pytest.mark.parametrize("family", ["huggingface", "google"])
def test_accents_follow_lower_casing_unless_set(family):
    uncased = make("cafe", "café", "i", do_lower_case=True, family=family)
    assert uncased.encode("café").tokens == ["cafe"]
    assert uncased.encode("cafe\u0301").tokens == ["cafe"]
    assert uncased.encode("\u0130").tokens == ["i"]
    cased = make("café", do_lower_case=False, family=family)
    assert cased.encode("café").tokens == ["café"]
    kept = make("café", do_lower_case=True, strip_accents=False, family=family)
    assert kept.encode("CAFÉ").tokens == ["café"]


def test_casing_comes_from_the_folder_and_a_conflict_is_an_error(tmp_path):
    tokens = ["Hello", "hello", "the", "THE"]
    make(*tokens, do_lower_case=False).save(tmp_path)
    assert Tokenizer.load(tmp_path).encode("Hello THE hello").tokens == ["Hello", "THE", "hello"]
    with pytest.raises(UserError, match="do_lower_case=True contradicts do_lower_case=False"):
        Tokenizer.load(tmp_path, do_lower_case=True)
    assert Tokenizer.load(tmp_path, do_lower_case=False).vocab_size == 9
    uncased = make(*tokens, do_lower_case=True)
    assert uncased.encode("Hello THE hello").tokens == ["hello", "the", "hello"]


def test_the_vocabulary_decides_where_nothing_else_does(vocab_file):
    assert Tokenizer.load(vocab_file("uncased")).settings["do_lower_case"] is True
    assert Tokenizer.load(vocab_file("cased")).settings["do_lower_case"] is False


def test_an_uncased_vocabulary_without_lower_casing_gives_unknown(vocab_file):
    assert Tokenizer.load(vocab_file("uncased"), do_lower_case=False).encode("She").tokens == [
        "[UNK]"
    ]


def test_final_sigma_is_where_the_families_differ():
    tokens = ("οδος", "οδοσ")
    assert make(*tokens).encode("ΟΔΟΣ").tokens == ["οδοσ"]
    google = make(*tokens, family="google")
    assert google.encode("ΟΔΟΣ, ΟΔΟ\u00adΣ.").tokens == ["οδος", "[UNK]", "οδος", "[UNK]"]
    assert google.encode("ΟΔΟΣ").offsets == [(0, 4)]


# CJK


@pytest.mark.parametrize("family", ["huggingface", "google"])
def test_ideographs_stand_alone_and_kana_and_hangul_do_not(family):
    tokenizer = make(family=family)
    assert tokenizer.words("ab京c") == ["ab", "京", "c"]
    for first, last in CJK:
        for code in (first, (first + last) // 2, last):
            if unicodedata.category(chr(code)) != "Cn":
                assert len(tokenizer.words(f"a{chr(code)}b")) == 3, hex(code)
    assert tokenizer.words("カキ 한국") == [
        unicodedata.normalize("NFD", word) for word in ("カキ", "한국")
    ]


# Long words


@pytest.mark.parametrize(("family", "limit"), [("huggingface", 100), ("google", 200)])
@pytest.mark.parametrize("letter", ["a", "ж"])
def test_the_longest_word_is_counted_in_characters(family, limit, letter):
    tokenizer = make(letter, f"##{letter}", family=family)
    assert len(tokenizer.encode(letter * limit).tokens) == limit
    assert tokenizer.encode(letter * (limit + 1)).tokens == ["[UNK]"]


# Vocabulary files


@pytest.mark.parametrize(
    ("content", "size", "hello"),
    [
        ("[PAD]\n[UNK]\n\u2028\nhello\n", 4, 3),
        ("[PAD]\n[UNK]\n\u0085\nhello", 4, 3),
        ("[PAD]\n[UNK]\n\x0b\nhello\n", 4, 3),
        ("[PAD]\n[UNK]\n\nhello\n", 4, 3),
        ("[PAD]\n[UNK]\n\nhello", 4, 3),
        ("[PAD]\r\n[UNK]\r\n\r\nhello\r\n", 4, 3),
        ("[PAD]\n[UNK]\n\r\nhello\n", 4, 3),
        ("\ufeff[PAD]\n[UNK]\n\u2028\nhello\n", 4, 3),
    ],
)
def test_an_id_is_a_line_number(tmp_path, content, size, hello):
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    for path in (tmp_path / "vocab.txt", tmp_path):
        tokenizer = Tokenizer.load(path)
        assert (tokenizer.vocab_size, tokenizer.encode("hello").ids) == (size, [hello])
    tokenizer.save(tmp_path / "copy")
    copy = Tokenizer.load(tmp_path / "copy")
    assert copy.vocab == tokenizer.vocab
    assert copy.fingerprint == tokenizer.fingerprint


def test_the_fingerprint_sees_vocabulary_and_settings():
    prints = [
        make("a").fingerprint,
        make("b").fingerprint,
        make("a", do_lower_case=False).fingerprint,
        make("a", family="google").fingerprint,
        make("a", strip_accents=False).fingerprint,
    ]
    assert len(set(prints)) == 5
    assert make("a").fingerprint == prints[0]


def test_a_switch_that_is_no_bool_is_refused():
    """ "false" as a string would be true."""
    with pytest.raises(UserError, match="do_lower_case is 'false': it must be true or false"):
        Tokenizer(["[UNK]", "a"], do_lower_case="false")


def test_what_a_vocabulary_lacks_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no \[UNK\]"):
        Tokenizer(["a"])
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        _ = Tokenizer(["[UNK]"]).mask_id
    with pytest.raises(UserError, match="no vocabulary file"):
        Tokenizer.load(tmp_path / "absent.txt")
    with pytest.raises(UserError, match=r"no vocab\.txt"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8 at byte 6"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"")
    with pytest.raises(UserError, match="empty"):
        Tokenizer.load(tmp_path)
    with pytest.raises(UserError, match="unknown tokenizer family"):
        make(family="elmo")
    with pytest.warns(UserWarning, match="1 tokens occur twice"):
        assert make("a", "b", "a").encode("a").ids == [7]


def test_a_folder_with_only_tokenizer_json(tmp_path):
    """The file is one that the `tokenizers` library writes, so it is read as others read it."""
    import tokenizers

    vocab = {t: i for i, t in enumerate([*SPECIAL, "Hello", "hello", "##s"])}
    engine = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=7)
    )
    engine.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False)
    engine.add_special_tokens(SPECIAL)
    engine.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = Tokenizer.load(path)
        assert tokenizer.vocab == list(vocab)
        assert tokenizer.encode("Hellos hellosss").tokens == ["Hello", "##s", "[UNK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}}}))
    with pytest.raises(UserError, match="BPE tokenizer"):
        Tokenizer.load(tmp_path)


# Against independent implementations


def code_points():
    """Every assigned character that can be in a text."""
    return [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")
    ]


def probes(characters):
    """Each character alone and between letters; a thousand of them make a text, to be quick."""
    single = [*characters, *(f"a{c}b" for c in characters)]
    return [" ".join(single[i : i + 1000]) for i in range(0, len(single), 1000)]


def random_texts(vocab, number, seed):
    """Strings of many scripts: words of the vocabulary, symbols, controls, any character."""
    rng = random.Random(seed)
    words = [token.removeprefix("##") for token in vocab if token and token[0] != "["]
    symbols = " \t\n.,!?-'\"()[]#$%&*_|~\u00a0\u3000\u200d\u0301\u2028"
    letters = "ÀÉöñçßĀğİıŁΣσςЖяђאבعربहिन्दीไทยカキ한국京中国ﬁＡ１𝔸𐐀🤗é"
    texts = []
    for _ in range(number):
        parts = []
        for _ in range(rng.randint(1, 12)):
            parts.append(rng.choice([rng.choice(words), rng.choice(symbols), rng.choice(letters)]))
            parts.append(rng.choice(["", "", " ", rng.choice(symbols)]))
        texts.append("".join(parts))
    return texts


def compare_with_published(vocab_path, texts, lower_case):
    tokenizer = Tokenizer.load(vocab_path, family="google", do_lower_case=lower_case)
    known = set(tokenizer.vocab)
    found = tokenizer.encode_batch(texts)
    for text, ids in zip(texts, found, strict=True):
        check_equal(text, tokenizer.tokens(ids), published(text, known, lower_case))


def check_equal(text, found, expected):
    """Tokens or ids of one text; says where the first difference is."""
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), -1)  # noqa: B905
        around = slice(max(0, at - 3), at + 4)
        pytest.fail(f"{text[:80]!r}...: {found[around]} should be {expected[around]}")


@pytest.mark.parametrize(
    ("name", "lower_case"), [("uncased", True), ("cased", False), ("chinese", True)]
)
def test_google_family_is_the_published_algorithm(vocab_file, name, lower_case):
    tokenizer = Tokenizer.load(vocab_file(name))
    compare_with_published(vocab_file(name), random_texts(tokenizer.vocab, 2000, 0), lower_case)
    compare_with_published(vocab_file(name), probes(code_points()), lower_case)


@pytest.mark.parametrize(
    ("name", "lower_case"), [("uncased", True), ("cased", False), ("chinese", True)]
)
def test_default_family_is_that_of_transformers(vocab_file, name, lower_case):
    """Every character, alone and between letters, and generated strings.

    Ideographs of U+2B820 to U+2B91F are left out: the library's table of blocks begins 256
    characters too late, ours does not.
    """
    transformers = pytest.importorskip("transformers", reason="the extra parity is not installed")
    ours = Tokenizer.load(vocab_file(name), do_lower_case=lower_case)
    vocab = {token: i for i, token in enumerate(ours.vocab)}
    theirs = transformers.BertTokenizer(vocab=vocab, do_lower_case=lower_case)
    characters = [c for c in code_points() if not 0x2B820 <= ord(c) <= 0x2B91F]
    texts = probes(characters) + random_texts(ours.vocab, 5000, 2)
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    found = ours.encode_batch(texts)
    for text, ids, reference in zip(texts, found, expected, strict=True):
        check_equal(text, ids, reference)


# Bulk work


@pytest.mark.parametrize("family", ["huggingface", "google"])
@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_flat_encoding_is_that_of_each_text_alone(vocab_file, monkeypatch, name, family):
    monkeypatch.setattr(module, "_MAX_KNOWN", 1000)  # so that it forgets in between
    tokenizer = Tokenizer.load(vocab_file(name), family=family)
    mark, other = tokenizer._mark
    texts = random_texts(tokenizer.vocab, 2000, 3)
    texts += [chr(c) + "a" + chr(c) for c in (*range(0x300), 0x1680, *range(0x2000, 0x2070))]
    texts += ["", " ", "\u0301a", mark, f"a{mark}b", f"{other}{mark}", "[MASK]", "a\ud800", "ΑΣ"]
    parts = [tokenizer.encode_flat(texts[i : i + 300]) for i in range(0, len(texts), 300)]
    ids, lengths = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert len(tokenizer._known) <= 1000
    assert max(map(len, tokenizer._known), default=0) <= module._LONG_STRING
    alone = [tokenizer.encode(text, special_tokens=False).ids for text in texts]
    assert lengths.tolist() == [len(one) for one in alone]
    assert ids.tolist() == [i for one in alone for i in one]
    assert ids.dtype == np.int32


def test_flat_encoding_without_a_free_mark():
    tokenizer = make("a", *"\u2042\u2031\u203b\u2047\u2049\u204e\u2055")
    ids, lengths = tokenizer.encode_flat(["a \u2042", "", "a"])
    assert (ids.tolist(), lengths.tolist()) == ([5, 6, 5], [2, 0, 1])
    ids, lengths = tokenizer.encode_flat([])
    assert (ids.tolist(), lengths.tolist()) == ([], [])


def test_bulk_work_uses_the_fast_call(monkeypatch):
    """encode_batch keeps no offsets, which is what encode_batch_fast saves."""
    used = []

    class Spy:
        def __init__(self, engine):
            self.engine = engine

        def encode_batch_fast(self, texts, **options):
            used.append(len(texts))
            return self.engine.encode_batch_fast(texts, **options)

    tokenizer = make("a")
    build = tokenizer._engine
    monkeypatch.setattr(tokenizer, "_engine", lambda *key: Spy(build(*key)))
    tokenizer.encode_batch(["a", "a"])
    tokenizer.encode_flat(["a", "a"])
    assert used == [2, 1]


def test_continuation_decode_and_tokens():
    tokenizer = make("un", "##aff", "##able", "##", "!")
    assert tokenizer.continuation.tolist() == [False] * 6 + [True, True, False, False]
    ids = tokenizer.encode("unaffable!").ids
    assert tokenizer.tokens(ids) == ["un", "##aff", "##able", "!"]
    assert tokenizer.decode(ids) == "unaffable!"
    assert tokenizer.decode([2, *ids, 3], skip_special_tokens=True) == "unaffable!"
    assert tokenizer.decode([2, *ids]) == "[CLS] unaffable!"


# Training

TEXT = (
    "the cat sat on the mat, the dog sat on the log. " * 20 + "naïve Ünïcode 京都京都 zebra zebra"
)


def test_line_ends_of_two_kinds_and_blanks_around_tokens(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"[UNK]\nhello\r\nworld\r\n")
    assert Tokenizer.load(path).vocab == ["[UNK]", "hello", "world"]
    path.write_bytes(b"[UNK]\nhello \nworld\n")
    with pytest.warns(UserWarning, match="1 tokens .* begin or end with a blank.*line 2, 'hello '"):
        Tokenizer.load(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n")
    with pytest.raises(UserError, match="pointer of Git LFS"):
        Tokenizer.load(path)


def test_ids_that_are_no_tokens_are_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\nhello\n")
    tokenizer = Tokenizer.load(path)
    for wrong in (-1, 2, -100):
        with pytest.raises(UserError, match=f"the id {wrong} is not among the 2"):
            tokenizer.decode([1, wrong])


def test_training_gives_special_tokens_first_and_covers_its_text():
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=5)) for _ in range(300)] * 2
    tokenizer = Tokenizer.train([TEXT, " ".join(words)], 300)
    assert tokenizer.vocab[:5] == SPECIAL
    assert tokenizer.vocab_size == len(set(tokenizer.vocab)) == 300
    assert "the" in tokenizer.vocab
    assert "##京" not in tokenizer.vocab
    assert tokenizer.unk_id not in tokenizer.encode("the cat sat on the mat, 京都").ids
    cased = Tokenizer.train(["Cats " * 10], 30, do_lower_case=False)
    assert cased.encode("Cats").tokens == ["Cats"]
    assert cased.settings["do_lower_case"] is False


def test_fewer_tokens_than_asked_for_are_said():
    with pytest.warns(UserWarning, match="fewer than the 5000 asked for"):
        tokenizer = Tokenizer.train([TEXT], 5000)
    assert tokenizer.vocab_size < 5000
    with pytest.raises(UserError, match="no words"):
        Tokenizer.train(["", "  "], 100)
    with pytest.raises(UserError, match="too small"):
        Tokenizer.train([TEXT], 5)


def test_training_repeats_for_any_number_of_threads_and_any_hash_seed():
    program = (
        "from bertjax.data.tokenizer import Tokenizer; import random; r = random.Random(0);"
        "words = [''.join(r.choices('abcdefghijklmnop', k=r.randint(2, 9))) for _ in range(3000)];"
        "print(Tokenizer.train([' '.join(r.choices(words, k=300)) for _ in range(200)], 900)"
        ".fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads, seed in (("1", "0"), ("2", "1"), ("4", "2"))
    }
    assert len(found) == 1


def test_rare_words_are_dropped_in_bounded_memory(monkeypatch):
    from bertjax.data import vocabulary

    monkeypatch.setattr(vocabulary, "MAX_DISTINCT", 100)
    texts = [f"common common w{i}" for i in range(1000)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        words = vocabulary._count_words(texts, normalizers.BertNormalizer(), 100)
    assert words["common"] == 2000
    assert len(words) <= 101
    assert "dropped" in str(caught[0].message)


@pytest.mark.filterwarnings("ignore:the text gives")
def test_an_alphabet_beyond_the_vocabulary_is_said():
    with pytest.warns(UserWarning, match=r"room for the 46 most frequent of 500 characters"):
        tokenizer = Tokenizer.train([" ".join(map(chr, range(0x4E00, 0x4E00 + 500)))] * 2, 67)
    assert tokenizer.vocab_size <= 67


def test_what_is_wrong_with_a_vocabulary_names_its_file(tmp_path):
    (tmp_path / "v.txt").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"v\.txt: the vocabulary of 2 tokens has no \[UNK\]"):
        Tokenizer.load(tmp_path / "v.txt")
