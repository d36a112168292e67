"""ShardedEmbedding: life cycle, inputs, combiners, invalid ids, sequences, training."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.prepare import FeatureInput, prepare_feature

ROWS = sc.initializers.RowId()
COMBINERS = ("sum", "mean", "sqrtn")
BACKENDS = [
    pytest.param({"backend": "cpu"}, id="cpu"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 3}}, id="sim3"),
]


@dataclass(frozen=True, eq=False, repr=False)
class Creep(sc.Optimizer):
    """Moves every touched row by 1 whatever its gradient, and counts how often in a row slot."""

    hyper_names = ()
    slots = (sc.SlotSpec("visits", "row"),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows + 1, {"visits": slots["visits"] + 1}


@dataclass(frozen=True, eq=False, repr=False)
class Momentum(sc.Optimizer):
    learning_rate: Any = 1.0
    slots = (sc.SlotSpec("momenta", "element"),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        momenta = 0.5 * slots["momenta"] + grad
        return rows - hyper[0] * momenta, {"momenta": momenta}


def engine(config, optimizer=None, **options):
    e = sc.ShardedEmbedding(config, optimizer=optimizer, **options)
    e.build()
    return e


def train(e, features, gradients, weights=None):
    """One step; `gradients` is a number for all of them, or their structure."""
    e.enqueue(features, weights)
    activations = e.dequeue()
    if isinstance(gradients, int | float):
        gradients = {name: np.full(a.shape, gradients) for name, a in activations.items()}
    e.apply_gradients(gradients)
    return activations


def combined(rows, bags, weights, combiner):
    """Combine bags by the definition, in float64."""
    out = np.zeros((len(bags), rows.shape[1]))
    for b, bag in enumerate(bags):
        w = np.ones(len(bag)) if weights is None else np.array(weights[b], np.float64)
        total = sum((wi * rows[i] for wi, i in zip(w, bag, strict=True)), np.zeros(rows.shape[1]))
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
        out[b] = total / divisor if divisor else 0
    return out


def splits(bags):
    return list(accumulate(map(len, bags), initial=0))


def flat(bags):
    return [i for bag in bags for i in bag]


# --- life cycle ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
def test_life_from_build_to_close(where):
    table = TableConfig(6, 2, initializer=ROWS, combiner="sum", name="user")
    hosts = 1 if where["backend"] == "cpu" else 3
    with sc.ShardedEmbedding(
        {"a": FeatureConfig(table)}, optimizer=sc.optimizers.Adagrad(learning_rate=1.0), **where
    ) as e:
        shown = "ShardedEmbedding(1 features; tables: user 6x2; backend "
        shown += f"{where['backend']!r}, {hosts} host{'s' * (e._backend.num_hosts != 1)}; "
        assert repr(e) == shown + "not built)"
        e.build()
        e.build()
        assert repr(e) == shown + "built)"
        assert list(e.tables) == ["user"]
        assert list(e.embedding_tables) == [table]
        assert list(e.slots["user"]) == ["accumulators"]
        view = e.tables["user"]
        assert view.shape == (6, 2)
        assert view.name == "user"
        assert view.dtype == np.float32
        assert len(view.shards) == hosts
        assert e.slots["user"]["accumulators"].name == "user/accumulators"
        np.testing.assert_array_equal(
            e.slots["user"]["accumulators"], np.full((6, 2), np.float32(0.1))
        )
        np.testing.assert_array_equal(e({"a": [[5], [1, 1]]})["a"], [[5, 5], [2, 2]])
        assert e.step == 0
        activations = train(e, {"a": [[5], [1, 1]]}, 1.0)
        np.testing.assert_array_equal(activations["a"], [[5, 5], [2, 2]])
        assert e.step == 1
        moved = np.asarray(view)
        np.testing.assert_allclose(moved[5], 5 - 1 / np.sqrt(1.1), rtol=1e-6)
        np.testing.assert_allclose(moved[1], 1 - 2 / np.sqrt(4.1), atol=1e-6)
        np.testing.assert_array_equal(moved[[0, 2, 3, 4]], [[0, 0], [2, 2], [3, 3], [4, 4]])
        metrics = e.metrics()
        assert (metrics["lookups"], metrics["ids"], metrics["invalid_ids"]) == (2, 6, 0)
        assert metrics["steps"] == 1
        assert (metrics["bytes_exchanged"] > 0) == (hosts > 1)
    assert repr(e) == shown + "closed)"
    e.close()
    np.testing.assert_array_equal(moved[0], [0, 0])


def test_tables_are_views_that_write_through():
    e = engine({"a": FeatureConfig(TableConfig(4, 2, initializer=ROWS, name="t"))}, Creep())
    e.tables["t"][1] = [7, 8]
    e.slots["t"]["visits"][2] = 5
    np.testing.assert_array_equal(e({"a": [[1]]})["a"], [[7, 8]])
    train(e, {"a": [[2]]}, 0)
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [0], [6], [0]])


def test_a_lookup_builds_the_tables():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(4, 2, initializer=ROWS)))
    np.testing.assert_array_equal(e([[3]]), [[3, 3]])
    assert list(e.tables) == ["table_0"]
    assert e.slots == {"table_0": {}}


@pytest.mark.parametrize("where", BACKENDS)
def test_a_failing_initializer_leaves_an_engine_that_is_not_built(where):
    def broken(rows, row_shape, dtype, seed):
        if 3 in rows:
            raise OSError("no values today")
        return np.zeros((len(rows), *row_shape))

    first, second = TableConfig(4, 2), TableConfig(4, 2, initializer=broken)
    e = sc.ShardedEmbedding([FeatureConfig(first), FeatureConfig(second)], **where)
    for _ in range(2):
        with pytest.raises(OSError, match="no values today"):
            e.build(batch_size=3)
        assert "not built" in repr(e)
    with pytest.raises(OSError, match="no values today"):  # and 3 was not kept
        e.build(batch_size=4)


def test_the_caller_may_change_his_structure_afterwards():
    features = {"a": FeatureConfig(TableConfig(4, 2, initializer=ROWS))}
    e = sc.ShardedEmbedding(features)
    features["b"] = features.pop("a")
    np.testing.assert_array_equal(e({"a": [[3]]})["a"], [[3, 3]])


# --- structures ------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass
class Group:
    first: Any
    second: Any = None


def test_structures_come_back_as_they_are():
    table = TableConfig(8, 2, initializer=ROWS, combiner="sum")
    f = [FeatureConfig(table) for _ in range(7)]
    config = {"d": {"x": f[0]}, "l": [f[1]], "t": (f[2], f[3]), "n": Pair(f[4], [f[5]]),
              "c": Group(f[6], [])}  # fmt: skip
    features = {"c": Group([[6]], []), "t": ([[2]], [[3]]), "n": Pair([[4]], [[[5]]]),
                "l": [[[1]]], "d": {"x": [[0]]}}  # fmt: skip
    e = engine(config, sc.optimizers.SGD(learning_rate=1.0))
    e.enqueue(features)
    out = e.dequeue()
    assert list(out) == ["d", "l", "t", "n", "c"]
    assert isinstance(out["t"], tuple)
    assert isinstance(out["n"], Pair)
    assert isinstance(out["c"], Group)
    pair = out["n"]
    leaves = [out["d"]["x"], out["l"][0], *out["t"], pair.left, pair.right[0], out["c"].first]
    for row, leaf in enumerate(leaves):
        np.testing.assert_array_equal(leaf, [[row, row]])
    e.apply_gradients(out)
    np.testing.assert_array_equal(e.tables["table_0"], np.repeat([[0]] * 7 + [[7]], 2, axis=1))


def test_a_bare_feature_and_several_features_on_one_table():
    table = TableConfig(8, 2, initializer=ROWS, combiner="sum")
    bare = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0))
    bare.enqueue([[1, 2]])
    np.testing.assert_array_equal(bare.dequeue(), [[3, 3]])
    bare.apply_gradients([[1, 2]])
    np.testing.assert_array_equal(bare.tables["table_0"][1:3], [[0, -1], [1, 0]])

    e = engine({"a": FeatureConfig(table), "b": FeatureConfig(table)},
               sc.optimizers.SGD(learning_rate=1.0))  # fmt: skip
    train(e, {"a": [[3], [4]], "b": [[3, 3]]}, {"a": [[1, 1], [1, 1]], "b": [[10, 10]]})
    np.testing.assert_array_equal(e.tables["table_0"][3:5], [[3 - 21] * 2, [3, 3]])


def test_configs_are_shared_between_engines_and_never_changed():
    table = TableConfig(8, 2)
    config = {"a": FeatureConfig(table)}
    before = (dict(vars(table)), dict(vars(config["a"])))
    first = engine(config, sc.optimizers.SGD())
    second = engine(config, sc.optimizers.Adagrad())
    assert (dict(vars(table)), dict(vars(config["a"]))) == before
    assert first.slots == {"table_0": {}}
    assert list(second.slots["table_0"]) == ["accumulators"]


def test_tables_come_in_order_of_first_appearance():
    t = [TableConfig(4, 1, name=name) for name in ("z", None, "a", None)]
    features = {"q": [FeatureConfig(t[2]), FeatureConfig(t[0])], "b": FeatureConfig(t[3]),
                "a": (FeatureConfig(t[2]), FeatureConfig(t[1]))}  # fmt: skip
    e = engine(features)
    assert list(e.tables) == ["a", "z", "table_2", "table_3"]
    assert list(e.embedding_tables) == [t[2], t[0], t[3], t[1]]


_TABLES_PROGRAM = """
import hashlib
import numpy as np
import shardcore as sc
sizes = np.random.default_rng(5).integers(1, 40, (30, 2))
tables = [sc.TableConfig(int(r), int(d), name=None if i % 3 else f"t{i}",
                         optimizer=sc.optimizers.SGD(learning_rate=lambda: 0.5) if i % 2 else None)
          for i, (r, d) in enumerate(sizes)]
