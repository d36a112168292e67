"""When two results agree: every bit, or, where the one under test says so, within a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["assert_agree"]


def assert_agree(
    actual: Any, expected: NDArray[Any], what: str, tolerance: float | None = None
) -> None:
    """Raise unless `actual` is the array that was expected.

    Parameters
    ----------
    actual : object
    expected : ndarray
    what : str
        Begins the message.
    tolerance : float, optional
        Relative and absolute; None: every bit, the sign of a zero included. Values of a short dtype
        may differ by two units in the last place besides.

    Raises
    ------
    AssertionError
        If it is no NumPy array, or its dtype, shape or a value differs.

    Examples
    --------
    >>> assert_agree(np.array([1.0, 2.0]), np.array([1.0, 2.5]), "rows")
    Traceback (most recent call last):
    AssertionError: rows[1] is 2.0, expected 2.5; 1 of 2 values differ
    >>> assert_agree(np.array([1.0, 2.0]), np.array([1.0, 2.0 + 1e-9]), "rows", tolerance=1e-6)
    """
    if not isinstance(actual, np.ndarray):
        raise AssertionError(f"{what} must be a NumPy array, got {type(actual).__name__}")
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"{what} must be {expected.dtype} of shape {expected.shape}, "
            f"got {actual.dtype} of shape {actual.shape}"
        )
    differ = (
        _bits_differ(actual, expected) if tolerance is None else _far(actual, expected, tolerance)
    )
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        place = f"[{', '.join(map(str, at))}]" if at else ""
        raise AssertionError(
            f"{what}{place} is {actual[at]}, expected {expected[at]}; "
            f"{int(differ.sum())} of {differ.size} values differ"
        )


def _bits_differ(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    bits = np.dtype(f"u{actual.itemsize}")
    return np.asarray(
        np.ascontiguousarray(actual).view(bits) != np.ascontiguousarray(expected).view(bits)
    )


def _far(actual: NDArray[Any], expected: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    # float16 has 11 significant bits, bfloat16 has 8: two units in the last place.
    last_places = {"float16": 2.0**-9, "bfloat16": 2.0**-6}.get(actual.dtype.name, 0.0)
    limit = max(tolerance, last_places)
    wide, wanted = actual.astype(np.float64), expected.astype(np.float64)
    return ~np.isclose(wide, wanted, rtol=limit, atol=limit, equal_nan=True)
