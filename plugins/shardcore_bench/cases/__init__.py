"""What is compared, by group; each is a generator of cases, which holds one table at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from shardcore_bench.cases.case import Case, Point
from shardcore_bench.cases.doors import at_doors
from shardcore_bench.cases.few_bags import few_bags
from shardcore_bench.cases.growth import growth
from shardcore_bench.cases.lookup import combiners, lookups, other_dims, short_rows
from shardcore_bench.cases.many_tables import criteo, many_small
from shardcore_bench.cases.serving import serving
from shardcore_bench.cases.shards import lookups_in_shards, partitions, slices, variables
from shardcore_bench.cases.step import other_forms, other_optimizers, steps, widths
from shardcore_bench.workload import Sizes

__all__ = ["GROUPS", "Case", "Point"]

GROUPS: Final[dict[str, Callable[[Sizes, int], Iterator[Case]]]] = {
    "lookup": lookups,
    "dims": other_dims,
    "combiner": combiners,
    "short": short_rows,
    "step": steps,
    "widths": widths,
    "optimizer": other_optimizers,
    "form": other_forms,
    "criteo": criteo,
    "many": many_small,
    "serving": serving,
    "few": few_bags,
    "doors": at_doors,
    "partition": partitions,
    "slices": slices,
    "variable": variables,
    "shards": lookups_in_shards,
    "sizes": growth,
}
"""Each takes the sizes and the number of threads, on which some goals depend."""
