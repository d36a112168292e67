"""From gradients of bags to gradients of rows: occurrences sorted, divisors and weights applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore._core import occurrences as _kernel
from shardcore.backend.messages import FeatureBags
from shardcore.memory import pool
from shardcore.store.occurrences import (
    FEW_OCCURRENCES,
    BagSorts,
    Occurrences,
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

    To sort a few hundred ids takes less time than to call what sorts them, and threads can share
    tables, not the ids of one.

    Examples
    --------
    >>> sorts, bags = RowSorts(), FeatureBags(np.array([5, 3, 5]), np.array([0, 1, 3]))
    >>> for _ in range(2):
    ...     sorts.add([bags], 10, np.dtype("float32"))
    >>> one, two = sorts.make()
    >>> two.rows, two.run_splits, two.sources
    (array([3, 5]), array([0, 1, 3]), array([1, 0, 1], dtype=int32))
    """

    def __init__(self) -> None:
        self._added = 0
        self._together, self._of_these = BagSorts(), list[int]()
        self._alone: list[tuple[int, _Rows, np.dtype[Any]]] = []

    def add(self, features: Sequence[FeatureBags], num_rows: int, value: np.dtype[Any]) -> None:
        """Add a table, as `sorted_rows` takes it."""
        at = self._added
        self._added += 1
        if self._is_added_together(features, num_rows):
            self._of_these.append(at)
        else:
            self._alone.append((at, (features, num_rows), value))

    def _is_added_together(self, features: Sequence[FeatureBags], num_rows: int) -> bool:
        first, *others = features
        if not others:
            return first.weights is None and self._together.add(
                first.ids, first.row_splits, num_rows
            )
        count, unweighted = 0, True
        for bags in features:
            count += bags.ids.size
            unweighted = unweighted and bags.weights is None
        if not unweighted or count > FEW_OCCURRENCES:
            return False
        self._together.add(first.ids, first.row_splits, num_rows, alone=False)
        for bags in others:
            self._together.add_feature(bags.ids, bags.row_splits)
        return True

    def make(self) -> list[Occurrences]:
        """Sort them; return the occurrences of each table."""
        found: list[Any] = [None] * self._added
        for at, table, value in self._alone:
            found[at] = sorted_rows(*table, value)
        if self._of_these:
            for at, occurrences in zip(self._of_these, self._together.make(), strict=True):
                found[at] = occurrences
        return found


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
            if bags.divisors is not None and bags.weights is None:
                divided.setdefault(bags.divisors.dtype, []).append(bags.divisors)
    factors: dict[np.dtype[Any], NDArray[Any]] = {}
    for dtype, parts in divided.items():
        factors[dtype] = reciprocals(np.concatenate(parts))[:, None]
    used = dict.fromkeys(factors, 0)
    rows = []
    for features, gradients in tables:
        parts = []
        for bags, gradient in zip(features, gradients, strict=True):
            if bags.divisors is not None and bags.weights is None:
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
