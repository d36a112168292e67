"""Ours against theirs: ``python -m bench.compare`` from the root of the repository.

For each case and each peer that is installed, both do the work once and must agree; then blocks of
six samples take turns, the first two of each not counted. The table gives medians, the ratio
peer / ours (above 1, ours is faster) with its spread over the rounds (quartiles; of fewer than
four, the least and the largest), and the ratio we are after. No time makes it fail; results that
differ do.

The table is repeated with ``OMP_WAIT_POLICY=passive``, where torch's threads sleep between calls;
by default they spin. Every group of cases is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import shardcore as sc
from shardcore.store import instruction_set

from .cases import GROUPS
from .measure import SIZES, Plan, from_line
from .peers import PEERS
from .report import Report

__all__ = ["main"]

ROOT: Final = Path(__file__).resolve().parents[1]

POLICIES: Final = ("default", "passive")
"""Of OpenMP's threads between calls."""


def processor() -> str:
    """Return the model of the CPU, where the system says it: FBGEMM's ways depend on it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text.partition("\n\n")[0], re.MULTILINE))
    if "model name" not in found:
        return platform.machine()
    return "{model name} (family {cpu family}, model {model})".format_map(found)


def environment(policy: str) -> dict[str, str]:
    """Return the environment of a process in which OpenMP has that policy."""
    found = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if policy != "default":
        found["OMP_WAIT_POLICY"] = policy
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), found.get("PYTHONPATH"))))
    return found


def run(plan: Plan, policy: str, report: Report) -> None:
    """Let a process of its own measure, and report what it tells as it comes."""
    command = [
        sys.executable,
        "-P",
        "-W",
        "ignore",
        "-m",
        "bench.measure",
        json.dumps(asdict(plan)),
    ]
    with subprocess.Popen(
        command, env=environment(policy), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = from_line(line)
            if found is None:
                print(line, end="", file=sys.stderr)
            else:
                report.add(found)
    if process.returncode:
        report.fail(f"{', '.join(plan.groups)} (exit code {process.returncode})")


def present(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the installed peers, and why each of the others is missing; print both."""
    found, missing = [], {}
    for name in names:
        reason = PEERS[name].missing()
        if reason is None:
            found.append(name)
            print(f"- {PEERS[name].version()}")
        else:
            missing[name] = reason
            print(f"- {name} left out: {reason}")
    return found, missing


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a small table, to see that it works")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="such as: 1 2")
    parser.add_argument("--rounds", type=int, help="pairs of blocks per comparison; 7, quick 1")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, help="both; quick: default")
    options = parser.parse_args(argv)
    if options.rounds is None:
        options.rounds = 1 if options.quick else 7
    if options.policies is None:
        options.policies = POLICIES[:1] if options.quick else POLICIES
    if options.rounds < 1 or min(options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 where results differed, else 0."""
    options = arguments(argv)
    size = "quick" if options.quick else "full"
    print(f"shardcore {sc.__version__}, instruction set {instruction_set.NAME}; ", end="")
    print(f"Python {platform.python_version()}; {processor()}, {os.cpu_count()} cores")
    print(f"{SIZES[size]}; {options.rounds} rounds\n")
    peers, missing = present(options.peers)
    if options.quick:
        print("\nThe sizes are small: the ratios say nothing of large tables.")
    report = Report()
    # A small run takes no memory to give back, and starts libraries once.
    batches = [options.only] if options.quick else [[group] for group in options.only]
    for policy in options.policies:
        for threads in options.threads:
            waiting = "" if policy == "default" else f", OMP_WAIT_POLICY={policy}"
            report.begin(f"{threads} thread{'s' if threads > 1 else ''}{waiting}")
            for groups in batches:
                run(Plan(groups, peers, missing, size, threads, options.rounds), policy, report)
    report.end()
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
