"""Messages lost and late, hosts slow and gone: a clear error or a retry, never a wrong table."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_sim import placement
from shardcore_sim.backend import SimBackend
from shardcore_sim.cost import CostModel
from shardcore_sim.exchange import Exchange, HostLostError, MessageLostError
from shardcore_sim.faults import (
    DelayMessage,
    LoseHost,
    LoseMessage,
    SlowHost,
    as_number,
    random_faults,
)

import shardcore as sc
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.hyperparameters import LearningRate
from shardcore.optimizer.slots import SlotSpec
from shardcore.store import stage_tables

LOOKUP, APPLY = 0, 1  # the calls of a first step


@dataclass(frozen=True, eq=False, repr=False)
class Momentum(Optimizer):
    learning_rate: LearningRate = 0.5
    slots = (SlotSpec("momenta", "element"), SlotSpec("counts", "row", fill=0.5))

    def update(self, grad, rows, slots, hyper, step, row_ids):
        momenta = 0.5 * slots["momenta"] + grad
        new = {"momenta": momenta, "counts": slots["counts"] + 1}
        return rows - hyper[0] * momenta, new


def make_engine(backend, exchange="exact"):
    places = ("row", "table", "column", "replicated")
    tables = [
        TableConfig(40, 6, placement=place, name=place, exchange=exchange) for place in places
    ]
    e = sc.ShardedEmbedding([FeatureConfig(table) for table in tables], Momentum(), backend, seed=1)
    e.build()
    return e


def step(e, seed):
    """Train a step; every way in and out raises what the cluster raises."""
    rng = np.random.default_rng(seed)
    e.enqueue([rng.integers(0, 40, (12, 3)) for _ in range(4)])
    e.dequeue()
    e.apply_gradients([rng.normal(size=(12, 6)) for _ in range(4)])


def contents(e):
    """All tables and slots, read past the backend's calls."""
    return [
        array.tobytes()
        for placement in e._backend._tables.values()
        for store in placement.stores
        for array in (store.rows, *store.slots.values())
    ]


def visible(e):
    arrays = [np.asarray(table) for table in e.tables.values()]
    arrays += [np.asarray(slot) for slots in e.slots.values() for slot in slots.values()]
    return [array.tobytes() for array in arrays]


def trained(backend, seeds=(0, 1, 2)):
    e = make_engine(backend)
    for seed in seeds:
        step(e, seed)
    return e


_expected = {}


def expected():
    if not _expected:
        e = trained(SimBackend(3))
        cpu = trained(sc.get_backend("cpu"))
        assert visible(e) == visible(cpu)
        _expected.update(seen=visible(e), seconds=e._backend.simulated_seconds)
    return _expected["seen"]


def test_a_lost_message_is_sent_again():
    backend = SimBackend(3, faults=[LoseMessage(LOOKUP, 0, 1), LoseMessage(APPLY, 2, 0, 1, 3)])
    e = trained(backend)
    assert visible(e) == expected()
    plain = trained(SimBackend(3))._backend
    more = backend.exchange.messages - plain.exchange.messages
    assert more.tolist() == [[0, 1, 0], [0, 0, 0], [3, 0, 0]]
    events = backend.exchange.events
    assert events == {"lost": 4, "retried": 4, "late": 0, "discarded": 0}
    assert backend.report().faults_pending == ()
    assert backend.simulated_seconds >= plain.simulated_seconds + 4 * 1e-3
    assert e.metrics()["messages_retried"] == 4
    assert "messages 4 lost, 4 retried, 0 late, 0 discarded" in str(backend.report())


def test_a_late_message_is_waited_for_or_sent_again():
    faults = [DelayMessage(LOOKUP, 0, 1, 5e-4), DelayMessage(APPLY, 1, 0, 7.0)]
    backend = SimBackend(3, faults)
    assert visible(trained(backend)) == expected()
    assert backend.exchange.events == {"lost": 0, "retried": 1, "late": 2, "discarded": 1}
    more = backend.simulated_seconds - _expected["seconds"]
    assert 1.4e-3 < more < 1.6e-3  # 0.5 ms, and the timeout of 1 ms: not 7 s


