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
from shardcore.memory import pool

__all__ = ["immutable", "is_plain", "take_ids"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_ID_TYPES: Final = (np.dtype(np.int64), np.dtype(np.int32))

# Bodies are chosen once: to choose one takes as long as to run it on a few ids.
_fused: Any = _partition.take_ids
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
    own: Ints = pool.empty(given.size, given.dtype)
    if given.ndim == 1:
        return own, _take[own.dtype](given, num_rows, own)
    bad: int = _take[own.dtype](given.reshape(-1), num_rows, own)
    return own.reshape(given.shape), bad


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
