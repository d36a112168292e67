"""Rows and slots of a stack of tables on the devices, read and written for the host.

All arrays of a stack have one shape. The host takes whole lines of 128 columns of a device's part,
each once, and finds rows in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from shardcore.backend import TableSpec
from shardcore.initializers import fill
from shardcore.optimizer import initial_slots
from shardcore_pjrt.mesh.placing import fetched, over_devices, put
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.routing.capacity import capacity
from shardcore_pjrt.sparsecore.programs import filled_program, read_program, write_program
from shardcore_pjrt.sparsecore.stack_geometry import LANES
from shardcore_pjrt.sparsecore.stacked_tables import StackedTables
from shardcore_pjrt.stacks import initial_constants

__all__ = ["Stack"]

PIECE_BYTES: Final = 1 << 23
"""Rows travel between host and devices in pieces of about this size, never as a whole table."""


class _Lines(NamedTuple):
    """The lines that rows lie in: the lists of the devices, and where each element of a row is."""

    lists: NDArray[np.int32]
    place: NDArray[np.int64]
    column: NDArray[np.int64]


class Stack:
    """Rows and slots of tables that are alike, over the cores of all devices.

    Parameters
    ----------
    mesh : Mesh
        Of one axis, "x".
    tables : StackedTables
    programs : Programs

    Attributes
    ----------
    arrays : dict of slot name, None for the rows, -> jax.Array
    """

    def __init__(self, mesh: Mesh, tables: StackedTables, programs: Programs) -> None:
        self.mesh = mesh
        self.geometry, self._specs, self.rule = tables
        self._programs = programs
        self.position = {spec.name: at for at, spec in enumerate(self._specs)}
        self.arrays: dict[str | None, jax.Array] = {}
        self._initialise()

    @property
    def minibatched(self) -> bool:
        """Whether batches for it may come in minibatches."""
        return self.rule is None or self.rule.minibatched

    def dim_of(self, table: int) -> int:
        """Return the columns of the table at a place in the stack."""
        return self._specs[table].dim

    def replace(self, arrays: Sequence[jax.Array]) -> None:
        """Keep the arrays that an update returned, rows first."""
        self.arrays = dict(zip(self.arrays, arrays, strict=True))

    # --- initial values --------------------------------------------------------------------------

    def _initialise(self) -> None:
        """Fill arrays with constants on the devices; write initial values that differ from them."""
        constants = [initial_constants(spec) for spec in self._specs]
        filled: dict[str | None, float | None] = {}
        for name in constants[0]:
            values = {own[name] for own in constants}
            filled[name] = values.pop() if len(values) == 1 else None
            # Padding of slots is divided by: it must not be 0.
            start = filled[name] if filled[name] is not None else float(name is not None)
            self.arrays[name] = self._programs.get(
                filled_program, self.mesh, self.geometry, start
            )()
        for spec in self._specs:
            self._write_initial(spec, [name for name, value in filled.items() if value is None])

    def _write_initial(self, spec: TableSpec, varied: Sequence[str | None]) -> None:
        """Write initial values of a table: some rows of every device at a time."""
        if not varied:
            return
        layout = self.geometry.layouts[self.position[spec.name]]
        per_shard = max(1, self._rows_of_a_piece(spec) // layout.num_shards)
        for start in range(0, int(layout.shard_sizes.max()), per_shard):
            numbers = np.concatenate(
                [
                    layout.global_of(shard, np.arange(start, max(start, min(start + per_shard, n))))
                    for shard, n in enumerate(layout.shard_sizes.tolist())
                ]
            )
            rows = np.empty((numbers.size, spec.dim), spec.dtype)
            fill(rows, spec.initializer, numbers, spec.seed)
            initial: dict[str | None, NDArray[Any]] = {None: rows}
            slots = initial_slots(spec.optimizer, rows, numbers, spec.seed)
            for slot_name, slot in slots.items():
                initial[slot_name] = slot
            for name in varied:
                self.scatter(spec.name, name, numbers, initial[name])

    # --- reading and writing ---------------------------------------------------------------------

    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows of the weights (None) or a slot, in request order."""
        spec = self._specs[self.position[table]]
        out = np.empty((rows.size, spec.dim), np.float32)
        program = self._programs.get(read_program, self.mesh, self.geometry)
        for piece in self._pieces(spec, rows):
            lines = self._lines(table, rows[piece])
            lists = put({"lines": lines.lists}, {"lines": over_devices(self.mesh)})["lines"]
            out[piece] = fetched(program(self.arrays[slot], lists))[lines.place, lines.column]
        return out

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows of the weights (None) or a slot."""
        spec = self._specs[self.position[table]]
        program = self._programs.get(write_program, self.mesh, self.geometry)
        for piece in self._pieces(spec, rows):
            lines = self._lines(table, rows[piece])
            given = np.zeros((lines.lists.size, LANES), np.float32)
            chosen = np.zeros(given.shape, np.bool_)
            given[lines.place, lines.column] = values[piece]
            chosen[lines.place, lines.column] = True
            shape = (*lines.lists.shape, LANES)
            arrays = {
                "lines": lines.lists,
                "values": given.reshape(shape),
                "chosen": chosen.reshape(shape),
            }
            placed = put(arrays, dict.fromkeys(arrays, over_devices(self.mesh)))
            self.arrays[slot] = program(self.arrays[slot], *(placed[name] for name in arrays))
            # A transfer holds its host arrays until it is done: one piece at a time is under way.
            self.arrays[slot].block_until_ready()

    def _lines(self, table: str, rows: NDArray[np.int64]) -> _Lines:
        geometry, at = self.geometry, self.position[table]
        device, row = geometry.on_device(*geometry.place(at, rows))
        elements = row[:, None] * geometry.columns + np.arange(self._specs[at].dim)
        line, column = np.divmod(elements, LANES)
        numbered, of_each = np.unique(
            device[:, None] * geometry.lines_per_device + line, return_inverse=True
        )
        of_device, number = np.divmod(numbered, geometry.lines_per_device)
        counts = np.bincount(of_device, minlength=geometry.devices)
        room = capacity(int(counts.max(initial=0)))
        # Padding is distinct lines past the end.
        lists = np.broadcast_to(
            geometry.lines_per_device + np.arange(room, dtype=np.int32), (geometry.devices, room)
        ).copy()
        place = np.arange(numbered.size) - (np.cumsum(counts) - counts)[of_device]
        lists[of_device, place] = number
        return _Lines(lists, (of_device * room + place)[of_each].reshape(elements.shape), column)

    def _rows_of_a_piece(self, spec: TableSpec) -> int:
        # A row that is alone in its lines takes them whole.
        lines = 1 + self.geometry.columns // LANES
        return max(1, PIECE_BYTES // (4 * LANES * lines))

    def _pieces(self, spec: TableSpec, rows: NDArray[np.int64]) -> Iterator[slice]:
        """Yield parts of a list of rows, strided, so that rows beside each other spread."""
        if not rows.size:
            return
        layout = self.geometry.layouts[self.position[spec.name]]
        padded = layout.num_shards * int(np.bincount(layout.locate(rows)[0]).max())
        pieces = min(rows.size, -(-padded // self._rows_of_a_piece(spec)))
        for start in range(pieces):
            yield slice(start, None, pieces)
