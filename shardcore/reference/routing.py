"""Twins of `shardcore.store.asked_rows`: which rows askers name of owners, one id at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardcore.reference.placement import locate
from shardcore.sharding import Layout
from shardcore.store.asked_rows import AskedLists, AskingBags

__all__ = ["sort_askers"]


@dataclass(frozen=True)
class Named:
    """What `AskedRows` holds, as sets: row numbers by owner and asker; places by asker.

    Attributes
    ----------
    by_pair : list of list of set of int
        The owner's rows that an asker names: ``by_pair[owner][asker]``.
    by_place : list of dict of int to (int, int)
        The owner and its row that an asker names at a place: ``by_place[asker][place]``.
    length, rows_per_line : int
    """

    by_pair: list[list[set[int]]]
    by_place: list[dict[int, tuple[int, int]]]
    length: int
    rows_per_line: int

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many distinct rows each asker names of each owner."""
        return np.array([[len(one) for one in own] for own in self.by_pair], np.int64)

    @property
    def unique(self) -> NDArray[np.int64]:
        """How many rows of each owner are named at all."""
        return np.array([len(set().union(*own)) for own in self.by_pair], np.int64)

    @property
    def lines(self) -> NDArray[np.int64]:
        """How many lines of each owner are named at all."""
        named = [set().union(*own) for own in self.by_pair]
        return np.array([len({row // self.rows_per_line for row in own}) for own in named])

    def lists(self, room: int, padding: int) -> AskedLists:
        """Return what the askers ask for, and where each occurrence's row will be."""
        owners, askers = len(self.by_pair), len(self.by_place)
        asked = np.full((owners, askers, room), padding, np.int32)
        slots = np.full((askers, self.length), owners * room, np.int32)
        for asker, places in enumerate(self.by_place):
            for owner in range(owners):
                rows = sorted(self.by_pair[owner][asker])
                asked[owner, asker, : len(rows)] = rows
            for place, (owner, row) in places.items():
                found = sorted(self.by_pair[owner][asker]).index(row)
                slots[asker, place] = owner * room + found
        return AskedLists(asked, slots)


def sort_askers(
    features: Sequence[AskingBags], layout: Layout, askers: int, length: int, rows_per_line: int = 1
) -> Named:
    """Return which rows every asker names of every owner, and at which places.

    Examples
    --------
    >>> bags = AskingBags(np.array([7, 2, 7]), np.array([0, 2, 3]), 1, np.zeros(2, np.int64), 0)
    >>> named = sort_askers([bags], Layout.div(10, 2), askers=2, length=2)
    >>> named.by_place
    [{0: (1, 2), 1: (0, 2)}, {0: (1, 2)}]
    """
    by_pair: list[list[set[int]]] = [
        [set() for _ in range(askers)] for _ in range(layout.num_shards)
    ]
    by_place: list[dict[int, tuple[int, int]]] = [{} for _ in range(askers)]
    for bags in features:
        shard, local = locate(bags.ids, layout.shard_sizes.tolist(), layout.strategy)
        place = 0
        for bag in range(bags.row_splits.size - 1):
            asker, own = divmod(bag, bags.bags)
            if own == 0:
                place = int(bags.starts[asker])
            if bags.room:
                place = int(bags.starts[asker]) + own * bags.room
            for i in range(bags.row_splits[bag], bags.row_splits[bag + 1]):
                owner, row = int(shard[i]), int(local[i])
                by_pair[owner][asker].add(row)
                by_place[asker][place] = owner, row
                place += 1
    return Named(by_pair, by_place, length, rows_per_line)
