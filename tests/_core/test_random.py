"""The random kernels: equal to the NumPy oracle bit for bit, and what the numbers are like."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from shardcore import reference
from shardcore._core import cpu, random

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


# Found by search: log(p) lies within 2**-28 units of the last place of the middle of two float64.
HARD = [
    "0x1.718e739b4d968p-4", "0x1.4306b25417a80p-8", "0x1.78d7d5d8e6c98p-4",
    "0x1.2bf117ef667c0p-7", "0x1.f84972931c600p-10", "0x1.41db2dd632a80p-8",
    "0x1.e569c3bb3f630p-5", "0x1.f8e6a081aa908p-4", "0x1.02b5acdb4bc40p-7",
    "0x1.14a66aff83a80p-8", "0x1.e734fd3c06768p-4", "0x1.efa25e07d9488p-4",
    "0x1.8c1f383f8ffa8p-4", "0x1.1c1336c6917e0p-6", "0x1.fe82f2294f048p-4",
    "0x1.c159b3268da00p-10", "0x1.f21ffa4ec5208p-4", "0x1.a89737b3f8c28p-4",
    "0x1.4a9c5a69772f0p-5", "0x1.34ad2d90608e8p-4",
]  # fmt: skip


def logarithms(module: Any, p: Any) -> Any:
    out = np.empty(len(p))
    module.logarithm(np.asarray(p, np.float64), out)
    return out


@pytest.mark.slow
def test_logarithms_equal_the_oracle() -> None:
    """Every 64th of a binade and its neighbours, many others, and the hard ones: to the bit."""
    rng = np.random.default_rng(0)
    edges = np.ldexp(1 + np.arange(64) / 64, -np.arange(4, 61)[:, None]).ravel()
    p = np.concatenate(
        [
            edges,
            np.nextafter(edges, 1),
            np.nextafter(edges, 0)[1:],
            rng.random(20_000) / 8 + 2.0**-60,
            rng.integers(1, 2**50, 10_000) * 2.0**-53,
            2.0 ** rng.uniform(-60, -3, 10_000),
            [float.fromhex(number) for number in HARD],
            [0.125, 2.0**-60],
        ]
    )
    p = p[(p >= 2.0**-60) & (p <= 0.125)]
    assert p.size > 45_000
    np.testing.assert_array_equal(logarithms(random, p), logarithms(reference, p))


@given(p=st.floats(2.0**-60, 0.125))
def test_any_logarithm_equals_the_oracle(p: float) -> None:
    assert logarithms(random, [p]) == logarithms(reference, [p])


# Prints a checksum of millions of initial values, and one of logarithms of the C library.
INITIAL_VALUES = """
import hashlib, math
import numpy as np
from shardcore.initializers import Normal, TruncatedNormal, Uniform

digest = hashlib.blake2b(digest_size=16)
rows = np.arange(50_000)
for init in (Normal(), TruncatedNormal(), Uniform()):
    for dtype in ("float64", "float32", "float16"):
        digest.update(init(rows, (40,), dtype, 5).tobytes())
tails = np.random.default_rng(0).random(1_000_000) / 8 + 2.0**-60
libm = hashlib.blake2b(np.array([math.log(p) for p in tails.tolist()]).tobytes(), digest_size=16)
print(digest.hexdigest(), libm.hexdigest())
"""


@pytest.mark.slow
def test_initial_values_do_not_depend_on_the_processor() -> None:
    """The C library and NumPy are told that the processor lacks what this one has."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    there = [feature for feature in __cpu_dispatch__ if __cpu_features__.get(feature)]
    lacking = {
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-FMA_Usable,-AVX2_Usable",
        "NPY_DISABLE_CPU_FEATURES": " ".join(there),
    }
    printed = [
        subprocess.run(
            [sys.executable, "-c", INITIAL_VALUES],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.split()
        for environment in ({}, lacking)
    ]
    (values, libm), (values_without, libm_without) = printed
    assert values == values_without
    if platform.libc_ver()[0] == "glibc" and cpu.features().get("fma"):
        assert libm != libm_without, "the C library was not told"
