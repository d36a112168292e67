"""`ShardedEmbedding.lookup`: batches in the hands of their callers, from the lookup to the end."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from dictionary_backend import Dictionary
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.backend import Capabilities
from shardcore.errors import (
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    UpdateRefusedError,
)
from shardcore.optimizer.base import Optimizer

SOON, A_WHILE = 30.0, 0.1
AGAIN = ": look the batch up again"
DROPPED = "came for a lookup that was dropped"

both = pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])
each_backend = pytest.mark.parametrize("backend", ["cpu", "sim", "dictionary"])


class TakesOnDevice(Dictionary):
    """Takes gradients of its own kind too."""

    capabilities = Capabilities(device_arrays=True)

    def takes_gradient(self, gradient: object) -> bool:
        return isinstance(gradient, OnDevice)


class OnDevice:
    """An array that the backend takes as it is."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array, np.float32)
        self.shape, self.dtype = self._array.shape, self._array.dtype

    def reshape(self, *shape: int) -> OnDevice:
        return OnDevice(self._array.reshape(*shape))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self._array, dtype)


class Gated(CpuBackend):
    """Lookups and updates wait for a permit each, and fail when told to."""

    name = "gated"

    def __init__(self, permits: int = 10**6) -> None:
        super().__init__()
        self.permits = threading.Semaphore(permits)
        self.failing = ""
        self.entered = threading.Event()
        self.done: list[str] = []

    def _enter(self, call: str) -> None:
        self.entered.set()
        assert self.permits.acquire(timeout=SOON)
        if self.failing == call:
            self.failing = ""
            raise OSError(f"no {call} today")
        self.done.append(call)

    def lookup(self, batches: Any) -> Any:
        self._enter("lookup")
        return super().lookup(batches)

    def apply(self, updates: Any) -> None:
        self._enter("apply")
        super().apply(updates)


def made(backend: str) -> Any:
    if backend == "dictionary":
        return TakesOnDevice()
    return sc.get_backend(backend, **({"hosts": 2} if backend == "sim" else {}))


def make_engine(
    backend: Any = "cpu", pipeline: bool = False, optimizer: Any = ..., **options: Any
) -> sc.ShardedEmbedding:
    """Return an engine over one table of 8 rows, each its own number."""
    rows = sc.initializers.RowId()
    table = sc.TableConfig(8, 1, initializer=rows, combiner="sum", name="t")
    engine = sc.ShardedEmbedding(
        sc.FeatureConfig(table),
        sc.optimizers.SGD(learning_rate=1.0) if optimizer is ... else optimizer,
        backend=made(backend) if isinstance(backend, str) else backend,
        pipeline=pipeline,
        **options,
    )
    engine.build()
    return engine


def rows_of(engine: sc.ShardedEmbedding) -> list[float]:
    return np.asarray(engine.tables["t"])[:, 0].tolist()


START = [float(row) for row in range(8)]
ONE = [[1.0]]


def raises(call: Callable[[], object], message: str, error: Any = ShardcoreRuntimeError) -> Any:
    with pytest.raises(error, match=f"^{re.escape(message)}$") as info:
        call()
    assert type(info.value) is error
    return info.value


# --- what handles are for ------------------------------------------------------------------------


@both
@each_backend
def test_two_towers_over_one_table(backend: str, pipeline: bool) -> None:
    """Both looked up before either is applied, and applied in the other order."""
    with make_engine(backend, pipeline) as e:
        query, item = e.lookup([[1], [2]]), e.lookup([[2], [5, 1]])
        assert e.in_flight == 2
        assert item.activations.tolist() == [[2], [6]]
        item.apply_gradients([[1.0], [10.0]])
        late = e.lookup([[1], [2]])
        query.apply_gradients([[1.0], [1.0]])
        assert query.activations.tolist() == [[1], [2]]  # of the rows as they were then
        assert late.activations.tolist() == [[-9], [1]]  # after the first update only
        late.drop()
        assert rows_of(e) == [0, -10, 0, 3, 4, -5, 6, 7]
        assert (e.step, e.in_flight, e.metrics()["lookups"]) == (2, 0, 3)


