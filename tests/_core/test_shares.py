"""Work on many tables, shared out: each as if it were alone, wherever shares begin and end."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_optimizers.adagrad import Adagrad, RowwiseAdagrad
from shardcore_optimizers.sgd import SGD

from shardcore import reference
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.store import lookups as lookups_module
from shardcore.store import occurrences as occurrences_module
from shardcore.store import update as update_module
from shardcore.store.finite import all_finite
from shardcore.store.lookups import look_up
from shardcore.store.occurrences import BagSorts, sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.segment_reduce import divisors
from shardcore.store.stored_rows import StoredRows
from shardcore.store.update import StagedUpdates
from shardcore.threads import team

pytestmark = pytest.mark.usefixtures("instruction_set")

Same = Callable[[Any, Any], None]

TABLES = st.lists(
    st.tuples(
        st.integers(1, 60),  # rows
        st.sampled_from([0, 1, 8, 17, 64]),  # columns
        st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
        st.integers(0, 12),  # bags
    ),
    min_size=1,
    max_size=9,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share what would be too little for them."""
    monkeypatch.setattr(team, "PIECE", 1)
    monkeypatch.setattr(team, "_SMALL_PIECE", 1)
    monkeypatch.setattr(occurrences_module, "_SHARE", 1)


def bags(rng: np.random.Generator, rows: int, number: int) -> tuple[Any, Any]:
    splits = np.concatenate(([0], np.cumsum(rng.integers(0, 5, number)))).astype(np.int64)
    return rng.integers(0, rows, splits[-1]).astype(rng.choice([np.int32, np.int64])), splits


def stage(targets: list[StoredRows], updates: list[RowUpdate]) -> Callable[[], None]:
    """Return what makes the updates."""
    staged = StagedUpdates()
    for target, update in zip(targets, updates, strict=True):
        staged.add(target, update)
    return staged.ready()


@settings(max_examples=40, deadline=None)
@given(tables=TABLES, count=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_lookups_in_many_tables_equal_their_twins(
    tables: Any, count: int, seed: int, assert_same: Same, make_rows: Any
) -> None:
    rng = np.random.default_rng(seed)
    requests, wanted = [], []
    for rows, dim, dtype, number in tables:
        table = make_rows(rng, (rows, dim), dtype)
        value = working_dtype(table.dtype)
        ids, splits = bags(rng, rows, number)
        weights = rng.uniform(-1, 1, ids.size).astype(value) if rng.integers(2) else None
        combiner = str(rng.choice(["sum", "mean", "sqrtn"]))
        with np.errstate(all="ignore"):
            divisor = divisors(combiner, splits, weights, value)
            wanted.append(reference.segment_reduce(table, ids, splits, weights, divisor))
        out = np.full((number, dim), 7, value)
        requests.append((StoredRows(table, {}), ids, splits, weights, divisor, out))
    before = team.get_num_threads()
    team.set_num_threads(count)
    try:
        assert look_up(requests)
    finally:
        team.set_num_threads(before)
    for (*_, out), expected in zip(requests, wanted, strict=True):
        assert_same(out, expected)


@settings(max_examples=40, deadline=None)
@given(tables=TABLES, count=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_updates_of_many_tables_equal_their_twins(
    tables: Any, count: int, seed: int, assert_same: Same
) -> None:
    rng = np.random.default_rng(seed)
    optimizers = SGD(0.5, momentum=0.5), RowwiseAdagrad(0.1), Adagrad(0.25), SGD(0.5)
    hyper = {
        optimizer: optimizer.hyper() for optimizer in optimizers
    }  # of all tables, as in a step
    ours, theirs, updates = [], [], []
    for rows, dim, dtype, number in tables:
        optimizer = optimizers[rng.integers(len(optimizers))]
        table = rng.standard_normal((rows, dim)).astype(as_dtype(dtype))
        slots = {
            slot.name: np.ones(slot.shape(rows, dim), slot.storage_dtype(table.dtype))
            for slot in optimizer.slots
        }
        ids, splits = bags(rng, rows, number)
        sources = np.repeat(np.arange(number, dtype=np.int32), np.diff(splits))
        batch = sort_occurrences(ids, sources, None, rows)
        gradients = rng.standard_normal((number, dim)).astype(working_dtype(table.dtype))
        updates.append(RowUpdate(batch, batch.rows, gradients, optimizer, hyper[optimizer], 3))
        ours.append((table, slots))
        theirs.append((table.copy(), {name: slot.copy() for name, slot in slots.items()}))
    before = team.get_num_threads()
    team.set_num_threads(count)
    try:
        commit = stage([StoredRows(*one) for one in ours], updates)
        for (table, _), (kept, _) in zip(ours, theirs, strict=True):
            assert_same(table, kept)  # nothing changes before
        commit()
    finally:
        team.set_num_threads(before)
    for own, twin, update in zip(ours, theirs, updates, strict=True):
        reference.update_rows(*twin, update)
        assert_same(own[0], twin[0])
        for name, slot in own[1].items():
            assert_same(slot, twin[1][name])


@settings(max_examples=40, deadline=None)
@given(
    tables=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 12)), max_size=9),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_sorts_over_many_tables_equal_their_twins(
    tables: Any, count: int, seed: int, assert_same: Same
) -> None:
    rng = np.random.default_rng(seed)
    given = [(*bags(rng, rows, number), rows) for rows, number in tables]
    before = team.get_num_threads()
    team.set_num_threads(count)
    try:
        sorts = BagSorts()
        for table in given:
            sorts.add(*table)
        found = sorts.make()
    finally:
        team.set_num_threads(before)
    assert len(found) == len(given)
    for ours, table in zip(found, given, strict=True):
        theirs = reference.sort_bags(*table)
        assert_same(ours.rows, theirs.rows)
        assert_same(ours.run_splits, theirs.run_splits)
        assert_same(ours.sources, theirs.sources)
        assert ours.gains is None


