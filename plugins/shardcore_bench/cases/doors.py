"""The doors: a framework's own module, program or layer beside ours, which calls an engine.

One table of at most 2**18 rows: a framework may make gradients of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from shardcore_bench import doors
from shardcore_bench.cases.case import Case
from shardcore_bench.contender import Contender
from shardcore_bench.goals import at_least
from shardcore_bench.peers import Peer
from shardcore_bench.tasks import Bags, LookupTask, StepTask, Update
from shardcore_bench.workload import Sizes, bags_of_ids, gradient_of, table_rows

__all__ = ["at_doors"]

COUNTS: Final = (1, 64, 512, 4096)
MOST_ROWS: Final = 1 << 18

OURS: Final[
    dict[str, tuple[str, Callable[[LookupTask], Contender], Callable[[StepTask], Contender]]]
] = {
    "torch": ("shardcore.torch", doors.torch_lookup, doors.torch_step),
    "JAX": ("shardcore.jax", doors.jax_lookup, doors.jax_step),
    "Keras": ("shardcore.tf", doors.keras_lookup, doors.keras_step),
}
"""By the peer that each is a door to."""


def at_doors(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield lookups without gradients, and steps by SGD, of bags of one length."""
    rows = table_rows(sizes)[:MOST_ROWS]
    ids, row_splits = bags_of_ids(sizes, "uniform", len(rows))
    gradient = gradient_of(sizes)
    for count in dict.fromkeys(min(count, sizes.bags) for count in COUNTS):
        splits = row_splits[: count + 1]
        bags = Bags(0, ids[: splits[-1]], splits, gradient[:count])
        look_up = LookupTask(rows, bags.ids, bags.row_splits)
        step = StepTask([rows], [bags], Update("SGD"))
        name = f"{count} bag{'s' if count > 1 else ''}"
        for peer, (door, our_lookup, our_step) in OURS.items():
            goals = {peer: at_least(1)}
            yield Case(
                f"{door}, lookup, {name}",
                partial(our_lookup, look_up),
                partial(_lookup_of, look_up),
                goals,
            )
            yield Case(
                f"{door}, step, SGD, {name}",
                partial(our_step, step),
                partial(_step_of, step),
                goals,
                step.tolerance,
            )


def _lookup_of(task: LookupTask, peer: Peer) -> Contender:
    return peer.own_lookup(task)


def _step_of(task: StepTask, peer: Peer) -> Contender:
    return peer.own_step(task)
