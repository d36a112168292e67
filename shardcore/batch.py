"""What travels between the engine and a backend: a table's share of a batch, and its gradients.

A batch holds, for each table, the bags of the features that use it, in the order of the features.
Ids are checked, weights are in the working dtype, and every bag has its divisor, before a backend
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from shardcore.config import QuantizationConfig
from shardcore.optimizer import Optimizer
from shardcore.store.occurrences import Occurrences, sort_occurrences
from shardcore.store.segment_reduce import occurrence_gains, reciprocals

__all__ = [
    "FeatureBags",
    "TableBatch",
    "TableSpec",
    "TableUpdate",
    "gradient_rows",
    "gradient_rows_of_tables",
    "sorted_rows",
    "sorted_rows_of_tables",
]

Ints = NDArray[np.int32] | NDArray[np.int64]

_SMALL_BATCH: Final = 1 << 9
"""Occurrences of a table that is sorted together with others."""
_TOGETHER: Final = 1 << 13
"""Occurrences that are sorted together: with more, they would leave the cache."""
_MOST_ROWS: Final = 1 << 32
"""Of tables sorted as one, so that their keys have 32 bits."""


@dataclass(frozen=True, eq=False)
class TableSpec:
    """A table as a backend creates it.

    Attributes
    ----------
    name : str
        Unique in the backend.
    num_rows, dim : int
    dtype : numpy.dtype
        One of the four table dtypes.
    initializer : callable
        As in `shardcore.initializers`: ``initializer(rows, row_shape, dtype, seed)``.
    seed : int
        For the initializer; differs from table to table.
    optimizer : Optimizer or None
        None: a table that is only looked up and has no slots.
    layout, placement, exchange : str
        As in `TableConfig`.
    quantization : QuantizationConfig or None
        What a lookup makes of rows before it combines them: see `as_looked_up`.
    """

    name: str
    num_rows: int
    dim: int
    dtype: np.dtype[Any]
    initializer: Callable[..., Any]
    seed: int
    optimizer: Optimizer | None = None
    layout: Literal["div", "mod"] = "div"
    placement: Literal["row", "table", "column", "replicated"] = "row"
    exchange: Literal["exact", "partial"] = "exact"
    quantization: QuantizationConfig | None = None

    def as_looked_up(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return stored rows as a lookup sees them: rounded to the buckets of the quantization.

        Storage stays as it is, and gradients pass straight through.

        Parameters
        ----------
        rows : ndarray of the table's dtype, any shape

        Returns
        -------
        ndarray
            New rows in the working dtype, or `rows` itself where nothing is quantized.

        Examples
        --------
        >>> buckets = QuantizationConfig(3, -1.0, 1.0)
        >>> spec = TableSpec("t", 4, 2, np.dtype("float32"), np.zeros, 0, quantization=buckets)
        >>> spec.as_looked_up(np.array([[0.4, 7.0]], np.float32))
        array([[0., 1.]], dtype=float32)
        """
        return rows if self.quantization is None else self.quantization.apply(rows)


@dataclass(frozen=True, eq=False)
class FeatureBags:
    """One feature's bags over one table.

    Attributes
    ----------
    ids : ndarray of int32 or int64, shape (n,)
        Global rows, each in [0, num_rows).
    row_splits : ndarray of int64, shape (bags + 1,)
    weights : ndarray of the working dtype, shape (n,), or None
        None: all 1.
    divisors : ndarray of the working dtype, shape (bags,), or None
        What each bag's sum is divided by; 0 makes it zeros. None: all 1.
    bags_per_sample : int
        Consecutive bags that belong to one sample of the batch, hence to one host.
    """

    ids: Ints
    row_splits: NDArray[np.int64]
    weights: NDArray[Any] | None = None
    divisors: NDArray[Any] | None = None
    bags_per_sample: int = 1

    @property
    def num_bags(self) -> int:
        """How many bags."""
        return self.row_splits.size - 1


