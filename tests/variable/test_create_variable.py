"""create_variable: values that do not depend on the shards, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from shardcore.errors import (
    ShardcoreError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.initializers.constants import RowId
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.sharding.layout import Layout
from shardcore.sharding.partitioners import FixedShardsPartitioner, MinSizePartitioner
from shardcore.variable.variable import create_variable


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
