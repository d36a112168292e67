"""The compiled programs of a stack: look bags up, update rows in place, read and write lines.

The cores' arrays are as the cores want them only where they are pinned, so every program that
makes or changes one says so. The host reads and writes lines of 128 columns of what is, in memory,
one row after the other: XLA would copy a narrow array, padded, to take single rows out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from shardcore_pjrt.mesh.placed_arrays import AXIS, placed
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.sparsecore import primitives
from shardcore_pjrt.sparsecore.buffers import BufferShape, pointers_per_core
from shardcore_pjrt.sparsecore.primitives import DeviceBuffers
from shardcore_pjrt.sparsecore.stack_geometry import LANES, StackGeometry
from shardcore_pjrt.sparsecore.updates import RowUpdate

__all__ = [
    "features_arguments",
    "features_program",
    "filled_program",
    "gradients_arguments",
    "gradients_program",
    "lookup_arguments",
    "lookup_program",
    "read_arguments",
    "read_program",
    "stack_format",
    "update_arguments",
    "update_program",
    "write_arguments",
    "write_program",
]

Program = Callable[..., Any]

_CUT = Spec(AXIS)
_BUFFERS = DeviceBuffers(_CUT, _CUT, _CUT, _CUT, Spec())


def _compiled(function: Callable[..., Any], **options: Any) -> Program:
    program: Program = jax.jit(function, **options)
    return program


def stack_format(mesh: Mesh) -> Any:
    """Return where and how an array of rows or slots lies in memory.

    Other platforms than TPUs, which only tests use, have one layout.
    """
    from jax.experimental.layout import Format, Layout

    sharding = NamedSharding(mesh, Spec(AXIS, None))
    if mesh.devices.flat[0].platform != "tpu":
        return sharding
    return Format(Layout(major_to_minor=(0, 1), tiling=((8,),)), sharding)


def filled_program(mesh: Mesh, geometry: StackGeometry, value: float) -> Program:
    """Return a program that makes an array of rows or slots, `value` everywhere."""
    return _compiled(
        lambda: jnp.full(geometry.shape, value, np.float32), out_shardings=stack_format(mesh)
    )


def lookup_program(mesh: Mesh, geometry: StackGeometry, shape: BufferShape) -> Program:
    """Return a program (buffers, rows) -> sums of all cores' bags, (all bags, columns)."""
    per_device = jax.shard_map(
        partial(primitives.look_up, cores=geometry.cores, shape=shape),
        mesh=mesh,
        in_specs=(_BUFFERS, _CUT),
        out_specs=_CUT,
        check_vma=False,
    )
    return _compiled(per_device, out_shardings=over_devices(mesh))


def update_program(
    mesh: Mesh, geometry: StackGeometry, shape: BufferShape, rule: RowUpdate
) -> Program:
    """Return a program (arrays, buffers, gradients, numbers, go) -> arrays, updated in place.

    Where `go` is False it does nothing: all partitions are empty.
    """

    def update(
        arrays: tuple[jax.Array, ...],
        buffers: DeviceBuffers,
        gradients: jax.Array,
        numbers: tuple[jax.Array, ...],
        go: jax.Array,
    ) -> tuple[jax.Array, ...]:
        pointers = jnp.where(go, buffers.row_pointers, 0)
        return primitives.update(
            buffers._replace(row_pointers=pointers), arrays, gradients, numbers, shape, rule
        )

    arrays = (_CUT,) * (1 + len(rule.slots))
    per_device = jax.shard_map(
        update,
        mesh=mesh,
        in_specs=(arrays, _BUFFERS, _CUT, (Spec(),) * rule.numbers, Spec()),
        out_specs=arrays,
        check_vma=False,
    )
    return _compiled(
        per_device, donate_argnums=0, out_shardings=(stack_format(mesh),) * len(arrays)
    )


# --- between the cores' bags and those of features -----------------------------------------------


def features_program(
    mesh: Mesh,
    geometry: StackGeometry,
    of_core: int,
    features: tuple[tuple[int, int, int], ...],
) -> Program:
    """Return a program that gives every feature its bags, padding at the end included.

    Parameters
    ----------
    mesh : Mesh
    geometry : StackGeometry
    of_core : int
        Bags that a core works for; those behind them are padding.
    features : tuple of (int, int, int)
        First local bag, local bags, columns.
    """

    def cut(found: jax.Array) -> tuple[jax.Array, ...]:
        by_core = found.reshape(geometry.cores, -1, geometry.columns)[:, :of_core]
        local = by_core.reshape(-1, geometry.columns)
        return tuple(local[first : first + bags, :dim] for first, bags, dim in features)

    specs = (_CUT,) * len(features)
    return _compiled(
        jax.shard_map(cut, mesh=mesh, in_specs=_CUT, out_specs=specs, check_vma=False),
        out_shardings=(over_devices(mesh),) * len(features),
    )


