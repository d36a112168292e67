"""Data frames as features, of every library that is here; an engine reads the columns by name."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

import shardcore as sc
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError


class Frame:
    """A data frame of some library that is known by the protocol alone."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


COLUMNS = {
    "user": [4, 0, 9],
    "clicks": [[3, 1], [], [2]],
    "pairs": [[1, 2], [3, 4], [5, 6]],
    "text": ["a", None, "c"],
    "nested": [[[1]], [[2, 3]], []],
}
TYPES = {"clicks": pa.list_(pa.int32()), "pairs": pa.list_(pa.int64(), 2)}


def of_pyarrow(columns):
    return pa.table({name: pa.array(v, TYPES.get(name)) for name, v in columns.items()})


def of_pandas(columns):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return pandas.DataFrame({name: pandas.Series(v) for name, v in columns.items()})


def of_pandas_in_arrow(columns):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    return of_pyarrow(columns).to_pandas(types_mapper=pandas.ArrowDtype)


def of_polars(columns):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    types = {"clicks": polars.List(polars.Int32), "pairs": polars.Array(polars.Int64, 2)}
    types = {name: kind for name, kind in types.items() if name in columns}
    return polars.DataFrame(columns, schema_overrides=types)


FRAMES = {
    "pyarrow table": of_pyarrow,
    "pyarrow table in chunks": lambda c: pa.concat_tables([of_pyarrow(c)[:1], of_pyarrow(c)[1:]]),
    "pyarrow batch": lambda c: of_pyarrow(c).to_batches()[0],
    "pyarrow reader": lambda c: of_pyarrow(c).to_reader(),
    "pandas": of_pandas,
    "pandas in arrow": of_pandas_in_arrow,
    "polars": of_polars,
    "by the protocol": lambda c: Frame(of_pyarrow(c)),
}
NAMES = ("pairs", "user", "clicks")
each_frame = pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)


@pytest.fixture
def engine():
    """Return a function: keywords for each feature -> an engine of NAMES."""

    def make(**options):
        table = sc.TableConfig(10, 3, initializer=sc.initializers.RowId(), name="t", combiner="sum")
        config = {name: sc.FeatureConfig(table, **options) for name in NAMES}
        return sc.ShardedEmbedding(config, sc.optimizers.SGD(learning_rate=0.5))

    return make


@each_frame
@pytest.mark.parametrize("pipeline", [False, True])
def test_columns_are_features_by_name(make, pipeline):
    table = sc.TableConfig(10, 3, initializer=sc.initializers.RowId(), name="t", combiner="sum")
    results = []
    for batch in (make(COLUMNS), {"user": np.array(COLUMNS["user"]), **lists("clicks", "pairs")}):
        config = {name: sc.FeatureConfig(table) for name in NAMES}
        rate = sc.optimizers.SGD(learning_rate=0.5)
        with sc.ShardedEmbedding(config, rate, pipeline=pipeline) as e:
            e.enqueue(batch)
            found = e.dequeue()
            assert list(found) == list(NAMES)
            e.apply_gradients({name: np.ones_like(array) for name, array in found.items()})
            results.append((found, np.asarray(e.tables["t"])))
    (found, rows), (expected, expected_rows) = results
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name], strict=True)
    np.testing.assert_array_equal(found["user"][:, 0], COLUMNS["user"])
    np.testing.assert_array_equal(rows, expected_rows, strict=True)


def lists(*names):
    return {name: COLUMNS[name] for name in names}


@pytest.mark.parametrize("name", [one for one in FRAMES if "reader" not in one and "by" not in one])
def test_one_column_is_one_feature(name, engine):
    frame = FRAMES[name](lists("user", "clicks", "pairs"))
    found = engine()({name: frame[name] for name in NAMES})
    np.testing.assert_array_equal(found["clicks"][:, 0], [4, 0, 2])
    np.testing.assert_array_equal(found["pairs"][:, 0], [3, 7, 11])
    np.testing.assert_array_equal(found["user"][:, 0], [4, 0, 9])


WITH_NULLS = {
    "user": [4, None, 9],
    "clicks": [[3, None], None, [2]],
    "pairs": [[1, 2], None, [5, None]],
}
NULLABLE = [name for name in FRAMES if name != "pandas"]  # there integers with nulls are floats


@pytest.mark.parametrize("name", NULLABLE)
def test_nulls_go_by_their_policy(name, engine):
    frame = FRAMES[name]
    for nulls, expected in (
        ("drop", {"user": [4, 0, 9], "clicks": [3, 0, 2], "pairs": [3, 0, 5]}),
        (8, {"user": [4, 8, 9], "clicks": [11, 0, 2], "pairs": [3, 0, 13]}),
    ):
        e = engine(nulls=nulls)
        found = e(frame(WITH_NULLS))
        assert {name: found[name][:, 0].tolist() for name in NAMES} == expected
        assert e.metrics()["invalid_ids"] == 0
    hint = "; FeatureConfig(nulls=...) has other policies"
    text = f"features['pairs']: bags must not be null, got a null at position 1{hint}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        engine()(frame(WITH_NULLS))


def test_a_null_integer_of_pandas_is_a_float_and_refused(engine):
    frame = of_pandas({**COLUMNS, "user": [4, None, 9]})
    text = "features['user']: ids must be integers, got dtype float64"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}"):
        engine(nulls="drop")(frame)
    as_integers = frame.assign(user=frame["user"].astype("Int64"))
    found = engine(nulls="drop")(as_integers)
    np.testing.assert_array_equal(found["user"][:, 0], [4, 0, 9])


