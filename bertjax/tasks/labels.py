"""Labels: found in the training file, kept by name, matched by name with a checkpoint's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.sources import places


def name_of(value: Any) -> str:
    """The name of a label."""
    return str(value).strip()


def unified(names: Sequence[str], like: Set[str] = frozenset()) -> list[str]:
    """The names; where '1' and '1.0' both occur, which programs write of one number, one of them:
    that of `like`, or else the shortest."""
    forms: dict[str, set[str]] = {}
    for name in {*names, *like}:
        if re.fullmatch(r"-?\d+(\.0+)?", name):
            forms.setdefault(name.partition(".")[0], set()).add(name)
    taken = {x: min(xs & like or xs, key=len) for xs in forms.values() for x in xs - like}
    return [taken.get(x, x) for x in names]


def few(labels: Sequence[str]) -> str:
    """The first labels, shortened, and how many there are: a column of texts is soon taken for
    labels."""
    shown = ", ".join(label if len(label) <= 60 else f"{label[:60]}..." for label in labels[:12])
    more = f" ... ({len(labels):,} in all: is config.data.label_column right?)"
    return shown + more * (len(labels) > 12)


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels, numbers by value and then names by the alphabet."""

    def key(label: str) -> tuple[bool, float, str]:
        number = re.fullmatch(r"-?\d+(\.\d+)?", label)
        return (not number, float(label) if number else 0.0, label)

    return tuple(sorted(set(labels), key=key))


def settle(
    found: Iterable[str], known: Sequence[str] | None, new_head: bool, init_from: str
) -> tuple[tuple[str, ...], bool]:
    """The labels of the model in the order of its outputs, and whether its head must be fresh.

    Args:
        found: labels of the training data; empty where there is none.
        known: those of the checkpoint, in the order of its head; None where it has none.
        new_head: config.new_head: another head may be put in place of the checkpoint's.
        init_from: the checkpoint, for messages.

    Raises:
        UserError: the checkpoint's labels do not cover those found, and no new head is allowed.
    """
    labels = ordered(found)
    if known is None or (new_head and set(labels) - set(known)):
        return labels, known is not None
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise UserError(
            f"the training data has the label '{unknown[0]}', which the head of "
            f"{init_from or 'the workdir'} does not know (it knows {few(known)}): name them "
            "alike, or set config.new_head=True to train a new head"
        )
    return tuple(known), False


def numbers(
    values: Sequence[str], labels: Sequence[str], source: str, where: Sequence[str]
) -> np.ndarray:
    """int32 [n], the number of each label.

    Raises:
        UserError: a label that is none of `labels`; the message says where it stands.
    """
    index = {label: i for i, label in enumerate(labels)}
    unknown = next((value for value in values if value not in index), None)
    if unknown is not None:
        at = dict.fromkeys(w for value, w in zip(values, where, strict=True) if value == unknown)
        raise UserError(
            f"{source}: the label '{unknown:.60}' ({places(list(at))}) is none of the training "
            f"labels {few(labels)}: correct it, take it out, or train on an example of it, too"
        )
    return np.array([index[value] for value in values], np.int32)


def scores(values: Sequence[Any], source: str, where: Sequence[str]) -> np.ndarray:
    """float64 [n] of a regression's targets. UserError for one that is no number."""
    found = []
    for value, place in zip(values, where, strict=True):
        try:
            found.append(float(value))
        except (TypeError, ValueError):
            raise UserError(
                f"{source}, {place}: '{value}' is no number, but config.data.problem_type is "
                "regression"
            ) from None
        if not np.isfinite(found[-1]):
            raise UserError(f"{source}, {place}: the score {value} is not finite")
    return np.array(found)


def counts_text(values: Iterable[str], labels: Sequence[str]) -> str:
    """'negative 3,310 (48 %), positive 3,610 (52 %)'."""
    counts = Counter(values)
    total = max(1, sum(counts.values()))
    return ", ".join(f"{x} {counts[x]:,} ({100 * counts[x] / total:.0f} %)" for x in labels)


def class_weights(spec: str, labels: Sequence[str], counts: Mapping[str, int]) -> np.ndarray | None:
    """float32 [C] of train.class_weights: 'balanced' gives n / (C * count), as scikit-learn.

    Raises:
        UserError: a form that is not understood, or a label that is not there.
    """
    if not spec:
        return None
    if spec == "balanced":
        total = sum(counts.values())
        return np.array(
            [total / (len(labels) * max(1, counts[label])) for label in labels], np.float32
        )
    weights, named = np.ones(len(labels), np.float32), set()
    for item in spec.split(","):
        label, equals, value = (part.strip() for part in item.rpartition("="))
        if label in named:
            raise UserError(f"config.train.class_weights={spec}: {label} has two weights: give one")
        named.add(label)
        try:
            weights[list(labels).index(label)] = float(value)
        except ValueError:
            raise UserError(
                f"config.train.class_weights={spec}: '{item}' is not LABEL=WEIGHT with a label of "
                f"{few(labels)}; or say balanced"
            ) from None
        if not equals or weights.min() < 0 or not np.isfinite(weights).all():
            raise UserError(f"config.train.class_weights={spec}: weights are numbers from 0 on")
    if not weights.any():
        raise UserError(
            f"config.train.class_weights={spec}: every weight is 0, so nothing is learnt"
        )
    return weights
