"""Initial values: independent of blocks and order, of the right distribution, checked."""

from __future__ import annotations

import math
import pickle
import re
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shardcore import reference
from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.initializers.base import Initializer
from shardcore.initializers.constants import Constant, RowId, Zeros
from shardcore.initializers.distributions import Normal, TruncatedNormal, Uniform
from shardcore.initializers.filling import as_initializer, blocks, fill

BUILT_IN: list[Any] = [
    TruncatedNormal(),
    TruncatedNormal(1.0, 0.5),
    Normal(),
    Uniform(),
    Constant(0.25),
    Zeros(),
    RowId(offset=3),
]
RANDOM: list[Any] = [TruncatedNormal(), Normal(), Uniform()]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def refuses(kind: type[ShardcoreError], message: str) -> pytest.RaisesExc[ShardcoreError]:
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


# --- one table, however it is asked for ---------------------------------------------------------


@pytest.mark.parametrize("init", BUILT_IN, ids=repr)
@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(12)), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_any_order_any_blocks(init: Any, dtype: str, order: list[int], cuts: list[int]) -> None:
    expected = init(np.arange(12), (2, 3), dtype, 5)
    assert expected.shape == (12, 2, 3)
    assert expected.dtype.name == dtype
    pieces = np.split(np.array(order), sorted(cuts))
    values = np.concatenate([init(rows, (2, 3), dtype, 5) for rows in pieces])
    np.testing.assert_array_equal(values, expected[order])


@pytest.mark.parametrize("init", BUILT_IN, ids=repr)
def test_row_shape_is_only_a_shape(init: Any) -> None:
    flat = init([4, 2], (6,), "float64", 1)
    np.testing.assert_array_equal(init([4, 2], (2, 3), "float64", 1).reshape(2, 6), flat)
    assert init([4, 2], (), "float64", 1).shape == (2,)
    np.testing.assert_array_equal(
        init([4, 2], (), "float64", 1), init([4, 2], [1], "float64", 1)[:, 0]
    )
    assert init([4, 2], (3, 0), "float32", 1).shape == (2, 3, 0)
    assert init([], (3,), "float32", 1).shape == (0, 3)


@pytest.mark.parametrize("init", RANDOM, ids=repr)
def test_wider_rows_begin_alike(init: Any) -> None:
    narrow, wide = (init(range(9), (width,), "float64", 1) for width in (3, 8))
    scale = math.sqrt(3 / 8) if init == TruncatedNormal() else 1.0
    np.testing.assert_allclose(wide[:, :3], narrow * scale, rtol=1e-14)


@pytest.mark.parametrize("init", RANDOM, ids=repr)
def test_seed_row_and_column_all_matter(init: Any) -> None:
    values = np.stack([init(range(8), (8,), "float64", seed) for seed in (0, 1, 2**64 - 1)])
    assert len(np.unique(values)) == values.size


@pytest.mark.parametrize("init", RANDOM, ids=repr)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_the_float64_numbers_rounded_once(init: Any, dtype: str) -> None:
    rows = np.arange(3000)[::-1]  # more than one block of scratch
    exact = init(rows, (64,), "float64", 8)
    short = init(rows, (64,), dtype, 8)
    np.testing.assert_array_equal(short, nearest(exact, short.dtype))


def nearest(exact: Any, dtype: np.dtype[Any]) -> Any:
    """Return the nearest of the dtype's neighbouring values, the even one of two, by comparison."""
    guess = exact.astype(dtype)
    bits = guess.view(np.int16)
    candidates = np.stack([(bits + step).astype(np.int16).view(dtype) for step in (-1, 0, 1)])
    # both numbers have at most 53 bits and are close, so that their difference is exact
    distance = abs(candidates.astype(np.float64) - exact)
    distance[~np.isfinite(distance)] = np.inf
    even = candidates.view(np.int16) % 2 == 0
    best = (distance == distance.min(axis=0)).astype(int) * 2 + even
    return np.take_along_axis(candidates, best.argmax(axis=0)[None], 0)[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Fraction(1) + Fraction(1, 2**8) + Fraction(1, 2**40), 1 + 2**-7),  # just above a tie
        (Fraction(1) + Fraction(3, 2**8) - Fraction(1, 2**40), 1 + 2**-7),  # just below a tie
        (Fraction(1) + Fraction(1, 2**8), 1.0),  # a tie goes to the even one
        (Fraction(1) + Fraction(3, 2**8), 1 + 2**-6),
        (Fraction(1, 2**140), 0.0),
        (Fraction(1, 2**133), 2.0**-133),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_bfloat16_is_rounded_once(value: Fraction, expected: float, sign: int) -> None:
    number = float(sign * value)
    assert Fraction(number) == sign * value
    assert Constant(number)([0], (), BFLOAT16, 0)[0] == sign * expected
    shard = np.empty(1, BFLOAT16)
    fill(shard, as_initializer([number], (1,)), range(1), 0)
    assert shard[0] == sign * expected


