"""Checkpoints written under a sharding callback: their files, and that they restore anywhere."""

from __future__ import annotations

import errno
import os
import tracemalloc

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

import shardcore as sc
from shardcore.checkpoint import (
    Checkpoint,
    MaxShardSizePolicy,
    ShardByTaskPolicy,
    ShardingCallback,
    SliceSpec,
    inspect,
    steps,
    verify,
)
from shardcore.checkpoint.boxes import Box, whole
from shardcore.checkpoint.state import RestorePlan, TensorSource
from shardcore.errors import NotCommittedError, ShardcoreRuntimeError


class Columns(ShardingCallback):
    """Splits every tensor of two axes into `count` groups of columns, a file each."""

    def __init__(self, count, *, lazy):
        self.count = count
        self.lazy = lazy
        self.calls = []

    @property
    def description(self):
        return f"{self.count} groups of columns"

    def __call__(self, shardable_tensors):
        self.calls.append([(t.checkpoint_key, t.host, t.shape) for t in shardable_tensors])
        shards = [{} for _ in range(self.count)]
        while shardable_tensors:  # the list is the callback's own
            tensor = shardable_tensors.pop()
            if len(tensor.shape) != 2 or 0 in tensor.shape:
                shards[0].setdefault(tensor.checkpoint_key, {})[tensor.slice_spec] = tensor.tensor
                continue
            bounds = np.linspace(0, tensor.shape[1], self.count + 1).astype(int)
            row, column = tensor.slice_spec.offset
            for shard, start, stop in zip(shards, bounds, bounds[1:], strict=False):
                if start == stop:
                    continue
                part = tensor.slice((row, column + start), (tensor.shape[0], stop - start))
                values = part if self.lazy else np.array(part)
                shard.setdefault(tensor.checkpoint_key, {})[part.slice_spec] = values
        return [shard for shard in shards if shard]


def tensor_files(path):
    return sorted(file.name for file in path.glob("*.safetensors"))


def numbered(count):
    return [f"shard-{index:05d}-of-{count:05d}.safetensors" for index in range(count)]


def test_the_option_makes_a_file_per_shard(tmp_path):
    objects = {
        "v0": np.arange(6, dtype="i4").reshape(3, 2),
        "v1": np.arange(6, 12, dtype="f4").reshape(3, 2, 1),
        "name": np.array("test_string"),
    }
    path = Checkpoint(**objects).save(tmp_path, 1, sharding_callback=MaxShardSizePolicy(10))
    # 6 rows and an oversize string; with the manifest 8 files, as many as TensorFlow's.
    assert tensor_files(path) == numbered(7)
    assert len(list(path.iterdir())) == 8
    verify(path)
    with safetensors.safe_open(path / "shard-00002-of-00007.safetensors", "np") as file:
        assert file.get_tensor("v0").tolist() == [[4, 5]]
    targets = {name: np.zeros_like(array) for name, array in objects.items()}
    assert Checkpoint(**targets).restore(path) == 1
    for name, array in objects.items():
        np.testing.assert_array_equal(targets[name], array)


