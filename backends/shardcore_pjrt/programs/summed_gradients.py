"""Gradients of bags to gradients of rows, on the device that holds the rows.

All gradients go to every device, or, with the exchange ``"all_to_all"``, sums over a device's own
bags go to the owners; there they are summed per row, occurrences in the order of the batch.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import AXIS
from shardcore_pjrt.programs.blocks import cut, moved_by_value
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
    block : int
        Lines whose sums are asked for at a time: `blocks.in_blocks`.
    at_a_time : int, optional
        Occurrences that are summed in one operation; sums are then made where they are asked for,
        unless they come from other devices. None: all occurrences, for all lines.
    """

    def __init__(
        self,
        gradients: tuple[jax.Array, ...],
        arrays: Arrays,
        geometry: Geometry,
        shape: UpdateShape,
        lines: int,
        block: int,
        at_a_time: int | None,
    ) -> None:
        own = jnp.concatenate([each.astype(jnp.float32) for each in gradients])
        if shape.scaled and shape.exchange != "columns":
            own = own * arrays["scale"][:, None]
        part = geometry.rows_per_line
        self._lines = lines
        self._whole: jax.Array | None = None
        if shape.exchange == "all_to_all":
            send = geometry.devices * shape.capacity
            occurrences = _Occurrences(own, arrays, None, at_a_time)
            sums = occurrences.summed(0, send, occurrences.borders(send, send))
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
        self._occurrences = _Occurrences(bags, arrays, None if cut_columns else geometry, at_a_time)
        self._unit = part if cut_columns else 1
        if not shape.accumulate:
            return
        if at_a_time is None:
            self._whole = self._occurrences.summed(0, lines * self._unit, None)
        else:
            self._borders = self._occurrences.borders(lines * self._unit, block * self._unit)

    def of_lines(self, start: Any, size: int) -> jax.Array:
        """Return the sums for `size` lines from `start` on.

        Returns
        -------
        array of float32
            (size, line_width), in the places of their rows; with the columns cut,
            (size * rows_per_line, dim), since norms are of whole rows.
        """
        if self._whole is None:
            unit = self._unit
            return self._occurrences.summed(start * unit, size * unit, self._borders)
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
    at_a_time : int, optional
    """

    def __init__(
        self, bags: jax.Array, arrays: Arrays, geometry: Geometry | None, at_a_time: int | None
    ) -> None:
        if not bags.shape[0]:  # a batch of no bags has occurrences all the same, of padding
            bags = jnp.zeros((1, bags.shape[1]), bags.dtype)
        self._bags = bags
        self._source, self._slot = arrays["source"], arrays["slot"]
        self._gain = arrays.get("gain")
        self._geometry = geometry
        self._part = 1 if geometry is None else geometry.rows_per_line
        self._at_a_time = at_a_time
        self._found: jax.Array | None = None
        if at_a_time is None:
            self._found = self._gradients(self._source, self._gain)

    def borders(self, count: int, size: int) -> jax.Array:
        """Return where the occurrences of each block of lines, or sub-rows, start; and all end."""
        starts = np.minimum(np.arange(-(-count // size) + 1, dtype=np.int64) * size, count)
        # Padding has a slot beyond all.
        ends: jax.Array = jnp.searchsorted(self._slot, (starts * self._part).astype(np.int32))
        return ends.astype(jnp.int32)

    def summed(self, start: Any, size: int, borders: jax.Array | None) -> jax.Array:
        """Return the sums of a block of `size` lines, or sub-rows, from `start` on.

        Those of the block before, which the last block may have too, are left out.
        """
        if self._found is not None:
            wide = self._placed(self._found, self._slot)
            target = self._slot // self._part
            return jax.ops.segment_sum(wide, target, size, indices_are_sorted=True)
        assert borders is not None, "sums are made in parts"
        assert self._at_a_time is not None
        every = self._slot.size
        block = min(self._at_a_time, every)
        at = -(-start // size)
        first, end = borders[at], borders[at + 1]

        def add(turn: jax.Array, sums: jax.Array) -> jax.Array:
            begin = first + turn * block
            shift = jnp.minimum(begin, every - block)
            number = shift + jnp.arange(block, dtype=jnp.int32)
            slot = cut(self._slot, shift, block)
            gain = None if self._gain is None else cut(self._gain, shift, block)
            found = self._gradients(cut(self._source, shift, block), gain)
            target = jnp.where(number < end, slot // self._part - start, size)
            return sums.at[jnp.where(number < begin, -1, target)].add(
                moved_by_value(self._placed(found, slot)),
                mode="drop",
                indices_are_sorted=True,
                wrap_negative_indices=False,
            )

        width = self._bags.shape[1] if self._geometry is None else self._geometry.line_width
        zeros = jnp.zeros((size, width), jnp.float32)
        summed: jax.Array = jax.lax.fori_loop(0, -(-(end - first) // block), add, zeros)
        return summed

    def numbered(self, numbers: jax.Array) -> jax.Array:
        """Return the gradients of occurrences by number, zeros beyond the last."""
        if self._found is not None:
            return _taken(self._found, numbers, 0)
        gain = None if self._gain is None else _taken(self._gain, numbers, 0)
        return self._gradients(_taken(self._source, numbers, self._bags.shape[0]), gain)

    def _gradients(self, source: jax.Array, gain: jax.Array | None) -> jax.Array:
        """Return the gradients of occurrences, zeros for padding."""
        found = _taken(self._bags, source, 0)
        return found if gain is None else found * gain[:, None]

    def _placed(self, found: jax.Array, slot: jax.Array) -> jax.Array:
        return found if self._geometry is None else _in_lines(found, slot, self._geometry)


def _taken(array: jax.Array, numbers: jax.Array, beyond: int) -> jax.Array:
    return array.at[numbers].get(mode="fill", fill_value=beyond, wrap_negative_indices=False)


def _in_lines(found: jax.Array, slot: jax.Array, geometry: Geometry) -> jax.Array:
    """Return rows as wide as lines, each in the place that it has in its line."""
    part = geometry.rows_per_line
    wide = jnp.pad(found, ((0, 0), (0, geometry.width - geometry.columns)))
    if part == 1:
        return wide
    # Sums of narrow rows would take as much memory as sums of lines, for each row.
    places = jnp.arange(geometry.line_width, dtype=jnp.int32) // geometry.width
    return jnp.where((slot % part)[:, None] == places, jnp.tile(wide, (1, part)), 0)
