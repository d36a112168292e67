"""Element types of tables: which exist, and in which type their rows are combined.

float32 and float64 rows are combined in their own type, the two short types in float32.
bfloat16 is not a NumPy type; it comes from ml_dtypes, an extra imported only when asked for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from shardcore._core.constants import KINDS
from shardcore.errors import ShardcoreTypeError, UnavailableError, shown
from shardcore.extras import pip_install

__all__ = [
    "as_dtype",
    "kind_of",
    "table_dtype",
    "working_dtype",
    "row_bytes",
    "KIND_OF",
    "TABLE_DTYPES",
]

KIND_OF: Final = KINDS
"""Name of a dtype -> its kind in ``_core/rows.pxi``. Integers can be scattered to, not combined."""

_FLOAT32: Final[np.dtype[Any]] = np.dtype(np.float32)
_FLOAT64: Final[np.dtype[Any]] = np.dtype(np.float64)

TABLE_DTYPES: Final = ("float32", "float64", "float16", "bfloat16")


def as_dtype(dtype: DTypeLike, argument: str = "dtype") -> np.dtype[Any]:
    """Return ``np.dtype(dtype)``, also for the name ``"bfloat16"``, or raise a named error.

    Parameters
    ----------
    dtype : anything ``np.dtype`` takes, or ``"bfloat16"``
    argument : str
        The caller's argument, for the message.

    Raises
    ------
    ShardcoreTypeError
        If it is no dtype. None is none: NumPy takes it for float64.
    UnavailableError
        If it is bfloat16 and ml_dtypes is not installed.

    Examples
    --------
    >>> as_dtype("float16")
    dtype('float16')
    """
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise UnavailableError(
                f"{argument} 'bfloat16' needs the package ml_dtypes; {pip_install('bfloat16')}"
            ) from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    try:
        if dtype is not None:
            return np.dtype(dtype)
        reason = None
    except Exception as error:  # NumPy parses strings and asks attributes: no one kind of error
        reason = error
    raise ShardcoreTypeError(f"{argument} must be a dtype, got {shown(dtype)}") from reason


def table_dtype(dtype: DTypeLike, argument: str = "dtype") -> np.dtype[Any]:
    """Return the dtype of a table that can be trained: one of the four float types.

    Raises
    ------
    ShardcoreTypeError
        If it is another one.

    Examples
    --------
    >>> table_dtype("float32")
    dtype('float32')
    """
    resolved = as_dtype(dtype, argument)
    if resolved.name not in TABLE_DTYPES or not resolved.isnative:
        raise ShardcoreTypeError(
            f"{argument} must be float32, float64, float16 or bfloat16, "
            f"got {(resolved.name if resolved.isnative else resolved.str)!r}"
        )
    return resolved


@lru_cache(maxsize=32)
def kind_of(dtype: np.dtype[Any]) -> int:
    """Return ``KIND_OF[dtype.name]``; NumPy takes longer for a name than some kernels for a bag.

    Examples
    --------
    >>> kind_of(np.dtype("float64"))
    1
    """
    return KIND_OF[dtype.name]


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which rows of `dtype` are combined: float64 for float64, else float32.

    Examples
    --------
    >>> working_dtype(np.dtype("float16"))
    dtype('float32')
    """
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def row_bytes(table: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the C-contiguous `table` (rows, dim) as the kernels read it: bytes, no copy."""
    if table.size == 0:
        return np.empty((table.shape[0], 0), np.uint8)
    return table.view(np.uint8)
