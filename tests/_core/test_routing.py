"""Which rows askers name of owners: equal to the twin, on any number of threads."""

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
from shardcore.errors import ShardcoreValueError
from shardcore.sharding import Layout
from shardcore.store import asked_rows
from shardcore.store.asked_rows import AskedRows, AskingBags, sort_askers

LENGTHS = ("ragged", "even", "padded")


def layout_of(rng: np.random.Generator, rows: int, owners: int, kind: str) -> Layout:
    if kind == "ranges":  # some of them empty
        cuts = np.sort(rng.integers(0, rows + 1, owners - 1))
        return Layout.from_sizes(np.diff([0, *cuts, rows]).tolist())
    return Layout.of(kind, rows, owners)


def bags_of(
    rng: np.random.Generator, rows: int, askers: int, kinds: list[str], most: int = 6
) -> tuple[list[AskingBags], int]:
    """Features one after the other in the lists of the askers, and how long these are."""
    features = []
    filled = np.zeros(askers, np.int64)
    for kind in kinds:
        bags = int(rng.integers(1, most))
        count = int(rng.integers(0, askers * bags + 1))
        counts = np.full(count, 3) if kind == "even" else rng.integers(0, 4, count)
        splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        room = int(rng.integers(3, 5)) if kind == "padded" else 0
        gap = rng.integers(0, 3, askers)
        ids = rng.integers(0, rows, splits[-1]).astype(rng.choice([np.int32, np.int64]))
        features.append(AskingBags(ids, splits, bags, filled + gap, room))
        borders = np.minimum(np.arange(askers + 1) * bags, count)
        filled += gap + (np.diff(borders) * room if room else np.diff(splits[borders]))
    return features, int(filled.max(initial=1)) + int(rng.integers(1, 3))


def frozen_bags(features: list[AskingBags], frozen: Callable[[Any], Any]) -> list[AskingBags]:
    return [
        dataclasses.replace(
            bags,
            ids=frozen(bags.ids),
            row_splits=frozen(bags.row_splits),
            starts=frozen(bags.starts),
        )
        for bags in features
    ]


def check(found: AskedRows, twin: Any, more_room: int = 0) -> None:
    for name in ("rows", "lines", "unique"):
        np.testing.assert_array_equal(getattr(found, name), getattr(twin, name), err_msg=name)
    room = int(twin.rows.max()) + more_room
    for ours, theirs in zip(found.lists(room, 77), twin.lists(room, 77), strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    rows=st.sampled_from([1, 7, 40, 1000, 2**20, 2**31 - 1]),
    owners=st.integers(1, 6),
    askers=st.integers(1, 6),
    kind=st.sampled_from(["div", "mod", "ranges"]),
    lengths=st.lists(st.sampled_from(LENGTHS), max_size=4),
    rows_per_line=st.sampled_from([1, 2, 8, 128]),
    threads=st.sampled_from([1, 3]),
)
@example(
    seed=0,
    rows=2**31 - 1,
    owners=5,
    askers=3,
    kind="mod",
    lengths=["ragged"],
    rows_per_line=8,
    threads=1,
)
def test_lists_equal_their_twin(
    seed: int,
    rows: int,
    owners: int,
    askers: int,
    kind: str,
    lengths: list[str],
    rows_per_line: int,
    threads: int,
    num_threads: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    frozen: Callable[[Any], Any],
) -> None:
    monkeypatch.setattr(asked_rows, "_PART", 1)  # every few ids go to a thread of their own
    monkeypatch.setattr(asked_rows, "_COST", 1 << 18)
    monkeypatch.setattr(asked_rows, "_BUCKET_BITS", 2)
    num_threads(threads)
    rng = np.random.default_rng(seed)
    layout = layout_of(rng, rows, owners, kind)
    # Rows that lie close to each other, so that lines and owners share buckets.
    near = min(rows, int(rng.choice([3, 30, rows])))
    features, length = bags_of(rng, near, askers, lengths)
    found = sort_askers(frozen_bags(features, frozen), layout, askers, length, rows_per_line)
    twin = reference.sort_askers(features, layout, askers, length, rows_per_line)
    check(found, twin, more_room=int(rng.integers(0, 3)))


