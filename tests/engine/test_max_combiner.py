"""Tables of combiner "max": greatest values of bags, gradients to the rows that have them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from dictionary_backend import Dictionary

import shardcore as sc
from shardcore import reference
from shardcore.backend import Capabilities
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.lookup.serving import serving_embedding_lookup

ROWS, DIM = 50, 6
BACKENDS = ["cpu", "sim1", "sim3", "sim7", "dictionary"]
both = pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])


class OnDevice:
    """An array that the backend `TakesOnDevice` takes as it is."""

    def __init__(self, array):
        self._array = np.asarray(array, np.float32)
        self.shape, self.dtype = self._array.shape, self._array.dtype

    def reshape(self, *shape):
        return OnDevice(self._array.reshape(*shape))

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype)


class TakesOnDevice(Dictionary):
    """Gives and takes arrays of its own kind."""

    capabilities = Capabilities(device_arrays=True)

    def lookup(self, batches):
        return [[OnDevice(one) for one in found] for found in super().lookup(batches)]

    def takes_gradient(self, gradient):
        return isinstance(gradient, OnDevice)


def made(backend):
    if backend == "dictionary":
        return Dictionary()
    if isinstance(backend, str) and backend.startswith("sim"):
        return sc.get_backend("sim", hosts=int(backend[3:]))
    return sc.get_backend(backend) if isinstance(backend, str) else backend


def make_engine(backend="cpu", pipeline=False, combiner="max", dtype="float32", **feature):
    values = np.round(np.random.default_rng(1).normal(size=(ROWS, DIM)), 1)  # with many equal ones
    table = TableConfig(ROWS, DIM, values, combiner=combiner, name="t", dtype=dtype)
    other = TableConfig(9, 3, combiner="mean", name="other")
    features = {
        "a": FeatureConfig(table, **feature),
        "b": FeatureConfig(table, **feature),
        "seq": FeatureConfig(table, max_sequence_length=2),
        "o": FeatureConfig(other),
    }
    return sc.ShardedEmbedding(
        features, sc.optimizers.Adagrad(0.5), made(backend), pipeline=pipeline, seed=3
    )


def ragged(rng, bags, rows=ROWS):
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 6, bags))])
    return rng.integers(0, rows, splits[-1]), splits


def batch(rng, bags=20):
    features = {name: ragged(rng, bags) for name in ("a", "b", "seq")}
    features["o"] = ragged(rng, bags, 9)
    weights = {"a": None, "b": None, "seq": None, "o": rng.random(len(features["o"][0]))}
    return features, weights


def gradients_like(rng, activations):
    return {name: rng.normal(size=np.shape(one)) for name, one in activations.items()}


def stored(e):
    names = ((name, slot) for name in e.tables for slot in (None, *e.slots[name]))
    return {
        (name, slot): np.asarray(e.tables[name] if slot is None else e.slots[name][slot]).tobytes()
        for name, slot in names
    }


@both
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_it_is_a_lookup_of_single_rows_and_a_maximum(backend, pipeline, dtype):
    """An engine that is asked for each id on its own, with the twins of the kernels around it."""
    e = make_engine(backend, pipeline, dtype=dtype)
    plain = make_engine("cpu", combiner="sum", dtype=dtype)
    rng = np.random.default_rng(2)
    for bags in (20, 1, 0, 33):
        features, weights = batch(rng, bags)
        single = {
            name: (ids, np.arange(len(ids) + 1)) if name in "ab" else (ids, splits)
            for name, (ids, splits) in features.items()
        }
        e.enqueue(features, weights)
        plain.enqueue(single, weights)
        found, rows = e.dequeue(), plain.dequeue()
        gradients = gradients_like(rng, found)
        spread = dict(gradients)
        for name in "ab":
            splits = np.asarray(features[name][1])
            wanted, winners = reference.max_of_bags(rows[name], splits)
            assert found[name].dtype == wanted.dtype
            assert found[name].tobytes() == wanted.tobytes()
            given = gradients[name].astype(rows[name].dtype)
            spread[name] = reference.at_winners(given, winners, splits)
        assert found["seq"].tobytes() == rows["seq"].tobytes()
        ours = e.apply_gradients(gradients, weight_gradients=True)
        theirs = plain.apply_gradients(spread, weight_gradients=True)
        assert ours["a"] is ours["b"] is None
        np.testing.assert_array_equal(ours["o"], theirs["o"])
    assert stored(e) == stored(plain)
    assert e.step == plain.step


def test_by_hand():
    table = TableConfig(4, 2, np.array([[1.0, 5], [3, 2], [3, 7], [0, 0]]), sc.optimizers.SGD(1.0),
                        combiner="max", name="t")  # fmt: skip
    e = sc.ShardedEmbedding(FeatureConfig(table))
    e.enqueue([[0, 1, 2], [], [1, 1], [3]])
    np.testing.assert_array_equal(e.dequeue(), [[3, 7], [0, 0], [3, 2], [0, 0]])
    e.apply_gradients([[10.0, 20], [30, 40], [50, 60], [70, 80]])
    wanted = [[1, 5], [3 - 10 - 50, 2 - 60], [3, 7 - 20], [-70, -80]]
    np.testing.assert_array_equal(e.tables["t"], wanted)


def test_every_id_counts_as_named():
    """Rows that win nothing have a gradient of zeros, which decays them all the same."""
    optimizer = sc.optimizers.SGD(1.0, weight_decay_factor=0.5)
    table = TableConfig(3, 1, np.array([[4.0], [2.0], [8.0]]), optimizer, combiner="max", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table))
    e.enqueue([[0, 1]])
    e.dequeue()
    e.apply_gradients([[0.0]])
    decayed = np.asarray(e.tables["t"])[:, 0]
    assert decayed[0] < 4
    assert decayed[1] < 2
    assert decayed[2] == 8
    assert e.metrics()["unique_rows"] == 2


@pytest.mark.parametrize(
    ("policy", "bags", "greatest"),
    [
        ("drop", [[1, 9], [9], [-1, 0]], [-1.0, 0.0, -4.0]),
        ("zero", [[1, 9], [9], [-1, 0]], [0.0, 0.0, 0.0]),
        ("clip", [[1, 9], [9], [-1, 0]], [-1.0, -2.0, -4.0]),
        (1, [[0, 9], [9], [-1, 2]], [-1.0, -1.0, -1.0]),
    ],
)
@both
def test_invalid_ids_in_a_maximum(policy, bags, greatest, pipeline):
    values = np.array([[-4.0], [-1.0], [-2.0]])
    table = TableConfig(3, 1, values, sc.optimizers.SGD(1.0), combiner="max", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table, invalid_ids=policy), pipeline=pipeline)
    e.enqueue(bags)
    found = e.dequeue()
    np.testing.assert_array_equal(found[:, 0], greatest)
    e.apply_gradients(np.full((3, 1), 16.0))
    moved = np.zeros(3)
    for value in greatest:  # no two rows are equal; where a row of zeros has won, none moves
        moved += 16.0 * (values[:, 0] == value)
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 0], values[:, 0] - moved)
    assert e.metrics()["invalid_ids"] == 3


@both
@pytest.mark.parametrize("backend", ["cpu", "sim3", "dictionary"])
def test_several_lookups_are_one_step(backend, pipeline):
    """Equal to one batch that holds both in that order; gradients come before activations."""
    e, whole = make_engine(backend, pipeline), make_engine("cpu")
    rng = np.random.default_rng(5)
    for _ in range(2):
        parts = [batch(rng, bags) for bags in (5, 8)]
        features = {
            name: (
                np.concatenate([one[name][0] for one, _ in parts]),
                np.concatenate([parts[0][0][name][1],
                                parts[1][0][name][1][1:] + len(parts[0][0][name][0])]),
            )
            for name in parts[0][0]
        }  # fmt: skip
        weights = dict.fromkeys(features)
        weights["o"] = np.concatenate([one["o"] for _, one in parts])
        shapes = whole(features, weights)
        gradients = gradients_like(rng, shapes)
        gradients["b"] = None
        cut = [
            {name: None if g is None else g[rows] for name, g in gradients.items()}
            for rows in (slice(5), slice(5, None))
        ]
        held = [e.lookup(*one) for one in parts]
        found = e.apply(list(zip(held, cut, strict=True)), weight_gradients=True)
        h = whole.lookup(features, weights)
        wanted = h.apply_gradients(gradients, weight_gradients=True)
        np.testing.assert_array_equal(np.concatenate([one["o"] for one in found]), wanted["o"])
        seen = [held[at].activations["a"] for at in (0, 1)]
        np.testing.assert_array_equal(np.concatenate(seen), h.activations["a"])
        assert stored(e) == stored(whole)


def test_lookups_in_flight_have_winners_of_their_own():
    table = TableConfig(2, 1, np.array([[1.0], [2.0]]), sc.optimizers.SGD(1.0), combiner="max",
                        name="t")  # fmt: skip
    e = sc.ShardedEmbedding(FeatureConfig(table))
    first, second = e.lookup([[0, 1]]), e.lookup([[0]])
    second.apply_gradients([[-4.0]])  # row 0 is the greater one now
    third = e.lookup([[0, 1]])
    first.apply_gradients([[1.0]])
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 0], [5, 1])
    third.apply_gradients([[1.0]])
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 0], [4, 1])


def test_forms_of_input_give_the_same():
    table = TableConfig(ROWS, DIM, combiner="max", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), seed=2)
    ids = np.random.default_rng(3).integers(0, ROWS, (4, 3))
    wanted = np.asarray(e.tables["t"])[ids].max(axis=1) if e.build() is None else None
    np.testing.assert_array_equal(e(ids), wanted)
    np.testing.assert_array_equal(e(ids.tolist()), wanted)
    np.testing.assert_array_equal(e((ids.reshape(-1), np.arange(0, 13, 3))), wanted)
    np.testing.assert_array_equal(e(ids.reshape(2, 2, 3)), wanted.reshape(2, 2, DIM))
    np.testing.assert_array_equal(e(ids[:, 0]), np.asarray(e.tables["t"])[ids[:, 0]])
    shaped = sc.ShardedEmbedding(FeatureConfig(table, output_shape=(2, 2)), seed=2)
    np.testing.assert_array_equal(shaped(ids), wanted.reshape(2, 2, DIM))
    assert e(np.zeros((0, 3), int)).shape == (0, DIM)


def test_serving_equals_the_engine():
    norm, buckets = 1.0, sc.QuantizationConfig(9, -1.0, 1.0)
    table = TableConfig(ROWS, DIM, combiner="max", name="t", max_norm=norm,
                        quantization_config=buckets)  # fmt: skip
    config = {"a": FeatureConfig(table, invalid_ids="zero"), "s": FeatureConfig(table, 2)}
    e = sc.ShardedEmbedding(config, seed=2)
    e.build()
    bags = [[1, 2, 77], [], [-1, 49], [3]]
    features = {"a": bags, "s": [[1, 2], [], [4], [3]]}
    served = serving_embedding_lookup(features, None, {"t": e.tables["t"]}, config)
    for name, found in e(features).items():
        np.testing.assert_array_equal(found, served[name])


def test_activations_and_gradients_of_a_device_are_read():
    e, plain = make_engine(TakesOnDevice()), make_engine("cpu")
    rng = np.random.default_rng(8)
    features, weights = batch(rng)
    handles = [one.lookup(features, weights) for one in (e, plain)]
    found = handles[0].activations
    assert type(found["a"]) is np.ndarray
    assert type(found["seq"]) is OnDevice
    wanted = gradients_like(rng, handles[1].activations)
    wanted = {name: one.astype(np.float32) for name, one in wanted.items()}
    handles[0].apply_gradients({name: OnDevice(one) for name, one in wanted.items()})
    handles[1].apply_gradients(wanted)
    assert stored(e) == stored(plain)


def test_weights_are_refused():
    e = make_engine()
    features, weights = batch(np.random.default_rng(0))
    message = (
        "weights['b']: weights are refused for combiner 'max', which multiplies no row; "
        "table 't' of features['b'] has it"
    )
    refused = pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$")
    with refused:
        e.enqueue(features, {**weights, "b": np.ones(len(features["b"][0]))})
    with refused:
        ids, splits = features["b"]
        e({**features, "b": sc.Ragged(ids, splits, np.ones(len(ids)))})
    assert e.in_flight == 0


@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        (np.full((2, DIM), np.nan), ShardcoreValueError,
         "gradients['a'] must be finite in float32: gradients['a'][0, 0] = nan"),
        (np.zeros((3, DIM)), ShardcoreValueError,
         "gradients['a'] must have the shape of the activations, (2, 6), got (3, 6)"),
        (np.zeros((2, DIM), complex), ShardcoreTypeError,
         "gradients['a'] must be real numbers, got dtype complex128"),
    ],
)  # fmt: skip
def test_gradients_are_those_of_bags(gradient, error, message):
    e = make_engine()
    features = {name: [[1, 2], [3]] for name in ("a", "b", "seq", "o")}
    e.enqueue(features)
    e.dequeue()
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        e.apply_gradients({"a": gradient, "b": None, "seq": None, "o": None})
    e.apply_gradients(None)
    assert e.step == 0


def test_an_update_of_another_feature_reports_no_winner():
    """A value that is not finite is told of the feature that has it, small ones beside it too."""
    e = make_engine()
    features = {name: [[1, 2], [3]] for name in ("a", "b", "seq", "o")}
    e.enqueue(features)
    e.dequeue()
    message = "gradients['o'] must be finite in float32: gradients['o'][1, 2] = inf"
    bad = np.zeros((2, 3))
    bad[1, 2] = np.inf
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        e.apply_gradients({"a": np.ones((2, DIM)), "b": None, "seq": None, "o": bad})


def test_several_processes_have_no_such_table():
    class Together(Dictionary):
        process_group = object()

    message = (
        "table 't' must have another combiner than 'max' on backend 'dictionary': several "
        "processes hold its tables together, and none has all rows of a bag"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        make_engine(Together())


def test_bags_cover_every_length():
    features, _ = batch(np.random.default_rng(2))
    lengths = {stop - start for start, stop in pairwise(features["a"][1])}
    assert {0, 1, 5} <= lengths