@settings(max_examples=40, deadline=None)
@given(
    tables=st.lists(
        st.tuples(
            st.sampled_from([1, 40, 2**20, 2**32, 2**32 + 1, 2**40]),
            st.lists(st.integers(0, 12), min_size=1, max_size=3),
        ),
        max_size=9,
    ),
    count=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_sorts_of_pairs_over_many_tables_equal_their_twins(
    tables: Any, count: int, seed: int, assert_same: Same
) -> None:
    """Of several features, of tables whose rows need 32 bits and more, beside small ones."""
    rng = np.random.default_rng(seed)
    sorts, twins = occurrences_module._kernel.Sorts(), []
    for rows, numbers in tables:
        features, bits = [], max(rows - 1, 0).bit_length()
        for number in numbers:
            _, splits = bags(rng, 1, number)
            ids = rng.integers(0, rows, splits[-1])
            ids[rng.random(ids.size) < 0.3] = rows - 1
            ids[rng.random(ids.size) < 0.2] = 0
            features.append((ids.astype(np.int32) if rows < 2**31 else ids, splits))
        sorts.add(*features[0], bits, by_row=False)
        for feature in features[1:]:
            sorts.add_feature(*feature)
        bag_numbers = np.arange(sum(splits.size - 1 for _, splits in features), dtype=np.int32)
        lengths = np.concatenate([np.diff(splits) for _, splits in features])
        ids = np.concatenate([ids for ids, _ in features])
        sources = np.repeat(bag_numbers, lengths)
        twins.append(reference.sort_occurrences(ids, sources, None, rows))
        sorts.add_sources(ids, sources[::-1].copy(), bits)
        twins.append(reference.sort_occurrences(ids, sources[::-1], None, rows))
    shares = sorts.cut(count, 1)
    out = [np.full(sorts.ids + pad, -7, np.int64) for pad in (0, sorts.tables)]
    sources = np.full(sorts.ids, -7, np.int32)
    for _ in range(shares):
        sorts.make(np.full(sorts.scratch, 77, np.uint32), *out, sources, 1)
    for parts, twin in zip(sorts.parts_of(*out, sources), twins, strict=True):
        for ours, theirs in zip(parts, (twin.rows, twin.run_splits, twin.sources), strict=True):
            assert_same(ours, theirs)


def test_pairs_have_as_much_scratch_as_they_take() -> None:
    """Counters of digits, and pairs of 8 bytes, or 16 of rows of more than 32 bits, twice."""
    for bits, of_pair in ((32, 2), (33, 4)):
        sorts = occurrences_module._kernel.Sorts()
        sorts.add(np.zeros(30, np.int64), np.array([0, 30]), bits, by_row=False)
        assert sorts.scratch == 8 * 256 + 2 * 30 * of_pair
        sorts.add_feature(np.zeros(5, np.int64), np.array([0, 5]))
        assert sorts.scratch == 8 * 256 + 2 * 35 * of_pair


def test_a_table_that_is_sorted_whole_is_sorted_once() -> None:
    """Threads share tables, not the ids of one: to count them twice is to write them twice."""
    rng = np.random.default_rng(1)
    tables = [(*bags(rng, 50, 40), 50) for _ in range(3)]
    sorts = occurrences_module._kernel.Sorts()
    for ids, splits, _ in tables:
        sorts.add(ids, splits, 6, by_row=True)
    shares = sorts.cut(4, 1)
    assert shares == 4
    written = []
    for _ in range(shares):
        out = [np.full(sorts.ids + pad, -7, dtype) for pad, dtype in ((0, np.int64), (3, np.int64))]
        sources = np.full(sorts.ids, -7, np.int32)
        sorts.make(np.empty(sorts.scratch, np.uint32), *out, sources, 1)
        written.append(sources != -7)
    assert (np.sum(written, axis=0) == 1).all()


def test_counters_are_those_of_the_largest_table() -> None:
    sorts = occurrences_module._kernel.Sorts()
    for shift, counters in ((3, 8 + 2), (10, 1024 + 32), (5, 1024 + 32)):
        sorts.add(np.zeros(1, np.int64), np.array([0, 1]), shift, by_row=True)
        assert sorts.scratch == counters


def test_scratch_is_that_of_the_widest_table() -> None:
    updates, _ = updates_of([[1]], dim=64)
    wide = updates.scratch
    rows, optimizer = np.zeros((1, 2), np.float32), SGD(1.0)
    batch, ones = sort_occurrences(np.array([0]), SOURCES[:1], None, 1), np.ones((1, 2), np.float32)
    rest = (batch.run_splits, batch.sources, None, ones, False, 0, None, None)
    rule = update_module._rule(optimizer, optimizer.hyper(), np.dtype(np.float32))
    updates.add(StoredRows(rows, {}).found, rule, 1, batch.rows, batch.rows, *rest)
    assert updates.scratch == wide


# --- where shares begin and end ------------------------------------------------------------------


def updates_of(lengths: list[list[int]], dim: int = 4) -> tuple[Any, list[Any]]:
    """Return updates of tables whose rows occur so often, and the tables."""
    updates, tables = update_module._kernel.Updates(), []
    for table in lengths:
        rows = np.zeros((len(table), dim), np.float32)
        sources = np.zeros(sum(table), np.int32)
        ids = np.repeat(np.arange(len(table)), table)
        batch, ones = (
            sort_occurrences(ids, sources, None, len(table)),
            np.ones((1, dim), np.float32),
        )
        optimizer = SGD(1.0)
        rule = update_module._rule(optimizer, optimizer.hyper(), np.dtype(np.float32))
        rest = (batch.run_splits, batch.sources, None, ones, False, 0, None, None)
        updates.add(StoredRows(rows, {}).found, rule, 1, batch.rows, batch.rows, *rest)
        tables.append(rows)
    return updates, tables


def made(lengths: list[list[int]], most: int, least: int) -> list[list[int]]:
    """Return which rows, of all tables, each share updates, each row once."""
    updates, tables = updates_of(lengths)
    shares = updates.cut(most, least)
    scratch = np.empty(updates.scratch, np.uint8)
    found, before = [], np.concatenate(tables)[:, 0].copy()
    for _ in range(shares):
        updates.make(scratch, 1)
        now = np.concatenate(tables)[:, 0].copy()
        found.append(np.flatnonzero(now != before).tolist())
        before = now
    np.testing.assert_array_equal(before, -np.concatenate(lengths, dtype=np.float32))
    assert sorted(row for share in found for row in share) == list(range(before.size))
    return found


def test_shares_are_about_equal_whatever_tables_they_are_of() -> None:
    # A row that occurs n times is n + 1 rows' work, of 4 elements.
    assert made([[1, 1, 1, 1]], 2, 1) == [[0, 1], [2, 3]]
    assert made([[1], [1], [1], [1]], 2, 1) == [[0, 1], [2, 3]]
    assert made([[1, 1, 1], [1]], 4, 1) == [[0], [1], [2], [3]]
    assert made([[7], [1, 1, 1, 1]], 2, 1) == [[0], [1, 2, 3, 4]]
    assert made([[1, 1], [9, 1], [1, 1]], 2, 1) == [[0, 1, 2], [3, 4, 5]]
    assert made([[1], [98], [1]], 3, 1)[0] == [0, 1]  # a row is not shared


def test_shares_are_no_smaller_than_they_may_be() -> None:
    lengths = [[1, 1], [1, 1]]  # 4 rows of 2 * 4 elements
    assert len(made(lengths, 9, 8)) == 4
    assert len(made(lengths, 9, 9)) == 3
    assert len(made(lengths, 9, 17)) == 1
    assert len(made(lengths, 9, 1000)) == 1
    assert update_module._kernel.Updates().cut(9, 1) == 0


def test_no_share_is_made_twice() -> None:
    updates, (rows,) = updates_of([[1, 1, 1]])
    assert updates.cut(3, 1) == 3
    scratch = np.empty(updates.scratch, np.uint8)
    updates.make(scratch, 0)
    assert not rows.any()
    updates.make(scratch, 2)
    assert rows[:, 0].tolist() == [-1, -1, 0]
    for _ in range(2):
        updates.make(scratch)
        assert (rows == -1).all()


def test_little_work_is_made_at_once_and_more_not() -> None:
    """Each kind by itself: the limit is the last number of elements that are little."""
    updates, (rows,) = updates_of([[1, 1, 1]])  # 3 rows of 2 * 4 elements
    assert updates.alone(23) is None
    assert not rows.any()
    with pytest.raises(ValueError, match=r"^updates must be made alone$"):
        updates.make_all()
    make = updates.alone(24)
    assert make is not None
    assert not rows.any()
    for _ in range(2):
        make()
        assert (rows == -1).all()

    tests = update_module._kernel.FiniteTests()
    tests.add(np.array([1, 2, np.nan]))
    work = tests.cut(9, 1)
    assert tests.make_alone(work - 1) is None
    assert tests.make_alone(work) is False
    assert update_module._kernel.FiniteTests().make_alone(0) is True

    table, splits = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 1, 3])
    for ids, right in (([1, 0, 1], True), ([1, 0, 2], False)):
        lookups, out = lookups_module._kernel.Lookups(), np.full((2, 3), 7, np.float32)
        lookups.add(StoredRows(table, {}).found, np.array(ids), splits, None, None, out)
        assert lookups.make_alone(0, 14) is None  # 3 ids and 2 bags of 3 elements
        assert (out == 7).all()
        assert lookups.make_alone(0, 15) is right
        if right:
            np.testing.assert_array_equal(out, [[3, 4, 5], [3, 5, 7]])

    for count, few in ((1 << 14, True), ((1 << 14) + 1, False)):
        sorts, ids = occurrences_module._kernel.Sorts(), np.arange(count)[::-1].copy()
        sorts.add(ids, np.array([0, count]), 15, by_row=True)
        assert sorts.make_alone(count) is None  # a bag is work too
        made = sorts.make_alone(1 << 40)
        assert (made is not None) == few
        if made is not None:
            ((unique, run_splits, sources),) = made
            np.testing.assert_array_equal(unique, np.arange(count))
            np.testing.assert_array_equal(run_splits, np.arange(count + 1))
            assert not sources.any()


