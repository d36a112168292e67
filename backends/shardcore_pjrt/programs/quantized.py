"""`shardcore.backend.QuantizationConfig` on the device: the values of its ``apply``."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardcore.backend import QuantizationConfig

__all__ = ["quantized"]


def quantized(rows: jax.Array, config: QuantizationConfig | None) -> jax.Array:
    """Return rows as a lookup sees them: in float32, rounded to the buckets; NaN stays NaN.

    Parameters
    ----------
    rows : array of float, any shape
    config : QuantizationConfig or None
        None: not rounded.

    Returns
    -------
    array of float32, same shape

    Examples
    --------
    >>> quantized(jnp.array([-7.0, -0.5, 0.4, 0.6]), QuantizationConfig(3, -1.0, 1.0)).tolist()
    [-1.0, 0.0, 0.0, 1.0]
    """
    values = rows.astype(jnp.float32)
    if config is None:
        return values
    # Behind the barrier the step is no constant: XLA would multiply by its reciprocal instead.
    step = jax.lax.optimization_barrier(jnp.float32(config.step))
    clipped = jnp.clip(values, jnp.float32(config.lower), jnp.float32(config.upper))
    bucket = jnp.floor((clipped - jnp.float32(config.lower)) / step + jnp.float32(0.5))
    # The selection keeps the product and the sum from being contracted to one operation.
    offset = jnp.where(jnp.isnan(values), values, bucket * step)
    return offset + jnp.float32(config.lower)
