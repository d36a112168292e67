"""The curves among what was measured: who took how long at which size. What is drawn, undrawn."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TypeAlias

from shardcore_bench.measure import Result

__all__ = ["OURS", "Curves", "curves_of"]

OURS = "shardcore"

Curves: TypeAlias = dict[str, dict[str, list[tuple[int, float]]]]
"""Curve -> who -> (size, seconds of a call), sizes ascending."""


def curves_of(results: Iterable[Result]) -> Curves:
    """Return the curves of results that are points of one, ours first in each.

    Ours was measured beside every peer: of its times at one size it is the median.
    """
    times: dict[str, dict[str, dict[int, list[float]]]] = {}
    for one in results:
        if one.point is None:
            continue
        curve = times.setdefault(one.point.curve, {OURS: {}})
        peer = one.peer.partition(":")[0]
        for name, seconds in ((OURS, one.times.ours), (peer, one.times.theirs)):
            curve.setdefault(name, {}).setdefault(one.point.size, []).extend(seconds)
    return {
        curve: {
            name: [(size, statistics.median(seconds)) for size, seconds in sorted(sizes.items())]
            for name, sizes in lines.items()
        }
        for curve, lines in times.items()
    }