def test_one_thread_makes_at_once_what_is_one_share(num_threads: Callable[[int], None]) -> None:
    for number in (1, 2, 5):
        num_threads(number)
        for elements in (0, 1, 9, 10, 38, 39, 40, 41, 400):
            work = update_module._kernel.FiniteTests()
            work.add(np.ones(elements))
            alone = work.make_alone(team.most_alone(10)) is not None
            assert alone == (team.cut(work, 10) <= 1), (number, elements)
        for bags, dim in ((1, 1), (2, 1), (1, 2), (30, 7)):
            lookups = lookups_module._kernel.Lookups()
            splits, out = np.zeros(bags + 1, np.int64), np.ones((bags, dim), np.float32)
            stored = StoredRows(np.ones((1, dim), np.float32), {}).found
            lookups.add(stored, np.zeros(0, np.int64), splits, None, None, out)
            alone = lookups.make_alone(0, team.most_without_companion()) is not None
            assert alone == (number == 1 or bags * dim == 1), (number, bags, dim)
            assert alone == (not out.any())


def test_work_that_is_not_right_is_refused() -> None:
    """The faces see to it; a kernel that works on plain memory does not trust them with it."""
    updates, _ = updates_of([[1]])
    assert updates.cut(1, 1) == 1
    scratch = np.empty(updates.scratch, np.uint8)
    text = f"scratch must have {scratch.size} bytes, got {scratch.size - 1}"
    with pytest.raises(ValueError, match=f"^{text}$"):
        updates.make(scratch[1:])


