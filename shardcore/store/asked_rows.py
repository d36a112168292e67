"""Which rows several askers name of several owners: one sort, and the lists of an exchange.

An asker is what has bags, an owner what holds rows: the devices of a mesh are both. Every asker has
a list of `length` places for its occurrences. The ids of a batch are sorted once, and the lists are
written in walks over what was sorted. Work is cut over threads by bags and by ranges of rows;
no result depends on how many there are. The face of
``_core/routing.pyx``.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore._core import routing as _kernel
from shardcore._core.occurrences import starts_of_buckets as _starts_of_buckets
from shardcore.errors import ShardcoreValueError
from shardcore.memory import pool
from shardcore.sharding import Layout
from shardcore.store.segment_reduce import TYPE_NAMES
from shardcore.threads import team

__all__ = ["AskedLists", "AskedRows", "AskingBags", "sort_askers"]

Ints = NDArray[np.int32] | NDArray[np.int64]

_INT32, _UINT64 = np.dtype(np.int32), np.dtype(np.uint64)

MAX_POSITIONS: Final = 2**31 - 1

_BUCKET_BITS: Final = 12
_MOST_BUCKETS: Final = 9
"""As in `occurrences`: buckets of some 2**11 pairs, and no more of them than 2**9."""

_PART: Final = 1 << 16
"""Least ids that are handed to another thread."""

_COST: Final = 8
"""Elements that a pair to sort counts as, where work is shared out among threads."""


@dataclass(frozen=True, eq=False)
class AskingBags:
    """One feature's bags, and where their occurrences are in the askers' lists.

    Attributes
    ----------
    ids : ndarray of int32 or int64, shape (n,)
        Global rows, in range, below 2**31.
    row_splits : ndarray of int64, shape (bags + 1,)
    bags : int
        Bags of an asker: asker a has ``[a * bags, (a + 1) * bags)``, the last ones perhaps fewer.
    starts : ndarray of int64, shape (askers,)
        The place in each asker's list from which on its occurrences are.
    room : int
        Places of a bag; 0: occurrences follow one another.
    """

    ids: Ints
    row_splits: NDArray[np.int64]
    bags: int
    starts: NDArray[np.int64]
    room: int


class AskedLists(NamedTuple):
    """What the askers ask for, and where each occurrence's row will be.

    Attributes
    ----------
    asked : ndarray of int32, shape (owners, askers, room)
        The owner's rows that an asker names, ascending; then padding.
    slots : ndarray of int32, shape (askers, length)
        By place: ``owner * room + j`` of an occurrence whose row is ``asked[owner, asker, j]``;
        ``owners * room`` where there is none.
    """

    asked: NDArray[np.int32]
    slots: NDArray[np.int32]


class _Walk(NamedTuple):
    """A range of the sorted pairs, its first owner, and rows of that listed before, by asker."""

    first: int
    last: int
    owner: int
    ahead: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AskedRows:
    """The ids of a batch, sorted by owner and row.

    Attributes
    ----------
    layout : Layout
    length : int
        Places in the list of each asker.
    rows : ndarray of int64, shape (owners, askers)
        How many distinct rows each asker names of each owner.
    lines, unique : ndarray of int64, shape (owners,)
        How many lines, and rows, of each owner are named at all.
    """

    layout: Layout
    length: int
    rows: NDArray[np.int64]
    lines: NDArray[np.int64]
    unique: NDArray[np.int64]
    _pairs: NDArray[np.uint64]
    _walks: list[_Walk]

    def lists(self, room: int, padding: int) -> AskedLists:
        """Return what the askers ask for, and where each occurrence's row will be.

        Parameters
        ----------
        room : int
            At least as many as an asker names rows of an owner.
        padding : int
            Of `asked`.

        Raises
        ------
        ShardcoreValueError
            If the room is too small.
        """
        owners, askers = self.rows.shape
        if room < self.rows.max():
            raise ShardcoreValueError(f"room must be at least {self.rows.max()}, got {room}")
        asked = pool.empty((owners * askers, room), _INT32)
        slots = pool.empty((askers, self.length), _INT32)
        if self._pairs.size < slots.size:
            slots.fill(owners * room)

        def listed(number: int) -> None:
            first, last, owner, ahead = self._walks[number]
            seen = np.empty(askers, np.uint32)
            _kernel.list_asked(
                self._pairs, first, last, self.length, self.layout.offsets, owner, room, seen,
                ahead.copy(), asked.ravel(), slots.ravel(),
            )  # fmt: skip

        team.run(len(self._walks), listed)
        _kernel.fill_rest(asked, self.rows.ravel(), padding)
        return AskedLists(asked.reshape(owners, askers, room), slots)


def sort_askers(
    features: Sequence[AskingBags], layout: Layout, askers: int, length: int, rows_per_line: int = 1
) -> AskedRows:
    """Sort the ids of a batch by owner and row, and count what every asker names.

    Parameters
    ----------
    features : sequence of AskingBags
    layout : Layout
        Of fewer than 2**31 rows.
    askers : int
    length : int, >= 1
        Places in the list of each asker.
    rows_per_line : int
        Rows of an owner that lie in one line.

    Raises
    ------
    ShardcoreValueError
        If the lists of all askers have more than 2**31 - 1 places, or a feature has more bags than
        the askers, or more ids than their places.

    Examples
    --------
    >>> bags = AskingBags(np.array([7, 2, 7]), np.array([0, 2, 3]), 1, np.zeros(2, np.int64), 0)
    >>> rows = sort_askers([bags], Layout.div(10, 2), askers=2, length=2)
    >>> rows.rows, rows.unique
    (array([[1, 0],
           [1, 1]]), array([1, 1]))
    >>> rows.lists(room=1, padding=5).slots
    array([[1, 0],
           [1, 2]], dtype=int32)
    """
    if askers * length > MAX_POSITIONS:
        raise ShardcoreValueError(
            f"the lists of a batch must have at most {MAX_POSITIONS} places in one table, "
            f"got {askers} * {length}"
        )
    for number, bags in enumerate(features):
        _check_places(bags, f"features[{number}]", askers, length)
    bits = max(layout.num_rows - 1, 0).bit_length()
    n = sum(int(bags.row_splits[-1] - bags.row_splits[0]) for bags in features)
    shift = max(0, bits - min(max(n.bit_length() - _BUCKET_BITS, 0), _MOST_BUCKETS))
    pairs, limits = _dealt(features, layout, length, shift, 1 << (bits - shift), n)
    ranges = team.ranges(limits, _COST) or [(0, 0)]
    largest = int((limits[1:] - limits[:-1]).max())
    owners, borders = layout.num_shards, layout.offsets
    rows = np.zeros((len(ranges), owners, askers), np.int64)
    lines, unique = np.zeros((2, len(ranges), owners), np.int64)

    def sort(number: int) -> None:
        first, last = ranges[number]
        spare, counters = pool.empty(largest, _UINT64), np.empty(_kernel.COUNTERS, np.uint32)
        counts = (rows[number], lines[number], unique[number])
        _kernel.sort_askers(
            pairs, spare, limits[first : last + 1], shift, counters, length, rows_per_line,
            borders, np.empty(askers, np.uint32), *counts,
        )  # fmt: skip

    team.run(len(ranges), sort)
    walks = []
    keys = pairs.view(np.uint32)[::2]
    ahead = rows.cumsum(axis=0) - rows
    for number, (first, last) in enumerate(ranges):
        start, stop = int(limits[first]), int(limits[last])
        if start == stop:
            continue
        owner = int(np.searchsorted(borders, keys[start], side="right")) - 1
        walks.append(_Walk(start, stop, owner, ahead[number, owner]))
        border = int(borders[owner])
        if start and keys[start - 1] >= border:  # a line may go on over the cut
            line, one_before = (
                (int(keys[at]) - border) // rows_per_line for at in (start, start - 1)
            )
            lines[number, owner] -= line == one_before
    return AskedRows(
        layout, length, rows.sum(axis=0), lines.sum(axis=0), unique.sum(axis=0), pairs, walks
    )


def _check_places(bags: AskingBags, name: str, askers: int, length: int) -> None:
    """Raise unless all occurrences of a feature have places in the askers' lists."""
    count = bags.row_splits.size - 1
    if count > askers * bags.bags:
        raise ShardcoreValueError(
            f"{name}.row_splits must have at most {askers * bags.bags} bags: {askers} askers with "
            f"{bags.bags} each, got {count}"
        )
    borders = np.minimum(np.arange(askers + 1) * bags.bags, count)
    if bags.room:
        lengths = np.diff(bags.row_splits)
        if (lengths > bags.room).any():
            bag = int(np.argmax(lengths > bags.room))
            raise ShardcoreValueError(
                f"{name}.row_splits must have bags of at most {bags.room} ids, "
                f"got {lengths[bag]} in bag {bag}"
            )
        needed = np.diff(borders) * bags.room
    else:
        needed = np.diff(bags.row_splits[borders])
    ends = bags.starts + needed
    wrong = (bags.starts < 0) | (ends > length)
    if wrong.any():
        asker = int(np.argmax(wrong))
        raise ShardcoreValueError(
            f"{name}.starts must leave every asker's occurrences within its {length} places, "
            f"got {bags.starts[asker]} to {ends[asker]} at asker {asker}"
        )


