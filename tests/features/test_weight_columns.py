"""Weights as Arrow columns, and data frames wherever features are a dict."""

from __future__ import annotations

import re
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pytest

import shardcore as sc
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.arrow import read_arrow_weights
from shardcore.ids.formats import as_ragged, as_weights, placed_weights
from shardcore.lookup.lookup import embedding_lookup_sparse, safe_embedding_lookup_sparse
from shardcore.lookup.prepared import prepare_lookup
from shardcore.lookup.serving import serving_embedding_lookup

CLICKS = [[3, 1], [], [2]]
SECONDS = [[0.5, 2.0], [], [4.0]]
WEIGHED = [3.5, 0.0, 8.0]  # sums of row numbers by those weights
ROWS = np.arange(10, dtype=np.float32)[:, None] + np.zeros((1, 2), np.float32)


def polars():
    return pytest.importorskip("polars", reason="polars is not installed")


def pandas():
    return pytest.importorskip("pandas", reason="pandas is not installed")


COLUMNS = {
    "list of float64": lambda v: pa.array(v, pa.list_(pa.float64())),
    "list of float32": lambda v: pa.array(v, pa.list_(pa.float32())),
    "large list of float16": lambda v: pa.array(v, pa.large_list(pa.float16())),
    "in chunks": lambda v: pa.chunked_array([v[:1], v[1:]], pa.list_(pa.float32())),
    "sliced": lambda v: pa.array([[9.0], *v, [9.0]], pa.list_(pa.float32()))[1:-1],
    "polars": lambda v: polars().Series(v, dtype=polars().List(polars().Float32)),
    "pandas": lambda v: pandas().Series(v),
    "pandas in arrow": lambda v: pandas().Series(
        v, dtype=pandas().ArrowDtype(pa.list_(pa.float32()))
    ),
}
each_column = pytest.mark.parametrize("make", COLUMNS.values(), ids=COLUMNS)


def table():
    return sc.TableConfig(10, 2, initializer=sc.initializers.RowId(), combiner="sum", name="t")


def engine(config=None):
    t = table()
    config = {"clicks": sc.FeatureConfig(t)} if config is None else config(t)
    return sc.ShardedEmbedding(config, sc.optimizers.SGD(learning_rate=0.5))


@each_column
def test_a_column_of_lists_weighs_the_ids(make):
    column = make(SECONDS)
    e = engine()
    assert e({"clicks": CLICKS}, {"clicks": column})["clicks"][:, 0].tolist() == WEIGHED
    assert embedding_lookup_sparse(ROWS, CLICKS, column, "sum")[:, 0].tolist() == WEIGHED
    assert safe_embedding_lookup_sparse(ROWS, CLICKS, column, "sum")[:, 0].tolist() == WEIGHED
    mean = safe_embedding_lookup_sparse(ROWS, CLICKS, column, "mean")[:, 0]
    np.testing.assert_allclose(mean, [1.4, 0.0, 2.0])
    served = serving_embedding_lookup(
        {"clicks": CLICKS}, {"clicks": column}, {"t": ROWS}, {"clicks": sc.FeatureConfig(table())}
    )
    assert served["clicks"][:, 0].tolist() == WEIGHED
    values, splits = np.array([3, 1, 2]), np.array([0, 2, 2, 3])
    assert prepare_lookup(ROWS)(values, splits, column)[:, 0].tolist() == WEIGHED


def test_a_column_of_numbers_weighs_the_ids_in_their_order():
    for column in (
        pa.array([0.5, 2.0, 4.0]),
        pa.array([1, 4, 8]),
        pa.chunked_array([[0.5], [2, 4]]),
    ):
        factor = 2.0 if pa.types.is_integer(column.type) else 1.0
        found = engine()({"clicks": CLICKS}, {"clicks": column})["clicks"][:, 0]
        assert (found / factor).tolist() == WEIGHED
    ids = sc.Sparse([[2, 0], [0, 0], [0, 1]], [2, 3, 1], (3, 2))
    found = engine()({"clicks": ids}, {"clicks": pa.array([4.0, 0.5, 2.0])})["clicks"][:, 0]
    assert found.tolist() == WEIGHED


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_weights_in_one_piece_are_not_copied(kind):
    values = np.array([9, 0.5, 2.0, 4.0], kind)
    whole = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3, 4]), pa.array(values))
    found = read_arrow_weights(whole[1:])
    assert found.values.dtype == kind
    assert np.shares_memory(found.values, values)
    flat = read_arrow_weights(pa.array(values))
    assert np.shares_memory(flat, values)
    ragged, _ = as_ragged(CLICKS, "ids")
    given = placed_weights(whole[1:], CLICKS)
    assert np.shares_memory(as_weights(given, ragged, None, "w", np.dtype(kind)), values)