@dataclass(eq=False)
class TableBatch:
    """One table's share of a batch.

    Attributes
    ----------
    table : str
    features : tuple of FeatureBags
        In the engine's order of features.
    training : bool
        Whether gradients will follow, so that what they need is made ready at once.
    route : object
        The backend's own: what `lookup` found out and `apply` can use. None at first.
    """

    table: str
    features: tuple[FeatureBags, ...]
    training: bool = False
    route: Any = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class TableUpdate:
    """The gradients of one table's share of a batch.

    Attributes
    ----------
    batch : TableBatch
        The one that was looked up.
    gradients : tuple of (ndarray of the working dtype, shape (bags, dim), or None)
        One per feature of the batch; None: this feature contributes nothing. An array that the
        backend's `takes_gradient` knows is the caller's own, of that shape, in its own dtype:
        float16, bfloat16, float32 or float64.
    hyper : tuple of float
        The optimizer's, evaluated once for the batch.
    step : int
        1 for the first batch that the engine applies.
    unchecked : tuple of (str or None)
        Per feature the path of its gradient, such as ``"gradients['user']"``, where the backend has
        to test that every value of it is finite in the working dtype; else None. Not given: None
        for all.
    shapes : tuple of tuple of int
        Per feature the shape in which the caller gave its gradient, for messages. Not given:
        (bags, dim).
    """

    batch: TableBatch
    gradients: tuple[NDArray[Any] | None, ...]
    hyper: tuple[float, ...]
    step: int
    unchecked: tuple[str | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.unchecked:
            object.__setattr__(self, "unchecked", (None,) * len(self.gradients))

    def not_finite(
        self, feature: int, bag: int, column: int, value: Any, dtype: np.dtype[Any]
    ) -> str:
        """Return the message of a gradient that was to be tested and is not finite.

        Parameters
        ----------
        feature : int
            Which of the batch's features.
        bag, column : int
            The place in its gradient, (bags, dim), of the first such value.
        value : float
            As it was given.
        dtype : numpy.dtype
            The working dtype, in which it had to be finite.

        Examples
        --------
        >>> gradient = np.array([[0.0], [np.inf]])
        >>> update = TableUpdate(TableBatch("t", ()), (gradient,), (), 1, ("gradients['a']",))
        >>> update.not_finite(0, 1, 0, gradient[1, 0], np.dtype("float32"))
        "gradients['a'] must be finite in float32: gradients['a'][1, 0] = inf"
        """
        gradient, path = self.gradients[feature], self.unchecked[feature]
        assert gradient is not None, "only gradients are tested"
        assert path is not None, "only gradients with a path are tested here"
        shape = self.shapes[feature] if self.shapes else tuple(gradient.shape)
        return not_finite(path, shape, bag * gradient.shape[1] + column, value, dtype)

    @property
    def active(self) -> tuple[bool, ...]:
        """Which features contribute."""
        return tuple(gradient is not None for gradient in self.gradients)


def not_finite(path: str, shape: tuple[int, ...], at: int, value: Any, dtype: np.dtype[Any]) -> str:
    """Return the message of a gradient whose value at the flat position `at` is not finite."""
    place = ", ".join(str(int(i)) for i in np.unravel_index(at, shape))
    return f"{path} must be finite in {dtype}: {path}[{place}] = {value}"


def scaled(bags: FeatureBags, gradient: NDArray[Any]) -> NDArray[Any]:
    """Return a feature's gradient times 1/divisor, where that is the gain of all ids of a bag.

    With weights the gain differs from id to id and is applied to each occurrence instead.
    """
    if bags.weights is not None or bags.divisors is None:
        return gradient
    product: NDArray[Any] = gradient * reciprocals(bags.divisors)[:, None]
    return product


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
    gains = joined_gains([(bags.ids.size, gains_of(bags)) for bags in features], value)
    base, sources = 0, []
    for bags in features:
        own = np.arange(base, base + bags.num_bags, dtype=np.int32)
        sources.append(np.repeat(own, bags.row_splits[1:] - bags.row_splits[:-1]))
        base += bags.num_bags
    if len(features) == 1:
        return sort_occurrences(features[0].ids, sources[0], gains, num_rows)
    ids = np.concatenate([bags.ids for bags in features])
    return sort_occurrences(ids, np.concatenate(sources), gains, num_rows)


def sorted_rows_of_tables(
    tables: Sequence[tuple[Sequence[FeatureBags], int, np.dtype[Any]]],
) -> list[Occurrences]:
    """Return what `sorted_rows` returns for each table, small ones sorted all at once.

    To sort a few hundred rows takes less time than to call what sorts them, so many tables are
    sorted as if they were one, whose rows follow one another. A row keeps the order of its
    occurrences: the results are the same. Those of several tables share one array of sources, with
    `run_splits` that do not begin at 0.

    Parameters
    ----------
    tables : sequence of (features, num_rows, working dtype)

    Examples
    --------
    >>> bags = FeatureBags(np.array([5, 3, 5]), np.array([0, 1, 3]))
    >>> one, two = sorted_rows_of_tables([([bags], 10, np.dtype("float32"))] * 2)
    >>> two.rows, two.run_splits, two.sources[two.run_splits[0] :]
    (array([3, 5]), array([3, 4, 6]), array([1, 0, 1], dtype=int32))
    """
    found: list[Occurrences | None] = [None] * len(tables)
    groups: list[list[int]] = []
    rows_left = left = 0
    for at, (features, num_rows, value) in enumerate(tables):
        count = sum([bags.ids.size for bags in features])
        unweighted = all(bags.weights is None for bags in features)
        if count > _SMALL_BATCH or num_rows > _MOST_ROWS or not unweighted:
            found[at] = sorted_rows(features, num_rows, value)
            continue
        if count > left or num_rows > rows_left:
            groups.append([])
            left, rows_left = _TOGETHER, _MOST_ROWS
        groups[-1].append(at)
        left, rows_left = left - count, rows_left - num_rows
    for group in groups:
        sorted_together = _sorted_as_one([tables[at][:2] for at in group])
        for at, occurrences in zip(group, sorted_together, strict=True):
            found[at] = occurrences
    return [one for one in found if one is not None]


def _sorted_as_one(tables: Sequence[tuple[Sequence[FeatureBags], int]]) -> list[Occurrences]:
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
                gradient = gradient * factors[dtype][start : start + count]
            parts.append(gradient)
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        rows.append(joined if joined.flags.c_contiguous else np.ascontiguousarray(joined))
    return rows


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
