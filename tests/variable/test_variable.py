from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardcore as sc
from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.initializers.constants import RowId
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.sharding.layout import Layout
from shardcore.sharding.partitioners import FixedShardsPartitioner, MinSizePartitioner
from shardcore.variable import indexing
from shardcore.variable.row_store import ArrayRowStore
from shardcore.variable.variable import ShardedVariable, create_variable

ROWS = np.arange(1, 17).reshape(8, 2)
LAYOUTS = [Layout.from_sizes([3, 3, 2]), Layout.mod(8, 3), Layout.from_sizes([0, 1, 7, 0])]


def sharded(whole: Any, layout: Layout | list[int]) -> ShardedVariable:
    if isinstance(layout, list):
        layout = Layout.from_sizes(layout)
    whole = np.asarray(whole)
    arrays = [whole[layout.global_rows(shard)].copy() for shard in range(layout.num_shards)]
    return ShardedVariable(arrays, layout=layout)


@pytest.fixture(params=LAYOUTS, ids=repr)
def v(request: pytest.FixtureRequest) -> ShardedVariable:
    return sharded(ROWS, request.param)


# What it is


def test_attributes() -> None:
    shards = [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32)]
    v = ShardedVariable(shards, name="users")
    assert (v.shape, v.ndim, v.size, v.nbytes, len(v)) == ((3, 3), 2, 9, 36, 3)
    assert (v.name, v.dtype) == ("users", np.dtype("float32"))
    assert v.layout == Layout.from_sizes([2, 1])
    assert [a is b for a, b in zip(v.shards, shards, strict=True)] == [True, True]
    assert [a is b for a, b in zip(v, shards, strict=True)] == [True, True]
    assert repr(v) == (
        "ShardedVariable(name='users', shape=(3, 3), dtype=float32, "
        "layout=Layout.from_sizes([2, 1]))"
    )


def test_shards_are_adopted_and_reads_are_copies() -> None:
    shards = [np.zeros(2), np.zeros(1)]
    v = ShardedVariable(shards)
    v[1] = 5
    assert shards[0].tolist() == [0, 5]
    for read in (v[...], v[0:2], v[[0, 1]], v.numpy(), np.asarray(v), v.sparse_read([0]), v.T):
        read[...] = -1
    assert v.tolist() == [0, 5, 0]


def test_spec_is_equal_and_hashable_for_equal_shardings() -> None:
    a, b = (sharded(np.zeros((4, 2)), [2, 2]) for _ in range(2))
    assert a.spec == b.spec
    assert hash(a.spec) == hash(b.spec)
    assert a.spec.shape == (4, 2)
    others = [
        sharded(np.zeros((4, 2)), [1, 3]),
        sharded(np.zeros((4, 3)), [2, 2]),
        sharded(np.zeros((4, 2), np.float32), [2, 2]),
        sharded(np.zeros((4, 2)), Layout.mod(4, 2)),
    ]
    assert all(other.spec != a.spec for other in others)
    with pytest.raises(AttributeError):
        a.spec.row_shape = (3,)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shards": None}, ShardcoreTypeError, "shards must be a sequence of arrays, got NoneType"),
        ({"shards": [[1.0, 2.0]]}, ShardcoreTypeError, "shards[0] must be an ndarray, got list"),
        (
            {"shards": [np.zeros(2)], "layout": "mod"},
            ShardcoreTypeError,
            "layout must be a Layout, got 'mod'",
        ),
        (
            {"shards": [np.zeros(1), np.zeros(2)], "layout": Layout.mod(3, 2)},
            ShardcoreValueError,
            "layout must match the shards' sizes [1, 2], got Layout.mod(3, 2)",
        ),
        ({"shards": [np.zeros(2)], "name": 3}, ShardcoreTypeError, "name must be a string, got 3"),
    ],
)
def test_refused_construction(
    arguments: dict[str, Any], error: type[ShardcoreError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ShardedVariable(**arguments)


def test_memory_given_twice_is_refused() -> None:
    base = np.zeros((6, 2))
    message = re.escape("shards[0] and shards[2] must not share memory")
    with pytest.raises(ShardcoreValueError, match=message):
        ShardedVariable([base[:3], np.zeros((1, 2)), base[2:5]])
    with pytest.raises(ShardcoreValueError, match="must not share memory"):
        ShardedVariable([base, base])
    # Interleaved, but apart.
    v = ShardedVariable([base[0::2], base[1::2]], layout=Layout.mod(6, 2))
    v[...] = np.arange(12).reshape(6, 2)
    assert base.tolist() == np.arange(12).reshape(6, 2).tolist()


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v)), lambda v: v.copy()]
)
def test_clones_are_independent(clone: Callable[[Any], Any], v: ShardedVariable) -> None:
    other = clone(v)
    assert isinstance(other, ShardedVariable)
    assert (other.spec, other.name) == (v.spec, v.name)
    other[...] = 0
    np.testing.assert_array_equal(v, ROWS)


