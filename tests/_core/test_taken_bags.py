"""Ids in bags, copied and checked by one call: equal to the twin, and refused where it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import taken_bags as kernel
from shardcore.ids.own_arrays import take_bags

IDS, SPLITS = np.array([0, 5, 1]), np.array([0, 2, 3])


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(-1, 5), max_size=6),
    splits=st.lists(st.integers(-1, 6), max_size=4),
    right=st.booleans(),
    dtype=st.sampled_from(["int32", "int64", "uint32", ">i8", "int16", "longlong"]),
    split_dtype=st.sampled_from(["int64", "int64", "int32", "longlong"]),
)
def test_taken_bags_equal_their_twin(
    ids: list[int], splits: list[int], right: bool, dtype: str, split_dtype: str
) -> None:
    if right:
        splits = [0, *sorted(abs(split) % (len(ids) + 1) for split in splits), len(ids)]
        ids = [abs(one) % 5 for one in ids]
    values = np.array(ids, np.int64).astype(dtype)
    row_splits = np.array(splits, np.int64).astype(split_dtype)
    for array in (values, row_splits):
        array.flags.writeable = False
    found, wanted = take_bags(values, row_splits, 5), reference.take_bags(values, row_splits, 5)
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        for own, want, given_array in zip(found, wanted, (values, row_splits), strict=True):
            np.testing.assert_array_equal(own, want)
            assert own.dtype == want.dtype
            assert not np.shares_memory(own, given_array)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_id_outside_is_found_wherever_it_is(dtype: type[Any]) -> None:
    for count in (1, 7, 64, 1_000):
        splits = np.array([0, count])
        ids = np.full(count, 4, dtype)
        assert take_bags(ids, splits, 5) is not None
        for place in {0, count // 2, count - 1}:
            for wrong in (-1, 5, np.iinfo(dtype).min, np.iinfo(dtype).max):
                broken = ids.copy()
                broken[place] = wrong
                assert take_bags(broken, splits, 5) is None


@pytest.mark.parametrize(
    "splits", [[0, 3, 1, 3], [0, 2, 1, 3], [0, 4, 3], [0, 1, 2], [0, 1, 4], [1, 3], [-1, 3]]
)
def test_row_splits_that_go_down_or_miss_an_end_are_refused(splits: list[int]) -> None:
    assert take_bags(IDS, np.array([0, 1, 1, 3]), 6) is not None
    assert take_bags(IDS, np.array(splits), 6) is None
    assert reference.take_bags(IDS, np.array(splits), 6) is None


@pytest.mark.parametrize(
    ("ids", "splits", "own", "own_splits"),
    [
        (IDS.reshape(1, 3), SPLITS, np.zeros((1, 3), int), np.zeros(3, int)),
        (IDS, SPLITS.reshape(1, 3), np.zeros(3, int), np.zeros((1, 3), int)),
        (np.array([0, 9, 5, 9, 1])[::2], SPLITS, np.zeros(3, int), np.zeros(3, int)),
        (IDS, np.array([0, 9, 2, 9, 3])[::2], np.zeros(3, int), np.zeros(3, int)),
        (IDS, SPLITS, np.zeros(2, int), np.zeros(3, int)),
        (IDS, SPLITS, np.zeros(3, int), np.zeros(4, int)),
        (IDS, SPLITS, np.zeros(3, np.int32), np.zeros(3, int)),
        (IDS.astype(np.int32), SPLITS, np.zeros(3, int), np.zeros(3, int)),
        (IDS, SPLITS, np.zeros(3, int), np.zeros(3, np.int32)),
        (IDS, SPLITS, IDS.copy().view(), np.broadcast_to(np.int64(0), 3)),
        (IDS, SPLITS, np.broadcast_to(np.int64(0), 3), np.zeros(3, int)),
        (IDS, SPLITS, np.zeros(3), np.zeros(3, int)),
        (IDS.astype(float), SPLITS, np.zeros(3), np.zeros(3, int)),
        (IDS.tolist(), SPLITS, np.zeros(3, int), np.zeros(3, int)),
        (IDS, SPLITS.tolist(), np.zeros(3, int), np.zeros(3, int)),
        (  # which NumPy shows as unaligned, and a memoryview does not
            memoryview(bytearray(b"x" + IDS.tobytes()))[1:].cast("q"),
            SPLITS,
            np.zeros(3, int),
            np.zeros(3, int),
        ),
        (
            np.frombuffer(b"x" + IDS.tobytes(), np.int64, offset=1),
            SPLITS,
            np.zeros(3, int),
            np.zeros(3, int),
        ),
    ],
)
def test_arrays_of_another_form_are_refused(
    ids: Any, splits: Any, own: Any, own_splits: Any
) -> None:
    assert kernel.take_bags(ids, splits, 6, own, own_splits) is False
