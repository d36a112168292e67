"""The companion: it does half of small work while such work comes often, and sleeps else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.sharding import Layout
from shardcore.store.given_bags import DIVIDED, CombineGiven, given_bags_of
from shardcore.store.lookups import Lookups
from shardcore.store.stored_rows import StoredRows
from shardcore.threads import companion, team

SOON = 30.0
BAGS, IDS, DIM = 64, 32, 64
MANY = 600  # bags that are worth to wake it

shared = pytest.mark.skipif(
    team.cores_of_process() < 2, reason="the caller ends before a companion on its core begins"
)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = sc.get_num_threads()
    sc.set_num_threads(2)
    yield
    sc.set_num_threads(before)


def until_shared(look_up: Callable[[], bool]) -> None:
    """Look up, correctly, until the companion has done its part once more."""
    before, end = companion.parts_done(), time.monotonic() + SOON
    while companion.parts_done() == before:
        assert look_up()
        assert time.monotonic() < end, "no companion came"


class Lookup:
    """A lookup of bags of 32 ids, on average, in 1,000 rows, and what it gives."""

    def __init__(
        self,
        seed: int = 1,
        shards: int = 1,
        dtype: type[np.integer[Any]] = np.int64,
        bags: int = BAGS,
    ):
        rng = np.random.default_rng(seed)
        rows = rng.integers(-9, 9, (1000, DIM)).astype(np.float32)  # the sums are exact
        layout = Layout.mod(len(rows), shards)
        combine = given_bags_of([rows[layout.global_rows(s)] for s in range(shards)], layout)
        assert combine is not None
        self.combine: CombineGiven = combine
        self.bags = bags
        self.ids = rng.integers(0, len(rows), bags * IDS).astype(dtype)
        lengths = rng.multinomial(bags * IDS, rng.dirichlet(np.ones(bags)))
        self.row_splits = np.concatenate(([0], np.cumsum(lengths)))
        sums = [rows[bag].sum(0) for bag in np.split(self.ids, self.row_splits[1:-1])]
        self.wanted = np.array(sums, np.float32)

    def __call__(self) -> bool:
        """Look up once; return whether it was done, and is right."""
        out = np.full((self.bags, DIM), 7, np.float32)
        done = self.combine(self.ids, self.row_splits, None, DIVIDED["sum"], out)
        return done and bool((out == self.wanted).all())

    def until_shared(self) -> None:
        """Look up until the companion has done its part once more."""
        out = np.empty((self.bags, DIM), np.float32)
        until_shared(lambda: self.combine(self.ids, self.row_splits, None, DIVIDED["sum"], out))


@shared
@pytest.mark.parametrize(("shards", "bags"), [(1, BAGS), (3, BAGS), (1, MANY)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_work_that_comes_often_is_shared(
    shards: int, bags: int, dtype: type[np.integer[Any]]
) -> None:
    look_up = Lookup(shards=shards, dtype=dtype, bags=bags)
    for _ in range(20):
        look_up.until_shared()
        assert all(look_up() for _ in range(20))


@shared
@pytest.mark.parametrize("position", [0.0, 0.001, 0.5, 1.0])
@pytest.mark.parametrize("bad", [-1, 1000])
@pytest.mark.parametrize(("shards", "bags"), [(1, BAGS), (3, BAGS), (1, MANY)])
def test_a_bad_id_is_found_in_either_half(
    position: float, bad: int, shards: int, bags: int
) -> None:
    look_up = Lookup(shards=shards, bags=bags)
    wrong, out = look_up.ids.copy(), np.empty((bags, DIM), np.float32)
    wrong[int(position * (wrong.size - 1))] = bad
    for _ in range(5):
        look_up.until_shared()
        for _ in range(20):
            assert not look_up.combine(wrong, look_up.row_splits, None, DIVIDED["sum"], out)
        assert look_up()


@shared
@pytest.mark.parametrize("bags", [BAGS, MANY])
def test_one_thread_works_alone(bags: int) -> None:
    look_up = Lookup(bags=bags)
    look_up.until_shared()
    sc.set_num_threads(1)
    before = companion.parts_done()
    assert all(look_up() for _ in range(300))
    assert companion.parts_done() == before
    sc.set_num_threads(2)
    look_up.until_shared()


@shared
@pytest.mark.parametrize("lengths", [[BAGS * IDS], [0, BAGS * IDS], [2, 2], [63, 64], [60] * 4])
def test_one_bag_and_little_work_are_not_shared(lengths: list[int]) -> None:
    look_up = Lookup()
    look_up.until_shared()
    before, n = companion.parts_done(), sum(lengths)
    row_splits = np.concatenate(([0], np.cumsum(lengths)))
    out = np.empty((len(lengths), DIM), np.float32)
    for _ in range(300):
        assert look_up.combine(look_up.ids[:n], row_splits, None, DIVIDED["sum"], out)
    assert companion.parts_done() == before


N = 2048


@pytest.mark.parametrize(
    "lengths",
    [[N, 0], [0, N, 0, 0], [N - 1, 1], [1, N - 1], [1, N - 2, 1], [1] * N, [0] * 9 + [9, N - 9]],
)
def test_work_is_cut_between_bags_of_any_lengths(lengths: list[int]) -> None:
    rows = np.arange(64, dtype=np.float32).reshape(4, 16)
    combine = given_bags_of([rows], None)
    assert combine is not None
    ids = np.arange(N) % 4
    row_splits = np.concatenate(([0], np.cumsum(lengths)))
    wanted = np.array([rows[bag].sum(0) for bag in np.split(ids, row_splits[1:-1])])
    for _ in range(50):
        out = np.full((len(lengths), 16), 7, np.float32)
        assert combine(ids, row_splits, None, DIVIDED["sum"], out)
        np.testing.assert_array_equal(out, wanted)


class ManyBags:
    """A lookup of many bags of 16 columns, in two tables, and what it gives."""

    def __init__(self, bags: int) -> None:
        rng = np.random.default_rng(bags)
        self.tables = [rng.integers(-9, 9, (1000, 16)).astype(np.float32) for _ in range(2)]
        self.ids = rng.integers(0, 1000, bags * IDS)
        self.row_splits = np.arange(0, bags * IDS + 1, IDS)
        self.wanted = [t[self.ids].reshape(bags, IDS, 16).sum(1) for t in self.tables]
        self.outs = [np.empty_like(wanted) for wanted in self.wanted]

    def __call__(self, ids: np.ndarray[Any, Any] | None = None) -> bool:
        lookups = Lookups()
        for table, out in zip(self.tables, self.outs, strict=True):
            taken = self.ids if ids is None else ids
            lookups.add(StoredRows(table, {}), taken, self.row_splits, None, None, out)
        return lookups.make()

    def until_shared(self) -> None:
        until_shared(self)


@shared
@pytest.mark.parametrize("bags", [64, 300, 2000])  # little; as little; work for the pool, if seldom
def test_lookups_in_tables_are_shared(bags: int) -> None:
    look_up = ManyBags(bags)
    for _ in range(10):
        look_up.until_shared()
        for out, wanted in zip(look_up.outs, look_up.wanted, strict=True):
            np.testing.assert_array_equal(out, wanted)
            out[:] = 7
        for bad in (0, bags * IDS // 2, -1):
            ids = look_up.ids.copy()
            ids[bad] = 1000
            assert not any(look_up(ids) for _ in range(20))  # in either thread's share


both_ways = pytest.mark.parametrize(
    "lookup", [lambda: ManyBags(2000), lambda: Lookup(bags=MANY)], ids=["tables", "given bags"]
)


@shared
@both_ways
def test_work_for_the_pool_that_comes_seldom_is_the_pools(lookup: Callable[[], Any]) -> None:
    look_up = lookup()
    look_up.until_shared()
    before = companion.parts_done()
    for _ in range(20):
        time.sleep(0.005)
        assert look_up()
    assert companion.parts_done() - before < 5  # 0, unless this machine left it no time to sleep


@shared
@both_ways
def test_three_threads_are_of_the_pool(lookup: Callable[[], Any]) -> None:
    look_up = lookup()
    look_up.until_shared()
    sc.set_num_threads(3)
    before = companion.parts_done()
    for _ in range(20):
        assert look_up()
    assert companion.parts_done() == before


def test_shares_of_a_call_are_made_by_the_threads_of_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sc.set_num_threads(3)
    look_up, made = Lookup(bags=2 * MANY), []

    def run(count: int, task: Callable[[int], None]) -> None:
        made.append(count)
        before(count, task)

    before = team.run
    monkeypatch.setattr(team, "run", run)
    assert look_up()
    assert made == [3]
    wrong, out = look_up.ids.copy(), np.empty((look_up.bags, DIM), np.float32)
    for position in (0, wrong.size // 2, -1):
        kept, wrong[position] = wrong[position], 1000
        assert not look_up.combine(wrong, look_up.row_splits, None, DIVIDED["sum"], out)
        wrong[position] = kept


def test_a_call_ends_as_its_pool_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised while the pool works is raised, and the call's arrays are let go."""
    sc.set_num_threads(3)
    look_up = Lookup(bags=MANY)

    def run(count: int, task: Callable[[int], None]) -> None:
        task(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(team, "run", run)
    arrays = look_up.ids, look_up.row_splits
    before = [sys.getrefcount(array) for array in arrays]
    with pytest.raises(KeyboardInterrupt):
        look_up()
    assert [sys.getrefcount(array) for array in arrays] == before
    monkeypatch.undo()
    assert look_up()


@shared
def test_it_looks_no_longer_where_the_pool_works() -> None:
    look_up = Lookup()
    out = np.empty((BAGS, DIM), np.float32)
    taken = 0
    for _ in range(50):
        look_up.until_shared()
        team.run(2, lambda number: None)
        before = companion.parts_done()
        look_up.combine(look_up.ids, look_up.row_splits, None, DIVIDED["sum"], out)
        taken += companion.parts_done() - before
    assert taken < 25  # most of 50 if it still looked


@shared
def test_many_callers_are_each_given_their_own_sums() -> None:
    stop, wrong = threading.Event(), []

    def call(seed: int) -> None:
        look_up = Lookup(seed, shards=1 + seed % 2)
        while not stop.is_set():
            if not look_up():
                wrong.append(seed)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    time.sleep(float(os.environ.get("SHARDCORE_TEST_SECONDS", "1")))
    stop.set()
    for caller in callers:
        caller.join(SOON)
    assert not wrong
    Lookup().until_shared()


@shared
def test_it_sleeps_when_no_work_comes() -> None:
    Lookup().until_shared()
    time.sleep(0.02)  # it may still look
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # of this process's time, whatever else runs


@shared
def test_work_that_comes_seldom_wakes_nobody() -> None:
    look_up = Lookup()
    look_up.until_shared()
    before = companion.parts_done()
    for _ in range(20):
        time.sleep(0.005)
        assert look_up()
    assert companion.parts_done() - before < 5  # 0, unless this machine left it no time to sleep


PROGRAM = """
import os, sys, threading
sys.path.insert(0, {folder!r})
from test_companion import Lookup, companion
look_up = Lookup()
look_up.until_shared()
stop = threading.Event()
def call():
    mine = Lookup(2)
    while not stop.is_set():
        assert mine()
caller = threading.Thread(target=call)
caller.start()
codes = []
for _ in range(20):
    child = os.fork()
    if not child:
        assert companion.parts_done() == 0
        own = Lookup(3)
        own.until_shared()
        os._exit(0 if all(own() for _ in range(50)) else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
caller.join()
look_up.until_shared()
print(codes == [0] * 20)
"""


@shared
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_the_child_of_a_fork_has_its_own() -> None:
    program = PROGRAM.format(folder=os.path.dirname(__file__))
    command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", program]
    environment = {**os.environ, "SHARDCORE_NUM_THREADS": "2"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@shared
@pytest.mark.slow
def test_a_process_ends_while_it_looks() -> None:
    program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
    program += "from test_companion import Lookup\nLookup().until_shared()"
    environment = {**os.environ, "SHARDCORE_NUM_THREADS": "2"}
    for _ in range(5):
        command = [sys.executable, "-P", "-c", program]
        subprocess.run(command, env=environment, timeout=60, check=True)


PINNED = """
import os, statistics, sys, time
sys.path.insert(0, {folder!r})
from test_companion import Lookup, companion, sc
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
look_up = Lookup()
ratios = []
for _ in range(15):
    times = []
    for count in (1, 2):
        sc.set_num_threads(count)
        begun = time.process_time()  # of both threads: other processes may have the core, too
        for _ in range(400):
            assert look_up()
        times.append(time.process_time() - begun)
    ratios.append(times[1] / times[0])
print(sorted(ratios))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are not given out here")
def test_it_is_left_alone_where_it_has_no_core() -> None:
    program = PINNED.format(folder=os.path.dirname(__file__))
    environment = {**os.environ, "SHARDCORE_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ratios = json.loads(done.stdout)
    assert ratios[len(ratios) // 2] < 1.4, ratios  # 2 if it looked all the while


FREED = """
import os, sys
sys.path.insert(0, {folder!r})
from test_companion import Lookup, ManyBags
def keep_to(cores):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)
cores = os.sched_getaffinity(0)
look_up = Lookup()
look_up.until_shared()  # it is there
keep_to([min(cores)])
for _ in range(2000):
    assert look_up()
keep_to(cores)
ManyBags(2000).until_shared()
"""


@shared
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are not listed here")
def test_it_is_left_alone_for_a_while_only() -> None:
    """Work that small calls do not make comes back to it, too."""
    program = FREED.format(folder=os.path.dirname(__file__))
    environment = {**os.environ, "SHARDCORE_NUM_THREADS": "2"}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
