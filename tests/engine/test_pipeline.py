"""pipeline=True: the same results, one thread, errors that surface, and nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_cpu.backend import CpuBackend

import shardcore as sc
from shardcore.engine.pipeline import Inline, Pipeline
from shardcore.errors import ShardcoreRuntimeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig

ROWS = sc.initializers.RowId()
THREAD = "shardcore-pipeline"
BACKENDS = [
    pytest.param({"backend": "cpu"}, id="cpu"),
    pytest.param({"backend": "sim", "backend_options": {"hosts": 3}}, id="sim3"),
]


def threads_of_pipelines():
    return {thread for thread in threading.enumerate() if thread.name == THREAD}


@pytest.fixture(autouse=True)
def threads():
    """Return the pipelines' threads that the test has started; none may be left in the end.

    Engines of earlier tests may have theirs still: those kept for the report of a failure, and
    those that no collection has freed yet.
    """
    before = threads_of_pipelines()

    def of_this_test():
        return threads_of_pipelines() - before

    yield of_this_test
    gc.collect()  # engines that a test did not close
    deadline = time.monotonic() + 10
    while of_this_test() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert of_this_test() == set()


class Gated(CpuBackend):
    """Lookups and updates wait for a permit each, and fail when told to."""

    name = "gated"

    def __init__(self, permits=10**6):
        super().__init__()
        self.permits = threading.Semaphore(permits)
        self.failing = None
        self.done = []

    def _enter(self, call):
        assert self.permits.acquire(timeout=20)
        if self.failing == call:
            self.failing = None
            raise OSError(f"no {call} today")
        self.done.append(call)

    def lookup(self, batches):
        self._enter("lookup")
        return super().lookup(batches)

    def apply(self, updates):
        self._enter("apply")
        super().apply(updates)


def simple(backend="cpu", pipeline=True, learning_rate=1.0, **options):
    table = TableConfig(8, 1, initializer=ROWS, combiner="sum", name="t")
    e = sc.ShardedEmbedding(
        FeatureConfig(table), sc.optimizers.SGD(learning_rate), backend=backend, pipeline=pipeline,
        **options,
    )  # fmt: skip
    e.build()
    return e


def apply_ones(e, n=1):
    return e.apply_gradients(np.ones((n, 1)))


# --- order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
def test_a_lookup_sees_exactly_the_updates_before_its_enqueue(where):
    with simple(**where) as e:
        e.enqueue([[1]])
        e.enqueue([[1]])  # before the update of the first batch: one step old
        assert e.dequeue().tolist() == [[1]]
        apply_ones(e)
        assert e.dequeue().tolist() == [[1]]
        e.enqueue([[1]])  # after the first update, before the second
        apply_ones(e)
        assert e.dequeue().tolist() == [[0]]
        apply_ones(e)
        e.enqueue([[1]])
        assert e.dequeue().tolist() == [[-2]]
        e.apply_gradients(None)
        assert e.step == 3


@pytest.mark.parametrize("where", BACKENDS)
def test_gradients_of_weights_are_those_of_the_rows_before_the_update(where):
    with simple(**where) as e:
        for _ in range(2):
            e.enqueue([[1]], [2.0])
            e.dequeue()
        found = [e.apply_gradients([[1.0]], weight_gradients=True).tolist() for _ in range(2)]
        assert found == [[1.0], [-1.0]]  # the second batch was looked up when the row was 1


def test_enqueue_and_apply_return_before_they_are_done():
    backend = Gated(permits=0)
    with simple(backend) as e:
        e.enqueue([[1]])
        assert backend.done == []
        backend.permits.release()
        assert e.dequeue().tolist() == [[1]]
        apply_ones(e)
        e.enqueue([[1]])
        assert (backend.done, e.step) == (["lookup"], 1)
        backend.permits.release(10)
        assert e.dequeue().tolist() == [[0]]
        assert backend.done == ["lookup", "apply", "lookup"]


def test_two_batches_are_in_flight_at_most():
    with simple() as e:
        e.enqueue([[1]])
        e.enqueue([[2]])
        message = "enqueue came while 2 batches are in flight: the oldest waits for "
        with pytest.raises(ShardcoreRuntimeError, match=f"^{message}dequeue$"):
            e.enqueue([[3]])
        assert e.dequeue().tolist() == [[1]]
        rest = re.escape("apply_gradients (apply_gradients(None) drops it)")
        with pytest.raises(ShardcoreRuntimeError, match=f"^{message}{rest}$"):
            e.enqueue([[3]])
        apply_ones(e)
        with pytest.raises(ShardcoreRuntimeError, match=r"^apply_gradients came before dequeue$"):
            apply_ones(e)
        e.enqueue([[3]])
        assert e.dequeue().tolist() == [[2]]
        assert e.dequeue().tolist() == [[3]]
        with pytest.raises(ShardcoreRuntimeError, match=r"^dequeue came without a batch"):
            e.dequeue()
        apply_ones(e)
        apply_ones(e)
        with pytest.raises(
            ShardcoreRuntimeError, match=r"^apply_gradients came without a training"
        ):
            apply_ones(e)
        assert e.step == 3


def test_a_batch_without_training_beside_one_with():
    with simple() as e:
        e.enqueue([[1]])
        e.enqueue([[2]], training=False)
        assert e.dequeue().tolist() == [[1]]
        assert e.dequeue().tolist() == [[2]]
        e.enqueue([[3]], training=False)
        apply_ones(e)
        with pytest.raises(ShardcoreRuntimeError, match=r"for a batch of training=False$"):
            apply_ones(e)
        assert e.dequeue().tolist() == [[3]]
        assert np.asarray(e.tables["t"])[1] == 0


def make_pair(where):
    """Two engines of equal tables: one pipelined, one that does what it is told at once."""

    def made(pipeline):
        items = TableConfig(40, 5, name="items", layout="mod")
        tags = TableConfig(9, 3, name="tags", combiner="sqrtn")
        config = {
            "a": FeatureConfig(items, invalid_ids="drop"),
            "b": FeatureConfig(items, max_sequence_length=2),
            "c": FeatureConfig(tags),
        }
        rates = iter(np.linspace(0.1, 1, 50).tolist())
        optimizer = sc.optimizers.Adagrad(lambda: next(rates))
        e = sc.ShardedEmbedding(config, optimizer, pipeline=pipeline, seed=5, **where)
        e.build()
        return e

    return made(True), made(False)


def make_batch(rng):
    def bags(rows):
        lengths = rng.integers(0, 6, 7)
        return rng.integers(0, rows, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])

    features = {"a": bags(44), "b": bags(40), "c": bags(9)}
    return features, {"a": rng.normal(size=features["a"][0].size), "b": None, "c": None}


def scribble(features, weights, gradients=None):
    """Use the caller's buffers again, as callers do."""
    for values, row_splits in features.values():
        values[:], row_splits[:] = -7, 3
    weights["a"][:] = np.nan
    for gradient in (gradients or {}).values():
        if gradient is not None:
            gradient[:] = np.nan


