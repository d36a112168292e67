"""Sparse updates of a row store: some elements, named by indices, each occurrence in order.

Everything is checked and computed on a copy of the touched rows; the store changes last, at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.store.scatter import scatter_rows
from shardcore.validation.arrays import as_ids, read_array
from shardcore.validation.integers import outside, place_in
from shardcore.variable.indexing import numpy_errors, row_numbers
from shardcore.variable.row_store import RowStore

__all__ = [
    "batch_columns",
    "broadcast_values",
    "cast_values",
    "check_operation",
    "nd_columns",
    "scatter",
]

_UFUNCS: Final = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "min": np.minimum,
    "max": np.maximum,
}


def check_operation(operation: str, dtype: np.dtype[Any]) -> None:
    """Refuse an operation whose answer on two elements of `dtype` is none of its kind.

    Raises
    ------
    ShardcoreTypeError

    Examples
    --------
    >>> check_operation("div", np.dtype("float32"))
    """
    if operation == "update":
        return
    try:
        answer = _UFUNCS[operation].resolve_dtypes((dtype, dtype, None))[2]
    except TypeError:
        answer = None
    if answer is None or not np.can_cast(answer, dtype, "same_kind"):
        raise ShardcoreTypeError(f"a variable of dtype {dtype} has no scatter_{operation}")


def cast_values(values: Any, dtype: np.dtype[Any], argument: str) -> NDArray[Any]:
    """Return `values` as an array of `dtype`, by NumPy's "same_kind" rule.

    Parameters
    ----------
    values : array_like
        A Python number adapts to `dtype`, as in NumPy.
    dtype : numpy.dtype
    argument : str
        The caller's argument, for the message.

    Raises
    ------
    ShardcoreTypeError
        If the kind would be lost: complex to real, float to integer.
    ShardcoreValueError
        If an integer does not fit.

    Examples
    --------
    >>> cast_values([0.5, 1.0], np.dtype("float32"), "values")
    array([0.5, 1. ], dtype=float32)
    """
    if type(values) in (bool, int, float, complex):
        _check_kind(np.result_type(dtype, values), dtype, argument)
        try:
            return np.asarray(values, dtype)
        except OverflowError as error:
            raise ShardcoreValueError(f"{argument} = {values} does not fit {dtype}") from error
    with numpy_errors(f"{argument} must be an array"):
        array = np.asarray(values)
    _check_kind(array.dtype, dtype, argument)
    if array.dtype == dtype:
        return array
    cast = array.astype(dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu" and array.size and (cast != array).any():
        first = int(np.argmax(cast != array))
        name = place_in(argument, first, array.shape)
        raise ShardcoreValueError(f"{name} = {array.flat[first]} does not fit {dtype}")
    return cast


def _check_kind(source: np.dtype[Any], dtype: np.dtype[Any], argument: str) -> None:
    # ml_dtypes allows complex to bfloat16 under this rule; NumPy allows it to no real dtype.
    lossy = source.kind == "c" and dtype.kind != "c"
    if lossy or not np.can_cast(source, dtype, "same_kind"):
        raise ShardcoreTypeError(
            f"{argument} must cast to {dtype} by the same_kind rule, got {source}"
        )


def broadcast_values(
    values: NDArray[Any], shape: tuple[int, ...], argument: str, target: str
) -> NDArray[Any]:
    """Return `values` broadcast to `shape`, read-only, or raise ShardcoreValueError.

    Examples
    --------
    >>> broadcast_values(np.ones(2), (3, 2), "value", "the variable's shape").shape
    (3, 2)
    """
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        raise ShardcoreValueError(
            f"{argument} must broadcast to {target} {shape}, got shape {values.shape}"
        ) from error


def nd_columns(indices: object, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    """Return the columns of an index array whose last axis is a place ``(i, j, ...)``.

    Parameters
    ----------
    indices : array of int, (..., k), 1 <= k <= len(shape)
    shape : tuple of int

    Returns
    -------
    tuple of k int64 arrays, each (...)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If they are no integers, have no such last axis, or one is out of range.

    Examples
    --------
    >>> nd_columns([[2, 1], [0, 0]], (3, 2))
    (array([2, 0]), array([1, 0]))
    """
    array = as_ids(read_array(indices, "indices"), "indices").astype(np.int64)  # a copy, checked
    if array.ndim == 0 or not 1 <= array.shape[-1] <= len(shape):
        raise ShardcoreValueError(
            f"indices must have 1 to {len(shape)} places on their last axis, "
            f"got shape {array.shape}"
        )
    beyond = (array < 0) | (array >= np.array(shape[: array.shape[-1]], np.int64))
    if beyond.any():
        at = int(np.argmax(beyond))
        axis = at % array.shape[-1]
        place = place_in("indices", at, array.shape)
        raise outside(place, array.flat[at], f"axis {axis}", shape[axis])
    return tuple(array[..., axis] for axis in range(array.shape[-1]))


def batch_columns(indices: object, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    """Return the columns of an index array whose leading axes are those of the variable.

    Parameters
    ----------
    indices : array of int, (*shape[:k], n)
        ``indices[b, i]`` is a place along axis k of the part ``b``.
    shape : tuple of int

    Returns
    -------
    tuple of k + 1 int64 arrays, each of the shape of `indices`

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If they are no integers, their leading axes are others, or one is out of range.

    Examples
    --------
    >>> batch_columns([[1], [0]], (2, 3))
    (array([[0],
           [1]]), array([[1],
           [0]]))
    """
    array = read_array(indices, "indices")[...]
    batch = array.ndim - 1
    if not 0 <= batch < len(shape) or array.shape[:batch] != shape[:batch]:
        raise ShardcoreValueError(
            f"indices must have the leading axes of the variable's shape {shape} and one more, "
            f"got shape {array.shape}"
        )
    last = row_numbers(array, shape[batch], "indices", f"axis {batch}")
    return (*np.indices(last.shape, np.int64)[:batch], last)


def scatter(
    store: RowStore, operation: str, columns: Sequence[NDArray[np.int64]], values: Any
) -> None:
    """Apply ``whole[columns[0], columns[1], ...] (operation)= values``, each occurrence in order.

    Parameters
    ----------
    store : RowStore
    operation : "add", "sub", "mul", "div", "min", "max" or "update"
    columns : sequence of k int64 arrays of one shape, in range
    values : array_like
        Broadcast to ``columns[0].shape + shape[k:]``.

    Raises
    ------
    ShardcoreTypeError
        If the dtype has no such operation, or `values` are of another kind.
    ShardcoreValueError
        If `values` do not fit or do not broadcast.
    """
    check_operation(operation, store.dtype)
    shape = (store.layout.num_rows, *store.row_shape)
    element = shape[len(columns) :]
    target = (*columns[0].shape, *element)
    cast = broadcast_values(
        cast_values(values, store.dtype, "values"), target, "values", "the shape of the update"
    )
    rows, places = np.unique(columns[0], return_inverse=True)
    places = places.reshape(-1)
    parts = len(rows)
    for axis, column in enumerate(columns[1:], start=1):
        places = places * shape[axis] + column.reshape(-1)
        parts *= shape[axis]
    block = np.ascontiguousarray(store.gather(rows))
    scatter_rows(
        block.reshape(parts, *element),
        places,
        np.ascontiguousarray(cast).reshape(len(places), *element),
        operation,
    )
    store.scatter(rows, block)
