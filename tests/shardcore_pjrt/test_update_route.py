"""Sums of gradients by the route's arrays, in NumPy, as the devices do them, against plain sums."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.spread import spread_bags
from shardcore_pjrt.routing.update_route import route_update

from shardcore import reference
from shardcore.backend.messages import FeatureBags
from shardcore.errors import ShardcoreValueError

CASES = [("row", "gather"), ("row", "all_to_all"), ("column", "columns"), ("replicated", "local")]
DIMS = [3, 16, 64, 96, 128, 200]


def feature(rng, rows, bags, lengths="ragged", weighted=False, divided=False, per_sample=1):
    """Small integers, and divisors that are powers of two, so that no sum is rounded."""
    counts = np.full(bags, lengths) if lengths != "ragged" else rng.integers(0, 5, bags)
    splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    n = int(splits[-1])
    return FeatureBags(
        rng.integers(0, rows, n).astype(rng.choice([np.int32, np.int64])),
        splits,
        rng.integers(-3, 4, n).astype(np.float32) if weighted else None,
        rng.choice([0, 0.5, 1, 2, 8], bags).astype(np.float32) if divided else None,
        per_sample,
    )


def gains(bags):
    """The factor of each occurrence, straight from the definition."""
    weights = np.ones(bags.ids.size, np.float32) if bags.weights is None else bags.weights
    return reference.occurrence_gains(bags.row_splits, weights, bags.divisors)


def plain(num_rows, features, gradients):
    """Row sums, and each row's factors of (feature, bag) in the order they occur."""
    sums = np.zeros((num_rows, gradients[0].shape[1] if gradients else 1), np.float32)
    named = [[] for _ in range(num_rows)]
    for f, (bags, gradient) in enumerate(zip(features, gradients, strict=True)):
        gain, bag_of = gains(bags), reference.row_ids_from_row_splits(bags.row_splits)
        for i, (row, bag) in enumerate(zip(bags.ids, bag_of, strict=True)):
            sums[row] += gain[i] * gradient[bag]
            named[row].append((f, int(bag), float(gain[i])))
    return sums, named


def gradients_of(features, dim, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 9, (bags.num_bags, dim)).astype(np.float32) for bags in features]


def padded(devices, gradient, bags, own, padding=np.nan):
    """A feature's gradients as the devices hold them; what pads them is no number."""
    out = np.full((devices, bags, *gradient.shape[1:]), padding, gradient.dtype)
    for device, line in enumerate(out):
        share = gradient[device * own : (device + 1) * own]
        line[: len(share)] = share
    return out


def held_gradients(geometry, route, features, gradients):
    """What `source` points into, per line of the arrays, scaled."""
    devices, shape = geometry.devices, route.shape
    owned = spread_bags(features, devices).own
    cut = [padded(devices, *each) for each in zip(gradients, shape.bags, owned, strict=True)]
    if shape.exchange == "columns":
        flat = [each.reshape(-1, *each.shape[2:]) for each in cut]
        local = np.concatenate([np.empty((0, *gradients[0].shape[1:])), *flat])[None]
    else:
        local = np.concatenate([np.empty((devices, 0, *gradients[0].shape[1:])), *cut], axis=1)
    if shape.scaled:
        local = local * route.arrays["scale"].reshape(*local.shape[:2], *[1] * (local.ndim - 2))
    if shape.exchange == "all_to_all":
        return list(local)
    every = local.reshape(-1, *local.shape[2:])
    return [every] * route.arrays["slot"].shape[0]


def taken(rows, at):
    """Rows by number; the one past the end, and no other, reads as zeros."""
    assert at.min(initial=0) >= 0
    assert at.max(initial=0) <= len(rows)
    return np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)])[at]


def summed(rows, at, size):
    """Sums per place; the one past the end, and no other, is dropped."""
    assert at.min(initial=0) >= 0
    assert at.max(initial=0) <= size
    out = np.zeros((size + 1, rows.shape[1]), np.float32)
    np.add.at(out, at, rows)
    return out[:size]


def row_ids(geometry, route, owner):
    """The global row of each place that an owner sums into; -1: none."""
    arrays = route.arrays
    if not route.shape.every_row:
        return arrays["row_ids"][owner]
    local = np.arange(geometry.local_rows)
    ids = arrays["first_row"][owner] + local * arrays["row_stride"]
    return np.where(local < arrays["rows_here"][owner], ids, -1)


def contributions(geometry, route, features, gradients):
    """What is added at each slot, per line of the arrays."""
    out = []
    for line, held in enumerate(held_gradients(geometry, route, features, gradients)):
        rows = taken(held, route.arrays["source"][line])
        if route.shape.gained:
            rows = rows * route.arrays["gain"][line][:, None]
        out.append(rows)
    return out


