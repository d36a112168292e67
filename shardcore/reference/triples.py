"""Twins of `shardcore.store.sorted_triples`: who works with which row, one id at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardcore.reference.placement import locate
from shardcore.store.sorted_triples import TripleLists, WorkedBags

__all__ = ["sort_triples"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Worked:
    """What `SortedTriples` holds, as dictionaries.

    Attributes
    ----------
    gains : list of list of dict of (int, int) to float32
        Of each worker and holder, by row and bag: ``gains[worker][holder][row, bag]``.
    """

    gains: list[list[dict[tuple[int, int], np.float32]]]

    @property
    def counts(self) -> Ints:
        """How many triples each worker has of each holder."""
        return self.parts(1)[0][:, 0]

    @property
    def distinct(self) -> Ints:
        """How many rows of each holder each worker names."""
        return self.parts(1)[1][:, 0]

    @property
    def rows(self) -> int:
        """How many rows are named at all."""
        return sum(
            len({row for lists in self.gains for row, _ in lists[holder]})
            for holder in range(len(self.gains[0]))
        )

    def parts(self, parts: int) -> tuple[Ints, Ints]:
        """Return how many triples, and distinct rows, are in each part of each list."""
        counts, distinct = np.zeros((2, len(self.gains), parts, len(self.gains[0])), np.int64)
        for worker, lists in enumerate(self.gains):
            for holder, triples in enumerate(lists):
                for row, _ in triples:
                    counts[worker, part_of(row, parts), holder] += 1
                for row in {row for row, _ in triples}:
                    distinct[worker, part_of(row, parts), holder] += 1
        return counts, distinct

    def lists(self, starts: Ints, used: Ints, room: int, padding: int) -> TripleLists:
        """Return the lists, each filled up to a multiple of 8."""
        rows = np.full(used.size * room, padding, np.int32)
        bags, gains = rows.copy(), np.full(rows.size, np.nan, np.float32)
        for worker, lists in enumerate(self.gains):
            for holder, triples in enumerate(lists):
                places = starts[worker, :, holder].tolist()
                for row, bag in sorted(triples):
                    part = part_of(row, len(places))
                    rows[places[part]], bags[places[part]] = row, bag
                    gains[places[part]] = triples[row, bag]
                    places[part] += 1
        return TripleLists(rows, bags, gains)


def part_of(row: int, parts: int) -> int:
    """Return which of 1, 2, 4, ... parts a holder's row is in: the first bits of a product.

    Examples
    --------
    >>> [part_of(row, 64) for row in (0, 1, 2, 3, 64)]
    [0, 39, 15, 54, 35]
    """
    return (row * 0x9E3779B1) % 2**32 * parts // 2**32


def sort_triples(
    features: Sequence[WorkedBags], workers: int, groups: int, holder_bits: int, row_bits: int
) -> Worked:
    """Return the gains of all rows in all bags, by worker and holder.

    Examples
    --------
    >>> from shardcore.sharding import Layout
    >>> ids, splits = np.array([9, 2, 9, 9, 4]), np.array([0, 2, 5])
    >>> whole, none = Layout.div(16, 1), np.zeros(1, np.int64)
    >>> bags = WorkedBags(ids, whole, none, splits, np.array([0, 1, 2]), np.array([0, 0]))
    >>> found = sort_triples([bags], workers=2, groups=1, holder_bits=1, row_bits=3)
    >>> {at: float(gain) for at, gain in found.gains[1][1].items()}
    {(4, 0): 2.0}
    """
    found: list[list[dict[tuple[int, int], np.float32]]] = [
        [{} for _ in range(groups << holder_bits)] for _ in range(workers)
    ]
    for bags in features:
        shard, local = locate(bags.ids, bags.layout.shard_sizes.tolist(), bags.layout.strategy)
        numbers = bags.bases[shard] + local
        for worker in range(workers):
            first, last = int(bags.borders[worker]), int(bags.borders[worker + 1])
            for bag in range(first, last):
                number = int(bags.firsts[worker]) + bag - first
                for i in range(bags.row_splits[bag], bags.row_splits[bag + 1]):
                    digits, low = divmod(int(numbers[i]), 1 << holder_bits)
                    group, row = divmod(digits, 1 << row_bits)
                    gain = np.float32(1)
                    if bags.gains is not None:
                        gain = bags.gains[i]
                    elif bags.bag_gains is not None:
                        gain = bags.bag_gains[bag]
                    triples = found[worker][(group << holder_bits) + low]
                    before = triples.get((row, number))
                    triples[row, number] = gain if before is None else before + gain
    return Worked(found)
