"""Memory for tables: zeroed, aligned to cache lines, backed by huge pages where the system has them.

A table is read at random rows; with 4 KiB pages nearly every row costs a page walk besides its own
cache misses. Large arrays are therefore mapped anonymously, aligned to 2 MiB, and the kernel is
advised to use huge pages. Pages that are never touched cost nothing.
"""

from __future__ import annotations

import math
import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["aligned_zeros"]

LINE: Final = 64
HUGE_PAGE: Final = 2 << 20


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a C-contiguous array of zeros whose first byte begins a cache line.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy.dtype

    Examples
    --------
    >>> aligned_zeros((3, 2), np.dtype("float32")).ctypes.data % 64
    0
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= 2 * HUGE_PAGE:
        buffer = mmap.mmap(-1, size + HUGE_PAGE)
        advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
        if advice is not None:
            try:
                buffer.madvise(advice)
            except OSError:  # a kernel built without huge pages: the memory is as good, only slower
                pass
        memory = np.frombuffer(buffer, np.uint8)
        start = -memory.ctypes.data % HUGE_PAGE
    else:
        memory = np.zeros(size + LINE, np.uint8)
        start = -memory.ctypes.data % LINE
    return memory[start : start + size].view(dtype).reshape(shape)
