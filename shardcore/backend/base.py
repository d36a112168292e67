"""What a backend is: an owner of tables that looks rows up and applies gradients to them.

The contract
------------
A backend holds tables: rows and, for tables with an optimizer, the slots the optimizer declares,
named by it. The engine decides everything else (which ids are valid, how bags are divided, which
learning rate holds) and speaks to the backend in whole batches.

Four methods make a backend: `create_table`, `drop_table`, `gather` and `scatter`. The base class
builds the others from them, over the same kernels as the embedded backend, and gives the same
results; a backend overrides them for speed.

* Rows are global everywhere: where a row lives is the backend's business. `layout` tells it.
* ``slot=None`` means the weights, a name that optimizer slot; row slots have one column.
* Rows of `scatter` are distinct. All row numbers are int64, checked, in range.
* `lookup` and `apply` are given all tables of a batch in one call. `apply` gets the very
  `TableBatch` objects that `lookup` got, whose ``route`` is the backend's to use.
* Lookups, and `weight_dots`, see rows as ``specs[table].as_looked_up(rows)`` returns them: rounded,
  for tables with a quantization. `gather`, `read` and `apply` see what is stored. The base class
  does so; a backend that overrides `lookup` and does so too says it with ``quantizes = True``, and
  is given no such table otherwise.
* Sums have one order, on every backend: a bag in occurrence order; a row's gradient in (feature,
  global bag, position) order, runs above 4,096 occurrences in blocks of 4,096 counted from the
  first, blocks added in order.
* A call that raises has changed nothing: what Python computes, an optimizer's own code above all,
  is computed for all tables before a row of any changes.
* Calls may come from several threads; a lookup sees each row wholly before or after an update. The
  engine makes calls that change something in a thread in which no signal handler runs, while the
  caller's waits for it (`shardcore.store.work.uninterrupted`); `calling_thread` of
  `shardcore.store.lock` tells the caller's.
* After `close` nothing is called any more.

Arrays on a device
------------------
A backend whose tables live on a device says ``device_arrays = True``. Its `lookup` may then return
arrays of its own kind, (bags, dim) of the working dtype, with ``shape``, ``dtype`` and ``reshape``,
which `numpy.asarray` reads; callers get them as they are. And it may know such arrays again as
gradients, by `takes_gradient`: the engine checks their shape and that they are of one of the four
float dtypes, reshapes them to (bags, dim), and hands them on in their own dtype. It never reads or
copies them, not for a pipeline either, so such arrays must be immutable.

Whether their values are finite, the backend tests as part of the update, where
``TableUpdate.unchecked`` holds a path; `apply` may return before that is known. A batch with a
value that is not finite in the working dtype does nothing, for all of its tables, and no more does
any batch after it, until the backend has told so: its next call raises `UpdateRefusedError`, with
the text of ``TableUpdate.not_finite`` for the first such value, and with ``updates``, how many
`apply` that returned did nothing. The call that raises has done nothing either, and is not counted
among them. `lookup` and `apply` may leave it to a later call rather than wait for the device; all
others wait, but for `create_table`, `drop_table`, `reseed`, `layout` and `takes_gradient`, which
never raise it. `begin_restore` does, so that a restore is not cut short, and `close`, once all is
given back. It is raised once, in whichever thread calls, and the backend then works as before.

The base class reads such gradients by `numpy.asarray`, tests them first, and raises at once.

Examples
--------
A whole backend, tables in a dictionary of NumPy arrays:

>>> from shardcore.optimizer.slot_values import initial_slots
>>> from shardcore.initializers import fill
>>> class Dictionary(Backend):
...     name = "dictionary"
...
...     def __init__(self):
...         super().__init__()
...         self._arrays = {}
...
...     def create_table(self, spec):
...         rows = np.empty((spec.num_rows, spec.dim), spec.dtype)
...         fill(rows, spec.initializer, range(spec.num_rows), spec.seed)
...         self._arrays[spec.name, None] = rows
...         numbers = range(spec.num_rows)
...         for name, slot in initial_slots(spec.optimizer, rows, numbers, spec.seed).items():
...             self._arrays[spec.name, name] = slot
...         self.specs[spec.name] = spec
...
...     def drop_table(self, table):
...         del self.specs[table]
...         for key in [key for key in self._arrays if key[0] == table]:
...             del self._arrays[key]
...
...     def gather(self, table, slot, rows):
...         return self._arrays[table, slot][rows]
...
...     def scatter(self, table, slot, rows, values):
...         self._arrays[table, slot][rows] = values

>>> from shardcore.backend import FeatureBags
>>> from shardcore.initializers import RowId
>>> backend = Dictionary()
>>> backend.create_table(TableSpec("t", 5, 2, np.dtype("float32"), RowId(), 0))
>>> bags = FeatureBags(np.array([4, 1, 2]), np.array([0, 2, 3]))
>>> backend.lookup([TableBatch("t", (bags,))])[0][0]
array([[5., 5.],
       [2., 2.]], dtype=float32)
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.gradients import gradient_rows, sorted_rows
from shardcore.backend.messages import TableBatch, TableSpec, TableUpdate
from shardcore.backend.process_group import Together
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreTypeError, UpdateRefusedError
from shardcore.sharding.layout import Layout
from shardcore.store.occurrences import every_row
from shardcore.store.rounding import narrowed
from shardcore.store.segment_reduce import reduce_bags, row_dots
from shardcore.store.update import updated
from shardcore.store.work import uninterrupted

__all__ = ["Backend"]


_Write = tuple[str, str | None, NDArray[np.int64], NDArray[Any]]
"""The arguments of a `Backend.scatter`."""


class Backend(ABC):
    """Base of every backend; the module's docstring is the contract.

    Attributes
    ----------
    name : str
        The name it is asked for by.
    device_arrays : bool, default False
        Whether it deals in arrays of its own kind: see "Arrays on a device" above.
    specs : dict of table name -> TableSpec
        The tables it holds; `create_table` adds to it, `drop_table` takes away.
    """

    name: ClassVar[str]
    device_arrays: ClassVar[bool] = False

    @property
    def together(self) -> Together | None:
        """The processes that hold the tables together; None, unless several do.

        Then every process makes the same calls in the same order, and checkpoints are written by
        one of them: see `shardcore.backend.process_group`.
        """
        return None

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which changes tables, where no interrupt splits it.

        A backend that must be called from one thread makes it `changed_here`, which can be split.
        """
        return uninterrupted(function, *arguments)

    def __init__(self) -> None:
        self.specs: dict[str, TableSpec] = {}
        self._unique_rows = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ShardcoreTypeError(
            f"backend {self.name!r} cannot be copied or pickled: it owns its tables; get another "
            "one, and move tables by a checkpoint"
        )

    # --- what every backend writes ---------------------------------------------------------------

    @abstractmethod
    def create_table(self, spec: TableSpec) -> None:
        """Create rows from the initializer, and slots as `initial_slots` says."""

    @abstractmethod
    def drop_table(self, table: str) -> None:
        """Forget a table."""

    @abstractmethod
    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows, (len(rows), dim) or (len(rows), 1), in request order."""

    @abstractmethod
    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows with values of the same dtype."""

    # --- what it may write better ----------------------------------------------------------------

    def reseed(self, table: str, seed: int) -> None:
        """Give a table another seed, from its next update on; rows and slots stay as they are.

        Called when a table that exists is restored: chance in its updates follows from the seed of
        the run that was saved. A backend that reads the seed anywhere else than in
        ``specs[table].seed`` changes it there too.
        """
        self.specs[table] = dataclasses.replace(self.specs[table], seed=seed)

    @property
    def quantizes(self) -> bool:
        """Whether its lookups honour ``spec.quantization``, as the base class's do."""
        kind = type(self)
        return all(
            getattr(kind, method) is getattr(Backend, method)
            for method in ("lookup", "weight_dots", "_lookup_table", "_compact")
        )

    @property
    def num_hosts(self) -> int:
        """Hosts that samples and rows are spread over."""
        return 1

    def layout(self, table: str) -> Layout:
        """Return which host, as a shard, holds which row."""
        spec = self.specs[table]
        make = Layout.mod if spec.layout == "mod" else Layout.div
        return make(spec.num_rows, self.num_hosts)

    def read(self, table: str, slot: str | None, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the rows [start, stop)."""
        return self.gather(table, slot, np.arange(start, stop, dtype=np.int64))

    def write(self, table: str, slot: str | None, start: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from `start` on."""
        self.scatter(table, slot, np.arange(start, start + len(values), dtype=np.int64), values)

    def shards(self, table: str, slot: str | None) -> list[NDArray[Any]]:
        """Return copies of the rows of each host, in local order."""
        layout = self.layout(table)
        return [
            self.gather(table, slot, layout.global_rows(host)) for host in range(layout.num_shards)
        ]

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Return the combined rows of every feature of every table.

        Parameters
        ----------
        batches : sequence of TableBatch

        Returns
        -------
        list, per batch, of lists, per feature, of ndarray of the working dtype, (bags, dim)
        """
        return [self._lookup_table(batch) for batch in batches]

    def takes_gradient(self, gradient: object) -> bool:
        """Return whether `gradient` is an array that lives where the tables do.

        Asked for every gradient that a caller gives. Such arrays are handed to `apply` and
        `weight_dots` as they are; all others are read, checked and cast by the engine.
        """
        return False

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Update every row that a feature with a gradient names, once, with the table's optimizer.

        Parameters
        ----------
        updates : sequence of TableUpdate
            Those of one batch, at most one per table. `count_unique_rows` is told how many rows
            they touch.

        Raises
        ------
        UpdateRefusedError
            If a gradient that was to be tested, here or in an earlier call, is not finite.
        """
        ready = [self._on_host(update) for update in updates]
        staged = [self._staged(update) for update in ready]
        for writes, unique in staged:
            for write in writes:
                self.scatter(*write)
            self.count_unique_rows(unique)

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return, per feature with a gradient, each occurrence's row times its bag's gradient.

        The rows are those before the update. The arrays are NumPy's wherever the tables live.
        """
        dots: list[NDArray[Any] | None] = []
        for bags, gradient in zip(update.batch.features, update.gradients, strict=True):
            if gradient is None:
                dots.append(None)
                continue
            rows, ids = self._compact(update.batch.table, bags.ids)
            value = working_dtype(self.specs[update.batch.table].dtype)
            dots.append(row_dots(rows, ids, bags.row_splits, np.ascontiguousarray(gradient, value)))
        return dots

    def count_unique_rows(self, rows: int) -> None:
        """Add the distinct rows of updated tables to the counter ``unique_rows``."""
        self._unique_rows += rows

    def counters(self) -> dict[str, int]:
        """Return what the backend has counted since it was made.

        ``unique_rows`` is the engine's word for the distinct rows of each table, added up over
        tables and updates; a backend adds what else it counts, under names of its own.
        """
        return {"unique_rows": self._unique_rows}

    def begin_restore(self) -> None:  # noqa: B027 - a backend without failed hosts need not care
        """Hear that every row and slot of every table is about to be overwritten.

        A backend that refuses all calls since a host failed in the midst of an update accepts
        writes from here on.
        """

    def end_restore(self) -> None:  # noqa: B027 - as above
        """Hear that all of it was written; raise if it was not."""

    def close(self) -> None:
        """Give everything back."""
        self.specs.clear()

    # --- how the base class does it --------------------------------------------------------------

    def _compact(self, table: str, ids: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the distinct rows that are named, as seen, and the ids renumbered to them."""
        unique, inverse = np.unique(ids, return_inverse=True)
        rows = self.specs[table].as_looked_up(
            self.gather(table, None, unique.astype(np.int64, copy=False))
        )
        return np.ascontiguousarray(rows), inverse.astype(np.int64, copy=False)

    def _lookup_table(self, batch: TableBatch) -> list[NDArray[Any]]:
        spec = self.specs[batch.table]
        activations = []
        for bags in batch.features:
            rows, ids = self._compact(batch.table, bags.ids)
            out = np.empty((bags.num_bags, spec.dim), working_dtype(spec.dtype))
            reduce_bags(rows, ids, bags.row_splits, bags.weights, bags.divisors, out)
            activations.append(out)
        return activations

    def _on_host(self, update: TableUpdate) -> TableUpdate:
        """Return an update whose gradients are NumPy arrays of the working dtype, all tested."""
        value = working_dtype(self.specs[update.batch.table].dtype)
        gradients: list[NDArray[Any] | None] = []
        for at, (gradient, path) in enumerate(zip(update.gradients, update.unchecked, strict=True)):
            if gradient is None:
                gradients.append(None)
                continue
            given = np.asarray(gradient)
            with np.errstate(over="ignore"):  # told below, with its position
                cast = given.astype(value, copy=False)
            if path is not None and not (finite := np.isfinite(cast)).all():
                bag, column = (int(i) for i in np.unravel_index(int(finite.argmin()), cast.shape))
                raise UpdateRefusedError(
                    update.not_finite(at, bag, column, given[bag, column], value)
                )
            gradients.append(cast)
        return dataclasses.replace(update, gradients=tuple(gradients), unchecked=())

    def _staged(self, update: TableUpdate) -> tuple[list[_Write], int]:
        """Return what an update will `scatter`, and how many rows it touches. Changes nothing."""
        batch, spec = update.batch, self.specs[update.batch.table]
        optimizer = spec.optimizer
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        pairs = [
            (bags, gradient)
            for bags, gradient in zip(batch.features, update.gradients, strict=True)
            if gradient is not None
        ]
        value = working_dtype(spec.dtype)
        features, gradients = [bags for bags, _ in pairs], [gradient for _, gradient in pairs]
        occurrences = sorted_rows(features, spec.num_rows, value)
        unique = occurrences.rows.size
        if not optimizer.lazy:
            occurrences = every_row(occurrences, spec.num_rows)
        rows = occurrences.rows
        new_rows, new_slots = updated(
            optimizer,
            occurrences,
            gradient_rows(features, gradients),
            self.gather(batch.table, None, rows).astype(value, copy=False),
            {
                slot.name: self.gather(batch.table, slot.name, rows).astype(value, copy=False)
                for slot in optimizer.slots
            },
            update.hyper,
            update.step,
            rows,
        )
        writes: list[_Write] = [
            (
                batch.table,
                slot.name,
                rows,
                np.asarray(new_slots[slot.name]).astype(slot.storage_dtype(spec.dtype)),
            )
            for slot in optimizer.slots
        ]
        stored = narrowed(new_rows, spec.dtype, optimizer, rows, spec.seed, update.step)
        writes.append((batch.table, None, rows, stored))
        return writes, unique
