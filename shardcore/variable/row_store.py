"""The rows under a sharded variable: gathered, scattered, and read in ranges.

A list of NumPy arrays is such a store, and so is a table of a backend. Row numbers that reach a
store are int64 and already checked; a store decides only where a row lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import FeatureBags
from shardcore.backend.process_group import ProcessGroup
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.sharding.layout import Layout
from shardcore.store.given_bags import CombineGiven, given_bags_of
from shardcore.store.scatter import gather_rows, put_rows
from shardcore.store.segment_reduce import reduce_bags, reduce_bags_at
from shardcore.threads.work import uninterrupted

__all__ = ["ArrayRowStore", "RowStore", "checked_shards", "BackendRowStore"]


class RowStore(Protocol):
    """Rows of one shape and dtype, spread over shards.

    Every read is a fresh array that the caller may keep and change. Every write either happens
    whole or raises before anything is changed.
    """

    @property
    def layout(self) -> Layout:
        """Which shard and local row each row has."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows."""

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows in request order, ``(len(rows), *row_shape)``; repeats are allowed."""

    def scatter(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Overwrite distinct rows with `values`, ``(len(rows), *row_shape)`` of the same dtype."""

    def read(self, start: int, stop: int, step: int = 1) -> NDArray[Any]:
        """Return the rows of ``range(start, stop, step)``, in its order."""

    def write(self, start: int, stop: int, values: NDArray[Any]) -> None:
        """Overwrite the rows ``start`` to ``stop``."""

    def combine(self, bags: FeatureBags, out: NDArray[Any]) -> bool:
        """Combine the rows of each bag where they lie, if they can be; return whether they were.

        `out` is of the working dtype and of shape (bags, elements of a row); ids are checked. Only
        for stores of a table dtype.
        """

    def given_bags(self) -> CombineGiven | None:
        """Return what combines bags as they are given where their rows lie; None: nothing does.

        Only for stores of a table dtype.
        """

    def all_at_once(self, write: Callable[[RowStore], None]) -> None:
        """Call ``write(store)``, which makes several writes, so that no interrupt splits them."""

    def shards(self) -> list[NDArray[Any]]:
        """Return one array per shard, its rows in local order."""