def sums_by_row(geometry, route, features, gradients, dim):
    """The gradient of every row of the table, and how often the update touches the row."""
    shape, arrays, devices = route.shape, route.arrays, geometry.devices
    size = geometry.local_rows if shape.every_row else shape.lines * geometry.rows_per_line
    rows = contributions(geometry, route, features, gradients)
    if shape.exchange == "all_to_all":
        sent = [
            summed(*each, devices * shape.capacity)
            for each in zip(rows, arrays["slot"], strict=True)
        ]
        sent = np.stack(sent).reshape(devices, devices, shape.capacity, dim)
        per_owner = [
            summed(sent[:, owner].reshape(-1, dim), arrays["received"][owner], size)
            for owner in range(devices)
        ]
    else:
        per_owner = [summed(*each, size) for each in zip(rows, arrays["slot"], strict=True)]
    out = np.zeros((geometry.num_rows, dim), np.float32)
    touched = np.zeros(geometry.num_rows, int)
    for owner, sums in enumerate(per_owner):
        ids = row_ids(geometry, route, owner)
        assert not sums[ids < 0].any()
        out[ids[ids >= 0]] = sums[ids >= 0]
        np.add.at(touched, ids[ids >= 0], 1)
    return out, touched


def with_sent_lists(geometry, route):
    """The route of "all_to_all" with the lists that devices make of it, as the others have them."""
    shape, arrays, devices = route.shape, dict(route.arrays), geometry.devices
    order = np.argsort(arrays["place"], axis=1, kind="stable")
    places = np.arange(shape.occurrences)
    if shape.pooling:
        bags = places[None] // shape.pooling
    else:
        bags = np.array([np.searchsorted(end, places, side="right") for end in arrays["end"]])
    bags = np.where(arrays["place"] < devices * shape.capacity, bags, -1)
    bags[bags < 0] = sum(shape.bags)
    arrays["slot"] = np.take_along_axis(arrays["place"], order, 1)
    arrays["source"] = np.take_along_axis(bags, order, 1).astype(np.int32)
    if shape.gained:
        arrays["gain"] = np.take_along_axis(arrays["gain"], order, 1)
    fetch = arrays["fetch"].reshape(devices, -1)
    k = geometry.rows_per_line
    if shape.every_row:
        arrays["received"] = fetch
        return dataclasses.replace(route, arrays=arrays)
    arrays["received"] = np.full(fetch.shape, shape.lines * k, np.int32)
    arrays["lines"] = np.empty((devices, shape.lines), np.int32)
    arrays["row_ids"] = np.full((devices, shape.lines * k), -1, np.int32)
    for owner, rows in enumerate(fetch):
        true = rows < geometry.local_rows
        lines, at = np.unique(rows[true] // k, return_inverse=True)
        assert lines.size <= shape.lines
        sub_rows = at * k + rows[true] % k
        arrays["lines"][owner] = geometry.lines + np.arange(shape.lines) - lines.size
        arrays["lines"][owner, : lines.size] = lines
        arrays["received"][owner, true] = sub_rows
        stride, first = arrays["row_stride"], arrays["first_row"][owner]
        arrays["row_ids"][owner, sub_rows] = first + rows[true] * stride
    return dataclasses.replace(route, arrays=arrays)


def check(geometry, features, exchange, accumulate=True, lazy=True):
    route = route_update(geometry, features, exchange, accumulate, lazy)
    check_shapes(geometry, route)
    if exchange == "all_to_all":
        route = with_sent_lists(geometry, route)
    gradients = gradients_of(features, geometry.dim)
    want, named = plain(geometry.num_rows, features, gradients)
    times = np.array([len(each) for each in named], int)
    assert route.unique_rows == np.count_nonzero(times)
    if features:
        sums, touched = sums_by_row(geometry, route, features, gradients, geometry.dim)
        np.testing.assert_array_equal(sums, want)
        np.testing.assert_array_equal(touched, times > 0 if lazy else 1)
    assert (np.diff(route.arrays["slot"], axis=1) >= 0).all()
    if lazy:
        check_lines(geometry, route)
    if not accumulate:
        check_waves(geometry, route, times)
    if exchange != "all_to_all":
        check_order(geometry, route, features, named)
    return route


def check_shapes(geometry, route):
    shape, devices = route.shape, geometry.devices
    owners = 1 if shape.exchange in ("columns", "local") else devices
    sub_rows = geometry.local_rows if shape.every_row else shape.lines * geometry.rows_per_line
    want = {"source": (owners, shape.occurrences), "slot": (owners, shape.occurrences)}
    if shape.gained:
        want["gain"] = (owners, shape.occurrences)
    if shape.scaled:
        total = sum(shape.bags)
        want["scale"] = (1, devices * total) if shape.exchange == "columns" else (devices, total)
    if shape.exchange == "all_to_all":
        del want["source"], want["slot"]
        want["place"] = (owners, shape.occurrences)
        if not shape.pooling:
            want["end"] = (owners, sum(shape.bags))
        want["fetch"] = (owners, devices, shape.capacity)
        assert shape.capacity == capacity(shape.capacity)
    else:
        assert shape.capacity == shape.pooling == 0
    assert not shape.every_row or shape.lines == 0
    if shape.every_row or shape.exchange == "all_to_all":
        want |= {"rows_here": (owners,), "first_row": (owners,), "row_stride": ()}
    else:
        want |= {"lines": (owners, shape.lines), "row_ids": (owners, sub_rows)}
    if not shape.accumulate:
        want |= {"first": (owners, sub_rows), "count": (owners, sub_rows), "waves": ()}
    assert {name: array.shape for name, array in route.arrays.items()} == want
    for name, array in route.arrays.items():
        assert array.dtype == (np.float32 if name in ("gain", "scale") else np.int32)
    pooled = sum(shape.bags) * shape.pooling
    assert shape.occurrences == (pooled or capacity(shape.occurrences))
    assert shape.every_row or shape.lines in (capacity(shape.lines), geometry.lines)


def check_lines(geometry, route):
    """Lines are distinct and sorted, those past the end too; sub-rows are where their rows are."""
    k = geometry.rows_per_line
    for owner, lines in enumerate(route.arrays["lines"]):
        assert (np.diff(lines.astype(np.int64)) > 0).all()
        assert lines[0] >= 0
        ids = route.arrays["row_ids"][owner].reshape(-1, k)
        np.testing.assert_array_equal((ids >= 0).any(axis=1), lines < geometry.lines)
        at, place = np.nonzero(ids >= 0)
        shard, local = geometry.layout.locate(ids[at, place])
        np.testing.assert_array_equal(shard, owner)
        np.testing.assert_array_equal(local, lines[at].astype(np.int64) * k + place)


def check_waves(geometry, route, times):
    arrays = route.arrays
    assert arrays["waves"] == times.max(initial=0)
    for owner, (first, count) in enumerate(zip(arrays["first"], arrays["count"], strict=True)):
        ids = row_ids(geometry, route, owner)
        np.testing.assert_array_equal(count, np.where(ids >= 0, times[ids], 0))
        for place in np.flatnonzero(count):
            own = np.flatnonzero(arrays["slot"][owner] == place)
            np.testing.assert_array_equal(own, first[place] + np.arange(count[place]))


def check_order(geometry, route, features, named):
    """Each row's occurrences come feature by feature, bag by bag, and with their own factors."""
    labels = [
        np.stack([np.full(bags.num_bags, f), np.arange(bags.num_bags)], axis=1).astype(np.int64)
        for f, bags in enumerate(features)
    ]
    if not features:
        return
    bags_of = [
        padded(geometry.devices, label, n, own, -1)
        for label, n, own in zip(
            labels,
            route.shape.bags,
            spread_bags(features, geometry.devices).own,
            strict=True,
        )
    ]
    if route.shape.exchange == "columns":
        every = np.concatenate([each.reshape(-1, 2) for each in bags_of])
    else:
        every = np.concatenate(bags_of, axis=1).reshape(-1, 2)
    scale = route.arrays["scale"].ravel() if route.shape.scaled else np.ones(len(every))
    found = [[] for _ in range(geometry.num_rows)]
    for owner, (slot, source) in enumerate(
        zip(route.arrays["slot"], route.arrays["source"], strict=True)
    ):
        ids = row_ids(geometry, route, owner)
        gain = route.arrays["gain"][owner] if route.shape.gained else np.ones(slot.size)
        np.testing.assert_array_equal(slot == ids.size, source == len(every))
        for i in np.flatnonzero(slot < ids.size):
            f, bag = every[source[i]]
            factor = float(np.float32(gain[i]) * np.float32(scale[source[i]]))
            found[ids[slot[i]]].append((int(f), int(bag), factor))
    assert found == named


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
def test_every_exchange_gives_the_sums(placement, exchange, dim, lanes):
    geometry = Geometry(70, dim, 4, placement, lanes)
    for lazy in (True, False):
        check(geometry, batch(dim, 70), exchange, lazy=lazy)


@pytest.mark.parametrize("layout", ["div", "mod"])
@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize(("placement", "exchange"), CASES)
def test_any_number_of_devices(placement, exchange, devices, layout):
    for rows in (1, 5, 50):  # fewer rows than devices among them
        geometry = Geometry(rows, 3, devices, placement, 16, layout)
        check(geometry, batch(rows, rows, weighted=devices % 2 == 0), exchange)


@pytest.mark.parametrize("layout", ["div", "mod"])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(
    ("placement", "devices", "exchange"),
    [
        ("row", 3, "gather"),
        ("row", 1, "local"),
        ("table", 1, "local"),
        ("replicated", 3, "local"),
        ("column", 3, "columns"),
    ],
)
def test_gradients_applied_one_after_the_other(placement, devices, exchange, lazy, layout):
    geometry = Geometry(20, 5, devices, placement, 16, layout)
    route = check(geometry, batch(1, 20), exchange, accumulate=False, lazy=lazy)
    assert route.arrays["waves"] > 3


@pytest.mark.parametrize(("placement", "exchange"), CASES)
@pytest.mark.parametrize("lazy", [True, False])
def test_batches_without_ids_or_bags_or_features(placement, exchange, lazy):
    geometry, rng = Geometry(9, 4, 3, placement, 8), np.random.default_rng(0)
    no_bags = feature(rng, 9, 0, weighted=True, divided=True)
    empty_bags = feature(rng, 9, 5, lengths=0)
    for features in ([], [no_bags], [empty_bags], [no_bags, empty_bags]):
        route = check(geometry, features, exchange, lazy=lazy)
        assert route.unique_rows == 0
        check(geometry, features, "gather" if placement == "row" else exchange, False, lazy)
    check(geometry, [no_bags, feature(rng, 9, 4, lengths=2), empty_bags], exchange, lazy=lazy)


def test_a_row_keeps_the_order_of_its_occurrences_over_devices():
    # Bags 0-1 are device 0's, 2-3 device 1's; row 5 is named by all, twice by bag 2.
    one = FeatureBags(np.array([5, 5, 5, 5, 5]), np.array([0, 1, 2, 4, 5]))
    other = FeatureBags(np.array([5, 1]), np.array([0, 1, 2]))
    route = route_update(Geometry(6, 2, 2, "row"), [one, other], "gather", True, True)
    # T = 3: local bags 0, 1 of the first feature, 2 of the other; device 1's from 3 on.
    np.testing.assert_array_equal(route.arrays["source"][0, :2], [5, 6])
    np.testing.assert_array_equal(route.arrays["source"][1, :7], [0, 1, 3, 3, 4, 2, 6])


def test_no_more_lines_than_the_shard_has():
    rng = np.random.default_rng(0)
    route = check(Geometry(20, 2, 2, "row"), [feature(rng, 20, 200)], "gather")
    assert route.shape.lines == 10


def test_an_update_shares_the_lists_of_its_lookup():
    geometry, features = Geometry(70, 16, 4, "row", 128), batch(1, 70)
    looked_up = route_lookup(geometry, features, "all_to_all")
    route = route_update(geometry, features, "all_to_all", True, True, looked_up=looked_up)
    alone = route_update(geometry, features, "all_to_all", True, True)
    assert (route.shape, route.unique_rows) == (alone.shape, alone.unique_rows)
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(route.arrays[name], array)
    for name in ("place", "end", "fetch"):
        assert route.arrays[name] is looked_up.arrays[name]


def test_lists_of_another_lookup_are_refused():
    geometry, features = Geometry(70, 16, 4, "row"), batch(1, 70)
    rule = "looked_up must be the lookup of the features given by 'all_to_all', got that of "
    for of, exchange, told in [
        (features[:2], "all_to_all", "others"),
        (features, "gather", "'gather'"),
    ]:
        looked_up = route_lookup(geometry, of, exchange)
        with pytest.raises(ShardcoreValueError, match=f"^{re.escape(rule + told)}$"):
            route_update(geometry, features, "all_to_all", True, True, looked_up=looked_up)


@st.composite
def routed(draw):
    placement, exchange = draw(st.sampled_from(CASES))
    rows, devices = draw(st.integers(1, 40)), draw(st.integers(1, 8))
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
    accumulate = exchange == "all_to_all" or draw(st.booleans())
    geometry = Geometry(rows, 3, devices, placement, lanes, layout)
    return geometry, features, exchange, accumulate, draw(st.booleans())


@settings(max_examples=200, deadline=None)
@given(routed())
def test_every_gradient_arrives_once_in_order(case):
    check(*case)


def test_shapes_repeat_from_batch_to_batch():
    rng = np.random.default_rng(0)
    for placement, exchange in CASES:
        shapes = set()
        for _ in range(40):
            bags = feature(rng, 10**6, 2000)
            geometry = Geometry(10**6, 8, 4, placement)
            shapes.add(route_update(geometry, [bags], exchange, True, True).shape)
        assert len(shapes) <= 4
