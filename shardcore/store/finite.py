"""Whether numbers are finite, without an array of answers. The face of ``_core/rows.pxi``."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shardcore.store.instruction_set import best_module
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["all_finite"]

_kernel = best_module("shardcore._core.rows")


def all_finite(values: NDArray[Any]) -> bool:
    """Return whether no value is infinite or NaN.

    Parameters
    ----------
    values : ndarray of float32 or float64, any shape, C-contiguous, aligned

    Examples
    --------
    >>> import numpy as np
    >>> all_finite(np.array([1.0, 2.0])), all_finite(np.array([[1.0, np.nan]]))
    (True, False)
    """
    found: Any = _kernel.all_finite[TYPE_NAMES[values.dtype]](values.reshape(-1))
    return bool(found)
