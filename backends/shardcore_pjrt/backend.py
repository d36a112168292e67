"""The backend of PJRT devices: TPU, GPU or CPU, one program over all of them.

A batch's ids are routed on the host, where sorting them is cheap and their number is known; the
devices get lists of local rows and do two things with them, each a compiled program of its own:
look rows up and combine them, or sum gradients and update rows in place. Activations stay on the
devices, and gradients may come from there.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore.backend import (
    Backend,
    FeatureBags,
    NotFinite,
    Part,
    ProcessGroup,
    TableBatch,
    TableSpec,
    TableUpdate,
    dots_from_rows,
)
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.store import changed_here
from shardcore_pjrt.batch_lists import BatchLists, LookupLists, UpdateLists
from shardcore_pjrt.capabilities import CAPABILITIES
from shardcore_pjrt.device_table import DeviceTable, bytes_of_a_device
from shardcore_pjrt.mesh.batch_parts import access_parts, batch_parts, table_parts, update_parts
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.own_devices import OwnDevices
from shardcore_pjrt.mesh.placing import fetched, on_mesh, resharding_program, whole
from shardcore_pjrt.mesh.processes import processes_of
from shardcore_pjrt.own_lists import OwnLists, own_batch_parts, own_update_parts
from shardcore_pjrt.platform.installation import devices_of
from shardcore_pjrt.programs.activations import Filling, trimmed
from shardcore_pjrt.programs.compiled import Program, Programs
from shardcore_pjrt.programs.lookup_program import lookup_program
from shardcore_pjrt.programs.refusals import Refusals
from shardcore_pjrt.programs.split_features import per_feature
from shardcore_pjrt.programs.update_program import update_program
from shardcore_pjrt.routing.lookup_route import LookupShape
from shardcore_pjrt.routing.strategy import Exchange, default_layout
from shardcore_pjrt.stacks import Member, stacked
from shardcore_pjrt.update_arguments import (
    JoinedUpdates,
    cut_gradient,
    fillings_of,
    numbers_of,
    with_filled_gradients,
)

__all__ = ["PjrtBackend"]

_TPU_LANES = 128

_UNCOUNTED: Final = 1024
"""Numbers that are left on the devices until someone asks: half of them are long there by then."""


class _Table(NamedTuple):
    """A table, and the stack that holds its rows."""

    member: Member
    stack: DeviceTable


class _Together(NamedTuple):
    """Batches of tables of one stack, and their features as bags over the stack."""

    stack: DeviceTable
    batches: list[TableBatch]
    features: list[FeatureBags]


class PjrtBackend(Backend):
    """Tables on the devices of one PJRT platform, cut over all of them.

    They may be devices of several processes, which the user has started and joined by
    ``jax.distributed.initialize``; then every process makes the same calls, from one thread, with
    the same batches or each with its own, and each raises an error if they do not.

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
    rules : str, optional
        The platform whose rules choose lanes, exchanges and layouts where nothing is said. None:
        `platform`. ``rules="tpu"`` on CPU devices runs the programs that a TPU would.
    batches : {"same", "own"}, default "same"
        What each of several processes gives to lookups and updates: the whole batch, or its own
        samples, for which it gets activations and gives gradients.
    check_agreement : bool, default False
        Whether several processes that give the same batches compare what is in them, and in
        gradients of the host. False: calls, tables, features, dtypes and shapes only.

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
        rules: str | None = None,
        batches: Literal["same", "own"] = "same",
        check_agreement: bool = False,
    ) -> None:
        super().__init__()
        used = devices_of(platform, devices)
        if rules is not None and not isinstance(rules, str):
            raise ShardcoreTypeError(f"rules must be None or a platform, got {rules!r}")
        self._rules = platform if rules is None else rules
        if lanes is None:
            lanes = _TPU_LANES if self._rules == "tpu" else 1
        if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes not in (1, _TPU_LANES):
            raise ShardcoreValueError(f"lanes must be 1 or {_TPU_LANES}, got {lanes!r}")
        if exchange not in (None, "gather", "all_to_all"):
            raise ShardcoreValueError(
                f"exchange must be None, 'gather' or 'all_to_all', got {exchange!r}"
            )
        if batches not in ("same", "own"):
            raise ShardcoreValueError(f"batches must be 'same' or 'own', got {batches!r}")
        if not isinstance(check_agreement, bool):
            raise ShardcoreTypeError(f"check_agreement must be a bool, got {check_agreement!r}")
        if check_agreement and batches == "own":
            raise ShardcoreValueError(
                "check_agreement must be False where batches are 'own', which differ, got True"
            )
        self.platform = platform
        self.mesh = Mesh(np.array(used), ("x",))
        self._processes = processes_of(self.mesh)
        if exchange is None and batches == "own" and self._processes.several:
            exchange = "all_to_all"  # by which a process routes its own samples alone
        self._lanes = lanes
        self._exchange = exchange
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
        self._tables: dict[str, _Table] = {}
        self._check_agreement = check_agreement
        options = platform, lanes, exchange, self._rules, batches, check_agreement
        self._options: Part = "options of the backend", repr(options)
        self._own: OwnDevices | None = None  # of several processes, each with its own samples
        self._lists = BatchLists(self._programs, self._rules, exchange, self._processes.several)
        if batches == "own" and self._processes.several:
            self._own = OwnDevices(self.mesh)
            self._lists = OwnLists(self._programs, self._rules, exchange, self.mesh)
        self._uncounted: list[jax.Array] = []
        self._refusals = Refusals(self.mesh, self._programs, self._own is not None)
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

    def default_layout(self, spec: TableSpec) -> Literal["div", "mod"]:
        """Return the layout of a table whose user gave none: see `strategy.default_layout`."""
        return default_layout(self.num_hosts, spec.placement, self._rules, self._exchange)

    def layout(self, table: str) -> Layout:
        """Return which device, as a shard, holds which row.

        Rows of placement "column" or "replicated" are on every device, in part or as a whole; they
        are given as the first device's.
        """
        held, specs = self._tables[table], self.specs
        if specs[table].placement == "row":
            return held.member.layout
        home = list(self.mesh.devices.flat).index(held.stack.mesh.devices.flat[0])
        sizes = [0] * self.num_hosts
        sizes[home] = specs[table].num_rows
        return Layout.from_sizes(sizes)

    # --- tables ----------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots on the devices, of a table that lies alone."""
        self.make_tables([spec])

    def make_tables(self, specs: Sequence[TableSpec]) -> None:
        """Make rows and slots on the devices; tables that are alike lie together.

        Constants are filled in there; other initial values are made on the host, in pieces, since
        they are the same to the bit on every backend.

        Raises
        ------
        ShardcoreValueError
            If a shard has 2**31 rows or more; or, over several processes, if they are other tables
            in another process.
        ShardcoreMemoryError
            If the host has no room.
        """
        with self._lock:
            parts = itertools.chain.from_iterable(table_parts(spec) for spec in specs)
            self._processes.agree("create_table", [self._options, *parts])
            for mesh, geometry, members in stacked(self._where(specs)):
                try:
                    stack = DeviceTable(mesh, geometry, members, self._programs)
                except MemoryError as error:
                    largest = max((one.spec for one in members), key=lambda spec: spec.num_rows)
                    raise largest.no_room(error) from error
                for member in members:
                    self._tables[member.spec.name] = _Table(member, stack)

    def _where(self, specs: Sequence[TableSpec]) -> list[tuple[TableSpec, Geometry, Mesh]]:
        """Return where each table would lie alone; a whole one on the device that has least."""
        held = dict.fromkeys(self.mesh.devices.flat, 0)
        for stack in {id(table.stack): table.stack for table in self._tables.values()}.values():
            for device in stack.mesh.devices.flat:
                held[device] += stack.nbytes // stack.mesh.size
        tables = []
        for spec in specs:
            mesh = self.mesh
            if spec.placement == "table" and mesh.size > 1:
                emptiest = min(held, key=lambda device: held[device])
                mesh = Mesh(np.array([emptiest]), ("x",))
            try:
                geometry = Geometry(
                    spec.num_rows, spec.dim, mesh.size, spec.placement, self._lanes, spec.layout
                )
            except ShardcoreValueError as error:
                raise ShardcoreValueError(f"table {spec.name!r}: {error}") from error
            for device in mesh.devices.flat:
                held[device] += bytes_of_a_device(geometry, spec)
            tables.append((spec, geometry, mesh))
        return tables

    def remove_table(self, table: str) -> None:
        """Forget a table; its memory goes with the last program that uses it."""
        with self._lock:
            self._tables.pop(table, None)

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        with self._lock:
            self._processes.agree("gather", access_parts(table, slot, rows))
            return self._gathered(table, slot, rows)

    def _gathered(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        member, stack = self._tables[table]
        return stack.gather(slot, member.rows(rows))

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        with self._lock:
            self._processes.agree("scatter", access_parts(table, slot, rows, values))
            member, stack = self._tables[table]
            stack.scatter(slot, member.rows(rows), values)

    # --- lookup ----------------------------------------------------------------------------------

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[Any]]:
        """Return the activations of every feature as arrays on the devices.

        They are cut over the devices by bag where their number is a multiple of that of the
        devices; else every device holds all of them. Of own samples these are the devices of the
        process.
        """
        groups = self._by_stack(batches)
        prepared = self._prepared(batches, groups)
        found: dict[int, list[Any]] = {}
        with self._lock:
            if self._own is None:
                self._processes.agree("lookup", batch_parts(batches, self._check_agreement))
            for group, looked_up in zip(groups, prepared, strict=True):
                stack, shape = group.stack, looked_up.route.shape
                padded = self._program_of(stack, shape)(stack.rows, looked_up.lists)
                activations = per_feature(stack.mesh, self._programs, padded, shape.bags)
                ready = iter(zip(activations, looked_up.own, strict=True))
                for batch in group.batches:
                    found[id(batch)] = [
                        self._as_given(*next(ready), bags.num_bags) for bags in batch.features
                    ]
        for (stack, together, _), looked_up in zip(groups, prepared, strict=True):
            if together[0].training:  # while the devices look up
                tables = [batch.table for batch in together]
                routed = self._lists.of_update(stack, tables, looked_up.features, looked_up)
                for batch in together:
                    batch.route = routed
        return [found[id(batch)] for batch in batches]

    def _prepared(
        self, batches: Sequence[TableBatch], groups: Sequence[_Together]
    ) -> list[LookupLists]:
        """Return the routes of lookups; of own samples once all processes know what they are of."""
        asked = [(group.stack, group.features) for group in groups]
        if isinstance(self._lists, OwnLists):
            return self._lists.of_lookups("lookup", list(own_batch_parts(batches)), asked)
        return [self._lists.of_lookup(*one) for one in asked]

    def _as_given(self, padded: jax.Array, own: int, bags: int) -> jax.Array:
        """Return a feature's activations for the bags that the caller gave."""
        if self._own is None:
            return trimmed(self.mesh, self._programs, padded, own, bags)
        return trimmed(self._own.mesh, self._programs, self._own.part(padded), own, bags)

    def refuse(self, call: str, error: Exception) -> None:
        """Raise in all processes what the engine refuses of the samples of this one."""
        if self._own is not None:
            self._processes.refuse(call, error)

    def _by_stack(self, batches: Sequence[TableBatch]) -> list[_Together]:
        """Return batches by stack, and by whether gradients follow."""
        groups: dict[Any, list[TableBatch]] = {}
        for batch in batches:
            stack = self._tables[batch.table].stack
            groups.setdefault((id(stack), batch.training), []).append(batch)
        return [
            _Together(
                self._tables[group[0].table].stack,
                group,
                [bags for batch in group for bags in self._bags(batch)],
            )
            for group in groups.values()
        ]

    def _bags(self, batch: TableBatch) -> list[FeatureBags]:
        """Return a batch's features as bags over the stack."""
        return self._tables[batch.table].member.bags(batch.features)

    def _program_of(self, stack: DeviceTable, shape: LookupShape) -> Program:
        """Return the program of a stack's lookups of a shape."""
        spec = stack.spec
        seen = spec.quantization, spec.dtype, spec.max_norm
        return self._programs.get(lookup_program, stack.mesh, stack.geometry, shape, *seen)

    # --- update ----------------------------------------------------------------------------------

    def takes_gradient(self, gradient: object) -> bool:
        """Return whether `gradient` is a JAX array on devices of this backend.

        Over several processes one that a process has for itself is read like any host array. Where
        each gives its own samples, it has to have their gradients for itself.

        Raises
        ------
        ShardcoreValueError
            If it lies on some, but not all, of the devices of several processes; of own samples, if
            it lies on devices of others.
        """
        if not isinstance(gradient, jax.Array):
            return False
        held = gradient.sharding.device_set
        if not self._processes.several:
            return bool(held <= set(self.mesh.devices.flat))
        if self._own is not None:
            if not gradient.is_fully_addressable:
                raise ShardcoreValueError(
                    "must be of this process alone, as its samples are: it lies on "
                    f"{len(held)} devices of several"
                )
            return bool(held <= set(self._own.mesh.devices.flat))
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
        joined = self._joined(updates)
        with self._lock:
            if self._own is None:
                self._processes.agree("apply", update_parts(updates, self._check_agreement))
            fillings: dict[str, list[Filling | None]] = {}
            for one in joined:
                fillings |= fillings_of(one)
            held = {
                table: self._filled(update, fillings[table])
                for update in updates
                for table in [update.batch.table]
            }
            go = self._refusals.test(list(held.values()), [fillings[table] for table in held])
            moving = [one for one in joined if one.routed.named or one.routed.shape.every_row]
            numbers = numbers_of(moving, self.specs)
            ready = [
                self._ready(one, held, own, go) for one, own in zip(moving, numbers, strict=True)
            ]
            # An optimizer that fails does so while it is traced: before any table has changed.
            for stack, program, arguments in ready:
                program.trace((stack.rows, stack.slots, *arguments))
            for stack, program, arguments in ready:  # each gives up the arrays before
                stack.replace(*program(stack.rows, stack.slots, *arguments))
        for one in joined:
            self._count_unique_rows(one.routed.unique_rows)

    def _count_unique_rows(self, rows: int | jax.Array) -> None:
        """Count the distinct rows of an update; a number that a device makes is not waited for."""
        if isinstance(rows, int):
            self.count_unique_rows(rows)
            return
        with self._lock:
            self._uncounted.append(rows)
            if len(self._uncounted) > _UNCOUNTED:
                self._count_those_of_devices(_UNCOUNTED // 2)

    def _count_those_of_devices(self, first: int) -> None:
        for rows in self._uncounted[:first]:
            self.count_unique_rows(int(fetched(rows)))
        del self._uncounted[:first]

    def _by_stack_and_step(
        self, updates: Sequence[TableUpdate]
    ) -> list[tuple[DeviceTable, list[TableUpdate]]]:
        """Return updates by stack, as far as step and hyper-parameters are the same."""
        groups: dict[Any, tuple[DeviceTable, list[TableUpdate]]] = {}
        for update in updates:
            stack = self._tables[update.batch.table].stack
            same = id(stack), update.step, np.array(update.hyper).tobytes()
            groups.setdefault(same, (stack, []))[1].append(update)
        return list(groups.values())

    def check_updates(self, wait: bool) -> NotFinite | None:
        """Report a gradient that was not finite, and how many updates did nothing; once."""
        with self._lock:
            return self._refusals.report(wait)

    def _filled(self, update: TableUpdate, fillings: Sequence[Filling | None]) -> TableUpdate:
        """Return an update whose gradients have the bags of its program, on all devices."""
        own = self._own
        if own is None:
            return with_filled_gradients(self.mesh, self._programs, update, fillings)
        parts = [None if one is None else one._replace(parts=own.mesh.size) for one in fillings]
        filled = with_filled_gradients(own.mesh, self._programs, update, parts)

        def on_all(gradient: Any) -> Any:
            if gradient is None:
                return None
            if isinstance(gradient, jax.Array):
                return own.joined(gradient)
            return own.put({"gradient": gradient})["gradient"]

        return dataclasses.replace(filled, gradients=tuple(map(on_all, filled.gradients)))

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
            if isinstance(self._lists, OwnLists):
                return self._own_weight_dots(self._lists, update)
            self._processes.agree("weight_dots", update_parts([update], self._check_agreement))
            held = self._with_gradients_at_hand(update)
            show = resharding_program(whole(self.mesh))
            gradients = tuple(
                fetched(show(one)) if isinstance(one, jax.Array) else one for one in held.gradients
            )
            return super().weight_dots(dataclasses.replace(update, gradients=gradients))

    def _own_weight_dots(self, lists: OwnLists, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return what `weight_dots` does, of the process's own occurrences."""
        self._processes.counted("weight_dots", own_update_parts([update]))

        def gather(table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
            named = lists.rows_of_all("weight_dots", table, rows)  # a read has all processes
            found: NDArray[Any] = self._gathered(table, slot, named)
            return found[np.searchsorted(named, rows)]

        gradients = [None if one is None else np.asarray(one) for one in update.gradients]
        held = dataclasses.replace(update, gradients=tuple(gradients))
        return dots_from_rows(self.specs[update.batch.table], held, gather)

    def _joined(self, updates: Sequence[TableUpdate]) -> list[JoinedUpdates]:
        """Return updates by stack, with the routes of all of their gradients."""
        groups = self._by_stack_and_step(updates)
        routes = [_known_route(group) for _, group in groups]
        new = [at for at, route in enumerate(routes) if route is None]
        asked = [(groups[at][0], self._active_bags(groups[at][1])) for at in new]
        looked_up: Sequence[LookupLists | None] = [None] * len(new)
        if isinstance(self._lists, OwnLists):
            looked_up = self._lists.of_lookups("apply", list(own_update_parts(updates)), asked)
        for at, (stack, features), found in zip(new, asked, looked_up, strict=True):
            tables = [update.batch.table for update in groups[at][1]]
            routed = features if found is None else found.features
            routes[at] = self._lists.of_update(stack, tables, routed, found)
        return [
            JoinedUpdates(stack, group, route)
            for (stack, group), route in zip(groups, routes, strict=True)
            if route is not None
        ]

    def _active_bags(self, updates: Sequence[TableUpdate]) -> list[FeatureBags]:
        """Return, over their stack, the bags of the features that have a gradient."""
        return [
            bags
            for update in updates
            for bags, used in zip(self._bags(update.batch), update.active, strict=True)
            if used
        ]

    def _ready(
        self,
        joined: JoinedUpdates,
        held: Mapping[str, TableUpdate],
        numbers: Sequence[jax.Array],
        go: jax.Array,
    ) -> tuple[DeviceTable, Any, tuple[Any, ...]]:
        """Return a stack, the program that updates it, and the arguments after rows and slots."""
        table, shape = joined.stack, joined.routed.shape
        mesh, geometry = table.mesh, table.geometry
        gradients = tuple(
            cut_gradient(gradient, mesh)
            for update in joined.updates
            for gradient in held[update.batch.table].gradients
            if gradient is not None
        )
        if mesh is not self.mesh:
            go = jax.device_put(go, whole(mesh))
        program = self._programs.get(
            update_program, mesh, geometry, shape, table.spec.optimizer, table.spec.dtype
        )
        return table, program, (gradients, joined.routed.lists, *numbers, go)

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
            self._count_those_of_devices(len(self._uncounted))
            return {**super().counters(), "programs": self._programs.distinct}

    def close(self) -> None:
        """Release the tables."""
        with self._lock:
            self._tables.clear()
            super().close()


def _known_route(updates: Sequence[TableUpdate]) -> UpdateLists | None:
    """Return the route of the lookup of updates, if they have gradients for all that it is of."""
    known: UpdateLists | None = updates[0].batch.route
    tables = tuple(update.batch.table for update in updates)
    whole_batch = all(one.batch.route is known and all(one.active) for one in updates)
    return known if known is not None and known.tables == tables and whole_batch else None


def _warn_without_time_limit() -> None:
    if "--xla_cpu_collective_timeout_seconds" not in os.environ.get("XLA_FLAGS", ""):
        warnings.warn(
            "devices of platform 'cpu' wait for ever for a process that is stuck: start every "
            "process with XLA_FLAGS=--xla_cpu_collective_timeout_seconds=60 or the like",
            stacklevel=4,
        )
