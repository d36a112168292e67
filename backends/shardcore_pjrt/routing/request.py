"""Which distinct rows the devices need of each other: the lists behind "all_to_all".

A device's *request* is the distinct rows that its bags name, owner by owner. Rows travel to it, and
summed gradients from it, in buffers with the same room for every owner; the room is that of the
largest list. The ids of all devices are sorted once, for the lookup and for the update that may
follow it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardcore.store import AskingBags, sort_askers
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.spread import Spread

__all__ = ["Requests", "asking_bags", "request_rows"]


@dataclass(frozen=True, eq=False)
class Requests:
    """The rows that the bags of all devices name, of one batch and table.

    Attributes
    ----------
    spread : Spread
    fetch : ndarray of int32, shape (owners, asking devices, room)
        Local rows that a device asks an owner for, ascending; padding is `local_rows`.
    place : ndarray of int32, shape (devices, length)
        Where among the ``owners * room`` rows that a device is sent each occurrence's row is;
        padding is one past their end.
    lines : int
        Lines that an owner touches, at most.
    unique_rows : int
        Distinct rows that are named at all.
    """

    spread: Spread
    fetch: NDArray[np.int32]
    place: NDArray[np.int32]
    lines: int
    unique_rows: int


def request_rows(geometry: Geometry, spread: Spread, length: int, pooling: int) -> Requests:
    """Return the rows that the devices' bags name, by owner.

    Parameters
    ----------
    geometry : Geometry
    spread : Spread
    length : int
        Places in the list of each device.
    pooling : int
        Places of every bag; 0: bags are ragged.

    Examples
    --------
    >>> from shardcore.backend import FeatureBags
    >>> from shardcore_pjrt.routing.spread import spread_bags
    >>> bags = FeatureBags(np.array([7, 2, 7, 1]), np.array([0, 3, 4]))
    >>> table = Geometry(10, 4, 2, "row", layout_name="mod")
    >>> requests = request_rows(table, spread_bags([bags], 2), length=4, pooling=0)
    >>> requests.fetch[:, :, :3]
    array([[[1, 5, 5],
            [5, 5, 5]],
    <BLANKLINE>
           [[3, 5, 5],
            [0, 5, 5]]], dtype=int32)
    >>> requests.place
    array([[ 8,  0,  8, 16],
           [ 8, 16, 16, 16]], dtype=int32)
    """
    asking = asking_bags(spread, pooling)
    k = geometry.rows_per_line
    named = sort_askers(asking, geometry.layout, spread.devices, length, k)
    lists = named.lists(spread.room("rows", int(named.rows.max())), geometry.local_rows)
    lines, unique_rows = int(named.lines.max()), int(named.unique.sum())
    return Requests(spread, lists.asked, lists.slots, lines, unique_rows)


def asking_bags(spread: Spread, pooling: int) -> list[AskingBags]:
    """Return the bags of devices, and where in their lists the occurrences are.

    Parameters
    ----------
    spread : Spread
    pooling : int
        Places of every bag; 0: bags are ragged.
    """
    asking = []
    filled = np.zeros(spread.devices, np.int64)
    for start, bags, own in zip(spread.starts, spread.features, spread.own, strict=True):
        starts = np.full(spread.devices, start * pooling) if pooling else filled.copy()
        splits = bags.row_splits
        # Bags as long as their room follow one another anyhow.
        full = bags.num_bags * pooling == splits[-1] - splits[0]
        asking.append(AskingBags(bags.ids, splits, own, starts, 0 if full else pooling))
        borders = np.minimum(np.arange(spread.devices + 1) * own, bags.num_bags)
        filled += np.diff(splits[borders])
    return asking
