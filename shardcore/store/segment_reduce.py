"""Combine rows per bag: sum, mean and sqrtn, with and without weights, and their gradients.

With weights w (1 where none are given) and rows e of a bag:

    sum    Σ w·e
    mean   Σ w·e / Σ w
    sqrtn  Σ w·e / √(Σ w²)

All three are one sum and a divisor per bag (`divisors`); a divisor of 0 gives a row of zeros, as
TensorFlow's division without NaN does. The rows are never gathered into memory first. The face of
``_core/rows.pxi``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.dtypes import kind_of, row_bytes, table_dtype, working_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.own_arrays import take_ids
from shardcore.ids.row_splits import check_row_splits, row_ids_from_row_splits
from shardcore.store.instruction_set import best_module
from shardcore.store.lookups import look_up
from shardcore.store.pace import PACE
from shardcore.store.stored_rows import StoredRows
from shardcore.threads import team
from shardcore.validation.integers import outside, vector

__all__ = [
    "COMBINERS",
    "TYPE_NAMES",
    "divisors",
    "occurrence_gains",
    "reciprocals",
    "reduce_bags",
    "reduce_bags_at",
    "row_dots",
    "segment_reduce",
    "weight_gradients",
]

Ints = NDArray[np.int32] | NDArray[np.int64]

COMBINERS: Final = ("sum", "mean", "sqrtn")

TYPE_NAMES: Final = {
    np.dtype(np.int32): "int32_t",
    np.dtype(np.int64): "int64_t",
    np.dtype(np.float32): "float32_t",
    np.dtype(np.float64): "float64_t",
}
"""dtype -> its name in the kernels, by which the body for it is chosen."""

_SHARED: Final = team.PIECE // 8
"""Elements to add up from which a lookup is shared with other threads, if there are any."""

_kernel = best_module("shardcore._core.rows")


def segment_reduce(
    rows: NDArray[Any],
    ids: ArrayLike,
    row_splits: ArrayLike,
    weights: ArrayLike | None = None,
    divisors: NDArray[Any] | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return, per bag, the sum of the rows its ids name, weighted and divided where asked.

    Parameters
    ----------
    rows : ndarray of float32, float64, float16 or bfloat16, shape (rows, dim), C-contiguous
        Of the machine's byte order, aligned to its elements.
    ids : array_like of int, shape (n,), each in [0, rows)
    row_splits : array_like of int, shape (bags + 1,)
    weights : array_like of float, shape (n,), optional
    divisors : ndarray, shape (bags,), optional
        From `divisors`; a bag whose divisor is 0 becomes zeros.
    out : ndarray of the working dtype, shape (bags, dim), C-contiguous, optional
        Where to write; must not overlap another argument.

    Returns
    -------
    ndarray of float64 for float64 rows, else of float32, shape (bags, dim)
        Each element summed in the order of the occurrences.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If an argument has another shape, dtype or range, or `out` cannot be written to.

    Examples
    --------
    >>> rows = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> segment_reduce(rows, [0, 2, 1], [0, 2, 2, 3])
    array([[6., 8.],
           [0., 0.],
           [3., 4.]], dtype=float32)
    """
    if not isinstance(rows, np.ndarray):
        raise ShardcoreTypeError(f"rows must be an ndarray, got {type(rows).__name__}")
    rows = rows[...]  # a view whose shape only we can change
    table_dtype(rows.dtype, "rows.dtype")
    if rows.ndim != 2 or not _fit(rows):
        raise ShardcoreValueError(
            f"rows must be C-contiguous, aligned and of rank 2, got shape {rows.shape} "
            f"with strides {rows.strides}"
        )
    given = vector(ids, "ids")
    splits = check_row_splits(row_splits, given.size)
    own, bad = take_ids(given, rows.shape[0])
    if bad >= 0:
        raise outside(f"ids[{bad}]", own[bad], "the table", rows.shape[0])
    value = working_dtype(rows.dtype)
    gain = _values(weights, "weights", value, given.size)
    divisor = _values(divisors, "divisors", value, splits.size - 1)
    shape = (splits.size - 1, rows.shape[1])
    if out is None:
        out = np.empty(shape, value)
    else:
        _check_out(out, shape, value, (rows, given, row_splits, gain, divisor))
    reduce_bags(rows, own, splits, gain, divisor, out)
    return out


def _fit(array: NDArray[Any]) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned)


