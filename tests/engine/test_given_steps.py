"""Training steps of few bags as they are given: what all others do, and what is left to these."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.dtypes import as_dtype
from shardcore.engine.given_steps import GivenBatch, GivenSteps
from shardcore.errors import ShardcoreError, ShardcoreValueError
from shardcore.store.given_bags import DIVIDED
from shardcore.store.occurrences import FEW_OCCURRENCES
from shardcore.store.steps import StoreStep, StoreSteps
from shardcore.store.table import StoreTable
from shardcore.store.update import GRADIENT_BYTES
from shardcore.threads.lock import write_all

ROWS = 40
OPTIMIZERS = [
    sc.optimizers.SGD(0.5),
    sc.optimizers.SGD(lambda step: 1 / (1 + step), momentum=0.5),
    sc.optimizers.Adagrad(0.25),
    sc.optimizers.RowwiseAdagrad(0.25),
    sc.optimizers.Adam(0.1),
    sc.optimizers.SGD(0.5, use_gradient_accumulation=False),
    sc.optimizers.SGD(0.5, stochastic_rounding=True),
]
FORMS = ["one axis", "two axes", "three axes", "row_splits", "ragged"]


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = sc.get_num_threads()
    yield
    sc.set_num_threads(before)


def without(engine: sc.ShardedEmbedding) -> sc.ShardedEmbedding:
    """Return an engine that makes no step as it is given."""
    engine._training._asked_for_steps = True
    return engine


def is_given(lookup: Any) -> bool:
    return type(lookup._pending.batch) is GivenBatch


def bags(rng: np.random.Generator, form: str, number: int) -> tuple[Any, tuple[int, ...]]:
    """Return features in a form, and the shape of their batch."""
    dtype = rng.choice([np.int32, np.int64])
    if form == "one axis":
        return rng.integers(0, ROWS, number).astype(dtype), (number,)
    if form == "two axes":
        return rng.integers(0, ROWS, (number, 3)).astype(dtype), (number,)
    if form == "three axes":
        return rng.integers(0, ROWS, (number, 2, 3)).astype(dtype), (number, 2)
    splits = np.concatenate(([0], np.cumsum(rng.integers(0, 4, number)))).astype(np.int64)
    ids = rng.integers(0, ROWS, splits[-1]).astype(dtype)
    return (ids, splits) if form == "row_splits" else sc.Ragged(ids, splits), (number,)


TABLES = st.lists(
    st.tuples(
        st.integers(0, len(OPTIMIZERS) - 1),
        st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
        st.sampled_from(["sum", "mean", "sqrtn"]),
        st.sampled_from([1, 8, 17]),
        st.lists(st.sampled_from(FORMS), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(
    tables=TABLES,
    kind=st.sampled_from([dict, list, tuple]),
    threads=st.integers(1, 3),
    check=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_steps_as_given_are_those_of_all_others(
    tables: Any, kind: Any, threads: int, check: bool, seed: int
) -> None:
    """The bits of activations, rows and slots, and what is counted, over three steps."""
    rng = np.random.default_rng(seed)
    sc.set_num_threads(threads)
    configs, forms = [], []
    for at, (optimizer, dtype, combiner, dim, own) in enumerate(tables):
        table = sc.TableConfig(
            ROWS,
            dim,
            combiner=combiner,
            dtype=as_dtype(dtype),
            name=f"t{at}",
            optimizer=OPTIMIZERS[optimizer],
        )
        configs += [sc.FeatureConfig(table) for _ in own]
        forms += own

    def nested(leaves: list[Any]) -> Any:
        if kind is dict:
            return {f"f{at}": leaf for at, leaf in enumerate(leaves)}
        return kind(leaves)

    engines = [
        sc.ShardedEmbedding(nested(configs), seed=7, check_gradients=check) for _ in range(2)
    ]
    without(engines[1])
    for _ in range(3):
        leaves, gradients = [], []
        for form, config in zip(forms, configs, strict=True):
            leaf, shape = bags(rng, form, int(rng.integers(0, 6)))
            leaves.append(leaf)
            value = np.float64 if config.table.dtype == np.float64 else np.float32
            size = (*shape, config.table.dim)
            gradients.append(rng.standard_normal(size).astype(value))
        found = [engine.lookup(nested(leaves)) for engine in engines]
        assert [is_given(one) for one in found] == [True, False]
        for one, other in zip(*(nested_leaves(one.activations) for one in found), strict=True):
            assert one.tobytes() == other.tobytes()
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        for one in found:
            one.apply_gradients(nested(gradients))
    for name, table in engines[0].tables.items():
        assert table.numpy().tobytes() == engines[1].tables[name].numpy().tobytes()
        for slot, values in engines[0].slots[name].items():
            assert values.numpy().tobytes() == engines[1].slots[name][slot].numpy().tobytes()
    assert engines[0].metrics() == engines[1].metrics()
    assert engines[0].step == engines[1].step == 3


def nested_leaves(found: Any) -> list[Any]:
    return list(found.values()) if isinstance(found, dict) else list(found)


def one(**options: Any) -> sc.ShardedEmbedding:
    table = {"initializer": sc.initializers.RowId(), "combiner": "sum", "name": "t"}
    table |= options.pop("table", {})
    optimizer = options.pop("optimizer", sc.optimizers.SGD(0.5))
    rows = table.pop("rows", ROWS)
    feature = sc.FeatureConfig(sc.TableConfig(rows, 2, **table))
    return sc.ShardedEmbedding(feature, optimizer, **options)


IDS, SPLITS, ONES = np.array([1, 2, 4]), np.array([0, 2, 3]), np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("features", "weights"),
    [
        ([[1, 2], [4]], None),
        ((IDS, SPLITS), np.ones(3, np.float32)),
        ((IDS.astype(np.int16), SPLITS), None),
        ((IDS, SPLITS.astype(np.int32)), None),
        ((IDS, SPLITS[:, None]), None),
        ((IDS[::-1], SPLITS), None),
        (sc.Sparse([[0, 0], [0, 1], [1, 0]], IDS, (2, 2)), None),
    ],
)
def test_bags_that_are_not_plain_are_left_to_all_others(features: Any, weights: Any) -> None:
    try:
        lookup = one().lookup(features, weights)
    except ShardcoreError as error:
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            without(one()).lookup(features, weights)
        return
    assert not is_given(lookup)
    expected = without(one()).lookup(features, weights)
    assert lookup.activations.tolist() == expected.activations.tolist()


@pytest.mark.parametrize(
    ("features", "told"),
    [
        ((np.array([1, 40, 4]), SPLITS), "features: ids[1] = 40 is outside table 't'"),
        ((np.array([1, -1, 4]), SPLITS), "features: ids[1] = -1 is outside table 't'"),
        ((IDS, np.array([0, 2])), "features: row_splits must end at the number of values, 3"),
        ((IDS, np.array([0, 3, 2, 3])), "features: row_splits"),
        (np.array([[1, 99]]), "features: ids[1] = 99 is outside table 't'"),
    ],
)
def test_bags_that_are_wrong_are_told_as_ever(features: Any, told: str) -> None:
    engine = one()
    with pytest.raises(ShardcoreError, match=f"^{re.escape(told)}"):
        engine.lookup(features)
    assert (engine.in_flight, engine.metrics()["lookups"]) == (0, 0)
    assert is_given(engine.lookup((IDS, SPLITS)))


def test_bags_of_another_batch_size_are_told_as_ever() -> None:
    for features, given_size in ((np.array([1, 2, 3]), 3), ((IDS, SPLITS), 2)):
        engine = one()
        engine.build(given_size)
        assert is_given(engine.lookup(features))
        other = one()
        other.build(given_size + 1)
        told = f"features must have the batch size given to build, {given_size + 1}, got "
        with pytest.raises(ShardcoreValueError, match=f"^{told}{given_size}$"):
            other.lookup(features)


def test_what_is_few_is_so_of_each_table() -> None:
    rows = 1 << 16
    for ids, few in ((FEW_OCCURRENCES, True), (FEW_OCCURRENCES + 1, False)):
        features = np.arange(ids), np.array([0, ids])
        assert is_given(one(table={"rows": rows}).lookup(features)) == few
        shared = sc.TableConfig(rows, 2, combiner="sum", name="shared")
        other = sc.TableConfig(rows, 2, combiner="sum", name="other")
        configs = [sc.FeatureConfig(table) for table in (shared, shared, other)]
        engine = sc.ShardedEmbedding(configs, sc.optimizers.SGD(0.5))
        first = np.arange(ids - 5), np.array([0, ids - 5])
        rest = np.arange(5), np.array([0, 5])
        full = np.arange(FEW_OCCURRENCES), np.array([0, FEW_OCCURRENCES])
        assert is_given(engine.lookup([first, rest, full])) == few
    bags = GRADIENT_BYTES // 8  # of two floats
    for number, few in ((bags - 2, True), (bags, False)):
        splits = np.zeros(number + 1, np.int64)
        assert is_given(one().lookup((np.zeros(0, np.int64), splits))) == few


GRADIENTS: dict[str, Callable[[], Any]] = {
    "doubles": lambda: np.ones((2, 2)),
    "a list": lambda: [[1.0, 1.0], [1.0, 1.0]],
    "strided": lambda: np.ones((2, 4), np.float32)[:, ::2],
    "of the other order": lambda: np.asfortranarray(ONES),
    "of another byte order": lambda: ONES.astype(">f4"),
    "an array of a class of its own": lambda: ONES.view(np.matrix),
}


@pytest.mark.parametrize("given", GRADIENTS)
def test_gradients_that_are_not_plain_are_left_to_all_others(given: str) -> None:
    engines = one(), without(one())
    for engine in engines:
        engine.lookup((IDS, SPLITS)).apply_gradients(GRADIENTS[given]())
        assert engine.tables["t"][IDS, 0].tolist() == [0.5, 1.5, 3.5]
    assert engines[0].metrics() == engines[1].metrics()


@pytest.mark.parametrize(
    ("gradients", "told"),
    [
        (np.ones((2, 3), np.float32), "gradients must have the shape of the activations, (2, 2)"),
        (np.ones((3, 2), np.float32), "gradients must have the shape of the activations, (2, 2)"),
        (np.ones(4, np.float32), "gradients must have the shape of the activations, (2, 2)"),
        (np.ones((1, 2, 2), np.float32), "gradients must have the shape of the activations, (2, 2"),
        (np.float32([[1, 1], [1, np.inf]]), "gradients must be finite in float32: gradients[1, 1]"),
        (np.ones((2, 2), bool), "gradients must be real numbers, got dtype bool"),
    ],
)
def test_gradients_that_are_wrong_are_told_and_can_come_again(gradients: Any, told: str) -> None:
    engine = one()
    lookup = engine.lookup((IDS, SPLITS))
    with pytest.raises(ShardcoreError, match=f"^{re.escape(told)}"):
        lookup.apply_gradients(gradients)
    assert (engine.step, engine.in_flight) == (0, 1)
    assert engine.tables["t"][IDS, 0].tolist() == [1, 2, 4]
    lookup.apply_gradients(ONES)
    assert engine.tables["t"][IDS, 0].tolist() == [0.5, 1.5, 3.5]
    told = "apply_gradients came a second time for one lookup: look the batch up again"
    with pytest.raises(ShardcoreError, match=f"^{told}$"):
        lookup.apply_gradients(ONES)


def test_gradients_of_batches_of_several_axes_have_their_shape() -> None:
    engine = one()
    ids = np.array([[[1], [2]], [[4], [1]]])
    lookup = engine.lookup(ids)
    assert is_given(lookup)
    assert lookup.activations.shape == (2, 2, 2)
    told = "gradients must have the shape of the activations, (2, 2, 2), got (4, 2)"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        lookup.apply_gradients(np.ones((4, 2), np.float32))
    lookup.apply_gradients(np.ones((2, 2, 2), np.float32))
    assert engine.tables["t"][[1, 2, 4], 0].tolist() == [0, 1.5, 3.5]


def test_a_rate_is_asked_once_whichever_way_gradients_go() -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.5

    engine = one(optimizer=sc.optimizers.SGD(rate))
    for number, gradients in enumerate((ONES, np.ones((2, 2)), ONES)):
        lookup = engine.lookup((IDS, SPLITS))
        assert is_given(lookup)
        lookup.apply_gradients(gradients)
        assert asked == list(range(number + 1))
    lookup = engine.lookup((IDS, SPLITS))
    with pytest.raises(ShardcoreValueError, match=r"^gradients must be finite"):
        lookup.apply_gradients(np.float32([[1, 1], [1, np.nan]]))
    assert len(asked) == 3


def test_what_is_more_than_a_step_finds_a_batch_as_any_other() -> None:
    """Several lookups as one step, gradients of weights, features without a gradient."""
    shared = {"rows": ROWS}
    for make in (lambda: one(table=dict(shared)), lambda: without(one(table=dict(shared)))):
        engine = make()
        pairs = [(engine.lookup((IDS, SPLITS)), ONES), (engine.lookup(np.array([1, 7])), ONES)]
        engine.apply(pairs)
        assert engine.tables["t"][[1, 2, 4, 7], 0].tolist() == [0, 1.5, 3.5, 6.5]
        assert engine.step == 1
        lookup = engine.lookup((IDS, SPLITS))
        assert lookup.apply_gradients(ONES, weight_gradients=True) is None
        lookup = engine.lookup((IDS, SPLITS))
        lookup.apply_gradients(None)
        assert (engine.step, engine.in_flight) == (2, 0)
    configs = {
        name: sc.FeatureConfig(
            sc.TableConfig(5, 2, initializer=sc.initializers.RowId(), combiner="mean", name=name)
        )
        for name in "ab"
    }
    for mend in (lambda engine: engine, without):
        engine = mend(sc.ShardedEmbedding(configs, sc.optimizers.SGD(0.5)))
        features = {"a": (IDS, SPLITS), "b": np.array([[3, 1]])}
        engine.lookup(features).apply_gradients({"a": ONES, "b": None})
        assert engine.tables["a"][IDS, 0].tolist() == [0.75, 1.75, 3.5]
        assert engine.tables["b"][:, 0].tolist() == [0, 1, 2, 3, 4]
        engine.enqueue(features)
        engine.dequeue()
        gradients = {"a": ONES, "b": ONES[:1]}
        engine.apply_gradients(gradients)
        assert engine.tables["b"][:, 0].tolist() == [0, 0.75, 2, 2.75, 4]
        assert (engine.step, engine.metrics()["unique_rows"]) == (2, 3 + 5)
        found = engine.lookup(features).apply_gradients(gradients, weight_gradients=True)
        assert found == {"a": None, "b": None}


def test_arrays_that_change_after_the_lookup_change_nothing() -> None:
    for features in ((IDS.copy(), SPLITS.copy()), np.array([1, 2])):
        engine = one()
        lookup = engine.lookup(features)
        assert is_given(lookup)
        for array in features if isinstance(features, tuple) else (features,):
            array[...] = 1 << 40
        before = lookup.activations.copy()
        lookup.apply_gradients(ONES)
        assert before.tolist() == lookup.activations.tolist()
        assert engine.tables["t"][[1, 2], 0].tolist() == [0.5, 1.5]


def test_activations_that_a_caller_changes_say_nothing_of_gradients() -> None:
    engine = one()
    lookup = engine.lookup((IDS, SPLITS))
    assert is_given(lookup)
    found = lookup.activations
    found.resize((1, 2), refcheck=False)
    told = "gradients must have the shape of the activations, (2, 2), got (1, 2)"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        lookup.apply_gradients(ONES[:1])
    lookup.apply_gradients(ONES)
    assert engine.tables["t"][IDS, 0].tolist() == [0.5, 1.5, 3.5]


def test_a_restore_moves_the_seeds_of_chance(tmp_path: Any) -> None:
    optimizer = sc.optimizers.SGD(0.001, stochastic_rounding=True)
    options = {"table": {"dtype": np.float16}, "optimizer": optimizer}
    found = []
    saved = one(**options, seed=1)
    saved.build()
    path = sc.Checkpoint(engine=saved).save(tmp_path, 3)
    for mend in (lambda engine: engine, without):
        engine = mend(one(**options, seed=2))
        engine.lookup((IDS, SPLITS)).apply_gradients(ONES)  # its steps are known by now
        sc.Checkpoint(engine=engine).restore(path)
        for _ in range(20):
            engine.lookup(np.arange(ROWS)).apply_gradients(np.ones((ROWS, 2), np.float32))
        found.append(engine.tables["t"].numpy().tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["lookup", "apply", "stage"])
def test_a_part_that_a_subclass_has_of_its_own_is_asked(method: str) -> None:
    asked: list[str] = []

    def own(self: Any, *arguments: Any) -> Any:
        asked.append(method)
        return getattr(CpuBackend, method)(self, *arguments)

    kind = type("Own", (CpuBackend,), {method: own})
    engine = one(backend=kind())
    lookup = engine.lookup((IDS, SPLITS))
    assert not is_given(lookup)
    lookup.apply_gradients(ONES)
    assert asked == [method]
    plain = type("Plain", (CpuBackend,), {})
    assert is_given(one(backend=plain()).lookup((IDS, SPLITS)))


@pytest.mark.parametrize(
    "options",
    [
        {"table": {"max_norm": 1.0}},
        {"pipeline": True},
        {"backend": "sim"},
        {"optimizer": sc.optimizers.Adam(0.1, lazy_adam=False)},
        {"table": {"combiner": "max"}},
    ],
)
def test_other_tables_and_backends_make_steps_as_ever(options: dict[str, Any]) -> None:
    engine = one(**options)
    lookup = engine.lookup((IDS, SPLITS))
    assert not is_given(lookup)
    lookup.apply_gradients(ONES)
    engine.close()


def test_a_backend_is_asked_for_steps_that_it_can_make() -> None:
    for options, makes in (
        ({}, True),
        ({"table": {"max_norm": 1.0}}, False),
        ({"optimizer": sc.optimizers.Adam(0.1, lazy_adam=False)}, False),
    ):
        engine = one(**options)
        engine.build()
        found = engine._backend.steps(["t"], [(0,)], [DIVIDED["sum"]], True)
        assert (found is not None) == makes


def test_tables_of_several_dtypes_have_rules_of_their_own() -> None:
    """Though they share an optimizer."""
    found = []
    for mend in (lambda engine: engine, without):
        tables = [
            sc.TableConfig(ROWS, 8, dtype=dtype, combiner="sum", name=dtype)
            for dtype in ("float32", "float64", "float16")
        ]
        optimizer = sc.optimizers.Adagrad(0.5)
        engine = mend(sc.ShardedEmbedding([sc.FeatureConfig(one) for one in tables], optimizer))
        lookup = engine.lookup([np.arange(ROWS)] * 3)
        lookup.apply_gradients([np.ones((ROWS, 8), one.dtype) for one in lookup.activations])
        found.append([engine.tables[one.name].numpy().tobytes() for one in tables])
    assert found[0] == found[1]


def test_chance_is_that_of_each_table() -> None:
    optimizer = sc.optimizers.SGD(0.001, stochastic_rounding=True)
    found = []
    for mend in (lambda engine: engine, without):
        tables = [
            sc.TableConfig(ROWS, 8, dtype=np.float16, combiner="sum", name=name) for name in "ab"
        ]
        engine = mend(sc.ShardedEmbedding([sc.FeatureConfig(one) for one in tables], optimizer))
        for _ in range(3):
            lookup = engine.lookup([np.arange(ROWS)] * 2)
            lookup.apply_gradients([np.ones((ROWS, 8), np.float32)] * 2)
        found.append([engine.tables[name].numpy().tobytes() for name in "ab"])
    assert found[0] == found[1]


def test_a_table_without_an_optimizer_has_others_make_steps_as_ever() -> None:
    tables = [
        sc.TableConfig(5, 2, name=name, optimizer=optimizer, combiner="sum")
        for name, optimizer in (("a", sc.optimizers.SGD(0.5)), ("b", None))
    ]
    engine = sc.ShardedEmbedding([sc.FeatureConfig(table) for table in tables])
    assert not is_given(engine.lookup([np.array([1]), np.array([1])]))


def test_tables_go_when_an_engine_is_closed() -> None:
    engine = one()
    lookup = engine.lookup((IDS, SPLITS))
    lookup.apply_gradients(ONES)
    waiting = engine.lookup((IDS, SPLITS))
    backend: Any = engine._backend
    (table,) = backend._tables.values()
    memory = table.rows
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    gone = weakref.ref(memory)
    del backend, table, memory
    engine.close()
    gc.collect()
    assert gone() is None
    assert "dropped" in repr(waiting)


def test_ids_that_have_become_more_or_fewer_are_left_to_all_others() -> None:
    """Another thread may give a dense array another shape once its row splits were made."""
    table = StoreTable(4, 2, np.dtype("float32"), sc.optimizers.SGD(0.5))
    steps = StoreSteps([table], [sc.optimizers.SGD(0.5)], [(0,)], [DIVIDED["sum"]], True, print)
    splits = np.array([0, 1, 2])
    for ids, looked_up in (([1, 3], True), ([1], False), ([1, 3, 0], False), ([], False)):
        found = steps.look_up([(np.array(ids, np.int64), splits, False)])
        assert (found is not None) == looked_up


def test_many_tables_are_updated_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups wait for those that are updated at once: two of three are beyond the limit."""
    together: list[int] = []

    def locked(locks: Any, call: Callable[[], None]) -> None:
        together.append(len(locks))
        write_all(locks, call)

    monkeypatch.setattr("shardcore.store.steps.write_all", locked)
    dim = 1 << 13
    tables = [sc.TableConfig(64, dim, combiner="sum", name=f"t{at}") for at in range(3)]
    engine = sc.ShardedEmbedding(
        [sc.FeatureConfig(table) for table in tables], sc.optimizers.SGD(0.5)
    )
    times = 46  # work of 64 * (46 + 1) = 3,008 times the columns, of rows that caches hold
    bags = np.tile(np.arange(64), times), np.array([0, 64 * times])
    lookup = engine.lookup([bags] * 3)
    before = engine.tables["t2"][63, 0]
    assert is_given(lookup)
    lookup.apply_gradients([np.ones((1, dim), np.float32)] * 3)
    assert together == [2, 1]
    assert engine.tables["t2"][63, 0] == np.float32(before) - np.float32(0.5 * times)
    assert engine.metrics()["unique_rows"] == 3 * 64


def test_steps_are_not_copied() -> None:
    engine = one()
    lookup = engine.lookup((IDS, SPLITS))
    batch = lookup._pending.batch
    steps = engine._training._given_steps
    assert isinstance(steps, GivenSteps)
    table = StoreTable(4, 2, np.dtype("float32"), sc.optimizers.SGD(0.5))
    store = StoreSteps([table], [sc.optimizers.SGD(0.5)], [(0,)], [DIVIDED["sum"]], True, print)
    step = store.look_up([(np.array([1]), np.array([0, 1]), True)])
    assert isinstance(step, StoreStep)
    for held, name in (
        (batch, "a GivenBatch"),
        (steps, "GivenSteps"),
        (store, "StoreSteps"),
        (step, "a StoreStep"),
    ):
        for act in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match=f"^{name} cannot be copied or pickled$"):
                act(held)
