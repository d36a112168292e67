"""Ragged and Sparse: what they hold, how they are made, and every message they refuse with."""

from __future__ import annotations

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse
from shardcore.validation.arrays import as_ids, read_array, read_numbers

BAGS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), max_size=8)


def refuses(error: type[Exception], text: str):
    return pytest.raises(error, match="^" + re.escape(text))


# -- what a Ragged holds ------------------------------------------------------------------------


def test_arrays_of_the_right_dtype_are_adopted_not_copied():
    values, row_splits = np.arange(3), np.array([0, 2, 3])
    weights = np.ones(3, np.float32)
    r = Ragged(values, row_splits, weights)
    assert r.values is values or np.shares_memory(r.values, values)
    assert np.shares_memory(r.row_splits, row_splits)
    assert r.weights is not None
    assert np.shares_memory(r.weights, weights)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "u4", "u8", "i8", ">i8", ">u2"])
def test_every_integer_type_but_int32_becomes_int64(dtype):
    r = Ragged(np.array([1, 100], dtype), np.array([0, 2], dtype))
    assert r.values.dtype == np.int64
    assert r.row_splits.dtype == np.int64
    assert r.to_lists() == [[1, 100]]


def test_int32_stays():
    assert Ragged(np.array([1, 2], np.int32), [0, 2]).values.dtype == np.int32


def test_strided_and_read_only_values():
    values = np.arange(10)[::-2]
    values.flags.writeable = False
    r = Ragged(values, [0, 5])
    assert r.to_lists() == [[9, 7, 5, 3, 1]]
    assert r.values.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_float_values_and_weights_keep_their_type(dtype):
    numbers = np.array([0.5, -2.0], dtype)
    r = Ragged(numbers, [0, 2], numbers)
    assert r.values.dtype == dtype
    assert r.weights is not None
    assert r.weights.dtype == dtype


def test_integer_weights_become_float64():
    r = Ragged([1, 2], [0, 2], [3, 4])
    assert r.weights is not None
    assert r.weights.dtype == np.float64
    assert r.weights.tolist() == [3.0, 4.0]


def test_big_endian_weights_become_native():
    weights = Ragged([1], [0, 1], np.array([0.5], ">f4")).weights
    assert weights is not None
    assert weights.dtype == np.float32
    assert weights.dtype.isnative


def test_sizes():
    r = Ragged([7, 7, 1], [0, 2, 2, 3])
    assert len(r) == r.num_bags == 3
    assert r.lengths().tolist() == [2, 0, 1]
    empty = Ragged([], [0])
    assert len(empty) == 0
    assert empty.values.dtype == np.int64
    assert empty.to_lists() == []


def test_frozen():
    r = Ragged([1], [0, 1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        r.values = np.array([2])  # type: ignore[misc]


def test_equality_is_by_value():
    r = Ragged([7, 7, 1], [0, 2, 3])
    assert r == Ragged(np.array([7, 7, 1], np.int32), [0, 2, 3])
    assert r != Ragged([7, 7, 2], [0, 2, 3])
    assert r != Ragged([7, 7, 1], [0, 1, 3])
    assert r != Ragged([7.0, 7.0, 1.0], [0, 2, 3])
    assert r != Ragged([7, 7, 1], [0, 2, 3], [1, 1, 1])
    assert Ragged([1], [0, 1], [0.5]) == Ragged([1], [0, 1], [0.5])
    assert Ragged([1], [0, 1], [0.5]) != Ragged([1], [0, 1], [0.25])
    assert r != [[7, 7], [1]]


def test_unhashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Ragged([1], [0, 1]))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Sparse([[0, 0]], [1], (1, 1)))


