"""`shardcore plan`: what fits, what it needs, and what is to blame."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packaging.specifiers import SpecifierSet
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning import fits, plan
from shardcore_pjrt.planning.ahead_of_time import Compiled, Refused
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.fits import Plan, compiled_plan, counted_plan, smallest_plan
from shardcore_pjrt.planning.needs import TableNeeds
from shardcore_pjrt.planning.topologies import LISTED, Topology, topology
from shardcore_pjrt.platform import installation
from shardcore_pjrt.platform.pins import Pin

import shardcore as sc
from shardcore import cli
from shardcore.errors import (
    ShardcoreTypeError,
    ShardcoreValueError,
    UnavailableError,
)
from shardcore.planning.model_file import example_model, load_model

MIB, GIB = 1 << 20, 1 << 30
SMALL = """
batch = 64
ids = "uniform"
[[table]]
name = "a"
rows = 4096
dim = 128
hot = 4
[[table]]
name = "b"
rows = 1000
dim = 16
optimizer = "SGD"
placement = "table"
[[table]]
name = "c"
rows = 100
dim = 64
optimizer = ""
placement = "replicated"
"""


@pytest.fixture
def no_compiler(monkeypatch):
    """Answer compilations with what the test wants, by the number of devices; count them."""
    asked = []

    def compiles(answer):
        def compile_it(mesh, geometry, dtype, shape, *_):
            asked.append((mesh.size, geometry.num_rows))
            return answer(geometry)

        monkeypatch.setattr(fits, "tpu_mesh", lambda topology, devices: FakeMesh(devices))
        monkeypatch.setattr(fits, "compile_lookup", compile_it)
        monkeypatch.setattr(fits, "compile_update", compile_it)
        return asked

    return compiles


class FakeMesh:
    def __init__(self, size):
        self.size = size


def needs(name, home=None, table=0, slots=0, batch=0, temporaries=0, **others):
    placement = "row" if home is None else "table"
    return TableNeeds(
        name, placement, home, "gather", table, slots, batch, 0, temporaries, **others
    )


def homes(plan):
    return {name: one.home for one in plan.tables for name in one.members or (one.name,)}


# --- arithmetic ----------------------------------------------------------------------------------


def test_bytes_of_tables_and_slots():
    four = Geometry(1 << 20, 64, 4, "row", 128)
    assert table_bytes(four, np.dtype(np.float32)) == 2**20 * 64 * 4 // 4
    assert table_bytes(four, np.dtype(np.float16)) == 2**20 * 64 * 2 // 4
    rowwise = sc.optimizers.RowwiseAdam()
    assert slot_bytes(four, np.dtype(np.float32), rowwise) == 2**18 * (64 + 1) * 4
    assert slot_bytes(four, np.dtype(np.float32), None) == 0
    for slot_dtype, size in ((None, 4), ("table", 2)):  # None: that of sums
        adagrad = sc.optimizers.Adagrad(slot_dtype=slot_dtype)
        assert slot_bytes(four, np.dtype(np.float16), adagrad) == 2**18 * 64 * size
    wide = Geometry(9, 200, 1, "table", 128)  # 9 rows of 256 lanes become 16
    assert table_bytes(wide, np.dtype(np.float32)) == 16 * 256 * 4


def test_what_is_known_without_a_compiler(write):
    counted = counted_plan(load_model(write(SMALL)), topology("v5e:2x2"))
    a, b, c = counted.tables
    assert (a.home, b.home, c.home) == (None, 0, None)
    assert (a.table, a.slots, a.batch) == (MIB // 2, MIB // 2, 3 * 16 * 128 * 4)
    assert (b.table, b.slots, b.batch) == (125 * 512 + 3 * 512, 0, 3 * 64 * 16 * 4)
    assert b.elsewhere == b.batch // 4
    assert (c.slots, c.batch) == (0, 2 * 16 * 64 * 4)
    assert (counted.compiled, counted.possible, counted.fits) == (False, True, False)
    assert counted.fullest == 0
    assert counted.needed == a.total + b.total + c.total
    assert counted.needed_on(3) == a.total + b.elsewhere + c.total


def test_whole_tables_go_to_the_emptiest_devices(write):
    text = "batch = 8\n"
    for name, rows in (("a", 100), ("b", 50), ("c", 10), ("d", 20), ("e", 30)):
        text += f'[[table]]\nname = "{name}"\nrows = {rows}\ndim = 128\nplacement = "table"\n'
    counted = counted_plan(load_model(write(text)), topology("v5e:2x2"))
    assert homes(counted) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 2}
    assert counted.fullest == 0


def test_slots_weigh_on_the_device_of_their_table(write):
    text = "batch = 8\n"
    for name, rows, optimizer in (
        ("a", 100, "Adagrad"),  # as heavy as 200 rows
        *((name, 150, "SGD") for name in "bcd"),
        ("e", 1, "SGD"),
    ):
        text += f'[[table]]\nname = "{name}"\nrows = {rows}\ndim = 128\nplacement = "table"\n'
        text += f'optimizer = "{optimizer}"\n'
    counted = counted_plan(load_model(write(text)), topology("v5e:2x2"))
    assert homes(counted) == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 1}


def test_the_example_on_listed_topologies():
    model = load_model(example_model())
    possible = {name for name, one in LISTED.items() if counted_plan(model, one).possible}
    assert not {"v3:2x2", "v5e:2x2", "v5e:2x4", "v4:2x2x1", "v6e:2x2"} & possible
    assert {"v5e:4x4", "v6e:2x4", "v5p:2x2x1", "tpu7x:2x2x1", "v3:4x4", "v4:2x2x2"} <= possible
    small = counted_plan(model, topology("v5e:2x4"))
    assert 24 * GIB < small.needed < 25 * GIB  # 195 GiB over 8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ('dtype = "float64"', ShardcoreTypeError,
         "table 'a' must be of float32, float16 or bfloat16 on a TPU, got float64"),
        ('exchange = "partial"', ShardcoreValueError,
         "table 'a' must have exchange 'exact' on a TPU, got 'partial'"),
        ("rows = 3000000000", ShardcoreValueError,
         "table 'a': num_rows must be at most 2147483647"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_on_a_tpu(write, change, error, message):
    text = SMALL.replace("rows = 4096", change if "rows" in change else f"rows = 4096\n{change}")
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        counted_plan(load_model(write(text)), topology("v5e:2x2"))


# --- sums and blame ------------------------------------------------------------------------------

CHIP = Topology("v5e:2x2", 4, 1, 1000)


def test_one_program_runs_at_a_time():
    tables = (needs("a", table=300, temporaries=200), needs("b", table=400, temporaries=150))
    both = Plan(CHIP, tables, True)
    assert both.needed == 300 + 400 + 200
    assert both.fits
    full = replace(both, topology=replace(CHIP, hbm=899))
    assert not full.fits
    assert both.largest.name == "b"


def test_the_fullest_device_decides():
    tables = (needs("a", 2, table=700), needs("b", 1, table=600), needs("c", table=350))
    one = Plan(CHIP, tables, True)
    assert [one.needed_on(device) for device in range(4)] == [350, 950, 1050, 350]
    assert (one.fullest, one.needed, one.fits, one.largest.name) == (2, 1050, False, "a")


def test_a_refused_program_is_to_blame():
    refused = Plan(CHIP, (needs("a", table=500), needs("b", table=1, refused="too large")), True)
    assert refused.needed < CHIP.hbm
    assert not refused.fits
    assert refused.largest.name == "b"


# --- compiling, or not ---------------------------------------------------------------------------


def compiled_of(geometry, temporaries=0):
    table = table_bytes(geometry, np.dtype(np.float32))
    return Compiled(0.5, 3 * table, 0, 0, temporaries, 100, 0, {}, ())


def test_nothing_is_compiled_that_cannot_fit(no_compiler):
    asked = no_compiler(compiled_of)
    found = compiled_plan(load_model(example_model()), topology("v5e:2x2"))
    assert (found.compiled, found.fits, asked) == (False, False, [])


def test_two_programs_a_table(no_compiler, write):
    asked = no_compiler(compiled_of)
    told = []
    found = compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"), tell=told.append)
    assert sorted(asked) == sorted([(4, 4096), (4, 4096), (1, 1000), (1, 1000), (4, 100)])
    assert told == ["compiling the programs of 3 tables for v5e:2x2"]
    assert [(one.programs, one.code, one.seconds) for one in found.tables] == [
        (2, 200, 1.0), (2, 200, 1.0), (1, 100, 0.5),
    ]  # fmt: skip
    a = found.tables[0]
    assert a.exchange == "gather"
    assert a.batch == 2 * 2 * a.table + (3 * a.table - a.table - a.slots)


def test_ids_by_rank_are_tried_too(no_compiler, write, monkeypatch):
    """Each shape is compiled once, and a model fits only if it does with both."""
    shapes = []

    def compile_it(mesh, geometry, dtype, shape, *_):
        shapes.append(shape)
        return compiled_of(geometry, 2**24 * shape.capacity)  # 16 MiB for each row of room

    no_compiler(compiled_of)
    monkeypatch.setattr(fits, "compile_lookup", compile_it)
    monkeypatch.setattr(fits, "compile_update", compile_it)
    text = SMALL.replace('"uniform"', '"zipf:1.05"').replace("batch = 64", "batch = 4096")
    text = text.replace("rows = 4096", "rows = 4096000")
    for layout in ("div", None):
        shapes.clear()
        model = load_model(write(text), {} if layout is None else {"layout": layout})
        found = compiled_plan(model, topology("v5e:2x4"))
        assert (found.by_rank, found.other.by_rank) == (layout == "div", layout != "div")
        assert len(set(shapes)) == len(shapes)
        of_a = {one.by_rank: one.tables[0] for one in (found, found.other)}
        told = plan.as_text(model, found, None).splitlines()
        title = "MiB on each device that holds the table, and seconds to compile, "
        assert told[3] == f"{title}with ids scattered"
        room = found.topology.hbm // 2**30
        if layout == "div":
            assert of_a[True].temporaries > 4 * of_a[False].temporaries
            assert (found.possible, found.other.possible) == (False, True)
            assert found.other.fits
            assert not found.fits
            at = told.index("and with ids by rank, where it differs")
            assert [line.split()[0] for line in told[at + 1 : at + 3]] == ["table", "a"]
            assert told[at + 3] == ""
            assert re.fullmatch(
                rf"with ids scattered: [\d.]+ GiB of {room}.75 GiB; "
                rf"with ids by rank: [\d.]+ GiB of {room}.75 GiB",
                told[-5],
            )
            assert told[-3].startswith("does not fit with ids by rank: ")
            assert smallest_plan(model, found).topology.name != "v5e:2x4"
        else:
            assert of_a[True].temporaries <= 1.25 * of_a[False].temporaries
            assert found.fits
            assert smallest_plan(model, found) is not None
    uniform = compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))
    assert uniform.other is None


def test_where_no_layout_is_given_it_is_that_of_the_backend(write):
    text = SMALL.replace('"uniform"', '"uniform"').replace("hot = 4", 'hot = 4\nlayout = "div"')
    for name, given, wanted in (
        ("v5e:2x2", SMALL, ["div", "div", "div"]),
        ("v5e:2x4", SMALL, ["mod", "div", "div"]),
        ("v5e:2x4", text, ["div", "div", "div"]),
    ):
        tables = load_model(write(given)).tables
        devices = topology(name).devices
        assert [fits._geometry(table, devices).layout_name for table in tables] == wanted


def test_a_part_of_each_device_is_reserved(no_compiler, write, capsys):
    no_compiler(compiled_of)
    model = load_model(write(SMALL))
    plain, less = (compiled_plan(model, topology("v5e:2x2"), reserve=size) for size in (0, GIB))
    assert less.needed == plain.needed + GIB
    assert counted_plan(model, topology("v5e:2x2"), 16 * GIB).possible is False
    assert smallest_plan(model, compiled_plan(model, topology("v5e:2x2"), reserve=16 * GIB)) is None
    found = smallest_plan(model, compiled_plan(model, topology("v5e:2x4"), reserve=GIB))
    assert (found.topology.name, found.reserve, found.needed) == ("v5e:2x2", GIB, less.needed)
    path = str(write(SMALL))
    for size, told, code in (
        ("1073741824", "1.00 GiB", 0), ("1.5 GiB", "1.50 GiB", 0), ("512MiB", "512.0 MiB", 0),
        ("0.02TiB", "20.48 GiB", 1),
    ):  # fmt: skip
        assert plan.main(["--topology", "v5e:2x2", "--reserve", size, path]) == code
        assert f", the fullest: reserve {told}, tables " in capsys.readouterr().out
    assert plan.main(["--topology", "v5e:2x2", "--reserve", "1GiB", "--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["reserve"], found["needed"]) == (GIB, less.needed)
    assert found["on_fullest_device"]["reserve"] == GIB
    assert found["needed_by_ids"] == {"scattered": less.needed}
    assert plan.main(["--topology", "v5e:2x2", path]) == 0
    assert "reserve" not in capsys.readouterr().out


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "1e9", "1GB", "1 gib", "GiB", "1 GiB 2"])
def test_sizes_that_are_none(size, capsys):
    assert plan.main(["--topology", "v5e:2x2", f"--reserve={size}"]) == 2
    assert capsys.readouterr().err == (
        "plan: error: reserve must be a count of bytes, or a number of KiB, MiB, GiB or TiB such "
        f"as 512MiB, got {size!r}\n"
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verdict_is_told_before_the_search(monkeypatch, capsys, as_json):
    before = []

    def search(model, asked, seed, tell):
        before.append(capsys.readouterr())

    monkeypatch.setattr(plan, "smallest_plan", search)
    assert plan.main(["--topology", "v5e:2x2"] + ["--json"] * as_json) == 1
    ((out, err),) = before
    verdict = "does not fit: at least 49.29 GiB of 15.75 GiB, so nothing was compiled"
    assert err == (f"plan: {verdict}\n" if as_json else "")
    assert (verdict in out.splitlines()) is not as_json
    rest = capsys.readouterr().out
    assert (
        (json.loads(rest)["fits"] is False)
        if as_json
        else rest == ("smallest listed topology that fits: none of v5e\n")
    )


def test_the_verdict_stands_where_the_search_needs_a_compiler_that_is_not_there(
    monkeypatch, capsys
):
    monkeypatch.setattr(installation, "_importable", lambda module: module != "libtpu")
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    reason = (
        "platform 'tpu' cannot be used here: libtpu, which jax needs for TPUs, is not installed; "
        "pip install 'jax[tpu]<0.13,>=0.10' 'packaging>=24'"
    )
    assert plan.main(["--topology", "v5e:2x2"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"smallest listed topology that fits: not known: {reason}"
    assert plan.main(["--topology", "v5e:2x2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["smallest_topology_unknown"] == reason


@pytest.mark.libtpu
def test_nothing_but_the_plan_is_on_the_error_stream(write):
    """libtpu finds no chip and no server that tells of one, and says so by itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    done = subprocess.run(
        [sys.executable, "-m", "shardcore_pjrt.planning.plan", "--topology", "v5e:2x2",
         str(write(SMALL))],
        capture_output=True, text=True, env=env,
    )  # fmt: skip
    assert done.stderr == "plan: compiling the programs of 3 tables for v5e:2x2\n"
    assert "fits: " in done.stdout