class ForeignStore:
    """A table somewhere else: rows in a dictionary, no arrays to adopt."""

    def __init__(self, whole: np.ndarray, layout: Layout) -> None:
        self.layout, self.row_shape, self.dtype = layout, whole.shape[1:], whole.dtype
        self.rows = {row: whole[row].copy() for row in range(len(whole))}

    def gather(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), *self.row_shape), self.dtype)
        for i, row in enumerate(rows.tolist()):
            out[i] = self.rows[row]
        return out

    def scatter(self, rows: np.ndarray, values: np.ndarray) -> None:
        self.rows.update(zip(rows.tolist(), values.copy(), strict=True))

    def read(self, start: int, stop: int, step: int = 1) -> np.ndarray:
        return self.gather(np.arange(start, stop, step))

    def write(self, start: int, stop: int, values: np.ndarray) -> None:
        self.scatter(np.arange(start, stop), values)

    def combine(self, bags: Any, out: np.ndarray) -> bool:
        return False

    def all_at_once(self, write: Callable[[Any], None]) -> None:
        write(self)

    def shards(self) -> list[np.ndarray]:
        count = self.layout.num_shards
        return [self.gather(self.layout.global_rows(shard)) for shard in range(count)]


def test_a_view_over_a_store_reads_and_writes_it() -> None:
    store = ForeignStore(ROWS, Layout.mod(8, 3))
    v = ShardedVariable.from_store(store, "table")
    np.testing.assert_array_equal(v[::-2, 1], ROWS[::-2, 1])
    v[[7, 0]] = 0
    v += 1
    v.scatter_add([3, 3], 10)
    expected = ROWS.copy()
    expected[[7, 0]] = 0
    expected += 1
    expected[3] += 20
    np.testing.assert_array_equal(store.read(0, 8), expected)
    clone = pickle.loads(pickle.dumps(v))
    assert isinstance(clone.store, ArrayRowStore)
    assert clone.spec == v.spec
    clone[...] = 0
    np.testing.assert_array_equal(v, expected)
    with pytest.raises(ShardcoreTypeError, match="name must be a string, got None"):
        ShardedVariable.from_store(store, None)  # type: ignore[arg-type]


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


# Assignments and scatters


def test_assign_values() -> None:
    whole = [[0, 0], [1, 1], [2, 2], [3, 3]]
    v = sharded(whole, [1, 2, 1])
    assert v.assign([[4, 4], [5, 5], [6, 6], [7, 7]]) is v
    assert [shard.tolist() for shard in v] == [[[4, 4]], [[5, 5], [6, 6]], [[7, 7]]]
    v = sharded(whole, [1, 2, 1])
    assert v.assign_add([[1, 1], [1, 1], [2, 2], [2, 2]]) is v
    assert [shard.tolist() for shard in v] == [[[1, 1]], [[2, 2], [4, 4]], [[5, 5]]]
    v = sharded(whole, [1, 2, 1])
    assert v.assign_sub([[0, 0], [1, 1], [1, 1], [3, 3]]) is v
    assert [shard.tolist() for shard in v] == [[[0, 0]], [[0, 0], [1, 1]], [[0, 0]]]


