"""One table's share of a batch, cut by host: the rows that each host needs from each owner.

Samples are spread over hosts in order: bag b of B belongs to host ``b * H // B`` (bags of one
sample stay together). Rows are spread by the table's layout, a host being a shard. For every pair
(host, owner) of hosts:

* the *request* is the distinct local rows of `owner` that the bags of `host` name;
* an *occurrence* is one id of these bags; they are kept in the order (feature, bag, position).

The owner gathers the requested rows, the host combines them in occurrence order. Backward, the host
sends each of its bags' gradients once to every owner that the bag names; the owner puts the
occurrences of all hosts into the order (feature, host, bag, position), which is the order (feature,
global bag, position), and so gets the very sums that a single host gets.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags
from shardcore.ids import row_ids_from_row_splits
from shardcore.sharding import Layout
from shardcore.store import occurrence_gains

__all__ = ["Named", "Occurring", "Share", "named_rows", "own_splits", "shares"]

Ints = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Share:
    """The consecutive bags of one feature that belong to one host."""

    bags: slice
    ids: slice


@dataclass(frozen=True, eq=False)
class Occurring:
    """The occurrences of one owner's rows in one host's bags of one feature.

    Attributes
    ----------
    rows : ndarray of int, shape (n,)
        Local rows of the owner, in the order (bag, position).
    positions : ndarray of int64, shape (n,)
        Where each occurrence stands among the ids of the share.
    bags : ndarray of int64, shape (m,)
        The distinct bags of the feature that name a row of the owner, ascending.
    sources : ndarray of int32, shape (n,)
        Position in `bags` of each occurrence's bag.
    gains : ndarray, shape (n,), or None
    """

    rows: Ints
    positions: NDArray[np.int64]
    bags: NDArray[np.int64]
    sources: NDArray[np.int32]
    gains: NDArray[Any] | None

    @property
    def row_splits(self) -> NDArray[np.int64]:
        """Where the occurrences of each of `bags` begin and end."""
        counts = np.bincount(self.sources, minlength=self.bags.size)
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Named:
    """The rows that one host's bags of one feature name.

    Attributes
    ----------
    rows : ndarray of int64, shape (n,)
        Of all owners, one shard after the other: grouped by owner.
    inverse : ndarray of int64, shape (n,)
        Where among them each id's row stands.
    owners : list of Occurring
        The occurrences of the rows of each owner.
    """

    rows: NDArray[np.int64]
    inverse: NDArray[np.int64]
    owners: list[Occurring]


def own_splits(bags: FeatureBags, share: Share) -> NDArray[np.int64]:
    """Return the row splits of a share's bags, from 0 on."""
    splits: NDArray[np.int64] = bags.row_splits[share.bags.start : share.bags.stop + 1]
    own: NDArray[np.int64] = splits - splits[0]
    return own


def shares(bags: FeatureBags, hosts: int) -> list[Share]:
    """Return each host's share of a feature's bags.

    Examples
    --------
    >>> bags = FeatureBags(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
    >>> [share.bags for share in shares(bags, 2)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    samples = bags.num_bags // bags.bags_per_sample
    # Sample s belongs to host s * H // S, so host h begins at the least s with s * H >= h * S.
    borders = [-(-host * samples // hosts) * bags.bags_per_sample for host in range(hosts + 1)]
    splits = bags.row_splits
    return [
        Share(slice(first, last), slice(int(splits[first]), int(splits[last])))
        for first, last in itertools.pairwise(borders)
    ]


def named_rows(bags: FeatureBags, share: Share, layout: Layout) -> Named:
    """Return the occurrences in one host's share of a feature, cut by the owners of their rows."""
    local, row_splits, inverse = layout.partition(bags.ids[share.ids])
    positions = np.empty_like(inverse)
    positions[inverse] = np.arange(inverse.size)
    splits = own_splits(bags, share)
    bag_of = (row_ids_from_row_splits(splits) + share.bags.start)[positions]
    gains = None
    if bags.weights is not None:
        divisors = None if bags.divisors is None else bags.divisors[share.bags]
        gains = occurrence_gains(splits, bags.weights[share.ids], divisors)[positions]
    # Bags ascend within an owner, as positions do: where they change is the first of each.
    first_of_bag = np.ones(bag_of.size, np.bool_)
    np.not_equal(bag_of[1:], bag_of[:-1], out=first_of_bag[1:])
    borders = row_splits.tolist()
    first_of_bag[[border for border in borders if border < bag_of.size]] = True
    bags_before = np.zeros(bag_of.size + 1, np.int32)
    np.cumsum(first_of_bag, out=bags_before[1:])
    distinct = bag_of[first_of_bag]
    owners = []
    for first, last in itertools.pairwise(borders):
        own, begin = slice(first, last), bags_before[first]
        sources = bags_before[first + 1 : last + 1] - (begin + np.int32(1))
        owners.append(
            Occurring(
                local[own],
                positions[own],
                distinct[begin : bags_before[last]],
                sources,
                None if gains is None else gains[own],
            )
        )
    rows = np.add(local, np.repeat(layout.offsets[:-1], np.diff(row_splits)), dtype=np.int64)
    return Named(rows, inverse, owners)
