"""The backend of tables in SparseCores: TPU devices of one process.

Tables that are alike and made in one call are stacked: one lookup and one update serve them all. A
table that is made later starts a stack of its own: XLA would need room for a stack twice to add a
table to it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore.backend import (
    Backend,
    FeatureBags,
    NotFinite,
    TableBatch,
    TableSpec,
    TableUpdate,
)
from shardcore.errors import ShardcoreValueError, UnavailableError
from shardcore.extras import pip_install
from shardcore.store import changed_here
from shardcore_pjrt.mesh.placing import (
    fetched,
    on_mesh,
    over_devices,
    put,
    resharding_program,
    whole,
)
from shardcore_pjrt.platform.installation import devices_of
from shardcore_pjrt.programs.activations import (
    Filling,
    filled_up,
    filled_up_on_devices,
    trimmed,
)
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.refusals import Refusals
from shardcore_pjrt.sparsecore.buffers import Buffers, bags_of_core, make_buffers
from shardcore_pjrt.sparsecore.capabilities import CAPABILITIES, DEFAULT_LAYOUT
from shardcore_pjrt.sparsecore.primitives import CORES, DeviceBuffers
from shardcore_pjrt.sparsecore.programs import (
    features_program,
    gradients_program,
    lookup_program,
    update_program,
)
from shardcore_pjrt.sparsecore.stack import Stack
from shardcore_pjrt.sparsecore.stacked_tables import stacked
from shardcore_pjrt.sparsecore.updates import numbers_of, row_update

__all__ = ["SparseCoreBackend"]


class _Route(NamedTuple):
    """Some bags of a stack's tables, and their buffers on the host and on the devices."""

    stack: Stack
    features: tuple[tuple[int, FeatureBags], ...]
    buffers: Buffers
    placed: DeviceBuffers


