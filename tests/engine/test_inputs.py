"""Every form of ids and weights, combiners by their definition, and what becomes of invalid ids."""

from __future__ import annotations

import numpy as np
import pyarrow
import pytest
import scipy.sparse
from engines import BACKENDS, COMBINERS, ROWS, Creep, combined, engine, flat, splits
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.planned import FeatureInput
from shardcore.features.prepare import prepare_feature

# --- inputs ----------------------------------------------------------------------------------

bags_strategy = st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=5)


def every_form(bags, weights, shuffle):
    """The same bags in every form: name -> (features, weights)."""
    values, row_splits = np.array(flat(bags), np.int64), np.array(splits(bags))
    w = np.array(flat(weights), np.float64)
    of_weights = sc.Ragged(w, row_splits)
    yield "ragged", sc.Ragged(values, row_splits), of_weights
    yield "ragged with weights", sc.Ragged(values.astype(np.int32), row_splits, w), None
    yield "pair", (values.astype(np.uint16), row_splits.astype(np.int32)), w
    yield "lists", bags, of_weights
    yield "arrays", [np.array(bag, np.int8) for bag in bags], w.astype(np.float32)
    bag = np.repeat(np.arange(len(bags)), np.diff(row_splits))
    column = np.arange(values.size) - row_splits[bag]
    bag_order = np.array(shuffle.sample(range(len(bags)), len(bags)), int)
    order = np.argsort(bag_order[bag], kind="stable")
    places = np.stack([bag, column], axis=1)[order]
    sparse = sc.Sparse(places, values[order], (len(bags), 4))
    yield "sparse", sparse, w[order]
    yield "sparse, sparse weights", sparse, sc.Sparse(places, w[order], (len(bags), 4))
    offsets = pyarrow.array(row_splits.astype(np.int32))
    arrow = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values))
    yield "arrow", arrow, w
    if bags:
        csr = scipy.sparse.csr_array((w, values, row_splits), shape=(len(bags), 9))
        yield "csr", csr, None
        coo = scipy.sparse.coo_array((w, (bag, values)), shape=(len(bags), 9))
        yield "coo", coo, None
    if bags and len(set(map(len, bags))) == 1 and bags[0]:
        yield "dense", np.array(bags), np.array(weights)
        yield "dense, flat weights", np.array(bags), w


@settings(max_examples=40, deadline=None)
@given(bags_strategy, st.sampled_from(COMBINERS), st.randoms(use_true_random=False))
def test_every_form_gives_the_same_answer(bags, combiner, random):
    weights = [[random.randint(-3, 3) / 2 for _ in bag] for bag in bags]
    e = engine(FeatureConfig(TableConfig(9, 3, combiner=combiner, name="t")),
               sc.optimizers.SGD(learning_rate=1.0))  # fmt: skip
    rows = np.asarray(e.tables["t"]).copy()
    expected = None
    for name, features, w in every_form(bags, weights, random):
        e.tables["t"][...] = rows
        e.enqueue(features, w)
        found = e.dequeue()
        e.apply_gradients(np.cos(np.arange(found.size)).reshape(found.shape))
        result = (found.tobytes(), np.asarray(e.tables["t"]).tobytes())
        if expected is None:
            expected = result
            exact = combined(rows.astype(np.float64), bags, weights, combiner)
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
        assert result == expected, name


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_combiners_against_the_definition(combiner, dtype, weighted):
    rng = np.random.default_rng(3)
    bags = [rng.integers(0, 50, n).tolist() for n in (3, 0, 1, 40, 7, 0, 0)]
    bags[4][1] = bags[4][0]  # a duplicate counts twice
    weights = [rng.normal(size=len(bag)).tolist() for bag in bags] if weighted else None
    e = engine(FeatureConfig(TableConfig(50, 21, combiner=combiner, dtype=dtype, name="t")))
    rows = np.asarray(e.tables["t"]).astype(np.float64)
    out = e(bags, None if weights is None else sc.Ragged.from_lists(weights))
    assert out.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert out.shape == (7, 21)
    tolerance = 1e-12 if dtype == "float64" else 2e-5
    np.testing.assert_allclose(out, combined(rows, bags, weights, combiner), rtol=tolerance,
                               atol=tolerance)  # fmt: skip
    np.testing.assert_array_equal(out[[1, 5, 6]], 0)


