from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable import indexing
from shardcore.variable.indexing import read, row_numbers, select, write
from shardcore.variable.row_store import ArrayRowStore, checked_shards

WHOLE = np.arange(8 * 3 * 4).reshape(8, 3, 4)


class CountingStore(ArrayRowStore):
    """Counts the rows that are read, and the most that were out at a time."""

    def __init__(self, arrays: list[np.ndarray], layout: Layout) -> None:
        super().__init__(arrays, layout)
        self.rows_read = 0
        self.most_at_once = 0

    def gather(self, rows: np.ndarray) -> np.ndarray:
        self._count(len(rows))
        return super().gather(rows)

    def read(self, start: int, stop: int, step: int = 1) -> np.ndarray:
        if step == 1 or self.layout.contiguous:  # others are gathered, and counted there
            self._count(len(range(start, stop, step)))
        return super().read(start, stop, step)

    def _count(self, rows: int) -> None:
        self.rows_read += rows
        self.most_at_once = max(self.most_at_once, rows)


def store_of(whole: np.ndarray, layout: Layout) -> CountingStore:
    arrays = [whole[layout.global_rows(shard)] for shard in range(layout.num_shards)]
    return CountingStore(arrays, layout)


LAYOUTS = [Layout.div(8, 3), Layout.mod(8, 3), Layout.from_sizes([0, 5, 1, 2]), Layout.div(8, 11)]

INDICES: list[Any] = [
    (),
    ...,
    None,
    (None, ...),
    (..., None),
    (..., slice(1, 2), slice(None), slice(None)),  # the ellipsis stands for no axis
    (..., 1, 0, 0),
    3,
    -8,
    np.int8(-1),
    np.array(2),
    (np.array(2), np.array(1)),
    (2, slice(None), [0, 1]),
    (slice(None), 0, [0, 1]),
    ([0, 1], slice(None), [2, 3]),  # separated: the advanced axis comes first
    (slice(1, 7), [[0], [1]], [2, 3]),
    ([[5], [0]], [0, 1]),
    (None, [1, 1], None, 0),
    slice(None, None, -3),
    slice(2, -1),
    slice(6, 1),
    (slice(100, None, -3), slice(None), 1),
    (slice(-100, None, 3),),
    (slice(5, 3), 0),
    [],
    ([], [1]),
    [[7, 0], [0, 7]],
    [True, False] * 4,
    np.zeros(8, bool),
    (np.arange(8) % 3 == 0, 1),
    np.arange(24).reshape(8, 3) % 5 == 0,
    WHOLE % 7 == 0,
    (None, WHOLE % 7 == 0),
    True,
    np.array(False),
    (False, 2),
    (True, [1, 2]),
    (slice(None), np.array([True, False, True])),
    (slice(2, 5), np.arange(12).reshape(3, 4) % 5 == 0),
    np.array([3, 250], np.uint8) % 8,
    range(3),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:60])
def test_read_and_write_are_numpys(
    layout: Layout, block_bytes: int, index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
    store = store_of(WHOLE, layout)
    got, expected = read(store, index), WHOLE[index]
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected, strict=True)

    changed = WHOLE.copy()
    value = -1 - np.arange(np.size(expected)).reshape(np.shape(expected))
    changed[index] = value
    write(store, index, value)
    np.testing.assert_array_equal(store.read(0, 8), changed)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (8, ShardcoreIndexError, "index 8 is out of bounds for axis 0 with size 8"),
        (-9, ShardcoreIndexError, "index -9 is out of bounds for axis 0 with size 8"),
        ((0, 3), ShardcoreIndexError, "index 3 is out of bounds for axis 1 with size 3"),
        ([0, -9], ShardcoreIndexError, "index -9 is out of bounds for axis 0 with size 8"),
        ((slice(0, 0), 7), ShardcoreIndexError, "index 7 is out of bounds for axis 1"),
        ((0, 0, 0, 0), ShardcoreIndexError, "too many indices"),
        ((..., ...), ShardcoreIndexError, "an index can only have a single ellipsis"),
        (np.ones(7, bool), ShardcoreIndexError, "boolean index did not match"),
        (([0, 1], [0, 1, 2]), ShardcoreIndexError, "shape mismatch: indexing arrays"),
        (1.5, ShardcoreIndexError, "boolean arrays are indices, got 1.5"),
        ("row", ShardcoreIndexError, "boolean arrays are indices, got 'row'"),
        (np.timedelta64(1), ShardcoreIndexError, "boolean arrays are indices, got"),
        (np.array([0.5]), ShardcoreIndexError, "boolean arrays are indices, got array([0.5])"),
        ((None, {}), ShardcoreIndexError, "boolean arrays are indices, got {}"),
        (2**70, ShardcoreIndexError, "only integers, slices"),
        (slice(0.5, None), ShardcoreTypeError, "slice indices must be integers"),
        (slice(None, None, 0), ShardcoreValueError, "slice step cannot be zero"),
        ((0, slice(None, None, 0)), ShardcoreValueError, "slice step cannot be zero"),
        ([[0], [0, 1]], ShardcoreValueError, "inhomogeneous shape"),
    ],
)
def test_refused_index(index: Any, error: type[ShardcoreError], message: str) -> None:
    store = store_of(WHOLE, LAYOUTS[0])
    match = r"index is not valid for shape \(8, 3, 4\): .*" + re.escape(message)
    with pytest.raises(error, match=match):
        read(store, index)
    with pytest.raises(error, match=match):
        write(store, index, 0)
    np.testing.assert_array_equal(store.read(0, 8), WHOLE)


