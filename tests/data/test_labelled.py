"""Labelled files: rows are neither lost nor invented, and every decision is said."""

import json

import pytest

from bertjax.data.questions import read_questions
from bertjax.data.sentences import read_sentences
from bertjax.data.tables import looks_like_header, read_table
from bertjax.errors import UserError


def file(tmp_path, name: str, content: str | bytes):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def message(function, *arguments, **options) -> str:
    with pytest.raises(UserError) as error:
        function(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


QUOTES = '1\t"open quote at start\tx\n0\tmid\ty\n1\tlast\tz\n'


@pytest.mark.parametrize("content", [QUOTES, QUOTES.replace("\n", "\r\n"), QUOTES.rstrip("\n")])
def test_quotes_and_line_ends_cost_no_row(tmp_path, content):
    table = read_table(file(tmp_path, "a.tsv", content), header="no")
    assert table.column("1", "data.text_column") == ['"open quote at start', "mid", "last"]
    assert table.column("-1", "data.label_column") == ["x", "y", "z"]


def test_line_separators_of_unicode_are_text(tmp_path):
    table = read_table(file(tmp_path, "a.tsv", "a\u2028b\t1\nc\x85d\t0\n"), header="no")
    assert [row[0] for row in table.rows] == ["a\u2028b", "c\x85d"]


def test_a_first_row_whose_label_is_the_only_one_is_no_header(tmp_path):
    rows = "great film\tneutral\n" + "bad film\tneg\ngood film\tpos\n" * 5
    path = file(tmp_path, "a.tsv", rows)
    assert "data.header=yes or no" in message(read_table, path)
    assert len(read_table(path, header="no").rows) == 11
    assert len(read_table(path, labels=["neutral", "neg", "pos"]).rows) == 11
    assert len(read_table(path, named=["great film"]).rows) == 10
    assert len(read_table(file(tmp_path, "b.tsv", rows.replace("great film", "review"))).rows) == 10
    scores = "Review text\tOur score\n" + "bad film\t1.5\ngood film\t4\n" * 5
    assert len(read_table(file(tmp_path, "c.tsv", scores)).rows) == 10


def test_a_tab_inside_a_text_makes_no_class(tmp_path):
    table = read_table(file(tmp_path, "a.tsv", "a film\tpos\nc\tfilm\tneg\n"), header="no")
    text = message(table.column, "1", "data.label_column")
    assert "line 2" in text and "3 fields" in text
    assert table.column("0", "data.text_column") == ["a film", "c"]
    table = read_table(file(tmp_path, "b.tsv", "a film\tpos\nc\tneg\t\n"), header="no")
    assert table.column("1", "data.label_column") == ["pos", "neg"]  # empty cells are nothing


def test_json_files_of_objects(tmp_path):
    lines = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'
    listed = "[" + lines.strip().replace("\n", ",") + "]"
    for name, content in (("a.json", lines), ("b.json", listed)):
        table = read_table(file(tmp_path, name, content))
        assert table.column("label", "data.label_column") == ["x", "y"]
    assert "list of JSON objects" in message(read_table, file(tmp_path, "c.json", "[1, 2]"))
    text = message(read_questions, file(tmp_path, "d.json", lines))
    assert "is a .jsonl" in text


def test_semicolons_are_named(tmp_path):
    table = read_table(file(tmp_path, "a.csv", "text;label\na;1\nb;0\n"))
    assert "semicolons" in message(table.column, "label", "data.label_column")


def test_blank_lines_are_counted(tmp_path):
    table = read_table(file(tmp_path, "a.tsv", "a\t1\n\nb\t0\n\n"), header="no")
    assert len(table.rows) == 2 and table.places == ["line 1", "line 3"]
    assert any("2 blank lines" in note for note in table.notes)


def test_csv_fields_may_hold_commas_quotes_and_lines(tmp_path):
    content = 'text,label\n"a, ""b""\nc",1\nd,0\n'
    table = read_table(file(tmp_path, "a.csv", content))
    assert table.column("text", "data.text_column") == ['a, "b"\nc', "d"]
    assert table.places == ["line 2", "line 4"]
    assert "line 2" in message(read_table, file(tmp_path, "b.csv", 'a,b\n"c,d\n'))


def test_a_short_row_is_named_by_its_line(tmp_path):
    path = file(tmp_path, "a.tsv", "text\tlabel\na\t1\nb\n")
    table = read_table(path)
    text = message(table.column, "label", "data.label_column")
    assert "line 3" in text and "'label'" in text
    assert table.column("text", "data.text_column") == ["a", "b"]


def test_a_missing_column_lists_those_present(tmp_path):
    table = read_table(file(tmp_path, "a.tsv", "sentence\tlabel\na\t1\nb\t0\n"))
    text = message(table.column, "text", "data.text_column")
    assert "'text'" in text and "sentence, label" in text and "config.data.text_column" in text


def test_longer_rows_are_said(tmp_path):
    table = read_table(file(tmp_path, "a.tsv", "text\tlabel\na\t1\nb\t0\tc\n"))
    assert any("1 rows have more than 2 fields" in note for note in table.notes)


@pytest.mark.parametrize(
    ("first", "others", "expected"),
    [
        (["sentence", "label"], [["a b", "1"]], True),
        (["review", "stars"], [["bad", "1"], ["good", "5"]], True),  # a numeric column
        (["a fine film", "1"], [["dull", "0"]], False),  # a number is no name
        (["fine", "good"], [["dull", "bad"], ["nice", "good"]], False),
        (["gj04", "1", "", "He left."], [], False),
        # Indonesian, and a question: usual names of columns, but values of these.
        (["selamat pagi", "id"], [["good morning", "en"], ["apa kabar", "id"]], False),
        (["who are you", "question"], [["i am", "statement"], ["who", "question"]], False),
        (["text", "label"], [["text", "x"], ["a", "y"]], True),
        (["what a wonderful day it was", "good"], [["dull", "bad"]] * 9, False),
        (["kommentar", "urteil"], [[f"t{i}", "gut" if i % 2 else "nein"] for i in range(9)], True),
    ],
)  # fmt: skip
def test_header_rule(first, others, expected):
    assert looks_like_header(first, others) is expected


def test_header_decision_is_said_and_can_be_overruled(tmp_path):
    path = file(tmp_path, "a.tsv", "sentence\tlabel\na\t1\nb\t0\n")
    assert len(read_table(path).rows) == 2
    assert len(read_table(path, header="no").rows) == 3
    plain = file(tmp_path, "b.tsv", "a\tx\nb\ty\n")
    assert len(read_table(plain).rows) == 2
    assert len(read_table(plain, header="yes").rows) == 1
    assert len(read_table(plain, named=["a", "x"]).rows) == 1  # columns asked for by name
    assert any("header" in note for note in read_table(path).notes)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("en/sst2/train.tsv", 6920), ("en/sst2/dev.tsv", 872), ("en/sst2/test.tsv", 1821),
        ("en/glue/CoLA/train.tsv", 7250), ("en/glue/CoLA/test.tsv", 1063),
        ("en/glue/RTE/train.tsv", 2127), ("en/glue/RTE/dev.tsv", 277),
        ("en/stsb/stsb-en-train.csv", 5749), ("zh/chnsenticorp/train.tsv", 9600),
    ],
)  # fmt: skip
def test_public_files_lose_no_first_row(real_data, name, rows):
    assert len(read_table(str(real_data / name)).rows) == rows


