"""How large an array is made for so many entries: few sizes, so that few programs are compiled.

A compiled program has fixed shapes. Every count that changes from batch to batch is therefore
rounded up to its *class*, and the rest of the array is padding.

Counts that vary by chance may fall to both sides of a class's border, and several of them to any
combination of sides. `Rooms` remembers which classes were taken, and takes the larger one again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from typing import Final

from shardcore.errors import ShardcoreValueError

__all__ = ["Rooms", "capacity", "quarter_steps"]

SMALLEST: Final = 8
DOUBLING: Final = 1024
"""Classes up to here are powers of two; above, four to a doubling."""
LARGEST: Final = 7 << 28
"""The last class whose positions, and one past them, fit int32."""


def quarter_steps(n: int) -> int:
    """Return `n` rounded up to one of four steps to a doubling: 4, 5, 6, 7, 8, 10, 12, 14, 16, ...

    Parameters
    ----------
    n : int, >= 0

    Returns
    -------
    int
        Less than ``1.25 * n`` for n > 4; `n` itself below.

    Examples
    --------
    >>> [quarter_steps(n) for n in (0, 3, 7, 9, 17, 100)]
    [0, 3, 7, 10, 20, 112]
    """
    step = 1 << max(0, n.bit_length() - 3)
    return -(-n // step) * step


def capacity(n: int) -> int:
    """Return the class of a count: the size of an array that holds `n` entries.

    Classes are 8, 16, 32, ... 1024, and from there on four to a doubling: 1280, 1536, 1792, 2048,
    2560, ... So counts up to a million fall into 48 classes.

    Parameters
    ----------
    n : int, >= 0

    Returns
    -------
    int
        At least `n`, at least 8, never less for a larger `n`; less than ``2 * n`` for n > 4, and
        less than ``1.25 * n`` for n > 1024.

    Raises
    ------
    ShardcoreValueError
        If the count is above 7 * 2**28: positions would not fit int32.

    Examples
    --------
    >>> [capacity(n) for n in (0, 9, 1000, 1025, 1_000_000)]
    [8, 16, 1024, 1280, 1048576]
    """
    if n > LARGEST:
        raise ShardcoreValueError(
            f"a batch must name at most {LARGEST} rows of one table on a device, got {n}"
        )
    if n > DOUBLING:
        return quarter_steps(n)
    return max(SMALLEST, 1 << max(0, n - 1).bit_length())


class Rooms:
    """The classes that the batches of one table have taken.

    Examples
    --------
    >>> rooms = Rooms()
    >>> [rooms.room("rows", n) for n in (120, 118, 135, 118, 12)]
    [256, 256, 256, 256, 32]
    """

    def __init__(self) -> None:
        self._taken: dict[Hashable, set[int]] = {}
        self._lock = threading.Lock()

    def room(self, what: Hashable, count: int) -> int:
        """Return the class for a count: one that was taken before, if it is not too large.

        Parameters
        ----------
        what : hashable
            Counts of the same thing share classes.
        count : int, >= 0

        Returns
        -------
        int
            The largest class taken for it that is at most twice `roomy`; else `roomy` itself.

        Raises
        ------
        ShardcoreValueError
            As `capacity`.
        """
        own = roomy(count)
        with self._lock:
            taken = self._taken.setdefault(what, set())
            room = max((one for one in taken if count <= one <= 2 * own), default=own)
            taken.add(room)
        return room

    def longest(self, what: Hashable, length: int, bound: float) -> int:
        """Return the greatest length taken before, from `length` to `bound`; 0 if none is.

        Parameters
        ----------
        what : hashable
        length : int
        bound : float
        """
        with self._lock:
            return max(
                (one for one in self._taken.get(what, ()) if length <= one <= bound), default=0
            )

    def take(self, what: Hashable, room: int) -> None:
        """Remember a class that was taken."""
        with self._lock:
            self._taken.setdefault(what, set()).add(room)


def roomy(count: int) -> int:
    """Return the class of a count that other batches of the kind exceed by chance.

    Parameters
    ----------
    count : int, >= 0

    Returns
    -------
    int
        The class of the count and four times its root, as far as there is one.

    Examples
    --------
    >>> roomy(100), roomy(10_000)
    (256, 12288)
    """
    least = capacity(count)
    return max(least, capacity(min(count + 4 * math.isqrt(count), LARGEST)))
