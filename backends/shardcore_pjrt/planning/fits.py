"""Whether a model fits on a TPU topology: its programs compiled for it, their memory added up.

A device holds tables and slots all the time. Of a batch it holds the lists of rows, activations and
gradients; while one batch is applied the next one is looked up already, so lookups count twice. One
program runs at a time, so that of their temporaries the largest counts.

Tables, slots and the model's activations are known without a compiler. Where these alone are too
much, nothing is compiled. Tables that the backend would lay together are planned together: a stack
has one lookup and one update.

Lists and buffers depend on which rows a batch names. So both are tried: the hot rows scattered over
a table, and its rows numbered by rank, the hottest first; a model fits if it fits with both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from shardcore.backend import FeatureBags, TableSpec
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer import Optimizer
from shardcore.planning import Model, ModelTable
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.ahead_of_time import (
    Compiled,
    Refused,
    compile_lookup,
    compile_update,
    lookup_shape,
    tpu_mesh,
    update_shape,
)
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.needs import TableNeeds, activation_bytes, with_programs
from shardcore_pjrt.planning.sparsecore_needs import SparseCorePrograms, sparsecore_stacks
from shardcore_pjrt.planning.topologies import Topology, generation_of
from shardcore_pjrt.routing.lookup_route import LookupShape
from shardcore_pjrt.routing.strategy import default_layout
from shardcore_pjrt.routing.update_route import UpdateShape
from shardcore_pjrt.stacks import Stack, stacked

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["Plan", "TableNeeds", "compiled_plan", "counted_plan", "smallest_plan"]

_LANES: Final = 128
_DTYPES: Final = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Plan:
    """The needs of a model's tables on a topology.

    Attributes
    ----------
    topology : Topology
    tables : tuple of TableNeeds
        Those that lie together are one.
    compiled : bool
        Whether temporaries and lists are known.
    reserve : int
        Bytes of each device that are for something else: the rest of the model.
    by_rank : bool
        Whether rows are numbered by rank, the hottest first, or the hot ones scattered.
    other : Plan or None
        The plan of the same model with ids of the other kind, that needs less, or as much; None
        where no rows are hot, or nothing was compiled.
    """

    topology: Topology
    tables: tuple[TableNeeds, ...]
    compiled: bool
    reserve: int = 0
    by_rank: bool = False
    other: Plan | None = None

    def needed_on(self, device: int) -> int:
        """Return the bytes that a device needs at its fullest."""
        running = [table.temporaries for table in self.tables if table.home in (None, device)]
        held = sum(table.held_on(device) for table in self.tables)
        return self.reserve + held + max(running, default=0)

    @property
    def fullest(self) -> int:
        """The device that needs most; the first of several."""
        homes = {table.home for table in self.tables if table.home is not None}
        others = set(range(min(self.topology.devices, len(homes) + 1))) - homes
        return min(homes | others, key=lambda device: (-self.needed_on(device), device))

    def described(self, tables: int) -> str:
        """Return how many tables there are, and in how many stacks, if some lie together."""
        if not any(one.others for one in self.tables):
            return f"{tables} tables"
        stacks = len(self.tables)
        return f"{tables} tables in {stacks} stack{'s' if stacks > 1 else ''}"

    @property
    def needed(self) -> int:
        """The bytes that the fullest device needs."""
        return self.needed_on(self.fullest)

    @property
    def fits(self) -> bool:
        """Whether every program was compiled and every device has room, whatever rows are hot."""
        return self.compiled and self.possible

    @property
    def possible(self) -> bool:
        """Whether nothing that is known so far rules it out."""
        return self.needed <= self.topology.hbm and not any(one.refused for one in self.tables)

    @property
    def largest(self) -> TableNeeds:
        """The table to blame: one the compiler refused, else the one that needs most there."""
        device = self.fullest
        return max(
            self.tables,
            key=lambda one: (bool(one.refused), one.home in (None, device), one.total),
        )


def counted_plan(model: Model, topology: Topology, reserve: int = 0) -> Plan:
    """Return what is known without a compiler: tables, slots, activations and gradients.

    Parameters
    ----------
    model : Model
    topology : Topology
    reserve : int
        Bytes of each device that are for something else.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If a table cannot be on a TPU at all: it is of float64, exchanges partial sums, or a device
        would hold 2**31 rows or more; or not in SparseCores, where the strategy is that.

    Examples
    --------
    >>> from shardcore.planning import example_model, load_model
    >>> from shardcore_pjrt.planning.topologies import topology
    >>> model = load_model(example_model())
    >>> [counted_plan(model, topology(name)).possible for name in ("v5e:2x4", "v5e:4x4")]
    [False, True]
    """
    needs = tuple(one.needs for one in _planned(model, topology))
    return Plan(topology, needs, False, reserve)


def compiled_plan(
    model: Model,
    topology: Topology,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    reserve: int = 0,
) -> Plan:
    """Return what a model needs: counted, and compiled unless that is too much already.

    Parameters
    ----------
    model : Model
    topology : Topology
    seed : int
        Of the ids of the batch that programs are compiled for.
    tell : callable, optional
        Called with a line to print before a step that takes long.
    reserve : int
        As in `counted_plan`.

    Returns
    -------
    Plan
        Of the ids, scattered or by rank, that need more.

    Raises
    ------
    UnavailableError, BrokenPluginError
        If it has to compile, and JAX or libtpu cannot be used.
    ShardcoreTypeError, ShardcoreValueError
        As `counted_plan`.
    """
    planned = _planned(model, topology)
    counted = Plan(topology, tuple(one.needs for one in planned), False, reserve)
    if not counted.possible:
        return counted
    meshes = {
        devices: tpu_mesh(topology, devices)
        for devices in {1 if one.home is not None else topology.devices for one in counted.tables}
    }
    tell(f"compiling the programs of {counted.described(len(model.tables))} for {topology.name}")

    orders = (False, True) if model.ids.ranked else (False,)
    found: dict[bool, list[TableNeeds]] = {by_rank: [] for by_rank in orders}
    # One after the other: libtpu has been seen to crash when two threads compile at a time.
    for needs, numbers, programs_on in planned:
        programs = programs_on(meshes[1 if needs.home is not None else topology.devices])
        for by_rank in orders:
            bags = [_bags(model, number, seed, by_rank) for number in numbers]
            found[by_rank].append(programs.needs_with(bags, needs))
    plans = [
        Plan(topology, tuple(tables), True, reserve, by_rank) for by_rank, tables in found.items()
    ]
    plans.sort(key=lambda plan: (plan.possible, -plan.needed))  # stable: if equal, scattered
    return replace(plans[0], other=plans[1]) if len(plans) > 1 else plans[0]


def smallest_plan(
    model: Model,
    asked: Plan,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> Plan | None:
    """Return the plan of the smallest listed topology of the same generation that fits.

    Those that cannot, by what is known without a compiler, are passed over; of the rest, the first
    is taken for which all programs compile and have room.

    Parameters
    ----------
    model : Model
    asked : Plan
        Is not made again.
    seed : int
    tell : callable, optional
        As in `compiled_plan`.

    Returns
    -------
    Plan or None
        None if the model fits on none.
    """
    for candidate in generation_of(asked.topology.generation):
        if candidate == asked.topology:
            plan = asked
        elif not counted_plan(model, candidate, asked.reserve).possible:
            continue
        else:
            plan = compiled_plan(model, candidate, seed, tell, asked.reserve)
        if plan.fits:
            return plan
    return None


def _geometry(described: ModelTable, devices: int) -> Geometry:
    """Return how a table would lie on TPU devices."""
    spec = described.spec
    if spec.dtype.name not in _DTYPES:
        raise ShardcoreTypeError(
            f"table {spec.name!r} must be of {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]} on a TPU, "
            f"got {spec.dtype.name}"
        )
    if spec.exchange != "exact":
        raise ShardcoreValueError(
            f"table {spec.name!r} must have exchange 'exact' on a TPU, got {spec.exchange!r}"
        )
    if spec.placement == "table":
        devices = 1
    layout = spec.layout
    if not described.layout_given:
        layout = default_layout(devices, spec.placement, "tpu")
    try:
        return Geometry(spec.num_rows, spec.dim, devices, spec.placement, _LANES, layout)
    except ShardcoreValueError as error:
        raise ShardcoreValueError(f"table {spec.name!r}: {error}") from error


class _Planned(NamedTuple):
    """A table, or a stack of them, before anything is compiled.

    Attributes
    ----------
    needs : TableNeeds
        As far as they are known.
    numbers : sequence of int
        Of its tables, in the model.
    programs_on : callable
        Given a mesh, returns what compiles for a batch of these tables.
    """

    needs: TableNeeds
    numbers: Sequence[int]
    programs_on: Callable[[Mesh], _Programs | SparseCorePrograms]


def _planned(model: Model, topology: Topology) -> list[_Planned]:
    """Return a model's tables as the backend would lay them."""
    numbers = {described.spec.name: number for number, described in enumerate(model.tables)}
    if model.strategy is None:
        planned = []
        for stack, needs in _stacks(model, topology):
            own = [numbers[member.spec.name] for member in stack.members]
            planned.append(_Planned(needs, own, partial(_Programs, stack)))
        return planned
    if model.strategy != "sparsecore":
        raise ShardcoreValueError(f"strategy must be None or 'sparsecore', got {model.strategy!r}")
    return [
        _Planned(
            needs,
            [numbers[spec.name] for spec in tables.specs],
            partial(SparseCorePrograms, tables),
        )
        for tables, needs in sparsecore_stacks(model, topology)
    ]


