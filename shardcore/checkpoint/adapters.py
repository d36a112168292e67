"""How arrays, sharded variables and nested structures of them are saved and restored in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.process_group import ProcessGroup
from shardcore.checkpoint.boxes import Box, whole
from shardcore.checkpoint.collective import process_group_of
from shardcore.checkpoint.encoding import stored_type
from shardcore.checkpoint.state import Checkpointable, RestorePlan, SavedTensor, TensorSource
from shardcore.errors import CorruptCheckpointError, ShardcoreTypeError, ShardcoreValueError
from shardcore.variable.row_store import ArrayRowStore
from shardcore.variable.variable import ShardedVariable

__all__ = ["as_checkpointable"]

_Leaf: TypeAlias = NDArray[Any] | ShardedVariable

_DEEPEST: Final = 100  # containers in containers


def as_checkpointable(name: str, value: object) -> Checkpointable:
    """Return `value`, or what saves and restores it in place.

    Parameters
    ----------
    name : str
        The object's name, for messages.
    value : Checkpointable, numpy.ndarray, ShardedVariable, or nested dict, list, tuple, dataclass

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
    """A leaf, or a nested structure of leaves that is walked anew each time.

    The tensors of a Checkpointable in it are under its place in the structure.
    """

    def __init__(self, name: str, value: object) -> None:
        self._name = name
        self._value = value

    def leaves(self) -> dict[str, _Leaf | Checkpointable]:
        """Return tensor name -> leaf; "" names a structure that is itself a leaf."""
        return dict(_walk(self._name, "", self._value, ()))

    def _parts(self) -> tuple[dict[str, _Leaf], dict[str, Checkpointable]]:
        """Return what is a tensor, and what has tensors of its own, by their places."""
        arrays: dict[str, _Leaf] = {}
        nested: dict[str, Checkpointable] = {}
        for path, leaf in self.leaves().items():
            if isinstance(leaf, np.ndarray | ShardedVariable):
                arrays[path] = leaf
            else:
                nested[path] = leaf
        return arrays, nested

    @property
    def checkpoint_process_group(self) -> ProcessGroup | None:
        """The processes that hold something of it together; or None."""
        arrays, nested = self._parts()
        stores = {
            path: leaf.store for path, leaf in arrays.items() if isinstance(leaf, ShardedVariable)
        }
        return process_group_of({**stores, **nested})

    def checkpoint_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"type": type(self._value).__name__}
        _, nested = self._parts()
        if nested:
            own = {path: value.checkpoint_metadata() for path, value in nested.items()}
            metadata["nested"] = own
            metadata["optional"] = [
                _below(path, key) for path in own for key in _optional(own[path])
            ]
        return metadata

    def checkpoint_tensors(self) -> list[TensorSource]:
        arrays, nested = self._parts()
        sources = [
            TensorSource(name, tuple(leaf.shape), leaf.dtype, _boxes(leaf), partial(_read, leaf))
            for name, leaf in arrays.items()
        ]
        for path, value in nested.items():
            for source in value.checkpoint_tensors():
                name, group = _below(path, source.name), _below(path, source.group)
                sources.append(dataclasses.replace(source, name=name, group=group))
        return sources

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        arrays, nested = self._parts()
        own = {path: _tensors_below(path, tensors) for path in nested}
        handed_on = {_below(path, key) for path, found in own.items() for key in found}
        missing = [name for name in arrays if name not in tensors]
        saved_as = _nested_metadata(self._name, metadata)
        missing += [path for path in own if not own[path] and path not in saved_as]
        known = {*arrays, *handed_on, *_optional(metadata)}
        extra = [name for name in tensors if name not in known]
        if missing or extra:
            raise ShardcoreValueError(
                f"object {self._name!r} does not have the tensors of the checkpoint: "
                f"missing from it {missing}, only in it {extra}"
            )
        writes: dict[str, Callable[[Box, NDArray[Any]], None]] = {}
        for name, leaf in arrays.items():
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
        plan = RestorePlan(writes, live=bool(arrays) or not nested)
        if not nested:
            return plan
        plans = {"": plan}
        with ExitStack() as begun:  # if one cannot be restored, the others are aborted
            for path, value in nested.items():
                known_as = saved_as.get(path, {})
                plans[path] = value.checkpoint_restore(known_as, own[path], slots=slots)
                begun.callback(plans[path].abort)
            begun.pop_all()
        return _one_plan(plans)


def _below(path: str, name: str) -> str:
    """Return the name of a tensor of an object that stands at `path` in a structure."""
    return f"{path}/{name}" if name else path


