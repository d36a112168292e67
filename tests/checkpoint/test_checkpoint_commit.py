"""A step becomes visible whole or not at all, whatever fails and whoever else saves."""

from __future__ import annotations

import errno
import os
import re
import threading
import time

import numpy as np
import pytest

from shardcore.checkpoint import Checkpoint, latest, steps, verify
from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.state import TensorSource
from shardcore.errors import (
    CorruptCheckpointError,
    DurabilityUnknownError,
    NotCommittedError,
    ShardcoreValueError,
)


class Storage:
    """Counts the calls that change storage, and fails or bends the n-th."""

    def __init__(self, monkeypatch, fail_at=None, error=errno.ENOSPC, persistent=False):
        self.trace = []
        self.fail_at = fail_at
        self.error = error
        self.persistent = persistent
        self.real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "mkdir")}
        for name in self.real:
            monkeypatch.setattr(os, name, self.patched(name))

    def patched(self, name):
        def call(*args, **options):
            self.trace.append((name, self.target(name, args)))
            number = len(self.trace)
            if number == self.fail_at or (self.persistent and number > (self.fail_at or 1 << 60)):
                raise OSError(self.error, os.strerror(self.error))
            return self.real[name](*args, **options)

        return call

    @staticmethod
    def target(name, args):
        if name in ("write", "fsync") and os.path.isdir("/proc/self/fd"):
            return os.path.basename(os.readlink(f"/proc/self/fd/{args[0]}"))
        return os.path.basename(args[0]) if isinstance(args[0], str | os.PathLike) else ""


def objects(value):
    return Checkpoint(
        a=np.full((4, 2), value, np.float32), b={"s": np.array([str(value)]), "t": np.array(value)}
    )


def restored(path):
    a = np.zeros((4, 2), np.float32)
    b = {"s": np.array(["?"]), "t": np.array(0)}
    step = Checkpoint(a=a, b=b).restore(path)
    return step, set(a.reshape(-1).tolist()), b["s"].tolist(), b["t"].item()


def expected(value):
    return value, {float(value)}, [str(value)], value


