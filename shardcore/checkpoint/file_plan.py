"""Which slice of which tensor goes into which file."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box, cover_problem, whole
from shardcore.checkpoint.encoding import StoredType, stored_type
from shardcore.checkpoint.manifest import ObjectRecord, StoredBox, TensorRecord
from shardcore.checkpoint.safetensors import RESERVED_KEYS, Entry
from shardcore.checkpoint.shard_validation import validate_shards
from shardcore.checkpoint.sharding import (
    ShardableTensor,
    ShardingCallback,
    SliceSpec,
    TensorSlice,
)
from shardcore.checkpoint.slice_entries import file_keys, slice_entries
from shardcore.checkpoint.state import TensorSource
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError

__all__ = ["FilePlan", "plan_files"]

_LABEL_LENGTH = 120  # leaves room for numbers and suffix in a name of 255 bytes


@dataclass(frozen=True)
class FilePlan:
    """The files and tensors that a step will hold.

    Parameters
    ----------
    objects : dict of str to ObjectRecord
        For the manifest.
    files : dict of str to list of Entry
        File name -> the tensors in it.
    """

    objects: dict[str, ObjectRecord]
    files: dict[str, list[Entry]]


def plan_files(
    objects: Mapping[str, tuple[dict[str, Any], Sequence[TensorSource]]],
    sharding_callback: ShardingCallback | None,
) -> FilePlan:
    """Return which file holds what; nothing is written, and of numbers nothing is read.

    Parameters
    ----------
    objects : mapping of str to (metadata, tensors)
    sharding_callback : ShardingCallback or None
        None: each group of tensors has a file per host.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an object breaks its protocol.
    ShardcoreRuntimeError
        If the callback does.
    """
    tensors = {
        name: _tensors(name, metadata, sources) for name, (metadata, sources) in objects.items()
    }
    every = [tensor for group in tensors.values() for tensor in group]
    by_key = {tensor.key: tensor for tensor in every}
    files: dict[str, list[Entry]] = {}
    boxes: dict[str, list[StoredBox]] = {tensor.key: [] for tensor in every}
    placed = _per_group(every) if sharding_callback is None else _sharded(every, sharding_callback)
    for file, slices in placed.items():
        used = set(RESERVED_KEYS)
        files[file] = []
        for values in slices:
            tensor = by_key[values.source.checkpoint_key]
            box = values.slice_spec.box
            key = _free_key(tensor.key, box, tensor.stored, used)
            files[file] += slice_entries(values, tensor.stored, key, tensor.where)
            boxes[tensor.key].append(StoredBox(file, key, box))
    records = {
        name: ObjectRecord(
            metadata,
            {
                tensor.source.name: TensorRecord(
                    tensor.source.shape, tensor.stored, tuple(boxes[tensor.key])
                )
                for tensor in tensors[name]
            },
        )
        for name, (metadata, _) in objects.items()
    }
    return FilePlan(records, files)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of an object, checked: its key in the checkpoint, and what each host saves of it."""

    label: str
    key: str
    where: str
    source: TensorSource
    stored: StoredType
    parts: list[ShardableTensor]


def _tensors(name: str, metadata: dict[str, Any], sources: Sequence[TensorSource]) -> list[_Tensor]:
    if not isinstance(metadata, dict):
        raise ShardcoreTypeError(
            f"metadata of object {name!r} must be a dict, got {type(metadata).__name__}"
        )
    _check_json(metadata, f"metadata of object {name!r}")
    found: dict[str, _Tensor] = {}
    for source in sources:
        _check_name(source.name, f"tensor name of object {name!r}")
        if source.name in found:
            raise ShardcoreValueError(f"object {name!r} has two tensors named {source.name!r}")
        where = f"tensor {source.name!r} of object {name!r}"
        key = f"{name}/{source.name}" if source.name else name
        solid = _solid_boxes(where, source)
        found[source.name] = _Tensor(
            f"{name}.{source.group}" if source.group else name,
            key,
            where,
            source,
            stored_type(source.dtype, where),
            [
                ShardableTensor(
                    key,
                    SliceSpec(box.offset, box.shape, source.shape),
                    source.dtype,
                    host,
                    partial(_read_as_announced, source, where),
                )
                for host, box in solid
            ],
        )
    return list(found.values())