def test_the_smallest_that_fits_is_compiled(no_compiler):
    asked = no_compiler(lambda geometry: compiled_of(geometry, GIB))
    model = load_model(example_model(), {"batch": 64})
    far = compiled_plan(model, topology("v6e:2x2"))
    assert not far.compiled
    smallest = smallest_plan(model, far)
    assert smallest.topology.name == "v6e:4x8"  # each table's lists are said to be four times it
    assert smallest.fits
    sizes = {size for size, _ in asked}
    assert min(sizes) == 8
    assert smallest.topology.devices == max(sizes)


def test_where_it_fits_nowhere(no_compiler, write):
    no_compiler(lambda geometry: Refused(0.5, 0, 0, "RESOURCE_EXHAUSTED: too large"))
    model = load_model(write(SMALL))
    asked = compiled_plan(model, topology("v5e:4x4"))
    assert asked.compiled
    assert not asked.possible
    assert asked.largest.refused == "RESOURCE_EXHAUSTED: too large"
    assert smallest_plan(model, asked) is None


def test_what_was_asked_for_is_not_compiled_again(no_compiler, write):
    asked = no_compiler(compiled_of)
    model = load_model(write(SMALL))
    found = compiled_plan(model, topology("v5e:2x2"))
    before = len(asked)
    assert smallest_plan(model, found) is found
    assert len(asked) == before