@pytest.mark.parametrize("kind", ["div", "mod"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [9, 4000, 2**22, 2**31 - 1])
def test_many_ids_on_threads(
    rows: int, threads: int, kind: str, num_threads: Callable[[int], None]
) -> None:
    """Against NumPy: half the ids few and hot, the other half anywhere; buckets of all sizes."""
    num_threads(threads)
    rng = np.random.default_rng(rows)
    askers, bags, n = 7, 15_000, 300_000
    ids = rng.integers(0, rows, n)
    hot = rng.random(n) < 0.5
    ids[hot] = ids[rng.integers(0, 3, np.count_nonzero(hot))]
    splits = np.sort(rng.integers(0, n + 1, askers * bags - 1))
    splits = np.concatenate([[0], splits, [n]])
    asker = np.repeat(np.arange(askers * bags) // bags, np.diff(splits))
    length = int(np.bincount(asker, minlength=askers).max())
    layout = Layout.of(kind, rows, 5)
    one = AskingBags(ids, splits, bags, np.zeros(askers, np.int64), 0)
    found = sort_askers([one], layout, askers, length, 4)
    shard, local = layout.locate(ids)
    room = int(found.rows.max())
    asked, slots = found.lists(room, -1)
    for a in range(askers):
        own = np.flatnonzero(asker == a)
        for owner in range(5):
            want = np.unique(local[own[shard[own] == owner]])
            assert found.rows[owner, a] == want.size
            np.testing.assert_array_equal(asked[owner, a, : want.size], want)
            assert (asked[owner, a, want.size :] == -1).all()
        np.testing.assert_array_equal(slots[a, : own.size] // room, shard[own])
        np.testing.assert_array_equal(asked[shard[own], a, slots[a, : own.size] % room], local[own])
        assert (slots[a, own.size :] == 5 * room).all()
    for owner in range(5):
        here = np.unique(local[shard == owner])
        assert found.unique[owner] == here.size
        assert found.lines[owner] == np.unique(here // 4).size


def test_lists_with_too_little_room_are_refused() -> None:
    found = sort_askers([PLAIN], Layout.div(10, 1), askers=2, length=2)
    with pytest.raises(ShardcoreValueError, match=r"^room must be at least 2, got 1$"):
        found.lists(1, 5)


def test_no_features_ask_for_nothing() -> None:
    found = sort_askers([], Layout.div(10, 3), askers=2, length=4)
    assert not found.rows.any()
    assert (found.lists(8, 5).asked == 5).all()
    np.testing.assert_array_equal(found.lists(8, 5).slots, np.full((2, 4), 24))


STARTS = np.zeros(2, np.int64)
PLAIN = AskingBags(np.array([7, 2, 7]), np.array([0, 2, 3]), 1, STARTS, 0)


@pytest.mark.parametrize(
    ("features", "length", "message"),
    [
        (
            [],
            2**30,
            "the lists of a batch must have at most 2147483647 places in one table, "
            "got 2 * 1073741824",
        ),
        (
            [PLAIN, dataclasses.replace(PLAIN, row_splits=np.array([0, 1, 2, 3]))],
            9,
            "features[1].row_splits must have at most 2 bags: 2 askers with 1 each, got 3",
        ),
        (
            [dataclasses.replace(PLAIN, room=1)],
            9,
            "features[0].row_splits must have bags of at most 1 ids, got 2 in bag 0",
        ),
        (
            [PLAIN, dataclasses.replace(PLAIN, starts=np.array([2, 3]))],
            3,
            "features[1].starts must leave every asker's occurrences within its 3 places, "
            "got 2 to 4 at asker 0",
        ),
        (
            [dataclasses.replace(PLAIN, starts=np.array([0, 1]), room=2)],
            2,
            "features[0].starts must leave every asker's occurrences within its 2 places, "
            "got 1 to 3 at asker 1",
        ),
        (
            [dataclasses.replace(PLAIN, starts=np.array([0, -1]))],
            4,
            "features[0].starts must leave every asker's occurrences within its 4 places, "
            "got -1 to 0 at asker 1",
        ),
    ],
)
def test_bags_without_places_are_refused(
    features: list[AskingBags], length: int, message: str
) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        sort_askers(features, Layout.div(10, 2), askers=2, length=length)
