"""Restoring: all objects or none, and every reason for none."""

from __future__ import annotations

import re

import numpy as np
import pytest

from shardcore.checkpoint import Checkpoint
from shardcore.checkpoint.state import RestorePlan
from shardcore.errors import (
    CorruptCheckpointError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable.variable import ShardedVariable


@pytest.fixture
def saved(tmp_path, hosted_table, rows):
    table = hosted_table(rows, [0, 3, 8], slot=-rows)
    dense = {"w": np.arange(5.0), "b": np.arange(3)}
    return Checkpoint(table=table, dense=dense).save(tmp_path, 3)


def blank_table(hosted_table, rows, **options):
    return hosted_table(np.zeros_like(rows), [0, 8], slot=np.zeros_like(rows), **options)


def test_slots_may_begin_anew(saved, hosted_table, rows):
    table = blank_table(hosted_table, rows)
    checkpoint = Checkpoint(table=table)
    assert checkpoint.restore(saved, slots="reset") == 3
    np.testing.assert_array_equal(table.tensors["users"], rows)
    assert not table.tensors["users/accumulator"].any()
    assert table.log[0] == ("plan", table.metadata, "reset")
    assert checkpoint.skipped == {"table": ("users/accumulator",), "dense": ("b", "w")}
    table.skipped = ("step counter", "users/accumulator")
    checkpoint.restore(saved, slots="reset")
    assert checkpoint.skipped["table"] == ("step counter", "users/accumulator")
    table.skipped = ()
    checkpoint.restore(saved)
    assert checkpoint.skipped == {"dense": ("b", "w")}
    np.testing.assert_array_equal(table.tensors["users/accumulator"], -rows)
    with pytest.raises(ShardcoreValueError, match="slots must be 'load' or 'reset', got 'keep'"):
        checkpoint.restore(saved, slots="keep")


def test_skipped_names_an_object_that_is_one_tensor(tmp_path):
    Checkpoint(a=np.zeros(2), b=np.zeros(2)).save(tmp_path, 1)
    checkpoint = Checkpoint(a=np.zeros(2))
    assert checkpoint.skipped == {}
    checkpoint.restore(tmp_path)
    assert checkpoint.skipped == {"b": ("b",)}


def test_objects_that_are_not_in_the_checkpoint(saved):
    array = np.zeros(3)
    message = (
        f"checkpoint {saved} does not hold the objects ['x', 'y']; "
        "not asked for, it holds ['table']"
    )
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        Checkpoint(x=array, dense={}, y=array).restore(saved)


@pytest.mark.parametrize(
    ("dense", "error", "message"),
    [
        (
            {"w": np.zeros(5), "c": np.zeros(3)},
            ShardcoreValueError,
            "object 'dense' does not have the tensors of the checkpoint: "
            "missing from it ['c'], only in it ['b']",
        ),
        (
            {"w": np.zeros(4), "b": np.zeros(3, int)},
            ShardcoreValueError,
            "object 'dense', tensor 'w' must have the saved shape (5,), got (4,)",
        ),
        (
            {"w": np.zeros(5), "b": np.zeros(3)},
            ShardcoreTypeError,
            "object 'dense', tensor 'b' must have the saved dtype int64, got float64",
        ),
        (
            {"w": np.broadcast_to(0.0, 5), "b": np.zeros(3, int)},
            ShardcoreValueError,
            "object 'dense', tensor 'w' cannot be restored in place: it is read-only",
        ),
    ],
)
def test_an_object_that_does_not_fit_stops_all(saved, hosted_table, rows, dense, error, message):
    table = blank_table(hosted_table, rows)
    with pytest.raises(error, match=re.escape(message)):
        Checkpoint(table=table, dense=dense).restore(saved)
    assert table.log == [("plan", table.metadata, "load"), "abort"]
    assert not any(array.any() for array in dense.values())


def test_a_read_only_variable(tmp_path):
    shards = [np.zeros(2, np.float32), np.zeros(2, np.float32)]
    variable = ShardedVariable(shards)
    Checkpoint(v=variable).save(tmp_path, 1)
    shards[1].flags.writeable = False
    if all(shard.flags.writeable for shard in variable.shards):
        variable.shards[1].flags.writeable = False
    message = "object 'v' cannot be restored in place: it is read-only"
    with pytest.raises(ShardcoreValueError, match=message):
        Checkpoint(v=variable).restore(tmp_path)


def test_a_variable_of_strings_keeps_its_layout(tmp_path):
    words = np.array([f"w{i}" for i in range(7)])
    layout = Layout.mod(7, 3)
    shards = [words[layout.global_rows(shard)] for shard in range(3)]
    variable = ShardedVariable(shards, layout=layout)
    Checkpoint(v=variable).save(tmp_path, 1)
    plain = np.array(["??"] * 7)
    Checkpoint(v=plain).restore(tmp_path)
    assert plain.tolist() == words.tolist()


def damage(path, name):
    file = path / name
    raw = bytearray(file.read_bytes())
    raw[-20] ^= 4
    file.write_bytes(raw)


def test_damage_in_the_last_object_changes_nothing_live(saved, hosted_table, rows):
    table = blank_table(hosted_table, rows)
    dense = {"w": np.zeros(5), "b": np.zeros(3, int)}
    damage(saved, "dense-00000-of-00001.safetensors")
    with pytest.raises(CorruptCheckpointError, match=r"dense-00000-of-00001\.safetensors: block 0"):
        Checkpoint(table=table, dense=dense).restore(saved)
    assert table.log == [("plan", table.metadata, "load"), "abort"]
    assert not table.tensors["users"].any()
    assert not dense["w"].any()


def test_unbuilt_objects_are_loaded_in_one_pass(saved, hosted_table, rows):
    table = blank_table(hosted_table, rows, live=False)
    damage(saved, "table.users-00001-of-00002.safetensors")
    with pytest.raises(CorruptCheckpointError, match=r"table\.users-00001-of-00002\.safetensors"):
        Checkpoint(table=table).restore(saved)
    assert table.log == [("plan", table.metadata, "load"), "write", "abort"]


def test_damage_to_what_is_not_restored_does_not_matter(saved, hosted_table, rows):
    table = blank_table(hosted_table, rows)
    damage(saved, "dense-00000-of-00001.safetensors")
    assert Checkpoint(table=table).restore(saved) == 3
    np.testing.assert_array_equal(table.tensors["users"], rows)


def test_every_plan_is_committed_or_aborted(saved, hosted_table, rows):
    tables = [blank_table(hosted_table, rows) for _ in range(2)]
    path = Checkpoint(a=tables[0], b=tables[1]).save(saved.parent, 4)
    Checkpoint(a=tables[0], b=tables[1]).restore(path)
    for table in tables:
        assert table.log == [("plan", table.metadata, "load"), "write", "write", "commit"]
        table.log.clear()

    def failing(name, box, values):
        raise ZeroDivisionError("in a writer")

    tables[1]._write = failing
    with pytest.raises(ZeroDivisionError, match="in a writer"):
        Checkpoint(a=tables[0], b=tables[1]).restore(path)
    assert tables[0].log[-1] == "abort"
    assert tables[1].log[-1] == "abort"
    assert "commit" not in tables[0].log


def test_an_abort_that_fails_does_not_stop_the_others(saved):
    log = []

    class Part:
        def __init__(self, name):
            self.name = name

        def checkpoint_metadata(self):
            return {}

        def checkpoint_tensors(self):
            return []

        def checkpoint_restore(self, metadata, tensors, *, slots):
            return RestorePlan({}, live=True, commit=self.commit, abort=self.abort)

        def commit(self):
            log.append(f"commit {self.name}")
            if self.name == "b":
                raise RuntimeError("in commit")

        def abort(self):
            log.append(f"abort {self.name}")
            if self.name == "c":
                raise RuntimeError("in abort")

    checkpoint = Checkpoint(**{name: Part(name) for name in "abcd"})
    path = checkpoint.save(saved.parent, 9)
    with pytest.raises(RuntimeError, match="in commit") as caught:
        checkpoint.restore(path)
    assert log == ["commit a", "commit b", "abort c", "abort d"]
    assert caught.value.__notes__ == ["abort of object 'c' failed: RuntimeError('in abort')"]


def test_an_object_that_wants_more_than_there_is(saved, hosted_table, rows):
    table = blank_table(hosted_table, rows)
    table.tensors["users/momentum"] = np.zeros_like(rows)
    message = (
        "object 'table' restores the tensors ['users/momentum'], which the checkpoint does not hold"
    )
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        Checkpoint(table=table).restore(saved)
    assert table.log == [("plan", table.metadata, "load"), "abort"]


def test_path_must_be_a_path():
    with pytest.raises(ShardcoreTypeError, match="path must be a path, got int"):
        Checkpoint(x=np.zeros(1)).restore(3)
