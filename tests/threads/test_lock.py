"""The locks: readers share, a writer is alone and goes first; nothing splits them."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from shardcore.threads.lock import (
    Mutex,
    ReadWriteLock,
    call_inside,
    is_inside,
    read_all,
    write_all,
)
from shardcore.threads.work import uninterrupted

SOON = 30.0  # seconds in which a thread that may go on will have done so
A_WHILE = 0.05  # seconds after which a thread that has not gone on is held to be waiting


def started(target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


class Held:
    """A lock that another thread holds until it is told to let go."""

    def __init__(self, take: Callable[..., Any]) -> None:
        self._let_go, inside = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            self._let_go.wait(SOON)

        self._thread = started(take, hold)
        assert inside.wait(SOON)

    def let_go(self) -> None:
        self._let_go.set()
        self._thread.join(SOON)
        assert not self._thread.is_alive()


def is_free(lock: ReadWriteLock) -> bool:
    """Return whether nobody holds a lock; that may be found out by waiting in vain."""
    taken = threading.Event()
    started(lock.write, taken.set)
    return taken.wait(20 * A_WHILE)


def test_readers_share() -> None:
    lock, together = ReadWriteLock(), threading.Barrier(3)
    passed: list[int] = []

    def meet() -> None:
        passed.append(together.wait(SOON))  # passes only when all three are inside

    readers = [started(lock.read, meet) for _ in range(3)]
    for reader in readers:
        reader.join(SOON)
    assert sorted(passed) == [0, 1, 2]


@pytest.mark.parametrize(
    ("held", "wanted"), [("read", "write"), ("write", "read"), ("write", "write")]
)
def test_a_writer_is_alone(held: str, wanted: str) -> None:
    lock, inside = ReadWriteLock(), threading.Event()
    first = Held(getattr(lock, held))
    second = started(getattr(lock, wanted), inside.set)
    assert not inside.wait(A_WHILE)
    first.let_go()
    assert inside.wait(SOON)
    second.join(SOON)
    assert not second.is_alive()


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock = ReadWriteLock()
    order: list[str] = []
    first = Held(lock.read)
    writer = started(lock.write, order.append, "writer")
    deadline = time.monotonic() + SOON
    while not lock.writers_waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    reader = started(lock.read, order.append, "reader")
    reader.join(A_WHILE)
    assert order == []
    first.let_go()
    writer.join(SOON)
    reader.join(SOON)
    assert order == ["writer", "reader"]
    assert lock.writers_waiting == 0


@pytest.mark.parametrize("side", ["read", "write"])
def test_an_error_inside_lets_go(side: str) -> None:
    lock = ReadWriteLock()
    with pytest.raises(ZeroDivisionError):
        getattr(lock, side)(divmod, 1, 0)
    assert lock.write(divmod, 7, 2) == (3, 1)
    assert lock.read(divmod, 7, 2) == (3, 1)


def test_no_reader_sees_half_a_write() -> None:
    lock, pair = ReadWriteLock(), [0, 0]
    torn: list[tuple[int, ...]] = []
    seen: set[int] = set()
    stop = threading.Event()

    def change(number: int) -> None:
        pair[0] = number
        time.sleep(0)  # lets another thread run in between
        pair[1] = number

    def write() -> None:
        for number in range(1, 300):
            lock.write(change, number)
        stop.set()

    def read() -> None:
        while not stop.is_set():
            found = lock.read(tuple, pair)
            seen.add(found[0])
            if found[0] != found[1]:
                torn.append(found)

    threads = [started(read) for _ in range(4)] + [started(write)]
    for thread in threads:
        thread.join(SOON)
    assert stop.is_set()
    assert torn == []
    assert pair == [299, 299]
    assert len(seen) > 1  # they did read while it was written


def test_a_mutex_is_one_threads_and_those_that_work_for_it() -> None:
    mutex, inside = Mutex(), threading.Event()
    # Twice in one thread, and again in the thread that makes a change on its behalf.
    assert mutex.run(mutex.run, uninterrupted, mutex.run, divmod, 7, 2) == (3, 1)
    held = Held(mutex.run)
    other = started(mutex.run, inside.set)
    assert not inside.wait(A_WHILE)
    held.let_go()
    assert inside.wait(SOON)
    other.join(SOON)


def test_what_runs_on_behalf_of_a_call_knows_it() -> None:
    mine, other = object(), object()
    assert not is_inside(mine)
    assert call_inside(mine, uninterrupted, is_inside, mine) is True
    assert call_inside(mine, is_inside, other) is False
    with pytest.raises(ZeroDivisionError):
        call_inside(mine, divmod, 1, 0)
    assert not is_inside(mine)
    assert not uninterrupted(is_inside, mine)  # the thread that made the change forgot it again


@pytest.mark.parametrize("kind", [Mutex, ReadWriteLock])
def test_a_lock_is_not_copied(kind: type) -> None:
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=rf"^a {kind.__name__} cannot be copied or pickled$"):
            make(kind())


# --- several ------------------------------------------------------------------------------------

SEVERAL = {"read": read_all, "write": write_all}


@pytest.mark.parametrize(
    ("held", "wanted"), [("write", "read"), ("write", "write"), ("read", "write")]
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_several_are_waited_for_one_by_one(held: str, wanted: str, at: int) -> None:
    locks, done = [ReadWriteLock() for _ in range(3)], threading.Event()
    holder = Held(getattr(locks[at], held))
    waiting = started(SEVERAL[wanted], locks[::-1], done.set)
    assert not done.wait(A_WHILE)
    for other in locks[at + 1 :]:  # those that come after it are not taken yet
        assert is_free(other)
    holder.let_go()
    assert done.wait(SOON)
    waiting.join(SOON)
    assert all(map(is_free, locks))


def test_several_are_held_at_once() -> None:
    locks = [ReadWriteLock() for _ in range(3)]
    for side, other in (("read", "write"), ("write", "read")):
        holder = Held(lambda hold, side=side: SEVERAL[side](locks, hold))
        entered = [threading.Event() for _ in locks]
        for lock, event in zip(locks, entered, strict=True):
            started(getattr(lock, other), event.set)
        assert not any(event.wait(A_WHILE) for event in entered)
        holder.let_go()
        assert all(event.wait(SOON) for event in entered)


def test_one_that_is_named_twice_is_taken_once() -> None:
    lock, passed = ReadWriteLock(), threading.Event()
    assert read_all([lock, lock], max, 3, 5) == 5
    assert write_all([], max, 3, 5) == 5
    started(write_all, [lock, lock], passed.set)
    assert passed.wait(20 * A_WHILE)


def test_the_order_is_that_in_which_they_were_made() -> None:
    """Whoever names them in another order waits for nobody that waits for him."""
    locks = [ReadWriteLock() for _ in range(4)]
    assert [lock.number for lock in locks] == sorted({lock.number for lock in locks})
    passed: list[int] = []
    stop = time.monotonic() + 0.5

    def go_on(order: list[ReadWriteLock], take: Callable[..., Any]) -> None:
        while time.monotonic() < stop:
            take(order, passed.append, 1)

    threads = [
        started(go_on, order, take)
        for order in (locks, locks[::-1])
        for take in (read_all, write_all)
    ]
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert len(passed) > 4


def test_only_locks_can_be_taken() -> None:
    lock = ReadWriteLock()
    for take in (read_all, write_all):
        with pytest.raises(AttributeError):
            take([lock, object()], print)
        with pytest.raises(ArithmeticError):
            take([lock], lambda: (_ for _ in ()).throw(ArithmeticError()))
        assert is_free(lock)


_WAITING = """
import os, signal, sys, threading, time
from shardcore.threads.lock import Mutex, ReadWriteLock, read_all, write_all
first = ReadWriteLock()
lock = {lock}()
inside, let_go = threading.Event(), threading.Event()
def hold():
    inside.set()
    let_go.wait(30)
