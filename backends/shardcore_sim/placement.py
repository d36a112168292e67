"""The part of a table that each host holds, and how the others reach it.

* `RowPlacement`: a row is on one host, the layout says on which. A table that is on one host as a
  whole is the same, with a layout that gives all rows to it.
* `ColumnPlacement`: every host has a range of columns of all rows. An update needs whole rows
  (norms are per row), so the host that the layout names, the row's *home*, fetches the columns,
  updates the row and sends the columns back. Row slots stay at home.
* `ReplicatedPlacement`: every host has everything, and makes every update.

`stage` changes nothing: it returns the changes that each host makes once all hosts are ready.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import TableSpec, TableUpdate
from shardcore.dtypes import working_dtype
from shardcore.initializers import Zeros, fill
from shardcore.memory import aligned_zeros
from shardcore.optimizer import constant_of, fill_slots, initial_slots
from shardcore.sharding import Layout
from shardcore.store import (
    Occurrences,
    ReadWriteLock,
    RowUpdate,
    StoreTable,
    reduce_bags,
    row_dots,
    stage_tables,
)
from shardcore_sim.exchange import Call

__all__ = [
    "Change",
    "ColumnPlacement",
    "Placement",
    "ReplicatedPlacement",
    "RowPlacement",
    "host_bytes",
    "place",
]

Ints = NDArray[np.int32] | NDArray[np.int64]

# Stages of an apply: gradients travel in the first, columns in the others.
_ASK, _FETCH, _RETURN = 1, 2, 3


class Change(NamedTuple):
    """A call that changes rows of a host's store."""

    host: int
    make: Callable[[], None]


def host_bytes(spec: TableSpec, layout: Layout) -> list[int]:
    """Return the bytes of rows and slots of a table on each host.

    Examples
    --------
    >>> spec = TableSpec("t", 10, 4, np.dtype("float32"), Zeros(), 0)
    >>> host_bytes(spec, Layout.div(10, 3))
    [64, 48, 48]
    """
    slots = spec.slots
    element, per_row = spec.dtype.itemsize, 0
    for slot in slots:
        size = slot.storage_dtype(spec.dtype).itemsize
        if slot.kind == "element":
            element += size
        else:
            per_row += size
    homes = layout.shard_sizes.tolist()
    if spec.placement == "column":
        columns = Layout.div(spec.dim, layout.num_shards).shard_sizes.tolist()
        pairs = zip(columns, homes, strict=True)
        return [spec.num_rows * c * element + rows * per_row for c, rows in pairs]
    if spec.placement == "replicated":
        homes = [spec.num_rows] * layout.num_shards
    return [rows * (spec.dim * element + per_row) for rows in homes]


def home_layout(spec: TableSpec, hosts: int, held: Sequence[int]) -> Layout:
    """Return which host each row belongs to.

    A table of placement "table" goes to the host that holds the fewest bytes so far, the first of
    them if there are several.

    Examples
    --------
    >>> spec = TableSpec("t", 4, 1, np.dtype("float32"), Zeros(), 0, placement="table")
    >>> home_layout(spec, 3, held=[8, 0, 0]).shard_sizes
    array([0, 4, 0])
    """
    if spec.placement == "table":
        host = min(range(hosts), key=lambda one: held[one])
        return Layout.from_sizes([spec.num_rows if one == host else 0 for one in range(hosts)])
    return Layout.of(spec.layout, spec.num_rows, hosts)