def count_calls(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        storage = Storage(patch)
        objects(1).save(tmp_path / "count", 1)
    return storage.trace


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to name descriptors")
def test_order_of_a_commit(tmp_path, monkeypatch):
    trace = count_calls(tmp_path, monkeypatch)
    kinds = []
    for name, target in trace:
        target = re.sub(r"\.tmp-.*", "TMP", target)
        if (name, target) not in kinds[-1:]:
            kinds.append((name, target))
    assert kinds == [
        ("mkdir", "count"),
        ("fsync", os.path.basename(tmp_path)),
        ("mkdir", "TMP"),
        ("write", "a-00000-of-00001.safetensors"),
        ("fsync", "a-00000-of-00001.safetensors"),
        ("write", "b-00000-of-00001.safetensors"),
        ("fsync", "b-00000-of-00001.safetensors"),
        ("write", "manifest.json"),
        ("fsync", "manifest.json"),
        ("fsync", "TMP"),
        ("rename", "TMP"),
        ("fsync", "count"),
    ]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_every_call_fails_once(tmp_path, monkeypatch, error, persistent):
    objects(1).save(tmp_path / "root", 1)
    objects(2).save(tmp_path / "dry", 1)
    with monkeypatch.context() as patch:
        storage = Storage(patch)
        objects(2).save(tmp_path / "dry", 2)
        count = len(storage.trace)
    assert count > 12
    for fail_at in range(1, count + 1):
        with monkeypatch.context() as patch:
            Storage(patch, fail_at, error, persistent)
            last = fail_at == count
            kind = DurabilityUnknownError if last else NotCommittedError
            with pytest.raises(kind) as caught:
                objects(2).save(tmp_path / "root", 2)
        root = tmp_path / "root"
        assert caught.value.errno == error
        assert isinstance(caught.value.__cause__, OSError)
        if last:
            assert str(caught.value) == (
                f"step 2 is visible in {root}, but the disk did not confirm that it will stay: "
                f"[Errno {error}] {os.strerror(error)}; saving the same content again is safe"
            )
            assert sorted(os.listdir(root)) == ["step-00000001", "step-00000002"]
            assert restored(root) == expected(2)
            assert objects(2).save(root, 2) == root / "step-00000002"
        else:
            assert str(caught.value) == (
                f"step 2 was not committed to {root}: [Errno {error}] {os.strerror(error)}"
            )
            assert os.listdir(root) == ["step-00000001"]
            assert restored(root) == expected(1)
    assert objects(3).save(root, 3).name == "step-00000003"
    assert restored(root) == expected(3)


@pytest.mark.parametrize("loss", ["short", "lost"])
def test_short_writes_are_continued_and_lost_ones_found(tmp_path, monkeypatch, loss):
    objects(1).save(tmp_path, 1)
    real = os.write

    def write(descriptor, data):
        if loss == "short":
            return real(descriptor, data[: max(1, len(data) // 3)])
        return len(data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        if loss == "short":
            objects(2).save(tmp_path, 2)
        else:
            message = r"step 2 was not committed to .* bytes were written, the file has 0"
            with pytest.raises(NotCommittedError, match=message):
                objects(2).save(tmp_path, 2)
    newest = 2 if loss == "short" else 1
    assert restored(tmp_path) == expected(newest)
    assert sorted(os.listdir(tmp_path))[-1] == f"step-{newest:08d}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_other_exceptions_leave_nothing_and_pass(tmp_path, monkeypatch, call, error):
    objects(1).save(tmp_path, 1)

    def interrupt(*args):
        raise error("stop")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, interrupt)
        with pytest.raises(error, match="stop"):
            objects(2).save(tmp_path, 2)
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert restored(tmp_path) == expected(1)


def test_an_object_that_fails_while_it_is_read(tmp_path):
    class Failing:
        def checkpoint_metadata(self):
            return {}

        def checkpoint_tensors(self):
            return [TensorSource("t", (2,), np.dtype("f4"), ((0, Box((0,), (2,))),), self.read)]

        def read(self, box):
            raise ZeroDivisionError("the object's own")

        def checkpoint_restore(self, metadata, tensors, *, slots):
            raise AssertionError

    with pytest.raises(ZeroDivisionError, match="the object's own"):
        Checkpoint(x=Failing()).save(tmp_path, 1)
    assert os.listdir(tmp_path) == []


def test_what_could_not_be_removed_is_told(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        patch.setattr("shutil.rmtree", fail)
        with pytest.raises(NotCommittedError) as caught:
            objects(1).save(tmp_path, 1)
    notes = caught.value.__cause__.__notes__
    assert len(notes) == 1
    assert re.search(r"\.tmp-00000001-[0-9a-f]{16} could not be removed: \[Errno 5\] no", notes[0])
    assert steps(tmp_path) == []


def test_a_rename_that_was_done_although_it_failed(tmp_path, monkeypatch):
    real = os.rename

    def rename(source, target):
        real(source, target)
        raise OSError(errno.ETIMEDOUT, "late")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(DurabilityUnknownError, match=r"step 1 is visible in .*late"):
            objects(1).save(tmp_path, 1)
    assert restored(tmp_path) == expected(1)


def test_a_step_is_never_overwritten(tmp_path):
    path = objects(1).save(tmp_path, 12)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    message = re.escape(f"step 12 already exists in {tmp_path}, with another content")
    with pytest.raises(ShardcoreValueError, match=message):
        objects(2).save(tmp_path, 12)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert os.listdir(tmp_path) == ["step-00000012"]


def test_saving_the_same_again_succeeds(tmp_path, monkeypatch):
    path = objects(1).save(tmp_path, 12)
    inode = path.stat().st_ino
    monkeypatch.setattr("shardcore.checkpoint.writer.version", lambda name: "99")
    assert objects(1).save(tmp_path, 12) == path
    assert path.stat().st_ino == inode
    assert os.listdir(tmp_path) == ["step-00000012"]
    storage = Storage(monkeypatch)
    objects(1).save(tmp_path, 12)
    assert storage.trace[-1][0] == "fsync"
    storage = Storage(monkeypatch, len(storage.trace), errno.EIO)
    with pytest.raises(DurabilityUnknownError, match="step 12 is visible"):
        objects(1).save(tmp_path, 12)


@pytest.mark.parametrize("kind", ["damaged", "empty", "file", "link"])
def test_something_else_stands_in_the_steps_place(tmp_path, kind):
    path = tmp_path / "step-00000012"
    if kind == "damaged":
        objects(1).save(tmp_path, 12)
        file = path / "a-00000-of-00001.safetensors"
        file.write_bytes(file.read_bytes()[:-9] + b"*" * 9)
        message = "and is damaged: .*a-00000-of-00001.safetensors: "
    elif kind == "empty":
        path.mkdir()
        message = r"and is damaged: .*manifest\.json: is missing"
    else:
        path.symlink_to("nowhere") if kind == "link" else path.write_text("")
        message = "step-00000012 is not a directory"
    with pytest.raises(ShardcoreValueError, match=r"step 12 already exists in .*" + message):
        objects(1).save(tmp_path, 12)
    assert os.listdir(tmp_path) == ["step-00000012"]
    if kind != "link":
        with pytest.raises((CorruptCheckpointError, OSError)):
            verify(latest(tmp_path))


def test_the_step_appears_between_check_and_rename(tmp_path, monkeypatch):
    real = os.rename

    def rename(source, target):
        monkeypatch.setattr(os, "rename", real)
        objects(7).save(tmp_path, 1)
        return real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(ShardcoreValueError, match=r"step 1 already exists in .*, with another"):
        objects(2).save(tmp_path, 1)
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert restored(tmp_path / "step-00000001")[3] == 7


def test_of_many_savers_one_wins(tmp_path):
    for race in range(10):
        outcomes = {}
        barrier = threading.Barrier(4)

        def save(value, race=race, outcomes=outcomes, barrier=barrier):
            barrier.wait()
            try:
                objects(value).save(tmp_path, race)
                outcomes[value] = "won"
            except ShardcoreValueError as error:
                outcomes[value] = str(error)

        threads = [threading.Thread(target=save, args=(value,)) for value in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [value for value, outcome in outcomes.items() if outcome == "won"]
        assert len(outcomes) == 4
        assert len(winners) == 1
        assert restored(tmp_path / f"step-{race:08d}")[3] == winners[0]
        refused = f"step {race} already exists in {tmp_path}, with another content"
        assert sum(outcome == refused for outcome in outcomes.values()) == 3
    assert len(os.listdir(tmp_path)) == 10


def test_many_savers_of_the_same_all_succeed(tmp_path):
    failures = []

    def save():
        try:
            objects(5).save(tmp_path, 5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == ["step-00000005"]
    assert restored(tmp_path) == expected(5)


def test_abandoned_directories_are_ignored_and_swept_by_age(tmp_path):
    def pending(name, age, inside=None):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "part").write_text("x")
        now = time.time()
        os.utime(directory / "part", (now - (age if inside is None else inside),) * 2)
        os.utime(directory, (now - age,) * 2)

    day = 86_400
    pending(".tmp-00000001-0123456789abcdef", 2 * day)
    pending(".tmp-00000002-0123456789abcdef", day / 2)
    pending(".tmp-00000003-0123456789abcdef", 2 * day, inside=10)
    pending(".tmp-notes", 2 * day)
    pending("mine", 2 * day)
    (tmp_path / ".tmp-00000004-0123456789abcdef").symlink_to(tmp_path / "mine")
    assert steps(tmp_path) == []
    objects(1).save(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == [
        ".tmp-00000002-0123456789abcdef",
        ".tmp-00000003-0123456789abcdef",
        ".tmp-00000004-0123456789abcdef",
        ".tmp-notes",
        "mine",
        "step-00000001",
    ]
    assert os.listdir(tmp_path / "mine") == ["part"]


def test_a_pending_directory_that_vanishes_while_it_is_looked_at(tmp_path, monkeypatch):
    name = ".tmp-00000001-0123456789abcdef"
    (tmp_path / name).mkdir()
    real = os.lstat

    def lstat(path, *args, **options):
        if os.path.basename(path) == name:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "lstat", lstat)
    objects(1).save(tmp_path, 1)
    assert steps(tmp_path) == [1]


def test_a_root_that_is_a_file(tmp_path):
    (tmp_path / "f").write_text("")
    message = re.escape(f"step 1 was not committed to {tmp_path}/f: ")
    with pytest.raises(NotCommittedError, match=message):
        objects(1).save(tmp_path / "f", 1)
