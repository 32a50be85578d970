"""Questions to a checkpoint from the command line: the front door of `bertjax.inference`."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax import cli
from bertjax.data.labelled import JSON, lines_of
from bertjax.errors import UserError

USAGE = """
Asks a checkpoint of any kind: a workdir or one step, a Hugging Face folder or hub name, a Google
TF1 checkpoint. Casing and vocabulary are the checkpoint's own.

  python -m bertjax.predict fill-mask --checkpoint=bert-base-uncased "Paris is a [MASK]."
  python -m bertjax.predict classify --checkpoint=runs/classify --file=reviews.txt
  python -m bertjax.predict embed --checkpoint=all-MiniLM-L6-v2 --file=texts.txt --out=vectors.npz
  python -m bertjax.predict answer --checkpoint=runs/answer --pair="Who sang?" "A lark sang."
  python -m bertjax.predict score --checkpoint=runs/tiny "the dog barks" "the dog bark"
  python -m bertjax.predict embed --checkpoint=runs/tiny --layers=-1,-2 --pooling=cls < texts.txt

Texts are the arguments (after -- where one begins with a dash), the lines of --file, or the lines
of standard input. On a terminal the answers are tables; in a pipe, or with --json, one JSON object
a line, in the order of the texts. A text of which no token is left is an error.
A text beyond the model's length (or --max_length) is read in windows that overlap; a classifier
that was trained here reads it as it was trained to, and says so where that cuts it.
"""
COMMANDS = {
    "fill-mask": "the likeliest tokens for each [MASK]",
    "classify": "the class of a text or of a pair (--pair)",
    "tag": "the label of each word; words stand between blanks, CJK ideographs are words",
    "answer": "the span of a text that answers a question (--pair)",
    "embed": "a vector for each text",
    "score": "pseudo-log-likelihood of each text: every token masked in turn",
}
CHECKPOINT = "a workdir or one step, a Hugging Face folder or hub name, a Google TF1 checkpoint"
# A cosine matrix on the terminal has at most this many rows.
MATRIX_ROWS = 12
_TABLES = (".csv", ".tsv", ".parquet", *JSON)
SHOWN_CHARACTERS = 60


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of layers such as -1,-2") from None


def parser() -> cli.ArgumentParser:
    """The command line, a subcommand for each question."""
    result = cli.ArgumentParser(prog="python -m bertjax.predict", description=USAGE)
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line)
        command.add_argument("texts", nargs="*", metavar="TEXT")
        command.add_argument("--checkpoint", required=True, help=CHECKPOINT)
        command.add_argument("--step", type=int, help="step of a workdir (default: best, or last)")
        command.add_argument("--file", help="a text a line, UTF-8; - is standard input")
        command.add_argument("--json", action="store_true", help="JSON lines on a terminal, too")
        command.add_argument(
            "--max_length", type=int, help="tokens of a window (default: the model's own length)"
        )
        command.add_argument(
            "--window_overlap",
            type=int,
            help="tokens that neighbouring windows share (default: an eighth of --max_length)",
        )
        command.add_argument(
            "--dtype",
            choices=("float32", "bfloat16", "float16"),
            default="float32",
            help="of the computation (default: float32)",
        )
    commands.choices["fill-mask"].add_argument(
        "--top_k", type=int, default=5, help="tokens for each mask (default: 5)"
    )
    for name, what in (("classify", "the second text"), ("answer", "the question")):
        commands.choices[name].add_argument(
            "--pair",
            action="append",
            required=name == "answer",
            help=f"{what}: once for all texts, once for each, or several for a single text",
        )
    commands.choices["answer"].add_argument(
        "--unanswerable",
        action=argparse.BooleanOptionalAction,
        help="whether there may be no answer (default: as the run was trained)",
    )
    commands.choices["answer"].add_argument(
        "--null_threshold", type=float, metavar="LEAD",
        help="by how much no answer must lead to be given (default: the run's; an evaluation tells "
        "the best one)",
    )  # fmt: skip
    embed = commands.choices["embed"]
    embed.add_argument(
        "--pooling",
        choices=("mean", "cls", "pooled"),
        default="mean",
        help="the mean over tokens, the state of [CLS], or the pooler's output (default: mean)",
    )
    embed.add_argument(
        "--layers",
        type=_layers,
        default=(-1,),
        help="layers whose mean is pooled, 0 = embeddings (default: -1, the last)",
    )
    embed.add_argument("--cosine", action="store_true", help="the cosine of every two texts")
    embed.add_argument("--out", metavar="FILE.npz", help="write arrays `vectors` and `texts`")
    return result


def read_texts(texts: Sequence[str], file: str | None) -> list[str]:
    """The texts of the arguments, else the lines of a file, else those of standard input.

    Raises:
        UserError: both are given or neither, no text, a file that cannot be read or is not UTF-8.
    """
    if texts and file:
        raise UserError("texts were given as arguments and by --file; give one of the two.")
    for number, text in enumerate(texts):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UserError(f"text {number + 1} of the arguments is not UTF-8; convert it first.")
    if texts:
        return list(texts)
    name = "-" if file is None else file
    if pathlib.PurePath(name).suffix.lower() in _TABLES:
        raise UserError(
            f"--file={name} is a table by its name, and a text a line is needed: give its texts "
            "alone (or score all of it: python -m bertjax.main --mode=evaluate "
            "--config.data.test=FILE)"
        )
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UserError("no text: give it as an argument, by --file or on standard input.")
    lines = lines_of(cli.read_text("--file", name))
    if not lines:
        raise UserError(f"{'standard input' if name == '-' else name} holds no text.")
    return lines


class Progress:
    """How far a long run is: a bar on a terminal, else a line every ten seconds, on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._start = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total:
            self.close()
        elif sys.stderr.isatty():
            if self._bar is None and now - self._start > 1:
                import rich.console
                import rich.progress

                console = rich.console.Console(stderr=True)
                self._bar = rich.progress.Progress(console=console, transient=True)
                self._bar.start()
                self._task = self._bar.add_task("rows", total=total)
            if self._bar is not None:
                self._bar.update(self._task, completed=done)
        elif now - self._last > 10:
            self._last = now
            print(f"{done} of {total} rows, {now - self._start:.0f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _cells(command: str, answer: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The rows of the terminal's table for one answer."""
    if command == "tag":
        yield from zip(answer["words"], answer["labels"], strict=True)
        return
    if command == "answer":
        yield answer["question"], answer["answer"] or "(none)", f"{answer['score']:.4f}"
        return
    text = _short(answer["text"])
    if command == "fill-mask":
        for number, candidates in enumerate(answer["masks"]):
            for candidate in candidates:
                yield text, str(number + 1), candidate["token"], f"{candidate['probability']:.4f}"
                text = ""
    elif command == "classify" and "value" in answer:
        yield text, f"{answer['value']:.4f}", ""
    elif command == "classify":
        for label in answer.get("labels") or [answer.get("label", "none")]:
            yield text, label, f"{answer['probabilities'].get(label, 0.0):.4f}"
            text = ""
    else:
        per_token = answer["log_likelihood"] / max(answer["tokens"], 1)
        yield text, f"{answer['log_likelihood']:.3f}", str(answer["tokens"]), f"{per_token:.3f}"


_COLUMNS = {
    "fill-mask": ("text", "mask", "token", "probability"),
    "classify": ("text", "label", "probability"),
    "tag": ("word", "label"),
    "answer": ("question", "answer", "score"),
    "score": ("text", "log-likelihood", "tokens", "a token"),
}


def _print_json(value: dict[str, Any]) -> None:
    """Print one line of JSON, in ASCII where the output's encoding lacks a character.

    Raises:
        UserError: NaN or infinity, which JSON has not, or an output that takes no more.
    """
    try:
        line = json.dumps(value, ensure_ascii=False, allow_nan=False)
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        line = json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise UserError(
            "an answer is not a finite number: ask with --dtype=float32 if that was another, else "
            "the weights are those of a run that has diverged."
        ) from error
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"standard output cannot be written: {error.strerror}.") from error


