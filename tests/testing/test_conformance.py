"""The conformance suites: first-party backends and optimizers pass them, faulty ones do not.

Faulty ones are in ``tests/testing/broken``; each must fail the very test that names its fault. A
suite that cannot fail proves nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from inspect import getsource
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import shardcore as sc
from shardcore.extras import pip_install
from shardcore.testing import BackendConformance, ModelBackend, OptimizerConformance
from shardcore.testing.agreement import assert_agree

HERE = Path(__file__).parent


# ----------------------------------------------------------------------------- first-party backends


class TestModel(BackendConformance):
    @pytest.fixture
    def backend(self):
        return ModelBackend()

    @pytest.fixture
    def raw_rows(self):
        return lambda backend, table, slot: backend.arrays[table, slot]


def stored(table, slot):
    return table.rows if slot is None else table.slots[slot]


class TestCpu(BackendConformance):
    @pytest.fixture
    def backend(self):
        return sc.get_backend("cpu")

    @pytest.fixture
    def raw_rows(self):
        return lambda backend, table, slot: stored(backend._tables[table], slot)


# ----------------------------------------------------------------------------- and optimizers


class TestSGD(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return sc.optimizers.SGD(learning_rate=0.05)


class TestAdagrad(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return sc.optimizers.Adagrad(learning_rate=0.5)


# ----------------------------------------------------------------------------- faulty ones fail


def battery_of(suite: type) -> list[str]:
    """Return the tests of a suite and of the chapters it is made of, in the order pytest runs."""
    chapters = reversed(suite.__mro__)
    return [name for one in chapters for name in vars(one) if name.startswith("test_")]


OF_DEVICES = [
    name for name in battery_of(BackendConformance) if "device" in name or "a_report" in name
]


class Failed(tuple):
    """What was said of each case of a test that failed: the messages, without the source shown."""


def run_pytest(
    folder: Path, *arguments: str, path: tuple[Path, ...] = ()
) -> dict[str, str | Failed]:
    """Run pytest in a process of its own from `folder`.

    Returns {"Class::test": "passed", "skipped" or `Failed`}; of a parametrised test the worst
    counts: failed before passed before skipped.
    """
    report = folder / "report.xml"
    inherited = os.environ.get("PYTHONPATH")
    python_path = os.pathsep.join([*map(str, path), *filter(None, [inherited])])
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"),
            *("--import-mode=importlib", "--rootdir", str(folder), f"--junitxml={report}"),
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # 0: all passed, 1: some failed; anything else is a fault of this file.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    outcomes: dict[str, str | Failed] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = (
            case.attrib["classname"].rsplit(".", 1)[-1] + "::" + case.attrib["name"].split("[")[0]
        )
        before = outcomes.get(name, "skipped")
        failed = [said(one) for one in (*case.iter("failure"), *case.iter("error"))]
        if failed:
            outcomes[name] = Failed((*(before if isinstance(before, Failed) else ()), *failed))
        elif next(case.iter("skipped"), None) is not None:
            outcomes.setdefault(name, "skipped")
        elif before == "skipped":
            outcomes[name] = "passed"
    return outcomes


def said(failure: ElementTree.Element) -> str:
    """Return the messages of a failure; source lines would show those of tests that passed too."""
    lines = (failure.text or "").splitlines()
    told = [line[1:].strip() for line in lines if line.startswith("E ")]
    return "\n".join([failure.attrib.get("message", ""), *told])


class Fault(NamedTuple):
    """A faulty class: its file, the test that must find its fault, and with which words."""

    path: Path
    test: str
    words: str


def faults_of(kind: str) -> dict[str, Fault]:
    """Return the classes that `found_by` marks, by name, without importing their files."""
    paths = {
        "backends": sorted((HERE / "broken" / "backends").glob("*.py")),
        "optimizers": [HERE / "broken" / "optimizers.py"],
    }
    return {
        node.name: Fault(path, *map(ast.literal_eval, mark.args))
        for path in paths[kind]
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "found_by"
    }


def is_found(outcome: str | Failed, words: str) -> bool:
    """Tell whether a test failed, and in every case for the reason that it has words for."""
    return isinstance(outcome, Failed) and all(words in one for one in outcome)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run, of every faulty class, the test that must find its fault."""
    found = {}
    for kind in ("backends", "optimizers"):
        chosen = [f"{one.path}::{name}::{one.test}" for name, one in faults_of(kind).items()]
        sequences = [one for one in chosen if one.endswith("::test_state_machine")]
        others = [one for one in chosen if one not in sequences]
        # Of these the message says all; finding the lines to show takes longer than the tests.
        folder = tmp_path_factory.mktemp(kind)
        found[kind] = run_pytest(folder, "--tb=line", *others, path=(HERE,))
        if sequences:
            folder = tmp_path_factory.mktemp("sequences")
            found[kind] |= run_pytest(folder, *sequences, path=(HERE,))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("backends", "optimizers") for name in faults_of(kind)],
)
def test_fault_is_found(outcomes, kind, name):
    _, test, words = faults_of(kind)[name]
    outcome = outcomes[kind][f"{name}::{test}"]
    assert is_found(outcome, words), f"{test} did not find that it {name}: {outcome}"


