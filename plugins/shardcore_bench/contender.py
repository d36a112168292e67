"""One way to do a task, and the proof that two ways do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXACT",
    "LONG_SUMS",
    "Arrays",
    "Contender",
    "Tolerance",
    "UnableError",
    "check_equal",
    "in_turn",
    "units_apart",
]

Arrays = tuple[NDArray[Any], ...]


class UnableError(Exception):
    """A peer cannot do a task, or not by the same definition; the message says why."""


@dataclass(frozen=True)
class Contender:
    """One way to do a task.

    Attributes
    ----------
    what : str
        The function that is called.
    run : callable
        What is timed.
    arrays : callable, optional
        What `run` returned -> arrays to compare, in the form the task describes. None: it does
        other work, and is compared by time only.
    """

    what: str
    run: Callable[[], Any]
    arrays: Callable[[Any], Arrays] | None


def in_turn(parts: Sequence[Contender]) -> Contender:
    """Return the contender that does the work of several one after the other; of one, that one.

    Arrays of the parts are joined: the first of each, then the second of each. If a part is
    compared by time only, so is the whole.

    Examples
    --------
    >>> both = in_turn([Contender("+ 1", lambda at=at: at + 1, lambda x: (x,)) for at in np.eye(2)])
    >>> both.arrays(both.run())
    (array([2., 1., 1., 2.]),)
    """
    if len(parts) == 1:
        return parts[0]
    runs = [part.run for part in parts]
    reads = [part.arrays for part in parts if part.arrays is not None]

    def arrays(found: list[Any]) -> Arrays:
        of_parts = [read(one) for read, one in zip(reads, found, strict=True)]
        return tuple(map(np.concatenate, zip(*of_parts, strict=True)))

    compared = len(reads) == len(parts)
    return Contender(parts[0].what, lambda: [run() for run in runs], arrays if compared else None)


@dataclass(frozen=True)
class Tolerance:
    """How far apart equal results may lie.

    Attributes
    ----------
    relative, absolute : float
        Of float32 and float64 arrays, as in `numpy.allclose`.
    units : int
        Of float16 and bfloat16 arrays: so many of their neighbours away.
    exceptions, limit : float
        So large a share of the elements of a float array may lie apart by up to `limit`.
    """

    relative: float = 1e-4
    absolute: float = 1e-5
    units: int = 1
    exceptions: float = 0.0
    limit: float = 0.0


EXACT: Final = Tolerance()
"""Of float32 sums in another order."""

LONG_SUMS: Final = Tolerance(exceptions=1e-4, limit=2e-3)
"""Where some rows sum a hundred thousand gradients: others add them up one by one."""


def units_apart(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.int32]:
    """Return how many neighbours of a two-byte float type lie between two arrays of it.

    Examples
    --------
    >>> units_apart(np.float16([1.0, -0.0]), np.float16([1.002, 6e-8])).tolist()
    [2, 1]
    """

    def ordered(array: NDArray[Any]) -> NDArray[np.int32]:
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.int32)
        return np.where(bits >= 0x8000, 0x8000 - bits, bits)

    return abs(ordered(left) - ordered(right))


def check_equal(
    ours: Contender, theirs: Contender, case: str, tolerance: Tolerance = EXACT
) -> None:
    """Let both do the work once and compare, where both do the same.

    Raises
    ------
    AssertionError
        If a result differs, in number, shape or value.
    """
    if ours.arrays is None or theirs.arrays is None:
        return
    message = f"{case}: {ours.what} and {theirs.what} disagree"
    mine, other = ours.arrays(ours.run()), theirs.arrays(theirs.run())
    assert len(mine) == len(other), f"{message}: {len(mine)} and {len(other)} arrays"
    for left, right in zip(mine, other, strict=True):
        if left.dtype.itemsize == 2 and left.dtype == right.dtype:
            assert left.shape == right.shape, f"{message}: shapes {left.shape} and {right.shape}"
            assert np.isfinite(left).all(), f"{message}: not finite"
            apart = int(units_apart(left, right).max(initial=0))
            assert apart <= tolerance.units, f"{message}: {apart} units in the last place"
        elif left.dtype.kind == "f":
            if left.shape == right.shape:
                left = _without_exceptions(left, right, tolerance)
            np.testing.assert_allclose(
                left, right, tolerance.relative, tolerance.absolute, err_msg=message
            )
        else:
            np.testing.assert_array_equal(left, right, err_msg=message)


def _without_exceptions(
    left: NDArray[Any], right: NDArray[Any], tolerance: Tolerance
) -> NDArray[Any]:
    """Return the left array with the elements of the right one where they may differ more."""
    apart = ~np.isclose(left, right, tolerance.relative, tolerance.absolute)
    apart &= abs(left - right) <= tolerance.limit
    few = np.count_nonzero(apart) <= tolerance.exceptions * left.size
    return np.where(apart, right, left) if few else left
