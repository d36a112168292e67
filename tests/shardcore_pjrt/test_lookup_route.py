"""Lookups by the route's arrays, in NumPy, as the devices do them, against the plain definition."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.routing.lookup_route import pooled_length, route_lookup
from shardcore_pjrt.routing.spread import spread_bags

from shardcore import reference
from shardcore.backend.messages import FeatureBags
from shardcore.errors import ShardcoreValueError

CASES = [("row", "gather"), ("row", "all_to_all"), ("column", "columns"), ("replicated", "local")]
DIMS = [3, 16, 64, 96, 128, 200]


def feature(rng, rows, bags, lengths="ragged", weighted=False, divided=False, per_sample=1):
    """Small integers throughout, so that no sum is rounded."""
    counts = np.full(bags, lengths) if lengths != "ragged" else rng.integers(0, 5, bags)
    splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    n = int(splits[-1])
    return FeatureBags(
        rng.integers(0, rows, n).astype(rng.choice([np.int32, np.int64])),
        splits,
        rng.integers(-3, 4, n).astype(np.float32) if weighted else None,
        rng.integers(0, 5, bags).astype(np.float32) if divided else None,
        per_sample,
    )


def table_of(rows, dim):
    return np.random.default_rng(1).integers(-8, 9, (rows, dim)).astype(np.float32)


def held(geometry, table):
    """What each shard holds, packed into lines and unpacked again, per device."""
    k, width, columns = geometry.rows_per_line, geometry.width, geometry.columns
    pieces = geometry.devices if geometry.placement == "column" else 1
    wide = np.zeros((len(table), pieces * columns), np.float32)
    wide[:, : geometry.dim] = table
    shards = []
    for shard in range(geometry.layout.num_shards):
        rows = geometry.layout.global_rows(shard)
        for piece in range(pieces):
            lines = np.full((geometry.lines, geometry.line_width), np.nan, np.float32)
            for local, row in enumerate(rows):
                at = local % k * width
                part = wide[row, piece * columns : (piece + 1) * columns]
                lines[local // k, at : at + columns] = part
            shards.append(lines.reshape(geometry.local_rows, width)[:, :columns])
    return shards


def taken(buffer, places):
    """Rows by place; the one past the end, and no other, reads as zeros."""
    assert places.min(initial=0) >= 0
    assert places.max(initial=0) <= len(buffer)
    return np.concatenate([buffer, np.zeros((1, buffer.shape[1]), np.float32)])[places]


def fetched(geometry, route, shards, device):
    """The buffer that a device combines from."""
    if route.shape.exchange == "gather":
        parts = [
            taken(shard, fetch) for shard, fetch in zip(shards, route.arrays["fetch"], strict=True)
        ]
        return np.sum(parts, axis=0)
    if route.shape.exchange == "all_to_all":
        fetch = route.arrays["fetch"][:, device]
        return np.concatenate([taken(*each) for each in zip(shards, fetch, strict=True)])
    return shards[device % len(shards)]


def combined(route, device, buffer, bags):
    """Activations of the local bags of one line of the arrays."""
    shape, arrays = route.shape, {k: v[device] for k, v in route.arrays.items() if k != "fetch"}
    rows = taken(buffer, arrays["place"])
    if shape.weighted:
        rows = rows * arrays["weight"][:, None]
    if shape.pooling:
        assert "end" not in arrays
        out = rows.reshape(bags, shape.pooling, -1).sum(axis=1)
    else:
        lengths = np.diff(arrays["end"], prepend=0)
        assert (lengths >= 0).all()
        ends = zip(arrays["end"] - lengths, arrays["end"], strict=True)
        spans = [slice(*span) for span in ends]
        out = np.array([rows[span].sum(axis=0) for span in spans]).reshape(bags, rows.shape[1])
    if shape.divided:
        divisor = arrays["divisor"][:, None]
        out = np.divide(out, divisor, out=np.zeros_like(out), where=divisor != 0)
    return out


def looked_up(geometry, features, route, table):
    """Activations of each feature, cut to its true bags."""
    shards, counts = held(geometry, table), route.shape.bags
    starts = np.concatenate([[0], np.cumsum(counts)])
    if route.shape.exchange == "columns":
        total = geometry.devices * sum(counts)
        parts = [combined(route, 0, shard, total) for shard in shards]
        every = np.concatenate(parts, axis=1)[:, : geometry.dim]
        out = [
            every[geometry.devices * start : geometry.devices * (start + n)]
            for start, n in zip(starts[:-1], counts, strict=True)
        ]
    else:
        every = [
            combined(route, d, fetched(geometry, route, shards, d), sum(counts))
            for d in range(geometry.devices)
        ]
        out = [
            np.concatenate([each[start : start + n] for each in every])
            for start, n in zip(starts[:-1], counts, strict=True)
        ]
    return [
        true_bags(each, geometry.devices, own, bags.num_bags)
        for each, own, bags in zip(
            out, spread_bags(features, geometry.devices).own, features, strict=True
        )
    ]


def true_bags(every, devices, own, bags):
    """Without those that fill the devices' lists up, which are zeros."""
    columns = every.shape[1]
    by_device = every.reshape(devices, len(every) // devices, columns)
    assert not by_device[:, own:].any()
    out = by_device[:, :own].reshape(devices * own, columns)
    assert not out[bags:].any()
    return out[:bags]


def check(geometry, features, exchange):
    route = route_lookup(geometry, features, exchange)
    check_shapes(geometry, route)
    table = table_of(geometry.num_rows, geometry.dim)
    for out, bags in zip(looked_up(geometry, features, route, table), features, strict=True):
        weights, divisors = bags.weights, bags.divisors
        want = reference.segment_reduce(table, bags.ids, bags.row_splits, weights, divisors)
        np.testing.assert_array_equal(out, want)
    return route


def check_shapes(geometry, route):
    shape, devices = route.shape, geometry.devices
    leading = 1 if shape.exchange == "columns" else devices
    total = sum(shape.bags) * devices // leading
    want = {"place": (leading, shape.occurrences)}
    if shape.pooling:
        assert shape.occurrences == total * shape.pooling
    else:
        want["end"] = (leading, total)
        assert capacity(shape.occurrences) == shape.occurrences
    if shape.weighted:
        want["weight"] = (leading, shape.occurrences)
    if shape.divided:
        want["divisor"] = (leading, total)
    if shape.exchange == "gather":
        want["fetch"] = (devices, shape.capacity)
    elif shape.exchange == "all_to_all":
        want["fetch"] = (devices, devices, shape.capacity)
    else:
        assert shape.capacity == 0
    assert {name: array.shape for name, array in route.arrays.items()} == want
    for name, array in route.arrays.items():
        assert array.dtype == (np.float32 if name in ("weight", "divisor") else np.int32)


def batch(seed, rows, weighted=True):
    rng = np.random.default_rng(seed)
    return [
        feature(rng, rows, 10, weighted=weighted, divided=True),
        feature(rng, rows, 21, per_sample=3),
        feature(rng, rows, 7, divided=True),
    ]


@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(("placement", "exchange"), CASES)
def test_every_exchange_gives_the_combined_rows(placement, exchange, dim, lanes):
    check(Geometry(37, dim, 4, placement, lanes), batch(dim, 37), exchange)


@pytest.mark.parametrize("layout", ["div", "mod"])
@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize(("placement", "exchange"), CASES)
def test_any_number_of_devices(placement, exchange, devices, layout):
    for rows in (1, 5, 50):  # fewer rows than devices among them
        geometry = Geometry(rows, 3, devices, placement, 16, layout)
        check(geometry, batch(rows, rows, weighted=devices % 2 == 0), exchange)


def test_one_device_takes_from_what_it_holds():
    for placement, exchange in [("table", "local"), ("row", "one_hot"), ("column", "columns")]:
        check(Geometry(11, 5, 1, placement), batch(3, 11), exchange)
    check(Geometry(11, 5, 3, "replicated", 8), batch(3, 11), "one_hot")


@pytest.mark.parametrize(("placement", "exchange"), CASES)
def test_batches_without_ids_or_bags_or_features(placement, exchange):
    geometry, rng = Geometry(9, 4, 3, placement), np.random.default_rng(0)
    no_bags = feature(rng, 9, 0, weighted=True, divided=True)
    empty_bags = feature(rng, 9, 5, lengths=0)
    for features in ([], [no_bags], [empty_bags], [no_bags, empty_bags]):
        route = check(geometry, features, exchange)
        assert (route.shape.pooling, route.shape.occurrences) == (0, 8)
    check(geometry, [no_bags, feature(rng, 9, 4, lengths=2), empty_bags], exchange)


@pytest.mark.parametrize(("placement", "exchange"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_one_length_are_padded_to_it(placement, exchange, weighted):
    rng, geometry = np.random.default_rng(0), Geometry(50, 4, 4, placement)
    even = [feature(rng, 50, 40, 9, weighted), feature(rng, 50, 38, 9, divided=True)]
    assert check(geometry, even, exchange).shape.pooling == 9  # 80 bags' room for 78
    one = [feature(rng, 50, 41, 1, weighted)]
    assert check(geometry, one, exchange).shape.pooling == 1
    assert check(geometry, [*even, feature(rng, 50, 40, 2)], exchange).shape.pooling == 0


def test_bags_of_about_one_length_are_padded_too():
    lengths = np.full(40, 17)
    lengths[3], lengths[20] = 18, 11
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(splits[-1])
    geometry = Geometry(1000, 2, 4, "row")
    for exchange in ("gather", "all_to_all"):
        assert check(geometry, [FeatureBags(ids, splits)], exchange).shape.pooling == 20
    # Four more would exceed the quarter.
    lengths[:] = 16
    lengths[3] = 17
    splits = np.concatenate([[0], np.cumsum(lengths)])
    bags = FeatureBags(ids[: splits[-1]], splits)
    assert 1.25 * splits[-1] >= 40 * 20
    assert pooled_length(spread_bags([bags], 4)) == 20
    shorter = FeatureBags(ids[: splits[-1] - 2], np.minimum(splits, splits[-1] - 2))
    assert pooled_length(spread_bags([shorter], 4)) == 0


def test_a_single_device_takes_ids_as_they_are():
    ids = np.arange(24)[::-1]
    bags = FeatureBags(ids, np.arange(0, 25, 2))
    route = route_lookup(Geometry(24, 4, 1, "row", 128), [bags], "local")
    assert list(route.arrays) == ["place"]
    np.testing.assert_array_equal(route.arrays["place"], [ids])


@st.composite
def routed(draw):
    placement, exchange = draw(st.sampled_from(CASES))
    rows, devices = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    if exchange == "local":
        devices = draw(st.sampled_from([1, 1, 5]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features = [
        feature(
            rng,
            rows,
            draw(st.integers(0, 20)),
            draw(st.sampled_from(["ragged", 0, 1, 3])),
            draw(st.booleans()),
            draw(st.booleans()),
            draw(st.integers(1, 4)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    layout, lanes = draw(st.sampled_from(["div", "mod"])), draw(st.sampled_from([1, 8]))
    return Geometry(rows, 3, devices, placement, lanes, layout), features, exchange


@settings(max_examples=150, deadline=None)
@given(routed())
def test_every_occurrence_arrives_once_in_order(case):
    geometry, features, exchange = case
    # A row's only column is its number: what a place reads is the id that was given.
    geometry = dataclasses.replace(geometry, dim=1)
    route = check(geometry, features, exchange)
    own = spread_bags(features, geometry.devices)
    spread = own.joined() if exchange == "columns" else own
    shards = held(geometry, np.arange(geometry.num_rows, dtype=np.float32)[:, None])
    for device in range(spread.devices):
        buffer = fetched(geometry, route, shards, device)
        places = route.arrays["place"][device]
        true = places < len(buffer)
        np.testing.assert_array_equal(places[~true], len(buffer))
        np.testing.assert_array_equal(buffer[places[true], 0], spread.ids(device))
        if not route.shape.pooling:
            lengths = np.diff(route.arrays["end"][device], prepend=0)
            np.testing.assert_array_equal(lengths, spread.lengths(device))
            np.testing.assert_array_equal(true, np.arange(true.size) < lengths.sum())


@settings(max_examples=60, deadline=None)
@given(routed(), st.sampled_from(["div", "mod"]))
def test_no_row_is_fetched_twice(case, layout):
    base, features, _ = case
    geometry = Geometry(base.num_rows, 3, base.devices, "row", base.lanes, layout)
    fetch = route_lookup(geometry, features, "gather").arrays["fetch"]
    true = fetch < geometry.local_rows
    ids = np.unique(np.concatenate([np.empty(0, int), *(bags.ids for bags in features)]))
    np.testing.assert_array_equal(true.sum(axis=0), np.arange(fetch.shape[1]) < ids.size)
    fetch = route_lookup(geometry, features, "all_to_all").arrays["fetch"]
    spread = spread_bags(features, geometry.devices)
    for device in range(geometry.devices):
        asked = []
        for owner, rows in enumerate(fetch[:, device]):
            true = rows < geometry.local_rows
            assert (np.diff(rows[true]) > 0).all()
            assert not (np.diff(true.astype(int)) > 0).any()
            asked.append(geometry.layout.global_of(owner, rows[true].astype(np.int64)))
        np.testing.assert_array_equal(np.sort(np.concatenate(asked)), np.unique(spread.ids(device)))


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_room_for_rows_is_that_of_the_longest_list(most):
    counts = np.ones(3, np.int64)
    counts[most] = 20  # device `most` asks the last owner for 20 rows, each other one for one
    splits = np.concatenate([[0], np.cumsum(counts)])
    ids = np.concatenate([99 - np.arange(count) for count in counts])
    route = check(Geometry(100, 4, 3, "row"), [FeatureBags(ids, splits)], "all_to_all")
    assert route.shape.capacity == 32


def test_shapes_repeat_from_batch_to_batch():
    rng = np.random.default_rng(0)
    for placement, exchange in CASES:
        shapes = set()
        for _ in range(40):
            counts = rng.integers(0, 40, 200)
            splits = np.concatenate([[0], np.cumsum(counts)])
            bags = FeatureBags(rng.integers(0, 10**6, splits[-1]), splits)
            shapes.add(route_lookup(Geometry(10**6, 8, 4, placement), [bags], exchange).shape)
        assert len(shapes) <= 3


def test_more_occurrences_than_int32_can_number_are_refused():
    # One id, seen through a stride of 0, stands for two thousand million.
    n = 2**31 - 1
    ids = np.broadcast_to(np.int32(0), n)
    bags = FeatureBags(ids, np.array([0, 0, n]))
    message = f"a batch must name at most {7 << 28} rows of one table on a device, got {n}"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        route_lookup(Geometry(10, 4, 1, "row"), [bags], "local")
