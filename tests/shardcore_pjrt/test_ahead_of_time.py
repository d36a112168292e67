"""The backend's programs, compiled for TPUs that are not there.

Every optimizer meets every dim and every topology in at least one case, and these meet each other:
the table and its slots are updated in place, temporaries stay below the table, devices exchange
what the strategy says, and nothing is sent to the host. ``python -m bench.ahead_of_time --full``
compiles all combinations.
"""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np
import pytest
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.ahead_of_time import (
    Compiled,
    Refused,
    broken_promises,
    compile_lookup,
    compile_update,
    lookup_shape,
    operations,
    refusal,
    tpu_mesh,
    update_shape,
)
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.topologies import Topology, topology

import shardcore as sc
from shardcore.backend.messages import FeatureBags
from shardcore.dtypes import as_dtype
from shardcore.errors import UnavailableError
from shardcore.plugins import registry

# On each device. No fast memory holds so many weights, even at 2 bytes: no copy hides there.
WEIGHTS, IDS = 1 << 26, 4096
DIMS = (16, 64, 128, 256)
TOPOLOGIES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
DTYPES = ("float32", "bfloat16")
OPTIMIZERS = tuple(
    name
    for name in registry.optimizers()
    if name != "Custom"
    and getattr(sc.optimizers, name).__module__.split(".")[0] == "shardcore_optimizers"
)


