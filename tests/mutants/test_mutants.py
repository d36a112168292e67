"""The harness of ``make mutants``: it finds what tests find, says what they do not, and ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not (HERE.parents[1] / "plugins").is_dir(), reason="the sources are not beside these tests"
)

SOURCE = """
def add(a, b):
    return a + b


class Counter:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        return self.n
"""
KERNEL = """
cdef inline int total(const int* values,
                      int n) noexcept nogil:
    cdef int i, sum = 0
    for i in range(n):
        sum += values[i]
    return sum


cdef int other(int n) noexcept nogil:
    return total(NULL, n)
"""
TESTS = """
import time
import shardcore
from shardcore.sums import Counter, add

def test_add():
    assert add(2, 3) == 5

def test_blind():
    assert add(0, 0) == 0

def test_counter():
    counter = Counter()
    while counter.up() < 3:
        time.sleep(0.001)  # while it hangs, others are tested

def test_fails():
    assert False
"""


def run(*arguments, root=None, faults=None):
    command = [sys.executable, str(HERE), *arguments]
    if root is not None:
        command += ["--root", str(root), "--faults", str(faults)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def plant(tmp_path):
    """A small tree, and what comes of planting faults in it."""
    root, faults = tmp_path / "root", tmp_path / "faults"
    for folder in ("shardcore", "backends", "plugins", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "shardcore" / "__init__.py").write_text("")
    (root / "shardcore" / "sums.py").write_text(SOURCE)
    (root / "shardcore" / "sums.pxi").write_text(KERNEL)
    (root / "tests" / "test_sums.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    faults.mkdir()

    def entry(name, function, text, becomes, test, more=""):
        return (
            f"[[fault]]\nname = {name!r}\nfunction = {function!r}\ntext = {text!r}\n"
            f"becomes = {becomes!r}\ntests = [{test!r}]\n{more}\n"
        )

    def planted(*entries, options=()):
        (faults / "all.toml").write_text("".join(entry(*given) for given in entries))
        before = (root / "shardcore" / "sums.py").read_text()
        result = run(*options, root=root, faults=faults)
        assert (root / "shardcore" / "sums.py").read_text() == before  # it works on copies
        return result

    return planted


FOUND = ("found one", "add", "a + b", "a - b", "test_add")
SURVIVING = ("blind", "add", "a + b", "a - b", "test_blind")


def test_every_fault_of_the_list_stands_once_in_the_sources():
    code, lines = run("--check")
    assert code == 0, "\n".join(lines)
    match = re.fullmatch(r"(\d+) faults, 0 do not fit the sources", lines[-1])
    assert match is not None
    assert int(match[1]) >= 60


@pytest.mark.slow
def test_faults_that_are_found(plant):
    code, lines = plant(FOUND, ("again", "add", "a + b", "b - a", "test_add"))
    assert code == 0, lines
    assert lines[-1] == "2 planted, 2 found"
    assert any(re.match(r"found +[\d.]+ s  all: found one", line) for line in lines)
    assert lines.count("    by tests/test_sums.py::test_add") == 2


@pytest.mark.slow
def test_survivors_and_what_proves_nothing_are_told_and_fail(plant):
    anyway = ("as ever", "add", "a + b", "a - b", "test_fails")
    code, lines = plant(SURVIVING, FOUND, anyway)
    assert code == 1
    assert lines[-3:] == ["SURVIVED all: blind", "ERROR all: as ever", "3 planted, 1 found"]
    assert any("its tests do not pass without it" in line for line in lines)


@pytest.mark.slow
def test_a_hang_counts_only_where_it_is_expected(plant):
    hang = ("Counter.up", "self.n += 1", "self.n += 0", "test_counter")
    code, lines = plant(("a", *hang, "seconds = 8"), ("b", *hang, "seconds = 8\nhangs = true"))
    assert code == 1
    assert lines[-2:] == ["ERROR all: a", "2 planted, 1 found"]


@pytest.mark.slow
def test_a_crash_counts_only_where_it_is_expected(plant):
    crash = ("Counter.up", "self.n += 1", "__import__('os').kill(0, 0) or __import__('os').abort()")
    segfault = (*crash[:2], "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    code, lines = plant(
        ("a", *segfault, "test_counter"),
        ("b", *segfault, "test_counter", "crashes = true"),
        ("c", *crash, "test_counter", "crashes = true"),
    )
    assert code == 1
    assert lines[-3:] == ["ERROR all: a", "ERROR all: c", "3 planted, 1 found"]


@pytest.mark.slow
def test_what_does_not_fit_the_sources_is_an_error(plant):
    code, lines = plant(
        ("1", "added", "a + b", "a", "test_add"),
        ("2", "add", "a * b", "a", "test_add"),
        ("3", "Counter", "self.n", "n", "test_add"),
        ("4", "add", "a + b", "a", "test_ad"),
        ("5", "total", "return totals", "return", "test_add"),
        ("6", "add", "a + b", "a +", "test_add"),
        FOUND,
    )
    assert code == 1
    assert lines[-1] == "7 planted, 1 found"
    for text in (
        "no function 'added' is left under shardcore, backends, plugins: "
        "name the one that does now what it did",
        "function 'add' (shardcore/sums.py:2) does not hold the text any more:",
        "function 'Counter' holds the text more than once (shardcore/sums.py:6 3 times): "
        "take more of it",
        "test 'test_ad' must stand once under tests, it stands nowhere",
        "function 'total' (shardcore/sums.pxi:2) does not hold the text any more:",
        "what it becomes is no Python: invalid syntax (sums.py, line 3)",
    ):
        assert [line.strip() for line in lines].count(text) == 1, (text, lines)


@pytest.mark.slow
def test_a_fault_whose_module_is_missing_is_not_tried_and_fails_nothing(plant):
    add = ("add", "a + b", "a - b")
    missing = ("blind", *add, "test_blind", "needs = 'no_such_module'")
    there = ("there", *add, "test_add", "needs = 'json'")
    code, lines = plant(missing, FOUND, there)
    assert (code, lines[-1]) == (0, "2 planted, 2 found, 1 not tried: needs no_such_module")
    at = lines.index("not tried           all: blind")
    assert lines[at + 1] == "    needs no_such_module"
    surviving = ("blind", *add, "test_blind", "needs = 'json'")
    code, lines = plant(surviving)
    assert (code, lines[-2:]) == (1, ["SURVIVED all: blind", "1 planted, 0 found"])


def test_where_all_modules_are_missing_nothing_is_planted(plant):
    more = [(f"n{i}", "add", "a + b", "a - b", "test_add", f"needs = 'no_{i}'") for i in range(3)]
    code, lines = plant(*more, options=["--seed", "1"])
    assert (code, lines[0]) == (0, "seed 1")
    assert lines[-1] == "0 planted, 0 found, 3 not tried: needs no_0, no_1, no_2"


def test_a_list_counts_what_is_not_tried_and_a_sample_leaves_it_out(plant):
    missing = ("a", "add", "a + b", "a - b", "test_add", "needs = 'no_such_module'")
    there = ("b", "add", "a + b", "a - b", "test_add", "needs = 'json'")
    code, lines = plant(missing, there, FOUND, options=["--list"])
    assert code == 0
    assert lines == [
        "all: a (test_add), needs no_such_module",
        "all: b (test_add), needs json",
        "all: found one (test_add)",
        "1 not tried: needs no_such_module",
    ]
    code, lines = plant(missing, there, FOUND, options=["--list", "--sample", "3"])
    assert (code, lines) == (0, ["all: b (test_add), needs json", "all: found one (test_add)"])
    code, lines = plant(missing, options=["--check"])  # is looked up all the same
    assert (code, lines) == (0, ["1 faults, 0 do not fit the sources"])


def test_functions_of_cython_are_found_by_name(plant):
    kernel = [
        ("1", "total", "sum += values[i]", "sum -= values[i]", "test_add"),
        ("2", "other", "total(NULL, n)", "0", "test_add"),
        ("3", "total", "int n) noexcept", "long n) noexcept", "test_add"),
    ]
    code, lines = plant(*kernel, options=["--check"])
    assert (code, lines[-1]) == (0, "3 faults, 0 do not fit the sources")


@pytest.mark.slow
def test_a_sample_is_by_chance_and_comes_again_by_its_seed(plant):
    many = [(f"n{i}", "add", "a + b", "a - b", "test_add") for i in range(30)]

    def names(*options):
        code, lines = plant(*many, options=["--list", *options])
        assert code == 0
        return [line.split(" (")[0] for line in lines]

    assert names() == [f"all: n{i}" for i in range(30)]
    assert names("n1") == [f"all: n{i}" for i in (1, *range(10, 20))]
    assert names("--sample", "5", "--seed", "3") == names("--sample", "5", "--seed", "3")
    assert len(names("--sample", "5")) == 5
    assert len({tuple(names("--sample", "5", "--seed", str(seed))) for seed in range(9)}) > 1
    code, lines = plant(*many, options=["--sample", "1", "--seed", "7"])
    assert (code, lines[0], lines[-1]) == (0, "seed 7", "1 planted, 1 found")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[fault]]\nname = 'x'\n", "all: fault 'x' has no 'function'"),
        ("[[fault]]\nname = 'x'\nfunction = 'f'\ntext = 'a'\nbecomes = 'a'\ntests = ['t']\n",
         "all: fault 'x' changes nothing: text and becomes are equal"),
        ("[[fault]]\nname = 'x'\nfunction = 'f'\ntext = 'a'\nbecomes = 'b'\ntests = []\n",
         "all: fault 'x' has unknown keys [], or no tests"),
    ],
)  # fmt: skip
def test_a_malformed_list_is_an_error(tmp_path, text, message):
    (tmp_path / "all.toml").write_text(text)
    assert run("--check", root=tmp_path, faults=tmp_path) == (1, [message])