def test_scatter_add_to_uneven_shards() -> None:
    v = sharded(np.zeros((32, 1)), [11, 11, 10])
    v.scatter_add([0, 10, 11, 12, 30, 31], np.arange(6.0)[:, None])
    expected = np.zeros((32, 1))
    expected[[0, 10, 11, 12, 30, 31], 0] = np.arange(6.0)
    np.testing.assert_array_equal(v, expected)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", [4.0, 5, 6, 7, 8]),
        ("sub", [2.0, 1, 0, -1, -2]),
        ("mul", [3.0, 6, 9, 12, 15]),
        ("div", [3.0, 1.5, 1, 0.75, 0.6]),
        ("min", [1.0, 2, 3, 3, 3]),
        ("max", [3.0, 3, 3, 4, 5]),
        ("update", [1.0, 2, 3, 4, 5]),
    ],
)
def test_scatter_operations(operation: str, expected: list[float]) -> None:
    v = sharded(np.full((30, 1), 3.0), [10, 10, 10])
    rows = [0, 10, 12, 21, 22]
    assert getattr(v, f"scatter_{operation}")(rows, np.arange(1.0, 6)[:, None]) is v
    assert v[rows, 0].tolist() == expected
    assert (np.delete(v.numpy(), rows) == 3).all()


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("add", 12), ("sub", -8), ("mul", 42), ("div", 2 / 21), ("min", 2), ("max", 7), ("update", 7)],
)
def test_scatters_of_a_row_named_twice(operation: str, expected: float) -> None:
    v = sharded(np.array([9.0, 2.0]), [1, 1])
    values = [3.0, 7.0]
    getattr(v, f"scatter_{operation}")([1, 1], values)
    assert v.tolist() == [9.0, pytest.approx(expected)]


def test_scatter_of_any_rank_and_broadcast_values() -> None:
    v = sharded(np.zeros((4, 2)), Layout.mod(4, 2))
    v.scatter_add([[0, 3], [3, 1]], 1).scatter_sub(2, [1, 2]).scatter_add([], 5)
    assert v.tolist() == [[1, 1], [1, 1], [-1, -2], [2, 2]]


def test_batch_scatter_update_of_rank_1() -> None:
    v = sharded(np.zeros((32, 1)), [11, 11, 10])
    assert v.batch_scatter_update(np.arange(10, 16), np.arange(6.0)[:, None]) is v
    assert v[9:17, 0].tolist() == [0, 0, 1, 2, 3, 4, 5, 0]


def test_batch_scatter_update_of_batches() -> None:
    whole = np.zeros((2, 3, 4, 2))
    v = sharded(whole, [1, 1])
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 4, (2, 3, 5))
    values = rng.random((2, 3, 5, 2))
    v.batch_scatter_update(indices, values)
    for b, c, i in np.ndindex(2, 3, 5):
        whole[b, c, indices[b, c, i]] = values[b, c, i]
    np.testing.assert_array_equal(v, whole)
    v.batch_scatter_update([[1], [0]], 7)
    whole[0, 1] = whole[1, 0] = 7
    np.testing.assert_array_equal(v, whole)


