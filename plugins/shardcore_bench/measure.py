"""The cases of some groups, measured in this process; `compare` starts one for each.

What a run needs is settled when libraries start: OpenMP reads ``OMP_WAIT_POLICY`` once, TensorFlow
its number of threads. A process of its own also gives the memory of a group back.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from shardcore_bench.cases import GROUPS, Case, Point
from shardcore_bench.contender import UnableError, check_equal
from shardcore_bench.goals import Goal
from shardcore_bench.peers import PEERS
from shardcore_bench.timing import Times, take_turns
from shardcore_bench.workload import FULL, QUICK, SMALL

__all__ = ["SIZES", "LeftOut", "Plan", "Result", "measured"]

SIZES: Final = {"full": FULL, "quick": QUICK, "small": SMALL}


@dataclass(frozen=True)
class Plan:
    """What one process measures.

    Attributes
    ----------
    groups, peers : sequence of str
        Names; the peers are installed.
    missing : mapping
        Peers that are not -> why.
    size : str
        Of `SIZES`.
    """

    groups: Sequence[str]
    peers: Sequence[str]
    missing: Mapping[str, str]
    size: str
    threads: int
    rounds: int


@dataclass(frozen=True)
class Result:
    """One comparison, and what was aimed at."""

    case: str
    ours: str
    peer: str
    times: Times
    goal: Goal | None
    point: Point | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal was; None where there is none."""
        if self.goal is None:
            return None
        return self.goal.reached(self.times.ratio, statistics.median(self.times.ours))


@dataclass(frozen=True)
class LeftOut:
    """A comparison that could not be made."""

    case: str
    reason: str


def measured(case: Case, plan: Plan) -> Iterator[Result | LeftOut]:
    """Compare with each of the peers that the case asks; equal results are asserted first."""
    for name, goal in case.goals.items():
        if name in plan.missing:
            yield LeftOut(case.name, f"{name}: {plan.missing[name]}")
        if name not in plan.peers:
            continue
        try:
            theirs = case.theirs(PEERS[name])
        except UnableError as error:
            yield LeftOut(case.name, str(error))
            continue
        ours = case.ours()
        check_equal(ours, theirs, case.name, case.tolerance)
        times = take_turns(ours.run, theirs.run, plan.rounds)
        what = f"{name}: {theirs.what}"
        yield Result(case.name, ours.what, what, times, goal, case.point)
        del ours, theirs
        gc.collect()


def results(plan: Plan) -> Iterator[Result | LeftOut]:
    """Set everybody's threads, and measure."""
    PEERS["shardcore"].set_num_threads(plan.threads)  # also where we are no peer
    asked: set[str] = set()
    for group in plan.groups:
        for case in GROUPS[group](SIZES[plan.size], plan.threads):
            for name in case.goals.keys() & set(plan.peers) - asked:
                PEERS[name].set_num_threads(plan.threads)  # imports it, so only if it is needed
                asked.add(name)
            yield from measured(case, plan)


def as_line(found: Result | LeftOut) -> str:
    return json.dumps({"kind": type(found).__name__, **asdict(found)})


def from_line(line: str) -> Result | LeftOut | None:
    """Return what a line of a process says; None where a library printed it."""
    try:
        told = json.loads(line)
        kind = told.pop("kind")
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    if kind == "LeftOut":
        return LeftOut(**told)
    told["times"] = Times(**told["times"])
    told["goal"] = None if told["goal"] is None else Goal(**told["goal"])
    told["point"] = None if told["point"] is None else Point(**told["point"])
    return Result(**told)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line of JSON per comparison; the argument is a `Plan` as JSON."""
    (plan,) = sys.argv[1:] if argv is None else argv
    try:
        for found in results(Plan(**json.loads(plan))):
            print(as_line(found), flush=True)
    except BrokenPipeError:  # the process that reads is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