REASONS = """
import pytest
from shardcore.testing import OptimizerConformance

class TestIsNotThere(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        import shardcore.no_such_module

class TestFailsInPassing(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        from shardcore.optimizers import SGD
        class Faulty(SGD):
            def __repr__(self):
                raise ZeroDivisionError("no repr")
        return Faulty()

class TestHasNoFault(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        from shardcore.optimizers import SGD
        return SGD()
"""


@pytest.mark.slow
def test_failures_for_another_reason_do_not_count(tmp_path):
    (tmp_path / "test_reasons.py").write_text(REASONS)
    cases = ("TestIsNotThere", "TestFailsInPassing", "TestHasNoFault")
    outcomes = run_pytest(tmp_path, *(f"test_reasons.py::{one}::test_repr" for one in cases))
    gone, failed, fine = (outcomes[f"{one}::test_repr"] for one in cases)
    assert is_found(gone, "No module named 'shardcore.no_such_module'")
    assert is_found(failed, "ZeroDivisionError: no repr")
    # A line of the test that is shown on the way to the failure is not among its words.
    for words in ("startswith", "must override the fixture"):
        assert not any(is_found(outcome, words) for outcome in (gone, failed))
    assert not is_found(Failed((*failed, *gone)), "ZeroDivisionError: no repr")
    assert fine == "passed"
    assert not is_found(fine, "")
    assert not is_found("skipped", "")


@pytest.mark.slow
def test_every_test_of_the_batteries_can_fail(outcomes):
    for kind, suite in (("backends", BackendConformance), ("optimizers", OptimizerConformance)):
        assert {one.test for one in faults_of(kind).values()} == set(battery_of(suite))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "case", "text"),
    [
        (
            "backends",
            "TestGivesNoFixtures::test_close",
            "TestGivesNoFixtures must override the fixture 'backend': return a fresh backend "
            "without tables",
        ),
        (
            "optimizers",
            "TestGivesNoFixture::test_repr",
            "TestGivesNoFixture must override the fixture 'optimizer': return an optimizer whose "
            "parameters are plain numbers",
        ),
        (
            "backends",
            "TestMakesNoDeviceArrays::test_weight",
            "TestMakesNoDeviceArrays must override the fixture 'to_device': return a callable "
            "(backend, array) -> an array that the backend takes for a gradient",
        ),
        ("backends", "TestTearsRows::test_lookups_see", "is torn between two updates"),
        ("backends", "TestIsWrongBothWays::test_scatter_and_write", "stored rows of table 't'"),
        ("backends", "TestRefusesWithoutAReason::test_tables_a", "the message must name the table"),
        ("backends", "TestTakesDtypesItDoesNotName::test_tables_a", "DID NOT RAISE"),
        ("backends", "TestBreaksInASequenceOnly::test_state_machine", "state.write("),
        ("backends", "TestLeavesHalfATable::test_create", "specs must hold the tables that exist"),
        (
            "optimizers",
            "TestChangesRows::test_update",
            "update must not change its arguments: rows",
        ),
        ("optimizers", "TestHidesState::test_is", "must hold nothing but its parameters"),
        ("optimizers", "TestClimbs::test_converges", "the weights must be ten times closer"),
        ("optimizers", "TestCompiledWritesBeyond", "compiled wrote outside of its"),
    ],
)
def test_failures_say_what_is_wrong(outcomes, kind, case, text):
    (shown,) = [shown for name, shown in outcomes[kind].items() if name.startswith(case)]
    assert is_found(shown, text)


