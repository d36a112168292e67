"""The seed of tests that try what comes by chance, the tenth for `make check`, a file to plan from,
the way through rows of another processor.

The tenth (``--tenth``) is one case of every test function, so that no module and no test goes
untried: of a test with many cases the name decides which, always the same. Left out are those
marked slow. That the marks stay true needs no list: in the tenth, a test that is not marked fails
where it takes more than `CPU_SECONDS`, as fast as the machine is at that time.

Results do not depend on how kernels go through rows, see `shardcore.store.pace`, but tests could:
with ``--family 26`` they run as on that family of AMD's processors, with 0 as on other makers'.
"""

from __future__ import annotations

import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

VARIABLE = "SHARDCORE_TEST_SEED"
SEED = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(2**32))
BEFORE = pytest.StashKey[float]()
CPU_SECONDS = 4.0  # marked are those that take more than two or so
LOOP_SECONDS = 0.05  # of `of_a_loop` in the quickest moments of a Zen 3, twice that in others


def pytest_report_header() -> str:
    """Tell the seed of a run, with which the same cases come again."""
    return f"{VARIABLE}={SEED}"


@pytest.fixture
def fuzz_seed(request: pytest.FixtureRequest) -> int:
    """The seed of one test, made of that of the run and the test's name; shown if it fails."""
    print(f"{VARIABLE}={SEED}")
    return zlib.crc32(f"{SEED}/{request.node.name}".encode())


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes the file of a model to be planned, and returns its path."""

    def write_model(text: str) -> Path:
        path = tmp_path / "model.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_model


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tenth`` and ``--family``."""
    parser.addoption(
        "--tenth", action="store_true", help="one case of every test that is not marked slow"
    )
    parser.addoption(
        "--family", type=int, help="go through rows as on this family of AMD's processors; 0: none"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Replace the way through rows wherever it is named, if another was asked for."""
    family = config.getoption("family")
    if family is None:
        return
    from shardcore.store import pace

    here, other = pace.PACE, pace.pace_of(family)
    for name, module in list(sys.modules.items()):
        if name.startswith("shardcore") and getattr(module, "PACE", None) is here:
            module.PACE = other  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tenth, if it was asked for."""
    if not config.getoption("tenth"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    chosen = {some[zlib.crc32(name.encode()) % len(some)] for name, some in cases.items()}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def cpu_seconds() -> float:
    """Return what this process and those it has waited for have used."""
    return sum(os.times()[:4])


def of_a_loop() -> float:
    """Return the seconds of CPU time of a short loop, by which slow machines are known."""
    begun = time.process_time()
    sum(i * i for i in range(10**6))
    return time.process_time() - begun


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Remember what was used before a test and its fixtures."""
    item.stash[BEFORE] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the tenth that takes too long for it, as fast as this machine is."""
    result = yield
    spent = cpu_seconds() - item.stash[BEFORE]
    # The loop runs beside whatever the test ran beside, and only where it may change the outcome.
    if (
        item.config.getoption("tenth")
        and spent > CPU_SECONDS
        and spent > CPU_SECONDS * of_a_loop() / LOOP_SECONDS
    ):
        pytest.fail(f"took {spent:.1f} s of CPU time: mark it slow, and make check leaves it out")
    return result
