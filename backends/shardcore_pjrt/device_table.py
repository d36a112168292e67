"""One table on the devices of a mesh: rows and slots, read and written for the host.

The arrays are held here and nowhere else, because every update gives the old ones up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from shardcore.backend import TableSpec
from shardcore.initializers import Constant, Zeros, fill
from shardcore.optimizer import constant_of, initial_slots
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import stored_dtype
from shardcore_pjrt.mesh.placing import fetched, over_devices, put, spans_processes, whole
from shardcore_pjrt.mesh.processes import processes_of
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.row_access import (
    Kind,
    filled_program,
    read_program,
    shard_write_program,
    write_program,
)
from shardcore_pjrt.routing.capacity import capacity

__all__ = ["DeviceTable"]

PIECE_BYTES: Final = 1 << 23
"""Rows travel between host and devices in pieces of about this size, never as a whole table."""


class DeviceTable:
    """Rows and slots of a table, cut over the devices of a mesh.

    Parameters
    ----------
    mesh : Mesh
        Of one axis, "x".
    geometry : Geometry
    spec : TableSpec
    programs : Programs

    Attributes
    ----------
    arrays : dict of slot name, None for the weights, -> jax.Array
    """

    def __init__(self, mesh: Mesh, geometry: Geometry, spec: TableSpec, programs: Programs) -> None:
        self.mesh = mesh
        self.geometry = geometry
        self.spec = spec
        self._programs = programs
        self._kinds: dict[str | None, Kind] = {None: "element"}
        self._dtypes: dict[str | None, np.dtype[Any]] = {None: spec.dtype}
        for slot in spec.slots:
            self._kinds[slot.name] = slot.kind
            self._dtypes[slot.name] = slot.storage_dtype(spec.dtype)
        self.arrays: dict[str | None, jax.Array] = self._filled()
        self._initialise()

    @property
    def rows(self) -> jax.Array:
        """The weights."""
        return self.arrays[None]

    @property
    def slots(self) -> dict[str, jax.Array]:
        """The slots, by name."""
        return {name: array for name, array in self.arrays.items() if name is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of rows and slots on all devices of this process together."""
        return sum(
            shard.data.nbytes
            for array in self.arrays.values()
            for shard in array.addressable_shards
        )

    def replace(self, rows: jax.Array, slots: dict[str, jax.Array]) -> None:
        """Keep the arrays that an update returned."""
        self.arrays = {None: rows}
        for name, slot in slots.items():
            self.arrays[name] = slot

    # --- initial values --------------------------------------------------------------------------

    def _constants(self) -> dict[str | None, float | None]:
        """Return the constant that the weights and each slot start from; None: elements differ."""
        spec = self.spec
        constants: dict[str | None, float | None] = {None: None}
        if type(spec.initializer) is Zeros:
            constants[None] = 0.0
        elif type(spec.initializer) is Constant:
            constants[None] = float(spec.initializer.value)
        if spec.optimizer is not None:
            for slot in spec.optimizer.slots:
                constants[slot.name] = constant_of(spec.optimizer, slot)
        return constants

    def _filled(self) -> dict[str | None, jax.Array]:
        """Make the arrays on the devices, of a constant each."""
        arrays = {}
        for name, constant in self._constants().items():
            value = np.array(0.0 if constant is None else constant, self._dtypes[name])
            stored = stored_dtype(value.dtype)
            make = self._programs.get(
                filled_program,
                self.mesh,
                self.geometry,
                self._kinds[name],
                stored,
                value.view(stored).item(),
            )
            arrays[name] = make()
        return arrays

    def _initialise(self) -> None:
        """Write the initial values that are no constants: some rows of every shard at a time."""
        varied = [name for name, constant in self._constants().items() if constant is None]
        if not varied:
            return
        spec, layout, k = self.spec, self.geometry.layout, self.geometry.rows_per_line
        per_shard = max(1, self._rows_of_a_piece(None) // layout.num_shards // k) * k
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
            processes_of(self.mesh).agree(
                "create_table",
                [
                    (f"initial {name or 'rows'} of table {spec.name!r}", initial[name])
                    for name in varied
                ],
            )
            for name in varied:
                self.scatter(name, numbers, initial[name])

    # --- reading and writing ---------------------------------------------------------------------

    def gather(self, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows of the weights (None) or a slot, in request order."""
        geometry, kind = self.geometry, self._kinds[slot]
        columns = geometry.dim if kind == "element" else 1
        out = np.empty((rows.size, columns), self._dtypes[slot])
        program = self._programs.get(read_program, self.mesh, geometry, kind)
        for piece in self._pieces(slot, rows, self.geometry.layout.num_shards):
            local, row_splits, inverse = geometry.layout.partition(rows[piece])
            counts = np.diff(row_splits)
            room = capacity(int(counts.max()))
            lists = np.full((geometry.layout.num_shards, room), geometry.local_rows, np.int32)
            shard = np.repeat(np.arange(counts.size), counts)
            place = np.arange(local.size) - row_splits[:-1][shard]
            lists[shard, place] = local
            arrays = self._put({"local": lists})
            found = _named(program(self.arrays[slot], arrays["local"]), room, counts)
            out[piece] = found.view(out.dtype)[inverse, :columns]
        return out

    def scatter(self, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Overwrite distinct rows of the weights (None) or a slot."""
        write = self._write_rows if self._kinds[slot] == "row" else self._write_lines
        stored = np.ascontiguousarray(values).view(stored_dtype(values.dtype))
        alone = self._shard_alone(rows)
        shards = self.geometry.layout.num_shards if alone is None else 1
        for piece in self._pieces(slot, rows, shards):
            write(slot, rows[piece], stored[piece], alone)
            # A transfer holds its host arrays until it is done: one piece at a time is under way.
            self.arrays[slot].block_until_ready()

    def _shard_alone(self, rows: NDArray[np.int64]) -> int | None:
        """Return the shard that has all of these rows, if it can be written without the others."""
        layout = self.geometry.layout
        if layout.num_shards == 1 or not rows.size or spans_processes(self.mesh):
            return None
        shards = np.unique(layout.locate(rows)[0])
        return int(shards[0]) if shards.size == 1 else None

    def _write_rows(
        self,
        slot: str | None,
        rows: NDArray[np.int64],
        values: NDArray[Any],
        alone: int | None,
    ) -> None:
        geometry = self.geometry
        local, row_splits, inverse = geometry.layout.partition(rows)
        counts = np.diff(row_splits) if alone is None else np.array([rows.size])
        shards, room = counts.size, capacity(int(counts.max()))
        shard = np.repeat(np.arange(shards), counts)
        place = np.arange(local.size) - row_splits[:-1][shard]
        lists = np.broadcast_to(
            geometry.local_rows + np.arange(room, dtype=np.int32), (shards, room)
        ).copy()
        lists[shard, place] = local
        given = np.zeros((shards, room), values.dtype)
        given[shard[inverse], place[inverse]] = values[:, 0]
        self._run_write(slot, {"local": lists, "values": given}, alone)

    def _write_lines(
        self,
        slot: str | None,
        rows: NDArray[np.int64],
        values: NDArray[Any],
        alone: int | None,
    ) -> None:
        geometry = self.geometry
        k, shards = geometry.rows_per_line, geometry.layout.num_shards
        shard, local = geometry.layout.locate(rows)
        if alone is not None:  # the lists are those of one shard
            shards, shard = 1, np.zeros_like(shard)
        # Lines of all shards under one number, so that one sort finds the distinct ones.
        numbered, line_of = np.unique(shard * geometry.lines + local // k, return_inverse=True)
        line_shard, line = np.divmod(numbered, geometry.lines)
        counts = np.bincount(line_shard, minlength=shards)
        room = capacity(int(counts.max()))
        place = np.arange(numbered.size) - (np.cumsum(counts) - counts)[line_shard]
        lines = np.broadcast_to(
            geometry.lines + np.arange(room, dtype=np.int32), (shards, room)
        ).copy()
        lines[line_shard, place] = line
        columns = geometry.columns * (geometry.devices if geometry.placement == "column" else 1)
        given = np.zeros((shards, room, k, columns), values.dtype)
        chosen = np.zeros((shards, room, k), np.bool_)
        at = (shard, place[line_of], local % k)
        given[(*at, slice(geometry.dim))] = values
        chosen[at] = True
        self._run_write(slot, {"lines": lines, "values": given, "chosen": chosen}, alone)

    def _run_write(
        self, slot: str | None, arrays: dict[str, NDArray[Any]], alone: int | None
    ) -> None:
        if alone is not None:
            self._write_shard(slot, alone, arrays)
            return
        program = self._programs.get(write_program, self.mesh, self.geometry, self._kinds[slot])
        placed = self._put(arrays)
        self.arrays[slot] = program(self.arrays[slot], *(placed[name] for name in arrays))

    def _write_shard(self, slot: str | None, shard: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Write rows of one shard: nothing travels to the devices of the others."""
        table = self.arrays[slot]
        held = sorted(table.addressable_shards, key=lambda one: one.index[0].start or 0)
        parts = [one.data for one in held]
        lists = jax.device_put(list(arrays.values()), held[shard].device)
        program = self._programs.get(shard_write_program, self.geometry, self._kinds[slot])
        parts[shard] = program(parts[shard], *lists)
        self.arrays[slot] = jax.make_array_from_single_device_arrays(
            table.shape, table.sharding, parts
        )

    def _put(self, arrays: dict[str, NDArray[Any]]) -> dict[str, jax.Array]:
        cut = self.geometry.placement == "row"
        shardings = dict.fromkeys(arrays, over_devices(self.mesh) if cut else whole(self.mesh))
        if self.geometry.placement == "column" and "lines" in arrays:
            by_column = PartitionSpec(None, None, None, "x")
            shardings["values"] = NamedSharding(self.mesh, by_column)
        return put(arrays, shardings)

    def _rows_of_a_piece(self, slot: str | None) -> int:
        columns = self.geometry.dim if self._kinds[slot] == "element" else 1
        return max(1, PIECE_BYTES // max(1, columns * self._dtypes[slot].itemsize))

    def _pieces(self, slot: str | None, rows: NDArray[np.int64], shards: int) -> Iterator[slice]:
        """Yield parts of a list of rows, each small enough with what pads it.

        The share of each of `shards` is padded to the largest; strides spread rows that follow each
        other over them.
        """
        if not rows.size:
            return
        padded = shards * int(np.bincount(self.geometry.layout.locate(rows)[0]).max())
        pieces = min(rows.size, -(-padded // self._rows_of_a_piece(slot)))
        for start in range(pieces):
            yield slice(start, None, pieces)


def _named(found: jax.Array, room: int, counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return the first rows of every shard's share, `room` rows each, without the padding."""
    if counts.size == 1 or found.is_fully_replicated:
        held = fetched(found)
        parts = [held[shard * room :][:count] for shard, count in enumerate(counts)]
    else:  # only the rows asked for leave their device
        shares = {share.index[0].start: share.data for share in found.addressable_shards}
        parts = [
            np.asarray(shares[shard * room])[:count] for shard, count in enumerate(counts) if count
        ]
    return np.concatenate(parts)