@pytest.mark.parametrize("exchange", ["exact", "partial"])
def test_a_message_lost_for_good_changes_nothing(exchange):
    e = make_engine(SimBackend(3, [LoseMessage(APPLY, 1, 2, 0, times=4)]), exchange)
    before = contents(e)
    message = (
        "message 0 from host 1 to host 2 in call 1 (apply, table 'row') did not arrive in time, "
        "4 times; no row was changed, the call can be made again"
    )
    with pytest.raises(MessageLostError, match=re.escape(message)) as info:
        step(e, 0)
    assert isinstance(info.value, ShardcoreRuntimeError)
    assert contents(e) == before
    assert e.step == 0
    assert e._backend.exchange.events["lost"] == 4
    rng = np.random.default_rng(0)
    [rng.integers(0, 40, (12, 3)) for _ in range(4)]
    e.apply_gradients([rng.normal(size=(12, 6)) for _ in range(4)])  # the batch still waits
    step(e, 1)
    step(e, 2)
    assert e.step == 3
    assert visible(e) == expected()


def test_without_retries_a_late_message_is_lost():
    e = make_engine(SimBackend(3, [DelayMessage(LOOKUP, 0, 2, 0.002)], retries=0))
    with pytest.raises(MessageLostError, match="did not arrive in time, 1 times"):
        step(e, 0)
    assert e._backend.exchange.events == {"lost": 0, "retried": 0, "late": 1, "discarded": 1}
    for seed in range(3):
        step(e, seed)
    assert visible(e) == expected()


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("link", [(0, 1), (2, 1)])
def test_whichever_message_is_lost_nothing_is_half_done(link, number):
    """Every message of an apply, up to the last: the step is not done, then done as a whole."""
    e = make_engine(SimBackend(3, [LoseMessage(APPLY, *link, number)], retries=0))
    before = contents(e)
    try:
        step(e, 0)
    except MessageLostError:
        assert contents(e) == before
        e.apply_gradients(None)
        step(e, 0)
    else:  # the apply has not so many messages
        assert len(e._backend.report().faults_pending) == 1
        assert number == 9
    step(e, 1)
    step(e, 2)
    assert visible(e) == expected()


def test_slow_hosts_cost_time_only():
    slow = SimBackend(3, [SlowHost(1, 3.0), SlowHost(1, 2.0, first_call=2, last_call=3)])
    e = trained(slow, seeds=(0,))
    first = slow.simulated_seconds
    plain = trained(SimBackend(3), seeds=(0,))._backend.simulated_seconds
    assert plain < first <= 3 * plain
    step(e, 1)
    step(e, 2)
    second = slow.simulated_seconds - first
    assert second > first  # two steps, one of them six times slower
    assert visible(e) == expected()
    np.testing.assert_array_equal(slow.exchange.slowness(2), [1, 6, 1])
    np.testing.assert_array_equal(slow.exchange.slowness(4), [1, 3, 1])


def assert_broken(e, why):
    message = f"the cluster is broken until a checkpoint is restored: {why}"
    backend = e._backend
    for call in (
        lambda: e([[[0]]] * 4),
        lambda: step(e, 5),
        lambda: np.asarray(e.tables["row"]),
        lambda: backend.scatter("row", None, np.array([1]), np.zeros((1, 6), np.float32)),
        lambda: backend.create_table(dataclasses.replace(backend.specs["row"], name="new")),
    ):
        with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
            call()
    assert backend.report().broken == why
    assert f"broken: {why}" in str(backend.report())


def test_a_host_lost_before_the_commit_breaks_the_cluster():
    e = make_engine(SimBackend(3, [LoseHost(2, APPLY, message=4)]))
    before = contents(e)
    why = "host 2 was lost in call 1 (apply), before any host changed a row"
    with pytest.raises(HostLostError, match=re.escape(why)):
        step(e, 0)
    assert contents(e) == before
    assert e._backend.exchange.by_table["row"][0] > 0
    e.apply_gradients(None)
    assert_broken(e, why)
    e.close()


@pytest.mark.parametrize(("host", "changed"), [(0, "none"), (2, "0, 1")])
def test_a_host_lost_in_the_commit_breaks_the_cluster(host, changed):
    e = make_engine(SimBackend(3, [LoseHost(host, APPLY, "commit")]))
    before = contents(e)
    why = (
        f"host {host} was lost in call 1 (apply) while hosts changed their rows; "
        f"those that had: {changed}"
    )
    with pytest.raises(HostLostError, match=re.escape(why)):
        step(e, 0)
    assert (contents(e) == before) == (host == 0)
    assert e.step == 0
    e.apply_gradients(None)
    assert_broken(e, why)