def test_repr():
    assert repr(Ragged([7, 7, 1], [0, 2, 2, 3])) == "Ragged([[7, 7], [], [1]], dtype=int64)"
    assert (
        repr(Ragged([7], [0, 1], np.array([0.5], np.float32)))
        == "Ragged([[7]], dtype=int64, weights=[0.5])"
    )
    assert repr(Ragged(np.arange(20, dtype=np.int32), [0, 10, *range(11, 21)])) == (
        "Ragged([[0, 1, 2, 3, 4, 5, 6, 7, ...], [10], [11], [12], [13], [14], ...], "
        "num_bags=11, dtype=int32)"
    )


# -- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (np.zeros((2, 1), int), ShardcoreValueError, "values must have rank 1, got shape (2, 1)"),
        (np.array([True]), ShardcoreTypeError,
         "values must be integers or real floats, got dtype bool"),
        (np.array(["a"]), ShardcoreTypeError,
         "values must be integers or real floats, got dtype <U1"),
        (np.array([1j]), ShardcoreTypeError,
         "values must be integers or real floats, got dtype complex128"),
        (
            np.array([1], np.longdouble),
            ShardcoreTypeError,
            "values must be float16, bfloat16, float32 or float64, got dtype",
        ),
        (
            np.array([3, 2**63], np.uint64),
            ShardcoreValueError,
            "values[1] = 9223372036854775808 does not fit int64",
        ),
        ([3, 2**64], ShardcoreValueError, "values[1] = 18446744073709551616 does not fit int64"),
        ([-1, 2**63], ShardcoreValueError, "values[1] = 9223372036854775808 does not fit int64"),
        ([0.5, 10**400], ShardcoreValueError, "values[1] = 1000"),
        ([3, True], ShardcoreTypeError, "values[1] must be a number, got True"),
        ([3, np.True_], ShardcoreTypeError, "values[1] must be a number, got np.True_"),
        ([3, "a"], ShardcoreTypeError, "values[1] must be a number, got 'a'"),
        ([3, None], ShardcoreTypeError, "values[1] must be a number, got None"),
        (7, ShardcoreTypeError, "values must be an array, got int"),
        (
            np.ma.masked_array([1], [True]),
            ShardcoreTypeError,
            "values must not be a masked array: its mask would be lost; "
            "fill it and use sc.Ragged.from_dense(x, padding=...)",
        ),
    ],
)  # fmt: skip
def test_refused_values(values, error, text):
    with refuses(error, text):
        Ragged(values, [0, 2])


@pytest.mark.parametrize(
    ("row_splits", "error", "text"),
    [
        ([0, 2, 1, 3], ShardcoreValueError,
         "row_splits must be non-decreasing: row_splits[2] = 1 < row_splits[1] = 2"),
        ([1, 3], ShardcoreValueError, "row_splits must start at 0"),
        ([0, 2], ShardcoreValueError, "row_splits must end at the number of values, 3"),
        ([[0, 3]], ShardcoreValueError, "row_splits must be of rank 1"),
        ([0.0, 3.0], ShardcoreTypeError, "row_splits must be integers, got dtype float64"),
        ([False, 3], ShardcoreTypeError, "row_splits[0] must be a number, got False"),
        (3, ShardcoreTypeError, "row_splits must be an array, got int"),
    ],
)  # fmt: skip
def test_refused_row_splits(row_splits, error, text):
    with refuses(error, text):
        Ragged([1, 2, 3], row_splits)


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ([0.5], ShardcoreValueError,
         "weights must have a weight per value, shape (2,), got shape (1,)"),
        ([[1.0], [2.0]], ShardcoreValueError,
         "weights must have a weight per value, shape (2,), got shape (2, 1)"),
        (np.array([True, False]), ShardcoreTypeError,
         "weights must be float16, bfloat16, float32 or float64, got dtype bool"),
        (np.array([1j, 1j]), ShardcoreTypeError,
         "weights must be float16, bfloat16, float32 or float64, got dtype complex128"),
    ],
)  # fmt: skip
def test_refused_weights(weights, error, text):
    with refuses(error, text):
        Ragged([1, 2], [0, 2], weights)


