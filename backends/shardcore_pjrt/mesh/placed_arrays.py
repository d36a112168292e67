"""Where a table's arrays lie on the mesh, and rows in their lines.

A device holds *lines*: `Geometry.rows_per_line` rows beside each other. On a TPU a line is 128
lanes wide, so that narrow rows are neither padded nor copied into another layout.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from shardcore.optimizer import SlotSpec
from shardcore_pjrt.mesh.geometry import Geometry

__all__ = [
    "AXIS",
    "as_lines",
    "as_rows",
    "bits_of",
    "first_column",
    "in_lanes",
    "own_columns",
    "placed",
    "row_slot_spec",
    "rows_at",
    "slot_arrays",
    "stored_dtype",
    "table_spec",
    "values_of",
]

AXIS: Final = "x"
"""The one axis of every mesh."""


def table_spec(geometry: Geometry) -> Spec:
    """Return how a table, and each of its slots of kind "element", is cut over the mesh."""
    return {"row": Spec(AXIS, None), "column": Spec(None, AXIS)}.get(geometry.placement, Spec())


def row_slot_spec(geometry: Geometry) -> Spec:
    """Return how a slot of kind "row" is cut over the mesh."""
    return Spec(AXIS) if geometry.placement == "row" else Spec()


def placed(mesh: Mesh, shape: tuple[int, ...], dtype: Any, spec: Spec) -> jax.ShapeDtypeStruct:
    """Return an array's shape, dtype and place, for compilation ahead of time."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def slot_arrays(
    mesh: Mesh, geometry: Geometry, dtype: Any, slots: tuple[SlotSpec, ...]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape, dtype and place of the slots of a table of `dtype`, as held, by name."""
    held = {slot.name: stored_dtype(slot.storage_dtype(dtype)) for slot in slots}
    return {
        slot.name: placed(mesh, geometry.table_shape, held[slot.name], table_spec(geometry))
        if slot.kind == "element"
        else placed(mesh, geometry.row_slot_shape, held[slot.name], row_slot_spec(geometry))
        for slot in slots
    }


def as_rows(lines: jax.Array, geometry: Geometry) -> jax.Array:
    """Return (n, line_width) lines as (n * rows_per_line, columns) rows."""
    return lines.reshape(-1, geometry.width)[:, : geometry.columns]


def as_lines(rows: jax.Array, geometry: Geometry) -> jax.Array:
    """Return (n * rows_per_line, columns) rows as (n, line_width) lines, padded with zeros."""
    padded = jnp.pad(rows, ((0, 0), (0, geometry.width - geometry.columns)))
    return padded.reshape(-1, geometry.line_width)


def in_lanes(of_rows: jax.Array, geometry: Geometry) -> jax.Array:
    """Return a value of each row, (n * rows_per_line,), for every lane of it, (n, line_width).

    Where a line is a row, (n, 1).
    """
    by_line = of_rows.reshape(-1, geometry.rows_per_line)
    return by_line if by_line.shape[1] == 1 else jnp.repeat(by_line, geometry.width, axis=1)


def first_column(geometry: Geometry) -> jax.Array:
    """Return the first of the columns that the device holds, int32 ()."""
    if geometry.placement != "column" or geometry.devices == 1:
        return jnp.int32(0)
    return jax.lax.axis_index(AXIS) * geometry.columns


def own_columns(rows: jax.Array, geometry: Geometry) -> jax.Array:
    """Return the columns that the device holds of whole rows, (n, dim) to (n, columns)."""
    if geometry.placement != "column" or geometry.devices == 1:
        return rows
    padding = geometry.devices * geometry.columns - rows.shape[1]
    padded = jnp.pad(rows, ((0, 0), (0, padding)))
    return jax.lax.dynamic_slice_in_dim(padded, first_column(geometry), geometry.columns, axis=1)


def stored_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which devices hold values of `dtype`: bits, if it is a short float.

    Where a device has no instructions for a short float, XLA widens whole tables to write a few
    rows of them, and NaNs lose their bits on the way. Bits are moved as they are.

    Examples
    --------
    >>> stored_dtype("float16"), stored_dtype("float32")
    (dtype('uint16'), dtype('float32'))
    """
    given = np.dtype(dtype)
    return np.dtype(np.uint16) if given.itemsize == 2 else given


def bits_of(values: jax.Array) -> jax.Array:
    """Return values as devices hold them."""
    return jax.lax.bitcast_convert_type(values, stored_dtype(values.dtype))


def values_of(bits: jax.Array, dtype: Any) -> jax.Array:
    """Return values of `dtype`, given as devices hold them."""
    return jax.lax.bitcast_convert_type(bits, np.dtype(dtype))


def rows_at(shard: jax.Array, local: jax.Array, geometry: Geometry) -> jax.Array:
    """Return rows of a shard, zeros where the number is beyond its last.

    Parameters
    ----------
    shard : array, shape (lines, line_width)
        The part on one device.
    local : array of int32, shape (n,)
        Local rows, >= 0.
    geometry : Geometry

    Returns
    -------
    array of the same dtype, shape (n, columns)
    """
    part = geometry.rows_per_line
    rows = (
        bits_of(shard).at[local // part].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    )
    place = (local % part)[:, None]
    while part > 1:  # halve the lines until one row is left: every cut lies at a fixed column
        part //= 2
        half = part * geometry.width
        rows = jnp.where(place >= part, rows[:, half:], rows[:, :half])
        place = place % part
    return rows[:, : geometry.columns]
