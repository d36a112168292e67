"""Reads by every index, and where TensorFlow's ShardedVariable answers other things, or nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from rows_in_shards import ROWS, sharded

import shardcore as sc
from shardcore.errors import (
    ShardcoreIndexError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable.variable import ShardedVariable, create_variable

# Slicing: rows (1, 2) ... (15, 16)


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        (np.s_[:2], [0, 1]),
        (np.s_[-8:2], [0, 1]),
        (np.s_[-10:2], [0, 1]),
        (np.s_[5:], [5, 6, 7]),
        (np.s_[5:-1], [5, 6]),
        (np.s_[::3], [0, 3, 6]),
        (np.s_[::5], [0, 5]),
        (np.s_[1::6], [1, 7]),
        (np.s_[1:5:6], [1]),
        (np.s_[1::7], [1]),
        (np.s_[2:7], [2, 3, 4, 5, 6]),
        (np.s_[2:7:2], [2, 4, 6]),
        (np.s_[2:7:3], [2, 5]),
        (np.s_[::-1], [7, 6, 5, 4, 3, 2, 1, 0]),
        (np.s_[2::-1], [2, 1, 0]),
        (np.s_[2:-8:-1], [2, 1]),
        (np.s_[2:-10:-1], [2, 1, 0]),
        (np.s_[4::-1], [4, 3, 2, 1, 0]),
        (np.s_[-1:-3:-1], [7, 6]),
        (np.s_[::-5], [7, 2]),
        (np.s_[6::-6], [6, 0]),
        (np.s_[6:5:-6], [6]),
        (np.s_[6::-7], [6]),
        (np.s_[7:1:-1], [7, 6, 5, 4, 3, 2]),
        (np.s_[7:1:-2], [7, 5, 3]),
        (np.s_[7:1:-4], [7, 3]),
        (np.s_[0:0], []),
        (np.s_[5:3], []),
        (np.s_[3:5:-1], []),
        (np.s_[-1:0], []),
        (np.s_[2:-1:-1], []),
    ],
)
def test_slices(v: ShardedVariable, key: slice, rows: list[int]) -> None:
    assert v[key].shape == (len(rows), 2)
    assert v[key].tolist() == [[2 * row + 1, 2 * row + 2] for row in rows]


def test_other_indices(v: ShardedVariable) -> None:
    assert v[:, 0].tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert v[:, 0:1].shape == (8, 1)
    assert v[2].tolist() == [5, 6]
    assert v[6].tolist() == [13, 14]
    assert v[2, 1] == 6
    assert isinstance(v[2, 1], np.int64)
    assert v[-2].tolist() == [13, 14]
    assert v[...].tolist() == ROWS.tolist()
    assert v[..., 0].tolist() == ROWS[:, 0].tolist()
    assert v[0:1, ...].tolist() == [[1, 2]]
    assert v[None, ...].shape == (1, 8, 2)
    assert v[v > 10].tolist() == [11, 12, 13, 14, 15, 16]
    for row in (100, -100):
        with pytest.raises(ShardcoreIndexError, match=f"index {row} is out of bounds"):
            v[row]


# Where TensorFlow's ShardedVariable answers something else than NumPy, or nothing


def test_int_index_of_the_first_row_of_each_shard() -> None:
    v = sharded(np.arange(30), [10, 10, 10])
    assert [v[0], v[10], v[20], v[-30]] == [0, 10, 20, 0]


def test_start_out_of_range_is_clipped_before_stepping(v: ShardedVariable) -> None:
    for key in (np.s_[-100::3], np.s_[-20::7], np.s_[20::-3], np.s_[9::-3]):
        np.testing.assert_array_equal(v[key], ROWS[key], strict=True)


def test_new_axis_before_the_slice_of_rows(v: ShardedVariable) -> None:
    assert v[None, 2:5].tolist() == [[[5, 6], [7, 8], [9, 10]]]
    assert v[None, 2].tolist() == [[5, 6]]


def test_ellipsis_that_stands_for_no_axis(v: ShardedVariable) -> None:
    assert v[..., 1:2, :].tolist() == [[3, 4]]
    assert v[..., 1, 0] == 3


def test_empty_slice_keeps_the_other_indices(v: ShardedVariable) -> None:
    assert v[0:0, 0].shape == (0,)
    assert v[8:, 1:2].shape == (0, 1)


@pytest.mark.parametrize("index", [3, np.int64(3), np.array(3)])
def test_one_element_is_the_scalar_that_an_index_gives(index: Any) -> None:
    """NumPy's own ``take`` has it so: no axis is left."""
    whole = np.arange(12.0)
    shards = [whole[:5], whole[5:]]
    v = ShardedVariable(shards)
    for found in (
        v[index],
        v.sparse_read(index),
        v.gather_nd([int(index)]),
        sc.embedding_lookup(v, index),
        sc.embedding_lookup(whole, index),
        sc.embedding_lookup(shards, index),
        sc.embedding_lookup(whole, index, max_norm=3.0),
    ):
        assert type(found) is np.float64
        assert found == 3.0
    matrix = ShardedVariable([whole.reshape(6, 2)])
    assert type(matrix.gather_nd([int(index), 1])) is np.float64
    # a row of a table is a row still, and a list of one id an array of one
    for found in (matrix.sparse_read(index), sc.embedding_lookup(matrix, index)):
        np.testing.assert_array_equal(found, [6.0, 7.0], strict=True)
    for found in (v.sparse_read([3]), v.gather_nd([[3]]), sc.embedding_lookup(v, [3])):
        np.testing.assert_array_equal(found, [3.0], strict=True)


