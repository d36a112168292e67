"""Writing a step: which boxes go into which file, and the files and manifest in commit order."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box, cover_problem, row_ranges, rows_of, whole
from shardcore.checkpoint.directory import PendingStep
from shardcore.checkpoint.encoding import StoredType, encode_numbers, encode_strings, stored_type
from shardcore.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    ObjectRecord,
    StoredBox,
    TensorRecord,
)
from shardcore.checkpoint.reader import OpenStep, bytes_key, offsets_key, rows_per_block
from shardcore.checkpoint.safetensors import RESERVED_KEYS, Entry, write_tensors
from shardcore.checkpoint.state import TensorSource
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)

__all__ = ["write_step"]

_LABEL_LENGTH = 120  # leaves room for numbers and suffix in a name of 255 bytes


def write_step(
    root: Path, step: int, objects: Mapping[str, tuple[dict[str, Any], Sequence[TensorSource]]]
) -> Path:
    """Write a step and make it visible, or leave everything as it was.

    Parameters
    ----------
    root : Path
    step : int
    objects : mapping of str to (metadata, tensors)

    Returns
    -------
    Path
        The step directory, which may be an earlier save's of the same content.

    Raises
    ------
    ShardcoreValueError
        If the step exists with another content, or a tensor's boxes do not cover it.
    NotCommittedError, DurabilityUnknownError
        If storage failed before, or after, the step became visible.
    """
    plan = _Plan()
    records = {name: plan.add(name, *given) for name, given in objects.items()}
    sums = {}
    with PendingStep(root, step) as pending:
        pending.begin()
        for name, entries in plan.files.items():
            with pending.create(name) as file:
                sums[name] = write_tensors(file.write, entries)
        manifest = Manifest(step, _library_version(), records, sums)
        with pending.create(MANIFEST_NAME) as file:
            file.write(memoryview(manifest.to_bytes()))
        if not pending.publish():
            _check_same(manifest, pending.final)
            pending.confirm()
        return pending.final


def _check_same(manifest: Manifest, existing: Path) -> None:
    """Raise unless `existing` holds, undamaged, what `manifest` describes."""
    refused = f"step {manifest.step} already exists in {existing.parent}"
    if not existing.is_dir():
        raise ShardcoreValueError(f"{refused}: {existing.name} is not a directory")
    try:
        with OpenStep(existing) as saved:
            if saved.manifest.content() != manifest.content():
                raise ShardcoreValueError(f"{refused}, with another content")
            saved.verify()
    except CorruptCheckpointError as error:
        raise ShardcoreValueError(f"{refused}, and is damaged: {error}") from error


def _library_version() -> str:
    try:
        return version("shardcore")
    except PackageNotFoundError:
        return "not installed"  # imported from its source tree


class _Plan:
    """Collects the tensors of every file."""

    def __init__(self) -> None:
        self.files: dict[str, list[Entry]] = {}
        self._labels: set[str] = set()

    def add(
        self, name: str, metadata: dict[str, Any], sources: Sequence[TensorSource]
    ) -> ObjectRecord:
        """Plan one object and return its record for the manifest."""
        if not isinstance(metadata, dict):
            raise ShardcoreTypeError(
                f"metadata of object {name!r} must be a dict, got {type(metadata).__name__}"
            )
        _check_json(metadata, f"metadata of object {name!r}")
        groups: dict[str, list[TensorSource]] = {}
        seen: set[str] = set()
        for source in sources:
            _check_name(source.name, f"tensor name of object {name!r}")
            if source.name in seen:
                raise ShardcoreValueError(f"object {name!r} has two tensors named {source.name!r}")
            seen.add(source.name)
            groups.setdefault(source.group, []).append(source)
        tensors: dict[str, TensorRecord] = {}
        for group, members in groups.items():
            tensors |= self._add_group(name, group, members)
        return ObjectRecord(metadata, {source.name: tensors[source.name] for source in sources})

    def _add_group(
        self, name: str, group: str, sources: Sequence[TensorSource]
    ) -> dict[str, TensorRecord]:
        placed = {source.name: _solid_boxes(name, source) for source in sources}
        hosts = sorted({host for boxes in placed.values() for host, _ in boxes})
        label = self._label(f"{name}.{group}" if group else name)
        files = {
            host: f"{label}-{index:05d}-of-{len(hosts):05d}.safetensors"
            for index, host in enumerate(hosts)
        }
        used: dict[str, set[str]] = {file: set(RESERVED_KEYS) for file in files.values()}
        records = {}
        for source in sources:
            where = f"tensor {source.name!r} of object {name!r}"
            stored = stored_type(source.dtype, where)
            full_name = f"{name}/{source.name}" if source.name else name
            boxes = []
            for host, box in placed[source.name]:
                file = files[host]
                key = _free_key(full_name, box, source.shape, stored, used[file])
                values = _BoxValues(source, stored, box, where)
                self.files.setdefault(file, []).extend(values.entries(key))
                boxes.append(StoredBox(file, key, box))
            records[source.name] = TensorRecord(source.shape, stored, tuple(boxes))
        return records

    def _label(self, name: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:_LABEL_LENGTH]
        if plain != name or not re.match(r"[A-Za-z0-9_]", plain):
            plain = f"_{plain}-{zlib.crc32(name.encode()):08x}"
        label, count = plain, 1
        while label.casefold() in self._labels:  # some file systems ignore case
            count += 1
            label = f"{plain}-{count}"
        self._labels.add(label.casefold())
        return label


def _solid_boxes(name: str, source: TensorSource) -> list[tuple[int, Box]]:
    """Return the boxes that hold something; an empty tensor keeps one, so that it is kept."""
    where = f"tensor {source.name!r} of object {name!r}"
    if any(type(size) is not int or size < 0 for size in source.shape):
        raise ShardcoreValueError(f"{where} must have a shape of integers >= 0, got {source.shape}")
    problem = cover_problem(source.shape, [box for _, box in source.boxes])
    if problem is not None:
        raise ShardcoreValueError(f"{where}: {problem}")
    if not math.prod(source.shape):
        return [(source.boxes[0][0] if source.boxes else 0, whole(source.shape))]
    return [(host, box) for host, box in source.boxes if box.size]


def _free_key(
    name: str, box: Box, shape: tuple[int, ...], stored: StoredType, used: set[str]
) -> str:
    """Return a key for a box: the tensor's name, with the box where the file has it already."""
    spans = zip(box.offset, box.shape, strict=True)
    key = name
    while not used.isdisjoint(_keys(key, stored)):
        key += f"[{', '.join(f'{offset}:{offset + size}' for offset, size in spans)}]"
    used.update(_keys(key, stored))
    return key


