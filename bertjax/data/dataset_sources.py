"""Sources that are datasets of a library: TFDS (on this machine) and the Hugging Face hub."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from bertjax.data.reading import Document, Reading, check_text, missing_field
from bertjax.errors import UserError

_SPEC = re.compile(
    r"(tfds|hub):(?P<name>[^:]+):(?P<split>[^:\[]+(?:\[[^\]]*\])?)(?::(?P<field>.+))?"
)
# The markers of TFDS's wiki40b: a title, a heading, a paragraph, a line end.
_WIKI40B = re.compile(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_")


def reader(spec: str) -> Callable[[Reading], Iterator[Document]]:
    """The reader of 'tfds:NAME/CONFIG:SPLIT[:FIELD]' or 'hub:ORG/NAME/CONFIG:SPLIT[:FIELD]'.

    Raises:
        UserError: another form, or nothing has that name on this machine (tfds).
    """
    kind = spec.partition(":")[0]
    match = _SPEC.fullmatch(spec)
    if not match:
        owner = "ORG/" if kind == "hub" else ""
        raise UserError(f"source {spec!r} is not {kind}:{owner}NAME[/CONFIG]:SPLIT[:FIELD]")
    name, split, field = match["name"], match["split"], match["field"] or "text"
    if kind == "hub":
        return lambda reading: _documents(
            _hub_rows(_hub_dataset(name, split), name, split), field, spec
        )
    folder = find_tfds(name)
    return lambda reading: _documents(_tfds_rows(folder, split, spec), field, spec)


def _documents(rows: Iterable[dict[str, Any]], field: str, spec: str) -> Iterator[Document]:
    for row in rows:
        if field not in row:
            raise missing_field(field, row, spec)
        value = _text(row[field])
        parts = [value] if isinstance(check_text(value, field, spec), str) else value
        yield itertools.chain.from_iterable(lines(part) for part in parts if part)


def lines(text: str) -> list[str]:
    """Lines of a text, with wiki40b's markers understood."""
    if "_START_" in text or "_NEWLINE_" in text:
        text = _WIKI40B.sub("\n", text)
    return text.split("\n")


