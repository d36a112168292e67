"""The pool of threads: its size, how work is cut, errors, forks, and many callers at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.store.segment_reduce import segment_reduce
from shardcore.threads import team
from shardcore.threads.team import cut, get_num_threads, ranges, run, set_num_threads
from shardcore.threads.work import helper_threads


@pytest.fixture(autouse=True)
def _same_number_afterwards() -> Iterator[None]:
    before = get_num_threads()
    yield
    set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 7, 1024, np.int64(3)])
def test_the_number_of_threads_can_be_set(count: int) -> None:
    set_num_threads(count)
    assert get_num_threads() == count
    assert type(get_num_threads()) is int


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ShardcoreValueError, "n must be an integer >= 1, got 0"),
        (-3, ShardcoreValueError, "n must be an integer >= 1, got -3"),
        (1025, ShardcoreValueError, "n must be at most 1024, got 1025"),
        (True, ShardcoreTypeError, "n must be an integer >= 1, got True"),
        (np.True_, ShardcoreTypeError, "n must be an integer >= 1, got np.True_"),
        (2.0, ShardcoreTypeError, "n must be an integer >= 1, got 2.0"),
        ("2", ShardcoreTypeError, "n must be an integer >= 1, got '2'"),
        (None, ShardcoreTypeError, "n must be an integer >= 1, got None"),
    ],
)
def test_what_is_no_number_of_threads_is_refused(count: Any, error: Any, message: str) -> None:
    set_num_threads(3)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        set_num_threads(count)
    assert get_num_threads() == 3


@pytest.mark.parametrize("text", ["1", "2", "007", "1024"])
def test_the_environment_names_the_default(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_num_threads", None)
    monkeypatch.setenv("SHARDCORE_NUM_THREADS", text)
    assert get_num_threads() == int(text)


@pytest.mark.parametrize("unset", [True, False])
def test_the_default_is_the_cores_of_this_process(
    unset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "_num_threads", None)
    if unset:
        monkeypatch.delenv("SHARDCORE_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("SHARDCORE_NUM_THREADS", "")
    assert get_num_threads() == team.cores_of_process() >= 1


@pytest.mark.parametrize("text", ["0", "-1", "1025", "two", "1.5", " 2", "1_0", "٣", "9" * 5000])
def test_a_default_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_num_threads", None)
    monkeypatch.setenv("SHARDCORE_NUM_THREADS", text)
    message = f"SHARDCORE_NUM_THREADS must be an integer in [1, 1024], got {text!r}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        get_num_threads()
    monkeypatch.setattr(team, "_num_threads", 1)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 200])
def test_every_task_runs_once(number: int, count: int) -> None:
    set_num_threads(number)
    ran: list[int] = []
    run(count, ran.append)
    assert sorted(ran) == list(range(count))


def test_tasks_run_at_the_same_time() -> None:
    set_num_threads(3)
    together = threading.Barrier(3)
    run(3, lambda _: together.wait(30) and None)
    assert not together.broken


@pytest.mark.parametrize("number", [1, 4])
def test_the_error_of_the_lowest_task_is_raised(number: int) -> None:
    set_num_threads(number)

    def task(i: int) -> None:
        if i % 3 == 1:
            raise ValueError(f"task {i}")

    for _ in range(20):
        with pytest.raises(ValueError, match=r"^task 1$"):
            run(40, task)
    ran: list[int] = []
    run(5, ran.append)  # the pool has survived
    assert len(ran) == 5


def test_threads_are_daemons_and_no_more_than_were_asked_for() -> None:
    set_num_threads(4)
    together = threading.Barrier(4)  # else two might do all the work
    run(4, lambda _: together.wait(60))
    ours = [thread for thread in threading.enumerate() if re.match(r"shardcore-\d", thread.name)]
    assert 3 <= len(ours) == helper_threads()
    assert all(thread.daemon for thread in ours)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 0, 1, 10, 30_000, 200_000]), max_size=60),
    first=st.integers(0, 1000),
    cost=st.sampled_from([0, 1, 64]),
    number=st.sampled_from([1, 2, 7]),
)
def test_ranges_cover_all_segments_in_order(
    lengths: list[int], first: int, cost: int, number: int
) -> None:
    set_num_threads(number)
    splits = first + np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    pieces = ranges(splits, cost)
    assert [segment for lo, hi in pieces for segment in range(lo, hi)] == list(range(len(lengths)))
    assert all(lo < hi for lo, hi in pieces)
    assert len(pieces) <= number


def test_large_work_is_cut_evenly_and_small_work_not_at_all() -> None:
    set_num_threads(2)
    assert ranges(np.arange(0, 32 * 100 + 1, 32), cost=64) == [(0, 100)]
    pieces = ranges(np.arange(0, 32 * 1000 + 1, 32), cost=64)
    assert len(pieces) == 2
    assert {hi - lo for lo, hi in pieces} == {500}


class Work:
    """So many elements, cut as kernels cut them."""

    def __init__(self, elements: int) -> None:
        self.elements, self.asked = elements, list[int]()

    def cut(self, most: int, least: int) -> int:
        self.asked.append(max(min(most, self.elements // least), min(self.elements, 1)))
        return self.asked[-1]


@pytest.mark.parametrize(
    ("number", "elements", "shares", "helping"),
    [
        (1, 10_000, [1], 1),
        (2, 0, [0], 0),
        (2, 199, [1], 1),
        (2, 200, [2, 1], 1),
        (2, 399, [3, 1], 1),
        (2, 400, [4], 2),
        (2, 10_000, [16], 2),
        (7, 499, [4], 4),
        (7, 10_000, [56], 7),
    ],
)
def test_work_of_fewer_than_four_shares_is_not_handed_over(
    number: int, elements: int, shares: list[int], helping: int
) -> None:
    set_num_threads(number)
    work = Work(elements)
    assert cut(work, 100) == helping
    assert work.asked == shares


@pytest.mark.parametrize("bags", [4095, 4096])
def test_segments_of_fewer_than_four_pieces_are_one_range(bags: int) -> None:
    set_num_threads(4)
    splits = np.arange(bags + 1) * 3  # of each bag 3 values and itself count as 64 elements
    pieces = ranges(splits, cost=64)
    assert len(pieces) == (4 if bags == 4096 else 1)


def test_eight_threads_share_inputs() -> None:
    set_num_threads(3)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 64)).astype(np.float32)
    splits = np.arange(0, 16_001, 8)
    ids = rng.integers(0, 500, 16_000)
    weights = rng.standard_normal(16_000).astype(np.float32)
    for array in (rows, splits, ids, weights):
        array.flags.writeable = False
    expected = segment_reduce(rows, ids, splits, weights).tobytes()
    assert len(ranges(splits, 64)) > 1
    start, results = threading.Barrier(8), []

    def caller() -> None:
        start.wait(30)
        for _ in range(10):
            results.append(segment_reduce(rows, ids, splits, weights).tobytes())

    callers = [threading.Thread(target=caller, daemon=True) for _ in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert len(results) == 80
    assert set(results) == {expected}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_made_by_fork_builds_a_pool_of_its_own() -> None:
    script = """
