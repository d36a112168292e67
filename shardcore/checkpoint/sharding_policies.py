"""The sharding callbacks that come with the library."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.encoding import encode_strings, stored_type
from shardcore.checkpoint.sharding import (
    Shard,
    ShardableTensor,
    ShardingCallback,
    SliceSpec,
    TensorSlice,
)
from shardcore.validation.shapes import as_count

__all__ = ["MaxShardSizePolicy", "ShardByTaskPolicy"]

_logger = logging.getLogger(__name__)

_Shard = dict[str, dict[SliceSpec, TensorSlice | NDArray[np.generic]]]


class ShardByTaskPolicy(ShardingCallback):
    """One file per host (a task, in TensorFlow's words) for all it saves.

    Without a callback, by contrast, every table has files of its own.

    Examples
    --------
    >>> tensors = [ShardableTensor.from_array(key, np.zeros(2)) for key in "ab"]
    >>> [list(shard) for shard in ShardByTaskPolicy()(tensors)]
    [['a', 'b']]
    """

    @property
    def description(self) -> str:
        """A description of the policy."""
        return "one shard per host"

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return all tensors as one shard; no shard where there is none."""
        shard: _Shard = {}
        for tensor in shardable_tensors:
            shard.setdefault(tensor.checkpoint_key, {})[tensor.slice_spec] = tensor.tensor
        return [shard] if shard else []


class MaxShardSizePolicy(ShardingCallback):
    """Files of at most so many bytes of tensors.

    The tensors of a host are taken in order, and one shard is open at a time. One that does not fit
    into the room left is cut: along the axis that needs the fewest parts of that room, the first of
    several, as many slices as fit. Where not one does, a new shard is opened; where not one slice
    fits into any shard, the first axis is taken apart, down to single elements. An element that is
    larger than a shard gets one of its own, after all others, and the log says so.

    Parameters
    ----------
    max_shard_size : int
        Most bytes of a shard, at least 1. Counted are elements, and the UTF-8 bytes of strings; a
        file's header, checksums and offsets of strings come on top.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If `max_shard_size` is no integer >= 1.

    Examples
    --------
    >>> tensor = ShardableTensor.from_array("w", np.zeros((3, 2), np.float32))
    >>> def cuts(max_shard_size):
    ...     for shard in MaxShardSizePolicy(max_shard_size)([tensor]):
    ...         print(*map(str, shard["w"]))
    >>> cuts(16)
    [0:2, 0:2] of (3, 2)
    [2:3, 0:2] of (3, 2)
    >>> cuts(12)
    [0:3, 0:1] of (3, 2)
    [0:3, 1:2] of (3, 2)
    """

    def __init__(self, max_shard_size: int) -> None:
        self._max_shard_size = as_count(max_shard_size, "max_shard_size")

    @property
    def max_shard_size(self) -> int:
        """Most bytes of a shard."""
        return self._max_shard_size

    @property
    def description(self) -> str:
        """A description of the policy."""
        return f"shards of at most {self._max_shard_size} bytes"

    def __call__(self, shardable_tensors: Sequence[ShardableTensor]) -> list[Shard]:
        """Return the tensors, cut where they must be, in as many shards as it takes."""
        filling = _Filling(self._max_shard_size)
        for tensor in shardable_tensors:
            filling.add(tensor)
        return filling.shards()


class _Numbers:
    """Bytes of boxes of a tensor of numbers."""

    def __init__(self, itemsize: int) -> None:
        self._itemsize = itemsize

    def size(self, box: Box) -> int:
        return box.size * self._itemsize

    def fitting(self, box: Box, axis: int, room: int) -> int:
        """Return how many slices of `box` along `axis` fit into `room`, from the first on."""
        return min(box.shape[axis], room // (self.size(box) // box.shape[axis]))


class _Strings:
    """Bytes of boxes of a tensor of strings, eight bytes in memory for each string."""

    def __init__(self, tensor: ShardableTensor) -> None:
        where = f"tensor {tensor.checkpoint_key!r}"
        stored = stored_type(tensor.dtype, where)
        lengths = np.empty(tensor.slice_spec.box.size, np.int64)
        done = 0
        for block in tensor.tensor.blocks():
            strings = encode_strings(block, stored, where)
            lengths[done : done + len(strings)] = [len(string) for string in strings]
            done += len(strings)
        self._lengths = lengths.reshape(tensor.shape)
        self._origin = tensor.slice_spec.offset

    def size(self, box: Box) -> int:
        return int(self._part(box).sum())

    def fitting(self, box: Box, axis: int, room: int) -> int:
        others = tuple(other for other in range(len(box.shape)) if other != axis)
        ends = np.cumsum(self._part(box).sum(axis=others))
        return int(np.searchsorted(ends, room, side="right"))

    def _part(self, box: Box) -> NDArray[np.int64]:
        spans = zip(box.offset, box.shape, self._origin, strict=True)
        part: NDArray[np.int64] = self._lengths[
            tuple(slice(offset - start, offset - start + size) for offset, size, start in spans)
        ]
        return part


class _Filling:
    """Shards being filled, one open at a time."""

    def __init__(self, max_shard_size: int) -> None:
        self._max = max_shard_size
        self._full: list[_Shard] = []
        self._open: _Shard = {}
        self._room = max_shard_size
        self._oversize: list[_Shard] = []

    def shards(self) -> list[Shard]:
        return [*self._full, *([self._open] if self._open else []), *self._oversize]

    def add(self, tensor: ShardableTensor) -> None:
        stored = stored_type(tensor.dtype, f"tensor {tensor.checkpoint_key!r}")
        sizes = _Strings(tensor) if stored.is_string else _Numbers(stored.itemsize)
        waiting = [tensor.slice_spec.box]
        oversize = len(self._oversize)
        while waiting:
            box = waiting.pop()
            size = sizes.size(box)
            if size <= self._room:
                _put(self._open, tensor, box)
                self._room -= size
                continue
            cut = _cut(sizes, box, self._room)
            if cut is None:
                if size <= self._max or _cut(sizes, box, self._max) is not None:
                    self._full.append(self._open)
                    self._open, self._room = {}, self._max
                    waiting.append(box)
                    continue
                if box.size == 1:
                    self._oversize.append({})
                    _put(self._oversize[-1], tensor, box)
                    continue
                cut = next(axis for axis, length in enumerate(box.shape) if length > 1), 1
            waiting += reversed(_halves(box, *cut))
        count = len(self._oversize) - oversize
        if count:
            _logger.warning(
                "tensor %r: %d elements are larger than max_shard_size %d, each gets a larger "
                "shard of its own",
                tensor.checkpoint_key,
                count,
                self._max,
            )


def _put(shard: _Shard, tensor: ShardableTensor, box: Box) -> None:
    part = tensor.slice(box.offset, box.shape)
    shard.setdefault(tensor.checkpoint_key, {})[part.slice_spec] = part


def _cut(sizes: _Numbers | _Strings, box: Box, room: int) -> tuple[int, int] | None:
    """Return the axis, and the number of slices along it, to cut off for `room`; None for none."""
    best: tuple[int, int] | None = None
    fewest = 0
    if not room:  # only empty strings would fit
        return None
    for axis, length in enumerate(box.shape):
        fitting = sizes.fitting(box, axis, room)
        if fitting:
            parts = -(-length // fitting)
            if best is None or parts < fewest:
                best, fewest = (axis, fitting), parts
    return best


def _halves(box: Box, axis: int, length: int) -> tuple[Box, Box]:
    shape, rest = list(box.shape), list(box.shape)
    offset = list(box.offset)
    shape[axis], rest[axis] = length, rest[axis] - length
    offset[axis] += length
    return Box(box.offset, tuple(shape)), Box(tuple(offset), tuple(rest))
