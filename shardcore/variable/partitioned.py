"""A variable cut into plain arrays along any one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.initializers.base import Initializer
from shardcore.initializers.filling import as_initializer, blocks
from shardcore.validation.shapes import as_shape, check_addressable, new_array

__all__ = ["Part", "create_partitioned_variables"]


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a variable, and where it lies in the whole.

    Parameters
    ----------
    name : str
    value : array `shape`
    full_shape : tuple of int
        Shape of the whole variable.
    offset : tuple of int
        Index in the whole of the part's first element.
    shape : tuple of int
        Shape of the part.

    Examples
    --------
    >>> first, second = create_partitioned_variables([3, 2], [2, 1], [[1, 2], [3, 4], [5, 6]])
    >>> second.name, second.spec
    ('PartitionedVariable/part_1', '3 2 2,1:0,2')
    >>> np.asarray(second)
    array([[5., 6.]], dtype=float32)
    """

    name: str
    value: NDArray[Any]
    full_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def spec(self) -> str:
        """The place as text: the full shape, then ``offset,size`` of every axis, by ``:``.

        Examples
        --------
        >>> Part("p", np.zeros((20, 22)), (20, 43), (0, 0), (20, 22)).spec
        '20 43 0,20:0,22'
        """
        full = " ".join(str(size) for size in self.full_shape)
        place = ":".join(f"{o},{size}" for o, size in zip(self.offset, self.shape, strict=True))
        return f"{full} {place}"

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype, copy=copy)


def create_partitioned_variables(
    shape: Sequence[int],
    slicing: Sequence[int],
    initializer: Initializer | ArrayLike,
    dtype: DTypeLike = "float32",
    name: str | None = None,
    seed: int = 0,
) -> list[Part]:
    """Return a variable cut into parts along one axis.

    The first ``dim % n`` of n parts have one entry more. Together the parts are, value for value,
    the variable in one piece, whatever the axis and the number of parts.

    Parameters
    ----------
    shape : sequence of int
        Of the whole variable; at least one axis.
    slicing : sequence of int, one per axis
        Number of parts along each axis, 1 or more, at most one of them above 1; an axis cannot have
        more parts than entries.
    initializer : callable ``init(rows, row_shape, dtype, seed)``, or array-like of `shape`
        A callable is asked for whole rows, a block of about 1 MiB at a time.
    dtype : anything ``np.dtype`` takes, or ``"bfloat16"``
    name : str, optional
        Parts are called ``<name>/part_<i>``. The default is "PartitionedVariable" for every
        variable: there is no global state that could count them.
    seed : int in [0, 2**64)
        Handed to the initializer.

    Returns
    -------
    list of Part

    Raises
    ------
    ShardcoreTypeError
        If an entry of `shape` or `slicing`, or `seed`, is no integer, `name` no string, or the
        initial values do not cast to `dtype` within the same kind.
    ShardcoreValueError
        If `shape` has no axis, or `slicing` not one count per axis, a count below 1, more than one
        above 1, or more parts than entries; or the initial values have another shape or do not fit.

    Examples
    --------
    >>> parts = create_partitioned_variables([20, 43], [1, 3], lambda rows, row_shape, dtype, seed:
    ...     np.ones((len(rows), *row_shape)), name="hi")
    >>> [(part.name, part.spec) for part in parts]  # doctest: +NORMALIZE_WHITESPACE
    [('hi/part_0', '20 43 0,20:0,15'), ('hi/part_1', '20 43 0,20:15,14'),
     ('hi/part_2', '20 43 0,20:29,14')]
    """
    full = as_shape(shape)
    axis, count = _cut(full, slicing)
    if name is not None and not isinstance(name, str):
        raise ShardcoreTypeError(f"name must be a string, got {name!r}")
    resolved = as_dtype(dtype)
    check_addressable(full, resolved, "the variable")
    init = as_initializer(initializer, full, resolved)
    values = blocks(init, full[1:], resolved, range(full[0]), seed)

    size, longer = divmod(full[axis], count)
    sizes = [size + (i < longer) for i in range(count)]
    parts = []
    start = 0
    for i, size in enumerate(sizes):
        offset = tuple(start if a == axis else 0 for a in range(len(full)))
        part_shape = (*full[:axis], size, *full[axis + 1 :])
        place = f"{name if name is not None else 'PartitionedVariable'}/part_{i}"
        parts.append(Part(place, new_array(part_shape, resolved), full, offset, part_shape))
        start += size
    for rows, block in values:
        for part in parts:
            _copy_common(part, axis, rows, block)
    return parts


def _copy_common(part: Part, axis: int, rows: slice, block: NDArray[Any]) -> None:
    """Copy into `part` what it shares with `block`, the values of whole rows `rows`."""
    first, size = part.offset[axis], part.shape[axis]
    if axis == 0:
        lo, hi = max(first, rows.start), min(first + size, rows.stop)
        if lo < hi:
            part.value[lo - first : hi - first] = block[lo - rows.start : hi - rows.start]
    else:
        others = (slice(None),) * (axis - 1)
        part.value[rows] = block[(slice(None), *others, slice(first, first + size))]


def _cut(shape: tuple[int, ...], slicing: Sequence[int]) -> tuple[int, int]:
    """Return the axis that `slicing` cuts and into how many parts, or raise."""
    if not shape:
        raise ShardcoreValueError("shape must have at least one axis, got ()")
    counts = as_shape(slicing, "slicing", minimum=1)
    if len(counts) != len(shape):
        raise ShardcoreValueError(
            f"slicing must have one count per axis of the shape {shape}, got {counts}"
        )
    cut = [axis for axis, count in enumerate(counts) if count > 1]
    if len(cut) > 1:
        raise ShardcoreValueError(f"slicing must cut at most one axis, got {counts}")
    axis = cut[0] if cut else 0
    if counts[axis] > max(1, shape[axis]):
        raise ShardcoreValueError(
            f"slicing[{axis}] must be at most the {shape[axis]} entries of the axis, "
            f"got {counts[axis]}"
        )
    return axis, counts[axis]
