"""Rows and slots of a new table: what `Backend.make_table` puts where the backend keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.messages import TableSpec
from shardcore.initializers.filling import fill
from shardcore.optimizer.slot_values import initial_slots
from shardcore.validation.shapes import as_count

__all__ = ["initial_arrays", "initial_blocks"]


def initial_arrays(spec: TableSpec) -> dict[str | None, NDArray[Any]]:
    """Return a new table's weights, under None, and its slots, under their names.

    Returns
    -------
    dict of slot name or None -> new ndarray, (num_rows, dim) or (num_rows, 1)

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If the initializer, or the optimizer's `init`, gives no such values.

    Examples
    --------
    >>> from shardcore.initializers import RowId
    >>> initial_arrays(TableSpec("t", 3, 1, np.dtype("float32"), RowId(), 0))
    {None: array([[0.],
           [1.],
           [2.]], dtype=float32)}
    """
    return _of_rows(spec, range(spec.num_rows))


def initial_blocks(
    spec: TableSpec, block_rows: int = 1 << 14
) -> Iterator[tuple[range, dict[str | None, NDArray[Any]]]]:
    """Yield a new table's rows block by block, for tables that memory has no room for.

    Parameters
    ----------
    spec : TableSpec
    block_rows : int, >= 1

    Yields
    ------
    range, dict of slot name or None -> new ndarray
        The numbers of the rows, and what `initial_arrays` returns, of these rows.

    Examples
    --------
    >>> from shardcore.initializers import RowId
    >>> spec = TableSpec("t", 3, 1, np.dtype("float32"), RowId(), 0)
    >>> for rows, arrays in initial_blocks(spec, block_rows=2):
    ...     print(rows, arrays[None].tolist())
    range(0, 2) [[0.0], [1.0]]
    range(2, 3) [[2.0]]
    """
    size = as_count(block_rows, "block_rows")
    for start in range(0, spec.num_rows, size):
        rows = range(start, min(start + size, spec.num_rows))
        yield rows, _of_rows(spec, rows)


def _of_rows(spec: TableSpec, numbers: range) -> dict[str | None, NDArray[Any]]:
    rows = np.empty((len(numbers), spec.dim), spec.dtype)
    fill(rows, spec.initializer, numbers, spec.seed)
    arrays: dict[str | None, NDArray[Any]] = {None: rows}
    arrays.update(initial_slots(spec.optimizer, rows, numbers, spec.seed))
    return arrays
