"""The tenth of the tests, as ``tests/conftest.py`` chooses it for `make check`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import subprocess, sys, time
import pytest

SPIN = "import time\\nwhile time.process_time() < 1: pass"

@pytest.mark.parametrize("case", range(40))
def test_many(case): pass

class TestOne:
    def test_alone(self): pass

class TestTwo(TestOne):
    pass

@pytest.mark.slow
def test_slow(): raise AssertionError

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_half(case): assert case == 1

@pytest.fixture
def costly(): subprocess.run([sys.executable, "-c", SPIN])

@pytest.mark.skipif("not SPINS")
def test_costly(costly): pass

@pytest.mark.skipif("SPINS")
def test_waits(): time.sleep(1)
"""


@pytest.fixture
def tenth(tmp_path):
    """Return what a run of the tests above says, by test."""

    def run(*options, spins=False, loop_seconds=1.0):
        text = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
        for was, is_now in (
            ("CPU_SECONDS = 4.0", "CPU_SECONDS = 0.5"),
            ("LOOP_SECONDS = 0.05", f"LOOP_SECONDS = {loop_seconds}"),
        ):
            assert text.count(f"\n{was}") == 1
            text = text.replace(f"\n{was}", f"\n{is_now}")
        (tmp_path / "conftest.py").write_text(text, encoding="utf-8")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
        (tmp_path / "test_it.py").write_text(f"{TESTS}\nSPINS = {spins}\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return dict(re.findall(r"^test_it\.py::(\S+) ([A-Z]+)", done.stdout, re.M)), done.stdout

    return run


def test_one_case_of_each_test_that_is_not_slow(tenth):
    outcomes, said = tenth("--tenth")
    (many,) = (name for name in outcomes if name.startswith("test_many"))
    assert outcomes == {
        many: "PASSED",
        "TestOne::test_alone": "PASSED",
        "TestTwo::test_alone": "PASSED",
        "test_half[1]": "PASSED",
        "test_costly": "SKIPPED",
        "test_waits": "PASSED",
    }
    assert "6 selected" in said
    assert tenth("--tenth", "-k", "not waits")[0].keys() == outcomes.keys() - {"test_waits"}


def test_without_the_option_all_are_run(tenth):
    outcomes, _ = tenth("-k", "not waits")
    assert len([name for name in outcomes if name.startswith("test_many")]) == 40
    assert outcomes["test_slow"] == "FAILED"


def test_a_test_that_takes_long_must_be_marked(tenth):
    outcomes, said = tenth("--tenth", "-k", "costly", spins=True)
    assert outcomes == {"test_costly": "FAILED"}
    found = re.search(
        r"took ([\d.]+) s of CPU time: mark it slow, and make check leaves it out", said
    )
    assert float(found[1]) >= 1
    assert tenth("-k", "costly", spins=True)[0] == {"test_costly": "PASSED"}


def test_a_slow_machine_may_take_longer(tenth):
    outcomes, _ = tenth("--tenth", "-k", "costly", spins=True, loop_seconds=1e-6)
    assert outcomes == {"test_costly": "PASSED"}
