"""Programs that read and write single rows of the devices' arrays, for the host.

They serve reads and writes from outside: views, scatters, initial values, checkpoints. Rows are
named by their local numbers, a list per shard; numbers from the shard's size on are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import (
    AXIS,
    as_lines,
    as_rows,
    row_slot_spec,
    rows_at,
    table_spec,
)
from shardcore_pjrt.mesh.placing import spans_processes

__all__ = [
    "Kind",
    "filled_program",
    "piece_write_program",
    "read_program",
    "shard_write_program",
    "sharding_of",
    "write_program",
]

Kind = Literal["element", "row"]


def sharding_of(mesh: Mesh, geometry: Geometry, kind: Kind) -> NamedSharding:
    """Return how a table, or a slot of one value per weight or per row, lies on the devices."""
    spec = table_spec(geometry) if kind == "element" else row_slot_spec(geometry)
    return NamedSharding(mesh, spec)


def filled_program(
    mesh: Mesh, geometry: Geometry, kind: Kind, dtype: Any, value: float
) -> Callable[[], jax.Array]:
    """Return a program that makes the array on the devices, `value` everywhere."""
    shape = geometry.table_shape if kind == "element" else geometry.row_slot_shape
    program: Callable[[], jax.Array] = jax.jit(
        lambda: jnp.full(shape, value, dtype), out_shardings=sharding_of(mesh, geometry, kind)
    )
    return program


def piece_write_program(mesh: Mesh, geometry: Geometry, kind: Kind) -> Callable[..., jax.Array]:
    """Return a program that overwrites lines that follow each other; the old array is given up.

    ``(array, lines, start) -> array``: of every shard the same number of lines, from its line
    `start` on, cut over the devices as the array is. Of kind "row" they are the lines' values.
    """
    spec = sharding_of(mesh, geometry, kind).spec
    of_each = geometry.rows_per_line if kind == "row" else 1

    def put_piece(block: jax.Array, lines: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(block, lines, start * of_each, 0)

    mapped = jax.shard_map(
        put_piece, mesh=mesh, in_specs=(spec, spec, Spec()), out_specs=spec, check_vma=False
    )
    program: Callable[..., jax.Array] = jax.jit(mapped, donate_argnums=0)
    return program


def read_program(mesh: Mesh, geometry: Geometry, kind: Kind) -> Callable[..., jax.Array]:
    """Return a program (array, local (shards, n)) -> rows (shards * n, columns).

    With devices of other processes the rows are sent to all of them, else they stay where they are.
    """
    spec = sharding_of(mesh, geometry, kind).spec
    cut = geometry.placement == "row"
    # Along which axis of the result the parts of the devices lie, if they differ.
    axis = 0 if cut else 1 if geometry.placement == "column" and kind == "element" else None
    everywhere = axis is None or spans_processes(mesh)

    def read(block: jax.Array, local: jax.Array) -> jax.Array:
        if kind == "row":
            rows = block.at[local[0]].get(mode="fill", fill_value=0)[:, None]
        else:
            rows = rows_at(block, local[0], geometry)
        if axis is not None and everywhere:
            rows = lax.all_gather(rows, AXIS, axis=axis, tiled=True)
        return rows

    out = Spec() if everywhere else Spec(AXIS) if axis == 0 else Spec(None, AXIS)
    mapped = jax.shard_map(
        read,
        mesh=mesh,
        in_specs=(spec, Spec(AXIS) if cut else Spec()),
        out_specs=out,
        check_vma=False,
    )
    program: Callable[..., jax.Array] = jax.jit(mapped)
    return program


def write_program(mesh: Mesh, geometry: Geometry, kind: Kind) -> Callable[..., jax.Array]:
    """Return a program that overwrites rows in place; the old array is given up.

    For ``"element"``: (array, lines (shards, n), values (shards, n, rows_per_line, columns),
    chosen (shards, n, rows_per_line)) -> array, where the lines of a shard are distinct, those
    beyond its own are ignored, and only chosen rows change. Over columns the last axis of `values`
    is that of all devices. For ``"row"``: (array, local (shards, n), values (shards, n)) -> array.
    """
    spec = sharding_of(mesh, geometry, kind).spec
    lists = Spec(AXIS) if geometry.placement == "row" else Spec()
    given = Spec(None, None, None, AXIS) if geometry.placement == "column" else lists
    mapped = jax.shard_map(
        _writer(geometry, kind),
        mesh=mesh,
        in_specs=(spec, lists, lists) if kind == "row" else (spec, lists, given, lists),
        out_specs=spec,
        check_vma=False,
    )
    program: Callable[..., jax.Array] = jax.jit(mapped, donate_argnums=0)
    return program


def shard_write_program(geometry: Geometry, kind: Kind) -> Callable[..., jax.Array]:
    """Return the same program for the part on one device, with the lists of that one shard."""
    program: Callable[..., jax.Array] = jax.jit(_writer(geometry, kind), donate_argnums=0)
    return program


def _writer(geometry: Geometry, kind: Kind) -> Callable[..., jax.Array]:
    """Return the function by which one device writes rows of its own."""

    def put_row_values(block: jax.Array, local: jax.Array, values: jax.Array) -> jax.Array:
        return block.at[local[0]].set(values[0], mode="drop", unique_indices=True)

    def put_lines(
        block: jax.Array, lines: jax.Array, values: jax.Array, chosen: jax.Array
    ) -> jax.Array:
        old = as_rows(block.at[lines[0]].get(mode="fill", fill_value=0), geometry)
        new = jnp.where(chosen[0].reshape(-1, 1), values[0].reshape(old.shape), old)
        return block.at[lines[0]].set(
            as_lines(new, geometry), mode="drop", unique_indices=True, indices_are_sorted=True
        )

    return put_row_values if kind == "row" else put_lines
