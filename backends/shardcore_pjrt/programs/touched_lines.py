"""The lines that a batch's rows lie in, found on the device that holds them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shardcore_pjrt.mesh.geometry import Geometry

__all__ = ["TouchedLines", "starts_of_runs", "touched_lines"]


class TouchedLines(NamedTuple):
    """Where rows lie in the lines that they touch.

    Attributes
    ----------
    lines : array of int32, shape (count,)
        The touched lines, ascending; padding is distinct numbers past the end of the shard.
    sub_rows : array of int32, shape (n,)
        Of each row: the position of its line, times the rows of a line, plus its place in the line;
        of padding, one past the end.
    """

    lines: jax.Array
    sub_rows: jax.Array


def touched_lines(rows: jax.Array, geometry: Geometry, count: int) -> TouchedLines:
    """Return the lines that local rows lie in.

    Parameters
    ----------
    rows : array of int32, shape (n,)
        Ascending, equal ones too; padding is the number of local rows.
    geometry : Geometry
    count : int
        Lines to return, padding included: at least as many as are touched.
    """
    k = geometry.rows_per_line
    true = rows < geometry.local_rows
    line = rows // k
    starts = starts_of_runs(line) & true
    position = jnp.cumsum(starts, dtype=jnp.int32) - 1
    beyond = geometry.lines + jnp.arange(count, dtype=jnp.int32) - starts.sum(dtype=jnp.int32)
    return TouchedLines(
        beyond.at[jnp.where(true, position, count)].set(line, mode="drop"),
        jnp.where(true, position * k + rows % k, count * k),
    )


def starts_of_runs(numbers: jax.Array) -> jax.Array:
    """Return where each run of equal numbers starts, bool (n,)."""
    if not numbers.size:
        return jnp.zeros(0, jnp.bool_)
    return jnp.concatenate([jnp.ones(1, jnp.bool_), numbers[1:] != numbers[:-1]])
