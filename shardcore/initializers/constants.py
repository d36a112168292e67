"""Initial values without chance: one number, the row number, the rows of an array."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from shardcore.cached_property import cached_property
from shardcore.errors import ShardcoreValueError
from shardcore.initializers.base import (
    BLOCK_BYTES,
    INT64,
    Array,
    as_array,
    as_scalar,
    checked_call,
    finite,
    rounded,
    row_ids,
)
from shardcore.validation.integers import outside
from shardcore.validation.shapes import as_integer

__all__ = ["Constant", "Zeros", "RowId", "FromArray"]


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
        number = finite(self.value, "value")
        exact = isinstance(self.value, (int, np.integer))
        object.__setattr__(self, "value", int(self.value) if exact else number)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = checked_call(self, rows, row_shape, dtype, seed)
        return np.full((len(ids), *shape), as_scalar(self, self.value, resolved), resolved)


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
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = checked_call(self, rows, row_shape, dtype, seed)
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
        if not INT64.min <= offset <= INT64.max:
            raise ShardcoreValueError(f"offset must fit int64, got {offset}")
        object.__setattr__(self, "offset", offset)

    def __call__(
        self, rows: ArrayLike, row_shape: Sequence[int], dtype: DTypeLike, seed: int
    ) -> Array:
        """Return the values of `rows`, shape (len(rows), *row_shape); see `Initializer`."""
        ids, shape, resolved = checked_call(self, rows, row_shape, dtype, seed)
        values = np.empty((len(ids), *shape), resolved)
        if len(ids):
            bounds = int(ids.min()) + self.offset, int(ids.max()) + self.offset
            for bound in bounds:
                if not INT64.min <= bound <= INT64.max:
                    raise ShardcoreValueError(f"{self!r} gives {bound}, which does not fit int64")
                as_scalar(self, bound, resolved)
            values[...] = rounded(ids + self.offset, resolved).reshape(-1, *(1 for _ in shape))
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

    array: Array

    def __post_init__(self) -> None:
        array = as_array(self.array, "array must be an array")
        if not array.ndim:
            raise ShardcoreValueError("array must have at least one axis, got ()")
        object.__setattr__(self, "array", array)

    @cached_property
    def checksum(self) -> str:
        """The BLAKE2b of the array's bytes in C order, 16 bytes in hexadecimal."""
        digest = hashlib.blake2b(digest_size=16)
        row_bytes = self.array[:1].nbytes
        size = max(1, BLOCK_BYTES // max(1, row_bytes))
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
    ) -> Array:
        """Return the values of `rows`, as the array has them; see `Initializer`."""
        ids = row_ids(rows, "rows")
        beyond = ids >= len(self.array)
        if beyond.any():
            at = int(beyond.argmax())
            raise outside(f"rows[{at}]", ids[at], "the initial values", len(self.array))
        result: Array = self.array[ids]
        return result

    def __repr__(self) -> str:
        return f"<rows of an array of shape {self.array.shape}, dtype {self.array.dtype.name}>"
