"""What a caller writes into arrays that were checked once is checked again where they are used."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.errors import ShardcoreIndexError, ShardcoreValueError
from shardcore.ids import own_arrays
from shardcore.ids import row_splits as offsets
from shardcore.sharding.layout import Layout

BACKENDS = ["cpu", "sim"]
CALLS = ["lookup", "training", "inference"]


def engine(backend: str, **options: Any) -> sc.ShardedEmbedding:
    table = sc.TableConfig(10, 2, initializer=sc.initializers.RowId(), combiner="sum", name="t")
    sgd = sc.optimizers.SGD(learning_rate=1.0)
    feature = sc.FeatureConfig(table, **options)
    return sc.ShardedEmbedding({"a": feature}, sgd, backend=backend)


def given_to(e: sc.ShardedEmbedding, call: str) -> Callable[..., Any]:
    """Return what gives features and weights to an engine in one of three ways."""
    if call == "lookup":
        return lambda ids, weights=None: e({"a": ids}, {"a": weights})["a"]

    def enqueued(ids: Any, weights: Any = None) -> Any:
        e.enqueue({"a": ids}, {"a": weights}, training=call == "training")
        found = e.dequeue()["a"]
        if call == "training":
            e.apply_gradients(None)
        return found

    return enqueued


WRITTEN = [
    ((2, 1000), "row_splits must end at the number of values, 2, got row_splits[2] = 1000"),
    ((2, 2**62), f"row_splits must end at the number of values, 2, got row_splits[2] = {2**62}"),
    ((1, 3), "row_splits must be non-decreasing: row_splits[2] = 2 < row_splits[1] = 3"),
    ((1, -5), "row_splits must be non-decreasing: row_splits[1] = -5 < row_splits[0] = 0"),
    ((0, -(2**62)), f"row_splits must start at 0, got row_splits[0] = {-(2**62)}"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("written", "message"), WRITTEN)
@pytest.mark.parametrize("longer", [0, 3])
def test_row_splits_of_a_ragged_that_were_written_to(
    backend: str, call: str, written: tuple[int, int], message: str, longer: int
) -> None:
    e = engine(backend, max_sequence_length=longer)
    give = given_to(e, call)
    ragged = sc.Ragged(np.array([1, 2]), [0, 1, 2])
    expected = give(ragged)
    kept, text = ragged.row_splits.copy(), f"features['a']: {message}"
    ragged.row_splits[written[0]] = written[1]
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(text)}$"):
        give(ragged)
    ragged.row_splits[...] = kept
    np.testing.assert_array_equal(give(ragged), expected)
    assert e.step == 0


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_splits_written_to_after_they_were_read_only(backend: str, call: str) -> None:
    give = given_to(engine(backend), call)
    values, splits = np.array([1, 2]), np.array([0, 1, 2])
    values.flags.writeable = splits.flags.writeable = False
    ragged = sc.Ragged(values, splits)
    give(ragged)
    values.flags.writeable = True
    values[1] = 10
    message = "features['a']: ids[1] = 10 is outside table 't': must be in [0, 10)"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        give(ragged)
    values[1] = 9
    assert give(ragged).tolist() == [[1, 1], [9, 9]]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("place", "wrong"),
    [((0, 0), -1), ((1, 0), 2), ((2, 0), 2**62), ((1, 1), 3), ((2, 1), -(2**62))],
)
def test_indices_of_a_sparse_that_were_written_to(
    backend: str, call: str, place: tuple[int, int], wrong: int
) -> None:
    give = given_to(engine(backend), call)
    sparse = sc.Sparse([[1, 2, 0], [0, 0, 0], [1, 0, 0]], [7, 5, 3], (2, 3, 4))
    expected = give(sparse)
    kept = sparse.indices[place]
    sparse.indices[place] = wrong
    at, axis = place
    message = (
        f"features['a']: indices[{at}, {axis}] = {wrong} must be in [0, {(2, 3, 4)[axis]}), "
        "dense_shape is (2, 3, 4)"
    )
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        give(sparse)
    sparse.indices[place] = kept
    np.testing.assert_array_equal(give(sparse), expected)


def test_a_sparse_whose_arrays_were_given_another_shape() -> None:
    e = engine("cpu")
    sparse = sc.Sparse(np.array([[0, 0], [1, 0]]), np.array([1, 2]), (2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from NumPy 2.5 on
        sparse.indices.shape = (1, 4)
    message = (
        "features['a']: indices must have a row per value and a column per axis of dense_shape, "
        "shape (2, 2), got shape (1, 4)"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        e({"a": sparse})


@pytest.mark.parametrize("backend", BACKENDS)
def test_row_splits_of_weights_that_were_written_to(backend: str) -> None:
    e = engine(backend)
    weights = sc.Ragged([1.0, 2.0], [0, 1, 2])
    weights.row_splits[1] = 2**62
    message = (
        "weights['a']: row_splits must be non-decreasing: row_splits[2] = 2 < row_splits[1] = "
        f"{2**62}"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        e({"a": [[1], [2]]}, {"a": weights})


TABLE = np.arange(20.0).reshape(10, 2)


@pytest.mark.parametrize(
    ("look_up", "argument"),
    [
        (lambda r: sc.embedding_lookup_sparse(TABLE, r), "sp_ids"),
        (lambda r: sc.embedding_lookup_sparse([TABLE[:3], TABLE[3:]], r), "sp_ids"),
        (lambda r: sc.safe_embedding_lookup_sparse(TABLE, r), "ids"),
        (
            lambda r: sc.serving_embedding_lookup(
                r,
                None,
                {"t": TABLE.astype(np.float32)},
                sc.FeatureConfig(sc.TableConfig(10, 2, name="t")),
            ),
            "inputs",
        ),
    ],
)
def test_lookups_without_an_engine_look_again(look_up: Any, argument: str) -> None:
    ragged = sc.Ragged(np.array([1, 2]), [0, 1, 2])
    look_up(ragged)
    ragged.row_splits[2] = 1000
    message = (
        f"{argument}: row_splits must end at the number of values, 2, got row_splits[2] = 1000"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        look_up(ragged)


@pytest.mark.parametrize("method", ["lengths", "to_lists"])
def test_methods_of_a_ragged_look_again(method: str) -> None:
    ragged = sc.Ragged(np.array([1, 2]), [0, 1, 2])
    ragged.row_splits[2] = 1000
    message = "row_splits must end at the number of values, 2, got row_splits[2] = 1000"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        getattr(ragged, method)()
    assert repr(ragged) == "Ragged([[1], [2]], dtype=int64)"
    assert ragged != sc.Ragged([1, 2], [0, 1, 2])


@pytest.mark.parametrize(
    "layout",
    [Layout.div(10, 3), Layout.mod(10, 3), Layout.from_sizes([4, 0, 6])],
    ids=str,
)
@pytest.mark.parametrize("name", ["offsets", "shard_sizes"])
def test_nobody_writes_to_the_arrays_of_a_layout(layout: Layout, name: str) -> None:
    array = getattr(layout, name)
    while isinstance(array, np.ndarray):
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True of this array"):
            array.flags.writeable = True
        array = array.base
    assert memoryview(array).readonly


def test_nobody_writes_to_the_row_splits_that_features_share() -> None:
    from shardcore.features.plain import _even_divisors, even_splits

    for array in (even_splits(3, 2), _even_divisors("mean", 3, 2, np.dtype("float32"))):
        assert isinstance(array, np.ndarray)
        owner: Any = array
        while isinstance(owner, np.ndarray):
            with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True of this array"):
                owner.flags.writeable = True
            owner = owner.base
        assert memoryview(owner).readonly


def test_a_layout_forgets_the_sizes_it_was_made_of() -> None:
    sizes = np.array([3, 4])
    layout = Layout.from_sizes(sizes)
    sizes[0] = 1000
    assert layout == Layout.from_sizes([3, 4])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("policy", ["raise", "drop", "zero", "clip", 3])
def test_prepared_ids_and_splits_are_nobody_elses(policy: Any, keep: bool) -> None:
    from shardcore.features.planned import FeatureInput
    from shardcore.features.prepare import prepare_feature

    config = sc.FeatureConfig(sc.TableConfig(10, 2, name="t"), invalid_ids=policy)
    feature = FeatureInput(config, "features", "weights", "t")
    last = 9 if policy == "raise" else 12
    for dtype in (np.int32, np.int64):
        ids, splits = np.array([1, 2, last], dtype), np.array([0, 1, 3])
        weights = np.array([1.0, 2.0, 3.0], np.float32)
        forms = [(ids, splits), sc.Ragged(ids, splits), ids, ids.reshape(3, 1)]
        for leaf in forms:
            for given in (None, weights):
                shape = given if given is None or leaf is not forms[3] else given.reshape(3, 1)
                found = prepare_feature(feature, leaf, shape, keep)
                assert not np.shares_memory(found.bags.ids, ids)
                assert not np.shares_memory(found.bags.row_splits, splits)
                if keep and given is not None:
                    assert found.bags.weights is not None
                    assert not np.shares_memory(found.bags.weights, weights)


def test_bags_that_become_fewer_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may resize an array between two looks at it."""
    from shardcore.features import plain
    from shardcore.features.planned import FeatureInput

    ids, splits = np.array([1, 2, 3, 4]), np.array([0, 2, 3, 4])
    look = plain.plain_bags

    def resized(leaf: Any) -> Any:
        found = look(leaf)
        ids.resize(2, refcheck=False)
        splits.resize(2, refcheck=False)
        return found

    monkeypatch.setattr(plain, "plain_bags", resized)
    config = sc.FeatureConfig(sc.TableConfig(10, 2, name="t"))
    feature = FeatureInput(config, "features", "weights", "t")
    (found,) = plain.prepare_plain_features([feature], [(ids, splits)], [None])
    assert found is not None
    assert (found.shape, found.bags.ids.tolist(), found.bags.row_splits.tolist()) == (
        (1,),
        [1, 2],
        [0, 2],
    )