class SparseCoreBackend(Backend):
    """Tables in the SparseCores of TPU devices.

    Parameters
    ----------
    platform : str, default "tpu"
    devices : int or sequence of jax.Device, optional
        How many of the platform's devices, or which; a power of two. None: all of them.
    cores : int, optional
        SparseCores of each device. None: by the kind of the devices.

    Attributes
    ----------
    mesh : jax.sharding.Mesh
        Of one axis, "x": how activations are cut, by sample.

    Raises
    ------
    UnavailableError, ShardcoreValueError, ShardcoreTypeError
        If jax-tpu-embedding, JAX or the platform is missing or broken, the devices have no
        SparseCores, or an argument breaks its rule.
    """

    name = "pjrt"
    capabilities = CAPABILITIES

    def __init__(
        self, platform: str = "tpu", devices: Any = None, cores: int | None = None
    ) -> None:
        super().__init__()
        used = devices_of(platform, devices)
        if importlib.util.find_spec("jax_tpu_embedding") is None:
            raise UnavailableError(
                "strategy 'sparsecore' cannot be used here: jax_tpu_embedding is not installed; "
                f"{pip_install('sparsecore')}"
            )
        self.platform = platform
        self.mesh = Mesh(np.array(used), ("x",))
        self._cores = _cores_of(used[0]) if cores is None else cores
        if self.mesh.size & (self.mesh.size - 1):
            raise ShardcoreValueError(
                "devices must be a power of two with strategy 'sparsecore', "
                f"got {self.mesh.size} devices"
            )
        if any(device.process_index != used[0].process_index for device in used):
            raise ShardcoreValueError(
                "devices must be of one process with strategy 'sparsecore', got those of several"
            )
        self._programs = Programs()
        self._stacks: dict[str, Stack] = {}
        self._refusals = Refusals(self.mesh, self._programs)
        self._lock = threading.RLock()

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which changes tables, in this thread."""
        return changed_here(function, *arguments)

    @property
    def num_hosts(self) -> int:
        """How many devices samples and rows are cut over."""
        return int(self.mesh.size)

    def check_table(self, spec: TableSpec) -> None:
        """Raise unless the backend can have such a table.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `capabilities` or its optimizer rule it out: see `row_update`.
        """
        super().check_table(spec)
        if spec.optimizer is not None:
            row_update(spec)

    def default_layout(self, spec: TableSpec) -> Literal["div", "mod"]:
        """Return the layout of a table whose user gave none: frequent ids are often neighbours."""
        return DEFAULT_LAYOUT

    # --- tables ----------------------------------------------------------------------------------

    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots on the devices, of a table that lies alone."""
        self.make_tables([spec])

    def make_tables(self, specs: Sequence[TableSpec]) -> None:
        """Make rows and slots on the devices; tables that are alike lie together.

        Raises
        ------
        ShardcoreValueError
            If a core would hold 2**31 - 1 rows of a table or more.
        ShardcoreMemoryError
            If the host has no room.
        """
        with self._lock:
            for tables in stacked(specs, self.num_hosts, self._cores):
                try:
                    stack = Stack(self.mesh, tables, self._programs)
                except MemoryError as error:
                    largest = max(tables.specs, key=lambda spec: spec.num_rows)
                    raise largest.no_room(error) from error
                self._stacks.update(dict.fromkeys(stack.position, stack))

    def remove_table(self, table: str) -> None:
        """Forget a table; the memory of a stack goes with its last table."""
        with self._lock:
            self._stacks.pop(table, None)

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows in request order."""
        with self._lock:
            return self._stacks[table].gather(table, slot, rows)

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        with self._lock:
            self._stacks[table].scatter(table, slot, rows, values)

    # --- lookup ----------------------------------------------------------------------------------

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[Any]]:
        """Return the activations of every feature as arrays on the devices.

        They are cut over the devices by bag where their number is a multiple of that of the
        devices; else every device holds all of them.
        """
        with self._lock:
            found: list[list[Any]] = [[] for _ in batches]
            for stack, members in self._by_stack(batch.table for batch in batches):
                own = [batches[at] for at in members]
                route = self._routed(stack, [(one, one.features) for one in own])
                activations = iter(self._looked_up(route))
                for at, batch in zip(members, own, strict=True):
                    found[at] = [next(activations) for _ in batch.features]
                    if batch.training:
                        batch.route = route
            return found

    def _by_stack(self, tables: Any) -> list[tuple[Stack, list[int]]]:
        """Return the stacks of tables, each with the positions of its tables."""
        members: dict[int, tuple[Stack, list[int]]] = {}
        for at, table in enumerate(tables):
            stack = self._stacks[table]
            members.setdefault(id(stack), (stack, []))[1].append(at)
        return list(members.values())

    def _routed(
        self, stack: Stack, batches: Sequence[tuple[TableBatch, Sequence[FeatureBags]]]
    ) -> _Route:
        """Make the buffers of some bags of a stack's tables, and put them on the devices."""
        features = tuple(
            (stack.position[batch.table], bags) for batch, own in batches for bags in own
        )
        try:
            made = make_buffers(stack.geometry, features, stack.minibatched)
        except ShardcoreValueError as error:
            tables = ", ".join(repr(batch.table) for batch, _ in batches)
            raise ShardcoreValueError(f"table {tables}: {error}") from error
        arrays: dict[str, NDArray[Any]] = {
            "row_pointers": made.row_pointers,
            "embedding_ids": made.embedding_ids,
            "sample_ids": made.sample_ids,
            "gains": made.gains,
            "num_minibatches": np.array(made.num_minibatches, np.int32),
        }
        shardings = dict.fromkeys(arrays, over_devices(self.mesh))
        shardings["num_minibatches"] = whole(self.mesh)
        return _Route(stack, features, made, DeviceBuffers(**put(arrays, shardings)))

    def _looked_up(self, route: _Route) -> list[jax.Array]:
        """Return the activations of every feature of a route."""
        stack, made = route.stack, route.buffers
        geometry, spread = stack.geometry, made.spread
        if not spread.features:
            return []
        look_up = self._programs.get(lookup_program, self.mesh, geometry, made.shape)
        cut = self._programs.get(
            features_program,
            self.mesh,
            geometry,
            bags_of_core(geometry, spread),
            tuple(
                (start, bags, stack.dim_of(table))
                for start, bags, (table, _) in zip(
                    spread.starts, spread.bags, route.features, strict=True
                )
            ),
        )
        padded = cut(look_up(route.placed, stack.arrays[None]))
        return [
            trimmed(self.mesh, self._programs, one, own, bags.num_bags)
            for one, own, bags in zip(padded, spread.own, spread.features, strict=True)
        ]

    # --- update ----------------------------------------------------------------------------------

    def takes_gradient(self, gradient: object) -> bool:
        """Return whether `gradient` is a JAX array on devices of this backend."""
        if not isinstance(gradient, jax.Array):
            return False
        return bool(gradient.sharding.device_set <= set(self.mesh.devices.flat))

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Update each touched row once, in place; returns before the devices have done so."""
        with self._lock:
            held = [self._with_gradients_at_hand(update) for update in updates]
            ready = []
            for stack, members in self._by_stack(update.batch.table for update in held):
                for own, numbers in self._alike([held[at] for at in members]):
                    route = self._route_of(stack, own)
                    if route.buffers.unique_rows:
                        ready.append((route, own, numbers))
            go = self._refusals.test(held)
            calls = [
                (route.stack, *self._ready(route, own, numbers, go))
                for route, own, numbers in ready
            ]
            for stack, program, arguments in calls:  # what fails does so before a row has changed
                program.trace((tuple(stack.arrays.values()), *arguments))
            for stack, program, arguments in calls:
                stack.replace(program(tuple(stack.arrays.values()), *arguments))
            for route, *_ in ready:
                self.count_unique_rows(route.buffers.unique_rows)

    def _with_gradients_at_hand(self, update: TableUpdate) -> TableUpdate:
        """Return an update whose gradients on devices are on all devices of the mesh."""
        gradients = tuple(
            on_mesh(one, self.mesh) if isinstance(one, jax.Array) else one
            for one in update.gradients
        )
        return dataclasses.replace(update, gradients=gradients)

    def _alike(
        self, updates: Sequence[TableUpdate]
    ) -> list[tuple[list[TableUpdate], tuple[Any, ...]]]:
        """Return the updates of a stack by the numbers of their optimizers, which a call shares."""
        found: dict[Any, list[TableUpdate]] = {}
        for update in updates:
            spec = self.specs[update.batch.table]
            found.setdefault(numbers_of(spec, update.hyper, update.step), []).append(update)
        return [(own, numbers) for numbers, own in found.items()]

    def _route_of(self, stack: Stack, updates: Sequence[TableUpdate]) -> _Route:
        """Return the route of the lookup where the same features have gradients, else a new one."""
        active = [
            (
                one.batch,
                [
                    bags
                    for bags, gradient in zip(one.batch.features, one.gradients, strict=True)
                    if gradient is not None
                ],
            )
            for one in updates
        ]
        known = updates[0].batch.route
        if isinstance(known, _Route) and known.stack is stack:
            wanted = [bags for _, own in active for bags in own]
            if [id(bags) for _, bags in known.features] == [id(bags) for bags in wanted]:
                return known
        return self._routed(stack, active)

    def _ready(
        self,
        route: _Route,
        updates: Sequence[TableUpdate],
        numbers: tuple[Any, ...],
        go: jax.Array,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the program of an update, and its arguments besides the arrays."""
        stack, made = route.stack, route.buffers
        geometry, spread = stack.geometry, made.spread
        given = [one for update in updates for one in update.gradients if one is not None]
        cut = [
            self._cut(gradient, Filling(geometry.devices, room, own))
            for gradient, room, own in zip(given, spread.bags, spread.own, strict=True)
        ]
        join = self._programs.get(
            gradients_program,
            self.mesh,
            geometry,
            made.shape,
            bags_of_core(geometry, spread),
            len(cut),
        )
        program = self._programs.get(update_program, self.mesh, geometry, made.shape, stack.rule)
        named = {f"{at}": np.asarray(number) for at, number in enumerate(numbers)}
        placed = put(named, dict.fromkeys(named, whole(self.mesh)))
        return program, (route.placed, join(*cut), tuple(placed[name] for name in named), go)

    def _cut(self, gradient: jax.Array | NDArray[Any], filling: Filling) -> jax.Array:
        """Return a feature's gradient, filled up, cut over the devices by bag."""
        if isinstance(gradient, jax.Array):
            return filled_up_on_devices(self.mesh, self._programs, gradient, filling)
        on_host = {"gradient": filled_up(gradient, filling)}
        return put(on_host, {"gradient": over_devices(self.mesh)})["gradient"]

    def check_updates(self, wait: bool) -> NotFinite | None:
        """Report a gradient that was not finite, and how many updates did nothing; once."""
        with self._lock:
            return self._refusals.report(wait)

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return, per feature with a gradient, each occurrence's row times its bag's gradient."""
        with self._lock:
            held = self._with_gradients_at_hand(update)
            show = resharding_program(whole(self.mesh))
            gradients = tuple(
                fetched(show(one)) if isinstance(one, jax.Array) else one for one in held.gradients
            )
            return super().weight_dots(dataclasses.replace(update, gradients=gradients))

    # --- counters --------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Return what the backend has counted since it was made.

        Returns
        -------
        dict of str to int
            ``unique_rows``, as every backend; ``programs``: the compiled programs it has used;
            ``stacks``: the stacks that its tables are in.
        """
        with self._lock:
            stacks = len({id(stack) for stack in self._stacks.values()})
            return {**super().counters(), "programs": self._programs.distinct, "stacks": stacks}

    def close(self) -> None:
        """Release the tables."""
        with self._lock:
            self._stacks.clear()
            super().close()


def _cores_of(device: jax.Device) -> int:
    """Return how many SparseCores a device has.

    Raises
    ------
    ShardcoreValueError
        If it has none, or JAX's name of its kind is new.
    """
    cores = CORES.get(device.device_kind)
    if cores is None:
        raise ShardcoreValueError(
            "devices must have SparseCores with strategy 'sparsecore', which those of kind "
            f"{', '.join(map(repr, CORES))} have, got {device.device_kind!r}"
        )
    return cores
