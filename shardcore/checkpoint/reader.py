"""Reading a step: its manifest, and verified blocks of rows of its tensors."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box, row_ranges, rows_of, whole
from shardcore.checkpoint.directory import open_regular, step_directory, step_in_name
from shardcore.checkpoint.encoding import decode_numbers, decode_strings
from shardcore.checkpoint.manifest import MANIFEST_NAME, Manifest, StoredBox, TensorRecord
from shardcore.checkpoint.safetensors import SafetensorsReader, read_bytes
from shardcore.errors import CorruptCheckpointError, ShardcoreOSError

__all__ = ["STRINGS_PER_BLOCK", "OpenStep", "bytes_key", "offsets_key", "rows_per_block"]

_BLOCK_BYTES: Final = 16 << 20
STRINGS_PER_BLOCK: Final = 1 << 16
"""Strings held in memory at a time."""

_OPEN_FILES: Final = 64
_MAX_MANIFEST_BYTES: Final = 1 << 30


def bytes_key(key: str) -> str:
    """Return the name of the tensor that holds the bytes of the strings of a box."""
    return f"{key}.bytes"


def offsets_key(key: str) -> str:
    """Return the name of the tensor that holds where each string of a box begins and ends."""
    return f"{key}.offsets"


def rows_per_block(shape: tuple[int, ...], itemsize: int) -> int:
    """Return how many rows of a tensor are held in memory at a time; strings have itemsize 0.

    Examples
    --------
    >>> rows_per_block((1000000, 64), 4)
    65536
    """
    items = math.prod(shape[1:])
    if itemsize == 0:
        return max(1, STRINGS_PER_BLOCK // max(1, items))
    return max(1, _BLOCK_BYTES // max(1, items * itemsize))


class OpenStep:
    """A step directory open for reading.

    Parameters
    ----------
    path : path
        A step directory, or a root, of which the newest step is opened.

    Raises
    ------
    CorruptCheckpointError
        If the manifest is missing, damaged or not of this step.
    ShardcoreOSError
        If there is no such directory or it cannot be read.
    """

    def __init__(self, path: object) -> None:
        self.path: Path = step_directory(path)
        self._files: dict[str, SafetensorsReader] = {}
        try:
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ShardcoreOSError(f"step {self.path} cannot be opened: {error}") from error
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            os.close(self._directory)
            raise

    def __enter__(self) -> OpenStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.close()
        os.close(self._directory)

    def blocks(self, tensor: TensorRecord) -> Iterator[tuple[Box, NDArray[Any]]]:
        """Yield the tensor in blocks of whole rows, in row order, every byte verified.

        Yields
        ------
        Box
            Some rows, all columns.
        array
            Their values.
        """
        limit = rows_per_block(tensor.shape, tensor.stored.itemsize)
        for start, stop, boxes in _segments(tensor):
            for first, last in row_ranges(start, stop, limit):
                block = rows_of(whole(tensor.shape), first, last)
                if len(boxes) == 1:
                    yield block, self._read(tensor, boxes[0], first, last)
                else:
                    yield block, self._assembled(tensor, boxes, block)

    def verify_tensor(self, tensor: TensorRecord) -> None:
        """Read and decode the whole tensor, and raise at the first damage."""
        for _ in self.blocks(tensor):
            pass

    def verify(self) -> None:
        """Read every file, block by block, and decode every tensor whose bytes can be wrong."""
        for name in self.manifest.files:
            self._file(name).verify()
        for record in self.manifest.objects.values():
            for tensor in record.tensors.values():
                for stored in tensor.boxes:
                    self._check_keys(tensor, stored)
                if tensor.stored.is_string or tensor.stored.name == "bool":
                    self.verify_tensor(tensor)

    def _read_manifest(self) -> Manifest:
        label = f"{self.path}/{MANIFEST_NAME}"
        descriptor = open_regular(self._directory, MANIFEST_NAME, label)
        try:
            size = os.fstat(descriptor).st_size
            if size > _MAX_MANIFEST_BYTES:
                raise CorruptCheckpointError(
                    f"{label}: has {size} bytes, must be at most {_MAX_MANIFEST_BYTES}"
                )
            text = read_bytes(descriptor, size, 0, label).tobytes()
        finally:
            os.close(descriptor)
        manifest = Manifest.from_bytes(text, label)
        named = step_in_name(self.path.name)
        if named is not None and named != manifest.step:
            raise CorruptCheckpointError(
                f"{label}: step is {manifest.step}, the directory is named {self.path.name}"
            )
        return manifest

    def _file(self, name: str) -> SafetensorsReader:
        if name not in self._files:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            label = f"{self.path}/{name}"
            descriptor = open_regular(self._directory, name, label)
            try:
                reader = SafetensorsReader(descriptor, label, self.manifest.files[name])
            except BaseException:
                with suppress(OSError):
                    os.close(descriptor)
                raise
            self._files[name] = reader
        return self._files[name]

    def _check_keys(self, tensor: TensorRecord, stored: StoredBox) -> int:
        """Raise unless the file holds the box as announced; return its bytes of strings."""
        file = self._file(stored.file)
        if tensor.stored.code is not None:
            file.check(stored.key, tensor.stored.code, stored.box.shape)
            return 0
        file.check(offsets_key(stored.key), "I64", (stored.box.size + 1,))
        shape = file.shape(bytes_key(stored.key), "U8")
        file.check(bytes_key(stored.key), "U8", (math.prod(shape),))
        return shape[0]

    def _read(self, tensor: TensorRecord, stored: StoredBox, start: int, stop: int) -> NDArray[Any]:
        """Return rows ``[start, stop)`` of one box."""
        string_bytes = self._check_keys(tensor, stored)
        part = rows_of(stored.box, start, stop)
        skipped = rows_of(stored.box, stored.box.rows.start, start).size if part.shape else 0
        file = self._file(stored.file)
        try:
            if tensor.stored.is_string:
                return self._strings(tensor, stored, skipped, part, string_bytes)
            itemsize = tensor.stored.itemsize
            data = file.read(stored.key, skipped * itemsize, (skipped + part.size) * itemsize)
            return decode_numbers(data, tensor.stored, part.shape)
        except ValueError as error:
            raise CorruptCheckpointError(
                f"{self.path}/{stored.file}: tensor {stored.key!r} cannot be decoded: {error}"
            ) from error

    def _strings(
        self, tensor: TensorRecord, stored: StoredBox, skipped: int, part: Box, string_bytes: int
    ) -> NDArray[Any]:
        file = self._file(stored.file)
        raw = file.read(offsets_key(stored.key), skipped * 8, (skipped + part.size + 1) * 8)
        offsets = np.require(raw, requirements=["A"]).view("<i8").astype(np.int64, copy=False)
        first, last = int(offsets[0]), int(offsets[-1])
        at_end = skipped + part.size == stored.box.size
        if (
            first < 0
            or last > string_bytes
            or (offsets[1:] < offsets[:-1]).any()
            or (skipped == 0 and first != 0)
            or (at_end and last != string_bytes)
        ):
            raise ValueError(f"string offsets must be non-decreasing from 0 to {string_bytes}")
        data = file.read(bytes_key(stored.key), first, last)
        return decode_strings(data, offsets - first, tensor.stored, part.shape)

    def _assembled(self, tensor: TensorRecord, boxes: list[StoredBox], block: Box) -> NDArray[Any]:
        values = np.empty(block.shape, object if tensor.stored.is_string else tensor.stored.dtype)
        for stored in boxes:
            part = self._read(tensor, stored, block.rows.start, block.rows.stop)
            columns = tuple(
                slice(offset, offset + size)
                for offset, size in zip(stored.box.offset[1:], stored.box.shape[1:], strict=True)
            )
            values[(slice(None), *columns)] = part
        return values


def _segments(tensor: TensorRecord) -> Iterator[tuple[int, int, list[StoredBox]]]:
    """Yield ranges of rows over which the same boxes hold the columns."""
    if not tensor.shape or not math.prod(tensor.shape):
        if tensor.boxes:
            rows = whole(tensor.shape).rows
            yield rows.start, rows.stop, list(tensor.boxes[:1])
        return
    waiting = sorted(
        (stored for stored in tensor.boxes if stored.box.size), key=lambda s: s.box.offset[0]
    )
    bounds = sorted({edge for s in waiting for edge in (s.box.rows.start, s.box.rows.stop)})
    opened: list[StoredBox] = []
    position = 0
    for start, stop in pairwise(bounds):
        opened = [stored for stored in opened if stored.box.rows.stop > start]
        while position < len(waiting) and waiting[position].box.rows.start <= start:
            opened.append(waiting[position])
            position += 1
        yield start, stop, opened
