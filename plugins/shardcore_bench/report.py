"""The report as Markdown: a line per comparison as it comes, and at the end what is missing."""

from __future__ import annotations

import statistics
from typing import Final

from shardcore_bench.measure import LeftOut, Result
from shardcore_bench.timing import duration

__all__ = ["HEADER", "NOT_HERE", "Report"]

HEADER: Final = (
    "| case | ours | peer | ours, median | peer, median | peer / ours | spread | goal | reached |\n"
    "|---|---|---|--:|--:|--:|--:|--:|---|"
)

NOT_HERE: Final = (
    "the demo on `sim` with 4 hosts: its rival is an earlier revision of ourselves",
    "cycles, cache misses and page faults",
)
"""What no peer does, and this command does not measure."""


class Report:
    """What has been printed so far.

    Attributes
    ----------
    results : dict of str -> list of Result
        By table.
    """

    def __init__(self) -> None:
        self.results: dict[str, list[Result]] = {}
        self._section = ""
        self._reached = 0
        self._missed: list[str] = []
        self._left_out: dict[str, list[str]] = {}
        self._failed: list[str] = []

    def begin(self, section: str) -> None:
        """Print the head of a table."""
        self._section = section
        self.results[section] = []
        print(f"\n### {section}\n\n{HEADER}", flush=True)

    def add(self, found: Result | LeftOut) -> None:
        """Print the line of a comparison."""
        if isinstance(found, LeftOut):
            cases = self._left_out.setdefault(found.reason, [])
            if found.case not in cases:
                cases.append(found.case)
            return
        print(self._line(found), flush=True)
        self.results[self._section].append(found)
        if found.reached:
            self._reached += 1
        elif found.reached is False:
            self._missed.append(
                f"{found.case}, {self._section}: {found.times.ratio:.2f} of {found.peer}, "
                f"{duration(statistics.median(found.times.ours))} of ours; goal {found.goal}"
            )

    def fail(self, groups: str) -> None:
        """Keep for the last lines that a process ended before its time."""
        self._failed.append(f"{groups}, {self._section}")

    @property
    def failed(self) -> bool:
        """Whether a process ended before its time: a result differed, or something broke."""
        return bool(self._failed)

    def end(self) -> None:
        """Print the last lines."""
        print(f"\nGoals: {self._reached} reached, {len(self._missed)} missed.")
        for line in self._missed:
            print(f"- missed: {line}")
        print("\nNot compared:")
        for reason, cases in self._left_out.items():
            print(f"- {reason}: {'; '.join(cases)}")
        for line in NOT_HERE:
            print(f"- {line}")
        for line in self._failed:
            print(f"- FAILED, see above: {line}")

    def _line(self, found: Result) -> str:
        low, high = found.times.spread
        reached = {None: "", True: "yes", False: "no"}[found.reached]
        cells = (
            found.case,
            found.ours,
            found.peer,
            duration(statistics.median(found.times.ours)),
            duration(statistics.median(found.times.theirs)),
            f"**{found.times.ratio:.2f}**",
            f"{low:.2f} to {high:.2f}",
            "" if found.goal is None else str(found.goal),
            reached,
        )
        return f"| {' | '.join(cells)} |"
