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

__all__ = ["Occurring", "Share", "occurring", "own_splits", "shares"]

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


def occurring(bags: FeatureBags, share: Share, layout: Layout) -> list[Occurring]:
    """Return, per owner, the occurrences of its rows in one host's share of a feature."""
    local, row_splits, inverse = layout.partition(bags.ids[share.ids])
    order = np.empty_like(inverse)
    order[inverse] = np.arange(inverse.size)
    first = share.bags.start
    splits = own_splits(bags, share)
    bag_of = row_ids_from_row_splits(splits) + first
    gains = None
    if bags.weights is not None:
        divisors = None if bags.divisors is None else bags.divisors[share.bags]
        gains = occurrence_gains(splits, bags.weights[share.ids], divisors)
    found = []
    for owner in range(layout.num_shards):
        group = slice(int(row_splits[owner]), int(row_splits[owner + 1]))
        positions = order[group]
        named = bag_of[positions]  # ascending, as the positions are
        first_of_bag = np.ones(named.size, np.bool_)
        np.not_equal(named[1:], named[:-1], out=first_of_bag[1:])
        sources = np.cumsum(first_of_bag, dtype=np.int32)
        sources -= 1
        found.append(
            Occurring(
                local[group],
                positions,
                named[first_of_bag],
                sources,
                None if gains is None else gains[positions],
            )
        )
    return found
