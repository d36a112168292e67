"""The lists of batches of which each process gives a part: its own samples.

Where rows are cut and exchanged by "all_to_all", a process routes its own samples alone, and the
processes exchange counts. What cannot be routed apart they exchange whole: each packs its bags into
words, all get all of them, and every process routes the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore.backend import FeatureBags, Part, TableBatch, TableUpdate
from shardcore_pjrt.batch_lists import BatchLists, LookupLists, UpdateLists, on_devices
from shardcore_pjrt.device_table import DeviceTable
from shardcore_pjrt.mesh.own_devices import OwnDevices, places_of_processes
from shardcore_pjrt.mesh.processes import processes_of
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.sent_requests import distinct_program, request_program
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.routing.own_route import (
    OwnRoute,
    agreed_bags,
    counts_of_bags,
    described,
    own_rows,
    route_own,
    route_own_update,
)
from shardcore_pjrt.routing.strategy import Exchange
from shardcore_pjrt.routing.whole_bags import packed, unpacked, whole_bags
from shardcore_pjrt.stacks import numbered

__all__ = ["OwnLists", "own_batch_parts", "own_update_parts"]


def own_batch_parts(batches: Sequence[TableBatch]) -> Iterator[Part]:
    """Yield what of a batch is the same in every process: tables and features, not their bags."""
    asked = [
        (batch.table, [bags.bags_per_sample for bags in batch.features], batch.training)
        for batch in batches
    ]
    yield "tables and features", repr(asked)


def own_update_parts(updates: Sequence[TableUpdate]) -> Iterator[Part]:
    """Yield what of an update is the same in every process, the kinds of gradients among it."""
    yield "tables", repr([update.batch.table for update in updates])
    for update in updates:
        table = f"table {update.batch.table!r}"
        yield f"step of {table}", str(update.step)
        yield f"hyper-parameters of {table}", np.array(update.hyper, np.float64)
        for at, gradient in enumerate(update.gradients):
            kind = "none"
            if gradient is not None:
                place = "host" if isinstance(gradient, np.ndarray) else "devices"
                kind = f"{gradient.dtype} on the {place}"
            yield f"kind of gradient {at} of {table}", kind
        yield f"check of gradients of {table}", str(update.check)


class OwnLists(BatchLists):
    """How the samples that each process gives become lists on the devices of all.

    Parameters
    ----------
    programs, rules, exchange
        As those of `BatchLists`.
    mesh : Mesh
        All devices.
    """

    def __init__(
        self, programs: Programs, rules: str, exchange: Exchange | None, mesh: Mesh
    ) -> None:
        super().__init__(programs, rules, exchange, several=True)
        self._processes = processes_of(mesh)
        self._devices = OwnDevices(mesh)
        self._places = list(places_of_processes(mesh).values())

    def of_lookups(
        self,
        call: str,
        parts: Sequence[Part],
        asked: Sequence[tuple[DeviceTable, Sequence[FeatureBags]]],
    ) -> list[LookupLists]:
        """Return the routes of lookups in several stacks, and their lists; all processes call this.

        Parameters
        ----------
        call : str
        parts : sequence of (str, bytes, str or ndarray)
            What must be the same in all processes.
        asked : sequence of (DeviceTable, sequence of FeatureBags)
            The process's own, over the stacks.

        Raises
        ------
        ShardcoreError
            As `Processes.counted`.
        """
        with self._processes.telling(call):
            apart = [one for one in asked if self._is_apart(one[0])]
            others = [features for stack, features in asked if not self._is_apart(stack)]
            words = packed([bags for features in others for bags in features])
            own = [counts_of_bags(features, self._devices.mesh.size) for _, features in apart]
        counts = self._processes.counted(call, parts, [words.size, *itertools.chain(*own)])
        ends = np.cumsum([1, *map(len, own)])
        routed = iter(self._apart(call, apart, np.split(counts, ends[:-1], axis=1)[1:]))
        everyone: list[NDArray[np.uint32]] = []
        if others:
            sizes = counts[:, 0].tolist()
            everyone = self._processes.gathered(call, words, sizes, self._room(sizes))
        unread = [unpacked(given) for given in everyone]
        found = []
        for stack, features in asked:
            if self._is_apart(stack):
                found.append(next(routed))
                continue
            whole = [
                whole_bags([next(given) for given in unread], self._places, bags.bags_per_sample)
                for bags in features
            ]
            found.append(self.of_lookup(stack, whole))
        return found

    def rows_of_all(self, call: str, table: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the distinct rows of a table that any process names; all processes call this."""
        words = rows.astype(np.uint32)
        parts = [("name of the table", table)]
        sizes = self._processes.counted(call, parts, (words.size,))[:, 0].tolist()
        found = self._processes.gathered(call, words, sizes, self._room(sizes))
        return np.unique(np.concatenate(found)).astype(np.int64)

    def _room(self, sizes: Sequence[int]) -> int:
        """Return the words of a device, where the devices of each process take so many."""
        each = zip(sizes, self._places, strict=True)
        return capacity(max(-(-size // len(places)) for size, places in each))

    # --- samples that are routed apart -----------------------------------------------------------

    def _is_apart(self, stack: DeviceTable) -> bool:
        """Return whether each process routes its own samples: owners sum what the others send."""
        optimizer = stack.spec.optimizer
        summed = optimizer is None or optimizer.accumulate
        return summed and self._exchange_of(stack.geometry) == "all_to_all"

    def _apart(
        self,
        call: str,
        asked: Sequence[tuple[DeviceTable, Sequence[FeatureBags]]],
        counts: Sequence[NDArray[np.int64]],
    ) -> list[LookupLists]:
        """Return the routes of own samples, by the counts of all processes per stack."""
        if not asked:
            return []
        devices = self._devices.mesh.size
        with self._processes.telling(call):
            rows = [
                own_rows(stack.geometry, features, devices, agreed_bags(of_stack))
                for (stack, features), of_stack in zip(asked, counts, strict=True)
            ]
            numbers = [number for own in rows for number in own.counts]
        of_rows = np.split(self._processes.counted(call, (), numbers), len(rows), axis=1)
        found = []
        for (stack, features), own, of_stack in zip(asked, rows, of_rows, strict=True):
            route = route_own(stack.geometry, own, of_stack)
            lists = self._devices.put(route.arrays)
            with self._processes.lock:
                program = self._programs.get(request_program, stack.mesh)
                lists["fetch"] = program(lists.pop("asked"))
            found.append(LookupLists(route, lists, features, route.rows.agreed.own))
        return found

    def of_update(
        self,
        stack: DeviceTable,
        tables: Sequence[str],
        features: Sequence[FeatureBags],
        looked_up: LookupLists | None = None,
    ) -> UpdateLists:
        """Return the lists of an update by features of tables that were looked up."""
        if looked_up is None or not isinstance(looked_up.route, OwnRoute):
            return super().of_update(stack, tables, features, looked_up)
        optimizer, route = stack.spec.optimizer, looked_up.route
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        own = route_own_update(route, optimizer.accumulate, optimizer.lazy)
        of_all = numbered(stack.numbering, described(stack.geometry, own.shape))
        held = looked_up.lists
        lists: dict[str, jax.Array]
        lists = {name: held[name] for name in ("place", "end", "fetch") if name in held}
        lists |= self._devices.put(own.arrays) | on_devices(stack, of_all.arrays)
        with self._processes.lock:
            program = self._programs.get(distinct_program, stack.mesh, stack.geometry)
            rows = program(lists["fetch"])
        agreed = route.rows.agreed
        return UpdateLists(tuple(tables), of_all.shape, lists, rows, agreed.ids > 0, agreed.own)
