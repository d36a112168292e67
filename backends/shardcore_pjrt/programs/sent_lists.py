"""The lists of an update by "all_to_all", made on each device of those that its lookup was given.

What a device was sent in the lookup it sends sums for in the update, over the same places; which
rows they are its owner was told. So the host sends nothing twice: sorting is left to the devices.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.local_bags import local_bags
from shardcore_pjrt.programs.touched_lines import touched_lines
from shardcore_pjrt.routing.update_route import UpdateShape

__all__ = ["sent_lists"]

Arrays: TypeAlias = dict[str, jax.Array]


def sent_lists(mine: Arrays, geometry: Geometry, shape: UpdateShape) -> Arrays:
    """Return the lists by which a device sums, sends, receives and updates.

    Parameters
    ----------
    mine : dict of str to array
        Of `UpdateRoute`, the device's own: ``place`` (N,), ``end`` (T,) if ragged, ``fetch``
        (asking devices, C) as an owner, perhaps ``gain`` (N,), and which rows the shard holds.
    geometry : Geometry
    shape : UpdateShape

    Returns
    -------
    dict of str to array
        ``slot`` (N,): the place that each occurrence's sum is sent from, ascending, those of a row
        in the order of the occurrences; padding D * C. ``source`` (N,): its local bag; of padding,
        any. ``gain`` (N,), if given: its factor. ``received`` (D * C,): the sub-row, or the row if
        `every_row`, of each sum that comes in; padding one past the end. Unless `every_row`,
        ``lines`` and ``row_ids`` as those of the other exchanges.
    """
    bag = local_bags(mine, shape.occurrences, shape.pooling)
    named = {"slot": mine["place"], "source": bag}
    if shape.gained:
        named["gain"] = mine["gain"]
    out = dict(zip(named, lax.sort(tuple(named.values()), num_keys=1, is_stable=True), strict=True))
    fetch = mine["fetch"].reshape(-1)
    if shape.every_row:
        return out | {"received": fetch}  # both are padded with the number of local rows
    return out | _touched(fetch, mine, geometry, shape.lines)


def _touched(fetch: jax.Array, mine: Arrays, geometry: Geometry, count: int) -> Arrays:
    """Return the lines that rows lie in, `count` with padding, and where the rows are in them."""
    rows, order = lax.sort((fetch, jnp.arange(fetch.size, dtype=jnp.int32)), num_keys=1)
    lines, sub_rows = touched_lines(rows, geometry, count)
    row_ids = jnp.full(count * geometry.rows_per_line, -1, jnp.int32)
    return {
        "received": jnp.zeros(fetch.size, jnp.int32).at[order].set(sub_rows, unique_indices=True),
        "lines": lines,
        "row_ids": row_ids.at[sub_rows].set(_global_rows(rows, mine), mode="drop"),
    }


def _global_rows(rows: jax.Array, mine: Arrays) -> jax.Array:
    """Return the numbers of local rows in the whole table, or in their own one of a stack."""
    if "member_start" not in mine:
        return mine["first_row"] + rows * mine["row_stride"]
    start = mine["member_start"]
    member = jnp.searchsorted(start, rows, side="right") - 1
    return mine["member_row"][member] + (rows - start[member]) * mine["member_stride"][member]
