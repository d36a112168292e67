"""Lookups of bags as they are given: one compiled call, and what it leaves to all others."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from engines import assert_close_waits
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.engine.given_lookups import GivenLookups
from shardcore.engine.life import Life
from shardcore.errors import ShardcoreError, ShardcoreRuntimeError, ShardcoreValueError

SOON, A_WHILE = 30.0, 0.1
ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)
IDS, SPLITS = np.array([1, 2, 4]), np.array([0, 2, 3])
BAGS = (IDS, SPLITS)
SUMS = np.array([[6, 8], [8, 9]], np.float32)
NUMBERS = count()


class Watching(CpuBackend):
    """Notes which lookups come, and calls what is asked for before one as given."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.before: Callable[[], Any] = lambda: None

    def lookup_given(self, *arguments: Any) -> bool:
        self.asked.append("given")
        self.before()
        return super().lookup_given(*arguments)

    def lookup(self, batches: Any) -> Any:
        self.asked.append("any")
        return super().lookup(batches)


def feature() -> sc.FeatureConfig:
    return sc.FeatureConfig(
        sc.TableConfig(5, 2, initializer=ROWS, combiner="sum", name=f"t{next(NUMBERS)}")
    )


def engine_of(config: Any, **options: Any) -> tuple[sc.ShardedEmbedding, Watching]:
    backend = Watching()
    return sc.ShardedEmbedding(config, backend=backend, **options), backend


def leaves_of(found: Any) -> list[Any]:
    if isinstance(found, dict):
        return [one for value in found.values() for one in leaves_of(value)]
    if isinstance(found, list | tuple):
        return [one for value in found for one in leaves_of(value)]
    return [found]


@pytest.mark.parametrize(
    ("config", "features", "way"),
    [
        (lambda f: f(), BAGS, ["given"]),
        (lambda f: f(), sc.Ragged(*BAGS), ["given"]),
        (lambda f: f(), [[1, 2], [4]], ["any"]),
        (lambda f: {"a": f(), "b": f()}, {"b": BAGS, "a": BAGS}, ["given"] * 2),
        (lambda f: [f(), f()], [BAGS, BAGS], ["given"] * 2),
        (lambda f: (f(), f()), (BAGS, BAGS), ["given"] * 2),
        (lambda f: {"a": f(), "b": f()}, {"b": BAGS, "a": [[1, 2], [4]]}, ["any"]),
        (lambda f: {"a": f(), "b": f()}, {"a": BAGS, "b": [[1, 2], [4]]}, ["given", "any"]),
        (lambda f: {"a": [f(), f()]}, {"a": [BAGS, BAGS]}, ["any"]),
    ],
)
def test_plain_bags_are_looked_up_as_given(config: Any, features: Any, way: list[str]) -> None:
    engine, backend = engine_of(config(feature))
    for _ in range(2):  # the first makes the tables
        backend.asked.clear()
        found = engine(features)
        assert backend.asked == way
        for one in leaves_of(found):
            np.testing.assert_array_equal(one, SUMS, strict=True)
    if isinstance(features, dict):
        assert list(found) == sorted(found)
    ids = 3 * len(leaves_of(found))
    assert (engine.metrics()["lookups"], engine.metrics()["ids"]) == (2, 2 * ids)


@pytest.mark.parametrize("shape", [(4,), (2, 2), (4, 0), (0, 2), (2, 1, 2)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_dense_arrays_of_any_rank(shape: tuple[int, ...], dtype: Any) -> None:
    ids = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    engine, backend = engine_of(feature())
    found = engine(ids)
    assert backend.asked == ["given"]
    expected = ROWS[ids] if len(shape) == 1 else ROWS[ids].sum(-2)
    np.testing.assert_array_equal(found, expected, strict=True)


def test_activations_of_many_bags_lie_in_memory_of_the_pool() -> None:
    """From 256 KiB on; they are those of few."""
    engine, _ = engine_of(feature())
    ids = np.random.default_rng(5).integers(0, 5, 1 << 15)
    found = engine(ids)
    assert found.nbytes == 1 << 18
    assert found.base is not None
    np.testing.assert_array_equal(found, ROWS[ids])
    assert engine(ids[:-1]).base is None


class Halves(np.ndarray):
    """An array of a class of its own, whose elements may mean something else."""


@pytest.mark.parametrize("at", [0, 1])
def test_arrays_of_other_classes_are_left_to_others(at: int) -> None:
    engine, backend = engine_of(feature())
    given = [IDS, SPLITS]
    given[at] = given[at].view(Halves)
    np.testing.assert_array_equal(engine(tuple(given)), SUMS)
    assert backend.asked == ["any"]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ((IDS, np.array([], np.int64)), "row_splits"),
        ((IDS, np.array([0, 2])), "row_splits"),
        ((np.array([1, 5]), np.array([0, 2])), r"features: ids\[1\] = 5 is outside table"),
    ],
)
def test_what_is_wrong_is_said_by_others(features: Any, message: str) -> None:
    engine, _ = engine_of(feature())
    with pytest.raises(ShardcoreError, match=message):
        engine(features)
    assert engine.metrics()["lookups"] == 0


