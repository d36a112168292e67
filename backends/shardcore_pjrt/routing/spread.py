"""Which device owns which bags of a batch, and which rows these name.

A feature of S samples gives each of D devices ``ceil(S / D)`` of them, in order; the last devices
get empty bags for the rest. A device's bags of all features are one list, feature under feature:
its *local bags*.
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

__all__ = ["Spread", "owner_keys", "spread_bags"]

Ints = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spread:
    """The bags of one table's features, cut by device.

    Attributes
    ----------
    features : tuple of FeatureBags
    devices : int
    bags : tuple of int
        Bags of each feature that every device has, empty ones at the end included.
    """

    features: tuple[FeatureBags, ...]
    devices: int
    bags: tuple[int, ...]

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
        return Spread(self.features, 1, tuple(self.devices * bags for bags in self.bags))

    def bags_of(self, device: int, feature: int) -> slice:
        """Return which bags of a feature a device owns: true ones, without padding."""
        last, own = self.features[feature].num_bags, self.bags[feature]
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
        for f, (start, bags) in enumerate(zip(self.starts, self.features, strict=True)):
            own = self.bags_of(device, f)
            counts = np.diff(bags.row_splits[own.start : own.stop + 1])
            out[start : start + counts.size] = counts
        return out

    def bag_of_each(self, device: int) -> NDArray[np.int32]:
        """Return the local bag of each of a device's ids."""
        return np.repeat(np.arange(self.total, dtype=np.int32), self.lengths(device))

    def by_bag(self, given: Sequence[NDArray[Any] | None]) -> NDArray[np.float32]:
        """Return values given per feature and bag, per local bag: (devices, total).

        None, and the padding, become 1.
        """
        out = np.ones((self.devices, self.total), np.float32)
        for f, (start, values) in enumerate(zip(self.starts, given, strict=True)):
            if values is not None:
                for device in range(self.devices):
                    own = values[self.bags_of(device, f)]
                    out[device, start : start + own.size] = own
        return out

    def occurrences(self) -> NDArray[np.int64]:
        """Return how many ids each device's bags have, (devices,)."""
        counts = np.zeros(self.devices, np.int64)
        borders = np.arange(self.devices + 1)
        for bags, own in zip(self.features, self.bags, strict=True):
            counts += np.diff(bags.row_splits[np.minimum(borders * own, bags.num_bags)])
        return counts


def spread_bags(features: Sequence[FeatureBags], devices: int) -> Spread:
    """Return the bags of features cut over devices, the bags of a sample kept together.

    Parameters
    ----------
    features : sequence of FeatureBags
    devices : int

    Returns
    -------
    Spread

    Examples
    --------
    >>> bags = FeatureBags(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
    >>> spread = spread_bags([bags], 2)
    >>> spread.bags, spread.ids(0), spread.ids(1)
    ((2,), array([7, 8]), array([9]))
    """
    per_device = (
        -(-bags.num_bags // (bags.bags_per_sample * devices)) * bags.bags_per_sample
        for bags in features
    )
    return Spread(tuple(features), devices, tuple(per_device))


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
