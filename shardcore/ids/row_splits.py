"""Row splits, lengths and row ids: three ways to say which values belong to which bag.

``row_splits`` (b + 1,) starts at 0 and never decreases; bag i is
``values[row_splits[i]:row_splits[i + 1]]``. The face of ``_core/offsets.pyx``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore._core import offsets as _kernel
from shardcore.errors import ShardcoreIndexError, ShardcoreValueError
from shardcore.validation.integers import vector
from shardcore.validation.shapes import as_count

__all__ = [
    "check_row_splits",
    "first_descent",
    "lengths_from_row_splits",
    "row_ids_from_row_splits",
    "row_splits_from_lengths",
    "row_splits_from_offsets",
    "row_splits_from_row_ids",
]

first_descent: Final[Callable[[NDArray[np.int64]], int]] = cast(Any, _kernel.first_descent)[
    "int64_t"
]
"""Return the first i with ``row_splits[i] < row_splits[i - 1]``, or -1.

Of an array that is C-contiguous. The body for int64 itself: to choose it takes longer than to run.
"""


def check_row_splits(
    row_splits: ArrayLike, num_values: int, argument: str = "row_splits"
) -> NDArray[np.int64]:
    """Copy `row_splits` as int64 and check that the copy divides `num_values` values into bags.

    Later changes of the caller's array do not matter.

    Parameters
    ----------
    row_splits : array_like of int, shape (bags + 1,)
    num_values : int
        How many values there are.
    argument : str
        The caller's argument, for the message.

    Returns
    -------
    ndarray of int64, shape (bags + 1,)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is not integers of rank 1, is empty, does not start at 0, decreases, or does not end
        at `num_values`.

    Examples
    --------
    >>> check_row_splits([0, 2, 2, 3], 3)
    array([0, 2, 2, 3])
    >>> check_row_splits([0, 2, 1], 1)
    Traceback (most recent call last):
    ...
    shardcore.errors.ShardcoreValueError: row_splits must be non-decreasing: \
