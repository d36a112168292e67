"""Which shard holds each id: equal to the twin for every layout, from none to 2**63 - 1 rows, on
any number of threads.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import partition as kernel
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.own_arrays import take_ids
from shardcore.sharding.layout import Layout
from shardcore.store.taken_bags import BagsToTake, take_ids_on_threads
from shardcore.threads import team
from shardcore.threads.team import get_num_threads, set_num_threads

LARGEST = 2**63 - 1


@st.composite
def layouts(draw: st.DrawFn, most: int = 40) -> Layout:
    strategy = draw(st.sampled_from(["div", "mod", "ranges"]))
    if strategy == "ranges":
        return Layout.from_sizes(draw(st.lists(st.integers(0, most), min_size=1, max_size=40)))
    rows, shards = draw(st.integers(0, 10 * most)), draw(st.integers(1, 50))
    return getattr(Layout, strategy)(rows, shards)  # type: ignore[no-any-return]


def check(layout: Layout, ids: Any) -> None:
    sizes = layout.shard_sizes.tolist()
    shard, local = layout.locate(ids)
    expected = reference.locate(ids, sizes, layout.strategy)
    np.testing.assert_array_equal(shard, expected[0], strict=True)
    np.testing.assert_array_equal(local, expected[1], strict=True)
    ours = layout.partition(ids)
    theirs = reference.partition(ids, sizes, layout.strategy)
    assert ours.local.dtype == np.asarray(ids).dtype
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, its)
    assert ours.row_splits.dtype == ours.inverse.dtype == np.int64
    for s in range(layout.num_shards):  # and back to the rows of the whole table
        part = ours.local[ours.row_splits[s] : ours.row_splits[s + 1]]
        np.testing.assert_array_equal(
            layout.global_of(s, part.astype(np.int64)), np.asarray(ids)[shard == s]
        )


@settings(max_examples=150, deadline=None)
@given(layout=layouts(), seed=st.integers(0, 2**32), n=st.integers(0, 60), wide=st.booleans())
def test_ids_are_found_as_the_twin_finds_them(
    layout: Layout, seed: int, n: int, wide: bool
) -> None:
    n = n if layout.num_rows else 0
    ids = np.random.default_rng(seed).integers(0, max(layout.num_rows, 1), n)
    ids = ids.astype(np.int64 if wide else np.int32)
    ids.flags.writeable = False
    check(layout, ids)


@settings(max_examples=150, deadline=None)
@given(
    layout=layouts(),
    seed=st.integers(0, 2**32),
    n=st.sampled_from([0, 1, 60, 1200]),
    stride=st.integers(1, 300),
    wide=st.booleans(),
)
def test_addresses_are_those_of_the_twin_s_places(
    layout: Layout, seed: int, n: int, stride: int, wide: bool
) -> None:
    rng = np.random.default_rng(seed)
    n = n if layout.num_rows else 0
    ids = rng.integers(0, max(layout.num_rows, 1), n).astype(np.int64 if wide else np.int32)
    ids.flags.writeable = False
    bases = rng.integers(0, 2**47, layout.num_shards)
    shard, local = reference.locate(ids, layout.shard_sizes.tolist(), layout.strategy)
    found = layout.addresses(ids, bases, stride)
    np.testing.assert_array_equal(found, bases[shard] + local * stride, strict=True)
    if n:
        beyond = ids.copy()
        rows = layout.num_rows
        beyond[n // 2] = rows
        message = f"ids[{n // 2}] = {rows} is outside the table: must be in [0, {rows})"
        with pytest.raises(ShardcoreIndexError, match=re.escape(message)):
            layout.addresses(beyond, bases, stride)


@pytest.mark.parametrize("layout", [Layout.div(6, 3), Layout.mod(6, 3)], ids=str)
@pytest.mark.parametrize(
    ("bases", "got"),
    [
        (np.zeros(2, np.int64), "int64 of shape (2,)"),
        (np.zeros((3, 1), np.int64), "int64 of shape (3, 1)"),
        (np.zeros(3, np.int32), "int32 of shape (3,)"),
    ],
)
def test_addresses_need_one_base_a_shard(layout: Layout, bases: Any, got: str) -> None:
    message = f"bases must be one int64 for each of 3 shards, got {got}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        layout.addresses([5], bases, 4)


def test_addresses_take_what_ids_are_elsewhere() -> None:
    layout = Layout.mod(6, 3)
    bases = np.array([100, -1, 200, -1, 300, -1])[::2]
    assert layout.addresses([0, 4, 5], bases, 8).tolist() == [100, 208, 308]
    assert layout.addresses(np.array([9, 4, 9], np.uint8)[1:2], bases, 8).tolist() == [208]
    with pytest.raises(ShardcoreValueError, match=r"^ids must be of rank 1, got shape \(1, 1\)$"):
        layout.addresses([[0]], bases, 8)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, LARGEST) | st.integers(LARGEST - 9, LARGEST) | st.just(2**53),
    shards=st.integers(1, 60),
    strategy=st.sampled_from(["div", "mod"]),
    places=st.lists(st.floats(0, 1) | st.integers(0, 5) | st.integers(-5, -1), max_size=12),
)
@example(rows=2**53 - 1, shards=3, strategy="mod", places=[-1, -2, -3, 0])
@example(rows=2**53, shards=7, strategy="mod", places=[-1, -2, -3, 0])
def test_huge_ids_are_found_as_the_twin_finds_them(
    rows: int, shards: int, strategy: str, places: list[float]
) -> None:
    numbers = [int(p * (rows - 1)) if isinstance(p, float) else p % rows for p in places]
    layout = getattr(Layout, strategy)(rows, shards)
    check(layout, np.array([min(number, rows - 1) for number in numbers], np.int64))


@settings(max_examples=60, deadline=None)
@given(
    below=st.integers(0, 2**61),
    small=st.lists(st.integers(0, 3), min_size=1, max_size=300),
    above=st.integers(0, 2**62),
    data=st.data(),
)
def test_many_small_shards_among_huge_ones(
    below: int, small: list[int], above: int, data: st.DataObject
) -> None:
    layout = Layout.from_sizes([below, *small, above, *small])
    assume(layout.num_rows)
    near = st.integers(0, sum(small)).map(lambda k: min(below + k, layout.num_rows - 1))
    anywhere = st.integers(0, layout.num_rows - 1)
    last = st.integers(max(0, layout.num_rows - 9), layout.num_rows - 1)
    check(layout, np.array(data.draw(st.lists(near | anywhere | last, max_size=10)), np.int64))


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(1, 2**31),
    shards=st.integers(1, 40),
    below=st.integers(0, 2**31),
    rows=st.integers(1, 2**31 + 2) | st.integers(2**31 - 2, 2**31 + 2),
    data=st.data(),
)
@example(size=1, shards=1, below=0, rows=2**31, data=None)
@example(size=2**31, shards=1, below=0, rows=2**31, data=None)
@example(size=2**30, shards=2, below=0, rows=2**31 + 1, data=None)
@example(size=2**16 + 1, shards=33, below=2**16, rows=2**31, data=None)
def test_division_is_exact_to_the_last_id(
    size: int, shards: int, below: int, rows: int, data: st.DataObject | None
) -> None:
    """Blocks of one size, the last shorter; and "mod" with as many shards as memory allows."""
    blocks = Layout.from_sizes([size] * shards + [max(0, size - below)])
    mod = Layout.mod(rows, min(size, 70_001) if size > 60 else size)
    for layout, divisor in ((blocks, size), (mod, mod.num_shards)):
        last = layout.num_rows - 1
        borders = {k * divisor + d for k in (1, shards, last // divisor) for d in (-1, 0)}
        numbers = {last, 0, *(min(max(border, 0), last) for border in borders)}
        if data is not None:
            numbers.update(data.draw(st.lists(st.integers(0, last), max_size=5)))
        ids = np.array(sorted(numbers), np.int64)
        shard, local = layout.locate(ids)
        expected = np.divmod(ids, divisor)
        if layout is mod:
            expected = expected[::-1]
        np.testing.assert_array_equal(shard, expected[0])
        np.testing.assert_array_equal(local, expected[1])


@pytest.mark.parametrize("rows", [2**31 + 1, 2**40 + 7, 2**53 - 1, 2**53, 2**58 + 1, 2**62])
def test_mod_is_exact_beside_multiples_of_any_number_of_shards(rows: int) -> None:
    """Near 2**53 a product with the reciprocal is one off, either way, for some numbers of shards.

    For 5 shards it is one too many below multiples of 5, for 49 one too few at multiples of 49.
    """
    for shards in (*range(1, 130), 1000, 4095, 4096, 4097, 65_535, 99_991):
        layout = Layout.mod(rows, shards)
        last = (rows - 1) // shards
        quotients = {last - k for k in range(40)} | {last >> k for k in range(30)}
        borders = {q * shards + d for q in quotients for d in (-1, 0, 1)}
        ids = np.array(sorted(id for id in borders if 0 <= id < rows), np.int64)
        shard, local = layout.locate(ids)
        np.testing.assert_array_equal(local, ids // shards)
        np.testing.assert_array_equal(shard, ids % shards)
        by_shard = layout.partition(ids)
        np.testing.assert_array_equal(by_shard.local[by_shard.inverse], ids // shards)
        counts = np.bincount(ids % shards, minlength=shards)
        np.testing.assert_array_equal(np.diff(by_shard.row_splits), counts)


@pytest.mark.parametrize("n", [7, 511, 512, 513, 2051])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "layout",
    [
        Layout.div(1600, 16),
        Layout.from_sizes([100] * 9 + [7]),
        Layout.div(1601, 16),
        Layout.from_sizes([400, 0, 1, 1, 1, 1, 0, 300]),
        Layout.from_sizes([2, 3] * 256),
        Layout.from_sizes([2, 3] * 257),
        Layout.mod(1601, 16),
        Layout.mod(1601, 513),
        Layout.mod(2**40, 7),
        Layout.mod(2**60, 7),
    ],
    ids=str,
)
def test_many_blocks_of_ids(layout: Layout, dtype: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = min(layout.num_rows, np.iinfo(dtype).max)
    check(layout, rng.integers(0, rows, n).astype(dtype))
    check(layout, np.sort(rng.integers(0, rows, n)).astype(dtype))
    check(layout, np.full(n, rows - 1, dtype))
    for position in (0, n // 2, n - 1):
        ids = rng.integers(0, rows, n).astype(dtype)
        ids[position:] = -1
        for method in (layout.locate, layout.partition):
            with pytest.raises(ShardcoreIndexError, match=rf"^ids\[{position}\] = -1 is outside"):
                method(ids)


@pytest.mark.parametrize(
    ("sizes", "reach", "block_size"),
    [
        ([100] * 64, 1, 100),
        ([100] * 63 + [7], 1, 100),
        ([100] * 63 + [0], 1, 100),
        ([100, 101], 1, 0),
        ([7], 0, 7),
        ([0], 0, 0),
        ([100, 0, 100], 2, 0),
        ([100, 1, 1, 1, 1, 1000], 5, 0),
    ],
)
def test_the_way_to_the_shard_is_known_beforehand(
    sizes: list[int], reach: int, block_size: int
) -> None:
    layout = Layout.from_sizes(sizes)
    placement = layout._placement
    assert (placement.reach, placement.size) == (reach, block_size)
    assert placement.first is not None
    assert reach == np.diff(np.frombuffer(placement.first, np.int32)).max()


@pytest.mark.parametrize(
    "sizes",
    [
        [5],
        [0, 0, 3, 0],
        [2**62, *[1] * 500, 2**62 - 501],
        [LARGEST - 500, *[1] * 500],
        [0, LARGEST],
    ],
)
def test_the_table_of_first_shards_is_right_up_to_the_last_row(sizes: list[int]) -> None:
    layout = Layout.from_sizes(sizes)
    borders = layout.offsets.tolist()
    placement = layout._placement
    assert placement.first is not None
    first = np.frombuffer(placement.first, np.int32)
    expected = [
        next(
            (s for s in range(len(sizes)) if borders[s + 1] > cell << placement.shift),
            len(sizes) - 1,
        )
        for cell in range(first.size)
    ]
    assert first.tolist() == expected


def test_shapes_and_forms_of_ids() -> None:
    layout = Layout.from_sizes([3, 0, 2])
    shard, local = layout.locate([[0, 4], [3, 2]])
    assert shard.tolist() == [[0, 2], [2, 0]]
    assert local.tolist() == [[0, 1], [0, 2]]
    assert [int(part) for part in layout.locate(4)] == [2, 1]
    assert layout.locate(np.arange(5)[::-2])[0].tolist() == [2, 0, 0]
    assert layout.locate(np.array([4], ">i4"))[1].tolist() == [1]
    assert layout.partition([]).row_splits.tolist() == [0, 0, 0, 0]
    assert layout.partition(np.array([4, 0], np.uint16)).inverse.tolist() == [1, 0]
    assert Layout.div(0, 3).partition(np.empty(0, np.int32)).local.dtype == np.int32


@pytest.mark.parametrize("n", [1, 5, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_first_id_outside_is_named(n: int, dtype: Any) -> None:
    ids = np.arange(n, dtype=dtype) % 7
    assert kernel.first_outside(ids, 7) == -1
    for position in {0, n // 2, n - 1}:
        for wrong in (-1, 7):
            broken = ids.copy()
            broken[position:] = wrong
            assert kernel.first_outside(broken, 7) == position
    assert kernel.first_outside(ids[:0], 0) == -1
    assert kernel.first_outside(ids, 0) == 0
    for extreme in (0, np.iinfo(dtype).max):
        assert kernel.first_outside(np.full(n, extreme, dtype), LARGEST) == (
            0 if extreme == LARGEST else -1
        )
    lowest = np.full(n, np.iinfo(dtype).min, dtype)
    assert kernel.first_outside(lowest, LARGEST) == kernel.first_outside(lowest, 0) == 0


@pytest.mark.parametrize(
    "layout", [Layout.div(10, 3), Layout.mod(10, 3), Layout.from_sizes([4, 6])]
)
@pytest.mark.parametrize("wrong", [10, -1, -(2**63), LARGEST])
def test_ids_outside_the_table_are_refused(layout: Layout, wrong: int) -> None:
    message = f"rows[2] = {wrong} is outside the table: must be in [0, 10)"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        layout.partition([0, 9, wrong, -7], "rows")
    message = f"ids[1, 0] = {wrong} is outside the table: must be in [0, 10)"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        layout.locate([[0, 9], [wrong, 0]])
    message = f"ids = {wrong} is outside the table: must be in [0, 10)"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        layout.locate(wrong)


@pytest.mark.parametrize("method", ["locate", "partition"])
def test_ids_that_are_no_integers_are_refused(method: str) -> None:
    with pytest.raises(ShardcoreTypeError, match=r"^ids must be integers, got dtype float64$"):
        getattr(Layout.div(3, 1), method)([0.5])


def test_a_partition_takes_one_axis_only() -> None:
    with pytest.raises(ShardcoreValueError, match=r"^ids must be of rank 1, got shape \(1, 1\)$"):
        Layout.div(3, 1).partition([[1]])


SIZES = [0, 1, 2, 511, 512, 513, 1024, 1500]  # ids are taken in blocks of 512


@settings(max_examples=200, deadline=None)
@given(
    n=st.sampled_from(SIZES) | st.integers(0, 2000),
    rows=st.integers(0, 20)
    | st.sampled_from([2**31 - 1, 2**31, 2**31 + 1, 2**32, LARGEST])
    | st.integers(1, LARGEST),
    dtype=st.sampled_from([np.int32, np.int64]),
    wrong=st.lists(
        st.tuples(st.integers(0, 2000), st.sampled_from(["-1", "rows", "min", "max", "wraps"])),
        max_size=3,
    ),
    seed=st.integers(0, 2**32),
    form=st.sampled_from(["flat", "read-only", "square"]),
)
@example(n=513, rows=5, dtype=np.int64, wrong=[(512, "wraps")], seed=0, form="flat")
@example(n=512, rows=5, dtype=np.int64, wrong=[(511, "rows")], seed=0, form="square")
@example(n=1, rows=2**31 + 1, dtype=np.int64, wrong=[(0, "rows")], seed=0, form="read-only")
@example(n=1, rows=2**31 + 1, dtype=np.int32, wrong=[(0, "max")], seed=0, form="flat")
@example(n=1, rows=2**31, dtype=np.int64, wrong=[], seed=0, form="flat")
@example(n=1, rows=2**31 + 1, dtype=np.int64, wrong=[], seed=0, form="flat")
def test_ids_are_taken_as_the_twin_takes_them(
    n: int, rows: int, dtype: Any, wrong: list[tuple[int, str]], seed: int, form: str
) -> None:
    limits = np.iinfo(dtype)
    last = min(max(rows - 1, 0), int(limits.max))
    ids = np.random.default_rng(seed).integers(0, last, n, endpoint=True).astype(dtype)
    ids[-1:] = last
    values = {"-1": -1, "rows": rows, "min": limits.min, "max": limits.max, "wraps": 2**32}
    for place, kind in wrong:
        if n:
            ids[place % n] = min(int(values[kind]), int(limits.max))
    if form == "square":
        ids = ids[: n - n % 2].reshape(-1, 2)
    ids.flags.writeable = form != "read-only"
    before = ids.copy()
    own, bad = take_ids(ids, rows)
    expected, first = reference.take_ids(ids, rows)
    assert bad == first
    assert own.dtype == ids.dtype
    assert own.shape == ids.shape
    assert not np.shares_memory(own, ids)
    taken = own.size if bad < 0 else bad + 1
    np.testing.assert_array_equal(own.reshape(-1)[:taken], expected.reshape(-1)[:taken])
    narrow, bad = take_narrow(ids.reshape(-1), rows)
    assert bad == first
    if bad < 0:
        assert narrow.dtype == (np.int32 if rows <= 2**31 else dtype)
        np.testing.assert_array_equal(narrow, expected.reshape(-1))
        assert not np.shares_memory(narrow, ids)
    np.testing.assert_array_equal(ids, before)


def take_narrow(ids: Any, rows: int) -> tuple[Any, int]:
    """Return copies of ids, in 32 bits where all rows fit, and the first bad place or -1."""
    bags = BagsToTake()
    assert bags.add(ids, None, rows, narrow=True)
    ((own, row_splits),) = bags.take()
    assert row_splits is None
    return own, bags.wrong().get(0, -1)


@pytest.mark.parametrize("given", [2, 4])
def test_ids_that_became_more_or_fewer_are_not_taken(given: int) -> None:
    """As when another thread gives the array another dtype after its copies were made."""
    message = f"^ids must be as many as their copies, 3, got {given}$"
    ids = np.zeros(given, np.int64)
    with pytest.raises(ValueError, match=message):
        kernel.take_ids(ids, 1, np.zeros(3, np.int64))


@pytest.mark.parametrize("n", [5, 513, 100_000])
@pytest.mark.parametrize("rows", [7, 2**31 + 5])
@pytest.mark.parametrize(
    "layout", [Layout.div, Layout.mod, lambda rows, _: Layout.from_sizes([rows - 1, 0, 1])]
)
def test_what_is_taken_grouped_or_located_is_a_copy(layout: Any, rows: int, n: int) -> None:
    """What is written to the ids afterwards changes no result."""
    made = layout(rows, 3)
    ids = np.random.default_rng(n).integers(0, rows, n)
    results = [take_ids(ids, rows)[0], *made.partition(ids), *made.locate(ids)]
    kept = [array.copy() for array in results]
    ids[...] = -1
    for array, copy in zip(results, kept, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_large_batches_are_taken_on_threads(number: int, dtype: Any) -> None:
    rng, before = np.random.default_rng(3), get_num_threads()
    ids = rng.integers(0, 1000, 7 * (1 << 17) + 5).astype(dtype)
    set_num_threads(number)
    try:
        own, bad = take_ids_on_threads(ids, 1000)
        assert bad == -1
        np.testing.assert_array_equal(own, ids, strict=True)
        assert not np.shares_memory(own, ids)
        narrow, bad = take_narrow(ids, 1000)
        assert bad == -1
        np.testing.assert_array_equal(narrow, ids.astype(np.int32), strict=True)
        assert not np.shares_memory(narrow, ids)
        for places in ([ids.size - 1], [0], *rng.integers(0, ids.size, (20, 3)).tolist()):
            wrong = ids.copy()
            wrong[places] = [1000, -1, 5000][: len(places)]
            own, bad = take_ids_on_threads(wrong, 1000)
            assert bad == min(places)
            assert own[bad] == wrong[bad]
            assert take_narrow(wrong, 1000)[1] == bad
    finally:
        set_num_threads(before)


BY_EVERY_WAY = [
    Layout.div(1600, 16),
    Layout.from_sizes([400, 401, 402]),
    Layout.from_sizes([400, 0, 1, 1, 1, 1, 0, 300]),
    Layout.mod(1601, 16),
    Layout.mod(2**40, 7),
    Layout.mod(2**60, 7),
    Layout.from_sizes([2**61, 2**61]),
]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return what sets the number of threads, and the least ids of each; undone afterwards."""
    before = get_num_threads()

    def choose(number: int, share: int = 100) -> None:
        set_num_threads(number)
        monkeypatch.setattr("shardcore.sharding.layout._SHARE", share)

    yield choose
    set_num_threads(before)


