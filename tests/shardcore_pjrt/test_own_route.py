"""Routes of processes that have their own samples: together they name what the whole batch does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.own_route import (
    agreed_bags,
    counts_of_bags,
    own_rows,
    route_own,
    route_own_update,
)
from shardcore_pjrt.routing.whole_bags import packed, unpacked, whole_bags

from shardcore.backend import FeatureBags


@st.composite
def batches(draw):
    """Return a geometry, the places of the devices of each process, and the features of each."""
    devices = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    at = draw(st.permutations(range(sum(devices))))
    ends = np.cumsum(devices)
    places = [sorted(at[end - own : end]) for end, own in zip(ends, devices, strict=True)]
    rows = draw(st.integers(1, 40))
    layout, lanes = draw(st.sampled_from(["div", "mod"])), draw(st.sampled_from([1, 16]))
    geometry = Geometry(rows, 4, sum(devices), "row", lanes, layout)
    per_sample = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    even = draw(st.booleans())
    weighted, divided = rng.random((2, len(devices), len(per_sample))) < 0.5

    def feature(process, f):
        bags = int(rng.integers(0, 7)) * per_sample[f]
        lengths = np.full(bags, 3) if even else rng.integers(0, 6, bags)
        splits = np.append(0, np.cumsum(lengths))
        ids = rng.integers(0, rows, splits[-1], dtype=rng.choice([np.int32, np.int64]))
        weights = rng.random(ids.size, np.float32) if weighted[process, f] else None
        divisors = rng.integers(0, 4, bags).astype(np.float32) if divided[process, f] else None
        return FeatureBags(ids, splits, weights, divisors, per_sample[f])

    features = [
        [feature(process, f) for f in range(len(per_sample))] for process in range(len(devices))
    ]
    return geometry, places, features


def occurrences(bags, bag):
    """Return the (id, weight) of a bag."""
    own = slice(bags.row_splits[bag], bags.row_splits[bag + 1])
    weights = np.ones(bags.ids.size, np.float32) if bags.weights is None else bags.weights
    return list(zip(bags.ids[own].tolist(), weights[own].tolist(), strict=True))


def divisor(bags, bag):
    return 1.0 if bags.divisors is None else float(bags.divisors[bag])


@given(batches())
def test_each_process_routes_its_own_bags(drawn):
    geometry, places, features = drawn
    sizes = [len(one) for one in places]
    counts = np.array(
        [counts_of_bags(own, size) for own, size in zip(features, sizes, strict=True)]
    )
    agreed = agreed_bags(counts)
    assert agreed.ids == sum(bags.ids.size for own in features for bags in own)
    rows = [
        own_rows(geometry, own, size, agreed) for own, size in zip(features, sizes, strict=True)
    ]
    of_rows = np.array([one.counts for one in rows])
    routes = [route_own(geometry, one, of_rows) for one in rows]
    updates = [route_own_update(route, True, True) for route in routes]
    (shape,) = {route.shape for route in routes}  # all processes run one program
    (update_shape,) = {update.shape for update in updates}
    assert set(routes[0].arrays) == set(routes[-1].arrays)
    touched = [set() for _ in range(geometry.devices)]
    starts = np.cumsum([0, *shape.bags])
    for own, size, route, update in zip(features, sizes, routes, updates, strict=True):
        assert all(
            len(array) == size for array in [*route.arrays.values(), *update.arrays.values()]
        )
        for device in range(size):
            place = route.arrays["place"][device]
            owner, at = np.divmod(place, shape.capacity)
            used = owner < geometry.devices
            asked = route.arrays["asked"][device]
            assert asked.shape == (geometry.devices, shape.capacity)
            local = asked[np.minimum(owner, geometry.devices - 1), at]
            bag_of = (
                np.arange(place.size) // shape.pooling
                if shape.pooling
                else np.searchsorted(route.arrays["end"][device], np.arange(place.size), "right")
            )
            weight = route.arrays["weight"][device] if shape.weighted else np.ones(place.size)
            gain = update.arrays["gain"][device] if update_shape.gained else np.ones(place.size)
            scale = update.arrays["scale"][device] if update_shape.scaled else np.ones(starts[-1])
            for o, row in zip(owner[used], local[used], strict=True):
                touched[o].add(int(row) // geometry.rows_per_line)
            named = [
                int(geometry.layout.global_of(int(o), np.array([row]))[0])
                for o, row in zip(owner[used], local[used], strict=True)
            ]
            found = {}
            for bag, row, w, g in zip(
                bag_of[used].tolist(), named, weight[used], gain[used], strict=True
            ):
                found.setdefault(bag, []).append((row, float(w), float(g * scale[bag])))
            for f, bags in enumerate(own):
                for number in range(shape.bags[f]):
                    bag = device * agreed.own[f] + number
                    real = number < agreed.own[f] and bag < bags.num_bags
                    seen = found.pop(int(starts[f]) + number, [])
                    if shape.divided and real:
                        given = route.arrays["divisor"][device, starts[f] + number]
                        assert given == divisor(bags, bag)
                    wanted = occurrences(bags, bag) if real else []
                    assert [one[:2] for one in seen] == wanted
                    for (_, _, gained), (_, weight_given) in zip(seen, wanted, strict=True):
                        over = divisor(bags, bag)
                        assert gained == pytest.approx(weight_given / over if over else 0.0)
            assert not found  # no bag besides
    assert max(map(len, touched)) <= routes[0].lines <= geometry.lines


@given(batches())
def test_bags_of_all_processes_lie_on_their_devices(drawn):
    _, places, features = drawn
    given_words = [packed(own) for own in features]
    unread = [unpacked(words) for words in given_words]
    devices = sum(map(len, places))
    for f in range(len(features[0])):
        bags = [own[f] for own in features]
        whole = whole_bags([next(one) for one in unread], places, bags[0].bags_per_sample)
        own, rest = divmod(whole.num_bags, devices)
        assert rest == own % whole.bags_per_sample == 0
        needed = [
            -(-one.num_bags // (one.bags_per_sample * len(at))) * one.bags_per_sample
            for one, at in zip(bags, places, strict=True)
        ]
        assert own == max(needed)
        for one, at in zip(bags, places, strict=True):
            for k, device in enumerate(at):
                for number in range(own):
                    bag = k * own + number
                    real = bag < one.num_bags
                    there = device * own + number
                    assert occurrences(whole, there) == (occurrences(one, bag) if real else [])
                    if real:
                        assert divisor(whole, there) == divisor(one, bag)
    assert all(next(one, None) is None for one in unread)


def test_an_owner_has_room_for_the_lines_of_all_processes():
    geometry = Geometry(1000, 4, 2, "row")
    splits = np.array([0, 100])
    features = [[FeatureBags(np.arange(first, 200, 2), splits)] for first in (0, 1)]
    agreed = agreed_bags(np.array([counts_of_bags(own, 1) for own in features]))
    rows = [own_rows(geometry, own, 1, agreed) for own in features]
    counts = np.array([one.counts for one in rows])
    assert counts.tolist() == [[100, 100, 100]] * 2
    assert [route_own(geometry, one, counts).lines for one in rows] == [256, 256]
