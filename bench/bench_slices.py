"""Layout.decompose_slice: a slice of a table becomes local slices of its shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import Sizes

import shardcore as sc


@pytest.mark.benchmark(group="decompose_slice")
@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(3, -2, 3), slice(None, None, -7), slice(5, 6)],
    ids=["all", "strided", "reversed", "one row"],
)
def test_decompose_slice(benchmark: Callable[..., Any], sizes: Sizes, rows: slice) -> None:
    layout = sc.Layout.div(sizes.rows, sizes.shards)
    pieces = benchmark(layout.decompose_slice, rows)
    table = np.arange(sizes.rows)
    shards = [table[layout.offsets[s] : layout.offsets[s + 1]] for s in range(sizes.shards)]
    found = np.concatenate([shards[shard][local] for shard, local in pieces])
    np.testing.assert_array_equal(found, table[rows])
