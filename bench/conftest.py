"""Sizes by mode: an ordinary test run takes the small ones, a measurement the real ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from shardcore_bench.workload import FULL, SMALL, Sizes, table_rows

import shardcore as sc


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> bool:
    """Whether times count: in a test run one call of small sizes is enough."""
    disabled = pytestconfig.getoption("benchmark_disable")
    return bool(not disabled or pytestconfig.getoption("benchmark_enable"))


@pytest.fixture(scope="session")
def sizes(measured: bool) -> Sizes:
    return FULL if measured else SMALL


@pytest.fixture(scope="session")
def rows(sizes: Sizes) -> NDArray[np.float32]:
    values = table_rows(sizes)
    values.flags.writeable = False
    return values


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = sc.get_num_threads()
    sc.set_num_threads(request.param)
    yield request.param
    sc.set_num_threads(before)
