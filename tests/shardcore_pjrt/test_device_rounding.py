"""Rounding and quantization on the device: the same bits as on the host."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import as_dtype
from shardcore.store.rounding import step_seed, stochastic_round

pytest.importorskip("jax")

import jax
from shardcore_pjrt.programs import device_rounding
from shardcore_pjrt.programs.quantized import quantized

SHORT = ("float16", "bfloat16")


def on_device(values, dtype, row_ids, columns, seed):
    halves = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    rounded = jax.jit(device_rounding.stochastic_round, static_argnums=1)(
        values, dtype, row_ids.astype(np.int32), columns.astype(np.int32), halves
    )
    return np.asarray(rounded)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1, 2**64 - 1, step_seed(7, 3)])
def test_any_finite_bits_round_as_on_the_host(dtype, seed):
    rng = np.random.default_rng(seed % 97)
    bits = rng.integers(0, 2**32, (400, 50), dtype=np.uint64).astype(np.uint32)
    bits[:200] = bits[:200] & 0x80FFFFFF | rng.integers(90, 128, (200, 50)).astype(np.uint32) << 23
    values = bits.view(np.float32)
    values[np.isnan(values)] = np.inf
    row_ids = rng.integers(0, 2**31 - 1, 400)
    row_ids[:2] = 0, 2**31 - 2
    ours = on_device(values, as_dtype(dtype), row_ids, np.arange(50), seed)
    theirs = stochastic_round(values, as_dtype(dtype), row_ids, seed)
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize("dtype", SHORT)
def test_borders_round_as_on_the_host(dtype):
    powers = 2.0 ** np.arange(-149, 128, dtype=np.float64)
    near = np.concatenate([powers, powers * (1 + 2.0**-23), powers * 1.5, powers * 65504 / 65536])
    special = [0.0, np.inf, 65504.0, 65519.0, 65520.0, 65536.0, 3.3895e38, np.finfo("f4").max]
    positive = np.concatenate([near.astype(np.float32), np.array(special, np.float32)])
    values = np.concatenate([positive, -positive])[:, None].repeat(64, 1)
    row_ids = np.arange(len(values))
    ours = on_device(values, as_dtype(dtype), row_ids, np.arange(64), 11)
    theirs = stochastic_round(values, as_dtype(dtype), row_ids, 11)
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize("dtype", SHORT)
def test_nan_stays_nan(dtype):
    values = np.full((1, 3), np.nan, np.float32)
    ours = on_device(values, as_dtype(dtype), np.zeros(1, np.int64), np.arange(3), 1)
    assert np.isnan(ours.astype(np.float32)).all()


def test_a_device_rounds_its_columns_as_the_whole_row():
    values = np.random.default_rng(2).standard_normal((9, 12)).astype(np.float32)
    dtype, row_ids = as_dtype("bfloat16"), np.arange(9)
    whole = on_device(values, dtype, row_ids, np.arange(12), 3)
    part = on_device(values[:, 5:9], dtype, row_ids, np.arange(5, 9), 3)
    np.testing.assert_array_equal(part.view(np.uint16), whole[:, 5:9].view(np.uint16))


@pytest.mark.parametrize("dtype", ["float32", *SHORT])
@pytest.mark.parametrize("buckets", [2, 3, 7, 256, 1000, 2**20])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.1, 0.3), (-3.7, 11.3)])
def test_quantized_as_on_the_host(dtype, buckets, bounds):
    config = QuantizationConfig(buckets, *bounds)
    rng = np.random.default_rng(buckets)
    values = rng.normal(0, 2, (500, 33)).astype(as_dtype(dtype))
    values[0, :4] = np.nan, np.inf, -np.inf, bounds[1]
    ours = np.asarray(jax.jit(lambda rows: quantized(rows, config))(values))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, config.apply(values))


def test_without_a_configuration_rows_are_only_widened():
    values = np.array([[0.1, -2.0]], np.float16)
    ours = np.asarray(quantized(values, None))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, values.astype(np.float32))
