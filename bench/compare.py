"""Ours against theirs, in one process: ``python -m bench.compare`` from the root of the repository.

For each case and each peer: both do the work once and must agree (``allclose``); then they take
turns, ours first in one round and theirs first in the next, so that whatever else the machine does
meets both alike. The table gives medians, minima, and the ratio peer / ours: the median over the
rounds of the ratio within a round. Above 1, ours is faster. No time makes it fail.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import getitem
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import shardcore as sc
from shardcore.store import StoreTable, instruction_set
from shardcore.store.segment_reduce import segment_reduce

from .peers import (
    PEERS,
    Contender,
    LookupTask,
    PartitionTask,
    Peer,
    SliceTask,
    StepTask,
    VariableTask,
)
from .workload import DISTRIBUTIONS, FULL, QUICK, Sizes, bags_of_ids, gradient_of, table_rows

__all__ = ["main"]

SAMPLE_SECONDS: Final = 0.002
"""Calls shorter than this are timed several at once."""

LEARNING_RATE: Final = 0.01
ACCUMULATOR: Final = 0.1

SLICES: Final = {"all": slice(None), "reversed": slice(None, None, -3), "few rows": slice(5, 9)}


@dataclass(frozen=True)
class Case:
    """A task, our ways to do it, and how a peer is asked to."""

    name: str
    ours: Callable[[], list[Contender]]
    theirs: Callable[[Peer], Contender | None]


@dataclass(frozen=True)
class Result:
    case: str
    ours: str
    peer: str
    our_seconds: list[float]
    peer_seconds: list[float]

    def row(self) -> str:
        """Return the line of the Markdown table."""
        ratios = [
            theirs / ours for ours, theirs in zip(self.our_seconds, self.peer_seconds, strict=True)
        ]
        cells = (
            self.case,
            self.ours,
            self.peer,
            *(
                duration(pick(seconds))
                for seconds in (self.our_seconds, self.peer_seconds)
                for pick in (statistics.median, min)
            ),
            f"**{statistics.median(ratios):.2f}**",
        )
        return f"| {' | '.join(cells)} |"


HEADER: Final = (
    "| case | ours | peer | ours, median | min | peer, median | min | peer / ours |\n"
    "|---|---|---|--:|--:|--:|--:|--:|"
)


def duration(seconds: float) -> str:
    """Return seconds with three digits in a unit that suits them.

    Examples
    --------
    >>> duration(0.01234), duration(5.6e-6)
    ('12.3 ms', '5.6 µs')
    """
    for scale, unit in ((1, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def take(run: Callable[[], Any], calls: int) -> float:
    """Return the seconds of one of `calls` calls."""
    start = perf_counter()
    for _ in range(calls):
        run()
    return (perf_counter() - start) / calls


def calls_per_sample(run: Callable[[], Any]) -> int:
    """Return how many calls last about `SAMPLE_SECONDS`."""
    run()
    return max(1, round(SAMPLE_SECONDS / take(run, 3)))


def check_equal(ours: Contender, theirs: Contender, case: str) -> None:
    """Let both do the work once and compare.

    Raises
    ------
    AssertionError
        If a result differs, in number, shape or value.
    """
    message = f"{case}: {ours.what} and {theirs.what} disagree"
    mine, other = ours.arrays(ours.run()), theirs.arrays(theirs.run())
    assert len(mine) == len(other), f"{message}: {len(mine)} and {len(other)} arrays"
    for left, right in zip(mine, other, strict=True):
        if left.dtype.kind == "f":
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5, err_msg=message)
        else:
            np.testing.assert_array_equal(left, right, err_msg=message)


def interleave(ours: Contender, theirs: Contender, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of both, one sample each per round."""
    pairs = [(run, calls_per_sample(run), list[float]()) for run in (ours.run, theirs.run)]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for run, calls, seconds in pairs if number % 2 == 0 else reversed(pairs):
                seconds.append(take(run, calls))
    finally:
        gc.enable()
    return pairs[0][2], pairs[1][2]


# --- the cases --------------------------------------------------------------------------------


def slice_cases(sizes: Sizes) -> Iterator[Case]:
    for name, rows in SLICES.items():
        yield slice_case(f"slice, {name}, {sizes.shards} shards", sizes, rows)


