from __future__ import annotations

import dataclasses
import re
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pytest
import scipy.sparse

import shardcore as sc
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import table_names
from shardcore.lookup.serving import serving_embedding_lookup
from shardcore.variable import indexing

VIDEO = sc.TableConfig(8, 4, combiner="sum", name="video")
USER = sc.TableConfig(16, 2, combiner="mean", name="user")
CONFIG = {
    "watched": sc.FeatureConfig(VIDEO),
    "favorited": sc.FeatureConfig(VIDEO),
    "friends": sc.FeatureConfig(USER),
}
VIDEO_ROWS = np.arange(32, dtype=np.float32).reshape(8, 4)
USER_ROWS = np.arange(32, dtype=np.float32).reshape(16, 2)
TABLES = {VIDEO: VIDEO_ROWS, USER: USER_ROWS}
INPUTS = {"watched": [[0], [0, 1]], "favorited": [[0, 1], [1]], "friends": [[3], [0, 1, 2]]}
BAGS = [[1, 4, 4], [], [7], [2, 0, 5, 1], []]
IDS = np.array([1, 4, 4, 7, 2, 0, 5, 1])
SPLITS = np.array([0, 3, 3, 4, 8, 8])
WEIGHTS = np.array([0.5, 2, -1, 0.1, 1, 3, -2.5, 1], np.float32)


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def forms(bags: list[list[int]]) -> dict[str, Any]:
    ids = np.array([i for bag in bags for i in bag], np.int64)
    splits = np.cumsum([0, *map(len, bags)])
    rows = np.repeat(np.arange(len(bags)), np.diff(splits))
    places = np.concatenate([np.arange(len(bag)) for bag in bags]).astype(np.int64)
    width = max(map(len, bags))
    return {
        "lists": bags,
        "pair": (ids.astype(np.int32), splits),
        "ragged": sc.Ragged(ids, splits),
        "sparse": sc.Sparse(np.stack([rows, places], 1), ids, (len(bags), width)),
        "arrow": pyarrow.array(bags, pyarrow.list_(pyarrow.int64())),
        "csr": scipy.sparse.csr_array(
            (np.ones(ids.size), ids, splits), shape=(len(bags), int(ids.max()) + 1)
        ),
    }


def test_the_fixture_of_two_tables():
    out = serving_embedding_lookup(INPUTS, None, TABLES, CONFIG)
    assert list(out) == list(CONFIG)
    assert out["watched"].tolist() == [[0, 1, 2, 3], [4, 6, 8, 10]]
    assert out["favorited"].tolist() == [[4, 6, 8, 10], [4, 5, 6, 7]]
    assert out["friends"].tolist() == [[6, 7], [2, 3]]
    assert sum(float((x**2).sum(axis=1).mean()) for x in out.values()) == 335


def test_a_bare_feature_and_dense_ids_of_any_rank():
    feature = sc.FeatureConfig(VIDEO)
    out = serving_embedding_lookup(np.array([2, 0]), None, TABLES, feature)
    same(out, VIDEO_ROWS[[2, 0]])
    deep = np.array([[[1], [2]], [[3], [0]]])
    same(serving_embedding_lookup(deep, None, TABLES, feature), VIDEO_ROWS[deep[..., 0]])


def test_weights_of_ragged_and_sparse_ids():
    tables = {"t": np.array([[0, 1], [2, 3], [4, 5]], np.float32)}
    for combiner, want in (("mean", [0, 0]), ("sqrtn", [-4 / 2**0.5, -4 / 2**0.5])):
        config = sc.FeatureConfig(sc.TableConfig(3, 2, combiner=combiner, name="t"))
        out = serving_embedding_lookup([[0, 1, 2]], [1.0, 0.0, -1.0], tables, config)
        np.testing.assert_allclose(out, [want], rtol=1e-6)


