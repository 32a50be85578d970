"""The front doors convert and predict, run as programs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bertjax import cli, convert, interop, predict
from bertjax.errors import UserError
from bertjax.interop import workdir

sys.path.insert(0, str(Path(__file__).parent / "interop"))
from interop_models import published, same_trees, write_release


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Folders pretrained/ and classifier/."""
    root = tmp_path_factory.mktemp("models")
    interop.write_huggingface(root / "pretrained", published(("mlm", "nsp")))
    interop.write_huggingface(root / "classifier", published(("classifier",)))
    interop.write_huggingface(root / "tagger", published(("tagger",)))
    interop.write_huggingface(root / "reader", published(("span",)))
    return root


def ask(capsys, *arguments: str) -> list[dict]:
    """The JSON lines that predict prints."""
    assert predict.main(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]


def test_fill_mask(models, capsys) -> None:
    texts = ["[MASK]京是中国的首都", "the [MASK] [MASK]"]
    answers = ask(capsys, "fill-mask", f"--checkpoint={models}/pretrained", "--top_k=3", *texts)
    assert [answer["text"] for answer in answers] == texts
    assert [[len(mask) for mask in answer["masks"]] for answer in answers] == [[3], [3, 3]]
    assert set(answers[0]["masks"][0][0]) == {"token", "probability"}


