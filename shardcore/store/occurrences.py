"""The rows of a batch, sorted and made unique once, so that an update touches each row once.

An occurrence is a row named by a bag. Its source is the gradient it will receive: a position in the
list of all bags of the table's features. Sorting is stable, so a row's occurrences stay in the
order (feature, global bag, position) in which they were given, and that is the order of the sum of
its gradients. The face of ``_core/occurrences.pyx``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore._core import occurrences as _kernel
from shardcore.errors import ShardcoreValueError
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["Occurrences", "every_row", "sort_occurrences"]

Ints = NDArray[np.int32] | NDArray[np.int64]

MAX_OCCURRENCES: Final = 2**31 - 1


@dataclass(frozen=True)
class Occurrences:
    """A batch's rows in ascending order, and which gradients each receives.

    Attributes
    ----------
    rows : ndarray of int64, shape (unique,)
        Distinct local rows, ascending.
    run_splits : ndarray of int64, shape (unique + 1,)
        Row u receives ``sources[run_splits[u]:run_splits[u + 1]]``, in that order.
    sources : ndarray of int32, shape (n,)
        Positions in the list of gradients.
    gains : ndarray of the working dtype, shape (n,), or None
        The factor of each gradient; None means 1.
    """

    rows: NDArray[np.int64]
    run_splits: NDArray[np.int64]
    sources: NDArray[np.int32]
    gains: NDArray[Any] | None


def sort_occurrences(
    rows: Ints, sources: NDArray[np.int32], gains: NDArray[Any] | None, num_rows: int
) -> Occurrences:
    """Sort the occurrences of a batch by row.

    Parameters
    ----------
    rows : ndarray of int32 or int64, shape (n,)
        Each in [0, num_rows), checked by the caller; in the order of the sum.
    sources : ndarray of int32, shape (n,)
        Positions in the list of gradients.
    gains : ndarray of the working dtype, shape (n,), or None
        None: all 1.
    num_rows : int
        Rows of the table; up to 2**32 of them are sorted by 32-bit keys.

    Returns
    -------
    Occurrences

    Raises
    ------
    ShardcoreValueError
        If a batch has more than 2**31 - 1 occurrences in one table.

    Examples
    --------
    >>> sources = np.array([0, 0, 1], np.int32)
    >>> batch = sort_occurrences(np.array([7, 2, 7]), sources, None, 10)
    >>> batch.rows, batch.run_splits, batch.sources
    (array([2, 7]), array([0, 1, 3]), array([0, 0, 1], dtype=int32))
    """
    n = rows.size
    if n > MAX_OCCURRENCES:
        raise ShardcoreValueError(
            f"a batch must name at most {MAX_OCCURRENCES} rows of one table, got {n}"
        )
    # With gains, what is sorted is the position, which then leads to both source and gain.
    payload = np.ascontiguousarray(sources) if gains is None else np.arange(n, dtype=np.int32)
    narrow = num_rows <= 1 << 32
    keys = np.empty((2, n), np.uint32 if narrow else np.uint64)
    payloads = np.empty((2, n), np.int32)
    key_type = "uint32_t" if narrow else "uint64_t"
    plane = _kernel.sort_rows[TYPE_NAMES[rows.dtype], key_type](
        np.ascontiguousarray(rows), payload, keys, payloads, np.empty(_kernel.COUNTERS, np.int64)
    )
    unique = np.empty(n, np.int64)
    run_splits = np.empty(n + 1, np.int64)
    found = _kernel.unique_runs[key_type](keys[plane], unique, run_splits)
    ordered = payloads[plane]
    if gains is not None:
        ordered, gains = sources[ordered], gains[ordered]
    return Occurrences(unique[:found].copy(), run_splits[: found + 1].copy(), ordered, gains)


def every_row(occurrences: Occurrences, num_rows: int) -> Occurrences:
    """Return the occurrences of a batch with all rows in it, for an optimizer that moves all.

    Rows that the batch does not name have an empty run, hence a gradient of zeros.

    Parameters
    ----------
    occurrences : Occurrences
    num_rows : int
        Rows of the table, or of this shard of it.

    Examples
    --------
    >>> batch = sort_occurrences(np.array([2, 2]), np.array([0, 1], np.int32), None, 4)
    >>> every_row(batch, 4).run_splits
    array([0, 0, 0, 2, 2])
    """
    run_splits = np.zeros(num_rows + 1, np.int64)
    run_splits[occurrences.rows + 1] = np.diff(occurrences.run_splits)
    np.cumsum(run_splits, out=run_splits)
    rows = np.arange(num_rows, dtype=np.int64)
    return Occurrences(rows, run_splits, occurrences.sources, occurrences.gains)
