"""Programs in flight on several CPU devices: the host waits before there are too many.

XLA takes 32 programs for a CPU device at a time. To launch one more, it waits in one of its
threads, of which there are as many as devices; a collective in an earlier program needs all of
them, and so nothing goes on, in plain JAX either. Other platforms have no such limit: there the
host never waits.
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
    """Wait until fewer than `MOST` programs are in flight.

    The error of a program that failed is raised where its result is read, not here. A result that
    was donated since went into a later program, which is waited for in its turn.
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
    except RuntimeError:  # donated
        return False


def started(arguments: Any, result: Any) -> None:
    """Count a program that has been started, if it runs on several CPU devices.

    Its smallest result is kept until it is done; only by a weak reference if the program took
    donated arrays, as updates do: what it returned is the table, which goes when its engine does.

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
    donated = any(
        one.is_deleted() for one in jax.tree.leaves(arguments) if isinstance(one, jax.Array)
    )
    with _lock:
        _flight.append(weakref.ref(smallest) if donated else lambda: smallest)
