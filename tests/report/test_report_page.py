"""The page and its front door: escaping, the policy, exit codes, missing parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import COMMENT, HOSTILE, SCRIPT, classifier

from bertjax.errors import UserError
from bertjax.report import __main__ as front
from bertjax.report import page

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("text", [*HOSTILE, "\u2028\u2029", "<!--", "]]>", "\\", '"'])
def test_json_cannot_leave_its_element(text):
    encoded = page.safe_json({text: [text]})
    assert not set(encoded) & set("<>&\u2028\u2029")
    assert json.loads(encoded) == {text: [text]}


def test_lone_surrogates_do_not_stop_a_page():
    assert json.loads(page.safe_json("a\ud800b")) == "a?b"


def test_no_number_is_nan():
    with pytest.raises(ValueError):
        page.safe_json(float("nan"))


def test_the_policy_lets_only_our_scripts_run():
    text = page.render({"runs": [COMMENT, SCRIPT]}, ["", "x"], "plotly</script>")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text).group(1)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"('sha256-[A-Za-z0-9+/]{43}=' ?){2}", rules["script-src"])
    assert "connect-src" not in rules and "unsafe-eval" not in policy
    # One script runs; the others are data.
    kinds = re.findall(r"<script([^>]*)>", text)
    assert [kind for kind in kinds if "type=" not in kind] == [""]
    assert not re.search(r'(src|href)="(https?:)?//', text.split("<script", 1)[0])


def test_scripts_never_make_markup():
    for name in page.SCRIPTS:
        source = (page.FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", source)
        assert "</script" not in source and "<!--" not in source


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bertjax.report", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_what_is_no_workdir_is_one_sentence_and_code_2(tmp_path):
    done = run(f"--workdir={tmp_path}")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "is no workdir" in done.stderr


def test_help_names_the_options():
    done = run("--help")
    assert done.returncode == 0
    assert all(x in done.stdout for x in ("--workdir", "--out", "--text", "--texts", "--json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text=a", "--texts=b"], "give one of the two"),
        (["--texts=missing.txt"], "cannot be read"),
        (["--text= "], "text 1 is empty"),
        ([], "does not exist"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        front.main([f"--workdir={tmp_path}/none", *arguments])


def test_texts_of_a_file_end_at_line_feeds_alone(tmp_path):
    (tmp_path / "texts").write_bytes("a\u2028b\x85c\r\nd\x0ce\n".encode())
    args = front.parser().parse_args(["--workdir=x", f"--texts={tmp_path}/texts"])
    assert front.read_texts(args) == ["a\u2028b\x85c", "d\x0ce"]
    (tmp_path / "texts").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match=r"--texts=.* is not UTF-8 at byte 2"):
        front.read_texts(args)


def test_json_is_the_only_output(tmp_path, capsys):
    pytest.importorskip("plotly")
    folder = classifier(tmp_path / "run")
    assert front.main([f"--workdir={folder}", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["report"] == f"{folder}/report.html" and answer["missing"] == {}
    assert (folder / "report.html").stat().st_size == answer["bytes"] < 6_000_000


def test_without_plotly_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[report\]'"):
        page.plotly_source()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    pytest.importorskip("plotly")
    folder = classifier(tmp_path / "run")
    with pytest.raises(UserError, match=r"--out=.*there is no folder"):
        front.main([f"--workdir={folder}", f"--out={tmp_path}/none/x.html"])