def test_a_lookup_can_lose_a_host():
    e = make_engine(SimBackend(3, [LoseHost(1, 2)]))
    step(e, 0)
    why = "host 1 was lost in call 2 (lookup), before any host changed a row"
    with pytest.raises(HostLostError, match=re.escape(why)):
        e([[[0, 1], [2, 39]]] * 4)
    assert_broken(e, why)


def test_a_commit_that_fails_breaks_the_cluster(monkeypatch):
    e = make_engine(SimBackend(3))
    store = e._backend._tables["row"].stores[1]

    def failing():
        raise MemoryError

    def staged(stores, updates):
        change = stage_tables(stores, updates)
        return failing if stores == [store] else change

    monkeypatch.setattr(placement, "stage_tables", staged)
    with pytest.raises(MemoryError):
        step(e, 0)
    e.apply_gradients(None)
    assert_broken(e, "MemoryError while hosts changed their rows")


@dataclass(frozen=True, eq=False, repr=False)
class FailsOnHighRows(Momentum):
    def update(self, grad, rows, slots, hyper, step, row_ids):
        if (row_ids > 30).any():
            raise ZeroDivisionError
        return super().update(grad, rows, slots, hyper, step, row_ids)


def test_an_optimizer_that_fails_on_one_host_changes_none():
    table = TableConfig(40, 6, name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), FailsOnHighRows(), SimBackend(3))
    e.enqueue([[1], [20], [39]])
    e.dequeue()
    before = contents(e)
    with pytest.raises(ZeroDivisionError):
        e.apply_gradients(np.ones((3, 6)))
    assert contents(e) == before
    e([[1]])


# --- recovery ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [3, 1, 5])
def test_recovery_onto_other_hosts(tmp_path, hosts):
    """A cluster of 4 loses a host; 3 restore its last checkpoint and go on as if nothing was."""
    broken = make_engine(SimBackend(4, [LoseHost(3, 5, "commit")]))
    for seed in range(2):
        step(broken, seed)
    sc.Checkpoint(embedding=broken).save(tmp_path, step=2)
    with pytest.raises(HostLostError):
        step(broken, 2)
    with pytest.raises(ShardcoreRuntimeError, match="the cluster is broken"):
        sc.Checkpoint(embedding=broken).save(tmp_path, step=3)
    broken.close()
    assert sc.checkpoint.latest(tmp_path) == tmp_path / "step-00000002"
    e = make_engine(SimBackend(hosts))
    assert sc.Checkpoint(embedding=e).restore(tmp_path) == 2
    step(e, 2)
    assert visible(e) == expected()


def test_a_restore_makes_a_broken_engine_whole(tmp_path):
    """Its lost host replaced, the very engine that broke takes the checkpoint and goes on."""
    e = make_engine(SimBackend(4, [LoseHost(3, 5, "commit")]))
    for seed in range(2):
        step(e, seed)
    checkpoint = sc.Checkpoint(embedding=e)
    checkpoint.save(tmp_path, step=2)
    with pytest.raises(HostLostError):
        step(e, 2)
    e.apply_gradients(None)
    assert checkpoint.restore(tmp_path) == 2
    step(e, 2)
    assert visible(e) == expected()


@pytest.mark.parametrize("messages", [0, 1, 4])
def test_a_host_is_lost_after_as_many_messages_as_told(messages):
    links = Exchange(2, faults=[LoseHost(1, 0, message=messages)])
    with links.call("lookup") as call:
        for _ in range(messages):
            call.send(np.zeros(3), 0, 1, "t")
        with pytest.raises(HostLostError, match="host 1 was lost in call 0"):
            call.send(np.zeros(3), 0, 1, "t")
    assert links.messages.sum() == messages


