"""Requests of devices to the owners of rows, sent by the devices, and how many rows they name.

The host of each process lists what its own devices ask for; what a device is asked for by all
others it learns from them.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import AXIS
from shardcore_pjrt.mesh.placing import over_devices, whole

__all__ = ["distinct_program", "request_program"]


def request_program(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Return a program that turns (asking, owner, C) lists into (owner, asking, C).

    Either is cut over the devices by its first axis.
    """

    def sent(asked: jax.Array) -> jax.Array:
        return lax.all_to_all(asked[0], AXIS, split_axis=0, concat_axis=0, tiled=True)[None]

    per_device = jax.shard_map(
        sent, mesh=mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS), check_vma=False
    )
    program: Callable[[jax.Array], jax.Array] = jax.jit(
        per_device, out_shardings=over_devices(mesh)
    )
    return program


def distinct_program(mesh: Mesh, geometry: Geometry) -> Callable[[jax.Array], jax.Array]:
    """Return a program from (owner, asking, C) lists to how many rows they name, int32 ()."""

    def counted(fetch: jax.Array) -> jax.Array:
        named = jnp.zeros(geometry.local_rows, jnp.bool_)  # padding is beyond them
        named = named.at[fetch.reshape(-1)].set(True, mode="drop")
        return lax.psum(named.sum(dtype=jnp.int32), AXIS)

    per_device = jax.shard_map(
        counted, mesh=mesh, in_specs=Spec(AXIS), out_specs=Spec(), check_vma=False
    )
    program: Callable[[jax.Array], jax.Array] = jax.jit(per_device, out_shardings=whole(mesh))
    return program