# --- the numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "distribution"),
    [
        (TruncatedNormal(), stats.truncnorm(-2, 2, scale=1 / math.sqrt(64))),
        (TruncatedNormal(1.0, 0.5), stats.truncnorm(-2, 2, loc=1.0, scale=0.5)),
        (Normal(-3.0, 2.0), stats.norm(-3.0, 2.0)),
        (Uniform(-1.0, 3.0), stats.uniform(-1.0, 4.0)),
        (Uniform(), stats.uniform(-0.05, 0.1)),
        (Normal(), stats.norm()),
    ],
)
def test_distribution(init: Any, distribution: Any) -> None:
    values = init(range(4000), (64,), "float32", 123).astype(np.float64).ravel()
    assert stats.kstest(values, distribution.cdf).pvalue > 1e-3
    error = 5 * distribution.std() / math.sqrt(values.size)
    assert values.mean() == pytest.approx(distribution.mean(), abs=error)
    assert values.std() == pytest.approx(distribution.std(), rel=0.01)


def test_truncation() -> None:
    values = TruncatedNormal(0.0, 1.0)(range(20_000), (16,), "float64", 1)
    assert abs(values).max() <= 2.0
    assert abs(values).max() > 1.9999
    assert Normal()(range(20_000), (16,), "float64", 1).max() > 4.0


def test_default_width_is_that_of_a_row() -> None:
    a = TruncatedNormal()([1, 2], (4, 4), "float64", 0)
    np.testing.assert_array_equal(a, TruncatedNormal(stddev=0.25)([1, 2], (4, 4), "float64", 0))


