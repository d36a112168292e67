"""The lists by which devices apply a batch's gradients to one table: every row is updated once.

A device that holds rows updates those that the batch names. It works on whole lines, each taken and
written back once; a row's place in a touched line is a *sub-row*: position of the line among the
touched ones times `rows_per_line`, plus the place in the line. Gradients reach it in one of two
ways: all of them go to all devices ("gather"), and each owner sums those of its rows; or each
device sums its own per row and sends the sums to the owners ("all_to_all"), which add them up.

Sums have the order (feature, global bag, position); with "all_to_all" each device's part of it is
summed first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, gains_of, joined_gains
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.store import Occurrences, reciprocals, sort_occurrences
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.capacity import Rooms
from shardcore_pjrt.routing.request import request_rows, requested
from shardcore_pjrt.routing.spread import Spread, joined, owner_keys, spread_bags
from shardcore_pjrt.routing.strategy import Exchange, check_exchange

__all__ = ["UpdateRoute", "UpdateShape", "route_update"]

EXCHANGES: Final = ("local", "gather", "all_to_all", "columns")


@dataclass(frozen=True)
class UpdateShape:
    """All that a compiled update depends on, besides the table and its optimizer.

    Attributes
    ----------
    exchange : str
    bags : tuple of int
        Local bags of each feature that has gradients, T in all: a class, empty bags included
        (`Spread.bags`).
    occurrences : int
        M: of an owner, or with "all_to_all" of a device's own bags, padding included.
    capacity : int
        "all_to_all": C, sums that a device sends to another, padding included. Else 0.
    lines : int
        L: touched lines of an owner, padding included; 0 if `every_row`.
    gained, scaled : bool
        Whether occurrences have factors, and bags.
    accumulate : bool
        Whether the gradients of a row are summed, rather than applied one after the other.
    every_row : bool
        Whether rows that the batch does not name are updated too.
    """

    exchange: Exchange
    bags: tuple[int, ...]
    occurrences: int
    capacity: int
    lines: int
    gained: bool
    scaled: bool
    accumulate: bool
    every_row: bool


@dataclass(frozen=True, eq=False)
class UpdateRoute:
    """The arrays of one update; their first axis is cut over the devices.

    That axis is 1, and the arrays go to all devices, for "columns" and for "local": all but `scale`
    of "local", which every device applies to its own bags.

    Attributes
    ----------
    shape : UpdateShape
    arrays : dict of str -> ndarray
        ``scale`` float32 (D, T), if scaled: factor of each local bag. ("columns": of the bags of
        all devices, feature under feature.)
        ``gain`` float32 (D, M), if gained: factor of each occurrence; padding 0.
        ``source`` int32 (D, M): the occurrence's gradient among those of all devices, device by
        device (as ``device * T + local bag``; "columns": feature by feature); padding D * T.
        "all_to_all": its local bag; padding T.
        ``slot`` int32 (D, M): its sub-row, or its row if `every_row`, never less than the one
        before; padding one past the end. "all_to_all": ``owner * C + j``, where its sum is sent
        from; padding D * C.
        ``received`` int32 (D, D * C), "all_to_all" only: the sub-row, or row, of each received sum;
        padding one past the end.
        ``lines`` int32 (D, L), unless `every_row`: the touched lines, ascending; padding is
        distinct numbers past the end of the shard.
        ``row_ids`` int32 (D, L * rows_per_line), unless `every_row`: global row of each sub-row, -1
        where it is not touched.
        ``rows_here``, ``first_row`` int32 (D,), ``row_stride`` int32 (), if `every_row`: the shard
        holds ``rows_here`` rows, local row r being global row ``first_row + r * row_stride``.
        ``first``, ``count`` int32 (D, sub-rows or rows), ``waves`` int32 (), unless `accumulate`:
        the occurrences of each are ``first`` to ``first + count``; the largest count.
    unique_rows : int
        Distinct rows that the features name.
    """

    shape: UpdateShape
    arrays: dict[str, NDArray[Any]]
    unique_rows: int


def route_update(
    geometry: Geometry,
    features: Sequence[FeatureBags],
    exchange: Exchange,
    accumulate: bool,
    lazy: bool,
    rooms: Rooms | None = None,
) -> UpdateRoute:
    """Return the lists by which the devices apply the gradients of features of one table.

    Parameters
    ----------
    geometry : Geometry
    features : sequence of FeatureBags
        Those with gradients. Ids in range; weights and divisors float32.
    exchange : {"local", "gather", "all_to_all", "columns"}
    accumulate, lazy : bool
        The optimizer's: whether gradients of a row are summed, and whether rows without any stay.
    rooms : Rooms, optional
        The classes that updates of the table have taken before.

    Returns
    -------
    UpdateRoute

    Raises
    ------
    ShardcoreValueError
        If the table does not lie so that the exchange can serve it, if it is "all_to_all" and
        gradients are not summed, or if a device has more occurrences than int32 can number.

    Examples
    --------
    >>> bags = FeatureBags(np.array([9, 2, 9]), np.array([0, 2, 3]))
    >>> route = route_update(Geometry(10, 4, 2, "row"), [bags], "gather", True, True)
    >>> route.arrays["lines"][:, :2], route.arrays["row_ids"][:, :2]
    (array([[2, 5],
           [4, 5]], dtype=int32), array([[ 2, -1],
           [ 9, -1]], dtype=int32))
    >>> route.arrays["source"][:, :3], route.arrays["slot"][:, :3], route.unique_rows
    (array([[0, 2, 2],
           [0, 1, 2]], dtype=int32), array([[0, 5, 5],
           [0, 0, 5]], dtype=int32), 2)
    """
    check_exchange(geometry, exchange, EXCHANGES)
    if exchange == "all_to_all" and not accumulate:
        raise ShardcoreValueError(
            "exchange must be 'gather' where gradients of a row are not summed, got 'all_to_all'"
        )
    own = spread_bags(features, geometry.devices, rooms)
    spread = own.joined() if exchange == "columns" else own
    arrays: dict[str, NDArray[Any]] = {}
    scales = [_scale(bags) for bags in features]
    if scaled := any(scale is not None for scale in scales):
        arrays["scale"] = spread.by_bag(scales)
    gains = [gains_of(bags) for bags in features]
    if exchange == "all_to_all":
        owners, room = _sent(geometry, spread, gains, arrays)
    else:
        owners, room = _gathered(geometry, spread, gains), 0
    if lazy:
        targets, lines = _touched_lines(geometry, owners, arrays, partial(spread.room, "lines"))
        end = lines * geometry.rows_per_line
    else:
        targets, lines = [owner.rows.astype(np.int32) for owner in owners], 0
        end = geometry.local_rows
        _describe_shards(geometry.layout, arrays)
    of_each = [
        np.repeat(target, np.diff(owner.run_splits))
        for target, owner in zip(targets, owners, strict=True)
    ]
    if exchange == "all_to_all":
        received = np.full((geometry.devices, geometry.devices * room), end, np.int32)
        for line, owner, target in zip(received, owners, of_each, strict=True):
            line[owner.sources] = target
        arrays["received"] = received
    else:
        in_lists = partial(spread.room, "occurrences")
        _add_lists(arrays, owners, of_each, (end, spread.devices * spread.total), in_lists)
    if not accumulate:
        _number_waves(arrays, owners, targets, end)
    shape = UpdateShape(
        exchange,
        own.bags,
        arrays["source"].shape[1],
        room,
        lines,
        "gain" in arrays,
        scaled,
        accumulate,
        not lazy,
    )
    return UpdateRoute(shape, arrays, sum(owner.rows.size for owner in owners))


def _scale(bags: FeatureBags) -> NDArray[Any] | None:
    """Return the factor of each bag; None where all are 1, or `gains_of` holds it."""
    if bags.weights is not None or bags.divisors is None:
        return None
    return reciprocals(bags.divisors)


def _gathered(
    geometry: Geometry, spread: Spread, gains: Sequence[NDArray[Any] | None]
) -> list[Occurrences]:
    """Return, per owner, the occurrences of its local rows among those of all devices."""
    sizes = [bags.ids.size for bags in spread.features]
    keys, borders = owner_keys(geometry.layout, joined([bags.ids for bags in spread.features]))
    factors = joined_gains(list(zip(sizes, gains, strict=True)), np.dtype(np.float32))
    named = sort_occurrences(keys, _gradient_of_each(spread), factors, geometry.num_rows)
    if geometry.layout.num_shards == 1:
        return [named]
    owners = []
    cuts = np.searchsorted(named.rows, borders).tolist()
    for border, (first, last) in zip(borders[:-1], itertools.pairwise(cuts), strict=True):
        splits = named.run_splits[first : last + 1]
        own = slice(int(splits[0]), int(splits[-1]))
        own_gains = None if named.gains is None else named.gains[own]
        rows = named.rows[first:last] - border
        owners.append(Occurrences(rows, splits - splits[0], named.sources[own], own_gains))
    return owners


def _gradient_of_each(spread: Spread) -> NDArray[np.int32]:
    """Return where the gradient of each id's bag is, device by device; ids feature by feature."""
    sources = []
    for f, bags in enumerate(spread.features):
        sources.append(np.repeat(spread.places(f), np.diff(bags.row_splits)))
    return joined(sources)