def _stacks(model: Model, topology: Topology) -> list[tuple[Stack[int | None], TableNeeds]]:
    """Return a model's tables in stacks, and what is known of their needs."""
    loads = [0] * topology.devices
    tables: list[tuple[TableSpec, Geometry, int | None]] = []
    for described in model.tables:
        spec = described.spec
        geometry = _geometry(described, topology.devices)
        nbytes = table_bytes(geometry, spec.dtype)
        nbytes += slot_bytes(geometry, spec.dtype, spec.optimizer)
        home = None
        if geometry.devices < topology.devices:  # the emptiest device, as the backend does
            home = loads.index(min(loads))
            loads[home] += nbytes
        else:
            loads = [load + nbytes for load in loads]
        tables.append((spec, geometry, home))
    return [(stack, _counted(stack, model.batch, topology.devices)) for stack in stacked(tables)]


def _counted(stack: Stack[int | None], batch: int, devices: int) -> TableNeeds:
    home, geometry, members = stack
    spec = members[0].spec
    dims = [member.spec.dim for member in members]
    own, spread = (
        activation_bytes(batch, over, dims, spec.optimizer is not None)
        for over in (geometry.devices, devices)
    )
    return TableNeeds(
        spec.name,
        spec.placement,
        home,
        "",
        table_bytes(geometry, spec.dtype),
        slot_bytes(geometry, spec.dtype, spec.optimizer),
        own,
        0 if home is None else spread,
        members=tuple(member.spec.name for member in members) if len(members) > 1 else (),
    )


