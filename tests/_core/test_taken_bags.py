"""Ids in bags, copied and checked with those of other features: equal to the twin, or told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core import taken_bags as kernel
from shardcore.store import taken_bags as taken_bags_module
from shardcore.store.taken_bags import BagsToTake
from shardcore.threads import team

IDS, SPLITS = np.array([0, 5, 1]), np.array([0, 2, 3])
LITTLE = 1 << 14


def take_bags(
    values: Any, row_splits: Any, rows: int, narrow: bool = False
) -> tuple[Any, Any] | None:
    """Return the copies of one feature's bags, or None where they are not plain or not right."""
    bags = BagsToTake()
    if not bags.add(values, row_splits, rows, narrow):
        assert bags.take() == []
        return None
    (copies,) = bags.take()
    return None if bags.wrong() else copies


BAGS = st.tuples(
    st.lists(st.integers(-1, 5), max_size=6),
    st.lists(st.integers(-1, 6), max_size=4),
    st.booleans(),  # whether they are made right
    st.sampled_from(["int32", "int64", "uint32", ">i8", "int16", "longlong"]),
    st.sampled_from(["int64", "int64", "int32", "longlong"]),
)


def bags_of(
    ids: list[int], splits: list[int], right: bool, dtype: str, split_dtype: str
) -> tuple[Any, Any]:
    if right:
        splits = [0, *sorted(abs(split) % (len(ids) + 1) for split in splits), len(ids)]
        ids = [abs(one) % 5 for one in ids]
    values = np.array(ids, np.int64).astype(dtype)
    row_splits = np.array(splits, np.int64).astype(split_dtype)
    for array in (values, row_splits):
        array.flags.writeable = False
    return values, row_splits