@pytest.mark.parametrize(("combiner", "weights"), [("mean", [1, -1]), ("sqrtn", [0, 0])])
@pytest.mark.parametrize("where", BACKENDS)
def test_a_zero_denominator_gives_zeros_and_no_gradient(combiner, weights, where):
    table = TableConfig(4, 2, initializer=ROWS, combiner=combiner, name="t")
    e = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0), **where)
    e.enqueue([[1, 2], [3]], np.array([*weights, 2]))
    np.testing.assert_array_equal(e.dequeue(), [[0, 0], [3, 3]])
    e.apply_gradients(np.ones((2, 2)))
    np.testing.assert_array_equal(e.tables["t"], [[0, 0], [1, 1], [2, 2], [2, 2]])


def test_no_bags_and_trailing_empty_bags():
    e = engine(FeatureConfig(TableConfig(4, 3, initializer=ROWS)), sc.optimizers.SGD())
    assert e([]).shape == (0, 3)
    assert e([[1], [], []]).shape == (3, 3)
    sparse = sc.Sparse([[0, 0]], [2], (4, 5))
    np.testing.assert_array_equal(e(sparse), [[2] * 3, [0] * 3, [0] * 3, [0] * 3])
    before = np.asarray(e.tables["table_0"]).tobytes()
    e.enqueue([[], []])
    e.dequeue()
    e.apply_gradients(np.ones((2, 3)))
    assert np.asarray(e.tables["table_0"]).tobytes() == before
    assert e.step == 1


def test_batch_sizes_may_change_unless_build_said_one():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(4, 3, initializer=ROWS)))
    assert [e([[1]] * n).shape for n in (3, 0, 5)] == [(3, 3), (0, 3), (5, 3)]
    e.build(batch_size=2)
    e.build(batch_size=2)
    e.build()
    assert e(np.array([1, 2])).shape == (2, 3)
    assert e(np.array([[[1], [2]], [[3], [0]]])).shape == (2, 2, 3)


def test_a_scalar_output_shape_is_one_sample():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(4, 3, initializer=ROWS), output_shape=()))
    e.build(batch_size=1)
    np.testing.assert_array_equal(e([[1, 3]]), [2, 2, 2])


def test_shapes_of_activations():
    table = TableConfig(9, 2, initializer=ROWS, combiner="sum")
    e = engine(FeatureConfig(table))
    assert e(np.array([1, 2, 3])).shape == (3, 2)
    assert e(np.ones((4, 5), int)).shape == (4, 2)
    np.testing.assert_array_equal(e(np.ones((4, 3, 5), int)), np.full((4, 3, 2), 5))
    sparse = sc.Sparse([[1, 2, 0], [0, 1, 3], [1, 2, 1]], [7, 3, 1], (2, 3, 4))
    out = e(sparse)
    assert out.shape == (2, 3, 2)
    assert out[1, 2, 0] == 8
    assert out[0, 1, 0] == 3
    assert out.sum() == 2 * 11
    square = engine(FeatureConfig(table, output_shape=(2, 2)))
    np.testing.assert_array_equal(square([[1], [2], [3], []])[..., 0], [[1, 2], [3, 0]])


def test_the_caller_may_use_his_buffers_again_before_the_gradients():
    ids, row_splits, weights = np.array([1, 2]), np.array([0, 1, 2]), np.array([2.0, 3.0])
    table = TableConfig(5, 1, initializer=ROWS, combiner="mean", name="t")
    config = [FeatureConfig(table), FeatureConfig(table)]
    e = engine(config, sc.optimizers.SGD(learning_rate=1.0))
    e.enqueue([(ids, row_splits), [[0], [0]]], [weights, None])
    e.dequeue()
    ids[:], row_splits[:], weights[:] = 10**12, 10**12, np.nan
    gradients = e.apply_gradients([np.ones((2, 1)), None], weight_gradients=True)
    np.testing.assert_array_equal(gradients[0], [0, 0])  # one id per bag: its weight cancels
    np.testing.assert_array_equal(e.tables["t"], [[0], [0], [1], [3], [4]])


