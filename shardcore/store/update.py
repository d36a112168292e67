"""One pass over the unique rows of a batch: sum their gradients, hand them to the optimizer.

An optimizer's C function is called by the kernel, block by block, with pointers into the table and
its slots. An optimizer without one runs its pure form on NumPy copies of the same blocks. An
optimizer that does not accumulate is called once per occurrence instead of once per row. The face
of ``accumulate`` and ``update`` in ``_core/rows.pxi``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import kind_of, row_bytes, working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.optimizer.base import Optimizer
from shardcore.store import threads
from shardcore.store.instruction_set import best_module
from shardcore.store.occurrences import Occurrences
from shardcore.store.rounding import narrowed, rounds_by_chance, step_seed
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["accumulate", "stage_update", "update_rows", "updated"]

Commit = Callable[[], None]

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
    _kernel.accumulate[TYPE_NAMES[gradients.dtype]](
        gradients,
        occurrences.sources,
        occurrences.gains,
        occurrences.run_splits,
        np.empty(gradients.shape[1], gradients.dtype),
        out,
    )
    return out


def updated(
    optimizer: Optimizer,
    occurrences: Occurrences,
    gradients: NDArray[Any],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    hyper: tuple[float, ...],
    step: int,
    row_ids: NDArray[np.int64],
) -> tuple[Any, Mapping[str, Any]]:
    """Return what an optimizer's pure form makes of the rows of a batch and their slots.

    Parameters
    ----------
    optimizer : Optimizer
    occurrences : Occurrences
    gradients : ndarray of the working dtype, shape (bags, dim), C-contiguous
    rows : ndarray of the working dtype, shape (unique, dim)
        Those that the occurrences name.
    slots : mapping of slot name -> ndarray of the working dtype, shape (unique, dim) or (unique, 1)
    hyper : tuple of float
    step : int
    row_ids : ndarray of int64, shape (unique,)
        The rows' numbers in the whole table.

    Returns
    -------
    rows, slots
        One update of each row by its summed gradient; or, with an optimizer that does not
        accumulate, one per occurrence in their order, of all rows that have a first one, then of
        those that have a second, and so on.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> one_by_one = SGD(learning_rate=0.5, use_gradient_accumulation=False)
    >>> rows, _ = updated(one_by_one, batch, np.array([[1.0], [10.0]]), np.ones((2, 1)), {},
    ...                   one_by_one.hyper(), 1, batch.rows)
    >>> rows[:, 0]
    array([ 0.5, -4.5])
    """
    if optimizer.accumulate:
        sums = accumulate(occurrences, gradients)
        with np.errstate(all="ignore"):  # infinities come without a word, as from a compiled form
            return optimizer.update(sums, rows, slots, hyper, step, row_ids)
    new_rows = rows.copy()
    new_slots = {name: slot.copy() for name, slot in slots.items()}
    starts, lengths = occurrences.run_splits[:-1], np.diff(occurrences.run_splits)
    gains = occurrences.gains
    for turn in range(int(lengths.max(initial=0))):
        chosen = np.flatnonzero(lengths > turn)
        at = starts[chosen] + turn
        ones = Occurrences(
            occurrences.rows[chosen],
            np.arange(chosen.size + 1, dtype=np.int64),
            occurrences.sources[at],
            None if gains is None else gains[at],
        )
        with np.errstate(all="ignore"):
            moved, kept = optimizer.update(
                accumulate(ones, gradients),
                new_rows[chosen],
                {name: slot[chosen] for name, slot in new_slots.items()},
                hyper,
                step,
                row_ids[chosen],
            )
        new_rows[chosen] = moved
        for name, slot in new_slots.items():
            slot[chosen] = kept[name]
    return new_rows, new_slots


def stage_update(
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    optimizer: Optimizer,
    hyper: tuple[float, ...],
    step: int,
    seed: int = 0,
) -> Commit:
    """Prepare the update of every row of a batch, and of its slots, and return what makes it.

    Each row is updated once, by its summed gradient; or once per occurrence, with an optimizer that
    does not accumulate. Rows of a short dtype are rounded back once. Whatever Python computes, and
    can fail, happens here; what is returned only runs kernels.

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
    seed : int, default 0
        The table's, for stochastic rounding.

    Returns
    -------
    callable
        Changes rows and slots in place when it is called without arguments; to be called once,
        before they change otherwise.

    Raises
    ------
    ShardcoreValueError
        If there is not one hyper-parameter for each of the optimizer's names.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> rows, optimizer = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> hyper = optimizer.hyper()
    >>> commit = stage_update(rows, {}, batch, batch.rows, gradients, optimizer, hyper, step=1)
    >>> commit()
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """
    names = optimizer.hyper_names
    if len(hyper) != len(names):  # the C function reads as many as there are names
        raise ShardcoreValueError(
            f"hyper must have a value for each of {', '.join(names) or 'no names'}, "
            f"got {len(hyper)} values"
        )
    if not rows.shape[1]:  # no columns: nothing to learn
        return _nothing
    value = working_dtype(rows.dtype)
    function = optimizer.compiled(value)
    pieces = threads.ranges(occurrences.run_splits, rows.shape[1])
    # The C function reads slots in the working dtype; those kept in a shorter one are widened here.
    if function is not None and all(slot.dtype == value for slot in slots.values()):
        return _compiled_update(
            pieces,
            rows,
            slots,
            occurrences,
            row_ids,
            gradients,
            optimizer,
            function.address_for(value),
            hyper,
            step,
            seed,
        )
    return _pure_update(
        pieces, rows, slots, occurrences, row_ids, gradients, optimizer, hyper, step, seed
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
    seed: int = 0,
) -> None:
    """Update every row of a batch, and its slots, in place: `stage_update`, and what it returns.

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
    stage_update(rows, slots, occurrences, row_ids, gradients, optimizer, hyper, step, seed)()


