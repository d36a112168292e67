"""The script for a real accelerator works: run here on one CPU device and a tiny table."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HAS_TORCH = importlib.util.find_spec("torch") is not None

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="jax is not installed",
    ),
    pytest.mark.skipif(
        not (ROOT / "bench" / "accelerator.py").is_file(),
        reason="the benchmarks are not beside these tests",
    ),
]

SCRIPT = (sys.executable, "-m", "bench.accelerator", "--platform", "cpu", "--small")
PASSING = """
import os

def test_the_platform_is_told():
    assert os.environ["SHARDCORE_PJRT_PLATFORM"] == "cpu"
"""
FAILING = """
def test_that_fails():
    assert False
"""
CASES = [
    f"{work}, {ids}"
    for work in ("lookup", "step SGD", "step Adagrad")
    for ids in ("uniform", "zipf")
]
OURS = ("shardcore, programs", "shardcore, engine")


def run(output, *arguments):
    """Run the script; return its exit code, what it printed and its numbers."""
    done = subprocess.run(
        [*SCRIPT, "--output", str(output), *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    numbers = json.loads((output / "accelerator.json").read_text())
    return done.returncode, done.stdout, numbers


def told(numbers, kind):
    return [result for result in numbers["results"] if result["kind"] == kind]


def test_everything_is_measured_and_right(tmp_path):
    (tmp_path / "test_passing.py").write_text(PASSING)
    code, printed, numbers = run(tmp_path, "--tests", str(tmp_path / "test_passing.py"))
    assert (code, numbers["failures"]) == (0, []), printed
    assert numbers["conformance"]["summary"].startswith("1 passed")
    measured = told(numbers, "measured")
    assert [(one["ours"], one["case"]) for one in measured] == [
        (ours, case) for ours in OURS for case in CASES
    ]
    for one in measured:
        assert 0 < one["min"] <= one["median"]
        assert 0 < one["of_floor"] <= one["of_floor_counting_every_occurrence"]
        assert (one["preparing"] > 0) == (one["ours"] == "shardcore, programs")
        for peer in one["peers"].values():
            with_sort = peer["median"] / (one["median"] + one["preparing"])
            assert peer["theirs_to_ours_with_preparing"] == with_sort
        assert ("torch EmbeddingBag" in one["peers"]) == HAS_TORCH
        assert f"| {one['case']} | {one['ours']} |" in printed
    assert "published for FBGEMM on an H100: 0.96 ms for 1.05M ids x 128 with SGD" in printed
    (copied,) = told(numbers, "copy")
    assert copied["bytes_per_second"] > 1e8
    absent = {one.get("peer") for one in told(numbers, "left out")}
    assert ("torch EmbeddingBag" in absent) != HAS_TORCH
    assert "- lookup, uniform, shardcore, programs: goal >= 0.7 of the bandwidth floor: " in printed
    assert (tmp_path / "accelerator.md").read_text() == printed


def test_a_failing_suite_is_a_failure_and_no_time_is_told(tmp_path):
    (tmp_path / "test_failing.py").write_text(FAILING)
    code, printed, numbers = run(
        tmp_path, "--minutes", "0.05", "--tests", str(tmp_path / "test_failing.py")
    )
    assert code == 1
    assert numbers["failures"] == ["the conformance suite; see conformance.txt"]
    assert told(numbers, "measured") == []
    assert [one["why"] for one in told(numbers, "left out")] == ["no time was left"]
    assert "lookup, uniform, shardcore, programs: goal >= 0.7 of the bandwidth floor: not meas" in (
        printed
    )


def test_a_wrong_result_is_a_failure(tmp_path):
    # The optimizer of another learning rate: what a wrong update would look like.
    code = """
import sys
from bench import accelerator_case, accelerator_contenders, accelerator_workload as workload
import shardcore as sc
accelerator_contenders.our_optimizer = lambda name: sc.optimizers.SGD(learning_rate=0.02)
case = workload.Case("cpu", 4, 101, 8, 2, 1, 0.001, 60.0)
measurement = accelerator_case.Measurement(case, lambda result: None)
try:
    measurement.compare(accelerator_contenders.Programs, "SGD", "uniform", False)
except AssertionError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("rows after one step of shardcore, programs are off by 0.0")
