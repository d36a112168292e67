"""The lookup of one table's features as one program for the whole mesh.

The host's route (`shardcore_pjrt.routing.lookup_route`) comes as arrays of fixed shapes; nothing
else depends on ids. How rows travel is the shape's exchange:

- ``"local"``, ``"one_hot"``: every device reads its own copy of the table, by number or, where
  the table is tiny, as a product with a matrix of counts;
- ``"gather"``: every device puts its rows of the batch's distinct ones into zeros, all are added;
- ``"all_to_all"``: every device sends each other one the rows that it needs;
- ``"columns"``: every device combines its columns of all bags, then bags are exchanged for columns.

Rows are combined in float32, in the order of the occurrences. Padding reads as zeros, whatever lies
in unused rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from shardcore.backend import QuantizationConfig
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import (
    AXIS,
    as_rows,
    placed,
    rows_at,
    stored_dtype,
    table_spec,
    values_of,
)
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.programs.local_bags import local_bags
from shardcore_pjrt.programs.quantized import quantized
from shardcore_pjrt.programs.scaled_to_norm import scaled_to_norm
from shardcore_pjrt.programs.split_features import AT_ONCE
from shardcore_pjrt.routing.lookup_route import LookupShape

__all__ = ["lookup_arguments", "lookup_program"]

Arrays: TypeAlias = dict[str, jax.Array]
Find: TypeAlias = Callable[[jax.Array], jax.Array]
"""Rows in float32 by their places, zeros beyond the last."""


def _route_arrays(
    mesh: Mesh, geometry: Geometry, shape: LookupShape
) -> dict[str, jax.ShapeDtypeStruct]:
    devices, bags = geometry.devices, sum(shape.bags)
    whole = shape.exchange == "columns"  # the same arrays on every device, for all bags
    leading, spec = (1, Spec()) if whole else (devices, Spec(AXIS))
    bags *= devices if whole else 1
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"place": ((shape.occurrences,), jnp.int32)}
    if not shape.pooling:
        shapes["end"] = ((bags,), jnp.int32)
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
    """Return the arguments of a lookup program, as shapes, to compile it ahead of time.

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
    max_norm: float | None = None,
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
    max_norm : float, optional

    Returns
    -------
    callable
        ``(rows, arrays) -> activations``: the table, of its `stored_dtype`, and the arrays of
        `LookupRoute`; per feature a float32 array of shape (devices * bags, dim), bags
        cut over the mesh. Of more than `AT_ONCE` features one array, for `per_feature`.
    """
    body = _BODIES[shape.exchange]
    work = _Work(geometry, shape, np.dtype(dtype), quantization, max_norm)
    ends = list(itertools.accumulate(shape.bags))

    def lookup(rows: jax.Array, arrays: Arrays) -> tuple[jax.Array, ...]:
        mine = {name: array[0] for name, array in arrays.items()}
        activations = body(rows, mine, work)
        if len(shape.bags) > AT_ONCE:
            return (activations,)
        return tuple(
            activations[end - size : end] for end, size in zip(ends, shape.bags, strict=True)
        )

    route = _route_arrays(mesh, geometry, shape)
    arrays_out = 1 if len(shape.bags) > AT_ONCE else len(shape.bags)
    per_device = jax.shard_map(
        lookup,
        mesh=mesh,
        in_specs=(table_spec(geometry), {name: one.sharding.spec for name, one in route.items()}),
        out_specs=(Spec(AXIS),) * arrays_out,
        check_vma=False,  # the check cannot see that devices compute the same values
    )
    program: Callable[..., tuple[jax.Array, ...]] = jax.jit(
        per_device, out_shardings=(over_devices(mesh),) * arrays_out
    )
    return program


@dataclass(frozen=True)
class _Work:
    """How rows become bags."""

    geometry: Geometry
    shape: LookupShape
    dtype: np.dtype[Any]
    quantization: QuantizationConfig | None
    max_norm: float | None

    @property
    def bags(self) -> int:
        """How many a device combines."""
        whole = self.shape.exchange == "columns"
        return sum(self.shape.bags) * (self.geometry.devices if whole else 1)

    def stored(self, held: jax.Array) -> jax.Array:
        """Return rows, as held by a device, in the table's dtype."""
        return values_of(held, self.dtype)

    def looked_up(self, stored: jax.Array) -> jax.Array:
        """Return rows of the table's dtype as they are combined."""
        if self.max_norm is not None:
            columns = self.geometry if self.shape.exchange == "columns" else None
            stored = scaled_to_norm(stored, self.max_norm, columns)
        return quantized(stored, self.quantization)

    def combined(self, find: Find, columns: int, arrays: Arrays) -> jax.Array:
        """Return bags of rows, (bags, columns), summed and divided."""
        return _divided(self.summed(find, columns, arrays), arrays)

    def summed(self, find: Find, columns: int, arrays: Arrays) -> jax.Array:
        """Return bags of rows summed in the order of their occurrences."""
        found = _weighted(find(arrays["place"]), arrays.get("weight"))
        if self.shape.pooling:
            return found.reshape(self.bags, self.shape.pooling, columns).sum(axis=1)
        bag = local_bags(arrays, self.shape.occurrences, 0)
        return jax.ops.segment_sum(found, bag, self.bags, indices_are_sorted=True)


