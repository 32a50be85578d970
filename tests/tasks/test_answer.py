"""Answers are cut from the original text, windows hold every token, scores are the official."""

import json
import time

import numpy as np
import pytest
from helpers_finetune import evaluate, make, params_of, tokenizer, write

from bertjax.data.questions import Question
from bertjax.errors import UserError
from bertjax.tasks import spans, squad
from bertjax.tasks.answer import locate
from bertjax.tasks.spans import Answers, Span, Window

BROWN = {"text": "brown", "answer_start": 10}


def content(*questions: tuple, context: str = "the quick brown hello") -> str:
    """SQuAD JSON of (id, question, answers or None)."""
    qas = [
        {"id": i, "question": q} | ({} if answers is None else {"answers": answers})
        for i, q, answers in questions
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})


def task_of(tmp_path, train: str, validation: str | None = None, **values):
    values |= {"data__train": write(tmp_path, "train.json", train), "train__steps": 2}
    if validation is not None:
        values["data__validation"] = write(tmp_path, "dev.json", validation)
    return make("answer", tmp_path, **values)


def perfect(task, split: str) -> dict[str, np.ndarray]:
    """Outputs that point at each row's target."""
    rows = task._rows[split]
    logits = {name: np.full((len(rows), 32), -9.0, np.float32) for name in ("start", "end")}
    for name in logits:
        logits[name][np.arange(len(rows)), rows.by_row[name]] = 9.0
    return logits


@pytest.mark.parametrize(
    "context",
    [
        "the quick\u00a0brown hello", "the quick\u3000brown hello", "the quick\u202fbrown hello",
        "the quick  brown hello", "the quick\t\nbrown hello", "the qu\u200bick brown hello",
        "the (brown) hello", "the brownab hello",
    ],
)  # fmt: skip
def test_an_answer_is_cut_from_the_original_text(tmp_path, context):
    answer = {"text": "brown", "answer_start": context.index("brown")}
    data = content(("1", "the world ?", [answer]), context=context)
    task = task_of(tmp_path, data, data)
    rows = task._rows["validation"]
    (ids,), (start,), (end,) = rows.ids, rows.by_row["start"], rows.by_row["end"]
    assert tokenizer().tokens(ids[start : end + 1]) == ["brown"]
    outputs = perfect(task, "validation")
    (row,) = task.predictions("validation", outputs)
    assert row["prediction"] == "brown" and context[row["start"] : row["end"]] == "brown"
    assert task.score("validation", {"loss": 0.0}, outputs)["exact_match"] == 100


# Windows


def windows(question: int, context: int, size: int, overlap: int, max_question: int = 64):
    return spans.question_windows(
        [7] * question, list(range(100, 100 + context)), size=size, max_question=max_question,
        overlap=overlap, cls_id=1, sep_id=2,
    )  # fmt: skip


def test_windows_share_what_the_overlap_says():
    found = windows(2, 12, 12, 3)
    assert [(w.start, w.count) for w in found] == [(0, 7), (4, 7), (8, 4)]
    assert found[1].ids == [1, 7, 7, 2, *range(104, 111), 2] and found[1].first == 4


def test_a_question_that_fills_the_window_is_refused_at_once():
    began = time.monotonic()
    with pytest.raises(UserError, match=r"data\.seq_length=16 .*data\.max_question_tokens=64"):
        windows(20, 12, 16, 3)
    assert time.monotonic() - began < 1
    found = windows(20, 12, 16, 3, max_question=8)
    assert {t for w in found for t in w.ids} >= set(range(100, 112))


def test_an_overlap_larger_than_the_window_ends():
    found = windows(2, 40, 12, 128)
    assert {t for w in found for t in w.ids} >= set(range(100, 140)) and len(found) < 40


def test_windows_without_the_whole_answer_point_at_cls():
    window = windows(2, 12, 12, 3)[1]  # context tokens 4 to 10 from column 4
    assert spans.target_columns(window, (5, 6)) == (5, 6)
    assert spans.target_columns(window, (3, 5)) == (0, 0)
    assert spans.target_columns(window, (10, 11)) == (0, 0)
    assert spans.target_columns(window, None) == (0, 0)


# Answers


