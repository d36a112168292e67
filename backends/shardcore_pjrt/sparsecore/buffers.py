"""A batch as SparseCores take it: sorted by the core that works, the core that holds, row and bag.

The package's docstring describes the arrays. They serve the lookup and the update alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, gains_of
from shardcore.store import reciprocals, sort_occurrences
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.routing.spread import Spread, spread_bags
from shardcore_pjrt.sparsecore.limits import (
    MOST_MINIBATCHES,
    Limits,
    buckets_of,
    choose_limits,
)
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry

__all__ = ["NOTHING", "BufferShape", "Buffers", "bags_of_core", "make_buffers", "pointers_per_core"]

NOTHING: Final = 2**31 - 1
"""The row and the bag of padding."""


@dataclass(frozen=True)
class BufferShape:
    """All that the compiled programs of a batch depend on, besides the stack.

    Attributes
    ----------
    bags : int
        Of each core, padding included.
    room : int
        Triples of a device, padding included.
    limits : Limits
    minibatched : bool
        Whether the buffers are of the form that has minibatches.
    """

    bags: int
    room: int
    limits: Limits
    minibatched: bool


@dataclass(frozen=True, eq=False)
class Buffers:
    """The arrays of one batch; their first axis is cut over the devices.

    Attributes
    ----------
    shape : BufferShape
    row_pointers : ndarray of int32, shape (devices * cores * pointers_per_core,)
    embedding_ids, sample_ids : ndarray of int32, shape (devices * room,)
    gains : ndarray of float32, shape (devices * room,)
    num_minibatches : int
    spread : Spread
        Which device works for which bags.
    unique_rows : int
        Distinct rows that the batch names.
    """

    shape: BufferShape
    row_pointers: NDArray[np.int32]
    embedding_ids: NDArray[np.int32]
    sample_ids: NDArray[np.int32]
    gains: NDArray[np.float32]
    num_minibatches: int
    spread: Spread
    unique_rows: int


class _Triples(NamedTuple):
    """Sorted triples: of each distinct key how many, of each triple its bag and gain."""

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    bags: NDArray[np.int32]
    gains: NDArray[np.float32]


def pointers_per_core(geometry: StackGeometry, minibatched: bool) -> int:
    """Return how many pointers a core has, those of minibatches that are not used included."""
    return (MOST_MINIBATCHES if minibatched else 1) * max(8, geometry.all_cores)


def make_buffers(
    geometry: StackGeometry,
    features: Sequence[tuple[int, FeatureBags]],
    minibatched: bool = True,
) -> Buffers:
    """Return the buffers of a batch of the tables of a stack.

    Parameters
    ----------
    geometry : StackGeometry
    features : sequence of (int, FeatureBags)
        Each with its table's place in the stack. Ids in range; weights and divisors float32.
    minibatched : bool
        False: the form without minibatches, in which every core has a part of the buffer as large
        as that of any other, and its pointers count from there.

    Raises
    ------
    ShardcoreValueError
        If the batch is too large for the cores, see `choose_limits`, or for int32.

    Examples
    --------
    >>> from shardcore.sharding import Layout
    >>> stack = StackGeometry((Layout.mod(50, 1),), cores=2, dim=3)
    >>> bags = FeatureBags(np.array([9, 2, 9, 9, 4]), np.array([0, 2, 5]))
    >>> made = make_buffers(stack, [(0, bags)])
    >>> made.shape
    BufferShape(bags=8, room=32, limits=Limits(ids=256, unique=128), minibatched=True)
    >>> made.row_pointers[[0, 1, 8, 9]]
    array([ 1,  9, 17, 25], dtype=int32)
    >>> made.embedding_ids[::8], made.sample_ids[::8], made.gains[::8]
    (array([1, 4, 2, 4], dtype=int32), array([0, 0, 0, 0], dtype=int32), array([1., 1., 1., 2.], \
dtype=float32))
    """
    spread = spread_bags([bags for _, bags in features], geometry.devices)
    worker, bag = _workers(geometry, spread)
    holders, rows = _joined([geometry.place(table, bags.ids) for table, bags in features])
    gains = _gains(spread.features)
    cores, height = geometry.all_cores, geometry.rows_per_core

    def ordered(minibatches: int) -> _Triples:
        at = (
            worker
            if minibatches == 1
            else worker * minibatches + (buckets_of(rows) * minibatches // MOST_MINIBATCHES)
        )
        keys = (at * cores + holders) * height + rows
        return _sorted(keys, bag, gains, cores * minibatches * cores * height)

    minibatches, triples = 1, ordered(1)
    partition, row = np.divmod(triples.keys, height)
    everything = _counts(partition, triples.counts, cores * cores)[:, None]
    distinct = np.bincount(partition, minlength=cores * cores)[:, None]
    chosen = choose_limits(everything, distinct, geometry.columns, minibatched)
    if chosen is None:
        bucket = partition * MOST_MINIBATCHES + buckets_of(row)
        size = cores * cores * MOST_MINIBATCHES
        by_bucket = (cores * cores, MOST_MINIBATCHES)
        chosen = choose_limits(
            _counts(bucket, triples.counts, size).reshape(by_bucket),
            np.bincount(bucket, minlength=size).reshape(by_bucket),
            geometry.columns,
        )
        assert chosen is not None, "64 minibatches are enough, or an error says that they are not"
        triples = ordered(chosen[0])
    minibatches, limits = chosen
    return _filled(geometry, triples, minibatches, limits, spread, minibatched)


def bags_of_core(geometry: StackGeometry, spread: Spread) -> int:
    """Return for how many local bags of its device each core works, padding left out."""
    return -(-spread.total // geometry.cores)


def _workers(
    geometry: StackGeometry, spread: Spread
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the core that works for each id, and the number of its bag there."""
    of_core = max(1, bags_of_core(geometry, spread))
    workers, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for start, own, bags in zip(spread.starts, spread.own, spread.features, strict=True):
        device, local = np.divmod(np.arange(bags.num_bags), max(1, own))
        core, number = np.divmod(local + start, of_core)
        lengths = np.diff(bags.row_splits)
        workers.append(np.repeat(device * geometry.cores + core, lengths))
        numbers.append(np.repeat(number.astype(np.int32), lengths))
    return np.concatenate(workers), np.concatenate(numbers)


