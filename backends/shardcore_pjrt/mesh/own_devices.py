"""The devices of this process among those of a mesh, and its parts of arrays that lie on all.

Where each process gives its own samples, its devices hold them: an array cut over all devices has
the parts of this process in its reach, in the order of its devices along the mesh. They are taken
out and put in without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore_pjrt.mesh.placing import over_devices

__all__ = ["OwnDevices", "places_of_processes"]


def places_of_processes(mesh: Mesh) -> dict[int, list[int]]:
    """Return the places along the mesh of each process's devices, in the order of their first."""
    places: dict[int, list[int]] = {}
    for at, device in enumerate(mesh.devices.flat):
        places.setdefault(device.process_index, []).append(at)
    return places


class OwnDevices:
    """The devices of this process, as a mesh of their own.

    Parameters
    ----------
    all_devices : Mesh
        Of one axis, "x"; at least one device of it is of this process.

    Attributes
    ----------
    mesh : Mesh
        The process's own devices, in the order of the larger mesh.
    places : list of int
        Where along that they are.
    """

    def __init__(self, all_devices: Mesh) -> None:
        process = all_devices.devices.flat[0].client.process_index()
        self.places = places_of_processes(all_devices)[process]
        self.mesh = Mesh(all_devices.devices.ravel()[self.places], ("x",))
        self._all = all_devices

    def part(self, array: jax.Array) -> jax.Array:
        """Return the process's parts of an array cut over all devices, cut over its own."""
        held = {shard.device: shard.data for shard in array.addressable_shards}
        parts = [held[device] for device in self.mesh.devices.flat]
        shape = (len(parts) * parts[0].shape[0], *array.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, over_devices(self.mesh), parts)

    def joined(self, array: jax.Array) -> jax.Array:
        """Return an array cut over the process's own devices as its part of one cut over all.

        Every process calls this, with parts of one size.
        """
        held = {shard.device: shard.data for shard in array.addressable_shards}
        parts = [held[device] for device in self.mesh.devices.flat]
        shape = (self._all.size * parts[0].shape[0], *array.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, over_devices(self._all), parts)

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, jax.Array]:
        """Return the process's parts of arrays, on its devices, as arrays cut over all of them.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            The first axis is cut over the process's own devices. In all processes a device gets
            as much of it.
        """
        devices = list(self.mesh.devices.flat)
        pieces = [np.split(array, len(devices)) for array in arrays.values()]
        placed = jax.device_put(pieces, [devices] * len(pieces))
        cut = over_devices(self._all)
        return {
            name: jax.make_array_from_single_device_arrays(
                (self._all.size * parts[0].shape[0], *array.shape[1:]), cut, parts
            )
            for (name, array), parts in zip(arrays.items(), placed, strict=True)
        }
