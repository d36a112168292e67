"""Which of a device's bags each occurrence is in, from what the host sends: where the bags end.

A number a bag, not one an occurrence, goes to the devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

__all__ = ["local_bags"]


def local_bags(mine: Mapping[str, jax.Array], occurrences: int, pooling: int) -> jax.Array:
    """Return the local bag of each occurrence of a device.

    Parameters
    ----------
    mine : mapping of str to array
        Of `LookupRoute`, the device's own: ``end`` (T,), if ragged.
    occurrences : int
        Places N in the device's list.
    pooling : int
        Places of every bag; 0: they are ragged.

    Returns
    -------
    array of int32, shape (N,)
        Never less than the one before; of the padding of ragged bags T.

    Examples
    --------
    >>> local_bags({"end": jnp.array([2, 2, 5])}, 7, 0).tolist()
    [0, 0, 2, 2, 2, 3, 3]
    >>> local_bags({}, 4, 2).tolist()
    [0, 0, 1, 1]
    """
    if pooling:
        return jnp.arange(occurrences, dtype=jnp.int32) // pooling
    ended = jnp.zeros(occurrences, jnp.int32)
    ended = ended.at[mine["end"]].add(1, mode="drop", indices_are_sorted=True)
    return jnp.cumsum(ended)
