"""Layout.partition: ids grouped by the shard that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import Sizes

import shardcore as sc


@pytest.mark.benchmark(group="partition")
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("strategy", ["div", "mod"])
def test_partition(
    benchmark: Callable[..., Any], sizes: Sizes, strategy: str, dtype: type[Any]
) -> None:
    layout = getattr(sc.Layout, strategy)(sizes.rows, sizes.shards)
    ids = np.random.default_rng(0).integers(0, sizes.rows, sizes.partition_ids).astype(dtype)
    local, row_splits, inverse = benchmark(layout.partition, ids)
    if strategy == "div":
        shard = np.searchsorted(layout.offsets, ids, side="right") - 1
        expected = ids - layout.offsets[shard]
    else:
        shard, expected = ids % sizes.shards, ids // sizes.shards
    order = np.argsort(shard, kind="stable")
    np.testing.assert_array_equal(local, expected[order])
    np.testing.assert_array_equal(local[inverse], expected)
    np.testing.assert_array_equal(np.diff(row_splits), np.bincount(shard, minlength=sizes.shards))
