"""Batches of many sizes: few programs, and nothing of what fills bags up in any result."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from shardcore_pjrt.batch_lists import BatchLists
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.lookup_program import lookup_program
from shardcore_pjrt.programs.update_program import update_program
from shardcore_pjrt.routing.capacity import Rooms
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.update_route import route_update

import shardcore as sc
from shardcore.backend import FeatureBags
from shardcore.errors import UpdateRefusedError

SIZES = np.random.default_rng(1).permutation(np.arange(400, 513))[:100]
ROUTES = [(1, "local"), (2, "gather"), (2, "all_to_all"), (8, "gather"), (8, "all_to_all")]


def bags_of(rng, size, lengths, rows, skew):
    counts = {
        "one": np.ones(size, int),
        "fixed": np.full(size, 20),
        "nearly": rng.integers(16, 25, size),
        "ragged": rng.integers(0, 40, size),
    }[lengths]
    ids = rng.zipf(1.2, counts.sum()) % rows if skew else rng.integers(0, rows, counts.sum())
    return FeatureBags(ids, np.concatenate([[0], np.cumsum(counts)]))


@pytest.mark.parametrize(("devices", "exchange"), ROUTES)
@pytest.mark.parametrize("lengths", ["one", "fixed", "nearly", "ragged"])
@pytest.mark.parametrize("skew", [False, True])
@pytest.mark.parametrize("order", ["any", "growing"])
def test_a_hundred_sizes_need_four_programs_of_each_kind(devices, exchange, lengths, skew, order):
    rng = np.random.default_rng(0)
    geometry = Geometry(20_000, 8, devices, "row")
    rooms = {"lookup": Rooms(), "update": Rooms()}
    lookups, updates = set(), set()
    for size in SIZES if order == "any" else np.sort(SIZES):
        features = [bags_of(rng, size, lengths, 20_000, skew) for _ in range(2)]
        lookups.add(route_lookup(geometry, features, exchange, rooms["lookup"]).shape)
        route = route_update(geometry, features, exchange, True, True, rooms["update"])
        updates.add(route.shape)
    assert 1 < len(lookups) <= 4
    assert 1 < len(updates) <= 4


def made_by(engine, make):
    return sum(key[0] is make for key in engine._backend._programs._used)


def engine_of(backend, options):
    table = sc.TableConfig(500, 4, combiner="mean", name="t")
    features = {"bags": sc.FeatureConfig(table), "seq": sc.FeatureConfig(table, 2)}
    return sc.ShardedEmbedding(features, sc.optimizers.Adagrad(0.1), backend, options)


def same(found, expected):
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(np.asarray(found[name]), array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_sizes_give_what_one_store_gives_and_share_programs(devices):
    rng = np.random.default_rng(devices)
    with (
        engine_of("pjrt", {"platform": "cpu", "devices": devices}) as ours,
        engine_of("cpu", None) as theirs,
    ):
        for turn in range(24):
            size = int(rng.integers(400, 513))
            lists = [rng.integers(0, 500, n).tolist() for n in rng.integers(0, 7, size)]
            batch = {"bags": lists, "seq": lists}
            if turn % 4 == 3:  # evaluation
                same(ours(batch), theirs(batch))
                continue
            ours.enqueue(batch)
            theirs.enqueue(batch)
            activations, expected = ours.dequeue(), theirs.dequeue()
            same(activations, expected)
            gradients = {k: rng.standard_normal(v.shape, np.float32) for k, v in expected.items()}
            given = dict(gradients)
            if turn % 2:
                given["bags"] = jax.device_put(given["bags"], activations["bags"].sharding)
            ours.apply_gradients(given)
            theirs.apply_gradients(gradients)
        np.testing.assert_allclose(
            np.asarray(ours.tables["t"]), np.asarray(theirs.tables["t"]), rtol=1e-4, atol=1e-5
        )
        assert ours.metrics()["unique_rows"] == theirs.metrics()["unique_rows"]
        assert made_by(ours, lookup_program) <= 4
        assert made_by(ours, update_program) <= 4


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_a_value_that_is_not_finite_is_found_in_its_bag(devices):
    """Among bags that the devices fill up; the rows stay, and the next step counts."""
    rng = np.random.default_rng(devices)
    ids = rng.integers(0, 500, (21, 3))
    with engine_of("pjrt", {"platform": "cpu", "devices": devices}) as engine:
        engine.enqueue({"bags": ids, "seq": ids})
        activations = engine.dequeue()
        rows = np.asarray(engine.tables["t"])
        spoilt = np.ones((21, 4), np.float32)
        spoilt[17, 2] = np.inf
        gradients = {"bags": jax.device_put(spoilt, activations["bags"].sharding), "seq": None}
        engine.apply_gradients(gradients)
        message = (
            "step 1 was refused: gradients['bags'] must be finite in float32: "
            "gradients['bags'][17, 2] = inf"
        )
        with pytest.raises(UpdateRefusedError, match=f"^{re.escape(message)}$"):
            engine.metrics()
        np.testing.assert_array_equal(engine.tables["t"], rows)
        assert engine.step == 0


def test_several_processes_take_no_class_from_before():
    """Whatever one of them remembers of a call that failed in another."""
    taken = Rooms()
    for several, rooms in [(False, taken), (True, None)]:
        lists = BatchLists(Programs(), "cpu", None, several)
        assert lists._rooms(taken) is rooms
