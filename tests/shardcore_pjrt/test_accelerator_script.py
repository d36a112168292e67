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


def test_the_least_that_moves():
    from bench.accelerator_case import floor_bytes
    from bench.accelerator_workload import Case

    case = Case("cpu", 10, 1000, 20, 3, 1, 0.1, 1.0)
    looked_up = 40 * 10 + 60 + 20 * 10  # rows and ids are read, activations written
    step = 20 * 10 + 60  # gradients and ids are read again
    assert floor_bytes(case, 40, None) == 4 * looked_up
    assert floor_bytes(case, 40, "SGD") == 4 * (looked_up + step + 2 * 40 * 10)
    assert floor_bytes(case, 40, "Adagrad") == 4 * (looked_up + step + 4 * 40 * 10)


@pytest.mark.skipif(
    not HAS_TORCH or importlib.util.find_spec("triton") is None,
    reason="torch or triton is not installed",
)
def test_the_anchor_is_right_where_triton_interprets_it():
    code = """
from bench.accelerator_anchor import TritonUpdate
from bench.accelerator_workload import Case, expected_of, ids_of
for dim in (4, 24):
    for optimizer in ("SGD", "Adagrad"):
        for distribution in ("uniform", "zipf"):
            case = Case("cpu", dim, 101, 16, 3, 1, 0.001, 60.0)
            ids = ids_of(case, distribution)
            anchor = TritonUpdate(case, ids, optimizer, False)
            expected = expected_of(case, ids, optimizer, False)
            found = anchor.call()
            expected.check_activations(anchor.bags_of(found, expected.bags), anchor.what)
            expected.check_rows(anchor.rows_of(expected.rows), anchor.what)
            print("right")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["right"] * 8, done.stderr


def test_what_travels_is_for_the_machine(tmp_path, monkeypatch, capsys):
    """The wheels are those of another Python; what would be too much is not carried."""
    asked = []

    def run(command, **options):
        asked.append(command)
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 0, "README.md\0")
        (tmp_path / "new-1-py3-none-any.whl").write_bytes(bytes(2 << 20))
        return subprocess.CompletedProcess(command, 0)

    script = loaded("accelerator_pack")
    (tmp_path / "old-1-py3-none-any.whl").write_bytes(bytes(1 << 30 >> 10))
    monkeypatch.setattr(script.subprocess, "run", run)
    arguments = ["--python", "3.13", "--folder", str(tmp_path)]
    assert script.main(arguments) == 0
    command = " ".join(asked[0])
    assert "--only-binary :all: --python-version 3.13 --platform manylinux2014_x86_64" in command
    assert [one.name for one in tmp_path.iterdir()] == ["new-1-py3-none-any.whl"]
    assert "of 64 MiB: travels" in capsys.readouterr().out
    monkeypatch.setattr(script, "LIMIT", 2 << 20)
    assert script.main(arguments) == 1
    assert "of 2 MiB: is too much" in capsys.readouterr().out


def test_what_is_built_asks_no_index_and_sees_what_the_machine_has(tmp_path, monkeypatch):
    asked = []

    def run(command, **options):
        asked.append([str(part) for part in command])
        inside = f"{tmp_path / 'inside'}\n" if "-c" in asked[-1] else ""
        return subprocess.CompletedProcess(command, 7, inside)

    (tmp_path / "inside").mkdir()
    script = loaded("accelerator_build")
    monkeypatch.setattr(script.subprocess, "run", run)
    monkeypatch.setattr(script.sys, "path", [*sys.path, "/machine/dist-packages", "/elsewhere"])
    code = script.main(
        ["--wheels", str(tmp_path), "--environment", str(tmp_path / "e"), "--", "--platform", "cpu"]
    )
    assert code == 7
    python = str(tmp_path / "e" / "bin" / "python")
    assert asked[0] == [sys.executable, "-m", "venv", str(tmp_path / "e")]
    installed = [one for one in asked if one[1:4] == ["-m", "pip", "install"]]
    assert [one[0] for one in installed] == [python] * 2
    assert all("--no-index" in one for one in installed)
    assert "setuptools>=77" in installed[0]
    assert installed[1][-4:] == ["--no-build-isolation", "--no-deps", "--editable", "."]
    shown = (tmp_path / "inside" / "machine.pth").read_text()
    assert "import site; site.addsitedir('/machine/dist-packages')\n" in shown
    assert "/elsewhere" not in shown
    assert asked[-1][:5] == [python, "-m", "bench.accelerator", "--platform", "cpu"]
    assert asked[-1][5] == "--minutes"
    assert 8 < float(asked[-1][6]) <= 8.5


def loaded(name):
    """Return a script that is no module of `bench`, loaded from its file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script