def _check_out(
    out: NDArray[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    inputs: tuple[ArrayLike | None, ...],
) -> None:
    if out.shape != shape or out.dtype != dtype or not _fit(out) or not out.flags.writeable:
        raise ShardcoreValueError(
            f"out must be C-contiguous, aligned, writable {dtype} of shape {shape}, got "
            f"{out.dtype.str} of shape {out.shape} with strides {out.strides}"
            f"{'' if out.flags.writeable else ', read-only'}"
        )
    arrays = [given for given in inputs if isinstance(given, np.ndarray)]
    if any(np.may_share_memory(out, given) for given in arrays):
        raise ShardcoreValueError("out must not overlap rows, ids, row_splits, weights or divisors")


def _values(
    values: ArrayLike | None, argument: str, dtype: np.dtype[Any], size: int
) -> NDArray[Any] | None:
    if values is None:
        return None
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShardcoreTypeError(
            f"{argument} must be an array of real numbers, got nested sequences of uneven length"
        ) from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise ShardcoreTypeError(f"{argument} must be real numbers, got dtype {array.dtype}")
    if array.shape != (size,):
        raise ShardcoreValueError(f"{argument} must have shape ({size},), got {array.shape}")
    ready = np.ascontiguousarray(array, dtype)
    return ready if ready.flags.aligned else ready.copy()


def reduce_bags(
    rows: NDArray[Any],
    ids: Ints,
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None,
    divisors: NDArray[Any] | None,
    out: NDArray[Any],
    divided: int = _kernel.GIVEN_DIVISORS,
) -> bool:
    """Write what `segment_reduce` returns to `out`, on several threads; return whether it is right.

    Every array is C-contiguous, weights, divisors and `out` are in the working dtype. Ids may be
    the caller's own: each is read once and, if it is out of range, no row; `out` then holds nothing
    of use. Row splits are checked ones, to which no other thread writes.

    With a combiner's number of `DIVIDED` for `divided`, divisors are made of the weights, which may
    be the caller's own, too, and of any value: where they leave a divisor, or a sum that has none,
    that is not finite, the answer is False as well.
    """
    if ids.size * rows.shape[1] >= _SHARED and team.get_num_threads() > 1:
        stored = StoredRows(rows, {})
        return look_up([(stored, ids, row_splits, weights, divisors, out)], divided)
    kernel = _kernel.segment_reduce[TYPE_NAMES[ids.dtype], TYPE_NAMES[out.dtype]]
    table, kind = row_bytes(rows), kind_of(rows.dtype)
    right: bool = kernel(table, kind, ids, row_splits, weights, divisors, divided, out, PACE.asking)
    return right


def reduce_bags_at(
    addresses: Callable[[Ints], NDArray[np.int64]],
    dtype: np.dtype[Any],
    ids: Ints,
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None,
    divisors: NDArray[Any] | None,
    out: NDArray[Any],
) -> None:
    """Write what `reduce_bags` writes, of rows of `dtype` that lie where `addresses` says.

    The caller keeps them there. Ids in range and arrays as for `reduce_bags`.
    """
    kernel = _kernel.segment_reduce_at[TYPE_NAMES[out.dtype]]
    kind = kind_of(dtype)
    pieces = team.ranges(row_splits, max(out.shape[1], 1))

    def reduce_piece(number: int) -> None:
        bags = slice(*pieces[number])
        start, stop = int(row_splits[bags.start]), int(row_splits[bags.stop])
        kernel(
            addresses(ids[start:stop]),
            kind,
            row_splits[bags.start : bags.stop + 1] - start,
            None if weights is None else weights[start:stop],
            None if divisors is None else divisors[bags],
            out[bags],
            PACE.asking,
        )

    team.run(len(pieces), reduce_piece)


def sequential_sums(
    values: NDArray[Any], row_splits: NDArray[np.int64], squared: bool = False
) -> NDArray[Any]:
    """Return the sum of each bag's values, (n,), or of their squares, in order."""
    out = np.empty(row_splits.size - 1, values.dtype)
    _kernel.sum_values[TYPE_NAMES[values.dtype]](values, row_splits, squared, out)
    return out


def divisors(
    combiner: str,
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None = None,
    dtype: np.dtype[Any] | type[Any] = np.float32,
) -> NDArray[Any] | None:
    """Return what each bag's sum is divided by.

    Parameters
    ----------
    combiner : {"sum", "mean", "sqrtn"}
    row_splits : ndarray of int64, shape (bags + 1,), checked
    weights : ndarray, shape (n,), optional
        Ones where not given.
    dtype : working dtype
        In which the weights are summed.

    Returns
    -------
    ndarray of `dtype`, shape (bags,), or None for "sum"
        Σ w for "mean", √(Σ w²) for "sqrtn".

    Raises
    ------
    ShardcoreValueError
        If the combiner is not one of the three.

    Examples
    --------
    >>> divisors("mean", np.array([0, 2, 2, 3]))
    array([2., 0., 1.], dtype=float32)
    """
    if combiner not in COMBINERS:
        raise ShardcoreValueError(
            f"combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}"
        )
    if combiner == "sum":
        return None
    if weights is None:
        sums = (row_splits[1:] - row_splits[:-1]).astype(dtype)
    else:
        wide = np.ascontiguousarray(weights, dtype)
        sums = sequential_sums(wide, row_splits, squared=combiner == "sqrtn")
    return sums if combiner == "mean" else np.sqrt(sums)


def reciprocals(divisors: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / divisor, and 0 where the divisor is 0: the gain of an occurrence of weight 1.

    Parameters
    ----------
    divisors : ndarray of the working dtype, shape (bags,)

    Returns
    -------
    ndarray of the working dtype, shape (bags,)

    Examples
    --------
    >>> reciprocals(np.array([2.0, 0.0]))
    array([0.5, 0. ])
    """
    out = np.zeros_like(divisors)
    np.divide(1, divisors, out=out, where=divisors != 0)
    return out


def occurrence_gains(
    row_splits: NDArray[np.int64], weights: NDArray[Any], divisors: NDArray[Any] | None
) -> NDArray[Any]:
    """Return the gain w / divisor of each occurrence: d activation / d row. 0 where it is 0 / 0.

    Parameters
    ----------
    row_splits : ndarray of int64, shape (bags + 1,)
    weights : ndarray of the working dtype, shape (n,)
    divisors : ndarray of the working dtype, shape (bags,), or None for "sum"

    Returns
    -------
    ndarray of the working dtype, shape (n,)

    Examples
    --------
    >>> occurrence_gains(np.array([0, 2]), np.array([1.0, 3.0]), np.array([4.0]))
    array([0.25, 0.75])
    """
    if divisors is None:
        return weights
    divisor = divisors[row_ids_from_row_splits(row_splits)]
    out = np.zeros_like(weights)
    np.divide(weights, divisor, out=out, where=divisor != 0)
    return out


def row_dots(
    rows: NDArray[Any], ids: Ints, row_splits: NDArray[np.int64], gradients: NDArray[Any]
) -> NDArray[Any]:
    """Return the dot product of each occurrence's row with its bag's gradient.

    Parameters
    ----------
    rows : ndarray, shape (rows, dim), C-contiguous
    ids : ndarray of int, shape (n,), checked
    row_splits : ndarray of int64, shape (bags + 1,)
    gradients : ndarray of the working dtype, shape (bags, dim), C-contiguous

    Returns
    -------
    ndarray of the working dtype, shape (n,)
        Columns summed in 8 lanes, column c in lane c mod 8, lanes added in order.

    Examples
    --------
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> row_dots(rows, np.array([1, 0]), np.array([0, 2]), np.array([[1.0, 10.0]]))
    array([43., 21.])
    """
    out = np.zeros(ids.size, gradients.dtype)
    kernel = _kernel.row_dots[TYPE_NAMES[ids.dtype], TYPE_NAMES[gradients.dtype]]
    kernel(row_bytes(rows), kind_of(rows.dtype), ids, row_splits, gradients, out)
    return out


def weight_gradients(
    combiner: str,
    dots: NDArray[Any],
    row_splits: NDArray[np.int64],
    weights: NDArray[Any],
    divisors: NDArray[Any] | None,
) -> NDArray[Any]:
    """Return the gradient of the loss with respect to each weight.

    With g the bag's gradient, e its rows, a = Σ w·e / D its activation:

        sum    g·e
        mean   (g·e - g·a) / D            D = Σ w
        sqrtn  g·e / D - w (g·a) / D²     D = √(Σ w²)

    and 0 where D is 0. Follows from the definition of the combiners.

    Parameters
    ----------
    combiner : {"sum", "mean", "sqrtn"}
    dots : ndarray, shape (n,)
        g·e, from `row_dots`.
    row_splits : ndarray of int64, shape (bags + 1,)
    weights : ndarray, shape (n,)
    divisors : ndarray, shape (bags,), or None for "sum"

    Returns
    -------
    ndarray, shape (n,)

    Examples
    --------
    >>> one_bag, w = np.array([0, 2]), np.array([1.0, 1.0])
    >>> weight_gradients("mean", np.array([3.0, 1.0]), one_bag, w, np.array([2.0]))
    array([ 0.5, -0.5])
    """
    if divisors is None:
        return dots
    bag = row_ids_from_row_splits(row_splits)
    inverse = reciprocals(divisors)
    along = (sequential_sums(dots * weights, row_splits) * inverse)[bag]
    inverse = inverse[bag]
    gradient: NDArray[Any]
    if combiner == "mean":
        gradient = (dots - along) * inverse
    else:
        gradient = dots * inverse - weights * along * inverse * inverse
    return gradient
