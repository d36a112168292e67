"""Rounding by chance: equal to its twin, to a neighbour, without bias."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore.dtypes import as_dtype
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.rounding import narrowed, step_seed, stochastic_round
from shardcore.store.row_update import RowUpdate

SHORT = ["float16", "bfloat16"]
SEEDS = st.integers(0, 2**64 - 1)


def largest(dtype: str) -> float:
    return 65504.0 if dtype == "float16" else (2 - 2.0**-7) * 2.0**127


@pytest.mark.parametrize("dtype", SHORT)
@settings(max_examples=200, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        (3, 4),
        elements=st.floats(width=32)
        | st.floats(-(2.0**-13), 2.0**-13, width=32)
        | st.sampled_from([65504.0, 65505.0, 65519.99, 65520.0, 2.0**-14, 2.0**-24, 2.0**-25]),
    ),
    seed=SEEDS,
)
@example(values=np.full((3, 4), 3.39e38, np.float32), seed=0)
def test_equal_to_the_twin(dtype: str, values: Any, seed: int) -> None:
    rows = np.array([0, 7, 2**40])
    with np.errstate(invalid="ignore"):  # some bit patterns of NaN raise the flag
        ours = stochastic_round(values, as_dtype(dtype), rows, seed)
        theirs = reference.stochastic_round(values, as_dtype(dtype), rows, seed)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(ours.view(np.uint16)[number], theirs.view(np.uint16)[number])
    assert np.isnan(ours[~number].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", SHORT)
@settings(max_examples=60, deadline=None)
@given(bits=hnp.arrays(np.uint16, (40, 5)), seed=SEEDS)
def test_what_fits_stays(dtype: str, bits: Any, seed: int) -> None:
    exact = bits.view(as_dtype(dtype))
    with np.errstate(invalid="ignore"):
        wide = exact.astype(np.float32)
        rounded = stochastic_round(wide, exact.dtype, np.arange(40), seed)
    number = ~np.isnan(wide)
    assert rounded.view(np.uint16)[number].tolist() == bits[number].tolist()


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize(
    "value", [1.0003, -1.0003, 3.14159, 1000.7, -(2.0**-14) * 1.0001, 5e-6, 1.1e-7, 1e-38, -65503.0]
)
def test_the_mean_is_the_value_and_only_neighbours_occur(dtype: str, value: float) -> None:
    wide = np.full((2000, 100), value, np.float32)
    kind = as_dtype(dtype)
    rounded = stochastic_round(wide, kind, np.arange(2000), seed=step_seed(3, 4))
    found = np.unique(rounded.astype(np.float64))
    exact = float(wide[0, 0])
    if found.size == 1:  # so near to a neighbour that 200,000 draws do not find the other
        assert abs(found[0] - exact) <= 2.0**-24 * 1e-3
        return
    low, high = found
    assert low < exact < high
    between = np.nextafter(np.array(low, kind), np.array(high, kind)).astype(np.float64)
    assert between == high
    share = float((rounded.astype(np.float64) == high).mean())
    expected = (exact - low) / (high - low)
    deviation = np.sqrt(expected * (1 - expected) / wide.size)
    assert abs(share - expected) < 5 * deviation
    by_row = (rounded.astype(np.float64) == high).mean(axis=1)
    spread = np.sqrt(expected * (1 - expected) / 100)
    assert by_row.std() == pytest.approx(spread, rel=0.1)  # columns of a row are independent


@pytest.mark.parametrize("dtype", SHORT)
def test_beyond_the_range_lies_infinity_as_to_the_nearest(dtype: str) -> None:
    top = largest(dtype)
    values = np.array([[top, -top, np.inf, -np.inf, np.nan, 3.4e38]], np.float32)
    with np.errstate(all="ignore"):
        rounded = stochastic_round(values, as_dtype(dtype), np.array([5]), 1).astype(np.float32)
    np.testing.assert_array_equal(rounded[0], [top, -top, np.inf, -np.inf, np.nan, np.inf])


def test_only_short_rows_are_rounded_by_chance() -> None:
    class ByChance:
        rounds_stochastically = True
        hyper_names = ()

    ids = np.arange(2)
    values = np.array([[1 / 3], [2 / 3]])
    optimizer: Any = ByChance()
    batch = sort_occurrences(ids, np.zeros(2, np.int32), None, 2)
    update = RowUpdate(batch, ids, values, optimizer, (), step=1, seed=0)
    assert narrowed(values, values.dtype, update) is values
    expected = stochastic_round(values.astype("f4"), as_dtype("float16"), ids, step_seed(0, 1))
    rounded = narrowed(values.astype("f4"), as_dtype("float16"), update)
    assert rounded.tobytes() == expected.tobytes()