ROWS = np.arange(2)
SPLITS, SOURCES = np.array([0, 1, 2]), np.zeros(2, np.int32)
ONES = np.ones((1, 3), np.float32)


@pytest.mark.parametrize(
    "wrong",
    [
        {"unique": ROWS.astype(np.int32)},
        {"unique": ROWS[:, None]},
        {"row_ids": ROWS.astype(np.float64)},
        {"run_splits": SPLITS.astype(np.uint64)},
        {"sources": SOURCES.astype(np.int64)},
        {"gradients": ONES.astype(np.float64)},
        {"gradients": np.ones((1, 2), np.float32)},
        {"gradients": np.ones(3, np.float32)},
        {"gradients": ONES.astype(">f4")},
        {"gradients": np.ones((1, 6), np.float32)[:, ::2]},
        {"gradients": np.asfortranarray(np.ones((2, 3), np.float32))},
        {"gradients": np.frombuffer(b"x" + ONES.tobytes(), np.float32, offset=1).reshape(1, 3)},
        {"gradients": np.ones((1, 1, 3), np.float32)},
        {"gradients": np.ones((1, 3), np.int32)},
        {"gradients": [[1.0, 1.0, 1.0]]},
        {"gains": np.ones(2)},
        {"long": np.zeros(1, np.int32), "sums": ONES},
        {"long": np.zeros(1, np.int64), "sums": ONES.astype(np.float64)},
    ],
)
def test_an_update_of_other_dtypes_is_refused(wrong: dict[str, Any]) -> None:
    text = "work on a table must have arrays of its dtypes and of its number of columns"
    with pytest.raises(TypeError, match=f"^{text}$"):
        add_update(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_ids": ROWS[:1]},
        {"run_splits": SPLITS[:2]},
        {"gains": np.ones(1, np.float32)},
        {"gains": np.ones(0, np.float32)},
        {"sums": ONES},
        {"long": np.zeros(1, np.int64)},
    ],
)
def test_an_update_of_other_lengths_is_refused(wrong: dict[str, Any]) -> None:
    text = (
        "an update must have a row id and a run of each row, a gain of each source, and a sum of "
        "each long run"
    )
    with pytest.raises(ValueError, match=f"^{text}$"):
        add_update(**wrong)


