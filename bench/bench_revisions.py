"""The comparison of two revisions: its rounds, its verdicts, its form for pytest-benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shardcore_bench.cases import GROUPS
from shardcore_bench.measure import Plan
from shardcore_bench.timing import COUNTED
from shardcore_bench.workload import SMALL

from .revisions import ROOT, Comparison, as_json, checked_out, compared

pytestmark = pytest.mark.skipif(
    not (ROOT / "plugins" / "shardcore_bench").is_dir(), reason="the sources are not beside"
)


def comparison(base: list[float], here: list[float]) -> Comparison:
    return Comparison("group", "case", [[one] * 2 for one in base], [[one] * 2 for one in here])


@pytest.mark.parametrize(
    ("here", "verdict"),
    [
        ([1.06, 1.2, 1.07], "slower"),
        ([1.06, 1.2, 1.04], ""),  # one round was not
        ([1.04, 1.2, 1.3], ""),  # nor were the least times
        ([0.9, 0.95, 0.8], "faster"),
        ([0.9, 0.96, 0.8], ""),
    ],
)
def test_a_case_is_slower_where_every_ratio_passes(here: list[float], verdict: str) -> None:
    assert comparison([1.0, 1.0, 1.0], here).verdict(1.05) == verdict


def test_least_times_count_as_well_as_medians() -> None:
    rounds = [[1.0, 1.0]] * 3
    assert Comparison("group", "case", rounds, [[1.0, 1.4]] * 3).verdict(1.05) == ""
    assert Comparison("group", "case", rounds, [[1.1, 1.4]] * 3).verdict(1.05) == "slower"


def test_the_line_of_a_case() -> None:
    line = "| case | 1 ms | 2 ms | **2.00** | 1.50 to 2.00 | slower |"
    assert comparison([0.001, 0.002], [0.002, 0.003]).line(1.05) == line


def test_what_compiles_a_revision_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.revisions.find_spec", lambda name: None if name == "Cython" else 1)
    with (
        pytest.raises(SystemExit, match=r"^a revision is compiled here: .* -m pip install Cython$"),
        checked_out("HEAD"),
    ):
        raise AssertionError("nothing was compiled")


def test_pytest_benchmark_reads_what_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(as_json([comparison([1.0, 2.0], [2.0, 3.0])])), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(file), "--columns", "min,max"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "group" in done.stdout
    assert "2.0000" in done.stdout
    assert "3.0000" in done.stdout


@pytest.mark.slow
def test_both_trees_are_measured_in_turn() -> None:
    plan = Plan(["slices", "partition"], [], {}, "small", 1, 3)
    found = list(compared(ROOT, ROOT, plan))
    names = [case.name for group in plan.groups for case in GROUPS[group](SMALL, 1)]
    assert [one.case for one in found] == names
    for one in found:
        assert [len(samples) for samples in one.base + one.here] == [COUNTED] * 6
        assert all(seconds > 0 for samples in one.here for seconds in samples)


@pytest.mark.slow
def test_a_tree_that_fails_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shardcore.py").write_text("raise RuntimeError('not this revision')\n")
    plan = Plan(["slices"], [], {}, "small", 1, 1)
    with pytest.raises(ChildProcessError, match="a process that measures has failed; see above"):
        list(compared(tmp_path, ROOT, plan))
    assert "not this revision" in capfd.readouterr().err
