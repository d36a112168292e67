"""One table, or one host's shard of it: rows, optimizer slots, and what is done to them.

Rows are local here: 0 to the number of rows of the shard. The lock lets lookups share the table and
gives an update the table alone, so a lookup sees each row wholly before or after an update. Two
that change rows must not do so at once: the backend sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from shardcore.cached_property import cached_property
from shardcore.initializers.constants import Zeros
from shardcore.initializers.filling import fill
from shardcore.memory import pool
from shardcore.memory.zeros import aligned_zeros
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.slot_values import fill_slots
from shardcore.store.given_bags import DIVIDED, MOST_IDS, CombineGiven, given_bags_of
from shardcore.store.lookups import Lookups
from shardcore.store.row_update import RowUpdate
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import reduce_bags, row_dots
from shardcore.store.stored_rows import StoredRows
from shardcore.store.update import StagedUpdates
from shardcore.threads.lock import ReadWriteLock, read_all, write_all
from shardcore.threads.work import InTurn

__all__ = ["TOGETHER", "StoreTable", "TableLookups", "stage_tables"]

_SUM: Final = DIVIDED["sum"]

TOGETHER: Final = 1 << 25
"""Elements of gradients and rows of tables that are updated together: some ms of one thread."""

Ints = NDArray[np.int32] | NDArray[np.int64]


class StoreTable:
    """Rows and slots in this process's memory, zeros until `initialise` or `write`.

    Parameters
    ----------
    rows, dim : int
    dtype : numpy.dtype
        One of the four table dtypes.
    optimizer : Optimizer or None
        Whose slots are kept beside the rows; None for a table that is never trained.

    Attributes
    ----------
    rows : ndarray, shape (rows, dim)
    slots : dict of slot name -> ndarray, shape (rows, dim) or (rows, 1)
    working : numpy.dtype
        The dtype that rows are computed with.
    pure_updates : int
        Updates that ran the optimizer's pure form though it has a compiled one: a slot is stored in
        a dtype that the kernel does not read, such as long double.

    Examples
    --------
    >>> table = StoreTable(4, 2, np.dtype("float32"), None)
    >>> table.write(None, 1, np.ones((2, 2), np.float32))
    >>> table.gather(None, np.array([0, 2]))
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    """

    def __init__(
        self, rows: int, dim: int, dtype: np.dtype[Any], optimizer: Optimizer | None
    ) -> None:
        slots = {
            spec.name: aligned_zeros(spec.shape(rows, dim), spec.storage_dtype(dtype))
            for spec in (optimizer.slots if optimizer is not None else ())
        }
        self._hold(aligned_zeros((rows, dim), dtype), slots, optimizer)

    @classmethod
    def holding(
        cls, arrays: Mapping[str | None, NDArray[Any]], optimizer: Optimizer | None
    ) -> Self:
        """Return a table of rows and slots that are there already, changed where they lie.

        Parameters
        ----------
        arrays : mapping of slot name, None for the weights -> ndarray
            As `read` returns them, C-contiguous and aligned, and nobody else's.
        optimizer : Optimizer or None

        Examples
        --------
        >>> rows = np.ones((2, 3), np.float32)
        >>> StoreTable.holding({None: rows}, None).rows is rows
        True
        """
        table = cls.__new__(cls)
        slots = {spec.name: arrays[spec.name] for spec in optimizer.slots} if optimizer else {}
        table._hold(arrays[None], slots, optimizer)
        return table

    def _hold(
        self, rows: NDArray[Any], slots: dict[str, NDArray[Any]], optimizer: Optimizer | None
    ) -> None:
        self.rows = rows
        self.slots = slots
        self._optimizer = optimizer
        self._lock = ReadWriteLock()
        self.pure_updates = 0
        self._stored = StoredRows(rows, slots)
        self.working = self._stored.working

    @cached_property
    def by_kernel(self) -> bool:
        """Whether a kernel makes all of an update, which then begins with no row of before."""
        optimizer = self._optimizer
        return (
            self._stored.by_kernel
            and optimizer is not None
            and optimizer.compiled(self.working) is not None
        )

    @cached_property
    def _given(self) -> CombineGiven | None:
        """What combines bags as given; made when it is first asked for."""
        return given_bags_of([self.rows], None)

    def initialise(self, initializer: Callable[..., Any], global_rows: range, seed: int) -> None:
        """Give rows and slots, still zeros, the initial values of rows of the whole table.

        Only before other threads know the table.
        """
        if not isinstance(initializer, Zeros):  # a page not touched costs nothing
            fill(self.rows, initializer, global_rows, seed)
        if self._optimizer is not None:
            fill_slots(self._optimizer, self.slots, self.rows, global_rows, seed, zeroed=True)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row with its slots."""
        arrays = (self.rows, *self.slots.values())
        return sum([array.shape[1] * array.itemsize for array in arrays])

    def _array(self, slot: str | None) -> NDArray[Any]:
        return self.rows if slot is None else self.slots[slot]

    def lookup(
        self,
        ids: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
        divisors: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Return the combined rows per bag, in the working dtype; ids are checked local rows."""
        shape = (row_splits.size - 1, self.rows.shape[1])
        out = pool.empty(shape, self._stored.working)
        self.lookup_into(ids, row_splits, weights, divisors, out)
        return out

    def lookup_into(
        self,
        ids: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
        divisors: NDArray[Any] | None,
        out: NDArray[Any],
    ) -> None:
        """Write what `lookup` returns to `out`, (bags, dim), C-contiguous."""
        plain = weights is None and divisors is None and ids.size <= MOST_IDS
        if plain and self.lookup_given(ids, row_splits, None, _SUM, out):
            return
        self._lock.read(reduce_bags, self.rows, ids, row_splits, weights, divisors, out)

    def lookup_given(
        self,
        ids: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool:
        """Combine bags as given to `out`, if they are plain and right; return whether it was done.

        See `shardcore.store.given_bags.CombineGiven`.
        """
        given = self._given
        return given is not None and self._lock.read(given, ids, row_splits, weights, divided, out)

    def dots(
        self, ids: Ints, row_splits: NDArray[np.int64], gradients: NDArray[Any]
    ) -> NDArray[Any]:
        """Return each occurrence's row times its bag's gradient."""
        return self._lock.read(row_dots, self.rows, ids, row_splits, gradients)

    def apply(self, update: RowUpdate) -> None:
        """Update the rows of a batch: `stage_tables` of this one, and what it returns."""
        stage_tables([self], [update])()

    def gather(self, slot: str | None, ids: Ints, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return copies of rows `ids` of the weights (None) or of a slot, in that order.

        They are in `out`, if that is given.
        """
        return self._lock.read(gather_rows, self._array(slot), ids, out)

    def scatter(self, slot: str | None, ids: Ints, values: NDArray[Any]) -> None:
        """Overwrite rows `ids` of the weights (None) or of a slot."""
        self._lock.write(put_rows, self._array(slot), ids, values)

    def read(self, slot: str | None, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the rows [start, stop) of the weights (None) or of a slot."""
        return self._lock.read(self._array(slot)[start:stop].copy)

    def write(self, slot: str | None, start: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from `start` on of the weights (None) or of a slot."""
        self._lock.write(np.copyto, self._array(slot)[start : start + values.shape[0]], values)


class TableLookups:
    """Lookups in several tables: added one by one, then made at once by threads that share them.

    Examples
    --------
    >>> tables = [StoreTable(4, 2, np.dtype("float32"), None) for _ in range(2)]
    >>> tables[1].write(None, 1, np.ones((2, 2), np.float32))
    >>> lookups, bags = TableLookups(), (np.array([1, 2]), np.array([0, 2]), None, None)
    >>> zeros, twos = [lookups.add(table, *bags) for table in tables]
    >>> lookups.make()
    >>> twos
    array([[2., 2.]], dtype=float32)
    """

    __slots__ = ("_locks", "_lookups")

    def __init__(self) -> None:
        self._lookups = Lookups()
        self._locks: list[ReadWriteLock] = []

    def add(
        self,
        table: StoreTable,
        ids: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
        divisors: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Return the array that will hold what `StoreTable.lookup` returns."""
        stored = table._stored
        out = pool.empty((row_splits.size - 1, stored.dim), stored.working)
        self._lookups.add(stored, ids, row_splits, weights, divisors, out)
        self._locks.append(table._lock)
        return out

    def make(self) -> None:
        """Make them, while no other thread changes one of the tables."""
        right = read_all(self._locks, self._lookups.make)
        assert right, "ids are checked, and ours"


def stage_tables(tables: Sequence[StoreTable], updates: Sequence[RowUpdate]) -> InTurn:
    """Prepare an update of each table by its optimizer, and return what makes them.

    Small tables are updated together, by threads that share the work on all of them. Each lookup
    sees the rows of a table before or after.

    Parameters
    ----------
    tables : sequence of StoreTable
        Distinct.
    updates : sequence of RowUpdate
        One for each.

    Returns
    -------
    InTurn
        Changes the rows when it is called, once; the caller sees to it that nothing else changes
        them before. Compiled where `StagedUpdates.ready` is.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> sgd = SGD(learning_rate=0.5)
    >>> table = StoreTable(2, 1, np.dtype("float64"), sgd)
    >>> batch = sort_occurrences(np.array([1]), np.array([0], np.int32), None, 2)
    >>> update = RowUpdate(batch, batch.rows, np.ones((1, 1)), sgd, sgd.hyper(), step=1)
    >>> stage_tables([table], [update])()
    >>> table.rows[:, 0]
    array([ 0. , -0.5])
    """
    commits: list[Callable[[], None]] = []
    counts: list[StoreTable] = []
    staged, locks, work = StagedUpdates(), list[ReadWriteLock](), 0

    for table, update in zip(tables, updates, strict=True):
        pure = staged.pure
        work += staged.add(table._stored, update)
        locks.append(table._lock)
        if staged.pure > pure:
            counts.append(table)
        if work >= TOGETHER:  # lookups wait for some milliseconds
            commits.append(partial(write_all, locks, staged.ready()))
            staged, locks, work = StagedUpdates(), [], 0
    if locks:
        commits.append(partial(write_all, locks, staged.ready()))
    for table in counts:
        table.pure_updates += 1
    return InTurn(commits)
