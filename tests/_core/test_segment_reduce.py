"""Combined rows and the gradients of weights: equal to the twins in every instruction set."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore._core.constants import ASKING
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.store import segment_reduce as module
from shardcore.store.pace import PACE
from shardcore.store.segment_reduce import (
    divisors,
    occurrence_gains,
    reciprocals,
    reduce_bags,
    reduce_bags_at,
    row_dots,
    segment_reduce,
    weight_gradients,
)
from shardcore.threads import team
from shardcore.threads.team import get_num_threads, set_num_threads

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),  # of NumPy, in what goes in
]

DTYPES = ["float32", "float64", "float16", "bfloat16"]
DIMS = (
    st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 47, 63, 64, 65, 79, 80, 81, 95])
    | st.sampled_from([127, 128, 129, 143, 144, 145, 191, 192, 193, 200])
    | st.sampled_from([3, 4, 5, 6, 255, 256, 257, 320, 511, 512, 515])
)
LENGTHS = st.lists(st.sampled_from([0, 0, 1, 2, 5, 70]), max_size=8)

Same = Callable[[Any, Any], None]
Make = Callable[..., Any]
Freeze = Callable[[Any], Any]


class Batch:
    """Random arguments for the kernels, all of them read-only."""

    def __init__(
        self, seed: int, dtype: str, dim: int, rows: int, lengths: list[int], make: Make,
        freeze: Freeze, wide: bool = True,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        lengths = lengths if rows else [0] * len(lengths)
        self.value = working_dtype(as_dtype(dtype))
        self.rows = freeze(make(rng, (rows, dim), dtype))
        n, bags = sum(lengths), len(lengths)
        ids = rng.integers(0, max(rows, 1), n).astype(np.int64 if wide else np.int32)
        self.ids = freeze(ids)
        self.row_splits = freeze(np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
        self.weights = freeze(make(rng, (n,), self.value.name))
        self.divisors = freeze(make(rng, (bags,), self.value.name))
        self.gradients = freeze(make(rng, (bags, dim), self.value.name))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dim=DIMS,
    rows=st.sampled_from([0, 1, 3, 50]),
    lengths=LENGTHS,
    wide=st.booleans(),
    weighted=st.booleans(),
    divided=st.booleans(),
)
def test_combined_rows_equal_their_twin(
    dtype: str,
    seed: int,
    dim: int,
    rows: int,
    lengths: list[int],
    wide: bool,
    weighted: bool,
    divided: bool,
    make_rows: Make,
    frozen: Freeze,
    assert_same: Same,
) -> None:
    b = Batch(seed, dtype, dim, rows, lengths, make_rows, frozen, wide)
    arguments = (
        b.rows,
        b.ids,
        b.row_splits,
        b.weights if weighted else None,
        b.divisors if divided else None,
    )
    ours = segment_reduce(*arguments)
    assert_same(ours, reference.segment_reduce(*arguments))
    out = np.full((len(lengths), dim), 7, ours.dtype)
    assert segment_reduce(*arguments, out=out) is out
    assert_same(out, ours)


def rows_of(dim: int, often: bool) -> int:
    """Return as many rows as 270 ids name, or lines of short rows, eight times each; or more."""
    return 30 if often else 50 + 1100 // dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("often", [True, False])
def test_rows_of_every_width_are_combined(
    dtype: str,
    weighted: bool,
    asking: str,
    often: bool,
    assert_same: Same,
    frozen: Freeze,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of finite numbers, so that every column counts; into memory with borders, which stay.

    270 ids name each row often enough for all to be taken for cached, or not: see `rows_of`.
    """
    monkeypatch.setattr(module, "PACE", PACE._replace(asking=ASKING[asking]))
    monkeypatch.setattr(team, "_num_threads", 1)  # else wide rows go another way
    rng = np.random.default_rng(0)
    splits = np.array([0, 3, 3, 40, 90, 270])  # after the last but one come more than are asked for
    for dim in (*range(1, 193), 255, 256, 257, 276, 320, 384, 448, 511, 512, 516, 517, 700):
        count = rows_of(dim, often)
        ids = rng.integers(0, count, splits[-1])
        rows = frozen(rng.standard_normal((count, dim)).astype(as_dtype(dtype)))
        value = working_dtype(rows.dtype)
        weights = rng.standard_normal(ids.size).astype(value) if weighted else None
        with_borders = np.full((7, dim), 7, value)
        segment_reduce(rows, ids, splits, weights, out=with_borders[1:6])
        assert_same(with_borders[1:6], reference.segment_reduce(rows, ids, splits, weights))
        assert (with_borders[[0, 6]] == 7).all(), dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("often", [True, False])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_an_id_outside_is_refused_at_every_width(
    dtype: str,
    weighted: bool,
    asking: str,
    often: bool,
    index: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it is: bodies that sum many rows at a time test each by themselves.

    Memory goes on after the table: a body that does not test takes a row from there.
    """
    monkeypatch.setattr(module, "PACE", PACE._replace(asking=ASKING[asking]))
    monkeypatch.setattr(team, "_num_threads", 1)
    splits = np.array([0, 3, 3, 40, 270])
    rng = np.random.default_rng(0)
    for dim in (*range(1, 193), 255, 256, 257, 276, 320, 512, 516):
        count = rows_of(dim, often)
        ids = rng.integers(0, count, splits[-1]).astype(index)
        rows = np.ones((count + 1, dim), np.float32).astype(as_dtype(dtype))[:count]
        value = working_dtype(rows.dtype)
        weights = np.ones(ids.size, value) if weighted else None
        out = np.empty((4, dim), value)
        assert reduce_bags(rows, ids, splits, weights, None, out)
        for at in (0, 20, 39, 50, 130, 269):
            wrong = ids.copy()
            wrong[at] = count
            assert not reduce_bags(rows, wrong, splits, weights, None, out), (dim, at)


@pytest.mark.parametrize(("dim", "count"), [(164, 1000), (300, 1000), (164, 60), (300, 300)])
def test_an_id_that_leaves_the_table_between_two_parts_of_a_row_is_refused(
    dim: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of a row reads the ids: no sum is called done of which one part is missing.

    Parts that ask for rows and, of smaller tables, parts that do not.
    """
    monkeypatch.setattr(team, "_num_threads", 1)
    rows = np.random.default_rng(0).integers(-9, 9, (count, dim)).astype(np.float32)
    ids = np.random.default_rng(1).integers(0, count, 1 << 18)
    splits = np.array([0, ids.size - 200, ids.size])  # the last rows of all go another way
    sums = np.add.reduceat(rows[ids], splits[:-1])  # whole numbers: they are exact
    begun = time.perf_counter()
    assert reduce_bags(rows, ids, splits, None, None, np.empty_like(sums))
    taken = time.perf_counter() - begun
    first = ids[0]
    for when in np.linspace(0, 1, 33):
        out = np.full_like(sums, np.nan)
        ids[0] = first
        other = threading.Timer(when * taken, ids.__setitem__, (0, count))
        other.start()
        done = reduce_bags(rows, ids, splits, None, None, out)
        other.join()
        assert not done or (out == sums).all(), when


@pytest.mark.parametrize("dim", [2, 12, 16, 32, 48, 64, 100, 128, 130, 256, 300])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("asking", ASKING)
def test_rows_are_combined_however_they_are_asked_for_ahead(
    dim: int, spread: bool, asking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of small and large tables, and of rows anywhere; of ids that come back or do not."""
    monkeypatch.setattr(module, "PACE", PACE._replace(asking=ASKING[asking]))
    monkeypatch.setattr(team, "_num_threads", 1)  # for one piece, large enough to be sampled
    rng = np.random.default_rng(0)
    large = (1 << 26) // (4 * dim) + 1000
    for rows in (500, large):
        table = np.zeros((rows, dim), np.float32)
        for n in (1, 63, 64, 65, 80, 256, 257, 2047, 2048, 2049, 6000, 16385):
            ids = rng.integers(0, rows if spread else 20, n)
            table[ids] = rng.integers(-99, 99, (n, dim))  # whole numbers: sums are exact
            splits = np.unique(np.concatenate(([0, n], rng.integers(0, n, 9))))
            expected = np.add.reduceat(table[ids], splits[:-1])
            out = np.empty(expected.shape, np.float32)
            np.testing.assert_array_equal(segment_reduce(table, ids, splits), expected)
            reduce_bags_at(
                lambda some, start=table.ctypes.data: start + some * 4 * dim,
                *(table.dtype, ids, splits, None, None, out),
            )
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), dim=DIMS, lengths=LENGTHS, wide=st.booleans())
def test_dot_products_equal_their_twin(
    dtype: str,
    seed: int,
    dim: int,
    lengths: list[int],
    wide: bool,
    make_rows: Make,
    frozen: Freeze,
    assert_same: Same,
) -> None:
    b = Batch(seed, dtype, dim, 20, lengths, make_rows, frozen, wide)
    arguments = (b.rows, b.ids, b.row_splits, b.gradients)
    assert_same(row_dots(*arguments), reference.row_dots(*arguments))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [3, 8, 64, 129])
def test_dot_products_are_added_in_the_order_of_the_lanes(
    dtype: str, dim: int, assert_same: Same
) -> None:
    """Of numbers that are all finite: among infinities and NaN no order shows."""
    rng = np.random.default_rng(dim)
    rows = rng.normal(size=(40, dim)).astype(as_dtype(dtype))
    gradients = rng.normal(size=(1, dim)).astype(working_dtype(rows.dtype))
    arguments = (rows, np.arange(40), np.array([0, 40]), gradients)
    ours = row_dots(*arguments)
    assert_same(ours, reference.row_dots(*arguments))
    products = rows.astype(gradients.dtype) * gradients
    lanes = [products[:, lane::8].cumsum(axis=1)[:, -1:] for lane in range(min(dim, 8))]
    backwards = np.concatenate(lanes[::-1], axis=1).cumsum(axis=1)[:, -1]
    assert (ours != backwards).any()  # the order shows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), lengths=LENGTHS)
def test_divisors_gains_and_weight_gradients_equal_their_twins(
    dtype: str, combiner: str, seed: int, lengths: list[int], make_rows: Make, assert_same: Same
) -> None:
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    splits = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    weights = make_rows(rng, (n,), dtype, False)
    weights[rng.random(n) < 0.3] = 0
    weights[rng.random(n) < 0.05] = np.nan
    dots = make_rows(rng, (n,), dtype, False)
    for given_weights in (None, weights):
        ours = divisors(combiner, splits, given_weights, dtype)
        theirs = reference.divisors(combiner, splits, given_weights, np.dtype(dtype))
        if combiner == "sum":
            assert ours is None
            assert theirs is None
        else:
            assert_same(ours, theirs)
            assert_same(reciprocals(ours), reference.reciprocals(ours))
    gains = (splits, weights, ours)
    assert_same(occurrence_gains(*gains), reference.occurrence_gains(*gains))
    every = (combiner, dots, *gains)
    assert_same(weight_gradients(*every), reference.weight_gradients(*every))


def test_weight_gradients_are_slopes() -> None:
    """Against central differences: the formulas, not only their two implementations."""
    rng = np.random.default_rng(3)
    rows, ids = rng.standard_normal((5, 3)), np.array([0, 1, 4, 4, 2])
    splits, weights = np.array([0, 3, 3, 5]), rng.uniform(0.5, 2, 5)
    gradients = rng.standard_normal((3, 3))
    for combiner in ("sum", "mean", "sqrtn"):

        def loss(w: Any, combiner: str = combiner) -> float:
            shares = divisors(combiner, splits, w, np.float64)
            return float((segment_reduce(rows, ids, splits, w, shares) * gradients).sum())

        ours = weight_gradients(
            combiner,
            row_dots(rows, ids, splits, gradients),
            splits,
            weights,
            divisors(combiner, splits, weights, np.float64),
        )
        steps = 1e-6 * np.eye(5)
        slopes = [(loss(weights + step) - loss(weights - step)) / 2e-6 for step in steps]
        np.testing.assert_allclose(ours, slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(
    dtype: str, make_rows: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of two NaN comes through a sum, IEEE 754 leaves open, and loops differ in it."""
    monkeypatch.setattr("shardcore.threads.team.PIECE", 4096)  # many borders
    rng = np.random.default_rng(0)
    rows = make_rows(rng, (1000, 65), dtype)
    lengths = rng.integers(0, 12, 3000)
    lengths[5] = 4000  # one bag longer than a thread's share
    splits = np.concatenate(([0], np.cumsum(lengths)))
    ids = rng.integers(0, 1000, splits[-1])
    weights = make_rows(rng, ids.shape, "float32")
    shares = make_rows(rng, lengths.shape, "float32")
    before = get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            set_num_threads(threads)
            found = segment_reduce(rows, ids, splits, weights, shares)
            found[np.isnan(found)] = np.nan
            results.append(found.tobytes())
    finally:
        set_num_threads(before)
    assert len(set(results)) == 1


def test_ids_weights_and_divisors_come_in_any_form() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    expected = segment_reduce(rows, [3, 1, 1], [0, 2, 3], [1, 2, 0.5], np.array([2.0, 4.0]))
    np.testing.assert_array_equal(expected, [[5, 6.5], [0.25, 0.375]])
    strided = np.arange(20, dtype=np.int64)
    strided[::7] = 3, 1, 1
    unaligned = np.zeros(13, np.uint8)[1:].view(np.float32)
    unaligned[...] = 1, 2, 0.5
    for ids in (np.array([3, 1, 1], ">i2"), np.array([3, 1, 1], np.uint64), strided[::7]):
        for weights in (np.array([1, 2, 0.5], ">f8"), np.array([1, 2, 0.5], "float16"), unaligned):
            for shares in (np.array([2, 4]), np.array([2, 9, 4.0])[::2]):
                ours = segment_reduce(rows, ids, np.array([0, 2, 3], np.int32), weights, shares)
                np.testing.assert_array_equal(ours, expected, strict=True)
    np.testing.assert_array_equal(  # a weight that is a bool is 0 or 1
        segment_reduce(rows, [3, 1], [0, 2], [True, False]), rows[3:]
    )


def test_nothing_at_all() -> None:
    rows = np.ones((0, 3), np.float32)
    assert segment_reduce(rows, [], [0]).shape == (0, 3)
    np.testing.assert_array_equal(segment_reduce(rows, [], [0, 0, 0]), np.zeros((2, 3)))
    assert segment_reduce(np.ones((2, 0)), [1, 0], [0, 2]).shape == (1, 0)
    np.testing.assert_array_equal(
        row_dots(np.ones((2, 0)), np.array([1]), np.array([0, 1]), np.ones((1, 0))), [0.0]
    )


ROWS = np.ones((3, 2), np.float32)
READ_ONLY = np.zeros((1, 2), np.float32)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(9, np.uint8)[1:].view(np.float32).reshape(1, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": [[1.0]]}, ShardcoreTypeError, "rows must be an ndarray, got list"),
        (
            {"rows": np.ones((3, 2), np.int64)},
            ShardcoreTypeError,
            "rows.dtype must be float32, float64, float16 or bfloat16, got 'int64'",
        ),
        (
            {"rows": np.ones((3, 2), ">f4")},
            ShardcoreTypeError,
            "rows.dtype must be float32, float64, float16 or bfloat16, got '>f4'",
        ),
        (
            {"rows": np.ones((3, 4), np.float32)[:, ::2]},
            ShardcoreValueError,
            "rows must be C-contiguous, aligned and of rank 2, got shape (3, 2) with strides "
            "(16, 8)",
        ),
        (
            {"rows": UNALIGNED, "ids": [0]},
            ShardcoreValueError,
            "rows must be C-contiguous, aligned and of rank 2, got shape (1, 2) with strides "
            "(8, 4)",
        ),
        (
            {"rows": np.ones(3, np.float32)},
            ShardcoreValueError,
            "rows must be C-contiguous, aligned and of rank 2, got shape (3,) with strides (4,)",
        ),
        ({"ids": [0.5]}, ShardcoreTypeError, "ids must be integers, got dtype float64"),
        ({"ids": [[0]]}, ShardcoreValueError, "ids must be of rank 1, got shape (1, 1)"),
        (
            {"ids": [0, 3], "row_splits": [0, 2]},
            ShardcoreIndexError,
            "ids[1] = 3 is outside the table: must be in [0, 3)",
        ),
        (
            {"ids": np.array([-1], np.int32)},
            ShardcoreIndexError,
            "ids[0] = -1 is outside the table: must be in [0, 3)",
        ),
        (
            {"row_splits": [0, 2]},
            ShardcoreValueError,
            "row_splits must end at the number of values, 1, got row_splits[1] = 2",
        ),
        (
            {"weights": [1.0, 2.0]},
            ShardcoreValueError,
            "weights must have shape (1,), got (2,)",
        ),
        (
            {"weights": [1j]},
            ShardcoreTypeError,
            "weights must be real numbers, got dtype complex128",
        ),
        (
            {"weights": [[1], [2, 3]]},
            ShardcoreTypeError,
            "weights must be an array of real numbers, got nested sequences of uneven length",
        ),
        (
            {"divisors": np.ones(2)},
            ShardcoreValueError,
            "divisors must have shape (1,), got (2,)",
        ),
        (
            {"divisors": np.array(["a"])},
            ShardcoreTypeError,
            "divisors must be real numbers, got dtype <U1",
        ),
        (
            {"out": np.zeros((1, 2))},
            ShardcoreValueError,
            "out must be C-contiguous, aligned, writable float32 of shape (1, 2), got <f8 of shape "
            "(1, 2) with strides (16, 8)",
        ),
        (
            {"out": np.zeros((2, 2), np.float32)},
            ShardcoreValueError,
            "out must be C-contiguous, aligned, writable float32 of shape (1, 2), got <f4 of shape "
            "(2, 2) with strides (8, 4)",
        ),
        (
            {"out": READ_ONLY},
            ShardcoreValueError,
            "out must be C-contiguous, aligned, writable float32 of shape (1, 2), got <f4 of shape "
            "(1, 2) with strides (8, 4), read-only",
        ),
        (
            {"out": ROWS[1:2]},
            ShardcoreValueError,
            "out must not overlap rows, ids, row_splits, weights or divisors",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], error: Any, message: str) -> None:
    whole = {"rows": ROWS, "ids": [0], "row_splits": [0, 1]} | arguments
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        segment_reduce(**whole)


def test_an_unknown_combiner_is_refused() -> None:
    message = "combiner must be one of sum, mean, sqrtn, got 'max'"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        divisors("max", np.array([0]))
