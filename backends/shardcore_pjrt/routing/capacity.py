"""How large an array is made for so many entries: few sizes, so that few programs are compiled.

A compiled program has fixed shapes. Every count that changes from batch to batch is therefore
rounded up to its *class*, and the rest of the array is padding.
"""

from __future__ import annotations

from typing import Final

from shardcore.errors import ShardcoreValueError

__all__ = ["capacity", "quarter_steps"]

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
