"""What devices make of the lists of a lookup for the update by "all_to_all", number by number."""

import jax
import numpy as np
import pytest
import shardcore_pjrt.batch_lists
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.sent_lists import sent_lists
from shardcore_pjrt.routing.spread import spread_bags
from shardcore_pjrt.routing.update_route import route_update

import shardcore as sc
from shardcore.backend.messages import FeatureBags

DEVICES = 3


def features(rng, rows, lengths, weighted):
    out = []
    for bags in (14, 0, 7):
        counts = rng.integers(0, 5, bags) if lengths == "ragged" else np.full(bags, lengths)
        splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        n = int(splits[-1])
        weights = rng.random(n).astype(np.float32) + 1 if weighted else None
        out.append(FeatureBags(rng.integers(0, rows, n), splits, weights))
    return out


@pytest.mark.parametrize("lengths", ["ragged", 0, 3])
@pytest.mark.parametrize(("lanes", "dim"), [(1, 4), (8, 3), (128, 128)])
@pytest.mark.parametrize("layout", ["div", "mod", (30, 0, 10)])
def test_lists_are_those_of_the_definition(lengths, lanes, dim, layout):
    rng = np.random.default_rng(len(str(layout)) + dim)
    geometry = Geometry(40, dim, DEVICES, "row", lanes, layout)
    given = features(rng, 40, lengths, weighted=dim == 3)
    spread = spread_bags(given, DEVICES)
    route = route_update(geometry, given, "all_to_all", True, True)
    shape, k, room = route.shape, geometry.rows_per_line, route.shape.capacity
    make = jax.jit(lambda mine: sent_lists(mine, geometry, shape))
    for device in range(DEVICES):
        mine = {name: a[device] if a.ndim else a for name, a in route.arrays.items()}
        lists = {name: np.asarray(a) for name, a in make(mine).items()}
        # As a device that asks: its occurrences by owner and row, those of a row in their order.
        shard, local = geometry.layout.locate(spread.ids(device))
        order = np.lexsort((local, shard))
        named = list(zip(shard[order].tolist(), local[order].tolist(), strict=True))
        asked = {o: np.unique(local[shard == o]).tolist() for o in range(DEVICES)}
        slots = [owner * room + asked[owner].index(row) for owner, row in named]
        np.testing.assert_array_equal(lists["slot"][: len(slots)], slots)
        assert (lists["slot"][len(slots) :] == DEVICES * room).all()
        bags = np.repeat(np.arange(spread.total), spread.lengths(device))[order]
        np.testing.assert_array_equal(lists["source"][: len(slots)], bags)
        if dim == 3:
            factors = spread.weights(device, [bags.weights for bags in given])[order]
            np.testing.assert_array_equal(lists["gain"][: len(slots)], factors)
        # As an owner: the lines of all rows that it was asked for.
        fetch = route.arrays["fetch"][device].reshape(-1)
        true = fetch < geometry.local_rows
        lines = np.unique(fetch[true] // k)
        np.testing.assert_array_equal(lists["lines"][: lines.size], lines)
        rest = np.arange(shape.lines - lines.size)
        np.testing.assert_array_equal(lists["lines"][lines.size :], geometry.lines + rest)
        want = np.searchsorted(lines, fetch // k) * k + fetch % k
        np.testing.assert_array_equal(lists["received"], np.where(true, want, shape.lines * k))
        row_ids = np.full(shape.lines * k, -1)
        row_ids[want[true]] = geometry.layout.global_of(device, fetch[true].astype(np.int64))
        np.testing.assert_array_equal(lists["row_ids"], row_ids)


def test_rows_receive_by_their_own_number_where_all_are_updated():
    rng = np.random.default_rng(0)
    geometry = Geometry(40, 4, DEVICES, "row")
    route = route_update(geometry, features(rng, 40, 2, False), "all_to_all", True, False)
    mine = {name: a[1] if a.ndim else a for name, a in route.arrays.items()}
    lists = sent_lists(mine, geometry, route.shape)
    np.testing.assert_array_equal(lists["received"], route.arrays["fetch"][1].reshape(-1))
    assert sorted(lists) == ["received", "slot", "source"]


@pytest.mark.parametrize("weighted", [False, True])
def test_an_update_is_sent_nothing_that_its_lookup_was_sent(monkeypatch, platform, weighted):
    if len(jax.devices(platform)) < 4:
        pytest.skip("needs 4 devices")
    sent = []
    put = shardcore_pjrt.batch_lists.put

    def watched(arrays, shardings):
        sent.append(sorted(arrays))
        return put(arrays, shardings)

    table = sc.TableConfig(100, 4, combiner="sum", name="items", initializer=np.ones((100, 4)))
    features = {name: sc.FeatureConfig(table, name=name) for name in ("a", "b")}
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, 100, (8, 3)) for name in features}
    weights = {name: rng.random((8, 3), np.float32) for name in features} if weighted else None
    gradients = {name: rng.random((8, 4), np.float32) for name in features}
    rows = []
    for backend, options in [
        ("cpu", {}),
        ("pjrt", {"platform": platform, "devices": 4, "exchange": "all_to_all"}),
    ]:
        with sc.ShardedEmbedding(features, sc.optimizers.SGD(0.5), backend, options) as engine:
            engine.build()
            monkeypatch.setattr(shardcore_pjrt.batch_lists, "put", watched)
            for given in (gradients, {**gradients, "a": None}):
                engine.enqueue(ids, weights)
                engine.dequeue()
                engine.apply_gradients(given)
            rows.append(engine.tables["items"][:])
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-5, atol=1e-6)
    described = ["first_row", "row_stride", "rows_here"]
    of_update = sorted([*described, "gain"] if weighted else described)
    of_lookup = ["fetch", "place", *(["weight"] if weighted else [])]
    lists = [names for names in sent if set(names) & {*of_update, *of_lookup}]
    alone = sorted([*of_update, "fetch", "place"])
    assert lists == [of_lookup, of_update, of_lookup, of_update, alone]
