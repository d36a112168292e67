"""Partial sums instead of rows: less traffic, to a stated bound; updates stay exact."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from shardcore_sim.backend import SimBackend

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig

ROWS = sc.initializers.RowId()
UNIT = {"float32": 2.0**-24, "float16": 2.0**-24, "bfloat16": 2.0**-24, "float64": 2.0**-53}


def make_engine(backend, exchange, placement="row", combiner="mean", dtype="float32"):
    normal = sc.initializers.Normal()
    table = TableConfig(300, 19, combiner=combiner, layout="mod", placement=placement, dtype=dtype,
                        exchange=exchange, initializer=normal, name="t")  # fmt: skip
    features = [FeatureConfig(table), FeatureConfig(table)]
    e = sc.ShardedEmbedding(features, sc.optimizers.Adagrad(0.1), backend, seed=2)
    e.build()
    return e


def batch(seed=0, bags=60):
    rng = np.random.default_rng(seed)
    features = []
    for _ in range(2):
        lengths = rng.integers(0, 40, bags)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        features.append((rng.integers(0, 300, lengths.sum()), splits))
    weights = [None, rng.normal(size=features[1][0].size)]
    gradients = [rng.normal(size=(bags, 19)) for _ in range(2)]
    return features, weights, gradients


def bounds(table, features, weights, combiner, dtype):
    """The bound of the module's docstring, per feature (bags, dim)."""
    rows, unit = np.abs(np.asarray(table).astype(np.float64)), UNIT[dtype]
    for (ids, splits), w in zip(features, weights, strict=True):
        w = np.ones(ids.size) if w is None else w.astype(np.float32 if unit > 1e-10 else w.dtype)
        out = np.zeros((splits.size - 1, rows.shape[1]))
        for bag, (a, b) in enumerate(pairwise(splits)):
            own = w[a:b].astype(np.float64)
            divisor = {"sum": 1.0, "mean": own.sum(), "sqrtn": np.sqrt((own**2).sum())}[combiner]
            k = (b - a + 2) * unit
            if b > a:
                total = np.abs(own) @ rows[ids[a:b]]
                out[bag] = 2 * k / (1 - k) * total / abs(divisor)
        yield out


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_lookups_stay_within_the_bound(combiner, dtype):
    features, weights, _ = batch()
    exact = make_engine("cpu", "exact", combiner=combiner, dtype=dtype)
    wanted = exact(features, weights)
    limits = list(bounds(exact.tables["t"], features, weights, combiner, dtype))
    different = 0
    for hosts in (2, 3, 7):
        found = make_engine(SimBackend(hosts), "partial", "row", combiner, dtype)(features, weights)
        for out, want, limit in zip(found, wanted, limits, strict=True):
            assert out.dtype == want.dtype
            error = np.abs(out.astype(np.float64) - want.astype(np.float64))
            assert (error <= limit).all()
            assert np.median(limit) < 1e-4
            different += (out != want).sum()
    assert different > 0  # the order of the sums is another one


@pytest.mark.parametrize("placement", ["table", "column", "replicated"])
def test_sums_of_whole_bags_are_exact(placement):
    """One host sums a whole bag, or whole columns of it: the order is the one of the exact way."""
    features, weights, _ = batch()
    wanted = make_engine("cpu", "exact")(features, weights)
    found = make_engine(SimBackend(3), "partial", placement)(features, weights)
    for out, want in zip(found, wanted, strict=True):
        assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
def test_updates_are_exact(placement):
    exact = make_engine("cpu", "exact")
    partial = make_engine(SimBackend(3), "partial", placement)
    for seed, drop in ((0, False), (1, True), (2, False)):
        features, weights, gradients = batch(seed)
        gradients = [None, gradients[1]] if drop else gradients
        found = []
        for e in (exact, partial):
            e.enqueue(features, weights)
            e.dequeue()
            found.append(e.apply_gradients(gradients, weight_gradients=True)[1])
        assert found[0].tobytes() == found[1].tobytes()
        for name in (None, "accumulators"):
            one, other = (
                np.asarray(e.tables["t"] if name is None else e.slots["t"][name])
                for e in (exact, partial)
            )
            assert one.tobytes() == other.tobytes()