def _sent(
    geometry: Geometry,
    spread: Spread,
    gains: Sequence[NDArray[Any] | None],
    arrays: dict[str, NDArray[Any]],
) -> tuple[list[Occurrences], int]:
    """Add the sums that each device sends; return those that each owner receives, and C."""
    gained = any(gain is not None for gain in gains)
    requests = [
        request_rows(
            geometry,
            spread.ids(device),
            spread.bag_of_each(device),
            spread.weights(device, gains) if gained else None,
        )
        for device in range(spread.devices)
    ]
    fetch = requested(geometry, requests, partial(spread.room, "rows"))
    room = fetch.shape[2]
    named = [request.named for request in requests]
    slots = [
        np.repeat(request.positions(room), np.diff(request.named.run_splits))
        for request in requests
    ]
    _add_lists(
        arrays,
        named,
        slots,
        (geometry.devices * room, spread.total),
        partial(spread.room, "occurrences"),
    )
    owners = []
    for rows in fetch.reshape(geometry.devices, -1):
        at = np.flatnonzero(rows < geometry.local_rows)
        owners.append(sort_occurrences(rows[at], at.astype(np.int32), None, geometry.local_rows))
    return owners, room


def _add_lists(
    arrays: dict[str, NDArray[Any]],
    lists: Sequence[Occurrences],
    slots: Sequence[NDArray[np.int32]],
    ends: tuple[int, int],
    room_for: Callable[[int], int],
) -> None:
    """Add the occurrences of each device, in the order of the sums; `ends` pad slots, sources."""
    room = room_for(max(each.sources.size for each in lists))
    slot_end, source_end = ends
    slot = np.empty((len(lists), room), np.int32)
    source = np.empty_like(slot)
    for i, (each, own) in enumerate(zip(lists, slots, strict=True)):
        n = own.size
        slot[i, :n], slot[i, n:] = own, slot_end
        source[i, :n], source[i, n:] = each.sources, source_end
    arrays["slot"], arrays["source"] = slot, source
    if any(each.gains is not None for each in lists):
        gain = np.zeros(slot.shape, np.float32)
        for i, each in enumerate(lists):
            gain[i, : each.sources.size] = each.gains
        arrays["gain"] = gain