def slice_case(name: str, sizes: Sizes, rows: slice) -> Case:
    layout = sc.Layout.div(sizes.rows, sizes.shards)
    task = SliceTask(layout.shard_sizes, rows)

    def arrays(found: list[tuple[int, slice]]) -> tuple[NDArray[Any], ...]:
        local = [np.arange(task.sizes[shard])[part] for shard, part in found]
        return np.array([shard for shard, _ in found]), *local

    def ours() -> list[Contender]:
        run = partial(layout.decompose_slice, rows)
        return [Contender("Layout.decompose_slice", run, arrays)]

    return Case(name, ours, lambda peer: peer.decompose_slice(task))


def partition_cases(sizes: Sizes) -> Iterator[Case]:
    ids = np.random.default_rng(0).integers(0, sizes.rows, sizes.partition_ids)
    for strategy in ("div", "mod"):
        name = f"partition, {strategy}, {ids.size:,} ids, {sizes.shards} shards"
        layout: sc.Layout = getattr(sc.Layout, strategy)(sizes.rows, sizes.shards)
        yield partition_case(name, layout, ids)


def partition_case(name: str, layout: sc.Layout, ids: NDArray[np.int64]) -> Case:
    task = PartitionTask(ids, layout.shard_sizes, layout.strategy)

    def arrays(found: sc.Partition) -> tuple[NDArray[Any], ...]:
        return found.local, np.diff(found.row_splits), found.inverse

    def ours() -> list[Contender]:
        return [Contender("Layout.partition", partial(layout.partition, ids), arrays)]

    return Case(name, ours, lambda peer: peer.partition(task))


def variable_cases(sizes: Sizes) -> Iterator[Case]:
    numbers = np.arange(sizes.variable_rows * sizes.dim, dtype=np.float32)
    whole = numbers.reshape(sizes.variable_rows, sizes.dim)
    shards = [part.copy() for part in np.array_split(whole, sizes.shards)]
    for name, rows in SLICES.items():
        shape = f"{len(shards)} shards of {len(shards[0]):,} x {sizes.dim}"
        yield variable_case(f"variable, {name}, {shape}", shards, rows)


def variable_case(name: str, shards: list[NDArray[np.float32]], rows: slice) -> Case:
    task = VariableTask(shards, rows)

    def ours() -> list[Contender]:
        read = partial(getitem, sc.ShardedVariable(shards), rows)
        return [Contender("ShardedVariable[...]", read, lambda found: (found,))]

    return Case(name, ours, lambda peer: peer.read_slice(task))


def engine_of(
    rows: NDArray[np.float32], optimizer: sc.Optimizer | None = None
) -> sc.ShardedEmbedding:
    count, dim = rows.shape
    table = sc.TableConfig(count, dim, initializer=rows, combiner="sum", name="items")
    engine = sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer=optimizer)
    engine.build()
    return engine


def lookup_cases(sizes: Sizes) -> Iterator[Case]:
    rows = table_rows(sizes)
    batches = {name: bags_of_ids(sizes, name) for name in DISTRIBUTIONS}
    for name, bags in {"1 bag": 1, "64 bags": min(64, sizes.bags)}.items():
        ids, row_splits = batches["uniform"]
        batches[name] = ids[: row_splits[bags]], row_splits[: bags + 1]
    for name, (ids, row_splits) in batches.items():
        yield lookup_case(f"lookup, {name}", LookupTask(rows, ids, row_splits))


def lookup_case(name: str, task: LookupTask) -> Case:
    def ours() -> list[Contender]:
        """Both levels: the store's face of the kernel, which checks the ids too, and the engine."""
        count, dim = task.rows.shape
        table = StoreTable(count, dim, task.rows.dtype, None)
        table.write(None, 0, task.rows)
        face = partial(segment_reduce, table.rows, task.ids, task.row_splits)
        engine = partial(engine_of(task.rows), (task.ids, task.row_splits))
        return [
            Contender("segment_reduce", face, lambda found: (found,)),
            Contender("ShardedEmbedding(...)", engine, lambda found: (found,)),
        ]

    return Case(name, ours, lambda peer: peer.lookup(task))