def test_a_broken_cluster_is_whole_after_every_row_was_written():
    backend = SimBackend(3, [LoseHost(1, 3, "commit")])
    e = make_engine(backend)
    step(e, 0)
    saved = {
        (table, slot): np.array(backend.read(table, slot, 0, 40))
        for table in backend.specs
        for slot in (None, "momenta", "counts")
    }
    with pytest.raises(HostLostError):
        step(e, 1)
    e.apply_gradients(None)
    message = "the restore is not complete: row 7 of slot 'counts' of 'column' was not written"

    def write_all_but_one():
        with backend.restoring():
            for (table, slot), values in saved.items():
                if (table, slot) != ("column", "counts"):
                    backend.write(table, slot, 0, values)
            backend.write("column", "counts", 0, saved["column", "counts"][:7])
            backend.write("column", "counts", 8, saved["column", "counts"][8:])

    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        write_all_but_one()
    with pytest.raises(ShardcoreRuntimeError, match="the cluster is broken"):
        e([[[1]]] * 4)
    with pytest.raises(ShardcoreRuntimeError, match="the cluster is broken"):
        backend.write("column", "counts", 7, saved["column", "counts"][7:8])
    with backend.restoring():
        for (table, slot), values in saved.items():
            backend.write(table, slot, 0, values)
    assert backend.report().broken is None
    step(e, 1)
    step(e, 2)
    assert visible(e) == expected()


def test_a_restore_of_no_row_says_which():
    backend = SimBackend(2, [LoseHost(0, LOOKUP)])
    e = make_engine(backend)
    with pytest.raises(HostLostError):
        e([[[0]], [[39]]] * 2)
    with (
        pytest.raises(ShardcoreRuntimeError, match=re.escape("row 0 of table 'row' was not")),
        backend.restoring(),
    ):
        pass


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
def test_a_restore_that_fails_leaves_the_cluster_as_it_was(broken):
    """Where it is broken, writes are refused again, and a lost host is reported as before."""
    backend = SimBackend(2, [LoseHost(0, LOOKUP)] if broken else [])
    e = make_engine(backend)
    if broken:
        with pytest.raises(HostLostError):
            e([[[0]], [[39]]] * 2)
    row, ones = np.array([1]), np.ones((1, 6), np.float32)

    def fail():
        with backend.restoring():
            backend.scatter("row", None, row, ones)
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        fail()
    assert (backend.report().broken is not None) is broken
    if broken:
        with pytest.raises(ShardcoreRuntimeError, match="the cluster is broken"):
            backend.scatter("row", None, row, ones)
        with pytest.raises(ShardcoreRuntimeError, match="the cluster is broken"):
            e([[[1]], [[2]]] * 2)
    else:
        backend.scatter("row", None, row, ones)
        assert e.tables["row"][1].tolist() == [1.0] * 6


def test_restoring_a_whole_cluster_needs_nothing():
    e = trained(SimBackend(3))
    with e._backend.restoring():
        pass
    assert visible(e) == expected()


# --- scripts -------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_no_random_script_gives_another_table(seed):
    faults = random_faults(seed, calls=8, hosts=3, lose=0.2, delay=0.2, slow=0.5)
    backend = SimBackend(3, faults, retries=seed % 2)
    e = make_engine(backend)
    for number in range(3):
        while True:
            try:
                step(e, number)
            except MessageLostError:
                with contextlib.suppress(ShardcoreRuntimeError):  # no batch: it was the lookup
                    e.apply_gradients(None)
            else:
                break
    assert visible(e) == expected()


def test_random_scripts_are_reproducible():
    one, same, other = (random_faults(seed, 50, 4, slow=0.5) for seed in (7, 7, 8))
    assert one == same != other
    kinds = {type(fault) for fault in random_faults(0, 200, 4, slow=0.9)}
    assert kinds == {LoseMessage, DelayMessage, SlowHost}
    assert random_faults(0, 50, 4, lose=0, delay=0, slow=0) == ()
    assert all(fault.source != fault.target for fault in random_faults(1, 99, 2, slow=0))


def test_the_same_script_gives_the_same_clock_and_counts():
    faults = random_faults(3, calls=6, hosts=3, lose=0.1, delay=0.1)
    runs = [trained(SimBackend(3, faults)).metrics() for _ in range(2)]
    assert runs[0] == runs[1]


