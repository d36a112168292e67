"""Initial values a block of rows at a time, from initializers, callables or arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.initializers.base import (
    BLOCK_BYTES,
    Array,
    Initializer,
    as_array,
    cast,
    check_castable,
    check_seed,
    row_ids,
)
from shardcore.initializers.constants import FromArray
from shardcore.initializers.foreign import own_initializer
from shardcore.validation.shapes import as_count, as_shape

__all__ = ["as_block", "as_initializer", "blocks", "fill"]


def as_initializer(
    value: Initializer | ArrayLike, shape: Sequence[int], dtype: DTypeLike | None = None
) -> Initializer:
    """Return `value` as an initializer of a table of `shape`.

    Parameters
    ----------
    value : callable ``init(rows, row_shape, dtype, seed)``, or array-like of exactly `shape`
        Also an initializer of Keras, TensorFlow or JAX whose distribution is one of ours.
    shape : sequence of int
        Of the whole table; at least one axis.
    dtype : anything ``np.dtype`` takes, or ``"bfloat16"``, optional
        Of the table. Where given, an array that does not cast to it is refused here, else when it
        is used.

    Returns
    -------
    Initializer
        `value` itself if it is callable (ours for one of Keras, TensorFlow or JAX), else one that
        hands out the rows of the array, without copying it.

    Raises
    ------
    ShardcoreTypeError
        If `value` is a class, draws all rows at once, or is an array that does not cast to `dtype`
        within the same kind.
    ShardcoreValueError
        If `value` is an array of another shape, or `shape` has no axis.

    Examples
    --------
    >>> init = as_initializer([[1.0, 2.0], [3.0, 4.0]], (2, 2))
    >>> init(np.array([1]), (2,), np.dtype("float32"), 0)
    array([[3., 4.]])
    """
    sizes = as_shape(shape)
    if not sizes:
        raise ShardcoreValueError("shape must have at least one axis, got ()")
    if isinstance(value, type):
        raise ShardcoreTypeError(
            f"initializer must be an instance, got the class {value.__name__}; "
            f"write {value.__name__}()"
        )
    if callable(value):
        found: Initializer = own_initializer(value, sizes)
        return found
    array = as_array(value, "initializer must be a callable or an array")
    if array.shape != sizes:
        raise ShardcoreValueError(
            f"initializer must have the full shape {sizes}, got an array of shape {array.shape}"
        )
    if dtype is not None:
        check_castable(array.dtype, as_dtype(dtype), "initializer has")
    return FromArray(array)


def fill(
    out: Array,
    init: Initializer,
    global_rows: NDArray[np.integer[Any]] | range,
    seed: int,
    block_rows: int | None = None,
) -> None:
    """Write the initial values of a shard into `out`, a block of rows at a time.

    Nothing but one block (1 MiB of `out` by default) exists beside `out`. A callable that fails
    or returns something unusable leaves the blocks before it written.

    Parameters
    ----------
    out : array (n, *row_shape), written
        The shard; its dtype is the table's.
    init : Initializer
    global_rows : integer array (n,), or range of length n
        The global row of each row of `out`.
    seed : int in [0, 2**64)
        Of the table.
    block_rows : int, optional
        Rows per call of `init`, 1 or more.

    Raises
    ------
    ShardcoreTypeError
        If what `init` returns is no array, or does not cast to the table's dtype within the same
        kind; if `seed` or `block_rows` is no integer.
    ShardcoreValueError
        If what `init` returns has another shape, or a value that overflows the dtype; if
        `global_rows` is not one id >= 0 per row; if `seed` or `block_rows` is out of its range.
    ShardcoreIndexError
        If the initial values are an array that has no such row.

    Examples
    --------
    >>> from shardcore.initializers import RowId
    >>> shard = np.empty((2, 3), np.float32)
    >>> fill(shard, RowId(), range(10, 12), seed=0)
    >>> shard
    array([[10., 10., 10.],
           [11., 11., 11.]], dtype=float32)
    """
    if not isinstance(out, np.ndarray) or out.ndim == 0:
        raise ShardcoreTypeError(f"out must be an array of rank 1 or more, got {out!r}")
    if len(global_rows) != len(out):
        raise ShardcoreValueError(
            f"global_rows must have one id per row of out, got {len(global_rows)} for {len(out)}"
        )
    for rows, values in blocks(init, out.shape[1:], out.dtype, global_rows, seed, block_rows):
        out[rows] = values


def blocks(
    init: Initializer,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    global_rows: NDArray[np.integer[Any]] | range,
    seed: int,
    block_rows: int | None = None,
) -> Iterator[tuple[slice, Array]]:
    """Return the values of rows, block after block, each checked and cast to the table's dtype.

    Parameters
    ----------
    init : Initializer
    row_shape : tuple of int
    dtype : np.dtype
        Of the table.
    global_rows : integer array (n,), or range of length n
    seed : int in [0, 2**64)
    block_rows : int, optional
        Rows per call of `init`, 1 or more; by default as many as make 1 MiB of values.

    Returns
    -------
    iterator of (slice, array (len, *row_shape))
        Positions in `global_rows`, and the values there. The arguments are checked at once, what
        `init` returns when its block is reached.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        As `fill`.

    Examples
    --------
    >>> from shardcore.initializers import RowId
    >>> for rows, values in blocks(RowId(), (), np.dtype("float32"), range(5), 0, block_rows=3):
    ...     print(rows, values)
    slice(0, 3, None) [0. 1. 2.]
    slice(3, 5, None) [3. 4.]
    """
    check_seed(seed)
    if block_rows is None:
        block_rows = max(1, BLOCK_BYTES // max(1, math.prod(row_shape) * dtype.itemsize))
    size = as_count(block_rows, "block_rows")
    ids = global_rows if isinstance(global_rows, range) else row_ids(global_rows, "global_rows")
    if isinstance(ids, range) and len(ids) and min(ids[0], ids[-1]) < 0:
        raise ShardcoreValueError(f"global_rows must be >= 0, got {ids!r}")
    return _evaluated(init, row_shape, dtype, ids, seed, size)


def _evaluated(
    init: Initializer,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    global_rows: NDArray[np.int64] | range,
    seed: int,
    block_rows: int,
) -> Iterator[tuple[slice, Array]]:
    for start in range(0, len(global_rows), block_rows):
        block = slice(start, min(start + block_rows, len(global_rows)))
        rows = np.array(global_rows[block], np.int64)
        rows.flags.writeable = False
        values = init(rows, row_shape, dtype, seed)
        yield block, as_block(values, row_shape, dtype, rows, f"initializer {init!r}")


def as_block(
    values: object,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    rows: NDArray[np.int64],
    who: str,
) -> Array:
    """Return what a callable of the user's gave for rows, checked and cast to `dtype`.

    Parameters
    ----------
    values : array-like
        Must have shape (len(rows), *row_shape).
    row_shape : tuple of int
    dtype : np.dtype
    rows : int64 (n,)
        Global row ids, for messages.
    who : str
        The name of what gave them, for messages.

    Raises
    ------
    ShardcoreTypeError
        If it is no array, or does not cast to `dtype` within the same kind.
    ShardcoreValueError
        If it has another shape, or a value that overflows `dtype`.

    Examples
    --------
    >>> as_block([[1, 2]], (2,), np.dtype("float32"), np.array([7]), "init")
    array([[1., 2.]], dtype=float32)
    """
    array = as_array(values, f"{who} must return an array")
    if array.shape != (len(rows), *row_shape):
        raise ShardcoreValueError(
            f"{who} must return shape {(len(rows), *row_shape)} for "
            f"{len(rows)} rows of shape {row_shape}, got {array.shape}"
        )
    check_castable(array.dtype, dtype, f"{who} returned")
    return cast(array, dtype, who, rows)
