"""Initial values of tables, a block of rows at a time.

An initializer is any callable ``init(rows, row_shape, dtype, seed)``: `rows` are global row ids
(int64), the result has shape ``(len(rows), *row_shape)``. The ones here depend, element by element,
on (seed, global row, flat column) only: rows may come in any order and in any blocks, so a table is
the same for every number of shards and every layout. A callable of a user's own has the same
property if it derives its values from `rows` alone.

Random numbers come from the generator documented in ``shardcore/_core/random.pyx``. They are
computed in float64 and rounded once to the dtype asked for.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore._core import random
from shardcore.dtypes import KIND_OF, as_dtype, table_dtype
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.shapes import as_count, as_integer, as_shape

__all__ = [
    "Initializer",
    "TruncatedNormal",
    "Normal",
    "Uniform",
    "Constant",
    "Zeros",
    "RowId",
    "FromArray",
    "as_block",
    "as_initializer",
    "blocks",
    "derived_seed",
    "fill",
]

_BLOCK_BYTES: Final = 1 << 20
_SEEDS: Final = 1 << 64
_FARTHEST: Final = 8.21  # no normal number lies farther from the mean, in standard deviations
_INT64: Final = np.iinfo(np.int64)

_Array: TypeAlias = NDArray[Any]


class Initializer(Protocol):
    """What is called for the initial values of rows."""

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


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal numbers, none farther than two standard deviations from the mean.

    By the inverse of the distribution function (Wichura, AS 241, Applied Statistics 37, 1988), so
    none is drawn twice.

    Parameters
    ----------
    mean : float
    stddev : float, optional
        Of the normal distribution before it is truncated, > 0; the numbers themselves have 0.8796
        times that. None: 1 / sqrt(elements of a row), which for a table of rank 2 is 1 / sqrt(dim).

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, or `stddev` not above 0.

    Examples
    --------
    >>> TruncatedNormal()(np.array([7]), (2,), "float32", 0).round(4)
    array([[ 0.9139, -0.0485]], dtype=float32)
    """

    mean: float = 0.0
    stddev: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _finite(self.mean, "mean"))
        if self.stddev is not None:
            object.__setattr__(self, "stddev", _positive(self.stddev, "stddev"))

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        stddev = self.stddev
        if stddev is None:
            stddev = 1.0 / math.sqrt(max(1, math.prod(as_shape(row_shape, "row_shape"))))
        reach = 2.0 * stddev
        bounds = (self.mean - reach, self.mean + reach)
        return _draw(
            self, random.truncated_normal, (self.mean, stddev), bounds, rows, row_shape, dtype, seed
        )


@dataclass(frozen=True)
class Normal:
    """Normal numbers.

    By the inverse of the distribution function (Wichura, AS 241, Applied Statistics 37, 1988); none
    is farther than 8.21 standard deviations from the mean.

    Parameters
    ----------
    mean : float
    stddev : float
        > 0.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, or `stddev` not above 0.

    Examples
    --------
    >>> Normal()(np.array([7]), (2,), "float32", 0).round(4)
    array([[ 1.4122, -0.0719]], dtype=float32)
    """

    mean: float = 0.0
    stddev: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _finite(self.mean, "mean"))
        object.__setattr__(self, "stddev", _positive(self.stddev, "stddev"))

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        reach = _FARTHEST * self.stddev
        bounds = (self.mean - reach, self.mean + reach)
        parameters = (self.mean, self.stddev)
        return _draw(self, random.normal, parameters, bounds, rows, row_shape, dtype, seed)


@dataclass(frozen=True)
class Uniform:
    """Numbers of equal density from `low` to `high`; rounding to the dtype may give `high` itself.

    Parameters
    ----------
    low, high : float
        low < high.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no number, not finite, `low` is not below `high`, or `high - low` is not
        finite.

    Examples
    --------
    >>> Uniform(0, 1)(np.array([7]), (2,), "float32", 0).round(4)
    array([[0.9211, 0.4714]], dtype=float32)
    """

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        low, high = _finite(self.low, "low"), _finite(self.high, "high")
        if not low < high:
            raise ShardcoreValueError(f"low must be below high, got low = {low}, high = {high}")
        if not math.isfinite(high - low):
            raise ShardcoreValueError(f"high - low must be finite, got low = {low}, high = {high}")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        bounds = (self.low, self.high)
        return _draw(self, random.uniform, bounds, bounds, rows, row_shape, dtype, seed)


