"""Apply values to rows in place, every occurrence in order. The face of ``_core/rows.pxi``.

The kernel takes the four float types and int32, int64. Every other dtype is NumPy's own business
(``ufunc.at``), with the same meaning and the same order. Values and ids that overlap the rows are
read before anything is written, as NumPy does.
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


def _check_writable(rows: NDArray[Any]) -> None:
    if not rows.flags.writeable:
        raise ShardcoreValueError("rows is read-only and cannot be written to")


def _ready(rows: NDArray[Any]) -> bool:
    return bool(rows.flags.c_contiguous and rows.flags.aligned)


def _apart(rows: NDArray[Any], given: NDArray[Any]) -> NDArray[Any]:
    return given.copy() if np.may_share_memory(rows, given) else given


def _as_values(rows: NDArray[Any], ids: Ints, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype != rows.dtype or values.shape != (ids.size, *rows.shape[1:]):
        raise ShardcoreValueError(
            f"values must be {rows.dtype} of shape {(ids.size, *rows.shape[1:])}, got "
            f"{values.dtype} of shape {values.shape}"
        )
    return _apart(rows, values if _ready(values) else values.copy(order="C"))


def _as_ids(rows: NDArray[Any], ids: Ints) -> Ints:
    return _apart(rows, ids if _ready(ids) else ids.copy(order="C"))


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
        If the operation is none of these, `rows` is read-only, or `values` has another shape or
        dtype.
    ShardcoreTypeError
        If the dtype has no such operation, or integers are to be divided: the quotient is none.

    Examples
    --------
    >>> rows = np.zeros((3, 1))
    >>> scatter_rows(rows, np.array([2, 0, 2]), np.ones((3, 1)), "add")
    >>> rows[:, 0]
    array([1., 0., 2.])
    """
    if op not in OPERATIONS:
        raise ShardcoreValueError(f"op must be one of {', '.join(OPERATIONS)}, got {op!r}")
    _check_writable(rows)
    if op == "div" and rows.dtype.kind in "iub":
        raise ShardcoreTypeError(f"rows of dtype {rows.dtype} cannot be divided in place")
    if op == "update":
        put_rows(rows, ids, values)
        return
    given, at = _as_values(rows, ids, values), _as_ids(rows, ids)
    kind = KIND_OF.get(rows.dtype.name) if rows.dtype.isnative else None
    if kind is None or not _ready(rows):
        try:
            with np.errstate(all="ignore"):  # as the kernel, whose infinities come without a word
                _UFUNC[op].at(rows, at, given)
        except TypeError as error:
            raise ShardcoreTypeError(f"rows of dtype {rows.dtype} do not take op {op!r}") from error
        return
    dim = _row_size(rows)
    _kernel.scatter[TYPE_NAMES[at.dtype]](
        row_bytes(rows.reshape(rows.shape[0], dim)),
        kind,
        dim,
        at,
        row_bytes(given.reshape(at.size, dim)),
        _kernel.OPERATIONS[op],
    )


def gather_rows(rows: NDArray[Any], ids: Ints, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a copy of rows `ids`, in that order.

    Parameters
    ----------
    rows : ndarray, shape (rows, *row_shape)
    ids : ndarray of int, shape (n,), each in [0, rows), checked by the caller
    out : ndarray of the same dtype, shape (n, *row_shape), C-contiguous, optional
        Where to write; must not overlap `rows`.

    Returns
    -------
    ndarray of the dtype of `rows`, shape (n, *row_shape)

    Raises
    ------
    ShardcoreValueError
        If `out` is another array than that.

    Examples
    --------
    >>> gather_rows(np.array([[1.0], [2.0]]), np.array([1, 1, 0]))[:, 0]
    array([2., 2., 1.])
    """
    shape = (ids.size, *rows.shape[1:])
    if out is None:
        out = np.empty(shape, rows.dtype)
    elif (
        out.shape != shape
        or out.dtype != rows.dtype
        or not (out.flags.c_contiguous and out.flags.writeable)
    ):
        raise ShardcoreValueError(
            f"out must be C-contiguous, writable {rows.dtype} of shape {shape}, got {out.dtype} of "
            f"shape {out.shape}"
        )
    elif np.may_share_memory(out, rows):
        raise ShardcoreValueError("out must not overlap rows")
    if not rows.flags.c_contiguous or rows.dtype.hasobject:
        out[...] = rows[ids]
    elif out.size:
        dim = _row_size(rows)
        _kernel.gather[TYPE_NAMES[ids.dtype]](
            row_bytes(rows.reshape(-1, dim)),
            np.ascontiguousarray(ids),
            row_bytes(out.reshape(-1, dim)),
        )
    return out


def put_rows(rows: NDArray[Any], ids: Ints, values: NDArray[Any]) -> None:
    """Copy `values` to rows `ids`, in order: of equal ids the last one wins.

    Parameters
    ----------
    rows : ndarray, shape (rows, *row_shape), writable
    ids : ndarray of int, shape (n,), each in [0, rows), checked by the caller
    values : ndarray of the dtype of `rows`, shape (n, *row_shape)

    Raises
    ------
    ShardcoreValueError
        If `rows` is read-only, or `values` has another shape or dtype.

    Examples
    --------
    >>> rows = np.zeros((2, 1))
    >>> put_rows(rows, np.array([1, 1]), np.array([[5.0], [6.0]]))
    >>> rows[:, 0]
    array([0., 6.])
    """
    _check_writable(rows)
    given, at = _as_values(rows, ids, values), _as_ids(rows, ids)
    if not rows.flags.c_contiguous or rows.dtype.hasobject:
        rows[at] = given
    elif given.size:
        dim = _row_size(rows)
        _kernel.put[TYPE_NAMES[at.dtype]](
            row_bytes(rows.reshape(-1, dim)), at, row_bytes(given.reshape(-1, dim))
        )
