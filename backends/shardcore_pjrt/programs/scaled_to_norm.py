"""`shardcore.backend.scaled_to_norm` on the device, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import AXIS

__all__ = ["scaled_to_norm"]


def scaled_to_norm(
    rows: jax.Array, max_norm: float, by_columns: Geometry | None = None
) -> jax.Array:
    """Return rows, those of a greater L2 norm scaled down to it.

    Parameters
    ----------
    rows : array of float, shape (n, columns)
    max_norm : float
    by_columns : Geometry, optional
        Where each device of the mesh has its columns of the same rows: squares are added over all.

    Returns
    -------
    array of the same shape and dtype

    Examples
    --------
    >>> rows = scaled_to_norm(jnp.array([[3e30, 4e30], [0.5, 0.0]]), 1.0)
    >>> bool(jnp.allclose(rows, jnp.array([[0.6, 0.8], [0.5, 0.0]])))
    True
    """
    values = rows.astype(jnp.float32)
    counted = jnp.abs(values)
    if by_columns is not None:  # the last device's columns may be padding in part
        column = jax.lax.axis_index(AXIS) * by_columns.columns + jnp.arange(values.shape[1])
        counted = jnp.where(column < by_columns.dim, counted, 0)
    largest = counted.max(axis=1, keepdims=True)
    if by_columns is not None:
        largest = jax.lax.pmax(largest, AXIS)
    # By a power of two, so that squares stay finite and normal. Not by the largest: XLA would
    # multiply by its reciprocal, which may be 0.
    unit = jnp.where(largest > 2.0**50, 2.0**-80, jnp.where(largest < 2.0**-50, 2.0**80, 1.0))
    squares = ((counted * unit) ** 2).sum(axis=1, keepdims=True)
    if by_columns is not None:
        squares = jax.lax.psum(squares, AXIS)
    norms = jnp.sqrt(squares)
    scaled = values * unit / norms * jnp.float32(max_norm)
    return jnp.where(norms > jnp.float32(max_norm) * unit, scaled, values).astype(rows.dtype)