# --- tables that lie together --------------------------------------------------------------------

MANY = """
batch = 64
ids = "uniform"
[[table]]
name = "a"
rows = 4096
dim = 16
hot = 4
[[table]]
name = "b"
rows = 1000
dim = 16
layout = "div"
[[table]]
name = "apart"
rows = 90
dim = 16
optimizer = "SGD"
[[table]]
name = "c"
rows = 77
dim = 16
hot = 2
[[table]]
name = "whole"
rows = 50
dim = 16
placement = "table"
"""


@pytest.mark.parametrize("where", ["v5e:2x2", "v5e:2x4"])
def test_stacks_are_those_of_the_backend(write, where):
    """The backend of CPU devices that follow the rules of a TPU, with the same tables."""
    pytest.importorskip("jax", reason="jax is not installed")
    from shardcore_pjrt.backend import PjrtBackend

    model = load_model(write(MANY))
    backend = PjrtBackend("cpu", topology(where).devices, rules="tpu")
    specs = [
        one.spec if one.layout_given else replace(one.spec, layout=backend.default_layout(one.spec))
        for one in model.tables
    ]
    backend.create_tables(specs)
    held = {}
    for name, (member, stack) in backend._tables.items():
        held.setdefault(id(stack), (stack.geometry, []))[1].append((name, member.start.tolist()))
    planned = [
        (stack.geometry, [(one.spec.name, one.start.tolist()) for one in stack.members])
        for stack, _ in fits._stacks(model, topology(where))
    ]
    assert planned == list(held.values())
    assert [[name for name, _ in own] for _, own in planned] == [
        ["a", "b", "c"],
        ["apart"],
        ["whole"],
    ]
    backend.close()