def test_sums_are_added_in_the_order_of_the_owners():
    """A bag of rows of three hosts: (a + b) + c in the order of hosts, not of occurrences."""
    values = np.array([[1.0], [2.0**24], [-(2.0**24)]], np.float32)
    table = TableConfig(3, 1, initializer=values, combiner="sum", exchange="partial", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), backend="sim", backend_options={"hosts": 3})
    # In order of occurrence (2**24 - 2**24) + 1 = 1; in order of hosts (1 + 2**24) - 2**24 = 0.
    assert e([[1, 2, 0]])[0, 0] == 0
    exact = TableConfig(3, 1, initializer=values, combiner="sum", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(exact), backend="sim", backend_options={"hosts": 3})
    assert e([[1, 2, 0]])[0, 0] == 1


def test_messages():
    backend = SimBackend(2)
    table = TableConfig(6, 2, initializer=ROWS, exchange="partial", combiner="sum", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), backend)
    e.enqueue([[0, 3, 3], [1], [5, 4], [0, 5]], np.ones(8))
    np.testing.assert_array_equal(e.dequeue()[:, 0], [6, 1, 9, 5])
    nbytes, messages = backend.exchange.bytes, backend.exchange.messages
    # Host 0 sends host 1 two ids (8 bytes each), two splits (8) and two weights (4), gets one sum
    # of two floats, and then sends two gains (4); host 1 the same of one id of its last bag.
    assert nbytes[0, 1] == 16 + 16 + 8 + 8 + 8
    assert nbytes[1, 0] == 8 + 16 + 4 + 8 + 4
    assert (messages[0, 1], messages[1, 0]) == (3 + 1 + 1, 3 + 1 + 1)
    e.apply_gradients(np.ones((4, 2), np.float32))
    assert (nbytes[0, 1], nbytes[1, 0]) == (56 + 8, 40 + 8)  # a gradient each


def test_long_bags_take_fewer_bytes():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 300, (40, 100))
    taken = {}
    for exchange in ("exact", "partial"):
        backend = SimBackend(4)
        table = TableConfig(300, 64, exchange=exchange, initializer=ROWS, combiner="sum", name="t")
        table2 = TableConfig(10**5, 64, exchange=exchange, initializer=ROWS, name="large")
        features = [FeatureConfig(table), FeatureConfig(table2)]
        e = sc.ShardedEmbedding(features, backend=backend)
        e([ids, ids * 300 + rng.integers(0, 300, ids.shape)])
        taken[exchange] = backend.report().tables["large"].bytes
    assert taken["partial"] < taken["exact"] / 4


@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
@pytest.mark.parametrize("exchange", ["exact", "partial"])
def test_rows_are_quantized_before_they_are_summed(placement, exchange):
    """In multiples of 0.25 every sum is exact, so that its order does not show."""
    features, weights, gradients = batch()
    weights[1] = np.round(weights[1] * 8)
    seen = []
    for backend in (sc.get_backend("cpu"), SimBackend(3)):
        table = TableConfig(300, 19, combiner="sum", placement=placement, exchange=exchange,
                            initializer=sc.initializers.Normal(),
                            quantization_config=sc.QuantizationConfig(9, -1.0, 1.0))  # fmt: skip
        e = sc.ShardedEmbedding([FeatureConfig(table)] * 2, sc.optimizers.SGD(0.1), backend)
        e.enqueue(features, weights)
        out = e.dequeue()
        dots = e.apply_gradients(gradients, weight_gradients=True)
        seen.append(
            [a.tobytes() for a in (*out, dots[1], np.asarray(next(iter(e.tables.values()))))]
        )
        assert (out[0] % 0.25 == 0).all()
    assert seen[0] == seen[1]
