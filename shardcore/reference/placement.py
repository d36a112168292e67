"""Twins of `shardcore.sharding.layout`: which shard has which row, in Python's own integers.

And of `shardcore.ids.own_arrays`: which ids are rows at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.reference.offsets import row_splits_from_lengths

__all__ = ["decompose_slice", "locate", "partition", "take_ids"]

Strategy = Literal["div", "mod", "ranges"]


def locate(
    ids: ArrayLike, sizes: Sequence[int], strategy: Strategy = "ranges"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the shard and the local row of each id.

    Parameters
    ----------
    ids : array_like of int, any shape, each in [0, sum(sizes))
    sizes : sequence of int, shape (shards,)
        Rows per shard; for "mod" only their number matters.
    strategy : {"div", "mod", "ranges"}

    Returns
    -------
    shard, local : ndarray of int64, shaped like `ids`

    Examples
    --------
    >>> locate([0, 4, 3], [3, 0, 2])
    (array([0, 2, 2]), array([0, 1, 0]))
    >>> locate([0, 4, 3], [3, 2], "mod")
    (array([0, 0, 1]), array([0, 2, 1]))
    """
    given = np.asarray(ids, np.int64)
    places = [_place(row, sizes, strategy) for row in given.reshape(-1).tolist()]
    shard, local = np.array(places, np.int64).reshape(-1, 2).T
    return shard.reshape(given.shape), local.reshape(given.shape)


def _place(row: int, sizes: Sequence[int], strategy: Strategy) -> tuple[int, int]:
    if strategy == "mod":
        return row % len(sizes), row // len(sizes)
    shard = 0
    while row >= sizes[shard]:
        row -= sizes[shard]
        shard += 1
    return shard, row


def partition(
    ids: ArrayLike, sizes: Sequence[int], strategy: Strategy = "ranges"
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Group ids by shard, in their order, and remember the way back.

    Parameters
    ----------
    ids : array_like of int, shape (n,), each in [0, sum(sizes))
    sizes, strategy
        As in `locate`.

    Returns
    -------
    local : ndarray of int64, shape (n,)
    row_splits : ndarray of int64, shape (shards + 1,)
        Shard s has ``local[row_splits[s]:row_splits[s + 1]]``.
    inverse : ndarray of int64, shape (n,)
        ``ids[i]`` sits at ``local[inverse[i]]``.

    Examples
    --------
    >>> partition([7, 0, 4, 9], [4, 3, 3], "mod")
    (array([0, 3, 2, 1]), array([0, 2, 4, 4]), array([2, 0, 3, 1]))
    """
    shard, local = locate(ids, sizes, strategy)
    groups = [[i for i in range(shard.size) if shard[i] == s] for s in range(len(sizes))]
    order = np.array([i for group in groups for i in group], np.int64)
    inverse = np.empty_like(order)
    for place, i in enumerate(order.tolist()):
        inverse[i] = place
    return local[order], row_splits_from_lengths([len(group) for group in groups]), inverse


def take_ids(
    given: NDArray[np.int32] | NDArray[np.int64], num_rows: int
) -> tuple[NDArray[np.int32] | NDArray[np.int64], int]:
    """Copy ids, and return the flat position of the first that is no row, or -1.

    Examples
    --------
    >>> take_ids(np.array([3, 4]), 4)
    (array([3, 4]), 1)
    """
    outside = [i for i, row in enumerate(given.reshape(-1).tolist()) if not 0 <= row < num_rows]
    return given.copy(), outside[0] if outside else -1


def take_bags(
    values: NDArray[Any], row_splits: NDArray[Any], num_rows: int
) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Copy ids and their row splits; None where they are of other types, or break a rule.

    Examples
    --------
    >>> take_bags(np.array([3, 0]), np.array([0, 2]), 4)
    (array([3, 0]), array([0, 2]))
    >>> take_bags(np.array([3, 0]), np.array([0, 1]), 4) is None
    True
    """
    if values.dtype not in (np.dtype(np.int32), np.dtype(np.int64)) or row_splits.dtype != np.int64:
        return None
    ids, splits = values.tolist(), row_splits.tolist()
    if not splits or splits[0] != 0 or splits[-1] != len(ids) or sorted(splits) != splits:
        return None
    if not all(0 <= row < num_rows for row in ids):
        return None
    return values.copy(), row_splits.astype(np.int64)


def decompose_slice(offsets: ArrayLike, rows: slice) -> list[tuple[int, slice]]:
    """Cut a slice over consecutive shards into one local slice per shard that it touches.

    Parameters
    ----------
    offsets : array_like of int, shape (shards + 1,)
        Shard s holds rows ``offsets[s]`` to ``offsets[s + 1]``.
    rows : slice

    Returns
    -------
    list of (shard, slice)
        In the order of the result. Where the end of a local slice would not fit int64, it is
        2**63 - 1.

    Examples
    --------
    >>> decompose_slice([0, 3, 3, 6, 8], slice(1, 100, 3))
    [(0, slice(1, 4, 3)), (2, slice(1, 4, 3)), (3, slice(1, 4, 3))]
    """
    borders = np.asarray(offsets, np.int64).tolist()
    selected = range(*rows.indices(borders[-1]))
    step = selected.step if len(selected) > 1 else (1 if selected.step > 0 else -1)
    pieces: list[tuple[int, slice]] = []
    shards = range(len(borders) - 1)
    for shard in shards if step > 0 else reversed(shards):
        local = [row - borders[shard] for row in selected if row in _held(borders, shard)]
        if local:
            stop = min(local[-1] + step, 2**63 - 1)
            pieces.append((shard, slice(local[0], None if stop < 0 else stop, step)))
    return pieces


def _held(borders: Sequence[int], shard: int) -> range:
    return range(borders[shard], borders[shard + 1])