# -- constructors -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(BAGS)
def test_from_lists_and_back(bags):
    r = Ragged.from_lists(bags)
    assert r.to_lists() == bags
    assert r.values.dtype == np.int64
    assert Ragged.from_lengths(r.values, r.lengths()) == r


@settings(max_examples=60, deadline=None)
@given(BAGS.filter(len), st.randoms(use_true_random=False))
def test_from_coo_keeps_the_order_inside_bags_whatever_the_order_of_rows(bags, random):
    pairs = [(b, position) for b, bag in enumerate(bags) for position in range(len(bag))]
    # A merge of the bags in random order: each bag's own order stays.
    order = [b for b, _ in pairs]
    random.shuffle(order)
    seen = dict.fromkeys(range(len(bags)), 0)
    row_ids, values, weights = [], [], []
    for b in order:
        row_ids.append(b)
        values.append(bags[b][seen[b]])
        weights.append(float(10 * b + seen[b]))
        seen[b] += 1
    r = Ragged.from_coo(row_ids, values, len(bags), weights)
    assert r.to_lists() == bags
    assert r.weights is not None
    assert r.weights.tolist() == [10.0 * b + position for b, position in pairs]


def test_from_lists_takes_tuples_and_arrays_as_bags_and_floats():
    assert Ragged.from_lists(([1], (2, 3), np.array([4], np.uint8))).to_lists() == [
        [1],
        [2, 3],
        [4],
    ]
    assert Ragged.from_lists([[1, 2.5], []]).values.dtype == np.float64
    assert Ragged.from_lists([[np.uint64(2**63 - 1), -3]]).to_lists() == [[2**63 - 1, -3]]
    assert Ragged.from_lists([[], np.array([])]).values.dtype == np.int64
    assert Ragged.from_lists([]).num_bags == 0


@pytest.mark.parametrize(
    ("lists", "error", "text"),
    [
        (np.zeros((2, 2)), ShardcoreTypeError, "lists must be a list of bags, got ndarray"),
        ("ab", ShardcoreTypeError, "lists must be a list of bags, got str"),
        ([[1], 2], ShardcoreTypeError, "lists[1] must be a bag, a list of integers, got 2"),
        ([[1], "ab"], ShardcoreTypeError, "lists[1] must be a bag, a list of integers, got 'ab'"),
        ([[1], np.int64(2)], ShardcoreTypeError,
         "lists[1] must be a bag, a list of integers, got np.int64(2)"),
        ([[1], None], ShardcoreTypeError, "lists[1] must be a bag, a list of integers, got None"),
        ([[], [1], [], [2, [3]]], ShardcoreTypeError, "lists[3][1] must be a number, got [3]"),
        ([[1, True]], ShardcoreTypeError, "lists[0][1] must be a number, got True"),
        ([[1], [2, 2**63]], ShardcoreValueError,
         "lists[1][1] = 9223372036854775808 does not fit int64"),
        ([[1], np.zeros((1, 2))], ShardcoreValueError,
         "lists[1] must have rank 1, got shape (1, 2)"),
        ([np.array(["2020-01-01"], "M8[ns]")], ShardcoreTypeError,
         "lists[0] must be numbers, got dtype datetime64[ns]"),
    ],
)  # fmt: skip
def test_refused_lists(lists, error, text):
    with refuses(error, text):
        Ragged.from_lists(lists)


def test_from_dense():
    assert Ragged.from_dense(np.array([5, 6])).to_lists() == [[5], [6]]
    assert Ragged.from_dense(np.arange(8).reshape(2, 2, 2)).to_lists() == [
        [0, 1], [2, 3], [4, 5], [6, 7],
    ]  # fmt: skip
    x = np.arange(6).reshape(2, 3)
    assert np.shares_memory(Ragged.from_dense(x).values, x)
    assert Ragged.from_dense(x.T).to_lists() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("shape", "bags"), [((0,), 0), ((3, 0), 3), ((0, 3), 0), ((2, 0, 4), 0), ((2, 3, 0), 6)]
)
def test_from_dense_of_nothing(shape, bags):
    for padding in (None, 0):
        r = Ragged.from_dense(np.zeros(shape, np.int64), padding=padding)
        assert r.num_bags == bags
        assert r.values.size == 0