@pytest.mark.parametrize("where", BACKENDS)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["enqueue", "dequeue", "apply", "look", "read"]),
                min_size=10, max_size=40),
       st.integers(0, 2**32))  # fmt: skip
def test_any_schedule_gives_what_its_calls_give_one_after_the_other(where, calls, seed):
    rng = np.random.default_rng(seed)
    piped, plain = make_pair(where)
    waiting, dequeued = [], []  # (features, weights, what the plain engine found at enqueue)
    for call in calls:
        if call == "enqueue" and len(waiting) + len(dequeued) < 2:
            features, weights = make_batch(rng)
            kept = ({k: (v.copy(), s.copy()) for k, (v, s) in features.items()},
                    {**weights, "a": weights["a"].copy()})  # fmt: skip
            waiting.append((*kept, plain(*kept)))
            piped.enqueue(features, weights)
            scribble(features, weights)
        elif call == "dequeue" and waiting:
            batch = waiting.pop(0)
            dequeued.append(batch)
            for name, found in piped.dequeue().items():
                assert found.tobytes() == batch[2][name].tobytes()
                found[:] = np.nan  # the caller's now
        elif call == "apply" and dequeued:
            features, weights, found = dequeued.pop(0)
            gradients = {k: rng.normal(size=a.shape).astype(a.dtype) for k, a in found.items()}
            gradients[rng.choice(["a", "b", "c"])] = None
            plain.enqueue(features, weights)
            plain.dequeue()
            plain.apply_gradients(gradients)
            piped.apply_gradients(gradients)
            scribble(features, weights, gradients)
        elif call == "look":
            features, weights = make_batch(rng)
            seen = [e(features, weights) for e in (piped, plain)]
            assert all(seen[0][k].tobytes() == seen[1][k].tobytes() for k in seen[0])
        elif call == "read":
            row = int(rng.integers(40))
            assert np.array_equal(piped.tables["items"][row], plain.tables["items"][row])
            piped.tables["items"][row] = plain.tables["items"][row] = rng.normal(size=5)
    for name in ("items", "tags"):
        assert np.asarray(piped.tables[name]).tobytes() == np.asarray(plain.tables[name]).tobytes()
        slots = [np.asarray(e.slots[name]["accumulators"]).tobytes() for e in (piped, plain)]
        assert slots[0] == slots[1]
    assert piped.step == plain.step
    piped.close()


