"""Labelled texts and pairs: read from a table, and encoded as rows for the model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ml_collections import config_dict

from bertjax.data.tables import Table, read_table
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.tasks import glue, label_sets, labels, sources
from bertjax.tasks.finetune import EncodedRows
from bertjax.tasks.texts import text_rows

SINGLE, MULTI, REGRESSION = "single_label", "multi_label", "regression"
SHORTEST_ROW = 8  # of windows: fewer tokens of text than this say nothing


@dataclasses.dataclass
class Examples:
    """A split as it was read. `targets` is None where it has no labels.

    texts, pairs: strings; targets: a label, a tuple of labels, or a number for each; labels: the
    names of the whole source, also of rows that are not drawn, none of a regression; table: what
    they were read from.
    """

    source: str
    texts: list[str]
    pairs: list[str] | None
    targets: list[Any] | None
    places: list[str]
    labels: frozenset[str] = frozenset()
    table: Table | None = None


def read(
    config: config_dict.ConfigDict,
    split: str,
    source: str,
    train: Examples | None = None,
    known: Iterable[str] = (),
) -> Examples:
    """The examples of a split; says what was decided. UserError for what cannot be used.

    `train`, the training examples, and `known`, labels of the checkpoint, help to tell whether the
    source has a header.
    """
    data = config.data
    spec = glue.TASKS.get(data.glue)
    if data.glue and spec is None:
        raise UserError(f"config.data.glue={data.glue} is not one of {', '.join(glue.TASKS)}")
    label_columns = [data.label_column]
    if data.problem_type == MULTI:
        label_columns += data.label_column.split(",")
    asked = [data.text_column, data.pair_column, *label_columns]
    like = frozenset(train.labels if train else known)
    table = read_table(
        source,
        header=data.header,
        named=[name for name in asked if name],
        like=train.table if train else None,
        labels=like,
    )
    texts = _strings(table, data.text_column, "data.text_column")
    pairs = _strings(table, data.pair_column, "data.pair_column") if data.pair_column else None
    targets = _targets(config, table, split, spec, like)
    sources.say_all(table.notes)
    empty = [place for place, text in zip(table.places, texts, strict=True) if not text.strip()]
    if empty:
        sources.say_all([f"warning: {source}: {len(empty)} empty texts ({sources.places(empty)})"])
    names = label_names(config, targets)
    if targets is not None:
        names |= set(_label_columns(config, table))  # also one that is 0 in every row
    examples = Examples(source, texts, pairs, targets, table.places, names, table)
    chosen = sources.drawn(len(texts), split, config)
    if len(chosen) == len(texts):
        return examples
    sources.say_all([f"{source}: {len(chosen)} of {len(texts)} examples are used"])
    return dataclasses.replace(
        examples,
        **{
            name: None if values is None else [values[i] for i in chosen]
            for name, values in (
                ("texts", texts), ("pairs", pairs), ("targets", targets), ("places", table.places)
            )
        },
    )  # fmt: skip


def label_names(config: config_dict.ConfigDict, targets: Sequence[Any] | None) -> frozenset[str]:
    """The label names among targets."""
    if targets is None or config.data.problem_type == REGRESSION:
        return frozenset()
    if config.data.problem_type == MULTI:
        return frozenset(itertools.chain.from_iterable(targets))
    return frozenset(targets)


def _strings(table: Table, spec: str, key: str) -> list[str]:
    values = table.column(spec, key)
    for value, place in zip(values, table.places, strict=True):
        if not isinstance(value, str):
            raise UserError(f"{table.source}, {place}: '{spec}' is {value!r}, not a text")
    return values


def _label_columns(config: config_dict.ConfigDict, table: Table) -> list[str]:
    """The columns of several labels at once, one for each; none where one column holds them."""
    if config.data.problem_type != MULTI:
        return []
    names = label_sets.column_names(config.data.label_column, table)
    return names if any(table.find(name) is not None for name in names) else []


def _targets(
    config: config_dict.ConfigDict,
    table: Table,
    split: str,
    spec: glue.GlueTask | None,
    like: frozenset[str],
) -> list[Any] | None:
    """Label names, written as `like` writes them, tuples of them, or numbers; None for a test split
    that has none."""
    data = config.data
    several = _label_columns(config, table)
    if several:
        cells = [table.column(name, "data.label_column") for name in several]
        if split.startswith("test") and all(_hidden(cell) for column in cells for cell in column):
            return _none_shown(table)
        return label_sets.of_columns(table, several, "data.label_column")
    if table.find(data.label_column) is None and split.startswith("test"):
        table.notes.append(f"{table.source} has no labels: it gets predictions, not scores")
        return None
    # JSON's NaN is a missing value.
    values = [
        None if isinstance(x, float) and x != x else x
        for x in table.column(data.label_column, "data.label_column")
    ]
    if split.startswith("test") and all(map(_hidden, values)):
        return _none_shown(table)
    if data.problem_type == SINGLE:  # without a label at all; of several labels none may hold
        values = [None if value is None or not labels.name_of(value) else value for value in values]
    hidden = sum(value is None for value in values)
    if hidden:
        place = table.places[values.index(None)]
        raise UserError(f"{table.source}, {place}: no label ({hidden} rows have none)")
    if data.problem_type == REGRESSION:
        return list(labels.scores(values, table.source, table.places))
    if data.problem_type == MULTI:
        return label_sets.of_cells(table, values)
    for value, place in zip(values, table.places, strict=True):
        if isinstance(value, list | dict):
            raise UserError(
                f"{table.source}, {place}: {value!r:.40} is no single label: set config.data."
                "problem_type=multi_label for lists of labels, or give one"
            )
    if spec:
        like = frozenset(map(str, range(len(spec.labels))))
    names = labels.unified([labels.name_of(value) for value in values], like)
    for mark in ("-", "-1"):
        if unsettled := names.count(mark):
            table.notes.append(
                f"warning: {table.source}: {unsettled} rows have the label '{mark}', which SNLI "
                "and MultiNLI give where annotators disagree: remove them, or it is a class"
            )
    return [glue.label_name(spec, name) for name in names] if spec else names


def _none_shown(table: Table) -> None:
    table.notes.append(f"the labels of {table.source} are hidden: it gets predictions only")


def _hidden(value: Any) -> bool:
    """Whether a label of a test file is none: nothing, or the -1 of GLUE."""
    return value is None or value == [] or labels.name_of(value) in ("", "-1")


def encode(config: config_dict.ConfigDict, tokenizer: Tokenizer, examples: Examples) -> EncodedRows:
    """Rows of at most data.seq_length tokens; says how many texts were cut or windowed."""
    data = config.data
    # Text from files is text: a typed [SEP] is no special token.
    first = tokenizer.encode_batch(examples.texts, special_tokens=False)
    second: Sequence[Any] = [None] * len(first)
    if examples.pairs is not None:
        second = tokenizer.encode_batch(examples.pairs, special_tokens=False)
    room = data.seq_length - (2 if examples.pairs is None else 3) - SHORTEST_ROW
    if data.long_text == "windows" and data.window_overlap > room:
        raise UserError(
            f"config.data.window_overlap={data.window_overlap} leaves windows of config.data."
            f"seq_length={data.seq_length} no room to move: set it to {max(room, 0)} or less"
        )
    lost = [i for i, ids in enumerate(first) if not ids and examples.texts[i].strip()]
    if lost:
        where = sources.places([examples.places[i] for i in lost])
        sources.say_all(
            [f"warning: {examples.source}: no token is left of {len(lost)} texts ({where})"]
        )
    ids, starts, example, weight, cut = [], [], [], [], 0
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        rows, was_cut = text_rows(
            a, b, size=data.seq_length, rule=data.long_text, overlap=data.window_overlap,
            cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id,
        )  # fmt: skip
        cut += was_cut
        for row in rows:
            ids.append(row.ids)
            starts.append(row.second)
            example.append(number)
            weight.append(1 / len(rows))
    if cut:
        sources.say_all([
            f"{examples.source}: {cut:,} of {len(first):,} texts are longer than config.data."
            f"seq_length={data.seq_length} and are cut (config.data.long_text={data.long_text})"
        ])  # fmt: skip
    elif len(ids) > len(first):
        sources.say_all([f"{examples.source}: {len(first):,} texts in {len(ids):,} windows"])
    return EncodedRows(ids, np.array(starts), np.array(example), np.array(weight, np.float32))