FLOATS = np.arange(12.0, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda v: v.scatter_add([0, 6], 1),
            ShardcoreIndexError,
            "indices[1] = 6 is outside the table: must be in [0, 6)",
        ),
        (
            lambda v: v.scatter_update([[0], [-1]], 1),
            ShardcoreIndexError,
            "indices[1, 0] = -1 is outside the table: must be in [0, 6)",
        ),
        (
            lambda v: v.scatter_add([0.5], 1),
            ShardcoreTypeError,
            "indices must be integers, got dtype float64",
        ),
        (
            lambda v: v.scatter_max([0], 1j),
            ShardcoreTypeError,
            "values must cast to float32 by the same_kind rule, got complex64",
        ),
        (
            lambda v: v.scatter_max([0], np.zeros(2, complex)),
            ShardcoreTypeError,
            "values must cast to float32 by the same_kind rule, got complex128",
        ),
        (
            lambda v: v.scatter_add([0, 1], np.ones((3, 2))),
            ShardcoreValueError,
            "values must broadcast to the shape of the update (2, 2), got shape (3, 2)",
        ),
        (
            lambda v: v.scatter_add([0, 1], [[1, 2], [3]]),
            ShardcoreValueError,
            "values must be an array: setting an array element with a sequence",
        ),
        (
            lambda v: v.scatter_nd_add([[0, 1, 0]], 1),
            ShardcoreValueError,
            "indices must have 1 to 2 places on their last axis, got shape (1, 3)",
        ),
        (
            lambda v: v.gather_nd(np.array(1)),
            ShardcoreValueError,
            "indices must have 1 to 2 places on their last axis, got shape ()",
        ),
        (
            lambda v: v.scatter_nd_update([[0, 0], [1, 2]], 1),
            ShardcoreIndexError,
            "indices[1, 1] = 2 is outside axis 1: must be in [0, 2)",
        ),
        (
            lambda v: v.gather_nd([[-1]]),
            ShardcoreIndexError,
            "indices[0, 0] = -1 is outside axis 0: must be in [0, 6)",
        ),
        (
            lambda v: v.batch_scatter_update([[0], [1]], 1),
            ShardcoreValueError,
            "indices must have the leading axes of the variable's shape (6, 2) and one more, "
            "got shape (2, 1)",
        ),
        (
            lambda v: v.batch_scatter_update([[0]] * 5 + [[2]], 1),
            ShardcoreIndexError,
            "indices[5, 0] = 2 is outside axis 1: must be in [0, 2)",
        ),
        (
            lambda v: v.assign("abc"),
            ShardcoreTypeError,
            "value must cast to float32 by the same_kind rule, got <U3",
        ),
        (
            lambda v: v.assign_add(1j),
            ShardcoreTypeError,
            "delta must cast to float32 by the same_kind rule, got complex64",
        ),
        (
            lambda v: v.assign_sub(np.ones(5)),
            ShardcoreValueError,
            "delta must broadcast to the variable's shape (6, 2), got shape (5,)",
        ),
        (
            lambda v: v.__setitem__([0, 5], np.ones(3)),
            ShardcoreValueError,
            "value cannot be written to an index of shape (2, 2)",
        ),
    ],
)
def test_refused_changes_change_nothing(
    call: Callable[[ShardedVariable], Any], error: type[ShardcoreError], message: str
) -> None:
    v = sharded(FLOATS, Layout.mod(6, 3))
    with pytest.raises(error, match=re.escape(message)):
        call(v)
    np.testing.assert_array_equal(v, FLOATS)


@pytest.mark.parametrize(
    ("dtype", "call", "error", "message"),
    [
        (
            np.int32,
            lambda v: v.scatter_div([0], 1),
            ShardcoreTypeError,
            "a variable of dtype int32 has no scatter_div",
        ),
        (
            bool,
            lambda v: v.scatter_sub([0], True),
            ShardcoreTypeError,
            "a variable of dtype bool has no scatter_sub",
        ),
        (
            bool,
            lambda v: v.assign_sub(True),
            ShardcoreTypeError,
            "delta cannot be applied: numpy boolean subtract",
        ),
        (np.int32, lambda v: v.assign(0.5), ShardcoreTypeError, "got float64"),
        (np.int8, lambda v: v.assign(300), ShardcoreValueError, "value = 300 does not fit int8"),
        (
            np.int8,
            lambda v: v.scatter_add([0, 1], np.array([1, -129])),
            ShardcoreValueError,
            "values[1] = -129 does not fit int8",
        ),
        (
            np.uint8,
            lambda v: v.assign_add(-1),
            ShardcoreValueError,
            "delta = -1 does not fit uint8",
        ),
        (
            np.int64,
            lambda v: v.assign(2**64),
            ShardcoreValueError,
            f"value = {2**64} does not fit int64",
        ),
    ],
)
def test_what_a_dtype_refuses(
    dtype: Any, call: Callable[[ShardedVariable], Any], error: type[ShardcoreError], message: str
) -> None:
    v = sharded(np.ones(3, dtype), [2, 1])
    with pytest.raises(error, match=re.escape(message)):
        call(v)
    assert v.tolist() == [1, 1, 1]


def test_bfloat16() -> None:
    whole = np.arange(6).astype(ml_dtypes.bfloat16).reshape(3, 2)
    v = sharded(whole, [2, 1])
    v += 0.5
    v.scatter_add([2, 2], np.ones(2)).scatter_div([0], 2)
    v[1, 0] = 8
    assert v.astype(float).tolist() == [[0.25, 0.75], [8, 3.5], [6.5, 7.5]]
    for values in (1j, np.ones(2, np.complex64)):
        with pytest.raises(ShardcoreTypeError, match="cast to bfloat16 by the same_kind rule"):
            v.scatter_add([0], values)
    assert v.astype(float)[0].tolist() == [0.25, 0.75]