def test_by_task_three_hosts_make_three_files(tmp_path, hosted_table, rows):
    table = hosted_table(rows, [0, 3, 5, 8], slot=-rows)
    step = np.array(5)
    path = Checkpoint(table=table, step=step).save(
        tmp_path, 1, sharding_callback=ShardByTaskPolicy()
    )
    assert tensor_files(path) == numbered(3)
    with safetensors.safe_open(path / "shard-00000-of-00003.safetensors", "np") as file:
        assert set(file.keys()) - {"__checksums__", "__padding__"} == {
            "table/users",
            "table/users/accumulator",
            "step",
        }
    with safetensors.safe_open(path / "shard-00001-of-00003.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("table/users"), rows[3:5])


def test_without_a_callback_files_are_as_ever(tmp_path, hosted_table, rows):
    table = hosted_table(rows, [0, 3, 8])
    path = Checkpoint(table=table).save(tmp_path, 1, sharding_callback=None)
    assert tensor_files(path) == [f"table.users-0000{i}-of-00002.safetensors" for i in (0, 1)]


POLICIES = [
    ShardByTaskPolicy(),
    MaxShardSizePolicy(1),
    MaxShardSizePolicy(12),
    MaxShardSizePolicy(40),
    Columns(2, lazy=True),
    Columns(3, lazy=False),
]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("callback", POLICIES, ids=lambda callback: callback.description)
def test_any_policy_restores_on_any_hosts(tmp_path, hosted_table, rows, callback, live):
    source = hosted_table(rows, [0, 3, 5, 8], slot=rows + 0.5, columns=True)
    path = Checkpoint(table=source).save(tmp_path, 1, sharding_callback=callback)
    verify(path)
    target = hosted_table(np.zeros_like(rows), [0, 8], slot=np.zeros_like(rows), live=live)
    assert Checkpoint(table=target).restore(path) == 1
    np.testing.assert_array_equal(target.tensors["users"], rows)
    np.testing.assert_array_equal(target.tensors["users/accumulator"], rows + 0.5)


def engine(hosts, layout, placement, optimizer):
    tables = [
        sc.TableConfig(11, 4, name="user", layout=layout, placement=placement),
        sc.TableConfig(3, 6, name="item", layout=layout, placement=placement),
    ]
    built = sc.ShardedEmbedding(
        {table.name: sc.FeatureConfig(table, name=table.name) for table in tables},
        optimizer=optimizer,
        backend="sim",
        backend_options={"hosts": hosts},
        seed=hosts,
    )
    built.build()
    return built


def train(built):
    built.enqueue({"user": np.array([[0, 5], [10, 5]]), "item": np.array([[1], [2]])})
    built.dequeue()
    built.apply_gradients(
        {"user": np.ones((2, 4), np.float32), "item": np.ones((2, 6), np.float32)}
    )


def contents(built):
    found = {name: np.asarray(table) for name, table in built.tables.items()}
    for name, slots in built.slots.items():
        found |= {f"{name}/{slot}": np.asarray(values) for slot, values in slots.items()}
    return found


@pytest.mark.parametrize("callback", POLICIES, ids=lambda callback: callback.description)
def test_c9_tables_of_several_hosts_under_a_callback(tmp_path, callback):
    with engine(3, "mod", "row", sc.optimizers.Adagrad(0.1)) as source:
        train(source)
        expected = contents(source)
        path = Checkpoint(engine=source).save(tmp_path, 7, sharding_callback=callback)
        verify(path)
    for hosts, layout in ((1, "div"), (2, "mod"), (5, "div")):
        with engine(hosts, layout, "row", sc.optimizers.Adagrad(0.1)) as target:
            assert Checkpoint(engine=target).restore(path) == 7
            found = contents(target)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name].tobytes() == values.tobytes()