def show(command: str, answers: Iterator[dict[str, Any]], as_json: bool) -> None:
    """Print answers: a JSON object a line at once, or a table at the end."""
    if as_json:
        for answer in answers:
            _print_json(answer)
        return
    import rich.console
    import rich.markup
    import rich.table

    table = rich.table.Table(*_COLUMNS[command])
    for answer in answers:
        if command == "tag" and table.rows:
            table.add_section()
        for cells in _cells(command, answer):
            table.add_row(*(rich.markup.escape(cell) for cell in cells))
    rich.console.Console().print(table)


def _show_vectors(args: argparse.Namespace, texts: list[str], vectors: Iterator[Any]) -> None:
    """Print or write the vectors of `embed`."""
    import numpy as np

    from bertjax import inference

    if not (args.out or args.cosine) and args.json:
        for text, vector in zip(texts, vectors, strict=True):
            _print_json({"text": text, "vector": vector.tolist()})
        return
    table = np.stack(list(vectors))
    if args.out:
        try:
            with open(args.out, "wb") as file:
                np.savez(file, vectors=table, texts=np.array(texts))
        except OSError as error:
            raise UserError(f"--out={args.out} cannot be written: {error.strerror}.") from error
        print(f"wrote {len(table)} vectors of {table.shape[1]} to {args.out}", file=sys.stderr)
    if args.json:
        if args.cosine:
            matrix = inference.cosines(table).tolist()
            _print_json({"texts": texts, "cosines": matrix})
        return
    import rich.console
    import rich.markup
    import rich.table

    console, shown = rich.console.Console(), min(len(table), MATRIX_ROWS)
    matrix = rich.table.Table("cosine", *(str(i + 1) for i in range(shown)), "text")
    for i, row in enumerate(inference.cosines(table[:shown])):
        cells = (f"{value:.3f}" for value in row)
        matrix.add_row(str(i + 1), *cells, rich.markup.escape(_short(texts[i])))
    console.print(matrix)
    print(f"{len(table)} vectors of {table.shape[1]} numbers; --json or --out gives them")


