"""The page: one HTML file that needs no network and trusts no text.

Every value reaches the page as JSON in a data block and is shown by textContent; a
Content-Security-Policy lets nothing be loaded and only the two scripts of this package run, by
their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.report.inside import packed

FOLDER = pathlib.Path(__file__).parent / "assets"
# In this order they make one script.
SCRIPTS = ("base.js", "curves.js", "overview.js", "examples.js", "attention.js", "vectors.js")
# What could end a script element or a line of a script.
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def plotly_source() -> str:
    """plotly.js, as the Python package brings it. UserError where that is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError(
            "the report needs plotly, which is not installed: pip install -e '.[report]'"
        ) from None
    return get_plotlyjs()


def safe_json(value: Any) -> str:
    """JSON that may stand in a script element: it holds no <, > or & and no line separators.

    Lone surrogates, which UTF-8 has not, become question marks.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(ESCAPES).encode("utf-8", "replace").decode("utf-8")


def _digest(script: str) -> str:
    value = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()
    return f"'sha256-{value}'"


def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def render(data: dict[str, Any], weights: Sequence[str], plotly: str) -> str:
    """The whole page.

    Args:
        data: JSON values of `build.build`.
        weights: for each run its packed attention weights, or ''.
        plotly: the source of plotly.js.
    """
    script = "\n".join(_asset(name) for name in SCRIPTS)
    blocks = [f'<script type="application/json" id="data">{safe_json(data)}</script>']
    blocks += [
        f'<script type="text/plain" id="weights-{i}">{text}</script>'
        for i, text in enumerate(weights)
    ]
    blocks.append(f'<script type="text/plain" id="plotly">{packed(plotly.encode())}</script>')
    parts = {
        "POLICY": POLICY.format(scripts=f"{_digest(script)} {_digest(plotly)}"),
        "STYLE": _asset("page.css"),
        "BLOCKS": "\n".join(blocks),
        "SCRIPT": script,
    }
    # Cut before anything is put in: a value that looks like a slot stays what it is.
    page = []
    for piece in _asset("page.html").split("@@"):
        page.append(parts.get(piece, piece))
    return "".join(page)
