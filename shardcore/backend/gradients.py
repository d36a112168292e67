"""From gradients of bags to gradients of rows: occurrences sorted, divisors and weights applied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore._core import occurrences as _kernel
from shardcore.backend.messages import FeatureBags
from shardcore.memory import pool
from shardcore.store.occurrences import (
    BagSorts,
    Occurrences,
    has_few_rows,
    sort_bags,
    sort_occurrences,
)
from shardcore.store.segment_reduce import occurrence_gains, reciprocals

__all__ = [
    "RowSorts",
    "gains_of",
    "gradient_rows",
    "gradient_rows_of_tables",
    "joined_gains",
    "scaled",
    "sorted_rows",
]

_INT32: Final = np.dtype(np.int32)
_FLOAT32: Final = np.dtype(np.float32)

_SMALL_BATCH: Final = 1 << 9
"""Occurrences of a table that is sorted together with others."""

_TOGETHER: Final = 1 << 13
"""Occurrences that are sorted together: with more, they would leave the cache."""

_MOST_ROWS: Final = 1 << 32
"""Of tables sorted as one, so that their keys have 32 bits."""

_Rows: TypeAlias = tuple[Sequence[FeatureBags], int]
"""A table's features, and how many rows it has."""


def scaled(bags: FeatureBags, gradient: NDArray[Any]) -> NDArray[Any]:
    """Return a feature's gradient times 1/divisor, where that is the gain of all ids of a bag.

    With weights the gain differs from id to id and is applied to each occurrence instead.
    """
    if bags.weights is not None or bags.divisors is None:
        return gradient
    return _product(gradient, reciprocals(bags.divisors)[:, None])


def _product(gradient: NDArray[Any], factors: NDArray[Any]) -> NDArray[Any]:
    """Return what ``gradient * factors`` returns, both of one dtype, in memory of the pool."""
    out = pool.empty(gradient.shape, gradient.dtype)
    np.multiply(gradient, factors, out=out)
    return out


def gains_of(bags: FeatureBags) -> NDArray[Any] | None:
    """Return the gain of each occurrence, or None where `scaled` has applied it to the bags."""
    if bags.weights is None:
        return None
    return occurrence_gains(bags.row_splits, bags.weights, bags.divisors)


def sorted_rows(
    features: Sequence[FeatureBags], num_rows: int, value: np.dtype[Any]
) -> Occurrences:
    """Return the occurrences of features over one table, sorted by row.

    Their sources are positions in what `gradient_rows` returns.

    Parameters
    ----------
    features : sequence of FeatureBags
    num_rows : int
    value : numpy.dtype
        The working dtype of the table.

    Examples
    --------
    >>> bags = FeatureBags(np.array([5, 3, 5]), np.array([0, 1, 3]))
    >>> sorted_rows([bags], 10, np.dtype("float32")).rows
    array([3, 5])
    """
    if len(features) == 1 and features[0].weights is None:
        (bags,) = features
        return sort_bags(bags.ids, bags.row_splits, num_rows)
    gains = joined_gains([(bags.ids.size, gains_of(bags)) for bags in features], value)
    sources = pool.empty(sum([bags.ids.size for bags in features]), _INT32)
    first_id = first_bag = 0
    for bags in features:
        own = sources[first_id : first_id + bags.ids.size]
        _kernel.bags_of_ids(bags.row_splits, first_bag, own)
        first_id, first_bag = first_id + bags.ids.size, first_bag + bags.num_bags
    if len(features) == 1:
        return sort_occurrences(features[0].ids, sources, gains, num_rows)
    dtype = np.result_type(*(bags.ids.dtype for bags in features))
    ids = np.concatenate([bags.ids for bags in features], out=pool.empty(sources.size, dtype))
    return sort_occurrences(ids, sources, gains, num_rows)


class RowSorts:
    """What `sorted_rows` returns for each of many tables: small ones are sorted all at once.

    Tables of few rows are shared out among threads. To sort a few hundred ids takes less time than
    to call what sorts them, so many tables are sorted as if they were one, whose rows follow one
    another. A row keeps the order of its occurrences: the results are the same. Those of several
    tables share one array of sources, with `run_splits` that do not begin at 0.

    Examples
    --------
    >>> sorts, bags = RowSorts(), FeatureBags(np.array([5, 3, 5]), np.array([0, 1, 3]))
    >>> for _ in range(2):
    ...     sorts.add([bags], 10, np.dtype("float32"))
    >>> one, two = sorts.make()
    >>> two.rows, two.run_splits, two.sources[two.run_splits[0] :]
    (array([3, 5]), array([3, 4, 6]), array([1, 0, 1], dtype=int32))
    """

    def __init__(self) -> None:
        self._added = 0
        self._few_rows, self._of_few_rows = BagSorts(), list[int]()
        self._groups: list[list[tuple[int, _Rows]]] = []
        self._ids_left = self._rows_left = 0  # of the last group
        self._alone: list[tuple[int, _Rows, np.dtype[Any]]] = []

    def add(self, features: Sequence[FeatureBags], num_rows: int, value: np.dtype[Any]) -> None:
        """Add a table, as `sorted_rows` takes it."""
        at = self._added
        self._added += 1
        count, unweighted = 0, True
        for bags in features:
            count += bags.ids.size
            unweighted = unweighted and bags.weights is None
        if count <= _SMALL_BATCH and num_rows <= _MOST_ROWS and unweighted:
            if count > self._ids_left or num_rows > self._rows_left:
                self._groups.append([])
                self._ids_left, self._rows_left = _TOGETHER, _MOST_ROWS
            self._groups[-1].append((at, (features, num_rows)))
            self._ids_left -= count
            self._rows_left -= num_rows
        elif unweighted and len(features) == 1 and has_few_rows(count, num_rows):
            self._few_rows.add(features[0].ids, features[0].row_splits, num_rows)
            self._of_few_rows.append(at)
        else:
            self._alone.append((at, (features, num_rows), value))

    def make(self) -> list[Occurrences]:
        """Sort them; return the occurrences of each table."""
        found: list[Any] = [None] * self._added
        for at, table, value in self._alone:
            found[at] = sorted_rows(*table, value)
        for at, occurrences in zip(self._of_few_rows, self._few_rows.make(), strict=True):
            found[at] = occurrences
        for group in self._groups:
            if len(group) == 1:  # to make one of it takes longer than to sort it
                ((at, table),) = group
                found[at] = sorted_rows(*table, _FLOAT32)
                continue
            sorted_together = _sorted_as_one([table for _, table in group])
            for (at, _), occurrences in zip(group, sorted_together, strict=True):
                found[at] = occurrences
        return found


