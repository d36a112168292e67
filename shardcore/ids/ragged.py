"""Bags of different lengths as flat arrays: the one form every feature is turned into.

`Ragged` is a CSR matrix without column limits: the values of all bags one after the other, and
the place where each bag starts. `Sparse` is TensorFlow's ``SparseTensor`` as plain arrays.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.row_splits import (
    check_row_splits,
    lengths_from_row_splits,
    row_splits_from_lengths,
)
from shardcore.validation.arrays import as_floats, as_ids, read_array, read_numbers
from shardcore.validation.shapes import as_count

__all__ = ["Ragged", "group_by_row", "as_values"]

_SHOWN_BAGS: Final = 6

_SHOWN_VALUES: Final = 8


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Ragged:
    """Bags of values: bag ``b`` holds ``values[row_splits[b]:row_splits[b + 1]]``.

    Arrays are adopted, not copied, where their dtype is right already; what is then written into
    them is checked where the bags are next used. Two are equal if they hold equal bags of the same
    kind (ids or floats) and equal weights; the width of the dtype does not matter.

    Parameters
    ----------
    values : array_like, shape (num_values,)
        Ids of any integer type: int32 stays, every other becomes int64. Or real floats, for a
        Ragged that is to be used as weights.
    row_splits : array_like of int, shape (num_bags + 1,)
        Starts at 0, never decreases, ends at num_values. Kept as int64.
    weights : array_like, shape (num_values,), optional
        A real weight per value; integers become float64.

    Attributes
    ----------
    values, row_splits, weights : ndarray
        As above; `weights` is None where none were given.

    Raises
    ------
    ShardcoreTypeError
        If a dtype is not accepted.
    ShardcoreValueError
        If a shape does not match, an id does not fit int64, or `row_splits` breaks its rule.

    Examples
    --------
    >>> r = Ragged([7, 7, 1], [0, 2, 2, 3])
    >>> r
    Ragged([[7, 7], [], [1]], dtype=int64)
    >>> len(r), r.lengths()
    (3, array([2, 0, 1]))
    """

    values: NDArray[Any]
    row_splits: NDArray[np.int64]
    weights: NDArray[Any] | None = None
    # Where the input's own order is not that of `values` (unsorted `Sparse`): the place each value
    # was given at, so that weights given in that order find their value.
    _given_order: NDArray[np.int64] | None = field(default=None)

    __hash__ = None  # type: ignore[assignment]  # equal by value, and arrays can change

    def __init__(
        self, values: ArrayLike, row_splits: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        checked = as_values(values)
        object.__setattr__(self, "values", checked)
        splits = read_array(row_splits, "row_splits")
        copied = check_row_splits(splits, len(checked))
        fit = splits.dtype == np.int64 and splits.flags.c_contiguous and splits.flags.aligned
        object.__setattr__(self, "row_splits", splits if fit else copied)
        object.__setattr__(self, "weights", _as_weights(weights, len(checked)))

    @classmethod
    def from_lists(cls, lists: Sequence[Any]) -> Self:
        """Build from one list of numbers per bag.

        Parameters
        ----------
        lists : sequence of bags
            A bag is a list, tuple or array of rank 1. Integers give int64 ids; with a float among
            them, all are float64.

        Raises
        ------
        ShardcoreTypeError
            If a bag is no list, or an entry no number.
        ShardcoreValueError
            If an array's rank is not 1, or an integer does not fit int64.

        Examples
        --------
        >>> Ragged.from_lists([[3, 1], [], [2]]).row_splits
        array([0, 2, 2, 3])
        """
        if not isinstance(lists, list | tuple):
            raise ShardcoreTypeError(f"lists must be a list of bags, got {type(lists).__name__}")
        bags = [_bag_list(bag, f"lists[{b}]") for b, bag in enumerate(lists)]
        starts = list(accumulate(map(len, bags), initial=0))

        def name(at: int) -> str:
            bag = bisect_right(starts, at) - 1
            return f"lists[{bag}][{at - starts[bag]}]"

        values = read_numbers([number for bag in bags for number in bag], name)
        return cls(values, np.array(starts, dtype=np.int64))

    @classmethod
    def from_dense(cls, x: ArrayLike, padding: float | None = None) -> Self:
        """Build from a regular array.

        Parameters
        ----------
        x : array_like, shape (num_bags,) or (..., bag)
            Of rank 1: one value per bag. Else the last axis is the bag, and the leading axes are
            flattened to bags in row-major order.
        padding : int or float, optional
            Values equal to it are left out; their bags stay.

        Raises
        ------
        ShardcoreTypeError
            If `x` holds neither integers nor real floats, or `padding` is no number.
        ShardcoreValueError
            If `x` is a scalar.

        Examples
        --------
        >>> Ragged.from_dense([[5, 0], [0, 0], [6, 7]], padding=0)
        Ragged([[5], [], [6, 7]], dtype=int64)
        """
        array = read_array(x, "x")
        if array.ndim == 0:
            raise ShardcoreValueError(f"x must have rank >= 1, got the scalar {array[()]!r}")
        bags = math.prod(array.shape if array.ndim == 1 else array.shape[:-1])
        width = 1 if array.ndim == 1 else array.shape[-1]
        flat = array.reshape(-1)
        if padding is None:
            return cls(flat, np.arange(bags + 1, dtype=np.int64) * width)
        if isinstance(padding, bool) or not isinstance(
            padding, int | float | np.integer | np.floating
        ):
            raise ShardcoreTypeError(f"padding must be a number, got {padding!r}")
        kept = np.asarray(flat != padding)
        lengths = kept.reshape(bags, width).sum(axis=1, dtype=np.int64)
        return cls(flat[kept], row_splits_from_lengths(lengths))

    @classmethod
    def from_lengths(
        cls, values: ArrayLike, lengths: ArrayLike, weights: ArrayLike | None = None
    ) -> Self:
        """Build from flat values and the length of each bag.

        Parameters
        ----------
        values : array_like, shape (num_values,)
        lengths : array_like of int, shape (num_bags,)
            Each >= 0; they add up to num_values.
        weights : array_like, shape (num_values,), optional

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If they are no such arrays.

        Examples
        --------
        >>> Ragged.from_lengths([3, 1, 2], [2, 0, 1])
        Ragged([[3, 1], [], [2]], dtype=int64)
        """
        flat = as_values(values)
        row_splits = row_splits_from_lengths(as_ids(read_array(lengths, "lengths"), "lengths"))
        if row_splits[-1] != len(flat):
            raise ShardcoreValueError(
                f"lengths must add up to the number of values, {len(flat)}, got {row_splits[-1]}"
            )
        return cls(flat, row_splits, weights)

    @classmethod
    def from_coo(
        cls,
        row_ids: ArrayLike,
        values: ArrayLike,
        num_rows: int,
        weights: ArrayLike | None = None,
    ) -> Self:
        """Build from pairs (bag, value) in any order; inside a bag the given order stays.

        Parameters
        ----------
        row_ids : array_like of int, shape (num_values,)
            The bag of each value, in [0, num_rows).
        values : array_like, shape (num_values,)
        num_rows : int
            Number of bags, empty ones included.
        weights : array_like, shape (num_values,), optional

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If they are no such arrays.
        ShardcoreIndexError
            If a row id lies outside [0, num_rows).

        Examples
        --------
        >>> Ragged.from_coo([2, 0, 2], [7, 5, 6], 4)
        Ragged([[5], [], [7, 6], []], dtype=int64)
        """
        flat = as_values(values)
        checked = _as_weights(weights, len(flat))
        rows = as_ids(read_array(row_ids, "row_ids"), "row_ids").copy()
        if rows.shape != flat.shape:
            raise ShardcoreValueError(
                f"row_ids must have a row per value, shape {flat.shape}, got shape {rows.shape}"
            )
        bags = as_count(num_rows, "num_rows", minimum=0)
        if rows.size and (rows.min() < 0 or rows.max() >= bags):
            at = int(np.argmax((rows < 0) | (rows >= bags)))
            raise ShardcoreIndexError(f"row_ids[{at}] = {rows[at]} must be in [0, {bags})")
        order, row_splits = group_by_row(rows, bags)
        if order is not None:
            flat = flat[order]
            checked = None if checked is None else checked[order]
        return cls(flat, row_splits, checked)

    @property
    def num_bags(self) -> int:
        """Number of bags, empty ones included."""
        return len(self.row_splits) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of values in each bag, shape (num_bags,).

        Raises
        ------
        ShardcoreValueError
            If `row_splits` were written to and break their rule.
        """
        return lengths_from_row_splits(check_row_splits(self.row_splits, len(self.values)))

    def to_lists(self) -> list[list[Any]]:
        """Return the values as one list of Python numbers per bag.

        Raises
        ------
        ShardcoreValueError
            If `row_splits` were written to and break their rule.

        Examples
        --------
        >>> Ragged([7, 7, 1], [0, 2, 2, 3]).to_lists()
        [[7, 7], [], [1]]
        """
        values = self.values.tolist()
        row_splits = check_row_splits(self.row_splits, len(values))
        return [values[start:stop] for start, stop in pairwise(row_splits.tolist())]

    def with_own_splits(self) -> Ragged:
        """Return the same bags, with row splits that are checked and no caller's.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If what was written into the arrays breaks their rules.

        Examples
        --------
        >>> r = Ragged([7, 7, 1], [0, 2, 2, 3])
        >>> np.shares_memory(r.with_own_splits().row_splits, r.row_splits)
        False
        """
        weights = None if self.weights is None else self.weights[...]
        own = Ragged(self.values[...], self.row_splits.copy(), weights)
        object.__setattr__(own, "_given_order", self._given_order)
        return own

    def with_values(self, values: NDArray[Any]) -> Ragged:
        """Return the same bags with other values, one for each: the rows that ids hash to, say.

        Examples
        --------
        >>> Ragged([7, 7, 1], [0, 2, 2, 3]).with_values(np.array([4, 4, 0]))
        Ragged([[4, 4], [], [0]], dtype=int64)
        """
        other = Ragged(values, self.row_splits, self.weights)
        object.__setattr__(other, "_given_order", self._given_order)
        return other

    def __len__(self) -> int:
        return self.num_bags

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        if (self.weights is None) != (other.weights is None):
            return False
        return (
            (self.values.dtype.kind == "i") == (other.values.dtype.kind == "i")
            and np.array_equal(self.row_splits, other.row_splits)
            and np.array_equal(self.values, other.values)
            and (
                self.weights is None
                or other.weights is None
                or np.array_equal(self.weights, other.weights)
            )
        )

    def __repr__(self) -> str:
        splits = self.row_splits
        if not isinstance(splits, np.ndarray) or splits.dtype.kind != "i":  # a pytree of JAX
            return f"Ragged({self.values!r}, {splits!r}, weights={self.weights!r})"
        shown = [
            _abridged(self.values[start:stop])
            for start, stop in pairwise(self.row_splits[: _SHOWN_BAGS + 1].tolist())
        ]
        parts = []
        if self.num_bags > _SHOWN_BAGS:
            shown.append("...")
            parts.append(f"num_bags={self.num_bags}")
        parts = [f"[{', '.join(shown)}]", *parts, f"dtype={self.values.dtype.name}"]
        if self.weights is not None:
            parts.append(f"weights={_abridged(self.weights)}")
        return f"Ragged({', '.join(parts)})"


