"""Back to the dtype of the table: to the nearest, or by chance and without bias.

Chance is counter-based: the random bits of an element follow from (seed of the table, step, global
row, column), whatever the layout, the number of hosts or threads. The pure form of what
``_core/rows.pxi`` does at the end of an update.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore._core import random as _kernel
from shardcore.optimizer.base import Optimizer
from shardcore.store.row_update import RowUpdate

__all__ = ["narrowed", "stochastic_round", "rounds_stochastically", "step_seed"]


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a table's rounding at a step: a stable hash, in [0, 2**64).

    Examples
    --------
    >>> step_seed(7, 1) == step_seed(7, 1) != step_seed(7, 2)
    True
    """
    digest = hashlib.blake2b(f"rounding/{seed}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def rounds_stochastically(optimizer: Optimizer, dtype: np.dtype[Any]) -> bool:
    """Return whether rows of a table of `dtype` are rounded back by chance."""
    return optimizer.rounds_stochastically and dtype.itemsize == 2


def stochastic_round(
    values: NDArray[np.float32], dtype: np.dtype[Any], row_ids: NDArray[np.int64], seed: int
) -> NDArray[Any]:
    """Round each value to one of its two neighbours, so that the mean is right.

    Parameters
    ----------
    values : ndarray of float32, shape (n, dim)
        Those beyond the largest finite value of `dtype` are rounded to the nearest.
    dtype : numpy.dtype
        float16 or bfloat16.
    row_ids : ndarray of int64, shape (n,)
        The rows' numbers in the whole table.
    seed : int in [0, 2**64)
        From `step_seed`.

    Returns
    -------
    ndarray of `dtype`, shape (n, dim)

    Examples
    --------
    >>> third = np.full((3000, 1), 1 + 2.0**-10 / 3, np.float32)
    >>> rounded = stochastic_round(third, np.dtype("float16"), np.arange(3000), seed=5)
    >>> np.unique(rounded).tolist(), round(float(rounded.astype(float).mean() - 1) * 2**10, 1)
    ([1.0, 1.0009765625], 0.3)
    """
    random = np.empty(values.shape, np.uint64)
    _kernel.uniform_bits(np.ascontiguousarray(row_ids), seed, random)
    chance = (random >> np.uint64(32)).astype(np.uint32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    with np.errstate(over="ignore"):
        nearest = values.astype(dtype).view(np.uint16)
    if dtype.name == "bfloat16":
        stochastic = (bits + (chance >> np.uint32(16))) >> np.uint32(16)
        finite = magnitude < 0x7F7F0000
    else:
        sign = bits >> np.uint32(16) & np.uint32(0x8000)
        normal = magnitude + (chance >> np.uint32(19)) - np.uint32(112 << 23) >> np.uint32(13)
        small = magnitude < 113 << 23
        scaled = np.where(small, abs(values), 0) * np.float32(2.0**24)  # in units of 2**-24
        whole = scaled.astype(np.uint32)
        up = scaled - whole.astype(np.float32) > (chance >> np.uint32(8)) * np.float32(2.0**-24)
        stochastic = sign | np.where(small, whole + up, normal)
        finite = magnitude < 0x477FE000
    rounded: NDArray[Any] = np.where(finite, stochastic.astype(np.uint16), nearest).view(dtype)
    return rounded


def narrowed(values: Any, dtype: np.dtype[Any], update: RowUpdate) -> NDArray[Any]:
    """Return updated rows in the dtype of their table, rounded as the optimizer says.

    Parameters
    ----------
    values : array of the working dtype, shape (n, dim)
        Beyond the range of a short float lies inf, as in the compiled form.
    dtype : numpy.dtype
        The table's.
    update : RowUpdate
        Of these rows.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> batch = sort_occurrences(np.array([3]), np.array([0], np.int32), None, 4)
    >>> update = RowUpdate(batch, batch.rows, np.ones((1, 1)), SGD(), SGD().hyper(), step=1)
    >>> narrowed(np.array([[1 / 3]]), np.dtype("float16"), update)
    array([[0.3333]], dtype=float16)
    """
    array = np.asarray(values)
    if rounds_stochastically(update.optimizer, dtype):
        return stochastic_round(array, dtype, update.row_ids, step_seed(update.seed, update.step))
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)
