"""Work on many rows, a few at a time: for devices where large temporaries are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

__all__ = ["cut", "in_blocks"]

T = TypeVar("T")


def in_blocks(count: int, size: int, work: Callable[[Any, Any, T], T], carried: T) -> T:
    """Return `carried` after `work` on each block of some things, one after the other.

    Parameters
    ----------
    count : int
        How many things there are.
    size : int
        Of a block; at least 1.
    work : callable
        ``(start, old, carried) -> carried``: the block is the `size` things from `start` on; the
        first `old` of them were in the block before, as the last block ends where things end.
    carried : tree of arrays
        It is updated where it lies, if `work` reads what it needs of it once, and then changes it.
    """
    if size >= count:
        return work(0, 0, carried)

    def block(at: jax.Array, carried: T) -> T:
        start = jnp.minimum(at * size, count - size)
        return work(start, at * size - start, carried)

    done: T = jax.lax.fori_loop(0, -(-count // size), block, carried)
    return done


def cut(array: jax.Array, start: Any, size: int) -> jax.Array:
    """Return `size` entries of an array from `start` on."""
    return array if size == array.shape[0] else jax.lax.dynamic_slice_in_dim(array, start, size)
