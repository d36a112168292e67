"""ShardedVariable: one array to its user, several arrays underneath, split along axis 0.

It is a view over a `RowStore`: NumPy arrays of one's own, or a table of a backend. NumPy decides
what every index and operator means; nothing here puts the shards together to answer an index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.initializers.base import Initializer
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.initializers.filling import as_initializer, fill
from shardcore.sharding.layout import Layout
from shardcore.sharding.partitioners import Partitioner
from shardcore.validation.shapes import as_count, as_shape, check_addressable, new_array
from shardcore.variable import indexing
from shardcore.variable import scatter as scattering
from shardcore.variable.array_mixin import WholeArrayMethods
from shardcore.variable.row_store import ArrayRowStore, RowStore, checked_shards

__all__ = [
    "VariableCreator",
    "variable_creator",
    "ShardedVariable",
    "ShardedVariableSpec",
    "create_variable",
]

VariableCreator: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Given a function that makes one variable in the ordinary way, returns what the caller gets."""

variable_creator: Final[ContextVar[VariableCreator | None]] = ContextVar(
    "shardcore_variable_creator", default=None
)
"""The creator that `create_variable` calls in this thread or task; None: it creates itself."""

_DEFAULT_NAME = "ShardedVariable"


@dataclass(frozen=True)
class ShardedVariableSpec:
    """The layout, row shape and dtype of a variable: equal where shards match.

    Attributes
    ----------
    layout : Layout
    row_shape : tuple of int
    dtype : numpy.dtype

    Examples
    --------
    >>> v = create_variable((4, 2), num_shards=2)
    >>> v.spec.shape, v.spec == create_variable((4, 2), num_shards=2).spec
    ((4, 2), True)
    """

    layout: Layout
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole variable."""
        return (self.layout.num_rows, *self.row_shape)


class ShardedVariable(WholeArrayMethods):
    """Arrays that are one array, split along axis 0.

    Indexing, assignment, operators, ufuncs and reductions are NumPy's. Reads are copies. Every
    change is whole or does not happen: arguments are checked before the first element is written.

    Parameters
    ----------
    shards : sequence of ndarray, each (shard size, *row_shape)
        Adopted, not copied: the variable and the arrays share memory. Of equal dtype and trailing
        shape; a shard may have no rows.
    name : str
    layout : Layout, optional
        Which rows the shards hold; by default consecutive ranges.

    Raises
    ------
    ShardcoreTypeError
        If `shards` is no sequence of arrays, or empty, or `layout` no Layout.
    ShardcoreValueError
        If the shards' dtypes or trailing shapes differ, a shard is of rank 0, two share memory, or
        the sizes are not those of `layout`.

    Examples
    --------
    >>> v = ShardedVariable([np.array([[1, 2], [3, 4]]), np.array([[5, 6]])])
    >>> v.shape, v[::-2, 0]
    ((3, 2), array([5, 1]))
    >>> v[[2, 0]] += 1
    >>> np.asarray(v)
    array([[2, 3],
           [3, 4],
           [6, 7]])
    """

    def __init__(
        self,
        shards: Sequence[NDArray[Any]],
        name: str = _DEFAULT_NAME,
        layout: Layout | None = None,
    ) -> None:
        arrays = checked_shards(shards, "shards")
        _check_disjoint(arrays)
        sizes = [len(array) for array in arrays]
        if layout is None:
            layout = Layout.from_sizes(sizes)
        elif not isinstance(layout, Layout):
            raise ShardcoreTypeError(f"layout must be a Layout, got {shown(layout)}")
        elif layout.shard_sizes.tolist() != sizes:
            raise ShardcoreValueError(
                f"layout must match the shards' sizes {sizes}, got {layout!r}"
            )
        self._name = _checked_name(name)
        self._store: RowStore = ArrayRowStore(arrays, layout)

    @classmethod
    def from_store(cls, store: RowStore, name: str = _DEFAULT_NAME) -> Self:
        """Return a view over a store: what is written to it is written to the store.

        Pickling or copying such a view gives a variable with shards of its own.

        Parameters
        ----------
        store : RowStore
        name : str

        Examples
        --------
        >>> store = ArrayRowStore([np.zeros(2)], Layout.div(2, 1))
        >>> ShardedVariable.from_store(store, "table")[0] = 7
        >>> store.read(0, 2)
        array([7., 0.])
        """
        view = cls.__new__(cls)
        view._name = _checked_name(name)
        view._store = store
        return view

    # What it is

    @property
    def store(self) -> RowStore:
        """The rows underneath."""
        return self._store

    @property
    def layout(self) -> Layout:
        """Which shard and local row each row has."""
        return self._store.layout

    @property
    def shards(self) -> list[NDArray[Any]]:
        """The shards' arrays, each (shard size, *row_shape)."""
        return self._store.shards()

    @property
    def name(self) -> str:
        """The name, a label only."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
        return (self._store.layout.num_rows, *self._store.row_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._store.dtype

    @property
    def ndim(self) -> int:
        """Rank of the whole."""
        return 1 + len(self._store.row_shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def spec(self) -> ShardedVariableSpec:
        """Layout, row shape and dtype: equal and of equal hash for equal shardings."""
        return ShardedVariableSpec(self.layout, tuple(self._store.row_shape), self.dtype)

    def __len__(self) -> int:
        return self.layout.num_rows

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """Iterate over the shards."""
        return iter(self.shards)

    def __repr__(self) -> str:
        return (
            f"ShardedVariable(name={self.name!r}, shape={self.shape}, dtype={self.dtype}, "
            f"layout={self.layout!r})"
        )

    def numpy(self) -> NDArray[Any]:
        """Return a fresh array of all rows, of `shape`."""
        return self._store.read(0, self.layout.num_rows)

    def copy(self) -> ShardedVariable:
        """Return a variable of the same name and layout with shards of its own."""
        shards = [np.array(shard) for shard in self.shards]
        return ShardedVariable(shards, self.name, self.layout)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardedVariable, (self.shards, self.name, self.layout)

    # Reading and writing by index

    def __getitem__(self, index: Any) -> Any:
        return indexing.read(self._store, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        indexing.write(self._store, index, self._detached(value))

    def assign(self, value: ArrayLike) -> Self:
        """Overwrite everything.

        Parameters
        ----------
        value : array_like
            Broadcast to `shape`; cast by the same_kind rule.

        Returns
        -------
        ShardedVariable
            Itself.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `value` is of another kind, does not fit, or does not broadcast.

        Examples
        --------
        >>> create_variable((2, 2), num_shards=2).assign([1, 2])[1]
        array([1., 2.], dtype=float32)
        """
        cast = scattering.cast_values(value, self.dtype, "value")
        self._overwrite(self._broadcast(self._detached(cast), "value"))
        return self

    def assign_add(self, delta: ArrayLike) -> Self:
        """Add `delta` to everything, as ``+=`` does; see `assign`."""
        return self._assign_operation(np.add, delta)

    def assign_sub(self, delta: ArrayLike) -> Self:
        """Subtract `delta` from everything, as ``-=`` does; see `assign`."""
        return self._assign_operation(np.subtract, delta)

    def sparse_read(self, indices: ArrayLike) -> NDArray[Any]:
        """Return rows in request order.

        Parameters
        ----------
        indices : array of int, any rank, each in [0, rows)

        Returns
        -------
        ndarray, indices.shape + row_shape
            A scalar where that has no axis.

        Raises
        ------
        ShardcoreTypeError, ShardcoreIndexError
            If they are no integers, or one is out of range.

        Examples
        --------
        >>> ShardedVariable([np.array([5, 6]), np.array([7])]).sparse_read([2, 0, 2])
        array([7, 5, 7])
        """
        rows = indexing.row_numbers(indices, len(self), "indices")
        found = self._store.gather(rows.reshape(-1))
        return found.reshape((*rows.shape, *self._store.row_shape))[()]

    def gather_nd(self, indices: ArrayLike) -> NDArray[Any]:
        """Return the parts at places given by the last axis of `indices`.

        Parameters
        ----------
        indices : array of int, (..., k), 1 <= k <= ndim
            ``indices[..., j]`` is a place along axis j, not negative.

        Returns
        -------
        ndarray, indices.shape[:-1] + shape[k:]
            A scalar where that has no axis.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If they are no integers, have no such last axis, or one is out of range.

        Examples
        --------
        >>> ShardedVariable([np.array([[5, 6]]), np.array([[7, 8]])]).gather_nd([[1, 0], [0, 1]])
        array([7, 6])
        """
        columns = scattering.nd_columns(indices, self.shape)
        return indexing.read(self._store, columns)  # type: ignore[no-any-return]  # as NumPy's

    # Sparse updates

    def scatter_add(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Add `values` to rows; a row named twice gets both.

        Parameters
        ----------
        indices : array of int, any rank, each in [0, rows)
        values : array_like
            Broadcast to ``indices.shape + row_shape``; cast by the same_kind rule.

        Returns
        -------
        ShardedVariable
            Itself.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If the dtype has no such operation, an argument is of another kind, does not fit or
            broadcast, or an index is out of range. Nothing has changed then.

        Examples
        --------
        >>> v = create_variable(3, num_shards=2, initializer=np.zeros(3))
        >>> v.scatter_add([2, 0, 2], 1.5).numpy()
        array([1.5, 0. , 3. ], dtype=float32)
        """
        return self._scatter("add", indices, values)

    def scatter_sub(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Subtract `values` from rows, every occurrence; see `scatter_add`."""
        return self._scatter("sub", indices, values)

    def scatter_mul(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Multiply rows by `values`, every occurrence; see `scatter_add`."""
        return self._scatter("mul", indices, values)

    def scatter_div(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Divide rows by `values`, every occurrence; see `scatter_add`. Refused for integers."""
        return self._scatter("div", indices, values)

    def scatter_min(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Lower rows to `values` where those are less; see `scatter_add`."""
        return self._scatter("min", indices, values)

    def scatter_max(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Raise rows to `values` where those are greater; see `scatter_add`."""
        return self._scatter("max", indices, values)

    def scatter_update(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Overwrite rows by `values`; of a row named twice the last wins. See `scatter_add`."""
        return self._scatter("update", indices, values)

    def batch_scatter_update(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Overwrite parts of each batch entry, the leading axes being a batch.

        ``v[b, indices[b, i]] = values[b, i]`` for every b and i, and so for more batch axes. With
        `indices` of rank 1 there is no batch and this is `scatter_update`.

        Parameters
        ----------
        indices : array of int, (*shape[:k], n)
        values : array_like
            Broadcast to ``indices.shape + shape[k + 1:]``; cast by the same_kind rule.

        Returns
        -------
        ShardedVariable
            Itself.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            As `scatter_add`, and if the leading axes are not those of the variable.

        Examples
        --------
        >>> v = create_variable((2, 3), num_shards=2, initializer=np.zeros((2, 3)))
        >>> v.batch_scatter_update([[2], [0]], [[5], [7]]).numpy()
        array([[0., 0., 5.],
               [7., 0., 0.]], dtype=float32)
        """
        columns = scattering.batch_columns(indices, self.shape)
        scattering.scatter(self._store, "update", columns, values)
        return self

    def scatter_nd_add(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Add `values` to the parts at places given by the last axis of `indices`.

        Parameters
        ----------
        indices : array of int, (..., k), 1 <= k <= ndim
            As `gather_nd`.
        values : array_like
            Broadcast to ``indices.shape[:-1] + shape[k:]``; cast by the same_kind rule.

        Returns
        -------
        ShardedVariable
            Itself.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            As `scatter_add`, and if `indices` have no such last axis.

        Examples
        --------
        >>> v = create_variable((2, 2), num_shards=2, initializer=np.zeros((2, 2)))
        >>> v.scatter_nd_add([[0, 1], [0, 1]], [1, 2]).numpy()
        array([[0., 3.],
               [0., 0.]], dtype=float32)
        """
        return self._scatter_nd("add", indices, values)

    def scatter_nd_sub(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Subtract `values` from parts, every occurrence; see `scatter_nd_add`."""
        return self._scatter_nd("sub", indices, values)

    def scatter_nd_update(self, indices: ArrayLike, values: ArrayLike) -> Self:
        """Overwrite parts by `values`, the last occurrence wins; see `scatter_nd_add`."""
        return self._scatter_nd("update", indices, values)

    def _scatter(self, operation: str, indices: ArrayLike, values: ArrayLike) -> Self:
        scattering.check_operation(operation, self.dtype)
        rows = indexing.row_numbers(indices, len(self), "indices")
        scattering.scatter(self._store, operation, (rows,), values)
        return self

    def _scatter_nd(self, operation: str, indices: ArrayLike, values: ArrayLike) -> Self:
        scattering.check_operation(operation, self.dtype)
        columns = scattering.nd_columns(indices, self.shape)
        scattering.scatter(self._store, operation, columns, values)
        return self

    def _assign_operation(self, ufunc: np.ufunc, delta: ArrayLike) -> Self:
        self._broadcast(scattering.cast_values(delta, self.dtype, "delta"), "delta")
        with indexing.numpy_errors("delta cannot be applied"):
            ufunc(self, delta, out=self)
        return self

    def _broadcast(self, values: NDArray[Any], argument: str) -> NDArray[Any]:
        return scattering.broadcast_values(values, self.shape, argument, "the variable's shape")

    def _detached(self, value: Any) -> Any:
        """Return `value`, copied if a write to the variable could change it on the way."""
        if isinstance(value, np.ndarray) and isinstance(self._store, ArrayRowStore):
            shared = any(np.may_share_memory(value, shard) for shard in self._store.shards())
            return value.copy() if shared else value
        return value

    def _check_writable(self) -> None:
        if isinstance(self._store, ArrayRowStore):
            self._store.check_writable()

    def _overwrite(self, values: NDArray[Any]) -> None:
        indexing.write(self._store, ..., values)


def create_variable(
    shape: int | Sequence[int],
    dtype: DTypeLike = "float32",
    partitioner: Partitioner | None = None,
    num_shards: int | None = None,
    initializer: Initializer | ArrayLike | None = None,
    name: str | None = None,
    seed: int | None = None,
) -> ShardedVariable:
    """Return a new variable in "div" layout.

    Parameters
    ----------
    shape : int or sequence of int
        Of the whole; at least one axis.
    dtype : anything ``np.dtype`` takes, or ``"bfloat16"``
    partitioner : Partitioner, optional
        Says how many shards; must cut axis 0 only.
    num_shards : int, optional
        1 or more; may exceed the rows. Without either there is one shard.
    initializer : callable ``init(rows, row_shape, dtype, seed)``, or array of `shape`, optional
        By default `TruncatedNormal` for a float dtype and zeros for others. Called in blocks of
        global rows, so the values do not depend on the number of shards.
    name : str, optional
    seed : int, optional
        In [0, 2**64); None is 0.

    Returns
    -------
    ShardedVariable

    Raises
    ------
    ShardcoreMemoryError
        If the system has no room for it.
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these, both `partitioner` and `num_shards` are given, or the
        partitioner cuts another axis.

    Examples
    --------
    >>> create_variable((5, 2), num_shards=2, name="users")
    ShardedVariable(name='users', shape=(5, 2), dtype=float32, layout=Layout.div(5, 2))
    """
    creator = variable_creator.get()
    if creator is not None:
        arguments = (shape, dtype, partitioner, num_shards, initializer, name, seed)
        return creator(lambda: create_variable(*arguments))  # type: ignore[no-any-return]  # theirs
    sizes = as_shape((shape,) if isinstance(shape, (int, np.integer)) else shape)
    if not sizes:
        raise ShardcoreValueError("shape must have at least one axis, got ()")
    resolved = as_dtype(dtype)
    check_addressable(sizes, resolved, "the variable")
    if partitioner is not None and num_shards is not None:
        raise ShardcoreValueError(
            "partitioner and num_shards both say how many shards there are; give one of them"
        )
    shards = 1 if num_shards is None else as_count(num_shards, "num_shards")
    if partitioner is not None:
        shards = _shards_of_axis_0(partitioner, sizes, resolved)
    if initializer is None:
        floating = resolved.kind == "f" or resolved.name == "bfloat16"
        zeros = np.broadcast_to(np.zeros((), resolved), sizes)
        initializer = TruncatedNormal() if floating else zeros
    init = as_initializer(initializer, sizes, resolved)
    layout = Layout.div(sizes[0], shards)
    arrays = []
    for start, stop in zip(layout.offsets[:-1].tolist(), layout.offsets[1:].tolist(), strict=True):
        array = new_array((stop - start, *sizes[1:]), resolved)
        fill(array, init, range(start, stop), 0 if seed is None else seed)
        arrays.append(array)
    return ShardedVariable(arrays, _DEFAULT_NAME if name is None else name, layout)


def _shards_of_axis_0(
    partitioner: Partitioner, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> int:
    if not callable(partitioner):
        raise ShardcoreTypeError(f"partitioner must be callable, got {shown(partitioner)}")
    counts = list(partitioner(shape, dtype))
    if len(counts) != len(shape):
        raise ShardcoreValueError(
            f"partitioner must return one shard count per axis of {shape}, got {counts}"
        )
    if any(count != 1 for count in counts[1:]):
        raise ShardcoreValueError(f"partitioner must cut axis 0 only, got shard counts {counts}")
    return as_count(counts[0], "partitioner's shard count of axis 0")


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise ShardcoreTypeError(f"name must be a string, got {shown(name)}")
    return name


def _check_disjoint(arrays: list[NDArray[Any]]) -> None:
    bounds = sorted((*byte_bounds(array), i) for i, array in enumerate(arrays) if array.size)
    for at, (_, high, i) in enumerate(bounds):
        for low, _, j in bounds[at + 1 :]:
            if low >= high:
                break
            # Bounds of views with strides may overlap though the memory does not.
            if np.shares_memory(arrays[i], arrays[j]):
                first, second = sorted((i, j))
                raise ShardcoreValueError(
                    f"shards[{first}] and shards[{second}] must not share memory"
                )
