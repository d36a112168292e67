"""Lookups in tables that a caller holds: rows by id, and bags of rows combined into one.

The table is never copied: a lookup gathers the rows it was asked for, and one that combines bags
works through them in blocks of a few MiB of rows where the table has several shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.backend.max_norm import scaled_to_norm
from shardcore.backend.messages import FeatureBags
from shardcore.dtypes import table_dtype, working_dtype
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.formats import as_ragged, as_weights, dense_shape, placed_weights
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse
from shardcore.sharding.layout import Layout
from shardcore.store.bag_max import max_of_bags
from shardcore.store.segment_reduce import COMBINERS, divisors, reduce_bags
from shardcore.validation.arrays import as_floats, read_array
from shardcore.variable import indexing
from shardcore.variable.row_store import ArrayRowStore, RowStore, checked_shards
from shardcore.variable.variable import ShardedVariable

__all__ = ["embedding_lookup", "embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup(
    params: Any,
    ids: ArrayLike,
    partition_strategy: str | None = None,
    max_norm: float | None = None,
) -> NDArray[Any]:
    """Return one row per id, in request order.

    Parameters
    ----------
    params : ShardedVariable, array, or list of arrays, the whole (rows, *row_shape)
        A list holds the shards of one table: consecutive ranges unless `partition_strategy` is
        "mod". A variable carries its own layout.
    ids : array of any integer type and rank, each in [0, rows)
    partition_strategy : None, "div" or "mod"
        "div" means consecutive ranges, "mod" row r in shard ``r % shards``. An error where it
        contradicts the variable's layout.
    max_norm : float, optional
        Rows whose L2 norm over all their axes is greater are scaled down to it.

    Returns
    -------
    ndarray, ids.shape + row_shape
        Of the table's dtype; a scalar where that has no axis.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these, or they contradict one another.
    ShardcoreIndexError
        If an id is out of range; the message gives its position.

    Examples
    --------
    >>> table = [np.array([[1.0], [2.0]]), np.array([[3.0]])]
    >>> embedding_lookup(table, [[2, 0]]).tolist()
    [[[3.0], [1.0]]]
    >>> embedding_lookup(table, [2, 0], partition_strategy="mod").tolist()
    [[2.0], [1.0]]
    """
    store = as_row_store(params, partition_strategy)
    norm = _checked_norm(max_norm, store)
    if isinstance(ids, (Ragged, Sparse)):
        raise ShardcoreTypeError(
            f"ids must be an array, got {type(ids).__name__}; its bags are combined by "
            "embedding_lookup_sparse"
        )
    rows = indexing.row_numbers(ids, store.layout.num_rows, "ids")
    found = store.gather(rows.reshape(-1))
    if norm is not None:
        for block in indexing.row_blocks(len(found), store):
            found[block] = scaled_to_norm(found[block], norm)
    return found.reshape((*rows.shape, *store.row_shape))[()]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    weights: Any = None,
    combiner: str = "mean",
    max_norm: float | None = None,
) -> NDArray[Any]:
    """Return one combined row per bag of ids.

    With weights w and rows e: sum is Σw·e, mean is Σw·e / Σw, sqrtn is Σw·e / √Σw²; where a
    denominator is 0, so is the result. An empty bag gives zeros. An id that occurs twice counts
    twice. float16 and bfloat16 rows are combined in float32. max is the greatest value of each
    column, without weights, as `TableConfig` has it.

    Parameters
    ----------
    params : ShardedVariable, array, or list of arrays, the whole (rows, *row_shape)
        A list holds consecutive ranges of rows. Of a float dtype.
    sp_ids : Ragged, Sparse, array, (values, row_splits), list of lists, scipy.sparse or pyarrow
        Bags of ids in [0, rows). Of an array of rank 2 or more and of a `Sparse`, the last axis is
        the bag.
    weights : None, Ragged or Sparse of equal places, array, or Arrow column, optional
        One finite number per id; None is 1, or the weights that came with the ids.
    combiner : "sum", "mean", "sqrtn" or "max"
    max_norm : float, optional
        Rows whose L2 norm is greater are scaled down to it before they are combined.

    Returns
    -------
    ndarray, batch_shape + row_shape
        Of the table's dtype; a row for every bag, trailing empty ones included.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these, or weights do not lie where the ids do.
    ShardcoreIndexError
        If an id is out of range; the message gives its position among all values.

    Examples
    --------
    >>> table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> embedding_lookup_sparse(table, [[0, 2], [], [1]])
    array([[3., 4.],
           [0., 0.],
           [3., 4.]])
    >>> embedding_lookup_sparse(table, [[0, 2], [], [1]], combiner="max")
    array([[5., 6.],
           [0., 0.],
           [3., 4.]])
    """
    store, norm = _checked_table(params, combiner, max_norm)
    ragged, batch = as_ragged(sp_ids, "sp_ids")
    _check_unweighted(combiner, weights, ragged)
    working = working_dtype(store.dtype)
    factors = as_weights(
        placed_weights(weights, sp_ids), ragged, dense_shape(sp_ids), "weights", working
    )
    rows = indexing.row_numbers(ragged.values, store.layout.num_rows, "sp_ids.values")
    combined = _combine(store, rows, ragged.row_splits, factors, combiner, norm)
    return combined.reshape(*batch, *store.row_shape)


def safe_embedding_lookup_sparse(
    params: Any,
    ids: Any,
    weights: Any = None,
    combiner: str = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
) -> NDArray[Any]:
    """Return one combined row per bag, leaving out what has no meaning.

    As `embedding_lookup_sparse`, but negative ids are left out, and for "mean" and "sqrtn" also ids
    whose weight is not above 0, NaN included. For "sum" every weight counts and must be finite;
    for "max" there are none.

    Parameters
    ----------
    params, weights, combiner, max_norm
        As `embedding_lookup_sparse`.
    ids : as `sp_ids` of `embedding_lookup_sparse`, negative ones allowed
        For a batch of any rank, a dense array or a `Sparse`.
    default_id : int, optional
        The row that bags without any id left get; zeros if None.

    Returns
    -------
    ndarray, batch_shape + row_shape
        Of the table's dtype.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        As `embedding_lookup_sparse`; an id that is too large is an error unless it is left out.

    Examples
    --------
    >>> table = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> safe_embedding_lookup_sparse(table, [[0, -1], [-1], [2]], default_id=1)
    array([[1., 2.],
           [3., 4.],
           [5., 6.]])
    """
    store, norm = _checked_table(params, combiner, max_norm)
    num_rows = store.layout.num_rows
    ragged, batch = as_ragged(ids, "ids")
    _check_unweighted(combiner, weights, ragged)
    given = placed_weights(weights, ids)
    prunes_weights = combiner in ("mean", "sqrtn")
    if prunes_weights:
        given, ragged = _nan_as_zero(given, ragged)
    factors = as_weights(given, ragged, dense_shape(ids), "weights", working_dtype(store.dtype))
    default = None
    if default_id is not None:
        default = indexing.row_numbers(default_id, num_rows, "default_id").reshape(1)

    values = ragged.values.copy()  # the caller may write to his while they are checked
    kept = values >= 0
    if factors is not None and prunes_weights:
        kept &= factors > 0
    outside = kept & (values >= num_rows)
    if outside.any():
        first = int(np.argmax(outside))
        raise ShardcoreIndexError(
            f"ids.values[{first}] = {values[first]} is outside the table: must be below {num_rows}"
        )
    row_splits = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)[ragged.row_splits]
    rows = values[kept].astype(np.int64, copy=False)
    factors = None if factors is None else factors[kept]
    combined = _combine(store, rows, row_splits, factors, combiner, norm)
    if default is not None:
        row = store.gather(default)
        if norm is not None:
            row = scaled_to_norm(row, norm)
        combined[row_splits[1:] == row_splits[:-1]] = row.reshape(1, -1)
    return combined.reshape(*batch, *store.row_shape)


def as_row_store(params: Any, partition_strategy: str | None) -> RowStore:
    """Return the rows of `params` as a store, in the layout given or the variable's own."""
    if partition_strategy not in (None, "div", "mod"):
        raise ShardcoreValueError(
            f'partition_strategy must be None, "div" or "mod", got {partition_strategy!r}'
        )
    if isinstance(params, ShardedVariable):
        layout = params.layout
        agrees = layout.contiguous if partition_strategy == "div" else layout.strategy == "mod"
        if partition_strategy is not None and layout.num_shards > 1 and not agrees:
            raise ShardcoreValueError(
                f'partition_strategy "{partition_strategy}" contradicts the layout of params, '
                f"{layout!r}"
            )
        return params.store
    if isinstance(params, (list, tuple)):
        shards = [
            shard if isinstance(shard, (list, tuple)) else read_array(shard, f"params[{i}]")
            for i, shard in enumerate(params)
        ]
    else:
        shards = [read_array(params, "params")]
    arrays = checked_shards(shards, "params")
    sizes = [len(array) for array in arrays]
    if partition_strategy != "mod":
        return ArrayRowStore(arrays, Layout.from_sizes(sizes))
    layout = Layout.mod(sum(sizes), len(sizes))
    if layout.shard_sizes.tolist() != sizes:
        raise ShardcoreValueError(
            f'partition_strategy "mod" needs shards of sizes {layout.shard_sizes.tolist()}, '
            f"got {sizes}"
        )
    return ArrayRowStore(arrays, layout)