def pair_up(texts: list[str], pairs: list[str] | None) -> tuple[list[str], list[str] | None]:
    """Texts and second texts, as many of both; UserError where the counts do not fit."""
    if pairs is None or len(pairs) == len(texts):
        return texts, pairs
    if len(pairs) == 1:
        return texts, pairs * len(texts)
    if len(texts) == 1:
        return texts * len(pairs), pairs
    raise UserError(f"--pair was given {len(pairs)} times for {len(texts)} texts.")


def main(arguments: Sequence[str]) -> int:
    """Answer; see USAGE."""
    args = parser().parse_args(arguments)
    if sys.stdout is None:
        raise UserError("standard output is closed, so there is no place for the answers.")
    args.json = args.json or not sys.stdout.isatty()
    texts = read_texts(args.texts, args.file)
    if getattr(args, "out", None):
        cli.check_out("--out", args.out)
    cli.keep_memory()
    from bertjax import inference, load  # after --help: they start JAX

    def warn(line: str) -> None:
        print(f"warning: {line}", file=sys.stderr, flush=True)

    inference.check_texts(texts)
    bert = load(args.checkpoint, step=args.step, dtype=args.dtype)
    for note in bert.published.notes:
        print(f"{args.checkpoint}: {note}", file=sys.stderr)
    progress = Progress()
    limits = None
    if args.max_length is not None or args.window_overlap is not None:
        limits = inference.Limits.of(bert, args.max_length, args.window_overlap)
    common = {"limits": limits, "warn": warn, "progress": progress}
    try:
        if args.command == "embed":
            vectors = inference.embed(
                bert, texts, pooling=args.pooling, layers=args.layers, **common
            )
            _show_vectors(args, texts, vectors)
            return 0
        if args.command == "fill-mask":
            answers = inference.fill_mask(bert, texts, top_k=args.top_k, **common)
        elif args.command == "classify":
            answers = inference.classify(bert, *pair_up(texts, args.pair), **common)
        elif args.command == "answer":
            answers = inference.answer(
                bert, *pair_up(texts, args.pair), unanswerable=args.unanswerable,
                null_threshold=args.null_threshold, **common,
            )  # fmt: skip
        else:
            question = {"score": inference.score, "tag": inference.tag}[args.command]
            answers = question(bert, texts, **common)
        show(args.command, answers, args.json)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    cli.run(main)
