"""Slices over shards: what Python means by them, only the shards touched, at their cost only."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.sharding.layout import Layout

LARGEST = 2**63 - 1


def rows_of(layout: Layout, pieces: list[tuple[int, slice]]) -> list[int]:
    return [row for shard, local in pieces for row in layout.row_range(shard)[local]]


SMALL = [sizes for shards in (1, 2, 3) for sizes in itertools.product(range(4), repeat=shards)]


@pytest.mark.parametrize("step", [None, 1, 2, 3, 7, -1, -2, -3, -7])
def test_every_small_slice_means_what_a_list_means(step: int | None) -> None:
    for sizes in SMALL:
        layout = Layout.from_sizes(sizes)
        rows = list(range(layout.num_rows))
        ends = [None, *range(-len(rows) - 1, len(rows) + 2)]
        for start, stop in itertools.product(ends, repeat=2):
            asked = slice(start, stop, step)
            pieces = layout.decompose_slice(asked)
            assert rows_of(layout, pieces) == rows[asked], (sizes, asked)
            touched = [shard for shard, _ in pieces]
            assert len(set(touched)) == len(touched), (sizes, asked)
            assert all(layout.row_range(s)[local] for s, local in pieces), (sizes, asked)


END = st.none() | st.integers(-60, 60)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    start=END,
    stop=END,
    step=st.none() | st.integers(-70, 70).filter(bool),
)
def test_slices_equal_their_twin(
    sizes: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    layout = Layout.from_sizes(sizes)
    asked = slice(start, stop, step)
    pieces = layout.decompose_slice(asked)
    assert pieces == reference.decompose_slice(layout.offsets, asked)
    assert rows_of(layout, pieces) == list(range(sum(sizes)))[asked]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(2**62, LARGEST),
    shards=st.integers(1, 6),
    start=st.integers(0, 2**63) | st.none(),
    step=st.integers(2**60, 2**65).flatmap(lambda step: st.sampled_from([step, -step])),
)
def test_slices_of_huge_tables_equal_their_twin(
    rows: int, shards: int, start: int | None, step: int
) -> None:
    layout = Layout.div(rows, shards)
    asked = slice(start, None, step)
    pieces = layout.decompose_slice(asked)
    assert pieces == reference.decompose_slice(layout.offsets, asked)
    assert rows_of(layout, pieces) == list(range(rows)[asked])


def test_an_end_beyond_int64_is_its_largest_value() -> None:
    pieces = Layout.div(LARGEST, 1).decompose_slice(slice(0, None, 2**62))
    assert pieces == [(0, slice(0, LARGEST, 2**62))]
    assert list(range(LARGEST)[pieces[0][1]]) == [0, 2**62]


@pytest.mark.parametrize(("step", "different"), [(1, 1), (-3, 3), (4, 4), (-4, 4), (5, 64)])
def test_local_slices_that_repeat_soon_are_one_object(step: int, different: int) -> None:
    layout = Layout.div(64 * 1009, 64)
    pieces = layout.decompose_slice(slice(None, None, step))
    assert pieces == reference.decompose_slice(layout.offsets, slice(None, None, step))
    assert len(pieces) == 64
    assert len({id(local) for _, local in pieces}) == different


def test_only_touched_shards_of_very_many_come_back() -> None:
    layout = Layout.div(2**62, 10**6)
    size = int(layout.shard_sizes[0])
    assert len(layout.decompose_slice(slice(0, size + 1))) == 2
    assert len(layout.decompose_slice(slice(7, 8))) == 1
    assert layout.decompose_slice(slice(7, 7)) == []
    far = layout.decompose_slice(slice(5, None, 2**60))
    assert rows_of(layout, far) == [5, 5 + 2**60, 5 + 2**61, 5 + 3 * 2**60]
    back = layout.decompose_slice(slice(None, None, -(2**60)))
    assert rows_of(layout, back) == [2**62 - 1 - k * 2**60 for k in range(4)]
    assert len(far) == len(back) == 4


def test_a_million_empty_shards_are_skipped() -> None:
    sizes = np.zeros(10**6, np.int64)
    sizes[[3, 500_000, 999_998]] = 2, 1, 2
    layout = Layout.from_sizes(sizes)
    assert layout.decompose_slice(slice(None)) == [
        (3, slice(0, 2, 1)),
        (500_000, slice(0, 1, 1)),
        (999_998, slice(0, 2, 1)),
    ]
    assert [shard for shard, _ in layout.decompose_slice(slice(None, None, -2))] == [
        999_998,
        500_000,
        3,
    ]


@pytest.mark.parametrize(
    ("layout", "rows", "error", "message"),
    [
        (
            Layout.mod(4, 2),
            slice(None),
            ShardcoreValueError,
            "decompose_slice needs consecutive rows in every shard; this layout is 'mod'",
        ),
        (Layout.div(4, 2), 3, ShardcoreTypeError, "rows must be a slice, got int"),
        (
            Layout.div(4, 2),
            slice(0.5, None),
            ShardcoreTypeError,
            "rows must have integer parts, got slice(0.5, None, None)",
        ),
        (
            Layout.div(4, 2),
            slice(None, None, 0),
            ShardcoreValueError,
            "rows must have a step other than 0, got slice(None, None, 0)",
        ),
    ],
)
def test_what_is_no_slice_is_refused(layout: Layout, rows: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        layout.decompose_slice(rows)
