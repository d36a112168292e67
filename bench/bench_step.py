"""A training step: enqueue, dequeue, apply_gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shardcore_bench.workload import DISTRIBUTIONS, Sizes, bags_of_ids, gradient_of

import shardcore as sc

LEARNING_RATE = 0.01
ACCUMULATOR = 0.1


def summed_gradient(
    row: int, ids: NDArray[np.int64], sizes: Sizes, gradient: NDArray[np.float32]
) -> NDArray[np.float64]:
    bags = np.flatnonzero(ids == row) // sizes.pooling
    summed: NDArray[np.float64] = gradient[bags].sum(axis=0, dtype=np.float64)
    return summed


def after_steps(
    optimizer: str, row: NDArray[Any], gradient: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    """Return a row after so many steps with the same summed gradient."""
    number = np.arange(1, steps + 1)[:, None]
    if optimizer == "SGD":
        moved = number[-1] * gradient
    else:
        moved = (gradient / np.sqrt(ACCUMULATOR + number * gradient**2)).sum(axis=0)
    expected: NDArray[np.float64] = row - LEARNING_RATE * moved
    return expected


@pytest.mark.benchmark(group="step")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_step(
    benchmark: Callable[..., Any],
    sizes: Sizes,
    rows: NDArray[np.float32],
    optimizer: str,
    distribution: str,
    threads: int,
) -> None:
    options = {"initial_accumulator_value": ACCUMULATOR} if optimizer == "Adagrad" else {}
    update = getattr(sc.optimizers, optimizer)(learning_rate=LEARNING_RATE, **options)
    table = sc.TableConfig(sizes.rows, sizes.dim, initializer=rows, combiner="sum", name="items")
    ids, row_splits = bags_of_ids(sizes, distribution)
    gradient = gradient_of(sizes)
    with sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer=update) as embedding:
        embedding.build()

        def step() -> None:
            embedding.enqueue((ids, row_splits))
            embedding.dequeue()
            embedding.apply_gradients(gradient)

        benchmark(step)
        trained = embedding.tables["items"]
        for row in np.unique(ids[:20]):
            summed = summed_gradient(row, ids, sizes, gradient)
            expected = after_steps(optimizer, rows[row], summed, embedding.step)
            np.testing.assert_allclose(trained[int(row)], expected, rtol=1e-3, atol=1e-3)
        untouched = np.setdiff1d(np.arange(sizes.rows), ids)[:20]
        np.testing.assert_array_equal(trained[untouched], rows[untouched])
