"""The short way for serving: one table, everything decided beforehand, a call that only checks.

For small batches the call itself is the cost, not the rows. All that follows from the table alone
(the compiled body, the bytes it reads, the types it computes in) is therefore looked up once; a
call checks its ids and row splits, as every lookup does, and goes straight to the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore._core import partition as _partition
from shardcore.backend.messages import FeatureBags
from shardcore.dtypes import KIND_OF, row_bytes, table_dtype, working_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.formats import as_ragged, as_weights, dense_shape, placed_weights
from shardcore.ids.ragged import Ragged
from shardcore.ids.row_splits import check_row_splits, first_descent
from shardcore.lookup.lookup import as_row_store, only_array
from shardcore.lookup.serving import combine_bags
from shardcore.store.given_bags import DIVIDED
from shardcore.store.instruction_set import best_module
from shardcore.store.pace import PACE
from shardcore.store.segment_reduce import COMBINERS, TYPE_NAMES, divisors
from shardcore.validation.arrays import as_ids, read_array
from shardcore.validation.integers import outside
from shardcore.variable.row_store import ArrayRowStore, RowStore

__all__ = ["PreparedLookup", "prepare_lookup"]

_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_NDARRAY: Final = np.ndarray
_EMPTY: Final = np.empty
_MAY_SHARE_MEMORY: Final = np.may_share_memory
_INLINE: Final = 1 << 19
"""Elements to add up to which a batch is not cut: about what waking another thread costs."""

_kernel = best_module("shardcore._core.rows")


def _chosen(fused: Any, dtype: np.dtype[Any]) -> Callable[..., int]:
    """Return the body of a fused kernel for one type: choosing it costs more than running it."""
    body: Callable[..., int] = fused[TYPE_NAMES[dtype]]
    return body


# A pair each, of int32 and int64: `pair[wide]` takes less time than a dictionary of dtypes.
_first_outside: Final = tuple(_chosen(_partition.first_outside, t) for t in (_INT32, _INT64))


class PreparedLookup:
    """A lookup in one table; made by `prepare_lookup`, safe to call from any thread.

    Attributes
    ----------
    combiner : str
    shape : tuple of int
        Of the table.
    dtype : numpy.dtype
        Of the result: float64 for a float64 table, else float32.

    Examples
    --------
    >>> prepare_lookup(np.ones((3, 2), np.float32))
    PreparedLookup(shape=(3, 2), dtype=float32, combiner='sum')
    """

    __slots__ = (
        "combiner",
        "dtype",
        "shape",
        "_addresses",
        "_dim",
        "_divided",
        "_flat",
        "_given",
        "_kernel_at",
        "_kernels",
        "_kind",
        "_num_rows",
        "_span",
        "_store",
        "_table",
    )

    def __init__(self, store: RowStore, combiner: str) -> None:
        self.combiner = combiner
        self.shape = (store.layout.num_rows, *store.row_shape)
        self.dtype = working_dtype(store.dtype)
        self._flat = len(self.shape) == 2
        self._num_rows = store.layout.num_rows
        self._dim = math.prod(store.row_shape)
        self._store = store
        whole = only_array(store)
        # The bytes of a table in one piece, which the kernel reads where they lie.
        self._table = None if whole is None else row_bytes(whole.reshape(self._num_rows, self._dim))
        self._addresses: Callable[[Any], NDArray[np.int64]] | None = None
        if isinstance(store, ArrayRowStore) and store.addressed:
            self._addresses = store.addresses
        self._given = store.given_bags()
        self._span: NDArray[np.uint8] | None = None  # a backend's memory is nobody's `out`
        if self._given is not None and isinstance(store, ArrayRowStore):
            self._span = _span_of(store.shards())
        self._divided = DIVIDED[combiner]
        self._kind = KIND_OF[store.dtype.name]
        value = TYPE_NAMES[self.dtype]
        self._kernel_at = _kernel.segment_reduce_at[value]
        self._kernels = tuple(
            _kernel.segment_reduce[TYPE_NAMES[dtype], value] for dtype in (_INT32, _INT64)
        )

    def __call__(
        self,
        values: Any,
        row_splits: ArrayLike | None = None,
        weights: Any = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Return one combined row per bag.

        Parameters
        ----------
        values : array of any integer type, shape (n,), each in [0, rows)
            int32 and int64 arrays are copied as they are.
        row_splits : array of int, shape (bags + 1,)
            Bag b is ``values[row_splits[b]:row_splits[b + 1]]``. None: `values` come in bags, in
            any form that a feature may have, such as a `Ragged` or the column of a data frame;
            that takes longer.
        weights : array of real numbers, shape (n,), optional
            Finite; ones where not given. An Arrow column too, and a `Ragged` of the same bags.
        out : ndarray of `dtype`, shape (bags, *row_shape), C-contiguous, optional
            Where to write. Must not share memory with the table or the other arguments.

        Returns
        -------
        ndarray of `dtype`, shape (bags, *row_shape)
            `out`, where it was given. An empty bag gives zeros.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If an argument is none of these.
        ShardcoreIndexError
            If an id is out of range; the message gives its position.
        """
        given = self._given
        if (
            given is not None
            and (weights is None or type(weights) is _NDARRAY)
            and type(values) is _NDARRAY
            and type(row_splits) is _NDARRAY
            and row_splits.size > 0
            and (out is None or self._is_plain_out(out, values, row_splits, weights))
        ):
            result = _EMPTY((row_splits.size - 1, self._dim), self.dtype)
            if given(values, row_splits, weights, self._divided, result):
                if not self._flat:
                    result = result.reshape(len(result), *self.shape[1:])
                if out is None:
                    return result
                out[...] = result  # only now: an id out of range leaves it as it was
                return out
            # Something is not plain, or wrong, which what follows will find and say.
        if row_splits is None:
            values, row_splits, weights = _in_bags(values, weights)
        # Copies, C-contiguous and aligned, are what is checked and used: another thread may write
        # to the caller's arrays.
        ids: NDArray[Any] = values.copy() if type(values) is np.ndarray else _read_ids(values)
        dtype = ids.dtype
        wide = dtype is _INT64
        if ids.ndim != 1 or not (wide or dtype is _INT32):
            ids = _read_ids(ids)
            wide = ids.dtype == _INT64
        size = ids.size
        splits: NDArray[np.int64] | None = None
        if type(row_splits) is np.ndarray and row_splits.dtype is _INT64:
            splits = row_splits.copy()
            if (
                splits.ndim != 1
                or splits.size < 2
                or splits.item(0) != 0
                or splits.item(-1) != size
                or (splits.size > 2 and first_descent(splits) >= 0)
            ):
                splits = None
        if splits is None:
            splits = check_row_splits(read_array(row_splits, "row_splits"), size)
        bags = splits.size - 1
        bad = _first_outside[wide](ids, self._num_rows)
        if bad >= 0:
            raise outside(f"values[{bad}]", ids[bad], "the table", self._num_rows)
        factors: NDArray[Any] | None = None
        if type(weights) is np.ndarray and self._is_plain_weights(weights, size):
            factors = weights
        elif weights is not None:
            weights = placed_weights(weights, values)
            factors = as_weights(weights, Ragged(ids, splits), None, "weights", self.dtype)
            assert factors is not None, "weights were given"
            factors = np.require(factors, self.dtype, ["C", "A"])
        if out is None:
            result = np.empty((bags, self._dim), self.dtype)
        else:
            self._check_out(out, bags, (values, row_splits, factors))
            result = out.reshape(bags, self._dim)
        denominators = None
        if self.combiner != "sum":
            denominators = divisors(self.combiner, splits, factors, self.dtype)
        if self._table is not None and size * self._dim <= _INLINE:
            kernel = self._kernels[wide]
            rest = denominators, _kernel.GIVEN_DIVISORS, result, PACE.asking
            kernel(self._table, self._kind, ids, splits, factors, *rest)
        elif self._addresses is not None and size * self._dim <= _INLINE:
            addresses = self._addresses(ids)
            kernel = self._kernel_at
            kernel(addresses, self._kind, splits, factors, denominators, result, PACE.asking)
        else:
            combine_bags(self._store, FeatureBags(ids, splits, factors, denominators), result)
        if out is not None:
            return out
        return result if self._flat else result.reshape(bags, *self.shape[1:])

    def _is_plain_out(
        self,
        out: Any,
        values: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
    ) -> bool:
        """Return whether `_check_out` has nothing against it, at less cost; False: it may have."""
        return (
            type(out) is _NDARRAY
            and out.dtype is self.dtype
            and out.shape == (row_splits.size - 1, *self.shape[1:])
            and out.flags.carray
            and not _MAY_SHARE_MEMORY(out, values)
            and not _MAY_SHARE_MEMORY(out, row_splits)
            and (weights is None or not _MAY_SHARE_MEMORY(out, weights))
            and (self._span is None or not _MAY_SHARE_MEMORY(out, self._span))
        )

    def _is_plain_weights(self, weights: NDArray[Any], size: int) -> bool:
        """Return whether a kernel can read an array of weights where it lies."""
        return (
            weights.dtype is self.dtype
            and weights.shape == (size,)
            and weights.flags.c_contiguous
            and weights.flags.aligned
            and bool(np.isfinite(weights).all())
        )

    def _check_out(self, out: object, bags: int, others: tuple[ArrayLike | None, ...]) -> None:
        if not isinstance(out, np.ndarray):
            raise ShardcoreTypeError(f"out must be an ndarray, got {type(out).__name__}")
        shape = (bags, *self.shape[1:])
        if out.dtype != self.dtype or out.shape != shape or not out.flags.carray:
            raise ShardcoreValueError(
                f"out must be writable, aligned, C-contiguous {self.dtype} of shape {shape}, got "
                f"{out.dtype} of shape {out.shape} with strides {out.strides}"
                f"{'' if out.flags.writeable else ', read-only'}"
            )
        tables = self._store.shards() if isinstance(self._store, ArrayRowStore) else []
        for array in (*tables, *others):
            if isinstance(array, np.ndarray) and np.may_share_memory(out, array):
                raise ShardcoreValueError(
                    "out must not share memory with the table, values, row_splits or weights"
                )

    def __repr__(self) -> str:
        return f"PreparedLookup(shape={self.shape}, dtype={self.dtype}, combiner={self.combiner!r})"


