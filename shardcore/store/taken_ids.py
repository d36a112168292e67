"""Ids copied and checked on several threads: `take_ids` for large batches."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.ids import own_arrays
from shardcore.memory import pool
from shardcore.store import threads

__all__ = ["take_ids_on_threads"]

Ints = NDArray[np.int32] | NDArray[np.int64]

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
    count = given.size
    if count < 2 * _PIECE:
        return own_arrays.take_ids(given, num_rows)
    pieces = min(count // _PIECE, threads.get_num_threads())
    if pieces < 2:
        return own_arrays.take_ids(given, num_rows)
    own = pool.empty(count, given.dtype)
    limits = [count * piece // pieces for piece in range(pieces + 1)]
    bad = [-1] * pieces

    def take(piece: int) -> None:
        first, last = limits[piece], limits[piece + 1]
        found = own_arrays.take_into(given[first:last], num_rows, own[first:last])
        bad[piece] = found if found < 0 else first + found

    threads.run(pieces, take)
    return own, next((at for at in bad if at >= 0), -1)
