"""Gradients of bags to gradients of rows, on the device that holds the rows.

All gradients go to every device, or, with the exchange ``"all_to_all"``, sums over a device's own
bags go to the owners; there they are summed per row, occurrences in the order of the batch.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import AXIS, own_columns
from shardcore_pjrt.programs.blocks import cut
from shardcore_pjrt.routing.update_route import UpdateShape

__all__ = ["Received"]

Arrays: TypeAlias = dict[str, jax.Array]


class Received:
    """The gradients that the rows of one device receive.

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
    whole_rows : bool
        Whether sums are of all columns where the devices have cut them: norms need those.
    """

    def __init__(
        self,
        gradients: tuple[jax.Array, ...],
        arrays: Arrays,
        geometry: Geometry,
        shape: UpdateShape,
        lines: int,
        whole_rows: bool,
    ) -> None:
        own = jnp.concatenate([each.astype(jnp.float32) for each in gradients])
        if shape.scaled and shape.exchange != "columns":
            own = own * arrays["scale"][:, None]
        part = geometry.rows_per_line
        self._lines = lines
        self._whole: jax.Array | None = None
        if shape.exchange == "all_to_all":
            sums = _Occurrences(own, arrays, None).summed(geometry.devices * shape.capacity)
            found = jax.lax.all_to_all(sums, AXIS, split_axis=0, concat_axis=0, tiled=True)
            received = arrays["received"]
            self._whole = jax.ops.segment_sum(
                _in_lines(found, received, geometry), received // part, lines
            )
            return
        bags = _of_all_devices(own, geometry, shape)
        if shape.scaled and shape.exchange == "columns":
            bags = bags * arrays["scale"][:, None]
        cut_columns = shape.exchange == "columns" and geometry.devices > 1
        if not whole_rows:
            bags = own_columns(bags, geometry)
        by_row = cut_columns and whole_rows
        self._occurrences = _Occurrences(bags, arrays, None if by_row else geometry)
        if shape.accumulate:
            self._whole = self._occurrences.summed(lines * (part if by_row else 1))

    def of_lines(self, start: Any, size: int) -> jax.Array:
        """Return the sums for `size` lines from `start` on.

        Returns
        -------
        array of float32
            (size, line_width), in the places of their rows; of whole rows whose columns are cut,
            (size * rows_per_line, dim).
        """
        assert self._whole is not None, "gradients that are not summed are asked for by number"
        if size == self._lines:
            return self._whole
        scale = self._whole.shape[0] // self._lines
        return cut(self._whole, start * scale, size * scale)

    def of_occurrences(self, numbers: jax.Array) -> jax.Array:
        """Return the gradients of occurrences, (n, dim), zeros where the number is none."""
        return self._occurrences.numbered(numbers)


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


class _Occurrences:
    """The occurrences of a batch, in the order of the sub-rows that they are summed for.

    Parameters
    ----------
    bags : array of float32, (bags, dim)
        Gradients that ``source`` names.
    arrays : dict of str to array
        ``source``, ``slot`` and perhaps ``gain``.
    geometry : Geometry, optional
        Sums are by line; None: by sub-row.
    """

    def __init__(self, bags: jax.Array, arrays: Arrays, geometry: Geometry | None) -> None:
        if not bags.shape[0]:  # a batch of no bags has occurrences all the same, of padding
            bags = jnp.zeros((1, bags.shape[1]), bags.dtype)
        self._slot = arrays["slot"]
        self._geometry = geometry
        found = _taken(bags, arrays["source"])
        self._found = found if "gain" not in arrays else found * arrays["gain"][:, None]

    def summed(self, size: int) -> jax.Array:
        """Return the sums of all lines, or sub-rows; padding has a slot beyond them."""
        if self._geometry is None:
            wide, target = self._found, self._slot
        else:
            wide = _in_lines(self._found, self._slot, self._geometry)
            target = self._slot // self._geometry.rows_per_line
        return jax.ops.segment_sum(wide, target, size, indices_are_sorted=True)

    def numbered(self, numbers: jax.Array) -> jax.Array:
        """Return the gradients of occurrences by number, zeros beyond the last."""
        return _taken(self._found, numbers)


def _taken(array: jax.Array, numbers: jax.Array) -> jax.Array:
    return array.at[numbers].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _in_lines(found: jax.Array, slot: jax.Array, geometry: Geometry) -> jax.Array:
    """Return rows as wide as lines, each in the place that it has in its line."""
    part = geometry.rows_per_line
    wide = jnp.pad(found, ((0, 0), (0, geometry.width - geometry.columns)))
    if part == 1:
        return wide
    # Sums of narrow rows would take as much memory as sums of lines, for each row.
    places = jnp.arange(geometry.line_width, dtype=jnp.int32) // geometry.width
    return jnp.where((slot % part)[:, None] == places, jnp.tile(wide, (1, part)), 0)
