"""A case: a task, our way to do it, and those it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardcore_bench.contender import EXACT, Contender, Tolerance
from shardcore_bench.goals import Goal
from shardcore_bench.peers import Peer

__all__ = ["Case", "Point"]


@dataclass(frozen=True)
class Point:
    """Where a case lies on a curve of times.

    Attributes
    ----------
    curve : str
    size : int
        What the times are drawn over.
    """

    curve: str
    size: int


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes
    ----------
    name : str
    ours : callable
        Makes our contender, anew for each peer: a step changes its table.
    theirs : callable
        Peer -> its contender; raises `UnableError` where it has none.
    goals : mapping
        By the name of each peer that is asked; None where nothing is aimed at.
    repeatable : bool
        Whether both still agree to the tolerance after a second call.
    point : Point, optional
        Of the curve on which its times are drawn; None: its ratio is.
    """

    name: str
    ours: Callable[[], Contender]
    theirs: Callable[[Peer], Contender]
    goals: Mapping[str, Goal | None]
    tolerance: Tolerance = EXACT
    repeatable: bool = True
    point: Point | None = None
