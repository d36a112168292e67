"""A lookup and a training step over very many small tables, as ranking models have them.

The rows are few and narrow, so that what is measured is what a call costs per table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import shardcore as sc

TABLES: Final = {False: 12, True: 856}
"""In a test run, and in a measurement."""

ROWS: Final = 50
DIM: Final = 8
BATCH: Final = 32
POOLING: Final = 3
LEARNING_RATE: Final = 0.5

Ids = dict[str, NDArray[np.int64]]


class Workload:
    """An engine and its batch.

    Parameters
    ----------
    form : {"dense", "ragged"}
        One id per bag as an array, summed; or `POOLING` ids as (values, row_splits), averaged.
    tables : int
    """

    def __init__(self, form: str, tables: int) -> None:
        self.form = form
        rng = np.random.default_rng(4)
        pooling = 1 if form == "dense" else POOLING
        combiner: Literal["sum", "mean"] = "sum" if form == "dense" else "mean"
        names = [f"t{at}" for at in range(tables)]
        self.rows = rng.standard_normal((ROWS, DIM), np.float32)
        self.ids: Ids = {name: rng.integers(0, ROWS, (BATCH, pooling)) for name in names}
        self.features: dict[str, Any] = {
            name: ids[:, 0] if form == "dense" else (ids.ravel(), np.arange(BATCH + 1) * pooling)
            for name, ids in self.ids.items()
        }
        self.gradients = {name: rng.standard_normal((BATCH, DIM), np.float32) for name in names}
        config = {
            name: sc.FeatureConfig(
                sc.TableConfig(ROWS, DIM, initializer=self.rows, combiner=combiner, name=name)
            )
            for name in names
        }
        self.engine = sc.ShardedEmbedding(config, sc.optimizers.SGD(LEARNING_RATE))
        self.engine.build()

    def step(self) -> dict[str, NDArray[np.float32]]:
        """Look up, and train."""
        self.engine.enqueue(self.features)
        activations: dict[str, NDArray[np.float32]] = self.engine.dequeue()
        self.engine.apply_gradients(self.gradients)
        return activations

    def rows_after(self, name: str, steps: int) -> NDArray[np.float64]:
        """Return a table's rows after so many steps: the oracle."""
        ids = self.ids[name]
        summed = np.zeros((ROWS, DIM))
        gradient = self.gradients[name].astype(np.float64) / ids.shape[1]
        for place in ids.T:
            np.add.at(summed, place, gradient)
        moved: NDArray[np.float64] = self.rows - LEARNING_RATE * steps * summed
        return moved

    def check(self, activations: dict[str, NDArray[np.float32]], steps: int) -> None:
        """Assert what a lookup gave after so many steps, of all tables."""
        assert list(activations) == list(self.ids)
        for name, found in activations.items():
            expected = self.rows_after(name, steps)[self.ids[name]].mean(axis=1)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * max(steps, 1))


@pytest.fixture(params=["dense", "ragged"])
def workload(request: pytest.FixtureRequest, measured: bool) -> Iterator[Workload]:
    made = Workload(request.param, TABLES[measured])
    with made.engine:
        yield made


@pytest.mark.benchmark(group="lookup of many tables")
def test_lookup(benchmark: Callable[..., Any], workload: Workload) -> None:
    workload.check(benchmark(workload.engine, workload.features), 0)


@pytest.mark.benchmark(group="step of many tables")
def test_step(benchmark: Callable[..., Any], workload: Workload) -> None:
    benchmark(workload.step)
    workload.check(workload.engine(workload.features), workload.engine.step)
