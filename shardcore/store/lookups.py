"""Lookups that threads share: in many tables at once, or of many bags in one.

The face of ``_core/lookups.pxi``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.stored_rows import StoredRows
from shardcore.threads import companion, team

__all__ = ["Lookups", "Request", "look_up"]

_kernel = best_module("shardcore._core.rows")

Ints = NDArray[np.int32] | NDArray[np.int64]

Request: TypeAlias = tuple[
    StoredRows, Ints, NDArray[np.int64], NDArray[Any] | None, NDArray[Any] | None, NDArray[Any]
]
"""``(rows, ids, row_splits, weights, divisors, out)``: as `segment_reduce` takes them."""


class Lookups:
    """Lookups in tables: added one by one, then made at once by threads that share them out.

    Parameters
    ----------
    divided : int
        As `reduce_bags` takes it.

    Examples
    --------
    >>> lookups, out = Lookups(), np.empty((1, 2), np.float32)
    >>> rows = StoredRows(np.array([[1, 2], [3, 4]], np.float32), {})
    >>> lookups.add(rows, np.array([1, 0]), np.array([0, 2]), None, None, out)
    >>> lookups.make(), out.tolist()
    (True, [[4.0, 6.0]])
    """

    __slots__ = ("_divided", "kernel")

    def __init__(self, divided: int = _kernel.GIVEN_DIVISORS) -> None:
        self.kernel = _kernel.Lookups()
        self._divided = divided

    def add(
        self,
        rows: StoredRows,
        ids: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
        divisors: NDArray[Any] | None,
        out: NDArray[Any],
    ) -> None:
        """Add what `segment_reduce` returns, to be written to `out`; row splits are checked."""
        self.kernel.add(rows.found, ids, row_splits, weights, divisors, out, self._divided)

    def make(self) -> bool:
        """Make them; return whether all is right.

        If an id is out of range, no row is read for it, and the answer is False.
        """
        lookups, asking = self.kernel, PACE.asking
        alone: bool | None = lookups.make_alone(asking, team.most_without_companion())
        if alone is not None:
            companion.ended()
            return alone
        sharing = team.cut_for_companion(lookups)
        if sharing is not None:
            shared: bool | None = lookups.share(asking, sharing)
            if shared is not None:
                return shared
        right: list[bool] = []

        def make(_: int) -> None:
            right.append(lookups.make(asking))

        team.make(lookups, team.PIECE, make)
        companion.ended()
        return all(right)


def look_up(requests: Sequence[Request], divided: int = _kernel.GIVEN_DIVISORS) -> bool:
    """Write what `segment_reduce` returns for each request to its `out`; say whether it is right.

    `Lookups` of all of them.

    Examples
    --------
    >>> rows = StoredRows(np.array([[1, 2], [3, 4]], np.float32), {})
    >>> ids, row_splits, out = np.array([1, 0]), np.array([0, 2]), np.empty((1, 2), np.float32)
    >>> look_up([(rows, ids, row_splits, None, None, out)]), out.tolist()
    (True, [[4.0, 6.0]])
    """
    lookups = Lookups(divided)
    for request in requests:
        lookups.add(*request)
    return lookups.make()