def test_one_element_that_is_out_of_range_or_no_number() -> None:
    whole = np.arange(12.0)
    message = "ids = 12 is outside the table: must be in [0, 12)"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        sc.embedding_lookup(whole, 12)
    for name in ("float16", "bfloat16", "int8", "U3"):
        v = create_variable((4,), name, num_shards=2)
        assert type(v.sparse_read(1)) is type(v.numpy()[1])


def test_sparse_read_is_in_request_order() -> None:
    v = sharded(np.arange(10), [4, 3, 3])
    assert v.sparse_read([9, 0, 5, 0]).tolist() == [9, 0, 5, 0]
    assert v.sparse_read(np.array([[9], [0]], np.uint8)).tolist() == [[9], [0]]
    with pytest.raises(ShardcoreIndexError, match=r"indices\[1\] = -1 is outside the table"):
        v.sparse_read([0, -1])


@pytest.mark.parametrize(
    "layout", [Layout.from_sizes([1, 0, 2]), Layout.mod(3, 5), Layout.div(3, 5)], ids=repr
)
def test_sparse_updates_of_any_layout(layout: Layout) -> None:
    v = sharded(np.zeros(3), layout)
    assert v.scatter_add([2, 0, 2], [1.0, 2.0, 3.0]).tolist() == [2, 0, 4]
    assert v.sparse_read([2, 1]).tolist() == [4, 0]


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("shape", [(50, 20), (8, 3), (7, 2), (1, 8, 2)])
def test_assign_of_another_size_is_refused(
    method: str, shape: tuple[int, ...], v: ShardedVariable
) -> None:
    message = "must broadcast to the variable's shape (8, 2), got shape " + str(shape)
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        getattr(v, method)(np.ones(shape, int))
    np.testing.assert_array_equal(v, ROWS)


def test_assign_broadcasts_and_casts(v: ShardedVariable) -> None:
    assert v.assign([[1], [2], [3], [4], [5], [6], [7], [8]]) is v
    assert v[6:].tolist() == [[7, 7], [8, 8]]
    assert v.assign(np.int16([3, 4])).sum(axis=0).tolist() == [24, 32]
    assert v.dtype == np.int64


def test_advanced_and_odd_indices(v: ShardedVariable) -> None:
    assert v[[7, 0]].tolist() == [[15, 16], [1, 2]]
    assert v[np.array([[1], [0]]), [0, 1]].tolist() == [[3, 4], [1, 2]]
    assert v[()].tolist() == ROWS.tolist()
    assert v[[True, False] * 4].tolist() == ROWS[::2].tolist()
    assert v[True].shape == (1, 8, 2)
    for index in ("row", 1.0, np.array([1.0])):
        with pytest.raises(ShardcoreIndexError, match="index is not valid for shape"):
            v[index]


def test_item_assignment(v: ShardedVariable) -> None:
    expected = ROWS.copy()
    for index, value in [
        (np.s_[2:7:2], 0),
        (np.s_[::-1, 0], np.arange(8)),
        ([1, 1], [[5, 5], [6, 6]]),  # the last one wins
        (ROWS > 12, -1),
        (np.s_[3, 1], 9.75),  # cast as NumPy does
    ]:
        v[index] = value
        expected[index] = value
    np.testing.assert_array_equal(v, expected)


def test_index_error_tells_the_index_given(v: ShardedVariable) -> None:
    with pytest.raises(ShardcoreIndexError, match="index -9 is out of bounds"):
        v[-9]


def test_in_place_operators_keep_the_container(v: ShardedVariable) -> None:
    same = v
    v += 1
    v *= ROWS
    v -= [1, 2]
    assert v is same
    np.testing.assert_array_equal(v, (ROWS + 1) * ROWS - [1, 2])
    with pytest.raises(TypeError, match="same_kind"):
        v += 0.5
    assert v is same
    np.testing.assert_array_equal(v, (ROWS + 1) * ROWS - [1, 2])


def test_equality_is_element_wise_and_a_variable_has_no_hash(v: ShardedVariable) -> None:
    assert (v == ROWS).all()
    assert isinstance(v == ROWS, np.ndarray)
    with pytest.raises(TypeError, match="unhashable"):
        hash(v)


def test_places_of_several_axes() -> None:
    whole = np.arange(24).reshape(4, 3, 2)
    v = sharded(whole, Layout.mod(4, 3))
    assert v.gather_nd([[3, 2], [0, 0]]).tolist() == [[22, 23], [0, 1]]
    assert v.gather_nd([3, 2, 1]) == 23
    np.testing.assert_array_equal(v.gather_nd([[[1]], [[0]]]), whole[[[1], [0]]])
    assert v.scatter_nd_add([[3, 2, 1], [3, 2, 1]], [1, 2]) is v
    v.scatter_nd_sub([[0, 1], [0, 1]], [[1, 1], [1, 1]])
    v.scatter_nd_update([[1], [1]], [np.zeros((3, 2), int), np.ones((3, 2), int)])
    whole[3, 2, 1] += 3
    whole[0, 1] -= 2
    whole[1] = 1
    np.testing.assert_array_equal(v, whole)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("beyond", [0, 1, 1000])
def test_places_beyond_any_axis_are_refused(axis: int, beyond: int) -> None:
    whole = np.arange(24).reshape(4, 3, 2)
    v = sharded(whole, Layout.mod(4, 3))
    places = np.zeros((3, 3), np.int64)
    places[1] = 3, 2, 1  # the last of all
    places[2, axis] = number = whole.shape[axis] + beyond
    message = (
        f"indices[2, {axis}] = {number} is outside axis {axis}: must be in [0, {whole.shape[axis]})"
    )
    for call in (v.gather_nd, lambda at: v.scatter_nd_update(at, 0)):
        with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
            call(places)
    np.testing.assert_array_equal(v, whole)