def test_unreadable_files_are_named(tmp_path):
    assert "nowhere.tsv" in message(read_table, str(tmp_path / "nowhere.tsv"))
    assert "byte 1" in message(read_table, file(tmp_path, "a.tsv", b"a\xff\t1\n"))
    assert "no row" in message(read_table, file(tmp_path, "b.tsv", ""))
    assert "line 2" in message(read_table, file(tmp_path, "c.jsonl", '{"a": 1}\n{\n'))
    assert "object" in message(read_table, file(tmp_path, "d.jsonl", "[1]\n"))


def test_jsonl(tmp_path):
    path = file(
        tmp_path, "a.jsonl", '{"text": "a", "label": ["x"]}\n\n{"text": "b", "label": []}\n'
    )
    table = read_table(path)
    assert table.columns == ("text", "label") and table.places == ["line 1", "line 3"]
    assert table.column("label", "data.label_column") == [["x"], []]
    gap = file(tmp_path, "b.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n')
    assert "line 2" in message(read_table, gap)


def test_a_few_rows_are_read_as_the_training_file_is(tmp_path):
    train = read_table(file(tmp_path, "a.tsv", "a\t1\nb\t0\nc\t1\n"))
    few = file(tmp_path, "b.tsv", "fine\tgood\n" + "x\tbad\n" * 4)
    assert len(read_table(few).rows) == 4  # alone it looks like a header
    assert len(read_table(few, like=train).rows) == 5
    titled = read_table(file(tmp_path, "c.tsv", "review\tverdict\na\t1\nb\t0\nc\t1\nd\t1\n"))
    assert titled.named
    one = file(tmp_path, "d.tsv", "review\tverdict\na\t1\n")
    assert len(read_table(one, like=titled).rows) == 1


# CoNLL


def test_a_line_of_white_space_ends_a_sentence(tmp_path):
    path = file(tmp_path, "a.conll", "he\tO\nran\tO\n\t\nshe\tO\n \nsat\tO\n\n\nup\tO\n")
    sentences, _ = read_sentences(path, "0", "-1")
    assert [s.words for s in sentences] == [("he", "ran"), ("she",), ("sat",), ("up",)]
    assert [s.place for s in sentences] == ["line 1", "line 4", "line 6", "line 9"]


def test_sentences_of_wnut17(real_data):
    path = str(real_data / "en/wnut17/wnut17train.conll")
    sentences, _ = read_sentences(path, "0", "-1")
    assert len(sentences) == 3394


def test_conll_columns_documents_and_comments(tmp_path):
    content = "-DOCSTART- -X- O\n\nJim NNP B-PER\nran VBD O\n\n-DOCSTART- -X- O\n\n# NN O\n#\n"
    sentences, notes = read_sentences(file(tmp_path, "a.txt", content), "0", "-1")
    assert [s.labels for s in sentences] == [("B-PER", "O"), ("O",)]
    assert [s.document for s in sentences] == [1, 2]
    assert sentences[1].words == ("#",)  # a word, since it has its columns
    assert any("1 comment" in note for note in notes)
    parts, _ = read_sentences(file(tmp_path, "a.txt", content), "0", "1")
    assert parts[0].labels == ("NNP", "VBD")
    assert "5" in message(read_sentences, file(tmp_path, "a.txt", content), "0", "5")


def test_words_that_look_like_space_keep_their_labels(tmp_path):
    path = file(tmp_path, "a.conll", "he\tO\n\u200b\tB-X\n\u00a0\tB-Y\nworld\tO\n")
    (sentence,), _ = read_sentences(path, "0", "-1")
    assert sentence.words == ("he", "\u200b", "\u00a0", "world")
    assert sentence.labels == ("O", "B-X", "B-Y", "O")


def test_comments_before_the_first_word(tmp_path):
    tabs = "# newdoc\n# text = he ran\nhe\tO\nran\tO\n"
    sentences, notes = read_sentences(file(tmp_path, "a.conllu", tabs), "0", "-1")
    assert [(s.words, s.labels) for s in sentences] == [(("he", "ran"), ("O", "O"))]
    assert any("2 comment" in note for note in notes)
    blanks = "# my corpus v1\nhe O\n#tag O\n"
    (sentence,), _ = read_sentences(file(tmp_path, "b.conll", blanks), "0", "-1")
    assert sentence.words == ("he", "#tag")
    (sentence,), _ = read_sentences(file(tmp_path, "c.txt", "#tag\nran\n"), "0", "-1")
    assert sentence.words == ("#tag", "ran") and sentence.labels is None


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("# id 5\tdomain=train\nhe _ _ O\njim _ _ B-P\n\n", [("O", "B-P")]),
        ("# doc1\nhe O\njim B-P\n\n# doc2\nhe O\n", [("O", "B-P"), ("O",)]),
        ("he O\n# O\n\n# O\n", [("O", "O"), ("O",)]),  # words, by their labels
        ("# #\nhe PRP\n", [("#", "PRP")]),  # the tag of the word # in the Penn Treebank
        ("-DOCSTART- -X- O O\n\nhe\tO\njim\tB-P\n", [("O", "B-P")]),
    ],
)
def test_comments_and_document_lines_are_no_words(tmp_path, content, labels):
    sentences, _ = read_sentences(file(tmp_path, "a.conll", content), "0", "-1")
    assert [s.labels for s in sentences] == labels


