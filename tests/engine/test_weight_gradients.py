"""Gradients of weights: by finite differences, in the order and shape of the weights."""

from __future__ import annotations

import re

import numpy as np
import pytest
from engines import BACKENDS, COMBINERS, ROWS, engine

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("policy", ["raise", "drop", "zero", "clip", 3])
@pytest.mark.parametrize("where", BACKENDS)
def test_weight_gradients_by_finite_differences(combiner, policy, where):
    rng = np.random.default_rng(8)
    table = TableConfig(7, 3, combiner=combiner, dtype="float64",
                        initializer=rng.normal(size=(7, 3)))  # fmt: skip
    e = engine(FeatureConfig(table, invalid_ids=policy), sc.optimizers.SGD(), **where)
    bad = [2, 5] if policy == "raise" else [-1, 99]
    bags = [[1, bad[0], 4, 1], [], [6], [bad[1], 0, 3], [bad[0]]]
    w = rng.uniform(0.5, 2.0, sum(map(len, bags)))
    direction = rng.normal(size=(5, 3))

    def loss(weights):
        return float((e(bags, weights) * direction).sum())

    numeric = np.empty_like(w)
    for i in range(w.size):
        step = np.zeros_like(w)
        step[i] = 1e-6
        numeric[i] = (loss(w + step) - loss(w - step)) / 2e-6
    e.enqueue(bags, w)
    e.dequeue()
    found = e.apply_gradients(direction, weight_gradients=True)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, numeric, rtol=1e-7, atol=1e-8)
    if policy == "drop":
        assert found[1] == 0
        assert found[-1] == 0


def test_weight_gradients_have_the_order_and_shape_of_the_weights():
    rows = np.arange(1.0, 11.0).reshape(10, 1)
    table = TableConfig(10, 1, initializer=rows, combiner="sum", name="t")
    names = ("dense", "sparse", "own", "none")
    config = {name: FeatureConfig(table, invalid_ids="drop") for name in names}
    e = engine(config, sc.optimizers.SGD(learning_rate=0.0))
    sparse = sc.Sparse([[1, 0], [0, 1], [1, 2], [0, 0]], [4, 3, 99, 1], (2, 3))
    features = {"dense": np.array([[1, 2], [3, 99]]), "sparse": sparse,
                "own": sc.Ragged([5, 6], [0, 2, 2], [0.5, 0.5]), "none": [[1], [2]]}  # fmt: skip
    weights = {"dense": np.ones((2, 2)), "sparse": np.array([1.0, 2.0, 3.0, 4.0]), "own": None,
               "none": None}  # fmt: skip
    e.enqueue(features, weights)
    x = e.dequeue()
    np.testing.assert_array_equal(x["sparse"], [[2 * 4 + 4 * 2], [5]])
    g = np.array([[1.0], [10.0]])
    found = e.apply_gradients(dict.fromkeys(config, g), weight_gradients=True)
    np.testing.assert_array_equal(found["dense"], [[2, 3], [40, 0]])
    np.testing.assert_array_equal(found["sparse"], [50, 4, 0, 2])
    np.testing.assert_array_equal(found["own"], [6, 7])
    assert found["none"] is None
    assert e.step == 1
    e.enqueue(features, weights)
    e.dequeue()
    some = {"dense": None, "sparse": g, "own": None, "none": None}
    found = e.apply_gradients(some, weight_gradients=True)
    assert found["dense"] is None
    assert found["own"] is None
    np.testing.assert_array_equal(found["sparse"], [50, 4, 0, 2])
    e.enqueue(features, weights)
    e.dequeue()
    assert e.apply_gradients(None, weight_gradients=True) == dict.fromkeys(config)