def test_a_stack_has_one_lookup_and_one_update(no_compiler, write, capsys):
    asked = no_compiler(compiled_of)
    path = write(MANY)
    found = compiled_plan(load_model(path), topology("v5e:2x2"))
    stack, apart, whole = found.tables
    assert (stack.members, apart.members, whole.members) == (("a", "b", "c"), (), ())
    assert asked == [(4, 4 * (1024 + 250 + 20))] * 2 + [(4, 90)] * 2 + [(1, 50)] * 2
    assert stack.programs == 2
    assert stack.table == stack.slots == 168 * 128 * 4  # 1294 rows, 8 to a line, 8 lines to a tile
    assert (
        counted_plan(load_model(path), topology("v5e:2x2")).tables[0].batch == 3 * 16 * 16 * 4 * 3
    )
    told = plan.as_text(load_model(path), found, None).splitlines()
    assert told[1] == "5 tables in 3 stacks, 5313 rows, batch 64, ids uniform"
    assert told[5].startswith("a and 2 more  row        all     gather ")
    assert told[6].startswith("apart ")
    assert told[-2].startswith("most is taken by table 'a' and 2 more that lie with it: ")
    assert plan.main(["--topology", "v5e:2x2", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert [one["members"] for one in json.loads(out)["tables"]] == [["a", "b", "c"], [], []]
    assert "plan: compiling the programs of 5 tables in 3 stacks for v5e:2x2\n" in err


def test_the_batch_of_a_stack_is_that_of_all_its_tables(no_compiler, write, monkeypatch):
    """Lists have room for the ids of all; each row of the stack is one of a table's rows."""
    shapes = []

    def compile_it(mesh, geometry, dtype, shape, *_):
        shapes.append(shape)
        return compiled_of(geometry)

    no_compiler(compiled_of)
    monkeypatch.setattr(fits, "compile_lookup", compile_it)
    text = 'batch = 4096\nids = "uniform"\n'
    for name, hot in (("a", 3), ("b", 5)):
        text += f'[[table]]\nname = "{name}"\nrows = 2000\ndim = 16\nhot = {hot}\n'
    compiled_plan(load_model(write(text)), topology("v5e:2x2"))
    (shape,) = shapes
    assert shape.bags == (1024, 1024)
    assert 1024 * (3 + 5) <= shape.occurrences <= 1.25 * 1024 * (3 + 5)
    assert 1.9 * 2000 < shape.capacity <= 1.25 * 2 * 2000  # nearly every row of both is named


# --- the command ---------------------------------------------------------------------------------


def test_text(write):
    model = load_model(write(SMALL))
    held = Plan(
        Topology("v4:2x2x1", 4, 2, GIB),
        (
            needs("a", None, 512 * MIB, 256 * MIB, MIB, 64 * MIB, code=MIB, seconds=2.5),
            needs("b", 3, table=128 * MIB, seconds=1.25),
        ),
        True,
    )  # fmt: skip
    assert plan.as_text(model, held, held) == (
        "v4:2x2x1: 4 chips, 2 devices a chip, 1.00 GiB for programs on each device\n"
        "3 tables, 5196 rows, batch 64, ids uniform\n"
        "\n"
        "MiB on each device that holds the table, and seconds to compile\n"
        "table  placement  device  exchange  table  slots  batch  temporaries  programs  seconds\n"
        "a      row        all     gather    512.0  256.0    1.0         64.0       1.0      2.5\n"
        "b      table      3       gather    128.0    0.0    0.0          0.0       0.0      1.2\n"
        "\n"
        "on device 3, the fullest: tables 640.0 MiB, slots 256.0 MiB, "
        "batch 1.0 MiB, temporaries 64.0 MiB, programs 1.0 MiB\n"
        "fits: 962.0 MiB of 1.00 GiB\n"
        "most is taken by table 'a': 834.0 MiB, 512.0 MiB of rows\n"
        "smallest listed topology that fits: v4:2x2x1, with 962.0 MiB of 1.00 GiB on each device"
    )


@pytest.mark.parametrize(
    ("tables", "compiled", "lines"),
    [
        ((needs("a", table=1200),), True,
         ["does not fit: 0.0 MiB of 0.0 MiB",
          "most is taken by table 'a': 0.0 MiB, 0.0 MiB of rows"]),
        ((needs("a", 0, table=1200),), False,
         ["does not fit: at least 0.0 MiB of 0.0 MiB, so nothing was compiled",
          "most is taken by table 'a': 0.0 MiB, 0.0 MiB of rows; it is placed 'table', "
          "placement 'row' would cut it"]),
        ((needs("a", table=1), needs("b", refused="RESOURCE_EXHAUSTED: no")), True,
         ["does not fit: the compiler refused a program",
          "to blame is table 'b': RESOURCE_EXHAUSTED: no"]),
    ],
)  # fmt: skip
def test_text_of_what_does_not_fit(write, tables, compiled, lines):
    text = plan.as_text(load_model(write(SMALL)), Plan(CHIP, tables, compiled), None)
    last = "smallest listed topology that fits: none of v5e"
    assert text.splitlines()[-3:] == [*lines, last]


def test_without_a_compiler_the_command_tells_what_does_not_fit(no_compiler, capsys):
    asked = no_compiler(compiled_of)
    assert plan.main(["--topology", "v6e:2x2", "--batch", "64", "--json"]) == 1
    assert {size for size, _ in asked} == {8, 16, 32}  # for the smallest that fits
    told = json.loads(capsys.readouterr().out)
    assert (told["fits"], told["compiled"], told["largest_table"]) == (False, False, "cat_0")
    assert told["needed"] > told["available"] == topology("v6e:2x2").hbm
    assert [len(one["members"]) for one in told["tables"]] == [26]
    assert cli.main(["plan", "--topology", "v6e:2x2", "--batch", "64"]) == 1
    assert "does not fit: at least 48.68 GiB of 31.25 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v5e:4x5"], "topology must be one of v3:2x2, 4x4"),
        (["--topology", "v5e:4x4", "none.toml"], "model none.toml cannot be read: "),
        (["--topology", "v5e:4x4", "--seed", "-1"], "seed must be an integer >= 0, got -1"),
        (["--topology", "v5e:4x4", "--ids", "zip"], f"model {example_model()}: ids must be"),
    ],
)  # fmt: skip
def test_messages_of_the_command(arguments, message, capsys):
    assert plan.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"plan: error: {message}")
    assert cli.main(["plan", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"shardcore: error: {message}")


def test_without_libtpu(monkeypatch, write, capsys):
    monkeypatch.setattr(installation, "_importable", lambda module: module != "libtpu")
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    message = (
        "platform 'tpu' cannot be used here: libtpu, which jax needs for TPUs, is not installed; "
        "pip install 'jax[tpu]<0.13,>=0.10' 'packaging>=24'"
    )
    with pytest.raises(UnavailableError, match=f"^{re.escape(message)}$"):
        compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))
    assert plan.main(["--topology", "v5e:2x2", str(write(SMALL))]) == 2
    assert message in capsys.readouterr().err


