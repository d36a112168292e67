"""Compile the programs of the backend `pjrt` for TPUs that are not there, and keep what it takes.

``python -m bench.ahead_of_time`` compiles one optimizer at one dim for every generation;
``--full`` every optimizer at every dim, and one topology of 256 devices, which takes a while. Needs
``shardcore[tpu]``, no TPU. Prints a table in Markdown; ``docs/tpu-compile-table.md`` is such a one.
The exit code is 1 if a program breaks what the tests of the backend hold it to.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.ahead_of_time import (
    Compiled,
    broken_promises,
    compile_lookup,
    compile_update,
    lookup_shape,
    tpu_mesh,
    update_shape,
)
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.topologies import topology

from shardcore.backend import FeatureBags
from shardcore.errors import ShardcoreTypeError
from shardcore.optimizer import Optimizer
from shardcore.plugins.registry import get_optimizer, optimizers

WEIGHTS: Final = 1 << 26
"""Weights on each device: 256 MiB, more than would fit in its fast memory."""
IDS: Final = 4096
"""Ids of each device's bags, four to a bag."""
SMALL: Final = ("v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
FULL: Final = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
LARGE: Final = "v6e:16x16"
DIMS: Final = (16, 64, 128, 256)
FLOAT32: Final = np.dtype(np.float32)
HEAD: Final = (
    "| topology | devices | exchange | dim | program | compile s | table MiB | in place MiB | "
    "temporaries MiB |\n|---|---|---|---|---|---|---|---|---|"
)


def trained() -> Iterator[tuple[str, Optimizer]]:
    """Yield the optimizers that need no argument, by name."""
    for name in optimizers():
        try:
            yield name, get_optimizer(name)()
        except (TypeError, ShardcoreTypeError):  # a rule that the user has to give
            continue


def line(where: str, geometry: Geometry, exchange: str, name: str, program: Any, table: int) -> str:
    """Return a program's line of the table."""
    cells: list[Any] = [where, geometry.devices, exchange, geometry.dim, name]
    cells.append(f"{program.seconds:.1f}")
    if isinstance(program, Compiled):
        sizes = (table, program.aliased, program.temporaries)
        cells += [f"{size / 2**20:.1f}" for size in sizes]
    else:
        cells += [f"{table / 2**20:.1f}", "refused", "refused"]
    return f"| {' | '.join(map(str, cells))} |"


def measure(where: str, dim: int, rules: Sequence[tuple[str, Optimizer]]) -> list[str]:
    """Print the lines of one topology and dim; return what is wrong."""
    mesh = tpu_mesh(topology(where))
    geometry = Geometry(WEIGHTS // dim * mesh.size, dim, mesh.size, "row", 128)
    ids = np.random.default_rng(0).integers(0, geometry.num_rows, IDS * mesh.size)
    bags = [FeatureBags(ids, np.arange(0, ids.size + 1, 4))]
    table = table_bytes(geometry, FLOAT32)
    of_lookup = lookup_shape(geometry, bags)
    found = [("lookup", of_lookup.exchange, -1,
              lambda: compile_lookup(mesh, geometry, FLOAT32, of_lookup))]  # fmt: skip
    for name, rule in rules:
        shape = update_shape(geometry, bags, rule)

        def update(shape: Any = shape, rule: Optimizer = rule) -> Any:
            return compile_update(mesh, geometry, FLOAT32, shape, rule)

        found.append((name, shape.exchange, slot_bytes(geometry, FLOAT32, rule), update))
    wrong = []
    for name, exchange, slots, compiled in found:
        program = compiled()
        print(line(where, geometry, exchange, name, program, table), flush=True)
        broken = broken_promises(program, exchange, geometry, table, slots)
        wrong += [f"{where}, dim {dim}, {name}: {one}" for one in broken]
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return 0, or 1 if a program is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m bench.ahead_of_time", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every optimizer, dim and 256 devices")
    arguments = parser.parse_args(argv)
    begin = time.perf_counter()
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "libtpu"))
    print(f"{time.strftime('%Y-%m-%d')}, {versions}")
    print(f"On each device {WEIGHTS} weights of float32, and {IDS} ids.\n")
    print(HEAD)
    wrong = []
    rules = list(trained())
    adagrad = [(name, rule) for name, rule in rules if name == "Adagrad"]
    if arguments.full:
        for where, dim in itertools.product(FULL, DIMS):
            wrong += measure(where, dim, rules)
        wrong += measure(LARGE, 128, adagrad)
    else:
        for where in SMALL:
            wrong += measure(where, 128, adagrad)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    for one in wrong:
        print(f"NOT AS IT MUST BE: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
