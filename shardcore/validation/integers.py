"""Arrays of integers as int32 or int64, and what messages call their elements."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.validation.shapes import check_rank

__all__ = ["integers", "outside", "place_in", "vector"]

_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)


def integers(values: ArrayLike, argument: str) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return `values` as an aligned, C-contiguous int32 or int64 array, copied only if it must be.

    Parameters
    ----------
    values : array_like of any integer type, any shape
        An empty list counts as integers.
    argument : str
        The caller's argument, for the message.

    Returns
    -------
    ndarray of int32 where `values` is one, else of int64, shaped like `values`
        Of the machine's byte order.

    Raises
    ------
    ShardcoreTypeError
        If the values are not integers.
    ShardcoreValueError
        If one does not fit int64.

    Examples
    --------
    >>> integers([1, 2], "ids").dtype
    dtype('int64')
    """
    check_rank(values, argument)
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError as error:
        raise ShardcoreTypeError(
            f"{argument} must be an array of integers, got nested sequences of uneven length"
        ) from error
    if array.dtype == _INT64 or array.dtype == _INT32:
        fit = array.flags.c_contiguous and array.flags.aligned
        return array if fit else array.copy(order="C")
    if array.dtype.kind not in "iu":
        if array.size == 0 and not isinstance(values, np.ndarray):
            return array.astype(np.int64)
        raise ShardcoreTypeError(f"{argument} must be integers, got dtype {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        over = np.flatnonzero(array > np.uint64(np.iinfo(np.int64).max))
        if over.size:
            at = int(over[0])
            raise ShardcoreValueError(
                f"{place_in(argument, at, array.shape)} = {array.flat[at]} does not fit int64; "
                "hash it first with hash_ids"
            )
    wide: NDArray[np.int64] = array.astype(np.int64, order="C")
    return wide


def place_in(argument: str, at: int, shape: tuple[int, ...]) -> str:
    """Return the name of an element in a message: ``ids[2, 0]``, or ``ids`` for one of rank 0.

    Parameters
    ----------
    argument : str
    at : int
        The element's place in the flat array.
    shape : tuple of int

    Examples
    --------
    >>> place_in("ids", 4, (3, 2)), place_in("ids", 0, ())
    ('ids[2, 0]', 'ids')
    """
    index = ", ".join(str(int(i)) for i in np.unravel_index(at, shape)) if shape else ""
    return f"{argument}[{index}]" if index else argument


def outside(place: str, value: Any, where: str, size: int) -> ShardcoreIndexError:
    """Return the error for an index that is not in [0, size).

    Parameters
    ----------
    place : str
        The name of the element: see `place_in`.
    value : int
    where : str
        Of `size` places, such as "the table".
    size : int

    Examples
    --------
    >>> outside("ids[3]", -1, "the table", 10)
    ShardcoreIndexError('ids[3] = -1 is outside the table: must be in [0, 10)')
    """
    return ShardcoreIndexError(f"{place} = {value} is outside {where}: must be in [0, {size})")


def vector(values: ArrayLike, argument: str) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return what `integers` returns, or raise that its rank is not 1."""
    array = integers(values, argument)[...]  # a view whose shape only we can change
    if array.ndim != 1:
        raise ShardcoreValueError(f"{argument} must be of rank 1, got shape {array.shape}")
    return array
