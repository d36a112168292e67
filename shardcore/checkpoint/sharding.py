"""The contract of a sharding callback: from the tensors of a host to the files that get them.

Offsets are those of the full tensor everywhere: a slice that a host holds, and a part cut from it,
are named the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box, contains, row_ranges, rows_of
from shardcore.checkpoint.encoding import stored_type
from shardcore.checkpoint.reader import rows_per_block
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.validation.shapes import as_shape

__all__ = ["Shard", "ShardableTensor", "ShardingCallback", "SliceSpec", "TensorSlice"]


@dataclass(frozen=True)
class SliceSpec:
    """Which part of a tensor: an axis-aligned box, and the shape of the whole.

    Parameters
    ----------
    offset : sequence of int
        First index per axis of the full tensor.
    shape : sequence of int
        Size per axis.
    full_shape : sequence of int
        Shape of the full tensor; the box lies within it.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they are no sequences of integers >= 0 of one length, or the box lies outside.

    Examples
    --------
    >>> spec = SliceSpec((0, 1), (2, 3), (2, 5))
    >>> print(spec)
    [0:2, 1:4] of (2, 5)
    >>> spec == SliceSpec([0, 1], [2, 3], [2, 5])
    True
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    full_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("offset", "shape", "full_shape"):
            object.__setattr__(self, name, as_shape(getattr(self, name), name))
        if not len(self.offset) == len(self.shape) == len(self.full_shape):
            raise ShardcoreValueError(
                "offset, shape and full_shape must have one length, "
                f"got {self.offset}, {self.shape} and {self.full_shape}"
            )
        for axis, (offset, size, bound) in enumerate(
            zip(self.offset, self.shape, self.full_shape, strict=True)
        ):
            if offset + size > bound:
                raise ShardcoreValueError(
                    f"slice must lie within full_shape {self.full_shape}, "
                    f"spans [{offset}, {offset + size}) on axis {axis}"
                )

    @classmethod
    def whole(cls, shape: Sequence[int]) -> SliceSpec:
        """Return the slice that is all of a tensor of `shape`.

        Examples
        --------
        >>> print(SliceSpec.whole((3, 2)))
        [0:3, 0:2] of (3, 2)
        """
        return cls((0,) * len(shape), tuple(shape), tuple(shape))

    @property
    def box(self) -> Box:
        """Offset and shape, without the full shape."""
        return Box(self.offset, self.shape)

    def __str__(self) -> str:
        return f"{self.box} of {self.full_shape}"


