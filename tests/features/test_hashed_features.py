"""FeatureConfig(hash=...): in every form the rows of the ids are looked up and trained."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest
import scipy.sparse

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

ROWS = 1009
HASH = sc.Hash(1000, seed=5)
WORDS = ["user:7", "é", "", "a longer one than a view can hold", "user:7"]
BAGS = [WORDS[:2], [], WORDS[2:]]
ROW = {word: int(row) for word, row in zip(WORDS, HASH(WORDS), strict=True)}


def table(**options):
    rows = sc.initializers.RowId()
    return sc.TableConfig(ROWS, 2, initializer=rows, name="t", combiner="sum", **options)


def engine(backend=None, pipeline=False, **options):
    feature = sc.FeatureConfig(table(), **{"hash": HASH, **options})
    rate = sc.optimizers.SGD(learning_rate=1.0)
    return sc.ShardedEmbedding({"f": feature}, rate, backend=backend, pipeline=pipeline)


def rows_of(found):
    return found["f"][..., 0].tolist()


SUMS = [float(sum(ROW[word] for word in bag)) for bag in BAGS]
SPLITS = [0, 2, 2, 5]


@pytest.mark.parametrize(
    "leaf",
    [
        BAGS,
        [tuple(bag) for bag in BAGS],
        [[word.encode() for word in bag] for bag in BAGS],
        [np.array(bag, np.dtypes.StringDType()) for bag in BAGS],
        (WORDS, SPLITS),
        (tuple(WORDS), np.array(SPLITS, np.int32)),
        (np.array(WORDS), SPLITS),
        (np.array(WORDS, object), SPLITS),
    ],
    ids=["lists", "tuples", "bytes", "arrays", "list", "tuple", "U", "objects"],
)
def test_every_form_gives_the_same_bags(leaf):
    assert rows_of(engine()({"f": leaf})) == SUMS
    weights = np.array([2.0, 1.0, 1.0, 0.5, 1.0], np.float32)
    factors = [[2.0, 1.0], [], [1.0, 0.5, 1.0]]
    expected = [
        sum(w * ROW[word] for w, word in zip(f, bag, strict=True))
        for f, bag in zip(factors, BAGS, strict=True)
    ]
    found = engine()({"f": leaf}, {"f": weights})
    np.testing.assert_allclose(found["f"][:, 0], expected)


@pytest.mark.parametrize("dtype", ["U40", object, np.dtypes.StringDType(), ">U40"])
def test_dense_arrays_keep_their_shape(dtype):
    dense = np.array([[WORDS[:2], WORDS[2:4]], [WORDS[1:3], WORDS[3:]]], dtype)
    expected = np.vectorize(ROW.get)(dense.astype(object))
    found = engine()({"f": dense})["f"][..., 0]
    np.testing.assert_array_equal(found, expected.sum(axis=-1))
    assert rows_of(engine()({"f": dense[0, 0]})) == [ROW[word] for word in WORDS[:2]]
    weights = np.full(dense.shape, 2.0, np.float32)
    found = engine()({"f": dense}, {"f": weights})["f"][..., 0]
    np.testing.assert_array_equal(found, 2 * expected.sum(axis=-1))


def test_integers_of_any_64_bits_are_hashed():
    ids = np.array([7, 2**64 - 1, 0], np.uint64)
    rows = HASH(ids).astype(float)
    for leaf in (ids, [[7], [2**64 - 1], [0]], (ids, [0, 1, 2, 3]), ids.view(np.int64)):
        assert rows_of(engine()({"f": leaf})) == rows.tolist()
    small = [7, 3, 7]
    rows = HASH(small)
    sums = [float(rows[:2].sum()), 0.0, float(rows[2])]
    ragged = sc.Ragged(small, [0, 2, 2, 3])
    sparse = sc.Sparse([[2, 0], [0, 1], [0, 0]], [7, 3, 7], (3, 2))  # not in the order of bags
    scipys = scipy.sparse.csr_array((np.ones(3), small, [0, 2, 2, 3]), shape=(3, 8))
    pair = (np.array(small), np.array([0, 2, 2, 3]))  # these and dense ones have a shorter way
    for leaf in (pair, ragged, sparse, scipys, scipys.tocoo()):
        assert rows_of(engine()({"f": leaf})) == sums
    assert rows_of(engine()({"f": np.array(small)})) == rows.tolist()
    weighed = sc.Sparse([[2, 0], [0, 1], [0, 0]], [0.5, 1.0, 2.0], (3, 2))
    found = engine()({"f": sparse}, {"f": weighed})["f"][:, 0]
    np.testing.assert_allclose(found, [2.0 * rows[2] + rows[1], 0.0, 0.5 * rows[2]])


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("pipeline", [False, True])
def test_the_rows_are_trained(backend, pipeline):
    with engine(backend, pipeline) as e:
        e.enqueue({"f": BAGS})
        found = e.dequeue()["f"]
        e.apply_gradients({"f": np.ones_like(found)})
        moved = np.asarray(e.tables["t"])[:, 0] - np.arange(ROWS)
    expected = np.zeros(ROWS)
    for word in WORDS:
        expected[ROW[word]] -= 1.0
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("policy", ["raise", "drop", "zero", "clip", 3])
def test_no_hashed_id_is_invalid(policy):
    e = engine(invalid_ids=policy)
    e.enqueue({"f": [[-1, 2**63, 10**18]]})
    assert rows_of(e.dequeue()) == [float(HASH([-1, 2**63, 10**18]).sum())]
    assert e.metrics()["invalid_ids"] == 0


def test_sequences_are_cut_and_padded():
    found = engine(max_sequence_length=2)({"f": BAGS})["f"][..., 0]
    expected = [[ROW[word] for word in bag[:2]] + [0] * (2 - len(bag[:2])) for bag in BAGS]
    assert found.tolist() == expected


def test_serving_and_saving_know_the_hash(tmp_path):
    e = engine()
    e.build()
    sc.Checkpoint(embedding=e).save(tmp_path, step=1)
    other = engine()
    sc.Checkpoint(embedding=other).restore(tmp_path)
    assert rows_of(other({"f": BAGS})) == SUMS
    feature = sc.FeatureConfig(table(), hash=HASH)
    rows = np.arange(ROWS * 2.0).reshape(ROWS, 2)[:, ::-1] // 2
    found = sc.serving_embedding_lookup(
        {"f": BAGS}, None, {"t": rows.astype(np.float32)}, {"f": feature}
    )
    assert rows_of(found) == SUMS
    described = e.config()["features"][0]["hash"]
    assert sc.Hash(**described) == HASH


# --- refusals ------------------------------------------------------------------------------------

RULE = "ids must be an array or a sequence of integers, of str or of bytes"
BAGGED = "a list must be a list of bags, got a flat list of"
REST = "for one id per bag, or [[...]] for one bag of them all"


@pytest.mark.parametrize(
    ("leaf", "error", "text"),
    [
        ([["a"], ["b", 0.5]], ShardcoreTypeError, f"{RULE}, got lists[1][1] = 0.5"),
        ([["a"], ["b", None]], ShardcoreTypeError, f"{RULE}, got lists[1][1] = None"),
        ([[7], ["b"]], ShardcoreTypeError, f"{RULE}, got lists[1][0] = 'b'"),
        ([["a"], [["b"]]], ShardcoreTypeError, f"{RULE}, got lists[1][0] = ['b']"),
        ([["a"], "b"], ShardcoreTypeError, "lists[1] must be a bag, a list of ids, got 'b'"),
        ([["a"], np.array([["b"]])], ShardcoreValueError,
         "lists[1] must have rank 1, got shape (1, 1)"),
        (["a", "b", "c"], ShardcoreTypeError,
         f"{BAGGED} strings; write [['a'], ['b'], ...] {REST}"),
        ([7, 8], ShardcoreTypeError, f"{BAGGED} integers; write [[7], [8]] {REST}"),
        ("abc", ShardcoreTypeError, "ids must be sc.Ragged, sc.Sparse, a dense array, "),
        ([["a\ud800"]], ShardcoreValueError, "ids must be valid Unicode, "
         "got lists[0][0] = 'a\\ud800', whose position 1 is none"),
        ((["a", None], [0, 2]), ShardcoreTypeError, f"{RULE}, got values[1] = None"),
        ((["a", "b"], [0, 1]), ShardcoreValueError, "row_splits"),
        ((np.array([["a"]]), [0, 1]), ShardcoreValueError,
         "values must have rank 1, got shape (1, 1)"),
        (np.array(["a", None]), ShardcoreTypeError, f"{RULE}, got ids[1] = None"),
        (np.array([0.5]), ShardcoreTypeError, f"{RULE}, got dtype float64"),
        (np.array("a"), ShardcoreTypeError, "ids must come in bags, got the scalar a; "),
    ],
)  # fmt: skip
def test_refusals_name_the_feature_and_the_place(leaf, error, text):
    e = engine()
    with pytest.raises(error, match=f"^{re.escape(f'''features['f']: {text}''')}"):
        e.enqueue({"f": leaf})
    assert e.in_flight == 0


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (sc.Hash(ROWS + 1), ShardcoreValueError,
         f"hash must have no more buckets than the table has rows, {ROWS}, got Hash({ROWS + 1})"),
        (1000, ShardcoreTypeError, "hash must be a Hash or None, got 1000"),
        (sc.Hash, ShardcoreTypeError,
         "hash must be a Hash or None, got <class 'shardcore.ids.hashing.Hash'>; write Hash(...)"),
        (hash, ShardcoreTypeError, "hash must be a Hash or None, got <built-in function hash>"),
    ],
)  # fmt: skip
def test_a_config_refuses_another_hash(function, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        sc.FeatureConfig(table(), hash=function)


def test_a_config_keeps_its_hash():
    config = sc.FeatureConfig(table(), hash=sc.Hash(ROWS, seed=2))
    assert repr(config).endswith(f", hash=Hash({ROWS}, seed=2))")
    assert "hash" not in repr(sc.FeatureConfig(table()))
    for copied in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert copied.hash == config.hash
        assert repr(copied) == repr(config)
        assert copied != config
    assert len({config, sc.FeatureConfig(config.table, hash=config.hash)}) == 2
