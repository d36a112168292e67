"""How cost grows: with the ids of a batch, and with the rows of the table they name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shardcore_bench import ours
from shardcore_bench.cases.case import Case, Point
from shardcore_bench.contender import EXACT
from shardcore_bench.tasks import Bags, LookupTask, StepTask, Update
from shardcore_bench.workload import Sizes, draw_ids

__all__ = ["growth"]

DIM: Final = 8
"""Narrow, so that the largest table is 3 GB."""

POOLING: Final = 10
LEAST_ROWS: Final = 1_000
LEAST_IDS: Final = 100


def growth(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield lookups and steps of more and more uniform ids, and in larger and larger tables."""
    yield from _cases("ids", sizes.growth_rows, powers(LEAST_IDS, sizes.most_ids))
    for rows in powers(LEAST_ROWS, sizes.most_rows):
        yield from _cases("rows", rows, (sizes.growth_ids,))


def powers(least: int, most: int) -> tuple[int, ...]:
    """Return `least`, ten times as much, and so on, up to `most`.

    Examples
    --------
    >>> powers(100, 10_000)
    (100, 1000, 10000)
    """
    found = [least]
    while found[-1] * 10 <= most:
        found.append(found[-1] * 10)
    return tuple(found)


def _cases(grows: str, num_rows: int, counts: tuple[int, ...]) -> Iterator[Case]:
    """Yield the cases of one table, and of each number of ids."""
    rows = np.random.default_rng(1).random((num_rows, DIM), np.float32)
    for count in counts:
        ids = draw_ids(np.random.default_rng(2), "uniform", count, num_rows)
        splits = np.arange(0, count + 1, POOLING, dtype=np.int64)
        size = num_rows if grows == "rows" else count
        what = f"{count:,} ids, {num_rows:,} rows of {DIM}"
        yield _lookup(LookupTask(rows, ids, splits), what, Point(f"lookup by {grows}", size))
        gradient = np.random.default_rng(3).standard_normal((splits.size - 1, DIM), np.float32)
        task = StepTask([rows], [Bags(0, ids, splits, gradient)], Update("RowwiseAdagrad"))
        yield _step(task, what, Point(f"step by {grows}", size))


def _lookup(task: LookupTask, what: str, point: Point) -> Case:
    return Case(
        f"lookup, {what}",
        lambda: ours.lookup_of(ours.engine_of(task.rows, "sum"), task),
        lambda peer: peer.lookup(task),
        {"torch": None, "FBGEMM": None},
        EXACT,
        point=point,
    )


def _step(task: StepTask, what: str, point: Point) -> Case:
    return Case(
        f"RowwiseAdagrad step, {what}",
        lambda: ours.step(task),
        lambda peer: peer.step(task),
        {"FBGEMM": None},
        task.tolerance,
        point=point,
    )