@each_frame
def test_columns_that_are_missing_or_of_another_type(make, engine):
    frame = make(lists("user", "text", "clicks"))
    kind = f"{type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
    text = (
        f"features['pairs'] is missing: it is configured, and the {kind} has no such column "
        "but 'user', 'text', 'clicks'"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        engine()(frame)
    for column, text in (
        ("nested", "values must be integers, got pyarrow (large_)?list<(item|element): int64>"),
        ("text", "ids must not be null, got a null at position 1"),
    ):
        frame = make({"user": COLUMNS[column], **lists("pairs", "clicks")})
        with pytest.raises(ShardcoreError, match=rf"^features\['user'\]: {text}"):
            engine()(frame)
    frame = make({"user": ["a", "b", "c"], **lists("pairs", "clicks")})
    text = r"^features\['user'\]: ids must be integers, got pyarrow (large_)?string(_view)?$"
    with pytest.raises(ShardcoreTypeError, match=text):
        engine()(frame)


def test_many_columns_are_not_all_told(engine):
    frame = pa.table({f"c{at}": [1] for at in range(11)})
    listed = ", ".join(f"'c{at}'" for at in range(8))
    text = (
        "features['pairs'] is missing: it is configured, and the pyarrow Table has no such column "
        f"but {listed}, ... 3 more"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        engine()(frame)
    text = text.partition(" but ")[0] + " but none at all"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        engine()(pa.table({}))


@pytest.mark.parametrize("package", ["pyarrow", "pandas"])
def test_a_name_twice_is_refused(package, engine):
    names = ["pairs", "user", "clicks", "user"]
    frame = pa.Table.from_arrays([pa.array([[1]]), *[pa.array([1])] * 3], names=names)
    kind = "pyarrow Table"
    if package == "pandas":
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        frame = pandas.DataFrame([[[1], 1, 1, 1]], columns=names)
        kind = "pandas DataFrame"
    text = f"features['user'] must be one column, got 2 of this name in the {kind}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        engine()(frame)


def test_what_is_no_data_frame_is_refused(engine):
    column = pa.chunked_array([[1, 2]])
    text = (
        "features must be a dict, as it is configured, or a data frame; "
        "a pyarrow ChunkedArray cannot be read as one: "
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}"):
        engine()(column)


def test_a_refused_frame_changes_nothing(engine):
    e = engine()
    with pytest.raises(IndexError, match=re.escape("features['user']: ids[1] = 10 is outside")):
        e.enqueue(of_pyarrow({**COLUMNS, "user": [4, 10, 9]}))
    assert e.in_flight == 0
    e.enqueue(of_pyarrow(COLUMNS))
    assert e.in_flight == 1


# --- strings -------------------------------------------------------------------------------------

HASH = sc.Hash(1000, seed=5)
LONG = "longer than a view can hold"
TEXTS = {"word": ["user:7", "é", LONG], "tags": [["é", "user:7", "é"], [], [""]]}
TEXTS_WITH_NULLS = {"word": ["user:7", None, LONG], "tags": [["é", None], None, ["é"]]}


def hashing_engine(**options):
    rows = sc.initializers.RowId()
    table = sc.TableConfig(1009, 2, initializer=rows, name="t", combiner="sum")
    config = {name: sc.FeatureConfig(table, hash=HASH, **options) for name in TEXTS}
    return sc.ShardedEmbedding(config)


def row(word):
    return float(HASH([word])[0])


@each_frame
def test_columns_of_strings_are_hashed(make):
    found = hashing_engine()(make({**TEXTS, "pairs": COLUMNS["pairs"]}))
    assert found["word"][:, 0].tolist() == [row(word) for word in TEXTS["word"]]
    assert found["tags"][:, 0].tolist() == [sum(map(row, bag)) for bag in TEXTS["tags"]]


@each_frame
def test_nulls_among_strings_go_by_their_policy(make):
    for nulls, of_null in (("drop", 0.0), (1005, 1005.0)):
        found = hashing_engine(nulls=nulls)(make(TEXTS_WITH_NULLS))
        assert found["word"][:, 0].tolist() == [row("user:7"), of_null, row(LONG)]
        assert found["tags"][:, 0].tolist() == [row("é") + of_null, 0.0, row("é")]
    text = (
        "features['word']: ids must not be null, got a null at position 1; "
        "FeatureConfig(nulls=...) has other policies"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        hashing_engine()(make(TEXTS_WITH_NULLS))


WORDS = ["user:7", None, "é", "user:7"]


def of_words(series):
    table = sc.TableConfig(1009, 2, initializer=sc.initializers.RowId(), name="t")
    feature = sc.FeatureConfig(table, hash=HASH, nulls=1005)
    return sc.ShardedEmbedding(feature)(series)[:, 0].tolist()


EXPECTED = [row("user:7"), 1005.0, row("é"), row("user:7")]


@pytest.mark.parametrize("kind", ["str", "category", "object", "string[python]", "string[pyarrow]"])
def test_every_kind_of_strings_of_pandas(kind):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert of_words(pandas.Series(WORDS, dtype=kind)) == EXPECTED


@pytest.mark.parametrize("kind", ["String", "Categorical", "Enum", "Binary"])
def test_every_kind_of_strings_of_polars(kind):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    dtype = polars.Enum(["é", "user:7"]) if kind == "Enum" else getattr(polars, kind)
    words = [word and word.encode() for word in WORDS] if kind == "Binary" else WORDS
    assert of_words(polars.Series(words, dtype=dtype)) == EXPECTED
    listed = polars.Series([words[:1], words[2:]], dtype=polars.List(dtype))
    assert of_words(listed) == [EXPECTED[0], (EXPECTED[2] + EXPECTED[3]) / 2]
