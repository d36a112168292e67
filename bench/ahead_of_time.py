"""Compile the programs of the backend `pjrt` for TPUs that are not there, and keep what it takes.

``python -m bench.ahead_of_time`` compiles one optimizer at one dim for every generation;
``--full`` every optimizer at every dim, and one topology of 256 devices, which takes a while. Both
compile a stack of 26 tables, and the same in SparseCores, where jax-tpu-embedding is installed;
``--stacks`` nothing else. Needs ``shardcore[tpu]``, no TPU. Prints a table in Markdown;
``docs/tpu-compile-table.md`` is such a one. The exit code is 1 if a program breaks what the tests
of the backend hold it to.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.ahead_of_time import (
    Compiled,
    Refused,
    broken_promises,
    compile_lookup,
    compile_update,
    compiled,
    lookup_shape,
    tpu_mesh,
    update_shape,
)
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.topologies import topology
from shardcore_pjrt.sparsecore.buffers import make_buffers
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry
from shardcore_pjrt.sparsecore.stacked_tables import stacked as stacked_in_cores
from shardcore_pjrt.sparsecore.updates import OPTIMIZERS
from shardcore_pjrt.stacks import Member, stacked

from shardcore.backend import FeatureBags, TableSpec
from shardcore.errors import ShardcoreTypeError
from shardcore.initializers import Zeros
from shardcore.optimizer import Optimizer
from shardcore.plugins.registry import get_optimizer, optimizers

if TYPE_CHECKING:
    from jax.sharding import Mesh

WEIGHTS: Final = 1 << 26
"""Weights on each device: 256 MiB, more than would fit in its fast memory."""
IDS: Final = 4096
"""Ids of each device's bags, four to a bag."""
SMALL: Final = ("v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
FULL: Final = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
LARGE: Final = "v6e:16x16"
DIMS: Final = (16, 64, 128, 256)
STACKED: Final = 26
"""Tables of a stack."""
STACKED_DIMS: Final = (16, 128)
FLOAT32: Final = np.dtype(np.float32)
HEAD: Final = (
    "| topology | devices | tables | exchange | dim | program | compile s | table MiB | "
    "in place MiB | temporaries MiB |\n|---|---|---|---|---|---|---|---|---|---|"
)


def trained() -> Iterator[tuple[str, Optimizer]]:
    """Yield the optimizers that need no argument, by name."""
    for name in optimizers():
        try:
            yield name, get_optimizer(name)()
        except (TypeError, ShardcoreTypeError):  # a rule that the user has to give
            continue


def line(
    where: str,
    geometry: Geometry | StackGeometry,
    exchange: str,
    name: str,
    program: Any,
    table: int,
    tables: int,
) -> str:
    """Return a program's line of the table."""
    cells: list[Any] = [where, geometry.devices, tables, exchange, geometry.dim, name]
    cells.append(f"{program.seconds:.1f}")
    if isinstance(program, Compiled):
        sizes = (table, program.aliased, program.temporaries)
        cells += [f"{size / 2**20:.1f}" for size in sizes]
    else:
        cells += [f"{table / 2**20:.1f}", "refused", "refused"]
    return f"| {' | '.join(map(str, cells))} |"


Found = tuple[str, str, int, Callable[[], Any]]
"""A program's name, its exchange, the bytes of slots or -1 for a lookup, what compiles it."""


def measure(where: str, dim: int, rules: Sequence[tuple[str, Optimizer]]) -> list[str]:
    """Print the lines of one topology and dim; return what is wrong."""
    mesh = tpu_mesh(topology(where))
    geometry = Geometry(WEIGHTS // dim * mesh.size, dim, mesh.size, "row", 128)
    ids = np.random.default_rng(0).integers(0, geometry.num_rows, IDS * mesh.size)
    bags = [FeatureBags(ids, np.arange(0, ids.size + 1, 4))]
    return measured(where, mesh, geometry, bags, rules, ())


def measure_stack(where: str, dim: int, rules: Sequence[tuple[str, Optimizer]]) -> list[str]:
    """Print the lines of 26 tables that lie together; return what is wrong."""
    mesh = tpu_mesh(topology(where))
    wrong = []
    for name, rule in rules:
        tables = [
            (spec, Geometry(spec.num_rows, dim, mesh.size, "row", 128, "mod"), where)
            for spec in specs_of(dim, mesh.size, rule)
        ]
        (stack,) = stacked(tables)
        bags = [
            one
            for member, own in zip(stack.members, bags_of(tables[0][0], mesh.size), strict=True)
            for one in member.bags([own])
        ]
        wrong += measured(where, mesh, stack.geometry, bags, [(name, rule)], stack.members)
    return wrong


def specs_of(dim: int, devices: int, optimizer: Optimizer) -> list[TableSpec]:
    """Return tables of one size, which have the weights together."""
    rows = WEIGHTS // dim * devices // STACKED
    return [
        TableSpec(f"t{number}", rows, dim, FLOAT32, Zeros(), 0, optimizer, "mod")
        for number in range(STACKED)
    ]


def bags_of(spec: TableSpec, devices: int) -> list[FeatureBags]:
    """Return the bags of one feature for each table, which have the ids together."""
    rng = np.random.default_rng(0)
    count = IDS * devices // STACKED // 4 * 4
    splits = np.arange(0, count + 1, 4)
    return [FeatureBags(rng.integers(0, spec.num_rows, count), splits) for _ in range(STACKED)]


def measured(
    where: str,
    mesh: Mesh,
    geometry: Geometry,
    bags: Sequence[FeatureBags],
    rules: Sequence[tuple[str, Optimizer]],
    members: Sequence[Member],
) -> list[str]:
    """Print the lines of a table or a stack; return what is wrong."""
    table = table_bytes(geometry, FLOAT32)
    of_lookup = lookup_shape(geometry, bags)
    found: list[Found] = [("lookup", of_lookup.exchange, -1,
              lambda: compile_lookup(mesh, geometry, FLOAT32, of_lookup))]  # fmt: skip
    for name, rule in rules:
        shape = update_shape(geometry, bags, rule, members)

        def update(shape: Any = shape, rule: Optimizer = rule) -> Any:
            return compile_update(mesh, geometry, FLOAT32, shape, rule)

        found.append((name, shape.exchange, slot_bytes(geometry, FLOAT32, rule), update))
    wrong = []
    for name, exchange, slots, compiled_one in found:
        program = compiled_one()
        print(line(where, geometry, exchange, name, program, table, len(bags)), flush=True)
        broken = broken_promises(program, exchange, geometry, table, slots)
        wrong += [f"{where}, dim {geometry.dim}, {name}: {one}" for one in broken]
    return wrong


def measure_cores(where: str, dim: int) -> list[str]:
    """Print the lines of 26 tables in SparseCores; return what is wrong."""
    from shardcore_pjrt.sparsecore import programs

    mesh = tpu_mesh(topology(where))
    wrong = []
    for name in OPTIMIZERS:
        rule = dict(trained())[name]
        if name == "Adam":
            rule = get_optimizer(name)(preset="tpu")
        specs = specs_of(dim, mesh.size, rule)
        ((geometry, _, update),) = stacked_in_cores(specs, mesh.size, topology(where).sparsecores)
        assert update is not None
        features = list(enumerate(bags_of(specs[0], mesh.size)))
        shape = make_buffers(geometry, features, update.minibatched).shape
        table = 4 * geometry.rows_per_device * geometry.columns
        found: list[tuple[str, int, Any, Any]] = [
            (name, len(update.slots), programs.update_program(mesh, geometry, shape, update),
             programs.update_arguments(mesh, geometry, shape, update)),
        ]  # fmt: skip
        if name == OPTIMIZERS[0]:
            arguments = programs.lookup_arguments(mesh, geometry, shape)
            look_up = programs.lookup_program(mesh, geometry, shape)
            found.insert(0, ("lookup", -1, look_up, arguments))
        for what, slots, made, given in found:
            program = compiled(lambda made=made: made, given)
            print(line(where, geometry, "cores", what, program, table, STACKED), flush=True)
            broken = broken_on_cores(program, table, slots)
            wrong += [f"{where}, dim {dim}, {what} in SparseCores: {one}" for one in broken]
    return wrong


def broken_on_cores(program: Compiled | Refused, table: int, slots: int) -> list[str]:
    """Return the rules that a program of SparseCores breaks; `slots` is -1 for a lookup.

    The arrays may end with part of a tile of padding.
    """
    if isinstance(program, Refused):
        return [program.message]
    in_place, broken = table * (1 + slots), []
    if not in_place <= program.aliased <= in_place * 1.0001:
        broken.append(f"{program.aliased} bytes updated in place, not {in_place}")
    if program.temporaries >= table / 100:
        broken.append(f"temporaries of {program.temporaries} bytes, the table has {table}")
    if program.host_transfers:
        broken.append(f"transfers to the host: {', '.join(program.host_transfers)}")
    return broken


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return 0, or 1 if a program is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench.ahead_of_time", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every optimizer, dim and 256 devices")
    parser.add_argument("--stacks", action="store_true", help="stacks and SparseCores alone")
    arguments = parser.parse_args(argv)
    begin = time.perf_counter()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "libtpu"))
    print(f"{time.strftime('%Y-%m-%d')}, {versions}")
    print(f"On each device {WEIGHTS} weights of float32, and {IDS} ids.\n")
    print(HEAD)
    wrong = []
    rules = list(trained())
    adagrad = [(name, rule) for name, rule in rules if name == "Adagrad"]
    if arguments.stacks:
        pass
    elif arguments.full:
        for where, dim in itertools.product(FULL, DIMS):
            wrong += measure(where, dim, rules)
        wrong += measure(LARGE, 128, adagrad)
    else:
        for where in SMALL:
            wrong += measure(where, 128, adagrad)
    for where, dim in itertools.product(FULL, STACKED_DIMS):
        wrong += measure_stack(where, dim, adagrad)
    if importlib.util.find_spec("jax_tpu_embedding") is not None:
        for where, dim in itertools.product(FULL, STACKED_DIMS):
            if topology(where).sparsecores:
                wrong += measure_cores(where, dim)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    for one in wrong:
        print(f"NOT AS IT MUST BE: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
