"""The lists by which devices look up one table's share of a batch: rows to fetch and rows to use.

In a lookup every device has a buffer of rows: its own, or those that the exchange brought.
Its occurrences, in the order (feature, bag, position), each name a place in the buffer; the place
one past the end reads as zeros and is the padding. All numbers are exact before a device starts:
there is nothing that could overflow there.

Ragged bags carry a list of each occurrence's bag. Where the bags are of about one length they are
padded to it instead, and a bag's occurrences are simply consecutive: see `pooled_length`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags
from shardcore.store import sort_occurrences
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.capacity import Rooms, quarter_steps
from shardcore_pjrt.routing.request import Requests, request_rows
from shardcore_pjrt.routing.spread import Spread, joined, spread_bags
from shardcore_pjrt.routing.strategy import Exchange, check_exchange

__all__ = [
    "LookupRoute",
    "LookupShape",
    "add_factors",
    "padded_length",
    "pooled_length",
    "route_lookup",
]

EXCHANGES: Final = ("local", "one_hot", "gather", "all_to_all", "columns")


@dataclass(frozen=True)
class LookupShape:
    """All that a compiled lookup depends on, besides the table.

    Attributes
    ----------
    exchange : str
    bags : tuple of int
        Local bags of each feature, T in all: a class, empty bags included (`Spread.bags`).
    occurrences : int
        N, of a device, padding included.
    pooling : int
        L: every bag has L occurrences, padding included, and N = T * L. 0: bags are ragged.
    capacity : int
        "gather": U, distinct rows of the batch. "all_to_all": C, rows that a device asks another
        for. Else 0. Padding included.
    weighted, divided : bool
        Whether occurrences have weights, and bags divisors.
    """

    exchange: Exchange
    bags: tuple[int, ...]
    occurrences: int
    pooling: int
    capacity: int
    weighted: bool
    divided: bool


@dataclass(frozen=True, eq=False)
class LookupRoute:
    """The arrays of one lookup; their first axis is cut over the devices.

    Attributes
    ----------
    shape : LookupShape
    arrays : dict of str -> ndarray
        ``place`` int32 (D, N): where in the buffer the occurrence's row is; padding is the buffer's
        length.
        ``end`` int32 (D, T), ragged only: the place after the last occurrence of the local bag.
        ``weight`` float32 (D, N), if weighted: padding 0.
        ``divisor`` float32 (D, T), if divided: of the bag; where it is 0 the bag becomes zeros.
        ``fetch`` int32: "gather": (D, U), the local row, of the device, of each distinct row, and
        `local_rows` where it has it not; the buffer is U rows. "all_to_all": (owner, asking, C)
        local rows, padding `local_rows`; the buffer is D * C rows, owner by owner.
        In the other exchanges the buffer is the shard itself.

        For "columns" the first axis is 1, and the bags are those of all devices: feature under
        feature, each with D times its local bags.
    requests : Requests or None
        Of "all_to_all": an update of the same features takes its lists from them.
    """

    shape: LookupShape
    arrays: dict[str, NDArray[Any]]
    requests: Requests | None = None


def route_lookup(
    geometry: Geometry,
    features: Sequence[FeatureBags],
    exchange: Exchange,
    rooms: Rooms | None = None,
) -> LookupRoute:
    """Return the lists by which the devices look up features of one table.

    Parameters
    ----------
    geometry : Geometry
    features : sequence of FeatureBags
        Ids in range; weights and divisors float32.
    exchange : {"local", "one_hot", "gather", "all_to_all", "columns"}
    rooms : Rooms, optional
        The classes that lookups of the table have taken before.

    Returns
    -------
    LookupRoute

    Raises
    ------
    ShardcoreValueError
        If the table does not lie so that the exchange can serve it, or a device has more
        occurrences than int32 can number.

    Examples
    --------
    >>> bags = FeatureBags(np.array([9, 2, 9]), np.array([0, 2, 3]))
    >>> route = route_lookup(Geometry(10, 4, 2, "row"), [bags], "gather")
    >>> route.shape.occurrences, route.shape.capacity
    (8, 8)
    >>> route.arrays["fetch"][:, :3], route.arrays["place"][:, :3]
    (array([[2, 5, 5],
           [5, 4, 5]], dtype=int32), array([[1, 0, 8],
           [1, 8, 8]], dtype=int32))
    """
    check_exchange(geometry, exchange, EXCHANGES)
    own = spread_bags(features, geometry.devices, rooms)
    spread = own.joined() if exchange == "columns" else own
    pooling = pooled_length(spread)
    length = (
        pooling * spread.total
        if pooling
        else spread.room("occurrences", int(spread.occurrences().max()))
    )
    filled = partial(spread.filled, length=length, pooling=pooling)
    requests: Requests | None = None
    arrays: dict[str, NDArray[Any]] = {}
    places: Sequence[NDArray[Any]]
    if exchange == "gather":
        places, arrays["fetch"] = _offered(geometry, spread)
        rows = buffer = arrays["fetch"].shape[1]
    elif exchange == "all_to_all":
        requests = request_rows(geometry, spread, length, pooling)
        arrays["place"], arrays["fetch"] = requests.place, requests.fetch
        rows = requests.fetch.shape[2]
    else:
        places = [spread.ids(device) for device in range(spread.devices)]
        rows, buffer = 0, geometry.local_rows
    if requests is None:
        arrays["place"] = filled(places, buffer, np.int32)
    if not pooling:
        arrays["end"] = spread.ends()
    weighted = any(bags.weights is not None for bags in features)
    divided = any(bags.divisors is not None for bags in features)
    add_factors(arrays, spread, length, pooling, weighted, divided)
    shape = LookupShape(exchange, own.bags, length, pooling, rows, weighted, divided)
    return LookupRoute(shape, arrays, requests)


def add_factors(
    arrays: dict[str, NDArray[Any]],
    spread: Spread,
    length: int,
    pooling: int,
    weighted: bool,
    divided: bool,
) -> None:
    """Add the factors of occurrences if `weighted`, and the divisors of bags if `divided`."""
    if weighted:
        weights = [bags.weights for bags in spread.features]
        factors = [spread.weights(device, weights) for device in range(spread.devices)]
        arrays["weight"] = spread.filled(factors, 0, np.float32, length=length, pooling=pooling)
    if divided:
        arrays["divisor"] = spread.by_bag([bags.divisors for bags in spread.features])


def pooled_length(spread: Spread) -> int:
    """Return the length that all bags are padded to, or 0 where they stay ragged.

    The length is that of the bags where all are equally long, else that of the longest, rounded up
    by `quarter_steps`. Bags are padded to it if no more than a quarter is added to the occurrences
    of the batch; the empty bags that fill the list of a device up do not count. A length that
    batches before were padded to is taken again if no more than a half is added.

    Parameters
    ----------
    spread : Spread

    Examples
    --------
    >>> even = FeatureBags(np.arange(18), np.array([0, 9, 18]))
    >>> pooled_length(spread_bags([even], 2))
    9
    >>> uneven = FeatureBags(np.arange(18), np.array([0, 17, 18]))
    >>> pooled_length(spread_bags([uneven], 2))
    0
    """
    lengths = [np.diff(bags.row_splits) for bags in spread.features if bags.num_bags]
    if not lengths:
        return 0
    longest = max(int(each.max()) for each in lengths)
    shortest = min(int(each.min()) for each in lengths)
    bags = sum(each.num_bags for each in spread.features)
    ids = sum(each.ids.size for each in spread.features)
    return padded_length(shortest, longest, bags, ids, spread.rooms)


def padded_length(
    shortest: int, longest: int, bags: int, ids: int, rooms: Rooms | None = None
) -> int:
    """Return the length that bags are padded to, as `pooled_length`, from what is known of them.

    Parameters
    ----------
    shortest, longest : int
        Of the lengths of the bags.
    bags, ids : int
        At least one bag.
    rooms : Rooms, optional
        The classes that batches before have taken.

    Examples
    --------
    >>> padded_length(9, 9, 2, 18), padded_length(8, 9, 2, 17), padded_length(1, 17, 2, 18)
    (9, 10, 0)
    """
    if shortest != longest:
        longest = quarter_steps(longest)
    if rooms is not None and (taken := rooms.longest("pooling", longest, 1.5 * ids / bags)):
        return taken
    if 4 * bags * longest > 5 * ids:
        return 0
    if rooms is not None and longest:
        rooms.take("pooling", longest)
    return longest


def _offered(
    geometry: Geometry, spread: Spread
) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
    """Return each device's places among the batch's distinct rows, and those that it holds."""
    ids = [spread.ids(device) for device in range(spread.devices)]
    # The ids of one feature lie device by device already.
    whole = spread.features[0].ids if len(spread.features) == 1 else joined(ids)
    named = sort_occurrences(whole, np.arange(whole.size, dtype=np.int32), None, geometry.num_rows)
    shard, local = geometry.layout.locate(named.rows)
    fetch = np.full(
        (geometry.devices, spread.room("rows", named.rows.size)), geometry.local_rows, np.int32
    )
    fetch[shard, np.arange(named.rows.size)] = local
    places = np.empty(whole.size, np.int32)
    ranks = np.arange(named.rows.size, dtype=np.int32)
    places[named.sources] = np.repeat(ranks, np.diff(named.run_splits))
    return np.split(places, np.cumsum([own.size for own in ids])[:-1]), fetch
