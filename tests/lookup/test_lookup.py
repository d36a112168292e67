from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from shardcore import reference
from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse
from shardcore.lookup.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from shardcore.sharding.layout import Layout
from shardcore.variable import indexing
from shardcore.variable.variable import ShardedVariable

TABLE = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]])
TENS = np.arange(1.0, 11).reshape(5, 2)  # rows (1, 2) ... (9, 10)
LOOKUPS = [embedding_lookup, embedding_lookup_sparse, safe_embedding_lookup_sparse]
COMBINED = LOOKUPS[1:]


def shards_of(whole: np.ndarray, layout: Layout) -> list[np.ndarray]:
    return [whole[layout.global_rows(shard)].copy() for shard in range(layout.num_shards)]


def sharded(whole: np.ndarray, layout: Layout) -> ShardedVariable:
    return ShardedVariable(shards_of(whole, layout), layout=layout)


def expected_bags(
    table: np.ndarray, bags: list[list[int]], weights: list[list[float]] | None, combiner: str
) -> np.ndarray:
    """Return the formula of the docstring in float64, written as it reads."""
    out = np.zeros((len(bags), *table.shape[1:]))
    for b, bag in enumerate(bags):
        w = np.ones(len(bag)) if weights is None else np.array(weights[b], np.float64)
        rows = table[np.array(bag, int)].astype(np.float64)
        total = (w.reshape(-1, *(1,) * (table.ndim - 1)) * rows).sum(axis=0)
        divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out[b] = total / divisor if divisor else 0
    return out


# embedding_lookup


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("shape", [(13,), (), (0,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("strategy", [None, "div", "mod"])
def test_13_ids_over_5_shards(strategy: str | None, shape: tuple[int, ...], dtype: Any) -> None:
    whole = np.arange(26.0).reshape(13, 2)
    layout = Layout.mod(13, 5) if strategy == "mod" else Layout.div(13, 5)
    ids = np.random.default_rng(0).permutation(13)[: int(np.prod(shape))].reshape(shape)
    for params in (shards_of(whole, layout), sharded(whole, layout)):
        got = embedding_lookup(params, ids.astype(dtype), strategy)
        np.testing.assert_array_equal(got, whole[ids], strict=True)


def test_a_variable_is_looked_up_by_its_own_layout() -> None:
    whole = np.arange(16.0).reshape(8, 2)
    for layout in (Layout.from_sizes([2, 3, 3]), Layout.div(8, 3), Layout.mod(8, 3)):
        for name in ("v", "embedding_lookup"):
            v = ShardedVariable(shards_of(whole, layout), name, layout)
            np.testing.assert_array_equal(embedding_lookup(v, [7, 2, 3, 2]), whole[[7, 2, 3, 2]])
            np.testing.assert_array_equal(
                embedding_lookup_sparse(v, [[7], [2, 2]], combiner="sum"), [whole[7], 2 * whole[2]]
            )


def test_lookup_of_uneven_shards() -> None:
    v = sharded(TENS, Layout.from_sizes([2, 2, 1]))
    assert embedding_lookup(v, [0, 3, 4]).tolist() == [[1, 2], [7, 8], [9, 10]]
    assert embedding_lookup(v, [0, 3, 4], "div").tolist() == [[1, 2], [7, 8], [9, 10]]
    # One shard is "div" and "mod" alike.
    assert embedding_lookup(sharded(TENS, Layout.div(5, 1)), [3], "mod").tolist() == [[7, 8]]
    assert embedding_lookup(sharded(TENS, Layout.mod(5, 1)), [3], "div").tolist() == [[7, 8]]
    assert embedding_lookup(TENS, 3).tolist() == [7, 8]
    assert embedding_lookup(TENS, 3, "mod").tolist() == [7, 8]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "complex64", "U3"])
def test_lookup_keeps_the_dtype_and_the_row_shape(dtype: str) -> None:
    whole = np.arange(24).reshape(4, 3, 2).astype(dtype)
    got = embedding_lookup(shards_of(whole, Layout.div(4, 2)), [3, 0, 3])
    np.testing.assert_array_equal(got, whole[[3, 0, 3]], strict=True)
    assert embedding_lookup(whole[:, 0, 0], [[1]]).tolist() == [[whole[1, 0, 0]]]


def test_max_norm() -> None:
    assert embedding_lookup(np.array([[2.0]]), [0], max_norm=1).tolist() == [[1]]
    table = np.array([[2.0, 4.0], [3.0, 1.0], [0.0, 0.5]])
    got = embedding_lookup([table[:1], table[1:]], [[0, 1], [2, 0]], max_norm=2.0)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(got, [[2 * unit[0], 2 * unit[1]], [table[2], 2 * unit[0]]])
    assert table.tolist() == [[2, 4], [3, 1], [0, 0.5]]


def test_max_norm_is_over_all_axes_of_a_row_and_does_not_overflow() -> None:
    table = np.full((2, 2, 2), 3e30, np.float32)
    got = embedding_lookup(table, [1], max_norm=2.0)
    np.testing.assert_allclose(got, np.ones((1, 2, 2)), rtol=1e-6)
    assert got.dtype == np.float32


def test_max_norm_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float16)
    v = sharded(whole, Layout.mod(9, 2))
    ids = [8, 1, 1, 5]
    bags = Ragged.from_lists([ids, [], [3]])
    plain = embedding_lookup(v, ids, max_norm=0.5), embedding_lookup_sparse(v, bags, max_norm=0.5)
    monkeypatch.setattr(indexing, "BLOCK_BYTES", 1)
    np.testing.assert_array_equal(embedding_lookup(v, ids, max_norm=0.5), plain[0])
    np.testing.assert_array_equal(embedding_lookup_sparse(v, bags, max_norm=0.5), plain[1])
    assert np.linalg.norm(plain[0].astype(float), axis=1) == pytest.approx(0.5, rel=1e-2)