def _nothing() -> None:
    """Change nothing."""


def _compiled_update(
    pieces: list[tuple[int, int]],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    optimizer: Optimizer,
    address: int,
    hyper: tuple[float, ...],
    step: int,
    seed: int,
) -> Commit:
    value = gradients.dtype
    kernel = _kernel.update[TYPE_NAMES[value]]
    table, kind, dim = row_bytes(rows), kind_of(rows.dtype), rows.shape[1]
    addresses = np.array([slot.__array_interface__["data"][0] for slot in slots.values()], np.int64)
    sizes = np.array([slot.shape[1] * slot.itemsize for slot in slots.values()], np.int64)
    numbers = np.array(hyper, np.float64)
    by_chance = rounds_by_chance(optimizer, rows.dtype)
    seed_now = step_seed(seed, step) if by_chance else 0
    scratch = [
        (
            np.empty((2 * _BLOCK_ROWS + 1, dim), value),
            np.empty(_BLOCK_ROWS * (2 + len(slots)) + len(slots), np.int64),
        )
        for _ in pieces
    ]

    def update(number: int) -> None:
        first, last = pieces[number]
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
            not optimizer.accumulate,
            by_chance,
            seed_now,
            *scratch[number],
        )

    return lambda: threads.run(len(pieces), update)


def _pure_update(
    pieces: list[tuple[int, int]],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    occurrences: Occurrences,
    row_ids: NDArray[np.int64],
    gradients: NDArray[Any],
    optimizer: Optimizer,
    hyper: tuple[float, ...],
    step: int,
    seed: int,
) -> Commit:
    value, dim = gradients.dtype, rows.shape[1]
    block = max(1, _PURE_BLOCK_BYTES // (dim * value.itemsize))

    staged: list[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]] = [[] for _ in pieces]

    def stage(number: int) -> None:
        for start in range(*pieces[number], block):
            stop = min(start + block, pieces[number][1])
            part = Occurrences(
                occurrences.rows[start:stop],
                occurrences.run_splits[start : stop + 1],
                occurrences.sources,
                occurrences.gains,
            )
            ids = row_ids[start:stop]
            new_rows, new_slots = updated(
                optimizer,
                part,
                gradients,
                gather_rows(rows, part.rows).astype(value, copy=False),
                {
                    name: gather_rows(slot, part.rows).astype(value, copy=False)
                    for name, slot in slots.items()
                },
                hyper,
                step,
                ids,
            )
            stored = narrowed(new_rows, rows.dtype, optimizer, ids, seed, step)
            staged[number].append(_write(rows, part.rows, stored))
            for name, slot in slots.items():
                with np.errstate(over="ignore"):
                    kept = np.asarray(new_slots[name]).astype(slot.dtype, copy=False)
                staged[number].append(_write(slot, part.rows, kept))

    def commit(number: int) -> None:
        for array, places, values in staged[number]:
            put_rows(array, places, values)

    threads.run(len(pieces), stage)
    return lambda: threads.run(len(pieces), commit)


def _write(
    array: NDArray[Any], places: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """Return what `put_rows` will be given, checked as it would be."""
    shape = (places.size, *array.shape[1:])
    if values.dtype != array.dtype or values.shape != shape:
        raise ShardcoreValueError(
            f"values must be {array.dtype} of shape {shape}, got {values.dtype} of shape "
            f"{values.shape}"
        )
    # An optimizer may hand out an array it goes on using.
    return array, places, np.array(values, order="C")
