"""Ids copied and checked on several threads: `take_ids` for large batches."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.ids import own_arrays
from shardcore.memory import pool
from shardcore.store import threads

__all__ = ["take_ids_on_threads", "take_narrow_ids"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_INT32: Final = np.dtype(np.int32)

_MOST_NARROW: Final = 1 << 31
"""Rows of a table whose ids fit 32 bits."""

_PIECE: Final = 1 << 17
"""Least ids that are handed to another thread: some 80 µs of work."""


def take_ids_on_threads(given: Ints, num_rows: int) -> tuple[Ints, int]:
    """Copy ids and check the copies, as `take_ids` does, on as many threads as may be used.

    Parameters
    ----------
    given : ndarray of int32 or int64, shape (n,), C-contiguous, aligned
    num_rows : int

    Returns
    -------
    own : ndarray of the dtype of `given`, shape (n,)
        Complete where all ids are in range.
    bad : int
        The position of the first id outside [0, num_rows), or -1.

    Examples
    --------
    >>> take_ids_on_threads(np.array([3, 0]), 4)
    (array([3, 0]), -1)
    """
    own: Ints = pool.empty(given.size, given.dtype)
    return own, _take_into(given, num_rows, own)


def take_narrow_ids(given: Ints, num_rows: int) -> tuple[Ints, int]:
    """Copy ids in 32 bits, if all rows fit, and check the copies, on as many threads as may be.

    To write and to read, to look rows up by and to sort, they are half the memory.

    Parameters
    ----------
    given : ndarray of int32 or int64, shape (n,), C-contiguous, aligned
    num_rows : int

    Returns
    -------
    own : ndarray of int32, shape (n,)
        Or of the dtype of `given`, where `num_rows` is above 2**31. Of use where all ids are in
        range.
    bad : int
        As `take_ids_on_threads` returns it.

    Examples
    --------
    >>> take_narrow_ids(np.array([3, 0]), 4)
    (array([3, 0], dtype=int32), -1)
    """
    own: Ints = pool.empty(given.size, given.dtype if num_rows > _MOST_NARROW else _INT32)
    return own, _take_into(given, num_rows, own)


def _take_into(given: Ints, num_rows: int, own: Ints) -> int:
    """Return what `take_into` returns, by several threads where there are ids for them."""
    count = given.size
    pieces = min(count // _PIECE, threads.get_num_threads())
    if pieces < 2:
        return own_arrays.take_into(given, num_rows, own)
    limits = [count * piece // pieces for piece in range(pieces + 1)]
    bad = [-1] * pieces

    def take(piece: int) -> None:
        first, last = limits[piece], limits[piece + 1]
        found = own_arrays.take_into(given[first:last], num_rows, own[first:last])
        bad[piece] = found if found < 0 else first + found

    threads.run(pieces, take)
    return next((at for at in bad if at >= 0), -1)
