"""A batch by worker, holder and row: equal to the twin, on any number of threads."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore.errors import ShardcoreIndexError, ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.store import sorted_triples
from shardcore.store.sorted_triples import SortedTriples, WorkedBags, sort_triples

KINDS = ("ones", "bags", "ids")


def numbers_of(
    rng: np.random.Generator, n: int, rows: int, groups: int, holder_bits: int, row_bits: int
) -> Any:
    """Draw numbers of few rows, which may be far apart."""
    digits = rng.integers(0, groups, n) << row_bits
    stride = max(1, (1 << row_bits) // rows)
    digits += rng.integers(0, rows, n) * stride
    return digits << holder_bits | rng.integers(0, 1 << holder_bits, n)


WHOLE = Layout.div(16, 1)
NONE = np.zeros(1, np.int64)


def bags_of(
    rng: np.random.Generator,
    workers: int,
    kinds: list[str],
    rows: int,
    where: tuple[int, int, int],
    most: int = 4,
) -> list[WorkedBags]:
    groups, holder_bits, row_bits = where
    features, filled = [], np.zeros(workers, np.int64)
    for kind in kinds:
        own = rng.integers(0, most, workers)
        borders = np.concatenate([[0], own.cumsum()])
        lengths = rng.integers(0, 6, borders[-1])
        splits = np.concatenate([[0], lengths.cumsum()])
        n = int(splits[-1])
        firsts = filled + rng.integers(0, 3, workers)
        layout, bases = Layout.div(groups << (holder_bits + row_bits), 1), NONE
        ids = numbers_of(rng, n, rows, *where)
        if rng.random() < 0.5:  # rows of a table, dealt round to the groups
            layout = Layout.mod(groups << (holder_bits + row_bits), groups)
            bases = np.arange(groups) << (holder_bits + row_bits)
            ids = rng.integers(0, min(layout.num_rows, rows * groups), n)
        features.append(
            WorkedBags(
                ids.astype(np.int32) if ids.max(initial=0) < 2**31 and rng.random() < 0.5 else ids,
                layout,
                bases,
                splits,
                borders,
                firsts,
                rng.standard_normal(n).astype(np.float32) if kind == "ids" else None,
                rng.random(lengths.size).astype(np.float32) if kind == "bags" else None,
            )
        )
        filled = firsts + own
    return features


def starts_of(rng: np.random.Generator, counts: Any, blocks: int) -> tuple[Any, Any, int]:
    """Return where lists begin that follow one another in blocks, and the room of these."""
    padded = (-(-counts // 8) * 8).reshape(blocks, -1)
    used = padded.sum(axis=1)
    room = int(used.max(initial=0)) + 8 * int(rng.integers(0, 3))
    starts = padded.cumsum(axis=1) - padded + room * np.arange(blocks)[:, None]
    return starts.reshape(counts.shape), used, room


def check(rng: np.random.Generator, found: SortedTriples, twin: Any, parts: int) -> None:
    for name in ("counts", "distinct", "rows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(twin, name), err_msg=name)
    for some in (parts, -(-parts // 2), 1):  # the fewer ones are sums of the others
        for ours, theirs in zip(found.parts(some), twin.parts(some), strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)
    counts = twin.parts(parts)[0]
    blocks = int(rng.choice([n for n in range(1, 5) if counts.shape[0] % n == 0]))
    starts = starts_of(rng, counts, blocks)
    before = starts[0].copy()
    for ours, theirs in zip(found.lists(*starts, 77), twin.lists(*starts, 77), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    np.testing.assert_array_equal(starts[0], before)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 6),
    groups=st.integers(1, 5),
    holder_bits=st.integers(0, 2),
    row_bits=st.sampled_from([0, 3, 12, 30, 31]),
    kinds=st.lists(st.sampled_from(KINDS), max_size=4),
    parts=st.sampled_from([1, 2, 64]),
    threads=st.sampled_from([1, 3]),
)
@example(
    seed=0,
    workers=2,
    groups=1,
    holder_bits=1,
    row_bits=31,
    kinds=["ids"],
    parts=64,
    threads=1,
)
def test_lists_equal_their_twin(
    seed: int,
    workers: int,
    groups: int,
    holder_bits: int,
    row_bits: int,
    kinds: list[str],
    parts: int,
    threads: int,
    num_threads: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    frozen: Callable[[Any], Any],
) -> None:
    monkeypatch.setattr(sorted_triples, "_COST", 1 << 18)  # every worker goes to a thread
    monkeypatch.setattr(sorted_triples, "_BUCKET_BITS", 2)
    num_threads(threads)
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 3, 1 << min(row_bits, 20)]))
    rows = min(rows, 1 << row_bits)
    most = int(rng.choice([4, 40]))  # more pairs of a bucket than are sorted by insertion
    where = (groups, holder_bits, row_bits)
    features = bags_of(rng, workers, kinds, rows, where, most)
    given_arrays = [
        WorkedBags(
            *(frozen(one) if isinstance(one, np.ndarray) else one for one in vars(bags).values())
        )
        for bags in features
    ]
    found = sort_triples(given_arrays, workers, *where)
    check(rng, found, reference.sort_triples(features, workers, *where), parts)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("row_bits", [5, 20, 31])
def test_many_ids_on_threads(
    row_bits: int, threads: int, num_threads: Callable[[int], None]
) -> None:
    """Against NumPy: half the ids few and hot, the other half anywhere; buckets of all sizes."""
    num_threads(threads)
    rng = np.random.default_rng(row_bits)
    workers, groups, holder_bits, bags, n = 6, 3, 1, 60_000, 300_000
    numbers = numbers_of(rng, n, 1 << row_bits, groups, holder_bits, row_bits)
    hot = rng.random(n) < 0.5
    numbers[hot] = numbers[rng.integers(0, 3, np.count_nonzero(hot))]
    splits = np.concatenate([[0], np.sort(rng.integers(0, n + 1, bags - 1)), [n]])
    borders = np.array([0, 100, 100, 30_000, 40_000, 59_000, bags])
    whole = Layout.div(groups << (holder_bits + row_bits), 1)
    one = WorkedBags(numbers, whole, NONE, splits, borders, np.zeros(workers, np.int64))
    found = sort_triples([one], workers, groups, holder_bits, row_bits)
    digits, low = numbers >> holder_bits, numbers & 1
    holder, row = (digits >> row_bits) * 2 + low, digits & (1 << row_bits) - 1
    bag = np.repeat(np.arange(bags), np.diff(splits))
    worker = np.searchsorted(borders, bag, side="right") - 1
    triples, times = np.unique(
        np.stack([worker, holder, row, bag - borders[worker]]), axis=1, return_counts=True
    )
    counts = np.zeros((workers, 6), np.int64)
    np.add.at(counts, (triples[0], triples[1]), 1)
    np.testing.assert_array_equal(found.counts, counts)
    assert found.rows == np.unique(np.stack([holder, row]), axis=1).shape[1]
    starts, used, room = starts_of(rng, counts[:, None], 3)
    lists = found.lists(starts, used, room, -1)
    real = lists.rows >= 0
    for ours, theirs in zip(
        (lists.rows[real], lists.bags[real], lists.gains[real]),
        (triples[2], triples[3], times),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert np.isnan(lists.gains[~real]).all()


def test_no_ids_are_sorted() -> None:
    found = sort_triples([], 2, 3, 1, 4)
    assert found.rows == 0
    assert not found.counts.any()
    lists = found.lists(np.zeros((2, 1, 6), np.int64), np.zeros(1, np.int64), 8, 5)
    assert (lists.rows == 5).all()
    assert np.isnan(lists.gains).all()


PLAIN = WorkedBags(
    np.array([9, 2, 9]),
    WHOLE,
    NONE,
    np.array([0, 2, 3]),
    np.array([0, 1, 2]),
    np.zeros(2, np.int64),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"borders": np.array([0, 2])},
            "features[1].borders and firsts must be of 3 and 2 workers, got (2,) and (2,)",
        ),
        (
            {"firsts": np.zeros(3, np.int64)},
            "features[1].borders and firsts must be of 3 and 2 workers, got (3,) and (3,)",
        ),
        (
            {"borders": np.array([0, 1, 3])},
            "features[1].borders must ascend from 0 to its 2 bags, got [0, 1, 3]",
        ),
        (
            {"borders": np.array([1, 1, 2])},
            "features[1].borders must ascend from 0 to its 2 bags, got [1, 1, 2]",
        ),
        (
            {"borders": np.array([0, 3, 2])},
            "features[1].borders must ascend from 0 to its 2 bags, got [0, 3, 2]",
        ),
        (
            {"bases": np.zeros(2, np.int64)},
            "features[1].bases must be of shape (1,), got (2,)",
        ),
        (
            {"bases": np.array([1])},
            "features[1].bases must give every row a number below 16, got 1 for 16 rows of shard 0",
        ),
        (
            {"layout": Layout.mod(20, 3), "bases": np.array([0, -7, 9])},
            "features[1].bases must give every row a number below 16, got -7 for 7 rows of shard 1",
        ),
        (
            {"gains": np.ones(2, np.float32)},
            "features[1].gains must be of shape (3,), got (2,)",
        ),
        (
            {"bag_gains": np.ones(3, np.float32)},
            "features[1].bag_gains must be of shape (2,), got (3,)",
        ),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        sort_triples([PLAIN, dataclasses.replace(PLAIN, **change)], 2, 1, 1, 3)


@pytest.mark.parametrize(
    ("starts", "blocks", "room", "told"),
    [
        ([0, 8, 20, 24], 1, 32, "1 * 32 places, got 20 for 1 triples at (1, 0, 0)"),
        ([0, 8, 16, -8], 1, 32, "1 * 32 places, got -8 for 1 triples at (1, 0, 1)"),
        ([0, 8, 16, 32], 2, 16, "2 * 16 places, got 32 for 1 triples at (1, 0, 1)"),
        ([0, 8, 16, 24], 1, 30, "1 * 30 places, got 0 for 1 triples at (0, 0, 0)"),
    ],
)
def test_lists_that_have_no_room_are_refused(
    starts: list[int], blocks: int, room: int, told: str
) -> None:
    ids = np.array([9, 2, 9, 9, 4])
    bags = dataclasses.replace(PLAIN, ids=ids, row_splits=np.array([0, 2, 5]))
    found = sort_triples([bags], 2, 1, 1, 3)
    message = f"starts must be multiples of 8 from which on lists end within {told}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        found.lists(np.array(starts).reshape(2, 1, 2), np.zeros(blocks, np.int64), room, 0)


def test_ids_that_are_no_rows_are_refused() -> None:
    wrong = dataclasses.replace(PLAIN, layout=Layout.div(9, 1))
    with pytest.raises(ShardcoreIndexError, match="9"):
        sort_triples([wrong], 2, 1, 1, 3)


def test_parts_and_starts_have_their_shapes() -> None:
    found = sort_triples([PLAIN], 2, 1, 1, 3)
    for parts in (0, 3):
        with pytest.raises(
            ShardcoreValueError, match=f"^parts must be a power of two, got {parts}$"
        ):
            found.parts(parts)
    message = "starts must be of shape (2, parts, 2), got (2, 2, 1)"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        found.lists(np.zeros((2, 2, 1), np.int64), np.zeros(1, np.int64), 8, 0)
    for used in (-1, 9):
        with pytest.raises(
            ShardcoreValueError, match=f"^used must be from 0 to 8, got {used} at 1$"
        ):
            found.lists(np.zeros((2, 1, 2), np.int64), np.array([0, used]), 8, 0)
