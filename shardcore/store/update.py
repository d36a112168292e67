"""One pass over the unique rows of a batch: sum their gradients, hand them to the optimizer.

An optimizer's C function is called by the kernel, block by block or row by row, with pointers into
the table and its slots. An optimizer without one runs its pure form on NumPy copies of the same
blocks. An optimizer that does not accumulate is called once per occurrence instead of once per row.
The face of ``accumulate`` in ``_core/rows.pxi``, and of ``_core/updates.pxi``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreValueError
from shardcore.memory import pool
from shardcore.optimizer.base import Optimizer
from shardcore.store.instruction_set import best_module
from shardcore.store.occurrences import Occurrences
from shardcore.store.pace import NEVER, PACE, Pace
from shardcore.store.rounding import narrowed, rounds_stochastically, step_seed
from shardcore.store.row_update import RowUpdate
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import TYPE_NAMES
from shardcore.store.stored_rows import StoredRows
from shardcore.threads import team
from shardcore.threads.work import InTurn

__all__ = [
    "GRADIENT_BYTES",
    "StagedUpdates",
    "accumulate",
    "rule_of",
    "update_rows",
    "updated",
]

Commit = Callable[[], None]

_rules: dict[
    tuple[int, np.dtype[Any]],
    tuple[weakref.ref[Optimizer], tuple[float, ...], Pace, tuple[Any, bool]],
] = {}

_kernel = best_module("shardcore._core.rows")

_PURE_BLOCK_BYTES: Final = 1 << 20

GRADIENT_BYTES: Final = 1 << 20
"""Of a batch: with fewer, the second-level cache holds them all while long runs are summed."""

_MOST_RULES: Final = 64
"""Optimizers, with the dtypes of their tables, whose last rules are kept."""

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


class StagedUpdates:
    """Updates of tables, prepared one by one, and made at once by threads that share them.

    Each row is updated once, by its summed gradient; or once per occurrence, with an optimizer that
    does not accumulate. Rows of a short dtype are rounded back once. All that Python computes, and
    can fail, happens in `add` and `ready`; the callable that `ready` returns only runs kernels.

    Attributes
    ----------
    together : compiled object
        What kernels make of them.
    pure : int
        How many are made by an optimizer's pure form though it has a compiled one: a slot is of a
        dtype that kernels do not read.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> from shardcore.store.occurrences import sort_occurrences
    >>> rows, sgd = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update = RowUpdate(batch, batch.rows, gradients, sgd, sgd.hyper(), step=1)
    >>> staged = StagedUpdates()
    >>> staged.add(StoredRows(rows, {}), update)
    5
    >>> commit = staged.ready()
    >>> commit()
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """

    def __init__(self) -> None:
        self.together = _kernel.Updates()
        self._commits: list[Commit] = []
        self.pure = 0

    def add(self, target: StoredRows, update: RowUpdate) -> int:
        """Prepare the update of a table, and return its work: elements of occurrences and rows."""
        if not target.dim:  # no columns: nothing to learn
            return 0
        optimizer, dtype = update.optimizer, target.rows.dtype
        rule, stochastic = rule_of(optimizer, update.hyper, dtype, target.working)
        occurrences, gradients = update.occurrences, update.gradients
        if rule is None or not target.by_kernel:
            self.pure += rule is not None
            self._commits.append(_pure_update(target.rows, target.slots, update))
            splits = occurrences.run_splits
            return int(splits[-1] - splits[0] + splits.size - 1) * target.dim
        work: int = self.together.add(
            target.found,
            rule,
            update.step,
            occurrences.rows,
            update.row_ids,
            occurrences.run_splits,
            occurrences.sources,
            occurrences.gains,
            gradients,
            stochastic,
            step_seed(update.seed, update.step) if stochastic else 0,
            *_summed_first(update),
        )
        return work

    def ready(self) -> InTurn:
        """Return what changes rows and slots in place when it is called, without arguments.

        To be called once, before they change otherwise. It is compiled where kernels do it all and
        one thread is enough.
        """
        together = self.together
        made: Commit | None = together.alone(team.most_alone(team.PIECE))
        if made is None:
            count = team.cut(together, team.PIECE)
            scratch = [np.empty(together.scratch, np.uint8) for _ in range(count)]
            made = partial(team.run, count, lambda number: together.make(scratch[number]))
        return InTurn([*self._commits, made])


def update_rows(rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate) -> None:
    """Update every row of a batch, and its slots, in place.

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
    staged = StagedUpdates()
    staged.add(StoredRows(rows, slots), update)
    staged.ready()()


