"""What travels between the engine and a backend: a table's share of a batch, and its gradients.

A batch holds, for each table, the bags of the features that use it, in the order of the features.
Ids are checked, weights are in the working dtype, and every bag has its divisor, before a backend
sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardcore.config import QuantizationConfig
from shardcore.optimizer import Optimizer
from shardcore.store.occurrences import Occurrences, sort_occurrences
from shardcore.store.segment_reduce import occurrence_gains, reciprocals

__all__ = ["FeatureBags", "TableBatch", "TableSpec", "TableUpdate", "gradient_rows", "sorted_rows"]

Ints = NDArray[np.int32] | NDArray[np.int64]


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
        One per feature of the batch; None: this feature contributes nothing.
    hyper : tuple of float
        The optimizer's, evaluated once for the batch.
    step : int
        1 for the first batch that the engine applies.
    """

    batch: TableBatch
    gradients: tuple[NDArray[Any] | None, ...]
    hyper: tuple[float, ...]
    step: int

    @property
    def active(self) -> tuple[bool, ...]:
        """Which features contribute."""
        return tuple(gradient is not None for gradient in self.gradients)


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


def joined_gains(
    parts: Sequence[tuple[int, NDArray[Any] | None]], value: np.dtype[Any]
) -> NDArray[Any] | None:
    """Concatenate gains given as (how many, gains or None for ones); None where all are ones."""
    if all(gains is None for _, gains in parts):
        return None
    return np.concatenate([np.ones(n, value) if gains is None else gains for n, gains in parts])


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
    parts = [scaled(bags, gradient) for bags, gradient in zip(features, gradients, strict=True)]
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
