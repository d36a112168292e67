"""Which way through rows is chosen for a processor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardcore._core import cpu
from shardcore._core.constants import ASKING
from shardcore.lookup import prepared
from shardcore.store import given_bags, lookups, segment_reduce, update
from shardcore.store.pace import PACE, pace_of

PROCESSORS = Path("/proc/cpuinfo")


@pytest.mark.parametrize(
    ("family", "asking", "row_by_row"),
    [
        (0, "by pairs", False),
        (23, "by lines", True),
        (25, "by lines", True),
        (26, "into first", False),
        (27, "into first", False),
    ],
)
def test_each_family_has_the_way_that_was_measured_on_it(
    family: int, asking: str, row_by_row: bool
) -> None:
    assert pace_of(family).asking == ASKING[asking]
    assert pace_of(family).row_by_row == row_by_row


def test_the_pace_is_that_of_this_processor(pytestconfig: pytest.Config) -> None:
    """Or that of the one whose tests are run."""
    family = pytestconfig.getoption("family")
    assert pace_of(cpu.amd_family() if family is None else family) == PACE
    modules = [update, given_bags, lookups, segment_reduce, prepared]
    assert {module.PACE for module in modules} == {PACE}


@pytest.mark.skipif(not PROCESSORS.exists(), reason="needs Linux, which lists its processors")
def test_the_family_is_what_the_system_says() -> None:
    listed = PROCESSORS.read_text()
    family = re.search(r"^cpu family\s*: (\d+)$", listed, re.MULTILINE)
    amd = "AuthenticAMD" in listed and family is not None
    assert cpu.amd_family() == (int(family[1]) if amd and family is not None else 0)
