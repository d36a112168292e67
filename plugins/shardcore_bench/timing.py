"""Two contenders timed so that neither meets what the other left behind.

Calls that alternate one by one are unfair: OpenMP's threads go on spinning after a call of torch,
and take a core from what comes next. So each contender gets a block of six samples, of
which the first two are not counted, and blocks take turns: ours, theirs, theirs, ours, ours, …
What else the machine does meets both alike.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

__all__ = [
    "COUNTED",
    "UNCOUNTED",
    "Times",
    "block",
    "calls_per_sample",
    "duration",
    "quartiles",
    "take_turns",
]

UNCOUNTED: Final = 2
COUNTED: Final = 4

SAMPLE_SECONDS: Final = 0.002
"""Calls shorter than this are timed several at once."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, the median of a block, for every round.

    Attributes
    ----------
    ours, theirs : list of float
        Of equal length, at least 1.
    """

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Theirs over ours in every round; above 1, ours is faster."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios; of fewer than four, the least and the largest."""
        return quartiles(self.ratios)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile; of fewer than four, the least and the largest."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, method="inclusive")
    return low, high


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


def take_turns(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> Times:
    """Return the times of both: a block each per round, and the next round in the other order."""
    pairs = [(run, calls_per_sample(run), list[float]()) for run in (ours, theirs)]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for run, calls, seconds in pairs if number % 2 == 0 else reversed(pairs):
                seconds.append(statistics.median(block(run, calls)))
    finally:
        gc.enable()
    return Times(pairs[0][2], pairs[1][2])


def block(run: Callable[[], Any], calls: int) -> list[float]:
    """Return the seconds of one call, of every sample that counts."""
    return [_sample(run, calls) for _ in range(UNCOUNTED + COUNTED)][UNCOUNTED:]


def _sample(run: Callable[[], Any], calls: int) -> float:
    """Return the seconds of one of `calls` calls."""
    start = perf_counter()
    for _ in range(calls):
        run()
    return (perf_counter() - start) / calls


def calls_per_sample(run: Callable[[], Any]) -> int:
    """Return how many calls last about `SAMPLE_SECONDS`."""
    run()
    seconds = _sample(run, 1)
    if seconds < SAMPLE_SECONDS:
        seconds = _sample(run, 3)
    return max(1, round(SAMPLE_SECONDS / seconds))
