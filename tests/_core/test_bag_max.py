"""Greatest values of bags, and gradients at the rows that have them: equal to the twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import bag_max as kernels
from shardcore.store.bag_max import at_winners, max_of_bags
from shardcore.store.segment_reduce import TYPE_NAMES
from shardcore.threads import team

VALUES = np.array([-np.inf, -2.0, -0.0, 0.0, 1.0, 1.0, 3.0, np.inf, np.nan])
DIMS = st.sampled_from([0, 1, 2, 7, 8, 9, 16, 17, 33])
LENGTHS = st.lists(st.sampled_from([0, 0, 1, 2, 3, 20]), max_size=8)


def make(seed, dtype, dim, lengths):
    rng = np.random.default_rng(seed)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = rng.choice(VALUES, (splits[-1], dim)).astype(dtype)
    gradients = rng.normal(size=(len(lengths), dim)).astype(dtype)
    for array in (rows, splits, gradients):
        array.flags.writeable = False
    return rows, splits, gradients


@pytest.mark.parametrize("count", [1, 3])
@given(st.integers(0, 2**32), st.sampled_from(["float32", "float64"]), DIMS, LENGTHS)
def test_they_equal_their_twins(count, seed, dtype, dim, lengths):
    rows, splits, gradients = make(seed, dtype, dim, lengths)
    before, piece = team.get_num_threads(), team.PIECE
    try:
        team.set_num_threads(count)
        team.PIECE = piece if count == 1 else 16
        out, winners = max_of_bags(rows, splits)
        spread = at_winners(gradients, winners, splits)
    finally:
        team.set_num_threads(before)
        team.PIECE = piece
    expected, where = reference.max_of_bags(rows, splits)
    assert out.dtype == rows.dtype
    assert out.tobytes() == expected.tobytes()
    np.testing.assert_array_equal(winners, where)
    assert winners.dtype == np.int32
    assert spread.tobytes() == reference.at_winners(gradients, where, splits).tobytes()


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bags_may_begin_beyond_0_and_no_other_row_is_written(dtype, index):
    rows, splits, gradients = make(3, dtype, 5, [4, 0, 7, 2])
    expected, where = reference.max_of_bags(rows, splits)
    types = TYPE_NAMES[rows.dtype], TYPE_NAMES[np.dtype(index)]
    out, winners = np.empty((2, 5), dtype), np.empty((2, 5), index)
    kernels.max_of_bags[types](rows, splits[1:4], out, winners)
    np.testing.assert_array_equal(out, expected[1:3])
    np.testing.assert_array_equal(winners, where[1:3])
    spread = np.full((13, 5), 99, dtype)
    kernels.at_winners[types](gradients[1:3], winners, splits[1:4], spread)
    wanted = reference.at_winners(gradients, where, splits)
    np.testing.assert_array_equal(spread[4:11], wanted[4:11])
    assert (spread[:4] == 99).all()
    assert (spread[11:] == 99).all()


def test_the_first_of_equals_wins_and_nan_counts_where_it_is_first():
    rows = np.array([[1.0, np.nan, 2.0], [3.0, 5.0, np.nan], [3.0, 7.0, 1.0]])
    out, winners = max_of_bags(rows, np.array([0, 3, 3]))
    np.testing.assert_array_equal(out, [[3, np.nan, 2], [0, 0, 0]])
    np.testing.assert_array_equal(winners, [[1, 0, 0], [-1, -1, -1]])
