"""NumPy indexing over rows that lie in several places, without putting them together.

An index is split in two: which rows along axis 0 it needs, and the index that picks the answer out
of a compact block of just those rows. Everything but axis 0 is left to NumPy, which runs the second
index on the block; so transposed advanced indices, masks, ellipses and broadcasting are its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import (
    ShardcoreError,
    ShardcoreIndexError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.ids.own_arrays import take_ids
from shardcore.validation.arrays import as_ids, read_array
from shardcore.validation.integers import outside, place_in
from shardcore.variable.row_store import RowStore

__all__ = ["Selection", "numpy_errors", "read", "row_blocks", "row_numbers", "select", "write"]

BLOCK_BYTES = 4 << 20
"""Rows that are worked on at a time, in bytes: a few MiB keeps a pass over a table in the cache."""

_Item: TypeAlias = slice | EllipsisType | int | bool | np.bool_ | NDArray[Any] | None


@dataclass(frozen=True)
class Selection:
    """The rows an index needs and the index that finishes the work on them.

    Attributes
    ----------
    rows : range or (n,) int64
        A range where axis 0 is sliced, or one row is the whole index; else the rows to gather.
    local : tuple
        Index to apply to the block ``(len(rows), *row_shape)``.
    shape : tuple of int
        Shape of the answer.
    row_axis : int
        Axis of the answer along which a range of rows lies; of no meaning for a single row.
    whole_rows : bool
        True where the answer is the block itself, up to a reshape of its first axis.
    """

    rows: range | NDArray[np.int64]
    local: tuple[_Item, ...]
    shape: tuple[int, ...]
    row_axis: int
    whole_rows: bool


@contextmanager
def numpy_errors(prefix: str) -> Iterator[None]:
    """Turn NumPy's refusals into shardcore's of the same kind, `prefix` before their text.

    A Python number that does not fit the dtype, an OverflowError in NumPy, becomes a
    ShardcoreValueError.
    """
    try:
        yield
    except ShardcoreError:
        raise
    except IndexError as error:
        raise ShardcoreIndexError(f"{prefix}: {error}") from error
    except TypeError as error:
        raise ShardcoreTypeError(f"{prefix}: {error}") from error
    except (ValueError, OverflowError) as error:
        raise ShardcoreValueError(f"{prefix}: {error}") from error


def row_numbers(
    indices: object, num_rows: int, argument: str, where: str = "the table"
) -> NDArray[np.int64]:
    """Return `indices` as int64 of the same shape, copied, all of them in ``[0, num_rows)``.

    Parameters
    ----------
    indices : int, or array of any integer type and rank
    num_rows : int
    argument : str
        The caller's argument, for the message.
    where : str
        The name of the axis of `num_rows` places, for the message.

    Raises
    ------
    ShardcoreTypeError
        If they are no integers.
    ShardcoreIndexError
        If one is out of range; the message gives the first one's position.

    Examples
    --------
    >>> row_numbers([3, 0], 4, "indices")
    array([3, 0])
    """
    single = isinstance(indices, int) and not isinstance(indices, bool)
    ids = as_ids(np.asarray(indices) if single else read_array(indices, argument), argument)
    own, bad = take_ids(ids, num_rows)
    if bad >= 0:
        raise outside(place_in(argument, bad, own.shape), own.flat[bad], where, num_rows)
    return own.astype(np.int64, copy=False)


def select(shape: tuple[int, ...], index: Any, *, distinct: bool) -> Selection:
    """Split an index on an array of `shape` into rows and the index that finishes the work.

    Parameters
    ----------
    shape : tuple of int
        Shape of the whole, rank 1 or more.
    index : anything NumPy takes
    distinct : bool
        Whether the rows must differ from one another, as a write needs them.

    Raises
    ------
    ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
        Where NumPy refuses the index, with NumPy's reason.

    Examples
    --------
    >>> select((8, 2), (slice(6, 0, -2), 1), distinct=False).rows
    range(6, 0, -2)
    """
    with numpy_errors(f"index is not valid for shape {shape}"):
        alone = _rows_alone(shape, index)
        return _split(shape, index, distinct) if alone is None else alone


def _split(shape: tuple[int, ...], index: Any, distinct: bool) -> Selection:
    """Split an index of any kind as `select` does; NumPy's refusals are its own."""
    items = _normalise(index)
    answer = _answer_shape(shape, items)
    at = _first_axis(items, len(shape))
    item = slice(None) if at is None else items[at]
    rest = items if at is None else (*items[:at], *items[at + 1 :])
    trivial_rest = all(other is Ellipsis or _is_full_slice(other) for other in rest)

    if isinstance(item, slice) or item is Ellipsis:
        rows = range(shape[0])
        local = items
        if isinstance(item, slice):
            rows = rows[item]
            local = items if at is None else (*items[:at], slice(None), *items[at + 1 :])
        # Only the axis that holds the rows grows with their number.
        grown = _answer_shape((len(rows) + 1, *shape[1:]), local)
        axis = next(i for i, size in enumerate(grown) if size != answer[i])
        return Selection(rows, local, answer, axis, trivial_rest)

    assert at is not None
    compact: _Item
    if isinstance(item, np.ndarray) and item.dtype == bool:
        chosen = np.flatnonzero(item.any(axis=tuple(range(1, item.ndim))))
        compact = item[chosen]
        return _gathered(chosen, items, at, compact, answer, trivial_rest and item.ndim == 1)
    if isinstance(item, np.ndarray) and item.ndim:
        flat = item.ravel().astype(np.int64)
        flat = np.where(flat < 0, flat + shape[0], flat)
        if trivial_rest and not distinct:
            return Selection(flat, (), answer, 0, True)
        unique, inverse = np.unique(flat, return_inverse=True)
        return _gathered(unique, items, at, inverse.reshape(item.shape), answer, False)
    row = int(item)  # type: ignore[arg-type]  # an integer or a 0-d integer array is left
    compact = np.zeros((), np.int64) if isinstance(item, np.ndarray) else 0
    only = np.array([row % max(shape[0], 1)], np.int64)
    return _gathered(only, items, at, compact, answer, False)