@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((3, 5)), ShardcoreValueError, "broadcast"),
        ([[1, 2], [3]], ShardcoreValueError, "inhomogeneous"),
        (1j, ShardcoreTypeError, "not 'complex'"),
        (2**70, ShardcoreValueError, "Python int too large"),
    ],
)
def test_refused_value_changes_nothing(
    value: Any,
    error: type[ShardcoreError],
    message: str,
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
    store = store_of(WHOLE, LAYOUTS[0])
    match = r"value cannot be written to an index of shape \(8, 3, 4\): .*" + re.escape(message)
    with pytest.raises(error, match=match):
        write(store, ..., value)
    np.testing.assert_array_equal(store.read(0, 8), WHOLE)


def test_numpy_drops_leading_axes_of_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays always, of lists only where the index is advanced; in one block or in many."""
    value = WHOLE[None, None, :2]
    for block_bytes in (1, 4 << 20):
        monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
        store = store_of(WHOLE * 0, LAYOUTS[0])
        write(store, slice(0, 2), value)
        write(store, (slice(2, 4), [0, 1, 2]), value.tolist())
        np.testing.assert_array_equal(store.read(0, 4), np.concatenate([WHOLE[:2], WHOLE[:2]]))
        with pytest.raises(ShardcoreValueError, match="value cannot be written"):
            write(store, slice(0, 2), value.tolist())


def test_only_the_rows_asked_for_are_read() -> None:
    whole = np.arange(4000).reshape(1000, 4)
    for index, rows in [
        (7, 1),
        ([3, 999, 3], 3),
        (([3, 999, 3], 0), 2),
        ((slice(10, 20), 1), 10),
        (slice(None, None, 100), 10),
        (np.arange(1000) == 5, 1),
        (whole == 17, 1),
        ((None, ..., 5, slice(None)), 1),
    ]:
        store = store_of(whole, Layout.div(1000, 3))
        np.testing.assert_array_equal(read(store, index), whole[index])
        assert store.rows_read == rows, index


def test_a_sliced_read_works_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", 10 * 4 * 8)
    whole = np.arange(4000).reshape(1000, 4)
    for index in [(slice(None), 1), (slice(None, None, 3), [1, 0]), (None, slice(900, 3, -7))]:
        store = store_of(whole, Layout.div(1000, 7))
        np.testing.assert_array_equal(read(store, index), whole[index])
        assert store.most_at_once == 10
        write(store, index, 0)
        assert store.most_at_once == 10


def test_select_of_a_slice_keeps_a_range() -> None:
    selection = select((10, 3), (None, slice(8, None, -2), [0, 1, 0]), distinct=True)
    assert selection.rows == range(8, -1, -2)
    assert (selection.shape, selection.row_axis) == ((1, 5, 3), 1)


def test_row_numbers_takes_any_integers_of_any_rank() -> None:
    for dtype in (np.uint8, np.int16, np.uint64):
        got = row_numbers(np.array([[1, 2]], dtype), 3, "indices")
        np.testing.assert_array_equal(got, [[1, 2]])
        assert got.dtype == np.int64
    assert row_numbers(2, 3, "indices").shape == ()
    assert row_numbers([], 0, "indices").shape == (0,)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 3], "indices[1] = 3 is outside the table: must be in [0, 3)"),
        ([[0, 0], [-1, 9]], "indices[1, 0] = -1 is outside the table: must be in [0, 3)"),
        (np.int64(7), "indices = 7 is outside the table: must be in [0, 3)"),
    ],
)
def test_row_numbers_out_of_range(indices: Any, message: str) -> None:
    with pytest.raises(ShardcoreIndexError, match=re.escape(message)):
        row_numbers(indices, 3, "indices")


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0.5], "indices must be integers, got dtype float64"),
        (np.array([True]), "indices must be integers, got dtype bool"),
        (None, "indices must be an array, got NoneType"),
        (True, "indices must be an array, got bool"),
    ],
)
def test_row_numbers_of_no_integers(indices: Any, message: str) -> None:
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        row_numbers(indices, 3, "indices")


@pytest.mark.parametrize(
    ("shards", "error", "message"),
    [
        (None, ShardcoreTypeError, "params must be a sequence of arrays, got NoneType"),
        ("ab", ShardcoreTypeError, "params must be a sequence of arrays, got str"),
        (np.zeros((2, 2)), ShardcoreTypeError, "params must be a sequence of arrays, got ndarray"),
        ([], ShardcoreTypeError, "params must hold at least one array, got none"),
        ([np.zeros(2), "x"], ShardcoreTypeError, "params[1] must be an ndarray, got str"),
        ([np.ma.zeros(2)], ShardcoreTypeError, "params[0] must be an ndarray, got MaskedArray"),
        (
            [np.array([None])],
            ShardcoreTypeError,
            "params[0] must hold plain numbers or strings, got dtype object",
        ),
        ([np.array(1.0)], ShardcoreValueError, "params[0] must have at least one axis, got rank 0"),
        (
            [np.zeros(2, np.int64), np.zeros(2, np.int32)],
            ShardcoreValueError,
            "params must have one dtype: params[1] has int32, params[0] has int64",
        ),
        (
            [np.zeros((5, 10)), np.zeros((5, 20))],
            ShardcoreValueError,
            "params must have one row shape: params[1] has (20,), params[0] has (10,)",
        ),
    ],
)
def test_shards_that_do_not_go_together(
    shards: Any, error: type[ShardcoreError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        checked_shards(shards, "params")


@pytest.mark.parametrize("layout", [Layout.div(4, 2), Layout.mod(4, 2)], ids=repr)
def test_a_store_with_a_read_only_shard_is_not_written(layout: Layout) -> None:
    arrays = [np.zeros(2), np.zeros(2)]
    arrays[1].flags.writeable = False
    store = ArrayRowStore(arrays, layout)
    message = re.escape("shards[1] is read-only: the variable cannot be written")
    with pytest.raises(ShardcoreValueError, match=message):
        store.write(0, 4, np.ones(4))
    with pytest.raises(ShardcoreValueError, match=message):
        store.scatter(np.array([0, 3]), np.ones(2))
    assert not arrays[0].any()


@pytest.mark.parametrize(
    "index", [(slice(None), np.array(3)), (slice(None), 3), (slice(None), [3])]
)
@pytest.mark.parametrize("shape", [(1, 8, 2), (8, 2), (1, 8, 1, 2)])
@pytest.mark.parametrize("form", [np.ndarray.tolist, np.asarray])
def test_a_write_in_blocks_takes_the_values_that_numpy_takes(index, shape, form, monkeypatch):
    """Of a list, NumPy drops leading axes of 1 only where it indexes by arrays."""

    def two_at_a_time(rows, store):
        return [slice(start, min(start + 2, rows)) for start in range(0, rows, 2)]

    monkeypatch.setattr(indexing, "row_blocks", two_at_a_time)
    whole = np.arange(80.0).reshape(8, 5, 2)
    shards = [whole[:3].copy(), whole[3:].copy()]
    store = ArrayRowStore(shards, Layout.from_sizes([3, 5]))
    value = form(np.ones(shape))
    try:
        whole[index] = value
    except ValueError:
        with pytest.raises(ShardcoreValueError, match="value cannot be written to an index of"):
            indexing.write(store, index, value)
    else:
        indexing.write(store, index, value)
    np.testing.assert_array_equal(np.concatenate(shards), whole)
