"""What shards cost: partition, slices, variables, and lookups in arrays that lie in shards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller
from typing import Any, Final

import numpy as np

import shardcore as sc
from shardcore_bench import ours
from shardcore_bench.cases.case import Case
from shardcore_bench.goals import Goal, at_least, no_slower_than
from shardcore_bench.tasks import PartitionTask, ShardsTask, SliceTask, VariableTask
from shardcore_bench.workload import DISTRIBUTIONS, Sizes, bags_of_ids, draw_ids, table_rows

__all__ = ["lookups_in_shards", "partitions", "slices", "variables"]

SLICES: Final = {"all": slice(None), "reversed": slice(None, None, -3), "few rows": slice(5, 9)}


def partitions(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield ids grouped by shard, with the way back."""
    for distribution in DISTRIBUTIONS:
        draw = np.random.default_rng(0)
        ids = draw_ids(draw, distribution, sizes.partition_ids, sizes.rows)
        for dtype in (np.int32, np.int64):
            goals = {"FBGEMM": at_least(5), "NumPy": None}
            if dtype is np.int64:  # what TensorFlow's takes
                goals["TensorFlow"] = None
            yield _partition(sizes, "div", ids.astype(dtype), distribution, goals)
    yield _partition(sizes, "mod", ids, distribution, {"NumPy": None})


def _partition(
    sizes: Sizes, strategy: str, ids: Any, distribution: str, goals: dict[str, Goal | None]
) -> Case:
    layout: sc.Layout = getattr(sc.Layout, strategy)(sizes.rows, sizes.shards)
    task = PartitionTask(ids, layout.shard_sizes, strategy)
    name = f"partition, {strategy}, {ids.size:,} {ids.dtype} ids, {distribution}"
    return Case(name, partial(ours.partition, layout, task), methodcaller("partition", task), goals)


def slices(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield slices of the rows as slices of the shards."""
    layout = sc.Layout.div(sizes.rows, sizes.shards)
    for name, rows in SLICES.items():
        task = SliceTask(layout.shard_sizes, rows)
        goal = None if name == "few rows" else at_least(6)
        yield Case(
            f"slice, {name}, {sizes.shards} shards",
            partial(ours.decompose_slice, layout, task),
            methodcaller("decompose_slice", task),
            {"TensorFlow": goal},
        )


def variables(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield slices read from a variable in shards."""
    numbers = np.arange(sizes.variable_rows * sizes.dim, dtype=np.float32)
    whole = numbers.reshape(sizes.variable_rows, sizes.dim)
    shards = [part.copy() for part in np.array_split(whole, sizes.shards)]
    for name, rows in SLICES.items():
        task = VariableTask(shards, rows)
        goal = None if name == "few rows" else no_slower_than(1.2)
        yield Case(
            f"variable, {name}, {len(shards)} shards of {len(shards[0]):,} x {sizes.dim}",
            partial(ours.read_slice, task),
            methodcaller("read_slice", task),
            {"NumPy": goal, "TensorFlow": None},
        )


def lookups_in_shards(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield lookups in a table of many shards, beside the same in one array."""
    shards = np.array_split(table_rows(sizes), sizes.shards)
    for distribution in DISTRIBUTIONS:
        task = ShardsTask(shards, *bags_of_ids(sizes, distribution))
        yield Case(
            f"embedding_lookup_sparse, {sizes.shards} shards, {distribution}",
            partial(ours.lookup_in_shards, task),
            methodcaller("lookup_in_shards", task),
            {"shardcore": no_slower_than(1.5)},
        )
