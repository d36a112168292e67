"""Few bags, combined by one compiled call: the face of ``_core/few_bags.pxi``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import kind_of
from shardcore.sharding import Layout
from shardcore.store.instruction_set import best_module

__all__ = ["DIVIDED", "MOST_IDS", "CombineFew", "few_bags_of"]

_kernel: Any = best_module("shardcore._core.few_bags")

CombineFew: TypeAlias = Callable[[NDArray[Any], NDArray[Any], int, NDArray[Any]], bool]
"""``combine(ids, row_splits, divided, out)``: whether the rows of each bag were combined to `out`.

`ids` and `row_splits` as they were given: they are copied and checked. False: they are not plain
arrays of int32 or int64 and of int64, or break a rule, or are too many; then nothing was done.
"""

MOST_IDS: Final[int] = _kernel.MOST_IDS
"""Ids, and bags, of a lookup for which it is worth a try."""

DIVIDED: Final[dict[str, int]] = _kernel.DIVIDED
"""Combiner -> what `CombineFew` calls it."""


def few_bags_of(arrays: Sequence[NDArray[Any]], layout: Layout | None) -> CombineFew | None:
    """Return what combines few bags of the rows of arrays; None where rows have no elements.

    Parameters
    ----------
    arrays : sequence of ndarray of a table dtype, each (shard size, *row_shape)
        One per shard, C-contiguous and aligned; held, and read where they lie.
    layout : Layout or None
        Which row lies where; None where all lie in one array.

    Examples
    --------
    >>> rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> combine = few_bags_of([rows], Layout.div(3, 1))
    >>> out = np.empty((2, 2), np.float32)
    >>> combine(np.array([0, 2, 1]), np.array([0, 2, 3]), DIVIDED["mean"], out), out.tolist()
    (True, [[3.0, 4.0], [3.0, 4.0]])
    >>> combine(np.array([0, 2, 3]), np.array([0, 2, 3]), DIVIDED["mean"], out)
    False
    """
    first = arrays[0]
    dim = math.prod(first.shape[1:])
    if dim == 0:
        return None
    bases = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
    placement = None if layout is None or len(arrays) == 1 else layout.placement
    few = _kernel.FewBags(
        bases,
        placement,
        dim * first.itemsize,
        kind_of(first.dtype),
        dim,
        len(first) if layout is None else layout.num_rows,
        tuple(arrays),
    )
    combine: CombineFew = few.combine
    return combine