def _sorted_as_one(tables: Sequence[_Rows]) -> list[Occurrences]:
    features = [bags for own, _ in tables for bags in own]
    first_rows = np.zeros(len(tables) + 1, np.int64)
    np.cumsum([num_rows for _, num_rows in tables], out=first_rows[1:])
    ids_of = [sum([bags.ids.size for bags in own]) for own, _ in tables]
    bags_of = [sum([bags.row_splits.size - 1 for bags in own]) for own, _ in tables]
    ids = np.concatenate([bags.ids for bags in features], dtype=np.int64)
    ids += np.repeat(first_rows[:-1], ids_of)
    # Ends minus starts are the lengths of bags; the bags of a table are numbered through.
    splits = [bags.row_splits for bags in features]
    lengths = np.concatenate([one[1:] for one in splits])
    lengths -= np.concatenate([one[:-1] for one in splits])
    first_bags = np.cumsum(bags_of) - bags_of
    numbers = np.arange(lengths.size, dtype=np.int64) - np.repeat(first_bags, bags_of)
    sources = np.repeat(numbers.astype(np.int32), lengths)
    all_sorted = sort_occurrences(ids, sources, None, int(first_rows[-1]))
    borders = np.searchsorted(all_sorted.rows, first_rows)
    rows = all_sorted.rows - np.repeat(first_rows[:-1], np.diff(borders))
    run_splits, ordered = all_sorted.run_splits, all_sorted.sources
    limits = borders.tolist()
    return [
        Occurrences(rows[first:last], run_splits[first : last + 1], ordered, None)
        for first, last in pairwise(limits)
    ]


def joined_gains(
    parts: Sequence[tuple[int, NDArray[Any] | None]], value: np.dtype[Any]
) -> NDArray[Any] | None:
    """Concatenate gains given as (how many, gains or None for ones); None where all are ones."""
    if all(gains is None for _, gains in parts):
        return None
    return np.concatenate([np.ones(n, value) if gains is None else gains for n, gains in parts])


def gradient_rows_of_tables(
    tables: Sequence[tuple[Sequence[FeatureBags], Sequence[NDArray[Any]]]],
) -> list[NDArray[Any]]:
    """Return what `gradient_rows` returns for each table, with all reciprocals taken at once.

    Examples
    --------
    >>> bags = FeatureBags(np.array([5, 3]), np.array([0, 2]), divisors=np.array([2.0]))
    >>> gradient_rows_of_tables([([bags], [np.array([[1.0, 4.0]])])])
    [array([[0.5, 2. ]])]
    """
    divided: dict[np.dtype[Any], list[NDArray[Any]]] = {}
    for features, _ in tables:
        for bags in features:
            if bags.weights is None and bags.divisors is not None:
                divided.setdefault(bags.divisors.dtype, []).append(bags.divisors)
    factors = {
        dtype: reciprocals(np.concatenate(parts))[:, None] for dtype, parts in divided.items()
    }
    used = dict.fromkeys(factors, 0)
    rows = []
    for features, gradients in tables:
        parts = []
        for bags, gradient in zip(features, gradients, strict=True):
            if bags.weights is None and bags.divisors is not None:
                dtype, count = bags.divisors.dtype, bags.divisors.size
                start = used[dtype]
                used[dtype] = start + count
                gradient = _product(gradient, factors[dtype][start : start + count])
            parts.append(gradient)
        joined = parts[0] if len(parts) == 1 else _joined(parts)
        rows.append(joined if joined.flags.c_contiguous else np.ascontiguousarray(joined))
    return rows


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shape = sum([part.shape[0] for part in parts]), parts[0].shape[1]
    return np.concatenate(parts, out=pool.empty(shape, np.result_type(*parts)))


def gradient_rows(
    features: Sequence[FeatureBags], gradients: Sequence[NDArray[Any]]
) -> NDArray[Any]:
    """Return the scaled gradients of all bags of all features, one under the other.

    Examples
    --------
    >>> bags = FeatureBags(np.array([5, 3]), np.array([0, 2]), divisors=np.array([2.0]))
    >>> gradient_rows([bags], [np.array([[1.0, 4.0]])])
    array([[0.5, 2. ]])
    """
    return gradient_rows_of_tables([(features, gradients)])[0]
