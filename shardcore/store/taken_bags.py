"""Ids in bags, copied and checked: those of all features at once, by threads that share them out.

The face of ``_core/taken_bags.pyx``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore._core import taken_bags as _kernel
from shardcore.memory import pool
from shardcore.threads import team

__all__ = ["BagsToTake", "take_ids_on_threads"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)

_MOST_NARROW: Final = 1 << 31
"""Rows of a table whose ids fit 32 bits."""

_SHARE: Final = 1 << 17
"""Least ids that are handed to another thread: some 80 µs of work."""


class BagsToTake:
    """Copies of the bags of several features: added one by one, then made and checked at once.

    Examples
    --------
    >>> bags = BagsToTake()
    >>> bags.add(np.array([0.5, 2.0]), np.array([0, 2]), 4)  # no ids
    False
    >>> bags.add(np.array([3, 0]), np.array([0, 0, 2]), 4, narrow=True)
    True
    >>> bags.add(np.array([3, 0, 4]), None, 4)
    True
    >>> (ids, row_splits), other = bags.take()
    >>> ids, row_splits
    (array([3, 0], dtype=int32), array([0, 0, 2]))
    >>> bags.wrong()
    {1: 2}
    """

    __slots__ = ("_bags",)

    def __init__(self) -> None:
        self._bags = _kernel.TakenBags()

    def add(
        self,
        ids: NDArray[Any],
        row_splits: NDArray[Any] | None,
        num_rows: int,
        narrow: bool = False,
    ) -> bool:
        """Add ids and their row splits, if they are plain; return whether they are.

        Parameters
        ----------
        ids, row_splits : ndarray
            Of any dtype and shape. Without row splits ids are taken alone.
        num_rows : int
        narrow : bool
            Whether int64 may be copied in 32 bits, if all rows fit: half the memory to write and to
            read, to look rows up by and to sort.

        Returns
        -------
        bool
            False: ids are no plain array (n,) of int32 or int64, or row splits none of int64; then
            nothing was added.
        """
        return self._bags.add(ids, row_splits, num_rows, narrow and num_rows <= _MOST_NARROW)

    def take(self) -> list[tuple[Ints, NDArray[np.int64] | None]]:
        """Return the copies of ids and of row splits, of the bags in the order of their `add`.

        Of `wrong` ones they are of no use, but for the ids up to the position that it returns.
        """
        bags = self._bags
        few = bags.make_alone()
        if few is not None:
            return few
        short, long = pool.empty(bags.short, _INT32), pool.empty(bags.long, _INT64)
        team.make(bags, _SHARE, lambda _: bags.make(short, long))
        return bags.parts_of(short, long)

    def wrong(self) -> dict[int, int]:
        """Return which bags are wrong, by the number of their `add`, once they are taken.

        Returns
        -------
        dict of int to int
            The first position of an id outside [0, num_rows); or -1, where it is the row splits,
            which do not go from 0 to n without a step down.
        """
        return self._bags.wrong()


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
    bags = BagsToTake()
    plain = bags.add(given, None, num_rows)
    assert plain, "ids are in the form that kernels read"
    ((own, _),) = bags.take()
    return own, bags.wrong().get(0, -1)
