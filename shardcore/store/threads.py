"""The one pool of threads of the process.

Kernels release the GIL and own no threads; whoever has work for several cores cuts it into numbered
tasks and calls `run`. The caller works too, so a pool of n threads starts n - 1 of them, on first
use. They are daemons and idle between calls. A child made by fork has none of its parent's threads:
the pool is forgotten there and built anew on first use.

Results never depend on the number of threads: tasks write to disjoint places, and the order of
every sum is fixed by the kernels.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from shardcore.errors import ShardcoreValueError
from shardcore.shapes import as_count

__all__ = ["get_num_threads", "ranges", "run", "set_num_threads"]

_VARIABLE = "SHARDCORE_NUM_THREADS"
MAX_THREADS = 1024
PIECE = 1 << 18
"""Least elements that are handed to another thread: some 50 µs of work, several hand-overs."""


class _Job:
    """Numbered tasks that several threads take one by one."""

    def __init__(self, count: int, task: Callable[[int], None]) -> None:
        self._next = 0
        self._count = count
        self._task = task
        self._left = count
        self._lock = threading.Lock()
        self._errors: list[tuple[int, BaseException]] = []
        self.finished = threading.Lock()
        self.finished.acquire()

    def _take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def work(self) -> None:
        while (number := self._take()) < self._count:
            try:
                self._task(number)
            except BaseException as error:  # handed to the caller, who raises the first of them
                with self._lock:
                    self._errors.append((number, error))
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self.finished.release()

    def wait(self) -> None:
        with self.finished:
            pass
        # A helper may find this job in the queue much later, and see that nothing is left of it:
        # until then it must not keep the batch's arrays alive.
        del self._task
        if self._errors:
            raise min(self._errors, key=lambda pair: pair[0])[1]


class _Pool:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.threads = 0

    def start(self, threads: int) -> None:
        with self.lock:
            while self.threads < threads:
                threading.Thread(
                    target=_serve,
                    args=(self.jobs,),
                    name=f"shardcore-{self.threads}",
                    daemon=True,
                ).start()
                self.threads += 1


def _serve(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        jobs.get().work()


_pool = _Pool()
_num_threads: int | None = None


def _forget_pool() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def set_num_threads(n: int) -> None:
    """Set how many threads the kernels of this process may use, the caller's included.

    Parameters
    ----------
    n : int, in [1, 1024]

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is not such an integer.

    Examples
    --------
    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    global _num_threads
    threads = as_count(n, "n")
    if threads > MAX_THREADS:
        raise ShardcoreValueError(f"n must be at most {MAX_THREADS}, got {threads}")
    _num_threads = threads


def get_num_threads() -> int:
    """Return how many threads the kernels may use.

    The default is SHARDCORE_NUM_THREADS, or else the number of cores this process may run on.

    Returns
    -------
    int, in [1, 1024]

    Raises
    ------
    ShardcoreValueError
        If SHARDCORE_NUM_THREADS is not an integer in [1, 1024].

    Examples
    --------
    >>> 1 <= get_num_threads() <= 1024
    True
    """
    global _num_threads
    if _num_threads is None:
        text = os.environ.get(_VARIABLE, "")
        _num_threads = _parsed(text) if text else min(_cores(), MAX_THREADS)
    return _num_threads


def _parsed(text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not 1 <= len(digits) <= len(str(MAX_THREADS)) or int(digits) > MAX_THREADS:
        raise ShardcoreValueError(
            f"{_VARIABLE} must be an integer in [1, {MAX_THREADS}], got {text!r}"
        )
    return int(digits)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(count: int, task: Callable[[int], None]) -> None:
    """Call ``task(i)`` for every i in [0, count), on as many threads as may be used, and wait.

    Parameters
    ----------
    count : int
    task : callable
        Must not call `run` itself. If some raise, the error of the lowest number is raised here;
        tasks of higher numbers may or may not have run.

    Examples
    --------
    >>> squares = [0] * 4
    >>> run(4, lambda i: squares.__setitem__(i, i * i))
    >>> squares
    [0, 1, 4, 9]
    """
    helpers = min(count, get_num_threads()) - 1
    if helpers <= 0:
        for number in range(count):
            task(number)
        return
    pool = _pool
    pool.start(helpers)
    job = _Job(count, task)
    for _ in range(helpers):
        pool.jobs.put(job)
    job.work()
    job.wait()


def ranges(splits: np.ndarray[Any, np.dtype[np.int64]], cost: int) -> list[tuple[int, int]]:
    """Cut segments into consecutive ranges of about equal numbers of values, a few per thread.

    Parameters
    ----------
    splits : ndarray of int64, shape (segments + 1,)
        Segment i holds values ``splits[i]`` to ``splits[i + 1]``.
    cost : int
        Elements that one value stands for. No range gets fewer than `PIECE` elements: handing
        less to another thread costs more than it saves.

    Returns
    -------
    list of (first, last)
        They cover all segments, in order; the cut does not influence any result.

    Examples
    --------
    >>> ranges(np.array([0, 4, 8]), cost=1)
    [(0, 2)]
    """
    segments = splits.size - 1
    work = (int(splits[-1]) - int(splits[0]) + segments) * cost
    if work < 2 * PIECE:
        return [(0, segments)] if segments else []
    pieces = min(segments, work // PIECE, 4 * get_num_threads())
    if pieces <= 1 or get_num_threads() == 1:
        return [(0, segments)] if segments else []
    targets = splits[0] + (splits[-1] - splits[0]) * np.arange(1, pieces) // pieces
    borders = np.unique(np.concatenate(([0], np.searchsorted(splits, targets), [segments])))
    return list(zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True))
