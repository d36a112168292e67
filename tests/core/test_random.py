"""The random kernels: equal to the NumPy oracle bit for bit, and what the numbers are like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from shardcore import reference
from shardcore._core import random

ROWS = st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 50), max_size=20)
SEEDS = st.integers(0, 2**64 - 1)
LARGEST = 2**63 - 1


def frozen(rows: list[int]) -> Any:
    array = np.array(rows, np.int64)
    array.flags.writeable = False
    return array


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, seed=SEEDS, columns=st.integers(0, 40))
@example(rows=[LARGEST, LARGEST - 1, 0], seed=2**64 - 1, columns=3)
def test_bits_equal_the_oracle(rows: list[int], seed: int, columns: int) -> None:
    ours, theirs = np.zeros((2, len(rows), columns), np.uint64)
    random.uniform_bits(frozen(rows), seed, ours)
    reference.uniform_bits(frozen(rows), seed, theirs)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["uniform", "normal", "truncated_normal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    seed=SEEDS,
    columns=st.integers(0, 40),
    first=st.floats(-1e3, 1e3),
    width=st.floats(1e-3, 1e3),
)
@example(rows=[LARGEST, LARGEST - 1, 0], seed=2**64 - 1, columns=3, first=0.0, width=1.0)
@example(rows=list(range(2000)), seed=1, columns=40, first=0.0, width=1.0)
def test_numbers_equal_the_oracle(
    name: str, dtype: Any, rows: list[int], seed: int, columns: int, first: float, width: float
) -> None:
    parameters = (first, first + width) if name == "uniform" else (first, width)
    ours, theirs = np.zeros((2, len(rows), columns), dtype)
    getattr(random, name)(frozen(rows), seed, *parameters, ours)
    getattr(reference, name)(frozen(rows), seed, *parameters, theirs)
    np.testing.assert_array_equal(ours, theirs)


def test_bits_are_those_of_splitmix64_generators() -> None:
    """The chain of generators written as Steele, Lea and Flood have it, number by number."""
    mask = 2**64 - 1

    def outputs(state: int, step: int, count: int) -> list[int]:
        numbers = []
        for _ in range(count):
            state = (state + step) & mask
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
            numbers.append(z ^ (z >> 31))
        return numbers

    golden = 0x9E3779B97F4A7C15
    assert outputs(1234567, golden, 2) == [6457827717110365317, 3203168211198807973]
    (key,) = outputs(42, golden, 1)
    of_key = outputs(key, golden, 12)
    for row in range(6):
        start, step = of_key[2 * row : 2 * row + 2]
        out = np.empty((1, 5), np.uint64)
        random.uniform_bits(np.array([row]), 42, out)
        assert out[0].tolist() == outputs(start, step | 1, 5)


@pytest.mark.parametrize(
    ("name", "parameters", "cdf"),
    [
        ("uniform", (0.0, 1.0), stats.uniform.cdf),
        ("normal", (0.0, 1.0), stats.norm.cdf),
        ("truncated_normal", (0.0, 1.0), stats.truncnorm(-2, 2).cdf),
    ],
)
def test_distribution(name: str, parameters: tuple[float, float], cdf: Any) -> None:
    out = np.empty((20_000, 10))
    getattr(random, name)(np.arange(20_000), 11, *parameters, out)
    assert stats.kstest(out.ravel(), cdf).pvalue > 1e-3
    # neighbours, along rows and along columns, and the same place under the next seed
    other = np.empty_like(out)
    getattr(random, name)(np.arange(20_000), 12, *parameters, other)
    for a, b in [(out[1:], out[:-1]), (out[:, 1:], out[:, :-1]), (out, other)]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


def test_rows_are_not_shifted_copies() -> None:
    out = np.empty((4000, 64), np.uint64)
    random.uniform_bits(np.arange(4000), 0, out)
    assert len(np.unique(out)) == out.size


def test_normal_numbers_are_the_quantiles_of_the_bits() -> None:
    """Against scipy's inverse, computed from the bits themselves, tails included."""
    rows = np.arange(50_000)
    bits, ours = np.empty((len(rows), 8), np.uint64), np.empty((len(rows), 8))
    random.uniform_bits(rows, 5, bits)
    random.normal(rows, 5, 0.0, 1.0, ours)
    p = (2.0 * (bits >> 12) + 1.0) * 2.0**-53
    np.testing.assert_allclose(ours, stats.norm.ppf(p), rtol=1e-13, atol=1e-15)
    assert ours.min() < -4
    random.truncated_normal(rows, 5, 0.0, 1.0, ours)
    expected = stats.truncnorm.ppf(p, -2, 2)
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-14)
    assert abs(ours).max() <= 2.0


def test_uniform_numbers_are_the_upper_bits() -> None:
    rows = np.arange(100)
    bits, ours = np.empty((100, 8), np.uint64), np.empty((100, 8))
    random.uniform_bits(rows, 5, bits)
    random.uniform(rows, 5, 0.0, 1.0, ours)
    np.testing.assert_array_equal(ours * 2.0**53, bits >> 11)
