"""Work in blocks: every thing once, in order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from shardcore_pjrt.programs.blocks import cut, in_blocks


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
