"""The protocol of initializers, seeds, and the checks of arguments and values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore.dtypes import KIND_OF, as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.validation.shapes import as_integer, as_shape

__all__ = [
    "Initializer",
    "derived_seed",
    "as_array",
    "INT64",
    "checked_call",
    "check_seed",
    "check_castable",
    "rounded",
    "as_scalar",
    "cast",
    "BLOCK_BYTES",
    "Array",
    "finite",
    "row_ids",
    "positive",
]

BLOCK_BYTES: Final = 1 << 20

_SEEDS: Final = 1 << 64

INT64: Final = np.iinfo(np.int64)

Array: TypeAlias = NDArray[Any]


class Initializer(Protocol):
    """A callable that returns the initial values of rows."""

    def __call__(
        self,
        rows: NDArray[np.int64],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        seed: int,
        /,
    ) -> ArrayLike:
        """Return the values of `rows`.

        Parameters
        ----------
        rows : int64 (n,), read-only
            Global row ids.
        row_shape : tuple of int
            Shape of one row.
        dtype : np.dtype
            Of the table; the values must cast to it within the same kind.
        seed : int in [0, 2**64)
            Of the table.

        Returns
        -------
        array (n, *row_shape)
        """
        ...


def derived_seed(seed: int, name: str) -> int:
    """Return a seed in [0, 2**64) of something named, a stable hash of a seed and its name.

    A table's is derived from the engine's, a slot's from its table's.

    Examples
    --------
    >>> derived_seed(0, "user") == derived_seed(0, "user") != derived_seed(1, "user")
    True
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def checked_call(
    init: Initializer, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
) -> tuple[NDArray[np.int64], tuple[int, ...], np.dtype[Any]]:
    """Return the checked arguments of a call: row ids, row shape, dtype."""
    resolved = as_dtype(dtype)
    if resolved.kind not in "iu" and resolved.name not in KIND_OF:
        raise ShardcoreTypeError(
            f"dtype must be float32, float64, float16, bfloat16 or an integer for {init!r}, "
            f"got {resolved.name!r}"
        )
    check_seed(seed)
    return row_ids(rows, "rows"), as_shape(row_shape, "row_shape"), resolved


def check_seed(seed: int) -> None:
    """Raise unless `seed` is an integer in [0, 2**64)."""
    number = as_integer(seed, "seed", "must be an integer in [0, 2**64)")
    if not 0 <= number < _SEEDS:
        raise ShardcoreValueError(f"seed must be an integer in [0, 2**64), got {number}")


def row_ids(rows: ArrayLike, argument: str) -> NDArray[np.int64]:
    """Return row ids as a contiguous int64 array (n,), or raise that they are none."""
    ids = as_array(rows, f"{argument} must be an integer array of rank 1")
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise ShardcoreTypeError(
            f"{argument} must be an integer array of rank 1, "
            f"got dtype {ids.dtype.name}, shape {ids.shape}"
        )
    outside = (ids < 0) | (ids > INT64.max) if ids.dtype == np.uint64 else ids < 0
    if outside.any():
        position = int(outside.argmax())
        raise ShardcoreValueError(
            f"{argument} must be in [0, 2**63): {argument}[{position}] = {ids[position]}"
        )
    return np.ascontiguousarray(ids, np.int64)


def as_array(value: object, rule: str) -> Array:
    """Return `value` as an array of numbers or strings, or raise that it breaks `rule`."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ShardcoreTypeError(f"{rule}, got {type(value).__name__}") from error
    if array.dtype.kind == "O":
        raise ShardcoreTypeError(f"{rule}, got {type(value).__name__}")
    return array


def check_castable(source: np.dtype[Any], target: np.dtype[Any], what: str) -> None:
    """Raise unless `source` casts to `target` within the same kind; bfloat16 is a float."""
    single = np.dtype(np.float32)
    like = [single if dtype.name == "bfloat16" else dtype for dtype in (source, target)]
    if not np.can_cast(like[0], like[1], casting="same_kind"):
        raise ShardcoreTypeError(
            f"{what} dtype {source.name}, which does not cast to {target.name} within the same kind"
        )


def cast(values: Array, dtype: np.dtype[Any], who: str, rows: NDArray[np.int64]) -> Array:
    """Return `values` as `dtype`; a value that does not fit raises."""
    if values.dtype == dtype:
        return values
    result = rounded(values, dtype)
    if dtype.kind in "fc" or dtype.name == "bfloat16":
        lost = ~np.isfinite(result) & np.isfinite(values)
    else:
        lost = result != values
    if lost.any():
        first = tuple(int(i) for i in np.argwhere(lost)[0])
        raise ShardcoreValueError(
            f"{who} returned {values[first]} for row {rows[first[0]]}, "
            f"which does not fit {dtype.name}"
        )
    return result


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return `values` as `dtype`, rounded once to nearest even.

    ml_dtypes goes to bfloat16 by way of float32, which rounds twice. Rounding to odd on the way
    makes the second rounding right (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57, 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.name != "bfloat16" or values.dtype.itemsize < 4:
            return values.astype(dtype)
        if values.dtype.kind in "iu":
            values = values.astype(np.float64)
        near = np.array(values, np.float32)
        bits = near.view(np.uint32)
        inexact = (near != values) & np.isfinite(near)
        bits -= inexact & (abs(near) > abs(values))
        bits |= inexact
        return near.astype(dtype)


def finite(value: object, argument: str) -> float:
    """Return `value` as a finite float, or raise."""
    real = (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, real):
        raise ShardcoreTypeError(f"{argument} must be a finite number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ShardcoreValueError(f"{argument} must be a finite number, got {value!r}")
    return number


def positive(value: object, argument: str) -> float:
    """Return `value` as a finite float above 0, or raise."""
    number = finite(value, argument)
    if number <= 0.0:
        raise ShardcoreValueError(f"{argument} must be > 0, got {number}")
    return number


def as_scalar(init: Initializer, value: float, dtype: np.dtype[Any]) -> Any:
    """Return `value` as a scalar of `dtype`, or raise that `init` gives what does not fit."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = value == int(value) and limits.min <= value <= limits.max
    else:
        result = rounded(np.array(value, np.float64), dtype)
        fits = bool(np.isfinite(result))
    if not fits:
        raise ShardcoreValueError(f"{init!r} gives {value}, which does not fit {dtype.name}")
    return int(value) if dtype.kind in "iu" else result