def read(store: RowStore, index: Any) -> Any:
    """Return what NumPy's ``whole[index]`` returns: a fresh array, or a scalar.

    Parameters
    ----------
    store : RowStore
        Holds the whole, (rows, *row_shape).
    index : anything NumPy takes

    Raises
    ------
    ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
        Where NumPy refuses the index.

    Examples
    --------
    >>> from shardcore.sharding.layout import Layout
    >>> from shardcore.variable.row_store import ArrayRowStore
    >>> store = ArrayRowStore([np.array([[1, 2]]), np.array([[3, 4]])], Layout.div(2, 2))
    >>> read(store, (slice(None, None, -1), 0))
    array([3, 1])
    """
    selection = select(_shape(store), index, distinct=False)
    rows = selection.rows
    if not isinstance(rows, range):
        block = _gather(store, selection)
        if selection.whole_rows:
            return block.reshape(selection.shape)
        return block[selection.local]
    if selection.whole_rows:
        return _read_rows(store, rows)
    blocks = list(row_blocks(len(rows), store))
    if len(blocks) == 1:
        return _read_rows(store, rows)[selection.local]
    answer = np.empty(selection.shape, store.dtype)
    for block_rows in blocks:
        here = (*(slice(None),) * selection.row_axis, block_rows)
        answer[here] = _read_rows(store, rows[block_rows])[selection.local]
    return answer


def write(store: RowStore, index: Any, value: Any) -> None:
    """Do what NumPy's ``whole[index] = value`` does, or raise before anything is changed.

    Parameters
    ----------
    store : RowStore
        Holds the whole, (rows, *row_shape).
    index : anything NumPy takes
    value : array_like
        Cast as NumPy casts. Must not share memory with the store.

    Raises
    ------
    ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
        Where NumPy refuses the index or the value.

    Examples
    --------
    >>> from shardcore.sharding.layout import Layout
    >>> from shardcore.variable.row_store import ArrayRowStore
    >>> store = ArrayRowStore([np.array([1, 2]), np.array([3])], Layout.from_sizes([2, 1]))
    >>> write(store, [2, 0], 7)
    >>> store.read(0, 3)
    array([7, 2, 7])
    """
    shape = _shape(store)
    selection = select(shape, index, distinct=True)
    rows = selection.rows
    refusal = f"value cannot be written to an index of shape {selection.shape}"
    if not isinstance(rows, range):
        block = _gather(store, selection)
        with numpy_errors(refusal):
            block[selection.local] = value
        written = slice(0 if 0 in selection.shape else len(rows))
        store.scatter(rows[written], block[written])
        return
    blocks = list(row_blocks(len(rows), store))
    if len(blocks) == 1:
        block = _read_rows(store, rows)
        with numpy_errors(refusal):
            block[selection.local] = value
        _write_rows(store, rows, block)
        return
    # Converted whole before the first block is written, so that a value that does not fit stops it.
    with numpy_errors(refusal):
        converted = np.asarray(value, store.dtype)
        # NumPy drops leading axes of length 1, but not those of lists written to a basic index.
        basic = not any(map(_is_advanced, selection.local))
        if hasattr(value, "__array__") or not basic:
            while converted.ndim > len(selection.shape) and converted.shape[0] == 1:
                converted = converted[0]
        converted = np.broadcast_to(converted, selection.shape)

    def write_blocks(store: RowStore) -> None:
        for block_rows in blocks:
            part = converted[(*(slice(None),) * selection.row_axis, block_rows)]
            if not selection.whole_rows:
                block = _read_rows(store, rows[block_rows])
                block[selection.local] = part
                part = block
            _write_rows(store, rows[block_rows], part)

    store.all_at_once(write_blocks)


