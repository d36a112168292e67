"""What a SparseCore is told to take in one minibatch: few numbers, never less than a batch has.

The compiler bounds the distinct rows of a partition, since it keeps their gradients and slots in a
core's memory: at 128 columns it takes 4,096 of them (v6e), but needs 26 seconds for the update, and
16,384 it refuses. 512 take 3 seconds. The triples of a partition are streamed: 131,072 compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreValueError

__all__ = [
    "MOST_IDS",
    "MOST_MINIBATCHES",
    "Limits",
    "choose_limits",
    "most_unique",
    "preferred_unique",
]

MOST_IDS: Final = 1 << 17
"""Triples of a partition in one minibatch."""

MOST_MINIBATCHES: Final = 64
"""As many as the pointers have room for."""

_LEAST_IDS: Final = 256
_LEAST_UNIQUE: Final = 128
_UNIQUE_VALUES: Final = 512 * 128


@dataclass(frozen=True)
class Limits:
    """The numbers that a program is compiled with.

    Attributes
    ----------
    ids : int
        ``max_ids_per_partition``.
    unique : int
        ``max_unique_ids_per_partition``.
    """

    ids: int
    unique: int


def preferred_unique(columns: int) -> int:
    """Return how many distinct rows a partition has in a minibatch, where that suffices.

    Examples
    --------
    >>> [preferred_unique(columns) for columns in (8, 128, 256, 1024, 100_000)]
    [512, 512, 256, 64, 8]
    """
    return max(8, min(512, _UNIQUE_VALUES // columns) // 8 * 8)


def most_unique(columns: int) -> int:
    """Return how many distinct rows a partition may have in a minibatch.

    Examples
    --------
    >>> most_unique(128)
    4096
    """
    return 8 * preferred_unique(columns)


def choose_limits(
    ids: NDArray[np.int64], unique: NDArray[np.int64], columns: int, minibatched: bool = True
) -> tuple[int, Limits] | None:
    """Return the least minibatches for a batch, a power of two, and the limits of each.

    Parameters
    ----------
    ids, unique : ndarray of int64, shape (partitions, buckets)
        Triples and distinct rows. With one bucket, None is returned where one minibatch is not
        enough; else there are 64.
    columns : int
        Of the stack.
    minibatched : bool
        Whether there may be several. The last that there may be, one or the 64th, may have more
        distinct rows than is preferred: such a program takes longer to compile.

    Raises
    ------
    ShardcoreValueError
        If 64 minibatches, or the one, are not enough.

    Examples
    --------
    >>> choose_limits(np.array([[700], [90]]), np.array([[300], [90]]), 128)
    (1, Limits(ids=1024, unique=512))
    >>> choose_limits(np.array([[700]]), np.array([[600]]), 128) is None
    True
    """
    preferred, most, buckets = preferred_unique(columns), most_unique(columns), ids.shape[1]
    minibatches = 1
    while True:
        shape = (ids.shape[0], minibatches, -1)
        found = int(ids.reshape(shape).sum(axis=2).max(initial=0))
        distinct = int(unique.reshape(shape).sum(axis=2).max(initial=0))
        last = minibatches == (MOST_MINIBATCHES if minibatched else 1)
        allowed = most if last else preferred
        if found <= MOST_IDS and distinct <= allowed:
            return minibatches, Limits(
                _power_of_two(max(found, _LEAST_IDS)),
                min(allowed, _power_of_two(max(distinct, _LEAST_UNIQUE))),
            )
        if last:
            break
        if minibatches == buckets:
            return None
        minibatches *= 2
    count, limit, kind = (
        (distinct, most, "distinct rows") if distinct > most else (found, MOST_IDS, "ids")
    )
    parts = f"in each of {MOST_MINIBATCHES} minibatches" if minibatched else "in one minibatch"
    raise ShardcoreValueError(
        "the ids of a batch from bags of one SparseCore to rows of another must be at most "
        f"{limit} {kind} {parts}, got {count}: use smaller batches or more devices"
    )


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
