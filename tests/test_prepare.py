"""python -m bertjax.prepare as a user runs it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from bertjax import prepare
from bertjax.data.builder import open_prepared, read_report
from bertjax.data.display import Lines
from bertjax.data.reading import Reading
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# Any use of the network ends the program.
OFFLINE = (
    "import socket, sys\n"
    "def refuse(*a): sys.exit('called the network')\n"
    "socket.socket.connect = socket.getaddrinfo = refuse\n"
    "from bertjax import cli, prepare\n"
    "cli.run(prepare.main, sys.argv[1:])"
)


def run(*arguments, **options):
    command = [sys.executable, "-c", OFFLINE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_python_docs_end_to_end_without_a_network(tmp_path):
    out = tmp_path / "out"
    found = run("--source=python_docs", "--vocab=train:2000", f"--out={out}")
    assert found.returncode == 0, found.stderr
    assert found.stderr == "" or "MB read" in found.stderr
    for line in (
        "documents ",
        "[UNK] ",
        "duplicates ",
        "random pairs ",
        "prepared ",
        f"--config.data.source={out}",
    ):
        assert line in found.stdout
    open_prepared(out)
    figures = read_report(out)
    assert figures["vocab"]["size"] == Tokenizer.load(out).vocab_size == 2000
    assert figures["unk_share"] < 0.001
    share = figures["splits"]["validation"]["documents"] / figures["documents"]
    assert 0.03 < share < 0.07  # one in twenty
    assert all("were cut" in warning for warning in figures["warnings"])


def test_interrupted_it_says_how_to_go_on(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bertjax.prepare", "--source=python_docs"]
    command += ["--vocab=train:2000", f"--out={out}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "UNFINISHED").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith(f"interrupted: the same command starts {out} anew\n")


def test_json_is_all_of_standard_output(tmp_path):
    (tmp_path / "a.txt").write_text("One two.\nThree.\n\nFour five.\nSix.\n" * 20)
    out = tmp_path / "out"
    found = run(f"--source={tmp_path}/a.txt", "--vocab=train:100", f"--out={out}", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == json.loads((out / "data_report.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source=python_docs", "--vocab=train:2000"], "--out"),
        (["--source=absent*.txt", "--vocab=train:2000", "--out=o"], "no file matches absent*.txt"),
        (["--source=python_docs", "--vocab=absent", "--out=o"], "no vocabulary file absent"),
        (["--source=python_docs", "--vocab=train:2000", "--out=o", "--held_out=2"], "no share"),
        (["--source=python_docs", "--vocab=train:2000", "--out=o", "--lower_case=no"], "neither"),
        (["--source=python_docs", "--vocab=train:2000", "--out=o", "stray"], "stray"),
        (["--source=python_docs", "--vocab=train:2000", "--out=o", "--seq_length=2"], "too short"),
        (["--source=python_docs", "--vocab=", "--out=o"], "vocab is empty"),
        (["--source=python_docs", "--vocab=train:2000", "--out= "], "out is empty"),
        (["--source=python_docs", "--vocab=train:2000", "--out=http://o"], "cannot be reached"),
        (["--source=tfds:imdb_review:train", "--vocab=train:99999", "--out=o"], "imdb_reviews"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(tmp_path, arguments, message):
    found = run(*arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert message in found.stderr
    assert not (tmp_path / "o").exists()


def test_invalid_utf8_by_option(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One two.\nThr\xffee.\n\nFour five.\nSix.\n" * 20)
    arguments = [f"--source={tmp_path}/a.txt", "--vocab=train:100", f"--out={tmp_path}/out"]
    found = run(*arguments, "--invalid_utf8=error")
    assert found.returncode == 2
    assert "is not UTF-8 at byte 12:" in found.stderr
    found = run(*arguments)
    assert found.returncode == 0
    assert "warning: 20 invalid UTF-8 sequences were dropped" in found.stdout


def test_help_is_quick_and_says_what_a_source_is(capsys):
    with pytest.raises(SystemExit) as stopped:
        prepare.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("python_docs", "tfds:", "hub:", "--held_out", "--invalid_utf8", "UNFINISHED"):
        assert word in text


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys):
    lines = Lines(every=0.0)
    lines("corpus", Reading(bytes_read=5_000_000), 10_000_000)
    assert capsys.readouterr().err.startswith("corpus: 5.0 of 10 MB read")
    main, terminal = pty.openpty()
    program = (
        "from bertjax.data.display import display; from bertjax.data.reading import Reading\n"
        "with display() as shown: shown('corpus', Reading(bytes_read=5_000_000), 10_000_000)"
    )
    subprocess.run([sys.executable, "-c", program], stderr=terminal, check=True)
    os.close(terminal)
    drawn = os.read(main, 100_000).decode()
    os.close(main)
    assert "5.0/10.0 MB" in drawn


def test_an_expected_error_is_raised_by_the_function_too(tmp_path):
    with pytest.raises(UserError, match="no source absent"):
        prepare.main(["--source=absent", "--vocab=train:100", f"--out={tmp_path}/out"])
