"""What a ShardedVariable is: attributes, specs, copies, views over stores, refused construction."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rows_in_shards import ROWS, sharded

from shardcore.errors import (
    ShardcoreError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable.row_store import ArrayRowStore
from shardcore.variable.variable import ShardedVariable


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
