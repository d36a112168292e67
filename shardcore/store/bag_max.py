"""The greatest value per column of each bag, and gradients for the rows that have it.

As torch's ``embedding_bag(mode="max")``: a row wins a column if it is greater than all before it,
so the first of equals does, and a NaN counts only where it is the first. An empty bag is 0. The
face of ``_core/bag_max.pyx``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore._core import bag_max as _kernel
from shardcore.store.segment_reduce import TYPE_NAMES
from shardcore.threads import team

__all__ = ["at_winners", "max_of_bags"]

Winners = NDArray[np.int32] | NDArray[np.int64]


def max_of_bags(rows: NDArray[Any], row_splits: NDArray[np.int64]) -> tuple[NDArray[Any], Winners]:
    """Return the greatest values of each bag, and which row has each; several threads work.

    Parameters
    ----------
    rows : ndarray of float32 or float64, shape (n, dim), C-contiguous
        One per occurrence.
    row_splits : ndarray of int64, shape (bags + 1,), checked

    Returns
    -------
    out : ndarray like `rows`, shape (bags, dim)
    winners : ndarray of int32, or int64 where n needs it, shape (bags, dim)
        Positions among `rows`; -1 for an empty bag.

    Examples
    --------
    >>> out, winners = max_of_bags(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([0, 2, 2]))
    >>> out
    array([[3., 5.],
           [0., 0.]])
    >>> winners
    array([[ 1,  0],
           [-1, -1]], dtype=int32)
    """
    shape = (row_splits.size - 1, rows.shape[1])
    few = len(rows) <= np.iinfo(np.int32).max
    winners: NDArray[Any] = np.empty(shape, np.int32 if few else np.int64)
    out = np.empty(shape, rows.dtype)
    kernel = _kernel.max_of_bags[TYPE_NAMES[rows.dtype], TYPE_NAMES[winners.dtype]]
    pieces = team.ranges(row_splits, max(rows.shape[1], 1))

    def work(number: int) -> None:
        first, last = pieces[number]
        kernel(rows, row_splits[first : last + 1], out[first:last], winners[first:last])

    team.run(len(pieces), work)
    return out, winners


def at_winners(
    gradients: NDArray[Any], winners: Winners, row_splits: NDArray[np.int64]
) -> NDArray[Any]:
    """Return, per row, the bag's gradient in the columns that the row has won, 0 in the others.

    Parameters
    ----------
    gradients : ndarray of float32 or float64, shape (bags, dim), C-contiguous
    winners : ndarray
        From `max_of_bags`.
    row_splits : ndarray of int64, shape (bags + 1,)
        Those given to `max_of_bags`.

    Returns
    -------
    ndarray like `gradients`, shape (n, dim)

    Examples
    --------
    >>> at_winners(np.array([[7.0, 9.0]]), np.array([[1, 0]], np.int32), np.array([0, 2]))
    array([[0., 9.],
           [7., 0.]])
    """
    out = np.empty((int(row_splits[-1]), gradients.shape[1]), gradients.dtype)
    kernel = _kernel.at_winners[TYPE_NAMES[gradients.dtype], TYPE_NAMES[winners.dtype]]
    pieces = team.ranges(row_splits, max(gradients.shape[1], 1))

    def work(number: int) -> None:
        first, last = pieces[number]
        kernel(gradients[first:last], winners[first:last], row_splits[first : last + 1], out)

    team.run(len(pieces), work)
    return out
