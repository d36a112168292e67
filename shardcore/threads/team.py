"""How many threads the kernels use, and how work is cut over them.

Kernels release the GIL and own no threads; callers with work for several cores cut it into numbered
tasks and calls `run`. The caller works too, so n threads are n - 1 of the process's one pool and
the caller. The pool itself is compiled: `shardcore.threads.work`. Work that is done before one of
it would wake is shared with a companion, if at all: `sharing`.

Results never depend on the number of threads: tasks write to disjoint places, and the order of
every sum is fixed by the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from shardcore.errors import ShardcoreValueError
from shardcore.threads import companion
from shardcore.threads.work import run_tasks
from shardcore.validation.shapes import as_count

__all__ = [
    "cores_of_process",
    "cut",
    "cut_for_companion",
    "get_num_threads",
    "most_alone",
    "most_without_companion",
    "ranges",
    "run",
    "set_num_threads",
    "sharing",
]

_VARIABLE = "SHARDCORE_NUM_THREADS"
MAX_THREADS = 1024
PIECE = 1 << 18
"""Least elements of a share of what threads do together: some 50 µs of work."""

_TOGETHER = 4
"""Shares, at least, of work that is handed to other threads. With less, to wake one, whose caches
hold nothing of the work, takes longer than it saves."""

_SMALL_PIECE = 1 << 13
"""Least elements that are left to the companion: a microsecond of work."""

_SHARES = 8
"""Shares of a thread: with fewer, one waits longer for another, with more, rows are asked for late
more often."""

_ALL = 1 << 62

_num_threads: int | None = None


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
    companion.allow(threads)


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
        _num_threads = _parsed(text) if text else min(cores_of_process(), MAX_THREADS)
    return _num_threads


def _parsed(text: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not 1 <= len(digits) <= len(str(MAX_THREADS)) or int(digits) > MAX_THREADS:
        raise ShardcoreValueError(
            f"{_VARIABLE} must be an integer in [1, {MAX_THREADS}], got {text!r}"
        )
    return int(digits)


def cores_of_process() -> int:
    """Return how many cores this process may run on.

    Examples
    --------
    >>> cores_of_process() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(count: int, task: Callable[[int], None]) -> None:
    """Call ``task(i)`` for every i in [0, count), on as many threads as may be used, and wait.

    Parameters
    ----------
    count : int
    task : callable
        Must not call `run` itself. If some raise, the error of the lowest number is raised here,
        once no task runs any more; tasks of higher numbers may or may not have run.

    Examples
    --------
    >>> squares = [0] * 4
    >>> run(4, lambda i: squares.__setitem__(i, i * i))
    >>> squares
    [0, 1, 4, 9]
    """
    helpers = min(count, get_num_threads()) - 1
    if helpers > 0:
        companion.dismiss()
        run_tasks(count, task, helpers)
        return
    for number in range(count):
        task(number)


def sharing() -> tuple[object, object]:
    """Return what kernels share work by, little and much: `companion.LITTLE` and `companion.MUCH`.

    How many threads may be used is asked at every call.
    """
    companion.allow(get_num_threads())
    return companion.LITTLE, companion.MUCH


def cut(work: Any, least: int) -> int:
    """Cut the work on many tables into shares, and return how many threads are to do them.

    Each of these calls its `make`, which does shares until none is left.

    Parameters
    ----------
    work : compiled object
        As in ``_core/shares.pxi``.
    least : int
        Elements of a share, at least. Less work than four such is one share.

    Returns
    -------
    int, in [0, `get_num_threads()`]
        0 where there is nothing to do.
    """
    threads = get_num_threads()
    shares: int = work.cut(threads * _SHARES if threads > 1 else 1, least)
    if 1 < shares < _TOGETHER:
        shares = work.cut(1, least)
    return min(shares, threads)


def most_alone(least: int) -> int:
    """Return how many elements of work on many tables one thread does: what `cut` makes one share.

    Examples
    --------
    >>> most_alone(10) >= 39
    True
    """
    return _ALL if get_num_threads() == 1 else _TOGETHER * least - 1


def make(work: Any, least: int, share: Callable[[int], None]) -> None:
    """Cut the work on many tables, as `cut` does; call ``share(i)`` on each thread that does it.

    Parameters
    ----------
    work : compiled object
    least : int
    share : callable
        Calls the work's `make`.
    """
    count = cut(work, least)
    if count == 1:
        share(0)
    else:
        run(count, share)


def most_without_companion() -> int:
    """Return how many elements of work `cut_for_companion` leaves to one thread.

    Examples
    --------
    >>> most_without_companion() > 0
    True
    """
    return _ALL if get_num_threads() == 1 else 2 * _SMALL_PIECE - 1


def cut_for_companion(work: Any) -> object | None:
    """Cut the work on many tables into shares if this thread and the companion may do them.

    They do if it is too little for the threads of the pool, or, as `companion.MUCH` has it, if one
    other thread may be used and such work comes often. In a training step it does not: other work
    follows, which is the pool's.

    Parameters
    ----------
    work : compiled object
        As in ``_core/shares.pxi``, with a `share` that does all shares.

    Returns
    -------
    object or None
        What its `share` takes. None, or where that did nothing: the shares are to be cut and done
        otherwise, after which `companion.ended` is to be called.
    """
    threads = get_num_threads()
    if threads == 1:
        return None
    if work.cut(2, PIECE) < 2:
        little, _ = sharing()
        return little if work.cut(2 * _SHARES, _SMALL_PIECE) > 1 else None
    _, much = sharing()
    work.cut(2 * _SHARES, PIECE)
    return much


def ranges(splits: np.ndarray[Any, np.dtype[np.int64]], cost: int) -> list[tuple[int, int]]:
    """Cut segments into consecutive ranges of about equal numbers of values, one per thread.

    Not more: a thread that has done one must have the interpreter before it begins another, and
    while two threads wait for it in turn, Linux may wake one of them on the core of the other.

    Parameters
    ----------
    splits : ndarray of int64, shape (segments + 1,)
        Segment i holds values ``splits[i]`` to ``splits[i + 1]``.
    cost : int
        Elements that one value stands for. No range gets fewer than `PIECE` elements, and there is
        one where there are fewer than four times as many.

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
    if work < _TOGETHER * PIECE:
        return [(0, segments)] if segments else []
    pieces = min(segments, work // PIECE, get_num_threads())
    if pieces <= 1 or get_num_threads() == 1:
        return [(0, segments)] if segments else []
    targets = splits[0] + (splits[-1] - splits[0]) * np.arange(1, pieces) // pieces
    borders = [0, *np.searchsorted(splits, targets).tolist(), segments]
    return [(first, last) for first, last in pairwise(borders) if first < last]
