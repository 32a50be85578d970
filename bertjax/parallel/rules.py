"""Where each logical axis of an array lies on the mesh: one table, and nothing beside it.

The model names the axes of its parameters; this table says which mesh axis each name takes. A
name that is not in the table, a parameter without names and a size that its mesh axis does not
divide are errors, because an array that quietly stays whole on every device is the commonest way
to run out of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.errors import UserError
from bertjax.parallel.mesh import ROW_AXES

RULES: dict[str, tuple[str, ...]] = {
    # What the steps cut up.
    "batch": ROW_AXES,
    "length": (),
    # The axes of parameters. Every matrix has `embed` (H) once, so fsdp splits every matrix.
    "embed": ("fsdp",),
    "vocab": ("tensor",),
    "heads": ("tensor",),  # A heads of K columns side by side; A must divide, not only A * K
    "mlp": ("tensor",),
    "layers": (),
    # Whole over `tensor`: a few matrices beside the L layers, and vectors.
    "pooled": (),
    "transform": (),
    "position": (),
    "token_type": (),
    "classes": (),
    "norm": (),
}


def partition_spec(names: Sequence[str], gathered: bool = False) -> PartitionSpec:
    """The mesh axes of an array whose axes are called `names`; without fsdp if `gathered`.

    A mesh axis serves once in an array: where two names ask for it, the first has it. Vectors
    (one axis beside `layers`) are not split over fsdp: they are less than a thousandth of the
    bytes, and each would cost a gather of its own. Raises ValueError for an unknown name.
    """
    for name in names:
        if name not in RULES:
            raise ValueError(f"unknown logical axis {name!r}: not one of {', '.join(RULES)}")
    vector = len([name for name in names if name != "layers"]) < 2
    taken = {"fsdp"} if gathered or vector else set()
    entries: list[Any] = []
    for name in names:
        axes = tuple(axis for axis in RULES[name] if axis not in taken)
        taken.update(axes)
        entries.append(axes[0] if len(axes) == 1 else axes or None)
    return PartitionSpec(*entries)


def shardings(mesh: Mesh, boxed: Any) -> Any:
    """The NamedSharding of every leaf of a tree of (abstract) arrays boxed with axis names.

    Raises ValueError for a leaf without a name for each of its axes or with an unknown name, and
    UserError where a mesh axis does not divide the axis it should split.
    """

    def one(where: str, shape: tuple[int, ...], names: Sequence[str]) -> NamedSharding:
        spec = partition_spec(names)
        _check_divides(mesh, where, shape, names, spec)
        return NamedSharding(mesh, spec)

    return _map_names(one, boxed)


def gathered_shardings(mesh: Mesh, boxed: Any) -> Any:
    """Where parameters lie while a step uses them: those outside the stack of layers whole over
    fsdp, since the partitioner would else split activations by their rows' weights and compute
    heads once for each device. Layers stay in pieces; the scan gathers one at a time."""

    def one(where: str, shape: tuple[int, ...], names: Sequence[str]) -> NamedSharding:
        return NamedSharding(mesh, partition_spec(names, gathered="layers" not in names))

    return _map_names(one, boxed)


def _map_names(function: Callable[..., Any], boxed: Any) -> Any:
    """tree.map of function(path, shape, names) over boxed leaves; others raise ValueError."""

    def one(path: jax.tree_util.KeyPath, leaf: Any) -> Any:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        names = getattr(leaf, "names", None)
        shape = leaf.shape if names is None else leaf.value.shape
        if names is None or len(names) != len(shape):
            raise ValueError(f"{where} {shape}: axis names {names}, not one for each axis")
        try:
            return function(where, shape, names)
        except UserError:
            raise
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    return jax.tree_util.tree_map_with_path(one, boxed, is_leaf=nn.meta.is_axis_metadata)


def _check_divides(
    mesh: Mesh, where: str, shape: Sequence[int], names: Sequence[str], spec: PartitionSpec
) -> None:
    for size, name, entry in zip(shape, names, spec, strict=True):
        axes = (entry,) if isinstance(entry, str) else (entry or ())
        parts = math.prod(mesh.shape[axis] for axis in axes)
        if size % parts:
            what = " * ".join(f"mesh.{axis}" for axis in axes)
            raise UserError(
                f"{what} = {parts} does not divide axis {name} of {where}, which has {size}: "
                f"choose sizes of which {parts} is a divisor, or another mesh."
            )


def check_heads(num_heads: int, mesh: Mesh) -> None:
    """Raise UserError unless each device of the tensor axis gets whole attention heads."""
    tensor = mesh.shape["tensor"]
    if num_heads % tensor:
        raise UserError(
            f"model.num_heads is {num_heads}, which mesh.tensor = {tensor} does not divide: "
            "whole heads go to each device, so choose a mesh.tensor that divides the heads."
        )


def shardings_like(mesh: Mesh, params: Any, tree: Any) -> Any:
    """Shardings of a tree that holds copies of the parameters' shapes, such as optimizer state.

    params: arrays with shardings. A leaf of `tree` whose path ends in the path of a parameter of
    the same shape lies as that parameter does; a scalar is copied to every device; anything else
    raises ValueError.
    """
    known = {tuple(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}

    def one(path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        for start in range(len(path)):
            parameter = known.get(tuple(path[start:]))
            if parameter is not None and parameter.shape == leaf.shape:
                return parameter.sharding
        if leaf.ndim == 0:
            return NamedSharding(mesh, PartitionSpec())
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        raise ValueError(f"{where} {leaf.shape} is not a scalar and goes with no parameter")

    return jax.tree_util.tree_map_with_path(one, tree)
