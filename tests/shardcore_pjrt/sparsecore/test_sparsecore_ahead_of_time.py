"""The programs for SparseCores, compiled for the chips that have them, without one at hand.

A table of 2**26 weights on each device does not fit into any fast memory: a copy of it would show.
"""

from __future__ import annotations

import numpy as np
import pytest
from shardcore_pjrt.planning.ahead_of_time import tpu_mesh
from shardcore_pjrt.planning.topologies import topology
from shardcore_pjrt.sparsecore import programs
from shardcore_pjrt.sparsecore.buffers import BufferShape
from shardcore_pjrt.sparsecore.limits import Limits, preferred_unique
from shardcore_pjrt.sparsecore.primitives import CORES
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry
from shardcore_pjrt.sparsecore.updates import row_update

from shardcore import optimizers
from shardcore.backend import TableSpec
from shardcore.initializers import Zeros
from shardcore.sharding import Layout

pytestmark = pytest.mark.libtpu

WEIGHTS, ROOM = 1 << 26, 20_480
CASES = [
    ("v6e:2x2", 16, "Adagrad"),
    ("v6e:2x2", 128, "SGD"),
    ("v6e:2x2", 24, "FTRL"),
    ("v6e:2x2", 1024, "Adam"),
    ("v5p:2x2x1", 16, "AdagradMomentum"),
    ("v5p:2x2x1", 128, "Adam"),
    ("tpu7x:2x2x1", 128, "Adagrad"),
    ("tpu7x:2x2x1", 16, "Adam"),
]


@pytest.fixture(autouse=True)
def package():
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")


def stack(name, dim):
    mesh = tpu_mesh(topology(name))
    cores = CORES[mesh.devices.flat[0].device_kind]
    rows = WEIGHTS // dim * mesh.size
    return mesh, StackGeometry((Layout.mod(rows, mesh.size),), cores, dim)


def in_place(found, expected):
    """Return whether bytes are those of arrays that may end with part of a tile of padding."""
    return expected <= found < expected * 1.0001


def needs(program, arguments):
    """Return bytes updated in place, and of temporaries."""
    memory = program.lower(*arguments).compile().memory_analysis()
    return memory.alias_size_in_bytes, memory.temp_size_in_bytes


@pytest.mark.parametrize(("name", "dim", "optimizer"), CASES)
def test_tables_are_updated_in_place_and_never_copied(name, dim, optimizer):
    mesh, geometry = stack(name, dim)
    table = 4 * geometry.rows_per_device * geometry.columns
    made = getattr(optimizers, optimizer)(preset="tpu")
    spec = TableSpec("t", 9, dim, np.dtype("float32"), Zeros(), 0, made)
    rule = row_update(spec)
    limits = Limits(1024, preferred_unique(geometry.columns))
    bags = min(512, 2**16 // geometry.columns)  # of a core
    shape = BufferShape(bags, ROOM, limits, rule.minibatched)
    aliased, temporaries = needs(
        programs.lookup_program(mesh, geometry, shape),
        programs.lookup_arguments(mesh, geometry, shape),
    )
    assert aliased == 0
    assert temporaries < table / 100
    aliased, temporaries = needs(
        programs.update_program(mesh, geometry, shape, rule),
        programs.update_arguments(mesh, geometry, shape, rule),
    )
    assert in_place(aliased, table * (1 + len(rule.slots)))
    assert temporaries < table / 100


@pytest.mark.parametrize(
    ("name", "dim"), [("v6e:2x2", 16), ("v5p:2x2x1", 24), ("tpu7x:2x2x1", 128)]
)
def test_the_host_reads_and_writes_without_a_copy(name, dim):
    mesh, geometry = stack(name, dim)
    table = 4 * geometry.rows_per_device * geometry.columns
    aliased, temporaries = needs(
        programs.read_program(mesh, geometry), programs.read_arguments(mesh, geometry, 1024)
    )
    assert aliased == 0
    assert temporaries < table / 100
    aliased, temporaries = needs(
        programs.write_program(mesh, geometry), programs.write_arguments(mesh, geometry, 1024)
    )
    assert in_place(aliased, table)
    assert temporaries < table / 100
    memory = programs.filled_program(mesh, geometry, 0.5).lower().compile().memory_analysis()
    assert in_place(memory.output_size_in_bytes, table)
    assert memory.temp_size_in_bytes < table / 100
