"""Whether numbers are finite, without an array of answers. The face of ``_core/finite.pxi``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from shardcore.store.instruction_set import best_module
from shardcore.threads import team

__all__ = ["all_finite"]

_kernel = best_module("shardcore._core.rows")


def all_finite(arrays: Iterable[NDArray[Any]]) -> bool:
    """Return whether no value of any array is infinite or NaN, by threads that share them out.

    Parameters
    ----------
    arrays : iterable of ndarray of float32 or float64, any shape, C-contiguous, aligned

    Examples
    --------
    >>> import numpy as np
    >>> all_finite([np.array([1.0, 2.0])]), all_finite([np.ones(2), np.array([[1.0, np.nan]])])
    (True, False)
    """
    tests = _kernel.FiniteTests()
    for array in arrays:
        tests.add(array)
    alone: bool | None = tests.make_alone(team.most_alone(team.PIECE))
    if alone is not None:
        return alone
    finite: list[bool] = []

    def make(_: int) -> None:
        finite.append(tests.make())

    team.make(tests, team.PIECE, make)
    return all(finite)