def test_arrays_that_are_mapped_from_a_file_are_read_as_others(tmp_path: Path) -> None:
    """They are of a class that is derived from NumPy's."""
    path = tmp_path / "gradients"
    path.write_bytes(ONES.tobytes())
    gradients = np.memmap(path, np.float32, "r", shape=ONES.shape)
    assert type(gradients) is not np.ndarray
    assert add_update(gradients=gradients) == add_update() > 0
    assert all_finite([gradients])


def test_an_update_of_read_only_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^rows to update must be writable, got read-only ones$"):
        add_update(writable=False)


def add_update(writable: bool = True, **other: Any) -> int:
    arrays = {
        "unique": ROWS,
        "row_ids": ROWS,
        "run_splits": SPLITS,
        "sources": SOURCES,
        "gains": None,
        "gradients": ONES,
        "stochastic": False,
        "seed": 0,
        "long": None,
        "sums": None,
        **other,
    }
    optimizer = SGD(1.0)
    rule = update_module._rule(optimizer, optimizer.hyper(), np.dtype(np.float32))
    rows = np.zeros((2, 3), np.float32)
    rows.flags.writeable = writable
    stored = StoredRows(rows, {}).found
    work: int = update_module._kernel.Updates().add(stored, rule, 1, *arrays.values())
    return work


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"ids": np.zeros(3)}, TypeError, "work on a table must have arrays of its dtypes"),
        ({"weights": np.ones(3)}, TypeError, "work on a table must have arrays of its dtypes"),
        (
            {"out": np.ones((2, 4), np.float32)},
            TypeError,
            "work on a table must have arrays of its dtypes and of its number of columns",
        ),
        (
            {"weights": np.ones(2, np.float32)},
            ValueError,
            "a lookup must have a weight of each id, and a divisor and a row of out of each bag",
        ),
        (
            {"divisors": np.ones(3, np.float32)},
            ValueError,
            "a lookup must have a weight of each id, and a divisor and a row of out of each bag",
        ),
        (
            {"weights": np.ones(0, np.float32)},
            ValueError,
            "a lookup must have a weight of each id, and a divisor and a row of out of each bag",
        ),
        (
            {"divisors": np.ones(0, np.float32)},
            ValueError,
            "a lookup must have a weight of each id, and a divisor and a row of out of each bag",
        ),
        (
            {"out": np.ones((1, 3), np.float32)},
            ValueError,
            "a lookup must have a weight of each id, and a divisor and a row of out of each bag",
        ),
        (
            {"row_splits": np.array([0, 1, 4])},
            ValueError,
            "row_splits of a lookup must lie among its ids",
        ),
        (
            {"row_splits": np.array([-1, 1, 3])},
            ValueError,
            "row_splits of a lookup must lie among its ids",
        ),
        (
            {"out": np.zeros((2, 3), np.float32)},
            ValueError,
            "out of a lookup must be writable",
        ),
    ],
)
def test_a_lookup_that_is_not_right_is_refused(
    wrong: dict[str, Any], error: type[Exception], text: str
) -> None:
    arrays = {
        "ids": np.zeros(3, np.int64),
        "row_splits": np.array([0, 1, 3]),
        "weights": None,
        "divisors": None,
        "out": np.empty((2, 3), np.float32),
        **wrong,
    }
    arrays["out"].flags.writeable = "writable" not in text
    stored = StoredRows(np.zeros((2, 3), np.float32), {}).found
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        lookups_module._kernel.Lookups().add(stored, *arrays.values())


