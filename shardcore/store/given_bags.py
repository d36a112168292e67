"""Bags as a caller gives them, combined without a copy of many ids.

The face of ``_core/given_bags.pxi``, a part of ``_core/rows.pxi``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import kind_of
from shardcore.sharding import Layout
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.threads import companion, team

__all__ = ["DIVIDED", "MOST_IDS", "CombineGiven", "given_bags_of"]

_kernel: Any = best_module("shardcore._core.rows")

CombineGiven: TypeAlias = Callable[
    [NDArray[Any], NDArray[Any], NDArray[Any] | None, int, NDArray[Any]], bool
]
"""``combine(ids, row_splits, weights, divided, out)``: whether rows were combined to `out` by bag.

`ids`, `row_splits` and `weights`, or None, as they were given. False: they are not plain arrays of
int32 or int64, of int64 and of the working dtype, or break a rule, or are too many; `out` holds
nothing of use then.
"""

MOST_IDS: Final[int] = _kernel.MOST_IDS
"""Ids, and bags, of a lookup in several shards that may be so many."""

DIVIDED: Final[dict[str, int]] = _kernel.DIVIDED
"""Combiner -> what `CombineGiven` calls it."""


def given_bags_of(arrays: Sequence[NDArray[Any]], layout: Layout | None) -> CombineGiven | None:
    """Return what combines rows of arrays for bags as given; None where rows have no elements.

    They are combined by one compiled call: alone, together with one other thread where such work
    comes often, or by the threads of the pool. Many bags are if all rows lie in one array.

    Parameters
    ----------
    arrays : sequence of ndarray of a table dtype, each (shard size, *row_shape)
        One per shard, C-contiguous and aligned; held, and read where they lie.
    layout : Layout or None
        Which row lies where; None where all lie in one array.

    Examples
    --------
    >>> rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> combine = given_bags_of([rows], Layout.div(3, 1))
    >>> out = np.empty((2, 2), np.float32)
    >>> ids, row_splits = np.array([0, 2, 1]), np.array([0, 2, 3])
    >>> combine(ids, row_splits, None, DIVIDED["mean"], out), out.tolist()
    (True, [[3.0, 4.0], [3.0, 4.0]])
    >>> combine(ids + 1, row_splits, None, DIVIDED["mean"], out)
    False
    """
    first = arrays[0]
    dim = math.prod(first.shape[1:])
    if dim == 0:
        return None
    bases = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
    alone = layout is None or len(arrays) == 1
    given = _kernel.GivenBags(
        bases,
        None if alone or layout is None else layout.placement,
        dim * first.itemsize,
        kind_of(first.dtype),
        dim,
        len(first) if layout is None else layout.num_rows,
        PACE.asking,
        *team.sharing(),
        _make_on_threads,
        tuple(arrays),
    )
    combine: CombineGiven = given.combine
    return combine


def _make_on_threads(call: Any) -> None:
    """Make the shares of a call on the threads of the pool."""
    team.run(team.cut(call, team.PIECE), lambda _: call.make())
    companion.ended()
