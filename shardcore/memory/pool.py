"""Memory that one batch after the other uses: what was let go is given out again.

Fresh memory of some MiB costs a page fault for every 4 KiB, more time than filling it takes: a
training step over half a million ids would fault thousands of times. So large arrays of a batch
lie in blocks that stay. A block is free again when no array lies in it any more, which its count of
references says: nothing has to be given back, and what a caller holds, he holds.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.memory.zeros import pages

__all__ = ["LEAST", "empty"]

LEAST: Final = 1 << 18
"""Bytes of a block: below, memory of the heap is as fast."""

_MOST: Final = 1 << 26

_TOTAL: Final = 1 << 28
"""Bytes of all blocks that stay."""

_IDLE: Final = 256
"""A block that so many requests had no use for goes."""

_GIL: Final = getattr(sys, "_is_gil_enabled", lambda: True)()  # without it references are estimates


class _Pool:
    """Blocks, and when each was last given out."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.uint8]] = []
        self.used: list[int] = []
        self.requests = 0

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a block of at least `size` bytes that nothing lies in."""
        self.requests += 1
        best = -1
        for at, references in enumerate(_references(self.blocks)):
            held = self.blocks[at].nbytes
            # One of twice the size and more is kept for what is as large.
            if references != _UNUSED or not size <= held < 2 * size:
                continue
            if best < 0 or held < self.blocks[best].nbytes:
                best = at
        if best >= 0:
            self.used[best] = self.requests
            return self.blocks[best]
        # Mapped by itself: a large block that stays would have the heap give its end back to the
        # system after every call, and take it again, page by page, for the next result.
        # And made through a buffer: views of a view would count as references to what is below it.
        block = np.frombuffer(pages(size).data, np.uint8)
        self._forget(_TOTAL - size)
        self.blocks.append(block)
        self.used.append(self.requests)
        return block

    def _forget(self, room: int) -> None:
        """Let go of blocks that were long of no use, and of the oldest until `room` bytes stay."""
        order = sorted(range(len(self.blocks)), key=self.used.__getitem__, reverse=True)
        stay = []
        for at in order:
            room -= self.blocks[at].nbytes
            if room >= 0 and self.requests - self.used[at] <= _IDLE:
                stay.append(at)
        self.blocks, self.used = [self.blocks[at] for at in stay], [self.used[at] for at in stay]


_pool = _Pool()
_lock = threading.Lock()


def empty(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of any values: where it is large, in memory that an earlier one has let go.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : numpy.dtype

    Returns
    -------
    ndarray of `dtype` and `shape`, C-contiguous, aligned

    Examples
    --------
    >>> empty((2, 3), np.dtype("float32")).shape
    (2, 3)
    """
    size = (math.prod(shape) if isinstance(shape, tuple) else shape) * dtype.itemsize
    # Never waits: a lock that a fork or an interrupt left locked only costs the page faults.
    if not LEAST <= size <= _MOST or not _GIL or not _lock.acquire(blocking=False):
        return np.empty(shape, dtype)
    try:
        found: NDArray[Any] = _pool.take(size)[:size].view(dtype)
    finally:
        _lock.release()
    return found.reshape(shape) if isinstance(shape, tuple) else found


def _references(blocks: list[NDArray[np.uint8]]) -> list[int]:
    """Return how many references each block has here; every view of it is one more."""
    counts = []
    for block in blocks:
        counts.append(sys.getrefcount(block))
    return counts


# Measured, since Pythons differ in which of their own references they count.
(_UNUSED,) = _references([np.empty(1, np.uint8)])