# embedding_lookup_sparse


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [
        (np.float16, 1e-3),
        (ml_dtypes.bfloat16, 1e-2),
        (np.float32, 1e-6),
        (np.float64, 1e-13),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
def test_combiners(
    dtype: Any,
    rtol: float,
    shards: int,
    weighted: bool,
    combiner: str,
    block_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(2)
    whole = rng.uniform(0.5, 2, (13, 2, 3)).astype(dtype)
    bags = [rng.integers(0, 13, size).tolist() for size in [3, 0, 1, 40, 0, 2, 0]]
    weights = [rng.uniform(0.5, 2, len(bag)).tolist() for bag in bags] if weighted else None
    v = sharded(whole, Layout.mod(13, shards))
    given = None if weights is None else Ragged.from_lists(weights)
    for lookup in COMBINED:
        got = lookup(v, bags, given, combiner)
        assert got.dtype == dtype
        assert got.shape == (7, 2, 3)
        expected = expected_bags(whole, bags, weights, combiner)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=rtol)


def test_the_number_of_shards_and_blocks_does_not_change_a_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    whole = rng.normal(size=(50, 7)).astype(np.float32)
    bags = Ragged.from_lengths(rng.integers(0, 50, 300), [100, 0, 150, 50])
    weights = rng.normal(size=300)
    for combiner in ("sum", "mean", "sqrtn"):
        expected = embedding_lookup_sparse(whole, bags, weights, combiner)
        for layout in (Layout.div(50, 4), Layout.mod(50, 4)):
            for block_bytes in (1, 28 * 120, 4 << 20):
                monkeypatch.setattr(indexing, "BLOCK_BYTES", block_bytes)
                got = embedding_lookup_sparse(sharded(whole, layout), bags, weights, combiner)
                np.testing.assert_array_equal(got, expected)


FORMS: list[Any] = [
    [[0, 3], [], [4], []],
    Ragged([0, 3, 4], [0, 2, 2, 3, 3]),
    (np.array([0, 3, 4]), np.array([0, 2, 2, 3, 3])),
    Sparse([[2, 0], [0, 0], [0, 2]], [4, 0, 3], (4, 3)),
    scipy.sparse.csr_array((np.ones(3), ([0, 0, 2], [0, 3, 4])), shape=(4, 5)),
]


@pytest.mark.parametrize("ids", FORMS, ids=lambda ids: type(ids).__name__)
@pytest.mark.parametrize("lookup", COMBINED)
def test_every_form_of_ids_gives_every_bag(lookup: Callable[..., np.ndarray], ids: Any) -> None:
    for layout in (Layout.from_sizes([2, 2, 1]), Layout.div(5, 1)):
        got = lookup(sharded(TENS, layout), ids)
        assert got.tolist() == [[4, 5], [0, 0], [9, 10], [0, 0]]


def test_dense_ids_of_any_rank() -> None:
    ids = np.array([[[0, 1], [2, 3]], [[3, 3], [1, 1]]])
    got = embedding_lookup_sparse(TABLE, ids, np.ones(ids.shape), "mean")
    np.testing.assert_array_equal(got, TABLE[ids].mean(axis=2))
    assert embedding_lookup_sparse(TABLE, np.array([2, 0])).tolist() == [[5, 6], [1, 2]]


def test_rows_without_ids_in_the_middle_and_at_the_end() -> None:
    ids = Sparse([[1, 0], [3, 0]], [2, 0], (6, 1))
    got = embedding_lookup_sparse(TABLE, ids, combiner="sum")
    assert got.tolist() == [[0, 0], [5, 6], [0, 0], [1, 2], [0, 0], [0, 0]]


def test_a_zero_denominator_gives_zeros() -> None:
    got = embedding_lookup_sparse(TABLE, [[0, 1]], [1.0, -1.0], "mean")
    assert got.tolist() == [[0, 0]]


def test_sparse_weights_have_the_places_of_the_ids() -> None:
    indices = [[0, 0], [2, 0], [0, 1]]
    ids = Sparse(indices, [1, 2, 0], (3, 2))
    got = embedding_lookup_sparse(TABLE, ids, Sparse(indices, [2, 5, 1], (3, 2)), "sum")
    assert got.tolist() == [[7, 10], [0, 0], [25, 30]]
    moved = Sparse([[0, 0], [1, 0], [0, 1]], [2, 5, 1], (3, 2))
    message = "weights must have the places of the ids: indices[1] is [1, 0], of the ids [2, 0]"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        embedding_lookup_sparse(TABLE, ids, moved)
    message = "weights must have the places of the ids: 3 in dense_shape (3, 2), got 1 in (3, 2)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        safe_embedding_lookup_sparse(TABLE, ids, Sparse([[0, 0]], [2], (3, 2)))
    message = "weights may be Sparse only where the ids are, got ids of type list"
    with pytest.raises(ShardcoreTypeError, match=message):
        embedding_lookup_sparse(TABLE, [[1, 0], [], [2]], moved)


# combiner "max"

MAX_BAGS = st.lists(st.lists(st.integers(0, 6), max_size=4), max_size=5)


@pytest.mark.parametrize("lookup", COMBINED)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
@given(bags=MAX_BAGS, shards=st.integers(1, 4), seed=st.integers(0, 2**32), norm=st.booleans())
def test_the_greatest_values_equal_the_twin(
    lookup: Callable[..., np.ndarray],
    dtype: Any,
    block_bytes: int,
    bags: list[list[int]],
    shards: int,
    seed: int,
    norm: bool,
) -> None:
    values = np.array([-np.inf, -3.0, -1.5, -0.0, 0.0, 0.5, 2.0, np.nan])
    rng = np.random.default_rng(seed)
    whole = rng.choice(values[1:-1] if norm else values, (7, 2, 3)).astype(dtype)
    max_norm = 2.0 if norm else None
    ids = Ragged.from_lists(bags)
    seen = embedding_lookup(whole, ids.values, max_norm=max_norm)
    working = np.float64 if dtype is np.float64 else np.float32
    expected, _ = reference.max_of_bags(seen.astype(working).reshape(-1, 6), ids.row_splits)
    tables = [sharded(whole, Layout.mod(7, shards)), shards_of(whole, Layout.div(7, shards))]
    before, indexing.BLOCK_BYTES = indexing.BLOCK_BYTES, block_bytes
    try:
        for table in (whole, *tables):
            got = lookup(table, ids, combiner="max", max_norm=max_norm)
            assert got.dtype == dtype
            assert got.shape == (len(bags), 2, 3)
            assert got.tobytes() == expected.astype(dtype).tobytes()
    finally:
        indexing.BLOCK_BYTES = before


def test_greatest_values_without_the_ids_that_are_left_out() -> None:
    ids = Sparse([[0, 0], [0, 1], [1, 0], [2, 0]], [0, -1, -1, 3], (4, 2))
    got = safe_embedding_lookup_sparse(-TABLE, ids, combiner="max")
    assert got.tolist() == [[-1, -2], [0, 0], [-7, -8], [0, 0]]
    got = safe_embedding_lookup_sparse(-TABLE, ids, combiner="max", default_id=1)
    assert got.tolist() == [[-1, -2], [-3, -4], [-7, -8], [-3, -4]]


@pytest.mark.parametrize("lookup", COMBINED)
def test_weights_are_refused_with_the_greatest_values(lookup: Callable[..., Any]) -> None:
    message = "weights are refused for combiner 'max', which multiplies no row"
    for ids, weights in [
        ([[0, 1]], [1.0, 1.0]),
        ([[0, 1]], Ragged.from_lists([[1.0, 1.0]])),
        (Ragged([0, 1], [0, 2], weights=[1.0, 1.0]), None),
    ]:
        with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
            lookup(TABLE, ids, weights, combiner="max")


# safe_embedding_lookup_sparse

SAFE_IDS = Sparse(
    [[0, 0], [0, 1], [0, 2], [1, 0], [3, 0], [4, 0], [4, 1]], [0, 1, -1, -1, 2, 0, 1], (5, 4)
)
SAFE_WEIGHTS = np.array([1.0, 2, 1, 1, 3, 0, -0.5])
E = np.arange(1.0, 17).reshape(4, 4) ** 1.5


def test_safe_lookup_with_weights() -> None:
    for params in (E, shards_of(E, Layout.div(4, 3))):
        got = safe_embedding_lookup_sparse(params, SAFE_IDS, SAFE_WEIGHTS)
        zeros = np.zeros(4)
        np.testing.assert_allclose(got, [(E[0] + 2 * E[1]) / 3, zeros, zeros, E[2], zeros])


def test_safe_lookup_with_a_default_id() -> None:
    got = safe_embedding_lookup_sparse(E, SAFE_IDS, SAFE_WEIGHTS, default_id=3)
    np.testing.assert_allclose(got, [(E[0] + 2 * E[1]) / 3, E[3], E[3], E[2], E[3]])
    clipped = safe_embedding_lookup_sparse(E, [[-1]], default_id=3, max_norm=1.0)
    np.testing.assert_allclose(clipped, [E[3] / np.linalg.norm(E[3])])


@pytest.mark.parametrize("beyond", [0, 1, 2**62])
def test_safe_lookup_names_the_first_id_that_is_too_large(beyond: int) -> None:
    rows = len(E)
    message = f"ids.values[2] = {rows + beyond} is outside the table: must be below {rows}"
    with pytest.raises(ShardcoreIndexError, match=f"^{re.escape(message)}$"):
        safe_embedding_lookup_sparse(E, [[rows - 1, -1], [rows + beyond], [rows + beyond]])


def test_safe_lookup_without_weights() -> None:
    got = safe_embedding_lookup_sparse(E, SAFE_IDS)
    zeros = np.zeros(4)
    np.testing.assert_allclose(got, [(E[0] + E[1]) / 2, zeros, zeros, E[2], (E[0] + E[1]) / 2])


def test_safe_lookup_of_rank_3() -> None:
    indices = [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    ids = Sparse(indices, [0, 1, -1, -1, 2, 0, 1], (2, 3, 4))
    got = safe_embedding_lookup_sparse(E, ids, SAFE_WEIGHTS, default_id=3)
    expected = [[(E[0] + 2 * E[1]) / 3, E[3], E[3]], [E[2], E[3], E[3]]]
    np.testing.assert_allclose(got, expected)
    dense = np.array([[[0, -1], [-1, -1]], [[2, 2], [1, 0]]])
    np.testing.assert_allclose(
        safe_embedding_lookup_sparse(E, dense), [[E[0], 0 * E[0]], [E[2], (E[0] + E[1]) / 2]]
    )


def test_safe_lookup_prunes_weights_but_not_for_sum() -> None:
    ids = [[0, -1], [1], [1, 2]]
    weights = [2.0, 1, -1, 0, 3]
    got = safe_embedding_lookup_sparse(TABLE, ids, weights, "sum")
    assert got.tolist() == [[2, 4], [-3, -4], [15, 18]]
    got = safe_embedding_lookup_sparse(TABLE, ids, weights, "mean")
    assert got.tolist() == [[1, 2], [0, 0], [5, 6]]
    got = safe_embedding_lookup_sparse(
        sharded(TENS, Layout.from_sizes([2, 2, 1])), [[0, -1], [4], [1]], [1.0, 1, -1, 1]
    )
    assert got.tolist() == [[1, 2], [0, 0], [3, 4]]


NAN_WEIGHTS = [2.0, np.nan, -np.inf]


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ([[0, 1], [2]], NAN_WEIGHTS),
        ([[0, 1], [2]], np.array(NAN_WEIGHTS, np.float32)),
        ([[0, 1], [2]], Ragged.from_lists([NAN_WEIGHTS[:2], NAN_WEIGHTS[2:]])),
        (Ragged([0, 1, 2], [0, 2, 3], NAN_WEIGHTS), None),
    ],
)
def test_safe_lookup_leaves_out_nan_weights_but_not_for_sum(ids: Any, weights: Any) -> None:
    for combiner in ("mean", "sqrtn"):
        got = safe_embedding_lookup_sparse(TABLE, ids, weights, combiner)
        assert got.tolist() == [[1, 2], [0, 0]]
    with pytest.raises(ShardcoreValueError, match="weights must be finite, got nan at position 1"):
        safe_embedding_lookup_sparse(TABLE, ids, weights, "sum")
    with pytest.raises(ShardcoreValueError, match="weights must be finite, got nan at position 1"):
        embedding_lookup_sparse(TABLE, ids, weights)