@dataclass(frozen=True)
class Constant:
    """One value everywhere.

    Parameters
    ----------
    value : float or int
        Finite. An integer dtype takes only what it can hold exactly.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `value` is no number, or not finite.

    Examples
    --------
    >>> Constant(0.5)(np.array([7, 3]), (2,), "float32", 0)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """

    value: float

    def __post_init__(self) -> None:
        number = _finite(self.value, "value")
        exact = isinstance(self.value, (int, np.integer))
        object.__setattr__(self, "value", int(self.value) if exact else number)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = _arguments(self, rows, row_shape, dtype, seed)
        return np.full((len(ids), *shape), _scalar(self, self.value, resolved), resolved)


@dataclass(frozen=True)
class Zeros:
    """Zero everywhere.

    Examples
    --------
    >>> Zeros()(np.array([7]), (2,), "float32", 0)
    array([[0., 0.]], dtype=float32)
    """

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = _arguments(self, rows, row_shape, dtype, seed)
        return np.zeros((len(ids), *shape), resolved)


@dataclass(frozen=True)
class RowId:
    """Every element of row i is i + offset: shows where a row went.

    Parameters
    ----------
    offset : int

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `offset` is no integer, or outside int64.

    Examples
    --------
    >>> RowId(offset=1000)(np.array([7, 3]), (2,), "float32", 0)
    array([[1007., 1007.],
           [1003., 1003.]], dtype=float32)
    """

    offset: int = 0

    def __post_init__(self) -> None:
        offset = as_integer(self.offset, "offset")
        if not _INT64.min <= offset <= _INT64.max:
            raise ShardcoreValueError(f"offset must fit int64, got {offset}")
        object.__setattr__(self, "offset", offset)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = _arguments(self, rows, row_shape, dtype, seed)
        values = np.empty((len(ids), *shape), resolved)
        if len(ids):
            bounds = int(ids.min()) + self.offset, int(ids.max()) + self.offset
            for bound in bounds:
                if not _INT64.min <= bound <= _INT64.max:
                    raise ShardcoreValueError(f"{self!r} gives {bound}, which does not fit int64")
                _scalar(self, bound, resolved)
            values[...] = _rounded(ids + self.offset, resolved).reshape(-1, *(1 for _ in shape))
        return values


