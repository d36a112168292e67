"""Combined lookup: the store's face of the kernel, and the whole way through the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shardcore_bench.workload import DISTRIBUTIONS, Sizes, bag_sums, bags_of_ids

import shardcore as sc
from shardcore.store.segment_reduce import segment_reduce
from shardcore.store.table import StoreTable


@pytest.fixture(scope="module")
def store_table(sizes: Sizes, rows: NDArray[np.float32]) -> StoreTable:
    table = StoreTable(sizes.rows, sizes.dim, np.dtype("float32"), None)
    table.write(None, 0, rows)
    return table


@pytest.fixture(scope="module")
def embedding(sizes: Sizes, rows: NDArray[np.float32]) -> Iterator[sc.ShardedEmbedding]:
    table = sc.TableConfig(sizes.rows, sizes.dim, initializer=rows, combiner="sum", name="items")
    with sc.ShardedEmbedding(sc.FeatureConfig(table)) as engine:
        engine.build()
        yield engine


@pytest.mark.benchmark(group="lookup")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_store_lookup(
    benchmark: Callable[..., Any],
    sizes: Sizes,
    rows: NDArray[np.float32],
    store_table: StoreTable,
    distribution: str,
    threads: int,
) -> None:
    ids, row_splits = bags_of_ids(sizes, distribution)
    found = benchmark(segment_reduce, store_table.rows, ids, row_splits)
    np.testing.assert_allclose(found, bag_sums(rows, ids, row_splits), rtol=1e-5, atol=1e-5)


@pytest.mark.benchmark(group="lookup")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_engine_lookup(
    benchmark: Callable[..., Any],
    sizes: Sizes,
    rows: NDArray[np.float32],
    embedding: sc.ShardedEmbedding,
    distribution: str,
    threads: int,
) -> None:
    ids, row_splits = bags_of_ids(sizes, distribution)
    found = benchmark(embedding, (ids, row_splits))
    np.testing.assert_allclose(found, bag_sums(rows, ids, row_splits), rtol=1e-5, atol=1e-5)


@pytest.mark.benchmark(group="small lookup")
@pytest.mark.parametrize("bags", [1, 64])
def test_small_lookup(
    benchmark: Callable[..., Any],
    sizes: Sizes,
    rows: NDArray[np.float32],
    embedding: sc.ShardedEmbedding,
    bags: int,
) -> None:
    """What a call costs when there is little to do."""
    ids = np.random.default_rng(0).integers(0, sizes.rows, bags * sizes.pooling)
    row_splits = np.arange(bags + 1, dtype=np.int64) * sizes.pooling
    found = benchmark(embedding, (ids, row_splits))
    np.testing.assert_allclose(found, bag_sums(rows, ids, row_splits), rtol=1e-5, atol=1e-5)
