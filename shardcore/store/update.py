"""One pass over the unique rows of a batch: sum their gradients, hand them to the optimizer.

An optimizer's C function is called by the kernel, block by block, with pointers into the table and
its slots. An optimizer without one runs its pure form on NumPy copies of the same blocks. The face
of ``accumulate`` and ``update`` in ``_core/rows.pxi``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import KIND_OF, row_bytes, working_dtype
from shardcore.optimizer import Optimizer
from shardcore.store import threads
from shardcore.store.instruction_set import best_module
from shardcore.store.occurrences import Occurrences
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["accumulate", "update_rows"]

_kernel = best_module("shardcore._core.rows")

_BLOCK_ROWS: Final = 32  # as UPDATE_ROWS in rows.pxi
_PURE_BLOCK_BYTES: Final = 1 << 20


def accumulate(occurrences: Occurrences, gradients: NDArray[Any]) -> NDArray[Any]:
    """Return the summed gradient of each unique row.

    Parameters
    ----------
    occurrences : Occurrences
    gradients : ndarray of the working dtype, shape (bags, dim), C-contiguous

    Returns
    -------
    ndarray of the working dtype, shape (unique, dim)
        Summed in the order of the occurrences, runs above 4,096 in blocks of 4,096 counted from
        the first, blocks added in order.

    Examples
    --------
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> accumulate(batch, np.array([[1.0], [10.0]]))
    array([[ 1.],
           [11.]])
    """
    out = np.empty((occurrences.rows.size, gradients.shape[1]), gradients.dtype)
    _accumulate(occurrences, gradients, 0, occurrences.rows.size, out)
    return out


def _accumulate(
    occurrences: Occurrences, gradients: NDArray[Any], first: int, last: int, out: NDArray[Any]
) -> None:
    _kernel.accumulate[TYPE_NAMES[gradients.dtype]](
        gradients,
        occurrences.sources,
        occurrences.gains,
        occurrences.run_splits[first : last + 1],
        np.empty(gradients.shape[1], gradients.dtype),
        out,
    )


def update_rows(
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    optimizer: Optimizer,
    hyper: tuple[float, ...],
    step: int,
) -> None:
    """Update every row of a batch, and its slots, in place; each exactly once.

    Parameters
    ----------
    rows : ndarray, shape (rows, dim), C-contiguous, writable
    slots : mapping of slot name -> ndarray, shape (rows, dim) or (rows, 1)
        In the order of ``optimizer.slots``.
    occurrences : Occurrences
    row_ids : ndarray of int64, shape (unique,)
        The unique rows' numbers in the whole table.
    gradients : ndarray of the working dtype, shape (bags, dim), C-contiguous
    optimizer : Optimizer
    hyper : tuple of float
        ``optimizer.hyper()``, evaluated once for the batch.
    step : int
        1 for the first batch.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> rows, optimizer = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update_rows(rows, {}, batch, batch.rows, gradients, optimizer, optimizer.hyper(), step=1)
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """
    if not rows.shape[1]:  # no columns: nothing to learn
        return
    value = working_dtype(rows.dtype)
    function = optimizer.compiled(value)
    # The C function reads slots in the working dtype; those kept in a shorter one are widened here.
    if function is not None and all(slot.dtype == value for slot in slots.values()):
        update = _compiled_update(
            rows, slots, occurrences, row_ids, gradients, function.address_for(value), hyper, step
        )
    else:
        update = _pure_update(rows, slots, occurrences, row_ids, gradients, optimizer, hyper, step)
    pieces = threads.ranges(occurrences.run_splits, rows.shape[1])
    threads.run(len(pieces), lambda number: update(*pieces[number]))


def _compiled_update(
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    address: int,
    hyper: tuple[float, ...],
    step: int,
) -> Any:
    value = gradients.dtype
    kernel = _kernel.update[TYPE_NAMES[value]]
    table, kind, dim = row_bytes(rows), KIND_OF[rows.dtype.name], rows.shape[1]
    addresses = np.array([slot.ctypes.data for slot in slots.values()], np.int64)
    sizes = np.array([slot.shape[1] * slot.itemsize for slot in slots.values()], np.int64)
    numbers = np.array(hyper, np.float64)

    def update(first: int, last: int) -> None:
        kernel(
            table,
            kind,
            occurrences.rows[first:last],
            row_ids[first:last],
            occurrences.run_splits[first : last + 1],
            occurrences.sources,
            occurrences.gains,
            gradients,
            addresses,
            sizes,
            address,
            numbers,
            step,
            np.empty((2 * _BLOCK_ROWS + 1, dim), value),
            np.empty(_BLOCK_ROWS * (1 + len(slots)) + len(slots), np.int64),
        )

    return update


def _pure_update(
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    optimizer: Optimizer,
    hyper: tuple[float, ...],
    step: int,
) -> Any:
    value, dim = gradients.dtype, rows.shape[1]
    block = max(1, _PURE_BLOCK_BYTES // (dim * value.itemsize))

    def put(array: NDArray[Any], local: NDArray[np.int64], new: Any) -> None:
        with np.errstate(over="ignore"):  # beyond the range of a short float lies inf, as compiled
            put_rows(array, local, np.asarray(new).astype(array.dtype, copy=False))

    def update(first: int, last: int) -> None:
        for start in range(first, last, block):
            stop = min(start + block, last)
            local = occurrences.rows[start:stop]
            sums = np.empty((stop - start, dim), value)
            _accumulate(occurrences, gradients, start, stop, sums)
            old_slots = {
                name: gather_rows(slot, local).astype(value, copy=False)
                for name, slot in slots.items()
            }
            new_rows, new_slots = optimizer.update(
                sums,
                gather_rows(rows, local).astype(value, copy=False),
                old_slots,
                hyper,
                step,
                row_ids[start:stop],
            )
            put(rows, local, new_rows)
            for name, slot in slots.items():
                put(slot, local, new_slots[name])

    return update