class Placement(ABC):
    """One table on all hosts.

    Attributes
    ----------
    spec : TableSpec
    layout : Layout
        Which host each row belongs to.
    stores : list of StoreTable
        One per host.
    lookup_layout, update_layout : Layout
        How ids are cut for `fetch` and `pool`, and for `stage`; each call is for one shard.
    lock : ReadWriteLock
        Held alone while rows change, so that no lookup sees a row of which one host has changed
        its part.
    """

    def __init__(self, spec: TableSpec, layout: Layout) -> None:
        self.spec = spec
        self.layout = layout
        self.hosts = layout.num_shards
        self.lock = ReadWriteLock()
        self.stores: list[StoreTable] = []
        self._whole = Layout.div(spec.num_rows, 1)

    @property
    def pure_updates(self) -> int:
        """As of `StoreTable`, added up over the hosts."""
        return sum([store.pure_updates for store in self.stores])

    @property
    def lookup_layout(self) -> Layout:
        """How ids are cut for a lookup."""
        return self.layout

    @property
    def update_layout(self) -> Layout:
        """How ids are cut for an update."""
        return self.layout

    @property
    def updaters(self) -> list[tuple[int, int]]:
        """(host, shard of the update layout) pairs: each host updates its shard."""
        return [(host, host) for host in range(self.hosts)]

    @property
    def updaters_pool(self) -> bool:
        """Whether `pool` sends the updating hosts the rows that each bag names."""
        return False

    @abstractmethod
    def gather(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order; no message, the lock is the caller's."""

    @abstractmethod
    def writes(
        self, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> list[Change]:
        """Return the changes on each host that overwrite rows."""

    def _overwriting(
        self, host: int, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> Change:
        """Return the change that overwrites rows of a host's store."""
        return Change(host, partial(self.stores[host].scatter, slot, rows, values))

    @abstractmethod
    def fetch(self, call: Call, host: int, shard: int, rows: Ints, received: NDArray[Any]) -> None:
        """Write to `received` distinct local rows of a shard of the lookup layout, for `host`."""

    @abstractmethod
    def pool(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Return the (weighted) sum of each bag's local rows of a shard, as `host` receives it."""

    def dots(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        gradients: NDArray[Any],
    ) -> NDArray[Any]:
        """Return each occurrence's row times its bag's gradient, as `host` receives it."""
        return self.dots_of_fetched(call, host, shard, rows, row_splits, gradients)

    def dots_of_fetched(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        gradients: NDArray[Any],
    ) -> NDArray[Any]:
        """Return the same from rows that are fetched for it."""
        unique: Any
        unique, ids = np.unique(rows, return_inverse=True)
        received = np.empty((unique.size, self.spec.dim), self.spec.dtype)
        self.fetch(call, host, shard, unique, received)
        fetched = self.spec.as_looked_up(received)
        return row_dots(np.ascontiguousarray(fetched), ids, row_splits, gradients)

    def _seen(self, host: int, rows: Any) -> tuple[NDArray[Any], Any]:
        """Return a host's distinct rows as lookups see them, and the ids renumbered to them."""
        unique, ids = np.unique(rows, return_inverse=True)
        seen = self.spec.as_looked_up(self.stores[host].gather(None, unique))
        return np.ascontiguousarray(seen), ids

    def _sums(
        self,
        host: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Return the (weighted) sum of each bag's rows of a host's store."""
        store = self.stores[host]
        if self.spec.seen_as_stored:
            return store.lookup(rows, row_splits, weights, None)
        seen, ids = self._seen(host, rows)
        out = np.empty((row_splits.size - 1, seen.shape[1]), working_dtype(self.spec.dtype))
        reduce_bags(seen, ids, row_splits, weights, None, out)
        return out

    def _dots(
        self, host: int, rows: Ints, row_splits: NDArray[np.int64], gradients: NDArray[Any]
    ) -> NDArray[Any]:
        """Return each occurrence's row, of a host's store, times its bag's gradient."""
        if self.spec.seen_as_stored:
            return self.stores[host].dots(rows, row_splits, gradients)
        seen, ids = self._seen(host, rows)
        return row_dots(seen, ids, row_splits, gradients)

    @abstractmethod
    def stage(
        self,
        call: Call,
        host: int,
        shard: int,
        occurrences: Occurrences,
        gradients: NDArray[Any],
        update: TableUpdate,
    ) -> list[Change]:
        """Prepare the update of the rows on a host, and return the changes that make it."""

    @abstractmethod
    def create(self) -> None:
        """Make each host's store and fill it from the initializer."""

    def _gather_from_homes(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        local, row_splits, inverse = self.layout.partition(rows)
        for host, count in enumerate(np.diff(row_splits)):
            if count == rows.size:  # as of a piece of a checkpoint; they are in order already
                return self.stores[host].gather(slot, local)
        parts = [
            store.gather(slot, local[row_splits[host] : row_splits[host + 1]])
            for host, store in enumerate(self.stores)
        ]
        gathered: NDArray[Any] = np.concatenate(parts)[inverse]
        return gathered

    def _serve(self, call: Call, host: int, rows: int) -> None:
        """Count rows that a host reads for a lookup."""
        nbytes = rows * self.stores[host].rows[:1].nbytes
        call.work(host, call.cost.row_seconds(rows, nbytes), 1)
        call.serve(host, self.spec.name, rows)

    def _row_update(
        self,
        occurrences: Occurrences,
        row_ids: NDArray[np.int64],
        gradients: NDArray[Any],
        update: TableUpdate,
    ) -> RowUpdate:
        """Return the update of rows of a store, which are `row_ids` in the whole table."""
        spec = self.spec
        assert spec.optimizer is not None, "the engine trains tables with an optimizer only"
        return RowUpdate(
            occurrences,
            row_ids,
            gradients,
            spec.optimizer,
            update.hyper,
            update.step,
            spec.seed,
        )

    def _count_update(self, call: Call, host: int, update: RowUpdate, row_bytes: int) -> None:
        """Count rows that a host updates, of so many bytes each with their slots."""
        rows, named = update.row_ids.size, update.occurrences.sources.size
        seconds = call.cost.row_seconds(named + 2 * rows, named * update.gradients[:1].nbytes)
        call.work(host, seconds + call.cost.row_seconds(0, 2 * rows * row_bytes), _ASK)
        call.update(host, self.spec.name, rows)


class _WholeRows(Placement):
    """A placement whose stores hold whole rows: of a shard of its layouts, or all."""

    @abstractmethod
    def _rows_held(self, host: int) -> range:
        """Return the rows of the whole table that a host's store holds."""

    def create(self) -> None:
        """Make each host's store and fill it from the initializer."""
        spec = self.spec
        for host in range(self.hosts):
            held = self._rows_held(host)
            store = StoreTable(len(held), spec.dim, spec.dtype, spec.optimizer)
            store.initialise(spec.initializer, held, spec.seed)
            self.stores.append(store)

    def stage(
        self,
        call: Call,
        host: int,
        shard: int,
        occurrences: Occurrences,
        gradients: NDArray[Any],
        update: TableUpdate,
    ) -> list[Change]:
        """Prepare the update of the rows where they are."""
        store = self.stores[host]
        row_ids = self.update_layout.global_of(shard, occurrences.rows)
        rows = self._row_update(occurrences, row_ids, gradients, update)
        self._count_update(call, host, rows, store.row_bytes)
        return [Change(host, stage_tables([store], [rows]))]


class RowPlacement(_WholeRows):
    """Each row, with its slots, on one host."""

    def _rows_held(self, host: int) -> range:
        return self.layout.row_range(host)

    @property
    def updaters_pool(self) -> bool:
        """Hosts that pool rows also update them."""
        return True

    def gather(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        return self._gather_from_homes(slot, rows)

    def writes(
        self, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> list[Change]:
        """Return the change of each host's share of the rows."""
        local, row_splits, inverse = self.layout.partition(rows)
        grouped = np.empty_like(values, order="C")
        grouped[inverse] = values
        parts = [slice(row_splits[host], row_splits[host + 1]) for host in range(self.hosts)]
        return [
            self._overwriting(host, slot, local[part].astype(np.int64, copy=False), grouped[part])
            for host, part in enumerate(parts)
        ]

    def fetch(self, call: Call, host: int, shard: int, rows: Ints, received: NDArray[Any]) -> None:
        """Ask the owner for rows."""
        request = call.send(rows, host, shard, self.spec.name)
        self.stores[shard].gather(None, request, received)
        self._serve(call, shard, rows.size)
        call.deliver(received, shard, host, self.spec.name, 1)

    def pool(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Let the owner sum its share of each bag."""
        name = self.spec.name
        rows = call.send(rows, host, shard, name)
        row_splits = call.send(row_splits, host, shard, name)
        if weights is not None:
            weights = call.send(weights, host, shard, name)
        sums = self._sums(shard, rows, row_splits, weights)
        self._serve(call, shard, rows.size)
        return call.send(sums, shard, host, name, 1)

    def dots(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        gradients: NDArray[Any],
    ) -> NDArray[Any]:
        """Let the owner multiply; `pool` has sent it the rows that each bag names."""
        name = self.spec.name
        gradients = call.send(gradients, host, shard, name)
        found = self._dots(shard, rows, row_splits, gradients)
        self._serve(call, shard, rows.size)
        return call.send(found, shard, host, name, 1)


class ReplicatedPlacement(_WholeRows):
    """Every row, with its slots, on every host."""

    def _rows_held(self, host: int) -> range:
        return range(self.spec.num_rows)

    @property
    def lookup_layout(self) -> Layout:
        """Every host looks rows up in its own copy."""
        return self._whole

    @property
    def update_layout(self) -> Layout:
        """Every host is sent the occurrences of every row."""
        return self._whole

    @property
    def updaters(self) -> list[tuple[int, int]]:
        """Every host updates every row."""
        return [(host, 0) for host in range(self.hosts)]

    def gather(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows: all hosts have the same."""
        return self.stores[0].gather(slot, rows)

    def writes(
        self, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> list[Change]:
        """Return the same change for every host."""
        return [self._overwriting(host, slot, rows, values) for host in range(self.hosts)]

    def fetch(self, call: Call, host: int, shard: int, rows: Ints, received: NDArray[Any]) -> None:
        """Read the host's own rows."""
        self._serve(call, host, rows.size)
        self.stores[host].gather(None, rows, received)

    def pool(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Sum the host's own rows."""
        self._serve(call, host, rows.size)
        return self._sums(host, rows, row_splits, weights)


class ColumnPlacement(Placement):
    """A range of columns of every row on each host, row slots at the row's home."""

    def __init__(self, spec: TableSpec, layout: Layout) -> None:
        super().__init__(spec, layout)
        self.columns = Layout.div(spec.dim, self.hosts)
        borders = self.columns.offsets.tolist()
        self._parts = [slice(a, b) for a, b in itertools.pairwise(borders)]
        self._holders = [host for host, part in enumerate(self._parts) if part.start < part.stop]
        slots = spec.slots
        self._element = [slot for slot in slots if slot.kind == "element"]
        self._row = [slot for slot in slots if slot.kind == "row"]

    @property
    def lookup_layout(self) -> Layout:
        """All hosts are asked for all rows."""
        return self._whole

    def create(self) -> None:
        """Make each host's store and fill it from the initializer, whole rows at a time."""
        spec = self.spec
        for host in range(self.hosts):
            width, homes = int(self.columns.shard_sizes[host]), int(self.layout.shard_sizes[host])
            store = StoreTable(spec.num_rows, width, spec.dtype, None)
            for slot in (*self._element, *self._row):
                rows = spec.num_rows if slot.kind == "element" else homes
                array = aligned_zeros(slot.shape(rows, width), slot.storage_dtype(spec.dtype))
                store.slots[slot.name] = array
            self.stores.append(store)
        varying = self._fill_constants()
        zeros = isinstance(spec.initializer, Zeros)
        if zeros and not varying:
            return
        block = max(1, (1 << 20) // (spec.dim * spec.dtype.itemsize))
        for start in range(0, spec.num_rows, block):
            values = np.zeros((min(block, spec.num_rows - start), spec.dim), spec.dtype)
            held = range(start, start + len(values))
            if not zeros:
                fill(values, spec.initializer, held, spec.seed)
                self._store(None, held, values)
            if varying:
                slots = initial_slots(spec.optimizer, values, held, spec.seed)
                for name in varying:
                    self._store(name, held, slots[name])

    def _fill_constants(self) -> list[str]:
        """Fill the slots that are one number everywhere; return the names of the others."""
        optimizer, varying = self.spec.optimizer, []
        for slot in optimizer.slots if optimizer is not None else ():
            assert optimizer is not None
            if constant_of(optimizer, slot) is None:
                varying.append(slot.name)
                continue
            for store in self.stores:
                part = {slot.name: store.slots[slot.name]}
                fill_slots(optimizer, part, None, range(0), self.spec.seed, zeroed=True)
        return varying

    def _store(self, slot: str | None, rows: range, values: NDArray[Any]) -> None:
        """Write to each host its part of the rows."""
        for change in self.writes(slot, np.arange(rows.start, rows.stop), values):
            change.make()

    def _is_row_slot(self, slot: str | None) -> bool:
        return any(one.name == slot for one in self._row)

    def gather(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Put rows together from the columns of all hosts; row slots come from home."""
        if not self._is_row_slot(slot):
            return np.hstack([self.stores[host].gather(slot, rows) for host in self._holders])
        return self._gather_from_homes(slot, rows)

    def writes(
        self, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> list[Change]:
        """Return the change of each host's columns, or, of a row slot, of each home's rows."""
        if not self._is_row_slot(slot):
            return [
                self._overwriting(
                    host, slot, rows, np.ascontiguousarray(values[:, self._parts[host]])
                )
                for host in self._holders
            ]
        home, local = self.layout.locate(rows)
        return [
            self._overwriting(host, slot, local[home == host], values[home == host])
            for host in range(self.hosts)
        ]

    def fetch(self, call: Call, host: int, shard: int, rows: Ints, received: NDArray[Any]) -> None:
        """Ask every host for its columns of the rows."""
        name = self.spec.name
        for owner in self._holders:
            request = call.send(rows, host, owner, name)
            found = self.stores[owner].gather(None, request)
            self._serve(call, owner, rows.size)
            call.deliver(found, owner, host, name, 1)
            received[:, self._parts[owner]] = found

    def pool(
        self,
        call: Call,
        host: int,
        shard: int,
        rows: Ints,
        row_splits: NDArray[np.int64],
        weights: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Let every host sum its columns."""
        name, parts = self.spec.name, []
        for owner in self._holders:
            ids = call.send(rows, host, owner, name)
            splits = call.send(row_splits, host, owner, name)
            factors = None if weights is None else call.send(weights, host, owner, name)
            sums = self._sums(owner, ids, splits, factors)
            self._serve(call, owner, rows.size)
            parts.append(call.send(sums, owner, host, name, 1))
        return np.hstack(parts)

    def stage(
        self,
        call: Call,
        host: int,
        shard: int,
        occurrences: Occurrences,
        gradients: NDArray[Any],
        update: TableUpdate,
    ) -> list[Change]:
        """Fetch the columns of rows and slots, update whole rows, send the columns back."""
        name, local = self.spec.name, occurrences.rows
        rows = self.layout.global_of(shard, local)
        split: list[str | None] = [None, *(slot.name for slot in self._element)]
        parts: dict[str | None, list[NDArray[Any]]] = {slot: [] for slot in split}
        asked = {}
        for owner in self._holders:
            asked[owner] = call.send(rows, host, owner, name, _ASK)
            for slot in split:
                found = self.stores[owner].gather(slot, asked[owner])
                call.work(owner, call.cost.row_seconds(rows.size, found.nbytes), _FETCH)
                call.deliver(found, owner, host, name, _FETCH)
                parts[slot].append(found)
        arrays = {slot: np.ascontiguousarray(np.hstack(part)) for slot, part in parts.items()}
        for one in self._row:
            arrays[one.name] = self.stores[host].gather(one.name, local)
        self._update_copies(call, host, arrays, occurrences, rows, gradients, update)
        changes = [self._overwriting(host, one.name, local, arrays[one.name]) for one in self._row]
        for slot in split:
            for owner in self._holders:
                values = arrays[slot][:, self._parts[owner]].copy()
                call.deliver(values, host, owner, name, _RETURN)
                changes.append(self._overwriting(owner, slot, asked[owner], values))
        return changes

    def _update_copies(
        self,
        call: Call,
        host: int,
        arrays: dict[str | None, NDArray[Any]],
        occurrences: Occurrences,
        row_ids: NDArray[np.int64],
        gradients: NDArray[Any],
        update: TableUpdate,
    ) -> None:
        """Update copies of rows and slots: those that `occurrences` name, in that order."""
        places = np.arange(row_ids.size, dtype=np.int64)
        rows = self._row_update(replace(occurrences, rows=places), row_ids, gradients, update)
        copies = StoreTable.holding(arrays, rows.optimizer)
        self._count_update(call, host, rows, copies.row_bytes)
        copies.apply(rows)
        self.stores[host].pure_updates += copies.pure_updates


_PLACEMENTS: dict[str, type[Placement]] = {
    "row": RowPlacement,
    "table": RowPlacement,
    "column": ColumnPlacement,
    "replicated": ReplicatedPlacement,
}


def place(spec: TableSpec, layout: Layout) -> Placement:
    """Return a table's placement, without stores."""
    return _PLACEMENTS[spec.placement](spec, layout)
