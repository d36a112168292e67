"""Numbers of shards and parts: TensorFlow's tables, hard bounds, and every refusal."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest

from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.sharding.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from shardcore.variable.partitioned import Part, create_partitioned_variables

PARTITIONERS: list[Partitioner] = [
    FixedShardsPartitioner(2),
    MinSizePartitioner(4, 10),
    MaxSizePartitioner(4),
    fixed_size_partitioner(2),
    min_max_variable_partitioner(10, min_slice_size=4),
    variable_axis_size_partitioner(4),
]


# --- the numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitioner", "shape", "expected"),
    [
        (FixedShardsPartitioner(2), [10, 3], [2, 1]),
        (FixedShardsPartitioner(64), [10, 3], [10, 1]),
        (MinSizePartitioner(4, max_shards=2), [6, 1], [2, 1]),
        (MinSizePartitioner(4, max_shards=10), [6, 1], [6, 1]),
        (MinSizePartitioner(), [1 << 20, 64], [1, 1]),
        (MaxSizePartitioner(4), [6, 1], [6, 1]),
        (MaxSizePartitioner(4, max_shards=2), [6, 1], [2, 1]),
        (MaxSizePartitioner(1024), [6, 1], [1, 1]),
        (MaxSizePartitioner(1), [6, 1], [6, 1]),
    ],
)
def test_classes(partitioner: Partitioner, shape: list[int], expected: list[int]) -> None:
    assert partitioner(shape, "float32") == expected


@pytest.mark.parametrize(
    ("axis", "max_shard_bytes", "max_shards", "expected"),
    [
        (0, 131072, None, 1),
        (1, 65536, None, 1),
        (2, 32768, None, 2),
        (3, 2048, None, 32),
        (3, 1024, None, 32),
        (3, 1024, 33, 32),
        (3, 1024, 2, 2),
        (-2, 32768, None, 2),
    ],
)
def test_variable_axis_size(
    axis: int, max_shard_bytes: int, max_shards: int | None, expected: int
) -> None:
    p = variable_axis_size_partitioner(max_shard_bytes, axis=axis, max_shards=max_shards)
    counts = [1, 1, 1, 1]
    counts[axis] = expected
    assert p((4, 8, 16, 32), np.float32) == counts


@pytest.mark.parametrize("dtype", ["U7", "S3", object, np.dtypes.StringDType()])
def test_strings_count_a_given_number_of_bytes(dtype: Any) -> None:
    p = variable_axis_size_partitioner(32768, axis=3, bytes_per_string_element=8)
    assert p((4, 8, 16, 32), dtype) == [1, 1, 1, 4]
    assert MaxSizePartitioner(32)([4], dtype) == [2]
    assert MinSizePartitioner(32, 100)([4], dtype) == [2]


@pytest.mark.parametrize(
    ("shape", "axis", "kilobytes", "most", "expected"),
    [
        ([2048], 0, 2, 100, 4),
        ([2048, 1024], 0, 256, 100, 32),
        ([2048, 1024], 0, 256, 16, 16),
        ([2048, 1024], 0, 256, 1, 1),
        ([2048, 1024], 0, 128, 100, 64),
        ([2048, 1024], 0, 512, 100, 16),
        ([64, 1024, 1, 3], 1, 256, 100, 2),  # three would leave a shard of 255.75 KiB
        ([64, 1024, 1, 3], 3, 256, 100, 3),
        ([16, 128, 1024], 0, 256, 100, 16),
        ([4, 512, 1024], 0, 256, 100, 4),
    ],
)
def test_min_max_variable(
    shape: list[int], axis: int, kilobytes: int, most: int, expected: int
) -> None:
    p = min_max_variable_partitioner(most, axis=axis, min_slice_size=kilobytes << 10)
    counts = [1] * len(shape)
    counts[axis] = expected
    assert p(shape, "float32") == counts


def test_defaults_of_the_functional_form() -> None:
    assert min_max_variable_partitioner(100, axis=1)([64, 1024, 1, 3], "float32") == [1, 2, 1, 1]
    assert min_max_variable_partitioner()([1 << 20, 64], "float32") == [1, 1]


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16", "float64"])
@pytest.mark.parametrize("width", [1, 3])
def test_bounds_are_hard(dtype: str, width: int) -> None:
    entry = width * {"int8": 1, "float32": 4, "bfloat16": 2, "float64": 8}[dtype]
    for n, bound in itertools.product(range(1, 33), range(1, 70)):
        shards = MinSizePartitioner(bound, max_shards=1000)([n, width], dtype)[0]
        assert n // shards * entry >= bound or shards == 1
        # as many as possible: one more would break the rule or be empty
        assert n // (shards + 1) * entry < bound or shards == n

        shards = MaxSizePartitioner(bound)([n, width], dtype)[0]
        assert -(-n // shards) * entry <= bound or shards == n
        # as few as possible
        assert shards == 1 or -(-n // (shards - 1)) * entry > bound

        most = bound % 5 + 1
        assert MaxSizePartitioner(bound, most)([n, width], dtype)[0] == min(shards, most)


def test_shape_may_be_any_sequence() -> None:
    for shape in [(10, 3), [10, 3], np.array([10, 3]), [np.int32(10), np.uint8(3)]]:
        assert FixedShardsPartitioner(4)(shape, "float32") == [4, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
def test_axis_of_the_call_comes_first(partitioner: Partitioner) -> None:
    assert partitioner([1, 2], "float32", axis=1) == [1, 2]
    assert partitioner([1, 2], "float32", -1) == [1, 2]
    assert partitioner([1, 2], "float32", axis=0) == [1, 1]


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
@pytest.mark.parametrize("shape", [[0], [0, 3], [3, 0], [0, 0]])
def test_nothing_to_cut_is_one_shard(partitioner: Partitioner, shape: list[int]) -> None:
    for axis in range(len(shape)):
        assert partitioner(shape, "float32", axis) == [1] * len(shape)


def test_elements_without_bytes_are_one_shard() -> None:
    assert MaxSizePartitioner(4)([8], "V0") == [1]
    assert MinSizePartitioner(4, 8)([8], "V0") == [1]


def test_equal_by_value_hashable_frozen_and_picklable() -> None:
    for a, b in zip(PARTITIONERS, PARTITIONERS, strict=True):
        assert pickle.loads(pickle.dumps(a)) == b
        assert hash(pickle.loads(pickle.dumps(a))) == hash(b)
    assert len(set(PARTITIONERS)) == len(PARTITIONERS)
    assert fixed_size_partitioner(2, axis=1) != fixed_size_partitioner(2)
    with pytest.raises(AttributeError):
        FixedShardsPartitioner(2).num_shards = 3  # type: ignore[misc]


def test_repr() -> None:
    assert repr(MaxSizePartitioner(np.int64(4))) == (  # type: ignore[arg-type]
        "MaxSizePartitioner(max_shard_bytes=4, max_shards=None, bytes_per_string=16)"
    )
    assert repr(fixed_size_partitioner(2, -1)) == (
        "<FixedShardsPartitioner(num_shards=2) along axis -1>"
    )


def test_partitioner_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Partitioner()  # type: ignore[abstract]


# --- the refusals -------------------------------------------------------------------------------


def refuses(kind: type[ShardcoreError], message: str) -> pytest.RaisesExc[ShardcoreError]:
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (FixedShardsPartitioner, "num_shards"),
        (MinSizePartitioner, "min_shard_bytes"),
        (MinSizePartitioner, "max_shards"),
        (MinSizePartitioner, "bytes_per_string"),
        (MaxSizePartitioner, "max_shard_bytes"),
        (MaxSizePartitioner, "max_shards"),
        (MaxSizePartitioner, "bytes_per_string"),
        (fixed_size_partitioner, "num_shards"),
        (min_max_variable_partitioner, "max_partitions"),
        (min_max_variable_partitioner, "min_slice_size"),
        (min_max_variable_partitioner, "bytes_per_string_element"),
        (variable_axis_size_partitioner, "max_shard_bytes"),
        (variable_axis_size_partitioner, "max_shards"),
        (variable_axis_size_partitioner, "bytes_per_string_element"),
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "2", np.array([2]), np.bool_(True)])
def test_arguments_are_counts(make: Any, argument: str, value: Any) -> None:
    needs_maximum = make in (MaxSizePartitioner, variable_axis_size_partitioner)
    required = {"max_shard_bytes": 4} if needs_maximum else {}
    kind = ShardcoreValueError if value in (0, -1) else ShardcoreTypeError
    with refuses(kind, f"{argument} must be an integer >= 1, got {value!r}"):
        make(**(required | {argument: value}))


@pytest.mark.parametrize(
    "make",
    [
        fixed_size_partitioner,
        min_max_variable_partitioner,
        variable_axis_size_partitioner,
    ],
)
@pytest.mark.parametrize("axis", [1.0, None, True])
def test_axis_of_a_functional_form_is_an_integer(make: Any, axis: Any) -> None:
    with refuses(ShardcoreTypeError, f"axis must be an integer, got {axis!r}"):
        make(4, axis=axis)


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
@pytest.mark.parametrize(
    ("shape", "axis", "kind", "message"),
    [
        ([], 0, ShardcoreValueError, "shape must have at least one axis, got ()"),
        ([3], 1, ShardcoreValueError, "axis must be in [-1, 1) for a shape of rank 1, got 1"),
        ([3, 4], -3, ShardcoreValueError, "axis must be in [-2, 2) for a shape of rank 2, got -3"),
        ([3], 0.0, ShardcoreTypeError, "axis must be an integer, got 0.0"),
        ([3], False, ShardcoreTypeError, "axis must be an integer, got False"),
        ([3, -1], 0, ShardcoreValueError, "shape[1] must be an integer >= 0, got -1"),
        ([3, None], 0, ShardcoreTypeError, "shape[1] must be an integer >= 0, got None"),
        ([2.0], 0, ShardcoreTypeError, "shape[0] must be an integer >= 0, got 2.0"),
        ([True], 0, ShardcoreTypeError, "shape[0] must be an integer >= 0, got True"),
        (7, 0, ShardcoreTypeError, "shape must be a sequence of integers >= 0, got 7"),
        ("73", 0, ShardcoreTypeError, "shape must be a sequence of integers >= 0, got '73'"),
        (None, 0, ShardcoreTypeError, "shape must be a sequence of integers >= 0, got None"),
    ],
)
def test_call_refuses(
    partitioner: Partitioner, shape: Any, axis: Any, kind: type[ShardcoreError], message: str
) -> None:
    with refuses(kind, message):
        partitioner(shape, "float32", axis)


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=repr)
def test_call_refuses_what_is_no_dtype(partitioner: Partitioner) -> None:
    with refuses(ShardcoreTypeError, "dtype must be a dtype, got 'float33'"):
        partitioner([3], "float33")


# --- create_partitioned_variables -----------------------------------------------------------------


def whole(parts: list[Part], axis: int) -> Any:
    return np.concatenate([np.asarray(part) for part in parts], axis=axis)


@pytest.mark.parametrize(
    ("shape", "slicing", "specs"),
    [
        ([4], [4], ["4 0,1", "4 1,1", "4 2,1", "4 3,1"]),
        ([4], [1], ["4 0,4"]),
        ([2, 4], [1, 2], ["2 4 0,2:0,2", "2 4 0,2:2,2"]),
        ([20, 43], [1, 2], ["20 43 0,20:0,22", "20 43 0,20:22,21"]),
        ([13, 5], [3, 1], ["13 5 0,5:0,5", "13 5 5,4:0,5", "13 5 9,4:0,5"]),
        ([0, 3], [1, 1], ["0 3 0,0:0,3"]),
    ],
)
def test_slice_specs(shape: list[int], slicing: list[int], specs: list[str]) -> None:
    full = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    parts = create_partitioned_variables(shape, slicing, full)
    assert [part.spec for part in parts] == specs
    assert [part.name for part in parts] == [
        f"PartitionedVariable/part_{i}" for i in range(len(specs))
    ]
    axis = int(np.argmax(slicing))
    np.testing.assert_array_equal(whole(parts, axis), full)
    for part in parts:
        assert part.full_shape == tuple(shape)
        assert part.shape == part.value.shape == np.asarray(part).shape
        assert part.value.dtype == np.float32


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (2, [22, 21]),
        (3, [15, 14, 14]),
        (4, [11, 11, 11, 10]),
        (5, [9, 9, 9, 8, 8]),
    ],
)
def test_the_first_parts_are_longer(count: int, sizes: list[int]) -> None:
    parts = create_partitioned_variables([20, 43], [1, count], TruncatedNormal(), name="hi")
    assert [part.shape for part in parts] == [(20, size) for size in sizes]
    assert [part.offset for part in parts] == [(0, sum(sizes[:i])) for i in range(count)]
    assert [part.name for part in parts] == [f"hi/part_{i}" for i in range(count)]


@pytest.mark.parametrize("slicing", [[1, 1, 1], [7, 1, 1], [1, 5, 1], [1, 1, 2]])
def test_parts_together_are_the_variable_in_one_piece(slicing: list[int]) -> None:
    # several blocks of rows: 700 x 640 float32 are 1.7 MiB
    init = TruncatedNormal()
    expected = init(np.arange(700), (128, 5), "float32", 3)
    parts = create_partitioned_variables([700, 128, 5], slicing, init, seed=3)
    np.testing.assert_array_equal(whole(parts, int(np.argmax(slicing))), expected)


def test_parts_differ_from_one_another_and_by_seed() -> None:
    a, b = create_partitioned_variables([20, 3], [2, 1], TruncatedNormal(), seed=1)
    (c,) = create_partitioned_variables([10, 3], [1, 1], TruncatedNormal(), seed=2)
    assert not (a.value == b.value).any()
    assert not (a.value == c.value).any()


def test_callable_is_asked_for_whole_rows_in_blocks() -> None:
    asked: list[tuple[int, tuple[int, ...], str, int]] = []

    def init(rows: Any, row_shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Any:
        asked.append((len(rows), row_shape, dtype.name, seed))
        return np.broadcast_to(rows[:, None], (len(rows), *row_shape))

    parts = create_partitioned_variables([3000, 128], [1, 2], init, "float32", seed=9)
    assert sum(n for n, *_ in asked) == 3000
    assert max(n for n, *_ in asked) == 2048  # 1 MiB of rows of 512 bytes
    assert {call[1:] for call in asked} == {((128,), "float32", 9)}
    np.testing.assert_array_equal(parts[1].value[:, 63], np.arange(3000))


def test_parts_of_other_dtypes() -> None:
    parts = create_partitioned_variables([2], [2], ["a", "bcd"], dtype="U3")
    assert [part.value.tolist() for part in parts] == [["a"], ["bcd"]]
    parts = create_partitioned_variables([3], [2], [1, 2, 3], dtype="bfloat16")
    assert [part.value.astype(float).tolist() for part in parts] == [[1.0, 2.0], [3.0]]


def test_array_of_a_part() -> None:
    (part,) = create_partitioned_variables([2], [1], [1.0, 2.0])
    assert np.asarray(part) is part.value
    copied = np.array(part)
    assert copied is not part.value
    assert not np.shares_memory(copied, part.value)
    assert np.asarray(part, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize(
    ("shape", "slicing", "kind", "message"),
    [
        ([], [], ShardcoreValueError, "shape must have at least one axis, got ()"),
        (
            [10, 43],
            [2],
            ShardcoreValueError,
            "slicing must have one count per axis of the shape (10, 43), got (2,)",
        ),
        (
            [10],
            [1, 1],
            ShardcoreValueError,
            "slicing must have one count per axis of the shape (10,), got (1, 1)",
        ),
        (
            [10, 43],
            [2, 2],
            ShardcoreValueError,
            "slicing must cut at most one axis, got (2, 2)",
        ),
        ([10, 43], [0, 1], ShardcoreValueError, "slicing[0] must be an integer >= 1, got 0"),
        ([10, 43], [1, -2], ShardcoreValueError, "slicing[1] must be an integer >= 1, got -2"),
        ([10, 43], [1, 2.0], ShardcoreTypeError, "slicing[1] must be an integer >= 1, got 2.0"),
        (
            [10, 43],
            [11, 1],
            ShardcoreValueError,
            "slicing[0] must be at most the 10 entries of the axis, got 11",
        ),
        (
            [10, 43],
            [1, 50],
            ShardcoreValueError,
            "slicing[1] must be at most the 43 entries of the axis, got 50",
        ),
        (
            [0, 43],
            [2, 1],
            ShardcoreValueError,
            "slicing[0] must be at most the 0 entries of the axis, got 2",
        ),
        (
            [10, 43],
            3,
            ShardcoreTypeError,
            "slicing must be a sequence of integers >= 1, got 3",
        ),
    ],
)
def test_create_refuses(shape: Any, slicing: Any, kind: type[ShardcoreError], message: str) -> None:
    with refuses(kind, message):
        create_partitioned_variables(shape, slicing, TruncatedNormal())


def test_create_refuses_other_arguments() -> None:
    with refuses(ShardcoreTypeError, "name must be a string, got 5"):
        create_partitioned_variables([2], [1], [1, 2], name=5)  # type: ignore[arg-type]
    with refuses(ShardcoreTypeError, "dtype must be a dtype, got 'float33'"):
        create_partitioned_variables([2], [1], [1, 2], dtype="float33")
    with refuses(
        ShardcoreValueError,
        "initializer must have the full shape (2,), got an array of shape (3,)",
    ):
        create_partitioned_variables([2], [1], [1, 2, 3])
    with refuses(ShardcoreValueError, "seed must be an integer in [0, 2**64), got -1"):
        create_partitioned_variables([2], [1], TruncatedNormal(), seed=-1)