row_splits[2] = 1 < row_splits[1] = 2
    """
    given = vector(row_splits, argument)
    if given.size == 0:
        raise ShardcoreValueError(f"{argument} must hold at least one entry, the leading 0")
    splits = np.empty(given.size, np.int64)
    bad = _kernel.take_splits(given, num_values, splits)
    if bad < 0:
        return splits
    if splits[0] != 0:
        raise ShardcoreValueError(f"{argument} must start at 0, got {argument}[0] = {splits[0]}")
    if splits[bad] < splits[bad - 1]:
        raise ShardcoreValueError(
            f"{argument} must be non-decreasing: {argument}[{bad}] = {splits[bad]} < "
            f"{argument}[{bad - 1}] = {splits[bad - 1]}"
        )
    raise ShardcoreValueError(
        f"{argument} must end at the number of values, {num_values}, got "
        f"{argument}[{bad}] = {splits[bad]}"
    )


def row_splits_from_lengths(lengths: ArrayLike, argument: str = "lengths") -> NDArray[np.int64]:
    """Return the running sums of bag lengths.

    Parameters
    ----------
    lengths : array_like of int, shape (bags,)
    argument : str
        The caller's argument, for the message.

    Returns
    -------
    ndarray of int64, shape (bags + 1,)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they are not integers of rank 1, one is negative, or their sum does not fit int64.

    Examples
    --------
    >>> row_splits_from_lengths([2, 0, 1])
    array([0, 2, 2, 3])
    """
    given = vector(lengths, argument).copy()
    row_splits = np.empty(given.size + 1, np.int64)
    bad = _kernel.splits_from_lengths(given, row_splits)
    if bad >= 0:
        if given[bad] < 0:
            raise ShardcoreValueError(
                f"{argument} must be >= 0, got {argument}[{bad}] = {given[bad]}"
            )
        raise ShardcoreValueError(
            f"{argument} must sum to at most 2**63 - 1, which {argument}[{bad}] = {given[bad]} "
            "makes it exceed"
        )
    return row_splits


def row_splits_from_offsets(
    offsets: NDArray[Any], num_values: int, include_last: bool = False
) -> NDArray[np.int64] | None:
    """Return the row splits that the offsets of `torch.nn.EmbeddingBag` are, if they are right.

    Parameters
    ----------
    offsets : ndarray, shape (bags,), or (bags + 1,) with `include_last`
        Where each bag begins, and with `include_last` where the last one ends.
    num_values : int
        Where the last bag ends.
    include_last : bool

    Returns
    -------
    ndarray of int64, shape (bags + 1,), or None
        A copy. None: they break a rule, or are of another form than int64 in one piece, or empty.

    Examples
    --------
    >>> row_splits_from_offsets(np.array([0, 2]), 3)
    array([0, 2, 3])
    >>> row_splits_from_offsets(np.array([0, 4]), 3) is None
    True
    """
    splits = np.empty(offsets.size + (not include_last), np.int64)
    return splits if _kernel.take_offsets(offsets, num_values, include_last, splits) else None


def lengths_from_row_splits(row_splits: ArrayLike) -> NDArray[np.int64]:
    """Return how many values each bag has.

    Parameters
    ----------
    row_splits : array_like of int, shape (bags + 1,)

    Returns
    -------
    ndarray of int64, shape (bags,)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        As `check_row_splits`, but for the number of values, which is taken from its end.

    Examples
    --------
    >>> lengths_from_row_splits([0, 2, 2, 3])
    array([2, 0, 1])
    """
    splits = _any_row_splits(row_splits)
    lengths = np.empty(splits.size - 1, np.int64)
    _kernel.lengths_from_splits(splits, lengths)
    return lengths


def row_ids_from_row_splits(row_splits: ArrayLike) -> NDArray[np.int64]:
    """Return the bag of each value (the first half of the COO form).

    Parameters
    ----------
    row_splits : array_like of int, shape (bags + 1,)

    Returns
    -------
    ndarray of int64, shape (values,)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        As `lengths_from_row_splits`.

    Examples
    --------
    >>> row_ids_from_row_splits([0, 2, 2, 3])
    array([0, 0, 2])
    """
    splits = _any_row_splits(row_splits)
    row_ids = np.empty(int(splits[-1]), np.int64)
    _kernel.row_ids_from_splits(splits, row_ids)
    return row_ids


def row_splits_from_row_ids(
    row_ids: ArrayLike, num_rows: int, argument: str = "row_ids"
) -> NDArray[np.int64]:
    """Return the row splits of values whose bags are given, in non-decreasing order.

    Parameters
    ----------
    row_ids : array_like of int, shape (values,)
        Each in [0, num_rows), never below its predecessor.
    num_rows : int
        The number of bags, >= 0; trailing empty ones are kept.
    argument : str
        The caller's argument, for the message.

    Returns
    -------
    ndarray of int64, shape (num_rows + 1,)

    Raises
    ------
    ShardcoreIndexError
        If a row id is out of range.
    ShardcoreTypeError, ShardcoreValueError
        If they are not integers of rank 1, or decrease, or `num_rows` is no integer >= 0.

    Examples
    --------
    >>> row_splits_from_row_ids([0, 0, 2], 4)
    array([0, 2, 2, 3, 3])
    """
    given = vector(row_ids, argument).copy()
    bags = as_count(num_rows, "num_rows", 0)
    row_splits = np.empty(bags + 1, np.int64)
    bad = _kernel.splits_from_row_ids(given, row_splits)
    if bad >= 0:
        if not 0 <= given[bad] < bags:
            raise ShardcoreIndexError(
                f"{argument}[{bad}] = {given[bad]} is out of range: must be in [0, {bags})"
            )
        raise ShardcoreValueError(
            f"{argument} must be non-decreasing: {argument}[{bad}] = {given[bad]} < "
            f"{argument}[{bad - 1}] = {given[bad - 1]}"
        )
    return row_splits


def _any_row_splits(row_splits: ArrayLike) -> NDArray[np.int64]:
    splits = vector(row_splits, "row_splits").copy()
    return check_row_splits(splits, int(splits[-1]) if splits.size else 0)