@pytest.mark.parametrize("count", [1, 3])
def test_an_id_out_of_range_is_told_wherever_it_is(
    count: int, num_threads: Callable[[int], None]
) -> None:
    num_threads(count)
    rows = StoredRows(np.ones((5, 3), np.float32), {})
    for wrong in range(3):
        for bad in (-1, 5):
            requests = []
            for table in range(3):
                ids = np.arange(4)
                if table == wrong:
                    ids[2] = bad
                out = np.empty((2, 3), np.float32)
                requests.append((rows, ids, np.array([0, 2, 4]), None, None, out))
            assert not look_up(requests)


def test_sorts_without_room_are_refused() -> None:
    sorts = occurrences_module._kernel.Sorts()
    with pytest.raises(
        ValueError, match=r"^row_splits of ids to sort must begin at 0 and end at their number$"
    ):
        sorts.add(np.zeros(2, np.int64), np.array([0, 1]), 1, by_row=True)
    sorts.add(np.zeros(2, np.int64), np.array([0, 2]), 1, by_row=True)
    assert sorts.cut(1, 1) == 1
    with pytest.raises(
        ValueError, match=r"^a feature to sort must be of a table that was added, and not by row$"
    ):
        sorts.add_feature(np.zeros(2, np.int64), np.array([0, 2]))
    with pytest.raises(ValueError, match=r"^rows to sort must have as many sources$"):
        sorts.add_sources(np.zeros(2, np.int64), np.zeros(3, np.int32), 1)
    sizes = {"scratch": sorts.scratch, "rows": 2, "splits": 3, "sources": 2}
    dtypes = (np.uint32, np.int64, np.int64, np.int32)
    for short in sizes:
        arrays = [
            np.empty(size - (name == short), dtype)
            for (name, size), dtype in zip(sizes.items(), dtypes, strict=True)
        ]
        text = "what is sorted needs room for all ids, and for one more of each table"
        with pytest.raises(ValueError, match=f"^{text}$"):
            sorts.make(*arrays)


