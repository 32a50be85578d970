"""What a checkpoint of any origin becomes, and how it becomes the first parameters of a model."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from etils import epath

from bertjax.errors import UserError
from bertjax.interop.names import (
    FIELDS,
    HEADS,
    TENSORS,
    Tensor,
    get,
    import_tensor,
    put,
    tensors_of,
)
from bertjax.model.config import BertConfig

if TYPE_CHECKING:
    from bertjax.data.tokenizer import Tokenizer

_SHOWN_NAMES = 6


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What of a checkpoint was used. `str()` is the line that a log shows.

    Encoder tensors are counted as published: one a layer, the pooler's two among them. `new` are
    the parameters that a model had to initialise itself; before there is a model it is None, and
    `missing` are the optional ones, the pooler's, that the file does not have.
    """

    loaded: int
    expected: int
    heads: tuple[str, ...]
    left_over: tuple[str, ...]
    checksum: str
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] | None = None

    def __str__(self) -> str:
        heads = f" and the heads {', '.join(self.heads)}" if self.heads else ""
        rest = f"missing: {_some(self.missing)}"
        if self.new is not None:
            rest = f"newly initialised: {_some(self.new)}"
        return (
            f"{self.loaded} of {self.expected} encoder tensors loaded{heads}, "
            f"left over: {_some(self.left_over)}, {rest}, parameter checksum {self.checksum}"
        )


@dataclasses.dataclass(frozen=True)
class Published:
    """A checkpoint in memory, whatever it was on disk.

    Attributes:
        source: the path or name it was read from.
        config: fields of `BertConfig`.
        params: float32 NumPy arrays in our layout: all of 'bert' (the pooler if it was stored)
            and the heads that were there. Vocabulary rows are padded with zeros.
        tokenizer: None where the checkpoint comes without a vocabulary.
        labels: names of the classes by number, for classifier and tagger.
        problem_type: of the classifier: 'single_label', 'multi_label' or 'regression'.
        coverage: tensors of the file that were used and that were not.
        notes: sentences about what was surprising.
        settings: the resolved config of the run that made a workdir, and its 'artifacts'; empty
            for other kinds.
        step: of a workdir; None for other kinds.
    """

    source: str
    config: dict[str, Any]
    params: dict[str, Any]
    tokenizer: Tokenizer | None
    labels: tuple[str, ...] | None
    problem_type: str
    coverage: Coverage
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads in `params`."""
        return tuple(head for head in HEADS if head in self.params)

    @property
    def regression(self) -> bool:
        """Whether the classifier gives one number that is not a class."""
        return self.problem_type == "regression"

    def bert_config(self, **overrides: Any) -> BertConfig:
        """The model's config; `overrides` for what a checkpoint does not fix, such as dtype."""
        return BertConfig(**{**self.config, **overrides})


def _some(names: Sequence[str]) -> str:
    """A readable list: the first names and how many follow."""
    if not names:
        return "none"
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def checksum(params: Mapping[str, Any]) -> str:
    """CRC-32 over paths and bytes of all parameters, in eight hexadecimal digits."""
    crc = 0
    for tensor in TENSORS:
        array = get(params, tensor.path)
        if array is not None:
            crc = zlib.crc32(tensor.path.encode(), crc)
            crc = zlib.crc32(np.ascontiguousarray(array), crc)
    return f"{crc:08x}"


