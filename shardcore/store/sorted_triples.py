"""A batch as triples (row, bag, gain), by the worker of the bag and the holder of the row: sorted.

Bags are shared out to workers, rows to holders. Every worker has a list of triples for each holder,
in the order of rows, then of bags; no pair of row and bag comes twice. Lists may be cut into parts,
by row: a row is in the same part of all workers' lists. The ids of a worker are sorted by
themselves, which is where work is cut over threads; no result depends on how many there are. The
face of ``_core/triples.pyx``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore._core import triples as _kernel
from shardcore._core.occurrences import starts_of_buckets as _starts_of_buckets
from shardcore._core.routing import fill_rest as _fill_rest
from shardcore.errors import ShardcoreValueError
from shardcore.memory import pool
from shardcore.sharding import Layout
from shardcore.threads import team

__all__ = ["SortedTriples", "TripleLists", "WorkedBags", "sort_triples"]

Ints = NDArray[np.int64]
Gains = NDArray[np.float32]

STEP: Final = 8
"""Lists begin at multiples of it."""

_INT32, _INT64, _UINT64 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint64)
_FLOAT32 = np.dtype(np.float32)
_NONE: Final = np.empty(0, np.float32)
_NAN: Final = int(np.array(np.nan, np.float32).view(np.int32))

_BUCKET_BITS: Final = 12
_MOST_BUCKETS: Final = 9
"""As in `occurrences`: buckets of some 2**11 pairs, and no more of them than 2**9."""

_WINDOW_BITS: Final = 18
"""Keys are marked in 2**18 bits, which lie in the first-level cache, ..."""

_MOST_WINDOWS: Final = 12
"""... or in more, so that there are no more than 2**12 windows to go to in every list."""

_COST: Final = 16
"""Elements that an id counts as, where work is shared out among threads."""


@dataclass(frozen=True, eq=False)
class WorkedBags:
    """One feature's bags, and which worker works for which of them.

    Attributes
    ----------
    ids : ndarray of int32 or int64, shape (n,)
        Rows of a table.
    layout : Layout
        Of the table.
    bases : ndarray of int64, shape (shards,)
        The number of each shard's first row, as `sort_triples` takes it; the others follow.
    row_splits : ndarray of int64, shape (bags + 1,)
    borders : ndarray of int64, shape (workers + 1,)
        Worker w has bags ``borders[w]`` to ``borders[w + 1]``.
    firsts : ndarray of int64, shape (workers,)
        The number that the first one of them has there; the others follow.
    gains : ndarray of float32, shape (n,), or None
        The factor of each id; None: that of its bag.
    bag_gains : ndarray of float32, shape (bags,), or None
        None: all 1.
    """

    ids: NDArray[np.int32] | Ints
    layout: Layout
    bases: Ints
    row_splits: Ints
    borders: Ints
    firsts: Ints
    gains: Gains | None = None
    bag_gains: Gains | None = None


class TripleLists(NamedTuple):
    """The lists of all workers, one after the other in arrays of several blocks.

    Attributes
    ----------
    rows, bags : ndarray of int32, shape (blocks * room,)
    gains : ndarray of float32, shape (blocks * room,)
        NaN where there is no triple.
    """

    rows: NDArray[np.int32]
    bags: NDArray[np.int32]
    gains: Gains


@dataclass(frozen=True, eq=False)
class SortedTriples:
    """The triples of a batch.

    Attributes
    ----------
    counts : ndarray of int64, shape (workers, holders)
        How many triples there are.
    distinct : ndarray of int64, shape (workers, holders)
        How many rows they name.
    rows : int
        How many distinct rows are named at all.
    """

    counts: Ints
    distinct: Ints
    rows: int
    _pairs: list[NDArray[np.uint64]]
    _left: Ints
    _ranges: list[tuple[int, int]]
    _row_bits: int
    _parts: dict[int, tuple[Ints, Ints]]

    def parts(self, parts: int) -> tuple[Ints, Ints]:
        """Return how many triples, and distinct rows, are in each part of each list.

        Parameters
        ----------
        parts : int
            A power of two.

        Returns
        -------
        counts, distinct : ndarray of int64, shape (workers, parts, holders)
        """
        _check_parts(parts)
        if parts == 1:
            return self.counts[:, None], self.distinct[:, None]
        finer = next((own for own in self._parts if own >= parts), 0)
        if finer:  # a part is then several of these
            counts, distinct = (
                own.reshape(own.shape[0], parts, -1, own.shape[2]).sum(axis=2)
                for own in self._parts[finer]
            )
            return counts, distinct
        workers, holders = self.counts.shape
        counts, distinct = np.zeros((2, workers, parts, holders), np.int64)
        bits = parts.bit_length() - 1

        def counted(number: int) -> None:
            for worker in range(*self._ranges[number]):
                own = counts[worker], distinct[worker]
                left = int(self._left[worker])
                _kernel.count_parts(self._pairs[worker], left, self._row_bits, bits, *own)

        team.run(len(self._ranges), counted)
        self._parts[parts] = counts, distinct
        return counts, distinct

    def lists(self, starts: Ints, used: Ints, room: int, padding: int) -> TripleLists:
        """Return the lists, each filled up to a multiple of 8.

        Parameters
        ----------
        starts : ndarray of int64, shape (workers, parts, holders)
            Where each part of each list begins: multiples of 8.
        used : ndarray of int64, shape (blocks,)
            Of each block, where what comes after all lists begins: padding.
        room : int
            Triples of a block, a multiple of 8.
        padding : int
            Of rows and bags.

        Raises
        ------
        ShardcoreValueError
            If an argument has another shape, a list would begin elsewhere than at a multiple of 8
            or not end in the blocks, or `used` is larger than a block.
        """
        workers, holders = self.counts.shape
        if starts.ndim != 3 or (starts.shape[0], starts.shape[2]) != (workers, holders):
            raise ShardcoreValueError(
                f"starts must be of shape ({workers}, parts, {holders}), got {starts.shape}"
            )
        outside = (used < 0) | (used > room)
        if outside.any():
            first = int(np.argmax(outside))
            raise ShardcoreValueError(
                f"used must be from 0 to {room}, got {used[first]} at {first}"
            )
        parts = starts.shape[1]
        counts = self.parts(parts)[0]
        size = used.size * room
        wrong = (starts < 0) | (starts % STEP != 0) | (starts + counts > size) | (room % STEP != 0)
        if wrong.any():
            at = tuple(map(int, np.unravel_index(np.argmax(wrong), wrong.shape)))
            raise ShardcoreValueError(
                f"starts must be multiples of {STEP} from which on lists end within "
                f"{used.size} * {room} places, got {starts[at]} for {counts[at]} triples at {at}"
            )
        rows, bags = pool.empty(size, _INT32), pool.empty(size, _INT32)
        gains = pool.empty(size, _FLOAT32)
        places = np.array(starts, np.int64, order="C")
        bits = parts.bit_length() - 1

        def listed(number: int) -> None:
            for worker in range(*self._ranges[number]):
                own, left = places[worker], int(self._left[worker])
                _kernel.list_triples(
                    self._pairs[worker], left, self._row_bits, bits, own, padding, rows, bags, gains
                )

        team.run(len(self._ranges), listed)
        shape = used.size, room
        rest = np.ascontiguousarray(used, np.int64)
        _fill_rest(rows.reshape(shape), rest, padding)
        _fill_rest(bags.reshape(shape), rest, padding)
        _fill_rest(gains.view(np.int32).reshape(shape), rest, _NAN)
        return TripleLists(rows, bags, gains)


def sort_triples(
    features: Sequence[WorkedBags], workers: int, groups: int, holder_bits: int, row_bits: int
) -> SortedTriples:
    """Sort the ids of a batch by worker, holder, row and bag, and add what comes twice.

    Gains of one row in one bag are added in the order of its ids.

    Parameters
    ----------
    features : sequence of WorkedBags
        Of each worker, numbers of bags ascend from feature to feature.
    workers : int
    groups : int
        Of ``1 << holder_bits`` holders.
    holder_bits, row_bits : int
        A row's number is ``((group << row_bits) + row << holder_bits) + h`` for row `row` of holder
        ``(group << holder_bits) + h``.

    Raises
    ------
    ShardcoreValueError
        If a feature's borders are not one for each worker and one more, ascending from 0 to its
        bags; or gains are not one for each id, or bag; or bases not one for each shard, or rows
        have numbers that there are not.
    ShardcoreIndexError
        If an id is no row of its table.

    Examples
    --------
    >>> ids, splits = np.array([9, 2, 9, 9, 4]), np.array([0, 2, 5])
    >>> whole, none = Layout.div(16, 1), np.zeros(1, np.int64)
    >>> bags = WorkedBags(ids, whole, none, splits, np.array([0, 1, 2]), np.array([0, 0]))
    >>> found = sort_triples([bags], workers=2, groups=1, holder_bits=1, row_bits=3)
    >>> found.counts, found.rows
    (array([[1, 1],
           [1, 1]]), 3)
    >>> lists = found.lists(np.arange(0, 32, 8).reshape(2, 1, 2), np.array([32]), 32, padding=-1)
    >>> lists.rows[::8], lists.gains[::8]
    (array([1, 4, 2, 4], dtype=int32), array([1., 1., 1., 2.], dtype=float32))
    """
    for number, bags in enumerate(features):
        _check(bags, f"features[{number}]", workers, groups << (holder_bits + row_bits))
    holders = groups << holder_bits
    bits = max(0, groups - 1).bit_length() + holder_bits + row_bits
    plain = [_Plain.of(bags) for bags in features]
    ids = np.zeros(workers, np.int64)
    for one in plain:
        ids += np.diff(one.splits[one.bags.borders])
    splits = np.concatenate([[0], ids.cumsum()])
    ranges = team.ranges(splits, _COST)
    counts, distinct = np.zeros((2, workers, holders), np.int64)
    left = np.zeros(workers, np.int64)
    pairs = [np.empty(0, np.uint64)] * workers

    def sort(number: int) -> None:
        counters = np.empty(_kernel.COUNTERS, np.uint32)
        for worker in range(*ranges[number]):
            n = int(ids[worker])
            if n == 0:
                continue
            shift = max(0, bits - min(max(n.bit_length() - _BUCKET_BITS, 0), _MOST_BUCKETS))
            own = pool.empty(n * _kernel.WORDS, _UINT64)
            limits = _dealt(plain, worker, holder_bits, row_bits, shift, 1 << (bits - shift), own)
            spare = pool.empty(int(np.diff(limits).max()) * _kernel.WORDS, _UINT64)
            of = counts[worker], distinct[worker]
            left[worker] = _kernel.sort_triples(own, spare, limits, shift, counters, row_bits, *of)
            pairs[worker] = own

    team.run(len(ranges), sort)
    ends = np.cumsum(distinct.sum(axis=1))
    keys = pool.empty(int(ends[-1]), _INT64)

    def listed(number: int) -> None:
        for worker in range(*ranges[number]):
            own = keys[int(ends[worker - 1]) if worker else 0 : int(ends[worker])]
            _kernel.list_keys(pairs[worker], int(left[worker]), own)

    team.run(len(ranges), listed)
    rows = _distinct(keys, np.concatenate([[0], ends]), bits)
    return SortedTriples(counts, distinct, rows, pairs, left, ranges, row_bits, {})


def _distinct(keys: Ints, limits: Ints, bits: int) -> int:
    """Return how many distinct keys several ascending lists have together."""
    window = min(bits, max(_WINDOW_BITS, bits - _MOST_WINDOWS))
    # In tasks of whole windows: keys of several lists meet in one of them.
    tasks = 1 if keys.size * _COST < 2 * team.PIECE else 4 * team.get_num_threads()
    windows = 1 << (bits - window)
    borders = [(windows * task // tasks) << window for task in range(tasks + 1)]
    found = [0] * tasks

    def counted(task: int) -> None:
        bitmap = np.zeros(max(1, (1 << window) // 64), np.uint64)
        at = np.empty((2, limits.size - 1), np.int64)
        own = borders[task], borders[task + 1]
        found[task] = _kernel.count_distinct(keys, limits, *own, window, bitmap, at)

    team.run(tasks, counted)
    return sum(found)


class _Plain(NamedTuple):
    """A feature's arrays as the kernels take them."""

    bags: WorkedBags
    splits: Ints
    gains: Gains
    bag_gains: Gains

    @classmethod
    def of(cls, bags: WorkedBags) -> _Plain:
        gains, bag_gains = (
            _NONE if one is None else np.ascontiguousarray(one, np.float32)
            for one in (bags.gains, bags.bag_gains)
        )
        return cls(bags, np.ascontiguousarray(bags.row_splits, np.int64), gains, bag_gains)


