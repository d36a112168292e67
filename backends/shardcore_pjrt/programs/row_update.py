"""The optimizer's pure form over lines of rows and slots, on one device.

Where a weight's result depends on that weight alone, lines are updated as they lie, and lanes of
rows that are not touched keep their bits. Else lines are unpacked to rows, updated in float32 and
packed again. Narrow rows, unpacked, take many times their memory on a TPU, hence in blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shardcore.optimizer import Optimizer
from shardcore.store import rounds_stochastically
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import (
    AXIS,
    as_lines,
    as_rows,
    bits_of,
    first_column,
    in_lanes,
    own_columns,
    values_of,
)
from shardcore_pjrt.programs.blocks import cut, in_blocks
from shardcore_pjrt.programs.device_rounding import stochastic_round
from shardcore_pjrt.programs.summed_gradients import Received

__all__ = ["Batch", "RowUpdate"]

Held: TypeAlias = tuple[jax.Array, dict[str, jax.Array]]
"""Lines of the table and of each slot, as held: (n, line_width), or (n * rows_per_line,) of kind
"row"."""

_BLOCK_ROWS: Final = 16384
"""Rows unpacked at a time: 8 MiB of each array where a row takes 128 lanes."""
_NONE: Final = 2**31 - 1
"""An occurrence that does not exist."""


class Batch:
    """The input of an update, for the n lines that are held.

    Attributes
    ----------
    received : Received
    per_row : dict of str to array of int32, shape (n * rows_per_line,)
        ``row_ids``: the row's number in the whole table, -1 where it stays as it is; for
        `RowUpdate.keeps_lines` perhaps as (n, line_width), in each of its lanes. Where gradients
        are not accumulated, ``first`` and ``count`` of its occurrences.
    hyper : tuple of float32 scalars
    step : int32 scalar
    seed : array of uint32, shape (2,)
    waves : int32 scalar, or None
        The largest ``count``, where gradients are not accumulated.
    go : bool scalar
        False: nothing changes.
    """

    def __init__(
        self,
        received: Received,
        per_row: dict[str, jax.Array],
        hyper: tuple[jax.Array, ...],
        step: jax.Array,
        seed: jax.Array,
        waves: jax.Array | None,
        go: jax.Array,
    ) -> None:
        self.received = received
        self.per_row = per_row
        self.hyper = hyper
        self.step = step
        self.seed = seed
        self.waves = waves
        self.go = go

    def touched_lanes(self, geometry: Geometry) -> jax.Array:
        """Return which lanes hold a weight that a batch names, bool (n, line_width)."""
        touched = self.per_row["row_ids"] >= 0
        if touched.ndim == 1:
            touched = in_lanes(touched, geometry)
        place = jnp.arange(geometry.line_width, dtype=jnp.int32) % geometry.width
        column = first_column(geometry) + place
        return touched & (place < geometry.columns) & (column < geometry.dim)


class RowUpdate:
    """How rows of one table become new ones.

    Parameters
    ----------
    geometry : Geometry
    optimizer : Optimizer
    dtype : numpy.dtype
        The table's.

    Attributes
    ----------
    keeps_lines : bool
        Whether lines are updated as they lie.
    """

    def __init__(self, geometry: Geometry, optimizer: Optimizer, dtype: np.dtype[Any]) -> None:
        self._geometry = geometry
        self._optimizer = optimizer
        self._dtype = dtype
        self._slots = {slot.name: slot for slot in optimizer.slots}
        self._cut = geometry.devices > 1 and geometry.placement == "column"
        self.keeps_lines = optimizer.accumulate and _is_per_weight(optimizer, dtype)

    def run(self, held: Held, batch: Batch, lines: jax.Array | None = None) -> Held:
        """Return lines of the table and its slots; rows that are not touched keep their bits.

        Parameters
        ----------
        held : tuple of (lines, dict of lines)
            As stored.
        batch : Batch
        lines : array of int32, shape (n,), optional
            Where the lines to update are among those held, distinct and ascending; beyond the last
            one is padding. None: they are those held, in their order.
        """
        if lines is not None:
            touched = _Lines(0, lines.shape[0], self._geometry.rows_per_line, lines)
            new = self.run(jax.tree.map(touched.read, held), batch)
            written: Held = jax.tree.map(partial(touched.written, go=batch.go), held, new)
            return written
        if self.keeps_lines:
            return self._updated_lines(held, batch)
        part = self._geometry.rows_per_line
        count = held[0].shape[0]
        size = count if part == 1 else min(count, max(1, _BLOCK_ROWS // part))

        def update(start: Any, old: Any, held: Held) -> Held:
            per_row = {
                name: cut(array, start * part, size * part) for name, array in batch.per_row.items()
            }
            fresh = jnp.arange(size * part, dtype=jnp.int32) >= old * part
            per_row["row_ids"] = jnp.where(fresh, per_row["row_ids"], -1)
            own = _Lines(start, size, part, None)
            # Everything is read before anything is written, so that all is updated where it lies.
            new = self._block(jax.tree.map(own.read, held), own, per_row, batch)
            moved: Held = jax.tree.map(partial(own.written, go=batch.go), held, new)
            return moved

        return in_blocks(count, size, update, held)

    def _block(
        self, held: Held, lines: _Lines, per_row: dict[str, jax.Array], batch: Batch
    ) -> Held:
        row_ids = per_row["row_ids"]
        stored_rows = as_rows(held[0], self._geometry)
        stored = {name: self._unpacked(name, slot) for name, slot in held[1].items()}
        rows = self._whole(stored_rows, self._dtype)
        slots = {name: self._widened(name, slot) for name, slot in stored.items()}
        if batch.waves is None:
            received = batch.received.of_lines(lines.start, lines.size)
            gradient = received if self._cut else as_rows(received, self._geometry)
            new_rows, new_slots = self._updated(gradient, rows, slots, row_ids, batch)
        else:
            new_rows, new_slots = self._one_by_one(rows, slots, per_row, batch)
        touched = (row_ids >= 0)[:, None]
        narrow = bits_of(self._narrowed(new_rows, row_ids, batch.seed))
        packed = {
            name: self._packed(name, jnp.where(touched, self._stored(name, new_slots[name]), slot))
            for name, slot in stored.items()
        }
        new = as_lines(jnp.where(touched, narrow, stored_rows), self._geometry), packed
        # Here too where lines are written back: all rows may be held, and padding is to stay.
        kept: Held = jax.tree.map(lambda ours, before: jnp.where(batch.go, ours, before), new, held)
        return kept

    def _updated_lines(self, held: Held, batch: Batch) -> Held:
        """Update lines as they lie, but for padding and the lanes of rows that are not touched."""
        moves = batch.go & batch.touched_lanes(self._geometry)
        dtypes = {name: slot.storage_dtype(self._dtype) for name, slot in self._slots.items()}
        rows = values_of(held[0], self._dtype).astype(jnp.float32)
        slots = {
            name: values_of(slot, dtypes[name]).astype(jnp.float32)
            for name, slot in held[1].items()
        }
        sums = batch.received.of_lines(0, len(rows))
        numbers = jnp.arange(len(rows), dtype=jnp.int32)  # of lines: any will do
        new_rows, new_slots = self._updated(sums, rows, slots, numbers, batch)
        new = (
            bits_of(new_rows.astype(self._dtype)),
            {name: bits_of(new_slots[name].astype(dtypes[name])) for name in held[1]},
        )
        kept: Held = jax.tree.map(lambda ours, before: jnp.where(moves, ours, before), new, held)
        return kept

    # --- slots: stored as bits, worked on in float32 ---------------------------------------------

    def _unpacked(self, name: str, slot: jax.Array) -> jax.Array:
        element = self._slots[name].kind == "element"
        return as_rows(slot, self._geometry) if element else slot[:, None]

    def _packed(self, name: str, slot: jax.Array) -> jax.Array:
        element = self._slots[name].kind == "element"
        return as_lines(slot, self._geometry) if element else slot[:, 0]

    def _widened(self, name: str, slot: jax.Array) -> jax.Array:
        dtype = self._slots[name].storage_dtype(self._dtype)
        if self._slots[name].kind == "element":
            return self._whole(slot, dtype)
        return values_of(slot, dtype).astype(jnp.float32)

    def _stored(self, name: str, slot: jax.Array) -> jax.Array:
        """Return a slot's new values, of the device's columns, as they are stored."""
        element = self._slots[name].kind == "element"
        own = own_columns(slot, self._geometry) if element else slot
        return bits_of(own.astype(self._slots[name].storage_dtype(self._dtype)))

    # --- the optimizer ---------------------------------------------------------------------------

    def _updated(
        self,
        gradient: jax.Array,
        rows: jax.Array,
        slots: Mapping[str, jax.Array],
        row_ids: jax.Array,
        batch: Batch,
    ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
        update = self._optimizer.update
        return update(gradient, rows, slots, batch.hyper, batch.step, row_ids)

    def _one_by_one(
        self,
        rows: jax.Array,
        slots: Mapping[str, jax.Array],
        per_row: dict[str, jax.Array],
        batch: Batch,
    ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
        """Update each row once per occurrence: all that have a first one, then a second, ..."""
        first, count, row_ids = per_row["first"], per_row["count"], per_row["row_ids"]

        def wave(turn: jax.Array, held: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            chosen = turn < count
            gradient = batch.received.of_occurrences(jnp.where(chosen, first + turn, _NONE))
            new = self._updated(gradient, *held, row_ids, batch)
            moved: tuple[jax.Array, Any] = jax.tree.map(
                lambda ours, before: jnp.where(chosen[:, None], ours, before), new, held
            )
            return moved

        updated: tuple[jax.Array, Any] = jax.lax.fori_loop(0, batch.waves, wave, (rows, slots))
        return updated

    # --- whole rows, and the device's columns of them --------------------------------------------

    def _whole(self, rows: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
        """Return stored rows in float32, with the columns of all devices: norms need them."""
        if self._cut:
            rows = jax.lax.all_gather(rows, AXIS, axis=1, tiled=True)[:, : self._geometry.dim]
        return values_of(rows, dtype).astype(jnp.float32)

    def _narrowed(self, rows: jax.Array, row_ids: jax.Array, seed: jax.Array) -> jax.Array:
        """Return the device's columns in the dtype of the table, rounded as the optimizer says."""
        own = own_columns(rows, self._geometry)
        if not rounds_stochastically(self._optimizer, self._dtype):
            return own.astype(self._dtype)
        columns = first_column(self._geometry) + jnp.arange(own.shape[1], dtype=jnp.int32)
        return stochastic_round(own, self._dtype, row_ids, columns, seed)


