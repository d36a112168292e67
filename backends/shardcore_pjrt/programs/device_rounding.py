"""Stochastic rounding on the device: the bits of `shardcore.store.rounding.stochastic_round`.

The random numbers are those of ``shardcore._core.random``, whose 64-bit words are pairs of uint32
here: JAX stays in its 32-bit mode, and accelerators have no 64-bit units anyway. Floats are taken
apart as integers, since devices flush subnormal ones to zero.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["stochastic_round"]

_Word: TypeAlias = tuple[jax.Array, jax.Array]
"""A 64-bit word: its lower and its upper half."""

_INCREMENT: Final = 0x9E3779B97F4A7C15
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _word(number: int) -> _Word:
    return jnp.uint32(number & 0xFFFFFFFF), jnp.uint32(number >> 32)


def _sum(a: _Word, b: _Word) -> _Word:
    low = a[0] + b[0]
    return low, a[1] + b[1] + (low < a[0]).astype(jnp.uint32)


def _upper_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper half of the product of two uint32, from the products of their halves."""
    low_a, high_a = a & 0xFFFF, a >> 16
    low_b, high_b = b & 0xFFFF, b >> 16
    crossed = high_a * low_b + (low_a * low_b >> 16)
    other = low_a * high_b + (crossed & 0xFFFF)
    return high_a * high_b + (crossed >> 16) + (other >> 16)


def _product(a: _Word, b: _Word) -> _Word:
    upper = _upper_product(a[0], b[0]) + a[0] * b[1] + a[1] * b[0]
    return a[0] * b[0], upper


def _shifted(a: _Word, bits: int) -> _Word:
    return a[0] >> bits | a[1] << (32 - bits), a[1] >> bits


def _mixed(word: _Word) -> _Word:
    for bits, factor in _MIX:
        moved = _shifted(word, bits)
        word = _product((word[0] ^ moved[0], word[1] ^ moved[1]), _word(factor))
    moved = _shifted(word, 31)
    return word[0] ^ moved[0], word[1] ^ moved[1]


def _chance(row_ids: jax.Array, columns: jax.Array, seed: jax.Array) -> jax.Array:
    """Return the upper 32 bits of (seed, row, column), of shape (rows, columns)."""
    zero = jnp.uint32(0)
    key = _mixed(_sum((seed[0], seed[1]), _word(_INCREMENT)))
    twice = 2 * row_ids.astype(jnp.uint32)[:, None]
    starts, steps = (
        _mixed(_sum(key, _product((twice + jnp.uint32(output), zero), _word(_INCREMENT))))
        for output in (1, 2)
    )
    counts = columns.astype(jnp.uint32)[None, :] + jnp.uint32(1)
    moved = _product((counts, zero), (steps[0] | jnp.uint32(1), steps[1]))
    return _mixed(_sum(starts, moved))[1]


def _small_halves(magnitude: jax.Array, chance: jax.Array) -> jax.Array:
    """Return the float16 bits of magnitudes below 2**-14, in units of 2**-24, up by chance."""
    exponent = magnitude >> 23
    fraction = magnitude & jnp.uint32(0x7FFFFF)
    significand = jnp.where(exponent > 0, fraction | jnp.uint32(0x800000), fraction)
    below = jnp.uint32(126) - jnp.maximum(exponent, jnp.uint32(1))  # bits below one unit, >= 14
    whole = jnp.where(below < 24, significand >> jnp.minimum(below, jnp.uint32(24)), 0)
    level = chance >> 8  # in units of 2**-24 of a unit
    widened = jnp.minimum(below, jnp.uint32(24))
    rest = (significand - (whole << widened)) << (jnp.uint32(24) - widened)
    # Far below one unit: significand > level * 2**beyond, without leaving 32 bits.
    beyond = jnp.minimum(below - widened, jnp.uint32(31))
    far = (significand > 0) & ((significand - jnp.uint32(1)) >> beyond >= level)
    return whole + jnp.where(below <= 24, rest > level, far).astype(jnp.uint32)


def stochastic_round(
    values: jax.Array, dtype: Any, row_ids: jax.Array, columns: jax.Array, seed: jax.Array
) -> jax.Array:
    """Round each value to one of its two neighbours, so that the mean is right.

    Parameters
    ----------
    values : array of float32, shape (n, c)
        Those beyond the largest finite value of `dtype` are rounded to the nearest.
    dtype : dtype
        float16 or bfloat16.
    row_ids : array of int32, shape (n,)
        The rows' numbers in the whole table.
    columns : array of int32, shape (c,)
        The columns' numbers in the whole row.
    seed : array of uint32, shape (2,)
        The lower and the upper half of `shardcore.store.rounding.step_seed`.

    Returns
    -------
    array of `dtype`, shape (n, c)

    Examples
    --------
    >>> third = jnp.full((3000, 1), 1 + 2.0**-10 / 3, jnp.float32)
    >>> rounded = stochastic_round(
    ...     third, "float16", jnp.arange(3000), jnp.arange(1), jnp.array([5, 0], jnp.uint32)
    ... )
    >>> round(float((rounded.astype(jnp.float32).mean() - 1) * 2**10), 1)
    0.3
    """
    kind = np.dtype(dtype)
    chance = _chance(row_ids, columns, seed)
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    magnitude = bits & jnp.uint32(0x7FFFFFFF)
    if kind.name == "bfloat16":
        stochastic = (bits + (chance >> 16)) >> 16
        finite = magnitude < 0x7F7F0000
    else:
        normal = (magnitude + (chance >> 19) - jnp.uint32(112 << 23)) >> 13
        small = _small_halves(magnitude, chance)
        stochastic = bits >> 16 & jnp.uint32(0x8000)
        stochastic = stochastic | jnp.where(magnitude < 113 << 23, small, normal)
        finite = magnitude < 0x477FE000
    rounded = jax.lax.bitcast_convert_type(stochastic.astype(jnp.uint16), kind)
    return jnp.where(finite, rounded, values.astype(kind))
