"""Into how many shards a variable is cut: by a number of shards, or by bounds on their bytes.

A partitioner is called as ``p(shape, dtype, axis=0)`` and returns one shard count per axis, all 1
but along `axis`. Shards are counted as the "div" layout cuts them: of n entries in k shards, the
first n % k shards have one entry more than the others, so the smallest has n // k.

A variable without any bytes (an axis of size 0) is one shard. A variable of rank 0 has no axis to
cut along and is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from shardcore.dtypes import as_dtype
from shardcore.validation.shapes import as_axis, as_count, as_integer, as_shape

__all__ = [
    "Partitioner",
    "FixedShardsPartitioner",
    "MinSizePartitioner",
    "MaxSizePartitioner",
    "fixed_size_partitioner",
    "min_max_variable_partitioner",
    "variable_axis_size_partitioner",
]

_STRING_KINDS = "USOT"  # unicode, bytes, objects, and NumPy's variable-width strings


class Partitioner(ABC):
    """Decides the number of shards of a variable.

    Examples
    --------
    A partitioner of one's own:

    >>> class ByThousands(Partitioner):
    ...     def __call__(self, shape, dtype, axis=0):
    ...         return [-(-size // 1000) if i == axis else 1 for i, size in enumerate(shape)]
    >>> ByThousands()((4500, 16), "float32")
    [5, 1]
    """

    @abstractmethod
    def __call__(self, shape: Sequence[int], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis.

        Parameters
        ----------
        shape : sequence of int
            Of the whole variable.
        dtype : anything ``np.dtype`` takes, or ``"bfloat16"``
            Of its elements.
        axis : int
            The axis to cut along; a negative one counts from the end.

        Returns
        -------
        list of int, one per axis
            All 1 but along `axis`.

        Raises
        ------
        ShardcoreTypeError
            If an entry of `shape`, or `axis`, is no integer, or `dtype` no dtype.
        ShardcoreValueError
            If an entry of `shape` is negative, `shape` is empty, or has no such `axis`.
        """


@dataclass(frozen=True)
class FixedShardsPartitioner(Partitioner):
    """Cuts into `num_shards` shards, or one per entry of the axis where there are fewer entries.

    Parameters
    ----------
    num_shards : int
        1 or more.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `num_shards` is no integer, or below 1.

    Examples
    --------
    >>> FixedShardsPartitioner(2)([10, 3], "float32")
    [2, 1]
    >>> FixedShardsPartitioner(64)([10, 3], "float32")
    [10, 1]
    """

    num_shards: int

    def __post_init__(self) -> None:
        _set(self, num_shards=as_count(self.num_shards, "num_shards"))

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis; see `Partitioner`. `dtype` has no effect."""
        as_dtype(dtype)
        sizes = as_shape(shape)
        return _counts(sizes, as_axis(axis, sizes), self.num_shards)


@dataclass(frozen=True)
class MinSizePartitioner(Partitioner):
    """Cuts into as many shards as possible, none of them smaller than `min_shard_bytes`.

    A variable that is smaller as a whole stays in one piece. Of n entries along the axis, each of
    b bytes, a shard takes at least r = ceil(min_shard_bytes / b) and there are
    max(1, min(max_shards, n // r)) shards.

    Parameters
    ----------
    min_shard_bytes : int
        Bytes, 1 or more; 256 KiB by default.
    max_shards : int
        1 or more. The default 1 never cuts.
    bytes_per_string : int
        Bytes that an element of a string or object dtype counts; 1 or more.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no integer, or below 1.

    Examples
    --------
    >>> MinSizePartitioner(min_shard_bytes=4, max_shards=10)([6, 1], "float32")
    [6, 1]

    Three shards of ten bytes would leave one of three bytes:

    >>> MinSizePartitioner(min_shard_bytes=4, max_shards=10)([10], "int8")
    [2]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        _set(
            self,
            min_shard_bytes=as_count(self.min_shard_bytes, "min_shard_bytes"),
            max_shards=as_count(self.max_shards, "max_shards"),
            bytes_per_string=as_count(self.bytes_per_string, "bytes_per_string"),
        )

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis; see `Partitioner`."""
        sizes = as_shape(shape)
        axis = as_axis(axis, sizes)
        entry = _entry_bytes(sizes, axis, dtype, self.bytes_per_string)
        if entry == 0:
            return _counts(sizes, axis, 1)
        entries_per_shard = -(-self.min_shard_bytes // entry)
        return _counts(sizes, axis, min(self.max_shards, sizes[axis] // entries_per_shard))


@dataclass(frozen=True)
class MaxSizePartitioner(Partitioner):
    """Cuts into as few shards as possible, none of them larger than `max_shard_bytes`.

    An entry of the axis is never cut, so a single one may be larger; and `max_shards`, where
    given, comes before the bound. Of n entries along the axis, each of b bytes, a shard takes at
    most r = max(1, floor(max_shard_bytes / b)) and there are ceil(n / r) shards.

    Parameters
    ----------
    max_shard_bytes : int
        Bytes, 1 or more.
    max_shards : int, optional
        1 or more; None: any number.
    bytes_per_string : int
        Bytes that an element of a string or object dtype counts; 1 or more.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no integer, or below 1.

    Examples
    --------
    >>> MaxSizePartitioner(max_shard_bytes=4)([6, 1], "float32")
    [6, 1]
    >>> MaxSizePartitioner(max_shard_bytes=4, max_shards=2)([6, 1], "float32")
    [2, 1]
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __post_init__(self) -> None:
        limit = None if self.max_shards is None else as_count(self.max_shards, "max_shards")
        _set(
            self,
            max_shard_bytes=as_count(self.max_shard_bytes, "max_shard_bytes"),
            max_shards=limit,
            bytes_per_string=as_count(self.bytes_per_string, "bytes_per_string"),
        )

    def __call__(self, shape: Sequence[int], dtype: DTypeLike, axis: int = 0) -> list[int]:
        """Return the number of shards along each axis; see `Partitioner`."""
        sizes = as_shape(shape)
        axis = as_axis(axis, sizes)
        entry = _entry_bytes(sizes, axis, dtype, self.bytes_per_string)
        if entry == 0:
            return _counts(sizes, axis, 1)
        entries_per_shard = max(1, self.max_shard_bytes // entry)
        shards = -(-sizes[axis] // entries_per_shard)
        return _counts(
            sizes, axis, shards if self.max_shards is None else min(shards, self.max_shards)
        )


@dataclass(frozen=True, repr=False)
class _AlongAxis(Partitioner):
    """A partitioner with a default axis of its own."""

    partitioner: Partitioner
    default_axis: int

    def __post_init__(self) -> None:
        _set(self, default_axis=as_integer(self.default_axis, "axis"))

    def __repr__(self) -> str:
        return f"<{self.partitioner!r} along axis {self.default_axis}>"

    def __call__(
        self, shape: Sequence[int], dtype: DTypeLike, axis: int | None = None
    ) -> list[int]:
        """Return the number of shards along each axis; see `Partitioner`."""
        return self.partitioner(shape, dtype, self.default_axis if axis is None else axis)


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Return a `FixedShardsPartitioner` that cuts along `axis` unless the call names another.

    Parameters
    ----------
    num_shards : int
        1 or more.
    axis : int
        A negative one counts from the end.

    Returns
    -------
    Partitioner
        Called as ``p(shape, dtype)``.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no integer, or out of its range.

    Examples
    --------
    >>> fixed_size_partitioner(2, axis=-1)([10, 3], "float32")
    [1, 2]
    """
    return _AlongAxis(FixedShardsPartitioner(num_shards), axis)


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """Return a `MinSizePartitioner` that cuts along `axis` unless the call names another.

    Parameters
    ----------
    max_partitions : int
        1 or more. The default 1 never cuts.
    axis : int
        A negative one counts from the end.
    min_slice_size : int
        Bytes, 1 or more; 256 KiB by default.
    bytes_per_string_element : int
        Bytes that an element of a string or object dtype counts; 1 or more.

    Returns
    -------
    Partitioner
        Called as ``p(shape, dtype)``.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no integer, or out of its range.

    Examples
    --------
    >>> min_max_variable_partitioner(max_partitions=16)([2048, 1024], "float32")
    [16, 1]
    """
    partitioner = MinSizePartitioner(
        as_count(min_slice_size, "min_slice_size"),
        as_count(max_partitions, "max_partitions"),
        as_count(bytes_per_string_element, "bytes_per_string_element"),
    )
    return _AlongAxis(partitioner, axis)


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """Return a `MaxSizePartitioner` that cuts along `axis` unless the call names another.

    Parameters
    ----------
    max_shard_bytes : int
        Bytes, 1 or more.
    axis : int
        A negative one counts from the end.
    bytes_per_string_element : int
        Bytes that an element of a string or object dtype counts; 1 or more.
    max_shards : int, optional
        1 or more; None: any number.

    Returns
    -------
    Partitioner
        Called as ``p(shape, dtype)``.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is no integer, or out of its range.

    Examples
    --------
    >>> variable_axis_size_partitioner(32768, axis=2)((4, 8, 16, 32), "float32")
    [1, 1, 2, 1]
    """
    partitioner = MaxSizePartitioner(
        max_shard_bytes,
        max_shards,
        as_count(bytes_per_string_element, "bytes_per_string_element"),
    )
    return _AlongAxis(partitioner, axis)


def _set(partitioner: Partitioner, **fields: object) -> None:
    """Replace fields of a frozen partitioner by their checked values, plain ints."""
    for name, value in fields.items():
        object.__setattr__(partitioner, name, value)


def _counts(shape: tuple[int, ...], axis: int, shards: int) -> list[int]:
    """Return `shards` along `axis`, at most one per entry, and 1 along the others."""
    most = shape[axis] if 0 not in shape else 1
    return [max(1, min(shards, most)) if i == axis else 1 for i in range(len(shape))]


def _entry_bytes(shape: tuple[int, ...], axis: int, dtype: DTypeLike, bytes_per_string: int) -> int:
    """Return the bytes of all elements that share one index along `axis`."""
    resolved = as_dtype(dtype)
    element = bytes_per_string if resolved.kind in _STRING_KINDS else resolved.itemsize
    return element * math.prod(shape[:axis] + shape[axis + 1 :])