def _dealt(
    features: Sequence[_Plain],
    worker: int,
    holder_bits: int,
    row_bits: int,
    shift: int,
    buckets: int,
    pairs: NDArray[np.uint64],
) -> Ints:
    """Put a worker's pairs into buckets of keys; return where each bucket begins."""
    counts, limits = np.zeros((1, buckets), np.int64), np.empty(buckets + 1, np.int64)
    own = []
    for one in features:
        first, last = int(one.bags.borders[worker]), int(one.bags.borders[worker + 1])
        if first < last:
            ids = one.bags.ids[one.splits[first] : one.splits[last]]
            numbers = one.bags.layout.addresses(ids, one.bags.bases, 1)
            _kernel.count_keys(numbers, holder_bits, row_bits, shift, counts[0])
            own.append((one, first, last, numbers))
    _starts_of_buckets(counts, limits)
    for one, first, last, numbers in own:
        number = int(one.bags.firsts[worker])
        _kernel.deal_bags(
            numbers, one.splits, first, last, number, one.gains, one.bag_gains,
            holder_bits, row_bits, shift, counts[0], pairs,
        )  # fmt: skip
    return limits


def _check(bags: WorkedBags, name: str, workers: int, numbers: int) -> None:
    """Raise unless a feature's arrays fit each other, and its rows have numbers."""
    count, ids = bags.row_splits.size - 1, bags.ids.size
    borders = bags.borders
    if borders.shape != (workers + 1,) or bags.firsts.shape != (workers,):
        raise ShardcoreValueError(
            f"{name}.borders and firsts must be of {workers + 1} and {workers} workers, "
            f"got {borders.shape} and {bags.firsts.shape}"
        )
    if borders[0] != 0 or borders[-1] != count or (np.diff(borders) < 0).any():
        raise ShardcoreValueError(
            f"{name}.borders must ascend from 0 to its {count} bags, got {borders.tolist()}"
        )
    sizes = bags.layout.shard_sizes
    if bags.bases.shape != sizes.shape:
        raise ShardcoreValueError(
            f"{name}.bases must be of shape {sizes.shape}, got {bags.bases.shape}"
        )
    outside = (sizes > 0) & ((bags.bases < 0) | (bags.bases + sizes > numbers))
    if outside.any():
        shard = int(np.argmax(outside))
        raise ShardcoreValueError(
            f"{name}.bases must give every row a number below {numbers}, "
            f"got {bags.bases[shard]} for {sizes[shard]} rows of shard {shard}"
        )
    for argument, values, size in (
        ("gains", bags.gains, ids),
        ("bag_gains", bags.bag_gains, count),
    ):
        if values is not None and values.shape != (size,):
            raise ShardcoreValueError(
                f"{name}.{argument} must be of shape ({size},), got {values.shape}"
            )


def _check_parts(parts: int) -> None:
    if parts < 1 or parts & (parts - 1):
        raise ShardcoreValueError(f"parts must be a power of two, got {parts}")
