"""Tables with a `max_norm`: lookups see rows scaled down to it, storage and gradients do not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from dictionary_backend import Dictionary
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import shardcore as sc
from shardcore import reference
from shardcore.backend import Capabilities, TableSpec
from shardcore.backend.max_norm import scaled_to_norm
from shardcore.dtypes import TABLE_DTYPES, as_dtype
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.lookup.serving import serving_embedding_lookup
from shardcore.testing import ModelBackend

ROWS, DIM = 40, 5


class Unable(Dictionary):
    """Declares that its lookups do not scale rows."""

    name = "unable"
    capabilities = Capabilities(max_norm=False)


BACKENDS = [
    pytest.param("cpu", {}, id="cpu"),
    pytest.param("dictionary", {}, id="base class"),
    pytest.param("model", {}, id="model"),
    *(
        pytest.param("sim", {"placement": placement, "exchange": exchange},
                     id=f"sim3-{placement}-{exchange}")
        for placement in ("row", "table", "column", "replicated")
        for exchange in ("exact", "partial")
        if (placement, exchange) != ("column", "partial")
    ),
]  # fmt: skip


def made(backend):
    if backend == "dictionary":
        return Dictionary()
    if backend == "model":
        return ModelBackend()
    return sc.get_backend(backend, **({"hosts": 3} if backend == "sim" else {}))


def make_engine(backend, max_norm=1.0, combiner="mean", dtype="float32", **fields):
    rows = np.random.default_rng(4).normal(size=(ROWS, DIM)).astype(as_dtype(dtype))
    table = TableConfig(
        ROWS, DIM, initializer=rows, combiner=combiner, name="t", dtype=dtype, max_norm=max_norm,
        **fields,
    )  # fmt: skip
    config = {"bag": FeatureConfig(table), "seq": FeatureConfig(table, max_sequence_length=3)}
    backend = made(backend) if isinstance(backend, str) else backend
    e = sc.ShardedEmbedding(config, sc.optimizers.SGD(learning_rate=0.5), backend=backend)
    e.build()
    return e, config, rows


def make_batch():
    rng = np.random.default_rng(9)
    lengths = rng.integers(0, 9, 30)
    ids = rng.integers(0, ROWS, lengths.sum())
    splits = np.concatenate([[0], np.cumsum(lengths)])
    # In quarters, so that partial sums of the sizes used here differ by little.
    weights = {"bag": rng.integers(1, 9, ids.size) / 4, "seq": None}
    return {"bag": (ids, splits), "seq": (ids, splits)}, weights


@pytest.mark.parametrize(("backend", "fields"), BACKENDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", TABLE_DTYPES)
def test_lookups_equal_those_with_max_norm_in_a_table(backend, fields, combiner, dtype):
    e, config, rows = make_engine(backend, combiner=combiner, dtype=dtype, **fields)
    features, weights = make_batch()
    found = e(features, weights)
    served = serving_embedding_lookup(features, weights, {"t": rows}, config)
    ragged = sc.Ragged(*features["bag"])
    free = sc.embedding_lookup_sparse(rows, ragged, weights["bag"], combiner, max_norm=1.0)
    single = sc.embedding_lookup(rows, np.arange(ROWS), max_norm=1.0)
    alone = e({"bag": np.arange(ROWS), "seq": [[]] * ROWS})["bag"]
    np.testing.assert_array_equal(alone, single.astype(alone.dtype))
    if fields.get("exchange") == "partial":  # its sums have an order of their own
        np.testing.assert_allclose(found["bag"], served["bag"], rtol=1e-4, atol=1e-6)
        return
    for name in config:
        assert found[name].dtype == served[name].dtype
        assert found[name].tobytes() == served[name].tobytes()
    np.testing.assert_array_equal(found["bag"].astype(rows.dtype), free)


def test_the_rows_are_those_of_the_definition():
    e, _, rows = make_engine("cpu", combiner="sum")
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert 0 < (norms > 1).sum() < ROWS
    found = e({"bag": np.arange(ROWS), "seq": [[]] * ROWS})["bag"]
    np.testing.assert_allclose(found, rows * np.minimum(1, 1 / norms)[:, None], rtol=1e-6)
    np.testing.assert_array_equal(found[norms <= 1], rows[norms <= 1])
    np.testing.assert_array_equal(e.tables["t"], rows)  # stored as they are


@pytest.mark.parametrize(("backend", "fields"), BACKENDS)
def test_gradients_pass_straight_through(backend, fields):
    features, weights = make_batch()
    engines = [make_engine(backend, norm, **fields)[0] for norm in (1.0, None)]
    rng = np.random.default_rng(2)
    gradients = {"bag": rng.normal(size=(30, DIM)), "seq": rng.normal(size=(30, 3, DIM))}
    for e in engines:
        e.enqueue(features, weights)
        e.dequeue()
        e.apply_gradients(gradients)
    scaled, plain = (np.asarray(e.tables["t"]) for e in engines)
    assert scaled.tobytes() == plain.tobytes()


@pytest.mark.parametrize(("backend", "fields"), BACKENDS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_of_weights_are_those_of_the_scaled_rows(backend, fields, combiner):
    e, _, _ = make_engine(backend, combiner=combiner, dtype="float64", **fields)
    features, weights = make_batch()
    features["seq"] = [[]] * 30
    direction = np.random.default_rng(6).normal(size=(30, DIM))
    w = weights["bag"] + 0.5

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


@pytest.mark.parametrize("backend", ["cpu", "sim", "dictionary"])
def test_rows_are_scaled_before_they_are_rounded(backend):
    buckets = sc.QuantizationConfig(5, -1.0, 1.0)
    e, config, rows = make_engine(backend, quantization_config=buckets)
    seen = buckets.apply(scaled_to_norm(rows, 1.0))
    assert (seen != scaled_to_norm(buckets.apply(rows), 1.0)).any()
    ids = {"bag": np.arange(ROWS), "seq": [[]] * ROWS}
    np.testing.assert_array_equal(e(ids)["bag"], seen)
    served = serving_embedding_lookup(ids, None, {"t": rows}, config)
    np.testing.assert_array_equal(served["bag"], seen)


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_views_and_checkpoints_have_stored_rows(backend, tmp_path):
    e, _, rows = make_engine(backend)
    view = e.tables["t"]
    splits = np.arange(ROWS + 1)
    np.testing.assert_array_equal(sc.prepare_lookup(view)(np.arange(ROWS), splits), rows)
    np.testing.assert_array_equal(sc.embedding_lookup(view, np.arange(ROWS)), rows)
    path = sc.Checkpoint(embedding=e).save(tmp_path / "root", 1)
    plain = make_engine("cpu", None)[0]
    plain.tables["t"][:] = 0
    sc.Checkpoint(embedding=plain).restore(path)
    np.testing.assert_array_equal(plain.tables["t"], rows)


def numbers(dtype):
    width = 64 if dtype == "float64" else 32
    return st.floats(width=width, allow_nan=True, allow_infinity=True)


@given(
    st.sampled_from(TABLE_DTYPES).flatmap(
        lambda dtype: st.tuples(
            st.just(dtype),
            arrays("float64" if dtype == "float64" else "float32",
                   st.tuples(st.integers(0, 4), st.integers(0, 9)), elements=numbers(dtype)),
        )
    ),
    st.floats(1e-3, 1e3),
)  # fmt: skip
def test_each_row_equals_its_twin(given, max_norm):
    dtype, values = given
    with np.errstate(over="ignore"):
        rows = values.astype(as_dtype(dtype))
    before = rows.copy()
    found = scaled_to_norm(rows, max_norm)
    assert rows.tobytes() == before.tobytes()
    assert (found.dtype, found.shape) == (rows.dtype, rows.shape)
    expected = reference.scaled_to_norm(rows, max_norm)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    for i in range(len(rows)):
        alone = scaled_to_norm(rows[i : i + 1], max_norm)
        np.testing.assert_array_equal(alone.astype(float), found[i : i + 1].astype(float))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, sc.errors.ShardcoreValueError),
        (-1.0, sc.errors.ShardcoreValueError),
        (float("nan"), sc.errors.ShardcoreValueError),
        (float("inf"), sc.errors.ShardcoreValueError),
        (10**400, sc.errors.ShardcoreValueError),
        (True, sc.errors.ShardcoreTypeError),
        ("1", sc.errors.ShardcoreTypeError),
        (np.ones(1), sc.errors.ShardcoreTypeError),
        (1j, sc.errors.ShardcoreTypeError),
    ],
)
def test_max_norm_is_a_number_above_0(value, error):
    message = f"max_norm must be a finite number > 0 or None, got {value!r}"
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        TableConfig(4, 2, max_norm=value)


def test_max_norm_is_kept_as_a_float():
    t = TableConfig(4, 2, max_norm=np.float32(0.5))
    assert type(t.max_norm) is float
    assert repr(t) == "TableConfig(4, 2, max_norm=0.5)"
    assert TableConfig(4, 2, max_norm=np.int8(3)).max_norm == 3.0
    assert TableConfig(4, 2).max_norm is None


def test_a_backend_that_does_not_scale_refuses_such_a_table():
    message = "table 't' must have max_norm None on backend 'unable', got 1.0"
    with pytest.raises(sc.errors.ShardcoreValueError, match=f"^{re.escape(message)}$"):
        make_engine(Unable())
    make_engine(Unable(), max_norm=None)


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_columns_that_are_combined_where_they_are_have_no_norm(backend):
    message = (
        "table 't' must have max_norm None where hosts combine the columns they hold "
        "(placement 'column', exchange 'partial'), got 1.0"
    )
    with pytest.raises(sc.errors.ShardcoreValueError, match=f"^{re.escape(message)}$"):
        make_engine(backend, placement="column", exchange="partial")
    spec = TableSpec(
        "t", 4, 2, np.dtype("float32"), sc.initializers.Zeros(), 0, placement="column",
        exchange="partial", max_norm=1.0,
    )  # fmt: skip
    owner = made(backend)
    with pytest.raises(sc.errors.ShardcoreValueError, match=f"^{re.escape(message)}$"):
        owner.create_table(spec)
    assert owner.specs == {}