def test_ranges_and_empty_nodes_of_conllu_are_no_words(tmp_path):
    rows = ["1-2 vamonos _ _", "1 vamos ir VERB", "2 nos nosotros PRON", "2.1 x x X"]
    content = "".join("\t".join([*row.split(), *"______"]) + "\n" for row in rows)
    (sentence,), notes = read_sentences(file(tmp_path, "a.conllu", content), "1", "3")
    assert sentence.words == ("vamos", "nos") and sentence.labels == ("VERB", "PRON")
    assert any("2 ranges" in note for note in notes)
    other = content.replace("1\tvamos", "we\tvamos")  # of ten columns, but not CoNLL-U's
    (sentence,), _ = read_sentences(file(tmp_path, "b.txt", other), "0", "3")
    assert sentence.words == ("1-2", "we", "2", "2.1")


@pytest.mark.parametrize(
    ("content", "line"),
    [("he O\nNew York B-LOC\n", 2), ("he O\nran V O\n", 2), ("he\tO\nran\t\n", 2)],
)
def test_a_line_with_columns_of_its_own_is_named(tmp_path, content, line):
    assert f"line {line}" in message(read_sentences, file(tmp_path, "a", content), "0", "-1")


def test_a_line_without_its_label_is_named(tmp_path):
    text = message(read_sentences, file(tmp_path, "a.conll", "he O\nran\n"), "0", "-1")
    assert "line 2" in text
    sentences, _ = read_sentences(file(tmp_path, "b.conll", "he\nran\n"), "0", "-1")
    assert sentences[0].labels is None


