"""A page about one run or several: curves, data, figures, examples and the model from inside."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from etils import epath

from bertjax import cli
from bertjax.data.labelled import lines_of
from bertjax.errors import UserError

USAGE = """
Writes one HTML file about a run, finished or not, of any task. It opens in a browser without a
network: curves, figures, the data report, the config, examples with predictions, the attention of
every layer and head, and a map of sentence vectors.

  python -m bertjax.report --workdir=runs/tiny
  python -m bertjax.report --workdir=runs/tiny --workdir=runs/base --out=both.html
  python -m bertjax.report --workdir=runs/classify --text="A fine film." --text="A dull one."

Several runs lie over one another, and the page lists where their configs differ. Without --text
or --texts the texts are held-out examples. What a run does not have yet is said in the page.
"""


def parser() -> cli.ArgumentParser:
    """The command line."""
    result = cli.ArgumentParser(prog="python -m bertjax.report", description=USAGE)
    result.add_argument(
        "--workdir", action="append", required=True, help="folder of a run; repeat it for several"
    )
    result.add_argument("--out", help="the file (default: report.html in the first workdir)")
    result.add_argument(
        "--text", action="append", help="a text to look inside of; repeat it for several"
    )
    result.add_argument("--texts", metavar="FILE", help="a text a line, UTF-8; - is stdin")
    result.add_argument("--json", action="store_true", help="print {'report': PATH, ...} alone")
    return result


def read_texts(args: argparse.Namespace) -> list[str] | None:
    """The texts of --text or --texts; None without either. UserError for unusable ones."""
    if args.text and args.texts:
        raise UserError("texts were given by --text and by --texts; give one of the two.")
    texts = args.text
    if args.texts:
        texts = lines_of(cli.read_text("--texts", args.texts))
        if not texts:
            raise UserError(f"--texts={args.texts} holds no text.")
    for number, text in enumerate(texts or ()):
        if not text.strip():
            raise UserError(f"text {number + 1} is empty; remove it or fill it in.")
    return texts


def main(arguments: Sequence[str]) -> int:
    """Write the page; see USAGE."""
    args = parser().parse_args(arguments)
    texts = read_texts(args)
    from bertjax.report import build, gather, page  # after --help: they start JAX

    for path in args.workdir:
        gather.check_workdir(path)
    if args.out and "://" not in args.out:
        cli.check_out("--out", args.out)
    plotly = page.plotly_source()
    data, weights = build.build(args.workdir, texts)
    content = page.render(data, weights, plotly).encode("utf-8")
    out = args.out or f"{args.workdir[0].rstrip('/')}/report.html"
    try:
        epath.Path(out).write_bytes(content)
    except OSError as error:
        raise UserError(f"--out={out} cannot be written: {error.strerror or error}.") from error
    missing = {run["name"]: run["missing"] for run in data["runs"] if run["missing"]}
    if args.json:
        print(json.dumps({"report": out, "bytes": len(content), "missing": missing}))
        return 0
    for name, parts in missing.items():
        for sentence in parts.values():
            print(f"{name}: {sentence}", file=sys.stderr)
    print(f"wrote {out} ({len(content) / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    cli.run(main)