def answers(starts, ends, n_best=20, max_tokens=30, **options) -> Answers:
    """Of one window with a context of four tokens, 'a b c d', from column 3."""
    window = Window([1, 7, 2, 10, 11, 12, 13, 2], 3, 0, 4)
    offsets = [(0, 1), (2, 3), (4, 5), (6, 7)]
    return spans.best_answers(
        [window], np.array([starts], float), np.array([ends], float), offsets,
        n_best=n_best, max_tokens=max_tokens,
    )  # fmt: skip


def test_best_answers_stay_inside_the_context_and_in_order():
    found = answers([9, 99, 9, 0, 2, 0, 5, 9], [9, 99, 9, 3, 0, 1, 0, 9])
    assert (found.spans[0].begin, found.spans[0].end) == (
        6,
        7,
    )  # start after which no end is better
    assert found.null_score == 18
    assert all(span.begin < span.end for span in found.spans)
    every = {(a, b): [0, 2, 0, 5][a] + [3, 0, 1, 0][b] for a in range(4) for b in range(a, 4)}
    assert [span.score for span in found.spans] == sorted(every.values(), reverse=True)


def test_longest_answer():
    found = answers([0] * 3 + [9, 0, 0, 0, 0], [0] * 6 + [9, 0], max_tokens=2)
    assert max(span.end - span.begin for span in found.spans) <= 3  # two tokens, "a b"


def test_a_span_in_two_windows_is_one_candidate_with_its_better_score():
    two = [Window([1, 7, 2, 10, 11, 2], 3, 0, 2), Window([1, 7, 2, 11, 12, 2], 3, 1, 2)]
    logits = np.array([[3, 0, 0, 0, 1, 0], [1, 0, 0, 4, 0, 0.0]])
    found = spans.best_answers(
        two, logits, logits, [(0, 1), (2, 3), (4, 5)], n_best=5, max_tokens=9
    )
    assert found.null_score == 2.0  # the least of 6 and 2
    best = found.spans[0]
    assert (best.begin, best.end, best.score) == (2, 3, 8.0)
    assert len({(s.begin, s.end) for s in found.spans}) == len(found.spans)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.0, ""), (0.5, "brown"), (1.0, "brown"), (0.49, "")]
)
def test_null_threshold(threshold, expected):
    found = Answers([Span(10, 15, 1.5)], 2.0)
    chosen = spans.choose(found, "the quick brown", unanswerable=True, threshold=threshold)
    assert chosen["answer"] == expected
    assert 0 < chosen["score"] < 1
    always = spans.choose(found, "the quick brown", unanswerable=False, threshold=threshold)
    assert always["answer"] == "brown" and always["score"] == 1.0


def test_no_candidate_is_no_answer_and_no_crash():
    for unanswerable in (True, False):
        chosen = spans.choose(Answers([], 1.0), "", unanswerable=unanswerable, threshold=0.0)
        assert chosen == {"answer": "", "score": 1.0, "start": None, "end": None}


def test_answers_that_stand_elsewhere_or_nowhere():
    context = "red blue red"
    assert locate(Question("1", "q", context, (("red", 9),))) == (9, 12)
    assert locate(Question("1", "q", context, (("red", 8),))) == (9, 12)
    assert locate(Question("1", "q", context, (("red", 0),))) == (0, 3)
    assert locate(Question("1", "q", context, (("green", 0),))) is None


# Scores


def test_squad_scores_by_hand():
    assert squad.exact_match("The  Brown, fox!", "brown fox") == 1
    assert squad.f1("the quick brown fox", "a brown fox jumps") == pytest.approx(2 / 3)
    assert squad.f1("", "") == 1 and squad.f1("x", "") == 0 and squad.f1("red", "blue") == 0
    exact, f1 = squad.best_scores(["brown fox", "", "x"], [["fox", "brown fox"], [], []])
    assert exact.tolist() == [1, 1, 0] and f1.tolist() == [1, 1, 0]


