"""What is compared, by group; each is a generator of cases, which holds one table at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..workload import Sizes
from .case import Case
from .lookup import combiners, lookups, short_rows
from .many_tables import criteo, many_small
from .serving import serving
from .shards import lookups_in_shards, partitions, slices, variables
from .step import other_forms, other_optimizers, steps

__all__ = ["GROUPS", "Case"]

GROUPS: Final[dict[str, Callable[[Sizes, int], Iterator[Case]]]] = {
    "lookup": lookups,
    "combiner": combiners,
    "short": short_rows,
    "step": steps,
    "optimizer": other_optimizers,
    "form": other_forms,
    "criteo": criteo,
    "many": many_small,
    "serving": serving,
    "partition": partitions,
    "slices": slices,
    "variable": variables,
    "shards": lookups_in_shards,
}
"""Each takes the sizes and the number of threads, on which some goals depend."""
