"""Any damage to a step gives an error or the right data, never wrong data."""

from __future__ import annotations

import os
import re
import shutil
import stat

import numpy as np
import pytest

from shardcore.checkpoint import Checkpoint, inspect, verify
from shardcore.errors import CorruptCheckpointError, ShardcoreOSError

NAMES = np.array(["ann", "bob", "çelia"])


def saved(root):
    table = np.arange(90, dtype=np.float32).reshape(30, 3)
    value = {"table": table, "names": NAMES, "flags": np.array([True, False, True])}
    return value, Checkpoint(x=value).save(root, 4)


def blank():
    return {
        "table": np.full((30, 3), -1, np.float32),
        "names": np.array(["-----"] * 3),
        "flags": np.zeros(3, bool),
    }


def check(path, value):
    """Restore a damaged step; return whether it gave an error, and fail on wrong data."""
    target, untouched = blank(), blank()
    try:
        Checkpoint(x=target).restore(path)
    except CorruptCheckpointError:
        for name, array in target.items():
            np.testing.assert_array_equal(array, untouched[name])
        with pytest.raises(CorruptCheckpointError, match=re.escape(str(path))):
            verify(path)
        return True
    for name, array in target.items():
        np.testing.assert_array_equal(array, value[name])
    return False


@pytest.mark.slow
def test_every_byte_of_manifest_and_tensor_file(tmp_path, fuzz_seed):
    value, path = saved(tmp_path)
    random = np.random.default_rng(fuzz_seed)
    unharmed = []
    for file in path.iterdir():
        raw = file.read_bytes()
        for position in range(len(raw)):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << random.integers(8)
            file.write_bytes(damaged)
            if not check(path, value):
                unharmed.append((file.name, position))
        file.write_bytes(raw)
    assert not check(path, value)
    assert unharmed == []


def test_truncated_grown_and_zeroed_files(tmp_path):
    value, path = saved(tmp_path)
    for file in path.iterdir():
        raw = file.read_bytes()
        changes = [raw[:length] for length in range(0, len(raw), 7)]
        changes += [raw[:-1], raw + b"\0", raw + b" x", raw * 2, b"\0" * len(raw)]
        changes += [raw[:cut] + b"\0" * (len(raw) - cut) for cut in range(0, len(raw) - 1, 11)]
        for damaged in changes:
            file.write_bytes(damaged)
            assert check(path, value), (file.name, len(damaged))
        file.write_bytes(raw)
    assert not check(path, value)


def test_random_flips_in_a_large_file(tmp_path, fuzz_seed):
    values = np.random.default_rng(1).integers(0, 1 << 60, 100_000)
    path = Checkpoint(x=values).save(tmp_path, 1)
    file = path / "x-00000-of-00001.safetensors"
    raw = file.read_bytes()
    random = np.random.default_rng(fuzz_seed)
    for _ in range(60):
        damaged = bytearray(raw)
        for position in random.integers(0, len(raw), random.integers(1, 4)):
            damaged[position] ^= 1 << random.integers(8)
        if damaged == raw:
            continue
        file.write_bytes(damaged)
        target = np.zeros_like(values)
        with pytest.raises(CorruptCheckpointError, match=re.escape(str(file))):
            Checkpoint(x=target).restore(path)
        assert not target.any()


def test_swapped_files(tmp_path, hosted_table, rows):
    path = Checkpoint(x=hosted_table(rows, [0, 4, 8])).save(tmp_path, 1)
    first, second = sorted(path.glob("*.safetensors"))
    first.rename(path / "swap")
    second.rename(first)
    (path / "swap").rename(second)
    with pytest.raises(CorruptCheckpointError, match="__checksums__ does not match its checksum"):
        Checkpoint(x=hosted_table(np.zeros_like(rows), [0, 8])).restore(path)


def test_missing_files(tmp_path):
    _, path = saved(tmp_path)
    file = path / "x-00000-of-00001.safetensors"
    file.rename(path / "elsewhere")
    with pytest.raises(CorruptCheckpointError, match=re.escape(f"{file}: is missing")):
        verify(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=re.escape("manifest.json: is missing")):
        inspect(path)
    missing = tmp_path / "step-00000099"
    with pytest.raises(ShardcoreOSError, match=re.escape(f"step {missing} cannot be opened")):
        verify(missing)


def test_a_damaged_newest_step_is_not_passed_over(tmp_path):
    array = np.zeros(3)
    checkpoint = Checkpoint(x=array)
    checkpoint.save(tmp_path, 1)
    array[:] = 1
    newest = checkpoint.save(tmp_path, 2)
    (newest / "manifest.json").write_text("")
    with pytest.raises(
        CorruptCheckpointError, match=r"step-00000002/manifest\.json: manifest is no"
    ):
        checkpoint.restore(tmp_path)
    shutil.rmtree(newest)
    newest.mkdir()
    with pytest.raises(CorruptCheckpointError, match=r"step-00000002/manifest\.json: is missing"):
        checkpoint.restore(tmp_path)
    assert array.tolist() == [1, 1, 1]
    assert checkpoint.restore(tmp_path / "step-00000001") == 1


@pytest.mark.parametrize("name", ["manifest.json", "x-00000-of-00001.safetensors"])
@pytest.mark.parametrize("kind", ["symlink", "fifo", "socket", "directory"])
@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path, name, kind):
    _, path = saved(tmp_path / "root")
    file = path / name
    file.rename(tmp_path / "outside")
    if kind == "symlink":
        file.symlink_to(tmp_path / "outside")
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "socket":
        os.mknod(file, stat.S_IFSOCK | 0o600)
    else:
        file.mkdir()
    with pytest.raises(CorruptCheckpointError, match=re.escape(f"{file}: is not a regular file")):
        verify(path)


def test_files_that_cannot_be_opened_or_read(tmp_path, monkeypatch):
    _, path = saved(tmp_path)
    real = os.open

    def refuse(name, flags, *args, **options):
        if str(name).endswith(".safetensors"):
            raise PermissionError(13, "Permission denied")
        return real(name, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    message = r"x-00000-of-00001.safetensors: cannot be opened: \[Errno 13\]"
    with pytest.raises(ShardcoreOSError, match=message) as caught:
        verify(path)
    assert not isinstance(caught.value, CorruptCheckpointError)


def test_a_manifest_that_cannot_be_read(tmp_path, monkeypatch):
    _, path = saved(tmp_path)

    def fail(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    message = re.escape(f"{path}/manifest.json: cannot be read: [Errno 5]")
    with pytest.raises(ShardcoreOSError, match=message) as caught:
        inspect(path)
    assert not isinstance(caught.value, CorruptCheckpointError)


def test_many_files_with_few_open(tmp_path, hosted_table, monkeypatch):
    monkeypatch.setattr("shardcore.checkpoint.reader._OPEN_FILES", 3)
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    path = Checkpoint(x=hosted_table(rows, list(range(21)), slot=-rows)).save(tmp_path, 1)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    target = hosted_table(np.zeros_like(rows), [0, 20], slot=np.zeros_like(rows))
    Checkpoint(x=target).restore(path)
    verify(path)
    np.testing.assert_array_equal(target.tensors["users"], rows)
    np.testing.assert_array_equal(target.tensors["users/accumulator"], -rows)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


def test_no_descriptor_leaks_on_damage(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    value, path = saved(tmp_path)
    file = path / "x-00000-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert check(path, value)
    (path / "manifest.json").write_text("{")
    for _ in range(5):
        assert check(path, value)
    assert len(os.listdir("/proc/self/fd")) == before