def rule_of(
    optimizer: Optimizer, hyper: tuple[float, ...], dtype: np.dtype[Any], working: np.dtype[Any]
) -> tuple[Any, bool]:
    """Return the rule of an optimizer, and whether it rounds rows of a dtype stochastically.

    The last ones are kept: the tables of a step share a rule, and steps do where no rate moves. By
    identity: to hash an optimizer takes all of its parameters, for every table.
    """
    key = id(optimizer), dtype
    known = _rules.get(key)
    if known is not None and known[0]() is optimizer and known[1] is hyper and known[2] is PACE:
        return known[3]
    if len(_rules) >= _MOST_RULES:
        _rules.clear()
    found = _rule(optimizer, hyper, working), rounds_stochastically(optimizer, dtype)
    _rules[key] = weakref.ref(optimizer), hyper, PACE, found
    return found


def _rule(optimizer: Optimizer, hyper: tuple[float, ...], working: np.dtype[Any]) -> Any:
    """Return what all updates by an optimizer have in common; None if it has no compiled form.

    Raises
    ------
    ShardcoreValueError
        If there is not one hyper-parameter for each of the optimizer's names.
    """
    names = optimizer.hyper_names
    if len(hyper) != len(names):  # a C function reads as many as there are names
        raise ShardcoreValueError(
            f"hyper must have a value for each of {', '.join(names) or 'no names'}, "
            f"got {len(hyper)} values"
        )
    function = optimizer.compiled(working)
    if function is None:
        return None
    return _kernel.UpdateRule(
        function.address_for(working),
        function.context,
        np.array(hyper, np.float64),
        not optimizer.accumulate,
        PACE.block,
        PACE.block_bytes,
        PACE.sections,
        PACE.ahead,
        PACE.asking,
        PACE.alone_bytes if function.row_by_row else NEVER,
        function,
    )


def _summed_first(update: RowUpdate) -> tuple[NDArray[np.int64] | None, NDArray[Any] | None]:
    """Return the long runs and their sums; nothing where that saves no reading."""
    runs, sources, gradients = update.occurrences, update.occurrences.sources, update.gradients
    if not update.optimizer.accumulate or gradients.nbytes < GRADIENT_BYTES:
        return None, None
    least = _TIMES_READ * len(gradients)
    occurrences = runs.run_splits.item(-1) - runs.run_splits.item(0)
    if occurrences < least:
        return None, None
    places = np.empty(occurrences // _kernel.LONG_RUN_LENGTH, np.int64)
    places = places[: _kernel.long_runs(runs.run_splits, places)]
    splits = np.zeros(places.size + 1, np.int64)
    np.cumsum(runs.run_splits[places + 1] - runs.run_splits[places], out=splits[1:])
    if int(splits[-1]) < least:
        return None, None
    dim, value = gradients.shape[1], gradients.dtype
    sums = pool.empty((places.size, dim), value)
    shares = team.ranges(splits, dim)
    together = min(places.size, _kernel.RUNS_TOGETHER)
    scratch = [(np.empty((together, dim), value), np.empty(together, np.int64)) for _ in shares]

    def add(number: int) -> None:
        own = slice(*shares[number])
        _kernel.sum_long_runs[TYPE_NAMES[value]](
            *(gradients, sources, runs.gains, runs.run_splits, places[own]),
            *(*scratch[number], sums[own]),
        )

    team.run(len(shares), add)
    return places, sums


def _pure_update(
    rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate
) -> Commit:
    pieces = team.ranges(update.occurrences.run_splits, rows.shape[1])
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

    team.run(len(pieces), stage)
    return lambda: team.run(len(pieces), commit)


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
