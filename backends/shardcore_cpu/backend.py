"""The embedded backend: one host, one store, all the cores of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import (
    Backend,
    FeatureBags,
    RowSorts,
    TableBatch,
    TableSpec,
    TableUpdate,
    gradient_rows_of_tables,
    sorted_rows,
)
from shardcore.store import (
    InTurn,
    Mutex,
    Occurrences,
    RowUpdate,
    StoreSteps,
    StoreTable,
    TableLookups,
    every_row,
    stage_tables,
    uninterrupted,
)

__all__ = ["CpuBackend"]


class CpuBackend(Backend):
    """Tables in the memory of this process.

    Examples
    --------
    >>> import shardcore as sc
    >>> sc.get_backend("cpu").num_hosts
    1
    """

    name = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[str, StoreTable] = {}
        self._pure_updates = 0  # of tables that were given back
        self._changes = Mutex()  # one change at a time; lookups go on until rows are written

    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots, aligned, on huge pages where the system has them."""
        table = StoreTable(spec.num_rows, spec.dim, spec.dtype, spec.optimizer)
        table.initialise(spec.initializer, range(spec.num_rows), spec.seed)
        self._tables[spec.name] = table

    def remove_table(self, table: str) -> None:
        """Forget a table; its memory goes with the last view of it."""
        held = self._tables.pop(table, None)
        if held is not None:
            self._pure_updates += held.pure_updates

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        return self._tables[table].gather(slot, rows)

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        uninterrupted(self._changes.run, self._tables[table].scatter, slot, rows, values)

    def read(self, table: str, slot: str | None, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the rows [start, stop)."""
        return self._tables[table].read(slot, start, stop)

    def write(self, table: str, slot: str | None, start: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from `start` on."""
        uninterrupted(self._changes.run, self._tables[table].write, slot, start, values)

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Combine the rows of every bag; a training batch's rows are sorted on the way."""
        # All is added in one go: objects that one pass reads are far away when the next one comes.
        lookups, sorts = TableLookups(), RowSorts()
        activations, to_sort = [], []
        for batch in batches:
            spec, table = self.specs[batch.table], self._tables[batch.table]
            features, optimizer = batch.features, spec.optimizer
            if spec.seen_as_stored:
                found = []
                for bags in features:
                    arrays = bags.ids, bags.row_splits, bags.weights, bags.divisors
                    found.append(lookups.add(table, *arrays))
                activations.append(found)
            else:  # copies of the rows are changed before they are added
                activations += super().lookup([batch])
            if not batch.training or optimizer is None:
                continue
            if optimizer.lazy:
                sorts.add(features, spec.num_rows, table.working)
                to_sort.append(batch)
            else:  # to which rows without an occurrence are added
                batch.route = sorted_rows(features, spec.num_rows, table.working)
        lookups.make()
        for batch, occurrences in zip(to_sort, sorts.make(), strict=True):
            batch.route = occurrences
        return activations

    def lookup_into(self, table: str, bags: FeatureBags, out: NDArray[Any]) -> None:
        """Combine the rows of every bag where they lie."""
        if self.specs[table].seen_as_stored:
            self._tables[table].lookup_into(
                bags.ids, bags.row_splits, bags.weights, bags.divisors, out
            )
        else:
            super().lookup_into(table, bags, out)

    def lookup_given(
        self,
        table: str,
        ids: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool:
        """Combine the rows of bags as given where they lie."""
        return self.specs[table].seen_as_stored and self._tables[table].lookup_given(
            ids, row_splits, weights, divided, out
        )

    def steps(
        self,
        tables: Sequence[str],
        features: Sequence[tuple[int, ...]],
        divided: Sequence[int],
        narrow: bool,
    ) -> StoreSteps | None:
        """Return what makes steps of few bags, where kernels look up and update all tables."""
        optimizers = []
        for name in tables:
            spec, table = self.specs[name], self._tables[name]
            optimizer = spec.optimizer
            if optimizer is None or not optimizer.lazy:
                return None
            if not (spec.seen_as_stored and table.by_kernel):
                return None
            optimizers.append(optimizer)
        held = [self._tables[name] for name in tables]
        return StoreSteps(held, optimizers, features, divided, narrow, self.unique_rows.add)

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Update each touched row once, in one pass over the sorted rows.

        All that can fail happens before the first row of any table changes.
        """
        uninterrupted(self._changes.run, self._apply, updates)

    def _apply(self, updates: Sequence[TableUpdate]) -> None:
        self._staged(updates)()

    def stage(self, updates: Sequence[TableUpdate]) -> InTurn | None:
        """Prepare an update that kernels make, which begins with no row as it was before."""
        if not all(self._tables[update.batch.table].by_kernel for update in updates):
            return None
        return self._staged(updates)

    def _staged(self, updates: Sequence[TableUpdate]) -> InTurn:
        routes: list[Occurrences] = []
        active: list[tuple[Sequence[FeatureBags], Sequence[NDArray[Any]]]] = []
        for update in updates:
            batch = update.batch
            gradients = [gradient for gradient in update.gradients if gradient is not None]
            if len(gradients) == len(batch.features) and batch.route is not None:
                routes.append(batch.route)
                active.append((batch.features, gradients))
                continue
            # A feature without a gradient must leave its rows alone: sort again without it. A batch
            # made of several lookups was not sorted yet.
            features = [
                bags for bags, used in zip(batch.features, update.active, strict=True) if used
            ]
            table = self._tables[batch.table]
            routes.append(sorted_rows(features, len(table.rows), table.working))
            active.append((features, gradients))
        scaled = gradient_rows_of_tables(active)
        tables, staged, unique = [], [], 0
        for update, occurrences, gradient in zip(updates, routes, scaled, strict=True):
            unique += occurrences.rows.size
            spec = self.specs[update.batch.table]
            assert spec.optimizer is not None, "the engine trains tables with an optimizer only"
            if not spec.optimizer.lazy:
                occurrences = every_row(occurrences, spec.num_rows)
            rows, optimizer = occurrences.rows, spec.optimizer
            hyper, step, seed = update.hyper, update.step, spec.seed
            tables.append(self._tables[spec.name])
            staged.append(RowUpdate(occurrences, rows, gradient, optimizer, hyper, step, seed))
        return InTurn([stage_tables(tables, staged), partial(self.unique_rows.add, unique)])

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return each occurrence's row times its bag's gradient, per feature with a gradient."""
        if not self.specs[update.batch.table].seen_as_stored:
            return super().weight_dots(update)
        table = self._tables[update.batch.table]
        return [
            None
            if gradient is None
            else table.dots(bags.ids, bags.row_splits, np.ascontiguousarray(gradient))
            for bags, gradient in zip(update.batch.features, update.gradients, strict=True)
        ]

    def counters(self) -> dict[str, int]:
        """Return what the backend has counted since it was made.

        Returns
        -------
        dict of str to int
            ``unique_rows``, as every backend, and ``pure_updates``: updates of a table that ran an
            optimizer's Python form, though it has a compiled one, for a slot or dtype of its own.
        """
        pure = [table.pure_updates for table in self._tables.values()]
        return {**super().counters(), "pure_updates": self._pure_updates + sum(pure)}
