"""What is measured: sizes, ids and tables, all from fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DISTRIBUTIONS",
    "FULL",
    "QUICK",
    "SMALL",
    "Sizes",
    "bag_sums",
    "bags_of_ids",
    "gradient_of",
    "table_rows",
]

DISTRIBUTIONS: Final = ("uniform", "zipf")

ZIPF_EXPONENT: Final = 1.2


@dataclass(frozen=True)
class Sizes:
    """The sizes of one workload.

    Attributes
    ----------
    rows, dim : int
        Of the table, float32.
    bags, pooling : int
        A batch has `bags` bags of `pooling` ids each (the pooling factor).
    partition_ids, shards : int
        So many ids of the table are partitioned into so many shards.
    variable_rows : int
        Rows, of `dim` columns, of the ShardedVariable that is sliced.
    """

    rows: int
    dim: int
    bags: int
    pooling: int
    partition_ids: int
    shards: int
    variable_rows: int


FULL: Final = Sizes(4_000_000, 64, 16_384, 32, 1_000_000, 64, 65_536)
QUICK: Final = Sizes(400_000, 64, 4_096, 32, 200_000, 64, 16_384)
SMALL: Final = Sizes(1_000, 8, 24, 5, 600, 7, 100)


def table_rows(sizes: Sizes) -> NDArray[np.float32]:
    """Return the initial rows of the table, (rows, dim), uniform in [-0.5, 0.5)."""
    rows = np.random.default_rng(1).random((sizes.rows, sizes.dim), np.float32)
    rows -= 0.5
    return rows


def bags_of_ids(sizes: Sizes, distribution: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids and row_splits of one batch.

    "uniform": each row is equally likely. "zipf": the row of rank k has a probability proportional
    to k**-1.2; ranks are dealt to rows at random, so that hot rows are no neighbours.
    """
    draw = np.random.default_rng(2)
    count = sizes.bags * sizes.pooling
    if distribution == "uniform":
        ids = draw.integers(0, sizes.rows, count)
    else:
        cumulative = np.cumsum(np.arange(1, sizes.rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
        ranks = np.searchsorted(cumulative, draw.random(count) * cumulative[-1])
        ids = draw.permutation(sizes.rows)[np.minimum(ranks, sizes.rows - 1)]
    return ids, np.arange(sizes.bags + 1, dtype=np.int64) * sizes.pooling


def gradient_of(sizes: Sizes) -> NDArray[np.float32]:
    """Return the gradient of a batch's activations, (bags, dim)."""
    return np.random.default_rng(3).standard_normal((sizes.bags, sizes.dim), np.float32)


def bag_sums(
    rows: NDArray[Any], ids: NDArray[np.int64], row_splits: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum of the rows of every bag in float64: the oracle. No bag may be empty."""
    sums = [
        rows[ids[first:last]].sum(axis=0, dtype=np.float64) for first, last in pairwise(row_splits)
    ]
    return np.array(sums)
