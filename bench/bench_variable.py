"""Reading a ShardedVariable whose rows lie in many shards."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import Sizes

import shardcore as sc


@pytest.mark.benchmark(group="variable")
@pytest.mark.parametrize("layout", ["div", "mod"])
@pytest.mark.parametrize(
    "index", [slice(3, -2), slice(None, None, -3), slice(5, 9)], ids=["most", "reversed", "few"]
)
def test_variable_slice(
    benchmark: Callable[..., Any], sizes: Sizes, layout: str, index: slice
) -> None:
    numbers = np.arange(sizes.variable_rows * sizes.dim, dtype=np.float32)
    whole = numbers.reshape(sizes.variable_rows, sizes.dim)
    placed = getattr(sc.Layout, layout)(sizes.variable_rows, sizes.shards)
    shards = [whole[placed.global_rows(shard)] for shard in range(sizes.shards)]
    variable = sc.ShardedVariable(shards, layout=placed)
    np.testing.assert_array_equal(benchmark(getitem, variable, index), whole[index])