def _text(value: Any) -> Any:
    """TFDS gives bytes, and arrays of them."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [_text(part) for part in value] if isinstance(value, list) else value


# TFDS


def data_folders() -> list[epath.Path]:
    """Where TFDS keeps prepared datasets on this machine."""
    named = os.environ.get("TFDS_DATA_DIR")
    return [epath.Path(named or "~/tensorflow_datasets").expanduser()]


def find_tfds(name: str) -> epath.Path:
    """The folder of the newest prepared version of NAME[/CONFIG]; never calls the network.

    Raises:
        UserError: it is not prepared here; the message says what is, or how to prepare it.
    """
    if (epath.Path(name) / "dataset_info.json").exists():
        return epath.Path(name)
    for root in data_folders():
        folder = root / name
        if versions := _versions(folder):
            return versions[-1]
        configs = (
            sorted(p.name for p in folder.iterdir() if _versions(p)) if folder.is_dir() else []
        )
        if len(configs) == 1:
            return _versions(folder / configs[0])[-1]
        if configs:
            raise UserError(f"dataset {name} has several configs: name one of {', '.join(configs)}")
    roots = " or ".join(os.fspath(root) for root in data_folders())
    base = name.partition("/")[0]
    prepared, known = _prepared(), _known()
    if base in known:
        raise UserError(
            f"dataset {name} is not prepared in {roots}: run "
            f"'tfds build {name} --file_format=array_record', or set TFDS_DATA_DIR"
        )
    near = difflib.get_close_matches(name, sorted(prepared), 3, 0.5)
    near += difflib.get_close_matches(base, sorted(known), 3, 0.5)
    hint = f"the nearest names are {', '.join(near)}" if near else "set TFDS_DATA_DIR"
    raise UserError(f"no dataset {name} in {roots} and none that TFDS knows: {hint}")


def _versions(folder: epath.Path) -> list[epath.Path]:
    """Folders of versions that are complete, the newest last."""
    if not folder.is_dir():
        return []
    found = [
        path
        for path in folder.iterdir()
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and (path / "dataset_info.json").exists()
    ]
    return sorted(found, key=lambda path: tuple(map(int, path.name.split("."))))


def _prepared() -> set[str]:
    """Names, with configs, of everything in the data folders."""
    names = set()
    for root in data_folders():
        for folder in root.iterdir() if root.is_dir() else ():
            if not folder.is_dir():
                continue
            if _versions(folder):
                names.add(folder.name)
            names |= {f"{folder.name}/{p.name}" for p in folder.iterdir() if _versions(p)}
    return names


def _known() -> set[str]:
    """Names of the builders in the installed package, from its files: imports none of them."""
    import tensorflow_datasets as tfds

    package = pathlib.Path(tfds.__file__).parent
    folders = ("datasets", "text", "question_answering", "summarization", "translate", "structured")
    files = (path for folder in folders for path in (package / folder).glob("[a-z]*"))
    return {path.stem for path in files if not path.stem.endswith("_test")}


def _tfds_rows(folder: epath.Path, split: str, spec: str) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    if split.partition("[")[0] not in builder.info.splits:
        names = ", ".join(builder.info.splits)
        raise UserError(f"{spec} has no split {split!r}: its splits are {names}")
    random_access = {f for f in tfds.core.FileFormat if f.value in ("array_record", "bagz")}
    if builder.info.file_format in random_access:
        yield from builder.as_data_source(split)
        return
    try:
        import tensorflow as tf
    except ImportError:
        raise UserError(
            f"{spec} is stored as {builder.info.file_format.value}, which needs TensorFlow: "
            "install it, or prepare the dataset with --file_format=array_record"
        ) from None
    for kind in ("GPU", "TPU"):
        tf.config.set_visible_devices([], kind)  # they are JAX's
    yield from tfds.as_numpy(builder.as_dataset(split, shuffle_files=False))


# Hugging Face hub


def _hub_dataset(name: str, split: str) -> Any:
    """A datasets.IterableDataset. UserError where the library, the dataset or the network lacks."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            "hub: sources need the package datasets: pip install 'bertjax[hub]'"
        ) from None
    path, config = name, None
    if not os.path.isdir(name) and name.count("/") == 2:
        path, _, config = name.rpartition("/")
    with _hub_errors(name, split):
        return datasets.load_dataset(path, config, split=split, streaming=True)


def _hub_rows(dataset: Any, name: str, split: str) -> Iterator[dict[str, Any]]:
    with _hub_errors(name, split):
        yield from dataset


@contextlib.contextmanager
def _hub_errors(name: str, split: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library's errors have no common class
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"hub:{name}:{split} could not be read ({type(error).__name__}: {reason}): check the "
            "name, the split and the network"
        ) from error


# Labelled rows, for fine-tuning


def labelled_rows(spec: str) -> Iterator[dict[str, Any]]:
    """Rows of 'tfds:NAME/CONFIG:SPLIT' or 'hub:NAME/CONFIG:SPLIT', classes by name, also those in
    lists.

    A class of -1, which datasets give to hidden labels, is None.

    Raises:
        UserError: another form, or the dataset is not there.
    """
    match = _SPEC.fullmatch(spec)
    if not match or match["field"]:
        raise UserError(f"source {spec!r} is not {spec.partition(':')[0]}:NAME[/CONFIG]:SPLIT")
    if spec.startswith("hub:"):
        dataset = _hub_dataset(match["name"], match["split"])
        rows, features = _hub_rows(dataset, match["name"], match["split"]), dataset.features or {}
    else:
        import tensorflow_datasets as tfds

        folder = find_tfds(match["name"])
        features = tfds.builder_from_directory(folder).info.features
        rows = _tfds_rows(folder, match["split"], spec)
    classes = {name: names for name, feature in features.items() if (names := _classes(feature))}
    for row in rows:
        yield {**row, **{name: _named(row[name], names) for name, names in classes.items()}}


def _classes(feature: Any) -> list[str] | None:
    """Names of a ClassLabel or of a sequence of them, of TFDS or of the hub; None of others."""
    feature = getattr(feature, "feature", feature)
    return feature.names if type(feature).__name__ == "ClassLabel" else None


def _named(value: Any, names: list[str]) -> Any:
    if value is None:
        return None
    if np.ndim(value):
        return [_named(part, names) for part in value]
    return names[value] if value >= 0 else None
