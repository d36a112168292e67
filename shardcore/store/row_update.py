"""The update of rows by a batch: one record, given to everything that updates rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.optimizer.base import Optimizer
from shardcore.store.occurrences import Occurrences

__all__ = ["RowUpdate"]


@dataclass(eq=False, slots=True)  # one for every table of a step: a frozen one is made more slowly
class RowUpdate:
    """The gradients of a batch, the rows that receive them, and how they are applied.

    Attributes
    ----------
    occurrences : Occurrences
        The rows, as the arrays number them that are updated, and which gradients each receives.
    row_ids : ndarray of int64, shape (unique,)
        The unique rows' numbers in the whole table.
    gradients : ndarray of the working dtype, shape (bags, dim), C-contiguous
    optimizer : Optimizer
    hyper : tuple of float
        ``optimizer.hyper()``, evaluated once for the batch: a value for each of its names.
    step : int
        1 for the first batch.
    seed : int, default 0
        The table's, for stochastic rounding.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> sgd = SGD(learning_rate=0.5)
    >>> update = RowUpdate(batch, batch.rows, np.ones((2, 1)), sgd, sgd.hyper(), step=1)
    >>> update.part(1, 2).row_ids
    array([3])
    """

    occurrences: Occurrences
    row_ids: NDArray[np.int64]
    gradients: NDArray[Any]
    optimizer: Optimizer
    hyper: tuple[float, ...]
    step: int
    seed: int = 0

    def part(self, start: int, stop: int) -> RowUpdate:
        """Return the update of the unique rows [start, stop)."""
        whole = self.occurrences
        occurrences = Occurrences(
            whole.rows[start:stop],
            whole.run_splits[start : stop + 1],
            whole.sources,
            whole.gains,
        )
        return replace(self, occurrences=occurrences, row_ids=self.row_ids[start:stop])
