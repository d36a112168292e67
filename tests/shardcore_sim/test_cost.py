"""The simulated clock: what a call costs, counted by hand; what a machine measures of itself."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shardcore_sim.backend import SimBackend
from shardcore_sim.cost import CostModel, calibrate
from shardcore_sim.exchange import Exchange
from shardcore_sim.faults import DelayMessage, LoseMessage, SlowHost

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig

FREE = {"latency": 0.0, "bandwidth": 1e30, "row_latency": 0.0, "memory_bandwidth": 1e30,
        "sort_seconds": 0.0}  # fmt: skip


def test_a_message_costs_its_sender_and_its_receiver():
    links = Exchange(3, CostModel(latency=1.0, bandwidth=4.0))
    with links.call("test") as call:
        call.send(np.zeros(1), 0, 1, "t")  # 8 bytes: 1 + 2 seconds
        call.send(np.zeros(2), 0, 2, "t")  # 16 bytes: 1 + 4
        call.send(np.zeros(1), 2, 1, "t")
        assert call.seconds == 8  # host 0 sends 3 + 5; host 1 receives 3 + 3 meanwhile
        call.send(np.zeros(3), 1, 2, "t", stage=1)
        assert call.seconds == 8 + 7
    assert links.seconds == 15
    with links.call("test") as call:
        call.send(np.zeros(1), 1, 1, "t")
    assert links.seconds == 15


def test_hosts_compute_side_by_side_before_they_send():
    links = Exchange(2, CostModel(latency=1.0, bandwidth=8.0))
    with links.call("test") as call:
        call.work(0, 3.0)
        call.work(1, 4.0)
        call.work(1, 0.5)
        call.send(np.zeros(1), 0, 1, "t")
        call.work(0, 10.0, stage=2)
    assert links.seconds == 4.5 + 2 + 10


def test_a_slow_host_computes_and_sends_slowly():
    links = Exchange(2, CostModel(latency=1.0, bandwidth=8.0), [SlowHost(1, 3.0)])
    with links.call("test") as call:
        call.work(0, 2.0)
        call.work(1, 1.0)
        call.send(np.zeros(1), 0, 1, "t")
    assert links.seconds == 3 + 6


def test_waiting_for_messages_takes_the_receiver_s_time():
    faults = [LoseMessage(0, 0, 1, times=2), DelayMessage(1, 0, 1, 0.25), DelayMessage(2, 0, 1, 9)]
    links = Exchange(2, CostModel(latency=1.0, bandwidth=8.0), faults, retries=2, timeout=0.5)
    seconds = []
    for _ in range(4):
        with links.call("test") as call:
            call.send(np.zeros(1), 0, 1, "t")
        seconds.append(call.seconds)
    assert seconds == [3 * 2 + 2 * 0.5, 2 + 0.25, 2 * 2 + 0.5, 2]
    assert links.seconds == sum(seconds)


def seconds_of(cost, placement="row", exchange="exact"):
    """A lookup and an apply of 2 hosts, in seconds each."""
    table = TableConfig(6, 2, placement=placement, exchange=exchange, name="t")
    backend = SimBackend(2, cost=CostModel(**{**FREE, **cost}))
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.Adagrad(1.0), backend)
    e.enqueue([[0, 3, 3], [1], [5, 4], [0, 5]])
    e.dequeue()
    looked = backend.simulated_seconds
    e.apply_gradients(np.ones((4, 2)))
    return looked, backend.simulated_seconds - looked


def test_a_step_in_messages_of_one_second():
    # Requests and two messages of namings each way in the first stage; rows in the second.
    assert seconds_of({"latency": 1.0}) == (3 + 1, 1)
    # Ids, splits, two more of which none need be told again; sums.
    assert seconds_of({"latency": 1.0}, exchange="partial") == (2 + 1, 1)
    # Gradients; ids; columns of rows and of a slot; the same back.
    assert seconds_of({"latency": 1.0}, "column") == (1 + 2 + 1, 1 + 1 + 2 + 2)
    assert seconds_of({"latency": 1.0}, "replicated") == (2, 1)


def test_a_step_in_bytes():
    looked, applied = seconds_of({"bandwidth": 1.0})
    # First stage: host 0 sends an id (8) and two namings (24); second: a row (8). Then a gradient.
    assert (looked, applied) == (pytest.approx(32 + 8), pytest.approx(8))


def test_a_step_in_rows():
    # Each host reads 3 rows for others and itself, then combines 4 ids' rows. Update: host 1 reads
    # 5 gradients and reads and writes 3 rows.
    assert seconds_of({"row_latency": 1.0}) == (3 + 4, 5 + 2 * 3)
    looked, applied = seconds_of({"memory_bandwidth": 1.0})
    # 8 bytes a row, as much of a slot.
    assert looked == pytest.approx(8 * 7)
    assert applied == pytest.approx(5 * 8 + 2 * 3 * 16)


def test_a_step_in_sorted_ids():
    # Each host sorts 4 ids; host 0 then 3 namings of its rows, host 1 five.
    assert seconds_of({"sort_seconds": 1.0}) == (4 + 5, 0)


def test_one_host_sends_nothing():
    backend = SimBackend(1, cost=CostModel(**{**FREE, "latency": 1.0}))
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(6, 2)), sc.optimizers.SGD(), backend)
    e.enqueue([[1, 2]])
    e.apply_gradients(e.dequeue())
    assert backend.simulated_seconds == pytest.approx(0, abs=1e-20)
    assert e.metrics()["simulated_nanoseconds"] == 0


def test_what_things_cost():
    cost = CostModel(latency=2.0, bandwidth=4.0, row_latency=3.0, memory_bandwidth=2.0,
                     sort_seconds=0.5)  # fmt: skip
    assert cost.message_seconds(3, 8) == 6 + 2
    assert cost.row_seconds(2, 10) == 6 + 5
    assert cost.id_seconds(5) == 2.5


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"latency": -1}, ShardcoreValueError,
         "latency of CostModel must be a finite number >= 0, got -1"),
        ({"row_latency": "1"}, ShardcoreTypeError,
         "row_latency of CostModel must be a finite number >= 0, got '1'"),
        ({"sort_seconds": float("inf")}, ShardcoreValueError,
         "sort_seconds of CostModel must be a finite number >= 0, got inf"),
        ({"bandwidth": 0}, ShardcoreValueError,
         "bandwidth of CostModel must be a finite number >= 1, got 0"),
        ({"memory_bandwidth": True}, ShardcoreTypeError,
         "memory_bandwidth of CostModel must be a finite number >= 1, got True"),
        ({"memory": 0}, ShardcoreValueError,
         "memory of CostModel must be an integer >= 1, got 0"),
        ({"memory": 1.5}, ShardcoreTypeError,
         "memory of CostModel must be an integer >= 1, got 1.5"),
    ],
)  # fmt: skip
def test_messages(options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        CostModel(**options)


def test_a_machine_measures_itself():
    base = CostModel(latency=7.0, bandwidth=11.0, memory=13)
    cost = calibrate(base, table_bytes=1 << 22)
    assert (cost.latency, cost.bandwidth, cost.memory) == (7.0, 11.0, 13)
    assert 1e8 < cost.memory_bandwidth < 1e13
    assert 0 <= cost.row_latency < 1e-5
    assert 1e-10 < cost.sort_seconds < 1e-5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: calibrate(3), ShardcoreTypeError, "cost must be a CostModel or None, got 3"),
        (lambda: calibrate(table_bytes=1000), ShardcoreValueError,
         "table_bytes must be an integer >= 65536, got 1000"),
    ],
)  # fmt: skip
def test_messages_of_calibrate(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()
