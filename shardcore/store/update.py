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

from shardcore.dtypes import KIND_OF, kind_of, row_bytes, working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.memory import pool
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.store import threads
from shardcore.store.instruction_set import UPDATE_BLOCK, UPDATE_SECTIONS, best_module
from shardcore.store.occurrences import Occurrences
from shardcore.store.rounding import narrowed, rounds_stochastically, step_seed
from shardcore.store.row_update import RowUpdate
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import TYPE_NAMES

__all__ = ["accumulate", "reads_slots", "stage_update", "update_rows", "updated"]

Commit = Callable[[], None]

_kernel = best_module("shardcore._core.rows")

_PURE_BLOCK_BYTES: Final = 1 << 20

_GRADIENT_BYTES: Final = 1 << 20
"""Of a batch: with fewer, the second-level cache holds them all while long runs are summed."""

_TIMES_READ: Final = 2
"""How often the occurrences of long runs read a gradient, at least, for them to be summed first."""


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
    rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate
) -> tuple[Any, Mapping[str, Any]]:
    """Return what an optimizer's pure form makes of the rows of a batch and their slots.

    Parameters
    ----------
    rows : ndarray of the working dtype, shape (unique, dim)
        Those that the update's occurrences name.
    slots : mapping of slot name -> ndarray of the working dtype, shape (unique, dim) or (unique, 1)
    update : RowUpdate

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
    >>> sgd = SGD(learning_rate=0.5, use_gradient_accumulation=False)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update = RowUpdate(batch, batch.rows, gradients, sgd, sgd.hyper(), step=1)
    >>> rows, _ = updated(np.ones((2, 1)), {}, update)
    >>> rows[:, 0]
    array([ 0.5, -4.5])
    """
    optimizer, gradients, row_ids = update.optimizer, update.gradients, update.row_ids
    hyper, step, occurrences = update.hyper, update.step, update.occurrences
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