def _bags(model: Model, number: int, seed: int, by_rank: bool) -> FeatureBags:
    """Return a batch's bags of a table."""
    described = model.tables[number]
    rng = np.random.default_rng((seed, number))
    count = model.batch * described.hot
    ids = model.ids.draw(rng, count, described.spec.num_rows, by_rank)
    return FeatureBags(ids, np.arange(0, ids.size + 1, described.hot))


class _Programs:
    """The lookups and updates of a stack, each shape of them compiled once."""

    def __init__(self, stack: Stack[int | None], mesh: Mesh) -> None:
        self._members, self._mesh = stack.members, mesh
        self._spec, self._geometry = stack.members[0].spec, stack.geometry
        self._found: dict[LookupShape | UpdateShape, Compiled | Refused] = {}

    def needs_with(self, features: Sequence[FeatureBags], needs: TableNeeds) -> TableNeeds:
        """Return the needs of the tables, with those of their programs for a batch."""
        optimizer = self._spec.optimizer
        bags = [
            one
            for member, own in zip(self._members, features, strict=True)
            for one in member.bags([own])
        ]
        of_lookup = lookup_shape(self._geometry, bags)
        lookup = self._lookup(of_lookup)
        found = [lookup]
        batch = 0
        if isinstance(lookup, Compiled):
            batch = 2 * (lookup.arguments - needs.table + lookup.outputs)
        if optimizer is not None:
            shape = update_shape(self._geometry, bags, optimizer, self._members)
            update = self._update(shape, optimizer)
            found.append(update)
            if isinstance(update, Compiled):
                batch += update.arguments - needs.table - needs.slots
        return with_programs(needs, of_lookup.exchange, batch, found)

    def _lookup(self, shape: LookupShape) -> Compiled | Refused:
        spec = self._spec
        if shape not in self._found:
            self._found[shape] = compile_lookup(
                self._mesh, self._geometry, spec.dtype, shape, spec.quantization, spec.max_norm
            )
        return self._found[shape]

    def _update(self, shape: UpdateShape, optimizer: Optimizer) -> Compiled | Refused:
        if shape not in self._found:
            self._found[shape] = compile_update(
                self._mesh, self._geometry, self._spec.dtype, shape, optimizer
            )
        return self._found[shape]
