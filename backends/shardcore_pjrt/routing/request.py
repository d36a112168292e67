"""Which distinct rows one device needs of each other: the lists behind "all_to_all".

A device's *request* is the distinct rows that its bags name, owner by owner. Rows travel to it, and
summed gradients from it, in buffers with the same room for every owner; the room is that of the
largest list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.store import Occurrences, sort_occurrences
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.spread import Ints, owner_keys

__all__ = ["Request", "in_order", "request_rows", "requested"]


@dataclass(frozen=True, eq=False)
class Request:
    """The rows that one device's bags name.

    Attributes
    ----------
    named : Occurrences
        Sorted by (owner, local row); its `rows` are the keys of `owner_keys`.
    local : ndarray of int64, shape (unique,)
        Local rows, ascending for each owner.
    owner_splits : ndarray of int64, shape (devices + 1,)
        Owner o has ``local[owner_splits[o]:owner_splits[o + 1]]``.
    """

    named: Occurrences
    local: NDArray[np.int64]
    owner_splits: NDArray[np.int64]

    def positions(self, room: int) -> NDArray[np.int32]:
        """Return where each distinct row is in a buffer with `room` for each owner."""
        shift = np.arange(self.owner_splits.size - 1) * room - self.owner_splits[:-1]
        first = np.repeat(shift, np.diff(self.owner_splits))
        return (np.arange(self.local.size) + first).astype(np.int32)


def request_rows(
    geometry: Geometry, ids: Ints, sources: NDArray[np.int32], gains: NDArray[Any] | None
) -> Request:
    """Return the rows that ids name, by owner; sources and gains as for `sort_occurrences`.

    Parameters
    ----------
    geometry : Geometry
    ids : ndarray of int32 or int64, shape (n,), in range
    sources : ndarray of int32, shape (n,)
    gains : ndarray of float32, shape (n,), or None

    Examples
    --------
    >>> table = Geometry(10, 4, 2, "row", layout_name="mod")
    >>> request = request_rows(table, np.array([7, 2, 7, 1]), np.arange(4, dtype=np.int32), None)
    >>> request.local, request.owner_splits, request.positions(8)
    (array([1, 0, 3]), array([0, 1, 3]), array([0, 8, 9], dtype=int32))
    """
    keys, borders = owner_keys(geometry.layout, ids)
    named = sort_occurrences(keys, sources, gains, geometry.num_rows)
    owner_splits = np.searchsorted(named.rows, borders)
    local = named.rows - np.repeat(borders[:-1], np.diff(owner_splits))
    return Request(named, local, owner_splits)


def requested(
    geometry: Geometry, requests: Sequence[Request], room_for: Callable[[int], int]
) -> NDArray[np.int32]:
    """Return the local rows that each device asks of each owner, (owner, asking device, room).

    Parameters
    ----------
    geometry : Geometry
    requests : sequence of Request
        One per device.
    room_for : callable
        The class of a count of rows: `Spread.room`.

    Returns
    -------
    ndarray of int32
        Padded with `local_rows`.
    """
    counts = np.stack([np.diff(request.owner_splits) for request in requests])
    room = room_for(int(counts.max()))
    out = np.full((geometry.devices, len(requests), room), geometry.local_rows, np.int32)
    for device, request in enumerate(requests):
        own = np.empty(geometry.devices * room, np.int32)
        own.fill(geometry.local_rows)
        own[request.positions(room)] = request.local
        out[:, device] = own.reshape(geometry.devices, room)
    return out


def in_order(named: Occurrences, of_row: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return each occurrence's value of its distinct row, in the order the occurrences were given.

    Parameters
    ----------
    named : Occurrences
        Whose sources are that order: ``arange(n)`` before they were sorted.
    of_row : ndarray of int32, shape (unique,)

    Returns
    -------
    ndarray of int32, shape (n,)

    Examples
    --------
    >>> named = sort_occurrences(np.array([7, 2, 7]), np.arange(3, dtype=np.int32), None, 10)
    >>> in_order(named, np.array([20, 70], np.int32))
    array([70, 20, 70], dtype=int32)
    """
    out = np.empty(named.sources.size, np.int32)
    out[named.sources] = np.repeat(of_row, np.diff(named.run_splits))
    return out
