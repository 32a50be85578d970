"""Between checkpoint formats: the front door of `bertjax.interop`."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Sequence

from bertjax import cli

USAGE = """
Reads a checkpoint of any kind and writes it as a Hugging Face folder or a bertjax workdir.

FROM is a workdir, its checkpoints or one step; a Hugging Face folder or hub name (safetensors);
a Google TF1 checkpoint (prefix, .index file or folder). Neither PyTorch nor TensorFlow is needed.
TO must be new or empty. Weights keep every bit; a line is printed for each surprise.

  python -m bertjax.convert --from=bert-base-uncased --to=runs/base --format=orbax
  python -m bertjax.convert --from=uncased_L-12_H-768_A-12 --to=base-uncased
  python -m bertjax.convert --from=runs/tiny --to=tiny-bert
"""


def parser() -> cli.ArgumentParser:
    """The command line."""
    result = cli.ArgumentParser(prog="python -m bertjax.convert", description=USAGE)
    result.add_argument("--from", dest="source", required=True, help="any checkpoint")
    result.add_argument("--to", required=True, help="the folder to write; new or empty")
    result.add_argument(
        "--format",
        choices=("huggingface", "orbax"),
        default="huggingface",
        help="huggingface: safetensors that transformers opens; orbax: a bertjax workdir whose "
        "checkpoint is step 0 (default: huggingface)",
    )
    result.add_argument("--step", type=int, help="step of a workdir (default: the best, else last)")
    result.add_argument(
        "--extend_vocab",
        metavar="FILE",
        help="add the words of FILE, one a line, to the vocabulary; their rows start as the mean "
        "of their pieces",
    )
    result.add_argument(
        "--encoder_only",
        action="store_true",
        help="leave the heads out: for sentence vectors, or as the start of another task",
    )
    result.add_argument(
        "--strict", action="store_true", help="refuse a checkpoint of which anything is left over"
    )
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def _tell_of_the_run(source: str, step: int | None, target: str) -> None:
    """Add what a fine-tuned workdir says of itself (data, settings, figures, labels) to the
    README of its export, or that this is of another step than the one exported."""
    from bertjax.train.workdir import read_finished

    told = pathlib.Path(source) / "README.md"
    if not told.exists() or not (told.parent / "checkpoints").exists():
        return
    finished = read_finished(source)
    scored = None if finished is None else finished.get("scored", step)
    text = told.read_text(encoding="utf-8")
    if scored != step:
        of = "a run that is not finished" if scored is None else f"step {scored}"
        text = (
            f"These are the weights of step {step}, whose figures are not known: {told} is of {of}."
        )
    with (pathlib.Path(target) / "README.md").open("a", encoding="utf-8") as readme:
        readme.write(f"\n{text}\n")


def main(arguments: Sequence[str]) -> int:
    """Convert; see USAGE."""
    args = parser().parse_args(arguments)
    from bertjax import interop  # after --help: it starts JAX
    from bertjax.errors import UserError
    from bertjax.interop import workdir
    from bertjax.interop.published import check_new_folder

    def say(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    if not args.to.strip():
        raise UserError("--to is empty; name a new folder.")
    args.to = os.path.expanduser(args.to)
    check_new_folder(args.to, remote=args.format == "orbax")
    published = interop.read_checkpoint(args.source, args.step)
    say(f"{args.source}: {published.coverage}")
    if args.strict and (published.coverage.left_over or published.coverage.missing):
        raise UserError(f"{args.source} is not whole or has more than is read (see the line above)")
    if args.extend_vocab:
        published = interop.extend_vocabulary(published, args.extend_vocab)
    if args.encoder_only:
        published = dataclasses.replace(
            published, params={"bert": published.params["bert"]}, labels=None,
            problem_type="single_label", settings={},
        )  # fmt: skip
    for note in published.notes:
        say(f"note: {note}")
    if args.format == "orbax":
        workdir.write(args.to, published)
        wrote = "workdir"
    else:
        wrote = interop.write_huggingface(args.to, published)
        if not args.encoder_only:  # it speaks of the head
            _tell_of_the_run(args.source, published.step, args.to)
    summary = {
        "from": args.source,
        "to": args.to,
        "wrote": wrote,
        "heads": list(published.heads),
        "loaded": published.coverage.loaded,
        "expected": published.coverage.expected,
        "missing": list(published.coverage.missing),
        "left_over": list(published.coverage.left_over),
        "checksum": interop.checksum(published.params),
        "notes": list(published.notes),
    }
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        print(f"wrote {args.to} ({wrote}), parameter checksum {summary['checksum']}")
    return 0


if __name__ == "__main__":
    cli.run(main)
