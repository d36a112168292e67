"""The lock of a table: readers share it, a writer has it alone and goes before new readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from shardcore.store.lock import ReadWriteLock

SOON = 30.0  # seconds in which a thread that may go on will have done so
A_WHILE = 0.05  # seconds after which a thread that has not gone on is held to be waiting


def started(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_readers_share() -> None:
    lock, together = ReadWriteLock(), threading.Barrier(3)

    def read() -> None:
        with lock.reading():
            together.wait(SOON)  # passes only when all three are inside

    readers = [started(read) for _ in range(3)]
    for reader in readers:
        reader.join(SOON)
    assert not together.broken
    assert not any(reader.is_alive() for reader in readers)


@pytest.mark.parametrize("held", ["reading", "writing"])
@pytest.mark.parametrize("wanted", ["reading", "writing"])
def test_a_writer_is_alone(held: str, wanted: str) -> None:
    if held == wanted == "reading":
        return
    lock, inside = ReadWriteLock(), threading.Event()

    def enter() -> None:
        with getattr(lock, wanted)():
            inside.set()

    with getattr(lock, held)():
        thread = started(enter)
        assert not inside.wait(A_WHILE)
    assert inside.wait(SOON)
    thread.join(SOON)
    assert not thread.is_alive()


def test_a_waiting_writer_goes_before_new_readers() -> None:
    lock, order = ReadWriteLock(), []

    def write() -> None:
        with lock.writing():
            order.append("writer")

    def read() -> None:
        with lock.reading():
            order.append("reader")

    with lock.reading():
        writer = started(write)
        deadline = time.monotonic() + SOON
        while not lock._writers_waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        reader = started(read)
        reader.join(A_WHILE)
        assert order == []
    writer.join(SOON)
    reader.join(SOON)
    assert order == ["writer", "reader"]


@pytest.mark.parametrize("side", ["reading", "writing"])
def test_an_error_inside_lets_go(side: str) -> None:
    lock = ReadWriteLock()
    with pytest.raises(ZeroDivisionError), getattr(lock, side)():
        1 / 0  # noqa: B018
    with lock.writing():
        pass
    with lock.reading():
        pass


def test_no_reader_sees_half_a_write() -> None:
    lock, pair, torn = ReadWriteLock(), [0, 0], []
    stop = threading.Event()

    def write() -> None:
        for number in range(1, 300):
            with lock.writing():
                pair[0] = number
                time.sleep(0)  # lets another thread run in between
                pair[1] = number
        stop.set()

    def read() -> None:
        while not stop.is_set():
            with lock.reading():
                if pair[0] != pair[1]:
                    torn.append(tuple(pair))

    threads = [started(read) for _ in range(4)] + [started(write)]
    for thread in threads:
        thread.join(SOON)
    assert stop.is_set()
    assert torn == []
    assert pair == [299, 299]
