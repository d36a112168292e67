"""Assignments and scatters: of any layout, rank and dtype, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rows_in_shards import sharded

from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable import indexing
from shardcore.variable.variable import ShardedVariable


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
