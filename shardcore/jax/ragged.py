"""`Ragged` as a pytree: its arrays are leaves, so it goes through `jax.jit` and the other calls."""

from __future__ import annotations

from typing import Any, Final

from jax import tree_util

from shardcore.ids.ragged import Ragged

__all__ = ["ragged_of"]

_ARRAYS: Final = ("values", "row_splits", "weights", "_given_order")


def ragged_of(*arrays: Any) -> Ragged:
    """Return a Ragged of arrays that are not checked: JAX's own, or what stands for them.

    An engine checks the row_splits of every Ragged that comes to it.

    Parameters
    ----------
    *arrays
        Values, row_splits, and the others of its fields.

    Examples
    --------
    >>> ragged_of("values", "row_splits").weights
    """
    ragged = object.__new__(Ragged)
    for name, array in zip(_ARRAYS, (*arrays, None, None), strict=False):
        object.__setattr__(ragged, name, array)
    return ragged


def _parts(ragged: Ragged) -> tuple[tuple[Any, ...], None]:
    return tuple(getattr(ragged, name) for name in _ARRAYS), None


def _named_parts(ragged: Ragged) -> tuple[tuple[Any, ...], None]:
    return tuple((tree_util.GetAttrKey(name), getattr(ragged, name)) for name in _ARRAYS), None


def _of_parts(_: None, arrays: Any) -> Ragged:
    return ragged_of(*arrays)


tree_util.register_pytree_with_keys(Ragged, _named_parts, _of_parts, _parts)
