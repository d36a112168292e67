"""Optimizers whose slots begin in every way there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardcore.initializers.constants import RowId
from shardcore.initializers.distributions import Normal
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.hyperparameters import LearningRate
from shardcore.optimizer.slots import SlotSpec

__all__ = ["Declared", "FromRows"]


@dataclass(frozen=True, eq=False, repr=False)
class Declared(Optimizer):
    """Slots from numbers, initializers and arrays, for a table of a given shape."""

    num_rows: int
    dim: int
    learning_rate: LearningRate = 0.25

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """One per kind and kind of value."""
        elements = np.arange(self.num_rows * self.dim).reshape(self.num_rows, self.dim)
        return (
            SlotSpec("constants", "element", fill=0.5),
            SlotSpec("normals", "element", fill=Normal()),
            SlotSpec("numbers", "row", "float32", fill=RowId(1000)),
            SlotSpec("elements", "element", "table", fill=elements / 4),
            SlotSpec("halves", "row", "float16", fill=elements[:, :1] - 1.5),
        )

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return rows that depend on one slot, and slots that have moved."""
        moved = {name: 0.5 * slot for name, slot in slots.items()}
        return rows - hyper[0] * grad * slots["normals"], moved


@dataclass(frozen=True, eq=False, repr=False)
class FromRows(Optimizer):
    """Slots from the rows' own initial values and their numbers, by an `init` of its own."""

    learning_rate: LearningRate = 0.25

    slots = (SlotSpec("doubles", "element"), SlotSpec("numbers", "row", "float32", fill=7.0))

    def init(self, rows: Any, row_ids: Any = None, seed: int = 0) -> dict[str, Any]:
        """Return twice the rows, and the numbers of the rows."""
        xp = rows.__array_namespace__()
        count = rows.shape[0]
        numbers = xp.arange(count) if row_ids is None else row_ids
        places = xp.astype(xp.reshape(xp.asarray(numbers), (count, 1)), rows.dtype)
        return {"doubles": 2 * rows, "numbers": places}

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return rows that depend on one slot, and slots that have moved."""
        moved = {name: 0.5 * slot for name, slot in slots.items()}
        return rows - hyper[0] * grad * slots["doubles"], moved