def test_cmrc_scores_by_hand():
    assert squad.cmrc_exact_match("北京，", "北京") == 1
    # 北京市 against 在北京: the common run 北京 has 2 of 3 and 2 of 3 characters.
    assert squad.cmrc_f1("北京市", "在北京") == pytest.approx(2 / 3)
    assert squad.cmrc_f1("1998 年", "1998年") == 1.0
    assert squad.cmrc_f1("上海", "北京") == 0.0
    assert squad.cmrc_f1("", "") == squad.cmrc_exact_match("", "") == 1.0


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        # Marks that are not of CMRC's list count: . , % and brackets of ASCII.
        ("3.5", "35", 0, 0.0), ("15亿元", "1.5亿元", 0, 2 * 2 / 6), ("5%", "5", 0, 2 / 3),
        ("张三李四", "张三(李四)", 0, 2 * 2 / 10), ("，", "。", 1, 0.0), ("“张三”", "张三", 1, 1.0),
        ("2008-08-08", "20080808", 1, 1.0),
    ],
)  # fmt: skip
def test_cmrc_removes_the_marks_of_its_list_alone(prediction, answer, exact, f1):
    assert squad.cmrc_exact_match(prediction, answer) == exact
    assert squad.cmrc_f1(prediction, answer) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("1,000元", ["1,000", "元"]), ("a,b", ["a", ",", "b"]), ("U.S.", ["u.s", "."]),
        ("约$5.", ["约", "$", "5", "."]), ("Dr. X", ["dr.", "x"]), ("[1]…", ["[", "1", "]", "…"]),
    ],
)  # fmt: skip
def test_cmrc_words_of_other_scripts(text, segments):
    """As nltk's NLTKWordTokenizer cuts what lies between ideographs."""
    assert squad.cmrc_segments(text) == segments


@pytest.mark.parity
def test_squad_scores_equal_torchmetrics():
    metrics = pytest.importorskip("torchmetrics.functional.text")
    draw = np.random.default_rng(0)
    words = ["the", "a", "Brown", "fox,", "U.S.", "it's", "--", "An", "quick", "É", "", "the the"]

    def text() -> str:
        return " ".join(draw.choice(words, draw.integers(0, 5)))

    for _ in range(300):
        a, b = text(), text()
        found = metrics.squad(
            [{"prediction_text": a, "id": "1"}],
            [{"answers": {"answer_start": [0], "text": [b]}, "id": "1"}],
        )
        assert 100 * squad.exact_match(a, b) == found["exact_match"]
        if squad.normalize(a) and squad.normalize(b):  # version 1.1 has no rule for empty texts
            assert 100 * squad.f1(a, b) == pytest.approx(float(found["f1"]))


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_is_the_best_of_all(seed):
    draw = np.random.default_rng(seed)
    leads, has = draw.integers(-4, 5, 30).astype(float), draw.random(30) < 0.6
    scores = np.where(has, draw.random(30), 0.0)

    def value(threshold: float) -> float:
        return float(np.mean(np.where(leads > threshold, ~has, scores * has)))

    best, threshold = squad.best_threshold(leads, scores, has)
    assert best == pytest.approx(max(value(t) for t in (*leads, -99)))
    assert value(threshold) == pytest.approx(best)


# The task


def test_other_answers_to_the_same_questions_are_other_held_out_data(tmp_path):
    one = content(("1", "the world ?", [BROWN]))
    two = content(("1", "the world ?", [BROWN, {"text": "hello", "answer_start": 16}]))
    found = [task_of(tmp_path, one, held).artifacts()["held_out"] for held in (one, two, one)]
    assert found[0] == found[2] != found[1]


def test_versions_with_and_without_unanswerable_questions(tmp_path):
    data = content(("1", "who ?", [BROWN]), ("2", "what ?", []))
    task = task_of(tmp_path, data, data)
    assert task.unanswerable and task._rows["train"].by_row["start"][1] == 0
    figures = task.score("validation", {"loss": 0.0}, perfect(task, "validation"))
    assert figures["f1"] == 100 and figures["best_f1"] == 100
    assert not task_of(tmp_path, content(("1", "who ?", [BROWN]))).unanswerable


def test_whether_there_may_be_no_answer_is_for_the_training_data_to_say(tmp_path, capsys):
    every, some = content(("1", "who ?", [BROWN])), content(("1", "a ?", [BROWN]), ("2", "b ?", []))
    hidden = write(tmp_path, "hidden.json", content(("1", "who ?", []), ("2", "what ?", [])))
    task = task_of(tmp_path, every, every, data__test=hidden)
    assert not task.unanswerable and "best_f1" not in task.figures
    assert task.score("test", {"loss": 0.0}, perfect(task, "test")) == {"examples": 2.0}
    assert task_of(tmp_path, some, every, data__test=hidden).unanswerable
    assert not task_of(tmp_path, every, some).unanswerable
    assert "1 questions of validation have no answer" in capsys.readouterr().err
    assert task_of(tmp_path, every, every, data__unanswerable="yes").unanswerable
    # Of the whole file, whatever is drawn of it.
    for seed in range(3):
        assert task_of(tmp_path, some, data__limit=1, seed=seed).unanswerable
    probes = write(tmp_path, "probes.jsonl", json.dumps(
        {"id": "1", "question": "who ?", "context": "the quick", "answers": {"text": []}}
    ))  # fmt: skip
    task = task_of(tmp_path, some, data__validation=probes)
    assert task.score("validation", {"loss": 0.0}, perfect(task, "validation"))["f1"] == 100
    # An evaluation takes the run's config, and may come without the training data.
    trained = task_of(tmp_path, some)
    alone = make("answer", tmp_path, data__test=hidden,
                 data__unanswerable=trained.config.data.unanswerable)  # fmt: skip
    assert alone.unanswerable