def pairwise(*factors):
    """Return few combinations in which any two values of any two factors meet."""

    def pairs(case):
        return set(itertools.combinations(enumerate(case), 2))

    every = list(itertools.product(*factors))
    left = set().union(*map(pairs, every))
    chosen = []
    while left:
        best = max(every, key=lambda case: len(pairs(case) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


CASES = pairwise(OPTIMIZERS, DIMS, TOPOLOGIES)
# Rounding by chance takes long to compile, and is the same for all optimizers.
BFLOAT16_CASES = list(zip(OPTIMIZERS[::3], DIMS, TOPOLOGIES, strict=False))


def test_the_sample_is_pairwise():
    assert len(CASES) == len(set(CASES)) < 60
    factors = (OPTIMIZERS, DIMS, TOPOLOGIES)
    for one, other in itertools.combinations(range(3), 2):
        met = {(case[one], case[other]) for case in CASES}
        assert met == set(itertools.product(factors[one], factors[other]))
    assert len(OPTIMIZERS) >= 11
    assert {case[1] for case in BFLOAT16_CASES} == set(DIMS)


@cache
def batch(num_rows, devices, ids=IDS):
    named = np.random.default_rng(0).integers(0, num_rows, ids * devices)
    return (FeatureBags(named, np.arange(0, named.size + 1, 4)),)


def placed(where, dim, placement="row", rows=None):
    mesh = tpu_mesh(topology(where), 1 if placement == "table" else None)
    if rows is None:
        rows = WEIGHTS // dim * (mesh.size if placement in ("row", "column") else 1)
    return mesh, Geometry(rows, dim, mesh.size, placement, 128)


def lookup_faults(where, dim, dtype, placement="row", rows=None, ids=IDS):
    mesh, geometry = placed(where, dim, placement, rows)
    dtype = as_dtype(dtype)
    shape = lookup_shape(geometry, batch(geometry.num_rows, mesh.size, ids))
    program = compile_lookup(mesh, geometry, dtype, shape)
    table = table_bytes(geometry, dtype)
    return shape.exchange, program, broken_promises(program, shape.exchange, geometry, table, -1)


def update_faults(optimizer, dim, where, dtype, placement="row", rows=None, ids=IDS):
    mesh, geometry = placed(where, dim, placement, rows)
    dtype = as_dtype(dtype)
    shape = update_shape(geometry, batch(geometry.num_rows, mesh.size, ids), optimizer)
    program = compile_update(mesh, geometry, dtype, shape, optimizer)
    table, slots = table_bytes(geometry, dtype), slot_bytes(geometry, dtype, optimizer)
    faults = broken_promises(program, shape.exchange, geometry, table, slots)
    return shape.exchange, program, faults


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("name", "dim", "where", "dtype"),
    [(*case, "float32") for case in CASES] + [(*case, "bfloat16") for case in BFLOAT16_CASES],
    ids=str,
)
def test_updates(name, dim, where, dtype):
    optimizer = getattr(sc.optimizers, name)()
    exchange, program, faults = update_faults(optimizer, dim, where, dtype)
    assert faults == []
    assert exchange == ("all_to_all" if where.startswith("tpu7x") else "gather")
    assert program.arguments > program.aliased > 0


@pytest.mark.libtpu
@pytest.mark.parametrize(("dim", "where", "dtype"), pairwise(DIMS, TOPOLOGIES, DTYPES), ids=str)
def test_lookups(dim, where, dtype):
    exchange, _, faults = lookup_faults(where, dim, dtype)
    assert faults == []
    assert exchange == ("all_to_all" if where.startswith("tpu7x") else "gather")


@pytest.mark.libtpu
@pytest.mark.parametrize(
    ("placement", "dim", "rows", "exchange"),
    [("table", 64, None, "local"), ("replicated", 64, None, "local"),
     ("column", 512, None, "columns"), ("replicated", 128, 128, "one_hot")],
)  # fmt: skip
def test_other_placements(placement, dim, rows, exchange):
    # A table of 128 rows is smaller than what its own batch needs.
    ids = 64 if rows else IDS
    found, program, faults = lookup_faults("v6e:2x2", dim, "float32", placement, rows, ids)
    assert (found, faults) == (exchange, [])
    found, program, faults = update_faults(
        sc.optimizers.Adagrad(), dim, "v6e:2x2", "float32", placement, rows, ids
    )
    assert (found, faults) == ("local" if exchange == "one_hot" else exchange, [])
    assert program.host_transfers == ()


@pytest.mark.libtpu
@pytest.mark.parametrize("rows", [1, 3, 9, 150, 1000, 1025, (1 << 14) + 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_of_bytes_is_the_layout_of_the_compiler(rows, dtype):
    optimizer = sc.optimizers.RowwiseAdam()  # a slot of each kind
    mesh, geometry = placed("v5e:2x2", 100, "table", rows)
    dtype = as_dtype(dtype)
    shape = update_shape(geometry, batch(rows, 1, 64), optimizer)
    program = compile_update(mesh, geometry, dtype, shape, optimizer)
    expected = table_bytes(geometry, dtype) + slot_bytes(geometry, dtype, optimizer)
    assert program.aliased == expected


@pytest.mark.libtpu
def test_a_table_that_is_too_large_is_an_answer():
    _, program, faults = lookup_faults("v5e:2x2", 128, "float32", "replicated", 1 << 26)
    assert isinstance(program, Refused)
    assert program.available == topology("v5e:2x2").hbm
    assert program.required >= 32 << 30
    assert faults == [program.message]


@pytest.mark.libtpu
def test_a_topology_that_libtpu_does_not_know():
    with pytest.raises(UnavailableError, match=r"^libtpu cannot describe topology v9:2x2: .*v9"):
        tpu_mesh(Topology("v9:2x2", 4, 1, 1 << 30))


@pytest.mark.libtpu
def test_a_libtpu_that_another_process_uses(monkeypatch):
    from jax.experimental import topologies

    def locked(**_):
        raise RuntimeError("ABORTED: Internal error when accessing libtpu multi-process lockfile.")

    monkeypatch.setattr(topologies, "get_topology_desc", locked)
    message = "lockfile. Another process uses libtpu; where there is no TPU, ALLOW_MULTIPLE_LIBTPU"
    with pytest.raises(UnavailableError, match=re.escape(message)):
        tpu_mesh(topology("v5e:2x2"))


# --- what is read from the compiler's words, without a compiler ----------------------------------

GOOD = Compiled(1.0, 900, 800, 768, 100, 9, 0, {"all-gather": 2}, ())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"aliased": 512}, "512 bytes updated in place, not 768"),
        ({"temporaries": 256}, "temporaries of 256 bytes, the table has 256"),
        ({"collectives": {}}, "exchanges by nothing, not all-gather"),
        ({"collectives": {"all-gather": 1, "all-reduce": 1}},
         "exchanges by all-gather, all-reduce, not all-gather"),
        ({"host_transfers": ("outfeed",)}, "transfers to the host: outfeed; 0 bytes on it"),
        ({"host": 8}, "transfers to the host: ; 8 bytes on it"),
    ],
)  # fmt: skip
def test_broken_promises_of_updates(change, fault):
    program = Compiled(**{**vars(GOOD), **change})
    geometry = Geometry(64, 8, 4, "row")
    found = broken_promises(program, "gather", geometry, 256, 512)
    assert found == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("placement", "exchange", "lookup", "update"),
    [("row", "gather", "all-reduce", "all-gather"),
     ("row", "all_to_all", "all-to-all", "all-to-all"),
     ("column", "columns", "all-to-all", "all-gather"),
     ("replicated", "local", "", "all-gather")],
)  # fmt: skip
def test_expected_collectives(placement, exchange, lookup, update):
    geometry = Geometry(64, 8, 4, placement)
    for collective, slots in ((lookup, -1), (update, 256)):
        program = Compiled(
            1.0,
            900,
            800,
            0 if slots < 0 else 512,
            100,
            9,
            0,
            {collective: 1} if collective else {},
            (),
        )
        assert broken_promises(program, exchange, geometry, 256, slots) == []
        wrong = Compiled(**{**vars(program), "collectives": {"reduce-scatter": 1}})
        assert broken_promises(wrong, exchange, geometry, 256, slots) == [
            f"exchanges by reduce-scatter, not {collective or 'nothing'}"
        ]