def test_safe_lookup_refuses_what_it_does_not_leave_out() -> None:
    message = re.escape("ids.values[2] = 4 is outside the table: must be below 4")
    with pytest.raises(ShardcoreIndexError, match=message):
        safe_embedding_lookup_sparse(TABLE, [[0, -5], [4]])
    kept = safe_embedding_lookup_sparse(TABLE, [[0, -5], [4]], [1.0, 1, 0])
    assert kept.tolist() == [[1, 2], [0, 0]]
    with pytest.raises(ShardcoreIndexError, match="must be below 4"):
        safe_embedding_lookup_sparse(TABLE, [[0, -5], [4]], [1.0, 1, 0], "sum")
    with pytest.raises(ShardcoreValueError, match="weights must be finite, got inf at position 0"):
        safe_embedding_lookup_sparse(TABLE, [[0]], [np.inf])
    with pytest.raises(ShardcoreIndexError, match="default_id = 4 is outside the table"):
        safe_embedding_lookup_sparse(TABLE, [[0]], default_id=4)


@pytest.mark.parametrize("lookup", COMBINED)
def test_an_empty_table_answers_empty_bags(lookup: Callable[..., np.ndarray]) -> None:
    for params in (np.zeros((0, 3)), [np.zeros((0, 3)), np.zeros((0, 3))]):
        assert lookup(params, [[], []]).tolist() == [[0, 0, 0], [0, 0, 0]]
        assert lookup(params, Ragged([], [0])).shape == (0, 3)