def test_from_dense_leaves_padding_out_but_not_its_bags():
    x = [[5, -1, 6], [-1, -1, -1], [-1, 7, -1]]
    assert Ragged.from_dense(x, padding=-1).to_lists() == [[5, 6], [], [7]]
    assert Ragged.from_dense(np.array([4, 0, 5]), padding=0).to_lists() == [[4], [], [5]]
    top = np.array([[2**64 - 1, 3]], np.uint64)
    assert Ragged.from_dense(top, padding=2**64 - 1).to_lists() == [[3]]
    assert Ragged.from_dense(np.array([[1, 2]], np.uint8), padding=-1).to_lists() == [[1, 2]]


def test_from_dense_refusals():
    with refuses(ShardcoreValueError, "x must have rank >= 1, got the scalar"):
        Ragged.from_dense(np.array(3))
    with refuses(ShardcoreTypeError, "padding must be a number, got '0'"):
        Ragged.from_dense([[1]], padding="0")  # type: ignore[arg-type]
    with refuses(ShardcoreTypeError, "padding must be a number, got True"):
        Ragged.from_dense([[1]], padding=True)
    with refuses(ShardcoreTypeError, "x[0] must be a number, got [1, 2]"):
        Ragged.from_dense([[1, 2], [3]])
    with refuses(ShardcoreTypeError, "x[1, 0] must be a number, got None"):
        Ragged.from_dense([[1, 2], [None, 3]])
    with refuses(ShardcoreTypeError, "x must be an array, got int"):
        Ragged.from_dense(3)


def test_from_lengths_refusals():
    with refuses(ShardcoreValueError, "lengths must add up to the number of values, 3, got 2"):
        Ragged.from_lengths([1, 2, 3], [1, 1])
    with refuses(ShardcoreValueError, "lengths must be >= 0, got lengths[1] = -1"):
        Ragged.from_lengths([1, 2, 3], [4, -1])
    with refuses(ShardcoreTypeError, "lengths must be integers, got dtype float64"):
        Ragged.from_lengths([1], [1.0])
    assert Ragged.from_lengths([1, 2], [0, 2], [0.5, 1]) == Ragged([1, 2], [0, 0, 2], [0.5, 1])


@pytest.mark.parametrize(
    ("row_ids", "num_rows", "error", "text"),
    [
        ([0, 3], 3, ShardcoreIndexError, "row_ids[1] = 3 must be in [0, 3)"),
        ([2, -1], 3, ShardcoreIndexError, "row_ids[1] = -1 must be in [0, 3)"),
        ([0], 3, ShardcoreValueError,
         "row_ids must have a row per value, shape (2,), got shape (1,)"),
        ([0.0, 1.0], 3, ShardcoreTypeError, "row_ids must be integers, got dtype float64"),
        ([0, 1], -1, ShardcoreValueError, "num_rows must be an integer >= 0, got -1"),
        ([0, 1], True, ShardcoreTypeError, "num_rows must be an integer >= 0, got True"),
        ([0, 1], 3.0, ShardcoreTypeError, "num_rows must be an integer >= 0, got 3.0"),
    ],
)  # fmt: skip
def test_from_coo_refusals(row_ids, num_rows, error, text):
    with refuses(error, text):
        Ragged.from_coo(row_ids, [7, 8], num_rows)


def test_from_coo_keeps_empty_rows_and_does_not_copy_sorted_values():
    values = np.array([7, 8])
    r = Ragged.from_coo([0, 2], values, 5)
    assert r.to_lists() == [[7], [], [8], [], []]
    assert np.shares_memory(r.values, values)
    assert Ragged.from_coo([], [], 2).to_lists() == [[], []]


# -- Sparse -------------------------------------------------------------------------------------


