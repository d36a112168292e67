"""Memory for tables: zeroed, aligned, on the large side mapped, and private to each process."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from shardcore.dtypes import as_dtype
from shardcore.memory import zeros
from shardcore.memory.zeros import HUGE_PAGE, LINE, aligned_zeros


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), (5, 3), (1000, 7), (2, 3, 4)])
def test_small_arrays_begin_a_cache_line(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_zeros(shape, as_dtype(dtype))
    assert array.shape == shape
    assert array.dtype == as_dtype(dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert not array.any()
    assert not array.size or array.ctypes.data % LINE == 0


@pytest.mark.parametrize("more", [0, 1, 64, HUGE_PAGE - 1])
def test_large_arrays_begin_a_huge_page(more: int) -> None:
    size = 2 * HUGE_PAGE + more
    array = aligned_zeros((size,), np.dtype(np.uint8))
    assert array.ctypes.data % HUGE_PAGE == 0
    assert array.nbytes == size
    assert not array.any()
    array[-1] = 7  # the last byte is there
    assert array[-1] == 7


def test_rows_that_are_never_touched_cost_nothing() -> None:
    table = aligned_zeros((1 << 20, 256), np.dtype(np.float32))  # 1 GiB of addresses
    table[-1] = 1
    assert table[-1].sum() == 256
    assert table[1 << 19].sum() == 0


def test_what_no_system_has_room_for_is_refused() -> None:
    message = "no room for 4611686018427387904 bytes, an array of float32 of shape "
    message += "(1152921504606846976, 1)"
    with pytest.raises(MemoryError, match=f"^{re.escape(message)}$"):
        aligned_zeros((1 << 60, 1), np.dtype(np.float32))


def test_a_kernel_without_huge_pages_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *arguments: Any) -> None:
            raise OSError(22, "Invalid argument")

    advised = []

    def pages(size: int) -> mmap.mmap:
        advised.append(size)
        return Refusing(-1, size)

    monkeypatch.setattr(zeros, "_private_pages", pages)
    array = aligned_zeros((3 * HUGE_PAGE,), np.dtype(np.uint8))
    assert advised == [4 * HUGE_PAGE]
    assert array.ctypes.data % HUGE_PAGE == 0
    assert not array.any()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_made_by_fork_has_a_table_of_its_own() -> None:
    script = """
import os
import numpy as np
from shardcore.memory.zeros import aligned_zeros

table = aligned_zeros((1 << 21,), np.dtype(np.float32))
child = os.fork()
if child == 0:
    table[:] = 1
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not table.any(), "the child wrote to its parent's table"
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