@pytest.mark.parametrize("function", ["row_splits_from_lengths", "row_splits_from_row_ids"])
def test_conversions_work_on_copies(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A race would seldom hit the moment between the look at an entry and its use."""
    given = np.array([0, 1, 1])
    kernel, seen = offsets._kernel, []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                seen.extend(one for one in arguments if isinstance(one, np.ndarray))
                return getattr(kernel, name)(*arguments)

            return call

    monkeypatch.setattr(offsets, "_kernel", Watched())
    getattr(offsets, function)(given, *((3,) if function.endswith("ids") else ()))
    assert seen
    assert not any(np.shares_memory(one, given) for one in seen)


def test_memory_of_ids_is_used_again_only_once_they_are_let_go() -> None:
    ids = np.arange(1 << 16)
    held = [own_arrays.take_ids(ids + i, 1 << 20)[0] for i in range(9)]
    parts = [own[5:7] for own in held]
    address = held[-1].ctypes.data
    for i, own in enumerate(held):
        np.testing.assert_array_equal(own, ids + i)
    del held, own
    again = [own_arrays.take_ids(ids[::-1].copy(), 1 << 20)[0] for _ in range(9)]
    assert [part.tolist() for part in parts] == [[5 + i, 6 + i] for i in range(9)]
    assert address not in {own.ctypes.data for own in again}
