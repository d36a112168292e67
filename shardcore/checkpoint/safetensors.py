"""Writer and reader of one safetensors file whose last tensor checks all the others.

The format is eight bytes (length of the header, little-endian), a JSON header, and the tensors'
bytes without gaps (https://github.com/huggingface/safetensors#format). The last tensor,
``__checksums__`` (uint32), holds the CRC-32 of every 64 KiB block of the data before it; its own
CRC and the header's are kept elsewhere, in a `FileSums`.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreOSError,
    ShardcoreRuntimeError,
    ShardcoreValueError,
)

__all__ = [
    "BLOCK_BYTES",
    "MAX_RANK",
    "MAX_SIZE",
    "RESERVED_KEYS",
    "Entry",
    "FileSums",
    "SafetensorsReader",
    "read_bytes",
    "write_tensors",
]

BLOCK_BYTES: Final = 64 << 10
"""Bytes of data under one checksum."""

_CHECKSUMS: Final = "__checksums__"
_PADDING: Final = "__padding__"
_METADATA: Final = "__metadata__"
RESERVED_KEYS: Final = frozenset({_CHECKSUMS, _PADDING, _METADATA})
"""Keys that no tensor of a user may have."""

MAX_RANK: Final = 64
"""Most axes of a tensor: NumPy's limit."""

MAX_SIZE: Final = (1 << 63) - 1
"""Largest size, offset or number of bytes."""

_MAX_HEADER_BYTES: Final = 100_000_000  # of the safetensors library
_VERIFY_BLOCKS: Final = 256  # blocks read at a time: 16 MiB
_ITEM_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16,
    "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A tensor to be written.

    Parameters
    ----------
    key : str
        Its name in the file.
    code : str
        Its dtype, as safetensors names it.
    shape : tuple of int
        Its shape.
    chunks : callable
        Returns its bytes, in pieces and in order; called once.
    """

    key: str
    code: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[NDArray[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * _ITEM_BITS[self.code] // 8


@dataclass(frozen=True)
class FileSums:
    """The proof of a file's content: its size, and the CRC-32 of its header and its checksums."""

    size: int
    header_crc32: int
    checksums_crc32: int


class _BlockSums:
    """CRC-32 of every block of a stream."""

    def __init__(self) -> None:
        self.sums: list[int] = []
        self._crc = 0
        self._filled = 0

    def add(self, data: memoryview) -> None:
        while data:
            part = data[: BLOCK_BYTES - self._filled]
            self._crc = zlib.crc32(part, self._crc)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._close()

    def finish(self) -> NDArray[np.uint8]:
        if self._filled:
            self._close()
        return np.array(self.sums, dtype="<u4").view(np.uint8)

    def _close(self) -> None:
        self.sums.append(self._crc)
        self._crc = self._filled = 0