# Refusals


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (None, ShardcoreTypeError, "params must be an array, got NoneType"),
        ([], ShardcoreTypeError, "params must hold at least one array, got none"),
        ([[1.0, 2.0]], ShardcoreTypeError, "params[0] must be an ndarray, got list"),
        (
            [TABLE, TABLE[:, :1]],
            ShardcoreValueError,
            "params must have one row shape: params[1] has (1,), params[0] has (2,)",
        ),
    ],
)
def test_refused_params(
    lookup: Callable[..., Any], params: Any, error: type[ShardcoreError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        lookup(params, [[0]])


@pytest.mark.parametrize(
    ("params", "strategy", "message"),
    [
        (TABLE, "hash", 'partition_strategy must be None, "div" or "mod", got \'hash\''),
        (
            sharded(TABLE, Layout.mod(4, 2)),
            "div",
            'partition_strategy "div" contradicts the layout of params, Layout.mod(4, 2)',
        ),
        (
            sharded(TABLE, Layout.div(4, 2)),
            "mod",
            'partition_strategy "mod" contradicts the layout of params, Layout.div(4, 2)',
        ),
        (
            [TABLE[:1], TABLE[1:]],
            "mod",
            'partition_strategy "mod" needs shards of sizes [2, 2], got [1, 3]',
        ),
    ],
)
def test_refused_partition_strategy(params: Any, strategy: str, message: str) -> None:
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        embedding_lookup(params, [0], strategy)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([[0, 4]], ShardcoreIndexError, "ids[0, 1] = 4 is outside the table: must be in [0, 4)"),
        ([-1], ShardcoreIndexError, "ids[0] = -1 is outside the table: must be in [0, 4)"),
        ([0.5], ShardcoreTypeError, "ids must be integers, got dtype float64"),
        (
            Ragged([0], [0, 1]),
            ShardcoreTypeError,
            "ids must be an array, got Ragged; its bags are combined by embedding_lookup_sparse",
        ),
        (
            Sparse([[0, 0]], [0], (1, 1)),
            ShardcoreTypeError,
            "ids must be an array, got Sparse; its bags are combined by embedding_lookup_sparse",
        ),
    ],
)
def test_refused_ids(ids: Any, error: type[ShardcoreError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        embedding_lookup(TABLE, ids)


@pytest.mark.parametrize("params", [TABLE, [TABLE[:1], TABLE[1:]]])
def test_ids_out_of_range_in_bags(params: Any) -> None:
    for bad in (4, -1):
        message = f"sp_ids.values[2] = {bad} is outside the table: must be in [0, 4)"
        with pytest.raises(ShardcoreIndexError, match=re.escape(message)):
            embedding_lookup_sparse(params, [[0, 1], [bad]])


@pytest.mark.parametrize("lookup", COMBINED)
def test_refused_combiner_and_dtype(lookup: Callable[..., Any]) -> None:
    message = 'combiner must be "sum", "mean", "sqrtn" or "max", got \'min\''
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        lookup(TABLE, [[0]], combiner="min")
    message = "dtype of params must be float32, float64, float16 or bfloat16, got 'int64'"
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        lookup(TABLE.astype(np.int64), [[0]])
    with pytest.raises(ShardcoreValueError, match="weights must have a weight per id"):
        lookup(TABLE, [[0]], [1.0, 2.0])


@pytest.mark.parametrize("lookup", LOOKUPS)
@pytest.mark.parametrize(
    ("max_norm", "error", "message"),
    [
        (0, ShardcoreValueError, "max_norm must be a number > 0, got 0"),
        (float("nan"), ShardcoreValueError, "max_norm must be a number > 0, got nan"),
        (True, ShardcoreTypeError, "max_norm must be a number > 0, got True"),
        ("1", ShardcoreTypeError, "max_norm must be a number > 0, got '1'"),
    ],
)
def test_refused_max_norm(
    lookup: Callable[..., Any], max_norm: Any, error: type[ShardcoreError], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        lookup(TABLE, [[0]], max_norm=max_norm)


def test_max_norm_needs_floats() -> None:
    with pytest.raises(ShardcoreTypeError, match="dtype of params with max_norm must be float32"):
        embedding_lookup(TABLE.astype(np.int64), [0], max_norm=1.0)


# Memory


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_a_lookup_never_copies_the_table(shards: int, max_norm: float | None) -> None:
    """A batch of 1 MiB of rows out of a table of 64 MiB takes a few MiB, whatever the lookup."""
    whole = np.zeros((1 << 18, 64), np.float32)
    params = np.array_split(whole, shards)
    bags = Ragged.from_lengths(np.arange(4096) * 61, np.full(256, 16))
    weights = np.ones(4096, np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: embedding_lookup(params, bags.values, max_norm=max_norm),
        lambda: embedding_lookup(ShardedVariable(params), bags.values, max_norm=max_norm),
        lambda: embedding_lookup_sparse(params, bags, weights, max_norm=max_norm),
        lambda: safe_embedding_lookup_sparse(params, bags, weights, max_norm=max_norm),
    ]
    for call in calls:
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8 << 20


def test_a_sparse_lookup_of_many_bags_holds_a_block_of_rows_at_a_time() -> None:
    """64 MiB of rows combined into 1 MiB: not more than a few MiB of them at a time."""
    shards = [np.ones((512, 64), np.float32) for _ in range(4)]
    bags = Ragged.from_lengths(np.arange(1 << 18, dtype=np.int32) % 2048, np.full(4096, 64))
    tracemalloc.start()
    got = embedding_lookup_sparse(shards, bags, combiner="sum")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (got == 64).all()
    assert peak < 24 << 20


def test_sparse_weights_may_be_any_real_numbers():
    indices = [[1, 0], [0, 0], [1, 2]]
    ids, weights = Sparse(indices, [3, 1, 2], (3, 4)), Sparse(indices, [0.5, 2.0, 1.0], (3, 4))
    table = np.arange(8.0).reshape(4, 2)
    got = embedding_lookup_sparse(table, ids, weights, "sum")
    np.testing.assert_array_equal(got, [[4.0, 6.0], [7.0, 8.5], [0.0, 0.0]])
    with pytest.raises(TypeError, match="values must be integers, got dtype float64"):
        embedding_lookup_sparse(table, weights)
