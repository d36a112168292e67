"""Small lookups, where the call is the cost: one bag and 64, in every kind of table.

One batch again and again finds its rows in the second cache; where batches take turns, rows come
from memory, as they do for the requests of different users.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

import shardcore as sc
from shardcore_bench.cases.case import Case
from shardcore_bench.contender import Contender, in_turn
from shardcore_bench.goals import Goal, at_least, at_most
from shardcore_bench.ours import engine_of, lookup_of, prepared_lookup
from shardcore_bench.tasks import LookupTask
from shardcore_bench.workload import Sizes, bags_of_ids, table_rows

__all__ = ["serving"]

MOST_TURNS: Final = 256
"""Batches in turn: of 64 bags of 32 rows of 256 bytes, 128 MiB."""


def serving(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield lookups of few bags, where what is around the kernel takes the time."""
    rows = table_rows(sizes)
    engine = engine_of(rows, "sum")
    shards = np.array_split(rows, sizes.shards)
    tables = {
        "array": rows,
        "variable, 1 shard": sc.ShardedVariable([rows]),
        f"variable, {sizes.shards} shards": sc.ShardedVariable(shards),
        "engine's table": engine.tables["items"],
    }
    ids, row_splits = bags_of_ids(sizes, "uniform")

    def task_of(first: int, bags: int) -> LookupTask:
        lo, hi = row_splits[[first, first + bags]]
        return LookupTask(rows, ids[lo:hi], row_splits[first : first + bags + 1] - lo)

    for bags in (1, min(64, sizes.bags)):
        count = f"{bags} bag{'s' if bags > 1 else ''}"
        task = task_of(0, bags)
        for what, params in tables.items():
            contender = prepared_lookup(params, what, task)
            yield _case(f"prepared, {count}, {what}", contender, [task], at_least(2))
        goal = at_most(10e-6) if bags == 1 else None
        yield _case(f"engine(...), {count}", lookup_of(engine, task), [task], goal)
    tasks = [task_of(first, bags) for first in range(0, min(sizes.bags, MOST_TURNS * bags), bags)]
    for what in ("array", "engine's table"):
        contender = in_turn([prepared_lookup(tables[what], what, task) for task in tasks])
        name = f"prepared, {len(tasks)} times {bags} bags, {what}"
        yield _case(name, contender, tasks, at_least(2))


def _case(name: str, ours: Contender, tasks: list[LookupTask], goal: Goal | None) -> Case:
    return Case(name, lambda: ours, lambda peer: peer.lookups(tasks), {"torch": goal})
