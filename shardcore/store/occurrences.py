"""The rows of a batch, sorted and made unique once, so that an update touches each row once.

An occurrence is a row named by a bag. Its source is the gradient it will receive: a position in the
list of all bags of the table's features. Sorting is stable, so a row's occurrences stay in the
order (feature, global bag, position) in which they were given, and that is the order of the sum of
its gradients. The face of ``_core/occurrences.pyx``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore._core import occurrences as _kernel
from shardcore.errors import ShardcoreValueError
from shardcore.memory import pool
from shardcore.store.segment_reduce import TYPE_NAMES
from shardcore.threads import team

__all__ = [
    "FEW_OCCURRENCES",
    "BagSorts",
    "Occurrences",
    "every_row",
    "has_few_rows",
    "sort_bags",
    "sort_occurrences",
]

Ints = NDArray[np.int32] | NDArray[np.int64]

_INT32, _INT64, _UINT64 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint64)

MAX_OCCURRENCES: Final = 2**31 - 1

_BUCKET_BITS: Final = 11
"""A bucket has some 2**10 pairs, whose rows or digits are counted within the cache."""

_MOST_BUCKETS: Final = 9
"""2**9 buckets: with more, dealing pairs to them waits for the addresses of their pages."""

FEW_OCCURRENCES: Final = 1 << 12
"""So many of a table are sorted as one bucket: to count and to share them would take longer."""

_PART: Final = 1 << 16
"""Least occurrences that are handed to another thread."""

_SHARE: Final = 1 << 13
"""Least occurrences of tables of few rows that a thread takes at a time."""

_COST: Final = 8
"""Elements that a pair to sort counts as, where work is shared out among threads."""

_FEW_ROWS: Final = 1 << 15
_FEW_IDS: Final = 1 << 16
_ROWS_PER_ID: Final = 8
"""Of a table whose rows are counted each by itself: their counters stay in the cache."""


@dataclass(eq=False, slots=True)  # one for every table of a step: a frozen one is made more slowly
class Occurrences:
    """A batch's rows in ascending order, and which gradients each receives.

    Attributes
    ----------
    rows : ndarray of int64, shape (unique,)
        Distinct local rows, ascending.
    run_splits : ndarray of int64, shape (unique + 1,)
        Row u receives ``sources[run_splits[u]:run_splits[u + 1]]``, in that order.
    sources : ndarray of int32, shape (n,)
        Positions in the list of gradients.
    gains : ndarray of the working dtype, shape (n,), or None
        The factor of each gradient; None means 1.
    """

    rows: NDArray[np.int64]
    run_splits: NDArray[np.int64]
    sources: NDArray[np.int32]
    gains: NDArray[Any] | None


def sort_occurrences(
    rows: Ints, sources: NDArray[np.int32], gains: NDArray[Any] | None, num_rows: int
) -> Occurrences:
    """Sort the occurrences of a batch by row.

    Parameters
    ----------
    rows : ndarray of int32 or int64, shape (n,)
        Each in [0, num_rows), checked by the caller; in the order of the sum.
    sources : ndarray of int32, shape (n,)
        Positions in the list of gradients.
    gains : ndarray of the working dtype, shape (n,), or None
        None: all 1.
    num_rows : int

    Returns
    -------
    Occurrences

    Raises
    ------
    ShardcoreValueError
        If a batch has more than 2**31 - 1 occurrences in one table.

    Examples
    --------
    >>> sources = np.array([0, 0, 1], np.int32)
    >>> batch = sort_occurrences(np.array([7, 2, 7]), sources, None, 10)
    >>> batch.rows, batch.run_splits, batch.sources
    (array([2, 7]), array([0, 1, 3]), array([0, 0, 1], dtype=int32))
    """
    n = rows.size
    _check_number(n)
    plain: Ints = rows if rows.flags.c_contiguous else rows.copy()
    # With gains, the positions are sorted, which then lead to both source and gain.
    own = np.ascontiguousarray(sources) if gains is None else np.arange(n, dtype=np.int32)
    if n <= FEW_OCCURRENCES:
        sorts = BagSorts()
        sorts.add_sources(plain, own, num_rows)
        (found,) = sorts.make()
    else:
        deal = _kernel.deal[TYPE_NAMES[plain.dtype]]

        def dealt(part: slice, *to: Any) -> None:
            deal(plain[part], own[part], *to)

        found = _sorted(plain, num_rows, dealt)
    if gains is None:
        return found
    return replace(found, sources=sources[found.sources], gains=gains[found.sources])


def has_few_rows(occurrences: int, num_rows: int) -> bool:
    """Return whether the bags of one feature over a table are sorted fastest row by row.

    Examples
    --------
    >>> has_few_rows(2048, 5000), has_few_rows(2048, 1 << 20)
    (True, False)
    """
    return num_rows <= min(_FEW_ROWS, _ROWS_PER_ID * occurrences) and occurrences < _FEW_IDS


def sort_bags(ids: Ints, row_splits: NDArray[np.int64], num_rows: int) -> Occurrences:
    """Sort the occurrences of one feature's bags, all gains 1.

    Returns, and raises, what `sort_occurrences` does for sources that are the bags.

    Parameters
    ----------
    ids : ndarray of int32 or int64, shape (n,)
        Each in [0, num_rows), checked by the caller.
    row_splits : ndarray of int64, shape (bags + 1,), C-contiguous
        From 0 to n.
    num_rows : int

    Examples
    --------
    >>> batch = sort_bags(np.array([7, 2, 7]), np.array([0, 2, 3]), 10)
    >>> batch.rows, batch.run_splits, batch.sources
    (array([2, 7]), array([0, 1, 3]), array([0, 0, 1], dtype=int32))
    """
    plain: Ints = ids if ids.flags.c_contiguous else ids.copy()
    sorts = BagSorts()
    if sorts.add(plain, row_splits, num_rows):
        return sorts.make()[0]
    _check_number(ids.size)
    deal = _kernel.deal_bags[TYPE_NAMES[plain.dtype]]

    def dealt(part: slice, *to: Any) -> None:
        deal(plain[part], row_splits, part.start, *to)

    return _sorted(plain, num_rows, dealt)


def _check_number(occurrences: int) -> None:
    if occurrences > MAX_OCCURRENCES:
        raise ShardcoreValueError(
            f"a batch must name at most {MAX_OCCURRENCES} rows of one table, got {occurrences}"
        )


class BagSorts:
    """What `sort_bags` returns for several tables: by threads that share the tables.

    They are added one by one and sorted at once. Each has at most `FEW_OCCURRENCES`, or, of one
    feature, few rows: see `has_few_rows`.

    Examples
    --------
    >>> sorts = BagSorts()
    >>> [sorts.add(np.array([7, 2, 7]), np.array([0, 2, 3]), 10) for _ in range(2)]
    [True, True]
    >>> one, two = sorts.make()
    >>> two.rows, two.run_splits, two.sources
    (array([2, 7]), array([0, 1, 3]), array([0, 0, 1], dtype=int32))
    """

    __slots__ = ("_sorts",)

    def __init__(self) -> None:
        self._sorts = _kernel.Sorts()

    def add(
        self, ids: Ints, row_splits: NDArray[np.int64], num_rows: int, alone: bool = True
    ) -> bool:
        """Add a table's bags, as `sort_bags` takes them; `alone`: those of its only feature.

        False: they are too many, and nothing was added.
        """
        count = ids.size
        by_row = alone and has_few_rows(count, num_rows)
        if count > FEW_OCCURRENCES and not by_row:
            return False
        self._sorts.add(ids, row_splits, _bits(num_rows, by_row), by_row)
        return True

    def add_feature(self, ids: Ints, row_splits: NDArray[np.int64]) -> None:
        """Add the bags of one more feature of the table that was added last, not alone.

        Its sources are its bags, counted on from those of the features before.
        """
        self._sorts.add_feature(ids, row_splits)

    def add_sources(self, rows: Ints, sources: NDArray[np.int32], num_rows: int) -> None:
        """Add a table's occurrences as `sort_occurrences` takes them, without gains."""
        self._sorts.add_sources(rows, sources, _bits(num_rows, False))

    def make(self) -> list[Occurrences]:
        """Sort them; return the occurrences of each table."""
        sorts, count = self._sorts, self._sorts.ids
        few = sorts.make_alone(team.most_alone(_SHARE))
        if few is not None:
            return [Occurrences(*part, None) for part in few]
        rows, run_splits = pool.empty(count, _INT64), pool.empty(count + sorts.tables, _INT64)
        sources = pool.empty(count, _INT32)

        def make(number: int) -> None:
            sorts.make(np.empty(sorts.scratch, np.uint32), rows, run_splits, sources)

        team.make(sorts, _SHARE, make)
        return [Occurrences(*part, None) for part in sorts.parts_of(rows, run_splits, sources)]