@pytest.mark.parametrize("where", BACKENDS)
def test_a_training_run_of_both_kinds_is_equal(where):
    results = []
    for e in make_pair(where):
        rng = np.random.default_rng(1)
        seen = []
        for _ in range(12):
            e.enqueue(*make_batch(rng))
            activations = e.dequeue()
            gradients = {name: np.cos(a) for name, a in activations.items()}
            of_weights = e.apply_gradients(gradients, weight_gradients=True)
            seen += [a.tobytes() for a in activations.values()] + [of_weights["a"].tobytes()]
        seen += [np.asarray(t).tobytes() for t in e.tables.values()]
        metrics = e.metrics()
        results.append((seen, e.step, metrics))
        e.close()
    assert results[0] == results[1]


# --- waiting for all of it -------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [
        lambda e, view, slot: view[1].tolist(),
        lambda e, view, slot: np.asarray(view)[1].tolist(),
        lambda e, view, slot: view.shards[0][1].tolist(),
        lambda e, view, slot: e.tables["t"][1].tolist(),
        lambda e, view, slot: next(iter(e.embedding_tables.values()))[1].tolist(),
        lambda e, view, slot: (slot[1] + 9).tolist(),
        lambda e, view, slot: (e.slots["t"]["visits"][1] + 9).tolist(),
        lambda e, view, slot: e([[1]])[0].tolist(),
        lambda e, view, slot: [e.metrics()["steps"] + 9],
        lambda e, view, slot: [e.checkpoint_metadata()["step"] + 9],
        lambda e, view, slot: e.checkpoint_tensors()[0].read(
            e.checkpoint_tensors()[0].boxes[0][1])[1].tolist(),
    ],
)  # fmt: skip
def test_reading_waits_for_the_updates_before_it(read):
    @dataclass(frozen=True, eq=False, repr=False)
    class Slow(sc.Optimizer):
        hyper_names = ()
        slots = (sc.SlotSpec("visits", "row"),)

        def update(self, grad, rows, slots, hyper, step, row_ids):
            time.sleep(0.05)
            return rows + 9, {"visits": slots["visits"] + 1}

    table = TableConfig(8, 1, initializer=ROWS, name="t")
    with sc.ShardedEmbedding(FeatureConfig(table), Slow(), pipeline=True) as e:
        e.build()
        view, slot = e.tables["t"], e.slots["t"]["visits"]
        e.enqueue([[1]])
        e.dequeue()
        apply_ones(e)
        assert read(e, view, slot) == [10]


