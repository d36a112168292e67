"""The backend's own programs, compiled for TPUs that are not there, and the compiler's reports.

libtpu compiles for any topology on a machine without a chip. That proves that a program lowers, is
sharded as meant and updates its table in place, and how much memory it needs on each device. It
proves neither numbers nor speed. JAX is imported when a function here is called.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shardcore.backend import FeatureBags, QuantizationConfig
from shardcore.errors import UnavailableError
from shardcore.optimizer import Optimizer
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.topologies import Topology
from shardcore_pjrt.platform.installation import require
from shardcore_pjrt.routing.lookup_route import LookupShape, route_lookup
from shardcore_pjrt.routing.strategy import Exchange, choose_exchange, update_exchange
from shardcore_pjrt.routing.update_route import UpdateShape, route_update
from shardcore_pjrt.stacks import Member, Numbering, numbered

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = [
    "Compiled",
    "Refused",
    "broken_promises",
    "compile_lookup",
    "compile_update",
    "compiled",
    "lookup_shape",
    "tpu_mesh",
    "update_shape",
]

_COLLECTIVES: Final = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# The collectives of each exchange, for lookups and for updates.
_LOOKUPS_BY: Final[Mapping[Exchange, str]] = {
    "local": "",
    "one_hot": "",
    "gather": "all-reduce",
    "all_to_all": "all-to-all",
    "columns": "all-to-all",
}
_UPDATES_BY: Final[Mapping[Exchange, str]] = {
    "local": "all-gather",  # of a replicated table: every device needs all gradients
    "gather": "all-gather",
    "all_to_all": "all-to-all",
    "columns": "all-gather",
}
_TO_HOST: Final = ("infeed", "outfeed", "send", "recv")
# An instruction: its name, its type, its operation. Types hold no spaces before a word and "(".
_OPERATION: Final = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = .*? ([a-z][a-z-]*)\(", re.MULTILINE)
_TARGET: Final = re.compile(r'custom_call_target="([^"]*)"')
_HOST_TARGET: Final = re.compile("host|callback|python", re.IGNORECASE)
_AVAILABLE: Final = re.compile(r"exceeds available HBM \(([\d.]+)([KMGT])\)")
_REQUIRED: Final = re.compile(
    r"(?:Used ([\d.]+)([KMGT]) of|total memory required[^()]*\(([\d.]+)([KMGT])\))"
)
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Compiled:
    """A compiled program: the bytes that it needs on each device, its collectives and transfers.

    Attributes
    ----------
    seconds : float
        That lowering and compiling took.
    arguments, outputs : int
        Of its arguments and results, as laid out in memory.
    aliased : int
        The part of the outputs that lies in the memory of the arguments: updated in place.
    temporaries : int
        The most that it needs at a time besides.
    code : int
        Its instructions.
    host : int
        Memory that it needs on the host.
    collectives : mapping of str -> int
        How many there are of each kind of exchange between devices.
    host_transfers : tuple of str
        Operations that would send something to the host, or get it from there.
    """

    seconds: float
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    host: int
    collectives: Mapping[str, int]
    host_transfers: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The compiler's answer that a program does not fit in a device's memory.

    Attributes
    ----------
    seconds : float
    required, available : int
        Bytes; 0 if the message does not give them.
    message : str
    """

    seconds: float
    required: int
    available: int
    message: str


def tpu_mesh(topology: Topology, devices: int | None = None) -> Mesh:
    """Return the mesh of a topology that need not be there.

    Parameters
    ----------
    topology : Topology
    devices : int, optional
        Only the first ones.

    Raises
    ------
    UnavailableError
        If JAX or libtpu is absent, they do not match, or libtpu cannot describe the topology.
    BrokenPluginError
        If JAX cannot be imported.
    """
    require("tpu")
    from jax.experimental import topologies
    from jax.sharding import Mesh

    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if "lockfile" in reason:  # the command it names would not help while the other one runs
            reason += (
                " Another process uses libtpu; where there is no TPU, "
                "ALLOW_MULTIPLE_LIBTPU_LOAD=1 lets both."
            )
        raise UnavailableError(
            f"libtpu cannot describe topology {topology.name}: {reason}"
        ) from error
    return Mesh(np.array(described.devices[:devices]), ("x",))


