"""The English text that every CPython installation carries: a corpus without a download.

A document is a topic of `pydoc_data` or the docstrings of one module of the standard library.
Docstrings are read from the source by `ast`; nothing is imported. site-packages and tests are
left out. The text differs a little from one Python version to the next.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import sysconfig
import warnings
from collections.abc import Iterator

from bertjax.errors import UserError

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def documents() -> tuple[tuple[str, ...], ...]:
    """The documents, each a tuple of paragraphs; about 2 MB, the same each time.

    Raises:
        UserError: this Python comes without its sources.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError("this Python has no pydoc_data: use a full CPython installation") from None
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    found = [tuple(_paragraphs(topics[name])) for name in sorted(topics)]
    modules = sorted(
        path
        for path in library.rglob("*.py")
        if not _LEFT_OUT & set(path.relative_to(library).parts)
    )
    if not modules:
        raise UserError(f"no standard library source in {library}: use a full CPython installation")
    found += [tuple(p for text in _docstrings(path) for p in _paragraphs(text)) for path in modules]
    return tuple(document for document in found if document)


def _docstrings(path: pathlib.Path) -> Iterator[str]:
    """Docstrings of a module, its classes and its functions, in the order of the source."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return  # docstrings of one quote are rare, and parsing is most of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # a template or a sample of bad syntax, not a module
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.stmt)]
        stack += reversed(children)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs with their wrapped lines joined; lines without a letter (rules) are left out."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if any(c.isalpha() for c in line):
            lines.append(line.strip())
        elif lines:
            yield " ".join(lines)
            lines = []