def step_cases(sizes: Sizes) -> Iterator[Case]:
    rows, gradient = table_rows(sizes), gradient_of(sizes)
    for optimizer in ("SGD", "Adagrad"):
        for distribution in DISTRIBUTIONS:
            ids, row_splits = bags_of_ids(sizes, distribution)
            # Touched rows and a few that must stay as they are.
            probe = np.concatenate((np.unique(ids)[:5_000], np.setdiff1d(np.arange(100), ids)))
            task = StepTask(
                rows, ids, row_splits, gradient, optimizer, LEARNING_RATE, ACCUMULATOR, probe
            )
            yield step_case(f"step, {optimizer}, {distribution}", task)


def step_case(name: str, task: StepTask) -> Case:
    def ours() -> list[Contender]:
        engine = engine_of(task.rows, our_optimizer(task))

        def run() -> Any:
            engine.enqueue((task.ids, task.row_splits))
            activations = engine.dequeue()
            engine.apply_gradients(task.gradient)
            return activations

        def arrays(found: Any) -> tuple[NDArray[Any], ...]:
            return found, engine.tables["items"][task.probe]

        return [Contender("enqueue, dequeue, apply_gradients", run, arrays)]

    return Case(name, ours, lambda peer: peer.step(task))


def our_optimizer(task: StepTask) -> sc.Optimizer:
    found: sc.Optimizer
    if task.optimizer == "SGD":
        found = sc.optimizers.SGD(learning_rate=task.learning_rate)
    else:
        found = sc.optimizers.Adagrad(
            learning_rate=task.learning_rate, initial_accumulator_value=task.accumulator
        )
    return found


CASES: Final[dict[str, Callable[[Sizes], Iterator[Case]]]] = {
    "slices": slice_cases,
    "partition": partition_cases,
    "variable": variable_cases,
    "lookup": lookup_cases,
    "step": step_cases,
}

THREADED: Final = ("lookup", "step")


# --- the run ----------------------------------------------------------------------------------


def measured(case: Case, peers: Sequence[Peer], rounds: int) -> Iterator[Result]:
    """Compare every way of ours with every peer; equal results are asserted first."""
    for peer in peers:
        theirs = case.theirs(peer)
        if theirs is None:
            continue
        for ours in case.ours():  # made anew for each peer: a step changes its table
            check_equal(ours, theirs, case.name)
            yield Result(
                case.name,
                ours.what,
                f"{peer.name}: {theirs.what}",
                *interleave(ours, theirs, rounds),
            )


def present(peers: Sequence[Peer]) -> list[Peer]:
    """Return the installed peers, and print which are and why the others are not."""
    found = []
    for peer in peers:
        reason = peer.missing()
        print(f"- {peer.version() if reason is None else f'{peer.name} left out: {reason}'}")
        if reason is None:
            found.append(peer)
    return found


def with_threads(peers: Sequence[Peer], threads: int) -> list[Peer]:
    """Set the threads of everyone; return the peers that could follow."""
    sc.set_num_threads(threads)
    able = []
    for peer in peers:
        try:
            peer.set_num_threads(threads)
        except RuntimeError as error:
            print(f"\n{peer.name} left out with {threads} threads: {error}")
        else:
            able.append(peer)
    return able


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the table, fewer ids")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="such as: 1 2")
    parser.add_argument("--rounds", type=int, default=21, help="pairs per comparison")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peers", nargs="+", choices=[peer.name for peer in PEERS])
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit code."""
    options = arguments(argv)
    sizes = QUICK if options.quick else FULL
    print(f"shardcore {sc.__version__}, instruction set {instruction_set.NAME}; ", end="")
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print(f"{sizes}; {options.rounds} rounds\n")
    chosen = [peer for peer in PEERS if options.peers is None or peer.name in options.peers]
    peers = present(chosen)
    print("\nFBGEMM's row-wise Adagrad keeps one accumulator per row and is no peer of an")
    print("element-wise Adagrad: SGD meets EXACT_SGD, Adagrad meets EXACT_ADAGRAD, epsilon 0.")
    for number, threads in enumerate(options.threads):
        able = with_threads(peers, threads)
        # Slices, partitions and reads of variables use one thread, whatever they are given.
        groups = [name for name in options.only if number == 0 or name in THREADED]
        if not groups:
            continue
        print(f"\n### {threads} thread{'s' if threads > 1 else ''}\n\n{HEADER}", flush=True)
        for group in groups:
            for case in CASES[group](sizes):
                for result in measured(case, able, options.rounds):
                    print(result.row(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
