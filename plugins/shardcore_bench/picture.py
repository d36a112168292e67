"""A picture of the ratios: a panel per table, a row per case, a dot per peer, a tick per goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from shardcore_bench.measure import Result

__all__ = ["draw"]

COLOURS = ("#4269d0", "#ff725c", "#3ca951", "#9c6b4e", "#a463f2", "#777777")


def draw(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Draw what was measured into a file.

    Parameters
    ----------
    results : mapping
        By table, in the order they were printed.
    path : Path
        Its suffix says the format.
    """
    tables = {name: found for name, found in results.items() if found}
    cases = {name: list(dict.fromkeys(one.case for one in found)) for name, found in tables.items()}
    peers = sorted({_peer(one) for found in tables.values() for one in found})
    colours = dict(zip(peers, COLOURS, strict=False))
    lines = sum(len(names) for names in cases.values())
    figure = Figure(figsize=(9, 1.2 * len(tables) + 0.3 * lines + 0.6), layout="constrained")
    ratios = [len(names) + 2 for names in cases.values()]
    panels = figure.subplots(len(tables), 1, squeeze=False, sharex=True, height_ratios=ratios)
    for axes, (name, found) in zip(panels[:, 0], tables.items(), strict=True):
        for one in found:
            row = cases[name].index(one.case)
            low, high = one.times.spread
            colour = colours[_peer(one)]
            axes.plot([low, high], [row, row], color=colour, linewidth=1)
            axes.plot(one.times.ratio, row, "o", color=colour, markersize=5)
            if one.goal is not None and one.goal.ratio is not None:
                axes.plot(one.goal.ratio, row, "|", color=colour, markersize=12)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", title=name, yticks=range(len(cases[name])))
        axes.set_yticklabels(cases[name], fontsize=8)
        axes.invert_yaxis()
    panels[-1, 0].set_xlabel("time of the peer / ours: right of 1, ours is faster; |: the goal")
    for peer in peers:
        panels[0, 0].plot([], [], "o", color=colours[peer], label=peer)
    figure.legend(loc="outside upper center", ncols=len(peers), frameon=False)
    figure.savefig(path, dpi=130)


def _peer(result: Result) -> str:
    return result.peer.partition(":")[0]
