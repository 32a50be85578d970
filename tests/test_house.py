"""The house's own rules: import direction, size of files and functions, what a config says."""

import ast
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "bertjax"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.py") if path.name != "__init__.py")

# Beyond the first number a warning asks for a look, beyond the second the test fails.
FILE_LINES, FUNCTION_LINES = (400, 550), (70, 90)
FOREIGN = {"torch", "tensorflow"}  # never needed to train, evaluate or convert
# Imported only once its extra is asked for.
OPTIONAL = {pathlib.Path("data/beam_builder.py")}


def imported(module: pathlib.Path) -> set[str]:
    """Full dotted names that a module imports anywhere, also inside functions and for typing."""
    return names_in(ast.parse((PACKAGE / module).read_text(encoding="utf8")), str(module))


def names_in(tree: ast.AST, module: str) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def our_file(name: str) -> str | None:
    """The file under bertjax/ that holds a dotted name: 'train/loss.py', 'data/__init__.py'."""
    parts = name.split(".")
    if parts[0] != "bertjax":
        return None
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[1:end])
        for file in (f"{stem}.py", f"{stem}/__init__.py" if stem else "__init__.py"):
            if (PACKAGE / file).is_file():
                return file
    return None


def import_table() -> list[tuple[list[str], list[str]]]:
    """(files and folders of a room, what they may import) from docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    lines = text.split("| room |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    table = []
    for line in lines:
        room, _, allowed = (cell.strip() for cell in line.strip("|").split("|"))
        table.append((room.replace(" ", "").split(","), allowed.replace(" ", "").split(",")))
    return table


def covers(entry: str, file: str) -> bool:
    """Whether a table entry (train/, data, errors, train/loss.py) covers a file."""
    stem = entry.rstrip("/").removesuffix(".py")
    return file == f"{stem}.py" or (file.startswith(f"{stem}/") and not entry.endswith(".py"))


def room_of(file: str) -> tuple[list[str], list[str]]:
    rooms = [row for row in import_table() if any(covers(entry, file) for entry in row[0])]
    assert rooms, f"bertjax/{file} stands in no room of docs/architecture.md"
    return min(rooms, key=lambda row: row[0][0].endswith("/"))  # a file's own row before a folder's


def violations(file: str, names: set[str]) -> list[str]:
    entries, allowed = room_of(file)
    if "everything" in allowed:
        return []
    ours = {target for name in names if (target := our_file(name)) is not None}
    return sorted(
        target
        for target in ours - {"__init__.py"}
        if not any(covers(entry, target) for entry in [*entries, *allowed])
    )


def test_import_table_is_read_as_meant():
    assert violations("model/bert.py", {"bertjax.errors.UserError"}) == ["errors.py"]
    assert violations("data/loader.py", {"bertjax.train.loss"}) == ["train/loss.py"]
    assert violations("tasks/tag.py", {"bertjax.train.loss.mean", "bertjax.data"}) == []
    assert violations("tasks/tag.py", {"bertjax.train.step"}) == ["train/step.py"]
    assert violations("train/loss.py", {"bertjax.errors"}) == ["errors.py"]
    assert violations("main.py", {"bertjax.train.loop"}) == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_follow_the_architecture(module: pathlib.Path):
    if module.as_posix() != "__init__.py":
        assert violations(module.as_posix(), imported(module)) == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_foreign_framework_is_needed(module: pathlib.Path):
    class WithoutGuarded(ast.NodeTransformer):
        def visit_Try(self, node: ast.Try) -> ast.AST | None:
            handled = {ast.unparse(handler.type or ast.Name("")) for handler in node.handlers}
            return None if "ImportError" in handled else self.generic_visit(node)

    tree = WithoutGuarded().visit(ast.parse((PACKAGE / module).read_text(encoding="utf8")))
    assert not {name.split(".")[0] for name in names_in(tree, str(module))} & FOREIGN


def test_everything_imports_without_foreign_frameworks():
    names = [
        ".".join(("bertjax", *module.with_suffix("").parts)).removesuffix(".__init__")
        for module in MODULES
        if module not in OPTIONAL
    ]
    program = f"""
import importlib, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name in {FOREIGN}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, NotInstalled())
for name in {names}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def check_length(what: str, lines: int, limits: tuple[int, int]) -> None:
    guideline, ceiling = limits
    assert lines <= ceiling, f"{what} has {lines} lines"
    if lines > guideline:
        warnings.warn(f"{what} has {lines} lines: does it do two things?", stacklevel=2)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_files_and_functions_stay_short(module: pathlib.Path):
    text = (PACKAGE / module).read_text(encoding="utf8")
    check_length(str(module), text.count("\n"), FILE_LINES)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.lineno + 1
            check_length(f"{module}: {node.name}", lines, FUNCTION_LINES)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_says_command_hardware_time_and_result(path: pathlib.Path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""
    for label in ("Command", "Hardware", "Time", "Result"):
        assert re.search(rf"^{label}: +\S", docstring, re.MULTILINE), f"no '{label}: ...' line"
    assert f"configs/{path.name}" in docstring
