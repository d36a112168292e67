"""Rows scaled down to a greatest norm, as a lookup sees them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown

__all__ = ["as_max_norm", "scaled_to_norm"]


def as_max_norm(value: object) -> float | None:
    """Return the greatest norm of a table's rows as a float, or None.

    Parameters
    ----------
    value : real number, or None

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is no real number, or not above 0 and finite.

    Examples
    --------
    >>> as_max_norm(2)
    2.0
    """
    if value is None:
        return None
    rule = f"max_norm must be a finite number > 0 or None, got {shown(value)}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ShardcoreTypeError(rule)
    try:
        norm = float(value)
    except OverflowError as error:
        raise ShardcoreValueError(rule) from error
    if not 0 < norm < math.inf:
        raise ShardcoreValueError(rule)
    return norm


def scaled_to_norm(rows: NDArray[Any], max_norm: float) -> NDArray[Any]:
    """Return rows, those of a greater L2 norm over all their axes scaled down to it.

    Squares are added in float64, in the order of the elements, so that those of large float32
    values stay finite, and a row's result depends on no other row.

    Parameters
    ----------
    rows : ndarray of a table's dtype, one row or more axes each
    max_norm : float, > 0

    Returns
    -------
    ndarray
        New rows, of the same shape and dtype; NaN stays NaN.

    Examples
    --------
    >>> scaled_to_norm(np.array([[3.0, 4.0], [0.6, 0.8]]), 2.5)
    array([[1.5, 2. ],
           [0.6, 0.8]])
    """
    if not rows.size:
        return rows.copy()
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # as TensorFlow: inf is NaN
        norms = _norms(flat)
        over = norms > max_norm
        flat[over] *= (max_norm / norms[over])[:, None]
        scaled = rows.copy()
        scaled[over] = flat[over].reshape(-1, *rows.shape[1:])
    return scaled


def _norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.sqrt(np.add.accumulate(rows * rows, axis=1)[:, -1])
    return norms
