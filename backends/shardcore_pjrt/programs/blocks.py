"""Work on many rows, a few at a time: for devices where large temporaries are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["cut", "in_blocks", "moved_by_value"]

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


def moved_by_value(rows: jax.Array) -> jax.Array:
    """Return gathered rows as they are, bit for bit, with an operation on every value.

    XLA on a CPU compiles a gather that only moves rows to calls that copy one row each: 80 ns for a
    row of 256 bytes, and 300 ns where the rows are then added up. With any operation on the values
    it is a loop over vectors: 30 and 70 ns. The operation has to be one that XLA cannot see through
    and that keeps the bits of NaNs.
    """
    bits = np.dtype(f"uint{8 * rows.dtype.itemsize}")
    zero = jax.lax.optimization_barrier(jnp.zeros((), bits))
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(rows, bits) | zero, rows.dtype)
