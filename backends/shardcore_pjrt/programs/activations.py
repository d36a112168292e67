"""A feature's activations and gradients between the caller's shape and that of the programs.

Programs see as many bags on every device as there is room for, a class; callers see their bags. The
result of a compiled program has a fixed shape, so each number of bags needs a program that cuts the
rest off, and one that adds it to a gradient on the devices. They are small, and few: all tables and
features of one width share them. Where the devices own equally many bags, each works on its own
ones, and nothing moves. Gradients of the host need no program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from numpy.typing import NDArray

from shardcore_pjrt.mesh.placed_arrays import AXIS
from shardcore_pjrt.mesh.placing import on_mesh, over_devices, whole, with_sharding
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["Filling", "filled_up", "filled_up_on_devices", "trimmed"]

_Bags = TypeVar("_Bags", jax.Array, NDArray[Any])


class Filling(NamedTuple):
    """Where a feature's bags are in the list of a program: in parts, each with room for more."""

    parts: int
    """Devices whose lists they are."""
    room: int
    """Bags of a part."""
    own: int
    """Those of them that are true, fewer in the last parts."""

    def true_bag(self, place: int) -> int:
        """Return the number of the bag at a place of the list."""
        part, bag = divmod(place, self.room)
        return part * self.own + bag


def spread(mesh: Mesh, bags: int) -> NamedSharding:
    """Return how callers get activations: cut over the devices where that comes out even."""
    return over_devices(mesh) if bags % mesh.size == 0 else whole(mesh)


def on_each(mesh: Mesh, function: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """Return a program that works on each device's own bags."""
    per_device = jax.shard_map(
        function, mesh=mesh, in_specs=Spec(AXIS), out_specs=Spec(AXIS), check_vma=False
    )
    program: Callable[..., jax.Array] = jax.jit(per_device, out_shardings=over_devices(mesh))
    return program


def trim_program(mesh: Mesh, room: int, own: int, bags: int) -> Callable[..., jax.Array]:
    """Return a program that leaves the padding out: of `room` bags of a device it has `own`."""
    if bags == mesh.size * own:
        return on_each(mesh, lambda padded: padded[:own])

    def trim(padded: jax.Array) -> jax.Array:
        columns = padded.shape[1]
        return padded.reshape(mesh.size, room, columns)[:, :own].reshape(-1, columns)[:bags]

    program: Callable[..., jax.Array] = jax.jit(trim, out_shardings=spread(mesh, bags))
    return program


def fill_program(mesh: Mesh, filling: Filling, bags: int) -> Callable[..., jax.Array]:
    """Return a program that adds bags of padding, with gradients of 0, to each of the parts.

    Parts are those of the devices of `mesh`; or there is one, which every device gets.
    """
    parts, room, own = filling
    if parts == mesh.size and bags == parts * own:
        return on_each(mesh, lambda gradient: jnp.pad(gradient, ((0, room - own), (0, 0))))
    program: Callable[..., jax.Array] = jax.jit(
        lambda gradient: _filled(jnp, gradient, filling),
        out_shardings=over_devices(mesh) if parts == mesh.size else whole(mesh),
    )
    return program


def _filled(library: Any, gradient: _Bags, filling: Filling) -> _Bags:
    parts, room, own = filling
    bags, columns = gradient.shape
    if bags < parts * own:
        gradient = library.pad(gradient, ((0, parts * own - bags), (0, 0)))
    by_part = gradient.reshape(parts, own, columns)
    found: _Bags = library.pad(by_part, ((0, 0), (0, room - own), (0, 0)))
    return found.reshape(parts * room, columns)


def trimmed(mesh: Mesh, programs: Programs, padded: jax.Array, own: int, bags: int) -> jax.Array:
    """Return a feature's activations, (bags, dim), on all devices of `mesh`.

    They are cut over the devices by bag where their number is a multiple of that of the devices;
    else every device holds all of them.

    Parameters
    ----------
    mesh : Mesh
    programs : Programs
    padded : array, (devices * room, dim)
        Cut over the devices of its table.
    own : int
        True bags of a device; the last ones may have fewer.
    bags : int
        True bags of all.
    """
    held = padded.sharding
    assert isinstance(held, NamedSharding), "programs give no other"
    if padded.shape[0] != bags:
        room = padded.shape[0] // held.mesh.size
        padded = programs.get(trim_program, held.mesh, room, own, bags)(padded)
    return with_sharding(padded, spread(mesh, bags))


def filled_up(gradient: NDArray[Any], filling: Filling) -> NDArray[Any]:
    """Return a feature's gradient on the host, filled up with gradients of 0.

    Parameters
    ----------
    gradient : ndarray, (bags, dim)
    filling : Filling

    Returns
    -------
    ndarray, (parts * room, dim)
        Zeros where there is no true bag.

    Examples
    --------
    >>> filled_up(np.array([[1.0], [2.0], [3.0]]), Filling(parts=2, room=3, own=2)).ravel()
    array([1., 2., 0., 3., 0., 0.])
    """
    if gradient.shape[0] == filling.parts * filling.room:
        return gradient
    return _filled(np, gradient, filling)


def filled_up_on_devices(
    mesh: Mesh, programs: Programs, gradient: jax.Array, filling: Filling
) -> jax.Array:
    """Return a feature's gradient as `filled_up`, on all devices of `mesh`.

    With a part for each device it is cut over them; else all have it whole.
    """
    bags = gradient.shape[0]
    if bags != filling.parts * filling.room:
        return programs.get(fill_program, mesh, filling, bags)(on_mesh(gradient, mesh))
    cut = filling.parts == mesh.size
    return with_sharding(gradient, over_devices(mesh) if cut else whole(mesh))