def test_writing_comes_after_the_updates_before_it():
    backend = Gated()
    with simple(backend) as e:
        view = e.tables["t"]
        e.enqueue([[1]])
        e.dequeue()
        backend.permits = threading.Semaphore(0)
        threading.Timer(0.05, backend.permits.release).start()
        apply_ones(e)
        view[1] = [50]
        assert view[1].tolist() == [50]


def test_saving_and_restoring_wait(tmp_path):
    with simple() as e:
        c = sc.Checkpoint(embedding=e)
        e.enqueue([[1]])
        e.dequeue()
        apply_ones(e)
        path = c.save(tmp_path, step=1)
        e.enqueue([[1]])
        with pytest.raises(ShardcoreRuntimeError, match="restore came while a batch is in flight"):
            c.restore(path)
        e.dequeue()
        apply_ones(e)
        c.restore(path)
        assert (e.step, e.tables["t"][1].tolist()) == (1, [0])
        e.enqueue([[1]])
        assert e.dequeue().tolist() == [[0]]
        apply_ones(e)
        assert (e.step, e.tables["t"][1].tolist()) == (2, [-1])


def test_close_finishes_what_was_asked(threads):
    backend = Gated()
    e = simple(backend)
    e.enqueue([[1]])
    e.dequeue()
    apply_ones(e)
    e.enqueue([[1]])
    e.close()
    assert backend.done == ["lookup", "apply", "lookup"]
    assert threads() == set()
    e.close()
    assert (e.step, e.metrics()["steps"]) == (1, 1)
    with pytest.raises(ShardcoreRuntimeError, match=r"^dequeue came after close"):
        e.dequeue()


def test_the_thread_starts_with_the_first_batch_and_goes_with_the_engine(threads):
    e = simple()
    e([[1]])
    assert threads() == set()
    e.enqueue([[1]])
    assert len(threads()) == 1
    e.dequeue()
    del e  # not closed: the fixture sees the thread end


def test_lookups_of_other_threads_beside_a_pipeline():
    torn, stop = [], threading.Event()
    table = TableConfig(2, 65, initializer=sc.initializers.Zeros(), name="t")
    with sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), pipeline=True) as e:
        e.build()

        def look():
            while not stop.is_set():
                row = e([[1]])[0]
                if (row != row[0]).any():
                    torn.append(row)

        lookers = [threading.Thread(target=look) for _ in range(2)]
        for looker in lookers:
            looker.start()
        for _ in range(60):
            e.enqueue([[1]])
            e.dequeue()
            e.apply_gradients(np.ones((1, 65)))
        stop.set()
        for looker in lookers:
            looker.join()
        assert torn == []
        assert e.tables["t"][1, 0] == -60


def test_learning_rates_are_asked_in_the_thread_of_the_caller():
    asked = []

    def rate():
        asked.append((threading.get_ident(), e.step))
        return 1.0

    with simple(learning_rate=rate) as e:
        for _ in range(3):
            e.enqueue([[1]])
            e.dequeue()
            apply_ones(e)
        assert asked == [(threading.get_ident(), step) for step in range(3)]


def test_an_optimizer_may_read_the_engine_in_the_background():
    @dataclass(frozen=True, eq=False, repr=False)
    class Curious(sc.Optimizer):
        hyper_names = ()

        def update(self, grad, rows, slots, hyper, step, row_ids):
            seen.append(e.metrics()["steps"])
            return rows, {}

    seen = []
    with sc.ShardedEmbedding(FeatureConfig(TableConfig(8, 1)), Curious(), pipeline=True) as e:
        for _ in range(2):
            e.enqueue([[1]])
            e.dequeue()
            apply_ones(e)
    assert seen == [0, 1]


# --- failures --------------------------------------------------------------------------------

