"""Small lookups, where the call is the cost: one bag and 64, in every kind of table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import shardcore as sc
from shardcore_bench.cases.case import Case
from shardcore_bench.contender import Contender
from shardcore_bench.goals import Goal, at_least, at_most
from shardcore_bench.ours import engine_of, lookup_of, prepared_lookup
from shardcore_bench.tasks import LookupTask
from shardcore_bench.workload import Sizes, bags_of_ids, table_rows

__all__ = ["serving"]


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
    for bags in (1, min(64, sizes.bags)):
        count = f"{bags} bag{'s' if bags > 1 else ''}"
        task = LookupTask(rows, ids[: row_splits[bags]], row_splits[: bags + 1])
        for what, params in tables.items():
            contender = prepared_lookup(params, what, task)
            yield _case(f"prepared, {count}, {what}", contender, task, at_least(2))
        goal = at_most(10e-6) if bags == 1 else None
        yield _case(f"engine(...), {count}", lookup_of(engine, task), task, goal)


def _case(name: str, contender: Contender, task: LookupTask, goal: Goal | None) -> Case:
    return Case(name, lambda: contender, lambda peer: peer.lookup(task), {"torch": goal})
