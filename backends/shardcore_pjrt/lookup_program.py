"""The lookup of one table's features as one program for the whole mesh.

What the host has routed (`shardcore_pjrt.lookup_route`) comes as arrays of fixed shapes; nothing
depends on ids but these. How rows travel is the shape's exchange:

- ``"local"``, ``"one_hot"``: every device reads its own copy of the table, by number or, where
  the table is tiny, as a product with a matrix of counts;
- ``"gather"``: every device puts its rows of the batch's distinct ones into zeros, all are added;
- ``"all_to_all"``: every device sends each other one the rows that it needs;
- ``"columns"``: every device combines its columns of all bags, then bags are exchanged for columns.

Rows are combined in float32. Padding reads as zeros, whatever lies in unused rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from shardcore.config import QuantizationConfig
from shardcore_pjrt.geometry import Geometry
from shardcore_pjrt.lookup_route import LookupShape
from shardcore_pjrt.placed_arrays import (
    AXIS,
    as_rows,
    placed,
    rows_at,
    stored_dtype,
    table_spec,
    values_of,
)
from shardcore_pjrt.quantized import quantized

__all__ = ["lookup_arguments", "lookup_program"]

Arrays: TypeAlias = dict[str, jax.Array]


def _route_arrays(
    mesh: Mesh, geometry: Geometry, shape: LookupShape
) -> dict[str, jax.ShapeDtypeStruct]:
    devices, bags = geometry.devices, sum(shape.bags)
    whole = shape.exchange == "columns"  # the same arrays on every device, for all bags
    leading, spec = (1, Spec()) if whole else (devices, Spec(AXIS))
    bags *= devices if whole else 1
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"place": ((shape.occurrences,), jnp.int32)}
    if not shape.pooling:
        shapes["bag"] = ((shape.occurrences,), jnp.int32)
    if shape.weighted:
        shapes["weight"] = ((shape.occurrences,), jnp.float32)
    if shape.divided:
        shapes["divisor"] = ((bags,), jnp.float32)
    if shape.exchange == "gather":
        shapes["fetch"] = ((shape.capacity,), jnp.int32)
    if shape.exchange == "all_to_all":
        shapes["fetch"] = ((devices, shape.capacity), jnp.int32)
    return {
        name: placed(mesh, (leading, *inner), dtype, spec)
        for name, (inner, dtype) in shapes.items()
    }


def lookup_arguments(
    mesh: Mesh, geometry: Geometry, dtype: Any, shape: LookupShape
) -> tuple[Any, ...]:
    """Return what a lookup program is called with, as shapes, to compile it ahead of time.

    Parameters
    ----------
    mesh : Mesh
    geometry : Geometry
    dtype : dtype
        The table's.
    shape : LookupShape

    Returns
    -------
    tuple of (ShapeDtypeStruct, dict of ShapeDtypeStruct)
        rows, arrays.
    """
    table = placed(mesh, geometry.table_shape, stored_dtype(dtype), table_spec(geometry))
    return table, _route_arrays(mesh, geometry, shape)


def lookup_program(
    mesh: Mesh,
    geometry: Geometry,
    shape: LookupShape,
    quantization: QuantizationConfig | None = None,
    dtype: Any = np.float32,
) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the compiled-on-first-use lookup of batches of one shape.

    Parameters
    ----------
    mesh : Mesh
        Of ``geometry.devices`` devices, with one axis.
    geometry : Geometry
    shape : LookupShape
    quantization : QuantizationConfig, optional
    dtype : dtype, default float32
        The table's.

    Returns
    -------
    callable
        ``(rows, arrays) -> activations``: the table, of its `stored_dtype`, and the arrays of
        `LookupRoute`; per feature a float32 array of shape (devices * bags, dim), bags
        cut over the mesh.
    """
    body = _BODIES[shape.exchange]
    values = _Values(np.dtype(dtype), quantization)
    ends = list(itertools.accumulate(shape.bags))

    def lookup(rows: jax.Array, arrays: Arrays) -> tuple[jax.Array, ...]:
        mine = {name: array[0] for name, array in arrays.items()}
        activations = body(rows, mine, geometry, shape, values)
        return tuple(
            activations[end - size : end] for end, size in zip(ends, shape.bags, strict=True)
        )

    route = _route_arrays(mesh, geometry, shape)
    activations = tuple(Spec(AXIS, None) for _ in shape.bags)
    per_device = jax.shard_map(
        lookup,
        mesh=mesh,
        in_specs=(table_spec(geometry), {name: one.sharding.spec for name, one in route.items()}),
        out_specs=activations,
        check_vma=False,  # what every device works out alike is not told apart
    )
    shardings = tuple(NamedSharding(mesh, spec) for spec in activations)
    program: Callable[..., tuple[jax.Array, ...]] = jax.jit(per_device, out_shardings=shardings)
    return program


@dataclass(frozen=True)
class _Values:
    """What the rows of the table are."""

    dtype: np.dtype[Any]
    quantization: QuantizationConfig | None

    def stored(self, held: jax.Array) -> jax.Array:
        """Return rows, as held by a device, in the table's dtype."""
        return values_of(held, self.dtype)

    def looked_up(self, stored: jax.Array) -> jax.Array:
        """Return rows of the table's dtype as they are combined."""
        return quantized(stored, self.quantization)


