"""The update of one table by a batch's gradients as one program for the whole mesh.

Gradients are summed per row on the device that holds it (`summed_gradients`); lines that hold
touched rows are read once, the optimizer makes new rows and slots of them (`row_update`), and whole
lines are written back. Rows that share a line with a touched one keep their bits.

Table and slots are given up by the caller and updated where they lie. No program does both lookup
and update: XLA would copy the table between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from shardcore.optimizer import Optimizer
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import (
    AXIS,
    placed,
    row_slot_spec,
    slot_arrays,
    stored_dtype,
    table_spec,
)
from shardcore_pjrt.programs.row_update import Batch, RowUpdate
from shardcore_pjrt.programs.sent_lists import sent_lists
from shardcore_pjrt.programs.summed_gradients import Received
from shardcore_pjrt.routing.update_route import UpdateShape

__all__ = ["update_arguments", "update_program"]

Arrays: TypeAlias = dict[str, jax.Array]


def _route_arrays(
    mesh: Mesh, geometry: Geometry, shape: UpdateShape
) -> dict[str, jax.ShapeDtypeStruct]:
    devices, bags = geometry.devices, sum(shape.bags)
    cut = geometry.placement == "row"
    owners = (devices, Spec(AXIS)) if cut else (1, Spec())
    spread = (1, Spec()) if shape.exchange == "columns" else (devices, Spec(AXIS))
    rows = geometry.local_rows if shape.every_row else shape.lines * geometry.rows_per_line
    occurrences = ((shape.occurrences,), jnp.int32)
    of_owner: dict[str, tuple[tuple[int, ...], Any]]
    if shape.exchange == "all_to_all":
        of_owner = {"place": occurrences, "fetch": ((devices, shape.capacity), jnp.int32)}
        if not shape.pooling:
            of_owner["end"] = ((bags,), jnp.int32)
    else:
        of_owner = {"source": occurrences, "slot": occurrences}
    if shape.gained:
        of_owner["gain"] = ((shape.occurrences,), jnp.float32)
    described = shape.every_row or shape.exchange == "all_to_all"
    if described:
        of_owner |= {"rows_here": ((), jnp.int32), "first_row": ((), jnp.int32)}
    else:
        of_owner |= {"lines": ((shape.lines,), jnp.int32), "row_ids": ((rows,), jnp.int32)}
    if shape.members > 1:
        names = ("member_start", "member_row", "member_stride")
        of_owner |= dict.fromkeys(names, ((shape.members,), jnp.int32))
    if not shape.accumulate:
        of_owner |= {"first": ((rows,), jnp.int32), "count": ((rows,), jnp.int32)}
    arrays = {
        name: placed(mesh, (owners[0], *inner), dtype, owners[1])
        for name, (inner, dtype) in of_owner.items()
    }
    if shape.scaled:
        all_bags = bags * (devices if shape.exchange == "columns" else 1)
        arrays["scale"] = placed(mesh, (spread[0], all_bags), jnp.float32, spread[1])
    if described:
        arrays["row_stride"] = placed(mesh, (), jnp.int32, Spec())
    if not shape.accumulate:
        arrays["waves"] = placed(mesh, (), jnp.int32, Spec())
    return arrays


def update_arguments(
    mesh: Mesh, geometry: Geometry, dtype: Any, shape: UpdateShape, optimizer: Optimizer
) -> tuple[Any, ...]:
    """Return the arguments of an update program, as shapes, to compile it ahead of time.

    Parameters
    ----------
    mesh : Mesh
    geometry : Geometry
    dtype : dtype
        The table's.
    shape : UpdateShape
    optimizer : Optimizer

    Returns
    -------
    tuple of ShapeDtypeStruct and containers of them
        rows, slots, gradients (of float32), arrays, hyper, step, seed, go.
    """
    return (
        placed(mesh, geometry.table_shape, stored_dtype(dtype), table_spec(geometry)),
        slot_arrays(mesh, geometry, dtype, optimizer.slots),
        tuple(
            placed(mesh, (geometry.devices * bags, geometry.dim), jnp.float32, Spec(AXIS, None))
            for bags in shape.bags
        ),
        _route_arrays(mesh, geometry, shape),
        placed(mesh, (len(optimizer.hyper_names),), jnp.float32, Spec()),
        placed(mesh, (), jnp.int32, Spec()),
        placed(mesh, (2,), jnp.uint32, Spec()),
        placed(mesh, (), jnp.bool_, Spec()),
    )


def update_program(
    mesh: Mesh, geometry: Geometry, shape: UpdateShape, optimizer: Optimizer, dtype: Any
) -> Callable[..., tuple[jax.Array, dict[str, jax.Array]]]:
    """Return the compiled-on-first-use update by batches of one shape.

    Parameters
    ----------
    mesh : Mesh
        Of ``geometry.devices`` devices, with one axis.
    geometry : Geometry
    shape : UpdateShape
    optimizer : Optimizer
    dtype : dtype
        The table's: float32, float16 or bfloat16.

    Returns
    -------
    callable
        ``(rows, slots, gradients, arrays, hyper, step, seed, go) -> (rows, slots)``: the table and
        its slots by name, of their `stored_dtype`, both given up; per active feature the gradients
        of its bags, (devices * bags, dim) of any float dtype; the arrays of `UpdateRoute`; float32
        (hyper-parameters,); int32 (); uint32 (2,), the lower and upper half of
        `shardcore.store.rounding.step_seed`; and whether to update at all, bool ().
    """
    route = _route_arrays(mesh, geometry, shape)
    table = table_spec(geometry)
    slots = {
        slot.name: table if slot.kind == "element" else row_slot_spec(geometry)
        for slot in optimizer.slots
    }
    work = _Update(geometry, shape, optimizer, dtype)
    per_device = jax.shard_map(
        work.run,
        mesh=mesh,
        in_specs=(
            table,
            slots,
            tuple(Spec(AXIS, None) for _ in shape.bags),
            {name: one.sharding.spec for name, one in route.items()},
            *(Spec(), Spec(), Spec(), Spec()),
        ),
        out_specs=(table, slots),
        check_vma=False,  # the check cannot see that devices compute the same values
    )
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (table, slots))
    program: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] = jax.jit(
        per_device, donate_argnums=(0, 1), out_shardings=shardings
    )
    return program


class _Update:
    """The update on one device."""

    def __init__(
        self, geometry: Geometry, shape: UpdateShape, optimizer: Optimizer, dtype: Any
    ) -> None:
        self._geometry = geometry
        self._shape = shape
        self._hyper = len(optimizer.hyper_names)
        self._row_update = RowUpdate(geometry, optimizer, np.dtype(dtype))

    def run(
        self,
        rows: jax.Array,
        slots: dict[str, jax.Array],
        gradients: tuple[jax.Array, ...],
        arrays: Arrays,
        hyper: jax.Array,
        step: jax.Array,
        seed: jax.Array,
        go: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the updated shard of the table and of every slot."""
        geometry, shape = self._geometry, self._shape
        mine = {name: array[0] if array.ndim else array for name, array in arrays.items()}
        if shape.exchange == "all_to_all":
            mine |= sent_lists(mine, geometry, shape)
        lines = geometry.lines if shape.every_row else shape.lines
        of_row = ("first", "count")
        per_row: Arrays = {name: mine[name] for name in of_row if name in mine}
        per_row["row_ids"] = self._every_row_id(mine) if shape.every_row else mine["row_ids"]
        batch = Batch(
            Received(gradients, mine, geometry, shape, lines, not self._row_update.keeps_lines),
            per_row,
            tuple(hyper[at] for at in range(self._hyper)),
            step,
            seed,
            mine.get("waves"),
            go,
        )
        return self._row_update.run((rows, slots), batch, mine.get("lines"))

    def _every_row_id(self, arrays: Arrays) -> jax.Array:
        """Return each local row's number in the whole table, -1 for padding; of lines by lane."""
        geometry = self._geometry
        if self._row_update.keeps_lines:
            first = jnp.arange(geometry.lines, dtype=jnp.int32) * geometry.rows_per_line
            place = jnp.arange(geometry.line_width, dtype=jnp.int32) // geometry.width
            local = first[:, None] + place
        else:
            local = jnp.arange(geometry.local_rows, dtype=jnp.int32)
        row_ids = arrays["first_row"] + local * arrays["row_stride"]
        return jnp.where(local < arrays["rows_here"], row_ids, -1)