AFTER = "failed in the background, and what was called after it was dropped: OSError: no"


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.enqueue([[1]]),
        lambda e: e.dequeue(),
        lambda e: apply_ones(e),
        lambda e: e([[1]]),
        lambda e: e.tables,
        lambda e: e.metrics(),
        lambda e: e.checkpoint_metadata(),
        lambda e: e.checkpoint_restore({}, {}, slots="load"),
    ],
)
def test_a_failure_is_raised_by_the_next_call_with_its_cause(call):
    backend = Gated()
    with simple(backend) as e:
        e.enqueue([[1]])
        e.dequeue()
        backend.failing = "apply"
        apply_ones(e)
        deadline = time.monotonic() + 20
        while e._operations.failure is None and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(ShardcoreRuntimeError, match=f"^apply_gradients {AFTER} apply") as info:
            call(e)
        assert isinstance(info.value.__cause__, OSError)
        try:
            e.enqueue([[2]])  # takes it, if `call` was not one that does
        except ShardcoreRuntimeError:
            e.enqueue([[2]])
        assert e.dequeue().tolist() == [[2]]
        apply_ones(e)
        assert e.step == 1
        np.testing.assert_array_equal(e.tables["t"][:3, 0], [0, 1, 1])


def test_what_comes_after_a_failure_is_dropped():
    backend = Gated()
    with simple(backend) as e:
        e.enqueue([[1]], name="first")
        e.dequeue()
        backend.permits = threading.Semaphore(0)
        backend.failing = "apply"
        e.apply_gradients([[1.0]], name="fatal")
        e.enqueue([[1]], name="second")  # not run
        assert e.step == 1
        backend.permits.release(10)
        with pytest.raises(ShardcoreRuntimeError, match=f"^apply_gradients 'fatal' {AFTER} apply"):
            e.dequeue()
        assert backend.done == ["lookup"]
        assert e.step == 0
        with pytest.raises(ShardcoreRuntimeError, match=r"^dequeue came without a batch"):
            e.dequeue()
        metrics = e.metrics()
        assert (metrics["lookups"], metrics["steps"]) == (1, 0)


def test_a_failing_lookup_is_raised_where_its_batch_is_asked_for():
    backend = Gated()
    with simple(backend) as e:
        backend.failing = "lookup"
        e.enqueue([[1]], name="train")
        with pytest.raises(ShardcoreRuntimeError, match=f"^enqueue 'train' {AFTER} lookup"):
            e.dequeue()
        e.enqueue([[1]])
        assert e.dequeue().tolist() == [[1]]


def test_gradients_of_weights_that_fail_are_raised_at_once():
    backend = Gated()
    with simple(backend) as e:
        e.enqueue([[1]], [2.0])
        e.dequeue()
        backend.failing = "apply"
        with pytest.raises(ShardcoreRuntimeError, match=f"^apply_gradients {AFTER} apply"):
            e.apply_gradients([[1.0]], weight_gradients=True)
        assert e.step == 0


@pytest.mark.parametrize("body", [None, KeyError("of the block")])
def test_a_failure_that_no_call_raised_is_raised_by_close(body, threads):
    backend = Gated()
    e = simple(backend)

    def block():
        with e:
            e.enqueue([[1]])
            e.dequeue()
            backend.failing = "apply"
            apply_ones(e)
            if body is not None:
                raise body

    with pytest.raises((ShardcoreRuntimeError, KeyError)) as info:
        block()
    if body is None:
        assert re.match(f"apply_gradients {AFTER} apply", str(info.value))
    else:  # the error of the block goes first
        assert info.value is body
        assert re.match(f"apply_gradients {AFTER} apply", body.__notes__[0])
    assert threads() == set()
    assert "closed" in repr(e)
    assert e.step == 0
    e.close()


