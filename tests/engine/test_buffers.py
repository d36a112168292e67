"""What a caller gives is his again when the call returns: he may write to it at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from shardcore_cpu.backend import CpuBackend

import shardcore as sc

BAGS, PER_BAG, ROWS = 3000, 4, 500


class Waiting(CpuBackend):
    """Lookups and updates begin when they are told to."""

    name = "waiting"

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def lookup(self, batches):
        assert self.go.wait(60)
        return super().lookup(batches)

    def apply(self, updates):
        assert self.go.wait(60)
        super().apply(updates)


def engine(backend, pipeline, combiner):
    table = sc.TableConfig(
        ROWS, 3, initializer=sc.initializers.RowId(), combiner=combiner, name="t"
    )
    features = {"a": sc.FeatureConfig(table), "b": sc.FeatureConfig(table)}
    e = sc.ShardedEmbedding(features, sc.optimizers.SGD(0.5), backend, pipeline=pipeline)
    e.build()
    return e


def given(dtype):
    rng = np.random.default_rng(7)
    splits = np.arange(BAGS + 1, dtype=np.int64) * PER_BAG
    ids = {name: rng.integers(0, ROWS, BAGS * PER_BAG) for name in "ab"}
    weights = rng.random(BAGS * PER_BAG).astype(dtype)
    gradients = {name: rng.normal(size=(BAGS, 3)).astype(dtype) for name in "ab"}
    return {n: (ids[n], splits.copy()) for n in "ab"}, {"a": weights, "b": None}, gradients


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("training", [True, False])
def test_what_was_given_to_a_pipeline_may_be_written_to_at_once(combiner, dtype, training):
    features, weights, gradients = given(dtype)
    plain = engine(CpuBackend(), False, combiner)
    plain.enqueue(features, weights, training=training)
    expected = plain.dequeue()
    if training:
        plain.apply_gradients(gradients)
    backend = Waiting()
    with engine(backend, True, combiner) as e:
        e.enqueue(features, weights, training=training)
        arrays = [array for pair in features.values() for array in pair]
        for array in (*arrays, weights["a"]):
            array[:] = 0
        backend.go.set()
        found = e.dequeue()
        for name in "ab":
            np.testing.assert_array_equal(found[name], expected[name])
        if training:
            backend.go.clear()
            e.apply_gradients(gradients)
            for array in gradients.values():
                array[:] = 0
            backend.go.set()
        assert np.asarray(e.tables["t"]).tobytes() == np.asarray(plain.tables["t"]).tobytes()


@pytest.mark.parametrize("where", ["cpu", "sim"])
def test_what_comes_back_is_the_callers_own(where):
    """Neither activations nor rows that were read show what happens to the tables afterwards."""
    e = engine(where, False, "mean")
    features, weights, gradients = given("float32")
    e.enqueue(features, weights)
    activations = e.dequeue()
    rows = e.tables["t"][:]
    some = e.tables["t"][2:300]
    before = [a.copy() for a in (activations["a"], activations["b"], rows, some)]
    e.apply_gradients(gradients)
    assert np.asarray(e.tables["t"]).tobytes() != before[2].tobytes()
    for now, then in zip((*activations.values(), rows, some), before, strict=True):
        np.testing.assert_array_equal(now, then)
    for array in (*activations.values(), rows, some):
        array[...] = -1
    assert not (np.asarray(e.tables["t"]) == -1).all(axis=1).any()
