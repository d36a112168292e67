"""Which way through rows is chosen for a processor."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from shardcore._core import cpu
from shardcore._core.constants import ASKING
from shardcore.lookup import prepared
from shardcore.store import given_bags, lookups, segment_reduce, update
from shardcore.store.pace import NEVER, PACE, pace_of

PROCESSORS = Path("/proc/cpuinfo")


@pytest.mark.parametrize(
    ("family", "avx512", "asking", "block_bytes", "alone_bytes"),
    [
        (0, False, "by pairs", 1 << 20, NEVER),
        (0, True, "by pairs", 1 << 20, NEVER),
        (23, False, "by lines", 1 << 13, 256),
        (25, False, "by lines", 1 << 13, 256),
        (25, True, "by lines", 1 << 14, 1024),
        (26, True, "into first", 2560, NEVER),
        (27, True, "into first", 2560, NEVER),
    ],
)
def test_each_family_has_the_way_that_was_measured_on_it(
    family: int, avx512: bool, asking: str, block_bytes: int, alone_bytes: int
) -> None:
    pace = pace_of(family, avx512)
    found = pace.asking, pace.block_bytes, pace.alone_bytes
    assert found == (ASKING[asking], block_bytes, alone_bytes)


def test_the_pace_is_that_of_this_processor(pytestconfig: pytest.Config) -> None:
    """Or that of the one whose tests are run."""
    family = pytestconfig.getoption("family")
    here = pace_of(cpu.amd_family(), cpu.features()["avx512f"])
    assert (here if family is None else pace_of(family)) == PACE
    modules = [update, given_bags, lookups, segment_reduce, prepared]
    assert {module.PACE for module in modules} == {PACE}


@pytest.mark.skipif(not PROCESSORS.exists(), reason="needs Linux, which lists its processors")
def test_the_family_is_what_the_system_says() -> None:
    # Another processor that is emulated lists the one that emulates it.
    x86 = platform.machine().lower() in {"x86_64", "amd64"}
    listed = PROCESSORS.read_text() if x86 else ""
    family = re.search(r"^cpu family\s*: (\d+)$", listed, re.MULTILINE)
    amd = "AuthenticAMD" in listed and family is not None
    assert cpu.amd_family() == (int(family[1]) if amd and family is not None else 0)