def _read_as_announced(source: TensorSource, where: str, box: Box) -> NDArray[Any]:
    values = source.read(box)
    if values.shape != box.shape or values.dtype != source.dtype:
        raise ShardcoreRuntimeError(
            f"{where} announced {source.dtype} of shape {box.shape} for rows "
            f"[{box.rows.start}, {box.rows.stop}), but its read gave {values.dtype} of "
            f"{values.shape}"
        )
    return values


def _solid_boxes(where: str, source: TensorSource) -> list[tuple[int, Box]]:
    """Return the boxes that hold something; an empty tensor keeps one, so that it is kept."""
    if any(type(size) is not int or size < 0 for size in source.shape):
        raise ShardcoreValueError(f"{where} must have a shape of integers >= 0, got {source.shape}")
    problem = cover_problem(source.shape, [box for _, box in source.boxes])
    if problem is not None:
        raise ShardcoreValueError(f"{where}: {problem}")
    if not math.prod(source.shape):
        return [(source.boxes[0][0] if source.boxes else 0, whole(source.shape))]
    return [(host, box) for host, box in source.boxes if box.size]


def _per_group(tensors: Sequence[_Tensor]) -> dict[str, list[TensorSlice]]:
    """Return file -> slices: a file per group and host that holds something of it."""
    groups: dict[str, dict[int, list[TensorSlice]]] = {}
    for tensor in tensors:
        hosts = groups.setdefault(tensor.label, {})
        for part in tensor.parts:
            hosts.setdefault(part.host, []).append(part.tensor)
    labels: set[str] = set()
    return {
        file: slices
        for group, hosts in groups.items()
        for file, slices in _numbered(
            _label(group, labels), [hosts[host] for host in sorted(hosts)]
        )
    }


def _sharded(
    tensors: Sequence[_Tensor], callback: ShardingCallback
) -> dict[str, list[TensorSlice]]:
    """Return file -> slices: a file per shard that the callback returned, of any host."""
    if not isinstance(callback.description, str):
        raise ShardcoreTypeError(
            "description of sharding_callback must be a string, "
            f"got {type(callback.description).__name__}"
        )
    parts = [part for tensor in tensors for part in tensor.parts]
    shards: list[list[TensorSlice]] = []
    for host in sorted({part.host for part in parts}):
        given = [part for part in parts if part.host == host]
        returned = callback(list(given))
        validate_shards(returned, given, callback.description)
        for shard in returned:
            shards.append(
                [
                    _as_slice(key, spec, value, host)
                    for key, slices in shard.items()
                    for spec, value in slices.items()
                ]
            )
    return dict(_numbered("shard", shards))


def _as_slice(
    key: str, spec: SliceSpec, value: TensorSlice | NDArray[Any], host: int
) -> TensorSlice:
    if isinstance(value, TensorSlice):
        return value
    array = np.asarray(value)
    return ShardableTensor.from_array(key, array, host=host, slice_spec=spec).tensor


def _numbered(
    label: str, files: Sequence[list[TensorSlice]]
) -> Iterator[tuple[str, list[TensorSlice]]]:
    for index, slices in enumerate(files):
        yield f"{label}-{index:05d}-of-{len(files):05d}.safetensors", slices


def _label(name: str, labels: set[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LABEL_LENGTH]
    if plain != name or not re.match(r"[A-Za-z0-9_]", plain):
        plain = f"_{plain}-{zlib.crc32(name.encode()):08x}"
    label, count = plain, 1
    while label.casefold() in labels:  # some file systems ignore case
        count += 1
        label = f"{plain}-{count}"
    labels.add(label.casefold())
    return label


def _free_key(name: str, box: Box, stored: StoredType, used: set[str]) -> str:
    """Return a key for a box: the tensor's name, with the box where the file has it already."""
    key = name
    while not used.isdisjoint(file_keys(key, stored)):
        key += str(box)
    used.update(file_keys(key, stored))
    return key


def _check_name(name: object, where: str) -> None:
    if not isinstance(name, str):
        raise ShardcoreTypeError(f"{where} must be a string, got {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ShardcoreValueError(f"{where} must be valid Unicode, got {name!r}") from error


def _check_json(value: object, where: str) -> None:
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float:
        if not math.isfinite(value):
            raise ShardcoreValueError(f"{where} must be finite, got {value}")
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ShardcoreTypeError(f"{where} must have strings as keys, got {key!r}")
            _check_json(item, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
    else:
        raise ShardcoreTypeError(
            f"{where} must be None, bool, int, float, str, or a list or dict of these, "
            f"got {type(value).__name__}"
        )
