"""Where a row lives: row <-> (shard, local row), for every way of cutting a table into shards.

Three strategies. "div": consecutive ranges, the first ``rows % shards`` one row longer. "ranges":
consecutive ranges of any sizes. "mod": row r lives in shard ``r % shards`` at ``r // shards``.
The layout is carried by the object, never guessed from sizes; shards may be empty and may outnumber
rows. The face of ``_core/partition.pyx`` and ``_core/slices.pyx``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore._core import partition as _partition
from shardcore._core import slices as _slices
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.own_arrays import immutable
from shardcore.memory import pool
from shardcore.threads import team
from shardcore.validation.integers import integers, outside, place_in, vector
from shardcore.validation.shapes import as_count, as_integer

__all__ = ["Layout", "Partition"]

_INT64: Final = np.dtype(np.int64)

_SHARE: Final = 1 << 17
"""Least ids that a thread is given to group: some 300 µs of work, where to wake one takes 100."""

Strategy = Literal["div", "mod", "ranges"]


class Partition(NamedTuple):
    """Ids grouped by the shard that holds them.

    Attributes
    ----------
    local : ndarray of the ids' integer type, shape (n,)
        Local rows, grouped by shard; within a shard in the order of the ids.
    row_splits : ndarray of int64, shape (shards + 1,)
        Shard s has ``local[row_splits[s]:row_splits[s + 1]]``.
    inverse : ndarray of int64, shape (n,)
        ``ids[i]`` sits at ``local[inverse[i]]``.
    """

    local: NDArray[np.int32] | NDArray[np.int64]
    row_splits: NDArray[np.int64]
    inverse: NDArray[np.int64]


@dataclass(frozen=True, repr=False, eq=False)
class Layout:
    """The placement of a table's rows over shards. Make one with `div`, `mod` or `from_sizes`.

    Layouts are values: immutable, hashable, picklable, equal when they place every row alike.

    Attributes
    ----------
    strategy : {"div", "mod", "ranges"}
    num_rows, num_shards : int
        Rows of the whole table, at most 2**63 - 1, and shards, empty ones counted.
    contiguous : bool
        Whether every shard holds consecutive rows: all but "mod".
    shard_sizes : ndarray of int64, shape (shards,), immutable
    offsets : ndarray of int64, shape (shards + 1,), immutable
        Running sums of the sizes; for "div" and "ranges", shard s holds rows
        ``offsets[s]`` to ``offsets[s + 1]``.

    Examples
    --------
    >>> layout = Layout.div(10, 4)
    >>> layout.shard_sizes
    array([3, 3, 2, 2])
    >>> layout.locate([0, 9])
    (array([0, 3]), array([0, 1]))
    >>> Layout.mod(10, 4).locate([0, 9])
    (array([0, 1]), array([0, 2]))
    """

    strategy: Strategy
    shard_sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    _placement: _partition.Placement

    @classmethod
    def div(cls, rows: int, shards: int) -> Layout:
        """Return consecutive ranges as even as can be: the first ``rows % shards`` are longer by 1.

        Parameters
        ----------
        rows : int, >= 0
        shards : int, >= 1

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If one is not an integer or too small.

        Examples
        --------
        >>> Layout.div(2, 3).shard_sizes
        array([1, 1, 0])
        """
        return cls._make("div", *_even_sizes(rows, shards))

    @classmethod
    def mod(cls, rows: int, shards: int) -> Layout:
        """Return the round-robin layout: row r lives in shard ``r % shards`` at ``r // shards``.

        Parameters
        ----------
        rows : int, >= 0
        shards : int, >= 1

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If one is not an integer or too small.

        Examples
        --------
        >>> Layout.mod(5, 2).global_rows(1)
        array([1, 3])
        """
        return cls._make("mod", *_even_sizes(rows, shards))

    @classmethod
    def of(cls, strategy: str | Sequence[int], rows: int, shards: int) -> Layout:
        """Return the layout of a strategy, "div" or "mod", or of row counts.

        One shard has all rows, however they would be cut over several.

        Parameters
        ----------
        strategy : {"div", "mod"} or sequence of int
            Row counts: of consecutive ranges, one per shard, that sum to `rows`.
        rows : int, >= 0
        shards : int, >= 1

        Raises
        ------
        ShardcoreValueError
            If it is another strategy, or row counts of other rows or shards.
        ShardcoreTypeError, ShardcoreValueError
            If a number is not an integer or too small.

        Examples
        --------
        >>> Layout.of("mod", 5, 2).shard_sizes
        array([3, 2])
        >>> Layout.of((1, 4), 5, 2).shard_sizes, Layout.of((1, 4), 5, 1).shard_sizes
        (array([1, 4]), array([5]))
        """
        if not isinstance(strategy, str):
            even, ranges = cls.div(rows, shards), cls.from_sizes(strategy)
            if even.num_shards == 1 and ranges.num_rows == rows:
                return even
            if (ranges.num_rows, ranges.num_shards) != (rows, shards):
                raise ShardcoreValueError(
                    f"row counts must be one for each of {shards} shards and sum to {rows}, got "
                    f"{ranges.num_shards} that sum to {ranges.num_rows}"
                )
            return ranges
        if strategy not in ("div", "mod"):
            raise ShardcoreValueError(f"strategy must be 'div' or 'mod', got {strategy!r}")
        return cls.mod(rows, shards) if strategy == "mod" else cls.div(rows, shards)

    @classmethod
    def from_sizes(cls, sizes: Iterable[int]) -> Layout:
        """Return consecutive ranges of the given sizes.

        Parameters
        ----------
        sizes : iterable of int, each >= 0, at least one

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If there is none, one is not an integer or negative, or they sum to 2**63 or more.

        Examples
        --------
        >>> Layout.from_sizes([3, 0, 2]).offsets
        array([0, 3, 3, 5])
        """
        if not isinstance(sizes, Iterable):
            raise ShardcoreTypeError(f"sizes must be a sequence of integers >= 0, got {sizes!r}")
        if isinstance(sizes, np.ndarray):
            sizes = sizes.copy()
        if _is_counts(sizes):  # a million shards are checked at once
            checked = sizes.tolist()
        else:
            checked = [as_count(size, f"sizes[{i}]", 0) for i, size in enumerate(sizes)]
        if not checked:
            raise ShardcoreValueError("sizes must name at least one shard, got none")
        rows = _checked_rows(sum(checked), "the sum of sizes")
        return cls._make("ranges", np.array(checked, np.int64), rows)

    @classmethod
    def _make(cls, strategy: Strategy, sizes: NDArray[np.int64], rows: int) -> Layout:
        offsets = np.zeros(sizes.size + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        # Kernels find their way by these arrays, unchecked, and they are handed out: immutable.
        sizes, offsets = immutable(sizes), immutable(offsets)
        if strategy == "mod":
            return cls(strategy, sizes, offsets, _partition.Placement.mod(rows, sizes.size))
        # A table over the high bits of a row: about four cells a shard, so that a cell seldom
        # holds more than one border and the search in `_core/partition.pyx` seldom takes a step.
        shift = max(0, rows.bit_length() - max(6, (4 * sizes.size).bit_length()))
        cells = (max(rows - 1, 0) >> shift) + 2
        # Ranges of one size, the last at most that long, are found by division instead.
        equal = (sizes[:-1] == sizes[0]).all() and sizes[-1] <= sizes[0]
        size = int(sizes[0]) if equal else 0
        placement = _partition.Placement.ranges(offsets, cells, shift, size)
        return cls(strategy, sizes, offsets, placement)

    @property
    def placement(self) -> _partition.Placement:
        """The layout as kernels know it: which shard holds a row, and where in it."""
        return self._placement

    @property
    def num_rows(self) -> int:
        """Rows of the whole table."""
        return int(self.offsets[-1])

    @property
    def num_shards(self) -> int:
        """Shards, empty ones counted."""
        return self.shard_sizes.size

    @property
    def contiguous(self) -> bool:
        """Whether every shard holds consecutive rows: True for "div" and "ranges"."""
        return self.strategy != "mod"

    def row_range(self, shard: int) -> range:
        """Return the rows of one shard, in local order, without an array.

        Parameters
        ----------
        shard : int, in [0, num_shards)

        Raises
        ------
        ShardcoreTypeError
            If it is no integer.
        ShardcoreIndexError
            If there is no such shard.

        Examples
        --------
        >>> Layout.mod(5, 2).row_range(1)
        range(1, 5, 2)
        """
        shard = as_integer(shard, "shard")
        if not 0 <= shard < self.num_shards:
            raise ShardcoreIndexError(
                f"shard {shard} is out of range: must be in [0, {self.num_shards})"
            )
        if self.strategy == "mod":
            return range(shard, self.num_rows, self.num_shards)
        return range(int(self.offsets[shard]), int(self.offsets[shard + 1]))

    def global_rows(self, shard: int) -> NDArray[np.int64]:
        """Return the rows of one shard, in local order.

        Parameters
        ----------
        shard : int, in [0, num_shards)

        Returns
        -------
        ndarray of int64, shape (shard_sizes[shard],)

        Raises
        ------
        ShardcoreTypeError, ShardcoreIndexError
            If there is no such shard.

        Examples
        --------
        >>> Layout.div(10, 4).global_rows(2)
        array([6, 7])
        """
        rows = self.row_range(shard)
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)

    def global_of(self, shard: int, local: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the whole table that local rows of one shard are.

        Parameters
        ----------
        shard : int, in [0, num_shards)
        local : ndarray of int64, each in [0, shard_sizes[shard]), checked by the caller

        Returns
        -------
        ndarray of int64, shaped like `local`

        Raises
        ------
        ShardcoreTypeError, ShardcoreIndexError
            If there is no such shard.

        Examples
        --------
        >>> Layout.div(10, 4).global_of(2, np.array([0, 1]))
        array([6, 7])
        """
        rows = self.row_range(shard)
        return local * rows.step + rows.start

    def locate(
        self, ids: ArrayLike, argument: str = "ids"
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard and the local row of each id.

        Parameters
        ----------
        ids : array_like of int, any shape, each in [0, num_rows)
        argument : str
            The caller's argument, for the message.

        Returns
        -------
        shard, local : ndarray of int64, shaped like `ids`

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If they are not integers, or one does not fit int64.
        ShardcoreIndexError
            If one is out of range, with the position of the first.

        Examples
        --------
        >>> Layout.from_sizes([3, 0, 2]).locate([[4], [0]])
        (array([[2],
               [0]]), array([[1],
               [0]]))
        """
        given = integers(ids, argument)[...]
        flat = given.reshape(-1)
        shard = np.empty(flat.size, np.int64)
        local = np.empty(flat.size, np.int64)
        bad = _partition.locate(self._placement, flat, shard, local)
        if bad >= 0:
            raise self._outside(local[bad], bad, given.shape, argument)
        return shard.reshape(given.shape), local.reshape(given.shape)

    def addresses(self, ids: ArrayLike, bases: NDArray[np.int64], stride: int) -> NDArray[np.int64]:
        """Return the address of each id's row, among shards whose rows lie `stride` bytes apart.

        Parameters
        ----------
        ids : array_like of int, shape (n,), each in [0, num_rows)
            int32 and int64 are taken as they are.
        bases : ndarray of int64, shape (num_shards,), C-contiguous
            The address of each shard's first row.
        stride : int

        Returns
        -------
        ndarray of int64, shape (n,)

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `ids` are not integers of rank 1, or `bases` not one int64 a shard.
        ShardcoreIndexError
            If an id is out of range, with the position of the first.

        Examples
        --------
        >>> Layout.div(4, 2).addresses(np.array([1, 2]), np.array([1000, 5000]), 8)
        array([1008, 5000])
        """
        given = vector(ids, "ids")
        if bases.dtype != _INT64 or bases.shape != self.shard_sizes.shape:
            raise ShardcoreValueError(
                f"bases must be one int64 for each of {self.num_shards} shards, "
                f"got {bases.dtype} of shape {bases.shape}"
            )
        found = pool.empty(given.size, _INT64)
        bad = _partition.addresses(
            self._placement, given, np.ascontiguousarray(bases), stride, found
        )
        if bad >= 0:
            raise self._outside(found[bad], bad, given.shape, "ids")
        return found

    def partition(self, ids: ArrayLike, argument: str = "ids") -> Partition:
        """Group ids by shard, stably, and remember the way back; ids are checked on the way.

        Parameters
        ----------
        ids : array_like of int, shape (n,), each in [0, num_rows)
            int32 and int64 are taken as they are.
        argument : str
            The caller's argument, for the message.

        Returns
        -------
        Partition

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If they are not integers of rank 1.
        ShardcoreIndexError
            If one is out of range, with the position of the first.

        Examples
        --------
        >>> local, row_splits, inverse = Layout.mod(10, 3).partition([7, 0, 4, 9])
        >>> local
        array([0, 3, 2, 1])
        >>> row_splits
        array([0, 2, 4, 4])
        >>> inverse
        array([2, 0, 3, 1])
        """
        given = vector(ids, argument)
        local = pool.empty(given.size, given.dtype)
        row_splits = np.empty(self.num_shards + 1, np.int64)
        inverse = pool.empty(given.size, _INT64)
        # Every part counts by itself, and what is added up must be little beside its ids.
        parts = min(given.size // max(_SHARE, 4 * self.num_shards), team.get_num_threads())
        if parts > 1:
            bad = self._group_in_parts(parts, given, local, row_splits, inverse)
        else:
            bad = _partition.group(self._placement, given, local, row_splits, inverse)
        if bad >= 0:
            raise self._outside(inverse[bad], bad, given.shape, argument)
        return Partition(local, row_splits, inverse)

    def _group_in_parts(
        self,
        parts: int,
        given: NDArray[np.int32] | NDArray[np.int64],
        local: NDArray[np.int32] | NDArray[np.int64],
        row_splits: NDArray[np.int64],
        inverse: NDArray[np.int64],
    ) -> int:
        """Group ids as `group` does, on a thread for each part of them; return what it returns."""
        borders = [given.size * part // parts for part in range(parts + 1)]
        pieces = [slice(first, last) for first, last in pairwise(borders)]
        counts = np.empty((parts, self.num_shards), np.int64)
        bad = [-1] * parts

        def count(part: int) -> None:
            ids, way_back = given[pieces[part]], inverse[pieces[part]]
            bad[part] = _partition.count(self._placement, ids, counts[part], way_back)

        team.run(parts, count)
        for piece, position in zip(pieces, bad, strict=True):
            if position >= 0:
                return int(piece.start) + position
        # Of a shard's ids come first those of the first part, where its rows begin.
        ends = counts.T.cumsum().reshape(-1, parts)
        row_splits[0], row_splits[1:] = 0, ends[:, -1]
        places = np.ascontiguousarray(ends.T - counts)

        def place(part: int) -> None:
            _partition.place(self._placement, places[part], local, inverse[pieces[part]])

        team.run(parts, place)
        return -1

    def _outside(
        self, row: np.int64, flat_position: int, shape: tuple[int, ...], argument: str
    ) -> ShardcoreIndexError:
        return outside(place_in(argument, flat_position, shape), row, "the table", self.num_rows)

    def decompose_slice(self, rows: slice) -> list[tuple[int, slice]]:
        """Cut a slice of the table into one local slice per shard that it touches.

        Parameters
        ----------
        rows : slice
            Any Python slice, with Python's meaning for a sequence of `num_rows` rows.

        Returns
        -------
        list of (shard, slice)
            In the order of the result. Shards without a selected row do not appear, and cost
            nothing.

        Raises
        ------
        ShardcoreTypeError
            If it is no slice, or its parts are not integers.
        ShardcoreValueError
            If the step is 0, or the layout is "mod", whose shards hold no consecutive rows.

        Examples
        --------
        >>> Layout.from_sizes([3, 0, 3, 2]).decompose_slice(slice(1, 100, 3))
        [(0, slice(1, 4, 3)), (2, slice(1, 4, 3)), (3, slice(1, 4, 3))]
        >>> Layout.div(8, 3).decompose_slice(slice(None, None, -5))
        [(2, slice(1, None, -5)), (0, slice(2, None, -5))]
        """
        if not self.contiguous:
            raise ShardcoreValueError(
                "decompose_slice needs consecutive rows in every shard; this layout is 'mod'"
            )
        if not isinstance(rows, slice):
            raise ShardcoreTypeError(f"rows must be a slice, got {type(rows).__name__}")
        try:
            return _slices.decompose(self.offsets, rows)
        except TypeError as error:
            raise ShardcoreTypeError(f"rows must have integer parts, got {rows}") from error
        except ValueError as error:
            raise ShardcoreValueError(f"rows must have a step other than 0, got {rows}") from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        # "mod" places rows as consecutive ranges of its sizes do where no shard has a second row,
        # or none but one has any.
        alike = (
            self.contiguous == other.contiguous
            or self.num_shards == 1
            or self.num_rows <= self.num_shards
        )
        return alike and np.array_equal(self.shard_sizes, other.shard_sizes)

    def __hash__(self) -> int:
        return hash((self.num_rows, self.num_shards))

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew, so that the arrays are read-only on the other side too.
        return Layout._make, (self.strategy, self.shard_sizes, self.num_rows)

    def __repr__(self) -> str:
        if self.strategy == "ranges":
            return f"Layout.from_sizes({self.shard_sizes.tolist()})"
        return f"Layout.{self.strategy}({self.num_rows}, {self.num_shards})"


def _is_counts(sizes: object) -> TypeGuard[NDArray[Any]]:
    return (
        isinstance(sizes, np.ndarray)
        and sizes.ndim == 1
        and sizes.dtype.kind in "iu"
        and not (sizes < 0).any()
    )


def _checked_rows(rows: int, argument: str) -> int:
    if rows > np.iinfo(np.int64).max:
        raise ShardcoreValueError(f"{argument} must be at most 2**63 - 1, got {rows}")
    return rows


def _even_sizes(rows: int, shards: int) -> tuple[NDArray[np.int64], int]:
    num_rows = _checked_rows(as_count(rows, "rows", 0), "rows")
    num_shards = as_count(shards, "shards")
    if num_shards > np.iinfo(np.int32).max:  # the type of shard numbers
        raise ShardcoreValueError(f"shards must be at most 2**31 - 1, got {num_shards}")
    sizes = np.full(num_shards, num_rows // num_shards, np.int64)
    sizes[: num_rows % num_shards] += 1
    return sizes, num_rows