INTEGER = "must be an integer >= 0, got"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LoseMessage(-1, 0, 1), ShardcoreValueError, f"call of LoseMessage {INTEGER} -1"),
        (lambda: LoseMessage(0, 1.0, 1), ShardcoreTypeError,
         f"source of LoseMessage {INTEGER} 1.0"),
        (lambda: LoseMessage(0, 0, True), ShardcoreTypeError,
         f"target of LoseMessage {INTEGER} True"),
        (lambda: LoseMessage(0, 0, 1, -2), ShardcoreValueError,
         f"message of LoseMessage {INTEGER} -2"),
        (lambda: LoseMessage(0, 0, 1, 0, 0), ShardcoreValueError,
         "times of LoseMessage must be an integer >= 1, got 0"),
        (lambda: DelayMessage(0, 0, 1, -0.5), ShardcoreValueError,
         "seconds of DelayMessage must be a finite number >= 0, got -0.5"),
        (lambda: DelayMessage(0, 0, 1, float("nan")), ShardcoreValueError,
         "seconds of DelayMessage must be a finite number >= 0, got nan"),
        (lambda: DelayMessage(0, 0, 1, "1"), ShardcoreTypeError,
         "seconds of DelayMessage must be a finite number >= 0, got '1'"),
        (lambda: SlowHost(0, 0.5), ShardcoreValueError,
         "factor of SlowHost must be a finite number >= 1, got 0.5"),
        (lambda: SlowHost(0, 2, 5, 4), ShardcoreValueError,
         "last_call of SlowHost must be an integer >= 5, got 4"),
        (lambda: LoseHost(0, 0, "later"), ShardcoreValueError,
         "phase of LoseHost must be 'exchange' or 'commit', got 'later'"),
        (lambda: SimBackend(2, faults="x"), ShardcoreTypeError,
         "faults must be a sequence of fault records, got 'x'"),
        (lambda: SimBackend(2, faults=[3]), ShardcoreTypeError,
         "faults[0] must be LoseMessage, DelayMessage, SlowHost or LoseHost, got 3"),
        (lambda: SimBackend(2, faults=[SlowHost(0, 2), LoseHost(2, 0)]), ShardcoreValueError,
         "faults[1].host must be in [0, 2), the hosts there are, got 2"),
        (lambda: SimBackend(2, faults=[LoseMessage(0, 1, 5)]), ShardcoreValueError,
         "faults[0].target must be in [0, 2), the hosts there are, got 5"),
        (lambda: SimBackend(2, faults=[DelayMessage(0, 1, 1, 2)]), ShardcoreValueError,
         "faults[0] must have two different hosts as source and target, got host 1 for both"),
        (lambda: SimBackend(2, retries=-1), ShardcoreValueError,
         "retries must be an integer >= 0, got -1"),
        (lambda: SimBackend(2, timeout=-1), ShardcoreValueError,
         "timeout must be a finite number >= 0, got -1"),
        (lambda: SimBackend(2, cost=3), ShardcoreTypeError,
         "cost must be a CostModel or None, got 3"),
        (lambda: random_faults(-1, 1, 1), ShardcoreValueError,
         "seed must be an integer >= 0, got -1"),
        (lambda: random_faults(0, 0, 1), ShardcoreValueError,
         "calls must be an integer >= 1, got 0"),
        (lambda: random_faults(0, 1, 0), ShardcoreValueError,
         "hosts must be an integer >= 1, got 0"),
        (lambda: random_faults(0, 1, 1, lose=1), ShardcoreValueError,
         "lose must be a number in [0, 1), got 1"),
        (lambda: random_faults(0, 1, 1, slow=True), ShardcoreTypeError,
         "slow must be a number in [0, 1), got True"),
        (lambda: random_faults(0, 1, 1, mean_delay=-1), ShardcoreValueError,
         "mean_delay must be a finite number >= 0, got -1"),
    ],
)  # fmt: skip
def test_messages(make, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make()


def test_options_arrive_by_name():
    cost = CostModel(latency=1.0)
    backend = sc.get_backend("sim", hosts=3, faults=[SlowHost(2, 2)], cost=cost, retries=5,
                             timeout=0.5)  # fmt: skip
    links = backend.exchange
    assert (links.hosts, links.cost, links.retries, links.timeout) == (3, cost, 5, 0.5)
    assert links.slowness(0).tolist() == [1, 1, 2]
    assert as_number(np.float32(2), "x") == 2.0