def _is_per_weight(optimizer: Optimizer, dtype: np.dtype[Any]) -> bool:
    """Return whether each weight is updated for itself; chance is by row and column."""
    return (
        optimizer.elementwise
        and all(slot.kind == "element" for slot in optimizer.slots)
        and not rounds_stochastically(optimizer, dtype)
    )


@dataclass(frozen=True)
class _Lines:
    """Some lines of a table and its slots."""

    start: Any
    """The first one's place among those that are updated."""
    size: int
    rows_per_line: int
    numbers: jax.Array | None
    """Where they are, distinct and ascending; None: from `start` on."""

    def read(self, array: jax.Array) -> jax.Array:
        """Return the lines, or the values of their rows; zeros where there are none."""
        if self.numbers is None:
            part = self._of_each(array)
            return cut(array, self.start * part, self.size * part)
        return array.at[self._places(array)].get(
            mode="fill",
            fill_value=0,
            indices_are_sorted=True,
            unique_indices=True,
            wrap_negative_indices=False,
        )

    def written(self, array: jax.Array, new: jax.Array, go: jax.Array) -> jax.Array:
        """Return the array with the lines, or values, replaced; as it is, unless `go`."""
        if self.numbers is None:  # unless `go`, the new values are the old ones
            if new.shape == array.shape:
                return new
            start = self.start * self._of_each(array)
            return jax.lax.dynamic_update_slice_in_dim(array, new, start, 0)
        places = self._places(array)
        beyond = array.shape[0] + jnp.arange(places.size, dtype=jnp.int32)
        return array.at[jnp.where(go, places, beyond)].set(
            new,
            mode="drop",
            indices_are_sorted=True,
            unique_indices=True,
            wrap_negative_indices=False,
        )

    def _of_each(self, array: jax.Array) -> int:
        return 1 if array.ndim > 1 else self.rows_per_line

    def _places(self, array: jax.Array) -> jax.Array:
        assert self.numbers is not None
        part = jnp.arange(self._of_each(array), dtype=jnp.int32)
        return (self.numbers[:, None] * part.size + part).reshape(-1)