def test_gradients_of_weights_in_a_column():
    e = engine()
    handle = e.lookup({"clicks": CLICKS}, {"clicks": pa.array(SECONDS)})
    found = handle.apply_gradients({"clicks": np.ones((3, 2), np.float32)}, weight_gradients=True)
    assert found["clicks"].tolist() == [6.0, 2.0, 4.0]


REFUSED = [
    (pa.array([[0.5, None], [], [4.0]]), "weights must not be null, got a null at position 1"),
    (
        pa.array([[0.5, 2.0], None, [4.0]]),
        "bags of weights must not be null, got a null at position 1",
    ),
    (pa.array([0.5, 2.0, None]), "weights must not be null, got a null at position 2"),
    (pa.array([["a", "b"], [], ["c"]]), "weights must be real numbers, got pyarrow string"),
    (pa.array([True, False, True]), "weights must be real numbers, got pyarrow bool"),
    (
        pa.array([[[1.0]], [], []]),
        "weights must be real numbers, got pyarrow list<item: double>",
    ),
    (
        pa.array([{"a": 1.0}] * 3),
        "a column of weights must hold lists of numbers, got struct<a: double>",
    ),
    (
        pa.scalar(1.0),
        "weights must be numbers, or lists of numbers, got pyarrow DoubleScalar",
    ),
    (
        pa.array([[0.5], [2.0], [4.0]]),
        "weights must have the row_splits of the ids: bag 0 has 2 ids and 1 weights",
    ),
    (pa.array([[0.5, 2.0]]), "weights must have the bags of the ids, 3, got 1"),
    (pa.array([0.5]), "weights must have a weight per id, shape (3,), got shape (1,)"),
    (
        pa.array([[0.5, 2.0], [], [np.nan]]),
        "weights must be finite, got nan at position 2",
    ),
]


@pytest.mark.parametrize(("column", "text"), REFUSED)
def test_refused_columns(column, text):
    e, told = engine(), re.escape(f"weights['clicks']: {text}")
    with pytest.raises(ShardcoreError, match=f"^{told}$"):
        e.enqueue({"clicks": CLICKS}, {"clicks": column})
    assert e.in_flight == 0


# --- frames --------------------------------------------------------------------------------------


def of_pyarrow(columns):
    return pa.table(columns)


def of_pandas(columns):
    return pandas().DataFrame({name: pandas().Series(v) for name, v in columns.items()})


def of_polars(columns):
    return polars().DataFrame(columns)


FRAMES = {
    "pyarrow": of_pyarrow,
    "reader": lambda c: pa.table(c).to_reader(),
    "pandas": of_pandas,
    "polars": of_polars,
}
each_frame = pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
BATCH = {"seconds": SECONDS, "clicks": CLICKS, "user": [4, 0, 9]}


def two(t):
    return {"clicks": sc.FeatureConfig(t), "user": sc.FeatureConfig(t)}


@each_frame
def test_weights_by_the_name_of_a_column(make):
    found = engine(two)(make(BATCH), {"clicks": "seconds", "user": None})
    assert found["clicks"][:, 0].tolist() == WEIGHED
    assert found["user"][:, 0].tolist() == [4, 0, 9]


@each_frame
def test_weights_as_a_frame(make):
    weights = make({"clicks": SECONDS, "user": [1.0, 1.0, 2.0], "other": ["a", "b", "c"]})
    found = engine(two)(make(BATCH), weights)
    assert found["clicks"][:, 0].tolist() == WEIGHED
    assert found["user"][:, 0].tolist() == [4, 0, 18]
    lists = {"clicks": CLICKS, "user": np.array([4, 0, 9])}
    found = engine(two)(lists, make({"clicks": SECONDS, "user": [1.0, 1.0, 2.0]}))
    assert found["clicks"][:, 0].tolist() == WEIGHED


Sides = namedtuple("Sides", ["left", "right"])


