"""A batch as SparseCores take it: sorted by the core that works, the core that holds, row and bag.

The package's docstring describes the arrays. They serve the lookup and the update alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, gains_of
from shardcore.store import SortedTriples, WorkedBags, reciprocals, sort_triples
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.routing.spread import Spread, spread_bags
from shardcore_pjrt.sparsecore.limits import MOST_MINIBATCHES, Limits, choose_limits
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
    tables = [table for table, _ in features]
    triples = sort_triples(
        _worked(geometry, spread, tables),
        geometry.all_cores,
        geometry.devices,
        geometry.core_bits,
        geometry.row_bits,
    )
    ids, distinct = triples.parts(1)
    chosen = choose_limits(_by_list(ids), _by_list(distinct), geometry.columns, minibatched)
    if chosen is None:
        ids, distinct = triples.parts(MOST_MINIBATCHES)
        chosen = choose_limits(_by_list(ids), _by_list(distinct), geometry.columns)
        assert chosen is not None, "64 minibatches are enough, or an error says that they are not"
    minibatches, limits = chosen
    # Of m minibatches, 64 / m parts of the rows are one.
    sizes = ids.reshape(geometry.all_cores, minibatches, -1, geometry.all_cores).sum(axis=2)
    return _filled(geometry, triples, sizes, limits, spread, minibatched)


def _by_list(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts by core that works and core that holds: (partitions, parts)."""
    return counts.swapaxes(1, 2).reshape(-1, counts.shape[1])


def bags_of_core(geometry: StackGeometry, spread: Spread) -> int:
    """Return for how many local bags of its device each core works, padding left out."""
    return -(-spread.total // geometry.cores)


def _worked(geometry: StackGeometry, spread: Spread, tables: Sequence[int]) -> list[WorkedBags]:
    """Return the bags of features by the core that works for them, and how ids are numbered."""
    of_core = max(1, bags_of_core(geometry, spread))
    device, core = np.divmod(np.arange(geometry.all_cores), geometry.cores)
    worked = []
    for table, bags, start, own in zip(
        tables, spread.features, spread.starts, spread.own, strict=True
    ):
        before = np.clip(core * of_core - start, 0, own)  # bags of the device for earlier cores
        borders = np.minimum(device * own + before, bags.num_bags)
        gains, bag_gains = _gains(bags)
        worked.append(
            WorkedBags(
                bags.ids,
                geometry.layouts[table],
                geometry.first_numbers[table],
                bags.row_splits,
                np.append(borders, bags.num_bags),
                np.maximum(start - core * of_core, 0),
                gains,
                bag_gains,
            )
        )
    return worked


def _gains(bags: FeatureBags) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return the factors of ids, or those of bags: weights over the divisors of bags."""
    if bags.weights is not None:
        return gains_of(bags), None
    return None, None if bags.divisors is None else reciprocals(bags.divisors)


def _filled(
    geometry: StackGeometry,
    triples: SortedTriples,
    sizes: NDArray[np.int64],
    limits: Limits,
    spread: Spread,
    minibatched: bool,
) -> Buffers:
    """Return the buffers of partitions of such sizes: (working cores, minibatches, holding)."""
    devices = geometry.devices
    parts = devices if minibatched else geometry.all_cores  # of the buffer: each has own pointers
    by_part = sizes.reshape(parts, -1)
    padded = rounded_up_all(by_part)
    starts = np.cumsum(padded, axis=1) - padded
    used = padded.sum(axis=1)
    room = capacity(int(used.max(initial=0)))
    places = (starts + room * np.arange(parts)[:, None]).reshape(sizes.shape)
    embedding_ids, sample_ids, gains = triples.lists(places, used, room, NOTHING)
    shape = BufferShape(
        capacity(bags_of_core(geometry, spread)), parts // devices * room, limits, minibatched
    )
    return Buffers(
        shape,
        _pointers(geometry, starts, by_part, padded, minibatched),
        embedding_ids,
        sample_ids,
        gains,
        sizes.shape[1],
        spread,
        triples.rows,
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
