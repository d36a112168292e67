"""A stack of tables on the devices of a mesh: rows and slots, read and written for the host.

The arrays are held here and nowhere else, because every update gives the old ones up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from shardcore.backend import TableSpec
from shardcore.initializers import fill
from shardcore.optimizer import initial_slots
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import stored_dtype
from shardcore_pjrt.mesh.placing import fetched, over_devices, put, spans_processes, whole
from shardcore_pjrt.mesh.processes import processes_of
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.row_access import (
    Kind,
    filled_program,
    piece_write_program,
    read_program,
    shard_write_program,
    sharding_of,
    write_program,
)
from shardcore_pjrt.routing.capacity import Rooms, capacity
from shardcore_pjrt.stacks import Member, Numbering, initial_constants

__all__ = ["DeviceTable", "bytes_of_a_device"]

PIECE_BYTES: Final = 1 << 23
"""Rows travel between host and devices in pieces of about this size, never as a whole table."""


def bytes_of_a_device(geometry: Geometry, spec: TableSpec) -> int:
    """Return the bytes of rows and slots on each device, padding included, of a table alone."""
    rows, total = geometry.local_rows, geometry.local_rows * geometry.width * spec.dtype.itemsize
    for slot in spec.slots:
        width = geometry.width if slot.kind == "element" else 1
        total += rows * width * slot.storage_dtype(spec.dtype).itemsize
    return total


class DeviceTable:
    """Rows and slots of tables that lie together, cut over the devices of a mesh.

    Parameters
    ----------
    mesh : Mesh
        Of one axis, "x".
    geometry : Geometry
        Of the stack.
    members : sequence of Member
        One table or several that are alike: rows are the stack's, in every method.
    programs : Programs

    Attributes
    ----------
    spec : TableSpec
        Of the first member: what programs depend on is the same in all.
    arrays : dict of slot name, None for the weights, -> jax.Array
    lookup_rooms, update_rooms : Rooms
        The classes that batches have taken.
    numbering : Numbering
    """

    def __init__(
        self, mesh: Mesh, geometry: Geometry, members: Sequence[Member], programs: Programs
    ) -> None:
        self.mesh = mesh
        self.geometry = geometry
        self.members = tuple(members)
        self.spec = spec = members[0].spec
        self.lookup_rooms, self.update_rooms = Rooms(), Rooms()
        self.numbering = Numbering(members)
        self._starts = self.numbering.starts.T
        self._ends = self._starts + [member.layout.shard_sizes for member in members]
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

    def _filled(self) -> dict[str | None, jax.Array]:
        """Make the arrays on the devices, of a constant each."""
        arrays = {}
        for name, constant in initial_constants(self.spec).items():
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
        """Write the initial values that are no constants: some lines of every shard at a time."""
        constants = initial_constants(self.spec)
        varied = [name for name, constant in constants.items() if constant is None]
        if not varied:
            return
        geometry = self.geometry
        lines, shards = geometry.lines, geometry.layout.num_shards
        most = max(1, self._rows_of_a_piece(None) // shards // geometry.rows_per_line)
        size = -(-lines // -(-lines // most))
        for start in range(0, lines, size):
            # The last piece ends with the lines: all are of one size, and take one program.
            self._write_piece(min(start, lines - size), size, varied)

    def _write_piece(self, start: int, size: int, varied: Sequence[str | None]) -> None:
        """Write initial values of `size` lines of every shard, from `start` on."""
        geometry, k = self.geometry, self.geometry.rows_per_line
        shape = (geometry.layout.num_shards, size * k)
        values: dict[str | None, NDArray[Any]] = {}
        for name in varied:
            columns = () if self._kinds[name] == "row" else (geometry.dim,)
            values[name] = np.zeros((*shape, *columns), stored_dtype(self._dtypes[name]))
        begin, end = start * k, (start + size) * k
        held = ((self._starts < end) & (self._ends > begin)).any(axis=1)
        for at in np.flatnonzero(held).tolist():
            self._add_values(self.members[at], begin, values)
        cut = {name: sharding_of(self.mesh, geometry, self._kinds[name]) for name in varied}
        ready = {f"{name}": self._as_lines(value) for name, value in values.items()}
        placed = put(ready, {f"{name}": sharding for name, sharding in cut.items()})
        for name in varied:
            program = self._programs.get(
                piece_write_program, self.mesh, geometry, self._kinds[name]
            )
            self.arrays[name] = program(self.arrays[name], placed[f"{name}"], np.int32(start))
            # A transfer holds its host arrays until it is done: one piece at a time is under way.
            self.arrays[name].block_until_ready()

    def _add_values(
        self, member: Member, start: int, values: dict[str | None, NDArray[Any]]
    ) -> None:
        """Add a member's initial values to those of the local rows from `start` on."""
        spec, layout = member.spec, member.layout
        count = next(iter(values.values())).shape[1]
        first = np.clip(start - member.start, 0, layout.shard_sizes)  # of the member's local rows
        end = np.clip(start + count - member.start, 0, layout.shard_sizes)
        numbers = np.concatenate(
            [
                layout.global_of(shard, np.arange(*own))
                for shard, own in enumerate(zip(first.tolist(), end.tolist(), strict=True))
            ]
        )
        rows = np.empty((numbers.size, spec.dim), spec.dtype)
        fill(rows, spec.initializer, numbers, spec.seed)
        initial: dict[str | None, NDArray[Any]] = {None: rows}
        initial.update(initial_slots(spec.optimizer, rows, numbers, spec.seed))
        parts = [
            (f"initial {name or 'rows'} of table {spec.name!r}", initial[name]) for name in values
        ]
        processes_of(self.mesh).agree("create_table", parts)
        shard = np.repeat(np.arange(layout.num_shards), end - first)
        place = np.arange(numbers.size) - np.repeat(np.cumsum(end - first) - end, end - first)
        place += (member.start - start)[shard]
        for name, into in values.items():
            own = initial[name].view(into.dtype)
            into[shard, place] = own if into.ndim == 3 else own[:, 0]

    def _as_lines(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return (shards, rows, dim) values as devices hold lines; (shards, rows) ones, flat."""
        geometry = self.geometry
        if values.ndim == 2:
            return values.reshape(-1)
        parts = geometry.devices if geometry.placement == "column" else 1
        padding = parts * geometry.columns - geometry.dim
        wide = np.pad(values, ((0, 0), (0, 0), (0, padding)))
        by_device = wide.reshape(-1, geometry.rows_per_line, parts, geometry.columns)
        padding = geometry.width - geometry.columns
        padded = np.pad(by_device, ((0, 0), (0, 0), (0, 0), (0, padding)))
        return padded.swapaxes(1, 2).reshape(-1, parts * geometry.line_width)

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