def _bits(num_rows: int, at_least_one: bool) -> int:
    return max(num_rows - 1, at_least_one).bit_length()


def _sorted(rows: Ints, num_rows: int, deal: Callable[..., None]) -> Occurrences:
    """Return the occurrences of a batch whose gains are all 1.

    ``deal(part, shift, starts, pairs, wide)`` puts the pairs of a part of them into their buckets.
    """
    n, bits = rows.size, max(num_rows - 1, 0).bit_length()
    shift = max(0, bits - min(max(n.bit_length() - _BUCKET_BITS, 0), _MOST_BUCKETS))
    buckets, wide = 1 << (bits - shift), bits > 32
    index = TYPE_NAMES[rows.dtype]
    parts = max(1, min(team.get_num_threads(), n // _PART))
    limits = [n * part // parts for part in range(parts + 1)]
    counts = np.empty((parts, buckets), np.int64)
    count = _kernel.count_buckets[index]

    def counted(part: int) -> None:
        count(rows[limits[part] : limits[part + 1]], shift, counts[part])

    team.run(parts, counted)
    borders = np.empty(buckets + 1, np.int64)
    _kernel.starts_of_buckets(counts, borders)
    words = _kernel.WIDE_WORDS if wide else _kernel.NARROW_WORDS
    pairs = pool.empty(n * words, _UINT64)

    def dealt(part: int) -> None:
        deal(slice(limits[part], limits[part + 1]), shift, counts[part], pairs, wide)

    team.run(parts, dealt)
    ranges = team.ranges(borders, _COST) if parts > 1 else [(0, buckets)]
    largest = int((borders[1:] - borders[:-1]).max())
    distinct, run_splits = pool.empty(n, _INT64), pool.empty(n + 1, _INT64)
    ordered = pool.empty(n, _INT32)
    unique = [0] * len(ranges)

    def sort(number: int) -> None:
        first, last = ranges[number]
        spare = pool.empty(largest * words, _UINT64)
        counters = np.empty(_kernel.COUNTERS, np.uint32)
        own, found = borders[first : last + 1], (distinct, run_splits, ordered)
        unique[number] = _kernel.sort_buckets(pairs, spare, own, shift, counters, wide, *found)

    team.run(len(ranges), sort)
    # Each range has written from the place of its first pair on: here they come together.
    found = 0
    for (first, _), runs in zip(ranges, unique, strict=True):
        start = int(borders[first])
        if start > found:
            for array in (distinct, run_splits):
                array[found : found + runs] = array[start : start + runs]
        found += runs
    run_splits[found] = n
    return Occurrences(distinct[:found], run_splits[: found + 1], ordered, None)


def every_row(occurrences: Occurrences, num_rows: int) -> Occurrences:
    """Return the occurrences of a batch with all rows in it, for an optimizer that moves all.

    Rows that the batch does not name have an empty run, hence a gradient of zeros.

    Parameters
    ----------
    occurrences : Occurrences
    num_rows : int
        Rows of the table, or of this shard of it.

    Examples
    --------
    >>> batch = sort_occurrences(np.array([2, 2]), np.array([0, 1], np.int32), None, 4)
    >>> every_row(batch, 4).run_splits
    array([0, 0, 0, 2, 2])
    """
    run_splits = np.zeros(num_rows + 1, np.int64)
    run_splits[occurrences.rows + 1] = np.diff(occurrences.run_splits)
    np.cumsum(run_splits, out=run_splits)
    rows = np.arange(num_rows, dtype=np.int64)
    return Occurrences(rows, run_splits, occurrences.sources, occurrences.gains)