@dataclass(frozen=True, eq=False, repr=False)
class FromArray:
    """The rows of an array of the full shape.

    Two are equal if their arrays have one shape, dtype and checksum.

    Parameters
    ----------
    array : array-like of rank 1 or more
        Not copied: it must not change while it is in use.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `array` is no array, or has no axis.

    Examples
    --------
    >>> FromArray([[1.0, 2.0], [3.0, 4.0]])(np.array([1]), (2,), "float32", 0)
    array([[3., 4.]])
    """

    array: _Array

    def __post_init__(self) -> None:
        array = _as_array(self.array, "array must be an array")
        if not array.ndim:
            raise ShardcoreValueError("array must have at least one axis, got ()")
        object.__setattr__(self, "array", array)

    @cached_property
    def checksum(self) -> str:
        """The BLAKE2b of the array's bytes in C order, 16 bytes in hexadecimal."""
        digest = hashlib.blake2b(digest_size=16)
        row_bytes = self.array[:1].nbytes
        size = max(1, _BLOCK_BYTES // max(1, row_bytes))
        for start in range(0, len(self.array), size):
            digest.update(self.array[start : start + size].tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FromArray):
            return NotImplemented
        mine, theirs = self.array, other.array
        if mine is theirs:
            return True
        alike = mine.shape == theirs.shape and mine.dtype == theirs.dtype
        return alike and self.checksum == other.checksum

    def __hash__(self) -> int:
        return hash((self.array.shape, self.checksum))

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> _Array:
        """Return the values of `rows`, as the array has them; see `Initializer`."""
        ids = _row_ids(rows, "rows")
        outside = ids >= len(self.array)
        if outside.any():
            position = int(outside.argmax())
            raise ShardcoreIndexError(
                f"rows[{position}] = {ids[position]} is outside the initial values: "
                f"must be in [0, {len(self.array)})"
            )
        result: _Array = self.array[ids]
        return result

    def __repr__(self) -> str:
        return f"<rows of an array of shape {self.array.shape}, dtype {self.array.dtype.name}>"


def as_initializer(
    value: Initializer | ArrayLike, shape: Sequence[int], dtype: DTypeLike | None = None
) -> Initializer:
    """Return `value` as an initializer of a table of `shape`.

    Parameters
    ----------
    value : callable ``init(rows, row_shape, dtype, seed)``, or array-like of exactly `shape`
    shape : sequence of int
        Of the whole table; at least one axis.
    dtype : anything ``np.dtype`` takes, or ``"bfloat16"``, optional
        Of the table. Where given, an array that does not cast to it is refused here, else when it
        is used.

    Returns
    -------
    Initializer
        `value` itself if it is callable, else one that hands out the rows of the array, without
        copying it.

    Raises
    ------
    ShardcoreTypeError
        If `value` is a class, or an array that does not cast to `dtype` within the same kind.
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
        return value
    array = _as_array(value, "initializer must be a callable or an array")
    if array.shape != sizes:
        raise ShardcoreValueError(
            f"initializer must have the full shape {sizes}, got an array of shape {array.shape}"
        )
    if dtype is not None:
        _check_castable(array.dtype, as_dtype(dtype), "initializer has")
    return FromArray(array)


def fill(
    out: _Array,
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
) -> Iterator[tuple[slice, _Array]]:
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
    >>> for rows, values in blocks(RowId(), (), np.dtype("float32"), range(5), 0, block_rows=3):
    ...     print(rows, values)
    slice(0, 3, None) [0. 1. 2.]
    slice(3, 5, None) [3. 4.]
    """
    _check_seed(seed)
    if block_rows is None:
        block_rows = max(1, _BLOCK_BYTES // max(1, math.prod(row_shape) * dtype.itemsize))
    size = as_count(block_rows, "block_rows")
    ids = global_rows if isinstance(global_rows, range) else _row_ids(global_rows, "global_rows")
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
) -> Iterator[tuple[slice, _Array]]:
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
) -> _Array:
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
        What gave them, for messages.

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
    array = _as_array(values, f"{who} must return an array")
    if array.shape != (len(rows), *row_shape):
        raise ShardcoreValueError(
            f"{who} must return shape {(len(rows), *row_shape)} for "
            f"{len(rows)} rows of shape {row_shape}, got {array.shape}"
        )
    _check_castable(array.dtype, dtype, f"{who} returned")
    return _cast(array, dtype, who, rows)


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


