"""What changes tables: locks around each read and write, all or nothing, closing, callbacks."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dictionary_backend import Dictionary
from engines import Creep, assert_close_waits
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.backend.base import Backend
from shardcore.backend.messages import FeatureBags, TableBatch, TableUpdate
from shardcore.engine.in_flight import APPLIED, DROPPED
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.slots import SlotSpec
from shardcore.store import table as table_module
from shardcore.threads import lock as lock_module
from shardcore.threads.lock import ReadWriteLock
from shardcore.threads.work import InTurn
from shardcore.variable import indexing

SOON, A_WHILE = 30.0, 0.1
ROWS, DIM = 6, 4


def backend_of(name: Any) -> Any:
    if isinstance(name, Backend):
        return name
    if name == "dictionary":
        return Dictionary()
    return sc.get_backend(name, **({"hosts": 2} if name == "sim" else {}))


def engine_of(backend: Any, optimizer: Any = None, **options: Any) -> sc.ShardedEmbedding:
    zeros = sc.initializers.Zeros()
    tables = [sc.TableConfig(ROWS, DIM, initializer=zeros, name=name) for name in "ab"]
    return sc.ShardedEmbedding(
        {table.name: sc.FeatureConfig(table) for table in tables},
        optimizer or sc.optimizers.Adagrad(learning_rate=1.0),
        backend=backend_of(backend),
        **options,
    )


BATCH = {name: [[1], [4]] for name in "ab"}
ROW, ONE_BAG = np.array([1]), np.array([0, 1])
ONES = {name: np.ones((2, DIM), np.float32) for name in "ab"}


def step(engine: sc.ShardedEmbedding) -> None:
    engine.enqueue(BATCH)
    engine.dequeue()
    engine.apply_gradients(ONES)


# --- locks -------------------------------------------------------------------------------------


def locked(engine: sc.ShardedEmbedding, backend: str) -> list[ReadWriteLock]:
    """Return the locks of table "a"."""
    held = engine._backend._tables["a"]
    if backend == "cpu":
        return [held._lock]
    return [held.lock, *[store._lock for store in held.stores]]


def weight_dots(engine: sc.ShardedEmbedding) -> Any:
    backend = engine._backend
    batch = TableBatch("a", (FeatureBags(np.array([1, 4]), np.array([0, 1, 2])),), True)
    backend.lookup([batch])
    return lambda: backend.weight_dots(TableUpdate(batch, (ONES["a"],), (1.0,), 1))


def weighted(engine: sc.ShardedEmbedding) -> Any:
    weights = np.ones(2, np.float32)
    bags = FeatureBags(np.array([1, 4]), np.array([0, 1, 2]), weights)
    return lambda: engine._backend.lookup([TableBatch("a", (bags,))])


CALLS: dict[str, Callable[[sc.ShardedEmbedding], Callable[[], object]]] = {
    "lookup": lambda e: lambda: e(BATCH),
    "weighted": weighted,
    "dots": weight_dots,
    "gather": lambda e: lambda: e.tables["a"][[1, 4, 2]],
    "read": lambda e: lambda: e.tables["a"][0:ROWS],
    "update": lambda e: lambda: e.apply_gradients(ONES),
    "scatter": lambda e: lambda: e.tables["a"].scatter_update([1, 4], np.ones((2, DIM))),
    "write": lambda e: lambda: e.tables["a"].assign(1.0),
}
READS = ("lookup", "weighted", "dots", "gather", "read")


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("held", ["read", "write"])
def test_every_call_holds_the_lock_of_its_table(call: str, backend: str, held: str) -> None:
    """It waits for a thread that holds the lock, but for reads beside a read."""
    engine = engine_of(backend)
    step(engine)
    engine.enqueue(BATCH)
    engine.dequeue()
    work = CALLS[call](engine)
    lock = locked(engine, backend)[0]
    inside, let_go, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        let_go.wait(SOON)

    holder = threading.Thread(target=getattr(lock, held), args=(hold,), daemon=True)
    holder.start()
    assert inside.wait(SOON)
    caller = threading.Thread(target=lambda: (work(), done.set()), daemon=True)
    caller.start()
    if held == "read" and call in READS:
        assert done.wait(SOON)
    else:
        assert not done.wait(A_WHILE)
    let_go.set()
    assert done.wait(SOON)
    holder.join(SOON)
    caller.join(SOON)


def test_a_lookup_in_several_tables_waits_for_each() -> None:
    engine = engine_of("cpu")
    step(engine)
    for name in "ab":
        held, let_go, done = threading.Event(), threading.Event(), threading.Event()
        lock = engine._backend._tables[name]._lock

        def hold(held: threading.Event = held, let_go: threading.Event = let_go) -> None:
            held.set()
            let_go.wait(SOON)

        holder = threading.Thread(target=lock.write, args=(hold,), daemon=True)
        holder.start()
        assert held.wait(SOON)
        batches = [TableBatch(table, (FeatureBags(ROW, ONE_BAG),)) for table in "ab"]

        def call(batches: Any = batches, done: threading.Event = done) -> None:
            engine._backend.lookup(batches)
            done.set()

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        assert not done.wait(A_WHILE)
        let_go.set()
        assert done.wait(SOON)
        holder.join(SOON)
        caller.join(SOON)


@pytest.mark.parametrize(("together", "times"), [(1, 2), (1 << 25, 1)])
def test_tables_are_locked_for_a_part_of_a_step(
    together: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups wait while some tables are updated, not until all are."""
    locked_together: list[int] = []
    monkeypatch.setattr(table_module, "TOGETHER", together)

    def write_all(locks: Any, *rest: Any) -> Any:
        locked_together.append(len(locks))
        return lock_module.write_all(locks, *rest)

    monkeypatch.setattr(table_module, "write_all", write_all)
    step(engine_of("cpu"))
    assert locked_together == [2 // times] * times


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_step_of_more_tables_than_calls_can_nest(backend: str) -> None:
    tables = [sc.TableConfig(4, 1, initializer=sc.initializers.Zeros()) for _ in range(1100)]
    features = [sc.FeatureConfig(table) for table in tables]
    engine = sc.ShardedEmbedding(features, sc.optimizers.SGD(1.0), backend=backend_of(backend))
    engine.enqueue([np.array([2])] * 1100)
    engine.dequeue()
    engine.apply_gradients([np.ones((1, 1), np.float32)] * 1100)
    assert all((one == -1).all() for one in engine([np.array([2])] * 1100))


# --- all or nothing ----------------------------------------------------------------------------


def failing_at(calls: int) -> Optimizer:
    """Return an optimizer in Python that raises in its n-th update."""

    @dataclass(frozen=True, eq=False)
    class Failing(Optimizer):
        name = "failing"
        slots = (SlotSpec("seen", "element"),)
        hyper_names = ()

        def update(self, grad: Any, rows: Any, slots: Any, hyper: Any, step: int, ids: Any) -> Any:
            counted.append(step)
            if len(counted) == calls:
                raise ArithmeticError("no such update")
            return rows - grad, {"seen": slots["seen"] + 1}

    counted: list[int] = []
    return Failing()


@pytest.mark.parametrize("backend", ["cpu", "sim", "dictionary"])
@pytest.mark.parametrize("pipeline", [False, True])
def test_an_optimizer_that_raises_at_the_second_table_changes_neither(
    backend: str, pipeline: bool
) -> None:
    for calls in (2, 3, 4):
        engine = engine_of(backend, failing_at(calls), pipeline=pipeline)
        engine.build()
        failed = 0
        for _ in range(4):
            try:
                step(engine)
                engine.metrics()  # waits for a pipeline
            except (ArithmeticError, ShardcoreRuntimeError):
                failed += 1
                if pipeline:  # told again by the next call of training, which drops all
                    with pytest.raises(ShardcoreRuntimeError, match="no such update"):
                        engine.enqueue(BATCH)
                else:
                    engine.apply_gradients(None)
        assert (failed, engine.in_flight, engine.step) == (1, 0, 3)
        for name in "ab":
            rows, seen = engine.tables[name], engine.slots[name]["seen"]
            np.testing.assert_array_equal(rows[[1, 4]], np.full((2, DIM), -3.0))
            np.testing.assert_array_equal(seen[[1, 4]], np.full((2, DIM), 3.0))


# --- closing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_close_waits_for_lookups_and_later_ones_are_told(backend: str) -> None:
    engine = engine_of(backend)
    engine.build()
    inside, let_go = threading.Event(), threading.Event()
    found: list[Any] = []
    look_up = engine._backend.lookup

    def slow(batches: Any) -> Any:
        inside.set()
        let_go.wait(SOON)
        return look_up(batches)

    engine._backend.lookup = slow  # type: ignore[method-assign]
    assert_close_waits(engine, lambda: found.append(engine(BATCH)), inside, let_go)
    assert found[0]["a"].shape == (2, DIM)
    message = "a lookup came after close: the tables are gone"
    with pytest.raises(ShardcoreRuntimeError, match=f"^{message}$"):
        engine(BATCH)


def use_for_ever(engine: Any, rows: Any, errors: list[BaseException], started: Any) -> None:
    started.wait(SOON)
    try:
        while True:
            engine(BATCH)
            rows[[1, 2]]
            rows[1:3] = 1
            engine.metrics()
    except BaseException as error:
        errors.append(error)


def test_close_in_the_midst_of_lookups_gives_one_error_only() -> None:
    for _ in range(30):
        engine = engine_of("cpu")
        engine.build()
        rows = engine.tables["a"]
        errors: list[BaseException] = []
        started = threading.Barrier(4)

        users = [
            threading.Thread(target=use_for_ever, args=(engine, rows, errors, started), daemon=True)
            for _ in range(3)
        ]
        for user in users:
            user.start()
        started.wait(SOON)
        engine.close()
        for user in users:
            user.join(SOON)
        assert {type(error) for error in errors} == {ShardcoreRuntimeError}, errors
        assert {str(error) for error in errors} <= {
            "a lookup came after close: the tables are gone",
            "table 'a' is gone: its engine was closed",
        }


# --- copies and callbacks ------------------------------------------------------------------------


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_engines_and_backends_are_not_copied(make: Callable[[Any], Any]) -> None:
    engine = engine_of("cpu")
    step(engine)
    of_engine = (
        "a ShardedEmbedding cannot be copied or pickled: it owns its tables; make another engine, "
        "and restore a checkpoint of this one into it"
    )
    of_backend = (
        "backend 'cpu' cannot be copied or pickled: it owns its tables; get another one, and move "
        "tables by a checkpoint"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(of_engine)}$"):
        make(engine)
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(of_backend)}$"):
        make(engine._backend)
    step(engine)
    assert engine.step == 2