def test_a_rule_is_asked_for_once_for_all_tables_of_an_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    rule = update_module._rule
    monkeypatch.setattr(update_module, "_rule", lambda *rest: asked.append(1) or rule(*rest))
    optimizer, hyper, gradients = SGD(1.0), SGD(1.0).hyper(), np.ones((1, 2))
    tables = [np.zeros((3, 2)) for _ in range(4)]
    batch = sort_occurrences(np.array([1]), np.zeros(1, np.int32), None, 3)
    updates = [RowUpdate(batch, batch.rows, gradients, optimizer, hyper, 1) for _ in tables]
    stage([StoredRows(table, {}) for table in tables], updates)()
    assert asked == [1]
    assert all((table[1] == -1).all() for table in tables)


def test_a_rule_is_kept_for_the_steps_of_an_optimizer_and_not_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    rule = update_module._rule
    monkeypatch.setattr(update_module, "_rule", lambda *rest: asked.append(rest) or rule(*rest))
    monkeypatch.setattr(update_module, "_rules", {})
    batch = sort_occurrences(np.array([1]), np.zeros(1, np.int32), None, 3)

    def step(optimizer: Any, hyper: Any, number: int, dtype: Any = np.float64) -> Any:
        table, before = np.zeros((3, 2), dtype), len(asked)
        update = RowUpdate(batch, batch.rows, np.ones((1, 2), dtype), optimizer, hyper, number)
        stage([StoredRows(table, {})], [update])()
        return table[1, 0], len(asked) - before

    optimizer = SGD(1.0)
    hyper = optimizer.hyper()
    assert step(optimizer, hyper, 1) == (-1, 1)
    assert step(optimizer, hyper, 2) == (-1, 0)
    assert step(optimizer, hyper, 2, np.float32) == (-1, 1)
    assert step(optimizer, (0.5, *hyper[1:]), 3) == (-0.5, 1)  # a rate that moves
    assert step(SGD(0.25), hyper, 3) == (-1, 1)
    # A later optimizer may lie where one lay that is gone: it is not taken for it.
    later, key = SGD(0.125), (id(optimizer), np.dtype(np.float64))
    gone, *rest = update_module._rules[key]
    update_module._rules[id(later), np.dtype(np.float64)] = gone, *rest
    assert step(later, rest[0], 4)[1] == 1
    del optimizer, rest
    asked.clear()
    gc.collect()
    assert gone() is None  # it is not kept alive, nor what its rate is computed from
    kept = [SGD(1.0) for _ in range(200)]
    for one in kept:
        step(one, hyper, 1)
    assert len(update_module._rules) <= update_module._MOST_RULES
