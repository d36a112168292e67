"""Ours against theirs: a table of ratios for every number of threads and every policy.

For each case and each peer that is installed, both do the work once and must agree; then blocks of
six samples take turns, the first two of each not counted. A line gives medians, the ratio
peer / ours (above 1, ours is faster) with its spread over the rounds (quartiles; of fewer than
four, the least and the largest), and the ratio that is aimed at. No time makes it fail; results
that differ do.

With ``OMP_WAIT_POLICY=passive`` torch's threads sleep between calls; by default they spin. Every
group of cases is measured in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import shardcore as sc
import shardcore_bench
from shardcore.info import describe_machine
from shardcore_bench.measure import SIZES, Plan, from_line
from shardcore_bench.peers import PEERS
from shardcore_bench.report import Report

__all__ = ["POLICIES", "Options", "compare"]

ROOTS: Final = [
    str(Path(module.__file__ or "").resolve().parents[1]) for module in (sc, shardcore_bench)
]
"""Where a process finds the shardcore and the cases of this one."""

POLICIES: Final = ("default", "passive")
"""Of OpenMP's threads between calls."""


@dataclass(frozen=True)
class Options:
    """What is compared.

    Attributes
    ----------
    groups, peers, policies : sequence of str
    size : str
        Of `SIZES`.
    threads : sequence of int
        A table for each.
    rounds : int
        Pairs of blocks per comparison.
    """

    groups: Sequence[str]
    peers: Sequence[str]
    policies: Sequence[str]
    size: str
    threads: Sequence[int]
    rounds: int


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
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (*ROOTS, found.get("PYTHONPATH"))))
    return found


def run(plan: Plan, policy: str, report: Report) -> None:
    """Let a process of its own measure, and report what it tells as it comes."""
    command = [
        sys.executable,
        "-P",
        "-W",
        "ignore",
        "-m",
        "shardcore_bench.measure",
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


def compare(options: Options) -> Report:
    """Print the tables, and return what they say."""
    print("\n".join(f"- {line}" for line in describe_machine()))
    print(f"- processor      {processor()}, {os.cpu_count()} cores")
    print(f"- rounds         {options.rounds}, {SIZES[options.size]}\n")
    peers, missing = present(options.peers)
    quick = options.size == "quick"
    if quick:
        print("\nThe sizes are small: the ratios say nothing of large tables.")
    report = Report()
    # A small run takes no memory to give back, and starts libraries once.
    batches = [list(options.groups)] if quick else [[group] for group in options.groups]
    for policy in options.policies:
        for threads in options.threads:
            waiting = "" if policy == "default" else f", OMP_WAIT_POLICY={policy}"
            report.begin(f"{threads} thread{'s' if threads > 1 else ''}{waiting}")
            for groups in batches:
                plan = Plan(groups, peers, missing, options.size, threads, options.rounds)
                run(plan, policy, report)
    report.end()
    return report
