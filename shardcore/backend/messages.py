"""The messages between the engine and a backend: a table's share of a batch, and its gradients.

A batch holds, for each table, the bags of the features that use it, in the order of the features.
Ids are checked, weights are in the working dtype, and every bag has its divisor, before a backend
sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.max_norm import scaled_to_norm
from shardcore.backend.quantization import QuantizationConfig
from shardcore.cached_property import cached_property
from shardcore.errors import ShardcoreMemoryError
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.slots import SlotSpec

__all__ = ["FeatureBags", "NotFinite", "TableBatch", "TableSpec", "TableUpdate"]

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
    layout : str or tuple of int
    placement, exchange : str
        As in `TableConfig`.
    quantization : QuantizationConfig or None
        How a lookup rounds rows before it combines them: see `as_looked_up`.
    max_norm : float or None
        The norm to which a lookup scales greater rows down, before it rounds them.
    """

    name: str
    num_rows: int
    dim: int
    dtype: np.dtype[Any]
    initializer: Callable[..., Any]
    seed: int
    optimizer: Optimizer | None = None
    layout: Literal["div", "mod"] | Sequence[int] = "div"
    placement: Literal["row", "table", "column", "replicated"] = "row"
    exchange: Literal["exact", "partial"] = "exact"
    quantization: QuantizationConfig | None = None
    max_norm: float | None = None

    @cached_property
    def seen_as_stored(self) -> bool:
        """Whether a lookup sees rows as they are stored: `as_looked_up` changes none."""
        return self.quantization is None and self.max_norm is None

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """The optimizer's slots; none without an optimizer."""
        return () if self.optimizer is None else tuple(self.optimizer.slots)

    @property
    def arrays(self) -> tuple[str | None, ...]:
        """The names of what is stored: None for the weights, then those of the slots."""
        return (None, *(one.name for one in self.slots))

    def stored_as(self, slot: str | None) -> tuple[tuple[int, int], np.dtype[Any]]:
        """Return the shape and dtype in which the weights, or a slot, are stored.

        Parameters
        ----------
        slot : str or None
            None: the weights.

        Examples
        --------
        >>> import shardcore as sc
        >>> adagrad = sc.optimizers.RowwiseAdagrad(0.1)
        >>> spec = TableSpec("t", 4, 2, np.dtype("float16"), np.zeros, 0, adagrad)
        >>> spec.stored_as(None), spec.stored_as("accumulators")
        (((4, 2), dtype('float16')), ((4, 1), dtype('float32')))
        """
        if slot is None:
            return (self.num_rows, self.dim), self.dtype
        declared = {one.name: one for one in self.slots}[slot]
        return declared.shape(self.num_rows, self.dim), declared.storage_dtype(self.dtype)

    def no_room(self, error: MemoryError) -> ShardcoreMemoryError:
        """Return the error that names the table there was no room for."""
        arrays = [self.stored_as(slot) for slot in self.arrays]
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
        return ShardcoreMemoryError(
            f"table {self.name!r} of {self.num_rows} x {self.dim} {self.dtype} has no room: "
            f"with its slots it needs {size} bytes: {error}"
        )

    def as_looked_up(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return stored rows as a lookup sees them: scaled to `max_norm`, rounded to the buckets.

        Storage stays as it is, and gradients pass straight through.

        Parameters
        ----------
        rows : ndarray of the table's dtype, shape (n, dim)
            Whole rows.

        Returns
        -------
        ndarray
            New rows, in the working dtype where they are quantized, else in the table's; or `rows`
            itself where they are seen as they are stored.

        Examples
        --------
        >>> buckets = QuantizationConfig(3, -1.0, 1.0)
        >>> spec = TableSpec("t", 4, 2, np.dtype("float32"), np.zeros, 0, quantization=buckets)
        >>> spec.as_looked_up(np.array([[0.4, 7.0]], np.float32))
        array([[0., 1.]], dtype=float32)
        >>> spec = TableSpec("t", 4, 2, np.dtype("float32"), np.zeros, 0, max_norm=1.0)
        >>> spec.as_looked_up(np.array([[0.0, 7.0]], np.float32))
        array([[0., 1.]], dtype=float32)
        """
        if self.max_norm is not None:
            rows = scaled_to_norm(rows, self.max_norm)
        return rows if self.quantization is None else self.quantization.apply(rows)


@dataclass(eq=False, slots=True)  # a frozen one takes longer to make than to look up
class FeatureBags:
    """One feature's bags over one table.

    Attributes
    ----------
    ids : ndarray of int32 or int64, shape (n,)
        Global rows, each in [0, num_rows). Not always of the dtype in which they were given: on one
        host int64 may have become int32.
    row_splits : ndarray of int64, shape (bags + 1,)
    weights : ndarray of the working dtype, shape (n,), or None
        None: all 1.
    divisors : ndarray of the working dtype, shape (bags,), or None
        The divisor of each bag's sum; 0 makes it zeros. None: all 1.
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


@dataclass(eq=False, slots=True)
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


@dataclass(eq=False, slots=True)  # as FeatureBags
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
    check : bool
        Whether the backend has to test that every value of gradients of its own kind is finite in
        the working dtype. The engine has tested all others.
    origin : object
        The engine's own, as ``TableBatch.route`` is the backend's: where gradients came from.
    """

    batch: TableBatch
    gradients: tuple[NDArray[Any] | None, ...]
    hyper: tuple[float, ...]
    step: int
    check: bool = False
    origin: Any = field(default=None, repr=False)

    @property
    def active(self) -> tuple[bool, ...]:
        """Which features contribute."""
        return tuple(gradient is not None for gradient in self.gradients)


@dataclass(frozen=True, eq=False)
class NotFinite:
    """A value of a gradient that a backend tested and that is not finite in the working dtype.

    Attributes
    ----------
    table : str
    origin : object
        Of the update it came in.
    feature, bag, column : int
        Where it was: the place in the table's features, and in that gradient, (bags, dim).
    value : float
        As it was given.
    updates : int
        How many calls of `apply` did nothing: this one, and others that were refused after it and
        are reported with it.
    step : int
        `TableUpdate.step` of the first of them, the one that is described.
    process : int or None
        The process that gave it, where each of several gives gradients of its own samples. None:
        this one, or all of them.
    """

    table: str
    origin: Any
    feature: int
    bag: int
    column: int
    value: float
    updates: int = 0
    step: int = 0
    process: int | None = None