def test_read_only_shards_refuse_every_write() -> None:
    shards = [np.zeros((2, 2)), np.zeros((2, 2))]
    shards[1].flags.writeable = False
    v = ShardedVariable(shards)
    out = ShardedVariable([np.zeros((4, 2))])
    writes: list[Callable[[], Any]] = [
        lambda: v.assign(1),
        lambda: v.assign_add(1),
        lambda: v.scatter_add([0, 3], 1),
        lambda: v.__setitem__(0, 1),
        lambda: v.__setitem__(slice(0, 0), 1),
        lambda: v.__setitem__([], 1),
        lambda: np.add(1, 1, out=v),
        lambda: np.add.at(v, 0, 1),
        lambda: np.divmod(np.full((4, 2), 7.0), 2.0, out=(out, v)),
    ]
    for write in writes:
        with pytest.raises(ShardcoreValueError, match=re.escape("shards[1] is read-only")):
            write()
    assert not v.any()
    assert not out.any()


def test_a_write_in_blocks_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", 1)
    v = sharded(FLOATS, [2, 2, 2])
    with pytest.raises(ShardcoreValueError, match="could not convert string to float"):
        v[...] = [[0, 0]] * 5 + [[0, "x"]]
    with np.errstate(over="raise"):
        for write in (v.assign, lambda x: v.__setitem__(slice(None), x)):
            with pytest.raises(FloatingPointError):
                write([[0.0, 0.0]] * 5 + [[0.0, 1e300]])
        with pytest.raises(FloatingPointError):
            v *= np.float32(1e38)
    np.testing.assert_array_equal(v, FLOATS)


@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
def test_values_that_share_memory_with_the_shards(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
    base = np.arange(6.0)
    v = ShardedVariable([base[:4], base[4:]])
    v[1:] = base[:-1]
    assert v.tolist() == [0, 0, 1, 2, 3, 4]
    v.assign(base[::-1])
    assert v.tolist() == [4, 3, 2, 1, 0, 0]
    v[::-1] = v
    assert v.tolist() == [0, 0, 1, 2, 3, 4]


# As an array


def test_operators_and_conversions(v: ShardedVariable) -> None:
    w = sharded(np.array([1, 2]), [1, 1])
    assert (w + w).tolist() == [2, 4]
    assert (w == w).tolist() == [True, True]
    assert (3 - w).tolist() == [2, 1]
    assert (-w).tolist() == [-1, -2]
    assert divmod(w, 2)[1].tolist() == [1, 0]
    assert (v @ w).tolist() == (ROWS @ [1, 2]).tolist()
    assert isinstance(v + 1, np.ndarray)
    assert np.asarray(v, dtype=np.float32).dtype == np.float32
    assert np.array(v, copy=True).tolist() == ROWS.tolist()
    assert v.T.tolist() == ROWS.T.tolist()
    assert v.numpy().tolist() == v.tolist() == ROWS.tolist()
    assert v.astype(np.int8).dtype == np.int8
    assert v.reshape(4, -1).shape == (4, 4)
    assert np.concatenate([v, v]).shape == (16, 2)
    assert 16 in v
    assert 17 not in v
    with pytest.raises(ShardcoreValueError, match="copy=False is not possible"):
        np.array(v, copy=False)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "min", "max", "prod", "any", "all", "std", "var", "argmin", "argmax"]
)
def test_reductions(name: str, v: ShardedVariable) -> None:
    for arguments in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}):
        expected = getattr(ROWS, name)(**arguments)
        np.testing.assert_array_equal(getattr(v, name)(**arguments), expected, strict=True)
        np.testing.assert_array_equal(getattr(np, name)(v, **arguments), expected, strict=True)


def test_truth_value(v: ShardedVariable) -> None:
    with pytest.raises(ShardcoreValueError, match="variable of 16 elements is ambiguous"):
        bool(v)
    assert bool(sharded([1], [1, 0]))
    assert not sharded([[0]], [0, 1])


