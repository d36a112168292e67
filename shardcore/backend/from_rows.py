"""Lookups and updates out of `gather` and `scatter` alone: what the base class does.

The results are those of the embedded backend, by the same kernels, from copies of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.gradients import gradient_rows, sorted_rows
from shardcore.backend.messages import NotFinite, TableBatch, TableSpec, TableUpdate
from shardcore.dtypes import working_dtype
from shardcore.store.occurrences import every_row
from shardcore.store.row_update import RowUpdate
from shardcore.store.segment_reduce import reduce_bags, row_dots
from shardcore.store.update import update_rows

__all__ = ["dots_from_rows", "first_not_finite", "lookup_from_rows", "read_gradients", "staged"]

Gather: TypeAlias = Callable[[str, str | None, NDArray[np.int64]], NDArray[Any]]
Write: TypeAlias = tuple[str, str | None, NDArray[np.int64], NDArray[Any]]
"""The arguments of a `Backend.scatter`."""


def _distinct(spec: TableSpec, ids: Any, gather: Gather) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct rows that are named, as seen, and the ids renumbered to them."""
    unique, inverse = np.unique(ids, return_inverse=True)
    rows = spec.as_looked_up(gather(spec.name, None, unique.astype(np.int64, copy=False)))
    return np.ascontiguousarray(rows), inverse.astype(np.int64, copy=False)


def lookup_from_rows(spec: TableSpec, batch: TableBatch, gather: Gather) -> list[NDArray[Any]]:
    """Return the combined rows of every feature of a table."""
    activations = []
    for bags in batch.features:
        rows, ids = _distinct(spec, bags.ids, gather)
        out = np.empty((bags.num_bags, spec.dim), working_dtype(spec.dtype))
        reduce_bags(rows, ids, bags.row_splits, bags.weights, bags.divisors, out)
        activations.append(out)
    return activations


def dots_from_rows(
    spec: TableSpec, update: TableUpdate, gather: Gather
) -> list[NDArray[Any] | None]:
    """Return, per feature with a gradient, each occurrence's row times its bag's gradient."""
    value = working_dtype(spec.dtype)
    dots: list[NDArray[Any] | None] = []
    for bags, gradient in zip(update.batch.features, update.gradients, strict=True):
        if gradient is None:
            dots.append(None)
            continue
        rows, ids = _distinct(spec, bags.ids, gather)
        dots.append(row_dots(rows, ids, bags.row_splits, np.ascontiguousarray(gradient, value)))
    return dots


def first_not_finite(update: TableUpdate, value: np.dtype[Any]) -> NotFinite | None:
    """Return a report of the first value of a host's gradients that is not finite as `value`.

    Examples
    --------
    >>> update = TableUpdate(TableBatch("t", ()), (None, np.array([[0.0], [np.inf]])), (), 1)
    >>> found = first_not_finite(update, np.dtype("float32"))
    >>> found.feature, found.bag, found.column, found.value
    (1, 1, 0, inf)
    """
    for feature, gradient in enumerate(update.gradients):
        if gradient is None:
            continue
        with np.errstate(over="ignore"):  # reported, with its position
            finite = np.isfinite(gradient.astype(value, copy=False))
        if not finite.all():
            bag, column = (int(i) for i in np.unravel_index(int(finite.argmin()), finite.shape))
            value_there = float(gradient[bag, column])
            return NotFinite(update.batch.table, update.origin, feature, bag, column, value_there)
    return None


def read_gradients(
    updates: Sequence[TableUpdate], specs: Mapping[str, TableSpec]
) -> tuple[list[TableUpdate], NotFinite | None]:
    """Return updates whose gradients are NumPy arrays of the working dtype, and what is not finite.

    Only updates that ask for it are tested.
    """
    ready = []
    for update in updates:
        value = working_dtype(specs[update.batch.table].dtype)
        given = tuple(None if one is None else np.asarray(one) for one in update.gradients)
        if update.check:
            found = first_not_finite(dataclasses.replace(update, gradients=given), value)
            if found is not None:
                return [], found
        cast = tuple(None if one is None else one.astype(value, copy=False) for one in given)
        ready.append(dataclasses.replace(update, gradients=cast, check=False))
    return ready, None


def staged(spec: TableSpec, update: TableUpdate, gather: Gather) -> tuple[list[Write], int]:
    """Return what an update will scatter, and how many rows it touches. Changes nothing."""
    optimizer = spec.optimizer
    assert optimizer is not None, "the engine trains tables with an optimizer only"
    pairs = [
        (bags, gradient)
        for bags, gradient in zip(update.batch.features, update.gradients, strict=True)
        if gradient is not None
    ]
    value = working_dtype(spec.dtype)
    features, gradients = [bags for bags, _ in pairs], [gradient for _, gradient in pairs]
    occurrences = sorted_rows(features, spec.num_rows, value)
    unique = occurrences.rows.size
    if not optimizer.lazy:
        occurrences = every_row(occurrences, spec.num_rows)
    rows = occurrences.rows
    slots = {slot.name: _own(gather(spec.name, slot.name, rows)) for slot in optimizer.slots}
    weights = _own(gather(spec.name, None, rows))
    update_rows(  # copies, where the rows have other places
        weights,
        slots,
        RowUpdate(
            dataclasses.replace(occurrences, rows=np.arange(rows.size, dtype=np.int64)),
            rows,
            gradient_rows(features, gradients),
            optimizer,
            update.hyper,
            update.step,
            spec.seed,
        ),
    )
    writes: list[Write] = [(spec.name, name, rows, slot) for name, slot in slots.items()]
    writes.append((spec.name, None, rows, weights))
    return writes, unique


def _own(rows: NDArray[Any]) -> NDArray[Any]:
    """Return gathered rows as an array that can be updated in place."""
    return np.require(rows, requirements=["C", "A", "W"])
