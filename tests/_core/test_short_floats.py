"""Half and bfloat16: every pattern read and every rounding as NumPy and ml_dtypes have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_optimizers.sgd import SGD

from shardcore import reference
from shardcore.dtypes import as_dtype
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.scatter import scatter_rows
from shardcore.store.segment_reduce import segment_reduce
from shardcore.store.update import update_rows

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.parametrize("dtype", ["float16", "bfloat16"]),
]

Same = Callable[[Any, Any], None]


def every_pattern(dtype: str, dim: int) -> Any:
    return np.arange(1 << 16, dtype=np.uint16).view(as_dtype(dtype)).reshape(-1, dim)


@pytest.mark.parametrize("dim", [1, 16, 64])
def test_every_pattern_is_read_as_numpy_reads_it(dtype: str, dim: int, assert_same: Same) -> None:
    rows = every_pattern(dtype, dim)
    each = np.arange(rows.shape[0] + 1)
    read = segment_reduce(rows, each[:-1], each)
    with np.errstate(invalid="ignore"):  # some bit patterns of NaN raise the flag
        expected = reference.widened(rows) + np.float32(0)  # a sum begins at +0
    assert_same(read, expected)


@pytest.mark.parametrize("dim", [1, 16, 64])
@pytest.mark.parametrize(("op", "neutral"), [("add", -0.0), ("mul", 1.0), ("div", 1.0)])
def test_every_pattern_comes_back_as_it_was(
    dtype: str, dim: int, op: str, neutral: float, assert_same: Same
) -> None:
    rows = every_pattern(dtype, dim)
    ours = rows.copy()
    values = np.full(rows.shape, neutral).astype(rows.dtype)
    scatter_rows(ours, np.arange(rows.shape[0]), values, op)
    assert_same(ours, rows)


def written(values: Any, dtype: str) -> Any:
    """Return float32 `values` as a row of a table that stochastic descent moved from 0 to them."""
    rows = np.zeros(values.shape, as_dtype(dtype))
    each = np.arange(rows.shape[0])
    batch = sort_occurrences(each, each.astype(np.int32), None, rows.shape[0])
    optimizer = SGD(1.0)
    update_rows(rows, {}, RowUpdate(batch, each, -values, optimizer, optimizer.hyper(), 1))
    return rows


def test_ties_and_their_neighbours_round_to_even(dtype: str, assert_same: Same) -> None:
    short = every_pattern(dtype, 1)[:, 0]
    wide = reference.widened(short)
    finite = np.sort(wide[np.isfinite(wide)].astype(np.float64))
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    beyond = np.array([65504, 65519.996, 65520, 65536, 3.3895314e38, 3.4e38, np.inf], np.float32)
    tiny = np.array([1e-45, 2.9e-8, 2.98023224e-08, 2.9802326e-08, 5.96e-8], np.float32)
    edges = np.concatenate([middles, beyond, -beyond, tiny, -tiny])
    with np.errstate(all="ignore"):
        below, above = (np.nextafter(edges, np.float32(end)) for end in (-np.inf, np.inf))
    values = np.concatenate([below, edges, above])
    values = np.append(values, np.float32(np.nan))
    values = np.resize(values, (values.size // 64 + 1, 64)) + np.float32(0)
    assert_same(written(values, dtype), reference.narrowed(values, as_dtype(dtype)))


def test_random_numbers_are_rounded_as_numpy_rounds_them(dtype: str, assert_same: Same) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (4000, 65), np.uint32)
    with np.errstate(invalid="ignore"):  # some bit patterns of NaN raise the flag
        values = bits.view(np.float32) + np.float32(0)
    assert_same(written(values, dtype), reference.narrowed(values, as_dtype(dtype)))