def _touched_lines(
    geometry: Geometry,
    owners: Sequence[Occurrences],
    arrays: dict[str, NDArray[Any]],
    room_for: Callable[[int], int],
) -> tuple[list[NDArray[np.int32]], int]:
    """Add the lines that each owner touches; return the sub-rows of its rows, and L."""
    k = geometry.rows_per_line
    touched = [_lines_of(owner.rows, k) for owner in owners]
    # No shard has more lines to touch than it has.
    count = min(room_for(max(each.lines.size for each in touched)), geometry.lines)
    lines = np.empty((len(owners), count), np.int32)
    row_ids = np.full((len(owners), count * k), -1, np.int32)
    for i, (owner, each) in enumerate(zip(owners, touched, strict=True)):
        n = each.lines.size
        lines[i, :n] = each.lines
        lines[i, n:] = geometry.lines + np.arange(count - n)
        row_ids[i, each.sub_rows] = geometry.layout.global_of(i, owner.rows)
    arrays["lines"], arrays["row_ids"] = lines, row_ids
    return [each.sub_rows for each in touched], count


class _Lines(NamedTuple):
    lines: NDArray[np.int32] | NDArray[np.int64]
    sub_rows: NDArray[np.int32]


def _lines_of(rows: NDArray[np.int64], rows_per_line: int) -> _Lines:
    """Return the distinct lines of ascending rows, and the sub-row of each row."""
    if rows_per_line == 1:
        return _Lines(rows, np.arange(rows.size, dtype=np.int32))
    local = rows.astype(np.int32)
    line = local // rows_per_line  # NumPy divides by one number fast, but not in divmod
    new = np.ones(rows.size, np.bool_)
    np.not_equal(line[1:], line[:-1], out=new[1:])
    lines_left_out = line - (np.cumsum(new, dtype=np.int32) - 1)
    return _Lines(line[new], local - lines_left_out * rows_per_line)


def _describe_shards(layout: Layout, arrays: dict[str, NDArray[Any]]) -> None:
    """Add which global rows the shards hold."""
    ranges = [layout.row_range(shard) for shard in range(layout.num_shards)]
    arrays["rows_here"] = layout.shard_sizes.astype(np.int32)
    arrays["first_row"] = np.array([rows.start for rows in ranges], np.int32)
    arrays["row_stride"] = np.array(ranges[0].step, np.int32)


def _number_waves(
    arrays: dict[str, NDArray[Any]],
    owners: Sequence[Occurrences],
    targets: Sequence[NDArray[np.int32]],
    size: int,
) -> None:
    """Add which occurrences each sub-row has, for gradients applied one after the other."""
    first = np.zeros((len(owners), size), np.int32)
    count = np.zeros_like(first)
    for i, (owner, target) in enumerate(zip(owners, targets, strict=True)):
        first[i, target] = owner.run_splits[:-1]
        count[i, target] = np.diff(owner.run_splits)
    arrays["first"], arrays["count"] = first, count
    arrays["waves"] = np.array(count.max(initial=0), np.int32)
