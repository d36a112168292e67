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

__all__ = ["dots_from_rows", "gradients_on_host", "lookup_from_rows", "staged"]

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


def gradients_on_host(
    updates: Sequence[TableUpdate], specs: Mapping[str, TableSpec]
) -> tuple[list[TableUpdate], NotFinite | None]:
    """Return updates whose gradients are NumPy arrays of the working dtype, and what is not finite.

    Only updates that ask for it are tested.

    Examples
    --------
    >>> spec = TableSpec("t", 4, 1, np.dtype("float32"), np.zeros, 0)
    >>> gradients = (None, np.array([[0.0], [np.inf]]))
    >>> update = TableUpdate(TableBatch("t", ()), gradients, (), 1, check=True)
    >>> _, found = gradients_on_host([update], {"t": spec})
    >>> found.feature, found.bag, found.column, found.value
    (1, 1, 0, inf)
    """
    ready = []
    for update in updates:
        value = working_dtype(specs[update.batch.table].dtype)
        given = [None if one is None else np.asarray(one) for one in update.gradients]
        with np.errstate(over="ignore"):  # reported, with its position, or consented to
            cast = [None if one is None else one.astype(value, copy=False) for one in given]
        if update.check:
            found = _first_not_finite(update, given, cast)
            if found is not None:
                return [], found
        ready.append(dataclasses.replace(update, gradients=tuple(cast), check=False))
    return ready, None


def _first_not_finite(
    update: TableUpdate,
    given: Sequence[NDArray[Any] | None],
    cast: Sequence[NDArray[Any] | None],
) -> NotFinite | None:
    for feature, (gradient, worked) in enumerate(zip(given, cast, strict=True)):
        if gradient is None or worked is None:
            continue
        finite = np.isfinite(worked)
        if not finite.all():
            bag, column = divmod(int(finite.argmin()), finite.shape[1])
            table, shown = update.batch.table, float(gradient[bag, column])
            return NotFinite(table, update.origin, feature, bag, column, shown)
    return None


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