def prepare_lookup(params: Any, combiner: str = "sum") -> PreparedLookup:
    """Return a lookup in one table that costs as little per call as can be.

    The result is called as ``lookup(values, row_splits, weights=None, out=None)`` and gives,
    to the last bit, what an engine gives for these bags. Every call checks ids and row splits.

    Parameters
    ----------
    params : ShardedVariable, array, or list of arrays, the whole (rows, *row_shape)
        Adopted, not copied: later changes are seen. A list holds consecutive ranges of rows. Rows
        of C-contiguous arrays, and those that a backend keeps as such, are combined where they
        lie; of others they are gathered first.
    combiner : "sum", "mean" or "sqrtn"

    Returns
    -------
    PreparedLookup

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these.

    Examples
    --------
    >>> lookup = prepare_lookup(np.array([[1, 2], [3, 4], [5, 6]], np.float32), combiner="mean")
    >>> lookup(np.array([0, 2, 1]), np.array([0, 2, 2, 3]))
    array([[3., 4.],
           [0., 0.],
           [3., 4.]], dtype=float32)
    """
    store = as_row_store(params, None)
    table_dtype(store.dtype, "dtype of params")
    if combiner not in COMBINERS:
        raise ShardcoreValueError(f'combiner must be "sum", "mean" or "sqrtn", got {combiner!r}')
    return PreparedLookup(store, combiner)


def _span_of(arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """Return all bytes from the first of some C-contiguous arrays to the last, not to be read.

    What lies between the arrays belongs to others, or to nobody.
    """
    own = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    if not own:
        return np.empty(0, np.uint8)
    starts = [array.__array_interface__["data"][0] for array in own]
    ends = [start + array.size for start, array in zip(starts, own, strict=True)]
    first = own[starts.index(min(starts))]
    size = max(ends) - min(starts)
    return np.lib.stride_tricks.as_strided(first, (size,), (1,), writeable=False)


def _in_bags(values: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return values, row_splits and weights of bags in any form."""
    ragged, _ = as_ragged(values, "values")
    weights = as_weights(placed_weights(weights, values), ragged, dense_shape(values), "weights")
    return ragged.values, ragged.row_splits, weights


def _read_ids(values: ArrayLike) -> NDArray[Any]:
    ids = as_ids(read_array(values, "values"), "values")
    if ids.ndim != 1:
        raise ShardcoreValueError(f"values must be of rank 1, got shape {ids.shape}")
    return ids.astype(_INT32 if ids.dtype == _INT32 else _INT64)
