from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore.errors import (
    ShardcoreIndexError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.lookup import prepared as prepared_lookup
from shardcore.lookup.prepared import PreparedLookup, prepare_lookup
from shardcore.store.segment_reduce import divisors, segment_reduce
from shardcore.threads import team

ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16]


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def expected(rows: Any, ids: Any, splits: Any, weights: Any, combiner: str) -> Any:
    """Return the formula written as it reads, in float64."""
    rows = np.asarray(rows).astype(np.float64)
    out = np.zeros((len(splits) - 1, *rows.shape[1:]))
    for b, (start, stop) in enumerate(pairwise(splits)):
        w = np.ones(stop - start) if weights is None else np.asarray(weights[start:stop], float)
        total = np.tensordot(w, rows[ids[start:stop]], 1)
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out[b] = total / divisor if divisor else 0
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_combiners_against_the_definition(dtype, combiner, weighted, index):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((20, 9)).astype(dtype)
    splits = np.array([0, 3, 3, 4, 11, 11])
    ids = rng.integers(0, 20, 11).astype(index)
    weights = rng.uniform(0.1, 2, 11) if weighted else None
    lookup = prepare_lookup(rows, combiner)
    got = lookup(ids, splits, weights)
    assert got.dtype == lookup.dtype == (np.float64 if dtype == "float64" else np.float32)
    want = expected(rows, ids, splits, weights, combiner)
    # At most 7 terms below 6 in float32: the error stays below 7 * 6 * 2**-24 where they cancel.
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=3e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_kind_of_table_gives_the_same_bits(data):
    num_rows = data.draw(st.integers(1, 12))
    dim = data.draw(st.integers(0, 70))
    lengths = data.draw(st.lists(st.integers(0, 5), max_size=6))
    combiner = data.draw(st.sampled_from(["sum", "mean", "sqrtn"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    rows = rng.standard_normal((num_rows, dim)).astype(data.draw(st.sampled_from(DTYPES)))
    splits = np.cumsum([0, *lengths])
    ids = rng.integers(0, num_rows, splits[-1])
    weights = rng.standard_normal(ids.size) if data.draw(st.booleans()) else None
    cast = None if weights is None else weights.astype(prepare_lookup(rows).dtype)
    working = np.float64 if rows.dtype == np.float64 else np.float32
    denominators = divisors(combiner, splits, cast, working)
    want = segment_reduce(rows, ids, splits, weights, denominators)
    cut = num_rows // 2
    for params in (
        rows,
        [rows],
        [rows[:cut], rows[cut:]],
        np.asfortranarray(rows),
        sc.ShardedVariable([rows[::2].copy(), rows[1::2].copy()], layout=sc.Layout.mod(num_rows, 2))
        if num_rows > 1
        else rows,
    ):
        same(prepare_lookup(params, combiner)(ids, splits, weights), want)


def test_it_is_what_the_engine_gives_and_sees_its_updates():
    config = sc.FeatureConfig(sc.TableConfig(10, 3, combiner="sqrtn", name="t"))
    ids, splits = np.array([4, 9, 9, 0]), np.array([0, 1, 1, 4])
    with sc.ShardedEmbedding(config, backend="sim", backend_options={"hosts": 2}) as e:
        want = e((ids, splits))
        lookup = prepare_lookup(e.tables["t"], "sqrtn")
        same(lookup(ids, splits), want)
        e.tables["t"][9] = 0
        same(lookup(ids, splits), e((ids, splits)))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_given_bags_are_combined_by_one_call_whatever_the_table_is(combiner, dtype, index):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((20, 6)).astype(dtype)
    ids, splits = rng.integers(0, 20, 9).astype(index), np.array([0, 4, 4, 9])
    table = sc.TableConfig(20, 6, initializer=rows, combiner=combiner, name="t", dtype=dtype)
    with sc.ShardedEmbedding(sc.FeatureConfig(table)) as engine:
        engine.build()
        want = engine((ids, splits))
        for params in (
            rows,
            rows.reshape(20, 2, 3),
            np.array_split(rows, 4),
            sc.ShardedVariable([rows]),
            sc.ShardedVariable([rows[::2].copy(), rows[1::2].copy()], layout=sc.Layout.mod(20, 2)),
            engine.tables["t"],
        ):
            lookup, done = prepare_lookup(params, combiner), []
            few = lookup._given
            lookup._given = lambda *given, few=few, done=done: done.append(few(*given)) or done[-1]
            same(lookup(ids, splits).reshape(want.shape), want)
            assert done == [True]
            np.testing.assert_array_equal(lookup(ids.tolist(), splits).reshape(want.shape), want)
            assert done == [True]


def test_given_bags_of_an_engine_see_its_end():
    table = sc.TableConfig(5, 2, combiner="sum", name="t")
    with sc.ShardedEmbedding(sc.FeatureConfig(table)) as engine:
        engine.build()
        lookup = prepare_lookup(engine.tables["t"])
        assert lookup(np.array([1, 4]), np.array([0, 2])).shape == (1, 2)
    message = "table 't' is gone: its engine was closed"
    with pytest.raises(ShardcoreRuntimeError, match=f"^{re.escape(message)}$"):
        lookup(np.array([1, 4]), np.array([0, 2]))


def test_given_bags_of_a_slot_are_those_of_the_slot():
    table = sc.TableConfig(5, 2, combiner="sum", name="t", initializer=sc.initializers.RowId())
    optimizer = sc.optimizers.Adagrad(0.1, initial_accumulator_value=0.5)
    with sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer) as engine:
        engine.build()
        lookup = prepare_lookup(engine.slots["t"]["accumulators"])
        assert lookup(np.array([1, 4]), np.array([0, 2])).tolist() == [[1, 1]]


def test_given_bags_of_rows_that_lookups_scale_are_the_rows_as_stored():
    table = sc.TableConfig(
        5, 2, combiner="sum", name="t", initializer=sc.initializers.RowId(), max_norm=1.0
    )
    with sc.ShardedEmbedding(sc.FeatureConfig(table)) as engine:
        engine.build()
        lookup = prepare_lookup(engine.tables["t"])
        assert lookup(np.array([1, 4]), np.array([0, 2])).tolist() == [[5, 5]]


def test_the_table_is_adopted():
    rows = ROWS.copy()
    lookup = prepare_lookup(rows)
    rows[1] = 7
    assert lookup([1], [0, 1]).tolist() == [[7, 7]]
    rows.flags.writeable = False
    assert prepare_lookup(rows)([1], [0, 1]).tolist() == [[7, 7]]


@pytest.mark.parametrize("row_shape", [(), (2, 3), (0,)])
def test_rows_of_any_rank(row_shape):
    rows = np.random.default_rng(0).standard_normal((4, *row_shape)).astype(np.float32)
    lookup = prepare_lookup(rows)
    got = lookup(np.array([3, 0, 1]), np.array([0, 2, 3]))
    same(got, np.stack([rows[3] + rows[0], rows[1]]))
    out = np.empty((2, *row_shape), np.float32)
    assert lookup(np.array([3, 0, 1]), np.array([0, 2, 3]), out=out) is out
    same(out, got)


@pytest.mark.parametrize("parts", [1, 2])
def test_out_is_filled_and_returned(parts):
    lookup = prepare_lookup(np.array_split(ROWS, parts), "mean")
    out = np.full((3, 2), np.nan, np.float32)
    assert lookup(np.array([0, 2, 1]), np.array([0, 2, 2, 3]), out=out) is out
    assert out.tolist() == [[3, 4], [0, 0], [3, 4]]


@pytest.mark.parametrize("weights", [None, np.array([1, 3, 2], np.float32)])
@pytest.mark.parametrize("where", ["array", "shards", "engine"])
def test_a_plain_out_takes_the_short_way(where, weights, monkeypatch):
    """Which finds the same as the long one."""
    values, splits = np.array([0, 2, 1]), np.array([0, 2, 2, 3])
    table = sc.TableConfig(3, 2, initializer=ROWS, name="t")
    with sc.ShardedEmbedding(sc.FeatureConfig(table)) as engine:
        engine.build()
        params = {"array": ROWS, "shards": np.array_split(ROWS, 2), "engine": engine.tables["t"]}
        lookup = prepare_lookup(params[where], "mean")
        wanted = lookup(values.tolist(), splits, weights)
        monkeypatch.setattr(PreparedLookup, "_check_out", None)
        out = np.full((3, 2), np.nan, np.float32)
        assert lookup(values, splits, weights, out) is out
    same(out, wanted)


def test_out_may_lie_between_the_rows_of_shards():
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    lookup = prepare_lookup([rows[:2], rows[3:]])
    out = lookup(np.array([0, 3]), np.array([0, 2]), out=rows[2:3])
    assert out.tolist() == [[8, 10]]
    assert rows.tolist() == [[0, 1], [2, 3], [8, 10], [6, 7], [8, 9]]


@pytest.mark.parametrize("parts", [1, 2])
def test_an_id_out_of_range_leaves_out_as_it_was(parts):
    lookup = prepare_lookup(np.array_split(ROWS, parts))
    for times in (1, 2000):
        values, out = np.tile([0, 1, 2], times), np.full((3 * times, 2), 7, np.float32)
        values[-1] = 3
        message = f"values[{values.size - 1}] = 3 is outside the table: must be in [0, 3)"
        with pytest.raises(ShardcoreIndexError, match=re.escape(message)):
            lookup(values, np.arange(values.size + 1), out=out)
        assert (out == 7).all()


@pytest.mark.parametrize(
    ("values", "row_splits"),
    [
        ([0, 2, 1], [0, 2, 3]),
        (np.array([0, 2, 1], np.uint8), np.array([0, 2, 3], np.int32)),
        (np.array([0, 9, 2, 9, 1])[::2], np.array([0, 9, 2, 9, 3])[::2]),
        (np.array([0, 2, 1], ">i8"), np.array([0, 2, 3], ">i4")),
        (np.array([0, 2, 1], np.longlong), np.array([0, 2, 3], np.longlong)),
        (np.frombuffer(b"x" + np.array([0, 2, 1]).tobytes(), np.int64, offset=1), (0, 2, 3)),
    ],
)
def test_any_array_of_integers(values, row_splits):
    assert prepare_lookup(ROWS)(values, row_splits).tolist() == [[6, 8], [3, 4]]


def test_weights_in_any_float_type():
    lookup = prepare_lookup(ROWS)
    for weights in (
        [2, 0, -1],
        np.array([2, 0, -1], np.float16),
        np.array([2, 7, 0, 7, -1], np.float32)[::2],
        np.array([2, 0, -1], np.float32),
    ):
        assert lookup([0, 2, 1], [0, 2, 3], weights).tolist() == [[2, 4], [-3, -4]]


def test_no_bags_no_ids_no_rows():
    for combiner in ("sum", "mean"):
        lookup = prepare_lookup(ROWS, combiner)
        assert lookup(np.array([], np.int64), np.array([0])).shape == (0, 2)
        assert lookup([], [0, 0, 0]).tolist() == [[0, 0], [0, 0]]
        assert lookup(np.array([]), [0, 0]).tolist() == [[0, 0]]
        empty = prepare_lookup(np.empty((0, 2), np.float32), combiner)
        assert empty([], [0, 0]).tolist() == [[0, 0]]


def test_small_batches_stay_in_the_callers_thread_and_large_ones_do_not(monkeypatch):
    calls = []
    monkeypatch.setattr(
        team, "run", lambda count, task: calls.append([task(i) for i in range(count)])
    )
    monkeypatch.setattr(team, "_num_threads", 3)  # of two, one may be the companion
    rows = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    lookup = prepare_lookup(rows)
    small, large = np.zeros(2048, np.int64), np.zeros(200_000, np.int64)
    lookup(small, np.arange(65) * 32)
    assert calls == []
    got = lookup(large, np.arange(2001) * 100)
    assert len(calls) == 1
    ones = np.ones(large.size)  # not of the rows' dtype: bags are not combined as given
    same(lookup(large, np.arange(2001) * 100, ones), got)
    assert len(calls) == 2
    monkeypatch.setattr(prepared_lookup, "_INLINE", large.size * 64)
    same(lookup(large, np.arange(2001) * 100, ones), got)
    assert len(calls) == 2


def test_what_it_tells_of_itself():
    lookup = prepare_lookup(ROWS.astype(np.float16), "mean")
    assert isinstance(lookup, PreparedLookup)
    assert (lookup.combiner, lookup.shape, lookup.dtype) == ("mean", (3, 2), np.float32)
    assert repr(lookup) == "PreparedLookup(shape=(3, 2), dtype=float32, combiner='mean')"


@pytest.mark.parametrize(
    ("params", "combiner", "error", "message"),
    [
        (
            ROWS,
            "max",
            ShardcoreValueError,
            'combiner must be "sum", "mean" or "sqrtn", got \'max\'',
        ),
        (ROWS.astype(int), "sum", ShardcoreTypeError, "dtype of params must be float32, float64"),
        (3, "sum", ShardcoreTypeError, "params must be an array, got int"),
        ([], "sum", ShardcoreTypeError, "params must hold at least one array, got none"),
    ],
)
def test_messages_when_it_is_made(params, combiner, error, message):
    with pytest.raises(error, match=re.escape(message)):
        prepare_lookup(params, combiner)


SMALL = np.empty((2, 2), np.float32)
READ_ONLY = np.empty((2, 2), np.float32)
READ_ONLY.flags.writeable = False
OUT = "out must be writable, aligned, C-contiguous float32 of shape (2, 2), got "


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"values": np.array([0, 3, 1])},
            ShardcoreIndexError,
            "values[1] = 3 is outside the table: must be in [0, 3)",
        ),
        (
            {"values": np.array([0, 2, -1], np.int32)},
            ShardcoreIndexError,
            "values[2] = -1 is outside the table: must be in [0, 3)",
        ),
        (
            {"values": [[0, 2, 1]]},
            ShardcoreValueError,
            "values must be of rank 1, got shape (1, 3)",
        ),
        ({"values": [0.0, 1.0, 2.0]}, ShardcoreTypeError, "values must be integers"),
        ({"values": [True, 1, 2]}, ShardcoreTypeError, "values[0] must be a number, got True"),
        (
            {"values": np.array([0, 2, 2**63], np.uint64)},
            ShardcoreValueError,
            "values[2] = 9223372036854775808 does not fit int64",
        ),
        (
            {"row_splits": np.array([0, 4, 3])},
            ShardcoreValueError,
            "row_splits must be non-decreasing: row_splits[2] = 3 < row_splits[1] = 4",
        ),
        (
            {"row_splits": np.array([1, 3])},
            ShardcoreValueError,
            "row_splits must start at 0, got row_splits[0] = 1",
        ),
        (
            {"row_splits": np.array([0, 4])},
            ShardcoreValueError,
            "row_splits must end at the number of values, 3, got row_splits[1] = 4",
        ),
        (
            {"row_splits": np.array([[0, 3]])},
            ShardcoreValueError,
            "row_splits must be of rank 1, got shape (1, 2)",
        ),
        (
            {"row_splits": np.array([], np.int64)},
            ShardcoreValueError,
            "row_splits must hold at least one entry, the leading 0",
        ),
        (
            {"weights": np.ones(2, np.float32)},
            ShardcoreValueError,
            "weights: weights must have a weight per id, shape (3,), got shape (2,)",
        ),
        (
            {"weights": np.array([1, np.nan, 1], np.float32)},
            ShardcoreValueError,
            "weights: weights must be finite, got nan at position 1",
        ),
        (
            {"weights": [1.0, 2.0, 1e39]},
            ShardcoreValueError,
            "weights: weights[2] = 1e+39 does not fit float32",
        ),
        ({"out": [[0, 0]]}, ShardcoreTypeError, "out must be an ndarray, got list"),
        ({"out": np.empty((3, 2), np.float32)}, ShardcoreValueError, OUT),
        ({"out": np.empty((2, 2))}, ShardcoreValueError, OUT + "float64 of shape (2, 2)"),
        (
            {"out": SMALL.T},
            ShardcoreValueError,
            OUT + "float32 of shape (2, 2) with strides (4, 8)",
        ),
        (
            {"out": READ_ONLY},
            ShardcoreValueError,
            OUT + "float32 of shape (2, 2) with strides (8, 4), read-only",
        ),
    ],
)
def test_messages_of_a_call(parts, changed, error, message):
    lookup = prepare_lookup(np.array_split(ROWS, parts))
    arguments = {"values": np.array([0, 2, 1]), "row_splits": np.array([0, 2, 3]), **changed}
    with pytest.raises(error, match=re.escape(message)):
        lookup(**arguments)


def test_out_must_not_lie_in_what_is_read():
    rows = np.ones((4, 2), np.float32)
    lookup = prepare_lookup([rows[:2], rows[2:]])
    splits, ids, weights = np.array([0, 1]), np.array([2, 2]), np.ones(2, np.float32)
    message = "out must not share memory with the table, values, row_splits or weights"
    for out, arguments in (
        (rows[2:3], (ids[:1], splits)),
        (rows[3:4], (ids[:1], splits)),
        (ids[:1].view(np.float32).reshape(1, 2), (ids[:1], splits)),
        (splits[:1].view(np.float32).reshape(1, 2), (ids[:1], splits)),
        (weights.reshape(1, 2), (ids, np.array([0, 2]), weights)),
    ):
        with pytest.raises(ShardcoreValueError, match=re.escape(message)):
            lookup(*arguments, out=out)
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        prepare_lookup(rows)(ids[:1], splits, out=rows[:1])
    assert (rows == 1).all()
    assert ids.tolist() == [2, 2]
