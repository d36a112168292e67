"""The rows of a table and of its slots, as kernels find them: ``_core/stored_rows.pxi``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import KIND_OF, kind_of, row_bytes, working_dtype
from shardcore.store.instruction_set import best_module

__all__ = ["StoredRows"]

_kernel = best_module("shardcore._core.rows")


class StoredRows:
    """The rows of a table and of its slots, and where kernels find them that work on many tables.

    Parameters
    ----------
    rows : ndarray, shape (rows, dim), C-contiguous
        Read-only ones can be looked up, but not updated.
    slots : mapping of slot name -> ndarray, shape (rows, dim) or (rows, 1)
        In the order of ``optimizer.slots``.

    Attributes
    ----------
    by_kernel : bool
        Whether kernels can convert the slots to the working dtype, as they can rows. If not, even
        an optimizer that has a compiled form updates by its pure one.
    dim : int
    working : numpy.dtype
        The working dtype.

    Examples
    --------
    >>> rows = np.ones((4, 1))
    >>> StoredRows(rows, {"total": np.ones((4, 1), np.longdouble)}).by_kernel
    False
    """

    __slots__ = ("_found", "by_kernel", "dim", "rows", "slots", "working")

    def __init__(self, rows: NDArray[Any], slots: Mapping[str, NDArray[Any]]) -> None:
        self.rows = rows
        self.slots = slots
        self.dim: int = rows.shape[1]
        self.working = working_dtype(rows.dtype)
        arrays = list(slots.values())
        self.by_kernel = all(one.dtype.isnative and one.dtype.name in KIND_OF for one in arrays)
        self._found: Any = None

    @property
    def found(self) -> Any:
        """Where kernels find them, but for slots that they cannot convert; made when asked."""
        if self._found is None:
            arrays = list(self.slots.values()) if self.by_kernel else []
            self._found = _kernel.StoredRows(
                row_bytes(self.rows),
                kind_of(self.rows.dtype),
                self.dim,
                np.array([one.__array_interface__["data"][0] for one in arrays], np.int64),
                np.array([one.shape[1] * one.itemsize for one in arrays], np.int64),
                np.array([kind_of(one.dtype) for one in arrays], np.int64),
                self.working == np.float64,
                self.rows.flags.writeable,
                arrays,
            )
        return self._found