def test_c10_a_host_at_a_time_and_one_commit_for_all(tmp_path, monkeypatch):
    callback = Columns(2, lazy=True)
    with engine(3, "div", "row", sc.optimizers.SGD(0.1)) as source:
        checkpoint = Checkpoint(engine=source, bias=np.zeros(2))
        path = checkpoint.save(tmp_path, 1, sharding_callback=callback)
        assert callback.calls == [
            [
                ("engine/user", 0, (4, 4)),
                ("engine/item", 0, (1, 6)),
                ("bias", 0, (2,)),
            ],
            [("engine/user", 1, (4, 4)), ("engine/item", 1, (1, 6))],
            [("engine/user", 2, (3, 4)), ("engine/item", 2, (1, 6))],
        ]
        assert tensor_files(path) == numbered(6)
        assert set(inspect(path).files) == set(numbered(6))  # all under one checksummed manifest

        class LastHostFails(Columns):
            def __call__(self, shardable_tensors):
                shards = super().__call__(shardable_tensors)
                return shards[:1] if len(self.calls) == 3 else shards

        with pytest.raises(ShardcoreRuntimeError, match=r"'engine/.*is not saved in full"):
            checkpoint.save(tmp_path, 2, sharding_callback=LastHostFails(2, lazy=True))
        real = os.fsync

        synced = []

        def fail_late(descriptor):
            synced.append(descriptor)
            if len(synced) == 5:
                raise OSError(errno.ENOSPC, "full")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fail_late)
        with pytest.raises(NotCommittedError, match="step 2 was not committed"):
            checkpoint.save(tmp_path, 2, sharding_callback=callback)
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_c8_a_custom_callback_with_arguments_runs(tmp_path):
    class FileEach(ShardingCallback):
        """Puts `count` tensors into a file, in the order of their names."""

        def __init__(self, count):
            self.count = count

        @property
        def description(self):
            return f"{self.count} tensors per file"

        def __call__(self, shardable_tensors):
            ordered = sorted(shardable_tensors, key=lambda tensor: tensor.checkpoint_key)
            return [
                {t.checkpoint_key: {t.slice_spec: t.tensor} for t in ordered[i : i + self.count]}
                for i in range(0, len(ordered), self.count)
            ]

    arrays = {name: np.full(3, index) for index, name in enumerate("edcba")}
    checkpoint = Checkpoint(x=arrays)
    path = checkpoint.save(tmp_path, 1, sharding_callback=FileEach(2))
    assert tensor_files(path) == numbered(3)
    with safetensors.safe_open(path / numbered(3)[1], "np") as file:
        assert {"x/c", "x/d"} <= set(file.keys())
    assert FileEach(2) != FileEach(3)
    # The same content again succeeds, in other files it is refused.
    assert checkpoint.save(tmp_path, 1, sharding_callback=FileEach(2)) == path
    with pytest.raises(ValueError, match="with another content"):
        checkpoint.save(tmp_path, 1, sharding_callback=FileEach(3))


def test_no_tensors_no_call(tmp_path):
    callback = Columns(2, lazy=True)
    path = Checkpoint(x={}).save(tmp_path, 1, sharding_callback=callback)
    assert callback.calls == []
    assert [file.name for file in path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("dtype", ["U4", "S4", "O", "T"])
@pytest.mark.parametrize("callback", POLICIES, ids=lambda callback: callback.description)
def test_strings_and_empty_tensors(tmp_path, dtype, callback):
    kind = np.dtypes.StringDType() if dtype == "T" else dtype
    words = [["a", "bcd", ""], ["efgh", "i", "jk"], ["", "", "lmno"]]
    if dtype == "S4":
        words = [[word.encode() for word in row] for row in words]
    objects = {"words": np.array(words, kind), "none": np.zeros((0, 3), kind), "gone": np.zeros(0)}
    path = Checkpoint(**objects).save(tmp_path, 1, sharding_callback=callback)
    verify(path)
    targets = {name: np.empty_like(array) for name, array in objects.items()}
    Checkpoint(**targets).restore(path)
    assert targets["words"].tolist() == words
    assert set(inspect(path).objects) == {"words", "none", "gone"}


def test_plain_arrays_may_hold_other_values(tmp_path):
    class Doubling(ShardingCallback):
        description = "doubles what it saves"

        def __call__(self, shardable_tensors):
            (tensor,) = shardable_tensors
            return [{tensor.checkpoint_key: {tensor.slice_spec: np.asarray(tensor.tensor) * 2}}]

    array = np.arange(3)
    Checkpoint(x=array).save(tmp_path, 1, sharding_callback=Doubling())
    Checkpoint(x=array).restore(tmp_path)
    assert array.tolist() == [0, 2, 4]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    shards=st.integers(1, 4),
    size=st.integers(1, 80),
    mod=st.booleans(),
    dtype=st.sampled_from(["u1", "f4", "f8", "U5"]),
)
def test_any_tensor_comes_back(tmp_path_factory, shape, shards, size, mod, dtype):
    values = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    if shape:
        layout = (sc.Layout.mod if mod else sc.Layout.div)(shape[0], shards)
        source = sc.ShardedVariable(
            [values[layout.global_rows(shard)] for shard in range(shards)], layout=layout
        )
    else:
        source = values
    root = tmp_path_factory.mktemp("any")
    path = Checkpoint(x=source).save(root, 3, sharding_callback=MaxShardSizePolicy(size))
    verify(path)
    target = np.zeros_like(values)
    Checkpoint(x=target).restore(path)
    np.testing.assert_array_equal(target, values)