e = sc.ShardedEmbedding({f"f{i}": sc.FeatureConfig(t) for i, t in enumerate(tables)},
                        optimizer=sc.optimizers.Adagrad(), seed=11)
features = {f"f{i}": [[0]] for i in range(30)}
e.enqueue(features)
e.apply_gradients(e.dequeue())
digest = hashlib.sha256()
for name, table in e.tables.items():
    digest.update(name.encode() + np.asarray(table).tobytes())
for name, slots in e.slots.items():
    for slot in slots:
        digest.update((name + slot).encode() + np.asarray(slots[slot]).tobytes())
print(digest.hexdigest())
"""


def test_tables_are_the_same_in_every_process():
    found = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", _TABLES_PROGRAM], env=environment,
                              capture_output=True, text=True, check=True)  # fmt: skip
        found.add(done.stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 2 * hashlib.sha256().digest_size


def test_initial_values_depend_on_seed_and_name():
    def initial(seed, name):
        e = engine(FeatureConfig(TableConfig(5, 3, name=name)), seed=seed)
        return np.asarray(e.tables[name])

    assert initial(1, "a").tobytes() == initial(1, "a").tobytes()
    assert (initial(1, "a") != initial(2, "a")).any()
    assert (initial(1, "a") != initial(1, "b")).any()


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


# --- sequences -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
@pytest.mark.parametrize("policy", ["drop", "zero", "clip", 2])
def test_sequences_are_padded_and_truncated(where, policy):
    table = TableConfig(5, 2, initializer=lambda r, *_: np.repeat(r[:, None] + 1, 2, 1), name="t")
    feature = FeatureConfig(table, max_sequence_length=3, invalid_ids=policy)
    e = engine(feature, Creep(), **where)
    e.enqueue([[1, 9, 3], [], [4, 0, 0, 1], [0]])
    out = e.dequeue()
    assert out.shape == (4, 3, 2)
    np.testing.assert_array_equal(out[..., 0], out[..., 1])
    first = {"drop": [2, 4, 0], "zero": [2, 0, 4], "clip": [2, 5, 4], 2: [2, 3, 4]}[policy]
    np.testing.assert_array_equal(out[..., 0], [first, [0, 0, 0], [5, 1, 1], [1, 0, 0]])
    e.apply_gradients(np.zeros(out.shape))
    touched = {"drop": [0, 1, 3, 4], "zero": [0, 1, 3, 4], "clip": [0, 1, 3, 4], 2: [0, 1, 2, 3, 4]}
    assert np.flatnonzero(np.asarray(e.slots["t"]["visits"])).tolist() == touched[policy]
    assert e.metrics()["invalid_ids"] == 1


def test_truncated_ids_are_not_touched_and_drop_moves_later_ids_up():
    table = TableConfig(5, 1, initializer=ROWS, name="t")
    e = engine(FeatureConfig(table, max_sequence_length=2, invalid_ids="drop"), Creep())
    e.enqueue([[-1, 1, 7, 2, 3]])
    np.testing.assert_array_equal(e.dequeue()[0, :, 0], [1, 2])
    e.apply_gradients(np.zeros((1, 2, 1)))
    assert np.flatnonzero(np.asarray(e.slots["t"]["visits"])).tolist() == [1, 2]


def test_sequence_with_output_shape():
    table = TableConfig(5, 1, initializer=ROWS)
    e = engine(FeatureConfig(table, max_sequence_length=2, output_shape=(2, 2, 2)))
    out = e([[1, 2], [3], [4], []])
    np.testing.assert_array_equal(out[..., 0], [[[1, 2], [3, 0]], [[4, 0], [0, 0]]])


def video_and_user(lengths=(0, 0, 0), optimizer=None, where=None):
    values = np.arange(32.0)
    video = TableConfig(8, 4, initializer=values.reshape(8, 4), combiner="sum", name="video")
    user = TableConfig(16, 2, initializer=values.reshape(16, 2), name="user")
    config = {
        "watched": FeatureConfig(video, max_sequence_length=lengths[0]),
        "favorited": FeatureConfig(video, max_sequence_length=lengths[1]),
        "friends": FeatureConfig(user, max_sequence_length=lengths[2]),
    }
    return engine(config, optimizer, **(where or {}))


VIDEOS = {"watched": [[0], [0, 1]], "favorited": [[0, 1], [1]], "friends": [[3], [0, 1, 2]]}


@pytest.mark.parametrize("where", BACKENDS)
def test_sequence_gradients_of_upstream(where):
    e = video_and_user((2, 2, 3), sc.optimizers.SGD(learning_rate=0.1), where)
    e.enqueue(VIDEOS)
    before = e.dequeue()
    assert {name: a.shape for name, a in before.items()} == {
        "watched": (2, 2, 4), "favorited": (2, 2, 4), "friends": (2, 3, 2)}  # fmt: skip
    masks = {"watched": [[1, 0], [1, 1]], "favorited": [[1, 1], [1, 0]],
             "friends": [[1, 0, 0], [1, 1, 1]]}  # fmt: skip
    ones = {name: np.ones(a.shape) for name, a in before.items()}
    for name, mask in masks.items():
        ones[name][np.array(mask) == 0] = 1e9  # on padding, ignored
    e.apply_gradients(ones)
    after = e(VIDEOS)
    for name, drop in (("watched", 0.3), ("favorited", 0.3), ("friends", 0.1)):
        expected = before[name] - drop * np.array(masks[name])[..., None]
        np.testing.assert_allclose(after[name], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(after[name][np.array(masks[name]) == 0], 0)


# --- golden numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_one_step_of_upstream(name, where):
    e = video_and_user(optimizer=getattr(sc.optimizers, name)(learning_rate=0.1), where=where)
    e.enqueue(VIDEOS)
    x = e.dequeue()
    np.testing.assert_allclose(x["watched"], [[0, 1, 2, 3], [4, 6, 8, 10]])
    np.testing.assert_allclose(x["favorited"], [[4, 6, 8, 10], [4, 5, 6, 7]])
    np.testing.assert_allclose(x["friends"], [[6, 7], [2, 3]])
    assert sum((a * a).sum() / 2 for a in x.values()) == 335
    e.apply_gradients(x)  # the gradient of that loss, 2 x / batch
    video, user = (np.asarray(e.tables[table]) for table in ("video", "user"))
    initial = np.arange(32.0)
    np.testing.assert_array_equal(video[2:], initial.reshape(8, 4)[2:])
    np.testing.assert_array_equal(user[4:], initial.reshape(16, 2)[4:])
    if name == "SGD":
        np.testing.assert_allclose(video[0], [-0.8, -0.3, 0.2, 0.7], atol=1e-6)
        np.testing.assert_allclose(video[1], [2.8, 3.3, 3.8, 4.3], atol=1e-6)
        np.testing.assert_allclose(user[0], [-0.066667, 0.9], atol=1e-6)
        np.testing.assert_allclose(user[3], [5.4, 6.3], atol=1e-6)
        return
    np.testing.assert_allclose(video[0], [-0.099922, 0.90003, 1.900015, 2.900009], atol=1e-6)
    np.testing.assert_allclose(user[0], [-0.090351, 0.904654], atol=1e-6)
    np.testing.assert_allclose(user[3], [5.900139, 6.900102], atol=1e-6)
    videos, users = (np.asarray(e.slots[table]["accumulators"]) for table in ("video", "user"))
    np.testing.assert_allclose(videos[0], [64.1, 169.1, 324.1, 529.1], rtol=1e-6)
    np.testing.assert_allclose(users[0], [0.544444, 1.1], atol=1e-6)
    np.testing.assert_allclose(users[3], [36.1, 49.1], rtol=1e-6)
    np.testing.assert_array_equal(videos[2:], np.float32(0.1))


def test_dynamic_learning_rate_of_upstream():
    asked = []

    def rate():
        asked.append(threading.get_ident())
        return 1.0 - 0.05 * (len(asked) - 1)

    one, two = (TableConfig(3, 1, initializer=sc.initializers.Zeros(), name=n) for n in "ab")
    e = engine({"a": FeatureConfig(one), "b": FeatureConfig(two)}, sc.optimizers.SGD(rate))
    seen = [float(train(e, {"a": [[1]], "b": [[2]]}, 1)["a"][0, 0]) for _ in range(10)]
    np.testing.assert_allclose(seen[:4], [0, -1, -1.95, -2.85], rtol=1e-6)
    expected = [-sum(1 - 0.05 * j for j in range(i)) for i in range(10)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    assert asked == [threading.get_ident()] * 10  # once per batch, in the caller's thread
    assert np.asarray(e.tables["a"])[1] == np.asarray(e.tables["b"])[2]


# --- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
def test_none_touches_nothing_and_zeros_touch(where):
    table = TableConfig(6, 1, initializer=ROWS, combiner="sum", name="t")
    config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
    e = engine(config, Creep(), **where)
    train(e, {"a": [[1, 1], [2]], "b": [[2, 3], [4]]}, {"a": None, "b": np.zeros((2, 1))})
    np.testing.assert_array_equal(e.tables["t"], [[0], [1], [3], [4], [5], [5]])
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [0], [1], [1], [1], [0]])
    train(e, {"a": [[1, 1], [2]], "b": [[2, 3], [4]]}, 0.0)
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [1], [2], [2], [2], [0]])
    assert (e.step, e.metrics()["steps"]) == (2, 2)


@pytest.mark.parametrize("where", BACKENDS)
def test_a_gradient_of_zeros_lets_momentum_move_and_none_does_not(where):
    table = TableConfig(3, 1, initializer=sc.initializers.Zeros(), name="t")
    e = engine({"a": FeatureConfig(table)}, Momentum(), **where)
    train(e, {"a": [[0], [1], [2]]}, 1.0)
    train(e, {"a": [[1]]}, 0.0)
    np.testing.assert_array_equal(e.tables["t"], [[-1], [-1.5], [-1]])
    np.testing.assert_array_equal(e.slots["t"]["momenta"], [[1], [0.5], [1]])
    train(e, {"a": [[2]]}, {"a": None})
    np.testing.assert_array_equal(e.tables["t"], [[-1], [-1.5], [-1]])


def test_zeros_leave_adagrad_as_it_was():
    e = engine({"a": FeatureConfig(TableConfig(3, 2, name="t"))}, sc.optimizers.Adagrad(0.5))
    before = np.asarray(e.tables["t"]).tobytes(), np.asarray(e.slots["t"]["accumulators"]).tobytes()
    train(e, {"a": [[0, 1]]}, 0.0)
    after = np.asarray(e.tables["t"]).tobytes(), np.asarray(e.slots["t"]["accumulators"]).tobytes()
    assert after == before
    assert e.step == 1


@pytest.mark.parametrize("dropped", [None, {"a": None, "b": None}])
def test_no_gradient_at_all_drops_the_batch(dropped):
    asked = []
    table = TableConfig(3, 1, initializer=ROWS, name="t")
    config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
    e = engine(config, Momentum(lambda: asked.append(1) or 1.0))
    e.enqueue({"a": [[0]], "b": [[1]]})
    if dropped is not None:
        e.dequeue()
        assert e.apply_gradients(dropped) is None
    else:
        e.dequeue()
        assert e.apply_gradients(None) is None
    np.testing.assert_array_equal(e.tables["t"], [[0], [1], [2]])
    assert (e.step, e.metrics()["steps"], asked) == (0, 0, [])
    train(e, {"a": [[0]], "b": [[1]]}, 1.0)
    assert e.step == 1


def test_ids_that_weigh_nothing_are_touched():
    e = engine(FeatureConfig(TableConfig(4, 1, initializer=ROWS, name="t")), Creep())
    e.enqueue([[1, 2], [3]], np.array([0.0, 1.0, 0.0]))
    e.dequeue()
    e.apply_gradients(np.ones((2, 1)))
    np.testing.assert_array_equal(e.tables["t"], [[0], [2], [3], [4]])


def test_optimizers_see_the_step_and_the_rows():
    seen = []

    @dataclass(frozen=True, eq=False, repr=False)
    class Watch(sc.Optimizer):
        hyper_names = ()

        def update(self, grad, rows, slots, hyper, step, row_ids):
            seen.append((step, row_ids.tolist(), grad[:, 0].tolist()))
            return rows, {}

    e = engine({"a": FeatureConfig(TableConfig(9, 1, combiner="sum"))}, Watch())
    train(e, {"a": [[7, 2], [7]]}, 1.0)
    train(e, {"a": [[5]]}, 2.0)
    assert seen == [(1, [2, 7], [1.0, 2.0]), (2, [5], [2.0])]


def test_two_tables_with_optimizers_of_their_own():
    own = TableConfig(3, 1, initializer=ROWS, optimizer=Creep(), name="own")
    plain = TableConfig(3, 1, initializer=ROWS, name="plain")
    e = engine({"a": FeatureConfig(own), "b": FeatureConfig(plain)}, sc.optimizers.SGD(0.5))
    train(e, {"a": [[1]], "b": [[1]]}, 1.0)
    np.testing.assert_array_equal(e.tables["own"], [[0], [2], [2]])
    np.testing.assert_array_equal(e.tables["plain"], [[0], [0.5], [2]])
    assert [list(slots) for slots in e.slots.values()] == [["visits"], []]


def test_a_table_without_optimizer_is_looked_up_only():
    frozen = TableConfig(3, 1, initializer=ROWS, name="frozen")
    moving = TableConfig(3, 1, initializer=ROWS, optimizer=Creep(), name="moving")
    e = engine({"a": FeatureConfig(frozen), "b": FeatureConfig(moving)})
    activations = train(e, {"a": [[1]], "b": [[1]]}, {"a": None, "b": np.ones((1, 1))})
    np.testing.assert_array_equal(activations["a"], [[1]])
    np.testing.assert_array_equal(e.tables["frozen"], [[0], [1], [2]])
    np.testing.assert_array_equal(e.tables["moving"], [[0], [2], [2]])
    untrained = engine(FeatureConfig(frozen))
    untrained.enqueue([[2]])
    np.testing.assert_array_equal(untrained.dequeue(), [[2]])
    untrained.enqueue([[1]])  # the one before needed no gradients
    np.testing.assert_array_equal(untrained.dequeue(), [[1]])


@pytest.mark.parametrize("where", BACKENDS)
def test_a_lookup_sees_the_updates_before_it_and_no_other(where):
    table = TableConfig(3, 1, initializer=ROWS, name="t")
    e = engine({"a": FeatureConfig(table)}, Creep(), **where)
    e.enqueue({"a": [[1]]})
    e.tables["t"][1] = [50]
    waiting = e.dequeue()["a"]
    assert waiting.tolist() == [[1]]
    assert e({"a": [[1]]})["a"].tolist() == [[50]]  # a lookup beside a batch in flight
    e.apply_gradients({"a": np.zeros((1, 1))})
    assert waiting.tolist() == [[1]]
    assert e({"a": [[1]]})["a"].tolist() == [[51]]
    e.enqueue({"a": [[1]]}, training=False)
    assert e.dequeue()["a"].tolist() == [[51]]
    assert e.step == 1


@pytest.mark.parametrize("where", BACKENDS)
def test_lookups_of_other_threads_see_whole_rows(where):
    table = TableConfig(2, 257, initializer=sc.initializers.Zeros(), name="t")
    e = engine({"a": FeatureConfig(table)}, sc.optimizers.SGD(learning_rate=1.0), **where)
    torn, stop, looked = [], threading.Event(), []

    def look():
        while not stop.is_set():
            row = e({"a": [[1]]})["a"][0]
            looked.append(row[0])
            if (row != row[0]).any():
                torn.append(row)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        train(e, {"a": [[1]]}, -1.0)
    while len(looked) < 5 and all(thread.is_alive() for thread in threads):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn
    assert e.metrics()["lookups"] == 60 + len(looked)
    assert np.asarray(e.tables["t"])[1, 0] == 60


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes_train_in_their_working_dtype(dtype):
    rows = np.linspace(-1, 1, 12).reshape(4, 3)
    table = TableConfig(4, 3, initializer=rows, combiner="sum", dtype=dtype, name="t")
    e = engine({"a": FeatureConfig(table)}, sc.optimizers.Adagrad(0.5))
    working = np.float64 if dtype == "float64" else np.float32
    stored = np.asarray(e.tables["t"])
    assert stored.dtype.name == dtype
    assert e.slots["t"]["accumulators"].dtype == working
    g = np.array([[0.5, -1, 2]])
    x = train(e, {"a": [[1, 3, 3]]}, {"a": g.astype(np.float16)})["a"]
    assert x.dtype == working
    w = stored.astype(working)
    np.testing.assert_allclose(x[0], w[1] + 2 * w[3], rtol=1e-6)
    for row, total in ((1, g[0]), (3, 2 * g[0])):
        a = (np.float32(0.1) if working == np.float32 else 0.1) + total**2
        w[row] = w[row] - 0.5 * total / np.sqrt(a)
    tolerance = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    after = np.asarray(e.tables["t"]).astype(working)
    np.testing.assert_allclose(after, w, rtol=tolerance, atol=tolerance)


# --- gradients of weights --------------------------------------------------------------------


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("policy", ["raise", "drop", "zero", "clip", 3])
@pytest.mark.parametrize("where", BACKENDS)
def test_weight_gradients_by_finite_differences(combiner, policy, where):
    rng = np.random.default_rng(8)
    table = TableConfig(7, 3, combiner=combiner, dtype="float64",
                        initializer=rng.normal(size=(7, 3)))  # fmt: skip
    e = engine(FeatureConfig(table, invalid_ids=policy), sc.optimizers.SGD(), **where)
    bad = [2, 5] if policy == "raise" else [-1, 99]
    bags = [[1, bad[0], 4, 1], [], [6], [bad[1], 0, 3], [bad[0]]]
    w = rng.uniform(0.5, 2.0, sum(map(len, bags)))
    direction = rng.normal(size=(5, 3))

    def loss(weights):
        return float((e(bags, weights) * direction).sum())

    numeric = np.empty_like(w)
    for i in range(w.size):
        step = np.zeros_like(w)
        step[i] = 1e-6
        numeric[i] = (loss(w + step) - loss(w - step)) / 2e-6
    e.enqueue(bags, w)
    e.dequeue()
    found = e.apply_gradients(direction, weight_gradients=True)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, numeric, rtol=1e-7, atol=1e-8)
    if policy == "drop":
        assert found[1] == 0
        assert found[-1] == 0


def test_weight_gradients_have_the_order_and_shape_of_the_weights():
    rows = np.arange(1.0, 11.0).reshape(10, 1)
    table = TableConfig(10, 1, initializer=rows, combiner="sum", name="t")
    names = ("dense", "sparse", "own", "none")
    config = {name: FeatureConfig(table, invalid_ids="drop") for name in names}
    e = engine(config, sc.optimizers.SGD(learning_rate=0.0))
    sparse = sc.Sparse([[1, 0], [0, 1], [1, 2], [0, 0]], [4, 3, 99, 1], (2, 3))
    features = {"dense": np.array([[1, 2], [3, 99]]), "sparse": sparse,
                "own": sc.Ragged([5, 6], [0, 2, 2], [0.5, 0.5]), "none": [[1], [2]]}  # fmt: skip
    weights = {"dense": np.ones((2, 2)), "sparse": np.array([1.0, 2.0, 3.0, 4.0]), "own": None,
               "none": None}  # fmt: skip
    e.enqueue(features, weights)
    x = e.dequeue()
    np.testing.assert_array_equal(x["sparse"], [[2 * 4 + 4 * 2], [5]])
    g = np.array([[1.0], [10.0]])
    found = e.apply_gradients(dict.fromkeys(config, g), weight_gradients=True)
    np.testing.assert_array_equal(found["dense"], [[2, 3], [40, 0]])
    np.testing.assert_array_equal(found["sparse"], [50, 4, 0, 2])
    np.testing.assert_array_equal(found["own"], [6, 7])
    assert found["none"] is None
    assert e.step == 1
    e.enqueue(features, weights)
    e.dequeue()
    some = {"dense": None, "sparse": g, "own": None, "none": None}
    found = e.apply_gradients(some, weight_gradients=True)
    assert found["dense"] is None
    assert found["own"] is None
    np.testing.assert_array_equal(found["sparse"], [50, 4, 0, 2])
    e.enqueue(features, weights)
    e.dequeue()
    assert e.apply_gradients(None, weight_gradients=True) == dict.fromkeys(config)


def sparse_weights_engine(backend, **options):
    rows = np.arange(1.0, 11.0).reshape(10, 1)
    table = TableConfig(10, 1, initializer=rows, combiner="sum", name="t")
    e = sc.ShardedEmbedding({"a": FeatureConfig(table, **options)},
                            sc.optimizers.SGD(learning_rate=1.0), backend=backend)  # fmt: skip
    e.build()
    return e


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_sparse_weights_lie_where_the_sparse_ids_do(backend, policy):
    """Unsorted, in lookups and training; the weights' gradients come in the order given."""
    e = sparse_weights_engine(backend, invalid_ids=policy)
    places = [[1, 0], [0, 1], [1, 2], [0, 0]]
    ids = {"a": sc.Sparse(places, [4, 3, 99, 1], (3, 3))}
    weights = {"a": sc.Sparse(places, [1, 2, 3, 4], (3, 3))}
    expected = [[2 * 4 + 4 * 2], [5], [0]]
    np.testing.assert_array_equal(e(ids, weights)["a"], expected)
    e.enqueue(ids, weights)
    np.testing.assert_array_equal(e.dequeue()["a"], expected)
    g = np.array([[1.0], [10.0], [100.0]])
    found = e.apply_gradients({"a": g}, weight_gradients=True)
    np.testing.assert_array_equal(found["a"], [50, 4, 0, 2])
    np.testing.assert_array_equal(e.tables["t"][:5, 0], [1, 2 - 4, 3, 4 - 2, 5 - 10])


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_sparse_weights_elsewhere_than_the_ids_are_refused(backend):
    e = sparse_weights_engine(backend)
    ids = sc.Sparse([[1, 0], [0, 1], [0, 0]], [4, 3, 1], (2, 2))
    moved = sc.Sparse([[1, 0], [0, 0], [0, 1]], [1.0, 2.0, 3.0], (2, 2))
    fewer = sc.Sparse([[1, 0]], [1.0], (2, 2))
    wider = sc.Sparse([[1, 0], [0, 1], [0, 0]], [1.0, 2.0, 3.0], (2, 3))
    places = "weights['a']: weights must have the places of the ids: "
    sparse_only = "weights['a']: weights may be Sparse only where the ids are, got ids of type "
    cases = [
        (ids, moved, ShardcoreValueError, places + "indices[1] is [0, 0], of the ids [0, 1]"),
        (ids, fewer, ShardcoreValueError, places + "3 in dense_shape (2, 2), got 1 in (2, 2)"),
        (ids, wider, ShardcoreValueError, places + "3 in dense_shape (2, 2), got 3 in (2, 3)"),
        ([[1], [2]], moved, ShardcoreTypeError, sparse_only + "list"),
        (np.array([1, 2]), moved, ShardcoreTypeError, sparse_only + "ndarray"),
        (ids, sc.Sparse(ids.indices, [1, np.inf, 2], (2, 2)), ShardcoreValueError,
         "weights['a']: weights must be finite, got inf at position 1"),
    ]  # fmt: skip
    for leaf, weights, error, message in cases:
        for call in (e, e.enqueue):
            with pytest.raises(error, match=f"^{re.escape(message)}$"):
                call({"a": leaf}, {"a": weights})
    assert e.step == 0


def test_weight_gradients_are_those_before_the_update():
    table = TableConfig(3, 1, initializer=ROWS, combiner="sum", name="t")
    e = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0))
    e.enqueue([[2]], [4.0])
    e.dequeue()
    assert e.apply_gradients([[3.0]], weight_gradients=True).tolist() == [6.0]
    assert np.asarray(e.tables["t"])[2] == 2 - 12


def test_weights_in_another_dtype_are_cast_once():
    e = engine(FeatureConfig(TableConfig(3, 2, initializer=ROWS, combiner="sum")))
    wide = e([[1, 2]], np.array([0.1, 0.2]))
    narrow = e([[1, 2]], np.array([0.1, 0.2], np.float32))
    assert wide.tobytes() == narrow.tobytes()
    assert e([[1, 2]], np.array([2, 3]))[0].tolist() == [8, 8]


def test_config_records_are_frozen():
    table = TableConfig(3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.name = "x"
