"""What is counted of a plan, and what is to blame where it does not fit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from planned_models import SMALL, homes, needs
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.planning.device_bytes import slot_bytes, table_bytes
from shardcore_pjrt.planning.fits import Plan, counted_plan
from shardcore_pjrt.planning.topologies import LISTED, Topology, topology

import shardcore as sc
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.planning.model_file import example_model, load_model

MIB = 1 << 20
GIB = 1 << 30


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
