"""Whether a model fits on a TPU topology: its programs compiled for it, their memory added up.

A device holds tables and slots all the time. Of a batch it holds the lists of rows, activations and
gradients; while one batch is applied the next one is looked up already, so lookups count twice. One
program runs at a time, so that of their temporaries the largest counts.

Tables, slots and the model's activations are known without a compiler. Where these alone are too
much, nothing is compiled.

Lists and buffers depend on which rows a batch names. So both are tried: the hot rows scattered over
a table, and its rows numbered by rank, the hottest first; a model fits if it fits with both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags
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
from shardcore_pjrt.planning.topologies import Topology, generation_of
from shardcore_pjrt.routing.lookup_route import LookupShape
from shardcore_pjrt.routing.strategy import default_layout
from shardcore_pjrt.routing.update_route import UpdateShape

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["Plan", "TableNeeds", "compiled_plan", "counted_plan", "smallest_plan"]

_LANES: Final = 128
_DTYPES: Final = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class TableNeeds:
    """The bytes that one table needs on each device that holds a part of it.

    Attributes
    ----------
    name, placement : str
    home : int or None
        The one device that holds it; None: all do.
    exchange : str
        Of lookups; "" before they were compiled.
    table, slots : int
    batch : int
        Lists, activations and gradients. Before compilation: activations and gradients.
    elsewhere : int
        Activations and gradients on devices other than `home`.
    temporaries : int
        Of the lookup or the update, whichever needs more; 0 before compilation.
    code : int
        Of both programs; 0 before compilation.
    programs : int
        Compiled.
    seconds : float
        That compiling took.
    refused : str
        The compiler's message if a program of this table alone was too large, else "".
    """

    name: str
    placement: str
    home: int | None
    exchange: str
    table: int
    slots: int
    batch: int
    elsewhere: int
    temporaries: int = 0
    code: int = 0
    programs: int = 0
    seconds: float = 0.0
    refused: str = ""

    @property
    def total(self) -> int:
        """The sum of its needs."""
        return self.table + self.slots + self.batch + self.temporaries + self.code

    def held_on(self, device: int) -> int:
        """Return what a device holds of it besides temporaries."""
        if self.home in (None, device):
            return self.total - self.temporaries
        return self.elsewhere


@dataclass(frozen=True)
class Plan:
    """The needs of a model's tables on a topology.

    Attributes
    ----------
    topology : Topology
    tables : tuple of TableNeeds
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
        would hold 2**31 rows or more.

    Examples
    --------
    >>> from shardcore.planning import example_model, load_model
    >>> from shardcore_pjrt.planning.topologies import topology
    >>> model = load_model(example_model())
    >>> [counted_plan(model, topology(name)).possible for name in ("v5e:2x4", "v5e:4x4")]
    [False, True]
    """
    loads = [0] * topology.devices
    counted = []
    for described in model.tables:
        spec = described.spec
        geometry = _geometry(described, topology.devices)
        table = table_bytes(geometry, spec.dtype)
        slots = slot_bytes(geometry, spec.dtype, spec.optimizer)
        home = None
        if geometry.devices < topology.devices:  # the emptiest device, as the backend does
            home = loads.index(min(loads))
            loads[home] += table + slots
        else:
            loads = [load + table + slots for load in loads]
        copies = 2 if spec.optimizer is None else 3  # two batches' activations, gradients
        own, spread = (
            copies * -(-model.batch // devices) * spec.dim * 4
            for devices in (geometry.devices, topology.devices)
        )
        elsewhere = 0 if home is None else spread
        counted.append(
            TableNeeds(spec.name, spec.placement, home, "", table, slots, own, elsewhere)
        )
    return Plan(topology, tuple(counted), False, reserve)


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
    counted = counted_plan(model, topology, reserve)
    if not counted.possible:
        return counted
    meshes = {
        devices: tpu_mesh(topology, devices)
        for devices in {1 if one.home is not None else topology.devices for one in counted.tables}
    }
    tell(f"compiling the programs of {len(model.tables)} tables for {topology.name}")

    orders = (False, True) if model.ids.ranked else (False,)
    found: dict[bool, list[TableNeeds]] = {by_rank: [] for by_rank in orders}
    # One after the other: libtpu has been seen to crash when two threads compile at a time.
    for number, (described, needs) in enumerate(zip(model.tables, counted.tables, strict=True)):
        mesh = meshes[1 if needs.home is not None else topology.devices]
        programs = _Programs(described, mesh)
        for by_rank in orders:
            rng = np.random.default_rng((seed, number))
            ids = model.ids.draw(rng, model.batch * described.hot, described.spec.num_rows, by_rank)
            found[by_rank].append(programs.needs_with(ids, needs))
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


class _Programs:
    """The lookups and updates of one table, each shape of them compiled once."""

    def __init__(self, described: ModelTable, mesh: Mesh) -> None:
        self._spec, self._hot, self._mesh = described.spec, described.hot, mesh
        self._geometry = _geometry(described, mesh.size)
        self._found: dict[LookupShape | UpdateShape, Compiled | Refused] = {}

    def needs_with(self, ids: NDArray[np.int64], needs: TableNeeds) -> TableNeeds:
        """Return the needs of the table, with those of its programs for a batch of these ids."""
        optimizer = self._spec.optimizer
        bags = [FeatureBags(ids, np.arange(0, ids.size + 1, self._hot))]
        of_lookup = lookup_shape(self._geometry, bags)
        lookup = self._lookup(of_lookup)
        found = [lookup]
        batch = 0
        if isinstance(lookup, Compiled):
            batch = 2 * (lookup.arguments - needs.table + lookup.outputs)
        if optimizer is not None:
            update = self._update(update_shape(self._geometry, bags, optimizer), optimizer)
            found.append(update)
            if isinstance(update, Compiled):
                batch += update.arguments - needs.table - needs.slots
        programs = [one for one in found if isinstance(one, Compiled)]
        return replace(
            needs,
            exchange=of_lookup.exchange,
            batch=max(batch, needs.batch),
            temporaries=max((one.temporaries for one in programs), default=0),
            code=sum(one.code for one in programs),
            programs=len(programs),
            seconds=sum(one.seconds for one in found),
            refused=next((one.message for one in found if isinstance(one, Refused)), ""),
        )

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