def _joined(
    places: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    none = np.empty(0, np.int64)
    return (
        np.concatenate([none, *(core for core, _ in places)]),
        np.concatenate([none, *(row for _, row in places)]),
    )


def _gains(features: Sequence[FeatureBags]) -> NDArray[np.float32]:
    """Return the factor of each id: its weight over the divisor of its bag."""
    gains = [np.empty(0, np.float32)]
    for bags in features:
        own: Any = gains_of(bags)
        if own is None and bags.divisors is not None:
            own = np.repeat(reciprocals(bags.divisors), np.diff(bags.row_splits))
        gains.append(np.ones(bags.ids.size, np.float32) if own is None else own)
    return np.concatenate(gains, dtype=np.float32)


def _sorted(
    keys: NDArray[np.int64],
    bags: NDArray[np.int32],
    gains: NDArray[np.float32],
    end: int,
) -> _Triples:
    """Return triples sorted by key and bag; those equal in both are one, whose gains are added."""
    found = sort_occurrences(keys, np.arange(keys.size, dtype=np.int32), None, end)
    bag, gain = bags[found.sources], gains[found.sources]
    first = np.ones(bag.size, np.bool_)  # of its pair of key and bag
    np.not_equal(bag[1:], bag[:-1], out=first[1:])
    first[found.run_splits[:-1]] = True
    starts = np.flatnonzero(first)
    if starts.size == bag.size:
        return _Triples(found.rows, np.diff(found.run_splits), bag, gain)
    runs = np.searchsorted(starts, found.run_splits)
    return _Triples(found.rows, np.diff(runs), bag[starts], np.add.reduceat(gain, starts))


def _counts(numbers: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return how many triples there are of each number."""
    return np.bincount(numbers, weights=counts, minlength=size).astype(np.int64)


def _filled(
    geometry: StackGeometry,
    triples: _Triples,
    minibatches: int,
    limits: Limits,
    spread: Spread,
    minibatched: bool,
) -> Buffers:
    devices, cores, height = geometry.devices, geometry.all_cores, geometry.rows_per_core
    partition, row = np.divmod(triples.keys, height)
    parts = devices if minibatched else cores  # of the buffer: each has pointers of its own
    sizes = _counts(partition, triples.counts, cores * minibatches * cores).reshape(parts, -1)
    padded = rounded_up_all(sizes)
    starts = np.cumsum(padded, axis=1) - padded
    room = capacity(int(padded.sum(axis=1).max(initial=0)))
    pointers = _pointers(geometry, starts, sizes, padded, minibatched)

    # A triple lies behind its partition's start by its place in the partition.
    flat = starts + room * np.arange(parts)[:, None]
    shift = flat.reshape(-1) - (np.cumsum(sizes) - sizes.reshape(-1))
    at = np.arange(triples.bags.size) + np.repeat(shift[partition], triples.counts)
    embedding_ids = np.full(parts * room, NOTHING, np.int32)
    sample_ids = np.full(parts * room, NOTHING, np.int32)
    gains = np.full(parts * room, np.nan, np.float32)
    embedding_ids[at] = np.repeat(row, triples.counts)
    sample_ids[at] = triples.bags
    gains[at] = triples.gains
    # Rows that several cores work with count once; numpy.unique takes 40 times as long.
    named = sort_occurrences(
        partition % cores * height + row,
        np.zeros(partition.size, np.int32),
        None,
        cores * height,
    ).rows
    return Buffers(
        BufferShape(
            capacity(bags_of_core(geometry, spread)), parts // devices * room, limits, minibatched
        ),
        pointers,
        embedding_ids,
        sample_ids,
        gains,
        minibatches,
        spread,
        named.size,
    )


def rounded_up_all(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each number rounded up to 8.

    Examples
    --------
    >>> rounded_up_all(np.array([0, 1, 8]))
    array([0, 8, 8])
    """
    return -(-sizes // 8) * 8


def _pointers(
    geometry: StackGeometry,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    padded: NDArray[np.int64],
    minibatched: bool,
) -> NDArray[np.int32]:
    """Return the ends of all partitions, with what fills up cores and minibatches."""
    devices, width = geometry.devices, max(8, geometry.all_cores)
    ends = (starts + sizes).reshape(-1, geometry.all_cores)
    last = (starts + padded).reshape(-1, geometry.all_cores)[:, -1:]
    fill = np.repeat(last, width - geometry.all_cores, axis=1)
    used = np.concatenate([ends, fill], axis=1).reshape(devices, -1)
    size = geometry.cores * pointers_per_core(geometry, minibatched)
    out = np.repeat(used[:, -1:], size, axis=1)
    out[:, : used.shape[1]] = used
    return out.astype(np.int32).reshape(-1)
