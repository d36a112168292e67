"""The lists of an update, made on the one device that holds the table, from those of the lookup.

On several devices the host sorts a batch's ids, as it must know which of them each device needs.
One device needs all of them, in the order in which they came, for the lookup; a GPU sorts those in
less time than it takes to send it a second list. So nothing but the lookup's lists is sent, and
`shardcore_pjrt.routing.update_route` has no part in it. The arrays are those of its `UpdateRoute`,
in the same order of sums, except that room is made for as many lines as there are occurrences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placing import over_devices, whole
from shardcore_pjrt.programs.local_bags import local_bags
from shardcore_pjrt.programs.touched_lines import starts_of_runs, touched_lines
from shardcore_pjrt.routing.lookup_route import LookupShape
from shardcore_pjrt.routing.update_route import UpdateShape

__all__ = ["sort_program", "sorted_shape"]

Arrays: TypeAlias = dict[str, jax.Array]


def sorted_shape(
    geometry: Geometry, looked_up: LookupShape, accumulate: bool, lazy: bool
) -> UpdateShape:
    """Return the shape of the update whose lists `sort_program` makes of a lookup's.

    Parameters
    ----------
    geometry : Geometry
        Of one device.
    looked_up : LookupShape
    accumulate, lazy : bool
        The optimizer's: whether gradients of a row are summed, and whether rows without any stay.

    Examples
    --------
    >>> looked_up = LookupShape("local", (4, 8), 64, 0, 0, True, True)
    >>> shape = sorted_shape(Geometry(1000, 4, 1, "row"), looked_up, True, True)
    >>> shape.lines, shape.gained, shape.scaled
    (64, True, False)
    """
    return UpdateShape(
        "local",
        looked_up.bags,
        looked_up.occurrences,
        0,
        0,
        min(looked_up.occurrences, geometry.lines) if lazy else 0,
        looked_up.weighted,
        looked_up.divided and not looked_up.weighted,
        accumulate,
        not lazy,
    )


def sort_program(
    mesh: Mesh,
    geometry: Geometry,
    looked_up: LookupShape,
    accumulate: bool,
    lazy: bool,
    firsts: tuple[int, ...] = (0,),
) -> Callable[[Arrays], tuple[Arrays, jax.Array]]:
    """Return the compiled-on-first-use program that makes an update's lists of a lookup's.

    Parameters
    ----------
    mesh : Mesh
        Of one device.
    geometry : Geometry
    looked_up : LookupShape
    accumulate, lazy : bool
        The optimizer's.
    firsts : tuple of int, default (0,)
        The first row of each member of a stack, ascending: ``row_ids`` count from there.

    Returns
    -------
    callable
        ``arrays -> (arrays, unique)``: those of `LookupRoute`; those of `UpdateRoute`, of
        `sorted_shape`, on the device; how many distinct rows the batch names, int32 ().
    """

    def lists(arrays: Arrays) -> tuple[Arrays, jax.Array]:
        mine = {name: array[0] for name, array in arrays.items()}
        made, unique = _Sorted(geometry, looked_up, accumulate, lazy, firsts, mine).lists()
        return {
            name: one[None] if name not in _OF_ALL else one for name, one in made.items()
        }, unique

    of_one = over_devices(mesh)
    shardings = {
        name: whole(mesh) if name in _OF_ALL else of_one
        for name in _names(sorted_shape(geometry, looked_up, accumulate, lazy))
    }
    program: Callable[[Arrays], tuple[Arrays, jax.Array]] = jax.jit(
        lists, out_shardings=(shardings, whole(mesh))
    )
    return program


_OF_ALL = ("row_stride", "waves")
"""Arrays that are one number for all devices."""


def _names(shape: UpdateShape) -> list[str]:
    names = ["source", "slot"]
    names += ["gain"] * shape.gained + ["scale"] * shape.scaled
    names += ["rows_here", "first_row", "row_stride"] if shape.every_row else ["lines", "row_ids"]
    return names + ([] if shape.accumulate else ["first", "count", "waves"])


class _Sorted:
    """The occurrences of a batch in the order of their rows, those of a row as they came."""

    def __init__(
        self,
        geometry: Geometry,
        looked_up: LookupShape,
        accumulate: bool,
        lazy: bool,
        firsts: tuple[int, ...],
        arrays: Arrays,
    ) -> None:
        self._geometry = geometry
        self._firsts = firsts
        self._shape = sorted_shape(geometry, looked_up, accumulate, lazy)
        self._bags = sum(looked_up.bags)
        self._divisor = arrays.get("divisor")
        place = arrays["place"]
        bag = local_bags(arrays, place.size, looked_up.pooling)
        carried = [bag]
        if looked_up.weighted:
            carried.append(self._gain(arrays["weight"], bag))
        # Padding has a place beyond all rows: it comes to lie at the end.
        self._row, bag, *rest = jax.lax.sort((place, *carried), num_keys=1, is_stable=True)
        self._true = self._row < geometry.local_rows
        self._source = jnp.where(self._true, bag, self._bags)
        self._gains = rest[0] if rest else None

    def lists(self) -> tuple[Arrays, jax.Array]:
        """Return the update's arrays, and how many rows are distinct."""
        arrays: Arrays = {"source": self._source}
        if self._gains is not None:
            arrays["gain"] = self._gains
        elif self._divisor is not None:
            arrays["scale"] = _reciprocal(self._divisor)
        if self._shape.every_row:
            size = self._geometry.local_rows
            arrays["slot"] = self._row
            arrays["rows_here"] = jnp.int32(self._geometry.num_rows)
            arrays["first_row"] = jnp.int32(0)
            arrays["row_stride"] = jnp.int32(1)
        else:
            size = self._shape.lines * self._geometry.rows_per_line
            arrays |= self._touched_lines(size)
        if not self._shape.accumulate:
            arrays |= _waves(arrays["slot"], size)
        return arrays, (starts_of_runs(self._row) & self._true).sum(dtype=jnp.int32)

    def _gain(self, weight: jax.Array, bag: jax.Array) -> jax.Array:
        if self._divisor is None or not self._bags:  # of no bags all is padding
            return weight
        of_each = self._divisor.at[bag].get(mode="fill", fill_value=0)
        return jnp.where(of_each != 0, weight / jnp.where(of_each != 0, of_each, 1), 0)

    def _touched_lines(self, size: int) -> Arrays:
        """Return the touched lines, the sub-row of each occurrence and the row of each sub-row."""
        lines, slot = touched_lines(self._row, self._geometry, self._shape.lines)
        row_ids = jnp.full(size, -1, jnp.int32).at[slot].set(self._own_rows(), mode="drop")
        return {"slot": slot, "lines": lines, "row_ids": row_ids}

    def _own_rows(self) -> jax.Array:
        """Return the row of each occurrence, as its own table of a stack counts them."""
        if len(self._firsts) == 1:
            return self._row
        firsts = jnp.array(self._firsts, jnp.int32)
        return self._row - firsts[jnp.searchsorted(firsts, self._row, side="right") - 1]


def _reciprocal(divisor: jax.Array) -> jax.Array:
    return jnp.where(divisor != 0, 1 / jnp.where(divisor != 0, divisor, 1), 0)


def _waves(slot: jax.Array, size: int) -> Arrays:
    """Return which occurrences each sub-row has, and the most that one has."""
    numbers = jnp.arange(slot.size, dtype=jnp.int32)
    ones = jnp.ones(slot.size, jnp.int32)
    count = jnp.zeros(size, jnp.int32).at[slot].add(ones, mode="drop", indices_are_sorted=True)
    first = jnp.full(size, slot.size, jnp.int32).at[slot].min(numbers, mode="drop")
    return {
        "first": jnp.where(count > 0, first, 0),
        "count": count,
        "waves": count.max(initial=0),
    }