def lookup_shape(geometry: Geometry, features: Sequence[FeatureBags]) -> LookupShape:
    """Return the shape of the lookup of a batch, as the backend would look it up on a TPU.

    Parameters
    ----------
    geometry : Geometry
    features : sequence of FeatureBags
        Ids in range.

    Examples
    --------
    >>> bags = FeatureBags(np.arange(60), np.arange(0, 61, 4))
    >>> lookup_shape(Geometry(100, 64, 4, "row", 128), [bags]).exchange
    'gather'
    """
    return route_lookup(geometry, features, _exchange(geometry)).shape


def update_shape(
    geometry: Geometry,
    features: Sequence[FeatureBags],
    optimizer: Optimizer,
    members: Sequence[Member] = (),
) -> UpdateShape:
    """Return the shape of the update by a batch, as the backend would do it on a TPU.

    Parameters
    ----------
    geometry : Geometry
    features : sequence of FeatureBags
        Ids in range.
    optimizer : Optimizer
    members : sequence of Member
        The tables of a stack; none: a table alone.
    """
    accumulate = optimizer.accumulate
    exchange = update_exchange(_exchange(geometry), accumulate)
    route = route_update(geometry, features, exchange, accumulate, optimizer.lazy)
    return (numbered(Numbering(members), route) if members else route).shape


def _exchange(geometry: Geometry) -> Exchange:
    return choose_exchange(geometry.devices, geometry.placement, geometry.num_rows, "tpu")


def compile_lookup(
    mesh: Mesh,
    geometry: Geometry,
    dtype: np.dtype[Any],
    shape: LookupShape,
    quantization: QuantizationConfig | None = None,
    max_norm: float | None = None,
) -> Compiled | Refused:
    """Compile the lookup of a table for batches of one shape.

    Parameters
    ----------
    mesh : Mesh
    geometry : Geometry
    dtype : dtype
        The table's.
    shape : LookupShape
    quantization : QuantizationConfig, optional
    max_norm : float, optional
    """
    from shardcore_pjrt.programs.lookup_program import lookup_arguments, lookup_program

    return compiled(
        lambda: lookup_program(mesh, geometry, shape, quantization, dtype, max_norm),
        lookup_arguments(mesh, geometry, dtype, shape),
    )


def compile_update(
    mesh: Mesh,
    geometry: Geometry,
    dtype: np.dtype[Any],
    shape: UpdateShape,
    optimizer: Optimizer,
) -> Compiled | Refused:
    """Compile the update of a table by batches of one shape.

    Parameters
    ----------
    mesh : Mesh
    geometry : Geometry
    dtype : dtype
        The table's.
    shape : UpdateShape
    optimizer : Optimizer
    """
    from shardcore_pjrt.programs.update_program import update_arguments, update_program

    return compiled(
        lambda: update_program(mesh, geometry, shape, optimizer, dtype),
        update_arguments(mesh, geometry, dtype, shape, optimizer),
    )


def compiled(make: Callable[[], Any], arguments: tuple[Any, ...]) -> Compiled | Refused:
    """Compile a program.

    Parameters
    ----------
    make : callable
        Returns the jitted program.
    arguments : tuple
        Its arguments, as shapes.
    """
    import jax

    begin = time.perf_counter()
    lowered = make().lower(*arguments)
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        message = " ".join(str(error).split())
        if "RESOURCE_EXHAUSTED" not in message:
            raise
        return refusal(time.perf_counter() - begin, message)
    seconds = time.perf_counter() - begin
    memory = program.memory_analysis()
    collectives, host_transfers = operations(program.as_text())
    return Compiled(
        seconds,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        memory.host_argument_size_in_bytes
        + memory.host_output_size_in_bytes
        + memory.host_temp_size_in_bytes,
        collectives,
        host_transfers,
    )


