"""Arrays of our own: what a kernel trusts, no caller can change, not from another thread either.

A caller may write into his arrays at any time, and may make a read-only array writable again. So
ids are copied and the copies are checked, in one pass, and kernels read the copies; or a kernel
reads each id once and checks it before its use. What lives long and is handed out lies in immutable
memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore._core import partition as _partition
from shardcore._core import taken_bags as _taken_bags
from shardcore.memory import pool

__all__ = ["FEW_IDS", "immutable", "is_plain", "take_bags", "take_ids", "take_into"]

Ints = NDArray[np.int32] | NDArray[np.int64]

FEW_IDS: Final = 1 << 14
"""Ids up to which neither several threads nor memory from the pool are of use."""

_INT64: Final = np.dtype(np.int64)
_ID_TYPES: Final = (_INT64, np.dtype(np.int32))

# Bodies are chosen once: to choose one takes as long as to run it on a few ids.
_fused: Any = _partition.take_ids
_take_in_32_bits: Final = _partition.take_ids_in_32_bits
_take: Final = {np.dtype(np.int32): _fused["int32_t"], np.dtype(np.int64): _fused["int64_t"]}


def is_plain(array: NDArray[Any]) -> bool:
    """Return whether kernels can read the ids, or row splits, of an array where they lie.

    Examples
    --------
    >>> is_plain(np.array([3, 0])), is_plain(np.array([3, 0], np.uint8))
    (True, False)
    """
    flags = array.flags
    return array.dtype in _ID_TYPES and flags.c_contiguous and flags.aligned


def take_ids(given: Ints, num_rows: int) -> tuple[Ints, int]:
    """Copy ids and check the copies, in one pass: what was checked is what is used.

    Parameters
    ----------
    given : ndarray of int32 or int64, any shape, C-contiguous, aligned
    num_rows : int

    Returns
    -------
    own : ndarray of the dtype and the shape of `given`
        Complete where all ids are in range, else up to the first that is not.
    bad : int
        The flat position of the first id outside [0, num_rows), or -1.

    Examples
    --------
    >>> take_ids(np.array([3, 0]), 4)
    (array([3, 0]), -1)
    >>> own, bad = take_ids(np.array([3, 4]), 4)
    >>> bad, int(own[bad])
    (1, 4)
    """
    own: Ints
    if given.ndim == 1:
        own = pool.empty(given.size, given.dtype)
        return own, take_into(given, num_rows, own)
    own = pool.empty(given.size, given.dtype).reshape(given.shape)
    return own, take_into(given.reshape(-1), num_rows, own.reshape(-1))


def take_into(given: Ints, num_rows: int, own: Ints) -> int:
    """Copy ids to `own`, of shape (n,), and return the first bad place or -1.

    `own` is of their dtype, or of int32 where `num_rows` is at most 2**31.
    """
    take: Any = _take[own.dtype] if own.dtype == given.dtype else _take_in_32_bits
    bad: int = take(given, num_rows, own)
    return bad


def take_bags(
    values: NDArray[Any], row_splits: NDArray[Any], num_rows: int
) -> tuple[Ints, NDArray[np.int64]] | None:
    """Copy ids and their row splits and check the copies, by one call.

    Parameters
    ----------
    values, row_splits : ndarray
        Of any dtype and shape.
    num_rows : int

    Returns
    -------
    own, own_splits : ndarray of int32 or int64, shape (n,), and of int64, shape (bags + 1,)
        Or None, where the values are no plain array of int32 or int64 in [0, num_rows), or the row
        splits no plain array of int64 that goes from 0 to n without a step down.

    Examples
    --------
    >>> take_bags(np.array([3, 0]), np.array([0, 0, 2]), 4)
    (array([3, 0]), array([0, 0, 2]))
    >>> take_bags(np.array([3, 4]), np.array([0, 0, 2]), 4) is None
    True
    """
    own: Ints = np.empty(values.size, values.dtype)
    own_splits = np.empty(row_splits.size, _INT64)
    right = _taken_bags.take_bags(values, row_splits, num_rows, own, own_splits)
    return (own, own_splits) if right else None


def immutable(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array that cannot be made writable.

    Examples
    --------
    >>> fixed = immutable(np.array([1, 2]))
    >>> fixed.flags.writeable = True
    Traceback (most recent call last):
    ...
    ValueError: cannot set WRITEABLE flag to True of this array
    """
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
