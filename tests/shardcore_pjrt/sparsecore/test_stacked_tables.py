"""Which tables lie in one stack of SparseCores, and how a stack numbers its rows."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry
from shardcore_pjrt.sparsecore.stacked_tables import stacked

from shardcore import optimizers
from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import Constant, Zeros
from shardcore.sharding import Layout

ADAGRAD = optimizers.Adagrad(0.5)


def spec_of(name, rows=50, dim=16, optimizer=ADAGRAD, layout="mod", initializer=None):
    first = Zeros() if initializer is None else initializer
    return TableSpec(name, rows, dim, np.dtype("float32"), first, 0, optimizer, layout)


def groups(specs, devices=2, cores=2):
    return [[spec.name for spec in stack.specs] for stack in stacked(specs, devices, cores)]


@pytest.mark.parametrize(
    "fields",
    [{"rows": 9000}, {"dim": 11}, {"layout": "div"}, {"optimizer": optimizers.Adagrad(0.25)},
     {"initializer": Constant(0.5)}],
    ids=str,
)  # fmt: skip
def test_tables_that_calls_cannot_tell_apart_lie_together(fields):
    specs = [spec_of("a"), spec_of("other", **fields), spec_of("b")]
    assert groups(specs) == [["a", "other", "b"]]
    (stack,) = stacked(specs, 2, 2)
    assert stack.geometry.columns == 16
    assert len(stack.geometry.layouts) == 3


@pytest.mark.parametrize(
    "fields",
    [{"dim": 17}, {"dim": 8}, {"optimizer": None}, {"optimizer": optimizers.SGD(0.5)},
     {"optimizer": optimizers.Adagrad(0.5, clip_weight_max=1.0)}],
    ids=str,
)  # fmt: skip
def test_others_lie_apart_in_cores(fields):
    specs = [spec_of("a"), spec_of("other", **fields), spec_of("b")]
    assert groups(specs) == [["a", "b"], ["other"]]


def test_a_stack_of_cores_that_is_full_is_followed_by_another():
    """Four cores, of fewer than 2**31 - 1 rows each."""
    large = 3 * 2**31
    specs = [spec_of("a", large), spec_of("b", large), spec_of("c"), spec_of("d", large)]
    assert groups(specs) == [["a"], ["b", "c"], ["d"]]
    assert groups([spec_of("a", 2**32), spec_of("b", 2**32 - 64)]) == [["a", "b"]]
    assert groups([spec_of("a", 2**32), spec_of("b", 2**32)]) == [["a"], ["b"]]


def test_a_table_that_no_core_has_room_for():
    told = "table 'b': a SparseCore must hold fewer than 2147483647 rows, got 2147483648"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        stacked([spec_of("a"), spec_of("b", 2**33)], 2, 2)


@pytest.mark.parametrize("cores", [0, 3, 6])
def test_cores_are_a_power_of_two(cores):
    told = f"the SparseCores of a device must be a power of two, got {cores}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        StackGeometry((Layout.mod(50, 2),), cores, 8)


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_numbers_of_a_stack_are_told_apart(devices):
    layouts = (Layout.mod(50, devices), Layout.div(9, devices), Layout.mod(2**31, devices))
    stack = StackGeometry(layouts, 4, 8)
    found = set()
    for table, rows in enumerate((np.arange(50), np.arange(9), np.array([0, 1, 2**31 - 1]))):
        cores, of_core = stack.place(table, rows)
        shard, local = layouts[table].locate(rows)
        np.testing.assert_array_equal(cores, shard * 4 + local % 4)
        np.testing.assert_array_equal(of_core, stack.first_rows[table] + local // 4)
        found |= set(stack.numbers(table, rows).tolist())
    assert len(found) == 50 + 9 + 3