def check_new_folder(folder: str, *, remote: bool) -> None:
    """Raises UserError where `folder` has files or cannot be opened, or lies on another machine's
    storage (gs://...) although no `remote` one can be written to."""
    if "://" in folder and not remote:
        raise UserError(f"{folder} is no folder of this machine; write to one and copy it there.")
    try:
        root = epath.Path(folder)
        free = not root.exists() or (root.is_dir() and not any(root.iterdir()))
    except (OSError, KeyError, ImportError, ValueError) as error:
        raise UserError(f"{folder} cannot be opened ({error}).") from error
    if not free:
        raise UserError(f"{folder} is not empty; name a new folder.")


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raises UserError where `config` makes no model; `where` names its file."""
    for name in ("num_layers", "num_heads", *FIELDS.values()):
        value = config[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{where}: {name} is {value!r}, which is not a whole number.")
    for name in ("hidden_dropout", "attention_dropout", "layer_norm_eps", "initializer_range"):
        value = config[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise UserError(f"{where}: {name} is {value!r}; it must be a number in [0, 1).")
    try:
        BertConfig(**config)
    except (ValueError, TypeError) as error:
        raise UserError(f"{where}: {error}.") from error


def _check_shapes(
    tensor: Tensor,
    source: Mapping[str, np.ndarray],
    style: str,
    config: Mapping[str, Any],
    where: str,
) -> None:
    """Raises UserError where a stored shape is not what the config says."""
    for name in tensor.names(style, config["num_layers"]):
        shape = source[name].shape
        ours = shape[::-1] if tensor.transposed(style) else shape
        if len(ours) != len(tensor.dims):
            raise UserError(f"{where}: tensor '{name}' has the shape {shape}, not {tensor.dims}.")
        for letter, size in zip(tensor.dims, ours, strict=True):
            field = FIELDS.get(letter)
            expected = config[field] if field else 2 if letter == "2" else size
            if size != expected:
                what = f"{field}={expected}" if field else f"{expected} outputs"
                raise UserError(
                    f"{where}: the config says {what}, but tensor '{name}' has the shape "
                    f"{shape}; one of the two files belongs to another model."
                )


def _imported(
    tensor: Tensor, source: Mapping[str, np.ndarray], style: str, layers: int, where: str
) -> np.ndarray:
    """Our array; raises UserError where it is not of weights: integers, NaN or infinity."""
    names = tensor.names(style, layers)
    for name in names:
        if source[name].dtype.kind in "iub":
            raise UserError(
                f"{where}: tensor '{name}' holds {source[name].dtype}, not floating point; "
                "quantised weights are not read here."
            )
    with np.errstate(over="ignore"):  # float64 beyond float32: found below
        array = import_tensor(tensor, source, style, layers)
        if not np.isfinite(array).all():
            bad = [n for n in names if not np.isfinite(source[n].astype(np.float32)).all()]
            raise UserError(
                f"{where}: tensor '{bad[0]}' holds NaN or infinity, so the model can answer "
                "nothing; take another checkpoint."
            )
    return array


def _missing_layers(tensor_names: Sequence[str], num_layers: int) -> str:
    """'; the config says num_layers=12' where the missing names are those of whole layers."""
    layered = any(".layer." in name or "/layer_" in name for name in tensor_names)
    return f"; the config says num_layers={num_layers}" if layered else ""


def assemble(
    source: Mapping[str, np.ndarray],
    style: str,
    config: Mapping[str, Any],
    heads: Sequence[str],
    where: str,
) -> tuple[dict[str, Any], Coverage]:
    """Our parameter tree from published arrays.

    Args:
        source: arrays by published name.
        style: HUGGINGFACE or GOOGLE, whose names they are.
        config: fields of BertConfig that the shapes must agree with.
        heads: the heads to look for; an absent one is left out.
        where: the file or folder that an error names.

    Raises:
        UserError: nothing matches, part of the encoder or of a head is missing, the config
            contradicts a shape, or the file has more layers than the config.
    """
    layers = config["num_layers"]
    params: dict[str, Any] = {}
    used: set[str] = set()
    if layers > len(source):
        raise UserError(
            f"{where}: the config says num_layers={layers}, but only {len(source)} tensors are "
            "there; one of the two files belongs to another model."
        )
    encoder = [name for t in tensors_of(()) for name in t.names(style, layers)]
    found = [name for name in encoder if name in source]
    if not found:
        raise UserError(
            f"{where}: 0 of {len(encoder)} encoder tensors matched; its names begin with "
            f"{_some(sorted(source)[:3])}, where '{encoder[0]}' was expected."
        )
    for tensor in tensors_of(heads):
        names = tensor.names(style, layers)
        missing = [name for name in names if name not in source]
        siblings = [n for t in TENSORS if t.head == tensor.head for n in t.names(style, layers)]
        absent = tensor.head != "bert" and not any(name in source for name in siblings)
        if not names or absent or (missing and tensor.path.startswith("bert/pooler")):
            continue
        if missing and tensor.head != "bert":
            raise UserError(f"{where}: the {tensor.head} head lacks {_some(missing)}.")
        if missing:
            raise UserError(
                f"{where}: only {len(found)} of {len(encoder)} encoder tensors are there, "
                f"missing: {_some(missing)}{_missing_layers(missing, layers)}."
            )
        _check_shapes(tensor, source, style, config, where)
        put(params, tensor.path, _imported(tensor, source, style, layers, where))
        used.update(names)
    left_over = sorted(set(source) - used)
    deeper = [t.names(style, layers + 1)[-1] for t in TENSORS if t.layered]
    if any(name in source for name in deeper):
        raise UserError(
            f"{where}: the config says num_layers={layers}, but the weights hold more: "
            f"{_some([name for name in deeper if name in source])}."
        )
    coverage = Coverage(
        loaded=len(found),
        expected=len(encoder),
        heads=tuple(head for head in HEADS if head in params),
        left_over=tuple(left_over),
        checksum=checksum(params),
        missing=tuple(t.path for t in tensors_of(()) if get(params, t.path) is None),
    )
    return params, coverage


def whole_encoder(params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with the layers that training froze put back in front of the others."""
    bert = dict(params["bert"])
    frozen = bert.pop("frozen_encoder", None)
    if frozen is not None and "encoder" in bert:
        bert["encoder"] = jax.tree.map(
            lambda low, high: np.concatenate([low, high]), frozen, bert["encoder"]
        )
    elif frozen is not None:
        bert["encoder"] = frozen
    return {**params, "bert": bert}