@each_frame
@pytest.mark.parametrize("container", [list, tuple, dict, Sides])
def test_frames_in_a_nested_structure(make, container):
    def config(t):
        left, right = two(t), sc.FeatureConfig(t)
        return holds(left, right)

    def holds(left, right):
        if container is dict:
            return {"left": left, "right": right}
        return Sides(left, right) if container is Sides else container([left, right])

    e = engine(config)
    ids = [[1, 1], [7], []]
    found = e(holds(make(BATCH), ids), holds({"clicks": "seconds", "user": None}, None))
    left, right = found.values() if container is dict else found
    assert left["clicks"][:, 0].tolist() == WEIGHED
    assert left["user"][:, 0].tolist() == [4, 0, 9]
    assert right[:, 0].tolist() == [2, 7, 0]
    assert type(found) is container
    weights = holds(make({"clicks": SECONDS, "user": [2.0, 2.0, 2.0]}), None)
    found = e(holds({"clicks": CLICKS, "user": np.array([4, 0, 9])}, ids), weights)
    left = found["left"] if container is dict else found[0]
    assert left["clicks"][:, 0].tolist() == WEIGHED
    assert left["user"][:, 0].tolist() == [8, 0, 18]


@each_frame
def test_frames_are_served(make):
    of_both = table()
    config = {"side": two(of_both), "more": sc.FeatureConfig(of_both)}
    found = serving_embedding_lookup(
        {"side": make(BATCH)}, {"side": {"clicks": "seconds"}}, {"t": ROWS}, config
    )
    assert list(found) == ["side"]
    assert found["side"]["clicks"][:, 0].tolist() == WEIGHED
    assert found["side"]["user"][:, 0].tolist() == [4, 0, 9]


@each_frame
def test_a_served_frame_leaves_out_features_without_a_column(make):
    found = serving_embedding_lookup(make({"user": [4], "x": [1]}), None, {"t": ROWS}, two(table()))
    assert {name: array[:, 0].tolist() for name, array in found.items()} == {"user": [4.0]}


def test_a_served_frame_without_any_column_is_refused():
    text = (
        "inputs['clicks'] is missing: it is configured, and the pyarrow Table has no such column "
        "but 'click'"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        serving_embedding_lookup(pa.table({"click": CLICKS}), None, {"t": ROWS}, two(table()))


@pytest.mark.parametrize("make", [of_pyarrow, of_pandas, of_polars])
def test_a_column_is_bags_of_a_prepared_lookup(make):
    frame = make(BATCH)
    lookup = prepare_lookup(ROWS)
    assert lookup(frame["clicks"])[:, 0].tolist() == [4, 0, 2]
    assert lookup(frame["clicks"], weights=frame["seconds"])[:, 0].tolist() == WEIGHED
    assert lookup(sc.Ragged.from_lists(CLICKS))[:, 0].tolist() == [4, 0, 2]
    assert lookup(sc.Ragged([3], [0, 1], [2.0]))[:, 0].tolist() == [6]
    with pytest.raises(IndexError, match=re.escape("values[2] = 10 is outside the table")):
        lookup([[3, 1], [10]])


def test_frames_that_are_refused():
    nested = engine(lambda t: {"side": two(t), "user": sc.FeatureConfig(t)})
    frame = of_pyarrow(BATCH)
    text = (
        "features must be a dict, as it is configured, got Table: a data frame stands for a dict "
        "of features alone, and features['side'] holds more; give one there"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        nested(frame)
    flat = engine(two)
    text = (
        "weights['clicks'] names the column 'second', and the pyarrow Table has no such column but "
        "'seconds', 'clicks', 'user'"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        flat(frame, {"clicks": "second", "user": None})
    text = (
        "weights['user'] is missing: it is configured, and the pyarrow Table has no such column "
        "but 'clicks'"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        flat(frame, of_pyarrow({"clicks": SECONDS}))
    text = (
        "weights['clicks']: weights must be None, a Ragged or Sparse of floats, or an array "
        "aligned with the ids, got str; the column of that name is meant where features come as "
        "a data frame"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        flat({"clicks": CLICKS, "user": np.array([1])}, {"clicks": "seconds", "user": None})


def test_a_lazy_frame_is_to_be_collected():
    lazy = polars().LazyFrame(BATCH)
    told = "must have values, got a polars LazyFrame, which has none yet: give frame.collect()"
    for call, what in (
        (lambda: engine(two)(lazy), "features"),
        (lambda: engine(two)(lazy.collect(), lazy), "weights"),
        (lambda: engine(lambda t: [two(t)])([lazy]), "features[0]"),
        (lambda: serving_embedding_lookup(lazy, None, {"t": ROWS}, two(table())), "inputs"),
    ):
        with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(f'{what} {told}')}$"):
            call()
    hint = "got LazyFrame; frame.collect() gives its values"
    with pytest.raises(ShardcoreTypeError, match=f"{re.escape(hint)}$"):
        engine()({"clicks": lazy})