def _dealt(
    features: Sequence[AskingBags], layout: Layout, length: int, shift: int, buckets: int, n: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the pairs of a batch in buckets of keys, and where each bucket starts."""
    shards = 0 if layout.contiguous else layout.num_shards
    parts = _parts(features, max(1, min(team.get_num_threads(), n // _PART)))
    counts = np.zeros((len(parts), buckets), np.int64)
    plain = [np.ascontiguousarray(bags.ids) for bags in features]
    splits = [np.ascontiguousarray(bags.row_splits) for bags in features]

    def counted(part: int) -> None:
        for f, first, last in parts[part]:
            count = _kernel.count_keys[TYPE_NAMES[plain[f].dtype]]
            own = int(splits[f][first]), int(splits[f][last])
            count(plain[f], *own, shards, layout.offsets, shift, counts[part])

    team.run(len(parts), counted)
    limits = np.empty(buckets + 1, np.int64)
    _starts_of_buckets(counts, limits)
    pairs = pool.empty(n, _UINT64)

    def dealt(part: int) -> None:
        for f, first, last in parts[part]:
            bags = features[f]
            starts = bags.starts + np.arange(bags.starts.size) * length
            deal = _kernel.deal_positions[TYPE_NAMES[plain[f].dtype]]
            deal(
                plain[f], splits[f], first, last, bags.bags, starts, bags.room, shards,
                layout.offsets, shift, counts[part], pairs,
            )  # fmt: skip

    team.run(len(parts), dealt)
    return pairs, limits


def _parts(features: Sequence[AskingBags], parts: int) -> list[list[tuple[int, int, int]]]:
    """Cut all bags, feature after feature, into parts of about equal numbers of ids."""
    ends = np.cumsum([int(b.row_splits[-1] - b.row_splits[0]) for b in features] or [0]).tolist()
    cuts = [(0, 0)]
    for part in range(1, parts):
        target = ends[-1] * part // parts
        f = bisect_left(ends, target)
        splits = features[f].row_splits
        within = target - ends[f] + int(splits[-1])
        cuts.append((f, min(int(np.searchsorted(splits, within)), splits.size - 1)))
    cuts.append((len(features), 0))
    out = []
    for (f, bag), (last_f, last_bag) in itertools.pairwise(cuts):
        own = []
        for g in range(f, min(last_f + 1, len(features))):
            first = bag if g == f else 0
            last = last_bag if g == last_f else features[g].row_splits.size - 1
            if first < last:
                own.append((g, first, last))
        out.append(own)
    return out
