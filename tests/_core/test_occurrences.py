"""The occurrences of a batch: sorted by row, stable, equal to the twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import occurrences as _kernel
from shardcore.errors import ShardcoreValueError
from shardcore.store import occurrences
from shardcore.store.occurrences import Occurrences, has_few_rows, sort_bags, sort_occurrences


def check(rows: Any, gains: Any, num_rows: int, frozen: Callable[[Any], Any]) -> None:
    """Compare with the twin, as few are sorted and as many are, in buckets."""
    sources = np.arange(rows.size, dtype=np.int32)[::-1] // 2  # strided, and with repeats
    theirs = reference.sort_occurrences(rows, sources, gains, num_rows)
    for few in (occurrences.FEW_OCCURRENCES, 0):
        with mock.patch.object(occurrences, "FEW_OCCURRENCES", few):
            ours = sort_occurrences(frozen(rows), sources, gains, num_rows)
        for name in ("rows", "run_splits", "sources"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True)
        if gains is None:
            assert ours.gains is None
        else:
            np.testing.assert_array_equal(ours.gains, theirs.gains, strict=True)


@settings(max_examples=150, deadline=None)
@given(
    bits=st.integers(0, 62),
    n=st.integers(0, 80),
    seed=st.integers(0, 2**32),
    narrow=st.booleans(),
    weighted=st.booleans(),
)
@example(bits=32, n=50, seed=0, narrow=False, weighted=False)
@example(bits=62, n=50, seed=1, narrow=False, weighted=True)
def test_occurrences_equal_their_twin(
    bits: int, n: int, seed: int, narrow: bool, weighted: bool, frozen: Callable[[Any], Any]
) -> None:
    bits = min(bits, 31) if narrow else bits
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2**bits, n)
    rows[rng.random(n) < 0.3] = 2**bits - 1
    rows[rng.random(n) < 0.3] = 0
    rows = rows.astype(np.int32 if narrow else np.int64)
    gains = rng.standard_normal(n).astype(np.float32) if weighted else None
    check(rows, gains, 2**bits, frozen)


@pytest.mark.parametrize("shift", [0, 10, 11, 21, 22, 31, 32, 33, 43, 44, 54, 55, 61])
def test_rows_that_differ_in_one_bit_only(shift: int, frozen: Callable[[Any], Any]) -> None:
    base = (0x0123456789ABCDEF >> 1) & ~(1 << shift)
    rows = np.array([base, base | 1 << shift] * 5 + [base], np.int64)
    check(rows, None, 2**62, frozen)


@pytest.mark.parametrize("num_rows", [2**32 - 1, 2**32, 2**32 + 1])
def test_keys_of_32_bits_end_where_rows_need_33(
    num_rows: int, frozen: Callable[[Any], Any]
) -> None:
    rows = np.array([num_rows - 1, 0, 1, num_rows - 1, num_rows - 2], np.int64)
    check(rows, np.arange(5.0), num_rows, frozen)


@pytest.mark.parametrize("bits", [1, 6, 7, 14, 15])
@pytest.mark.parametrize("pairs", [25, 26, 4096])
def test_buckets_whose_rows_are_counted(
    pairs: int, bits: int, num_threads: Callable[[int], None]
) -> None:
    """Against NumPy's stable sort: one bucket after the other, with other rows in each."""
    num_threads(1)
    rng = np.random.default_rng(bits)
    buckets = 4
    rows = (
        rng.integers(0, 2**bits, (buckets, pairs)) | np.arange(buckets)[:, None] << bits
    ).ravel()
    counters = np.full(_kernel.COUNTERS, 77, np.uint32)  # scratch comes as it is
    words = np.empty(rows.size * _kernel.NARROW_WORDS, np.uint64)
    limits = np.arange(buckets + 1) * pairs
    sources = rng.permutation(rows.size).astype(np.int32)
    _kernel.deal["int64_t"](rows, sources, bits, limits[:-1].copy(), words, False)
    unique, splits = np.full(rows.size, -1), np.full(rows.size, -1)
    # With room behind for what is counted twice, which would else be found by the heap.
    ordered = np.empty(64 * rows.size, np.int32)[: rows.size]
    found = _kernel.sort_buckets(
        words, np.empty_like(words), limits, bits, counters, False, unique, splits, ordered
    )
    distinct, starts = np.unique(np.sort(rows), return_index=True)
    np.testing.assert_array_equal(unique[:found], distinct)
    np.testing.assert_array_equal(splits[:found], starts)
    np.testing.assert_array_equal(ordered, sources[np.argsort(rows, kind="stable")])