def test_sparse_holds_and_compares():
    s = Sparse([[0, 0], [2, 1]], np.array([7, 5], np.int32), np.array([4, 2]))
    assert s.dense_shape == (4, 2)
    assert s.values.dtype == np.int32
    assert repr(s) == "Sparse(2 values, dense_shape=(4, 2))"
    assert s == Sparse([[0, 0], [2, 1]], [7, 5], [4, 2])
    assert s != Sparse([[0, 0], [2, 1]], [7, 5], [5, 2])
    assert s != Sparse([[0, 0], [2, 0]], [7, 5], [4, 2])
    assert s != Sparse([[0, 0], [2, 1]], [7, 6], [4, 2])
    assert s != "Sparse"
    weights = Sparse([[0, 0], [2, 1]], [0.5, 2.0], (4, 2))
    assert weights.values.tolist() == [0.5, 2.0]
    assert Sparse(np.zeros((0, 2)), [], (3, 0)).values.size == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.values = np.array([2])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("indices", "values", "dense_shape", "error", "text"),
    [
        ([[0, 0]], [1], (3,), ShardcoreValueError, "dense_shape must have rank >= 2, got (3,)"),
        ([[0, 0]], [1], 3, ShardcoreTypeError,
         "dense_shape must be a sequence of integers >= 0, got 3"),
        ([[0, 0]], [1], (3, -1), ShardcoreValueError,
         "dense_shape[1] must be an integer >= 0, got -1"),
        ([[0, 0]], [1], (3, 2.0), ShardcoreTypeError,
         "dense_shape[1] must be an integer >= 0, got 2.0"),
        ([[0, 0]], np.array([1j]), (3, 2), ShardcoreTypeError,
         "values must be integers or real floats, got dtype complex128"),
        ([[0, 0]], [[1]], (3, 2), ShardcoreValueError, "values must have rank 1, got shape (1, 1)"),
        ([[0, 0, 0]], [1], (3, 2), ShardcoreValueError,
         "indices must have a row per value and a column per axis of dense_shape, "
         "shape (1, 2), got shape (1, 3)"),
        ([[0, 0], [3, 1]], [1, 2], (3, 2), ShardcoreIndexError,
         "indices[1, 0] = 3 must be in [0, 3), dense_shape is (3, 2)"),
        ([[0, 0], [2, -1]], [1, 2], (3, 2), ShardcoreIndexError,
         "indices[1, 1] = -1 must be in [0, 2), dense_shape is (3, 2)"),
        ([[0.0, 0.0]], [1], (3, 2), ShardcoreTypeError,
         "indices must be integers, got dtype float64"),
    ],
)  # fmt: skip
def test_sparse_refusals(indices, values, dense_shape, error, text):
    with refuses(error, text):
        Sparse(indices, values, dense_shape)


# -- arrays -------------------------------------------------------------------------------------


def test_read_numbers_keeps_what_numpy_would_turn_into_floats():
    assert read_numbers([np.uint64(5), np.int64(-3)], str).dtype == np.int64
    assert read_numbers([2**53 + 1], str)[0] == 2**53 + 1
    assert read_numbers([], str).dtype == np.int64


def test_read_array_names_the_owner_s_reason():
    class OnDevice:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("can't convert cuda:0 tensor")

    with refuses(
        ShardcoreTypeError,
        "ids cannot be read as a NumPy array: RuntimeError: can't convert cuda:0 tensor",
    ):
        read_array(OnDevice(), "ids")


def test_as_ids_of_nothing_does_not_ask_for_the_dtype():
    assert as_ids(np.zeros((0, 3)), "ids").shape == (0, 3)
    assert as_ids(np.array([]), "ids").dtype == np.int64


def test_read_array_of_a_list_that_is_no_array():
    with refuses(ShardcoreValueError, "x must be a regular nested list: "):
        read_array([np.zeros((2, 1)), np.zeros((2, 2))], "x")
