"""Few bags by one call: what the long way gives, in every instruction set; all else is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core.constants import ASKING
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.sharding import Layout
from shardcore.store import given_bags
from shardcore.store.given_bags import DIVIDED, MOST_IDS, given_bags_of
from shardcore.store.pace import PACE
from shardcore.threads import team

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),  # of NumPy, in what goes in
]

DTYPES = ["float32", "float64", "float16", "bfloat16"]
ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def cut(rows: Any, layout: Layout) -> list[Any]:
    """Return the shards of rows, each with a copy of its own."""
    return [rows[layout.global_rows(shard)].copy() for shard in range(layout.num_shards)]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dim=st.sampled_from([1, 2, 7, 8, 16, 17, 48, 64, 65, 128, 200]),
    num_rows=st.sampled_from([1, 3, 50]),
    lengths=st.lists(st.sampled_from([0, 0, 1, 2, 5, 70]), max_size=8),
    wide=st.booleans(),
    combiner=st.sampled_from(sorted(DIVIDED)),
    weighted=st.booleans(),
    layout=st.sampled_from(["one", "div", "mod", "ranges"]),
)
def test_given_bags_equal_their_twin(
    dtype: str,
    seed: int,
    dim: int,
    num_rows: int,
    lengths: list[int],
    wide: bool,
    combiner: str,
    weighted: bool,
    layout: str,
    make_rows: Callable[..., Any],
    frozen: Callable[[Any], Any],
    assert_same: Callable[[Any, Any], None],
) -> None:
    rng = np.random.default_rng(seed)
    placed = {
        "one": Layout.div(num_rows, 1),
        "div": Layout.div(num_rows, 3),
        "mod": Layout.mod(num_rows, 3),
        "ranges": Layout.from_sizes([0, num_rows // 2, 0, num_rows - num_rows // 2]),
    }[layout]
    # Weighted sums that are not finite are left to others.
    rows = make_rows(rng, (num_rows, dim), dtype, not weighted)
    value = working_dtype(as_dtype(dtype))
    weights = frozen(rng.standard_normal(sum(lengths)).astype(value)) if weighted else None
    ids = rng.integers(0, num_rows, sum(lengths)).astype(np.int64 if wide else np.int32)
    splits = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    divisor = reference.divisors(combiner, splits, weights, value)
    wanted = reference.segment_reduce(rows, ids, splits, weights, divisor)
    with_borders = np.full((len(lengths) + 2, dim), 7, value)
    out = with_borders[1:-1]
    combine = given_bags_of([frozen(shard) for shard in cut(rows, placed)], placed)
    assert combine is not None
    assert combine(frozen(ids), frozen(splits), weights, DIVIDED[combiner], out) is True
    assert_same(out, wanted)
    assert (with_borders[[0, -1]] == 7).all()


@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("asking", ASKING)
def test_as_many_ids_as_there_is_room_for(
    asking: str, dim: int, assert_same: Callable[[Any, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_bags, "PACE", PACE._replace(asking=ASKING[asking]))
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, dim)).astype(np.float32)
    for shards in (1, 7):
        layout = Layout.div(500, shards)
        combine = given_bags_of(cut(rows, layout), layout)
        assert combine is not None
        for bags in (1, 3, MOST_IDS):
            ids = rng.integers(0, 500, MOST_IDS)
            splits = np.linspace(0, MOST_IDS, bags + 1).astype(np.int64)
            out = np.empty((bags, dim), np.float32)
            assert combine(ids, splits, None, DIVIDED["sum"], out)
            assert_same(out, reference.segment_reduce(rows, ids, splits, None, None))
        for count, bags in ((MOST_IDS + 1, 1), (0, MOST_IDS + 1)):
            splits = np.zeros(bags + 1, np.int64)
            splits[-1] = count
            out = np.empty((bags, dim), np.float32)
            done = combine(np.zeros(count, np.int64), splits, None, DIVIDED["sum"], out)
            assert done is (shards == 1)


def test_batches_that_threads_may_share_are_left_to_them() -> None:
    for dim, done in ((1 << 9, True), ((1 << 9) + 1, False)):
        combine = given_bags_of([np.zeros((1, dim), np.float32)] * 2, Layout.div(2, 2))
        assert combine is not None
        ids, splits = np.zeros(1 << 10, np.int64), np.array([0, 1 << 10])
        assert combine(ids, splits, None, DIVIDED["sum"], np.empty((1, dim), np.float32)) is done


@pytest.fixture(scope="session")
def many_bags(
    make_rows: Callable[..., Any], frozen: Callable[[Any], Any]
) -> Callable[[str, int], list[tuple[Any, ...]]]:
    """Return a function of dtype and dim that gives batches, and what their twin makes of them.

    The twin takes longer than all that is compared with it: it is asked once.
    """

    @functools.cache
    def batches(dtype: str, dim: int) -> list[tuple[Any, ...]]:
        rng = np.random.default_rng(dim)
        special, finite = (frozen(make_rows(rng, (1000, dim), dtype, it)) for it in (True, False))
        value = working_dtype(special.dtype)
        lengths = rng.integers(0, 40, 300)
        lengths[7] = 2 * MOST_IDS  # more than a lookup in shards may have
        splits = frozen(np.concatenate(([0], np.cumsum(lengths))))
        made = []
        for combiner, index in (("sum", np.int32), ("mean", np.int64), ("sqrtn", np.int32)):
            ids = frozen(rng.integers(0, 1000, splits[-1]).astype(index))
            for weights in (None, frozen(rng.standard_normal(ids.size).astype(value))):
                # Weighted sums that are not finite are left to others.
                rows = finite if combiner == "sum" and weights is not None else special
                divisor = reference.divisors(combiner, splits, weights, value)
                wanted = reference.segment_reduce(rows, ids, splits, weights, divisor)
                made.append((rows, ids, splits, weights, combiner, frozen(wanted)))
        return made

    return batches


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("asking", ASKING)
def test_many_bags_equal_their_twin_on_any_number_of_threads(
    dtype: str,
    count: int,
    asking: str,
    monkeypatch: pytest.MonkeyPatch,
    many_bags: Callable[[str, int], list[tuple[Any, ...]]],
    assert_same: Callable[[Any, Any], None],
) -> None:
    monkeypatch.setattr(team, "_num_threads", count)
    monkeypatch.setattr(team, "PIECE", 1 << 10)
    monkeypatch.setattr(given_bags, "PACE", PACE._replace(asking=ASKING[asking]))
    for dim in (1, 3, 12, 16, 32, 64, 100, 128, 256, 300):
        for rows, ids, splits, weights, combiner, wanted in many_bags(dtype, dim):
            combine = given_bags_of([rows], Layout.div(len(rows), 1))
            assert combine is not None
            with_borders = np.full((len(wanted) + 2, dim), 7, wanted.dtype)
            out = with_borders[1:-1]
            assert combine(ids, splits, weights, DIVIDED[combiner], out) is True
            assert_same(out, wanted)
            assert (with_borders[[0, -1]] == 7).all()


def test_many_weighted_bags_in_shards_are_left_to_others(
    frozen: Callable[[Any], Any], assert_same: Callable[[Any, Any], None]
) -> None:
    ids = np.tile([0, 5, 1, 1], MOST_IDS)
    splits = np.concatenate(([0], np.cumsum(np.tile([2, 0, 2], MOST_IDS))))
    weights = np.tile(np.array([0.5, -2, 3, 1], np.float32), MOST_IDS)
    for combiner, divided in DIVIDED.items():
        divisor = reference.divisors(combiner, splits, weights, np.float32)
        wanted = reference.segment_reduce(ROWS, ids, splits, weights, divisor)
        for shards, done in ((1, True), (2, False)):
            layout, out = Layout.div(6, shards), np.zeros_like(wanted)
            combine = given_bags_of(cut(ROWS, layout), layout)
            assert combine is not None
            assert combine(frozen(ids), frozen(splits), frozen(weights), divided, out) is done
            assert_same(out, wanted if done else np.zeros_like(wanted))


def test_weighted_sums_of_rows_that_are_not_finite_are_left_to_others() -> None:
    """Without weights, or with divisors, they are not."""
    ids, splits, out = np.array([0, 5, 1]), np.array([0, 2, 3]), np.empty((2, 2), np.float32)
    weights = np.ones(3, np.float32)
    for value in (np.inf, -np.inf, np.nan):
        rows = ROWS.copy()
        rows[5, 0] = value
        combine = given_bags_of([rows], None)
        assert combine is not None
        for combiner, divided in DIVIDED.items():
            assert combine(ids, splits, weights, divided, out) is (combiner != "sum")
            assert combine(ids, splits, None, divided, out) is True


@pytest.mark.parametrize("times", [1, MOST_IDS])
def test_weights_that_are_not_plain_or_not_finite_are_refused(times: int) -> None:
    """Of few bags and of many, in which the last ones are wrong."""
    combine = given_bags_of([ROWS], None)
    assert combine is not None
    ids, n = np.tile([0, 5, 1], times), 3 * times
    splits = np.concatenate(([0], np.cumsum(np.tile([2, 1], times))))
    out, plain = np.empty((2 * times, 2), np.float32), np.ones(n, np.float32)
    assert combine(ids, splits, plain, DIVIDED["mean"], out) is True
    for at in range(n - 3, n):
        for value in (np.nan, np.inf, -np.inf):
            broken = plain.copy()
            broken[at] = value
            for divided in DIVIDED.values():
                assert combine(ids, splits, broken, divided, out) is False
    unaligned = np.frombuffer(b"x" + plain.tobytes(), np.float32, offset=1)
    strided = np.ones(2 * n, np.float32)[::2]
    for wrong in (plain[:-1], plain.astype(float), plain.astype(">f4"), strided):
        assert combine(ids, splits, wrong, DIVIDED["sum"], out) is False
    for wrong in (unaligned, plain.reshape(1, n), plain.astype(np.int32), plain[:0]):
        assert combine(ids, splits, wrong, DIVIDED["sum"], out) is False
    # Infinities of both signs, whose sum is no infinity; and a row that is 0 where they meet it.
    both = np.tile(np.array([np.inf, -np.inf, 1], np.float32), times)
    zeros = given_bags_of([np.zeros((6, 2), np.float32)], None)
    assert zeros is not None
    for divided in DIVIDED.values():
        assert combine(ids, splits, both, divided, out) is False
        assert zeros(ids, splits, both, divided, out) is False
    # Finite weights of which the sum, or the sum of squares, is not, or that of weighted rows.
    sums = ("mean", 3e38, False), ("sqrtn", 2e19, False), ("sum", 3e38, False), ("sum", 1e37, True)
    for combiner, large, done in sums:
        weights = np.full(n, large, np.float32)
        assert combine(ids, splits, weights, DIVIDED[combiner], out) is done


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 130, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_bags_with_an_id_out_of_range_are_refused(
    dtype: str, dim: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands, and however little or far it is out of range."""
    monkeypatch.setattr(team, "_num_threads", count)
    monkeypatch.setattr(team, "PIECE", 1 << 10)
    combine = given_bags_of([np.zeros((50, dim), as_dtype(dtype))], None)
    assert combine is not None
    out = np.empty((1000, dim), working_dtype(as_dtype(dtype)))
    n, splits = 10_000, np.arange(1001) * 10
    for index in (np.int32, np.int64):
        for at in (0, 1, n // 2 - 1, n // 2, n - 1):
            for bad in (-1, 50, np.iinfo(index).min, np.iinfo(index).max):
                ids = np.zeros(n, index)
                assert combine(ids, splits, None, DIVIDED["sum"], out) is True
                ids[at] = bad
                assert combine(ids, splits, None, DIVIDED["sum"], out) is False, (at, bad)


def test_many_bags_that_are_not_plain_or_break_a_rule_are_refused() -> None:
    combine = given_bags_of([ROWS], Layout.div(6, 1))
    assert combine is not None
    n = 3 * MOST_IDS
    ids, splits, out = np.zeros(n, np.int64), np.arange(n + 1), np.empty((n, 2), np.float32)
    assert combine(ids, splits, None, DIVIDED["sum"], out) is True
    down, short, late = splits.copy(), splits.copy(), splits.copy()
    down[5] = 7
    short[-1], late[0] = n - 1, 1
    unaligned = np.frombuffer(b"x" + ids.tobytes(), np.int64, offset=1)
    strided = np.zeros(2 * n, np.int64)[::2]
    for wrong in (
        *((one, splits, out) for one in (ids[1:], ids.astype(np.uint64), ids.astype(">i8"))),
        *((one, splits, out) for one in (ids.astype(np.float64), unaligned, strided)),
        *((ids, one, out) for one in (down, short, late, splits[:-1], splits.astype(np.int32))),
        *((ids, splits, one) for one in (out[1:], out.astype(np.float64), out[:, :1])),
    ):
        assert combine(*wrong[:2], None, DIVIDED["sum"], wrong[2]) is False


IDS, SPLITS, OUT = np.array([0, 5, 1]), np.array([0, 2, 3]), np.zeros((2, 2), np.float32)
UNALIGNED = np.frombuffer(b"x" + IDS.tobytes(), np.int64, offset=1)
READ_ONLY = OUT.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("ids", "splits", "out"),
    [
        (np.array([0, 6, 1]), SPLITS, OUT),
        (np.array([0, -1, 1]), SPLITS, OUT),
        (np.array([0, -1, 1], np.int32), SPLITS, OUT),
        (np.array([0, 6, 1], np.int32), SPLITS, OUT),
        (np.array([0, 2**32, 1]), SPLITS, OUT),
        (IDS.astype(np.uint64), SPLITS, OUT),
        (IDS.astype(np.int16), SPLITS, OUT),
        (IDS.astype(">i8"), SPLITS, OUT),
        (IDS.astype(np.float64), SPLITS, OUT),
        (IDS.astype("m8[s]"), SPLITS, OUT),
        (np.array([0, 9, 5, 9, 1])[::2], SPLITS, OUT),
        (UNALIGNED, SPLITS, OUT),
        (IDS.reshape(1, 3), SPLITS, OUT),
        (IDS[:2], SPLITS, OUT),
        (IDS.tolist(), SPLITS, OUT),
        (IDS, np.array([1, 2, 3]), OUT),
        (IDS, np.array([0, 2, 2]), OUT),
        (IDS, np.array([0, 2, 4]), OUT),
        (IDS, np.array([0, 4, 3]), OUT),
        (IDS, np.array([0, -1, 3]), OUT),
        (IDS, SPLITS.astype(np.int32), OUT),
        (IDS, SPLITS.astype(np.uint64), OUT),
        (IDS, SPLITS.astype(">i8"), OUT),
        (IDS, np.array([0, 9, 2, 9, 3])[::2], OUT),
        (IDS, SPLITS.reshape(1, 3), OUT),
        (IDS, SPLITS[:0], OUT[:0]),
        (IDS, SPLITS.tolist(), OUT),
        (IDS, SPLITS, OUT[:1]),
        (IDS, SPLITS, np.zeros((2, 3), np.float32)),
        (IDS, SPLITS, np.zeros((2, 2))),
        (IDS, SPLITS, np.zeros((2, 2), ">f4")),
        (IDS, SPLITS, np.zeros((2, 2), np.int32)),
        (IDS, SPLITS, np.asfortranarray(np.zeros((2, 2), np.float32))),
        (IDS, SPLITS, READ_ONLY),
        (IDS, SPLITS, np.zeros(4, np.float32)),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_not_plain_or_breaks_a_rule_is_left_to_others(
    shards: int, ids: Any, splits: Any, out: Any
) -> None:
    layout = Layout.div(6, shards)
    combine = given_bags_of(cut(ROWS, layout), layout)
    assert combine is not None
    assert combine(ids, splits, None, DIVIDED["sum"], out) is False
    assert not out.any()


def test_rows_without_elements_are_left_to_others() -> None:
    assert given_bags_of([np.zeros((3, 0), np.float32)], Layout.div(3, 1)) is None


def test_rows_are_held_and_seen_as_they_are() -> None:
    rows = ROWS.copy()
    combine = given_bags_of([rows], Layout.div(6, 1))
    assert combine is not None
    rows[5] = 100
    del rows
    out = np.empty((1, 2), np.float32)
    assert combine(np.array([5, 1]), np.array([0, 2]), None, DIVIDED["mean"], out)
    assert out.tolist() == [[51.0, 51.5]]


def test_what_is_left_of_a_shared_call_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record lies on the stack of the call that made it, which is over."""
    kept: list[Any] = []
    before = team.get_num_threads()
    team.set_num_threads(3)  # with two a companion may do it
    monkeypatch.setattr(given_bags, "_make_on_threads", kept.append)
    try:
        rows, ids = np.ones((100, 64), np.float32), np.zeros(1 << 14, np.int64)
        combine = given_bags_of([rows], None)
        assert combine is not None
        splits, out = np.arange(0, ids.size + 1, 2), np.zeros((ids.size // 2, 64), np.float32)
        assert combine(ids, splits, None, DIVIDED["sum"], out)
        (call,) = kept
        assert (call.cut(4, 1), call.make()) == (0, None)
        made = type(call).__new__(type(call))
        assert (made.cut(4, 1), made.make()) == (0, None)
        assert not out.any()
    finally:
        team.set_num_threads(before)