CALLBACKS = ("update", "learning rate", "initializer")
USES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a lookup": ("a lookup", lambda e: e(BATCH)),
    "enqueue": ("enqueue", lambda e: e.enqueue(BATCH)),
    "apply_gradients": ("apply_gradients", lambda e: e.apply_gradients(ONES)),
    "tables": ("reading tables", lambda e: e.tables["a"][[1]]),
    "close": ("close", lambda e: e.close()),
    "build": ("build", lambda e: e.build()),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_callback_that_calls_its_engine_is_told_at_once(
    callback: str, use: str, pipeline: bool
) -> None:
    told: list[str] = []
    engines: list[Any] = []

    def call_engine() -> None:
        call, function = USES[use]
        try:
            function(engines[0])
        except ShardcoreRuntimeError as error:
            told.append(str(error))
        else:
            told.append(f"{call} went through")

    @dataclass(frozen=True, eq=False)
    class Calling(Optimizer):
        name = "calling"
        slots = ()
        hyper_names = ("learning_rate",)
        learning_rate: Any = 1.0

        def update(self, grad: Any, rows: Any, slots: Any, hyper: Any, step: int, ids: Any) -> Any:
            if callback == "update":
                call_engine()
            return rows - grad, {}

    def rate() -> float:
        if callback == "learning rate":
            call_engine()
        return 1.0

    def rows_of(rows: Any, row_shape: Any, dtype: Any, seed: int) -> Any:
        if callback == "initializer":
            call_engine()
        return np.zeros((len(rows), *row_shape), dtype)

    table = sc.TableConfig(ROWS, DIM, initializer=rows_of, name="a")
    engine = sc.ShardedEmbedding(
        {"a": sc.FeatureConfig(table)}, Calling(learning_rate=rate), pipeline=pipeline
    )
    engines.append(engine)
    engine.enqueue({"a": [[1], [4]]})
    engine.dequeue()
    engine.apply_gradients({"a": ONES["a"]})
    np.testing.assert_array_equal(engine.tables["a"][[0, 1, 4], 0], [0, -1, -1])
    engine.close()
    expected = (
        f"{USES[use][0]} came from inside another call of this engine: an optimizer, a learning "
        "rate or an initializer must not call the engine it works for"
    )
    assert set(told) == {expected}


