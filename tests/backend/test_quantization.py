"""Tables with a quantization: lookups see rounded rows, storage and gradients do not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import shardcore as sc
from shardcore.backend import Capabilities, initial_arrays
from shardcore.backend.base import Backend
from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import as_dtype
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.lookup.serving import serving_embedding_lookup

ROWS, DIM = 40, 5
BUCKETS = QuantizationConfig(7, -1.0, 1.0)


class Plain(Backend):
    """The least a third party writes."""

    name = "plain"

    def __init__(self):
        super().__init__()
        self._arrays = {}

    def make_table(self, spec):
        self._arrays[spec.name] = initial_arrays(spec)[None]

    def remove_table(self, table):
        self._arrays.pop(table, None)

    def gather(self, table, slot, rows):
        return self._arrays[table][rows]

    def scatter(self, table, slot, rows, values):
        self._arrays[table][rows] = values


class Unable(Plain):
    """Declares that its lookups do not round."""

    name = "unable"
    capabilities = Capabilities(quantization=False)


BACKENDS = [
    pytest.param("cpu", id="cpu"),
    pytest.param(Plain, id="base class"),
    pytest.param(lambda: sc.get_backend("sim", hosts=3), id="sim3"),
]


def make_engine(backend, quantization=BUCKETS, combiner="mean", dtype="float32"):
    rows = np.random.default_rng(4).normal(size=(ROWS, DIM)).astype(as_dtype(dtype))
    table = TableConfig(
        ROWS, DIM, initializer=rows, combiner=combiner, name="t", dtype=dtype,
        quantization_config=quantization,
    )  # fmt: skip
    config = {"bag": FeatureConfig(table), "seq": FeatureConfig(table, max_sequence_length=3)}
    made = backend if isinstance(backend, str) else backend()
    e = sc.ShardedEmbedding(config, sc.optimizers.SGD(learning_rate=0.5), backend=made)
    e.build()
    return e, config, rows


def make_batch():
    rng = np.random.default_rng(9)
    lengths = rng.integers(0, 9, 30)
    ids = rng.integers(0, ROWS, lengths.sum())
    splits = np.concatenate([[0], np.cumsum(lengths)])
    weights = {"bag": rng.normal(size=ids.size), "seq": None}
    return {"bag": (ids, splits), "seq": (ids, splits)}, weights


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_lookups_equal_those_of_serving(backend, combiner, dtype):
    e, config, rows = make_engine(backend, combiner=combiner, dtype=dtype)
    features, weights = make_batch()
    served = serving_embedding_lookup(features, weights, {"t": rows}, config)
    found = e(features, weights)
    for name in config:
        assert found[name].dtype == served[name].dtype
        assert found[name].tobytes() == served[name].tobytes()


def test_the_rows_are_those_of_the_definition():
    e, _, rows = make_engine("cpu", combiner="sum")
    q = (BUCKETS.upper - BUCKETS.lower) / (BUCKETS.num_buckets - 1)
    wide = np.clip(rows.astype(np.float64), BUCKETS.lower, BUCKETS.upper)
    seen = np.floor((wide - BUCKETS.lower) / q + 0.5) * q + BUCKETS.lower
    found = e({"bag": [[i] for i in range(ROWS)], "seq": [[]] * ROWS})
    np.testing.assert_allclose(found["bag"], seen, atol=1e-6)
    assert len(np.unique(np.round(found["bag"], 4))) == BUCKETS.num_buckets
    np.testing.assert_array_equal(e.tables["t"], rows)  # stored as they are


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_pass_straight_through(backend):
    features, weights = make_batch()
    engines = [make_engine(backend, quantization)[0] for quantization in (BUCKETS, None)]
    rng = np.random.default_rng(2)
    gradients = {"bag": rng.normal(size=(30, DIM)), "seq": rng.normal(size=(30, 3, DIM))}
    for e in engines:
        e.enqueue(features, weights)
        e.dequeue()
        e.apply_gradients(gradients)
    quantized, plain = (np.asarray(e.tables["t"]) for e in engines)
    assert quantized.tobytes() == plain.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_weights_are_those_of_the_rounded_rows(backend, combiner):
    e, _, _ = make_engine(backend, combiner=combiner, dtype="float64")
    features, weights = make_batch()
    features["seq"] = [[]] * 30
    direction = np.random.default_rng(6).normal(size=(30, DIM))
    w = np.abs(weights["bag"]) + 0.5

    def loss(of):
        return float((e(features, {"bag": of, "seq": None})["bag"] * direction).sum())

    step = np.zeros_like(w)
    numeric = np.empty_like(w)
    for i in range(w.size):
        step[i] = 1e-6
        numeric[i] = (loss(w + step) - loss(w - step)) / 2e-6
        step[i] = 0
    e.enqueue(features, {"bag": w, "seq": None})
    e.dequeue()
    found = e.apply_gradients({"bag": direction, "seq": None}, weight_gradients=True)
    np.testing.assert_allclose(found["bag"], numeric, atol=1e-7)


def test_a_backend_that_does_not_round_refuses_such_a_table():
    message = f"table 't' must have quantization None on backend 'unable', got {BUCKETS!r}"
    with pytest.raises(sc.ShardcoreError, match=re.escape(message)):
        make_engine(Unable)
    make_engine(Unable, quantization=None)