def sparse_weights_engine(backend, **options):
    rows = np.arange(1.0, 11.0).reshape(10, 1)
    table = TableConfig(10, 1, initializer=rows, combiner="sum", name="t")
    e = sc.ShardedEmbedding({"a": FeatureConfig(table, **options)},
                            sc.optimizers.SGD(learning_rate=1.0), backend=backend)  # fmt: skip
    e.build()
    return e


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_sparse_weights_lie_where_the_sparse_ids_do(backend, policy):
    """Unsorted, in lookups and training; the weights' gradients come in the order given."""
    e = sparse_weights_engine(backend, invalid_ids=policy)
    places = [[1, 0], [0, 1], [1, 2], [0, 0]]
    ids = {"a": sc.Sparse(places, [4, 3, 99, 1], (3, 3))}
    weights = {"a": sc.Sparse(places, [1, 2, 3, 4], (3, 3))}
    expected = [[2 * 4 + 4 * 2], [5], [0]]
    np.testing.assert_array_equal(e(ids, weights)["a"], expected)
    e.enqueue(ids, weights)
    np.testing.assert_array_equal(e.dequeue()["a"], expected)
    g = np.array([[1.0], [10.0], [100.0]])
    found = e.apply_gradients({"a": g}, weight_gradients=True)
    np.testing.assert_array_equal(found["a"], [50, 4, 0, 2])
    np.testing.assert_array_equal(e.tables["t"][:5, 0], [1, 2 - 4, 3, 4 - 2, 5 - 10])


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_sparse_weights_elsewhere_than_the_ids_are_refused(backend):
    e = sparse_weights_engine(backend)
    ids = sc.Sparse([[1, 0], [0, 1], [0, 0]], [4, 3, 1], (2, 2))
    moved = sc.Sparse([[1, 0], [0, 0], [0, 1]], [1.0, 2.0, 3.0], (2, 2))
    fewer = sc.Sparse([[1, 0]], [1.0], (2, 2))
    wider = sc.Sparse([[1, 0], [0, 1], [0, 0]], [1.0, 2.0, 3.0], (2, 3))
    places = "weights['a']: weights must have the places of the ids: "
    sparse_only = "weights['a']: weights may be Sparse only where the ids are, got ids of type "
    cases = [
        (ids, moved, ShardcoreValueError, places + "indices[1] is [0, 0], of the ids [0, 1]"),
        (ids, fewer, ShardcoreValueError, places + "3 in dense_shape (2, 2), got 1 in (2, 2)"),
        (ids, wider, ShardcoreValueError, places + "3 in dense_shape (2, 2), got 3 in (2, 3)"),
        ([[1], [2]], moved, ShardcoreTypeError, sparse_only + "list"),
        (np.array([1, 2]), moved, ShardcoreTypeError, sparse_only + "ndarray"),
        (ids, sc.Sparse(ids.indices, [1, np.inf, 2], (2, 2)), ShardcoreValueError,
         "weights['a']: weights must be finite, got inf at position 1"),
    ]  # fmt: skip
    for leaf, weights, error, message in cases:
        for call in (e, e.enqueue):
            with pytest.raises(error, match=f"^{re.escape(message)}$"):
                call({"a": leaf}, {"a": weights})
    assert e.step == 0


def test_weight_gradients_are_those_before_the_update():
    table = TableConfig(3, 1, initializer=ROWS, combiner="sum", name="t")
    e = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0))
    e.enqueue([[2]], [4.0])
    e.dequeue()
    assert e.apply_gradients([[3.0]], weight_gradients=True).tolist() == [6.0]
    assert np.asarray(e.tables["t"])[2] == 2 - 12


def test_weights_in_another_dtype_are_cast_once():
    e = engine(FeatureConfig(TableConfig(3, 2, initializer=ROWS, combiner="sum")))
    wide = e([[1, 2]], np.array([0.1, 0.2]))
    narrow = e([[1, 2]], np.array([0.1, 0.2], np.float32))
    assert wide.tobytes() == narrow.tobytes()
    assert e([[1, 2]], np.array([2, 3]))[0].tolist() == [8, 8]
