"""Combined lookups through the engine: sums at several dims, other combiners, two-byte rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardcore_bench.cases.case import Case
from shardcore_bench.contender import Tolerance
from shardcore_bench.goals import LOOKUP_FLOOR, Goal, at_least, no_slower_than, of_the_table
from shardcore_bench.ours import engine_of, lookup_of
from shardcore_bench.tasks import LookupTask
from shardcore_bench.workload import (
    ALL_DISTRIBUTIONS,
    DISTRIBUTIONS,
    Sizes,
    bags_of_ids,
    table_rows,
)

__all__ = ["combiners", "lookups", "other_dims", "short_rows"]

DIMS: Final = (16, 128, 256)

OTHER_DIMS: Final = (1, 4, 12, 24, 48, 100)
"""Not those of most tables, which are summed in loops of known length."""

COMBINERS: Final = (
    ("weighted sum", ("torch", "FBGEMM")),
    ("mean", ("torch", "FBGEMM")),
    ("weighted mean", ("TensorFlow",)),
    ("sqrtn", ("TensorFlow",)),
    ("weighted sqrtn", ("TensorFlow",)),
)

# Some peers round their sums to two bytes again.
OF_TWO_BYTES: Final = {
    "float16": Tolerance(relative=2e-3, absolute=2e-2),
    "bfloat16": Tolerance(relative=2e-2, absolute=1e-1),
}


def lookups(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield sums of float32 rows: one table at every skew of the ids, and tables of other dims."""
    yield from _of_one_dim(sizes, threads, sizes.dim, ALL_DISTRIBUTIONS)
    for dim in DIMS:
        yield from _of_one_dim(sizes, threads, dim, DISTRIBUTIONS)


def _of_one_dim(
    sizes: Sizes, threads: int, dim: int, distributions: tuple[str, ...]
) -> Iterator[Case]:
    rows = table_rows(sizes, dim)
    engine = engine_of(rows, "sum")
    for name in distributions:
        goal = of_the_table("lookup", name, threads)
        task = LookupTask(rows, *bags_of_ids(sizes, name, len(rows)))
        goals = {"torch": goal, "FBGEMM": goal, **LOOKUP_FLOOR}
        yield _case(f"lookup, dim {dim}, {name}", engine, task, goals)


def other_dims(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield sums of rows of other dims, in a table that the caches hold and in the large one.

    FBGEMM takes multiples of four.
    """
    for dim in OTHER_DIMS:
        peers = ("torch", "FBGEMM") if dim % 4 == 0 else ("torch",)
        for of in (replace(sizes, rows=sizes.many_rows), sizes):
            rows = table_rows(of, dim)
            task = LookupTask(rows, *bags_of_ids(of, "uniform", len(rows)))
            name = f"lookup, dim {dim}, {len(rows):,} rows"
            yield _case(name, engine_of(rows, "sum"), task, dict.fromkeys(peers, at_least(1)))


def combiners(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield what costs more than a plain sum, also beside our own sum."""
    rows = table_rows(sizes)
    for name, peers in COMBINERS:
        combiner = name.split()[-1]
        engine = engine_of(rows, combiner)
        for distribution in DISTRIBUTIONS:
            task = LookupTask(rows, *bags_of_ids(sizes, distribution), combiner=combiner)
            if name.startswith("weighted"):
                weights = np.random.default_rng(5).random(task.ids.size, np.float32) + 0.5
                task = replace(task, weights=weights)
            goals = {**dict.fromkeys(peers, at_least(1.8)), "shardcore": no_slower_than(1.1)}
            yield _case(f"{name}, dim {rows.shape[1]}, {distribution}", engine, task, goals)


def short_rows(sizes: Sizes, threads: int) -> Iterator[Case]:
    """float16 and bfloat16; narrow float16 rows against torch, wide ones also against float32.

    Where every row comes from memory, half the bytes must show. FBGEMM has no bfloat16 tables on a
    CPU: torch stands in.
    """
    narrow = {"torch": at_least(1.5), "FBGEMM": at_least(1.0)}
    yield from _of_two_bytes(sizes, np.float16, 16, narrow)
    wide = {"FBGEMM": at_least(1.0), "shardcore": at_least(1.6)}
    yield from _of_two_bytes(sizes, np.float16, sizes.dim, wide)
    if importlib.util.find_spec("ml_dtypes") is not None:
        from ml_dtypes import bfloat16

        yield from _of_two_bytes(sizes, bfloat16, sizes.dim, {**wide, "torch": at_least(1.0)})


def _of_two_bytes(
    sizes: Sizes, dtype: Any, dim: int, goals: Mapping[str, Goal | None]
) -> Iterator[Case]:
    rows = table_rows(sizes, dim, dtype)
    engine, name = engine_of(rows, "sum"), rows.dtype.name
    for distribution in DISTRIBUTIONS:
        bags = bags_of_ids(sizes, distribution, len(rows))
        task = LookupTask(rows, *bags, tolerance=OF_TWO_BYTES[name])
        aims = {**goals, **LOOKUP_FLOOR}
        if distribution != "uniform" and "shardcore" in aims:
            aims["shardcore"] = None  # hot rows come from the cache
        yield _case(f"lookup, {name}, dim {dim}, {distribution}", engine, task, aims)


def _case(name: str, engine: Any, task: LookupTask, goals: Mapping[str, Goal | None]) -> Case:
    return Case(
        name,
        lambda: lookup_of(engine, task),
        lambda peer: peer.lookup(task),
        goals,
        task.tolerance,
    )
