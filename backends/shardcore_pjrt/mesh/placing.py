"""Host arrays onto the devices of a mesh, and back, for one process or many.

In a program of several processes a device array is not wholly in reach of any of them: each puts
the parts of its own devices there, and reads only what every process holds whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

__all__ = [
    "fetched",
    "on_mesh",
    "over_devices",
    "put",
    "resharding_program",
    "spans_processes",
    "whole",
    "with_sharding",
]


@lru_cache(maxsize=64)
def over_devices(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array whose first axis is cut over the devices."""
    return NamedSharding(mesh, PartitionSpec("x"))


@lru_cache(maxsize=64)
def whole(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


@lru_cache(maxsize=64)
def spans_processes(mesh: Mesh) -> bool:
    """Return whether devices of the mesh belong to other processes."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def put(
    arrays: Mapping[str, NDArray[Any]], shardings: Mapping[str, NamedSharding]
) -> dict[str, jax.Array]:
    """Return host arrays, the same in every process, as device arrays: one transfer for them all.

    Parameters
    ----------
    arrays : mapping of name -> ndarray
    shardings : mapping of name -> NamedSharding
        At least one for every array.
    """
    if not arrays:
        return {}
    own = {name: shardings[name] for name in arrays}
    if not spans_processes(next(iter(own.values())).mesh):
        placed: dict[str, jax.Array] = jax.device_put(dict(arrays), own)
        return placed

    def part_of(array: NDArray[Any], sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return {name: part_of(array, own[name]) for name, array in arrays.items()}


@lru_cache(maxsize=64)
def resharding_program(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Return a program that gives its argument another sharding, over the same devices."""
    program: Callable[[jax.Array], jax.Array] = jax.jit(lambda array: array, out_shardings=sharding)
    return program


def on_mesh(array: jax.Array, mesh: Mesh) -> jax.Array:
    """Return a device array as one on the devices of `mesh`, in the order of the mesh.

    Programs take no other. Over several processes it must be on all of these devices already.
    """
    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        devices = sharding.mesh.devices
        if devices.size == mesh.size and (devices.ravel() == mesh.devices.ravel()).all():
            return array
    return jax.device_put(array, whole(mesh))


def with_sharding(array: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return a device array cut as `sharding` says, itself if it lies so already.

    `jax.device_put` would return such an array too, after more time than a small step has for it.
    """
    return array if array.sharding == sharding else jax.device_put(array, sharding)


def fetched(array: jax.Array) -> NDArray[Any]:
    """Return a device array as a host array; the process must hold all of it, or copies."""
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    return np.asarray(array)