@pytest.mark.parametrize(
    ("line", "collectives", "transfers"),
    [
        ("  %r = f32[2]{0} all-reduce(%a), to_apply=%add", {"all-reduce": 1}, ()),
        ("  ROOT %r = (f32[8]{0:T(256)}, u32[]) all-to-all-start(%a)", {"all-to-all": 1}, ()),
        ("  %r = f32[8] all-to-all-done(%a)", {}, ()),
        ("  %r = f32[8] reduce-scatter(%a)", {"reduce-scatter": 1}, ()),
        ("  %r = ((f32[2]{0}, pred[]), token[]) infeed(%t)", {}, ("infeed",)),
        ("  %r = token[] outfeed(%a, %t)", {}, ("outfeed",)),
        ("  %s = (f32[2], u32[], token[]) send(%a, %t), channel_id=1", {}, ("send",)),
        ("  %s = (f32[2], u32[], token[]) recv(%t), channel_id=1", {}, ("recv",)),
        ('  %c = f32[2] custom-call(%a), custom_call_target="xla_python_cpu_callback"', {},
         ("xla_python_cpu_callback",)),
        ('  %c = f32[2] custom-call(%a), custom_call_target="MoveToHost", x={}', {},
         ("MoveToHost",)),
        ('  %c = f32[2] custom-call(%a), custom_call_target="tpu_custom_call"', {}, ()),
        ("  %all-reduce.1 = f32[2] add(%a, %b)", {}, ()),
    ],
)  # fmt: skip
def test_operations_of_a_program(line, collectives, transfers):
    assert operations(f"HloModule m\n\nENTRY %main {{\n{line}\n}}") == (collectives, transfers)


@pytest.mark.parametrize(
    ("words", "required", "available"),
    [
        ("Ran out of memory. Used 24.65G of 15.75G hbm. Exceeded hbm capacity by 8.9G.",
         24.65 * 2**30, 0),
        ("the total memory required for HLO temporaries (256.00G) exceeds available HBM (7.48G).",
         256 * 2**30, 7.48 * 2**30),
        ("the total memory required (1.5T) exceeds available HBM (512.00M).",
         1.5 * 2**40, 512 * 2**20),
        ("something else", 0, 0),
    ],
)  # fmt: skip
def test_the_words_of_a_refusal(words, required, available):
    told = refusal(0.5, words)
    assert (told.seconds, told.message) == (0.5, words)
    assert (told.required, told.available) == (int(required), int(available))