def test_sparse_weights_lie_where_the_sparse_ids_do():
    rows = np.array([[0, 1], [2, 3], [4, 5]], np.float32)
    config = {"a": sc.FeatureConfig(sc.TableConfig(3, 2, combiner="sum", name="t"))}
    places = [[2, 0], [0, 1], [2, 1], [0, 0]]
    ids = {"a": sc.Sparse(places, [1, 2, 0, 1], (3, 2))}
    weights = {"a": sc.Sparse(places, [2.0, 3.0, 5.0, -1.0], (3, 2))}
    out = serving_embedding_lookup(ids, weights, {"t": rows}, config)["a"]
    same(out, np.stack([3 * rows[2] - rows[1], 0 * rows[0], 2 * rows[1] + 5 * rows[0]]))
    moved = {"a": sc.Sparse(places[::-1], [2.0, 3.0, 5.0, -1.0], (3, 2))}
    message = (
        "weights['a']: weights must have the places of the ids: indices[0] is [0, 0], "
        "of the ids [2, 0]"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        serving_embedding_lookup(ids, moved, {"t": rows}, config)
    message = "weights['a']: weights may be Sparse only where the ids are, got ids of type list"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(message)}$"):
        serving_embedding_lookup({"a": [[1]]}, weights, {"t": rows}, config)


# as the engine


@pytest.fixture(scope="module")
def engine():
    tables = {
        combiner: sc.TableConfig(8, 5, combiner=combiner, name=combiner, layout=layout)
        for combiner, layout in (("sum", "div"), ("mean", "mod"), ("sqrtn", "div"))
    }
    wide = sc.TableConfig(8, 3, dtype="float64")
    short = sc.TableConfig(8, 3, dtype="float16", name="short")
    config = {
        **{combiner: sc.FeatureConfig(table) for combiner, table in tables.items()},
        "shaped": sc.FeatureConfig(tables["mean"], output_shape=(5, 1)),
        "sequence": sc.FeatureConfig(tables["sum"], max_sequence_length=2),
        "wide": sc.FeatureConfig(wide),
        "short": sc.FeatureConfig(short),
    }
    with sc.ShardedEmbedding(config, backend="sim", backend_options={"hosts": 3}) as e:
        e.build()
        yield config, e


@pytest.mark.parametrize("form", forms(BAGS))
@pytest.mark.parametrize("hold", ["views", "names", "arrays", "shards"])
def test_every_form_is_what_the_engine_gives(engine, form, hold):
    config, e = engine
    leaf = forms(BAGS)[form]
    asked = [name for name in config if name != "sequence" or form != "csr"]
    tables = {
        "views": e.embedding_tables,
        "names": e.tables,
        "arrays": {config: np.asarray(rows) for config, rows in e.embedding_tables.items()},
        "shards": {
            name: rows.copy() if rows.layout.strategy == "mod" else rows.shards
            for name, rows in e.tables.items()
        },
    }[hold]
    inputs = dict.fromkeys(asked, leaf)
    weights = {name: WEIGHTS for name in asked if name != "sequence" and form != "csr"}
    got = serving_embedding_lookup(inputs, weights, tables, config)
    whole_weights = {name: weights.get(name) for name in config}
    if form == "csr":  # a sequence takes no weights, and SciPy's data are some
        inputs["sequence"] = BAGS
    want = e(inputs, whole_weights)
    assert list(got) == asked
    for name in asked:
        same(got[name], want[name])


@pytest.mark.parametrize("policy", ["drop", "zero", "clip", 3])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("length", [0, 2])
def test_invalid_ids_are_what_the_engine_makes_of_them(policy, combiner, length):
    table = sc.TableConfig(6, 3, combiner=combiner, name="t")
    config = sc.FeatureConfig(table, invalid_ids=policy, max_sequence_length=length)
    bags = [[-1, 2], [9, 9], [], [5, 7, 0, 2**40]]
    weights = None if length else np.arange(1.0, 9)
    with sc.ShardedEmbedding(config) as e:
        want = e(bags, weights)
        for rows in (e.tables["t"], np.asarray(e.tables["t"])):
            same(serving_embedding_lookup(bags, weights, {"t": rows}, config), want)