def _checked_table(
    params: Any, combiner: str, max_norm: float | None
) -> tuple[RowStore, float | None]:
    store = as_row_store(params, None)
    table_dtype(store.dtype, "dtype of params")
    if combiner not in (*COMBINERS, "max"):
        raise ShardcoreValueError(
            f'combiner must be "sum", "mean", "sqrtn" or "max", got {combiner!r}'
        )
    return store, _checked_norm(max_norm, store)


def _check_unweighted(combiner: str, weights: Any, ragged: Ragged) -> None:
    if combiner == "max" and (weights is not None or ragged.weights is not None):
        raise ShardcoreValueError("weights are refused for combiner 'max', which multiplies no row")


def _checked_norm(max_norm: float | None, store: RowStore) -> float | None:
    if max_norm is None:
        return None
    real = isinstance(max_norm, (int, float, np.integer, np.floating))
    if not real or isinstance(max_norm, bool):
        raise ShardcoreTypeError(f"max_norm must be a number > 0, got {max_norm!r}")
    if not max_norm > 0:
        raise ShardcoreValueError(f"max_norm must be a number > 0, got {max_norm}")
    table_dtype(store.dtype, "dtype of params with max_norm")
    return float(max_norm)


def _nan_as_zero(weights: Any, ragged: Ragged) -> tuple[Any, Ragged]:
    """Replace NaN and minus infinity among the weights by 0, which is left out just as they are."""

    def replaced(values: Any) -> NDArray[Any]:
        array = as_floats(read_array(values, "weights"), "weights")
        return np.where(np.isnan(array) | np.isneginf(array), array.dtype.type(0), array)

    if weights is None:
        if ragged.weights is None:
            return None, ragged
        return None, Ragged(ragged.values, ragged.row_splits, replaced(ragged.weights))
    if isinstance(weights, Ragged):
        return Ragged(replaced(weights.values), weights.row_splits, weights.weights), ragged
    if hasattr(weights, "__array__") or hasattr(weights, "__dlpack__"):
        return replaced(weights), ragged
    flat = isinstance(weights, (list, tuple)) and not any(
        isinstance(weight, (list, tuple)) for weight in weights
    )
    return replaced(weights) if flat else weights, ragged


