"""Row splits, lengths and row ids: equal to their twins, and every error."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import offsets as kernel
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.row_splits import (
    check_row_splits,
    lengths_from_row_splits,
    row_ids_from_row_splits,
    row_splits_from_lengths,
    row_splits_from_offsets,
    row_splits_from_row_ids,
)
from shardcore.validation.integers import integers, place_in

LENGTHS = st.lists(st.integers(0, 5), max_size=30)
LARGEST = 2**63 - 1


def as_given(numbers: Any, form: str) -> Any:
    """Return the numbers in one of the forms that a face has to take."""
    if form == "list":
        return list(numbers)
    if form == "unaligned":
        raw = np.zeros(8 * len(numbers) + 1, np.uint8)[1:].view(np.int64)
        raw[...] = numbers
        return raw
    if form == "strided":
        return np.repeat(np.array(numbers, np.int64), 2)[::2]
    array = np.array(numbers, form)
    array.flags.writeable = False
    return array


FORMS = st.sampled_from(
    ["list", "int32", "int64", "uint8", ">i8", "uint64", "strided", "unaligned"]
)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, form=FORMS)
def test_all_three_ways_equal_their_twins(lengths: list[int], form: str) -> None:
    splits = row_splits_from_lengths(as_given(lengths, form))
    np.testing.assert_array_equal(splits, reference.row_splits_from_lengths(lengths), strict=True)
    given_splits = as_given(splits.tolist(), form)
    back = lengths_from_row_splits(given_splits)
    np.testing.assert_array_equal(back, reference.lengths_from_row_splits(splits), strict=True)
    np.testing.assert_array_equal(back, np.array(lengths, np.int64), strict=True)
    row_ids = row_ids_from_row_splits(given_splits)
    np.testing.assert_array_equal(row_ids, reference.row_ids_from_row_splits(splits), strict=True)
    given_ids = as_given(row_ids.tolist(), form)
    again = row_splits_from_row_ids(given_ids, len(lengths))
    np.testing.assert_array_equal(
        again, reference.row_splits_from_row_ids(row_ids, len(lengths)), strict=True
    )
    np.testing.assert_array_equal(again, splits, strict=True)
    checked = check_row_splits(given_splits, sum(lengths))
    np.testing.assert_array_equal(checked, splits, strict=True)


def test_lengths_may_sum_to_the_largest_integer() -> None:
    splits = row_splits_from_lengths([LARGEST - 2, 0, 2])
    assert splits.tolist() == [0, LARGEST - 2, LARGEST - 2, LARGEST]
    assert lengths_from_row_splits(splits).tolist() == [LARGEST - 2, 0, 2]


def test_integers_are_copied_only_where_they_must_be() -> None:
    fit = np.arange(3)
    assert integers(fit, "ids") is fit
    assert integers(fit.astype(np.int32), "ids").dtype == np.int32
    assert integers(np.array(7), "ids").shape == ()
    assert integers(np.arange(6).reshape(2, 3).T, "ids").flags.c_contiguous
    assert integers(as_given([1, 2], "unaligned"), "ids").flags.aligned
    assert integers([], "ids").dtype == np.int64
    assert integers(np.array([LARGEST], np.uint64), "ids").tolist() == [LARGEST]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.5], ShardcoreTypeError, "ids must be integers, got dtype float64"),
        ([True], ShardcoreTypeError, "ids must be integers, got dtype bool"),
        (np.empty(0), ShardcoreTypeError, "ids must be integers, got dtype float64"),
        ([2**64], ShardcoreTypeError, "ids must be integers, got dtype object"),
        (
            [[1], [2, 3]],
            ShardcoreTypeError,
            "ids must be an array of integers, got nested sequences of uneven length",
        ),
        (
            np.array([[0, 1], [2**63, 1]], np.uint64),
            ShardcoreValueError,
            "ids[1, 0] = 9223372036854775808 does not fit int64; hash it first with hash_ids",
        ),
        (
            np.uint64(2**63),
            ShardcoreValueError,
            "ids = 9223372036854775808 does not fit int64; hash it first with hash_ids",
        ),
    ],
)
def test_what_is_no_integer_is_refused(values: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        integers(values, "ids")


@pytest.mark.parametrize(
    ("splits", "values", "message"),
    [
        ([], 0, "splits must hold at least one entry, the leading 0"),
        ([1, 2], 2, "splits must start at 0, got splits[0] = 1"),
        (
            [0, 5, 5, 3],
            3,
            "splits must be non-decreasing: splits[3] = 3 < splits[2] = 5",
        ),
        (
            [0, 2**63 - 1, -(2**63), -1, 3],  # a step down that is 1 in 64 bits
            3,
            f"splits must be non-decreasing: splits[2] = {-(2**63)} < splits[1] = {2**63 - 1}",
        ),
        ([0, 2], 3, "splits must end at the number of values, 3, got splits[1] = 2"),
        ([[0, 1]], 1, "splits must be of rank 1, got shape (1, 2)"),
    ],
)
def test_bad_row_splits_are_refused(splits: Any, values: int, message: str) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        check_row_splits(splits, values, "splits")


@pytest.mark.parametrize("function", [lengths_from_row_splits, row_ids_from_row_splits])
@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([], "row_splits must hold at least one entry, the leading 0"),
        ([-1, 2], "row_splits must start at 0, got row_splits[0] = -1"),
        ([0, 2, 1], "row_splits must be non-decreasing: row_splits[2] = 1 < row_splits[1] = 2"),
        (3, "row_splits must be of rank 1, got shape ()"),
    ],
)
def test_the_ways_back_check_their_row_splits(function: Any, splits: Any, message: str) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        function(splits)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_bad_lengths_are_refused(dtype: Any) -> None:
    with pytest.raises(ShardcoreValueError, match=r"^sizes must be >= 0, got sizes\[1\] = -3$"):
        row_splits_from_lengths(np.array([4, -3], dtype), "sizes")
    with pytest.raises(ShardcoreTypeError, match=r"^lengths must be integers, got dtype float64$"):
        row_splits_from_lengths([0.5])


def test_lengths_that_sum_to_too_much_are_refused() -> None:
    message = "lengths must sum to at most 2**63 - 1, which lengths[2] = 1 makes it exceed"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        row_splits_from_lengths([LARGEST, 0, 1])


@pytest.mark.parametrize(
    ("row_ids", "num_rows", "error", "message"),
    [
        ([0, 3], 3, ShardcoreIndexError, "bags[1] = 3 is out of range: must be in [0, 3)"),
        ([-1], 3, ShardcoreIndexError, "bags[0] = -1 is out of range: must be in [0, 3)"),
        ([0], 0, ShardcoreIndexError, "bags[0] = 0 is out of range: must be in [0, 0)"),
        (
            [2, 2, 1],
            3,
            ShardcoreValueError,
            "bags must be non-decreasing: bags[2] = 1 < bags[1] = 2",
        ),
        ([0], -1, ShardcoreValueError, "num_rows must be an integer >= 0, got -1"),
        ([0], True, ShardcoreTypeError, "num_rows must be an integer >= 0, got True"),
        ([0], 1.0, ShardcoreTypeError, "num_rows must be an integer >= 0, got 1.0"),
        ([[0]], 1, ShardcoreValueError, "bags must be of rank 1, got shape (1, 1)"),
    ],
)
def test_bad_row_ids_are_refused(row_ids: Any, num_rows: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        row_splits_from_row_ids(row_ids, num_rows, "bags")


def test_a_place_is_named_by_its_indices() -> None:
    assert place_in("ids", 0, ()) == "ids"
    assert place_in("ids", np.int64(3), (7,)) == "ids[3]"
    assert place_in("ids", 7, (2, 4)) == "ids[1, 3]"


@settings(max_examples=200, deadline=None)
@given(
    splits=st.lists(st.integers(0, 6), min_size=1, max_size=9)
    | st.lists(st.integers(0, 5), max_size=700).map(lambda steps: [0, *np.cumsum(steps).tolist()]),
    form=FORMS,
    off=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_row_splits_are_taken_or_refused_as_the_rule_says(
    splits: list[int], form: str, off: int
) -> None:
    """The rule, entry by entry: 0 at the start, never less than before, the number at the end."""
    if form == "uint8":
        splits = [min(split, 255) for split in splits]
    given_splits = as_given(splits, form)
    values = splits[-1] + off
    message = None
    if splits[0] != 0:
        message = f"row_splits must start at 0, got row_splits[0] = {splits[0]}"
    else:
        descents = [i for i in range(1, len(splits)) if splits[i] < splits[i - 1]]
        if descents:
            at = descents[0]
            message = (
                f"row_splits must be non-decreasing: row_splits[{at}] = {splits[at]} < "
                f"row_splits[{at - 1}] = {splits[at - 1]}"
            )
        elif off:
            message = (
                f"row_splits must end at the number of values, {values}, got "
                f"row_splits[{len(splits) - 1}] = {splits[-1]}"
            )
    if message is not None:
        with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
            check_row_splits(given_splits, values)
        return
    taken = check_row_splits(given_splits, values)
    np.testing.assert_array_equal(taken, np.array(splits, np.int64), strict=True)
    assert taken.flags.writeable
    assert not isinstance(given_splits, np.ndarray) or not np.shares_memory(taken, given_splits)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("count", [2, 3, 1000])
def test_a_descent_is_found_at_any_place(dtype: Any, count: int) -> None:
    rising = np.arange(count, dtype=dtype)
    assert kernel.first_descent(rising) == -1
    for place in {1, 2, count // 2, count - 1} - {0, count}:
        falling = rising.copy()
        falling[place] = falling[place - 1] - 1
        assert kernel.first_descent(falling) == place


@settings(max_examples=300, deadline=None)
@given(
    offsets=st.lists(
        st.one_of(st.integers(-1, 6), st.sampled_from([LARGEST, -LARGEST - 1, 2**62])), max_size=6
    ),
    rising=st.booleans(),
    first=st.integers(0, 4).map(lambda at: max(at - 3, 0)),
    values=st.integers(0, 6),
    include_last=st.booleans(),
)
def test_offsets_that_are_right_are_row_splits(
    offsets: list[int], rising: bool, first: int, values: int, include_last: bool
) -> None:
    if rising:
        offsets = sorted(min(max(at, 0), values) for at in offsets)
        offsets[:1] = [first][: len(offsets)]
    given_offsets = np.array(offsets, np.int64)
    given_offsets.flags.writeable = False
    found = row_splits_from_offsets(given_offsets, values, include_last)
    twin = reference.row_splits_from_offsets(given_offsets, values, include_last)
    if twin is None:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found, twin, strict=True)
    assert not np.shares_memory(found, given_offsets)


def test_offsets_of_other_forms_are_left_to_others() -> None:
    right = np.array([0, 2, 2, 3])
    assert row_splits_from_offsets(right, 3) is not None
    spread = np.repeat(right, 2)[::2]
    for other in (right.astype(np.int32), spread, right[None], right.astype(float)):
        assert row_splits_from_offsets(other, 3) is None
    for short in (np.empty(4, np.int64), np.empty(5, np.int32), np.empty((1, 5), np.int64)):
        assert not kernel.take_offsets(right, 3, False, short)
    fixed = np.empty(5, np.int64)
    assert kernel.take_offsets(right, 3, False, fixed)
    fixed.flags.writeable = False
    assert not kernel.take_offsets(right, 3, False, fixed)
