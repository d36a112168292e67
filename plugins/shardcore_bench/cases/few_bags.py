"""Few bags, where calls take the time, not rows: steps, and modules of `shardcore.torch`.

Of lookups by themselves, see ``serving.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from shardcore_bench import ours
from shardcore_bench.cases.case import Case
from shardcore_bench.cases.step import step_case
from shardcore_bench.contender import Contender
from shardcore_bench.goals import at_least
from shardcore_bench.peers import Peer
from shardcore_bench.tasks import Bags, LookupTask, StepTask, Update
from shardcore_bench.workload import Sizes, bags_of_ids, gradient_of, table_rows

__all__ = ["few_bags"]

COUNTS: Final = (1, 64, 512)


def few_bags(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield steps through an engine, then lookups without gradients and steps through modules."""
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
        task = StepTask([rows], [bags], Update("SGD"))
        look_up = LookupTask(rows, bags.ids, bags.row_splits)
        yield Case(
            f"shardcore.torch, lookup, {name}",
            partial(ours.module_lookup, look_up),
            partial(_lookup_of, look_up),
            {"torch": at_least(1)},
        )
        yield Case(
            f"shardcore.torch, step, SGD, {name}",
            partial(ours.module_step, task),
            partial(_step_of, task),
            {"torch": at_least(1)},
            task.tolerance,
        )


def _lookup_of(task: LookupTask, peer: Peer) -> Contender:
    return peer.module_lookup(task)


def _step_of(task: StepTask, peer: Peer) -> Contender:
    return peer.step(task)