def _tensors_below(path: str, tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """Return the tensors of what stands at `path`, by the names that it knows."""
    start = f"{path}/"
    found = {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}
    return {"": tensors[path], **found} if path in tensors else found


def _optional(metadata: Mapping[str, Any]) -> list[Any]:
    """Return the tensors that the saved object allows a plain one to leave alone."""
    optional = metadata.get("optional")
    return optional if isinstance(optional, list) else []


def _nested_metadata(name: str, metadata: Mapping[str, Any]) -> Mapping[str, dict[str, Any]]:
    nested = metadata.get("nested", {})
    if not isinstance(nested, dict) or not all(isinstance(own, dict) for own in nested.values()):
        raise CorruptCheckpointError(
            f"metadata of object {name!r} must have a mapping of mappings as 'nested', "
            f"got {nested!r}"
        )
    return nested


def _one_plan(plans: Mapping[str, RestorePlan]) -> RestorePlan:
    """Return the plans of what stands at several places as one: all commit, or all abort."""

    def abort(waiting: Sequence[RestorePlan]) -> None:
        with ExitStack() as stack:  # all of them, even if one fails
            for plan in waiting:
                stack.callback(plan.abort)

    def commit() -> None:
        waiting = list(plans.values())
        try:
            while waiting:
                waiting.pop(0).commit()
        finally:
            abort(waiting)  # none, unless one failed

    def begin() -> None:
        for plan in plans.values():
            plan.begin()

    writes = {
        _below(path, key) if path else key: write
        for path, plan in plans.items()
        for key, write in plan.writes.items()
    }
    return RestorePlan(
        writes,
        live=any(plan.live for plan in plans.values()),
        commit=commit,
        abort=lambda: abort(list(plans.values())),
        skipped=tuple(_below(path, key) for path in plans for key in plans[path].skipped),
        begin=begin,
    )


def _walk(
    name: str, path: str, value: object, parents: tuple[int, ...]
) -> Iterator[tuple[str, _Leaf | Checkpointable]]:
    where = _join(name, path)
    if isinstance(value, np.ma.MaskedArray):
        raise ShardcoreTypeError(f"{where} is a masked array, whose mask would be lost")
    if isinstance(value, ShardedVariable | np.ndarray):
        stored_type(value.dtype, where)
        yield path, value
        return
    if isinstance(value, Checkpointable):
        yield path, value
        return
    items: Iterable[tuple[object, object]]
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
    else:
        raise ShardcoreTypeError(
            f"{where} must be Checkpointable, an array, a ShardedVariable, or a nested dict, list, "
            f"tuple or dataclass of these, got {type(value).__name__}"
        )
    if id(value) in parents:
        raise ShardcoreValueError(f"{where} contains itself")
    if len(parents) == _DEEPEST:
        raise ShardcoreValueError(f"object {name!r} must be nested at most {_DEEPEST} deep")
    for key, item in items:
        if isinstance(value, dict) and (not isinstance(key, str) or not key or "/" in key):
            raise ShardcoreValueError(
                f"{where} must have non-empty strings without '/' as keys, got {key!r}"
            )
        yield from _walk(name, f"{path}/{key}".lstrip("/"), item, (*parents, id(value)))


def _join(name: str, path: str) -> str:
    return f"object {name!r}" if not path else f"object {name!r}, tensor {path!r}"


def _boxes(leaf: _Leaf) -> tuple[tuple[int, Box], ...]:
    if isinstance(leaf, np.ndarray):
        return ((0, whole(leaf.shape)),)
    # Rows are stored in their logical order: a shard of any layout writes as many as it holds.
    offsets = leaf.layout.offsets.tolist()
    row_shape = tuple(leaf.shape[1:])
    return tuple(
        (shard, Box((start, *(0 for _ in row_shape)), (stop - start, *row_shape)))
        for shard, (start, stop) in enumerate(pairwise(offsets))
    )


def _read(leaf: _Leaf, box: Box) -> NDArray[Any]:
    values = leaf[box.rows.start : box.rows.stop] if box.shape else leaf
    return np.asarray(values)


def _write(leaf: _Leaf, box: Box, values: NDArray[Any]) -> None:
    if isinstance(leaf, ShardedVariable):
        leaf[box.rows.start : box.rows.stop] = values
    else:
        target = leaf[box.rows.start : box.rows.stop] if box.shape else leaf
        np.copyto(target, values, casting="unsafe")  # of one stored dtype: only bytes are swapped


def _check_writable(where: str, leaf: _Leaf) -> None:
    arrays: list[NDArray[Any]] = []
    if isinstance(leaf, np.ndarray):
        arrays = [leaf]
    elif isinstance(leaf.store, ArrayRowStore):  # a backend's shards are copies
        arrays = leaf.shards
    if not all(array.flags.writeable for array in arrays):
        raise ShardcoreValueError(f"{where} cannot be restored in place: it is read-only")