@pytest.mark.parametrize("n", [199, 200, 1023, 1500, 4097])
@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("layout", BY_EVERY_WAY, ids=str)
def test_any_number_of_threads_groups_alike(
    threads: Callable[[int], None], layout: Layout, dtype: Any, number: int, n: int
) -> None:
    threads(number)
    rng = np.random.default_rng(n)
    rows = min(layout.num_rows, np.iinfo(dtype).max)
    ids = rng.integers(0, rows, n).astype(dtype)
    check(layout, ids)
    check(layout, np.sort(ids))
    check(layout, np.full(n, rows - 1, dtype))
    for places in ([n - 1], [0], [n // 2], *rng.integers(0, n, (5, 3)).tolist()):
        wrong = ids.copy()
        wrong[places] = [-1, -7, -1][: len(places)]
        at = min(places)
        message = f"ids[{at}] = {wrong[at]} is outside the table: must be in [0, {layout.num_rows})"
        with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
            layout.partition(wrong)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("layout", [Layout.div, Layout.mod])
def test_a_million_ids_are_grouped_on_threads(
    threads: Callable[..., None], layout: Any, dtype: Any
) -> None:
    ids = np.random.default_rng(5).integers(0, 1 << 22, 1_000_003).astype(dtype)
    made = layout(1 << 22, 64)
    threads(1)
    alone = made.partition(ids)
    shard, local = made.locate(ids)
    order = np.argsort(shard, kind="stable")
    np.testing.assert_array_equal(alone.local, local[order].astype(dtype), strict=True)
    for number in (2, 5):
        threads(number, 1 << 17)
        for ours, one in zip(made.partition(ids), alone, strict=True):
            np.testing.assert_array_equal(ours, one, strict=True)


@pytest.mark.parametrize(
    ("number", "n", "shards", "parts"),
    [
        (2, 199, 3, []),
        (2, 200, 3, [2, 2]),
        (7, 450, 3, [4, 4]),
        (1, 5000, 3, []),
        (2, 799, 100, []),  # few ids to a shard
        (2, 800, 100, [2, 2]),
    ],
)
def test_threads_are_asked_where_there_is_work_for_them(
    threads: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    n: int,
    shards: int,
    parts: list[int],
) -> None:
    threads(number)
    asked: list[int] = []

    def run(count: int, task: Callable[[int], None]) -> None:
        asked.append(count)
        for part in reversed(range(count)):
            task(part)

    monkeypatch.setattr(team, "run", run)
    check(Layout.mod(1000, shards), np.arange(n) * 7 % 1000)
    assert asked == parts


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("layout", BY_EVERY_WAY, ids=str)
def test_ids_that_change_once_they_are_counted(
    threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, layout: Layout, dtype: Any
) -> None:
    threads(3)
    rows = min(layout.num_rows, np.iinfo(dtype).max)
    ids = np.random.default_rng(1).integers(0, rows, 2000).astype(dtype)
    expected = layout.partition(ids.copy())
    run = team.run

    def run_and_write(count: int, task: Callable[[int], None]) -> None:
        run(count, task)
        ids[...] = -1

    monkeypatch.setattr(team, "run", run_and_write)
    for found, one in zip(layout.partition(ids), expected, strict=True):
        np.testing.assert_array_equal(found, one, strict=True)
    assert (ids == -1).all()


@pytest.mark.parametrize("layout", BY_EVERY_WAY, ids=str)
def test_ids_that_change_while_threads_group_them(
    threads: Callable[[int], None], layout: Layout
) -> None:
    """Each id is read once: what is placed is what was counted."""
    threads(3)
    rows = min(layout.num_rows, 1 << 60)
    ids = np.random.default_rng(1).integers(0, rows, 60_000)
    others = np.random.default_rng(2).integers(0, rows, (2, 60_000))
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for other in others:
                ids[...] = other

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            local, row_splits, inverse = layout.partition(ids)
            assert np.array_equal(np.sort(inverse), np.arange(ids.size))
            assert (row_splits[0], row_splits[-1]) == (0, ids.size)
            for shard, size in enumerate(layout.shard_sizes.tolist()):
                part = local[row_splits[shard] : row_splits[shard + 1]]
                assert ((part >= 0) & (part < size)).all()
    finally:
        done.set()
        writer.join()


def test_parts_have_as_many_ids_as_places() -> None:
    placement = Layout.mod(10, 2).placement
    with pytest.raises(ValueError, match=r"^ids must be as many as their copies, 3, got 2$"):
        kernel.count(placement, np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(3, np.int64))
    counts = np.full(2, 9)
    none = np.zeros(0, np.int64)
    assert kernel.count(placement, none, counts, none) == -1
    assert counts.tolist() == [0, 0]
    kernel.place(placement, counts, none, none)