@pytest.mark.parametrize(
    ("init", "name", "parameters"),
    [
        (TruncatedNormal(0.5, 0.1), "truncated_normal", (0.5, 0.1)),
        (Normal(0.5, 0.1), "normal", (0.5, 0.1)),
        (Uniform(0.5, 0.75), "uniform", (0.5, 0.75)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_to_the_oracle(
    init: Any, name: str, parameters: tuple[float, float], dtype: str
) -> None:
    rows = np.array([0, 7, 2**63 - 1, 12345])
    expected = np.empty((4, 33), dtype)
    getattr(reference, name)(rows, 99, *parameters, expected)
    np.testing.assert_array_equal(init(rows, (33,), dtype, 99), expected)


def test_constants_and_row_ids() -> None:
    assert Constant(7)([3, 4], (2,), "int32", 0).tolist() == [[7, 7], [7, 7]]
    assert Constant(2**63)([3], (), "uint64", 0).tolist() == [2**63]
    assert RowId()([3, 1], (2,), "float16", 0).tolist() == [[3, 3], [1, 1]]
    assert RowId(-5)([3, 9], (2, 1), "int8", 0).tolist() == [[[-2], [-2]], [[4], [4]]]
    assert RowId()([2**24 + 1], (), "float32", 0).tolist() == [2**24]
    assert Zeros()([3], (2,), "int64", 0).tolist() == [[0, 0]]


def test_arguments_may_be_of_any_integer_type() -> None:
    expected = Normal()(np.array([3, 1]), (4,), "float32", 6)
    for rows in (
        [3, 1],
        (3, 1),
        np.array([3, 1], np.uint64),
        np.array([3, 9, 1, 9], np.int16)[::2],
    ):
        np.testing.assert_array_equal(
            Normal()(rows, [np.int8(4)], np.float32, np.uint8(6)), expected
        )


# --- as values ----------------------------------------------------------------------------------


def test_equal_by_value_hashable_frozen_and_picklable() -> None:
    assert TruncatedNormal() == TruncatedNormal(0, None) != TruncatedNormal(stddev=1.0)
    assert Normal(np.float32(0.5)) == Normal(0.5) != Uniform(0.5, 1.0)  # type: ignore[comparison-overlap]
    assert len({*BUILT_IN, *[pickle.loads(pickle.dumps(init)) for init in BUILT_IN]}) == 7
    with pytest.raises(AttributeError):
        Uniform().low = 1.0  # type: ignore[misc]


def test_repr() -> None:
    assert repr(TruncatedNormal()) == "TruncatedNormal(mean=0.0, stddev=None)"
    assert repr(Normal(1, np.float64(2))) == "Normal(mean=1.0, stddev=2.0)"
    assert repr(Uniform()) == "Uniform(low=-0.05, high=0.05)"
    assert repr(Constant(3)) == "Constant(value=3)"
    assert repr(Zeros()) == "Zeros()"
    assert repr(RowId(np.int64(4))) == "RowId(offset=4)"  # type: ignore[arg-type]
    assert repr(as_initializer(np.zeros((2, 3)), (2, 3))) == (
        "<rows of an array of shape (2, 3), dtype float64>"
    )


@pytest.mark.parametrize(
    ("make", "arguments", "kind", "message"),
    [
        (
            TruncatedNormal,
            {"mean": "0"},
            ShardcoreTypeError,
            "mean must be a finite number, got '0'",
        ),
        (
            TruncatedNormal,
            {"mean": math.nan},
            ShardcoreValueError,
            "mean must be a finite number, got nan",
        ),
        (TruncatedNormal, {"stddev": 0}, ShardcoreValueError, "stddev must be > 0, got 0.0"),
        (
            TruncatedNormal,
            {"stddev": True},
            ShardcoreTypeError,
            "stddev must be a finite number, got True",
        ),
        (Normal, {"stddev": -1.5}, ShardcoreValueError, "stddev must be > 0, got -1.5"),
        (Normal, {"stddev": None}, ShardcoreTypeError, "stddev must be a finite number, got None"),
        (
            Normal,
            {"stddev": math.inf},
            ShardcoreValueError,
            "stddev must be a finite number, got inf",
        ),
        (Normal, {"mean": 1j}, ShardcoreTypeError, "mean must be a finite number, got 1j"),
        (
            Normal,
            {"mean": 10**400},
            ShardcoreValueError,
            f"mean must be a finite number, got {10**400}",
        ),
        (
            Uniform,
            {"low": 0.1},
            ShardcoreValueError,
            "low must be below high, got low = 0.1, high = 0.05",
        ),
        (
            Uniform,
            {"low": 1, "high": 1},
            ShardcoreValueError,
            "low must be below high, got low = 1.0, high = 1.0",
        ),
        (Uniform, {"high": math.nan}, ShardcoreValueError, "high must be a finite number, got nan"),
        (
            Uniform,
            {"low": -1e308, "high": 1e308},
            ShardcoreValueError,
            "high - low must be finite, got low = -1e+308, high = 1e+308",
        ),
        (Constant, {"value": [1]}, ShardcoreTypeError, "value must be a finite number, got [1]"),
        (
            Constant,
            {"value": -math.inf},
            ShardcoreValueError,
            "value must be a finite number, got -inf",
        ),
        (RowId, {"offset": 1.0}, ShardcoreTypeError, "offset must be an integer, got 1.0"),
        (RowId, {"offset": 2**63}, ShardcoreValueError, f"offset must fit int64, got {2**63}"),
    ],
)
def test_construction_refuses(
    make: Any, arguments: dict[str, Any], kind: type[ShardcoreError], message: str
) -> None:
    with refuses(kind, message):
        make(**arguments)


@pytest.mark.parametrize("init", BUILT_IN, ids=repr)
@pytest.mark.parametrize(
    ("rows", "row_shape", "seed", "kind", "message"),
    [
        (
            [[1]],
            (2,),
            0,
            ShardcoreTypeError,
            "rows must be an integer array of rank 1, got dtype int64, shape (1, 1)",
        ),
        (
            [1.5],
            (2,),
            0,
            ShardcoreTypeError,
            "rows must be an integer array of rank 1, got dtype float64, shape (1,)",
        ),
        (
            [True],
            (2,),
            0,
            ShardcoreTypeError,
            "rows must be an integer array of rank 1, got dtype bool, shape (1,)",
        ),
        (
            [[1], [1, 2]],
            (2,),
            0,
            ShardcoreTypeError,
            "rows must be an integer array of rank 1, got list",
        ),
        (
            None,
            (2,),
            0,
            ShardcoreTypeError,
            "rows must be an integer array of rank 1, got NoneType",
        ),
        ([4, -1], (2,), 0, ShardcoreValueError, "rows must be in [0, 2**63): rows[1] = -1"),
        (
            np.array([4, 2**63], np.uint64),
            (2,),
            0,
            ShardcoreValueError,
            f"rows must be in [0, 2**63): rows[1] = {2**63}",
        ),
        ([4], 2, 0, ShardcoreTypeError, "row_shape must be a sequence of integers >= 0, got 2"),
        ([4], (2, -2), 0, ShardcoreValueError, "row_shape[1] must be an integer >= 0, got -2"),
        ([4], (2,), -1, ShardcoreValueError, "seed must be an integer in [0, 2**64), got -1"),
        (
            [4],
            (2,),
            2**64,
            ShardcoreValueError,
            f"seed must be an integer in [0, 2**64), got {2**64}",
        ),
        ([4], (2,), True, ShardcoreTypeError, "seed must be an integer in [0, 2**64), got True"),
        ([4], (2,), None, ShardcoreTypeError, "seed must be an integer in [0, 2**64), got None"),
    ],
)
def test_call_refuses(
    init: Any, rows: Any, row_shape: Any, seed: Any, kind: type[ShardcoreError], message: str
) -> None:
    with refuses(kind, message):
        init(rows, row_shape, "float32", seed)


@pytest.mark.parametrize("init", RANDOM, ids=repr)
def test_random_numbers_are_floats(init: Any) -> None:
    with refuses(
        ShardcoreTypeError, "dtype must be float32, float64, float16 or bfloat16, got 'int32'"
    ):
        init([0], (1,), "int32", 0)


@pytest.mark.parametrize("init", [Zeros(), RowId(), Constant(1)], ids=repr)
def test_other_values_are_floats_or_integers(init: Any) -> None:
    with refuses(
        ShardcoreTypeError,
        f"dtype must be float32, float64, float16, bfloat16 or an integer for {init!r}, got 'bool'",
    ):
        init([0], (1,), "bool", 0)


@pytest.mark.parametrize(
    ("init", "rows", "dtype", "message"),
    [
        (
            Constant(1e39),
            [0],
            "float32",
            "Constant(value=1e+39) gives 1e+39, which does not fit float32",
        ),
        (
            Constant(3.4e38),
            [0],
            "float16",
            "Constant(value=3.4e+38) gives 3.4e+38, which does not fit float16",
        ),
        (
            Constant(1e39),
            [0],
            "bfloat16",
            "Constant(value=1e+39) gives 1e+39, which does not fit bfloat16",
        ),
        (Constant(0.5), [0], "int32", "Constant(value=0.5) gives 0.5, which does not fit int32"),
        (Constant(128), [0], "int8", "Constant(value=128) gives 128, which does not fit int8"),
        (RowId(), [1, 70000], "float16", "RowId(offset=0) gives 70000, which does not fit float16"),
        (RowId(-3), [5, 1], "uint8", "RowId(offset=-3) gives -2, which does not fit uint8"),
        (
            RowId(5),
            [2**63 - 1],
            "float32",
            f"RowId(offset=5) gives {2**63 + 4}, which does not fit int64",
        ),
        (
            Uniform(0, 1e5),
            [1],
            "float16",
            "Uniform(low=0.0, high=100000.0) gives 100000.0, which does not fit float16",
        ),
        (
            TruncatedNormal(0.0, 4e4),
            [1],
            "float16",
            "TruncatedNormal(mean=0.0, stddev=40000.0) gives -80000.0, which does not fit float16",
        ),
        (
            Normal(0.0, 1e308),
            [1],
            "float64",
            "Normal(mean=0.0, stddev=1e+308) gives -inf, which does not fit float64",
        ),
    ],
)
def test_values_that_do_not_fit(init: Any, rows: list[int], dtype: str, message: str) -> None:
    with refuses(ShardcoreValueError, message):
        init(rows, (2,), dtype, 0)


# --- fill, blocks, as_initializer ---------------------------------------------------------------


@pytest.mark.parametrize("block_rows", [None, 1, 4, 100])
def test_fill_is_the_initializer_on_the_shards_rows(block_rows: int | None) -> None:
    rows = np.arange(5, 60, 6)
    shard = np.empty((len(rows), 3), np.float32)
    fill(shard, Normal(), rows, 7, block_rows)
    np.testing.assert_array_equal(shard, Normal()(rows, (3,), "float32", 7))
    fill(shard, Normal(), range(5, 60, 6), 7, block_rows)
    np.testing.assert_array_equal(shard, Normal()(rows, (3,), "float32", 7))


def test_fill_takes_strided_shards_and_empty_ones() -> None:
    shard = np.zeros((4, 6), np.float32)[:, ::2]
    fill(shard, RowId(), range(4), 0)
    assert shard[:, 0].tolist() == [0, 1, 2, 3]
    fill(np.empty((0, 6), np.float32), Normal(), range(0), 0)
    fill(np.empty((3, 0), np.float32), Normal(), range(3), 0)


def test_blocks_hold_a_mebibyte() -> None:
    sizes = []

    def init(rows: Any, row_shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
        assert rows.dtype == np.int64
        assert not rows.flags.writeable
        sizes.append(len(rows))
        return np.zeros((len(rows), *row_shape), dtype)

    fill(np.empty((10_000, 64), np.float32), init, range(10_000), 0)
    assert sizes == [4096, 4096, 1808]
    sizes.clear()
    fill(np.empty((2, 1 << 19), np.float32), init, range(2), 0)
    assert sizes == [1, 1]


def test_what_a_callable_returns_is_cast() -> None:
    def integers(rows: Any, row_shape: Any, dtype: Any, seed: int) -> Any:
        return [[int(row)] * row_shape[0] for row in rows]

    for dtype in FLOATS:
        shard = np.empty((3, 2), BFLOAT16 if dtype == "bfloat16" else dtype)
        fill(shard, integers, range(3), 0)
        assert shard.astype(float).tolist() == [[0, 0], [1, 1], [2, 2]]


def returns(value: Any) -> Initializer:
    class Returns:
        def __call__(self, rows: Any, row_shape: Any, dtype: Any, seed: int, /) -> Any:
            return value

        def __repr__(self) -> str:
            return "mine"

    return Returns()


@pytest.mark.parametrize(
    ("value", "dtype", "kind", "message"),
    [
        (
            np.zeros((3, 2)),
            "float32",
            ShardcoreValueError,
            "initializer mine must return shape (2, 2) for 2 rows of shape (2,), got (3, 2)",
        ),
        (
            np.zeros((2, 2), complex),
            "float32",
            ShardcoreTypeError,
            "initializer mine returned dtype complex128, "
            "which does not cast to float32 within the same kind",
        ),
        (
            np.zeros((2, 2)),
            "int32",
            ShardcoreTypeError,
            "initializer mine returned dtype float64, "
            "which does not cast to int32 within the same kind",
        ),
        (
            None,
            "float32",
            ShardcoreTypeError,
            "initializer mine must return an array, got NoneType",
        ),
        (
            [[1, 2], [3]],
            "float32",
            ShardcoreTypeError,
            "initializer mine must return an array, got list",
        ),
        (
            np.array([[1.0, 2.0], [1e300, math.inf]]),
            "float32",
            ShardcoreValueError,
            "initializer mine returned 1e+300 for row 11, which does not fit float32",
        ),
        (
            np.array([[1.0, 2.0], [3.0, 1e39]]),
            "bfloat16",
            ShardcoreValueError,
            "initializer mine returned 1e+39 for row 11, which does not fit bfloat16",
        ),
        (
            np.array([[1, 70000], [3, 4]]),
            "float16",
            ShardcoreValueError,
            "initializer mine returned 70000 for row 10, which does not fit float16",
        ),
        (
            np.array([[1, 300], [3, 4]]),
            "int8",
            ShardcoreValueError,
            "initializer mine returned 300 for row 10, which does not fit int8",
        ),
        (
            np.array([["a", "b"], ["c", "long"]]),
            "U2",
            ShardcoreValueError,
            "initializer mine returned long for row 11, which does not fit str64",
        ),
    ],
)
def test_what_a_callable_returns_is_checked(
    value: Any, dtype: str, kind: type[ShardcoreError], message: str
) -> None:
    shard = np.empty((2, 2), BFLOAT16 if dtype == "bfloat16" else dtype)
    with refuses(kind, message):
        fill(shard, returns(value), range(10, 12), 0)


def test_infinite_values_of_the_user_pass() -> None:
    shard = np.empty(3, np.float16)
    fill(shard, as_initializer([math.inf, -math.inf, math.nan], (3,)), range(3), 0)
    np.testing.assert_array_equal(shard, [math.inf, -math.inf, math.nan])


def test_fill_refuses() -> None:
    shard = np.empty((2, 2), np.float32)
    with refuses(ShardcoreValueError, "global_rows must have one id per row of out, got 3 for 2"):
        fill(shard, Zeros(), range(3), 0)
    with refuses(ShardcoreValueError, "global_rows must be >= 0, got range(-1, 1)"):
        fill(shard, Zeros(), range(-1, 1), 0)
    with refuses(ShardcoreValueError, "global_rows must be in [0, 2**63): global_rows[0] = -1"):
        fill(shard, Zeros(), np.array([-1, 0]), 0)
    with refuses(ShardcoreValueError, "block_rows must be an integer >= 1, got 0"):
        fill(shard, Zeros(), range(2), 0, block_rows=0)
    with refuses(ShardcoreValueError, "seed must be an integer in [0, 2**64), got -1"):
        fill(shard, returns(shard), range(2), -1)
    with refuses(ShardcoreTypeError, "out must be an array of rank 1 or more, got [1]"):
        fill([1], Zeros(), range(1), 0)  # type: ignore[arg-type]


def test_blocks_check_their_arguments_before_the_first() -> None:
    with refuses(ShardcoreValueError, "block_rows must be an integer >= 1, got -1"):
        blocks(Zeros(), (2,), np.dtype("float32"), range(2), 0, block_rows=-1)


def test_an_array_is_an_initializer() -> None:
    array = np.arange(12.0).reshape(4, 3)
    init = as_initializer(array, (4, 3), "float32")
    shard = np.empty((2, 3), np.float32)
    fill(shard, init, np.array([3, 1]), 0)
    np.testing.assert_array_equal(shard, array[[3, 1]])
    assert as_initializer(Zeros(), (4, 3)) == Zeros()
    fill(shard, as_initializer([[1, 2, 3], [4, 5, 6]], (2, 3), "bfloat16"), range(2), 0)
    assert shard.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_as_initializer_refuses() -> None:
    with refuses(ShardcoreValueError, "shape must have at least one axis, got ()"):
        as_initializer(Zeros(), ())
    with refuses(
        ShardcoreTypeError, "initializer must be an instance, got the class Zeros; write Zeros()"
    ):
        as_initializer(Zeros, (2,))  # type: ignore[arg-type]
    with refuses(ShardcoreTypeError, "initializer must be a callable or an array, got NoneType"):
        as_initializer(None, (2,))  # type: ignore[arg-type]
    with refuses(
        ShardcoreValueError,
        "initializer must have the full shape (4, 3), got an array of shape (3, 4)",
    ):
        as_initializer(np.zeros((3, 4)), (4, 3))
    with refuses(
        ShardcoreTypeError,
        "initializer has dtype complex128, which does not cast to float32 within the same kind",
    ):
        as_initializer(np.zeros(2, complex), (2,), "float32")
    with refuses(
        ShardcoreIndexError, "rows[1] = 2 is outside the initial values: must be in [0, 2)"
    ):
        fill(np.empty(2), as_initializer([1.0, 2.0], (2,)), np.array([0, 2]), 0)
