"""The backend of PJRT devices: TPU, GPU or CPU, one program over all of them.

A batch's ids are routed on the host, where sorting them is cheap and their number is known; the
devices get lists of local rows and do two things with them, each a compiled program of its own:
look rows up and combine them, or sum gradients and update rows in place. Activations stay on the
devices, and gradients may come from there.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from shardcore.backend import Backend, NotFinite, ProcessGroup, TableBatch, TableSpec, TableUpdate
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.store import changed_here, rounds_stochastically, step_seed
from shardcore_pjrt.capabilities import CAPABILITIES
from shardcore_pjrt.device_table import DeviceTable
from shardcore_pjrt.mesh.batch_parts import access_parts, batch_parts, table_parts, update_parts
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placing import (
    fetched,
    on_mesh,
    over_devices,
    put,
    resharding_program,
    whole,
)
from shardcore_pjrt.mesh.processes import processes_of
from shardcore_pjrt.platform.installation import devices_of
from shardcore_pjrt.programs.activations import as_cut, trimmed
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.lookup_program import lookup_program
from shardcore_pjrt.programs.refusals import Refusals
from shardcore_pjrt.programs.update_program import update_program
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.strategy import Exchange, choose_exchange, update_exchange
from shardcore_pjrt.routing.update_route import UpdateRoute, route_update

__all__ = ["PjrtBackend"]

_TPU_LANES = 128


class _Routed(NamedTuple):
    """A batch's route for an update, and its lists on the devices."""

    route: UpdateRoute
    lists: dict[str, jax.Array]


