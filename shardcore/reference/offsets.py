"""Twins of `shardcore.ids.row_splits`: three ways to say which values belong to which bag."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "lengths_from_row_splits",
    "row_ids_from_row_splits",
    "row_splits_from_lengths",
    "row_splits_from_offsets",
    "row_splits_from_row_ids",
]


def row_splits_from_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return the running sums of bag lengths, (bags,) to (bags + 1,).

    Examples
    --------
    >>> row_splits_from_lengths([2, 0, 1])
    array([0, 2, 2, 3])
    """
    row_splits = [0]
    for length in np.asarray(lengths, np.int64).tolist():
        row_splits.append(row_splits[-1] + length)
    return np.array(row_splits, np.int64)


def lengths_from_row_splits(row_splits: ArrayLike) -> NDArray[np.int64]:
    """Return how many values each bag has, (bags + 1,) to (bags,).

    Examples
    --------
    >>> lengths_from_row_splits([0, 2, 2, 3])
    array([2, 0, 1])
    """
    splits = np.asarray(row_splits, np.int64)
    return splits[1:] - splits[:-1]


def row_ids_from_row_splits(row_splits: ArrayLike) -> NDArray[np.int64]:
    """Return the bag of each value, (bags + 1,) to (values,).

    Examples
    --------
    >>> row_ids_from_row_splits([0, 2, 2, 3])
    array([0, 0, 2])
    """
    row_ids: list[int] = []
    for bag, length in enumerate(lengths_from_row_splits(row_splits).tolist()):
        row_ids += [bag] * length
    return np.array(row_ids, np.int64)


def row_splits_from_offsets(
    offsets: NDArray[Any], num_values: int, include_last: bool = False
) -> NDArray[np.int64] | None:
    """Return where bags begin and the last one ends, or None unless they rise from 0 to the end.

    Examples
    --------
    >>> row_splits_from_offsets(np.array([0, 2]), 3)
    array([0, 2, 3])
    """
    splits = [int(begin) for begin in offsets] + [num_values] * (not include_last)
    right = len(offsets) > 0 and splits[0] == 0 and splits[-1] == num_values
    return np.array(splits, np.int64) if right and splits == sorted(splits) else None


def row_splits_from_row_ids(row_ids: ArrayLike, num_rows: int) -> NDArray[np.int64]:
    """Return the row splits of values whose bags are given, (values,) to (num_rows + 1,).

    Examples
    --------
    >>> row_splits_from_row_ids([0, 0, 2], 4)
    array([0, 2, 2, 3, 3])
    """
    given = np.asarray(row_ids, np.int64)
    return row_splits_from_lengths([np.count_nonzero(given == bag) for bag in range(num_rows)])
