"""`Sparse`: TensorFlow's ``SparseTensor`` as plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.errors import ShardcoreIndexError, ShardcoreValueError
from shardcore.ids.ragged import Ragged, as_values, group_by_row
from shardcore.validation.arrays import as_ids, read_array
from shardcore.validation.shapes import as_shape

__all__ = ["Sparse"]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Sparse:
    """Ids at coordinates of an otherwise empty array: TensorFlow's ``SparseTensor``.

    The last axis is the bag, the leading axes flatten to bags; the column only says that an id is
    there. Rows may come in any order; inside a bag the given order stays. Arrays are adopted where
    their dtype is right; what is then written into them is checked where they are next used.

    Parameters
    ----------
    indices : array_like of int, shape (num_values, rank), rank >= 2
        The place of each id.
    values : array_like of int or float, shape (num_values,)
        The ids; or real numbers, for the weights of ids at the same places.
    dense_shape : sequence of int, shape (rank,)
        Each >= 0. Its leading axes are the shape of the batch, whatever rows are empty.

    Raises
    ------
    ShardcoreTypeError
        If a dtype is not accepted.
    ShardcoreValueError
        If a shape does not match, or an id does not fit int64.
    ShardcoreIndexError
        If a coordinate lies outside `dense_shape`.

    Examples
    --------
    >>> Sparse([[0, 0], [2, 1]], [7, 5], (4, 2))
    Sparse(2 values, dense_shape=(4, 2))
    """

    indices: NDArray[Any]
    values: NDArray[Any]
    dense_shape: tuple[int, ...]

    __hash__ = None  # type: ignore[assignment]  # equal by value, and arrays can change

    def __init__(
        self, indices: ArrayLike, values: ArrayLike, dense_shape: Sequence[int] | NDArray[Any]
    ) -> None:
        shape = as_shape(dense_shape, "dense_shape")
        if len(shape) < 2:
            raise ShardcoreValueError(f"dense_shape must have rank >= 2, got {shape}")
        held = as_values(values)
        places = as_ids(read_array(indices, "indices"), "indices")
        if places.shape != (len(held), len(shape)):
            raise ShardcoreValueError(
                "indices must have a row per value and a column per axis of dense_shape, "
                f"shape {(len(held), len(shape))}, got shape {places.shape}"
            )
        outside = (places < 0) | (places >= np.array(shape, dtype=np.int64))
        if outside.any():
            at, axis = (int(i) for i in np.unravel_index(np.argmax(outside), outside.shape))
            raise _outside(places[at, axis], at, axis, shape)
        object.__setattr__(self, "indices", places)
        object.__setattr__(self, "values", held)
        object.__setattr__(self, "dense_shape", shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sparse):
            return NotImplemented
        return (
            self.dense_shape == other.dense_shape
            and np.array_equal(self.indices, other.indices)
            and np.array_equal(self.values, other.values)
        )

    def by_bag(self) -> Ragged:
        """Return the values in the order of their bags; inside a bag the given order stays.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If what was written into the arrays breaks their rules.

        Examples
        --------
        >>> Sparse([[2, 1], [0, 0]], [5, 7], (4, 2)).by_bag()
        Ragged([[7], [], [5], []], dtype=int64)
        """
        shape, values, indices = self.dense_shape, self.values[...], self.indices[...]
        if indices.shape != (*values.shape, len(shape)):  # an array that was given another shape
            Sparse(indices, values, shape)  # raises
        leading = shape[:-1]
        bag_ids = np.zeros(len(values), np.int64)
        for axis, size in enumerate(leading):
            column = indices[:, axis].astype(np.int64)  # a copy: it is checked and used
            if len(column) and (column.min() < 0 or column.max() >= size):
                at = int(np.argmax((column < 0) | (column >= size)))
                raise _outside(column[at], at, axis, shape)
            bag_ids = column if axis == 0 else bag_ids * size + column
        order, row_splits = group_by_row(bag_ids, math.prod(leading))
        if order is None:
            return Ragged(values, row_splits)
        ragged = Ragged(values[order], row_splits)
        object.__setattr__(ragged, "_given_order", order)
        return ragged

    def __repr__(self) -> str:
        return f"Sparse({len(self.values)} values, dense_shape={self.dense_shape})"


def _outside(place: int, at: int, axis: int, shape: tuple[int, ...]) -> ShardcoreIndexError:
    return ShardcoreIndexError(
        f"indices[{at}, {axis}] = {place} must be in [0, {shape[axis]}), dense_shape is {shape}"
    )