def group_by_row(
    row_ids: NDArray[Any], num_rows: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return the stable order that sorts `row_ids`, None if they are sorted, and the row_splits.

    Parameters
    ----------
    row_ids : ndarray of int, shape (n,)
        Each in [0, num_rows); not checked again.
    num_rows : int

    Examples
    --------
    >>> group_by_row(np.array([2, 0, 2]), 3)
    (array([1, 0, 2]), array([0, 1, 1, 3]))
    """
    row_splits = row_splits_from_lengths(np.bincount(row_ids, minlength=num_rows))
    if (row_ids[1:] >= row_ids[:-1]).all():
        return None, row_splits
    return np.argsort(row_ids, kind="stable"), row_splits


def as_values(values: ArrayLike) -> NDArray[Any]:
    """Return values of bags, (n,), as int32, int64 or floats, or raise that they are none."""
    array = read_array(values, "values")
    if array.ndim != 1:
        raise ShardcoreValueError(f"values must have rank 1, got shape {array.shape}")
    if array.dtype.kind in "iu":
        return as_ids(array, "values")
    if array.dtype.kind in "fV":
        return as_floats(array, "values")
    raise ShardcoreTypeError(f"values must be integers or real floats, got dtype {array.dtype}")


def _as_weights(weights: ArrayLike | None, num_values: int) -> NDArray[Any] | None:
    if weights is None:
        return None
    array = as_floats(read_array(weights, "weights"), "weights")
    if array.shape != (num_values,):
        raise ShardcoreValueError(
            f"weights must have a weight per value, shape {(num_values,)}, got shape {array.shape}"
        )
    return array


def _bag_list(bag: object, name: str) -> Sequence[Any]:
    if isinstance(bag, list | tuple):
        return bag
    if not hasattr(bag, "__array__") or isinstance(bag, np.generic):
        raise ShardcoreTypeError(f"{name} must be a bag, a list of integers, got {bag!r}")
    array = read_array(bag, name)
    if array.ndim != 1:
        raise ShardcoreValueError(f"{name} must have rank 1, got shape {array.shape}")
    if array.dtype.kind not in "iuf" and array.size:
        raise ShardcoreTypeError(f"{name} must be numbers, got dtype {array.dtype}")
    numbers: list[Any] = array.tolist()
    return numbers


def _abridged(values: NDArray[Any]) -> str:
    shown = [repr(value) for value in values[:_SHOWN_VALUES].tolist()]
    return f"[{', '.join([*shown, '...'] if len(values) > _SHOWN_VALUES else shown)}]"