def _combine(
    store: RowStore,
    rows: NDArray[np.int64],
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None,
    combiner: str,
    max_norm: float | None,
) -> NDArray[Any]:
    """Return the combined rows, (bags, elements of a row), in the table's dtype.

    Rows in range, weights in the working dtype, and all arrays but the weights no caller's.
    """
    dim = math.prod(store.row_shape)
    working = working_dtype(store.dtype)
    weights = None if weights is None else np.require(weights, working, ["C", "A"])
    combined = np.empty((len(row_splits) - 1, dim), working)
    if combiner == "max":
        _write_greatest(store, rows, row_splits, max_norm, combined)
        return combined.astype(store.dtype, copy=False)
    denominators = divisors(combiner, row_splits, weights, working)
    bags_of_rows = FeatureBags(rows, row_splits, weights, denominators)
    if max_norm is None and store.combine(bags_of_rows, combined):
        return combined.astype(store.dtype, copy=False)
    for bags in bag_blocks(row_splits, dim * store.dtype.itemsize):
        first, last = int(row_splits[bags.start]), int(row_splits[bags.stop])
        block = store.gather(rows[first:last])
        if max_norm is not None:
            block = scaled_to_norm(block, max_norm)
        reduce_bags(
            np.ascontiguousarray(block).reshape(last - first, dim),
            np.arange(last - first, dtype=np.int64),
            row_splits[bags.start : bags.stop + 1] - first,
            None if weights is None else weights[first:last],
            None if denominators is None else denominators[bags],
            combined[bags],
        )
    return combined.astype(store.dtype, copy=False)


def _write_greatest(
    store: RowStore,
    rows: NDArray[np.int64],
    row_splits: NDArray[np.int64],
    max_norm: float | None,
    out: NDArray[Any],
) -> None:
    """Write the greatest value of each column of each bag."""
    for bags in bag_blocks(row_splits, out.shape[1] * store.dtype.itemsize):
        first, last = int(row_splits[bags.start]), int(row_splits[bags.stop])
        block = store.gather(rows[first:last])
        if max_norm is not None:
            block = scaled_to_norm(block, max_norm)
        values = np.ascontiguousarray(block, out.dtype).reshape(last - first, out.shape[1])
        out[bags], _ = max_of_bags(values, row_splits[bags.start : bags.stop + 1] - first)


def only_array(store: RowStore) -> NDArray[Any] | None:
    """Return the array that is the whole table, if there is one that kernels can read."""
    if not isinstance(store, ArrayRowStore) or store.layout.num_shards > 1:
        return None
    array = store.shards()[0]
    return array if array.flags.c_contiguous and array.flags.aligned else None


def bag_blocks(row_splits: NDArray[np.int64], row_bytes: int) -> Iterator[slice]:
    """Yield slices of bags, each of a few MiB of rows; a bag is never cut."""
    ids = max(1, indexing.BLOCK_BYTES // max(1, row_bytes))
    bags = len(row_splits) - 1
    start = 0
    while start < bags:
        stop = int(np.searchsorted(row_splits, row_splits[start] + ids, side="right")) - 1
        stop = min(max(stop, start + 1), bags)
        yield slice(start, stop)
        start = stop
