"""Bounds how many programs several CPU devices have before them.

XLA lets a CPU device have 32 programs at a time. The launch of one more waits in a thread of the
few, one per device, in which a collective of the programs before needs all devices to meet: nothing
goes on from there, in plain JAX neither. So the host waits for programs that it has started, long
before there are as many; other platforms have no such end, and nothing waits on them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import jax

__all__ = ["MOST", "make_room", "started"]

MOST: Final = 8
"""Programs that may be in flight; the rest of the 32 is left to those of the user's model."""

_flight: deque[Callable[[], jax.Array | None]] = deque()
"""What gives a result of each program in flight, of all backends of the process, oldest first."""
_lock = threading.Lock()


def make_room() -> None:
    """Return when less than `MOST` programs are in flight.

    A program that failed is not in flight: its error is raised where its result is read. A result
    that was given up went into a younger program, which is waited for in its turn.
    """
    while True:
        with _lock:
            while _flight and _is_done(_flight[0]()):
                _flight.popleft()
            if len(_flight) < MOST:
                return
            oldest = _flight.popleft()()
        if oldest is not None:
            with contextlib.suppress(Exception):
                oldest.block_until_ready()


def _is_done(result: jax.Array | None) -> bool:
    try:
        return result is None or result.is_ready()
    except RuntimeError:  # given up
        return False


def started(arguments: Any, result: Any) -> None:
    """Count a program that has been started, if it runs on several CPU devices.

    Its smallest result is kept until it is done. What came of arrays that were given up, as those
    of a table are, is kept by whoever gave them, and for no longer than that.

    Parameters
    ----------
    arguments, result : tree of jax.Array
        What the program took and returned.
    """
    results = [one for one in jax.tree.leaves(result) if isinstance(one, jax.Array)]
    if not results:
        return
    devices = results[0].sharding.device_set
    if len(devices) == 1 or next(iter(devices)).platform != "cpu":
        return
    smallest = min(results, key=lambda one: one.nbytes)
    given_up = any(
        one.is_deleted() for one in jax.tree.leaves(arguments) if isinstance(one, jax.Array)
    )
    with _lock:
        _flight.append(weakref.ref(smallest) if given_up else lambda: smallest)
