"""How arrays, sharded variables and nested structures of them are saved and restored in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box, whole
from shardcore.checkpoint.encoding import stored_type
from shardcore.checkpoint.state import Checkpointable, RestorePlan, SavedTensor, TensorSource
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.row_store import ArrayRowStore
from shardcore.variable import ShardedVariable

__all__ = ["as_checkpointable"]


def as_checkpointable(name: str, value: object) -> Checkpointable:
    """Return `value`, or what saves and restores it in place.

    Parameters
    ----------
    name : str
        The object's name, for messages.
    value : Checkpointable, numpy.ndarray, ShardedVariable, or nested dict, list, tuple of arrays

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is none of these.
    """
    if isinstance(value, Checkpointable):
        return value
    structure = _Structure(name, value)
    structure.leaves()
    return structure


class _Structure:
    """A leaf, or a nested structure of leaves that is walked anew each time."""

    def __init__(self, name: str, value: object) -> None:
        self._name = name
        self._value = value

    def leaves(self) -> dict[str, NDArray[Any] | ShardedVariable]:
        """Return tensor name -> leaf; "" names a structure that is itself a leaf."""
        return dict(_walk(self._name, "", self._value, ()))

    def checkpoint_metadata(self) -> dict[str, Any]:
        return {"type": type(self._value).__name__}

    def checkpoint_tensors(self) -> list[TensorSource]:
        return [
            TensorSource(name, tuple(leaf.shape), leaf.dtype, _boxes(leaf), partial(_read, leaf))
            for name, leaf in self.leaves().items()
        ]

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        leaves = self.leaves()
        missing = [name for name in leaves if name not in tensors]
        optional = metadata.get("optional")  # what the saved object allows a plain one to leave
        left = optional if isinstance(optional, list) else []
        extra = [name for name in tensors if name not in leaves and name not in left]
        if missing or extra:
            raise ShardcoreValueError(
                f"object {self._name!r} does not have the tensors of the checkpoint: "
                f"missing from it {missing}, only in it {extra}"
            )
        writes: dict[str, Callable[[Box, NDArray[Any]], None]] = {}
        for name, leaf in leaves.items():
            where = _join(self._name, name)
            saved = tensors[name]
            if saved.shape != tuple(leaf.shape):
                raise ShardcoreValueError(
                    f"{where} must have the saved shape {saved.shape}, got {tuple(leaf.shape)}"
                )
            if stored_type(saved.dtype, where) != stored_type(leaf.dtype, where):
                raise ShardcoreTypeError(
                    f"{where} must have the saved dtype {saved.dtype}, got {leaf.dtype}"
                )
            _check_writable(where, leaf)
            writes[name] = partial(_write, leaf)
        return RestorePlan(writes, live=True)


def _walk(
    name: str, path: str, value: object, parents: tuple[int, ...]
) -> Iterator[tuple[str, NDArray[Any] | ShardedVariable]]:
    where = _join(name, path)
    if isinstance(value, np.ma.MaskedArray):
        raise ShardcoreTypeError(f"{where} is a masked array, whose mask would be lost")
    if isinstance(value, ShardedVariable | np.ndarray):
        stored_type(value.dtype, where)
        yield path, value
        return
    if not isinstance(value, dict | list | tuple):
        raise ShardcoreTypeError(
            f"{where} must be Checkpointable, an array, a ShardedVariable, or a nested dict, list "
            f"or tuple of arrays, got {type(value).__name__}"
        )
    if id(value) in parents:
        raise ShardcoreValueError(f"{where} contains itself")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(value, dict) and (not isinstance(key, str) or not key or "/" in key):
            raise ShardcoreValueError(
                f"{where} must have non-empty strings without '/' as keys, got {key!r}"
            )
        yield from _walk(name, f"{path}/{key}".lstrip("/"), item, (*parents, id(value)))


def _join(name: str, path: str) -> str:
    return f"object {name!r}" if not path else f"object {name!r}, tensor {path!r}"


def _boxes(leaf: NDArray[Any] | ShardedVariable) -> tuple[tuple[int, Box], ...]:
    if isinstance(leaf, np.ndarray):
        return ((0, whole(leaf.shape)),)
    # Rows are stored in their logical order: a shard of any layout writes as many as it holds.
    offsets = leaf.layout.offsets.tolist()
    row_shape = tuple(leaf.shape[1:])
    return tuple(
        (shard, Box((start, *(0 for _ in row_shape)), (stop - start, *row_shape)))
        for shard, (start, stop) in enumerate(pairwise(offsets))
    )


def _read(leaf: NDArray[Any] | ShardedVariable, box: Box) -> NDArray[Any]:
    values = leaf[box.rows.start : box.rows.stop] if box.shape else leaf
    return np.asarray(values)


def _write(leaf: NDArray[Any] | ShardedVariable, box: Box, values: NDArray[Any]) -> None:
    if isinstance(leaf, ShardedVariable):
        leaf[box.rows.start : box.rows.stop] = values
    else:
        target = leaf[box.rows.start : box.rows.stop] if box.shape else leaf
        np.copyto(target, values, casting="unsafe")  # of one stored dtype: only bytes are swapped


def _check_writable(where: str, leaf: NDArray[Any] | ShardedVariable) -> None:
    arrays: list[NDArray[Any]] = []
    if isinstance(leaf, np.ndarray):
        arrays = [leaf]
    elif isinstance(leaf.store, ArrayRowStore):  # a backend's shards are copies
        arrays = leaf.shards
    if not all(array.flags.writeable for array in arrays):
        raise ShardcoreValueError(f"{where} cannot be restored in place: it is read-only")
