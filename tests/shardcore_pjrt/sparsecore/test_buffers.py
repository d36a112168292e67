"""The buffers of a batch: what they say, and that jax-tpu-embedding's preprocessing says the same.

That preprocessing is compiled code of the package, which runs without a TPU.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_pjrt.routing.capacity import quarter_steps
from shardcore_pjrt.sparsecore import limits as limits_module
from shardcore_pjrt.sparsecore.buffers import make_buffers
from shardcore_pjrt.sparsecore.limits import (
    MOST_MINIBATCHES,
    choose_limits,
    most_unique,
    preferred_unique,
)
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry
from sparsecore_meaning import partitions, preprocessed, triples_of

from shardcore.backend import FeatureBags
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout

POWERS_OF_TWO = [(1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (8, 2)]  # all that the package takes
DEVICES_AND_CORES = [*POWERS_OF_TWO, (3, 4)]


def bags_of(rng, num_rows, num_bags, most=7, weighted=False, divided=False, ids=None):
    lengths = rng.integers(0, most + 1, num_bags)
    splits = np.concatenate([[0], np.cumsum(lengths)])
    drawn = rng.integers(0, num_rows, splits[-1]) if ids is None else rng.choice(ids, splits[-1])
    return FeatureBags(
        drawn.astype(rng.choice([np.int32, np.int64])),
        splits,
        rng.uniform(0.5, 2, splits[-1]).astype(np.float32) if weighted else None,
        rng.integers(0, 4, num_bags).astype(np.float32) if divided else None,
    )


def expected_triples(geometry, features):
    """Return the triples of a batch from its bags, one id at a time, and the rows it names."""
    found, named = defaultdict(float), set()
    # A device has room for as many bags as their class says, which every core has a part of.
    rooms = [quarter_steps(-(-bags.num_bags // geometry.devices)) for _, bags in features]
    first, total = 0, sum(rooms)
    of_core = max(1, -(-total // geometry.cores))  # as many on every core: none waits for another
    for (table, bags), room in zip(features, rooms, strict=True):
        own = -(-bags.num_bags // geometry.devices)
        for bag in range(bags.num_bags):
            device, local = divmod(bag, own)
            core, number = divmod(first + local, of_core)
            for at in range(bags.row_splits[bag], bags.row_splits[bag + 1]):
                gain = 1.0 if bags.weights is None else float(bags.weights[at])
                if bags.divisors is not None:
                    gain = gain / bags.divisors[bag] if bags.divisors[bag] else 0.0
                holder, row = geometry.place(table, bags.ids[at : at + 1])
                key = device * geometry.cores + core, number, int(holder[0]), int(row[0])
                found[key] += gain
                named.add((table, int(bags.ids[at])))
        first += room
    return found, named


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    where=st.sampled_from(DEVICES_AND_CORES),
    layout=st.sampled_from(["mod", "div"]),
    dim=st.sampled_from([3, 8, 4096, 65536]),
    tables=st.integers(1, 3),
    minibatched=st.booleans(),
)
def test_buffers_say_what_the_bags_say(seed, where, layout, dim, tables, minibatched):
    rng = np.random.default_rng(seed)
    devices, cores = where
    dim = dim if minibatched else min(dim, 1024)  # with more, a batch may be refused
    sizes = rng.integers(1, 300, tables)
    geometry = StackGeometry(
        tuple(Layout.of(layout, int(size), devices) for size in sizes), cores, dim
    )
    features = [
        (table, bags_of(rng, size, int(rng.integers(0, 60)), weighted=weighted, divided=divided))
        for table, size in enumerate(sizes)
        for weighted, divided in [rng.integers(0, 2, 2).astype(bool)]
    ]
    buffers = make_buffers(geometry, features, minibatched)
    found, minibatches_of, counts = triples_of(geometry, buffers)
    expected, named = expected_triples(geometry, features)
    assert found.keys() == expected.keys()
    for key, gain in expected.items():
        assert found[key] == pytest.approx(gain, rel=1e-6)
    assert buffers.unique_rows == len(named)
    assert all(len(of_row) == 1 for of_row in minibatches_of.values())
    assert counts[:, 0].max() <= buffers.shape.limits.ids
    assert counts[:, 1].max() <= buffers.shape.limits.unique <= most_unique(geometry.columns)
    # Every number of a core is one of its bags, and every row one of its rows.
    assert all(bag < buffers.shape.bags for _, bag, *_ in found)
    assert all(row < geometry.rows_per_core for *_, row in found)


def as_they_number_rows(geometry, ids):
    core, row = geometry.place(0, ids)
    return row * geometry.all_cores + core


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("minibatched", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("devices", "cores"), POWERS_OF_TWO)
def test_buffers_are_those_of_the_package(devices, cores, weighted, minibatched, seed):
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    rng = np.random.default_rng(seed)
    geometry = StackGeometry((Layout.mod(int(rng.integers(1, 3000)), devices),), cores, 16)
    rows = geometry.layouts[0].num_rows
    bags = bags_of(rng, rows, devices * cores * 8 * 2 ** int(rng.integers(0, 4)), 9, weighted)
    ours = make_buffers(geometry, [(0, bags)], minibatched)
    assert ours.num_minibatches == 1
    numbers = as_they_number_rows(geometry, bags.ids)
    (pointers, *values), minibatches, statistics = preprocessed(
        geometry, numbers, bags.row_splits, bags.weights, ours.shape.limits, minibatched
    )
    assert minibatches == 1
    assert statistics.dropped_id_count == {"t": 0}
    assert pointers.size == ours.row_pointers.size
    pointers, used = pointers.reshape(devices, -1), cores * max(8, geometry.all_cores)
    np.testing.assert_array_equal(
        ours.row_pointers.reshape(devices, -1)[:, :used], pointers[:, :used]
    )
    # Each part of the buffer, of a device or of a core, is filled as far as its last pointer says.
    parts = devices if minibatched else devices * cores
    last = -(-pointers[:, :used].reshape(parts, -1)[:, -1] // 8) * 8
    own = [ours.embedding_ids, ours.sample_ids, ours.gains]
    for mine, theirs in zip(own, values, strict=True):
        for part, filled in enumerate(last):
            np.testing.assert_allclose(
                mine.reshape(parts, -1)[part, :filled],
                theirs.reshape(parts, -1)[part, :filled],
                rtol=1e-6,
            )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("devices", "cores"), POWERS_OF_TWO)
def test_minibatches_mean_what_those_of_the_package_mean(devices, cores, seed):
    """Which row goes into which minibatch is free, where it is the same one on every core."""
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    rng = np.random.default_rng(seed)
    geometry = StackGeometry((Layout.mod(20_000, devices),), cores, 8192)
    assert preferred_unique(geometry.columns) == 8
    bags = bags_of(rng, 20_000, devices * cores * 32, 9 * geometry.all_cores // 2, True)
    ours = make_buffers(geometry, [(0, bags)])
    assert ours.num_minibatches > 1
    numbers = as_they_number_rows(geometry, bags.ids)
    (pointers, ids, samples, gains), minibatches, _ = preprocessed(
        geometry, numbers, bags.row_splits, bags.weights, ours.shape.limits
    )
    assert minibatches > 1
    found, _, _ = triples_of(geometry, ours)
    room, theirs = ids.size // devices, {}
    for worker, _, holder, first, end in partitions(geometry, pointers, minibatches, room):
        for at in range(first, end):
            theirs[worker, int(samples[at]), holder, int(ids[at])] = gains[at]
    assert found.keys() == theirs.keys()
    for key, gain in theirs.items():
        assert found[key] == pytest.approx(gain, rel=1e-6)


def test_an_empty_batch_has_pointers_of_0():
    geometry = StackGeometry((Layout.mod(50, 2),), cores=2, dim=3)
    none = FeatureBags(np.empty(0, np.int64), np.zeros(1, np.int64))
    for features in ([], [(0, none)]):
        buffers = make_buffers(geometry, features)
        assert not buffers.row_pointers.any()
        assert buffers.unique_rows == 0
        assert (buffers.embedding_ids == 2**31 - 1).all()


def test_batches_of_about_a_size_have_one_shape():
    geometry = StackGeometry((Layout.mod(5000, 2),), cores=2, dim=16)
    shapes = set()
    for seed, bags in enumerate(range(400, 513)):
        drawn = bags_of(np.random.default_rng(seed), 5000, bags)
        shapes.add(make_buffers(geometry, [(0, drawn)]).shape)
    assert len(shapes) <= 4


def test_ids_that_many_bags_share_raise_the_limit():
    geometry = StackGeometry((Layout.mod(5000, 1),), cores=2, dim=16)
    ids = np.zeros(3000, np.int64)
    buffers = make_buffers(geometry, [(0, FeatureBags(ids, np.arange(3001)))])
    assert buffers.shape.limits.ids == 2048
    assert buffers.num_minibatches == 1


def test_too_many_rows_for_the_cores_are_refused():
    geometry = StackGeometry((Layout.mod(10_000, 1),), cores=2, dim=8192)
    bags = FeatureBags(np.arange(10_000), np.array([0, 10_000]))
    told = (
        r"the ids of a batch from bags of one SparseCore to rows of another must be at most 64 "
        r"distinct rows in each of 64 minibatches, got \d+: use smaller batches or more devices"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{told}$"):
        make_buffers(geometry, [(0, bags)])


def test_too_many_rows_for_one_minibatch_are_refused():
    geometry = StackGeometry((Layout.mod(10_000, 1),), cores=2, dim=8192)
    bags = FeatureBags(np.arange(200), np.array([0, 200]))
    assert make_buffers(geometry, [(0, bags)]).num_minibatches > 1
    told = (
        "the ids of a batch from bags of one SparseCore to rows of another must be at most 64 "
        "distinct rows in one minibatch, got 100: use smaller batches or more devices"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        make_buffers(geometry, [(0, bags)], minibatched=False)


def test_an_id_in_too_many_bags_of_a_core_is_refused(monkeypatch):
    monkeypatch.setattr(limits_module, "MOST_IDS", 256)
    geometry = StackGeometry((Layout.mod(10, 1),), cores=2, dim=8)
    bags = FeatureBags(np.zeros(600, np.int64), np.arange(601))
    told = (
        "the ids of a batch from bags of one SparseCore to rows of another must be at most 256 "
        "ids in each of 64 minibatches, got 320: use smaller batches or more devices"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        make_buffers(geometry, [(0, bags)])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), scale=st.integers(1, 300), columns=st.sampled_from([128, 4096]))
def test_as_few_minibatches_as_hold_the_batch(seed, scale, columns):
    rng = np.random.default_rng(seed)
    unique = rng.integers(0, scale, (4, MOST_MINIBATCHES))
    ids = unique * rng.integers(1, 9, unique.shape)
    preferred, most = preferred_unique(columns), most_unique(columns)

    def largest(minibatches):
        return unique.reshape(4, minibatches, -1).sum(axis=2).max()

    if largest(MOST_MINIBATCHES) > most:
        with pytest.raises(ShardcoreValueError):
            choose_limits(ids, unique, columns)
        return
    minibatches, limits = choose_limits(ids, unique, columns)
    assert largest(minibatches) <= limits.unique <= most
    assert ids.reshape(4, minibatches, -1).sum(axis=2).max() <= limits.ids
    assert minibatches == 1 or largest(minibatches // 2) > preferred
    assert minibatches == MOST_MINIBATCHES or limits.unique <= preferred