@settings(max_examples=150, deadline=None)
@given(
    features=st.lists(BAGS, max_size=5),
    narrow=st.booleans(),
    count=st.integers(1, 3),
    many=st.booleans(),
)
def test_taken_bags_equal_their_twins(
    features: list[Any], narrow: bool, count: int, many: bool
) -> None:
    """Those of several features, whatever is wrong with others; alone, and beside many ids."""
    bags, added = BagsToTake(), []
    if many:
        added.append((np.resize(IDS, LITTLE) % 5, np.array([0, LITTLE])))
        assert bags.add(*added[0], 5, narrow)
    for feature in features:
        values, row_splits = bags_of(*feature)
        plain = values.dtype in (np.int32, np.int64) and row_splits.dtype == np.int64
        plain = plain and row_splits.size > 0
        assert bags.add(values, row_splits, 5, narrow) == plain
        if plain:
            added.append((values, row_splits))
        else:
            assert reference.take_bags(values, row_splits, 5) is None
    before = team.get_num_threads()
    team.set_num_threads(count)
    try:
        copies, wrong = bags.take(), bags.wrong()
    finally:
        team.set_num_threads(before)
    assert len(copies) == len(added)
    for at, (found, given_arrays) in enumerate(zip(copies, added, strict=True)):
        wanted = reference.take_bags(*given_arrays, 5)
        assert (wanted is None) == (at in wrong)
        for own, given_array in zip(found, given_arrays, strict=True):
            assert own is not None
            assert not np.shares_memory(own, given_array)
        if wanted is None:
            continue
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[0].dtype == (np.int32 if narrow else wanted[0].dtype)
        assert found[1] is not None
        np.testing.assert_array_equal(found[1], wanted[1], strict=True)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_id_outside_is_found_wherever_it_is(dtype: type[Any], narrow: bool) -> None:
    for count in (1, 7, 64, 1_000):
        splits = np.array([0, count])
        ids = np.full(count, 4, dtype)
        assert take_bags(ids, splits, 5, narrow) is not None
        for place in {0, count // 2, count - 1}:
            for wrong in (-1, 5, np.iinfo(dtype).min, np.iinfo(dtype).max):
                broken = ids.copy()
                broken[place] = wrong
                assert take_bags(broken, splits, 5, narrow) is None


@pytest.mark.parametrize(
    "splits", [[0, 3, 1, 3], [0, 2, 1, 3], [0, 4, 3], [0, 1, 2], [0, 1, 4], [1, 3], [-1, 3]]
)
def test_row_splits_that_go_down_or_miss_an_end_are_refused(splits: list[int]) -> None:
    assert take_bags(IDS, np.array([0, 1, 1, 3]), 6) is not None
    assert take_bags(IDS, np.array(splits), 6) is None
    assert reference.take_bags(IDS, np.array(splits), 6) is None


def test_what_is_wrong_is_told_of_each() -> None:
    bags, wrong = BagsToTake(), np.array([0, 9, 7])
    large = np.zeros(3 * (1 << 16), np.int64)
    large[[(1 << 16) + 5, -1]] = -1, 6  # in the second of three pieces, and in the last
    for ids, splits in [
        *[(IDS, SPLITS), (wrong, SPLITS), (IDS, np.array([0, 2, 1])), (wrong, np.array([1, 3]))],
        *[(wrong[:0], np.array([0])), (large, np.array([0, large.size])), (large, None)],
    ]:
        assert bags.add(ids, splits, 6)
    bags.take()
    # Of row splits before ids.
    assert bags.wrong() == {1: 1, 2: -1, 3: -1, 5: (1 << 16) + 5, 6: (1 << 16) + 5}


@pytest.mark.parametrize(
    ("ids", "splits"),
    [
        (IDS.reshape(1, 3), SPLITS),
        (np.array(3), SPLITS),
        (IDS, SPLITS.reshape(1, 3)),
        (IDS, np.array(3)),
        (np.array([0, 9, 5, 9, 1])[::2], SPLITS),
        (IDS, np.array([0, 9, 2, 9, 3])[::2]),
        (IDS, SPLITS.astype(np.int32)),
        (IDS, SPLITS[:0]),
        (IDS.astype(float), SPLITS),
        (IDS.astype(np.uint64), SPLITS),
        (IDS, SPLITS.astype(np.uint64)),
        (IDS.tolist(), SPLITS),
        (IDS, SPLITS.tolist()),
        (  # which NumPy shows as unaligned, and a memoryview does not
            memoryview(bytearray(b"x" + IDS.tobytes()))[1:].cast("q"),
            SPLITS,
        ),
        (np.frombuffer(b"x" + IDS.tobytes(), np.int64, offset=1), SPLITS),
        (None, SPLITS),
    ],
)
def test_arrays_of_another_form_are_refused(ids: Any, splits: Any) -> None:
    bags = kernel.TakenBags()
    assert bags.add(ids, splits, 6, False) is False
    assert bags.cut(1, 1) == bags.short == bags.long == 0


def test_rows_beyond_32_bits_are_not_taken_in_32() -> None:
    for rows, narrow in ((1 << 31, True), ((1 << 31) + 1, False)):
        assert kernel.TakenBags().add(IDS, SPLITS, rows, narrow)
        bags = BagsToTake()
        assert bags.add(IDS, SPLITS, rows, narrow=True)
        ((ids, _),) = bags.take()
        assert ids.dtype == (np.int32 if narrow else np.int64)
    assert not kernel.TakenBags().add(IDS, SPLITS, (1 << 31) + 1, True)


def test_copies_without_room_are_refused() -> None:
    bags = kernel.TakenBags()
    assert bags.add(IDS, SPLITS, 6, True)
    assert bags.add(IDS, None, 6, False)
    assert (bags.short, bags.long, bags.cut(1, 1)) == (3, 6, 1)
    for short, long in ((2, 6), (3, 5)):
        with pytest.raises(
            ValueError, match=f"^copies need room for 3 and 6, got {short} and {long}$"
        ):
            bags.make(np.empty(short, np.int32), np.empty(long, np.int64))
    bags.make(np.empty(3, np.int32), np.empty(6, np.int64), 0)
    assert bags.wrong() == {0: -1, 1: 0}  # what no thread has looked at is not right
    bags.make(np.empty(3, np.int32), np.empty(6, np.int64))
    assert bags.wrong() == {}


def test_few_copies_are_made_at_once_and_many_not() -> None:
    for ids, few in ((LITTLE - 3, True), (LITTLE - 2, False)):
        bags = kernel.TakenBags()
        given = np.arange(ids, dtype=np.int64)
        assert bags.add(given, np.array([0, 1, ids]), ids, False)
        made = bags.make_alone()
        assert (made is not None) == few
        if made is None:
            assert bags.wrong() == {0: -1}  # nothing was done
            continue
        ((own, splits),) = made
        np.testing.assert_array_equal(own, given, strict=True)
        np.testing.assert_array_equal(splits, [0, 1, ids])
        assert own.flags.writeable
        assert bags.wrong() == {}


def test_arrays_are_read_as_they_were_added() -> None:
    """Another thread may give them another dtype or shape meanwhile."""
    ids, splits, bags = np.array([1, 2, 3, 4]), np.array([0, 2, 4]), BagsToTake()
    assert bags.add(ids, splits, 5)
    ids.dtype, splits.shape = np.dtype(np.int32), (3, 1)
    del ids, splits
    np.full(4, -1), np.full(3, -1)  # where they lay, if they are gone
    ((own, own_splits),) = bags.take()
    assert own.tolist() == [1, 2, 3, 4]
    assert own_splits is not None
    assert own_splits.tolist() == [0, 2, 4]
    assert bags.wrong() == {}


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_threads_share_all_bags(
    number: int, num_threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_threads(number)
    monkeypatch.setattr(taken_bags_module, "_SHARE", 1)
    rng, bags, added = np.random.default_rng(number), BagsToTake(), []
    for count in (0, 3, 70_000, 1, 200_000):
        ids = rng.integers(0, 9, count).astype(rng.choice([np.int32, np.int64]))
        splits = np.array([0, count // 2, count])
        assert bags.add(ids, splits, 9, narrow=count == 3)
        added.append((ids, splits))
    copies = bags.take()
    assert bags.wrong() == {}
    for found, wanted in zip(copies, added, strict=True):
        for own, array in zip(found, wanted, strict=True):
            assert own is not None
            np.testing.assert_array_equal(own, array)