def test_strided_rows(frozen: Callable[[Any], Any]) -> None:
    check(np.array([3, 9, 1, 9, 3, 9])[::2], None, 4, frozen)


def test_no_occurrences(frozen: Callable[[Any], Any]) -> None:
    check(np.empty(0, np.int64), None, 0, frozen)
    check(np.empty(0, np.int32), np.empty(0, np.float32), 5, frozen)


def test_too_many_occurrences_are_refused() -> None:
    rows = np.broadcast_to(np.int64(0), 2**31)
    message = "a batch must name at most 2147483647 rows of one table, got 2147483648"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        sort_occurrences(rows, np.empty(0, np.int32), None, 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("bits", [1, 9, 22, 31, 34])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_batches_beyond_every_block_on_threads(
    threads: int, bits: int, index: Any, weighted: bool, num_threads: Callable[[int], None]
) -> None:
    """Against NumPy's stable sort: half the rows few and hot, the other half anywhere."""
    if index is np.int32 and bits > 31:
        pytest.skip("such rows need 64 bits")
    num_threads(threads)
    rng = np.random.default_rng(bits)
    rows = rng.integers(0, 1 << bits, 400_003).astype(index)
    hot = rng.random(rows.size) < 0.5
    rows[hot] = rows[rng.integers(0, 3, np.count_nonzero(hot))]
    sources = rng.integers(0, 1 << 20, rows.size).astype(np.int32)
    gains = rng.random(rows.size, np.float32) if weighted else None
    found = sort_occurrences(rows, sources, gains, 1 << bits)
    order = assert_sorted(found, rows, sources)
    if gains is None:
        assert found.gains is None
    else:
        np.testing.assert_array_equal(found.gains, gains[order], strict=True)


@pytest.mark.parametrize("bits", [0, 1, 9, 15, 16, 22, 31, 34])
@pytest.mark.parametrize("n", [25, 2047, 4095, 4096, 4097])
def test_batches_of_one_bucket_and_the_next(n: int, bits: int) -> None:
    """Against NumPy's stable sort: rows that are counted, and those that are sorted by digits."""
    rng = np.random.default_rng(n)
    rows = rng.integers(0, 1 << bits, n)
    rows[rng.random(n) < 0.2] = (1 << bits) - 1
    sources = rng.integers(0, 1 << 20, n).astype(np.int32)
    assert_sorted(sort_occurrences(rows, sources, None, 1 << bits), rows, sources)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("num_rows", [1, 2, 63, 64, 65, 5000, 8192, 8193, 32_768])
@pytest.mark.parametrize("n", [1, 24, 2048, 30_000])
def test_bags_over_few_rows_equal_the_twin(
    n: int, num_rows: int, index: Any, frozen: Callable[[Any], Any]
) -> None:
    """Empty bags among others; the first row and the last one; scratch that is not clean."""
    rng = np.random.default_rng(n + num_rows)
    ids = rng.integers(0, num_rows, n).astype(index)
    ids[rng.random(n) < 0.1] = num_rows - 1
    ids[rng.random(n) < 0.1] = 0
    borders = np.sort(rng.integers(0, n + 1, n // 3))
    splits = np.concatenate(([0, 0], borders, [n, n])).astype(np.int64)
    ours = sort_bags(frozen(ids), frozen(splits), num_rows)
    theirs = reference.sort_bags(ids, splits, num_rows)
    for name in ("rows", "run_splits", "sources"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), strict=True)
    assert ours.gains is None


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("bits", [10, 22, 31, 40])
@pytest.mark.parametrize("threads", [1, 3])
def test_bags_over_many_rows_are_sorted_as_their_ids_are(
    threads: int, bits: int, index: Any, num_threads: Any, frozen: Callable[[Any], Any]
) -> None:
    """Against NumPy's stable sort: empty bags among others, and where a thread's part begins."""
    if index is np.int32 and bits > 31:
        pytest.skip("such rows need 64 bits")
    num_threads(threads)
    rng = np.random.default_rng(bits)
    ids = rng.integers(0, 1 << bits, 400_003).astype(index)
    ids[rng.random(ids.size) < 0.3] = ids[0]
    starts = [ids.size * part // 3 for part in (1, 2)]  # of threads' parts: bags begin there
    borders = np.sort([*rng.integers(0, ids.size + 1, 9_000), *np.repeat(starts, 3)])
    splits = np.concatenate(([0, 0], borders, [ids.size, ids.size])).astype(np.int64)
    found = sort_bags(frozen(ids), frozen(splits), 1 << bits)
    bags = np.repeat(np.arange(splits.size - 1, dtype=np.int32), np.diff(splits))
    assert_sorted(found, ids, bags)


def assert_sorted(found: Occurrences, rows: Any, sources: Any) -> Any:
    """Compare what was sorted with NumPy's stable sort, and return that one's order."""
    order = np.argsort(rows, kind="stable")
    unique, counts = np.unique(rows, return_counts=True)
    np.testing.assert_array_equal(found.rows, unique.astype(np.int64), strict=True)
    np.testing.assert_array_equal(found.run_splits, [0, *np.cumsum(counts)])
    np.testing.assert_array_equal(found.sources, sources[order], strict=True)
    return order


def test_bags_without_ids_over_few_rows() -> None:
    found = sort_bags(np.empty(0, np.int64), np.zeros(4, np.int64), 5)
    assert (found.rows.size, found.run_splits.tolist(), found.sources.size) == (0, [0], 0)


def test_counters_of_few_rows_come_as_they_are() -> None:
    sorts = _kernel.Sorts()
    sorts.add(np.array([7, 2, 7]), np.array([0, 2, 3]), 6, by_row=True)
    assert sorts.cut(1, 1) == 1
    counters = np.full(sorts.scratch, 77, np.uint32)
    # With room for all that is counted if they are taken for counts.
    rows, splits, sources = (np.empty(6000, dtype) for dtype in (np.int64, np.int64, np.int32))
    sorts.make(counters, rows, splits, sources)
    (parts,) = sorts.parts_of(rows, splits, sources)
    assert [part.tolist() for part in parts] == [[2, 7], [0, 1, 3], [0, 0, 1]]


@pytest.mark.parametrize("shift", [1, 2, 5, 6, 7, 13])
def test_there_is_a_word_for_few_rows(shift: int) -> None:
    """As much scratch as the kernel uses: a number for each row, and two for every 64, begun."""
    sorts = _kernel.Sorts()
    sorts.add(np.zeros(1, np.int64), np.array([0, 1]), shift, by_row=True)
    assert sorts.scratch == 2**shift + 2 * -(-(2**shift) // 64)


def test_few_rows_are_those_whose_counters_stay_in_the_cache() -> None:
    assert has_few_rows(4096, 32_768)
    assert not has_few_rows(4095, 32_768)
    assert not has_few_rows(1 << 15, 32_769)
    assert has_few_rows((1 << 16) - 1, 3)
    assert not has_few_rows(1 << 16, 3)
    assert not has_few_rows(0, 1)
