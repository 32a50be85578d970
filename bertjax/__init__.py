"""BERT in JAX and Flax. `bertjax.load(path)` opens a checkpoint of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.api import Bert, load

__all__ = ["Bert", "load"]


def __getattr__(name: str) -> Any:
    """`load` and `Bert` on first use: importing bertjax must not start JAX."""
    if name in __all__:
        from bertjax import api

        return getattr(api, name)
    raise AttributeError(f"module 'bertjax' has no attribute '{name}'")
