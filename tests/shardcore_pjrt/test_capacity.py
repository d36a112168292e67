"""Capacity classes: large enough, few, monotone, within the stated waste."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardcore_pjrt.routing.capacity import LARGEST, capacity, quarter_steps

from shardcore.errors import ShardcoreValueError

COUNTS = st.integers(0, LARGEST)


@given(COUNTS)
def test_holds_the_count_within_the_stated_waste(n):
    room = capacity(n)
    assert room >= max(n, 8)
    assert n <= 4 or room < 2 * n
    assert n <= 1024 or 4 * room < 5 * n
    assert capacity(room) == room


@given(COUNTS, COUNTS)
def test_never_less_for_a_larger_count(a, b):
    assert (capacity(a) <= capacity(b)) or a > b


def test_classes_are_few():
    classes = {capacity(n) for n in range(0, 1_000_001, 7)} | {capacity(1_000_000)}
    assert len(classes) == 48
    assert sorted(classes)[:12] == [8, 16, 32, 64, 128, 256, 512, 1024, 1280, 1536, 1792, 2048]


@given(st.integers(0, 2**40))
def test_quarter_steps(n):
    step = quarter_steps(n)
    assert step >= n
    assert quarter_steps(step) == step
    assert step == n if n <= 8 else 4 * step < 5 * n


def test_the_last_class_fits_int32_and_more_is_refused():
    assert capacity(LARGEST) == LARGEST < 2**31
    message = (
        f"a batch must name at most {LARGEST} rows of one table on a device, got {LARGEST + 1}"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        capacity(LARGEST + 1)
