"""Steps of few bags, where calls take the time, not rows. Of lookups, see ``serving.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardcore_bench.cases.case import Case
from shardcore_bench.cases.step import step_case
from shardcore_bench.goals import at_least
from shardcore_bench.tasks import Bags, StepTask, Update
from shardcore_bench.workload import Sizes, bags_of_ids, gradient_of, table_rows

__all__ = ["few_bags"]

COUNTS: Final = (1, 64, 512)


def few_bags(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield steps through an engine."""
    rows = table_rows(sizes)
    ids, row_splits = bags_of_ids(sizes, "uniform")
    gradient = gradient_of(sizes)
    for count in dict.fromkeys(min(count, sizes.bags) for count in COUNTS):
        splits = row_splits[: count + 1]
        bags = Bags(0, ids[: splits[-1]], splits, gradient[:count])
        name = f"{count} bag{'s' if count > 1 else ''}"
        for kind, peers in (("SGD", ("torch", "FBGEMM")), ("RowwiseAdagrad", ("FBGEMM",))):
            task = StepTask([rows], [bags], Update(kind))
            yield step_case(f"step, {kind}, {name}", task, dict.fromkeys(peers, at_least(1)))
