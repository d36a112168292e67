"""Apply values to rows in place, every occurrence in order. The face of ``_core/rows.pxi``.

The kernel takes the four float types and int32, int64. Every other dtype is NumPy's own business
(``ufunc.at``), with the same meaning and the same order.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import KIND_OF, row_bytes
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.store.instruction_set import best_module
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["OPERATIONS", "gather_rows", "put_rows", "scatter_rows"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_kernel = best_module("shardcore._core.rows")

_UFUNC: Final = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "min": np.minimum,
    "max": np.maximum,
}

OPERATIONS: Final = (*_UFUNC, "update")


def _row_size(rows: NDArray[Any]) -> int:
    return math.prod(rows.shape[1:])


def scatter_rows(rows: NDArray[Any], ids: Ints, values: NDArray[Any], op: str) -> None:
    """Apply ``rows[ids[i]] = rows[ids[i]] (op) values[i]`` for every i in order, in place.

    Parameters
    ----------
    rows : ndarray, shape (rows, *row_shape), writable
    ids : ndarray of int, shape (n,), each in [0, rows), checked by the caller
        Repeated ids are applied each time; for "update" the last one wins.
    values : ndarray of the dtype of `rows`, shape (n, *row_shape)
    op : {"add", "sub", "mul", "div", "min", "max", "update"}
        As NumPy's ufuncs compute them; "min" and "max" let NaN through.

    Raises
    ------
    ShardcoreValueError
        If the operation is none of these, or `rows` is read-only.
    ShardcoreTypeError
        If integers or booleans are to be divided: the quotient is no integer.

    Examples
    --------
    >>> rows = np.zeros((3, 1))
    >>> scatter_rows(rows, np.array([2, 0, 2]), np.ones((3, 1)), "add")
    >>> rows[:, 0]
    array([1., 0., 2.])
    """
    if op not in OPERATIONS:
        raise ShardcoreValueError(f"op must be one of {', '.join(OPERATIONS)}, got {op!r}")
    if not rows.flags.writeable:
        raise ShardcoreValueError("rows is read-only and cannot be scattered to")
    if op == "div" and rows.dtype.kind in "iub":
        raise ShardcoreTypeError(f"rows of dtype {rows.dtype} cannot be divided in place")
    if op == "update":
        put_rows(rows, ids, values)
        return
    kind = KIND_OF.get(rows.dtype.name) if rows.dtype.isnative else None
    if kind is None or not rows.flags.c_contiguous:
        _UFUNC[op].at(rows, ids, values)
        return
    dim = _row_size(rows)
    flat = rows.reshape(rows.shape[0], dim)
    given = np.ascontiguousarray(values).reshape(len(ids), dim)
    _kernel.scatter[TYPE_NAMES[ids.dtype]](
        row_bytes(flat), kind, dim, ids, row_bytes(given), _kernel.OPERATIONS[op]
    )


def gather_rows(rows: NDArray[Any], ids: Ints, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a copy of rows `ids`, in that order.

    Parameters
    ----------
    rows : ndarray, shape (rows, *row_shape)
    ids : ndarray of int, shape (n,), each in [0, rows), checked by the caller
    out : ndarray of the same dtype, shape (n, *row_shape), C-contiguous, optional

    Returns
    -------
    ndarray, shape (n, *row_shape)

    Examples
    --------
    >>> gather_rows(np.array([[1.0], [2.0]]), np.array([1, 1, 0]))[:, 0]
    array([2., 2., 1.])
    """
    if out is None:
        out = np.empty((ids.size, *rows.shape[1:]), rows.dtype)
    if not rows.flags.c_contiguous or rows.dtype.hasobject:
        out[...] = rows[ids]
    elif out.size:
        dim = _row_size(rows)
        _kernel.gather[TYPE_NAMES[ids.dtype]](
            row_bytes(rows.reshape(-1, dim)), ids, row_bytes(out.reshape(-1, dim))
        )
    return out


def put_rows(rows: NDArray[Any], ids: Ints, values: NDArray[Any]) -> None:
    """Copy `values` to rows `ids`, in order: of equal ids the last one wins.

    Parameters
    ----------
    rows : ndarray, shape (rows, *row_shape), writable
    ids : ndarray of int, shape (n,), each in [0, rows), checked by the caller
    values : ndarray of the dtype of `rows`, shape (n, *row_shape)

    Examples
    --------
    >>> rows = np.zeros((2, 1))
    >>> put_rows(rows, np.array([1, 1]), np.array([[5.0], [6.0]]))
    >>> rows[:, 0]
    array([0., 6.])
    """
    if not rows.flags.c_contiguous or rows.dtype.hasobject:
        rows[ids] = values
    elif values.size:
        dim = _row_size(rows)
        given = np.ascontiguousarray(values).reshape(-1, dim)
        _kernel.put[TYPE_NAMES[ids.dtype]](row_bytes(rows.reshape(-1, dim)), ids, row_bytes(given))
