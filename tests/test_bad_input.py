"""Wrong configs, files and arguments: one clear sentence each. The list is the benchmark's."""

import importlib
import importlib.util
import pathlib

import pytest

from bertjax import cli

_PATH = pathlib.Path(__file__).parent.parent / "benchmarks" / "bad_input.py"
_SPEC = importlib.util.spec_from_file_location("bad_input", _PATH)
bad_input = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bad_input)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bad")
    bad_input.make_files(folder)
    return folder


def test_the_list_is_long_enough():
    assert len(set(bad_input.WRONG)) == len(bad_input.WRONG) >= 60


@pytest.mark.parametrize("wrong", bad_input.WRONG, ids=lambda w: " ".join(w.arguments)[-60:])
def test_one_sentence(wrong, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    package = wrong.door in ("plan", "ablate", "report")
    name = f"bertjax.{wrong.door}" + (".__main__" if package else "")
    arguments = [argument.replace("{d}", str(folder)) for argument in wrong.arguments]
    with pytest.raises(SystemExit) as stopped:
        cli.run(importlib.import_module(name).main, arguments)
    assert bad_input.complaint(wrong, stopped.value.code, capsys.readouterr().err) == ""