def broken_promises(
    program: Compiled | Refused, exchange: Exchange, geometry: Geometry, table: int, slots: int
) -> list[str]:
    """Return the rules that a compiled lookup or update breaks.

    Parameters
    ----------
    program : Compiled or Refused
    exchange : str
        Of the program's shape.
    geometry : Geometry
    table, slots : int
        Bytes on each device that the program updates in place; `slots` is -1 for a lookup, which
        updates nothing.

    Returns
    -------
    list of str
        Empty if the table and its slots are updated where they are, temporaries are smaller than
        the table, the devices exchange what the exchange says and no more, and nothing is sent to
        the host.

    Examples
    --------
    >>> lookup = Compiled(1.0, 600, 100, 0, 512, 9, 0, {"all-gather": 1}, ())
    >>> broken_promises(lookup, "gather", Geometry(16, 8, 2, "row"), 256, -1)
    ['temporaries of 512 bytes, the table has 256', 'exchanges by all-gather, not all-reduce']
    """
    if isinstance(program, Refused):
        return [program.message]
    update = slots >= 0
    broken = []
    in_place = table + slots if update else 0
    if program.aliased != in_place:
        broken.append(f"{program.aliased} bytes updated in place, not {in_place}")
    if program.temporaries >= table:
        broken.append(f"temporaries of {program.temporaries} bytes, the table has {table}")
    expected = (_UPDATES_BY if update else _LOOKUPS_BY)[exchange] if geometry.devices > 1 else ""
    used = ", ".join(program.collectives)
    if used != expected:
        broken.append(f"exchanges by {used or 'nothing'}, not {expected or 'nothing'}")
    if program.host_transfers or program.host:
        transfers = ", ".join(program.host_transfers)
        broken.append(f"transfers to the host: {transfers}; {program.host} bytes on it")
    return broken


def refusal(seconds: float, message: str) -> Refused:
    """Return the refusal that a message of the compiler reports.

    Examples
    --------
    >>> text = "RESOURCE_EXHAUSTED: ... Used 20.0G of 15.75G hbm ... exceeds available HBM (15.75G)"
    >>> refused = refusal(1.0, text)
    >>> refused.required / 2**30, refused.available / 2**30
    (20.0, 15.75)
    """
    available, required = _AVAILABLE.search(message), _REQUIRED.search(message)
    used = [part for part in required.groups() if part] if required else []
    return Refused(
        seconds,
        int(float(used[0]) * _UNITS[used[1]]) if used else 0,
        int(float(available[1]) * _UNITS[available[2]]) if available else 0,
        message,
    )


def operations(text: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the collectives of a compiled program, and its transfers from and to the host.

    Parameters
    ----------
    text : str
        The program in HLO. An operation that is started and awaited counts once.

    Examples
    --------
    >>> operations('''
    ...   %a.1 = (f32[8]{0}, f32[8]{0}) all-gather-start(%p), dimensions={0}
    ...   ROOT %b = f32[8]{0:T(256)} all-gather-done(%a.1)
    ...   %c = f32[] custom-call(%b), custom_call_target="MoveToHost"
    ...   %d = ((f32[2]), token[]) infeed(%t)
    ... ''')
    ({'all-gather': 1}, ('infeed', 'MoveToHost'))
    """
    found = Counter(name.removesuffix("-start") for name in _OPERATION.findall(text))
    transfers = [name for name in _TO_HOST if found[name]]
    transfers += sorted({name for name in _TARGET.findall(text) if _HOST_TARGET.search(name)})
    return {name: found[name] for name in _COLLECTIVES if found[name]}, tuple(transfers)