def test_input_and_gradients_are_checked_before_the_call_returns():
    with simple() as e:
        with pytest.raises(sc.ShardcoreError, match=re.escape("ids[0] = 9 is outside table 't'")):
            e.enqueue([[9]])
        e.enqueue([[1]])
        e.dequeue()
        with pytest.raises(ShardcoreValueError, match=re.escape("gradients[0, 0] = nan")):
            e.apply_gradients([[np.nan]])
        apply_ones(e)
        assert (e.step, e.tables["t"][1].tolist()) == (1, [0])


# --- processes -------------------------------------------------------------------------------

_FORK = """
import os, threading
import numpy as np
import shardcore as sc
def make():
    t = sc.TableConfig(4, 1, initializer=sc.initializers.RowId(), name="t")
    return sc.ShardedEmbedding(sc.FeatureConfig(t), sc.optimizers.SGD(1.0), pipeline=True)
def step(e):
    e.enqueue([[1]])
    x = e.dequeue().tolist()
    e.apply_gradients(np.ones((1, 1)))
    return x
used, fresh = make(), make()
fresh.build()
print(step(used), step(used), flush=True)
pid = os.fork()
if pid == 0:
    parent = os.getppid()
    for call in (lambda: step(used), lambda: used([[1]]), lambda: used.tables, used.metrics):
        try:
            call()
        except sc.ShardcoreError as error:
            print(str(error).replace(str(parent), "P").replace(str(os.getpid()), "C"))
    print(threading.active_count(), step(fresh), step(make()))
    fresh.close()
    used.close()
    print(threading.active_count(), flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], step(used))
used.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_told_and_makes_an_engine_of_its_own():
    # Newer Pythons warn of every fork beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    told = (
        "the pipeline of this engine runs in process P, which was forked to make this one, C: "
        "make an engine of its own here"
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "[[1.0]] [[0.0]]"
    assert lines[1:5] == [told] * 4
    assert lines[5] == "1 [[1.0]] [[1.0]]"
    assert lines[6] in ("1", "2")  # the engine that was not closed ends when it is collected
    assert lines[7] == "0 [[-1.0]]"


_SPAWN = """
import multiprocessing, threading
import numpy as np
import shardcore as sc
def run(_):
    t = sc.TableConfig(4, 1, initializer=sc.initializers.RowId(), name="t")
    with sc.ShardedEmbedding(sc.FeatureConfig(t), sc.optimizers.SGD(1.0), pipeline=True) as e:
        e.enqueue([[1]])
        e.dequeue()
        e.apply_gradients(np.ones((1, 1)))
        found = e.tables["t"][1].tolist()
    left = [thread.name for thread in threading.enumerate() if "pipeline" in thread.name]
    return found, left
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(run, range(2)))
"""


@pytest.mark.slow
def test_spawned_processes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_SPAWN)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("[([0.0], []), ([0.0], [])]", "")


def test_the_process_ends_with_a_pipeline_that_nobody_closed():
    program = _SPAWN.split("def run")[0] + (
        "t = sc.TableConfig(4, 1)\n"
        "e = sc.ShardedEmbedding(sc.FeatureConfig(t), sc.optimizers.SGD(1.0), pipeline=True)\n"
        "e.enqueue([[1]])\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# --- the machinery itself --------------------------------------------------------------------


def test_operations_run_in_order_on_one_thread():
    seen, operations = [], Pipeline()
    tickets = [
        operations.submit(str(i), lambda i=i: seen.append((i, threading.get_ident())) or i)
        for i in range(50)
    ]
    assert [operations.result(ticket) for ticket in tickets] == list(range(50))
    assert [i for i, _ in seen] == list(range(50))
    (ident,) = {ident for _, ident in seen}
    assert ident != threading.get_ident()
    assert operations.stop() is None
    operations.stop()


def test_inline_raises_where_it_happens():
    operations = Inline()
    with pytest.raises(OSError, match=r"^now$"):
        operations.submit("a call", lambda: (_ for _ in ()).throw(OSError("now")))
    assert operations.take_failure() is None
    assert operations.stop() is None
