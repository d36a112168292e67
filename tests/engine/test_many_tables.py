"""The short ways of many small tables: what they give is what the long ways give, to the bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore import reference
from shardcore.backend import gradients as sorting
from shardcore.backend.gradients import RowSorts, gains_of, gradient_rows_of_tables, sorted_rows
from shardcore.backend.messages import FeatureBags
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.planned import FeatureInput
from shardcore.features.prepare import prepare_feature
from shardcore.ids.ragged import Ragged
from shardcore.store.segment_reduce import divisors, reciprocals

FLOAT32 = np.dtype("float32")


def make_bags(rng, num_rows, kind="ragged", weighted=False, ids_dtype=np.int64):
    lengths = np.ones(rng.integers(0, 9), int) if kind == "dense" else rng.integers(0, 4, 6)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(0, num_rows, splits[-1]).astype(ids_dtype)
    weights = rng.uniform(-1, 1, ids.size).astype(FLOAT32) if weighted else None
    return FeatureBags(ids, splits, weights, divisors("mean", splits, weights, FLOAT32))


def sorted_together(tables):
    sorts = RowSorts()
    for table in tables:
        sorts.add(*table)
    return sorts.make()


def assert_is_sorted(found, features, num_rows):
    """Compare with the twin, of the bags of all features, numbered through."""
    first, sources = 0, []
    for bags in features:
        sources.append(np.repeat(np.arange(bags.num_bags), np.diff(bags.row_splits)) + first)
        first += bags.num_bags
    ids = np.concatenate([bags.ids for bags in features])
    twin = reference.sort_occurrences(ids, np.concatenate(sources).astype(np.int32), None, num_rows)
    for name in ("rows", "run_splits", "sources"):
        np.testing.assert_array_equal(getattr(found, name), getattr(twin, name), strict=True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 7, 300, 2**31, 2**33]),
            st.lists(
                st.tuples(
                    st.sampled_from(["dense", "ragged"]),
                    st.booleans(),
                    st.sampled_from([np.int32, np.int64]),
                ),
                min_size=1,
                max_size=3,
            ),
        ),
        max_size=7,
    ),
    st.sampled_from([0, 5, 1 << 12]),
    st.integers(0, 2**32),
)
def test_tables_sorted_together_are_as_those_sorted_alone(shapes, few, seed):
    rng = np.random.default_rng(seed)
    tables = []
    for num_rows, features in shapes:
        named = min(num_rows, 2**31 - 1) if num_rows < 2**33 else num_rows
        made = [
            make_bags(rng, min(named, 2**31 - 1) if ids is np.int32 else named, kind, weighted, ids)
            for kind, weighted, ids in features
        ]
        tables.append((made, num_rows, FLOAT32))
    before = sorting.FEW_OCCURRENCES
    sorting.FEW_OCCURRENCES = few
    try:
        found = sorted_together(tables)
    finally:
        sorting.FEW_OCCURRENCES = before
    assert len(found) == len(tables)
    for table, ours in zip(tables, found, strict=True):
        alone = sorted_rows(*table)
        for one in (ours, alone):
            assert_is_sorted(one, table[0], table[1])
        assert ours.rows.tobytes() == alone.rows.tobytes()
        assert ours.run_splits.tobytes() == alone.run_splits.tobytes()
        assert ours.sources.tobytes() == alone.sources.tobytes()
        if alone.gains is None:
            assert ours.gains is None
        else:
            assert ours.gains.tobytes() == alone.gains.tobytes()


def test_large_tables_are_sorted_alone():
    rng, rows = np.random.default_rng(0), 1 << 20
    few, many = (
        FeatureBags(rng.integers(0, rows, count), np.arange(count + 1)) for count in (4096, 4097)
    )
    a, b, c = sorted_together([([one], rows, FLOAT32) for one in (few, many, few)])
    assert a.sources.base is not None
    assert a.sources.base is c.sources.base
    assert b.sources.base is not a.sources.base
    for found, bags in ((a, few), (b, many), (c, few)):
        assert_is_sorted(found, [bags], rows)


def test_many_ids_of_several_features_are_sorted_alone():
    rng, rows = np.random.default_rng(0), 1 << 20
    one, few, many = (
        FeatureBags(rng.integers(0, rows, count), np.arange(count + 1)) for count in (1, 4095, 4096)
    )
    tables = [([few, one], rows, FLOAT32), ([many, one], rows, FLOAT32), ([one], rows, FLOAT32)]
    a, b, c = sorted_together(tables)
    assert a.sources.base is c.sources.base
    assert b.sources.base is not a.sources.base
    for found, (features, *_) in zip((a, b, c), tables, strict=True):
        assert_is_sorted(found, features, rows)


def test_tables_of_several_features_and_few_rows_are_sorted_together():
    """Rows that would be counted by themselves if one feature named them all."""
    rng = np.random.default_rng(3)
    features = [FeatureBags(rng.integers(0, 9, 60), np.arange(0, 61, 20)) for _ in range(3)]
    (found,) = sorted_together([(features, 9, FLOAT32)])
    assert_is_sorted(found, features, 9)


def test_gradients_of_tables_are_as_those_of_one():
    rng = np.random.default_rng(1)
    tables = []
    for at in range(9):
        value = np.float64 if at % 4 == 3 else np.float32
        features = [make_bags(rng, 5, weighted=at % 3 == 0) for _ in range(1 + at % 2)]
        if at == 5:
            features[0] = FeatureBags(features[0].ids, features[0].row_splits)
        features = [
            FeatureBags(
                bags.ids,
                bags.row_splits,
                None if bags.weights is None else bags.weights.astype(value),
                None if bags.divisors is None else bags.divisors.astype(value),
            )
            for bags in features
        ]
        gradients = [rng.normal(size=(bags.num_bags, 3)).astype(value) for bags in features]
        if at == 7:  # any strides
            gradients[0] = np.asfortranarray(gradients[0])
        tables.append((features, gradients))
    found = gradient_rows_of_tables(tables)
    for (features, gradients), ours in zip(tables, found, strict=True):
        parts = [
            gradient
            if bags.weights is not None or bags.divisors is None
            else gradient * reciprocals(bags.divisors)[:, None]
            for bags, gradient in zip(features, gradients, strict=True)
        ]
        expected = np.concatenate(parts)
        assert ours.dtype == expected.dtype
        assert ours.tobytes() == expected.tobytes()
        assert ours.flags.c_contiguous


# --- what is asked of the commonest input ------------------------------------------------------


def long_way(config, leaf, keep=False):
    """Prepare ids given as bags, which are read by the general forms."""
    return prepare_feature(FeatureInput(config, "features", "weights", "t"), leaf, None, keep)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("ids_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 3, 4), (0,), (4, 0), (70_000,)])
def test_plain_arrays_are_prepared_as_any_other_form(shape, ids_dtype, dtype, combiner, keep):
    ids = np.random.default_rng(3).integers(0, 50, shape).astype(ids_dtype)
    config = FeatureConfig(TableConfig(50, 2, dtype=dtype, combiner=combiner))
    bags = shape if len(shape) == 1 else shape[:-1]
    width = 1 if len(shape) == 1 else shape[-1]
    splits = np.arange(np.prod(bags) + 1) * width
    expected = long_way(config, Ragged(ids.ravel().copy(), splits.copy()), keep)
    for leaf in (ids, (ids.ravel(), splits)):
        found = long_way(config, leaf, keep)
        assert found.shape == (bags if leaf is ids else expected.shape)
        assert found.ids_shape == (shape if leaf is ids else None)
        assert (found.invalid, found.kept, found.weighed, found.given_order) == (
            0,
            None,
            None,
            None,
        )
        assert found.bags.ids.dtype == ids_dtype
        assert found.bags.ids.tobytes() == expected.bags.ids.tobytes()
        assert found.bags.row_splits.tobytes() == expected.bags.row_splits.tobytes()
        assert found.bags.weights is None
        if found.bags.divisors is None:  # divided by 1, or not at all
            assert expected.bags.divisors is None or (expected.bags.divisors == 1).all()
        else:
            assert found.bags.divisors.dtype == expected.bags.divisors.dtype
            assert found.bags.divisors.tobytes() == expected.bags.divisors.tobytes()
        assert not np.shares_memory(found.bags.ids, ids)
        assert not np.shares_memory(found.bags.row_splits, splits)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("as_bags", [False, True])
def test_ids_are_narrow_where_no_host_sends_them(hosts, as_bags, monkeypatch):
    ids, seen, found = np.random.default_rng(5).integers(0, 50, 70_000), [], []
    for dtype in (np.int64, np.int32):
        backend = sc.get_backend("sim", hosts=hosts)
        look_up = backend.lookup
        monkeypatch.setattr(backend, "lookup", lambda b, f=look_up: seen.append(b[0]) or f(b))
        given = ids.astype(dtype)
        leaf = (given, np.arange(0, ids.size + 1, 7)) if as_bags else given.reshape(-1, 7)
        config = FeatureConfig(TableConfig(50, 2, initializer=sc.initializers.RowId()))
        engine = sc.ShardedEmbedding(config, sc.optimizers.SGD(0.5), backend)
        engine.enqueue(leaf)
        found.append(engine.dequeue())
        engine.apply_gradients(np.ones_like(found[-1]))
        (variable,) = engine.tables.values()
        found.append(variable.numpy())
    first = np.int32 if hosts == 1 else np.int64
    assert [batch.features[0].ids.dtype for batch in seen] == [first, np.int32]
    np.testing.assert_array_equal(found[0], found[2], strict=True)
    np.testing.assert_array_equal(found[1], found[3], strict=True)


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        ((np.array([1, 2]), np.array([1, 2])), "row_splits must start at 0"),
        ((np.array([1, 2]), np.array([0, 3])), "row_splits must end at the number of values, 2"),
        ((np.array([1, 2]), np.array([0, 3, 2])), "row_splits must be non-decreasing"),
        ((np.array([1, 2]), np.array([], np.int64)), "row_splits must hold at least one entry"),
        ((np.array([[1, 2]]), np.array([0, 1])), "values must have rank 1"),
    ],
)
def test_broken_arrays_are_told_of_as_in_any_other_form(leaf, message):
    config = FeatureConfig(TableConfig(50, 2))
    with pytest.raises(ShardcoreValueError, match=re.escape(f"features: {message}")):
        long_way(config, leaf)


def test_arrays_that_are_not_plain_take_the_long_way():
    config = FeatureConfig(TableConfig(50, 2, combiner="sum"))
    ids = np.arange(12)
    for leaf in (ids[::2], ids.astype(">i8")[:6] * 2, ids.astype(np.uint8)[::2]):
        assert long_way(config, leaf).bags.ids.tolist() == [0, 2, 4, 6, 8, 10]
    found = long_way(config, (ids.astype(np.uint8), np.array([0, 12], np.int16)))
    assert found.bags.row_splits.dtype == np.int64


# --- the whole ---------------------------------------------------------------------------------


def make_engine(backend, nested, pipeline=False, **options):
    probe = sc.optimizers.Adagrad(learning_rate=0.5)
    features = {}
    for at in range(24):
        table = TableConfig(
            11 + at,
            1 + at % 5,
            dtype=("float32", "float16", "float64")[at % 3],
            combiner=("sum", "mean", "sqrtn")[at // 3 % 3],
            name=f"t{at}",
        )
        features[f"a{at}"] = FeatureConfig(table)
        if at % 4 == 0:
            features[f"b{at}"] = FeatureConfig(table)
    config = [features] if nested else features
    e = sc.ShardedEmbedding(config, probe, backend, options, pipeline=pipeline)
    e.build()
    return e


def make_batch(rng):
    features, weights, gradients = {}, {}, {}
    for at in range(24):
        for name in [f"a{at}"] + [f"b{at}"] * (at % 4 == 0):
            lengths = rng.integers(0, 4, 7)
            flat = rng.integers(0, 11 + at, lengths.sum())
            splits = np.concatenate([[0], np.cumsum(lengths)])
            dense = rng.integers(0, 11 + at, (7, 2) if at % 2 else 7)
            features[name] = (flat, splits) if rng.random() < 0.5 else dense
            weighted = rng.random() < 0.2
            size = features[name][0].size if type(features[name]) is tuple else dense.size
            weights[name] = rng.uniform(0, 1, size) if weighted and size != 7 else None
            if weights[name] is not None and type(features[name]) is not tuple:
                weights[name] = weights[name].reshape(dense.shape)
            gradient = rng.normal(size=(7, 1 + at % 5))
            gradients[name] = None if rng.random() < 0.2 else gradient
    return features, weights, gradients


@pytest.mark.parametrize("pipeline", [False, True])
def test_many_tables_train_as_on_one_simulated_host(pipeline):
    rng = np.random.default_rng(8)
    engines = [
        make_engine("cpu", nested=False, pipeline=pipeline),
        make_engine("sim", nested=True, hosts=1),
    ]
    flat, nested = engines
    for _ in range(4):
        features, weights, gradients = make_batch(rng)
        flat.enqueue(features, weights)
        nested.enqueue([features], [weights])
        found, (expected,) = flat.dequeue(), nested.dequeue()
        assert list(found) == list(expected)
        for name, activations in expected.items():
            assert found[name].dtype == activations.dtype
            assert found[name].tobytes() == activations.tobytes()
        flat.apply_gradients(gradients)
        nested.apply_gradients([gradients])
    for name, table in nested.tables.items():
        assert np.asarray(flat.tables[name]).tobytes() == np.asarray(table).tobytes()
        ours, theirs = (np.asarray(e.slots[name]["accumulators"]) for e in (flat, nested))
        assert ours.tobytes() == theirs.tobytes()
    flat.close()


def test_one_bad_gradient_among_many_is_named():
    rng = np.random.default_rng(9)
    e = make_engine("cpu", nested=False)
    features, weights, gradients = make_batch(rng)
    e.enqueue(features, weights)
    e.dequeue()
    gradients["a13"] = np.zeros((7, 4))
    gradients["a13"][5, 2] = 1e300
    message = "gradients['a13'] must be finite in float32: gradients['a13'][5, 2] = 1e+300"
    with pytest.raises(ShardcoreValueError) as info:
        e.apply_gradients(gradients)
    assert str(info.value) == message
    gradients["a13"] = None
    e.apply_gradients(gradients)
    assert e.step == 1


def test_a_flat_structure_is_still_asked_for():
    e = make_engine("cpu", nested=False)
    with pytest.raises(
        ShardcoreTypeError, match=r"^features must be a dict, as it is configured, got NoneType$"
    ):
        e(None)
    features, *_ = make_batch(np.random.default_rng(2))
    shuffled = dict(reversed(features.items()))
    for name, activations in e(shuffled).items():
        assert activations.tobytes() == e(features)[name].tobytes()
    del shuffled["a3"]
    with pytest.raises(
        ShardcoreValueError, match=re.escape("features['a3'] is missing: it is configured")
    ):
        e(shuffled)


def test_weights_over_few_rows_keep_their_gains():
    rng = np.random.default_rng(4)
    weighted = make_bags(rng, 5, weighted=True)
    found = sorted_rows([weighted], 5, FLOAT32)
    assert found.gains is not None
    assert sorted(found.gains.tolist()) == sorted(gains_of(weighted).tolist())
    plain = FeatureBags(weighted.ids, weighted.row_splits)
    few, pairs = sorted_rows([plain], 5, FLOAT32), sorted_rows([plain], 10**6, FLOAT32)
    for name in ("rows", "run_splits", "sources"):
        np.testing.assert_array_equal(getattr(few, name), getattr(pairs, name), strict=True)
    assert few.gains is None
