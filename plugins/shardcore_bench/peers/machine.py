"""The memory of the machine: what a lookup or a step costs that computes nothing.

The floor of a work is what its bytes cost: its random rows at the best rate that is found for rows
of that width in that order, and what is read and written in line at the rate of a plain copy. A
program in C, compiled when it is asked for, measures it, interleaved with the work itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.contender import Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import LookupTask, StepTask

__all__ = ["Machine"]

SOURCE: Final = Path(__file__).with_name("machine.c")

AHEAD: Final = (8, 16, 32, 64, 128)
"""Rows between asking for one and using it."""

WAYS: Final = 3
"""Ways to ask for rows: into the second cache, into the first, into the second twice."""

SLOTS: Final = {"SGD": 0, "momentum": 1, "Adagrad": 1, "Adam": 2, "FTRL": 2}
"""Slots as wide as a row; that of row-wise Adagrad is one number."""

SORTS: Final = 2
"""Passes over pairs of a row and a place, 8 bytes: with 11 bits each they sort 4M rows."""


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


@cache
def program() -> ctypes.CDLL:
    """Compile and load the program; its functions release the GIL."""
    found = compiler()
    assert found is not None, "a peer that is missing is asked for nothing"
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "machine.so"
        options = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
        subprocess.run([found, *options, "-o", library, SOURCE], check=True)
        loaded = ctypes.CDLL(str(library))
    number, size, place = ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
    loaded.read_rows.argtypes = [
        *(size, place, place, place, number, number, place, size, number, ctypes.c_int)
    ]
    loaded.read_rows.restype = ctypes.c_uint64
    loaded.write_rows.argtypes = [size, place, place, number, number, number, ctypes.c_uint32]
    loaded.write_rows.restype = None
    return loaded


def huge(count: int, row_bytes: int) -> NDArray[np.uint8]:
    """Return rows of bytes on huge pages, where there are any, as our tables lie."""
    size = count * row_bytes
    # Private: pages that are shared are small ones.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, size + (2 << 20), flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    flat = np.frombuffer(pages, np.uint8)
    start = -flat.__array_interface__["data"][0] % (2 << 20)
    return flat[start : start + size].reshape(count, row_bytes)


def address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


class Machine(Peer):
    """The memory: the rows of a task read and written, and nothing computed."""

    name = "memory"
    modules = ("numpy",)
    _threads = 1

    def missing(self) -> str | None:
        return None if compiler() else "there is no C compiler"

    def version(self) -> str:
        return f"{self.name}: this machine's"

    def set_num_threads(self, threads: int) -> None:
        self._threads = threads

    def lookup(self, task: LookupTask) -> Contender:
        read = self._reads(task.rows, task.ids, task.row_splits)
        return Contender("rows read", read, None)

    def step(self, task: StepTask) -> Contender:
        if task.sequence or len(task.features) > 1:
            raise self.unable("no step but that of one combined feature")
        (rows,), (bags,) = task.tables, task.features
        read = self._reads(rows, bags.ids, bags.row_splits)
        unique = np.unique(bags.ids)
        width = rows[0].nbytes
        slots = [huge(len(rows), width) for _ in range(SLOTS.get(task.update.name, 0))]
        if task.update.name == "RowwiseAdagrad":
            slots = [huge(len(rows), 4)]
        tables = [huge(len(rows), width), *slots]
        for table in tables:
            table[...] = 0
        # Ids are copied; pairs are written and read by every pass; the gradient is read.
        streamed = bags.ids.size * 8 * 2 * (1 + SORTS) + bags.gradient.nbytes
        source = np.ones(streamed // 2, np.uint8)
        target = np.ones_like(source)
        borders = np.linspace(0, source.size, self._threads + 1).astype(int)

        def copy(part: int) -> None:
            own = slice(borders[part], borders[part + 1])
            np.copyto(target[own], source[own])

        def run(writes: Callable[[], Any]) -> int:
            found = read()
            writes()
            self._on_threads(copy)
            return found

        ways = [partial(self._write, tables, unique, ahead) for ahead in AHEAD]
        writes = self._best(ways)
        return Contender("rows read and written", partial(run, writes), None)

    def _reads(
        self, rows: NDArray[Any], ids: NDArray[np.int64], row_splits: NDArray[np.int64]
    ) -> Callable[[], int]:
        """Return the fastest way to read the rows of the ids; it reads those and no others."""
        given = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        table = huge(*given.shape)
        table[...] = given
        out = np.zeros((row_splits.size - 1, rows.shape[1]), np.float32)
        ways = [
            partial(self._read, table, ids, row_splits, out, ahead, way)
            for ahead, way in product(AHEAD, range(WAYS))
        ]
        words = given.view(np.uint64)
        expected = int(np.bitwise_xor.reduce(np.bitwise_xor.reduce(words, axis=1)[ids]))
        for way in ways:
            if way() != expected:
                raise AssertionError("other rows were read than those of the ids")
        return self._best(ways)

    def _read(
        self,
        table: NDArray[np.uint8],
        ids: NDArray[np.int64],
        row_splits: NDArray[np.int64],
        out: NDArray[np.float32],
        ahead: int,
        way: int,
    ) -> int:
        borders = np.linspace(0, row_splits.size - 1, self._threads + 1).astype(int).tolist()
        found = [0] * self._threads

        def part(number: int) -> None:
            found[number] = program().read_rows(
                *(table.shape[1], address(table), address(ids), address(row_splits)),
                *(borders[number], borders[number + 1]),
                *(address(out), out.strides[0], ahead, way),
            )

        self._on_threads(part)
        return int(np.bitwise_xor.reduce(np.array(found, np.uint64)))

    def _write(
        self, tables: list[NDArray[np.uint8]], rows: NDArray[np.int64], ahead: int, value: int = 0
    ) -> None:
        """Add to every word of some rows; 0 leaves them as they are, and writes them."""
        borders = np.linspace(0, rows.size, self._threads + 1).astype(int).tolist()

        def part(number: int) -> None:
            for table in tables:
                program().write_rows(
                    *(table.shape[1], address(table), address(rows)),
                    *(borders[number], borders[number + 1], ahead, value),
                )

        self._on_threads(part)

    def _on_threads(self, part: Callable[[int], None]) -> None:
        if self._threads == 1:
            part(0)
            return
        with ThreadPoolExecutor(self._threads - 1) as pool:
            others = [pool.submit(part, number) for number in range(1, self._threads)]
            part(0)
            for one in others:
                one.result()

    @staticmethod
    def _best(ways: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        def seconds(way: Callable[[], Any]) -> float:
            found = []
            for _ in range(4):
                start = perf_counter()
                way()
                found.append(perf_counter() - start)
            return min(found[1:])

        return min(ways, key=seconds)