class ArrayRowStore:
    """Rows that lie in NumPy arrays, one per shard; the arrays are adopted, not copied.

    Parameters
    ----------
    arrays : list of ndarray, each (shard size, *row_shape)
        Shards of equal dtype and trailing shape, as many rows each as `layout` says.
    layout : Layout

    Examples
    --------
    >>> store = ArrayRowStore([np.zeros((2, 1)), np.ones((1, 1))], Layout.from_sizes([2, 1]))
    >>> store.gather(np.array([2, 0])).tolist()
    [[1.0], [0.0]]
    """

    def __init__(self, arrays: list[NDArray[Any]], layout: Layout) -> None:
        self._arrays = arrays
        self._layout = layout
        self._stride = math.prod(arrays[0].shape[1:]) * arrays[0].itemsize
        self._bases: NDArray[np.int64] | None = None
        if all(array.flags.c_contiguous and array.flags.aligned for array in arrays):
            starts = [array.__array_interface__["data"][0] for array in arrays]
            self._bases = np.array(starts, np.int64)

    @property
    def layout(self) -> Layout:
        """Which shard and local row each row has."""
        return self._layout

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self._arrays[0].shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows."""
        return self._arrays[0].dtype

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows in request order, ``(len(rows), *row_shape)``."""
        if len(self._arrays) == 1:
            return gather_rows(self._arrays[0], np.ascontiguousarray(rows))
        out = np.empty((len(rows), *self.row_shape), self.dtype)
        for array, local, positions in self._by_shard(rows):
            put_rows(out, positions, gather_rows(array, local))
        return out

    def scatter(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Overwrite distinct rows with `values`.

        Raises
        ------
        ShardcoreValueError
            If any shard is read-only.
        """
        self.check_writable()
        parts = [
            (array, local, values[positions]) for array, local, positions in self._by_shard(rows)
        ]
        _change(put_rows, parts)

    def read(self, start: int, stop: int, step: int = 1) -> NDArray[Any]:
        """Return the rows of ``range(start, stop, step)``."""
        rows = range(start, stop, step)
        if self._layout.contiguous:  # one call: one for each shard would take a microsecond each
            return np.concatenate([self._arrays[0][:0], *self._views(rows)])
        if step != 1:
            return self.gather(np.arange(start, stop, step, dtype=np.int64))
        out = np.empty((len(rows), *self.row_shape), self.dtype)
        for places, part in self._parts(rows):
            out[places] = part
        return out

    def write(self, start: int, stop: int, values: NDArray[Any]) -> None:
        """Overwrite the rows ``start`` to ``stop``.

        Raises
        ------
        ShardcoreValueError
            If any shard is read-only.
        """
        self.check_writable()
        _change(
            np.copyto, [(part, values[places]) for places, part in self._parts(range(start, stop))]
        )

    def combine(self, bags: FeatureBags, out: NDArray[Any]) -> bool:
        """Combine the rows of each bag, of C-contiguous shards where they lie."""
        if self._bases is None:
            return False
        rest = bags.ids, bags.row_splits, bags.weights, bags.divisors, out
        if len(self._arrays) == 1:
            reduce_bags(self._arrays[0].reshape(len(self._arrays[0]), out.shape[1]), *rest)
        else:
            reduce_bags_at(self.addresses, self.dtype, *rest)
        return True

    def given_bags(self) -> CombineGiven | None:
        """Return what combines few bags of C-contiguous shards where their rows lie."""
        return given_bags_of(self._arrays, self._layout) if self.addressed else None

    @property
    def addressed(self) -> bool:
        """Whether rows have addresses: all shards are C-contiguous and aligned."""
        return self._bases is not None

    def addresses(self, ids: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the address of each id's row, where rows have addresses."""
        assert self._bases is not None, "rows of other shards have no address"
        return self._layout.addresses(ids, self._bases, self._stride)

    def all_at_once(self, write: Callable[[RowStore], None]) -> None:
        """Call ``write(store)``, which makes several writes, so that no interrupt splits them."""
        uninterrupted(write, self)

    def shards(self) -> list[NDArray[Any]]:
        """Return the arrays themselves."""
        return list(self._arrays)

    def _parts(self, rows: range) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield, of each shard in a range, its places in the range and a view of its rows.

        Of the layout "mod" for steps of 1 only.
        """
        if self._layout.contiguous:
            at = 0
            for part in self._views(rows):
                yield slice(at, at + len(part)), part
                at += len(part)
            return
        step, start, stop = len(self._arrays), rows.start, rows.stop
        for first in range(min(step, stop - start)):
            local_start, shard = divmod(start + first, step)
            count = len(range(start + first, stop, step))
            yield (
                slice(first, None, step),
                self._arrays[shard][local_start : local_start + count],
            )

    def _views(self, rows: range) -> list[NDArray[Any]]:
        """Return, of each shard in a range, a view of its rows; of contiguous layouts."""
        wanted = slice(rows.start, rows.stop if rows.stop >= 0 else None, rows.step)
        return [self._arrays[shard][local] for shard, local in self._layout.decompose_slice(wanted)]

    def _by_shard(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int32] | NDArray[np.int64], NDArray[np.int64]]]:
        """Yield per touched shard its array, the local rows, and where in `rows` they were."""
        partition = self._layout.partition(rows)
        positions = np.empty(len(rows), np.int64)
        positions[partition.inverse] = np.arange(len(rows), dtype=np.int64)
        splits = partition.row_splits
        for shard in np.flatnonzero(np.diff(splits)):
            here = slice(int(splits[shard]), int(splits[shard + 1]))
            yield self._arrays[shard], partition.local[here], positions[here]

    def check_writable(self) -> None:
        """Raise ShardcoreValueError if any shard is read-only.

        Any, not only those a write touches: one that comes in blocks then fails in its first.
        """
        for shard, array in enumerate(self._arrays):
            if not array.flags.writeable:
                raise ShardcoreValueError(
                    f"shards[{shard}] is read-only: the variable cannot be written"
                )


def _change(write: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> None:
    """Make the writes to several shards, all of them; one alone is made by one call of a kernel."""
    if len(parts) > 1:
        uninterrupted(_write_all, write, parts)
    else:
        _write_all(write, parts)


def _write_all(write: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> None:
    for part in parts:
        write(*part)


def checked_shards(shards: object, argument: str) -> list[NDArray[Any]]:
    """Return the shards of one variable as a list of arrays that go together, not copied.

    Parameters
    ----------
    shards : sequence of ndarray, each (shard size, *row_shape)
    argument : str
        The caller's argument, for the message.

    Raises
    ------
    ShardcoreTypeError
        If they are no sequence of arrays of numbers or strings, or there is none.
    ShardcoreValueError
        If one is of rank 0, or dtypes or trailing shapes differ.

    Examples
    --------
    >>> len(checked_shards([np.zeros((2, 3)), np.zeros((0, 3))], "shards"))
    2
    """
    if not isinstance(shards, Sequence) or isinstance(shards, (str, bytes)):
        raise ShardcoreTypeError(
            f"{argument} must be a sequence of arrays, got {type(shards).__name__}"
        )
    if not shards:
        raise ShardcoreTypeError(f"{argument} must hold at least one array, got none")
    arrays: list[NDArray[Any]] = []
    for i, shard in enumerate(shards):
        if not isinstance(shard, np.ndarray) or isinstance(shard, np.ma.MaskedArray):
            raise ShardcoreTypeError(
                f"{argument}[{i}] must be an ndarray, got {type(shard).__name__}"
            )
        array = np.asarray(shard)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise ShardcoreTypeError(
                f"{argument}[{i}] must hold plain numbers or strings, got dtype {array.dtype}"
            )
        if array.ndim == 0:
            raise ShardcoreValueError(f"{argument}[{i}] must have at least one axis, got rank 0")
        first = arrays[0] if arrays else array
        if array.dtype != first.dtype:
            raise ShardcoreValueError(
                f"{argument} must have one dtype: {argument}[{i}] has {array.dtype}, "
                f"{argument}[0] has {first.dtype}"
            )
        if array.shape[1:] != first.shape[1:]:
            raise ShardcoreValueError(
                f"{argument} must have one row shape: {argument}[{i}] has {array.shape[1:]}, "
                f"{argument}[0] has {first.shape[1:]}"
            )
        arrays.append(array)
    return arrays


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class BackendRowStore:
    """A table of a backend, or one of its slots, as the rows of a `ShardedVariable`.

    Parameters
    ----------
    backend : Backend
    table : str
    slot : str or None
        None: the weights.
    calling : callable, optional
        Makes a call to the backend, ``calling(function, *arguments)``: to wait for what was asked
        of it before, and to see to what it refuses.
    """

    def __init__(
        self,
        backend: Backend,
        table: str,
        slot: str | None = None,
        calling: Callable[..., Any] = _call,
    ) -> None:
        self._backend = backend
        self._calling = calling
        self._table = table
        self._slot = slot
        spec = backend.specs[table]
        shape, self._dtype = spec.stored_as(slot)
        self._row_shape: tuple[int, ...] = shape[1:]

    def _open(self) -> Backend:
        if self._table not in self._backend.specs:
            raise ShardcoreRuntimeError(f"table {self._table!r} is gone: its engine was closed")
        return self._backend

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._calling(self._called, method, arguments)

    def _called(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._open(), method)(self._table, self._slot, *arguments)

    def _change(self, method: str, *arguments: Any) -> None:
        self._calling(self._backend.change, self._called, method, arguments)

    @property
    def checkpoint_process_group(self) -> ProcessGroup | None:
        """The processes that hold the rows together; None, unless several do."""
        return self._backend.process_group

    @property
    def layout(self) -> Layout:
        """Which host, as a shard, holds which row."""
        return self._open().layout(self._table)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self._row_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows."""
        return self._dtype

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows in request order."""
        found: NDArray[Any] = self._call("gather", rows)
        return found

    def scatter(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Overwrite distinct rows."""
        self._change("scatter", rows, values)

    def read(self, start: int, stop: int, step: int = 1) -> NDArray[Any]:
        """Return a copy of the rows of ``range(start, stop, step)``."""
        if step not in (1, -1):
            return self.gather(np.arange(start, stop, step, dtype=np.int64))
        backward = step < 0
        found: NDArray[Any] = self._call(
            "read", *((stop + 1, start + 1) if backward else (start, stop))
        )
        return found[::-1] if backward else found

    def write(self, start: int, stop: int, values: NDArray[Any]) -> None:
        """Overwrite the rows [start, stop)."""
        self._change("write", start, values)

    def combine(self, bags: FeatureBags, out: NDArray[Any]) -> bool:
        """Combine the rows of each bag, as the engine does, where the backend is this process."""
        backend = self._open()
        as_stored = self._slot is None and backend.specs[self._table].seen_as_stored
        if not as_stored or backend.capabilities.device_arrays:
            return False
        self._calling(self._combine, bags, out)
        return True

    def _combine(self, bags: FeatureBags, out: NDArray[Any]) -> None:
        self._open().lookup_into(self._table, bags, out)

    def given_bags(self) -> CombineGiven | None:
        """Return what asks the backend to combine bags, where the backend is this process."""
        if self._slot is not None or self._open().capabilities.device_arrays:
            return None
        return partial(self._calling, self._given)  # for every call: of a function less

    def _given(
        self,
        ids: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool:
        backend, table = self._backend, self._table
        if table not in backend.specs:
            self._open()  # which raises
        return backend.lookup_given(table, ids, row_splits, weights, divided, out)

    def all_at_once(self, write: Callable[[BackendRowStore], None]) -> None:
        """Call ``write(store)``, which makes several writes, so that no interrupt splits them."""
        # The store it gets asks the backend itself: what `calling` waits for, it has waited for.
        direct = BackendRowStore(self._backend, self._table, self._slot)
        self._calling(self._backend.change, write, direct)

    def shards(self) -> list[NDArray[Any]]:
        """Return copies of the rows of each host, in local order."""
        found: list[NDArray[Any]] = self._call("shards")
        return found
