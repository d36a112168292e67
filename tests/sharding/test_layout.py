"""Layouts as values: how they are made, what they say of themselves, and their errors."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.sharding.layout import Layout

LARGEST = 2**63 - 1


@settings(max_examples=100, deadline=None)
@given(rows=st.integers(0, 200), shards=st.integers(1, 60))
def test_div_and_mod_are_as_even_as_can_be(rows: int, shards: int) -> None:
    for layout in (Layout.div(rows, shards), Layout.mod(rows, shards)):
        sizes = layout.shard_sizes.tolist()
        assert sizes == [len(range(s, rows, shards)) for s in range(shards)]
        assert layout.offsets.tolist() == [sum(sizes[:s]) for s in range(shards + 1)]
        assert (layout.num_rows, layout.num_shards) == (rows, shards)
        everywhere = [row for s in range(shards) for row in layout.global_rows(s).tolist()]
        assert sorted(everywhere) == list(range(rows))
        assert all(
            list(layout.row_range(s)) == layout.global_rows(s).tolist() for s in range(shards)
        )
    assert Layout.div(rows, shards).global_rows(0).tolist() == list(range(sizes[0]))
    assert Layout.mod(rows, shards).global_rows(0).tolist() == list(range(0, rows, shards))


def test_the_largest_table() -> None:
    layout = Layout.div(LARGEST, 3)
    assert layout.num_rows == LARGEST
    assert layout.row_range(2).stop == LARGEST
    assert Layout.from_sizes([LARGEST, 0]).num_rows == LARGEST
    assert Layout.mod(LARGEST, 2).row_range(1) == range(1, LARGEST, 2)


def test_numpy_integers_and_iterators_are_taken() -> None:
    assert Layout.div(np.int32(5), np.int64(2)) == Layout.div(5, 2)
    assert Layout.from_sizes(np.array([3, 2])) == Layout.from_sizes(n for n in (3, 2))
    assert Layout.div(5, 2).row_range(np.int64(1)) == range(3, 5)


@settings(max_examples=150, deadline=None)
@given(
    pair=st.lists(
        st.tuples(st.sampled_from(["div", "mod", "ranges"]), st.integers(0, 6), st.integers(1, 4)),
        min_size=2,
        max_size=2,
    ),
    data=st.data(),
)
def test_layouts_are_equal_when_they_place_every_row_alike(
    pair: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    made = []
    for strategy, rows, shards in pair:
        if strategy == "ranges":
            sizes = st.lists(st.integers(0, 2), min_size=shards, max_size=shards)
            made.append(Layout.from_sizes(data.draw(sizes)))
        else:
            made.append(getattr(Layout, strategy)(rows, shards))
    one, other = made
    alike = one.num_shards == other.num_shards and all(
        one.global_rows(s).tolist() == other.global_rows(s).tolist() for s in range(one.num_shards)
    )
    assert (one == other) == alike
    if alike:
        assert hash(one) == hash(other)


def test_a_layout_is_no_other_thing() -> None:
    assert Layout.div(2, 1) != (2, 1)
    assert Layout.div(6, 2) != Layout.mod(6, 2)
    assert Layout.div(2, 3) == Layout.mod(2, 3) == Layout.from_sizes([1, 1, 0])


@pytest.mark.parametrize(
    "layout", [Layout.div(10, 3), Layout.mod(10, 3), Layout.from_sizes([4, 6])]
)
def test_layouts_are_immutable_also_after_a_journey(layout: Layout) -> None:
    for there in (
        layout,
        pickle.loads(pickle.dumps(layout)),
        copy.copy(layout),
        copy.deepcopy(layout),
    ):
        assert there == layout
        assert there.strategy == layout.strategy
        assert there.locate(9)[1] == layout.locate(9)[1]
        for name in ("shard_sizes", "offsets"):
            assert not getattr(there, name).flags.writeable
            np.testing.assert_array_equal(getattr(there, name), getattr(layout, name))
        with pytest.raises(AttributeError):
            there.strategy = "ranges"  # type: ignore[misc]
        with pytest.raises(ValueError, match="read-only"):
            there.offsets[0] = 1


@pytest.mark.parametrize(
    ("layout", "text", "contiguous"),
    [
        (Layout.div(10, 3), "Layout.div(10, 3)", True),
        (Layout.mod(10, 3), "Layout.mod(10, 3)", False),
        (Layout.from_sizes([4, 0, 6]), "Layout.from_sizes([4, 0, 6])", True),
    ],
)
def test_a_layout_tells_how_it_was_made(layout: Layout, text: str, contiguous: bool) -> None:
    assert repr(layout) == text
    assert layout.contiguous is contiguous
    assert eval(text) == layout


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Layout.div(-1, 2), ShardcoreValueError, "rows must be an integer >= 0, got -1"),
        (lambda: Layout.mod(2.0, 2), ShardcoreTypeError, "rows must be an integer >= 0, got 2.0"),
        (lambda: Layout.div(2, 0), ShardcoreValueError, "shards must be an integer >= 1, got 0"),
        (
            lambda: Layout.mod(2, True),
            ShardcoreTypeError,
            "shards must be an integer >= 1, got True",
        ),
        (
            lambda: Layout.div(2**63, 2),
            ShardcoreValueError,
            "rows must be at most 2**63 - 1, got 9223372036854775808",
        ),
        (
            lambda: Layout.from_sizes([2**62, 2**62]),
            ShardcoreValueError,
            "the sum of sizes must be at most 2**63 - 1, got 9223372036854775808",
        ),
        (
            lambda: Layout.from_sizes([2**63]),
            ShardcoreValueError,
            "the sum of sizes must be at most 2**63 - 1, got 9223372036854775808",
        ),
        (
            lambda: Layout.from_sizes([]),
            ShardcoreValueError,
            "sizes must name at least one shard, got none",
        ),
        (
            lambda: Layout.from_sizes([3, -1]),
            ShardcoreValueError,
            "sizes[1] must be an integer >= 0, got -1",
        ),
        (
            lambda: Layout.from_sizes(np.array([3, 0, -2], np.int32)),
            ShardcoreValueError,
            "sizes[2] must be an integer >= 0, got -2",
        ),
        (
            lambda: Layout.from_sizes(np.array([2**63, 2**63], np.uint64)),
            ShardcoreValueError,
            "the sum of sizes must be at most 2**63 - 1, got 18446744073709551616",
        ),
        (
            lambda: Layout.from_sizes([3, 1.5]),  # type: ignore[list-item]
            ShardcoreTypeError,
            "sizes[1] must be an integer >= 0, got 1.5",
        ),
        (
            lambda: Layout.from_sizes(3),  # type: ignore[arg-type]
            ShardcoreTypeError,
            "sizes must be a sequence of integers >= 0, got 3",
        ),
        (
            lambda: Layout.of("ranges", 4, 2),
            ShardcoreValueError,
            "strategy must be 'div' or 'mod', got 'ranges'",
        ),
        (
            lambda: Layout.of((1, 2, 1), 4, 2),
            ShardcoreValueError,
            "row counts must be one for each of 2 shards and sum to 4, got 3 that sum to 4",
        ),
        (
            lambda: Layout.of((1, 2), 4, 1),
            ShardcoreValueError,
            "row counts must be one for each of 1 shards and sum to 4, got 2 that sum to 3",
        ),
        (
            lambda: Layout.div(4, 2).row_range(2),
            ShardcoreIndexError,
            "shard 2 is out of range: must be in [0, 2)",
        ),
        (
            lambda: Layout.div(4, 2).global_rows(-1),
            ShardcoreIndexError,
            "shard -1 is out of range: must be in [0, 2)",
        ),
        (
            lambda: Layout.div(4, 2).global_of(1.0, np.array([0])),  # type: ignore[arg-type]
            ShardcoreTypeError,
            "shard must be an integer, got 1.0",
        ),
    ],
)
def test_bad_layouts_are_refused(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make()