def test_ufunc_keywords() -> None:
    v, w = sharded(np.arange(4.0), [1, 3]), sharded(np.zeros(4), Layout.mod(4, 2))
    assert np.add(v, 1, out=w) is w
    assert w.tolist() == [1, 2, 3, 4]
    np.add(v, 10, out=w, where=sharded([True, False, True, False], [2, 2]))
    assert w.tolist() == [10, 2, 12, 4]
    plain = np.empty(4)
    assert np.multiply(v, 2, out=plain) is plain
    assert plain.tolist() == [0, 2, 4, 6]
    assert np.add.reduce(v) == 6
    assert np.add.accumulate(v, out=v) is v
    assert v.tolist() == [0, 1, 3, 6]
    total = sharded([0.0], [0, 1])
    assert np.add.reduce(v.reshape(4, 1), axis=0, out=total) is total
    assert total.tolist() == [10]
    np.add.at(v, [0, 0, 3], 1)
    assert v.tolist() == [2, 1, 3, 7]
    np.add.at(plain, [0, 1, 2, 3], v)
    assert plain.tolist() == [2, 3, 7, 13]
    quotient, rest = np.divmod(v, 2, out=(None, w))
    assert rest is w
    assert quotient.tolist() == [1, 0, 1, 3]
    assert np.multiply.outer(v, [1, 2]).shape == (4, 2)
    with pytest.raises(IndexError):
        np.add.at(v, [0, 9], 1)
    assert v.tolist() == [2, 1, 3, 7]


# Creation


def test_create_variable_does_not_depend_on_the_shards() -> None:
    one = create_variable((10, 3), initializer=TruncatedNormal(), seed=5)
    many = create_variable((10, 3), num_shards=4, initializer=TruncatedNormal(), seed=5)
    assert one.layout == Layout.div(10, 1)
    assert many.layout == Layout.div(10, 4)
    np.testing.assert_array_equal(one, many)
    assert one.numpy().any()
    assert (one != create_variable((10, 3), seed=6)).any()
    np.testing.assert_array_equal(create_variable((10, 3)), create_variable((10, 3), seed=0))


def test_create_variable_arguments() -> None:
    v = create_variable(
        (5, 2), "float16", FixedShardsPartitioner(2), initializer=RowId(), name="users"
    )
    assert (v.name, v.dtype, v.layout) == ("users", np.dtype("float16"), Layout.div(5, 2))
    assert v[:, 1].tolist() == [0, 1, 2, 3, 4]
    assert create_variable([2], num_shards=5).layout == Layout.div(2, 5)
    assert create_variable(np.int64(3), "bool").tolist() == [False] * 3
    array = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(
        create_variable((3, 2), "int32", num_shards=2, initializer=array), array
    )
    sized = create_variable((6, 1), partitioner=MinSizePartitioner(4, max_shards=10))
    assert sized.layout == Layout.div(6, 6)
    assert create_variable((0, 3), num_shards=2).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": ()}, ShardcoreValueError, "shape must have at least one axis, got ()"),
        (
            {"shape": 3, "partitioner": FixedShardsPartitioner(2), "num_shards": 2},
            ShardcoreValueError,
            "partitioner and num_shards both say how many shards there are; give one of them",
        ),
        (
            {"shape": 3, "num_shards": 0},
            ShardcoreValueError,
            "num_shards must be an integer >= 1, got 0",
        ),
        (
            {"shape": 3, "partitioner": 2},
            ShardcoreTypeError,
            "partitioner must be callable, got 2",
        ),
        (
            {"shape": (3, 3), "partitioner": lambda shape, dtype: [1, 2]},
            ShardcoreValueError,
            "partitioner must cut axis 0 only, got shard counts [1, 2]",
        ),
        (
            {"shape": (3, 3), "partitioner": lambda shape, dtype: [1]},
            ShardcoreValueError,
            "partitioner must return one shard count per axis of (3, 3), got [1]",
        ),
        (
            {"shape": (3, 3), "partitioner": lambda shape, dtype: [0, 1]},
            ShardcoreValueError,
            "partitioner's shard count of axis 0 must be an integer >= 1, got 0",
        ),
    ],
)
def test_refused_creation(
    arguments: dict[str, Any], error: type[ShardcoreError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        create_variable(**arguments)