def test_all_of_a_file_may_be_impossible(tmp_path):
    """A file that says so in as many words is no hidden test set."""
    qa = {"id": "1", "question": "who ?", "answers": [], "is_impossible": True}
    data = {"data": [{"paragraphs": [{"context": "the quick", "qas": [qa]}]}]}
    test = write(tmp_path, "test.json", json.dumps(data))
    some = content(("1", "a ?", [BROWN]), ("2", "b ?", []))
    task = task_of(tmp_path, some, data__test=test)
    assert task.score("test", {"loss": 0.0}, perfect(task, "test"))["exact_match"] == 100


def test_evaluation_and_files(tmp_path):
    data = content(*((str(i), "who ?", [BROWN]) for i in range(5)))
    task = task_of(
        tmp_path, data, data, data__test=write(tmp_path, "t.json", content(("9", "what ?", None)))
    )
    params = params_of(task)
    figures = {split: evaluate(task, split, params) for split in task.eval_splits}
    assert figures["validation"]["examples"] == 5 and figures["test"] == {"examples": 1}
    task.finish(str(tmp_path / "out"), params, figures)
    official = json.loads((tmp_path / "out/predictions/validation.official.json").read_text())
    assert list(official) == [str(i) for i in range(5)]
    (row,) = map(json.loads, (tmp_path / "out/predictions/test.jsonl").read_text().splitlines())
    assert row["label"] is None and row["prediction"] in "the quick brown hello"


def test_padding_changes_no_loss(tmp_path):
    import jax
    from helpers_finetune import batches_of_an_epoch, mean_losses

    task = task_of(tmp_path, content(("1", "who ?", [BROWN])), data__batch_size=1)
    (batch,) = batches_of_an_epoch(task)
    longer = {
        name: np.pad(value, ((0, 0), (0, 8))) if value.ndim == 2 and name != "example" else value
        for name, value in batch.items()
    }
    loss, params = jax.jit(mean_losses(task)), params_of(task)
    assert float(loss(params, batch)["loss"]) == pytest.approx(
        float(loss(params, longer)["loss"]), rel=1e-6
    )


def test_bad_input_is_one_sentence_or_counted(tmp_path, capsys):
    gone = {"text": "purple", "answer_start": 0}
    task = task_of(tmp_path, content(("1", "who ?", [gone]), ("2", "who ?", [BROWN])))
    assert "1 questions are left out" in capsys.readouterr().err
    assert task._rows["train"].example.tolist() == [1]
    blanks = {"text": " brown\n", "answer_start": 9}
    task_of(tmp_path, content(("1", "who ?", [blanks])))
    said = capsys.readouterr().err
    assert "left out" not in said and "elsewhere" not in said
    moved = {"text": "brown", "answer_start": 3}
    task_of(tmp_path, content(("1", "who ?", [moved])))
    assert "1 answers stand elsewhere" in capsys.readouterr().err
    wide = {"text": "the " * 40, "answer_start": 0}
    context = "the " * 40 + "brown hello"
    short = {"text": "brown", "answer_start": 160}
    task_of(tmp_path, content(("1", "who ?", [wide]), ("2", "who ?", [short]), context=context))
    assert "1 questions are left out: no window" in capsys.readouterr().err
    for data, words in (
        (content(("1", "who ?", [gone])), "no question has its answer"),
        (content(("1", "who ?", [BROWN]), context=" "), "empty"),
        (content(("1", " ", [BROWN])), "empty"),
        (content(("1", "who ?", None)), "no answers"),
        (content(("1", " ".join(["who"] * 40), [BROWN])), "max_question_tokens"),
    ):
        with pytest.raises(UserError, match=words):
            task_of(tmp_path, data)
