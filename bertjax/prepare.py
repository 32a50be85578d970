"""Prepare a text corpus for pretraining: text to token ids, once, in a form that loads fast."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence

from bertjax import cli
from bertjax.data.display import display
from bertjax.data.reading import LAYOUTS
from bertjax.data.segmenter import NAMES as SEGMENTERS
from bertjax.errors import UserError

HELP = """\
Prepare a text corpus for pretraining: text to token ids, once, in a form that loads fast.

Reads documents one after another (memory does not grow with the corpus), splits them into
sentences, cuts these into WordPiece tokens, and writes a TFDS dataset in ArrayRecord with a
held-out split, the vocabulary and a data report. Documents may be of any length.

sources:
  python_docs                     the documentation in every Python installation (2 MB)
  FILE, FOLDER or 'GLOB'          .txt and .md, also .gz and .zst
  FILE.jsonl, FILE.parquet        a document a row, in field 'text'; another by FILE.jsonl:FIELD
  tfds:NAME/CONFIG:SPLIT[:FIELD]  a dataset that TFDS has prepared on this machine
  hub:ORG/NAME/CONFIG:SPLIT[:FIELD]  a Hugging Face dataset, streamed (pip install 'bertjax[hub]')
  SOURCE,SOURCE                   one after the other; SOURCE@3,SOURCE@1 mixes them by share

examples:
  python -m bertjax.prepare --source=my_texts --vocab=train:30522 --out=my_corpus
  python -m bertjax.prepare --source='wiki/*.jsonl.gz' --vocab=vocab.txt --out=wiki --processes=8
  python -m bertjax.prepare --source=law.txt --vocab=vocab.txt --out=law \\
      --held_out=0.01 --held_out=general=news.txt
  then: python -m bertjax.main --config=configs/base.py --config.data.source=my_corpus

Documents of a text file: for Markdown and for several text files (a folder or a glob), a file
is a document; in a single text file, blank lines divide documents, as in the published BERT
code. --layout decides otherwise. What was decided is in the report.

Interrupted, the folder is marked by a file UNFINISHED and cannot be trained on; the same command
starts it anew.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments of python -m bertjax.prepare."""
    p = cli.ArgumentParser(prog="python -m bertjax.prepare", description=HELP)
    add = p.add_argument
    add("--source", required=True, help="the text, see above")
    add(
        "--vocab",
        required=True,
        metavar="FILE|train:SIZE",
        help="a vocab.txt (or a folder with vocabulary and tokenizer settings), or train:SIZE to "
        "learn a WordPiece vocabulary from the source, the same one each time",
    )
    add("--out", required=True, metavar="DIR", help="a new or empty folder; may be remote (gs://)")
    add(
        "--processes",
        type=int,
        default=0,
        help="worker processes; the result is the same for any number (default 0: all cores, "
        "or 1 if the corpus is small)",
    )
    add(
        "--lower_case",
        type=_boolean,
        default=None,
        metavar="true|false",
        help="uncased or cased (default: as the vocabulary says; uncased for train:SIZE)",
    )
    add("--language", default="en", help="language code, for sentence ends (default en)")
    add(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="what a document of a text file is: the file, the lines between blank lines, or a "
        "line (default auto, see above)",
    )
    add(
        "--held_out",
        action="append",
        metavar="SHARE|NAME=SOURCE",
        help="share of the documents kept as split 'validation' (default 0.05; copies of a "
        "document stay together), or a named further held-out set; may be given several times",
    )
    add("--seed", type=int, default=0, help="of the choice of held-out documents (default 0)")
    add(
        "--invalid_utf8",
        choices=("replace", "error"),
        default="replace",
        help="drop and count invalid bytes, or refuse with file and offset (default replace)",
    )
    add(
        "--segmenter",
        choices=SEGMENTERS,
        default="",
        help="word segmenter for whole-word masking of Chinese (pip install 'bertjax[zh]')",
    )
    add(
        "--seq_length",
        type=int,
        default=128,
        help="length that the report's padding share is for (default 128); changes nothing else",
    )
    add(
        "--beam_pipeline_options",
        default="",
        metavar="OPTIONS",
        help="prepare on Apache Beam (pip install 'bertjax[beam]'), with its pipeline options: "
        "runner=DirectRunner, or runner=DataflowRunner,project=...,temp_location=...",
    )
    add("--json", action="store_true", help="print the data report as JSON on standard output")
    return p


def _boolean(text: str) -> bool:
    values = {"true": True, "false": False, "1": True, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    if args.seq_length < 8:
        raise UserError(f"seq_length={args.seq_length} is too short for pairs: give 8 or more")
    from bertjax.data import builder, report  # after --help: they import a lot

    start = time.monotonic()
    try:
        with cli.leaving_on_sigterm(), display() as shown:
            out = builder.prepare(
                args.source,
                args.vocab,
                args.out,
                processes=args.processes,
                lower_case=args.lower_case,
                language=args.language,
                layout=args.layout,
                held_out=builder.HeldOut.parse(args.held_out or ()),
                seed=args.seed,
                invalid_utf8=args.invalid_utf8,
                seq_length=args.seq_length,
                segmenter=args.segmenter,
                beam_pipeline_options=args.beam_pipeline_options,
                progress=shown,
            )
    except (KeyboardInterrupt, SystemExit):
        print(f"interrupted: the same command starts {args.out} anew", file=sys.stderr)
        raise
    figures = builder.read_report(out)
    if args.json:
        print(json.dumps(figures, indent=2, ensure_ascii=False))
        return 0
    seconds = time.monotonic() - start
    print(report.render(figures))
    print(f"prepared {os.fspath(out)} in {seconds:.0f} s; to train on it:")
    corpus = shlex.quote(f"--config.data.source={os.fspath(out)}")
    print(f"python -m bertjax.main --config=configs/base.py {corpus}")
    return 0


if __name__ == "__main__":
    cli.run(main)