def test_classify_a_file_in_order(models, capsys, tmp_path) -> None:
    texts = ["good", "bad dog " * 40, "the fox", "a"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    answers = ask(
        capsys, "classify", f"--checkpoint={models}/classifier", f"--file={tmp_path}/texts.txt"
    )
    assert [answer["text"] for answer in answers] == texts
    assert set(answers[0]["probabilities"]) == {"label 0", "label 1", "label 2"}
    paired = ask(
        capsys, "classify", f"--checkpoint={models}/classifier", "--pair=the dog", "good", "bad"
    )
    assert [answer["pair"] for answer in paired] == ["the dog"] * 2


def test_embed_writes_vectors(models, capsys, tmp_path) -> None:
    checkpoint = f"--checkpoint={models}/pretrained"
    answers = ask(capsys, "embed", checkpoint, "hello world", "the dog")
    vectors = np.array([answer["vector"] for answer in answers])
    assert vectors.shape == (2, 8)
    assert (
        ask(capsys, "embed", checkpoint, f"--out={tmp_path}/v.npz", "hello world", "the dog") == []
    )
    stored = np.load(tmp_path / "v.npz")
    np.testing.assert_allclose(stored["vectors"], vectors, atol=1e-6)
    assert stored["texts"].tolist() == ["hello world", "the dog"]
    (matrix,) = ask(capsys, "embed", checkpoint, "--cosine", "hello world", "the dog")
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    np.testing.assert_allclose(matrix["cosines"], [[1, cosine], [cosine, 1]], atol=1e-5)


def test_answer_several_questions(models, capsys) -> None:
    asked = ["--pair=is it good ?", "--pair=the dog ?"]
    answers = ask(capsys, "answer", f"--checkpoint={models}/reader", *asked, "the fox is not good")
    assert [answer["question"] for answer in answers] == ["is it good ?", "the dog ?"]
    assert set(answers[0]) == {"question", "answer", "score", "start", "end"}
    none = ["--unanswerable", "--null_threshold=-1e6"]  # no answer need not even lead
    answers = ask(capsys, "answer", f"--checkpoint={models}/reader", *asked, *none, "the fox")
    assert [answer["answer"] for answer in answers] == ["", ""]


def test_score(models, capsys) -> None:
    (answer,) = ask(capsys, "score", f"--checkpoint={models}/pretrained", "the dog")
    assert answer["tokens"] == 2 and answer["log_likelihood"] < 0


def test_tables_on_a_terminal(models, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for command, extra, expected in (
        ("fill-mask", ["the [MASK]"], "probability"),
        ("score", ["the dog"], "log-likelihood"),
        ("embed", ["the dog", "a fox"], "1.000"),
    ):
        predict.main([command, f"--checkpoint={models}/pretrained", *extra])
        out = capsys.readouterr().out
        assert expected in out and "{" not in out
    predict.main(["tag", f"--checkpoint={models}/tagger", "the fox"])
    assert "word" in capsys.readouterr().out
    predict.main(["classify", f"--checkpoint={models}/classifier", "[b]good[/b]"])
    assert "[b]good[/b]" in capsys.readouterr().out


def test_a_million_characters_are_read_in_windows(models, capsys) -> None:
    text = "the quick brown fox " * 50_000
    start = time.monotonic()
    (answer,) = ask(capsys, "classify", f"--checkpoint={models}/classifier", text)
    assert answer["text"] == text and time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "--checkpoint={m}/pretrained", ""], "text 1 is empty"),
        (["embed", "--checkpoint={m}/nowhere", "a"], "nowhere does not exist"),
        (["embed", "--checkpoint={m}/pretrained", "--file={m}/no", "a"], "give one of the two"),
        (["embed", "--checkpoint={m}/pretrained", "--file={m}/no"], "No such file"),
        (["embed", "--checkpoint={m}/pretrained", "--layers=x", "a"], "'x' is no list of layers"),
        (["embed", "--checkpoint={m}/pretrained", "--out={m}/no/v.npz", "a"], "there is no folder"),
        (["embed", "--checkpoint={m}/pretrained", "--step=3", "a"], "is no bertjax workdir"),
        (["classify", "--checkpoint={m}/pretrained", "a"], "no classifier head"),
        (
            ["classify", "--checkpoint={m}/classifier", "--pair=a", "--pair=b", "a", "b", "c"],
            "--pair was given 2 times for 3 texts",
        ),
        (["translate", "a"], "invalid choice: 'translate'"),
        ([], "COMMAND"),
    ],
)
def test_bad_questions(models, arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        predict.main([argument.format(m=models) for argument in arguments])


def test_every_line_is_json_or_there_is_none() -> None:
    with pytest.raises(UserError, match="not a finite number"):
        predict.show("classify", iter([{"text": "a", "value": float("nan")}]), as_json=True)


def test_json_for_an_output_of_few_characters(monkeypatch) -> None:
    answer = {"text": "京 \U0001f600 é"}
    for encoding in ("latin-1", "ascii", "utf-8"):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr("sys.stdout", out)
        predict.show("score", iter([answer]), as_json=True)
        assert json.loads(out.buffer.getvalue().decode(encoding)) == answer


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk(monkeypatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(UserError, match="standard output cannot be written: No space left"):
            predict.show("score", iter([{"text": "a"}]), as_json=True)
        monkeypatch.undo()
        with contextlib.suppress(OSError):  # what is left in the buffer
            full.close()


def test_the_reader_of_a_pipe_may_leave(models) -> None:
    """As in `predict ... | head -1`: no traceback, exit code 141."""
    command = [
        sys.executable,
        "-m",
        "bertjax.predict",
        "embed",
        f"--checkpoint={models}/pretrained",
    ]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **options) as process:
        process.stdin.write(b"the quick fox\n" * 4000)
        process.stdin.close()
        first = process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
    assert json.loads(first)["text"] == "the quick fox"
    assert process.returncode == 141 and "Traceback" not in errors


def test_a_long_run_says_how_far_it_is(monkeypatch, capsys) -> None:
    clock = iter([0.0, 5.0, 11.0, 12.0, 22.0, 30.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    progress = predict.Progress()
    for done in (64, 128, 192, 256, 320):
        progress(done, 320)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["128 of 320 rows, 11 s", "256 of 320 rows, 22 s"]


def test_texts_that_are_no_text(tmp_path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    with pytest.raises(UserError, match="is not UTF-8 at byte 3"):
        predict.read_texts([], str(tmp_path / "latin"))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UserError, match="holds no text"):
        predict.read_texts([], str(tmp_path / "empty"))
    with pytest.raises(UserError, match="text 2 of the arguments is not UTF-8"):
        predict.read_texts(["a", os.fsdecode(b"caf\xe9")], None)
    (tmp_path / "windows").write_bytes("\ufeffa\r\nb\u2028c".encode())
    assert predict.read_texts([], str(tmp_path / "windows")) == ["a", "b\u2028c"]


def program(name: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"bertjax.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_without_torch_tensorflow_and_transformers(models, tmp_path) -> None:
    """Import, prediction and export in a Python that cannot import those packages."""
    block = tmp_path / "block"
    block.mkdir()
    for name in ("torch", "tensorflow", "transformers"):
        (block / f"{name}.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(block), str(Path(predict.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    answer = program(
        "predict", "fill-mask", f"--checkpoint={models}/pretrained", input="the [MASK]\n",
        env=environment,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["text"] == "the [MASK]"
    answer = program(
        "convert", f"--from={models}/pretrained", f"--to={tmp_path}/out", env=environment
    )
    assert answer.returncode == 0, answer.stderr
    assert "39 of 39 encoder tensors loaded" in answer.stdout
    wrong = program("predict", "fill-mask", f"--checkpoint={tmp_path}", "a", env=environment)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and wrong.stdout == ""


def test_convert_in_a_circle(models, tmp_path, capsys) -> None:
    start = interop.read_checkpoint(str(models / "pretrained"))
    convert.main([f"--from={models}/pretrained", f"--to={tmp_path}/run", "--format=orbax"])
    convert.main([f"--from={tmp_path}/run", f"--to={tmp_path}/back"])
    out = capsys.readouterr().out
    assert out.count(f"parameter checksum {start.coverage.checksum}") == 4
    assert same_trees(interop.read_checkpoint(str(tmp_path / "back")).params, start.params)
    convert.main([f"--from={tmp_path}/run/checkpoints/0", f"--to={tmp_path}/more", "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["wrote"] == "BertForPreTraining" and summary["heads"] == ["mlm", "nsp"]


@pytest.mark.parametrize("form", ["huggingface", "orbax"])
def test_convert_without_the_heads(models, tmp_path, form) -> None:
    source = interop.read_checkpoint(f"{models}/classifier")
    convert.main([f"--from={models}/classifier", f"--to={tmp_path}/encoder", "--encoder_only",
                  f"--format={form}"])  # fmt: skip
    found = interop.read_checkpoint(f"{tmp_path}/encoder")
    assert found.heads == () and found.labels is None
    assert same_trees(found.params, {"bert": source.params["bert"]})


def test_convert_extends_a_vocabulary(models, tmp_path, capsys) -> None:
    (tmp_path / "words").write_text("foxing\n")
    convert.main(
        [f"--from={models}/pretrained", f"--to={tmp_path}/out", f"--extend_vocab={tmp_path}/words"]
    )
    assert "note: 1 words of" in capsys.readouterr().out
    assert interop.read_checkpoint(str(tmp_path / "out")).config["vocab_size"] == 33


def test_convert_refuses(models, tmp_path, monkeypatch) -> None:
    with pytest.raises(UserError, match="is not empty"):
        convert.main([f"--from={models}/pretrained", f"--to={models}/classifier"])
    model = published(("mlm",))
    del model.params["bert"]["pooler"]
    interop.write_huggingface(tmp_path / "no_pooler", model)
    with pytest.raises(UserError, match="is not whole"):
        convert.main([f"--from={tmp_path}/no_pooler", f"--to={tmp_path}/out", "--strict"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--to is empty"):
        convert.main([f"--from={models}/pretrained", "--to="])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"gs://b/x is no folder of this machine.* copy it"):
        convert.main([f"--from={models}/pretrained", "--to=gs://b/x"])
    assert not (tmp_path / "gs:").exists()


def test_a_tilde_is_the_home(models, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(models))
    monkeypatch.chdir(tmp_path)
    for form in ("orbax", "huggingface"):
        arguments = ["--from=~/classifier", f"--to=~/tilde_{form}", f"--format={form}"]
        convert.main(cli.with_home(arguments))
        capsys.readouterr()
        (answer,) = ask(capsys, "classify", f"--checkpoint=~/tilde_{form}", "good")
        assert answer["label"].startswith("label ")
    assert list(tmp_path.iterdir()) == []


def test_texts_end_at_line_feeds_alone(models, capsys, tmp_path) -> None:
    (tmp_path / "texts").write_bytes("a\u2028good\x0cb\r\nbad\n".encode())
    arguments = ["classify", f"--checkpoint={models}/classifier", f"--file={tmp_path}/texts"]
    assert [answer["text"] for answer in ask(capsys, *arguments)] == ["a\u2028good\x0cb", "bad"]


PAGE = Path(__file__).parents[1] / "docs" / "checkpoints.md"


def test_every_command_of_the_page_runs(models, tmp_path, capsys, monkeypatch) -> None:
    """The commands of docs/checkpoints.md, in order, on small models of the names used there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "pretrained", "bert-base-uncased")
    shutil.copytree(models / "classifier", "reviews")
    shutil.copytree(models / "tagger", "entities")
    shutil.copytree(models / "reader", "reader")
    write_release(tmp_path / "uncased_L-12_H-768_A-12", published(("mlm", "nsp")))
    workdir.write("runs/tiny", published(("mlm", "nsp")))
    (tmp_path / "texts.txt").write_text("a good dog\nthe fox jumps\n")
    (tmp_path / "words.txt").write_text("foxing\n")
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf8"), re.S | re.M)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) >= 12
    for command in commands:
        command, _, stdin = command.partition(" < ")
        words = shlex.split(command)
        door = {"bertjax.convert": convert, "bertjax.predict": predict}[words[2]]
        data = io.BytesIO((tmp_path / stdin).read_bytes() if stdin else b"")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
        assert door.main(words[3:]) == 0, command
        assert capsys.readouterr().out or "--out" in command
    python = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf8"), re.S | re.M)[1]
    names: dict = {}
    exec(python, names)
    assert names["mlm_logits"].shape == (1, 2, 128)
