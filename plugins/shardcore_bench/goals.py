"""The ratios we are after. They stand beside what is measured; nothing passes or fails on one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardcore_bench.timing import duration

__all__ = [
    "LOOKUP_FLOOR",
    "STEP_FLOOR",
    "Goal",
    "at_least",
    "at_most",
    "no_slower_than",
    "of_the_table",
]


@dataclass(frozen=True)
class Goal:
    """A ratio peer / ours to reach, or a time not to exceed.

    Attributes
    ----------
    ratio : float, optional
        At least.
    seconds : float, optional
        Of one call of ours, at most.
    """

    ratio: float | None = None
    seconds: float | None = None

    def reached(self, ratio: float, seconds: float) -> bool:
        """Return whether a measured ratio and our measured time are good enough."""
        return (self.ratio is None or ratio >= self.ratio) and (
            self.seconds is None or seconds <= self.seconds
        )

    def __str__(self) -> str:
        parts = [f"≥ {self.ratio:.3g}"] if self.ratio is not None else []
        return ", ".join(
            parts + ([f"≤ {duration(self.seconds)}"] if self.seconds is not None else [])
        )


def at_least(ratio: float) -> Goal:
    """Return the goal of being so many times as fast as the peer."""
    return Goal(ratio=ratio)


def no_slower_than(factor: float) -> Goal:
    """Return the goal of taking at most so many times as long as the peer.

    Examples
    --------
    >>> str(no_slower_than(1.1))
    '≥ 0.909'
    """
    return Goal(ratio=1 / factor)


def at_most(seconds: float) -> Goal:
    """Return the goal of a call that takes no longer."""
    return Goal(seconds=seconds)


LOOKUP_FLOOR: Final = {"memory": no_slower_than(1 / 0.9)}
STEP_FLOOR: Final = {"memory": no_slower_than(1.25)}
"""How near each should come to what its bytes cost."""

# One table of 4M x 64, by threads: with uniform ids, and with skewed ones.
_TABLE: Final = {
    ("lookup", 1): (1.8, 1.4),
    ("lookup", 2): (2.0, 1.3),
    ("RowwiseAdagrad", 1): (1.7, 1.4),
    ("RowwiseAdagrad", 2): (3.0, 2.2),
    ("SGD", 1): (2.7, 1.9),
    ("SGD", 2): (4.5, 3.0),
    ("Adagrad", 1): (5.5, 3.5),
    ("Adagrad", 2): (9.0, 6.0),
}


def of_the_table(work: str, distribution: str, threads: int) -> Goal | None:
    """Return the goal of a lookup or a step in one large table; None for other thread counts.

    The goal for skewed ids was set for zipf 1.2 and holds for every skew.
    """
    found = _TABLE.get((work, threads))
    return None if found is None else at_least(found[distribution != "uniform"])