def test_a_first_line_that_names_its_columns_is_no_word(tmp_path):
    found, notes = read_sentences(file(tmp_path, "a.tsv", "Word\tTag\nJim\tB-PER\n"), "0", "-1")
    assert [s.words for s in found] == [("Jim",)] and "1 header line left out" in notes[0] + notes[
        1
    ]
    found, _ = read_sentences(file(tmp_path, "b.tsv", "word\tO\nJim\tB-PER\n"), "0", "-1")
    assert found[0].words == ("word", "Jim")


def test_the_numbers_of_conllu_are_no_words(tmp_path):
    line = "1\tJim\tJim\tPROPN\tNNP\t_\t0\troot\t_\tSpaceAfter=No\n"
    path = file(tmp_path, "a.conllu", f"# sent_id = 1\n{line}\n")
    text = message(read_sentences, path, "0", "-1")
    assert "text_column=1" in text and "label_column=3" in text
    (found,), _ = read_sentences(path, "1", "3")
    assert found.words == ("Jim",) and found.labels == ("PROPN",)


def test_words_and_labels_that_are_none(tmp_path):
    path = file(tmp_path, "a.jsonl", '{"words": ["Jim", null], "labels": ["O", "O"]}\n')
    assert "line 1: word 2 is null" in message(read_sentences, path, "words", "labels")
    path = file(tmp_path, "b.jsonl", '{"words": ["Jim", "is"], "labels": ["O", ""]}\n')
    assert "line 1: word 2 has an empty label" in message(read_sentences, path, "words", "labels")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_half_a_surrogate_pair_is_named(tmp_path, name):
    good = '{"text": "good \\ud83d\\ude00", "label": "x"}'
    table = read_table(file(tmp_path, name, good))
    assert table.rows[0][0] == "good \U0001f600"
    text = message(read_table, file(tmp_path, name, good.replace("\\ude00", " film")))
    assert "\\ud83d" in text and name in text
    paragraph = '{"context": "a \\ud83d", "qas": [{"id": "1", "question": "q"}]}'
    squad = f'{{"data": [{{"paragraphs": [{paragraph}]}}]}}'
    assert "\\ud83d" in message(read_questions, file(tmp_path, "q.json", squad))


@pytest.mark.parametrize(
    "flag, answerable", [("false", True), ("true", False), (0, True), (1.0, False), ("", True)]
)
def test_truth_values_of_squad_that_are_texts(tmp_path, flag, answerable):
    qa = {"id": "1", "question": "q", "is_impossible": flag,
          "answers": [{"text": "fox", "answer_start": 2}]}  # fmt: skip
    row = {"context": "a fox"} | qa
    content = {"data": [{"paragraphs": [{"context": "a fox", "qas": [qa]}]}]}
    for path in (
        file(tmp_path, "a.json", json.dumps(content)), file(tmp_path, "a.jsonl", json.dumps(row)),
    ):  # fmt: skip
        (question,), _ = read_questions(path)
        assert question.impossible != answerable
        assert question.answers == ((("fox", 2),) if answerable else ())
    path = file(tmp_path, "b.json", json.dumps(content).replace(json.dumps(flag), '"perhaps"'))
    assert "perhaps" in message(read_questions, path)
    path = file(tmp_path, "b.jsonl", json.dumps(row | {"is_impossible": "perhaps"}))
    assert "line 1: is_impossible 'perhaps'" in message(read_questions, path)