# --- invalid ids -----------------------------------------------------------------------------


def test_ids_of_every_feature_of_every_table_are_counted():
    one, two = (TableConfig(5, 2, combiner="sum", name=name) for name in ("one", "two"))
    e = sc.ShardedEmbedding(
        {
            "a": FeatureConfig(one, invalid_ids="drop"),
            "b": FeatureConfig(two, invalid_ids="clip"),
            "c": FeatureConfig(one),
        }
    )
    e({"a": [[1, 7, 2]], "b": [[9, -1, 0, 3]], "c": [[4]]})
    metrics = e.metrics()
    assert (metrics["lookups"], metrics["ids"], metrics["invalid_ids"]) == (1, 2 + 4 + 1, 1 + 2)
    e({"a": [[]], "b": [[9]], "c": [[0, 1]]})
    metrics = e.metrics()
    assert (metrics["lookups"], metrics["ids"], metrics["invalid_ids"]) == (2, 10, 4)
    plain = sc.ShardedEmbedding({"a": FeatureConfig(one), "b": FeatureConfig(two)})
    plain({"a": (np.array([1, 2]), np.array([0, 2])), "b": np.array([[3]])})
    metrics = plain.metrics()
    assert (metrics["lookups"], metrics["ids"], metrics["invalid_ids"]) == (1, 3, 0)
    with pytest.raises(sc.errors.ShardcoreIndexError):
        plain({"a": (np.array([1, 2]), np.array([0, 2])), "b": np.array([[5]])})
    assert plain.metrics() == metrics


def test_features_of_which_more_is_asked_are_not_looked_up_as_given():
    rows = np.arange(10.0).reshape(5, 2)
    table = TableConfig(5, 2, initializer=rows, combiner="sum", name="t")
    ids, splits = np.array([1, 9, 2, 4]), np.array([0, 3, 4])
    for policy, expected in (("drop", 3), ("zero", 3), ("clip", 7), (0, 3)):
        e = sc.ShardedEmbedding(FeatureConfig(table, invalid_ids=policy))
        np.testing.assert_array_equal(e((ids, splits))[:, 0] / 2, [expected, 4])
        assert e.metrics()["invalid_ids"] == 1
        valid = np.array([1, 2, 2, 4])
        np.testing.assert_array_equal(e((valid, splits))[:, 0] / 2, [5, 4])
    shaped = sc.ShardedEmbedding(FeatureConfig(table, output_shape=(2, 1)))
    assert shaped((np.array([1, 2, 3]), np.array([0, 2, 3]))).shape == (2, 1, 2)
    hashed = sc.ShardedEmbedding(FeatureConfig(table, hash=sc.Hash(5, seed=9)))
    np.testing.assert_array_equal(hashed((ids, splits)), hashed([[1, 9, 2], [4]]))
    sequence = sc.ShardedEmbedding(FeatureConfig(table, max_sequence_length=2))
    assert sequence((np.array([1, 2, 3]), np.array([0, 2, 3]))).shape == (2, 2, 2)


