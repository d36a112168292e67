"""One safetensors file: what is written is what the format says, and damage is found."""

from __future__ import annotations

import json
import os
import re
import struct
import zlib

import numpy as np
import pytest

from shardcore.checkpoint import safetensors as module
from shardcore.checkpoint.safetensors import (
    BLOCK_BYTES,
    Entry,
    FileSums,
    SafetensorsReader,
    write_tensors,
)
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreOSError,
    ShardcoreRuntimeError,
    ShardcoreValueError,
)


def entry(key, code, array):
    return Entry(key, code, array.shape, lambda: [array.reshape(-1).view(np.uint8)])


def write(path, entries):
    with path.open("wb") as file:
        return write_tensors(lambda data: file.write(data) and None, entries)


def opened(path, sums):
    return SafetensorsReader(os.open(path, os.O_RDONLY), "F", sums)


def raw_file(path, header, data=b""):
    """Write a file with any header, and sums that match its header and its last tensor."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = struct.pack("<Q", len(text)) + text
    path.write_bytes(head + data)
    return FileSums(len(head) + len(data), zlib.crc32(head), zlib.crc32(b""))


def spec(dtype, shape, start, stop):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_layout_of_a_file(tmp_path):
    odd = np.arange(5, dtype=np.uint8)
    wide = np.arange(3, dtype=np.float64)
    sums = write(tmp_path / "f", [entry("odd", "U8", odd), entry("wide", "F64", wide)])
    raw = (tmp_path / "f").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    assert [key for key in header if key != "__metadata__"] == [
        "wide", "odd", "__padding__", "__checksums__",
    ]  # fmt: skip
    data = raw[8 + length :]
    assert data[:24] == wide.tobytes()
    assert data[24:29] == odd.tobytes()
    assert data[29:32] == b"\0\0\0"
    assert data[32:] == struct.pack("<I", zlib.crc32(data[:32]))
    assert sums == FileSums(len(raw), zlib.crc32(raw[: 8 + length]), zlib.crc32(data[32:]))


@pytest.mark.parametrize("count", [0, 1, BLOCK_BYTES - 4, BLOCK_BYTES, BLOCK_BYTES + 4, 300_000])
def test_reads_any_range(tmp_path, count):
    values = np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)
    reader = opened(tmp_path / "f", write(tmp_path / "f", [entry("x", "U8", values)]))
    reader.verify()
    for start in {0, count // 3, max(0, count - 1), count}:
        for stop in {start, (start + count) // 2, count}:
            np.testing.assert_array_equal(reader.read("x", start, stop), values[start:stop])
    reader.close()


def test_chunks_of_any_size_have_the_same_sums(tmp_path):
    values = np.random.default_rng(1).integers(0, 256, 200_000, dtype=np.uint8)
    whole = write(tmp_path / "a", [entry("x", "U8", values)])
    pieces = Entry("x", "U8", values.shape, lambda: np.array_split(values, 37))
    assert write(tmp_path / "b", [pieces]) == whole
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("came", [3, 5])
def test_a_tensor_that_changes_while_it_is_saved(tmp_path, came):
    lying = Entry("x", "U8", (4,), lambda: [np.zeros(came, np.uint8)])
    message = f"tensor 'x' changed while it was being saved: 4 bytes were announced, {came} came"
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        write(tmp_path / "f", [lying])


def test_too_many_tensors_for_a_header(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_HEADER_BYTES", 100)
    entries = [entry(f"x{i}", "U8", np.zeros(1, np.uint8)) for i in range(3)]
    with pytest.raises(ShardcoreValueError, match="one file cannot hold 4 tensors: its header"):
        write(tmp_path / "f", entries)


def test_every_block_is_checked_and_named(tmp_path):
    values = np.zeros(3 * BLOCK_BYTES + 100, np.uint8)
    sums = write(tmp_path / "f", [entry("x", "U8", values)])
    raw = bytearray((tmp_path / "f").read_bytes())
    start = len(raw) - len(values) - 16
    for block in range(4):
        damaged = bytearray(raw)
        damaged[start + block * BLOCK_BYTES + 7] ^= 1
        (tmp_path / "f").write_bytes(damaged)
        reader = opened(tmp_path / "f", sums)
        end = min((block + 1) * BLOCK_BYTES, len(values))
        message = (
            f"F: block {block} (bytes {block * BLOCK_BYTES} to {end} of the data) "
            "does not match its checksum"
        )
        with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
            reader.verify()
        with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
            reader.read("x", block * BLOCK_BYTES, block * BLOCK_BYTES + 1)
        other = (block + 1) % 4 * BLOCK_BYTES
        np.testing.assert_array_equal(reader.read("x", other, other + 9), values[:9])
        reader.close()


def test_checks_of_key_dtype_and_shape(tmp_path):
    sums = write(tmp_path / "f", [entry("x", "F32", np.zeros((2, 3), np.float32))])
    reader = opened(tmp_path / "f", sums)
    assert reader.keys() == {"x"}
    reader.check("x", "F32", (2, 3))
    with pytest.raises(CorruptCheckpointError, match="F: holds no tensor 'y'"):
        reader.check("y", "F32", (2, 3))
    message = "F: tensor 'x' is F32[2, 3], the manifest says F32[3, 2]"
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        reader.check("x", "F32", (3, 2))
    with pytest.raises(CorruptCheckpointError, match="F: holds no U8 tensor 'x'"):
        reader.shape("x", "U8")
    reader.close()


SUMS = "__checksums__"
FORGED = {
    "its header is no JSON": b"{",
    "its header is no JSON: maximum recursion": b"[" * 200_000,
    "its header is no JSON object": b"[1]",
    "tensor 'x' must have dtype, shape and data_offsets": {"x": {"dtype": "U8"}},
    "tensor 'x' has the unknown dtype 'Q9'": {"x": spec("Q9", [0], 0, 0)},
    "tensor 'x' has the unknown dtype ['U8']": {"x": spec(["U8"], [0], 0, 0)},
    "tensor 'x' has a malformed shape or data_offsets": {"x": spec("U8", [-1], 0, 0)},
    "'y' has a malformed shape or data_offsets": {"y": spec("U8", [0] * 65, 0, 0)},
    "'z' has a malformed shape or data_offsets": {"z": spec("U8", [1 << 63, 0], 0, 0)},
    "'o' has a malformed shape or data_offsets": {"o": spec("U8", [0], 0, True)},
    "tensor 'x' of U8[2] cannot take 0 bytes": {"x": spec("U8", [2], 0, 0)},
    "tensor 'w' of F64[4611686018427387904, 2] cannot take 8 bytes": {
        "w": spec("F64", [1 << 62, 2], 0, 8)
    },
    "tensor 'x' starts at byte 1, not at 0": {"x": spec("U8", [0], 1, 1)},
    "its tensors take 0 of 4 bytes": {SUMS: spec("U32", [0], 0, 0)},
    "__checksums__ is not its last tensor": {"x": spec("U8", [4], 0, 4)},
    "__checksums__ is I32[1], must be U32[0]": {SUMS: spec("I32", [1], 0, 4)},
    "__checksums__ is U32[1], must be U32[0]": {SUMS: spec("U32", [1], 0, 4)},
}


@pytest.mark.parametrize("message", FORGED)
def test_forged_headers(tmp_path, message):
    sums = raw_file(tmp_path / "f", FORGED[message], b"\0" * 4)
    with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
        opened(tmp_path / "f", sums)


def test_checksums_must_lie_behind_what_they_check(tmp_path):
    header = {SUMS: spec("U32", [1], 0, 4), "x": spec("U8", [4], 4, 8)}
    sums = raw_file(tmp_path / "f", header, b"\0" * 8)
    with pytest.raises(CorruptCheckpointError, match="__checksums__ is not its last tensor"):
        opened(tmp_path / "f", sums)


@pytest.mark.parametrize("length", [57, 1 << 40, (1 << 64) - 1])
def test_header_longer_than_the_file(tmp_path, length):
    raw = struct.pack("<Q", length) + b" " * 56
    (tmp_path / "f").write_bytes(raw)
    message = f"F: announces a header of {length} bytes in a file of 64"
    with pytest.raises(CorruptCheckpointError, match=message):
        opened(tmp_path / "f", FileSums(64, zlib.crc32(raw), 0))


def test_size_header_and_checksums_must_match(tmp_path):
    sums = write(tmp_path / "f", [entry("x", "U8", np.zeros(8, np.uint8))])
    cases = [
        (FileSums(7, 0, 0), f"F: has {sums.size} bytes, the manifest says 7"),
        (FileSums(sums.size, 0, 0), "F: its header does not match its checksum"),
        (
            FileSums(sums.size, sums.header_crc32, 0),
            "F: __checksums__ does not match its checksum",
        ),
    ]
    for wrong, message in cases:
        with pytest.raises(CorruptCheckpointError, match=re.escape(message)):
            opened(tmp_path / "f", wrong)
    (tmp_path / "f").write_bytes(b"123")
    with pytest.raises(CorruptCheckpointError, match="F: has 3 bytes, a header needs 8"):
        opened(tmp_path / "f", FileSums(3, 0, 0))


def test_a_file_that_shrinks_or_fails_while_it_is_read(tmp_path, monkeypatch):
    sums = write(tmp_path / "f", [entry("x", "U8", np.zeros(100, np.uint8))])
    reader = opened(tmp_path / "f", sums)
    os.truncate(tmp_path / "f", sums.size - 50)
    with pytest.raises(CorruptCheckpointError, match=f"F: ends at byte {sums.size - 50}"):
        reader.verify()

    def fail(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(ShardcoreOSError, match=r"F: cannot be read: \[Errno 5\]"):
        reader.verify()
    monkeypatch.undo()
    reader.close()