class Generated:
    """A table that exists in blocks only: row r is r, r + 1, … in 64 columns of float32."""

    rows, columns = 400_000, 64  # 98 MiB

    def __init__(self):
        self.read_rows = 0
        self.written = 0

    def values(self, box):
        row = np.arange(box.rows.start, box.rows.stop, dtype=np.float32)[:, None]
        return row + np.arange(self.columns, dtype=np.float32)

    def checkpoint_metadata(self):
        return {}

    def checkpoint_tensors(self):
        shape = (self.rows, self.columns)
        return [TensorSource("", shape, np.dtype("f4"), ((0, whole(shape)),), self._read)]

    def _read(self, box):
        self.read_rows += len(box.rows)
        return self.values(box)

    def checkpoint_restore(self, metadata, tensors, *, slots):
        return RestorePlan({"": self._write}, live=False)

    def _write(self, box, values):
        np.testing.assert_array_equal(values[::997], self.values(box)[::997])
        self.written += len(box.rows)


@pytest.mark.slow
def test_c4_a_big_table_is_written_and_read_in_little_memory(tmp_path):
    table = Generated()
    total = table.rows * table.columns * 4
    tracemalloc.start()
    try:
        path = Checkpoint(t=table).save(tmp_path, 1, sharding_callback=MaxShardSizePolicy(30 << 20))
        assert table.read_rows == table.rows  # cut along rows, each is read once
        assert len(tensor_files(path)) == 4
        cut = Checkpoint(t=table).save(tmp_path, 2, sharding_callback=Columns(4, lazy=True))
        assert len(tensor_files(cut)) == 4
        for step in (path, cut):
            table.written = 0
            Checkpoint(t=table).restore(step)
            assert table.written == table.rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20 < total
    assert steps(tmp_path) == [1, 2]


def test_a_reader_that_breaks_its_word_is_found_while_writing(tmp_path):
    class Odd:
        def checkpoint_metadata(self):
            return {}

        def checkpoint_tensors(self):
            box = Box((0, 0), (2, 4))
            return [TensorSource("t", (2, 4), np.dtype("f4"), ((0, box),), self.read)]

        def read(self, box):
            return np.zeros((len(box.rows), 3), np.float32)

        def checkpoint_restore(self, metadata, tensors, *, slots):
            raise AssertionError

    message = r"tensor 't' of object 'x' announced float32 of shape \(2, 4\) for rows \[0, 2\)"
    with pytest.raises(ShardcoreRuntimeError, match=message):
        Checkpoint(x=Odd()).save(tmp_path, 1, sharding_callback=Columns(2, lazy=True))
    assert os.listdir(tmp_path) == []


def test_two_parts_of_one_tensor_in_one_file_have_readable_keys(tmp_path):
    class Halves(ShardingCallback):
        description = "halves"

        def __call__(self, shardable_tensors):
            (tensor,) = shardable_tensors
            halves = [tensor.slice((0, i), (3, 1)) for i in (0, 1)]
            return [{tensor.checkpoint_key: {half.slice_spec: half for half in halves}}]

    path = Checkpoint(w=np.arange(6.0).reshape(3, 2)).save(tmp_path, 1, sharding_callback=Halves())
    with safetensors.safe_open(path / numbered(1)[0], "np") as file:
        assert {"w", "w[0:3, 1:2]"} <= set(file.keys())
        assert file.get_tensor("w[0:3, 1:2]").tolist() == [[1.0], [3.0], [5.0]]
    assert SliceSpec((0, 1), (3, 1), (3, 2)).box == Box((0, 1), (3, 1))