holder = threading.Thread(target=lock.{held}, args=(hold,))
holder.start()
inside.wait(30)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
later = ReadWriteLock()
try:
    {wanted}print, "not reached")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 10)
let_go.set()
holder.join()
for side in {sides}:    # nothing is left behind
    getattr(lock, side)(print, side)
for one in (first, later):
    one.write(print, "free")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals as POSIX has them")
@pytest.mark.parametrize(
    ("lock", "held", "wanted"),
    [
        ("Mutex", "run", "lock.run"),
        ("ReadWriteLock", "write", "lock.read"),
        ("ReadWriteLock", "write", "lock.write"),
        ("ReadWriteLock", "read", "lock.write"),
        ("ReadWriteLock", "write", "read_all"),
        ("ReadWriteLock", "write", "write_all"),
        ("ReadWriteLock", "read", "write_all"),
    ],
)
def test_waiting_can_be_interrupted_and_leaves_nothing(lock: str, held: str, wanted: str) -> None:
    sides = ["run"] if lock == "Mutex" else ["read", "write", "read"]
    call = f"{wanted}(" if "." in wanted else f"{wanted}([later, lock, first], "
    script = _WAITING.format(lock=lock, held=held, wanted=call, sides=sides)
    command = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + script
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == ["interrupted True", *sides, "free", "free"]