def _split_encoder(params: dict[str, Any], frozen: int) -> dict[str, Any]:
    """The inverse of `whole_encoder` for a model whose lowest `frozen` layers are frozen."""
    encoder = params["bert"].pop("encoder")
    layers = len(jax.tree.leaves(encoder)[0])
    if frozen:
        params["bert"]["frozen_encoder"] = jax.tree.map(lambda x: x[:frozen], encoder)
    if frozen < layers:
        params["bert"]["encoder"] = jax.tree.map(lambda x: x[frozen:], encoder)
    return params


def _model_shapes(abstract_params: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], int]:
    """Shape by path with the encoder whole, and how many layers are frozen."""
    shapes: dict[str, tuple[int, ...]] = {}
    frozen = 0
    for tensor in TENSORS:
        leaf = get(abstract_params, tensor.path)
        low = get(abstract_params, tensor.path.replace("bert/encoder/", "bert/frozen_encoder/"))
        if tensor.layered and low is not None:
            frozen = low.shape[0]
            more = 0 if leaf is None else leaf.shape[0]
            shapes[tensor.path] = (frozen + more, *low.shape[1:])
        elif leaf is not None:
            shapes[tensor.path] = tuple(leaf.shape)
    return shapes, frozen


def _refuse_encoder(
    published: Published, tensor: Tensor, stored: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    """Raises UserError for an encoder tensor of another shape than the model's."""
    if tensor.layered and stored[0] != wanted[0]:
        names = tensor.names("huggingface", wanted[0])[stored[0] :]
        missing = f"; missing: {_some(names)}" if names else ""
        raise UserError(
            f"{published.source} has {stored[0]} layers but the model has num_layers="
            f"{wanted[0]}{missing}; give the model the checkpoint's size."
        )
    raise UserError(
        f"'{tensor.path}' has the shape {stored} in {published.source} but {wanted} in the model; "
        "give the model the checkpoint's sizes and vocabulary."
    )


def initial_params(
    published: Published,
    abstract_params: Mapping[str, Any],
    *,
    new_head: bool = False,
    encoder_only: bool = False,
) -> tuple[dict[str, Any], Coverage]:
    """The part of a model's parameters that a checkpoint gives.

    Args:
        published: what `read_checkpoint` returned.
        abstract_params: the model's parameter tree without boxes; leaves have `.shape`.
        new_head: whether a head of another size than the model's is left for a fresh one.
        encoder_only: start the encoder from the checkpoint and every head afresh.

    Returns:
        (params, coverage). `params` is a tree of float32 NumPy arrays in the model's structure
        where the parameters in `coverage.new` are absent: the caller initialises those.

    Raises:
        UserError: an encoder tensor has another shape than the model's, or a head has and no
            `new_head` is asked for.
    """
    shapes, frozen = _model_shapes(abstract_params)
    params: dict[str, Any] = {}
    new: list[str] = []
    reset = {head for head in published.heads if encoder_only}
    for tensor in TENSORS:
        array, wanted = get(published.params, tensor.path), shapes.get(tensor.path)
        if array is None or wanted is None or array.shape == wanted:
            continue
        if tensor.head == "bert":
            _refuse_encoder(published, tensor, array.shape, wanted)
        if not (new_head or encoder_only):
            raise UserError(
                f"the head '{tensor.head}' has {array.shape[-1]} outputs in {published.source} "
                f"but {wanted[-1]} in the model; match it, or set config.new_head=True to train a "
                "new head."
            )
        reset.add(tensor.head)
    for tensor in TENSORS:
        array = get(published.params, tensor.path)
        if tensor.path not in shapes:
            continue
        if array is None or tensor.head in reset:
            new.append(tensor.path)
        else:
            put(params, tensor.path, array)
    unused = tuple(
        tensor.path
        for tensor in TENSORS
        if get(published.params, tensor.path) is not None and get(params, tensor.path) is None
    )
    coverage = Coverage(
        loaded=published.coverage.loaded,
        expected=published.coverage.expected,
        heads=tuple(head for head in HEADS if head in params),
        left_over=published.coverage.left_over + unused,
        checksum=checksum(params),
        new=tuple(new),
    )
    return _split_encoder(params, frozen) if frozen else params, coverage