@both
@each_backend
def test_gradients_that_are_accumulated_make_one_step(backend: str, pipeline: bool) -> None:
    with make_engine(backend, pipeline) as e:
        held = [e.lookup([[row], [7]]) for row in (1, 2, 3)]
        assert e.apply([(one, np.ones((2, 1))) for one in held]) is None
        assert rows_of(e) == [0, 0, 1, 2, 4, 5, 6, 4]
        assert (e.step, e.in_flight) == (1, 0)


@both
def test_a_forward_is_made_anew_and_the_first_abandoned(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        first = e.lookup([[1]]).activations
        second = e.lookup([[1]])
        assert second.activations.tolist() == first.tolist()
        second.apply_gradients(ONE)
        assert (rows_of(e)[1], e.step, e.in_flight) == (0, 1, 0)


@both
def test_handles_stand_beside_the_line(pipeline: bool) -> None:
    """They take no room in it, and it goes on in its order."""
    with make_engine("cpu", pipeline) as e:
        held = [e.lookup([[row]]) for row in range(5)]
        e.enqueue([[6]])
        assert e.in_flight == 6
        assert e.dequeue().tolist() == [[6]]
        held[2].apply_gradients(ONE)
        e.apply_gradients(ONE)
        assert e.in_flight == 4
        message = "apply_gradients came without a training batch: enqueue and dequeue one first"
        raises(lambda: e.apply_gradients(ONE), message)
        assert rows_of(e) == [0, 1, 1, 3, 4, 5, 5, 7]


@both
def test_gradients_of_weights_are_those_of_each_handle(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        one, two, three = e.lookup([[1, 4]], [2.0, 1.0]), e.lookup([[5]], [1.0]), e.lookup([[3]])
        assert one.apply_gradients([[10.0]], weight_gradients=True).tolist() == [10, 40]
        # The rows before the update: 4 was moved by the first step.
        again = e.lookup([[4]], [1.0])
        found = e.apply([(two, ONE), (three, ONE), (again, [[2.0]])], weight_gradients=True)
        assert found is not None
        assert [None if own is None else own.tolist() for own in found] == [[5], None, [-12]]
        assert rows_of(e)[3:6] == [2, -8, 4]


# --- in the background ---------------------------------------------------------------------------


def test_lookups_and_updates_return_before_they_are_done_and_keep_their_order() -> None:
    backend = Gated(permits=0)
    with make_engine(backend, pipeline=True) as e:
        one = e.lookup([[1]])
        one.apply_gradients(ONE)  # activations may be asked for later, or not at all
        two = e.lookup([[1]])
        assert (backend.done, e.step, e.in_flight) == ([], 1, 1)
        backend.permits.release(10)
        assert two.activations.tolist() == [[0]]
        assert one.activations.tolist() == [[1]]
        assert backend.done == ["lookup", "apply", "lookup"]


@both
def test_what_was_given_may_be_written_to_at_once(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        ids, splits = np.array([1, 2]), np.array([0, 2])
        weights, gradient = np.array([1, 3], np.float32), np.array(ONE, np.float32)
        held = e.lookup((ids, splits), weights)
        ids[:], splits[:], weights[:] = 7, 0, np.nan
        assert held.activations.tolist() == [[7]]
        held.apply_gradients(gradient)
        gradient[:] = np.nan
        assert rows_of(e) == [0, 0, -1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("failing", ["lookup", "apply"])
def test_a_failure_in_the_background_drops_handles(failing: str) -> None:
    backend = Gated()
    with make_engine(backend, pipeline=True) as e:
        kept, applied, waiting = e.lookup([[1]]), e.lookup([[2]]), e.lookup([[3]])
        e.enqueue([[4]])
        assert kept.activations.tolist() == [[1]]
        e.metrics()  # waits
        backend.failing = failing
        backend.permits = threading.Semaphore(0)
        if failing == "apply":
            applied.apply_gradients(ONE)
        after = e.lookup([[5]])
        backend.permits.release(10)
        call = {"apply": "apply_gradients", "lookup": "lookup"}[failing]
        told = f"{call} failed in the background, and what was called after it was dropped: "
        error = raises(lambda: after.activations, f"{told}OSError: no {failing} today")
        assert isinstance(error.__cause__, OSError)
        assert (e.in_flight, e.step) == (0, 0)
        for held in (kept, waiting, after):
            for name, use in USES.items():
                raises(partial(use, held), f"{name} {DROPPED} when an earlier call failed{AGAIN}")
        raises(e.dequeue, "dequeue came without a batch: enqueue one first")
        e.lookup([[1]]).apply_gradients(ONE)
        assert (rows_of(e), e.step) == ([0, 0, 2, 3, 4, 5, 6, 7], 1)


# --- ends ----------------------------------------------------------------------------------------

USES: dict[str, Callable[[Any], object]] = {
    "activations": lambda h: h.activations,
    "apply_gradients": lambda h: h.apply_gradients(ONE),
}


@both
def test_a_lookup_is_applied_once(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        one, two = e.lookup([[1]]), e.lookup([[2]])
        one.apply_gradients(ONE)
        twice = f"came a second time for one lookup{AGAIN}"
        raises(lambda: one.apply_gradients(ONE), f"apply_gradients {twice}")
        raises(lambda: e.apply([(two, ONE), (one, ONE)]), f"pairs[1]: apply {twice}")
        one.drop()  # changes nothing
        assert one.activations.tolist() == [[1]]
        raises(lambda: one.apply_gradients(None), f"apply_gradients {twice}")
        assert (e.step, e.in_flight) == (1, 1)
        e.apply([(two, ONE)])
        raises(lambda: two.apply_gradients(ONE), f"apply_gradients {twice}")
        assert rows_of(e) == [0, 0, 1, 3, 4, 5, 6, 7]


@both
@pytest.mark.parametrize("how", ["drop", "None", "None in a step"])
def test_a_lookup_that_was_dropped_is_gone(how: str, pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        held = e.lookup([[1]])
        assert held.activations.tolist() == [[1]]
        if how == "drop":
            held.drop()
        elif how == "None":
            held.apply_gradients(None)
        else:
            e.apply([(held, None)])
        held.drop()
        for name, use in USES.items():
            raises(partial(use, held), f"{name} {DROPPED}{AGAIN}")
        raises(lambda: e.apply([(held, ONE)]), f"pairs[0]: apply {DROPPED}{AGAIN}")
        assert (e.step, e.in_flight, rows_of(e)) == (0, 0, START)


@both
def test_without_training_there_are_activations_only(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        held, unread = e.lookup([[1]], training=False), e.lookup([[2]], training=False)
        assert e.in_flight == 2
        found = held.activations
        assert found.tolist() == [[1]]
        assert e.in_flight == 1
        assert held.activations is found
        for use, prefix, call in (
            (lambda: held.apply_gradients(ONE), "", "apply_gradients"),
            (lambda: unread.apply_gradients(ONE), "", "apply_gradients"),
            (lambda: e.apply([(held, ONE)]), "pairs[0]: ", "apply"),
        ):
            raises(use, f"{prefix}{call} came for a batch of training=False")
        assert (e.step, rows_of(e)) == (0, START)


def test_tables_without_an_optimizer_are_looked_up_only() -> None:
    with make_engine(optimizer=None) as e:
        raises(lambda: e.lookup([[1]]), "training=True needs an optimizer: no table has one")
        assert e.lookup([[1]], training=False).activations.tolist() == [[1]]
        message = "training must be a bool, got None"
        raises(lambda: e.lookup([[1]], training=None), message, ShardcoreTypeError)  # type: ignore[arg-type]


@both
def test_gradients_that_are_refused_leave_everything_as_it_was(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        one, two = e.lookup([[1]]), e.lookup([[2]])
        bad = "gradients must be finite in float32: gradients[0, 0] = nan"
        raises(lambda: one.apply_gradients([[np.nan]]), bad, ShardcoreValueError)
        pairs = [(one, ONE), (two, [[np.nan]])]
        raises(lambda: e.apply(pairs), f"pairs[1]: {bad}", ShardcoreValueError)
        shape = "gradients must have the shape of the activations, (1, 1), got (2, 1)"
        pairs = [(one, np.ones((2, 1))), (two, ONE)]
        raises(lambda: e.apply(pairs), f"pairs[0]: {shape}", ShardcoreValueError)
        assert (e.step, e.in_flight, rows_of(e)) == (0, 2, START)
        e.apply([(one, ONE), (two, ONE)])
        assert (e.step, e.in_flight, rows_of(e)[1:3]) == (1, 0, [0, 1])


def test_an_update_that_raises_can_be_made_again() -> None:
    backend = Gated()
    with make_engine(backend) as e:
        one, two = e.lookup([[1]]), e.lookup([[2]])
        for _ in range(2):
            backend.failing = "apply"
            raises(lambda: e.apply([(one, ONE), (two, ONE)]), "no apply today", OSError)
            assert (e.step, e.in_flight, rows_of(e)) == (0, 2, START)
        e.apply([(one, ONE), (two, ONE)])
        assert (e.step, e.in_flight, rows_of(e)[1:3]) == (1, 0, [0, 1])


def test_pairs_are_checked() -> None:
    with make_engine() as e, make_engine() as other:
        one, foreign = e.lookup([[1]]), other.lookup([[1]])
        of_type: list[tuple[Any, str]] = [
            (one, "pairs must be a list of (lookup, gradients), got Lookup"),
            ({one: ONE}, "pairs must be a list of (lookup, gradients), got dict"),
            (
                [(one, ONE), one],
                "pairs[1] must be (lookup, gradients), got <Lookup: for training, in flight>",
            ),
            ([(one,)], "pairs[0] must be (lookup, gradients), got (<Lookup: for training, in "
             "flight>,)"),
            ([(ONE, one)], "pairs[0][0] must be a Lookup, got [[1.0]]"),
        ]  # fmt: skip
        for pairs, message in of_type:
            raises(partial(e.apply, pairs), message, ShardcoreTypeError)
        of_value: list[tuple[Any, str]] = [
            ([], "pairs must hold at least one (lookup, gradients), got none"),
            (
                [(one, ONE), (foreign, ONE)],
                "pairs[1][0] must be a lookup of this engine, got one of another",
            ),
            (
                ((one, ONE), (e.lookup([[2]]), ONE), (one, ONE)),
                "pairs[2][0] must not be that of pairs[0]: a lookup is applied once",
            ),
        ]
        for pairs, message in of_value:
            raises(partial(e.apply, pairs), message, ShardcoreValueError)
        assert (e.step, rows_of(e)) == (0, START)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_handles_are_not_copied(make: Callable[[Any], Any]) -> None:
    with make_engine() as e:
        held = e.lookup([[1]])
        message = (
            "a Lookup cannot be copied or pickled: its gradients are applied once; look the batch "
            "up again"
        )
        raises(lambda: make(held), message, ShardcoreTypeError)
        held.apply_gradients(ONE)
        assert e.step == 1


def test_a_handle_shows_where_it_is() -> None:
    with make_engine() as e:
        one, two, three = e.lookup([[1]]), e.lookup([[1]]), e.lookup([[1]], training=False)
        assert repr(one) == "<Lookup: for training, in flight>"
        one.apply_gradients(ONE)
        two.drop()
        assert (repr(one), repr(two)) == (
            "<Lookup: for training, applied>",
            "<Lookup: for training, dropped>",
        )
        assert repr(three) == "<Lookup: without training, in flight>"
        three.activations  # noqa: B018 - ends it
        assert repr(three) == "<Lookup: without training, read>"


# --- collected -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("circle", [False, True])
def test_a_handle_that_nobody_holds_is_dropped_with_all_it_holds(
    pipeline: bool, circle: bool
) -> None:
    with make_engine("cpu", pipeline) as e:
        held = e.lookup([[1]])
        arrays = weakref.ref(held.activations), weakref.ref(held._pending.batch)
        assert e.in_flight == 1
        if circle:
            loop: list[Any] = [held]
            loop.append(loop)
            del loop
        e.metrics()  # what runs in the background has let go of it
        del held
        gc.collect()
        assert e.in_flight == 0
        assert [array() for array in arrays] == [None, None]


@both
@pytest.mark.parametrize("end", ["apply", "drop"])
def test_a_handle_that_has_ended_holds_no_batch(end: str, pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        held = e.lookup([[1]])
        batch = weakref.ref(held._pending.batch)
        held.apply_gradients(ONE) if end == "apply" else held.drop()
        e.metrics()  # waits
        assert batch() is None


def test_a_handle_let_go_before_its_lookup_runs_counts_no_more() -> None:
    backend = Gated(permits=0)
    with make_engine(backend, pipeline=True) as e:
        e.lookup([[1]])
        assert (e.in_flight, backend.done) == (0, [])
        backend.permits.release(10)
        assert e.lookup([[2]]).activations.tolist() == [[2]]


def test_letting_go_waits_for_no_lock() -> None:
    """Handles end, by `drop` and by the collector, while a call of another thread is under way."""
    backend = Gated()
    with make_engine(backend) as e:
        applied, dropped, collected = e.lookup([[1]]), e.lookup([[2]]), [e.lookup([[3]])]
        backend.permits = threading.Semaphore(0)
        backend.entered.clear()
        caller = threading.Thread(target=applied.apply_gradients, args=(ONE,), daemon=True)
        caller.start()
        assert backend.entered.wait(SOON)
        done = threading.Event()
        other = threading.Thread(
            target=lambda: (dropped.drop(), collected.clear(), done.set()), daemon=True
        )
        other.start()
        assert done.wait(SOON)
        assert e.in_flight == 1
        applied.drop()  # too late: the call goes on
        backend.permits.release(10)
        caller.join(SOON)
        other.join(SOON)
        assert (e.in_flight, e.step, rows_of(e)) == (0, 1, [0, 0, 2, 3, 4, 5, 6, 7])


def test_counting_is_safe_beside_threads_that_let_go() -> None:
    """As it is beside the collector, which may run in any thread."""
    before = sys.getswitchinterval()
    with make_engine() as e:
        kept, stop = [e.lookup([[1]]) for _ in range(20)], threading.Event()
        errors: list[BaseException] = []

        def let_go() -> None:
            try:
                while not stop.is_set():
                    loop: list[Any] = [e.lookup([[1]]) for _ in range(20)]
                    loop.append(loop)
                    del loop
                    gc.collect(0)
            except BaseException as error:
                errors.append(error)

        other = threading.Thread(target=let_go, daemon=True)
        sys.setswitchinterval(1e-6)
        try:
            other.start()
            counted, deadline = set(), time.monotonic() + SOON
            while len(counted) < 2 and time.monotonic() < deadline:  # until it is beside the other
                counted |= {e.in_flight for _ in range(2000)}
        finally:
            sys.setswitchinterval(before)
            stop.set()
            other.join(SOON)
        gc.collect()
        assert errors == []
        assert min(counted) >= 20
        assert len(counted) > 1
        assert e.in_flight == 20
        e.apply([(one, ONE) for one in kept])


# --- the engine's own ends -----------------------------------------------------------------------


@both
def test_after_close_handles_are_refused(pipeline: bool) -> None:
    with make_engine("cpu", pipeline) as e:
        held, applied = e.lookup([[1]]), e.lookup([[2]])
        applied.apply_gradients(ONE)
    for one in (held, applied):
        for name, use in USES.items():
            raises(partial(use, one), f"{name} came after close: the tables are gone")
    raises(lambda: e.lookup([[1]]), "lookup came after close: the tables are gone")
    raises(lambda: e.apply([(held, ONE)]), "apply came after close: the tables are gone")
    held.drop()
    assert e.in_flight == 0


@both
def test_a_restore_drops_handles_once_it_is_made(pipeline: bool, tmp_path: Any) -> None:
    """One that is refused does not; nor is a handle, which may be anywhere, a reason to refuse."""
    with make_engine("cpu", pipeline) as e:
        e.lookup([[1]]).apply_gradients(ONE)
        checkpoint = sc.Checkpoint(engine=e)
        checkpoint.save(tmp_path, 1)
        held = e.lookup([[2]])
        e.enqueue([[3]])
        message = "restore came while a batch is in flight: finish it first"
        raises(lambda: checkpoint.restore(tmp_path), message)
        e.dequeue()
        e.apply_gradients(ONE)
        assert (held.activations.tolist(), e.step) == ([[2]], 2)
        checkpoint.restore(tmp_path)
        assert (e.step, e.in_flight) == (1, 0)
        for name, use in USES.items():
            raises(partial(use, held), f"{name} {DROPPED} by a restore{AGAIN}")
        assert rows_of(e) == [0, 0, 2, 3, 4, 5, 6, 7]


@both
def test_a_refused_update_drops_handles(pipeline: bool) -> None:
    bad = "gradients must be finite in float32: gradients[0, 0] = nan"
    with make_engine("dictionary", pipeline) as e:
        held, one, two = e.lookup([[1]]), e.lookup([[2]]), e.lookup([[3]])
        e.apply([(one, OnDevice(ONE)), (two, OnDevice([[np.nan]]))])  # tested on the device
        assert e.step == 1
        if pipeline:  # the lookup fails in the background
            with pytest.raises(ShardcoreRuntimeError) as info:
                e.lookup([[1]]).activations  # noqa: B018 - raises
            assert str(info.value).endswith(
                f"dropped: UpdateRefusedError: step 1 was refused: pairs[1]: {bad}"
            )
        else:
            raises(e.metrics, f"step 1 was refused: pairs[1]: {bad}", UpdateRefusedError)
        assert (e.step, e.in_flight, rows_of(e)) == (0, 0, START)
        why = "when an earlier call failed" if pipeline else "when an update was refused"
        for name, use in USES.items():
            raises(partial(use, held), f"{name} {DROPPED} {why}{AGAIN}")
        e.lookup([[1]]).apply_gradients(OnDevice(ONE))
        assert (e.step, rows_of(e)[1]) == (1, 0)


@pytest.mark.parametrize("at", [0, 1])
def test_gradients_on_a_device_are_tested_whichever_lookup_they_are_of(at: int) -> None:
    """The others' are the host's, which were tested before."""
    with make_engine("dictionary") as e:
        pairs: list[Any] = [(e.lookup([[row]]), ONE) for row in (1, 2)]
        pairs[at] = (pairs[at][0], OnDevice([[np.inf]]))
        e.apply(pairs)
        value = "gradients must be finite in float32: gradients[0, 0] = inf"
        bad = f"step 1 was refused: pairs[{at}]: {value}"
        raises(e.metrics, bad, UpdateRefusedError)
        assert (e.step, rows_of(e)) == (0, START)


def test_gradients_on_a_device_and_on_the_host_join_in_a_step() -> None:
    with make_engine("dictionary") as e:
        one, two = e.lookup([[1], [2]]), e.lookup([[2]])
        e.apply([(one, np.ones((2, 1))), (two, OnDevice([[10.0]]))])
        assert rows_of(e) == [0, 0, -9, 3, 4, 5, 6, 7]


_FORK = """
import os, warnings
import numpy as np
import shardcore as sc
warnings.simplefilter("ignore")
table = sc.TableConfig(6, 1, initializer=sc.initializers.RowId(), name="a")
engine = sc.ShardedEmbedding(
    sc.FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0), pipeline={pipeline}
)
engine.build()
held, applied = engine.lookup([[1]]), engine.lookup([[2]])
held.activations
applied.apply_gradients(np.ones((1, 1)))
child = os.fork()
if child == 0:
    for call in (
        lambda: held.activations,
        lambda: held.apply_gradients(np.ones((1, 1))),
        lambda: engine.apply([(held, np.ones((1, 1)))]),
    ):
        try:
            call()
        except RuntimeError as error:
            print(str(error).replace(str(os.getppid()), "P").replace(str(os.getpid()), "C"))
    print(engine.in_flight)
    if not {pipeline}:
        own = engine.lookup([[3]])
        print(engine.in_flight, applied.activations.tolist())
        own.apply_gradients(np.ones((1, 1)))
        print(engine.step, engine.tables["a"][:, 0].tolist())
    held.drop()
    print(end="", flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], engine.in_flight)
held.apply_gradients(np.ones((1, 1)))
print(engine.step, engine.tables["a"][:, 0].tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@both
def test_handles_at_a_fork_stay_with_the_parent(pipeline: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK.format(pipeline=pipeline)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    whose = "came for a lookup that belongs to process P, which made this one, C"
    in_child = ["1 [[2.0]]", "2 [0.0, 1.0, 1.0, 2.0, 4.0, 5.0]"]
    assert done.stdout.splitlines() == [
        f"activations {whose}{AGAIN}",
        f"apply_gradients {whose}{AGAIN}",
        f"pairs[0]: apply {whose}{AGAIN}",
        "0",
        *([] if pipeline else in_child),
        "0 1",
        "2 [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]",
    ]


# --- interrupts and threads ----------------------------------------------------------------------


class Interrupt(BaseException):
    """What no code expects."""


def interrupted(work: Callable[[], object], at: int) -> bool:
    """Run `work` with an interrupt at a bytecode of this thread; return whether it had as many."""
    left, raised = at, False

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left, raised
        frame.f_trace_opcodes = True
        if event == "opcode" and not raised:
            left -= 1
            if left < 0:
                raised = True
                raise Interrupt
        return None if raised else trace

    def alone() -> Iterator[object]:
        yield work()

    # Where the end of an except clause is cut short, the thread goes on holding what was caught,
    # and all that its frames hold, as the cause of later errors. A generator takes that with it.
    generator = alone()
    before, collecting = sys.gettrace(), gc.isenabled()
    # The collector calls what others have hung on it, as Hypothesis has: bytecodes of this thread
    # too, but what is raised there goes no further.
    gc.disable()
    sys.settrace(trace)
    try:
        next(generator)
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return raised


STRIDE = 5


@both
@pytest.mark.parametrize("several", [False, True])
def test_an_interrupt_at_any_bytecode_leaves_a_handle_applied_or_not(
    pipeline: bool, several: bool, fuzz_seed: int
) -> None:
    with make_engine("cpu", pipeline) as e:
        at, more = fuzz_seed % STRIDE, True
        while more:
            held = [e.lookup([[1]]), e.lookup([[2]])][: 1 + several]
            before = e.step

            pairs = [(one, ONE) for one in held]
            alone = partial(held[0].apply_gradients, ONE)
            more = interrupted(partial(e.apply, pairs) if several else alone, at)
            applied = e.step - before
            assert applied in (0, 1), f"bytecode {at}"
            assert e.in_flight == (0 if applied else len(held)), f"bytecode {at}"
            assert e.metrics()["steps"] == e.step
            for one in held:
                if applied:
                    with pytest.raises(ShardcoreRuntimeError, match="a second time"):
                        one.apply_gradients(ONE)
                else:
                    one.drop()
            assert rows_of(e)[1:3] == [1 - e.step, 2 - e.step * several], f"bytecode {at}"
            at += STRIDE
        assert at > 200


@both
def test_an_interrupt_at_any_bytecode_of_a_lookup_leaves_nothing(
    pipeline: bool, fuzz_seed: int
) -> None:
    with make_engine("cpu", pipeline) as e:
        held: list[Any] = []

        def look_up() -> None:
            held.append(e.lookup([[1]]))

        look_up()  # a pipeline starts its thread, by code that an interrupt may split
        at, more = fuzz_seed % STRIDE, True
        while more:
            held.clear()
            more = interrupted(look_up, at)
            assert e.in_flight == len(held), f"bytecode {at}"
            at += STRIDE
        assert at > 200


@both
def test_an_interrupt_at_any_bytecode_of_the_end_splits_nothing(
    pipeline: bool, fuzz_seed: int
) -> None:
    """Of `activations` without training, which ends a lookup, and of `drop`."""
    with make_engine("cpu", pipeline) as e:
        for end in ("read", "drop"):
            at, more = fuzz_seed % 2, True
            while more:
                held = e.lookup([[1]], training=end == "drop")
                read = partial(USES["activations"], held)
                more = interrupted(held.drop if end == "drop" else read, at)
                if e.in_flight or end == "read":
                    assert held.activations.tolist() == [[1]], f"bytecode {at}"
                else:
                    raises(read, f"activations {DROPPED}{AGAIN}")
                held.drop()
                assert e.in_flight == 0
                at += 2


@both
def test_threads_with_handles_of_their_own(pipeline: bool) -> None:
    """Calls are made one at a time, whichever thread they come from: each step has its number."""
    steps: list[int] = []

    @dataclass(frozen=True, eq=False)
    class Noting(Optimizer):
        name = "noting"
        slots = ()
        hyper_names = ()

        def update(self, grad: Any, rows: Any, slots: Any, hyper: Any, step: int, ids: Any) -> Any:
            steps.append(step)
            return rows - grad, {}

    with make_engine("cpu", pipeline, Noting()) as e:
        errors: list[BaseException] = []

        def train(row: int) -> None:
            try:
                for turn in range(40):
                    one, two = e.lookup([[row]]), e.lookup([[row]])
                    assert one.activations.tolist() == [[row - turn]]
                    e.apply([(one, [[0.5]]), (two, [[0.5]])])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=train, args=(row,), daemon=True) for row in range(4)]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SOON)
        finally:
            sys.setswitchinterval(before)
        assert errors == []
        assert rows_of(e) == [-40, -39, -38, -37, 4, 5, 6, 7]
        assert (e.step, e.metrics()["steps"], e.in_flight) == (160, 160, 0)
        assert steps == list(range(1, 161))


def test_of_threads_that_apply_one_handle_one_does() -> None:
    with make_engine() as e:
        for _ in range(30):
            held, told = e.lookup([[1]]), []
            begin = threading.Barrier(4)

            def apply(held: Any = held, told: Any = told, begin: Any = begin) -> None:
                begin.wait(SOON)
                try:
                    held.apply_gradients(ONE)
                except ShardcoreRuntimeError as error:
                    told.append(str(error))

            threads = [threading.Thread(target=apply, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SOON)
            assert told == [f"apply_gradients came a second time for one lookup{AGAIN}"] * 3
        assert (e.step, rows_of(e)[1]) == (30, -29)


@both
def test_an_optimizer_must_not_use_a_handle(pipeline: bool) -> None:
    told: list[str] = []
    held: list[Any] = []

    def rate() -> float:
        for use in (*USES.values(), lambda h: e.apply([(h, ONE)]), lambda h: e.lookup([[1]])):
            try:
                use(held[0])
            except ShardcoreRuntimeError as error:
                told.append(str(error))
        return 1.0

    with make_engine("cpu", pipeline, sc.optimizers.SGD(learning_rate=rate)) as e:
        held.append(e.lookup([[1]]))
        held[0].apply_gradients(ONE)
    assert told == [
        f"{call} came from inside another call of this engine: an optimizer, a learning rate or "
        "an initializer must not call the engine it works for"
        for call in (*USES, "apply", "lookup")
    ]