@pytest.mark.slow
def test_raw_rows_must_be_given_too(tmp_path):
    (tmp_path / "test_half.py").write_text(
        "import pytest\n"
        "from shardcore.testing import BackendConformance, ModelBackend\n"
        "class TestHalf(BackendConformance):\n"
        "    @pytest.fixture\n"
        "    def backend(self):\n"
        "        return ModelBackend()\n"
    )
    outcomes = run_pytest(tmp_path, "test_half.py::TestHalf::test_lookup_of_nothing")
    text = (
        "TestHalf must override the fixture 'raw_rows': return a callable (backend, table, slot) "
        "-> stored rows that does not use the backend's reads"
    )
    assert is_found(outcomes["TestHalf::test_lookup_of_nothing"], text)


@pytest.mark.slow
def test_inexact_backend_that_says_so_passes(tmp_path):
    path = HERE / "broken" / "backends" / "lookups.py"
    outcomes = run_pytest(tmp_path, f"{path}::TestInexactAndSaysSo", path=(HERE,))
    wrong = {name: shown for name, shown in outcomes.items() if shown not in ("passed", "skipped")}
    assert wrong == {}
    assert [name for name, shown in outcomes.items() if shown == "skipped"] == [
        "TestInexactAndSaysSo::test_a_slot_of_another_dtype_is_refused",
        "TestInexactAndSaysSo::test_lookup_sums_a_bag_in_occurrence_order",
        "TestInexactAndSaysSo::test_apply_sums_gradients_in_the_order_of_the_contract",
        *(f"TestInexactAndSaysSo::{name}" for name in OF_DEVICES),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TestOnADevice", "TestInexactOnADeviceAndSaysSo"])
def test_backend_on_a_device_passes(tmp_path, name):
    path = HERE / "broken" / "backends" / "devices.py"
    outcomes = run_pytest(tmp_path, f"{path}::{name}", path=(HERE,))
    wrong = {case: shown for case, shown in outcomes.items() if shown not in ("passed", "skipped")}
    assert wrong == {}
    assert [case for case, shown in outcomes.items() if shown == "skipped"] == [
        f"{name}::test_{rest}"
        for rest in (
            "lookup_sums_a_bag_in_occurrence_order",
            "apply_sums_gradients_in_the_order_of_the_contract",
        )
        if "Inexact" in name
    ]


@pytest.mark.slow
def test_optimizers_without_fault_pass(tmp_path):
    path = HERE / "broken" / "optimizers.py"
    cases = (f"{path}::TestNoFault", f"{path}::TestCompiledWithoutFault")
    outcomes = run_pytest(tmp_path, *cases, path=(HERE,))
    skipped = [name for name, shown in outcomes.items() if shown == "skipped"]
    assert len(skipped) == 5
    assert all(name.startswith("TestNoFault::test_compiled") for name in skipped)
    assert {shown for name, shown in outcomes.items() if name not in skipped} == {"passed"}


# ----------------------------------------------------------------------------- third parties

needs_pip = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pip", "setuptools")),
    reason="needs pip and setuptools",
)


@pytest.fixture
def installed(tmp_path):
    """Return a function that installs a package of `plugins/site` and runs its own tests."""

    def run(package: str) -> dict[str, str]:
        source, target, empty = (tmp_path / name for name in ("source", "target", "empty"))
        shutil.copytree(HERE.parent / "plugins" / "site" / package, source)
        empty.mkdir()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (target / package / "__init__.py").is_file()
        shutil.move(source / "tests", empty / "tests")
        return run_pytest(empty, "tests", path=(target,))

    return run


