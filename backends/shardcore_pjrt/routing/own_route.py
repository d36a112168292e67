"""The lists of a batch of which each process routes its own samples alone.

A process knows the bags of its own devices. Before it sorts their ids, all processes tell each
other how many bags they have and how long these are, and agree on what every list depends on; once
it has sorted them, how many rows its devices ask for at most, and agree on one room. So the arrays
of all processes have one shape, and go through the programs of any other batch by "all_to_all":
what a device asks an owner for is sent to it by the devices themselves, and owners merge what they
are asked for there (`programs.sent_lists`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, gains_of
from shardcore.store import AskedRows, sort_askers
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.lookup_route import (
    LookupRoute,
    LookupShape,
    add_factors,
    padded_length,
)
from shardcore_pjrt.routing.request import asking_bags
from shardcore_pjrt.routing.spread import Spread, bags_of_device, spread_by
from shardcore_pjrt.routing.update_route import (
    UpdateRoute,
    UpdateShape,
    describe_shards,
    scale_of,
)

__all__ = ["OwnRoute", "OwnRows", "agreed_bags", "counts_of_bags", "own_rows", "route_own"]
__all__ += ["described", "route_own_update"]

_NONE: Final = 1 << 40
"""Stands for the shortest of no bags."""


class AgreedBags(NamedTuple):
    """What all processes know of the bags of a batch over one stack, before one is sorted.

    Attributes
    ----------
    own : tuple of int
        Bags of each feature that a device has room for.
    pooling : int
        Places of every bag; 0: bags are ragged.
    ids : int
        Of all processes together.
    weighted, divided, scaled : bool
        Whether any process has weights, divisors, or divisors without weights.
    """

    own: tuple[int, ...]
    pooling: int
    ids: int
    weighted: bool
    divided: bool
    scaled: bool


def counts_of_bags(features: Sequence[FeatureBags], devices: int) -> list[int]:
    """Return what a process tells of its bags: as many numbers for as many features.

    Parameters
    ----------
    features : sequence of FeatureBags
    devices : int
        Of the process.
    """
    lengths = [np.diff(bags.row_splits) for bags in features if bags.num_bags]
    return [
        *(bags_of_device(bags, devices) for bags in features),
        max((int(each.max()) for each in lengths), default=0),
        min((int(each.min()) for each in lengths), default=_NONE),
        sum(each.size for each in lengths),
        sum(bags.ids.size for bags in features),
        any(bags.weights is not None for bags in features),
        any(bags.divisors is not None for bags in features),
        any(scale_of(bags) is not None for bags in features),
    ]


def agreed_bags(counts: NDArray[np.int64]) -> AgreedBags:
    """Return what follows from the counts of all processes, (processes, numbers).

    Examples
    --------
    >>> first = FeatureBags(np.arange(6), np.array([0, 2, 4, 6]))
    >>> second = FeatureBags(np.arange(2), np.array([0, 2]), divisors=np.array([2.0], np.float32))
    >>> agreed_bags(np.array([counts_of_bags([bags], 1) for bags in (first, second)]))
    AgreedBags(own=(3,), pooling=2, ids=8, weighted=False, divided=True, scaled=True)
    """
    *own, longest, _, _, _, weighted, divided, scaled = counts.max(axis=0).tolist()
    bags, ids = counts[:, -5:-3].sum(axis=0).tolist()
    shortest = int(counts[:, -6].min())
    pooling = padded_length(shortest, longest, bags, ids) if bags else 0
    return AgreedBags(tuple(own), pooling, ids, bool(weighted), bool(divided), bool(scaled))


@dataclass(frozen=True, eq=False)
class OwnRows:
    """The rows that a process's devices ask for, sorted.

    Attributes
    ----------
    agreed : AgreedBags
    spread : Spread
        The process's own bags over its own devices.
    named : AskedRows
    """

    agreed: AgreedBags
    spread: Spread
    named: AskedRows

    @property
    def counts(self) -> list[int]:
        """What a process tells of them: rows asked of an owner, lines there, places of a device."""
        occurrences = int(self.spread.occurrences().max())
        return [int(self.named.rows.max()), int(self.named.lines.max()), occurrences]


def own_rows(
    geometry: Geometry, features: Sequence[FeatureBags], devices: int, agreed: AgreedBags
) -> OwnRows:
    """Sort the rows that a process's devices ask for.

    Parameters
    ----------
    geometry : Geometry
    features : sequence of FeatureBags
        Of the process.
    devices : int
        Of the process.
    agreed : AgreedBags
    """
    spread = spread_by(features, devices, agreed.own)
    pooling = agreed.pooling
    length = pooling * spread.total if pooling else max(1, int(spread.occurrences().max()))
    asking = asking_bags(spread, pooling)
    named = sort_askers(asking, geometry.layout, devices, length, geometry.rows_per_line)
    return OwnRows(agreed, spread, named)


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnRoute(LookupRoute):
    """The arrays of one lookup for the devices of one process; the first axis is cut over these.

    They are those of `LookupRoute`, but for ``fetch``, which the devices make of ``asked`` int32
    (asking, owner, C): local rows, padding `local_rows`.

    Attributes
    ----------
    rows : OwnRows
    lines : int
        Lines that an owner touches, padding included: no more than those that the processes touch
        one by one.
    """

    rows: OwnRows
    lines: int


def route_own(geometry: Geometry, rows: OwnRows, counts: NDArray[np.int64]) -> OwnRoute:
    """Return the lists by which a process's devices look up.

    Parameters
    ----------
    geometry : Geometry
    rows : OwnRows
    counts : ndarray of int64, shape (processes, 3)
        Those of every process's `OwnRows`.
    """
    agreed, spread = rows.agreed, rows.spread
    pooling = agreed.pooling
    asked_rows, _, occurrences = counts.max(axis=0).tolist()
    length = pooling * spread.total if pooling else spread.room("occurrences", occurrences)
    room = spread.room("rows", asked_rows)
    lists = rows.named.lists(room, geometry.local_rows)
    place = lists.slots
    if place.shape[1] != length:
        place = np.full((spread.devices, length), geometry.devices * room, np.int32)
        place[:, : lists.slots.shape[1]] = lists.slots
    arrays: dict[str, NDArray[Any]] = {
        "place": place,
        "asked": np.ascontiguousarray(lists.asked.swapaxes(0, 1)),
    }
    if not pooling:
        arrays["end"] = spread.ends()
    add_factors(arrays, spread, length, pooling, agreed.weighted, agreed.divided)
    shape = LookupShape(
        "all_to_all", spread.bags, length, pooling, room, agreed.weighted, agreed.divided
    )
    touched = int(counts[:, 1].sum())
    lines = min(spread.room("lines", touched), geometry.lines)
    return OwnRoute(shape, arrays, rows=rows, lines=lines)


def route_own_update(route: OwnRoute, accumulate: bool, lazy: bool) -> UpdateRoute:
    """Return the lists that the update after a lookup needs besides those of the lookup.

    Parameters
    ----------
    route : OwnRoute
        Of features that all have gradients.
    accumulate, lazy : bool
        As in `route_update`.

    Returns
    -------
    UpdateRoute
        With ``gain`` and ``scale`` only, of the process's devices, and no number of rows.
    """
    looked_up, spread, agreed = route.shape, route.rows.spread, route.rows.agreed
    length, pooling = looked_up.occurrences, looked_up.pooling
    arrays: dict[str, NDArray[Any]] = {}
    if agreed.scaled:
        arrays["scale"] = spread.by_bag([scale_of(bags) for bags in spread.features])
    if agreed.weighted:
        gains = [gains_of(bags) for bags in spread.features]
        # Without weights `scale` has the divisors.
        factors = [spread.weights(device, gains) for device in range(spread.devices)]
        arrays["gain"] = spread.filled(factors, 0, np.float32, length=length, pooling=pooling)
    shape = UpdateShape(
        "all_to_all",
        looked_up.bags,
        length,
        pooling,
        looked_up.capacity,
        route.lines if lazy else 0,
        agreed.weighted,
        agreed.scaled,
        accumulate,
        not lazy,
    )
    return UpdateRoute(shape, arrays, 0)


def described(geometry: Geometry, shape: UpdateShape) -> UpdateRoute:
    """Return the lists of an update by "all_to_all" that tell which rows the devices hold."""
    arrays: dict[str, NDArray[Any]] = {}
    describe_shards(geometry.layout, arrays)
    return UpdateRoute(shape, arrays, 0)
