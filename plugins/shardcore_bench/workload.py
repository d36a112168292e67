"""What is measured: sizes, ids and tables, all from fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.text_ids import text_ids

__all__ = [
    "ALL_DISTRIBUTIONS",
    "DISTRIBUTIONS",
    "FULL",
    "QUICK",
    "SMALL",
    "Sizes",
    "bag_sums",
    "bags_combined",
    "bags_of_ids",
    "draw_ids",
    "gradient_of",
    "table_rows",
]

DISTRIBUTIONS: Final = ("uniform", "zipf 1.2")
ALL_DISTRIBUTIONS: Final = ("uniform", "zipf 1.05", "zipf 1.2", "text")


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
    criteo_rows, criteo_bags : int
        Of the 26 tables: rows of each at most, and samples in a batch.
    many_tables, many_rows, many_bags : int
        Of the many small tables: how many, rows of each, and samples in a batch.
    growth_rows, growth_ids : int
        Where cost is seen to grow: rows of the table whose ids are more and more, up to `most_ids`,
        and ids of a batch whose table has more and more rows, up to `most_rows`.
    """

    rows: int
    dim: int
    bags: int
    pooling: int
    partition_ids: int
    shards: int
    variable_rows: int
    criteo_rows: int
    criteo_bags: int
    many_tables: int
    many_rows: int
    many_bags: int
    growth_rows: int
    growth_ids: int
    most_rows: int
    most_ids: int


_MILLION: Final = 1_000_000

FULL: Final = Sizes(
    *(1 << 22, 64, 16_384, 32, _MILLION, 64, 65_536, 400_000, 2_048, 856, 5_000, 256),
    *(_MILLION, 100_000, 100 * _MILLION, 10 * _MILLION),
)
QUICK: Final = Sizes(
    *(1 << 16, 64, 512, 32, 100_000, 64, 8_192, 2_000, 64, 40, 500, 32),
    *(10_000, 1_000, 100_000, 10_000),
)
SMALL: Final = Sizes(*(1_000, 8, 24, 5, 600, 7, 100, 50, 6, 5, 40, 6), *(1_000, 100, 1_000, 1_000))


def table_rows(sizes: Sizes, dim: int | None = None, dtype: Any = np.float32) -> NDArray[Any]:
    """Return the initial rows of the table, uniform in [-0.5, 0.5).

    (rows, dim); of a `dim` above that of the workload as many rows fewer, so that tables do not
    outgrow the machine.
    """
    columns = sizes.dim if dim is None else dim
    count = sizes.rows if columns <= sizes.dim else sizes.rows * sizes.dim // columns
    rows = np.random.default_rng(1).random((count, columns), np.float32)
    rows -= 0.5
    return rows.astype(dtype, copy=False)


def draw_ids(
    draw: np.random.Generator, distribution: str, count: int, rows: int
) -> NDArray[np.int64]:
    """Return ids of a table.

    "uniform": each row is equally likely. "zipf s": the row of rank k has a probability
    proportional to k**-s; ranks are dealt to rows at random, so that hot rows are no neighbours.
    """
    if distribution == "uniform":
        return draw.integers(0, rows, count)
    law, exponent = distribution.split()
    assert law == "zipf"
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -float(exponent))
    ranks = np.searchsorted(cumulative, draw.random(count) * cumulative[-1])
    ids: NDArray[np.int64] = draw.permutation(rows)[np.minimum(ranks, rows - 1)]
    return ids


def bags_of_ids(
    sizes: Sizes, distribution: str, rows: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids and row_splits of one batch, of the workload's table or one of `rows`.

    As `draw_ids` has them, and "text": n-grams of the standard library's source, hashed.
    """
    draw = np.random.default_rng(2)
    of = sizes.rows if rows is None else rows
    if distribution == "text":
        ids = text_ids(draw, sizes.bags, sizes.pooling, of)
    else:
        ids = draw_ids(draw, distribution, sizes.bags * sizes.pooling, of)
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


def bags_combined(
    rows: NDArray[Any],
    ids: NDArray[np.int64],
    row_splits: NDArray[np.int64],
    weights: NDArray[np.float32] | None,
    combiner: str,
) -> NDArray[np.float64]:
    """Return what a combiner makes of every bag, in float64: the oracle. No bag may be empty."""
    of_ids = np.ones(ids.size) if weights is None else weights.astype(np.float64)
    found = np.empty((row_splits.size - 1, rows.shape[1]))
    for at, (first, last) in enumerate(pairwise(row_splits)):
        found[at] = of_ids[first:last] @ rows[ids[first:last]].astype(np.float64)
    if combiner == "sum":
        return found
    squares = of_ids if combiner == "mean" else of_ids**2
    below = np.add.reduceat(squares, row_splits[:-1])[:, None]
    return found / (below if combiner == "mean" else np.sqrt(below))