def write_tensors(write: Callable[[memoryview], None], entries: Sequence[Entry]) -> FileSums:
    """Write one file from its first byte to its last, and return its sums.

    Wider elements come first, so that every tensor lies on a multiple of its element's size.

    Parameters
    ----------
    write : callable
        Appends bytes to the file.
    entries : sequence of Entry
        The tensors, under distinct keys.

    Raises
    ------
    ShardcoreRuntimeError
        If a tensor gives more or fewer bytes than its shape says.
    ShardcoreValueError
        If there are too many tensors for one header.
    """
    entries = sorted(entries, key=lambda entry: -_ITEM_BITS[entry.code])
    data_bytes = sum(entry.num_bytes for entry in entries)
    padding = -data_bytes % 4
    if padding:
        entries.append(Entry(_PADDING, "U8", (padding,), lambda: [np.zeros(padding, np.uint8)]))
        data_bytes += padding
    num_blocks = -(-data_bytes // BLOCK_BYTES)
    header: dict[str, Any] = {_METADATA: {"shardcore_checkpoint": "1"}}
    start = 0
    for entry in (*entries, Entry(_CHECKSUMS, "U32", (num_blocks,), lambda: ())):
        stop = start + entry.num_bytes
        header[entry.key] = {
            "dtype": entry.code,
            "shape": list(entry.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise ShardcoreValueError(
            f"one file cannot hold {len(entries)} tensors: its header would take {len(text)} "
            f"bytes, the safetensors format allows {_MAX_HEADER_BYTES}"
        )
    head = len(text).to_bytes(8, "little") + text
    write(memoryview(head))
    blocks = _BlockSums()
    for entry in entries:
        written = 0
        for chunk in entry.chunks():
            data = chunk.data
            written += len(data)
            if written > entry.num_bytes:
                break
            blocks.add(data)
            write(data)
        if written != entry.num_bytes:
            raise ShardcoreRuntimeError(
                f"tensor {entry.key!r} changed while it was being saved: {entry.num_bytes} bytes "
                f"were announced, {written} came"
            )
    sums = blocks.finish()
    write(sums.data)
    return FileSums(len(head) + data_bytes + sums.size, zlib.crc32(head), zlib.crc32(sums.data))


def read_bytes(descriptor: int, count: int, offset: int, label: str) -> NDArray[np.uint8]:
    """Return `count` bytes of an open file, or raise an error that begins with `label`."""
    data = np.empty(count, np.uint8)
    done = 0
    while done < count:
        try:
            got = os.preadv(descriptor, [data[done:].data], offset + done)
        except OSError as error:
            raise ShardcoreOSError(f"{label}: cannot be read: {error}") from error
        if got == 0:
            raise CorruptCheckpointError(f"{label}: ends at byte {offset + done}")
        done += got
    return data


@dataclass(frozen=True)
class _Stored:
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsReader:
    """Verified reads of one file.

    Parameters
    ----------
    descriptor : int
        An open regular file; closed by `close`.
    label : str
        The file's name in messages.
    sums : FileSums
        The sums that the file must match.

    Raises
    ------
    CorruptCheckpointError
        If size, header or checksums do not match, or the header is no safetensors header.
    ShardcoreOSError
        If the file cannot be read.
    """

    def __init__(self, descriptor: int, label: str, sums: FileSums) -> None:
        self._descriptor = descriptor
        self._label = label
        size = os.fstat(descriptor).st_size
        if size != sums.size:
            raise self._corrupt(f"has {size} bytes, the manifest says {sums.size}")
        if size < 8:
            raise self._corrupt(f"has {size} bytes, a header needs 8")
        prefix = self._pread(8, 0).tobytes()
        length = int.from_bytes(prefix, "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise self._corrupt(f"announces a header of {length} bytes in a file of {size}")
        text = self._pread(length, 8).tobytes()
        if zlib.crc32(text, zlib.crc32(prefix)) != sums.header_crc32:
            raise self._corrupt("its header does not match its checksum")
        self._data_start = 8 + length
        self._entries = self._parse(text, size - self._data_start)
        checksums = self._entries.pop(_CHECKSUMS)
        self._data_bytes = checksums.start
        raw = self._pread(checksums.stop - checksums.start, self._data_start + checksums.start)
        if zlib.crc32(raw.data) != sums.checksums_crc32:
            raise self._corrupt(f"{_CHECKSUMS} does not match its checksum")
        self._checksums: list[int] = raw.view("<u4").tolist()
        self._entries.pop(_PADDING, None)

    def keys(self) -> set[str]:
        """Return the names of the tensors."""
        return set(self._entries)

    def check(self, key: str, code: str, shape: tuple[int, ...]) -> None:
        """Raise unless the tensor `key` has this dtype and shape."""
        entry = self._entries.get(key)
        if entry is None:
            raise self._corrupt(f"holds no tensor {key!r}")
        if (entry.code, entry.shape) != (code, shape):
            raise self._corrupt(
                f"tensor {key!r} is {entry.code}{list(entry.shape)}, "
                f"the manifest says {code}{list(shape)}"
            )

    def shape(self, key: str, code: str) -> tuple[int, ...]:
        """Return the shape of the tensor `key`, which must have the dtype `code`."""
        entry = self._entries.get(key)
        if entry is None or entry.code != code:
            raise self._corrupt(f"holds no {code} tensor {key!r}")
        return entry.shape

    def read(self, key: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return bytes ``[start, stop)`` of the tensor `key`, after checking their blocks."""
        if start == stop:
            return np.empty(0, np.uint8)
        first_byte = self._entries[key].start + start
        last_byte = self._entries[key].start + stop
        first = first_byte // BLOCK_BYTES
        data = self._blocks(first, -(-last_byte // BLOCK_BYTES))
        return data[first_byte - first * BLOCK_BYTES : last_byte - first * BLOCK_BYTES]

    def verify(self) -> None:
        """Read every block and raise at the first that does not match its checksum."""
        for first in range(0, len(self._checksums), _VERIFY_BLOCKS):
            self._blocks(first, min(first + _VERIFY_BLOCKS, len(self._checksums)))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _blocks(self, first: int, last: int) -> NDArray[np.uint8]:
        start = first * BLOCK_BYTES
        stop = min(last * BLOCK_BYTES, self._data_bytes)
        data = self._pread(stop - start, self._data_start + start)
        view = data.data
        for block in range(first, last):
            at = block * BLOCK_BYTES - start
            if zlib.crc32(view[at : at + BLOCK_BYTES]) != self._checksums[block]:
                raise self._corrupt(
                    f"block {block} (bytes {start + at} to "
                    f"{min(start + at + BLOCK_BYTES, stop)} of the data) "
                    "does not match its checksum"
                )
        return data

    def _pread(self, count: int, offset: int) -> NDArray[np.uint8]:
        return read_bytes(self._descriptor, count, offset, self._label)

    def _corrupt(self, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self._label}: {problem}")

    def _parse(self, text: bytes, data_bytes: int) -> dict[str, _Stored]:
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._corrupt(f"its header is no JSON: {error}") from error
        if not isinstance(header, dict):
            raise self._corrupt("its header is no JSON object")
        header.pop(_METADATA, None)
        entries = {key: self._entry(key, value) for key, value in header.items()}
        end = 0
        last = None
        for key, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
            if entry.start != end:
                raise self._corrupt(f"tensor {key!r} starts at byte {entry.start}, not at {end}")
            end, last = entry.stop, key
        if end != data_bytes:
            raise self._corrupt(f"its tensors take {end} of {data_bytes} bytes")
        sums = entries.get(_CHECKSUMS)
        if sums is None or sums.stop != end or (last != _CHECKSUMS and sums.start != end):
            raise self._corrupt(f"{_CHECKSUMS} is not its last tensor")
        blocks = -(-sums.start // BLOCK_BYTES)
        if (sums.code, sums.shape) != ("U32", (blocks,)):
            raise self._corrupt(
                f"{_CHECKSUMS} is {sums.code}{list(sums.shape)}, must be U32[{blocks}]"
            )
        return entries

    def _entry(self, key: str, value: object) -> _Stored:
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise self._corrupt(f"tensor {key!r} must have dtype, shape and data_offsets")
        code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(code, str) or code not in _ITEM_BITS:
            raise self._corrupt(f"tensor {key!r} has the unknown dtype {code!r}")
        if not (_naturals(shape) and _naturals(offsets) and len(offsets) == 2):
            raise self._corrupt(f"tensor {key!r} has a malformed shape or data_offsets")
        start, stop = offsets
        if stop - start != math.prod(shape) * _ITEM_BITS[code] // 8:
            raise self._corrupt(f"tensor {key!r} of {code}{shape} cannot take {stop - start} bytes")
        return _Stored(code, tuple(shape), start, stop)


def _naturals(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_RANK
        and all(type(item) is int and 0 <= item <= MAX_SIZE for item in value)
    )
