"""Tensors of TensorFlow as features and weights of an engine, without the door."""

from __future__ import annotations

import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError  # noqa: E402
from shardcore.ids.tensorflow import read_tensorflow  # noqa: E402

RAGGED = tf.ragged.constant([[1, 2], [], [3]])
SPARSE = tf.SparseTensor([[0, 0], [0, 1], [2, 3]], [1, 2, 3], (3, 4))
VALUES = tf.compat.v1.ragged.constant_value([[1, 2], [], [3]])


def engine(combiner="sum", **options):
    rows = np.array([[1.0, 10.0], [2, 20], [3, 30], [4, 40]], np.float32)
    table = sc.TableConfig(4, 2, initializer=rows, combiner=combiner, name="t")
    return sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(1.0), **options)


@pytest.mark.parametrize(
    "ids",
    [
        RAGGED,
        SPARSE,
        VALUES,
        tf.ragged.constant([[1, 2], [], [3]], dtype="int64", row_splits_dtype="int32"),
        tf.compat.v1.SparseTensorValue([[0, 0], [0, 1], [2, 3]], [1, 2, 3], (3, 4)),
    ],
)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags_are_those_of_tensorflow(ids, combiner):
    expected = engine(combiner)([[1, 2], [], [3]])
    assert np.array_equal(engine(combiner)(ids), expected)


def test_dense_tensors_are_bags():
    assert engine()(tf.constant([[1, 2], [0, 3]])).tolist() == [[5, 50], [5, 50]]
    assert engine()(tf.Variable([3])).tolist() == [[4, 40]]


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (RAGGED, tf.ragged.constant([[0.5, 1.0], [], [2.0]])),
        (SPARSE, SPARSE.with_values([0.5, 1.0, 2.0])),
        (RAGGED, [0.5, 1.0, 2.0]),
        (RAGGED, sc.Ragged([0.5, 1.0, 2.0], [0, 2, 2, 3])),
        (sc.Ragged([1, 2, 3], [0, 2, 2, 3]), tf.ragged.constant([[0.5, 1.0], [], [2.0]])),
    ],
)
def test_weights_are_of_their_ids(ids, weights):
    assert engine()(ids, weights).tolist() == [[4, 40], [0, 0], [8, 80]]


def test_sparse_ids_of_more_axes_and_any_order():
    ids = tf.SparseTensor([[1, 1, 0], [0, 1, 0], [0, 0, 2]], [3, 2, 1], (2, 2, 3))
    found = engine()(ids, ids.with_values([1.0, 2.0, 3.0]))
    assert found[..., 0].tolist() == [[6, 6], [0, 4]]


def test_they_are_trained():
    e = engine()
    lookup = e.lookup(RAGGED)
    lookup.apply_gradients(tf.ones((3, 2)))
    assert e.tables["t"][:, 0].tolist() == [1, 1, 2, 3]


def test_memory_is_shared():
    ids = tf.ragged.constant([[1, 2], [], [3]], dtype="int64")
    ragged = read_tensorflow(ids, "ids")
    assert np.shares_memory(ragged.values, np.asarray(ids.values))
    assert np.shares_memory(ragged.row_splits, np.asarray(ids.row_splits))


@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        (tf.ragged.constant([[[1], [2]], []]), (2, None, None)),
        (tf.ragged.constant([[[1, 2], [2, 3]], []], ragged_rank=1), (2, None, 2)),
    ],
)
def test_ragged_tensors_have_two_axes(ids, shape):
    told = (
        "features: ids must be a RaggedTensor of rank 2, whose rows are the bags, got shape "
        f"{shape}"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        engine()(ids)


def test_weights_elsewhere_than_their_ids_are_refused():
    told = (
        "weights: weights must have the places of the ids: indices[2] is [2, 2], of the ids [2, 3]"
    )
    other = tf.SparseTensor([[0, 0], [0, 1], [2, 2]], [1.0, 2.0, 3.0], (3, 4))
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        engine()(SPARSE, other)
    told = "weights: weights must have the row_splits of the ids: bag 0 has 2 ids and 1 weights"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        engine()(RAGGED, tf.ragged.constant([[1.0], [1.0], [1.0]]))


@pytest.mark.parametrize("ids", [RAGGED, SPARSE])
def test_inside_a_function_there_are_no_values_yet(ids):
    e, told = engine(), []

    @tf.function(autograph=False)
    def traced(given):
        with pytest.raises(ShardcoreTypeError) as found:
            e(given)
        told.append(str(found.value))

    traced(ids)
    assert told == [
        f"features: ids must have values, got a {type(ids).__name__} of a tf.function: look up "
        "outside of it, or by shardcore.tf.EmbeddingBags"
    ]


WORDS = tf.ragged.constant([["red", "blue"], [], ["red"]])


def of_words(**options):
    function = sc.Hash(50, kind="farmhash64")
    table = sc.TableConfig(50, 1, initializer=sc.initializers.RowId(), combiner="sum", name="t")
    return sc.ShardedEmbedding(sc.FeatureConfig(table, hash=function), **options)


@pytest.mark.parametrize(
    "ids",
    [WORDS, WORDS.to_sparse(), tf.constant([["red", "blue"], ["blue", "blue"], ["red", "red"]])],
    ids=["ragged", "sparse", "dense"],
)
def test_strings_fall_into_the_buckets_of_tensorflow(ids):
    bags = tf.RaggedTensor.from_sparse(ids) if isinstance(ids, tf.SparseTensor) else ids
    sums = tf.reduce_sum(tf.strings.to_hash_bucket_fast(bags, 50), 1)
    assert of_words()(ids)[:, 0].tolist() == sums.numpy().tolist()


def test_weights_of_sparse_strings_have_their_places():
    words, weights = WORDS.to_sparse(), tf.ragged.constant([[2.0, 0.0], [], [0.5]]).to_sparse()
    red = int(tf.strings.to_hash_bucket_fast("red", 50))
    assert of_words()(words, weights)[:, 0].tolist() == [2 * red, 0, red / 2]


def test_strings_come_through_the_layer():
    import shardcore.tf as st

    expected = of_words()(WORDS)
    layer = st.EmbeddingBags(of_words(optimizer=sc.optimizers.SGD(0.5)))
    assert layer(WORDS, training=False).numpy().tolist() == expected.tolist()
    assert tf.function(layer)(WORDS).numpy().tolist() == expected.tolist()
    told = (
        "features: strings must be a tensor or a RaggedTensor, got a SparseTensor: give "
        "tf.RaggedTensor.from_sparse(...) of it"
    )
    with pytest.raises(ShardcoreTypeError, match=re.escape(told)):
        layer(WORDS.to_sparse())
    plain = st.EmbeddingBags(engine())
    told = "features: ids must be integers, got string"
    with pytest.raises(ShardcoreTypeError, match=re.escape(told)):
        plain(WORDS)