@dataclass(frozen=True, eq=False)
class ShardableTensor:
    """The part of one tensor that one host saves; values are read only when asked for.

    Parameters
    ----------
    checkpoint_key : str
        Names the tensor in the checkpoint: ``"<object>/<tensor>"``.
    slice_spec : SliceSpec
        The part of the tensor that this host saves.
    dtype : numpy.dtype
    host : int
        The host (a task, in TensorFlow's words).
    reader : callable
        Given a `Box`, some rows of the slice in all its columns, returns their values.

    Examples
    --------
    >>> tensor = ShardableTensor.from_array("dense/w", np.arange(6).reshape(3, 2))
    >>> tensor.shape, tensor.dtype, tensor.host
    ((3, 2), dtype('int64'), 0)
    >>> tensor.read((1, 1), (2, 1))
    array([[3],
           [5]])
    """

    checkpoint_key: str
    slice_spec: SliceSpec
    dtype: np.dtype[Any]
    host: int
    reader: Callable[[Box], NDArray[Any]] = field(repr=False)

    @classmethod
    def from_array(
        cls,
        checkpoint_key: str,
        array: NDArray[Any],
        *,
        host: int = 0,
        slice_spec: SliceSpec | None = None,
    ) -> ShardableTensor:
        """Return the shardable tensor of an array, for trying a callback on it.

        Parameters
        ----------
        checkpoint_key : str
        array : numpy.ndarray
            Not copied.
        host : int, default 0
        slice_spec : SliceSpec, optional
            Which part of a larger tensor the array is; default: all of it.

        Raises
        ------
        ShardcoreTypeError
            If `array` is no array.
        ShardcoreValueError
            If its shape is not that of `slice_spec`.
        """
        if not isinstance(array, np.ndarray):
            raise ShardcoreTypeError(f"array must be a NumPy array, got {type(array).__name__}")
        spec = SliceSpec.whole(array.shape) if slice_spec is None else slice_spec
        if spec.shape != array.shape:
            raise ShardcoreValueError(
                f"array must have the shape {spec.shape} of slice_spec, got {array.shape}"
            )

        def read(box: Box) -> NDArray[Any]:
            return (
                array[box.rows.start - spec.offset[0] :][: len(box.rows)] if spec.shape else array
            )

        return cls(checkpoint_key, spec, array.dtype, host, read)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part that this host saves."""
        return self.slice_spec.shape

    @property
    def tensor(self) -> TensorSlice:
        """All of it, not yet read."""
        return TensorSlice(self, self.slice_spec)

    def slice(self, offset: Sequence[int], shape: Sequence[int]) -> TensorSlice:
        """Return a part of it, not yet read.

        Parameters
        ----------
        offset : sequence of int
            First index per axis of the full tensor.
        shape : sequence of int
            Size per axis.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If that is no part of this slice.
        """
        spec = SliceSpec(tuple(offset), tuple(shape), self.slice_spec.full_shape)
        if not contains(self.slice_spec.box, spec.box):
            raise ShardcoreValueError(
                f"slice {spec.box} must lie within {self.slice_spec.box} "
                f"of tensor {self.checkpoint_key!r}"
            )
        return TensorSlice(self, spec)

    def read(self, offset: Sequence[int], shape: Sequence[int]) -> NDArray[Any]:
        """Return the values of a part of it, read-only; they may share memory with the table.

        Parameters
        ----------
        offset : sequence of int
            First index per axis of the full tensor.
        shape : sequence of int
            Size per axis.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If that is no part of this slice.
        """
        box = self.slice(offset, shape).slice_spec.box
        own = self.slice_spec
        values = self.reader(rows_of(own.box, box.rows.start, box.rows.stop))
        if box.shape[1:] != own.shape[1:]:
            columns = zip(box.offset[1:], box.shape[1:], own.offset[1:], strict=True)
            values = values[
                (slice(None), *(slice(at - start, at - start + n) for at, n, start in columns))
            ]
        values = values.view()
        values.flags.writeable = False
        return values


@dataclass(frozen=True, eq=False)
class TensorSlice:
    """A part of a shardable tensor that is read when it is written, a block at a time.

    ``np.asarray`` reads all of it at once.

    Parameters
    ----------
    source : ShardableTensor
        Use its `ShardableTensor.slice` and `ShardableTensor.tensor` to make one.
    slice_spec : SliceSpec
        The part.

    Examples
    --------
    >>> tensor = ShardableTensor.from_array("w", np.arange(6).reshape(3, 2))
    >>> part = tensor.slice((1, 0), (2, 1))
    >>> part.shape, part.nbytes
    ((2, 1), 16)
    >>> np.asarray(part).tolist()
    [[2], [4]]
    """

    source: ShardableTensor
    slice_spec: SliceSpec

    @property
    def shape(self) -> tuple[int, ...]:
        """Size per axis."""
        return self.slice_spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the tensor."""
        return self.source.dtype

    @property
    def host(self) -> int:
        """That of the tensor."""
        return self.source.host

    @property
    def nbytes(self) -> int:
        """Bytes in memory; what a string takes is known only once it is read."""
        return self.slice_spec.box.size * self.dtype.itemsize

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the values in blocks of rows, in row order, none of them large.

        Yields
        ------
        array
            Some rows, all columns of this slice; read-only.
        """
        box = self.slice_spec.box
        if not box.size:
            return
        stored = stored_type(self.dtype, f"tensor {self.source.checkpoint_key!r}")
        limit = rows_per_block(self.source.shape, stored.itemsize)  # all its columns are read
        for start, stop in row_ranges(box.rows.start, box.rows.stop, limit):
            part = rows_of(box, start, stop)
            yield self.source.read(part.offset, part.shape)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        values = self.source.read(self.slice_spec.offset, self.slice_spec.shape)
        return np.array(values, dtype=dtype, copy=copy)


Shard = Mapping[str, Mapping[SliceSpec, TensorSlice | NDArray[Any]]]
"""The content of one file: checkpoint key -> slice -> its values."""


class ShardingCallback(ABC):
    r"""Decides which file of a checkpoint holds what.

    `Checkpoint.save` calls it once per host, in ascending order, with what that host saves. What it
    returns is validated always, by `validate_shards`, before anything is written. It may cut
    tensors into boxes along any axes; a checkpoint restores all the same.

    Two callbacks are equal, and hash alike, if they are of one class and their attributes are
    equal; do not change the attributes of one that is in a set or is a key of a dict.

    Examples
    --------
    >>> class FilePerTensor(ShardingCallback):
    ...     description = "a file per tensor"
    ...
    ...     def __call__(self, shardable_tensors):
    ...         return [{t.checkpoint_key: {t.slice_spec: t.tensor}} for t in shardable_tensors]
    >>> import tempfile
    >>> from shardcore.checkpoint import Checkpoint
    >>> checkpoint = Checkpoint(w=np.zeros(3), b=np.zeros(2))
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = checkpoint.save(root, 12, sharding_callback=FilePerTensor())
    ...     print(*sorted(file.name for file in path.iterdir()), sep="\n")
    manifest.json
    shard-00000-of-00002.safetensors
    shard-00001-of-00002.safetensors
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """A description of the callback in a few words; errors name it."""

    @abstractmethod
    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> Sequence[Shard]:
        """Return the shards of one host; each becomes one file.

        Parameters
        ----------
        shardable_tensors : sequence of ShardableTensor
            The tensors that the host saves, at least one.

        Returns
        -------
        sequence of mapping
            Per shard: checkpoint key -> slice -> its values. Values are a `TensorSlice`, which is
            read in blocks as the file is written, or an array. Together the slices hold every
            element exactly once.
        """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardingCallback) or type(self) is not type(other):
            return NotImplemented
        return _frozen(_attributes(self)) == _frozen(_attributes(other))

    def __hash__(self) -> int:
        return hash((type(self), _frozen(_attributes(self))))


def _attributes(callback: ShardingCallback) -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in type(callback).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            stored = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if hasattr(callback, stored):
                found[stored] = getattr(callback, stored)
    return found | vars(callback)


@dataclass(frozen=True, eq=False)
class _Unhashable:
    """A value that can be compared but not hashed."""

    value: object

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Unhashable):
            return NotImplemented
        return self.value is other.value or bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))


def _frozen(value: object) -> Hashable:
    """Return what is equal, and hashes alike, for equal values: containers by their content."""
    if isinstance(value, np.ndarray):
        objects = value.dtype.hasobject
        content = _frozen(value.tolist()) if objects else np.ascontiguousarray(value).tobytes()
        return np.ndarray, str(value.dtype), value.shape, content
    if isinstance(value, dict):
        return dict, frozenset((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return set, frozenset(map(_frozen, value))
    if isinstance(value, list | tuple):
        return list if isinstance(value, list) else tuple, tuple(map(_frozen, value))
    try:
        hash(value)
    except TypeError:
        return _Unhashable(value)
    assert isinstance(value, Hashable)
    return value
