"""Gradients of bags whose greatest values were looked up, made gradients of single occurrences.

A backend gives such a table's rows one by one, in bags of one id each; the engine takes the
greatest values, and remembers which occurrence had each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from shardcore.backend.messages import TableUpdate
from shardcore.engine.in_flight import Batch
from shardcore.store.bag_max import at_winners

__all__ = ["MaxGradient", "at_occurrences"]


@dataclass(frozen=True, eq=False)
class MaxGradient:
    """A gradient of greatest values: which occurrences had them is known after the lookup.

    Attributes
    ----------
    of_bags : ndarray of the working dtype, shape (bags, dim)
    batch : Batch
    feature : int
        Which of the batch's.
    """

    of_bags: NDArray[Any]
    batch: Batch
    feature: int

    def of_occurrences(self) -> NDArray[Any]:
        """Return the gradient of each occurrence's row, zeros where another was greater."""
        row_splits = self.batch.prepared[self.feature].max_splits
        assert row_splits is not None, "a gradient of greatest values is of bags"
        return at_winners(self.of_bags, self.batch.winners[self.feature], row_splits)


def at_occurrences(updates: Sequence[TableUpdate]) -> list[TableUpdate]:
    """Return updates whose gradients are arrays, those of greatest values at their occurrences."""
    return [
        _at_occurrences(update) if MaxGradient in map(type, update.gradients) else update
        for update in updates
    ]


def _at_occurrences(update: TableUpdate) -> TableUpdate:
    given = update.gradients
    arrays = [one.of_occurrences() if isinstance(one, MaxGradient) else one for one in given]
    return replace(update, gradients=tuple(arrays))
