"""The backend on a real accelerator, in one call: ``python -m bench.accelerator --platform cuda``.

Run it in the root of the repository, where shardcore, pytest and jax with the platform's plug-in
are installed; torch, FBGEMM and a Triton kernel take part where they can be imported. On a machine
with no package index ``bench/accelerator_build.py`` does it all. In this order, and no longer
than ``--minutes``:

1. the conformance suite on the platform;
2. tables of several sizes, each in a process of its own: lookups and steps against the measured
   bandwidth of a copy and against the peers on the same device, uniform and zipf ids. Contenders
   take turns; the first results of each are compared with NumPy before anything is timed.

"shardcore, programs" are the compiled programs alone, ids routed and on the device before, against
peers whose ids are there too and which sort them in every call: "with sort" adds the time of our
routing. "Of the floor" is the time of moving the least that a lookup or step must move, at the
bandwidth of a copy, over the median. "shardcore, engine" is what a user calls, routing and
transfers included, against peers that get their ids from the host in every call.

What there is no time or memory for is left out, and told. Report and numbers are written to
``--output``. The exit code is 1 if the suite or a comparison with NumPy failed; no time makes it 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from shardcore_bench.timing import duration

from .accelerator_workload import Case

__all__ = ["main"]

ROOT: Final = Path(__file__).parent.parent
CONFORMANCE: Final = "tests/shardcore_pjrt/test_conformance.py"
CONFORMANCE_SHARE: Final = 0.4
"""Of the time, what the suite may take."""

GRACE_SECONDS: Final = 20.0
"""What a process gets beyond its time to end by itself."""

TABLES: Final = (
    *((64, 8, 32), (128, 8, 16), (128, 8, 32), (64, 64, 32), (128, 64, 32)),
    *((64, 1, 32), (128, 1, 32)),
)
"""Columns, gigabytes, and ids in a bag, the most telling first."""

PUBLISHED: Final = (
    "published for FBGEMM on an H100: 0.96 ms for 1.05M ids x 128 with SGD (not measured here); "
    "beside it: step SGD of 128 columns, 16 ids in a bag"
)

GOALS: Final = (
    ("lookup, uniform", "shardcore, programs", "of_floor", 0.7, "of the bandwidth floor"),
    ("step SGD, uniform", "shardcore, programs", "of_floor", 0.7, "of the bandwidth floor"),
    ("step SGD, uniform", "shardcore, programs", "torch EmbeddingBag", 2.0, "x torch"),
    ("step Adagrad, uniform", "shardcore, programs", "torch EmbeddingBag", 2.0, "x torch"),
    ("step SGD, zipf", "shardcore, programs", "torch EmbeddingBag", 2.0, "x torch"),
    ("step Adagrad, zipf", "shardcore, programs", "torch EmbeddingBag", 2.0, "x torch"),
    ("step SGD, uniform", "shardcore, engine", "torch EmbeddingBag", 2.0, "x torch"),
    ("step Adagrad, uniform", "shardcore, engine", "torch EmbeddingBag", 2.0, "x torch"),
)

HEADER: Final = (
    "| table | case | ours | median | min | with sort | of the floor "
    "| peers: median, peer / ours (with our sort) |\n"
    "|---|---|---|--:|--:|--:|--:|---|"
)


def cases(name: str, small: bool) -> Iterator[Case]:
    """Yield what is measured; `small` shows that the script works, and nothing else."""
    if small:
        yield Case(name, 16, 5_003, 64, 8, rounds=2, sample_seconds=0.001, seconds=0.0)
        return
    for dim, gigabytes, pooling in TABLES:
        rows = gigabytes * 10**9 // (dim * 4)
        yield Case(name, dim, rows, 65_536, pooling, rounds=11, sample_seconds=0.1, seconds=0.0)


def limited(
    command: Sequence[str], seconds: float, log: Path, env: dict[str, str]
) -> tuple[int | None, str]:
    """Run a process, interrupted after so long; return its code, None if it was, and its output."""
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT
        )
        code: int | None
        try:
            code = process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGINT)  # pytest then tells how far it came
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return code, log.read_text(encoding="utf-8", errors="replace")


class Report:
    """What is known so far: lines as they are printed, and the numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.results: list[dict[str, Any]] = []
        self.conformance: dict[str, Any] = {}
        self.failures: list[str] = []

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def add(self, result: dict[str, Any]) -> None:
        self.results.append(result)
        if result["kind"] == "measured":
            self.say(row_of(result))
        elif result["kind"] == "failed":
            where = f"{result['table']}, {result['case']}, {result['ours']}"
            self.fail(f"{where}: {result['why']}")

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED: {text}")

    def write(self, about: dict[str, Any]) -> None:
        whole = {
            **about,
            "conformance": self.conformance,
            "results": self.results,
            "failures": self.failures,
        }
        (self.folder / "accelerator.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.folder / "accelerator.md").write_text("\n".join(self.lines) + "\n")


def row_of(result: dict[str, Any]) -> str:
    """Return the line of the Markdown table."""
    floor = f"{result['of_floor']:.2f}" if "of_floor" in result else ""
    sorting = result["preparing"] > 0
    peers = [
        f"{peer}: {duration(numbers['median'])}, **{numbers['theirs_to_ours']:.2f}**"
        + (f" ({numbers['theirs_to_ours_with_preparing']:.2f})" if sorting else "")
        for peer, numbers in result["peers"].items()
    ]
    with_sort = duration(result["median"] + result["preparing"]) if sorting else ""
    times = (duration(result["median"]), duration(result["min"]), with_sort)
    cells = (result["table"], result["case"], result["ours"], *times, floor, "; ".join(peers))
    return f"| {' | '.join(cells)} |"


def goal_lines(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield each goal with what was reached, table by table."""
    for case, ours, measure, least, unit in GOALS:
        reached = []
        for result in results:
            if (result["kind"], result.get("case"), result.get("ours")) != ("measured", case, ours):
                continue
            found = result.get(measure)
            if measure in result["peers"]:
                found = result["peers"][measure]["theirs_to_ours"]
            if found is not None:
                verdict = "reached" if found >= least else "missed"
                reached.append(f"{found:.2f} {verdict} ({result['table']})")
        told = "; ".join(reached) or "not measured"
        yield f"- {case}, {ours}: goal >= {least} {unit}: {told}"


def run_conformance(options: argparse.Namespace, report: Report, seconds: float) -> None:
    env = {
        **os.environ,
        "SHARDCORE_PJRT_PLATFORM": options.platform,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    start = perf_counter()
    code, output = limited(
        [*command, *options.tests], seconds, report.folder / "conformance.txt", env
    )
    last = next(
        iter(re.findall(r"^.*\d+ (?:passed|failed|skipped|error).*$", output, re.M)[-1:]), ""
    )
    told = last.strip("= ") or "no summary"
    report.conformance = {"code": code, "summary": told, "seconds": perf_counter() - start}
    report.say(f"conformance on {options.platform}: {told}")
    if code is None:
        report.say(f"  it was interrupted after {seconds:.0f} s")
    failed = re.search(r"\d+ (failed|error)", told) or told == "no summary"
    if failed if code is None else code != 0:
        report.fail("the conformance suite; see conformance.txt")


def run_case(case: Case, number: int, report: Report) -> None:
    results = report.folder / f"case-{number}.jsonl"
    results.unlink(missing_ok=True)
    log = report.folder / f"case-{number}.txt"
    env = {
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the peers need memory too
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
    }
    command = [sys.executable, "-m", "bench.accelerator_case", case.to_json(), str(results)]
    code, output = limited(command, case.seconds + GRACE_SECONDS, log, env)
    if results.exists():
        for line in results.read_text(encoding="utf-8").splitlines():
            report.add(json.loads(line))
    if code is None:
        why = "it took longer than its time"
        report.results.append({"kind": "left out", "table": case.table, "why": why})
    elif code != 0:
        error = output.strip().splitlines()[-1:] or ["no output"]
        report.fail(f"{case.table}: {error[0]}; see {log.name}")


def versions() -> dict[str, str]:
    found = {}
    for name in ("shardcore", "jax", "jaxlib", "libtpu", "numpy", "torch", "fbgemm-gpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def device_of(name: str) -> str:
    """Return the kind of device, asked in a process that gives it back."""
    code = f"""
from shardcore_pjrt.platform.installation import devices_of
print(devices_of({name!r}, 1)[0].device_kind)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or ["no device"])[-1])
    return done.stdout.strip()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator", description=__doc__)
    parser.add_argument("--platform", default="cuda", help="of jax: cuda, tpu, cpu, ...")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it")
    parser.add_argument("--output", type=Path, default=Path("accelerator-output"))
    parser.add_argument("--small", action="store_true", help="one tiny table: does it work?")
    parser.add_argument("--tests", nargs="*", default=[CONFORMANCE], help="for pytest; none: none")
    options = parser.parse_args(argv)
    if options.minutes <= 0:
        parser.error("--minutes must be above 0")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run it all; return the exit code."""
    options = arguments(argv)
    end = perf_counter() + 60 * options.minutes
    options.output.mkdir(parents=True, exist_ok=True)
    report = Report(options.output.resolve())
    about: dict[str, Any] = {
        "platform": options.platform,
        "device": device_of(options.platform),
        "python": platform.python_version(),
        "versions": versions(),
    }
    report.say(f"{about['device']} ({options.platform}), Python {about['python']}")
    report.say(", ".join(f"{name} {text}" for name, text in about["versions"].items()))
    try:
        if options.tests:
            run_conformance(options, report, CONFORMANCE_SHARE * 60 * options.minutes)
        wanted = list(cases(options.platform, options.small))
        first = wanted[0]
        report.say(f"\nbatches of {first.bags:,} bags, float32; {PUBLISHED}\n\n{HEADER}")
        for number, case in enumerate(wanted):
            left = end - perf_counter() - GRACE_SECONDS
            if left <= 0:
                why = "no time was left"
                report.results.append({"kind": "left out", "table": case.table, "why": why})
                continue
            # Half of what is left, and all of it for the last one.
            share = left / min(2, len(wanted) - number)
            run_case(dataclasses.replace(case, seconds=share), number, report)
            report.write(about)
        report.say("\ngoals" + (" (too small a table to tell anything)" if options.small else ""))
        for line in goal_lines(report.results):
            report.say(line)
        left_out = [result for result in report.results if result["kind"] == "left out"]
        if left_out:
            report.say("\nleft out")
        for result in left_out:
            parts = (result.get(key) for key in ("table", "case", "ours", "peer"))
            report.say(f"- {', '.join(part for part in parts if part)}: {result['why']}")
    finally:
        report.write(about)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