# --- what one device does: (rows, arrays of its own, ...) -> (its bags, columns) ------------------


def _from_rows(
    rows: jax.Array,
    arrays: Arrays,
    geometry: Geometry,
    shape: LookupShape,
    values: _Values,
) -> jax.Array:
    """Combine rows of the device's own shard."""
    found = rows_at(rows, arrays["place"], geometry)
    looked_up = values.looked_up(values.stored(found))
    if values.quantization is not None:  # padding stays zeros, which may lie between two buckets
        padding = arrays["place"] >= geometry.local_rows
        looked_up = jnp.where(padding[:, None], 0, looked_up)
    bags = sum(shape.bags) * (geometry.devices if shape.exchange == "columns" else 1)
    return _combined(looked_up, arrays, shape, bags)


def _by_counts(
    rows: jax.Array,
    arrays: Arrays,
    geometry: Geometry,
    shape: LookupShape,
    values: _Values,
) -> jax.Array:
    """Multiply the rows of a tiny table with how often each bag names them."""
    table = values.looked_up(values.stored(as_rows(rows, geometry)))

    def by_product(_: None) -> jax.Array:
        chosen = arrays["place"][:, None] == jnp.arange(geometry.local_rows)
        counts = _summed(chosen.astype(jnp.float32), arrays, shape, sum(shape.bags))
        sums = jnp.matmul(counts, table, precision=jax.lax.Precision.HIGHEST)
        return _divided(sums, arrays)

    def by_number(_: None) -> jax.Array:
        return _from_rows(rows, arrays, geometry, shape, values)

    # In a product one NaN or infinity of the table would reach every bag: 0 * inf is NaN.
    return jax.lax.cond(jnp.isfinite(table).all(), by_product, by_number, None)


def _from_offered(
    rows: jax.Array,
    arrays: Arrays,
    geometry: Geometry,
    shape: LookupShape,
    values: _Values,
) -> jax.Array:
    """Combine rows of the batch's distinct ones, each from the only device that has it."""
    offered = values.stored(rows_at(rows, arrays["fetch"], geometry))
    found = _taken(values.looked_up(jax.lax.psum(offered, AXIS)), arrays["place"])
    return _combined(found, arrays, shape, sum(shape.bags))


def _from_sent(
    rows: jax.Array,
    arrays: Arrays,
    geometry: Geometry,
    shape: LookupShape,
    values: _Values,
) -> jax.Array:
    """Combine rows that their owners have sent."""
    asked = rows_at(rows, arrays["fetch"].reshape(-1), geometry)
    sent = jax.lax.all_to_all(asked, AXIS, split_axis=0, concat_axis=0, tiled=True)
    found = _taken(values.looked_up(values.stored(sent)), arrays["place"])
    return _combined(found, arrays, shape, sum(shape.bags))


def _for_columns(
    rows: jax.Array,
    arrays: Arrays,
    geometry: Geometry,
    shape: LookupShape,
    values: _Values,
) -> jax.Array:
    """Combine the device's columns of all bags; then give columns away for bags."""
    devices, columns = geometry.devices, geometry.columns
    combined = _from_rows(rows, arrays, geometry, shape, values)
    ends = itertools.accumulate(devices * bags for bags in shape.bags)
    by_device = [
        combined[end - devices * bags : end].reshape(devices, bags, columns)
        for end, bags in zip(ends, shape.bags, strict=True)
    ]
    given = jnp.concatenate(by_device, axis=1)
    got = jax.lax.all_to_all(given, AXIS, split_axis=0, concat_axis=2, tiled=True)
    return got[0, :, : geometry.dim]


_BODIES: Final[Mapping[str, Callable[..., jax.Array]]] = {
    "local": _from_rows,
    "one_hot": _by_counts,
    "gather": _from_offered,
    "all_to_all": _from_sent,
    "columns": _for_columns,
}


def _taken(buffer: jax.Array, place: jax.Array) -> jax.Array:
    """Return rows of a buffer, zeros beyond its end."""
    return buffer.at[place].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _combined(found: jax.Array, arrays: Arrays, shape: LookupShape, bags: int) -> jax.Array:
    """Return the bags of (occurrences, columns) rows, summed and divided."""
    return _divided(_summed(found, arrays, shape, bags), arrays)


def _summed(found: jax.Array, arrays: Arrays, shape: LookupShape, bags: int) -> jax.Array:
    if shape.weighted:
        found = found * arrays["weight"][:, None]
    if shape.pooling:
        return found.reshape(bags, shape.pooling, found.shape[1]).sum(axis=1)
    return jax.ops.segment_sum(found, arrays["bag"], bags, indices_are_sorted=True)


def _divided(sums: jax.Array, arrays: Arrays) -> jax.Array:
    """Return sums over their divisors, zeros where these are 0."""
    if "divisor" not in arrays:
        return sums
    divisor = arrays["divisor"][:, None]
    return jnp.where(divisor != 0, sums / jnp.where(divisor != 0, divisor, 1), 0)
