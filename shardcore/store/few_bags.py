"""Bags as a caller gives them, combined without a copy of many ids.

The face of ``_core/few_bags.pxi``, a part of ``_core/rows.pxi``, which sums more bags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore._core import offsets as _offsets
from shardcore.dtypes import kind_of, working_dtype
from shardcore.ids.own_arrays import is_plain
from shardcore.sharding import Layout
from shardcore.store import threads
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.segment_reduce import reduce_bags

__all__ = ["DIVIDED", "MOST_IDS", "CombineGiven", "given_bags_of"]

_kernel: Any = best_module("shardcore._core.rows")
_fused: Any = _offsets.take_splits
_take_splits: Final = _fused["int64_t"]

CombineGiven: TypeAlias = Callable[
    [NDArray[Any], NDArray[Any], NDArray[Any] | None, int, NDArray[Any]], bool
]
"""``combine(ids, row_splits, weights, divided, out)``: whether rows were combined to `out` by bag.

`ids`, `row_splits` and `weights`, or None, as they were given. False: they are not plain arrays of
int32 or int64, of int64 and of the working dtype, or break a rule, or are too many; `out` holds
nothing of use then.
"""

MOST_IDS: Final[int] = _kernel.MOST_IDS
"""Ids, and bags, of a lookup that is done by one compiled call."""

DIVIDED: Final[dict[str, int]] = _kernel.DIVIDED
"""Combiner -> what `CombineGiven` calls it."""


def given_bags_of(arrays: Sequence[NDArray[Any]], layout: Layout | None) -> CombineGiven | None:
    """Return what combines rows of arrays for bags as given; None where rows have no elements.

    Few bags are combined by one compiled call, in halves where another thread looks for such work.
    Many are if all rows lie in one array.

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
    few = _kernel.FewBags(
        bases,
        None if alone or layout is None else layout.placement,
        dim * first.itemsize,
        kind_of(first.dtype),
        dim,
        len(first) if layout is None else layout.num_rows,
        PACE.asking,
        partial(_combine_many, first.reshape(-1, dim)) if alone else None,
        threads.sharing(),
        tuple(arrays),
    )
    combine: CombineGiven = few.combine
    return combine


def _combine_many(
    rows: NDArray[Any],
    ids: NDArray[Any],
    row_splits: NDArray[Any],
    weights: NDArray[Any] | None,
    divided: int,
    out: NDArray[Any],
) -> bool:
    """Combine bags of ids that are read where they lie, once, and checked as they are read."""
    ids, row_splits = ids[...], row_splits[...]  # views whose shapes only we can change
    if not (ids.ndim == row_splits.ndim == 1 and is_plain(ids) and is_plain(row_splits)):
        return False
    if row_splits.dtype != np.int64:
        return False
    own_splits = np.empty(row_splits.size, np.int64)
    if not row_splits.size or _take_splits(row_splits, ids.size, own_splits) >= 0:
        return False
    if out.shape != (own_splits.size - 1, rows.shape[1]) or out.dtype != working_dtype(rows.dtype):
        return False
    if weights is not None:
        weights = weights[...]
        if not (weights.shape == ids.shape and _fit(weights, out.dtype)):
            return False
    return reduce_bags(rows, ids, own_splits, weights, None, out, divided)


def _fit(weights: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    return weights.dtype == dtype and weights.flags.c_contiguous and weights.flags.aligned
