"""A feature's activations and gradients between the caller's shape and that of the programs.

Programs see as many bags on every device: the last ones may be padding. Callers see their bags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from shardcore_pjrt.mesh.placing import on_mesh, over_devices, put, whole
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["as_cut", "trimmed"]


def spread(mesh: Mesh, bags: int) -> NamedSharding:
    """Return how callers get activations: cut over the devices where that comes out even."""
    return over_devices(mesh) if bags % mesh.size == 0 else whole(mesh)


def trim_program(mesh: Mesh, bags: int) -> Callable[..., jax.Array]:
    """Return a program that leaves the padding out."""
    program: Callable[..., jax.Array] = jax.jit(
        lambda padded: padded[:bags], out_shardings=spread(mesh, bags)
    )
    return program


def pad_program(mesh: Mesh, bags: int) -> Callable[..., jax.Array]:
    """Return a program that adds bags of padding, with gradients of 0."""

    def pad(array: jax.Array) -> jax.Array:
        return jnp.pad(array, ((0, bags - array.shape[0]), (0, 0)))

    program: Callable[..., jax.Array] = jax.jit(pad, out_shardings=over_devices(mesh))
    return program


def trimmed(mesh: Mesh, programs: Programs, padded: jax.Array, bags: int) -> jax.Array:
    """Return a feature's activations, (bags, dim), on all devices of `mesh`.

    They are cut over the devices by bag where their number is a multiple of that of the devices;
    else every device holds all of them.
    """
    if padded.shape[0] != bags:
        return programs.get(trim_program, mesh, bags)(padded)
    wanted = spread(mesh, bags)
    if padded.sharding.is_equivalent_to(wanted, padded.ndim):
        return padded
    return jax.device_put(padded, wanted)


def as_cut(
    mesh: Mesh, programs: Programs, gradient: jax.Array | NDArray[Any], bags: int
) -> jax.Array:
    """Return a feature's gradient with `bags` bags, cut over the devices of `mesh` by bag."""
    if isinstance(gradient, np.ndarray):
        if gradient.shape[0] != bags:
            gradient = np.pad(gradient, ((0, bags - gradient.shape[0]), (0, 0)))
        return put({"gradient": gradient}, {"gradient": over_devices(mesh)})["gradient"]
    gradient = on_mesh(gradient, mesh)
    if gradient.shape[0] != bags:
        return programs.get(pad_program, mesh, bags)(gradient)
    return jax.device_put(gradient, over_devices(mesh))
