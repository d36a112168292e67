"""Where a table's rows and columns lie, and which tables are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardcore_pjrt.mesh.geometry import MAX_LOCAL_ROWS, Geometry

from shardcore import Layout
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError


@pytest.mark.parametrize(
    ("dim", "width", "rows_per_line"),
    [
        (1, 1, 128),
        (3, 4, 32),
        (16, 16, 8),
        (17, 32, 4),
        (64, 64, 2),
        (65, 128, 1),
        (96, 128, 1),
        (128, 128, 1),
        (129, 256, 1),
        (200, 256, 1),
    ],
)
def test_rows_are_packed_into_128_lanes(dim, width, rows_per_line):
    table = Geometry(1001, dim, 4, "row", lanes=128)
    assert (table.columns, table.width, table.rows_per_line) == (dim, width, rows_per_line)
    assert table.line_width == width * rows_per_line
    assert table.line_width % 128 == 0
    assert table.lines == -(-251 // rows_per_line)
    assert table.table_shape == (4 * table.lines, table.line_width)
    assert table.row_slot_shape == (4 * table.lines * rows_per_line,)


@pytest.mark.parametrize("dim", [1, 3, 16, 96, 200])
def test_a_line_is_a_row_where_lanes_do_not_matter(dim):
    table = Geometry(10, dim, 3, "row")
    assert (table.width, table.rows_per_line, table.lines, table.local_rows) == (dim, 1, 4, 4)


@pytest.mark.parametrize(
    ("placement", "devices", "table_shape", "row_slot_shape"),
    [
        ("row", 4, (12, 10), (12,)),
        ("column", 4, (10, 12), (10,)),
        ("replicated", 4, (10, 10), (10,)),
        ("table", 1, (10, 10), (10,)),
    ],
)
def test_shapes_by_placement(placement, devices, table_shape, row_slot_shape):
    table = Geometry(10, 10, devices, placement)
    assert table.table_shape == table_shape
    assert table.row_slot_shape == row_slot_shape


def test_columns_are_cut_before_they_are_packed():
    table = Geometry(100, 100, 8, "column", lanes=128)
    assert (table.columns, table.width, table.rows_per_line) == (13, 16, 8)
    assert table.table_shape == (13, 8 * 128)


@given(
    st.integers(0, 5000),
    st.integers(1, 300),
    st.integers(1, 16),
    st.sampled_from(["row", "column", "replicated"]),
    st.sampled_from([1, 8, 128]),
    st.sampled_from(["div", "mod"]),
)
@example(0, 1, 1, "row", 8, "div")
def test_everything_fits(num_rows, dim, devices, placement, lanes, layout_name):
    table = Geometry(num_rows, dim, devices, placement, lanes, layout_name)
    assert table.layout.num_rows == num_rows
    assert table.layout.shard_sizes.max() <= table.local_rows
    assert table.lines >= 1
    assert table.local_rows == table.lines * table.rows_per_line
    held = max(table.layout.shard_sizes.max(), 1)  # a line, of a table without rows too
    assert table.local_rows < held + max(table.rows_per_line, 2)
    assert table.width * table.rows_per_line == table.line_width
    assert table.line_width % lanes == 0
    assert table.columns <= table.width < max(2 * table.columns, table.columns + lanes)
    pieces = table.devices if placement == "column" else 1
    assert dim <= pieces * table.columns < dim + pieces
    assert table.table_shape[0] * table.rows_per_line == table.row_slot_shape[0]


def test_layouts():
    assert Geometry(10, 4, 4, "row").layout == Layout.div(10, 4)
    assert Geometry(10, 4, 4, "row", layout_name="mod").layout == Layout.mod(10, 4)
    uneven = Geometry(10, 4, 4, "row", layout_name=(1, 0, 7, 2))
    assert uneven.layout == Layout.from_sizes([1, 0, 7, 2])
    assert (uneven.local_rows, uneven.table_shape) == (7, (28, 4))
    for placement in ("column", "replicated"):
        assert Geometry(10, 4, 4, placement, layout_name="mod").layout == Layout.div(10, 1)


def test_a_geometry_is_a_value():
    one, other = Geometry(10, 4, 4, "row", 128), Geometry(10, 4, 4, "row", 128)
    assert one.lines == 1
    assert one == other
    assert hash(one) == hash(other)
    assert one != Geometry(10, 4, 4, "row", 128, "mod")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"placement": (3, 7)},
            ShardcoreValueError,
            "placement must be one of row, table, column, replicated, got (3, 7)",
        ),
        ({"num_rows": -1}, ShardcoreValueError, "num_rows must be an integer >= 0, got -1"),
        ({"num_rows": 1.0}, ShardcoreTypeError, "num_rows must be an integer >= 0, got 1.0"),
        ({"dim": 0}, ShardcoreValueError, "dim must be an integer >= 1, got 0"),
        ({"dim": True}, ShardcoreTypeError, "dim must be an integer >= 1, got True"),
        ({"devices": 0}, ShardcoreValueError, "devices must be an integer >= 1, got 0"),
        ({"lanes": 0}, ShardcoreValueError, "lanes must be an integer >= 1, got 0"),
        (
            {"placement": "rows"},
            ShardcoreValueError,
            "placement must be one of row, table, column, replicated, got 'rows'",
        ),
        (
            {"layout_name": "hash"},
            ShardcoreValueError,
            "layout_name must be one of div, mod, got 'hash'",
        ),
        (
            {"placement": "table"},
            ShardcoreValueError,
            "devices must be 1 for placement 'table', got 2",
        ),
        (
            {"num_rows": 2**31},
            ShardcoreValueError,
            "num_rows must be at most 2147483647: devices number rows in int32, got 2147483648",
        ),
        (
            {"num_rows": 2**31 - 1, "placement": "replicated", "lanes": 128},
            ShardcoreValueError,
            f"a device must hold at most {MAX_LOCAL_ROWS} rows, got 2147483648: "
            "num_rows = 2147483647 over 1 shards, 32 to a line",
        ),
    ],
)
def test_refusals(changed, error, message):
    given = {"num_rows": 10, "dim": 4, "devices": 2, "placement": "row"} | changed
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        Geometry(**given)


def test_the_largest_tables_are_taken():
    assert Geometry(2**31 - 1, 4, 2, "row").local_rows == 2**30
    assert Geometry(MAX_LOCAL_ROWS, 1, 1, "row").local_rows == MAX_LOCAL_ROWS
    assert np.int32(MAX_LOCAL_ROWS) + np.int32(2**27 - 1) == 2**31 - 1
