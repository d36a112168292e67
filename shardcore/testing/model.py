"""A backend in plain NumPy: what every other one must agree with, written to be read.

Loops over bags and occurrences, one Python step each, in the order that the contract defines.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.dtypes import working_dtype
from shardcore.optimizer.slot_values import initial_slots
from shardcore.reference import stochastic_round
from shardcore.store.rounding import step_seed

__all__ = ["ModelBackend"]

RUN_BLOCK = 4096
"""Occurrences of one row whose gradients are summed in one go."""


class ModelBackend(Backend):
    """Tables in a dictionary of NumPy arrays; slow, and nothing of the kernels is in it.

    Attributes
    ----------
    arrays : dict of (table, slot name or None for the weights) -> ndarray
        The stored rows, in the order of the whole table.

    Examples
    --------
    >>> from shardcore.initializers import RowId
    >>> backend = ModelBackend()
    >>> backend.create_table(TableSpec("t", 5, 2, np.dtype("float32"), RowId(), 0))
    >>> bags = FeatureBags(np.array([4, 1, 2]), np.array([0, 2, 3]))
    >>> backend.lookup([TableBatch("t", (bags,))])[0][0]
    array([[5., 5.],
           [2., 2.]], dtype=float32)
    """

    name = "model"

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[tuple[str, str | None], NDArray[Any]] = {}
        self._lock = threading.RLock()

    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots."""
        row_ids = np.arange(spec.num_rows, dtype=np.int64)
        rows = spec.initializer(row_ids, (spec.dim,), spec.dtype, spec.seed)
        self.arrays[spec.name, None] = rows = np.array(rows, spec.dtype)
        for name, slot in initial_slots(spec.optimizer, rows, row_ids, spec.seed).items():
            self.arrays[spec.name, name] = slot

    def remove_table(self, table: str) -> None:
        """Forget a table."""
        for key in [key for key in self.arrays if key[0] == table]:
            del self.arrays[key]

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        with self._lock:
            gathered: NDArray[Any] = self.arrays[table, slot][rows]
            return gathered

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        with self._lock:
            self.arrays[table, slot][rows] = values

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Combine the rows of every bag, one occurrence after the other."""
        with self._lock:
            return [
                [self._combined(batch.table, bags) for bags in batch.features] for batch in batches
            ]

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Work out every table's new rows, then store them."""
        with self._lock:
            changes = [change for update in updates for change in self._changes(update)]
            for table, slot, rows, values in changes:
                self.scatter(table, slot, rows, values)

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return each occurrence's row times its bag's gradient, summed in float64."""
        with self._lock:
            return [
                None if gradient is None else self._dots(update.batch.table, bags, gradient)
                for bags, gradient in zip(update.batch.features, update.gradients, strict=True)
            ]

    def close(self) -> None:
        """Forget all tables."""
        super().close()
        self.arrays.clear()

    # --- one table -------------------------------------------------------------------------------

    def _working(self, table: str) -> np.dtype[Any]:
        return working_dtype(self.specs[table].dtype)

    def _combined(self, table: str, bags: FeatureBags) -> NDArray[Any]:
        value = self._working(table)
        rows = self.specs[table].as_looked_up(self.arrays[table, None])
        out = np.zeros((bags.num_bags, rows.shape[1]), value)
        for bag in range(bags.num_bags):
            for at in range(bags.row_splits[bag], bags.row_splits[bag + 1]):
                row = rows[bags.ids[at]].astype(value)
                out[bag] += row if bags.weights is None else bags.weights[at] * row
            if bags.divisors is not None:
                divisor = bags.divisors[bag]
                out[bag] = out[bag] / divisor if divisor != 0 else 0
        return out

    def _received(self, update: TableUpdate) -> dict[int, list[NDArray[Any]]]:
        """Return the gradients of each row that a feature with a gradient names, in their order."""
        value = self._working(update.batch.table)
        received: dict[int, list[NDArray[Any]]] = {}
        for bags, gradient in zip(update.batch.features, update.gradients, strict=True):
            if gradient is None:
                continue
            for bag in range(bags.num_bags):
                for at in range(bags.row_splits[bag], bags.row_splits[bag + 1]):
                    gain = value.type(1) if bags.weights is None else bags.weights[at]
                    if bags.divisors is not None:
                        divisor = bags.divisors[bag]
                        gain = gain / divisor if divisor != 0 else value.type(0)
                    received.setdefault(int(bags.ids[at]), []).append(gain * gradient[bag])
        return received

    def _changes(
        self, update: TableUpdate
    ) -> list[tuple[str, str | None, NDArray[np.int64], NDArray[Any]]]:
        """Return what an update stores, as arguments of `scatter`."""
        table = update.batch.table
        value, spec = self._working(table), self.specs[table]
        optimizer = spec.optimizer
        assert optimizer is not None, "only tables with an optimizer are trained"
        received = self._received(update)
        rows = np.array(sorted(received) if optimizer.lazy else range(spec.num_rows), np.int64)
        new_rows: Any = self.arrays[table, None][rows].astype(value)
        new_slots: Mapping[str, Any] = {
            slot.name: self.arrays[table, slot.name][rows].astype(value) for slot in optimizer.slots
        }
        if optimizer.accumulate:
            nothing = np.zeros(spec.dim, value)
            summed = [_sum_in_blocks(received.get(row, [nothing])) for row in rows.tolist()]
            gradients = np.array(summed, value).reshape(rows.size, spec.dim)
            new_rows, new_slots = optimizer.update(
                gradients, new_rows, new_slots, update.hyper, update.step, rows
            )
        else:
            for at, row in enumerate(rows.tolist()):
                one = slice(at, at + 1)
                for gradient in received[row]:
                    new_rows[one], changed = optimizer.update(
                        np.zeros_like(gradient[None]) + gradient,
                        new_rows[one],
                        {name: slot[one] for name, slot in new_slots.items()},
                        update.hyper,
                        update.step,
                        rows[one],
                    )
                    for name, slot in new_slots.items():
                        slot[one] = changed[name]
        values = np.asarray(new_rows)
        if optimizer.rounds_stochastically and spec.dtype.name in ("float16", "bfloat16"):
            seed = step_seed(spec.seed, update.step)
            stored = stochastic_round(values, spec.dtype, rows, seed)
        else:
            stored = values.astype(spec.dtype)
        changes: list[tuple[str, str | None, NDArray[np.int64], NDArray[Any]]] = [
            (table, None, rows, stored)
        ]
        for slot in optimizer.slots:
            kept = np.asarray(new_slots[slot.name]).astype(slot.storage_dtype(spec.dtype))
            changes.append((table, slot.name, rows, kept))
        return changes

    def _dots(self, table: str, bags: FeatureBags, gradient: NDArray[Any]) -> NDArray[Any]:
        rows = self.specs[table].as_looked_up(self.arrays[table, None]).astype(np.float64)
        bag_of = np.repeat(np.arange(bags.num_bags), np.diff(bags.row_splits))
        dots: NDArray[Any] = (rows[bags.ids] * gradient[bag_of]).sum(axis=1)
        return dots.astype(gradient.dtype)


def _sum_in_blocks(gradients: list[NDArray[Any]]) -> NDArray[Any]:
    """Sum in order, in blocks of `RUN_BLOCK` counted from the first, blocks added in order."""
    sums = []
    for start in range(0, len(gradients), RUN_BLOCK):
        total = np.zeros_like(gradients[0])
        for gradient in gradients[start : start + RUN_BLOCK]:
            total += gradient
        sums.append(total)
    summed = sums[0]
    for block in sums[1:]:
        summed = summed + block
    return summed
