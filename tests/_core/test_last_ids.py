"""Sums ask for rows ahead, by ids that come: none is read past the last, where nothing may be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, mmap
import numpy as np
from shardcore._core.constants import ASKING
from shardcore.dtypes import kind_of, row_bytes, working_dtype
from shardcore.store import given_bags
from shardcore.store.given_bags import DIVIDED, given_bags_of
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.segment_reduce import TYPE_NAMES

kernel = best_module("shardcore._core.rows")
size, page = 1 << 16, mmap.PAGESIZE
memory = mmap.mmap(-1, size + page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
assert protect(start + size, page, 0) == 0, ctypes.get_errno()
# Ids end where memory does that can be read.
bytes_before = np.frombuffer(memory, np.uint8, size)
rng = np.random.default_rng(0)
for dtype in map(np.dtype, ("float32", "float16", "float64")):
    value = working_dtype(dtype)
    for dim in (3, 12, 16, 32, 48, 64, 100, 128, 256, 300):
        table = rng.integers(-9, 9, (99, dim)).astype(dtype)  # sums are exact
        combine = given_bags_of([table], None)
        for index in map(np.dtype, (np.int32, np.int64)):
            for n in (1, 15, 16, 17, 32, 33, 64, 65, 80, 129, 2049, 6000):
                ids = bytes_before[size - n * index.itemsize :].view(index)
                ids[:] = rng.integers(0, 99, n)
                splits = np.unique(np.concatenate(([0, n], rng.integers(0, n, n // 8))))
                wanted = np.add.reduceat(table[ids].astype(value), splits[:-1])
                for weights in (None, np.ones(n, value)):
                    for asking in ASKING.values():
                        out = np.empty(wanted.shape, value)
                        body = kernel.segment_reduce[TYPE_NAMES[index], TYPE_NAMES[value]]
                        rest = weights, None, kernel.GIVEN_DIVISORS, out, asking
                        assert body(row_bytes(table), kind_of(dtype), ids, splits, *rest)
                        assert (out == wanted).all()
                        given_bags.PACE = PACE._replace(asking=asking)
                        out[:] = 7
                        assert combine(ids, splits, weights, DIVIDED["sum"], out)
                        assert (out == wanted).all()
"""


@pytest.mark.skipif(os.name != "posix", reason="pages are not protected so here")
def test_no_id_is_read_past_the_last(instruction_set: str) -> None:
    # One thread: as Python ends it ends others from within, which libasan takes for an overflow.
    threads = {"SHARDCORE_NUM_THREADS": "1"}
    environment = {**os.environ, **threads, "SHARDCORE_INSTRUCTION_SET": instruction_set}
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