def gradients_program(
    mesh: Mesh, geometry: StackGeometry, shape: BufferShape, of_core: int, features: int
) -> Program:
    """Return a program that gives every core the gradients of its bags, padding 0.

    Parameters
    ----------
    mesh : Mesh
    geometry : StackGeometry
    shape : BufferShape
    of_core : int
    features : int
        How many arrays of gradients there are, each padded to as many bags on every device.
    """

    def joined(*gradients: jax.Array) -> jax.Array:
        wide = [
            jnp.pad(one.astype(np.float32), ((0, 0), (0, geometry.columns - one.shape[1])))
            for one in gradients
        ]
        local = jnp.concatenate(wide)
        missing = geometry.cores * of_core - local.shape[0]
        by_core = jnp.pad(local, ((0, missing), (0, 0)))
        by_core = by_core.reshape(geometry.cores, of_core, geometry.columns)
        padded = jnp.pad(by_core, ((0, 0), (0, shape.bags - of_core), (0, 0)))
        return padded.reshape(-1, geometry.columns)

    specs = (_CUT,) * features
    return _compiled(
        jax.shard_map(joined, mesh=mesh, in_specs=specs, out_specs=_CUT, check_vma=False),
        out_shardings=over_devices(mesh),
    )


# --- for the host --------------------------------------------------------------------------------


def read_program(mesh: Mesh, geometry: StackGeometry) -> Program:
    """Return a program (array, lines (devices, n)) -> these lines, (devices * n, 128)."""

    def read(array: jax.Array, lines: jax.Array) -> jax.Array:
        return array.reshape(-1, LANES).at[lines[0]].get(mode="clip")

    return _compiled(
        jax.shard_map(read, mesh=mesh, in_specs=(_CUT, _CUT), out_specs=_CUT, check_vma=False),
        out_shardings=over_devices(mesh),
    )


def write_program(mesh: Mesh, geometry: StackGeometry) -> Program:
    """Return a program (array, lines, values, chosen) -> array, in place, with the chosen values.

    Lines are distinct; those from the end of a device's on are padding.
    """

    def write(
        array: jax.Array, lines: jax.Array, values: jax.Array, chosen: jax.Array
    ) -> jax.Array:
        as_lines = array.reshape(-1, LANES)
        old = as_lines.at[lines[0]].get(mode="clip")
        new = jnp.where(chosen[0], values[0], old)
        return as_lines.at[lines[0]].set(new, mode="drop", unique_indices=True).reshape(array.shape)

    return _compiled(
        jax.shard_map(write, mesh=mesh, in_specs=(_CUT,) * 4, out_specs=_CUT, check_vma=False),
        donate_argnums=0,
        out_shardings=stack_format(mesh),
    )


# --- for compilation ahead of time ---------------------------------------------------------------


def _array(mesh: Mesh, geometry: StackGeometry) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(geometry.shape, np.float32, sharding=stack_format(mesh))


def _buffers(mesh: Mesh, geometry: StackGeometry, shape: BufferShape) -> DeviceBuffers:
    pointers = geometry.all_cores * pointers_per_core(geometry, shape.minibatched)
    room = geometry.devices * shape.room
    return DeviceBuffers(
        placed(mesh, (pointers,), np.int32, _CUT),
        placed(mesh, (room,), np.int32, _CUT),
        placed(mesh, (room,), np.int32, _CUT),
        placed(mesh, (room,), np.float32, _CUT),
        placed(mesh, (), np.int32, Spec()),
    )


def lookup_arguments(mesh: Mesh, geometry: StackGeometry, shape: BufferShape) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of a lookup."""
    return _buffers(mesh, geometry, shape), _array(mesh, geometry)


def update_arguments(
    mesh: Mesh, geometry: StackGeometry, shape: BufferShape, rule: RowUpdate
) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of an update."""
    bags = geometry.all_cores * shape.bags
    numbers: list[Any] = [np.float32] * rule.numbers
    if rule.optimizer == "AdagradMomentum":
        numbers[-1] = np.bool_
    return (
        (_array(mesh, geometry),) * (1 + len(rule.slots)),
        _buffers(mesh, geometry, shape),
        placed(mesh, (bags, geometry.columns), np.float32, _CUT),
        tuple(placed(mesh, (), dtype, Spec()) for dtype in numbers),
        placed(mesh, (), np.bool_, Spec()),
    )


def features_arguments(mesh: Mesh, geometry: StackGeometry, shape: BufferShape) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of `features_program`."""
    return (placed(mesh, (geometry.all_cores * shape.bags, geometry.columns), np.float32, _CUT),)


def gradients_arguments(
    mesh: Mesh, geometry: StackGeometry, features: tuple[tuple[int, int], ...]
) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of `gradients_program`.

    Parameters
    ----------
    mesh : Mesh
    geometry : StackGeometry
    features : tuple of (int, int)
        Local bags, padding included, and columns.
    """
    return tuple(
        placed(mesh, (geometry.devices * bags, dim), np.float32, _CUT) for bags, dim in features
    )


def read_arguments(mesh: Mesh, geometry: StackGeometry, lines: int) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of `read_program`."""
    shape = (geometry.devices, lines)
    return _array(mesh, geometry), placed(mesh, shape, np.int32, _CUT)


def write_arguments(mesh: Mesh, geometry: StackGeometry, lines: int) -> tuple[Any, ...]:
    """Return the shapes and places of the arguments of `write_program`."""
    shape = (geometry.devices, lines)
    return (
        *read_arguments(mesh, geometry, lines),
        placed(mesh, (*shape, LANES), np.float32, _CUT),
        placed(mesh, (*shape, LANES), np.bool_, _CUT),
    )