def reads_slots(slots: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether the kernel can convert slots to the working dtype, as it can rows."""
    return all(slot.dtype.isnative and slot.dtype.name in KIND_OF for slot in slots.values())


def stage_update(
    rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate
) -> Commit:
    """Prepare the update of every row of a batch, and of its slots, and return what makes it.

    Each row is updated once, by its summed gradient; or once per occurrence, with an optimizer that
    does not accumulate. Rows of a short dtype are rounded back once. All that Python computes, and
    can fail, happens here; what is returned only runs kernels.

    Parameters
    ----------
    rows : ndarray, shape (rows, dim), C-contiguous, writable
    slots : mapping of slot name -> ndarray, shape (rows, dim) or (rows, 1)
        In the order of ``optimizer.slots``.
    update : RowUpdate

    Returns
    -------
    callable
        Changes rows and slots in place when it is called without arguments; to be called once,
        before they change otherwise.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> rows, sgd = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update = RowUpdate(batch, batch.rows, gradients, sgd, sgd.hyper(), step=1)
    >>> commit = stage_update(rows, {}, update)
    >>> commit()
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """
    if not rows.shape[1]:  # no columns: nothing to learn
        return _nothing
    function = update.optimizer.compiled(working_dtype(rows.dtype))
    pieces = threads.ranges(update.occurrences.run_splits, rows.shape[1])
    if function is not None and reads_slots(slots):
        return _compiled_update(pieces, rows, slots, update, function)
    return _pure_update(pieces, rows, slots, update)


def update_rows(rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate) -> None:
    """Update every row of a batch, and its slots, in place: `stage_update`, and what it returns.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> rows, sgd = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update_rows(rows, {}, RowUpdate(batch, batch.rows, gradients, sgd, sgd.hyper(), step=1))
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """
    stage_update(rows, slots, update)()


def _nothing() -> None:
    """Change nothing."""


def _compiled_update(
    pieces: list[tuple[int, int]],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    update: RowUpdate,
    function: UpdateFunction,
) -> Commit:
    value = update.gradients.dtype
    kernel = _kernel.update[TYPE_NAMES[value]]
    arrays = list(slots.values())
    table, kind = row_bytes(rows), kind_of(rows.dtype)
    addresses = np.array([slot.__array_interface__["data"][0] for slot in arrays], np.int64)
    sizes = np.array([slot.shape[1] * slot.itemsize for slot in arrays], np.int64)
    kinds = np.array([kind_of(slot.dtype) for slot in arrays], np.int64)
    converted = sum(slot.dtype != value for slot in arrays)
    values, pointers = _kernel.update_room(rows.shape[1], len(arrays), converted)
    scratch = [(np.empty(values, value), np.empty(pointers, np.int64)) for _ in pieces]
    long_runs = _summed_first(update, pieces)
    address, hyper = function.address_for(value), np.array(update.hyper, np.float64)
    stochastic = rounds_stochastically(update.optimizer, rows.dtype)
    seed = step_seed(update.seed, update.step) if stochastic else 0
    occurrences, row_ids = update.occurrences, update.row_ids

    def run(number: int) -> None:
        first, last = pieces[number]
        kernel(
            table,
            kind,
            occurrences.rows[first:last],
            row_ids[first:last],
            occurrences.run_splits[first : last + 1],
            occurrences.sources,
            occurrences.gains,
            update.gradients,
            addresses,
            sizes,
            kinds,
            address,
            function.context,
            hyper,
            update.step,
            not update.optimizer.accumulate,
            stochastic,
            seed,
            UPDATE_BLOCK,
            UPDATE_SECTIONS,
            *scratch[number],
            *long_runs[number],
        )

    return lambda: threads.run(len(pieces), run)


def _summed_first(
    update: RowUpdate, pieces: list[tuple[int, int]]
) -> list[tuple[NDArray[np.int64] | None, NDArray[Any] | None]]:
    """Return, per piece, its long runs and their sums; nothing where that saves no reading."""
    runs, sources, gradients = update.occurrences, update.occurrences.sources, update.gradients
    nothing: list[tuple[Any, Any]] = [(None, None)] * len(pieces)
    occurrences = int(runs.run_splits[-1] - runs.run_splits[0])
    least = _TIMES_READ * len(gradients)
    if not update.optimizer.accumulate or gradients.nbytes < _GRADIENT_BYTES or occurrences < least:
        return nothing
    places = np.empty(occurrences // _kernel.LONG_RUN_LENGTH, np.int64)
    places = places[: _kernel.long_runs(runs.run_splits, places)]
    splits = np.zeros(places.size + 1, np.int64)
    np.cumsum(runs.run_splits[places + 1] - runs.run_splits[places], out=splits[1:])
    if int(splits[-1]) < least:
        return nothing
    dim, value = gradients.shape[1], gradients.dtype
    sums = pool.empty((places.size, dim), value)
    shares = threads.ranges(splits, dim)
    together = min(places.size, _kernel.RUNS_TOGETHER)
    scratch = [(np.empty((together, dim), value), np.empty(together, np.int64)) for _ in shares]

    def add(number: int) -> None:
        own = slice(*shares[number])
        _kernel.sum_long_runs[TYPE_NAMES[value]](
            *(gradients, sources, runs.gains, runs.run_splits, places[own]),
            *(*scratch[number], sums[own]),
        )

    threads.run(len(shares), add)
    borders = np.searchsorted(places, [(first, last) for first, last in pieces]).tolist()
    return [
        (places[low:high] - first, sums[low:high])
        for (low, high), (first, _) in zip(borders, pieces, strict=True)
    ]


def _pure_update(
    pieces: list[tuple[int, int]],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    update: RowUpdate,
) -> Commit:
    value, dim = update.gradients.dtype, rows.shape[1]
    block = max(1, _PURE_BLOCK_BYTES // (dim * value.itemsize))

    staged: list[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]] = [[] for _ in pieces]

    def stage(number: int) -> None:
        for start in range(*pieces[number], block):
            part = update.part(start, min(start + block, pieces[number][1]))
            places = part.occurrences.rows
            new_rows, new_slots = updated(
                gather_rows(rows, places).astype(value, copy=False),
                {
                    name: gather_rows(slot, places).astype(value, copy=False)
                    for name, slot in slots.items()
                },
                part,
            )
            staged[number].append(_write(rows, places, narrowed(new_rows, rows.dtype, part)))
            for name, slot in slots.items():
                with np.errstate(over="ignore"):
                    kept = np.asarray(new_slots[name]).astype(slot.dtype, copy=False)
                staged[number].append(_write(slot, places, kept))

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
