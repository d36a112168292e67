"""Memory in pages of its own: zeroed, aligned, on huge pages where the system has them.

A table is read at random rows; with 4 KiB pages nearly every row costs a page walk besides its own
cache misses. Large arrays are therefore mapped anonymously, aligned to 2 MiB, and the kernel is
advised to use huge pages. Pages that are never touched cost nothing. The mapping is private: a
child made by fork has memory of its own, and shared mappings get no huge pages by default.
"""

from __future__ import annotations

import math
import mmap
import sys
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreMemoryError

__all__ = ["aligned_zeros", "pages"]

LINE: Final = 64
HUGE_PAGE: Final = 2 << 20


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a C-contiguous array of zeros whose first byte begins a cache line.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype

    Returns
    -------
    ndarray of `dtype` and `shape`, writable

    Raises
    ------
    ShardcoreMemoryError
        If the system has no room for it.

    Examples
    --------
    >>> aligned_zeros((3, 2), np.dtype("float32")).ctypes.data % 64
    0
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= 2 * HUGE_PAGE:
        try:
            memory = pages(size)
        except (OSError, OverflowError) as error:
            raise ShardcoreMemoryError(
                f"no room for {size} bytes, an array of {dtype} of shape {shape}"
            ) from error
    else:
        heap = np.zeros(size + LINE, np.uint8)
        start = -heap.ctypes.data % LINE
        memory = heap[start : start + size]
    return memory.view(dtype).reshape(shape)


def pages(size: int) -> NDArray[np.uint8]:
    """Return zeroed memory in pages of its own; large memory in huge pages, if there are any.

    Raises
    ------
    OSError, OverflowError
        If the system has no room for it.

    Examples
    --------
    >>> pages(5)
    array([0, 0, 0, 0, 0], dtype=uint8)
    """
    if size < 2 * HUGE_PAGE:
        return np.frombuffer(_private_pages(size), np.uint8)
    buffer = _private_pages(size + HUGE_PAGE)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
    if advice is not None:
        # A kernel built without huge pages refuses: the memory is as good, only slower.
        with suppress(OSError):
            buffer.madvise(advice)
    memory = np.frombuffer(buffer, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    return memory[start : start + size]


def _private_pages(size: int) -> mmap.mmap:
    if sys.platform == "win32":  # which has neither fork nor flags
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
