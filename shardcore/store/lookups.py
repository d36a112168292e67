"""Lookups that threads share: in many tables at once, or of many bags in one.

The face of ``_core/lookups.pxi``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.store import threads
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.stored_rows import StoredRows

__all__ = ["Request", "look_up"]

_kernel = best_module("shardcore._core.rows")

Ints = NDArray[np.int32] | NDArray[np.int64]

Request: TypeAlias = tuple[
    StoredRows, Ints, NDArray[np.int64], NDArray[Any] | None, NDArray[Any] | None, NDArray[Any]
]
"""``(rows, ids, row_splits, weights, divisors, out)``: as `segment_reduce` takes them."""


def look_up(requests: Sequence[Request], divided: int = _kernel.GIVEN_DIVISORS) -> bool:
    """Write what `segment_reduce` returns for each request to its `out`; say whether it is right.

    Threads share the work on all of them.

    Parameters
    ----------
    requests : sequence of Request
        Row splits are checked. If an id is out of range, no row is read for it, and the answer is
        False.
    divided : int
        As `reduce_bags` takes it.

    Examples
    --------
    >>> rows = StoredRows(np.array([[1, 2], [3, 4]], np.float32), {})
    >>> ids, row_splits, out = np.array([1, 0]), np.array([0, 2]), np.empty((1, 2), np.float32)
    >>> look_up([(rows, ids, row_splits, None, None, out)]), out.tolist()
    (True, [[4.0, 6.0]])
    """
    lookups = _kernel.Lookups()
    for rows, ids, row_splits, weights, divisors, out in requests:
        lookups.add(rows.found, ids, row_splits, weights, divisors, out, divided)
    count = threads.cut(lookups, threads.PIECE)
    right = [True] * count

    def make(number: int) -> None:
        right[number] = lookups.make(PACE.asking)

    threads.run(count, make)
    return all(right)