def test_ragged_features_are_looked_up_where_they_lie(monkeypatch):
    """As ids and row splits are; but for those with weights, or an order, of their own."""
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    table = TableConfig(5, 2, initializer=rows, combiner="sum", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table))
    e.build()
    bags = sc.Ragged([1, 2, 4], [0, 2, 2, 3])
    weighted = sc.Ragged([1, 2, 4], [0, 2, 2, 3], [2.0, 1.0, 1.0])
    np.testing.assert_array_equal(
        e(weighted), combined(rows, [[1, 2], [], [4]], [[2, 1], [], [1]], "sum")
    )
    unsorted = sc.Sparse([[2, 0], [0, 1], [0, 0]], [4, 2, 1], (3, 2))
    factors = np.array([3, 2, 5], np.float32)  # in the order in which the ids were given
    np.testing.assert_array_equal(
        e(unsorted.by_bag(), factors), combined(rows, [[2, 1], [], [4]], [[2, 5], [], [3]], "sum")
    )
    with pytest.raises(sc.errors.ShardcoreIndexError, match=r"ids\[1\] = 5 is outside"):
        e(sc.Ragged([1, 5], [0, 1, 2]))
    monkeypatch.setattr(type(e._training._inputs), "batch", lambda *_: pytest.fail("copied"))
    expected = combined(rows, [[1, 2], [], [4]], [[1, 1], [], [1]], "sum")
    np.testing.assert_array_equal(e(bags), expected)
    own = sc.Ragged(np.array([3, 1, 2], np.float32), [0, 2, 2, 3])
    np.testing.assert_array_equal(
        e(bags, own), combined(rows, [[1, 2], [], [4]], [[3, 1], [], [2]], "sum")
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_weights_of_plain_bags_are_those_of_bags_of_any_form(combiner):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    table = TableConfig(5, 2, initializer=rows, combiner=combiner, name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table))
    ids, splits, narrow = np.array([1, 2, 4, 3]), np.array([0, 2, 2, 4]), np.float32
    weights = np.array([0.5, -2.0, 3.0, 1.5])
    bags, factors = [[1, 2], [], [4, 3]], [[0.5, -2.0], [], [3.0, 1.5]]
    expected = combined(rows, bags, factors, combiner)
    for own in (weights, weights.astype(narrow), np.repeat(weights, 2)[::2].astype(narrow)):
        np.testing.assert_allclose(e((ids, splits), own), expected, rtol=1e-6)
        np.testing.assert_allclose(e((ids, splits), sc.Ragged(own, splits)), expected, rtol=1e-6)
    expected = combined(rows, [[1, 2], [4, 3]], [factors[0], factors[2]], combiner)
    for own in (weights, weights.astype(narrow)):
        for shape in ((4,), (2, 2)):
            found = e(ids.reshape(2, 2), own.reshape(shape))
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        # The order of ids in memory is not that of their bags.
        turned = np.asfortranarray(ids.reshape(2, 2)), np.asfortranarray(own.reshape(2, 2))
        np.testing.assert_allclose(e(*turned), expected, rtol=1e-6)
        half_turned = ids.reshape(2, 2), np.asfortranarray(own.reshape(2, 2))
        np.testing.assert_allclose(e(*half_turned), expected, rtol=1e-6)


def test_weights_of_some_plain_features_are_theirs_alone():
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    table = TableConfig(5, 2, initializer=rows, combiner="sum", name="t")
    e = sc.ShardedEmbedding([FeatureConfig(table, name=name) for name in "abc"])
    bags = np.array([1, 2, 4]), np.array([0, 2, 3])
    plain = combined(rows, [[1, 2], [4]], [[1, 1], [1]], "sum")
    weighted = combined(rows, [[1, 2], [4]], [[3, 1], [2]], "sum")
    factors = np.array([3, 1, 2], np.float32)
    for at in range(3):
        found = e([bags] * 3, [factors if at == number else None for number in range(3)])
        for number in range(3):
            np.testing.assert_array_equal(found[number], weighted if at == number else plain)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.array([1, 2, np.inf, 4], np.float32), "must be finite, got inf at position 2"),
        (np.array([np.nan, 2, 3, 4], np.float32), "must be finite, got nan at position 0"),
        (np.ones(3, np.float32), r"must have a weight per id, shape \(4,\), got shape \(3,\)"),
        (np.ones((1, 4), np.float32), r"a weight per id, shape \(4,\), got shape \(1, 4\)"),
        (sc.Ragged(np.ones(4, np.float32), [0, 1, 2, 4]), "bag 0 has 2 ids and 1 weights"),
        (sc.Ragged(np.ones(4, np.float32), [0, 4]), "the bags of the ids, 3, got 1"),
        (np.full(4, 3e38, np.float32), "weights of bag 0 are too large: the divisor of"),
    ],
)
def test_wrong_weights_of_plain_bags_are_refused(weights, message):
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(5, 2, name="t", combiner="mean")))
    given = np.array([1, 2, 4, 3]), np.array([0, 2, 2, 4])
    with pytest.raises(sc.errors.ShardcoreValueError, match=message):
        e(given, weights)
    assert e.metrics()["lookups"] == 0


