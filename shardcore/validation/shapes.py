"""Checks of counts, shapes and axes: the same rules and words wherever they are arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import (
    ShardcoreMemoryError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)

__all__ = [
    "as_integer",
    "as_count",
    "as_shape",
    "as_axis",
    "check_addressable",
    "check_rank",
    "new_array",
]

_MAX_RANK: Final = 64  # NumPy's
_MAX_BYTES: Final = np.iinfo(np.int64).max


def as_integer(value: object, argument: str, rule: str = "must be an integer") -> int:
    """Return `value` as an int.

    Parameters
    ----------
    value : int or NumPy integer
    argument : str
        Its name, for the message.
    rule : str
        The rule, for the message.

    Raises
    ------
    ShardcoreTypeError
        If it is no integer; a bool is none.

    Examples
    --------
    >>> as_integer(np.int64(-3), "axis")
    -3
    """
    # Before NumPy 2.3 its own bool was an index, with a warning.
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        raise ShardcoreTypeError(f"{argument} {rule}, got {shown(value)}")
    try:
        return operator.index(value)
    except TypeError as error:  # an array that is no integer scalar
        raise ShardcoreTypeError(f"{argument} {rule}, got {shown(value)}") from error


def as_count(value: object, argument: str, minimum: int = 1) -> int:
    """Return `value` as an int that is at least `minimum`.

    Parameters
    ----------
    value : int or NumPy integer
    argument : str
        Its name, for the message.
    minimum : int

    Raises
    ------
    ShardcoreTypeError
        If it is no integer; a bool is none.
    ShardcoreValueError
        If it is below `minimum`.

    Examples
    --------
    >>> as_count(np.int64(3), "num_shards")
    3
    """
    rule = f"must be an integer >= {minimum}"
    count = as_integer(value, argument, rule)
    if count < minimum:
        raise ShardcoreValueError(f"{argument} {rule}, got {count}")
    return count


def as_shape(
    shape: Sequence[int] | np.ndarray[Any, Any], argument: str = "shape", minimum: int = 0
) -> tuple[int, ...]:
    """Return `shape` as a tuple of ints that are at least `minimum`.

    Parameters
    ----------
    shape : sequence of int, or integer array (rank,)
    argument : str
        Its name, for the message.
    minimum : int

    Raises
    ------
    ShardcoreTypeError
        If it is no sequence, or an entry is no integer.
    ShardcoreValueError
        If an entry is below `minimum`.

    Examples
    --------
    >>> as_shape([10, np.int64(3)])
    (10, 3)
    """
    sequence = isinstance(shape, Sequence) and not isinstance(shape, (str, bytes))
    if not sequence and not (isinstance(shape, np.ndarray) and shape.ndim == 1):
        raise ShardcoreTypeError(
            f"{argument} must be a sequence of integers >= {minimum}, got {shown(shape)}"
        )
    return tuple(as_count(size, f"{argument}[{i}]", minimum) for i, size in enumerate(shape))


def as_axis(axis: int, shape: tuple[int, ...]) -> int:
    """Return `axis` counted from the front; a negative one counts from the end.

    Parameters
    ----------
    axis : int
    shape : tuple of int

    Raises
    ------
    ShardcoreTypeError
        If `axis` is no integer.
    ShardcoreValueError
        If the shape has no axis at all, or not this one.

    Examples
    --------
    >>> as_axis(-1, (10, 3))
    1
    """
    rank = len(shape)
    number = as_integer(axis, "axis")
    if rank == 0:
        raise ShardcoreValueError("shape must have at least one axis, got ()")
    if not -rank <= number < rank:
        raise ShardcoreValueError(
            f"axis must be in [{-rank}, {rank}) for a shape of rank {rank}, got {number}"
        )
    return number % rank


def check_rank(values: object, argument: str) -> None:
    """Raise if nested lists have more axes than an array can have, counted by first entries.

    Parameters
    ----------
    values : object
        Anything but a list or tuple passes.
    argument : str
        Its name, for the message.

    Raises
    ------
    ShardcoreValueError

    Examples
    --------
    >>> check_rank([[1, 2], [3, 4]], "ids")
    """
    inner = values
    for _ in range(_MAX_RANK):
        # No union of the two: that is made anew for every test.
        if not isinstance(inner, (list, tuple)) or not inner:
            return
        inner = inner[0]
    if isinstance(inner, (list, tuple)):
        raise ShardcoreValueError(f"{argument} must be nested at most {_MAX_RANK} deep, got deeper")


def check_addressable(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Raise if an array would need more bytes than an address can name.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    what : str
        The name of the array, for the message.

    Raises
    ------
    ShardcoreValueError

    Examples
    --------
    >>> check_addressable((2**50, 8), np.dtype("float32"), "table 'user'")
    """
    size = math.prod(max(1, axis) for axis in shape) * dtype.itemsize  # as NumPy counts
    if size > _MAX_BYTES:
        raise ShardcoreValueError(
            f"{what} must have fewer than 2**63 bytes, got {size}: shape {shape} of {dtype}"
        )


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``numpy.empty(shape, dtype)``, or raise shardcore's error.

    Raises
    ------
    ShardcoreMemoryError
        If the system has no room for it.

    Examples
    --------
    >>> new_array((3, 2), np.dtype("float32")).shape
    (3, 2)
    """
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        size = math.prod(shape) * dtype.itemsize
        raise ShardcoreMemoryError(
            f"no room for {size} bytes, an array of {dtype} of shape {shape}"
        ) from error
