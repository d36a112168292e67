"""A slice of a tensor as the tensors of a safetensors file: read, encoded and written in blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.encoding import StoredType, encode_numbers, encode_strings
from shardcore.checkpoint.reader import bytes_key, offsets_key
from shardcore.checkpoint.safetensors import Entry
from shardcore.checkpoint.sharding import TensorSlice
from shardcore.errors import ShardcoreRuntimeError

__all__ = ["file_keys", "slice_entries"]


def file_keys(key: str, stored: StoredType) -> tuple[str, ...]:
    """Return the names of the tensors of a file that hold a slice under `key`.

    Examples
    --------
    >>> from shardcore.checkpoint.encoding import named_type
    >>> file_keys("w", named_type("float32")), file_keys("names", named_type("U5"))
    (('w',), ('names.offsets', 'names.bytes'))
    """
    return (offsets_key(key), bytes_key(key)) if stored.is_string else (key,)


def slice_entries(values: TensorSlice, stored: StoredType, key: str, where: str) -> list[Entry]:
    """Return what a file holds of a slice; numbers are not read before they are written.

    Parameters
    ----------
    values : TensorSlice
    stored : StoredType
        How its dtype is stored.
    key : str
        Its name in the file.
    where : str
        The tensor, for messages.
    """
    if stored.code is not None:
        numbers = _Numbers(values)
        return [Entry(key, stored.code, values.shape, numbers.chunks)]
    strings = _Strings(values, stored, where)
    size = values.slice_spec.box.size
    return [
        Entry(offsets_key(key), "I64", (size + 1,), strings.offsets),
        Entry(bytes_key(key), "U8", (strings.num_bytes(),), strings.text),
    ]


@dataclass
class _Numbers:
    values: TensorSlice

    def chunks(self) -> Iterator[NDArray[np.uint8]]:
        for block in self.values.blocks():
            yield encode_numbers(block)


@dataclass
class _Strings:
    values: TensorSlice
    stored: StoredType
    where: str
    lengths_crc: int = 0

    def num_bytes(self) -> int:
        return sum(int(_lengths(strings).sum()) for strings in self._blocks())

    def offsets(self) -> Iterator[NDArray[np.uint8]]:
        self.lengths_crc = 0
        end = np.zeros(1, np.int64)
        yield encode_numbers(end)
        for strings in self._blocks():
            lengths = _lengths(strings)
            self.lengths_crc = zlib.crc32(lengths.data, self.lengths_crc)
            offsets = end + np.cumsum(lengths)
            end = offsets[-1:]
            yield encode_numbers(offsets)

    def text(self) -> Iterator[NDArray[np.uint8]]:
        crc = 0
        for strings in self._blocks():
            crc = zlib.crc32(_lengths(strings).data, crc)
            yield np.frombuffer(b"".join(strings), np.uint8)
        if crc != self.lengths_crc:  # the offsets, written before, would cut other strings
            raise ShardcoreRuntimeError(f"{self.where} changed while it was being saved")

    def _blocks(self) -> Iterator[list[bytes]]:
        for block in self.values.blocks():
            yield encode_strings(block, self.stored, self.where)


def _lengths(strings: list[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, strings), np.int64, len(strings))
