"""Two revisions of ourselves, interleaved: ``python -m bench.revisions BASE``.

BASE is checked out beside this tree and built; a process of each holds the same cases, those of
``shardcore bench``, and blocks take turns as there. A line compares the least times, which the
machine's other work disturbs least, and tells the quartiles of the rounds' ratios. A case counts as
slower, or faster, where the ratio of the least times and both quartiles pass the threshold. The
exit status is 1 where a case is slower. Results are not compared: that is what tests are for.

``--json`` keeps this tree's times in the form of pytest-benchmark, for its ``compare`` command.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pytest_benchmark.stats import Stats
from shardcore_bench.cases import GROUPS
from shardcore_bench.measure import Plan
from shardcore_bench.timing import duration, quartiles

import shardcore as sc

__all__ = ["Comparison", "as_json", "compared", "main"]

ROOT: Final = Path(__file__).resolve().parents[1]
PARTS: Final = ("", "backends", "plugins")
HEADER: Final = (
    "| case | base, least | here, least | here / base | spread | |\n|---|--:|--:|--:|--:|---|"
)


@dataclass
class Comparison:
    """The samples of a case, a list per round.

    Attributes
    ----------
    base, here : list of list of float
        Seconds of one call.
    """

    group: str
    case: str
    base: list[list[float]] = field(default_factory=list)
    here: list[list[float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The least time here over the least of the base: above 1, this tree is slower."""
        return min(map(min, self.here)) / min(map(min, self.base))

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the ratios of the rounds' medians."""
        here, base = (map(statistics.median, samples) for samples in (self.here, self.base))
        return quartiles([ours / before for ours, before in zip(here, base, strict=True)])

    def verdict(self, threshold: float) -> str:
        """Return "slower" or "faster" where all three ratios pass the threshold, else ""."""
        ratios = (self.ratio, *self.spread)
        if min(ratios) > threshold:
            return "slower"
        return "faster" if max(ratios) < 1 / threshold else ""

    def line(self, threshold: float) -> str:
        """Return the line of the table."""
        low, high = self.spread
        cells = (
            self.case,
            duration(min(map(min, self.base))),
            duration(min(map(min, self.here))),
            f"**{self.ratio:.2f}**",
            f"{low:.2f} to {high:.2f}",
            self.verdict(threshold),
        )
        return f"| {' | '.join(cells)} |"


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Give a built tree of a revision, and take it away again.

    Raises
    ------
    SystemExit
        If what compiles it is not installed beside this Python.
    """
    missing = [name for name in ("Cython", "setuptools") if find_spec(name) is None]
    if missing:
        sys.exit(f"a revision is compiled here: first {sys.executable} -m pip install {missing[0]}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            print(f"building {revision} …", file=sys.stderr)
            subprocess.run(build, cwd=tree, check=True, stdout=subprocess.DEVNULL)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Worker:
    """A process that measures one tree."""

    def __init__(self, tree: Path, plan: Plan, cases: Path) -> None:
        # Both measure by the cases of this tree: they come first, and nothing else beside them.
        paths = [str(cases), *(str(tree / part) for part in PARTS)]
        command = [sys.executable, "-P", "-W", "ignore", str(ROOT / "bench" / "revision_worker.py")]
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(plan))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def said(self) -> Any:
        """Return the next thing that it says; None once it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line and self._process.wait() != 0:
            raise ChildProcessError("a process that measures has failed; see above")
        return json.loads(line) if line else None

    def told(self, word: str) -> None:
        """Ask for a block, or for the next case."""
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)


def compared(base: Path, here: Path, plan: Plan) -> Iterator[Comparison]:
    """Yield every case as it is measured: in rounds of base, here, here, base."""
    with ExitStack() as stack:
        cases = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (cases / "shardcore_bench").symlink_to(ROOT / "plugins" / "shardcore_bench")
        workers = [stack.enter_context(Worker(tree, plan, cases)) for tree in (base, here)]
        while (names := [worker.said() for worker in workers]) != [None, None]:
            assert names[0] == names[1], "both have the same cases"
            found = Comparison(**names[0])
            turns = list(zip(workers, (found.base, found.here), strict=True))
            for number in range(plan.rounds):
                for worker, samples in turns if number % 2 == 0 else reversed(turns):
                    worker.told("block")
                    samples.append(worker.said())
            yield found
            for worker in workers:
                worker.told("next")


def as_json(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return this tree's times in the form of pytest-benchmark."""
    entries = []
    for one in found:
        stats = Stats()
        for samples in one.here:
            for seconds in samples:
                stats.update(seconds)
        entries.append(
            {
                "group": one.group,
                "name": one.case,
                "fullname": f"{one.group}::{one.case}",
                "params": None,
                "param": None,
                "extra_info": {"ratio to the base": one.ratio},
                "options": {},
                "stats": {**stats.as_dict(), "iterations": 1},
            }
        )
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return {
        "machine_info": {"node": platform.node(), "machine": platform.machine()},
        "commit_info": {"id": commit.stdout.strip()},
        "benchmarks": entries,
        "datetime": datetime.now(UTC).isoformat(),
        "version": sc.__version__,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a case is slower, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.revisions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("base", help="a revision, as git names it")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=["lookup", "step"])
    parser.add_argument("--quick", action="store_true", help="small tables, to see that it works")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threshold", type=float, default=1.05)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    size = "quick" if options.quick else "full"
    plan = Plan(options.only, [], {}, size, options.threads, options.rounds)
    found = []
    with checked_out(options.base) as base:
        print(HEADER, flush=True)
        for one in compared(base, ROOT, plan):
            print(one.line(options.threshold), flush=True)
            found.append(one)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(found)), encoding="utf-8")
    slower = [one.case for one in found if one.verdict(options.threshold) == "slower"]
    print(f"\n{len(slower)} of {len(found)} slower by more than {options.threshold:.2f}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