def test_blocks_do_not_change_the_sums(monkeypatch):
    monkeypatch.setattr(indexing, "BLOCK_BYTES", 64)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 7)).astype(np.float32)
    config = sc.FeatureConfig(sc.TableConfig(50, 7, name="t"))
    splits = np.cumsum([0, *rng.integers(0, 9, 40)])
    leaf, weights = (rng.integers(0, 50, splits[-1]), splits), rng.standard_normal(splits[-1])
    whole = serving_embedding_lookup(leaf, weights, {"t": rows}, config)
    for parts in ([rows[:13], rows[13:13], rows[13:]], sc.ShardedVariable([rows[:1], rows[1:]])):
        same(serving_embedding_lookup(leaf, weights, {"t": parts}, config), whole)
    same(serving_embedding_lookup(leaf, weights, {"t": np.asfortranarray(rows)}, config), whole)


def test_shards_are_not_put_together():
    rows = [np.ones((100_000, 16), np.float32) for _ in range(4)]
    config = sc.FeatureConfig(sc.TableConfig(400_000, 16, combiner="sum", name="t"))
    tracemalloc.start()
    try:
        out = serving_embedding_lookup([[0, 399_999], [250_000]], None, {"t": rows}, config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out[:, 0].tolist() == [2, 1]
    assert peak < 1 << 20


def test_short_rows_may_stand_in_for_float32():
    config = sc.FeatureConfig(sc.TableConfig(3, 2, combiner="sum", name="t"))
    rows = np.array([[1, 2], [3, 4], [5, 6]], np.float16)
    out = serving_embedding_lookup([[0, 2]], None, {"t": rows}, config)
    same(out, np.array([[6, 8]], np.float32))


def test_an_automatic_name_counts_among_exactly_these_tables():
    first, second = sc.TableConfig(8, 4), sc.TableConfig(16, 2, name="user")
    config = [sc.FeatureConfig(first), sc.FeatureConfig(second)]
    tables = {"table_0": VIDEO_ROWS, "user": USER_ROWS}
    out = serving_embedding_lookup([[[2]], None], None, tables, config)
    same(out[0], VIDEO_ROWS[[2]])
    message = (
        "inputs[0] needs a table with the automatic name 'table_0', which means nothing to another "
        "set of tables: tables has 'table_0', feature_config 'table_0', 'user'; name the table or "
        "give it by its TableConfig"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup([[[2]], None], None, {"table_0": VIDEO_ROWS}, config)


# quantization


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_quantized_rows_are_rounded_before_they_are_combined(parts, dtype):
    quantization = sc.QuantizationConfig(5, -1.0, 1.0)
    table = sc.TableConfig(6, 2, name="t", dtype=dtype, quantization_config=quantization)
    rows = np.linspace(-1.4, 1.3, 12).reshape(6, 2).astype(dtype)
    config = {"bag": sc.FeatureConfig(table), "seq": sc.FeatureConfig(table, 2)}
    tables = {"t": np.array_split(rows, parts)}
    bags = [[0, 3, 3], [], [5]]
    out = serving_embedding_lookup(dict.fromkeys(config, bags), None, tables, config)
    seen = np.floor((np.clip(rows.astype(np.float64), -1, 1) + 1) / 0.5 + 0.5) * 0.5 - 1
    want = np.stack([seen[[0, 3, 3]].mean(axis=0), [0, 0], seen[5]])
    np.testing.assert_allclose(out["bag"], want, rtol=1e-6)
    assert out["bag"].dtype == (np.float64 if dtype == "float64" else np.float32)
    padding = np.zeros(2)
    np.testing.assert_array_equal(
        out["seq"], [[seen[0], seen[3]], [padding, padding], [seen[5], padding]]
    )
    assert rows[0, 0] != seen[0, 0]  # the table itself is not rounded


# parts of the structure


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Both:
    user: Any
    item: Any


def test_features_left_out_are_left_out_of_the_result():
    feature = sc.FeatureConfig(VIDEO)
    nested = {"a": {"x": feature, "y": feature}, "b": [feature, feature], "c": feature}
    ids, rows = [[3]], VIDEO_ROWS[[3]]
    look = serving_embedding_lookup
    out = look({"b": [None, ids], "a": {"y": ids}}, None, TABLES, nested)
    assert list(out) == ["a", "b"]
    assert list(out["a"]) == ["y"]
    assert out["b"][0] is None
    same(out["a"]["y"], rows)
    same(out["b"][1], rows)
    assert look({"a": {}}, None, TABLES, nested) == {"a": {}}
    pair = look(Pair(None, ids), None, TABLES, Pair(feature, feature))
    assert isinstance(pair, Pair)
    assert pair.left is None
    same(pair.right, rows)
    both = look(Both(ids, None), None, TABLES, Both(feature, {"deep": feature}))
    assert isinstance(both, Both)
    assert both.item is None
    same(both.user, rows)
    assert look((None,), None, TABLES, (feature,)) == (None,)


def test_weights_may_leave_features_out_too():
    inputs = {"watched": [[1, 2]], "favorited": [[1, 2]]}
    out = serving_embedding_lookup(inputs, {"favorited": [2.0, 0.0]}, TABLES, CONFIG)
    same(out["watched"], VIDEO_ROWS[[1]] + VIDEO_ROWS[[2]])
    same(out["favorited"], 2 * VIDEO_ROWS[[1]])
    listed = [sc.FeatureConfig(VIDEO), sc.FeatureConfig(VIDEO)]
    one = serving_embedding_lookup([[[1]], [[1]]], [None, [3.0]], TABLES, listed)
    same(one[1], 3 * one[0])


@pytest.mark.parametrize(
    ("inputs", "weights", "error", "message"),
    [
        (
            {"watched": [[0]], "wached": [[0]]},
            None,
            ShardcoreValueError,
            "inputs['wached'] is not configured: "
            "feature_config has ['watched'], ['favorited'], ['friends'] there",
        ),
        (
            {"watched": [[0]]},
            {"wached": [1.0]},
            ShardcoreValueError,
            "weights['wached'] is not configured: ",
        ),
        (
            {"watched": [[0]]},
            {"friends": [1.0]},
            ShardcoreValueError,
            "weights['friends'] has no ids: inputs['friends'] is left out",
        ),
        ([[[0]]], None, ShardcoreTypeError, "inputs must be a dict, as it is configured, got list"),
        (
            {"watched": [[0, 8]]},
            None,
            ShardcoreIndexError,
            "inputs['watched']: ids[1] = 8 is outside table 'video': must be in [0, 8)",
        ),
        ({"watched": None}, None, ShardcoreTypeError, "inputs['watched']: ids must be "),
        (
            {"watched": [[0]]},
            {"watched": [1.0, 2.0]},
            ShardcoreValueError,
            "weights['watched']: weights must have a weight per id",
        ),
    ],
)
def test_messages_about_inputs(inputs, weights, error, message):
    with pytest.raises(error, match=re.escape(message)):
        serving_embedding_lookup(inputs, weights, TABLES, CONFIG)


def test_messages_about_containers_by_place():
    feature = sc.FeatureConfig(VIDEO)
    message = "inputs must have 2 entries, as it is configured, got 1"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup([[[0]]], None, TABLES, [feature, feature])

    @dataclasses.dataclass
    class User:
        user: Any

    message = "inputs.item is missing: give None to leave it out"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup(User([[0]]), None, TABLES, Both(feature, feature))
    message = "inputs.item is not configured: feature_config has .user there"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup(Both([[0]], [[0]]), None, TABLES, User(feature))
    message = "inputs['x'] is not configured: feature_config has no entry there"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup({"x": [[0]]}, None, TABLES, {})
    message = "feature_config['a'] must be a FeatureConfig, or a dict"
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        serving_embedding_lookup({"a": [[0]]}, None, TABLES, {"a": VIDEO})


MOD = sc.TableConfig(4, 2, name="mod", layout="mod")
TWIN = sc.TableConfig(8, 4, name="video")


@pytest.mark.parametrize(
    ("tables", "config", "error", "message"),
    [
        ([VIDEO_ROWS], VIDEO, ShardcoreTypeError, "tables must be a mapping, got list"),
        (
            {0: VIDEO_ROWS},
            VIDEO,
            ShardcoreTypeError,
            "tables must have TableConfigs or names of tables as keys, got 0",
        ),
        (
            {"user": USER_ROWS},
            VIDEO,
            ShardcoreValueError,
            "inputs needs table 'video', which tables must have: it has 'user'",
        ),
        (
            {},
            VIDEO,
            ShardcoreValueError,
            "inputs needs table 'video', which tables must have: it has none",
        ),
        (
            {TWIN: VIDEO_ROWS},
            VIDEO,
            ShardcoreValueError,
            "it has TableConfig(8, 4, name='video'); a TableConfig is equal only to itself",
        ),
        (
            {VIDEO: VIDEO_ROWS, "video": VIDEO_ROWS},
            VIDEO,
            ShardcoreValueError,
            "tables must have table 'video' once, got it by its TableConfig and by its name",
        ),
        (
            {VIDEO: USER_ROWS},
            VIDEO,
            ShardcoreValueError,
            "tables['video'] must have shape (8, 4), got (16, 2)",
        ),
        (
            {VIDEO: VIDEO_ROWS.astype(np.float64)},
            VIDEO,
            ShardcoreTypeError,
            "tables['video'] must be float32 or float16 or bfloat16, as its configuration is "
            "combined in float32, got dtype float64",
        ),
        (
            {VIDEO: VIDEO_ROWS.astype(">f4")},
            VIDEO,
            ShardcoreTypeError,
            "tables['video'] must be float32 or float16 or bfloat16, as its configuration is "
            "combined in float32, got dtype >f4",
        ),
        (
            {VIDEO: [VIDEO_ROWS, USER_ROWS]},
            VIDEO,
            ShardcoreValueError,
            "tables['video']: params must have one row shape",
        ),
        (
            {"mod": [USER_ROWS[:2], USER_ROWS[2:4]]},
            MOD,
            ShardcoreValueError,
            "tables['mod'] must be a ShardedVariable or one array, got 2 shards: its layout is "
            '"mod", and the shards of a list hold consecutive rows',
        ),
    ],
)
def test_messages_about_tables(tables, config, error, message):
    with pytest.raises(error, match=re.escape(message)):
        serving_embedding_lookup([[0]], None, tables, sc.FeatureConfig(config))


def test_tables_of_one_name_are_refused():
    config = [sc.FeatureConfig(VIDEO), sc.FeatureConfig(VIDEO), sc.FeatureConfig(TWIN)]
    message = (
        "tables must have distinct names: feature_config[0] and feature_config[2] "
        "use different tables named 'video'"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup([None, None, None], None, TABLES, config)
    named = sc.TableConfig(1, 1, name="table_1")
    features = [("a", sc.FeatureConfig(named)), ("b", sc.FeatureConfig(sc.TableConfig(1, 1)))]
    message = "tables must have distinct names: a and b use different tables named 'table_1'"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        table_names(features)


# for serving: sequences and output shapes


def test_sequences_against_numpy():
    config = sc.FeatureConfig(USER, max_sequence_length=2)
    for leaf in forms([[3], [0, 1, 2], []]).items():
        if leaf[0] == "csr":
            continue
        out = serving_embedding_lookup(leaf[1], None, TABLES, config)
        assert out.tolist() == [[[6, 7], [0, 0]], [[0, 1], [2, 3]], [[0, 0], [0, 0]]]
    message = "weights: weights are refused for a sequence"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup([[3]], [1.0], TABLES, config)


def test_output_shapes():
    bags = [[0], [0, 1], [0, 1], [1]]
    config = sc.FeatureConfig(USER, output_shape=(2, 2))
    out = serving_embedding_lookup(bags, None, TABLES, config)
    assert out.tolist() == [[[0, 1], [1, 2]], [[1, 2], [2, 3]]]
    wrong = sc.FeatureConfig(USER, output_shape=[3])
    message = "inputs: output_shape (3,) must hold as many vectors as there are bags, 4, got 3"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        serving_embedding_lookup(bags, None, TABLES, wrong)