@pytest.mark.parametrize(
    "given", [{"a": BAGS}, {"a": BAGS, "c": BAGS}, {"a": BAGS, "b": BAGS, "c": 1}]
)
def test_features_of_other_names_are_refused(given: Any) -> None:
    engine, _ = engine_of({"a": feature(), "b": feature()})
    with pytest.raises(ShardcoreValueError, match=r"features\['(b|c)'\]|^features must"):
        engine(given)


def test_a_batch_that_build_was_told_the_size_of() -> None:
    engine, backend = engine_of(feature())
    engine.build(batch_size=2)
    np.testing.assert_array_equal(engine(BAGS), SUMS)
    cube = np.zeros((2, 3, 2), np.int64)  # six bags in a batch of two
    assert engine(cube).shape == (2, 3, 2)
    assert backend.asked == ["given"] * 2
    for wrong in ((IDS, np.array([0, 1, 2, 3])), cube.reshape(3, 2, 2)):
        with pytest.raises(ShardcoreValueError, match="given to build, 2, got 3"):
            engine(wrong)


def test_close_waits_for_a_lookup_and_later_ones_are_told() -> None:
    engine, backend = engine_of(feature())
    engine.build()
    inside, let_go = threading.Event(), threading.Event()
    found: list[Any] = []

    def slow() -> None:
        inside.set()
        let_go.wait(SOON)

    backend.before = slow
    assert_close_waits(engine, lambda: found.append(engine(BAGS)), inside, let_go)
    np.testing.assert_array_equal(found[0], SUMS)
    backend.asked.clear()
    with pytest.raises(
        ShardcoreRuntimeError, match=r"^a lookup came after close: the tables are gone$"
    ):
        engine(BAGS)
    assert backend.asked == []


def test_a_lookup_that_fails_lets_the_engine_close() -> None:
    engine, backend = engine_of(feature())
    engine.build()

    def fail() -> None:
        raise KeyboardInterrupt

    backend.before = fail
    with pytest.raises(KeyboardInterrupt):
        engine(BAGS)
    closer = threading.Thread(target=engine.close, daemon=True)
    closer.start()
    closer.join(SOON)
    assert not closer.is_alive()


def test_a_callback_must_not_look_up() -> None:
    told: list[str] = []

    def rate() -> float:
        try:
            engine(BAGS)
        except ShardcoreRuntimeError as error:
            told.append(str(error))
        return 1.0

    engine, _ = engine_of(feature(), optimizer=sc.optimizers.SGD(rate))
    np.testing.assert_array_equal(engine(BAGS), SUMS)
    engine.lookup(BAGS).apply_gradients(np.zeros((2, 2)))
    assert told == [
        "a lookup came from inside another call of this engine: an optimizer, a learning "
        "rate or an initializer must not call the engine it works for"
    ]


def test_a_lookup_sees_the_updates_that_were_handed_over() -> None:
    engine, backend = engine_of(feature(), optimizer=sc.optimizers.SGD(1.0), pipeline=True)
    np.testing.assert_array_equal(engine(BAGS), SUMS)
    reached, let_go = threading.Event(), threading.Event()
    apply = backend.apply

    def slow(updates: Any) -> None:
        reached.set()
        let_go.wait(SOON)
        apply(updates)

    backend.apply = slow  # type: ignore[method-assign]
    engine.enqueue(BAGS)
    engine.dequeue()
    engine.apply_gradients(np.ones((2, 2)))
    assert reached.wait(SOON)
    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.append(engine(BAGS)), daemon=True)
    caller.start()
    caller.join(A_WHILE)
    assert not found
    let_go.set()
    caller.join(SOON)
    np.testing.assert_array_equal(found[0], SUMS - [[2], [1]])
    engine.close()


def test_what_an_engine_goes_through_is_not_copied() -> None:
    engine, _ = engine_of(feature())
    given = engine._training._given
    assert isinstance(given, GivenLookups)
    for one, name in ((given, "GivenLookups"), (Life(), "a Life")):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"^{name} cannot be copied or pickled$"):
                copied(one)


def test_calls_that_come_alone_come_one_at_a_time() -> None:
    life = Life()
    inside, let_go = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        assert life.is_inside()
        inside.set()
        let_go.wait(SOON)
        order.append("first")

    one = threading.Thread(target=life.alone, args=("one", first), daemon=True)
    one.start()
    assert inside.wait(SOON)
    others = [
        threading.Thread(target=life.alone, args=("two", order.append, "other"), daemon=True),
        threading.Thread(target=life.between, args=(order.append, "other"), daemon=True),
    ]
    for other in others:
        other.start()
        other.join(A_WHILE)
        assert other.is_alive()
    life.using("a view", order.append, "view")  # beside them
    let_go.set()
    for thread in (one, *others):
        thread.join(SOON)
    assert order == ["view", "first", "other", "other"]
    assert not life.is_inside()
