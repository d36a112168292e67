"""Work in blocks: every thing once, in order, and rows moved bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from shardcore_pjrt.programs.blocks import cut, in_blocks, moved_by_value


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("size", [1, 4, 8, 100])
def test_every_thing_is_new_once_and_in_order(count, size):
    size = min(count, size)

    def work(start, old, seen):
        things, turn = seen
        fresh = jnp.arange(size) >= old
        here = cut(things, start, size)
        marked = jnp.where(fresh, here + 10 * turn + 1, here)
        return jax.lax.dynamic_update_slice_in_dim(things, marked, start, 0), turn + 1

    things, turns = in_blocks(count, size, work, (jnp.zeros(count, jnp.int32), jnp.int32(0)))
    assert int(turns) == -(-count // size)
    np.testing.assert_array_equal(things, np.arange(count) // size * 10 + 1)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, jnp.bfloat16])
def test_moved_rows_keep_all_bits(dtype):
    kind = np.dtype(dtype)
    bits = np.random.default_rng(0).integers(0, 256, (64, 4 * kind.itemsize), np.uint8)
    if kind == np.float32:
        bits.view(np.uint32)[0] = 0x7F800001  # a NaN that arithmetic would make another
    rows = jax.device_put(bits.view(kind), jax.devices("cpu")[0])
    order = np.arange(64)[::-1]
    moved = jax.jit(lambda rows: moved_by_value(rows[order]))(rows)
    assert moved.dtype == kind
    np.testing.assert_array_equal(np.asarray(moved).view(np.uint8), bits[order])
