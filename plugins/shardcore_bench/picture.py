"""A picture of what was measured: a panel of ratios per table, and a panel per curve.

Of ratios a row per case, a dot per peer, a tick per goal. Of a curve a line for each who took part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from shardcore_bench.curves import OURS, curves_of
from shardcore_bench.measure import Result

__all__ = ["draw"]

COLOURS = ("#4269d0", "#ff725c", "#3ca951", "#9c6b4e", "#a463f2", "#777777")
INK = "#222222"

_CURVE_ROWS = 14
"""The height of a curve's panel, in rows of a table."""


def draw(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Draw what was measured into a file.

    Parameters
    ----------
    results : mapping
        By table, in the order they were printed.
    path : Path
        Its suffix says the format.
    """
    tables = {
        name: ratios
        for name, found in results.items()
        if (ratios := [one for one in found if one.point is None])
    }
    curves = {
        f"{curve}, {name}": lines
        for name, found in results.items()
        for curve, lines in curves_of(found).items()
    }
    peers = sorted({_peer(one) for found in results.values() for one in found})
    colours = dict(zip(peers, COLOURS, strict=False)) | {OURS: INK}
    heights = [len(_cases(found)) + 2 for found in tables.values()] + [_CURVE_ROWS] * len(curves)
    figure = Figure(
        figsize=(9, 1.2 * len(heights) + 0.3 * sum(heights) + 0.6), layout="constrained"
    )
    panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, found) in zip(panels, tables.items(), strict=False):
        axes.sharex(panels[0])
        _draw_ratios(axes, name, found, colours)
    if tables:
        told = "time of the peer / ours: right of 1, ours is faster; |: the goal"
        panels[len(tables) - 1].set_xlabel(told)
    for axes, (name, lines) in zip(panels[len(tables) :], curves.items(), strict=True):
        _draw_curve(axes, name, lines, colours)
    shown = [*([OURS] if curves else []), *(peer for peer in peers if peer != OURS or tables)]
    for peer in dict.fromkeys(shown):
        panels[0].plot([], [], "o", color=colours[peer], label=peer)
    figure.legend(loc="outside upper center", ncols=len(shown), frameon=False)
    figure.savefig(path, dpi=130)


def _draw_ratios(axes: Any, name: str, found: Sequence[Result], colours: Mapping[str, str]) -> None:
    cases = _cases(found)
    for one in found:
        row = cases.index(one.case)
        low, high = one.times.spread
        colour = colours[_peer(one)]
        axes.plot([low, high], [row, row], color=colour, linewidth=1)
        axes.plot(one.times.ratio, row, "o", color=colour, markersize=5)
        if one.goal is not None and one.goal.ratio is not None:
            axes.plot(one.goal.ratio, row, "|", color=colour, markersize=12)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", title=name, yticks=range(len(cases)))
    axes.set_yticklabels(cases, fontsize=8)
    axes.invert_yaxis()


def _draw_curve(
    axes: Any,
    name: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    colours: Mapping[str, str],
) -> None:
    for who, points in lines.items():
        sizes, seconds = zip(*points, strict=True)
        axes.plot(sizes, seconds, "o-", color=colours[who], markersize=4, linewidth=1.2)
    axes.set(xscale="log", yscale="log", title=name, ylabel="seconds of a call")
    axes.grid(alpha=0.3)


def _cases(found: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(one.case for one in found))


def _peer(result: Result) -> str:
    return result.peer.partition(":")[0]