def test_with_a_libtpu_of_another_jax(monkeypatch, write):
    versions = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.51"}
    pins = {"jax": [Pin("libtpu", (), SpecifierSet("==0.0.42.*"))]}
    monkeypatch.setattr(installation, "_importable", lambda module: True)
    monkeypatch.setattr(installation, "_installed", versions.get)
    monkeypatch.setattr(
        "shardcore_pjrt.platform.pins.pins_of", lambda name, extras: pins.get(name, [])
    )
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    message = "libtpu 0.0.51 is installed, but jax 0.10.2 needs libtpu==0.0.42.*; pip install"
    with pytest.raises(UnavailableError, match=re.escape(message)):
        compiled_plan(load_model(write(SMALL)), topology("v5e:2x2"))


def test_help_tells_the_exit_codes():
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    told = " ".join(parser.format_help().split())
    assert "The exit code is 0 if the model fits, 1 if it does not, 2 after an error." in told


def test_the_command_imports_no_jax_before_it_compiles():
    program = (
        "import sys; from shardcore.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: print('jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


README = Path(__file__).parents[2] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="the documents are not beside these tests")
def test_the_readme_shows_a_plan_as_it_is_told():
    """What is counted is compared; of what only the compiler knows, the shape of the line."""
    page = README.read_text(encoding="utf-8")
    (shown,) = re.findall(r"^    \$ shardcore plan --topology v5e:4x4\n((?:    .*\n)+)", page, re.M)
    model = load_model(example_model())
    counted = replace(counted_plan(model, topology("v5e:4x4")), compiled=True)
    lines = plan.as_text(model, counted, counted).splitlines()
    wanted = [line for line in textwrap.dedent(shown).splitlines() if line != "…"]

    def shape(line):
        line = re.sub(r"by table '\w+'", "by table NAME", line)  # temporaries decide among equals
        return re.sub(r"\d[\d.]* [MG]iB", "SIZE", line)

    assert [shape(line) for line in wanted] == [shape(line) for line in (lines[0], *lines[-4:])]
    assert wanted[0] == lines[0]
    for counts in (r"tables [\d.]+ GiB, slots [\d.]+ GiB", r"\S+ \wiB of rows", r"that fits: \S+"):
        (number,) = re.findall(counts, "\n".join(wanted))
        assert [number] == re.findall(counts, "\n".join(lines))