def test_an_output_shape_of_another_size_is_refused_in_any_form():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(5, 2, name="t"), output_shape=(2, 1)))
    ids = np.array([1, 2, 3])
    for three in ([[1], [2], [3]], (ids, np.arange(4)), ids, ids.reshape(3, 1)):
        with pytest.raises(sc.errors.ShardcoreValueError, match="there are bags, 3, got 2"):
            e(three)
    for two in ([[1], [2]], (ids, np.array([0, 1, 3])), ids[:2], ids[:2].reshape(2, 1)):
        assert e(two).shape == (2, 1, 2)


def test_batches_of_another_size_are_refused_however_they_come():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(5, 2, name="t")))
    e.build(batch_size=2)
    ids = np.array([1, 2, 3])
    for three in ([[1], [2], [3]], (ids, np.arange(4)), ids, ids.reshape(3, 1)):
        with pytest.raises(sc.errors.ShardcoreValueError, match="given to build, 2, got 3"):
            e(three)
    assert e((ids, np.array([0, 1, 3]))).shape == (2, 2)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_arrays_of_values_and_row_splits_are_combined_as_lists_are(combiner):
    rows = np.arange(10.0).reshape(5, 2)
    table = TableConfig(5, 2, initializer=rows, combiner=combiner, name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table))
    bags = [[1, 2, 4], [], [3], [0, 4]]
    given = np.array([1, 2, 4, 3, 0, 4]), np.array([0, 3, 3, 4, 6])
    expected = combined(rows, bags, [[1.0] * len(bag) for bag in bags], combiner)
    e.enqueue(given)
    for found in (e(given), e(bags), e.dequeue()):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("policy", ["drop", "zero", "clip", 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_invalid_ids(combiner, policy, weighted):
    bags = [[1, -1, 4], [9, 3], [7], []]
    weights = [[1.0, 2.0, 3.0], [0.5, 4.0], [1.0], []] if weighted else None
    w = weights or [[1.0] * len(bag) for bag in bags]
    rows = np.array([[i + 1.0, -i] for i in range(5)])
    e = engine(FeatureConfig(TableConfig(5, 2, initializer=rows, combiner=combiner, dtype="float64",
                                         name="t"), invalid_ids=policy), Creep())  # fmt: skip
    e.enqueue(bags, None if weights is None else sc.Ragged.from_lists(weights))
    out = e.dequeue()
    e.apply_gradients(np.ones((4, 2)))
    if policy == "drop":
        pairs = [zip(*both, strict=True) for both in zip(bags, w, strict=True)]
        kept = [[(i, x) for i, x in bag if 0 <= i < 5] for bag in pairs]
        ids, w = ([[pair[at] for pair in bag] for bag in kept] for at in (0, 1))
        expected, touched = combined(rows, ids, w, combiner), [1, 3, 4]
    elif policy == "zero":
        ids = [[i if 0 <= i < 5 else 5 for i in bag] for bag in bags]
        expected = combined(np.vstack([rows, [[0, 0]]]), ids, w, combiner)
        touched = [1, 3, 4]
    else:
        ids = [[i if 0 <= i < 5 else (max(0, min(i, 4)) if policy == "clip" else 2) for i in bag]
               for bag in bags]  # fmt: skip
        expected = combined(rows, ids, w, combiner)
        touched = [0, 1, 3, 4] if policy == "clip" else [1, 2, 3, 4]
    np.testing.assert_allclose(out, expected, rtol=1e-14)
    assert e.metrics()["invalid_ids"] == 3
    assert np.flatnonzero(np.asarray(e.slots["t"]["visits"])).tolist() == touched


def test_policies_put_in_rows_that_int32_ids_cannot_name():
    table = TableConfig(2**40, 1)
    ids = np.array([-1, 5], np.int32)
    feature = FeatureInput(FeatureConfig(table, invalid_ids="clip"), "f", "w", "t")
    clip = prepare_feature(feature, ids, None)
    assert clip.bags.ids.tolist() == [0, 5]
    row = FeatureConfig(table, invalid_ids=2**39)
    feature = FeatureInput(row, "f", "w", "t")
    assert prepare_feature(feature, ids, None).bags.ids.tolist() == [2**39, 5]