def _draw(
    init: Initializer,
    kernel: Callable[[NDArray[np.int64], int, float, float, _Array], None],
    parameters: tuple[float, float],
    bounds: tuple[float, float],
    rows: ArrayLike,
    row_shape: Sequence[int],
    dtype: DTypeLike,
    seed: int,
) -> _Array:
    """Return random numbers of `kernel`; the short floats pass through blocks of float64."""
    resolved = table_dtype(dtype)
    ids, shape, _ = _arguments(init, rows, row_shape, resolved, seed)
    for bound in bounds:
        _scalar(init, bound, resolved)
    out = np.empty((len(ids), math.prod(shape)), resolved)
    if resolved.itemsize >= 4:
        kernel(ids, seed, *parameters, out)
        return out.reshape(len(ids), *shape)
    block_rows = max(1, _BLOCK_BYTES // max(1, 8 * out.shape[1]))
    scratch = np.empty((min(block_rows, len(ids)), out.shape[1]))
    for start in range(0, len(ids), block_rows):
        block = ids[start : start + block_rows]
        kernel(block, seed, *parameters, scratch[: len(block)])
        out[start : start + block_rows] = _rounded(scratch[: len(block)], resolved)
    return out.reshape(len(ids), *shape)


def _arguments(
    init: Initializer, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
) -> tuple[NDArray[np.int64], tuple[int, ...], np.dtype[Any]]:
    """Return the checked arguments of a call: row ids, row shape, dtype."""
    resolved = as_dtype(dtype)
    if resolved.kind not in "iu" and resolved.name not in KIND_OF:
        raise ShardcoreTypeError(
            f"dtype must be float32, float64, float16, bfloat16 or an integer for {init!r}, "
            f"got {resolved.name!r}"
        )
    _check_seed(seed)
    return _row_ids(rows, "rows"), as_shape(row_shape, "row_shape"), resolved


def _check_seed(seed: int) -> None:
    number = as_integer(seed, "seed", "must be an integer in [0, 2**64)")
    if not 0 <= number < _SEEDS:
        raise ShardcoreValueError(f"seed must be an integer in [0, 2**64), got {number}")


def _row_ids(rows: ArrayLike, argument: str) -> NDArray[np.int64]:
    """Return row ids as a contiguous int64 array (n,), or raise that they are none."""
    ids = _as_array(rows, f"{argument} must be an integer array of rank 1")
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise ShardcoreTypeError(
            f"{argument} must be an integer array of rank 1, "
            f"got dtype {ids.dtype.name}, shape {ids.shape}"
        )
    outside = (ids < 0) | (ids > _INT64.max) if ids.dtype == np.uint64 else ids < 0
    if outside.any():
        position = int(outside.argmax())
        raise ShardcoreValueError(
            f"{argument} must be in [0, 2**63): {argument}[{position}] = {ids[position]}"
        )
    return np.ascontiguousarray(ids, np.int64)


def _as_array(value: object, rule: str) -> _Array:
    """Return `value` as an array of numbers or strings, or raise that it breaks `rule`."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ShardcoreTypeError(f"{rule}, got {type(value).__name__}") from error
    if array.dtype.kind == "O":
        raise ShardcoreTypeError(f"{rule}, got {type(value).__name__}")
    return array


def _check_castable(source: np.dtype[Any], target: np.dtype[Any], what: str) -> None:
    """Raise unless `source` casts to `target` within the same kind; bfloat16 is a float."""
    single = np.dtype(np.float32)
    like = [single if dtype.name == "bfloat16" else dtype for dtype in (source, target)]
    if not np.can_cast(like[0], like[1], casting="same_kind"):
        raise ShardcoreTypeError(
            f"{what} dtype {source.name}, which does not cast to {target.name} within the same kind"
        )


def _cast(values: _Array, dtype: np.dtype[Any], who: str, rows: NDArray[np.int64]) -> _Array:
    """Return `values` as `dtype`; a value that does not fit raises."""
    if values.dtype == dtype:
        return values
    result = _rounded(values, dtype)
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


def _rounded(values: _Array, dtype: np.dtype[Any]) -> _Array:
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


def _finite(value: object, argument: str) -> float:
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


def _positive(value: object, argument: str) -> float:
    """Return `value` as a finite float above 0, or raise."""
    number = _finite(value, argument)
    if number <= 0.0:
        raise ShardcoreValueError(f"{argument} must be > 0, got {number}")
    return number


def _scalar(init: Initializer, value: float, dtype: np.dtype[Any]) -> Any:
    """Return `value` as a scalar of `dtype`, or raise that `init` gives what does not fit."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = value == int(value) and limits.min <= value <= limits.max
    else:
        result = _rounded(np.array(value, np.float64), dtype)
        fits = bool(np.isfinite(result))
    if not fits:
        raise ShardcoreValueError(f"{init!r} gives {value}, which does not fit {dtype.name}")
    return int(value) if dtype.kind in "iu" else result