# --- forks and interrupts ----------------------------------------------------------------------

_FORK = """
import os, warnings
import numpy as np
import shardcore as sc
from shardcore.variable import indexing
warnings.simplefilter("ignore")
table = sc.TableConfig(6, 2, initializer=sc.initializers.Zeros(), name="a")
engine = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0))
engine.enqueue([[1]])
if {dequeued}:
    engine.dequeue()
child = os.fork()
if child == 0:
    for call in (engine.dequeue, lambda: engine.apply_gradients(np.ones((1, 2)))):
        try:
            call()
        except RuntimeError as error:
            print(str(error).replace(str(os.getppid()), "P").replace(str(os.getpid()), "C"))
    engine.enqueue([[2]])
    engine.dequeue()
    engine.apply_gradients(np.ones((1, 2)))
    print(engine.step, engine.in_flight, engine.tables["a"][:, 0].tolist(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], engine.in_flight)
if not {dequeued}:
    engine.dequeue()
engine.apply_gradients(np.ones((1, 2)))
print(engine.step, engine.tables["a"][:, 0].tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("dequeued", [False, True])
def test_batches_in_flight_stay_with_the_process_that_enqueued_them(dequeued: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK.format(dequeued=dequeued)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    left = "here: what was in flight at the fork belongs to process P, which made this one, C"
    assert done.stdout.splitlines() == [
        f"dequeue came without a batch {left}: enqueue one first",
        f"apply_gradients came without a training batch {left}: enqueue and dequeue one first",
        "1 0 [0.0, 0.0, -1.0, 0.0, 0.0, 0.0]",
        "0 1",
        "1 [0.0, -1.0, 0.0, 0.0, 0.0, 0.0]",
    ]


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_build_cut_short_can_be_made_again(backend: str) -> None:
    left = [3]

    def rows_of(rows: Any, row_shape: Any, dtype: Any, seed: int) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return np.full((len(rows), *row_shape), 7, dtype)

    tables = [sc.TableConfig(ROWS, DIM, initializer=rows_of, name=name) for name in "abc"]
    engine = sc.ShardedEmbedding(
        [sc.FeatureConfig(table) for table in tables], backend=backend_of(backend)
    )
    with pytest.raises(KeyboardInterrupt):
        engine.build()
    assert not engine._backend.specs
    engine.build()
    assert (np.asarray(engine.tables["c"]) == 7).all()


@pytest.mark.parametrize("pipeline", [False, True])
def test_an_interrupt_between_hand_over_and_count_splits_nothing(pipeline: bool) -> None:
    """One that comes where a batch is noted as applied, if the caller's thread comes there."""
    engine = engine_of("cpu", sc.optimizers.SGD(learning_rate=1.0), pipeline=pipeline)
    step(engine)
    engine.enqueue(BATCH)
    engine.dequeue()

    def interrupt(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == "booked":
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        engine.apply_gradients(ONES)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert (engine.in_flight, engine.step) in ((0, 2), (1, 1))
    assert engine.metrics()["steps"] == engine.step
    assert (engine.tables["a"][[1, 4]] == -engine.step).all()


@pytest.mark.parametrize("kind", ["shards", "cpu", "sim"])
def test_an_interrupt_between_the_blocks_of_a_write_splits_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes where the second block is written, if the caller's thread comes there."""

    def two_at_a_time(rows: int, store: Any) -> list[slice]:
        return [slice(start, min(start + 2, rows)) for start in range(0, rows, 2)]

    monkeypatch.setattr(indexing, "row_blocks", two_at_a_time)
    engine = engine_of("cpu" if kind == "shards" else kind)
    engine.build()
    rows = engine.tables["a"]
    if kind == "shards":
        zeros = sc.initializers.Zeros()
        rows = sc.create_variable((ROWS, DIM), num_shards=2, initializer=zeros)
    written = 0

    def interrupt(frame: Any, event: str, argument: Any) -> Any:
        nonlocal written
        if event == "call" and frame.f_code.co_name in ("put_rows", "write", "scatter"):
            written += 1
            if written == 3:
                raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        rows[0:ROWS] = np.ones((ROWS, DIM), np.float32)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    found = np.asarray(rows)
    assert (found == found[0, 0]).all()


# --- updates that are staged ----------------------------------------------------------------------


class Staging(CpuBackend):
    """Notes in which way updates come."""

    def __init__(self) -> None:
        super().__init__()
        self.ways: list[str] = []

    def stage(self, updates: Sequence[TableUpdate]) -> InTurn | None:
        staged = super().stage(updates)
        self.ways.append("none" if staged is None else f"compiled {staged.compiled}")
        return staged


class Applying(CpuBackend):
    """Has an `apply` of its own, which must not be passed over."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        self.updates += 1
        super().apply(updates)


@pytest.mark.parametrize(
    ("optimizer", "way"), [(None, "compiled True"), (Creep(), "none")], ids=["kernel", "Python"]
)
def test_small_updates_by_kernels_are_compiled_calls(optimizer: Any, way: str) -> None:
    backend = Staging()
    with engine_of(backend, optimizer) as e:
        step(e)
        step(e)
        assert backend.ways == [way, way]
        assert (e.step, e.in_flight, e.metrics()["steps"]) == (2, 0, 2)
        assert e.metrics()["unique_rows"] == 8


@pytest.mark.parametrize("threads", [1, 2])
def test_large_updates_are_cut_over_threads_where_there_are_several(threads: int) -> None:
    rng, before = np.random.default_rng(0), sc.get_num_threads()
    table = sc.TableConfig(1 << 15, 64, initializer=sc.initializers.Zeros(), name="t")
    ids, backend = rng.integers(0, 1 << 15, (1 << 13, 4)), Staging()
    sc.set_num_threads(threads)
    try:
        with sc.ShardedEmbedding(
            sc.FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0), backend=backend
        ) as e:
            e.lookup(ids).apply_gradients(np.ones((1 << 13, 64), np.float32))
            assert backend.ways == [f"compiled {threads == 1}"]
            counts = np.bincount(ids.reshape(-1), minlength=1 << 15)
            assert np.array_equal(e.tables["t"][:, 0] * -4, counts)
    finally:
        sc.set_num_threads(before)


def test_an_apply_of_a_backend_s_own_is_called() -> None:
    backend = Applying()
    with engine_of(backend) as e:
        step(e)
        assert (backend.updates, e.step) == (1, 1)


def test_an_update_that_cannot_be_staged_leaves_the_batch_waiting(monkeypatch: Any) -> None:
    backend = Staging()
    with engine_of(backend) as e:
        e.enqueue(BATCH)
        e.dequeue()
        before = e.tables["a"].numpy()

        def fails(*arguments: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(backend, "_staged", fails)
            with pytest.raises(MemoryError):
                e.apply_gradients(ONES)
        assert (e.step, e.in_flight, e.metrics()["unique_rows"]) == (0, 1, 0)
        assert np.array_equal(e.tables["a"].numpy(), before)
        e.apply_gradients(ONES)
        assert (e.step, e.in_flight, e.metrics()["unique_rows"]) == (1, 0, 4)


def test_a_lookup_dropped_while_it_is_applied_stays_dropped() -> None:
    with engine_of("cpu") as e:
        held = e.lookup(BATCH)
        pending = held._pending
        calls = pending.ending(APPLIED)
        held.drop()
        for call in calls:
            call()
        assert (pending.ended, pending.batch, pending.lookup) == (DROPPED, None, None)