import os, threading
import numpy as np
from shardcore.threads import team
from shardcore.store.segment_reduce import segment_reduce
from shardcore.threads.work import helper_threads

team.set_num_threads(2)
rows = np.ones((100, 64), np.float32)
splits = np.arange(0, 20_001, 4)
ids = np.arange(20_000) % 100
assert len(team.ranges(splits, 64)) > 1

def look_up():
    out = segment_reduce(rows, ids, splits)
    assert (out == 4).all()
    assert helper_threads() == 1

look_up()
child = os.fork()
if child == 0:
    assert helper_threads() == 0
    together = threading.Barrier(2)
    team.run(2, lambda _: together.wait(30) and None)  # two threads are really there
    look_up()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
look_up()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)


def test_a_finished_job_keeps_nothing_alive() -> None:
    """Also while no helper has taken it from the queue yet."""
    script = """
import threading, weakref
from shardcore.threads import team
from shardcore.threads.work import helper_threads

team.set_num_threads(2)
inside, go_on = threading.Barrier(3), threading.Event()

def block(number):
    inside.wait(30)
    go_on.wait(30)

blocked = threading.Thread(target=team.run, args=(2, block))
blocked.start()
inside.wait(30)     # the only helper is busy
assert helper_threads() == 1

class Batch:
    pass

batch = Batch()
gone = weakref.ref(batch)
team.run(2, lambda number, batch=batch: None)
del batch
assert gone() is None
go_on.set()
blocked.join(30)
assert not blocked.is_alive()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
