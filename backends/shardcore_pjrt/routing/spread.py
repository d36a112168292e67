"""Which device owns which bags of a batch, and which rows these name.

A feature of S samples gives each of D devices ``ceil(S / D)`` of them, in order; the last devices
may have fewer. Every device has room for more: for the next of few classes, so that few programs
are compiled. Its bags of all features, each filled up with empty ones, are one list, feature under
feature: its *local bags*.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags
from shardcore.sharding import Layout
from shardcore_pjrt.routing.capacity import Rooms, capacity, quarter_steps

__all__ = ["Spread", "bags_of_device", "owner_keys", "spread_bags", "spread_by"]

Ints = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spread:
    """The bags of one table's features, cut by device.

    Attributes
    ----------
    features : tuple of FeatureBags
    devices : int
    own : tuple of int
        Bags of each feature that a device owns; the last devices may lack some of them.
    bags : tuple of int
        Local bags of each feature, empty ones at the end included: the class of `own`.
    parts : int
        How many devices' bags stand in one list, each with its empty ones: 1 unless `joined`.
    rooms : Rooms, optional
        The classes that batches before have taken.
    """

    features: tuple[FeatureBags, ...]
    devices: int
    own: tuple[int, ...]
    bags: tuple[int, ...]
    parts: int = 1
    rooms: Rooms | None = None

    @property
    def total(self) -> int:
        """Local bags of every device."""
        return sum(self.bags)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first local bag of each feature."""
        return tuple(itertools.accumulate(self.bags[:-1], initial=0)) if self.bags else ()

    def joined(self) -> Spread:
        """Return the bags of all devices as those of one, feature under feature."""
        own = tuple(self.devices * own for own in self.own)
        bags = tuple(self.devices * bags for bags in self.bags)
        return Spread(self.features, 1, own, bags, self.devices, self.rooms)

    def room(self, what: str, count: int) -> int:
        """Return the class of a count that grows with the bags."""
        if self.rooms is None:
            return capacity(count)
        return self.rooms.room((what, self.parts, self.bags), count)

    def places(self, feature: int) -> NDArray[np.int32]:
        """Return where each bag of a feature is in the lists of all devices, one after another."""
        own, room = self.own[feature] // self.parts, self.bags[feature] // self.parts
        bags = np.arange(self.features[feature].num_bags, dtype=np.int32)
        apart = room if self.parts > 1 else self.total
        return bags + bags // max(own, 1) * (apart - own) + np.int32(self.starts[feature])

    def _fill(self, out: NDArray[Any], feature: int, values: NDArray[Any]) -> None:
        """Write values of a device's bags of a feature to their places in its list."""
        own, room = self.own[feature] // self.parts, self.bags[feature] // self.parts
        start, n = self.starts[feature], values.size
        if own == room or self.parts == 1:
            out[start : start + n] = values
            return
        by_part = out[start : start + self.parts * room].reshape(self.parts, room)
        full = n // max(own, 1)
        by_part[:full, :own] = values[: full * own].reshape(full, own)
        if rest := n - full * own:
            by_part[full, :rest] = values[full * own :]

    def bags_of(self, device: int, feature: int) -> slice:
        """Return which bags of a feature a device owns: true ones, without padding."""
        last, own = self.features[feature].num_bags, self.own[feature]
        return slice(min(device * own, last), min((device + 1) * own, last))

    def ids_of(self, device: int, feature: int) -> slice:
        """Return which ids of a feature are in bags that a device owns."""
        bags, row_splits = self.bags_of(device, feature), self.features[feature].row_splits
        return slice(int(row_splits[bags.start]), int(row_splits[bags.stop]))

    def of_device(self, device: int, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return a device's part of values given for each id: (feature, bag, position).

        A feature's values are given for its ids, in their order.
        """
        return joined([each[self.ids_of(device, f)] for f, each in enumerate(values)])

    def ids(self, device: int) -> Ints:
        """Return the ids in a device's bags, in the order (feature, bag, position)."""
        return self.of_device(device, [bags.ids for bags in self.features])

    def weights(self, device: int, given: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
        """Return a device's part of factors given per feature and id; None: all 1."""
        ones = np.broadcast_to(np.float32(1), max((b.ids.size for b in self.features), default=0))
        return self.of_device(device, [ones if each is None else each for each in given])

    def lengths(self, device: int) -> NDArray[np.int64]:
        """Return how many ids each local bag of a device has, (total,)."""
        out = np.zeros(self.total, np.int64)
        for f, bags in enumerate(self.features):
            own = self.bags_of(device, f)
            self._fill(out, f, np.diff(bags.row_splits[own.start : own.stop + 1]))
        return out

    def ends(self) -> NDArray[np.int32]:
        """Return where the ids of each local bag end in its device's list, (devices, total)."""
        lengths = np.array([self.lengths(device) for device in range(self.devices)])
        return lengths.cumsum(axis=1, dtype=np.int32)

    def filled(
        self,
        lists: Sequence[NDArray[Any]],
        padding: int,
        dtype: type[np.generic],
        *,
        length: int,
        pooling: int,
    ) -> NDArray[Any]:
        """Return values of each device's ids under each other, with padding: (devices, length).

        Parameters
        ----------
        lists : sequence of ndarray
            In the order (feature, bag, position).
        padding : int
        dtype : type
        length : int
        pooling : int
            Places of every bag; 0: the values follow one another.
        """
        out = np.empty((self.devices, length), dtype)
        for device, (own, line) in enumerate(zip(lists, out, strict=True)):
            if own.size == length or not pooling:
                line[: own.size] = own
                line[own.size :] = padding
            else:
                used = np.arange(pooling) < self.lengths(device)[:, None]
                line[:] = padding
                line.reshape(used.shape)[used] = own
        return out

    def by_bag(self, given: Sequence[NDArray[Any] | None]) -> NDArray[np.float32]:
        """Return values given per feature and bag, per local bag: (devices, total).

        None, and the padding, become 1.
        """
        out = np.ones((self.devices, self.total), np.float32)
        for f, values in enumerate(given):
            if values is not None:
                for device in range(self.devices):
                    self._fill(out[device], f, values[self.bags_of(device, f)])
        return out

    def occurrences(self) -> NDArray[np.int64]:
        """Return how many ids each device's bags have, (devices,)."""
        counts = np.zeros(self.devices, np.int64)
        borders = np.arange(self.devices + 1)
        for bags, own in zip(self.features, self.own, strict=True):
            counts += np.diff(bags.row_splits[np.minimum(borders * own, bags.num_bags)])
        return counts


def spread_bags(
    features: Sequence[FeatureBags], devices: int, rooms: Rooms | None = None
) -> Spread:
    """Return the bags of features cut over devices, the bags of a sample kept together.

    Parameters
    ----------
    features : sequence of FeatureBags
    devices : int
    rooms : Rooms, optional
        The classes that batches before have taken; those of this one are added.

    Returns
    -------
    Spread

    Examples
    --------
    >>> bags = FeatureBags(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
    >>> spread = spread_bags([bags], 2)
    >>> spread.own, spread.ids(0), spread.ids(1)
    ((2,), array([7, 8]), array([9]))
    >>> batches = [FeatureBags(np.arange(n), np.arange(n + 1)) for n in (400, 448, 449, 512)]
    >>> [spread_bags([bags], 2).bags for bags in batches]
    [(224,), (224,), (256,), (256,)]
    """
    own = [bags_of_device(bags, devices) for bags in features]
    return spread_by(features, devices, own, rooms)


def spread_by(
    features: Sequence[FeatureBags], devices: int, own: Sequence[int], rooms: Rooms | None = None
) -> Spread:
    """Return the bags of features cut over devices, each of which owns as many as is said.

    Parameters
    ----------
    features : sequence of FeatureBags
    devices : int
    own : sequence of int
        Bags of each feature that a device owns; of whole samples.
    rooms : Rooms, optional
        As in `spread_bags`.

    Examples
    --------
    >>> bags = FeatureBags(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
    >>> spread = spread_by([bags], 2, [4])
    >>> spread.ids(0), spread.ids(1)
    (array([7, 8, 9]), array([], dtype=int64))
    """
    room = [
        quarter_steps(n // bags.bags_per_sample) * bags.bags_per_sample
        for n, bags in zip(own, features, strict=True)
    ]
    return Spread(tuple(features), devices, tuple(own), tuple(room), rooms=rooms)


def bags_of_device(bags: FeatureBags, devices: int) -> int:
    """Return how many bags of a feature each device owns; the last devices may lack some."""
    return -(-bags.num_bags // (bags.bags_per_sample * devices)) * bags.bags_per_sample


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate; a single part is taken as it is."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def owner_keys(layout: Layout, ids: Ints) -> tuple[Ints, NDArray[np.int64]]:
    """Return numbers that order ids by (shard, local row), and each shard's first number.

    Parameters
    ----------
    layout : Layout
    ids : ndarray of int32 or int64, shape (n,), in range

    Returns
    -------
    keys : ndarray of int32 or int64, shape (n,)
        The first number of the id's shard, plus its local row.
    borders : ndarray of int64, shape (shards + 1,)

    Examples
    --------
    >>> owner_keys(Layout.mod(10, 2), np.array([7, 2, 1]))
    (array([8, 1, 5]), array([ 0,  5, 10]))
    """
    if layout.contiguous:
        return ids, layout.offsets
    shard, local = layout.locate(ids)
    # The shards of "mod" that are longer by one come first.
    local += layout.offsets[shard]
    return local, layout.offsets