class PjrtBackend(Backend):
    """Tables on the devices of one PJRT platform, cut over all of them.

    They may be devices of several processes, which the user has started and joined by
    ``jax.distributed.initialize``; then every process makes the same calls with the same batches,
    from one thread, and each raises an error if they do not.

    Parameters
    ----------
    platform : str, default "cpu"
        ``"tpu"``, ``"cuda"``, ``"cpu"``, or the name of any PJRT plug-in that JAX has found.
    devices : int or sequence of jax.Device, optional
        How many of the platform's devices, or which. None: all of them.
    lanes : int, optional
        Columns of a line that narrow rows are packed into. None: 128 on TPU, which stores nothing
        narrower, and 1, for no packing, elsewhere.
    exchange : {"gather", "all_to_all"}, optional
        How rows of row-wise tables reach the devices that asked. None: as `choose_exchange` says.

    Attributes
    ----------
    mesh : jax.sharding.Mesh
        Of one axis, "x": how activations are cut, by sample.

    Raises
    ------
    UnavailableError, ShardcoreValueError, ShardcoreTypeError
        If JAX or the platform is missing or broken, or an argument breaks its rule.

    Examples
    --------
    >>> import shardcore as sc
    >>> backend = sc.get_backend("pjrt", platform="cpu", devices=1)
    >>> backend.num_hosts
    1
    """

    name = "pjrt"
    capabilities = CAPABILITIES

    def __init__(
        self,
        platform: str = "cpu",
        devices: Any = None,
        lanes: int | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        super().__init__()
        used = devices_of(platform, devices)
        if lanes is None:
            lanes = _TPU_LANES if platform == "tpu" else 1
        if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes not in (1, _TPU_LANES):
            raise ShardcoreValueError(f"lanes must be 1 or {_TPU_LANES}, got {lanes!r}")
        if exchange not in (None, "gather", "all_to_all"):
            raise ShardcoreValueError(
                f"exchange must be None, 'gather' or 'all_to_all', got {exchange!r}"
            )
        self.platform = platform
        self.mesh = Mesh(np.array(used), ("x",))
        self._lanes = lanes
        self._exchange = exchange
        self._processes = processes_of(self.mesh)
        own = used[0].client.process_index()
        if own not in self._processes.numbers:
            raise ShardcoreValueError(
                f"devices must hold at least one of this process, which is process {own}: "
                f"those given are of process {', '.join(map(str, self._processes.numbers))}"
            )
        if self._processes.several:  # none has all of a table
            placements = tuple(one for one in CAPABILITIES.placements if one != "table")
            self.capabilities = dataclasses.replace(CAPABILITIES, placements=placements)
        if self._processes.several and platform == "cpu":
            _warn_without_time_limit()
        self._programs = Programs()
        self._tables: dict[str, DeviceTable] = {}
        self._refusals = Refusals(self.mesh, self._programs)
        # Programs over the same devices must start in one order on all of them, hence one lock.
        self._lock = self._processes.lock if self._processes.several else threading.RLock()

    @property
    def process_group(self) -> ProcessGroup | None:
        """The processes that hold the tables, if there are several."""
        return self._processes if self._processes.several else None

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which changes tables, in this thread.

        Programs that exchange must start in one order on all devices; the CPU platform keeps the
        order of one thread only.
        """
        return changed_here(function, *arguments)

    @property
    def num_hosts(self) -> int:
        """How many devices samples and rows are cut over."""
        return int(self.mesh.size)

    def layout(self, table: str) -> Layout:
        """Return which device, as a shard, holds which row.

        Rows of placement "column" or "replicated" are on every device, in part or as a whole; they
        are given as the first device's.
        """
        held = self._tables[table]
        if held.spec.placement == "row":
            return held.geometry.layout
        home = list(self.mesh.devices.flat).index(held.mesh.devices.flat[0])
        sizes = [0] * self.num_hosts
        sizes[home] = held.spec.num_rows
        return Layout.from_sizes(sizes)

    # --- tables ----------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots on the devices.

        Constants are filled in there; other initial values are made on the host, in pieces, since
        they are the same to the bit on every backend.

        Raises
        ------
        ShardcoreValueError
            If a shard has 2**31 rows or more; or, over several processes, if it is another table in
            another process.
        """
        with self._lock:
            options = repr((self.platform, self._lanes, self._exchange))
            self._processes.agree(
                "create_table", [("options of the backend", options), *table_parts(spec)]
            )
            mesh = self.mesh
            if spec.placement == "table" and mesh.size > 1:
                mesh = Mesh(np.array([self._emptiest()]), ("x",))
            try:
                geometry = Geometry(
                    spec.num_rows, spec.dim, mesh.size, spec.placement, self._lanes, spec.layout
                )
            except ShardcoreValueError as error:
                raise ShardcoreValueError(f"table {spec.name!r}: {error}") from error
            self._tables[spec.name] = DeviceTable(mesh, geometry, spec, self._programs)

    def _emptiest(self) -> jax.Device:
        """Return the device that holds the fewest bytes; the first of several."""
        held = dict.fromkeys(self.mesh.devices.flat, 0)
        for table in self._tables.values():
            share = table.nbytes // table.mesh.size
            for device in table.mesh.devices.flat:
                held[device] += share
        return min(held, key=lambda device: held[device])

    def remove_table(self, table: str) -> None:
        """Forget a table; its memory goes with the last program that uses it."""
        with self._lock:
            self._tables.pop(table, None)

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        with self._lock:
            self._processes.agree("gather", access_parts(table, slot, rows))
            return self._tables[table].gather(slot, rows)

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        with self._lock:
            self._processes.agree("scatter", access_parts(table, slot, rows, values))
            self._tables[table].scatter(slot, rows, values)

    # --- lookup ----------------------------------------------------------------------------------

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[Any]]:
        """Return the activations of every feature as arrays on the devices.

        They are cut over the devices by bag where their number is a multiple of that of the
        devices; else every device holds all of them.
        """
        prepared = [self._looked_up(batch) for batch in batches]
        with self._lock:
            self._processes.agree("lookup", batch_parts(batches))
            found = [
                [
                    trimmed(self.mesh, self._programs, padded, bags.num_bags)
                    for bags, padded in zip(
                        batch.features, program(table.rows, arrays), strict=True
                    )
                ]
                for batch, (table, program, arrays) in zip(batches, prepared, strict=True)
            ]
        for batch in batches:  # while the devices look up
            if batch.training:
                batch.route = self._routed(batch, (True,) * len(batch.features))
        return found

    def _looked_up(self, batch: TableBatch) -> tuple[DeviceTable, Any, dict[str, jax.Array]]:
        """Return a table's lookup program, and the lists it takes."""
        table = self._tables[batch.table]
        geometry = table.geometry
        route = route_lookup(geometry, batch.features, self._exchange_of(geometry))
        spec, shape = table.spec, route.shape
        program = self._programs.get(
            lookup_program,
            table.mesh,
            geometry,
            shape,
            spec.quantization,
            spec.dtype,
            spec.max_norm,
        )
        return table, program, self._lists(table, route.arrays)

    def _lists(self, table: DeviceTable, arrays: dict[str, NDArray[Any]]) -> dict[str, jax.Array]:
        """Put the lists of a route on the devices: those with a part per device are cut."""
        cut, all_of_it = over_devices(table.mesh), whole(table.mesh)
        shardings = {
            name: cut if array.ndim and array.shape[0] == table.mesh.size else all_of_it
            for name, array in arrays.items()
        }
        return put(arrays, shardings)

    def _exchange_of(self, geometry: Geometry) -> Exchange:
        if self._exchange is not None and geometry.placement == "row" and geometry.devices > 1:
            return self._exchange
        return choose_exchange(
            geometry.devices, geometry.placement, geometry.num_rows, self.platform
        )

    # --- update ----------------------------------------------------------------------------------

    def takes_gradient(self, gradient: object) -> bool:
        """Return whether `gradient` is a JAX array on devices of this backend.

        Over several processes one that a process has for itself is read like any host array.

        Raises
        ------
        ShardcoreValueError
            If it lies on some, but not all, of the devices of several processes.
        """
        if not isinstance(gradient, jax.Array):
            return False
        held = gradient.sharding.device_set
        if not self._processes.several:
            return bool(held <= set(self.mesh.devices.flat))
        if gradient.is_fully_addressable:
            return False
        if held != set(self.mesh.devices.flat):
            raise ShardcoreValueError(
                f"must lie on all {self.num_hosts} devices of the backend's mesh, or be of this "
                f"process alone: it lies on {len(held)} devices of several"
            )
        return True

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Update each touched row once, in place; returns before the devices have done so."""
        routes = [self._route_of(update) for update in updates]
        with self._lock:
            self._processes.agree("apply", update_parts(updates))
            held = [self._with_gradients_at_hand(update) for update in updates]
            go = self._refusals.test(held)
            moving = [
                (update, routed)
                for update, routed in zip(held, routes, strict=True)
                if routed.route.unique_rows or routed.route.shape.every_row
            ]
            numbers = self._numbers([update for update, _ in moving])
            ready = [
                self._ready(update, routed, own, go)
                for (update, routed), own in zip(moving, numbers, strict=True)
            ]
            # An optimizer that fails does so while it is traced: before any table has changed.
            for _, program, arguments in ready:
                self._programs.trace(program, arguments)
            for table, program, arguments in ready:
                table.replace(*program(*arguments))
        for routed in routes:
            self.count_unique_rows(routed.route.unique_rows)

    def check_updates(self, wait: bool) -> NotFinite | None:
        """Report a gradient that was not finite, and how many updates did nothing; once."""
        with self._lock:
            return self._refusals.report(wait)

    def _with_gradients_at_hand(self, update: TableUpdate) -> TableUpdate:
        """Return an update whose gradients on devices are on all devices of the mesh."""
        gradients = tuple(
            on_mesh(one, self.mesh) if isinstance(one, jax.Array) else one
            for one in update.gradients
        )
        return dataclasses.replace(update, gradients=gradients)

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return, per feature with a gradient, each occurrence's row times its bag's gradient."""
        with self._lock:
            self._processes.agree("weight_dots", update_parts([update]))
            held = self._with_gradients_at_hand(update)
            show = resharding_program(whole(self.mesh))
            gradients = tuple(
                fetched(show(one)) if isinstance(one, jax.Array) else one for one in held.gradients
            )
            return super().weight_dots(dataclasses.replace(update, gradients=gradients))

    def _route_of(self, update: TableUpdate) -> _Routed:
        if all(update.active) and update.batch.route is not None:
            routed: _Routed = update.batch.route
            return routed
        return self._routed(update.batch, update.active)

    def _routed(self, batch: TableBatch, active: Sequence[bool]) -> _Routed:
        table = self._tables[batch.table]
        optimizer = table.spec.optimizer
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        features = [bags for bags, used in zip(batch.features, active, strict=True) if used]
        chosen = None if self._exchange is not None else self.platform
        exchange = update_exchange(self._exchange_of(table.geometry), optimizer.accumulate, chosen)
        route = route_update(
            table.geometry, features, exchange, optimizer.accumulate, optimizer.lazy
        )
        return _Routed(route, self._lists(table, route.arrays))

    def _ready(
        self, update: TableUpdate, routed: _Routed, numbers: Sequence[jax.Array], go: jax.Array
    ) -> tuple[DeviceTable, Any, tuple[Any, ...]]:
        """Return a table, the program that updates it, and its arguments."""
        table, shape = self._tables[update.batch.table], routed.route.shape
        mesh, geometry = table.mesh, table.geometry
        given = [one for one in update.gradients if one is not None]
        gradients = tuple(
            as_cut(mesh, self._programs, gradient, bags * geometry.devices)
            for gradient, bags in zip(given, shape.bags, strict=True)
        )
        if mesh is not self.mesh:
            go = jax.device_put(go, whole(mesh))
        program = self._programs.get(
            update_program, mesh, geometry, shape, table.spec.optimizer, table.spec.dtype
        )
        return (
            table,
            program,
            (table.rows, table.slots, gradients, routed.lists, *numbers, go),
        )

    def _numbers(self, updates: Sequence[TableUpdate]) -> list[list[jax.Array]]:
        """Return hyper-parameters, step and seed of each update on its devices: one transfer."""
        arrays: dict[str, NDArray[Any]] = {}
        shardings: dict[str, NamedSharding] = {}
        known: dict[Any, str] = {}
        names: list[list[str]] = []
        for update in updates:
            table = self._tables[update.batch.table]
            spec, seed = table.spec, 0
            assert spec.optimizer is not None, "the engine trains tables with an optimizer only"
            if rounds_stochastically(spec.optimizer, spec.dtype):
                seed = step_seed(self.specs[spec.name].seed, update.step)
            names.append([])
            for number in (
                np.array(update.hyper, np.float32),
                np.array(update.step, np.int32),
                np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32),
            ):
                name = known.setdefault(
                    (table.mesh, number.dtype, number.tobytes()), f"{len(known)}"
                )
                arrays[name], shardings[name] = number, whole(table.mesh)
                names[-1].append(name)
        placed = put(arrays, shardings)
        return [[placed[name] for name in own] for own in names]

    # --- counters --------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Return what the backend has counted since it was made.

        Returns
        -------
        dict of str to int
            ``unique_rows``, as every backend, and ``programs``: the compiled programs it has used,
            for lookups, updates, reads and writes; each is compiled once per process.
        """
        with self._lock:
            return {**super().counters(), "programs": self._programs.distinct}

    def close(self) -> None:
        """Release the tables."""
        with self._lock:
            self._tables.clear()
            super().close()


def _warn_without_time_limit() -> None:
    if "--xla_cpu_collective_timeout_seconds" not in os.environ.get("XLA_FLAGS", ""):
        warnings.warn(
            "devices of platform 'cpu' wait for ever for a process that is stuck: start every "
            "process with XLA_FLAGS=--xla_cpu_collective_timeout_seconds=60 or the like",
            stacklevel=4,
        )