@pytest.mark.libtpu
def test_a_model_that_fits(write, capsys):
    path = write(SMALL)
    assert cli.main(["plan", "--topology", "v5e:2x2", "--json", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["fits"], told["smallest_topology"]) == (True, "v5e:2x2")
    a, b, c = told["tables"]
    assert [one["programs"] for one in (a, b, c)] == [2, 2, 1]
    assert [one["exchange"] for one in (a, b, c)] == ["gather", "local", "one_hot"]
    counted = counted_plan(load_model(path), topology("v5e:2x2"))
    for one, before in zip(told["tables"], counted.tables, strict=True):
        assert one["batch"] >= before.batch
        assert one["seconds"] > 0
        assert one["code"] > 0


@pytest.mark.libtpu
def test_temporaries_are_what_makes_it_too_large(write, monkeypatch, capsys):
    """The rows fit; what one batch of very long bags needs besides does not."""
    text = 'batch = 1048576\nids = "uniform"\noptimizer = ""\n[[table]]\nname = "a"\n'
    text += 'rows = 20000000\ndim = 128\nhot = 64\nplacement = "replicated"\n'
    assert cli.main(["plan", "--topology", "v5e:2x2", str(write(text))]) == 1
    out = capsys.readouterr().out
    assert "does not fit: the compiler refused a program" in out
    assert "to blame is table 'a': RESOURCE_EXHAUSTED" in out
    assert counted_plan(load_model(write(text)), topology("v5e:2x2")).possible
