"""A variable as an array: operators, conversions, reductions, ufuncs."""

from __future__ import annotations

import numpy as np
import pytest
from rows_in_shards import ROWS, sharded

from shardcore.errors import (
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable.variable import ShardedVariable


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
