"""Sums of rows of two revisions, in one process: ``python -m bench.sums BASE``.

A table lies in other pages in every process, and the same code takes a tenth more or less for it.
So the row kernels of BASE are loaded beside those of this tree, both sum the rows of the same table
by the same ids, on one thread, and blocks take turns: where nothing has changed, medians agree
within 2 %. Sums that differ in a bit end the run. BASE's kernels must take the same arguments.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from shardcore_bench.text_ids import text_ids
from shardcore_bench.timing import duration, take_turns
from shardcore_bench.workload import ALL_DISTRIBUTIONS, FULL, QUICK, Sizes, draw_ids, table_rows

from shardcore._core.constants import KINDS
from shardcore.dtypes import as_dtype, row_bytes, working_dtype
from shardcore.memory.zeros import aligned_zeros
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.segment_reduce import TYPE_NAMES

from .revisions import checked_out

__all__ = ["compared", "kernels_of", "main"]

FLOATS: Final = ("float32", "float64", "float16", "bfloat16")

BATCHES: Final = 4
"""That take turns: rows of one batch would stay in a cache that a table does not fit."""

HEADER: Final = "| rows | base | here | here / base | spread |\n|---|--:|--:|--:|--:|"


def kernels_of(tree: Path) -> ModuleType:
    """Return the row kernels of a built tree, those for this processor, under a name of their own.

    Raises
    ------
    ImportError
        If there are none, or they do not fit what this tree has beside them.
    """
    here = best_module("shardcore._core.rows")
    name = here.__name__.rpartition(".")[2]
    path = tree / "shardcore" / "_core" / Path(str(here.__file__)).name
    found = importlib.util.spec_from_file_location(f"kernels_of_{tree.name}.{name}", path)
    if found is None or found.loader is None:
        raise ImportError(f"no kernels: {path}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def compared(
    kernels: Sequence[ModuleType],
    rows: NDArray[Any],
    batches: Sequence[NDArray[np.int64]],
    pooling: int,
    weighted: bool,
    rounds: int,
) -> tuple[float, float, float, tuple[float, float]]:
    """Return the medians of both kernels, of the rounds' ratios, and the quartiles of these.

    Raises
    ------
    AssertionError
        If they sum to different bits.
    """
    row_splits = np.arange(batches[0].size // pooling + 1, dtype=np.int64) * pooling
    value = working_dtype(rows.dtype)
    outs = [np.empty((row_splits.size - 1, rows.shape[1]), value) for _ in kernels]
    weights = np.random.default_rng(5).random(batches[0].size).astype(value) if weighted else None
    table, kind = row_bytes(rows), KINDS[rows.dtype.name]

    def summing(module: ModuleType, out: NDArray[Any]) -> Iterator[None]:
        kernel = module.segment_reduce["int64_t", TYPE_NAMES[value]]
        divided, asking = module.GIVEN_DIVISORS, PACE.asking
        for ids in itertools.cycle(batches):
            yield kernel(table, kind, ids, row_splits, weights, None, divided, out, asking)

    base, here = (summing(*pair) for pair in zip(kernels, outs, strict=True))
    for _ in batches:
        next(base), next(here)
        np.testing.assert_array_equal(outs[0].view(np.uint8), outs[1].view(np.uint8))
    times = take_turns(lambda: next(here), lambda: next(base), rounds)
    low, high = times.spread
    medians = (float(np.median(one)) for one in (times.theirs, times.ours))
    return (*medians, 1 / times.ratio, (1 / high, 1 / low))


def _batches(sizes: Sizes, distribution: str, rows: int) -> list[NDArray[np.int64]]:
    draw = np.random.default_rng(2)
    count = sizes.bags * sizes.pooling
    if distribution == "text":
        return [text_ids(draw, sizes.bags, sizes.pooling, rows) for _ in range(BATCHES)]
    return [draw_ids(draw, distribution, count, rows) for _ in range(BATCHES)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sums",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base", help="a revision, as git names it, or the folder of a built tree")
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--dtypes", nargs="+", choices=FLOATS, default=["float32"])
    parser.add_argument("--rows", type=int, nargs="+", help="of the table; as the workload has it")
    parser.add_argument("--ids", nargs="+", choices=ALL_DISTRIBUTIONS, default=ALL_DISTRIBUTIONS)
    parser.add_argument("--weighted", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small tables, to see that it works")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    sizes = QUICK if options.quick else FULL
    if Path(options.base).is_dir():
        return _printed(Path(options.base).resolve(), sizes, options)
    with checked_out(options.base) as tree:
        return _printed(tree, sizes, options)


def _printed(tree: Path, sizes: Sizes, options: argparse.Namespace) -> int:
    kernels = kernels_of(tree), best_module("shardcore._core.rows")
    print(HEADER, flush=True)
    for dtype, dim in itertools.product(options.dtypes, options.dims):
        for count in options.rows or [None]:
            of = sizes if count is None else replace(sizes, rows=count, dim=dim)
            drawn = table_rows(of, dim)
            rows = aligned_zeros(drawn.shape, as_dtype(dtype))
            rows[...] = drawn
            for ids in options.ids:
                batches = _batches(sizes, ids, len(rows))
                base, here, ratio, (low, high) = compared(
                    kernels, rows, batches, sizes.pooling, options.weighted, options.rounds
                )
                cells = (
                    f"{len(rows):,} of {dim} {dtype}, {ids}",
                    duration(base),
                    duration(here),
                    f"**{ratio:.2f}**",
                    f"{low:.2f} to {high:.2f}",
                )
                print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