def _keys(key: str, stored: StoredType) -> tuple[str, ...]:
    return (offsets_key(key), bytes_key(key)) if stored.is_string else (key,)


@dataclass
class _BoxValues:
    """The values of one box, read in blocks of rows."""

    source: TensorSource
    stored: StoredType
    box: Box
    where: str
    lengths_crc: int = 0

    def entries(self, key: str) -> list[Entry]:
        if self.stored.code is not None:
            return [Entry(key, self.stored.code, self.box.shape, self._numbers)]
        total = sum(int(self._lengths(strings).sum()) for strings in self._strings())
        return [
            Entry(offsets_key(key), "I64", (self.box.size + 1,), self._offsets),
            Entry(bytes_key(key), "U8", (total,), self._bytes),
        ]

    def _blocks(self) -> Iterator[NDArray[Any]]:
        if not self.box.size:
            return
        limit = rows_per_block(self.box.shape, self.stored.itemsize)
        for start, stop in row_ranges(self.box.rows.start, self.box.rows.stop, limit):
            part = rows_of(self.box, start, stop)
            values = self.source.read(part)
            if values.shape != part.shape or values.dtype != self.source.dtype:
                raise ShardcoreRuntimeError(
                    f"{self.where} announced {self.source.dtype} of shape {part.shape} for rows "
                    f"[{start}, {stop}), but its read gave {values.dtype} of {values.shape}"
                )
            yield values

    def _numbers(self) -> Iterator[NDArray[np.uint8]]:
        for values in self._blocks():
            yield encode_numbers(values)

    def _strings(self) -> Iterator[list[bytes]]:
        for values in self._blocks():
            yield encode_strings(values, self.stored, self.where)

    def _lengths(self, strings: list[bytes]) -> NDArray[np.int64]:
        return np.fromiter(map(len, strings), np.int64, len(strings))

    def _offsets(self) -> Iterator[NDArray[np.uint8]]:
        self.lengths_crc = 0
        end = np.zeros(1, np.int64)
        yield encode_numbers(end)
        for strings in self._strings():
            lengths = self._lengths(strings)
            self.lengths_crc = zlib.crc32(lengths.data, self.lengths_crc)
            offsets = end + np.cumsum(lengths)
            end = offsets[-1:]
            yield encode_numbers(offsets)

    def _bytes(self) -> Iterator[NDArray[np.uint8]]:
        crc = 0
        for strings in self._strings():
            crc = zlib.crc32(self._lengths(strings).data, crc)
            yield np.frombuffer(b"".join(strings), np.uint8)
        if crc != self.lengths_crc:  # the offsets, written before, would cut other strings
            raise ShardcoreRuntimeError(f"{self.where} changed while it was being saved")


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