def test_empty_answers_are_none_and_answers_must_be_lists(tmp_path):
    row = {"question": "q", "context": "a fox", "answers": {"text": [""], "answer_start": [-1]}}
    (question,), notes = read_questions(file(tmp_path, "a.jsonl", json.dumps(row)))
    assert question.answers == () and question.labelled and "1 of them without" in notes[0]
    row["answers"] = {"text": "fox"}
    path = file(tmp_path, "b.jsonl", json.dumps(row))
    assert "line 1" in message(read_questions, path)


def test_jsonl_sentences(tmp_path):
    path = file(tmp_path, "a.jsonl", '{"words": ["a", "b"], "labels": ["O", "X"]}\n')
    (sentence,), _ = read_sentences(path, "words", "labels")
    assert sentence.words == ("a", "b") and sentence.labels == ("O", "X")
    bad = file(tmp_path, "b.jsonl", '{"words": ["a", "b"], "labels": ["O"]}\n')
    assert "line 1" in message(read_sentences, bad, "words", "labels")


# SQuAD


def squad(*qas: dict) -> str:
    paragraph = {"context": "the quick brown hello", "qas": list(qas)}
    return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})


def test_squad_of_both_versions_and_without_answers(tmp_path):
    answer = {"text": "brown", "answer_start": 10}
    path = file(tmp_path, "a.json", squad(
        {"id": "1", "question": "a?", "answers": [answer]},
        {"id": "2", "question": "b?", "answers": [], "is_impossible": True},
        {"id": "3", "question": "c?"},
    ))  # fmt: skip
    questions, notes = read_questions(path)
    assert [q.answers for q in questions] == [(("brown", 10),), (), ()]
    assert [q.labelled for q in questions] == [True, True, False]
    assert "1 of them without an answer" in notes[0]


def test_answers_to_what_is_impossible_are_left_out_and_counted(tmp_path):
    qa = {"id": "7", "question": "b?", "answers": [{"text": "brown", "answer_start": 10}],
          "is_impossible": True}  # fmt: skip
    (question,), notes = read_questions(file(tmp_path, "a.json", squad(qa)))
    assert question.answers == () and "1 of them without an answer" in notes[0]
    assert "warning" in notes[1] and "1 questions are marked is_impossible" in notes[1]


def test_a_row_a_question_in_a_json_file(tmp_path):
    """As Dataset.to_json and the scripts of transformers have it."""
    answers = {"text": ["fox"], "answer_start": [2]}
    rows = [{"id": "1", "question": "who?", "context": "a fox", "answers": answers}]
    for number, content in enumerate((rows, {"data": rows})):
        (question,), _ = read_questions(file(tmp_path, f"{number}.json", json.dumps(content)))
        assert question.answers == (("fox", 2),)
    bad = json.dumps([{"context_text": "a fox", "qas": []}])
    assert ".jsonl with question, context" in message(read_questions, file(tmp_path, "b.json", bad))


def test_labelled_words_are_no_csv(tmp_path):
    path = file(tmp_path, "a.csv", "Sentence #,Word,Tag\n1,jim,B-PER\n,slept,O\n")
    assert "no .csv: write a word and its label a line" in message(read_sentences, path, "0", "-1")


@pytest.mark.parametrize("label", ["-100", '"-100"'])
def test_marks_of_pieces_are_no_labels(tmp_path, label):
    path = file(tmp_path, "a.jsonl", f'{{"words": ["a", "b"], "tags": [1, {label}]}}\n')
    assert "line 1: -100 marks pieces" in message(read_sentences, path, "words", "tags")


def test_malformed_squad(tmp_path):
    assert "question" in message(read_questions, file(tmp_path, "a.json", squad({"id": "1"})))
    assert "JSON" in message(read_questions, file(tmp_path, "b.json", "{"))
    assert "no question" in message(read_questions, file(tmp_path, "c.json", squad()))


def test_public_squad_files(real_data):
    questions, _ = read_questions(str(real_data / "en/squad/v1.1-part.json"))
    assert len(questions) == 6936 and all(q.answers for q in questions)
    questions, _ = read_questions(str(real_data / "en/squad/v2.0-part.json"))
    assert len(questions) == 8559