@pytest.mark.slow
@needs_pip
def test_third_party_backend_proves_itself(installed):
    outcomes = installed("acme_backend")
    tests = set(battery_of(BackendConformance))
    assert {f"TestAcme::{name}" for name in tests} < set(outcomes)
    assert {name: shown for name, shown in outcomes.items() if shown != "passed"} == {
        f"TestAcme::{name}": "skipped"
        for name in ("test_a_slot_of_another_dtype_is_refused", *OF_DEVICES)
    }


@pytest.mark.slow
@needs_pip
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler called cc")
def test_third_party_optimizer_proves_itself(installed):
    outcomes = installed("acme_optimizer")
    tests = set(battery_of(OptimizerConformance))
    assert {f"TestNesterov::{name}" for name in tests} < set(outcomes)
    assert {name: shown for name, shown in outcomes.items() if shown != "passed"} == {}


@pytest.mark.slow
@needs_pip
def test_a_backend_that_keeps_rows_in_a_database_proves_itself(installed):
    outcomes = installed("acme_sqlite")
    tests = {name for name in vars(BackendConformance) if name.startswith("test_")}
    assert {f"TestSqlite::{name}" for name in tests} < set(outcomes)
    assert outcomes["test_acme_sqlite::test_a_file_is_as_good"] == "passed"
    assert {name: shown for name, shown in outcomes.items() if shown != "passed"} == {
        f"TestSqlite::{name}": "skipped"
        for name in ("test_a_slot_of_another_dtype_is_refused", *OF_DEVICES)
    }


@pytest.mark.slow
@needs_pip
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler called cc")
@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").is_file(),
    reason="needs the headers of Python",
)
def test_an_optimizer_that_is_compiled_against_the_header_proves_itself(installed):
    outcomes = installed("acme_lion")
    tests = {name for name in vars(OptimizerConformance) if name.startswith("test_")}
    assert {f"TestLion::{name}" for name in tests} < set(outcomes)
    assert {name: shown for name, shown in outcomes.items() if shown != "passed"} == {}


# ----------------------------------------------------------------------------- the package itself


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_shardcore_imports_no_suite():
    code = "import sys, shardcore; print([m for m in sys.modules if m.split('.')[0] in "
    code += "('pytest', 'hypothesis') or m.startswith('shardcore.testing')])"
    assert python(code) == "[]"


def test_asserts_of_the_suites_show_their_values():
    suites = ("shardcore.testing", "shardcore.tf", "shardcore.torch")
    modules = {name: one for name, one in sys.modules.items() if name.startswith(suites)}
    asserting = {
        name: type(one.__loader__).__name__
        for name, one in modules.items()
        if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(getsource(one))))
    }
    assert "shardcore.testing.backend.update" in asserting
    assert set(asserting.values()) == {"AssertionRewritingHook"}, asserting


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_missing_package_is_named(missing):
    code = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import shardcore.testing
except Exception as error:
    print(type(error).__name__, error)
"""
    text = f"UnavailableError shardcore.testing needs the package {missing}; "
    assert python(code) == text + pip_install("testing")


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "text"),
    [
        ([1.0], np.ones(1), None, "x must be a NumPy array, got list"),
        (
            np.ones(1),
            np.ones(1, "f"),
            None,
            "x must be float32 of shape (1,), got float64 of shape",
        ),
        (np.ones((1, 2)), np.ones(2), 0.1, "x must be float64 of shape (2,), got float64 of shape"),
        (np.array([0.0]), np.array([-0.0]), None, "x[0] is 0.0, expected -0.0; 1 of 1 values"),
        (np.array([1, 1.5]), np.array([1, 1.4]), 0.01, "x[1] is 1.5, expected 1.4; 1 of 2 values"),
        (np.array([[np.nan]]), np.zeros((1, 1)), 0.01, "x[0, 0] is nan, expected 0.0; 1 of 1"),
    ],
)
def test_disagreement_messages(actual, expected, tolerance, text):
    with pytest.raises(AssertionError, match=re.escape(text)):
        assert_agree(actual, expected, "x", tolerance)


def test_agreement_within_a_tolerance():
    assert_agree(np.array([0.0]), np.array([-0.0]), "x", 1e-9)
    assert_agree(np.float16([1.0]), np.float16([1.002]), "x", 1e-9)
    assert_agree(np.array([np.nan]), np.array([np.nan]), "x")