def row_blocks(num_rows: int, store: RowStore) -> Iterator[slice]:
    """Yield slices that cover `num_rows` rows like the store's, each of a few MiB.

    Parameters
    ----------
    num_rows : int
        For 0 there is one, empty slice.
    store : RowStore
    """
    row_bytes = store.dtype.itemsize * math.prod(store.row_shape)
    length = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, max(num_rows, 1), length):
        yield slice(start, min(start + length, num_rows))


def _shape(store: RowStore) -> tuple[int, ...]:
    return (store.layout.num_rows, *store.row_shape)


def _rows_alone(shape: tuple[int, ...], index: Any) -> Selection | None:
    """Return the selection of an index that is one slice or one row's number, else None.

    It leaves the other axes as they are. To have NumPy find that would double the time of few rows.
    """
    if type(index) is slice:
        rows = range(shape[0])[index]
        return Selection(rows, (slice(None),), (len(rows), *shape[1:]), 0, True)
    # NumPy counts durations among its integers, and takes none for an index.
    if not isinstance(index, (int, np.integer)) or isinstance(index, (bool, np.timedelta64)):
        return None
    if not -shape[0] <= index < shape[0]:
        return None  # NumPy says why
    row = int(index) % shape[0]
    return Selection(range(row, row + 1), (0,), shape[1:], 0, False)


def _normalise(index: Any) -> tuple[_Item, ...]:
    """Return the index as a tuple whose items are those NumPy knows, lists as arrays.

    Arrays are copied: NumPy checks them here, and rows are found by them later.
    """
    items: list[_Item] = []
    for item in index if isinstance(index, tuple) else (index,):
        if item is None or item is Ellipsis or isinstance(item, (slice, bool, np.bool_)):
            items.append(item)
        elif isinstance(item, np.ndarray):
            items.append(_checked(np.array(item), item))
        else:
            try:
                items.append(operator.index(item))
            except TypeError:
                array = np.array(item)
                items.append(_checked(array if array.size else array.astype(np.intp), item))
    return tuple(items)


def _checked(array: NDArray[Any], item: Any) -> NDArray[Any]:
    if array.dtype.kind not in "iub":
        raise IndexError(
            "only integers, slices, Ellipsis, None and integer or boolean arrays are indices, "
            f"got {item!r}"
        )
    return array


def _answer_shape(shape: tuple[int, ...], items: tuple[_Item, ...]) -> tuple[int, ...]:
    """Return the shape of the answer, or let NumPy refuse the index, on an array of no bytes."""
    used = sum(_axes(item) for item in items)
    # Axes that no item names come last in the answer as they are; leaving them out saves the time.
    named = used if used <= len(shape) and not _has_ellipsis(items) else len(shape)
    probed: tuple[int, ...] = np.empty(shape[:named], "V0")[items].shape
    return probed + shape[named:]


def _axes(item: _Item) -> int:
    """Return how many axes an item names."""
    if item is None or item is Ellipsis or isinstance(item, (bool, np.bool_)):
        return 0
    if isinstance(item, np.ndarray) and item.dtype == bool:
        return item.ndim
    return 1


def _has_ellipsis(items: tuple[_Item, ...]) -> bool:
    return any(item is Ellipsis for item in items)


def _is_full_slice(item: _Item) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _first_axis(items: tuple[_Item, ...], rank: int) -> int | None:
    """Return which item names axis 0, or None where that is left to the end of the index."""
    spare = rank - sum(_axes(item) for item in items)
    for position, item in enumerate(items):
        if _axes(item) or (item is Ellipsis and spare):
            return position
    return None


def _gathered(
    rows: NDArray[np.int64],
    items: tuple[_Item, ...],
    at: int,
    compact: _Item,
    answer: tuple[int, ...],
    whole_rows: bool,
) -> Selection:
    local = (*items[:at], compact, *items[at + 1 :])
    return Selection(rows, local, answer, 0, whole_rows)


def _gather(store: RowStore, selection: Selection) -> NDArray[Any]:
    """Return the rows of a selection that is no range; any block serves an empty answer.

    NumPy does not check the numbers of an index that selects nothing.
    """
    rows = np.asarray(selection.rows)
    if 0 in selection.shape:
        return np.empty((len(rows), *store.row_shape), store.dtype)
    return store.gather(rows)


def _is_advanced(item: object) -> bool:
    """Return whether NumPy indexes by arrays where this is part of an index.

    A 0-d array of integers is an integer to it, one of booleans is a mask.
    """
    if isinstance(item, np.ndarray):
        return bool(item.ndim or item.dtype == bool)
    return isinstance(item, (bool, np.bool_))


def _numbers(rows: range) -> NDArray[np.int64]:
    return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)


def _read_rows(store: RowStore, rows: range) -> NDArray[Any]:
    if not rows:
        return store.read(0, 0)
    return store.read(rows.start, rows.stop, rows.step)


def _write_rows(store: RowStore, rows: range, values: NDArray[Any]) -> None:
    if rows.step == 1:
        store.write(rows.start, max(rows.start, rows.stop), values)
    elif rows.step == -1 and rows:
        store.write(rows[-1], rows[0] + 1, values[::-1])
    else:
        store.scatter(_numbers(rows), values)