# --- what one device does: (rows, arrays of its own, work) -> (its bags, columns) -----------------


def _from_rows(rows: jax.Array, arrays: Arrays, work: _Work) -> jax.Array:
    """Combine rows of the device's own shard."""
    geometry = work.geometry

    def find(place: jax.Array) -> jax.Array:
        found = work.looked_up(work.stored(rows_at(rows, place, geometry)))
        if work.quantization is None:
            return found
        # Padding stays zeros, which may lie between two buckets.
        return jnp.where((place >= geometry.local_rows)[:, None], 0, found)

    return work.combined(find, geometry.columns, arrays)


def _by_counts(rows: jax.Array, arrays: Arrays, work: _Work) -> jax.Array:
    """Multiply the rows of a tiny table with how often each bag names them."""
    local_rows = work.geometry.local_rows
    table = work.looked_up(work.stored(as_rows(rows, work.geometry)))

    def chosen(place: jax.Array) -> jax.Array:
        return (place[:, None] == jnp.arange(local_rows)).astype(jnp.float32)

    def by_product(_: None) -> jax.Array:
        counts = work.summed(chosen, local_rows, arrays)
        sums = jnp.matmul(counts, table, precision=jax.lax.Precision.HIGHEST)
        return _divided(sums, arrays)

    def by_number(_: None) -> jax.Array:
        return _from_rows(rows, arrays, work)

    # In a product one NaN or infinity of the table would reach every bag: 0 * inf is NaN.
    return jax.lax.cond(jnp.isfinite(table).all(), by_product, by_number, None)


def _from_offered(rows: jax.Array, arrays: Arrays, work: _Work) -> jax.Array:
    """Combine rows of the batch's distinct ones, each from the only device that has it."""
    offered = work.stored(rows_at(rows, arrays["fetch"], work.geometry))
    buffer = work.looked_up(jax.lax.psum(offered, AXIS))
    return work.combined(partial(_taken, buffer), work.geometry.columns, arrays)


def _from_sent(rows: jax.Array, arrays: Arrays, work: _Work) -> jax.Array:
    """Combine rows that their owners have sent."""
    asked = rows_at(rows, arrays["fetch"].reshape(-1), work.geometry)
    sent = jax.lax.all_to_all(asked, AXIS, split_axis=0, concat_axis=0, tiled=True)
    buffer = work.looked_up(work.stored(sent))
    return work.combined(partial(_taken, buffer), work.geometry.columns, arrays)


def _for_columns(rows: jax.Array, arrays: Arrays, work: _Work) -> jax.Array:
    """Combine the device's columns of all bags; then give columns away for bags."""
    devices, columns = work.geometry.devices, work.geometry.columns
    combined = _from_rows(rows, arrays, work)
    ends = itertools.accumulate(devices * bags for bags in work.shape.bags)
    by_device = [
        combined[end - devices * bags : end].reshape(devices, bags, columns)
        for end, bags in zip(ends, work.shape.bags, strict=True)
    ]
    given = jnp.concatenate(by_device, axis=1)
    got = jax.lax.all_to_all(given, AXIS, split_axis=0, concat_axis=2, tiled=True)
    return got[0, :, : work.geometry.dim]


_BODIES: Final[Mapping[str, Callable[[jax.Array, Arrays, _Work], jax.Array]]] = {
    "local": _from_rows,
    "one_hot": _by_counts,
    "gather": _from_offered,
    "all_to_all": _from_sent,
    "columns": _for_columns,
}


def _taken(buffer: jax.Array, place: jax.Array) -> jax.Array:
    """Return rows of a buffer, zeros beyond its end."""
    return buffer.at[place].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _weighted(found: jax.Array, weight: jax.Array | None) -> jax.Array:
    return found if weight is None else found * weight[:, None]


def _divided(sums: jax.Array, arrays: Arrays) -> jax.Array:
    """Return sums over their divisors, zeros where these are 0."""
    if "divisor" not in arrays:
        return sums
    divisor = arrays["divisor"][:, None]
    return jnp.where(divisor != 0, sums / jnp.where(divisor != 0, divisor, 1), 0)
