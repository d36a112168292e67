"""Gradients of bags to gradients of rows, on the device that holds the rows.

All gradients go to every device, or, with the exchange ``"all_to_all"``, sums over a device's own
bags go to the owners; there they are summed per row, occurrences in the order of the batch.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import jax
import jax.numpy as jnp

from shardcore_pjrt.geometry import Geometry
from shardcore_pjrt.placed_arrays import AXIS
from shardcore_pjrt.update_route import UpdateShape

__all__ = ["received_gradients"]

Arrays: TypeAlias = dict[str, jax.Array]


def received_gradients(
    gradients: tuple[jax.Array, ...],
    arrays: Arrays,
    geometry: Geometry,
    shape: UpdateShape,
    lines: int,
) -> jax.Array:
    """Return what the rows of one device receive.

    Parameters
    ----------
    gradients : tuple of arrays of float, (bags, dim)
        Of the device's own bags, per active feature.
    arrays : dict of str to array
        Of `UpdateRoute`, the device's own.
    geometry : Geometry
    shape : UpdateShape
    lines : int
        Those whose rows are summed for.

    Returns
    -------
    array of float32
        Sums: (lines, line_width), in the places of their rows; with the columns cut,
        (lines * rows_per_line, dim), since norms are of whole rows. Where gradients are not
        accumulated: (occurrences, dim).
    """
    own = jnp.concatenate([each.astype(jnp.float32) for each in gradients])
    if shape.scaled and shape.exchange != "columns":
        own = own * arrays["scale"][:, None]
    if shape.exchange == "all_to_all":
        send = geometry.devices * shape.capacity
        found = _by_occurrence(own, arrays, shape)
        sums = jax.ops.segment_sum(found, arrays["slot"], send, indices_are_sorted=True)
        found = jax.lax.all_to_all(sums, AXIS, split_axis=0, concat_axis=0, tiled=True)
        return _in_lines(found, arrays["received"], geometry, lines, in_order=False)
    bags = _of_all_devices(own, geometry, shape)
    if shape.scaled and shape.exchange == "columns":
        bags = bags * arrays["scale"][:, None]
    found = _by_occurrence(bags, arrays, shape)
    if not shape.accumulate:
        return found
    if shape.exchange == "columns" and geometry.devices > 1:
        rows = lines * geometry.rows_per_line
        return jax.ops.segment_sum(found, arrays["slot"], rows, indices_are_sorted=True)
    return _in_lines(found, arrays["slot"], geometry, lines, in_order=True)


def _of_all_devices(own: jax.Array, geometry: Geometry, shape: UpdateShape) -> jax.Array:
    """Return the gradients of all bags, device after device; "columns": feature after feature."""
    if geometry.devices == 1:
        return own
    gathered = jax.lax.all_gather(own, AXIS, tiled=True)
    if shape.exchange != "columns":
        return gathered
    by_device = gathered.reshape(geometry.devices, *own.shape)
    ends = itertools.accumulate(shape.bags)
    return jnp.concatenate(
        [
            by_device[:, end - bags : end].reshape(-1, own.shape[1])
            for end, bags in zip(ends, shape.bags, strict=True)
        ]
    )


def _by_occurrence(bags: jax.Array, arrays: Arrays, shape: UpdateShape) -> jax.Array:
    """Return the gradient of each occurrence, zeros for padding."""
    source = arrays["source"]
    if not bags.shape[0]:  # a batch of no bags has occurrences all the same, of padding
        bags = jnp.zeros((1, bags.shape[1]), bags.dtype)
    found = bags.at[source].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return found * arrays["gain"][:, None] if shape.gained else found


def _in_lines(
    found: jax.Array, slot: jax.Array, geometry: Geometry, lines: int, *, in_order: bool
) -> jax.Array:
    """Return rows summed by line, each in the place of its row."""
    part = geometry.rows_per_line
    wide = jnp.pad(found, ((0, 0), (0, geometry.width - geometry.columns)))
    if part > 1:  # sums of narrow rows would take as much memory as sums of lines, for each row
        places = jnp.arange(geometry.line_width, dtype=jnp.int32) // geometry.width
        wide = jnp.where((slot % part)[:, None] == places, jnp.tile(wide, (1, part)), 0)
    return jax.ops.segment_sum(wide, slot // part, lines, indices_are_sorted=in_order)
