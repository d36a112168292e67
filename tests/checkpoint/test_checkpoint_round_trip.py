"""What is saved comes back, whatever its dtype, shape, structure and placement."""

from __future__ import annotations

import re
from functools import partial

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.checkpoint import Checkpoint, inspect, latest, steps, verify
from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.state import RestorePlan, TensorSource
from shardcore.errors import (
    ShardcoreOSError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.sharding.layout import Layout
from shardcore.variable.variable import ShardedVariable

NUMBERS = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    ml_dtypes.bfloat16, "float32", "float64", "complex64",
]  # fmt: skip


def sample(dtype, shape):
    raw = np.random.default_rng(3).integers(0, 256, (*shape, np.dtype(dtype).itemsize))
    if dtype == "bool":
        raw &= 1
    return raw.astype(np.uint8).view(dtype).reshape(shape)


def round_trip(root, value, target):
    path = Checkpoint(x=value).save(root, 0)
    verify(path)
    assert Checkpoint(x=target).restore(path) == 0
    return path


@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 3), (0, 4), (4, 0), (2, 3, 4)])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_keep_every_bit(tmp_path, dtype, shape):
    value = sample(dtype, shape)
    target = np.zeros_like(value)
    path = round_trip(tmp_path, value, target)
    assert target.tobytes() == value.tobytes()
    with safetensors.safe_open(path / "x-00000-of-00001.safetensors", "np") as file:
        read = file.get_tensor("x")
    assert read.dtype == value.dtype
    assert read.shape == value.shape
    assert read.tobytes() == value.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 2), (0, 2)])
@pytest.mark.parametrize("dtype", ["U6", "S6", "T", "O"])
def test_strings(tmp_path, dtype, shape):
    words = ["", "a", "bc", "ünï☃", "\U0001f40d", "abcdef"]
    if dtype == "S6":
        words = [word.encode()[:6] for word in words]
    kind = np.dtypes.StringDType() if dtype == "T" else dtype
    value = np.array(words, dtype=kind)[: int(np.prod(shape))].reshape(shape)
    target = np.zeros_like(value)
    round_trip(tmp_path, value, target)
    assert target.tolist() == value.tolist()


def test_surrogates_and_foreign_byte_orders(tmp_path):
    odd = np.array(["\ud800", "x"])
    target = np.zeros_like(odd)
    round_trip(tmp_path / "a", odd, target)
    assert target.tolist() == odd.tolist()
    swapped = np.arange(5, dtype=">i4")
    native = np.zeros(5, "int32")
    round_trip(tmp_path / "b", swapped, native)
    assert native.tolist() == swapped.tolist()
    back = np.zeros(5, ">i4")
    assert Checkpoint(x=back).restore(tmp_path / "b") == 0
    assert back.tolist() == swapped.tolist()


def test_views_are_saved_and_restored_in_place(tmp_path):
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    target = np.zeros((10, 6), np.float32)
    round_trip(tmp_path, base.T[::2, ::-1], target.T[:, ::2].T[:, :6])
    np.testing.assert_array_equal(target[::2], base.T[::2, ::-1])
    assert not target[1::2].any()


@settings(max_examples=40, deadline=None)
@given(
    value=hnp.arrays(
        st.sampled_from(["float32", "int64", "uint8", "bool"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_any_array(tmp_path_factory, value):
    target = np.zeros_like(value)
    round_trip(tmp_path_factory.mktemp("any"), value, target)
    assert target.tobytes() == value.tobytes()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.text(max_size=8), max_size=9))
def test_any_text(tmp_path_factory, words):
    value = np.empty(len(words), object)
    value[:] = words
    target = np.empty(len(words), object)
    round_trip(tmp_path_factory.mktemp("text"), value, target)
    assert target.tolist() == words


def test_blocks_of_rows_and_strings(tmp_path, monkeypatch):
    monkeypatch.setattr("shardcore.checkpoint.reader._BLOCK_BYTES", 100)
    monkeypatch.setattr("shardcore.checkpoint.reader.STRINGS_PER_BLOCK", 4)
    value = {
        "w": np.arange(3000.0).reshape(1000, 3),
        "names": np.array([f"user {i}" for i in range(33)]).reshape(11, 3),
    }
    target = {name: np.zeros_like(array) for name, array in value.items()}
    reads = []

    class Counting:
        def checkpoint_metadata(self):
            return {}

        def checkpoint_tensors(self):
            array = value["w"]
            box = Box((0, 0), array.shape)
            return [TensorSource("", array.shape, array.dtype, ((0, box),), self.read)]

        def read(self, box):
            reads.append(box)
            return value["w"][box.rows.start : box.rows.stop]

        def checkpoint_restore(self, metadata, tensors, *, slots):
            raise AssertionError

    Checkpoint(x=Counting()).save(tmp_path / "count", 0)
    assert {box.shape for box in reads} == {(4, 3)}
    assert len(reads) == 250
    round_trip(tmp_path, value, target)
    for name in value:
        np.testing.assert_array_equal(target[name], value[name])


def test_nested_structures(tmp_path):
    value = {
        "layers": [{"w": np.ones((2, 2)), "b": np.zeros(2)}, (np.array(3),)],
        "names": np.array(["a", "b"]),
    }
    target = {
        "layers": [{"w": np.zeros((2, 2)), "b": np.ones(2)}, (np.array(0),)],
        "names": np.array(["x", "y"]),
    }
    path = round_trip(tmp_path, value, target)
    assert target["layers"][0]["w"].tolist() == [[1, 1], [1, 1]]
    assert target["layers"][0]["b"].tolist() == [0, 0]
    assert target["layers"][1][0] == 3
    assert target["names"].tolist() == ["a", "b"]
    assert set(inspect(path).objects["x"].tensors) == {
        "layers/0/w", "layers/0/b", "layers/1/0", "names",
    }  # fmt: skip
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json", "x-00000-of-00001.safetensors",
    ]  # fmt: skip


def variable(values, layout):
    shards = [values[layout.global_rows(shard)].copy() for shard in range(layout.num_shards)]
    return ShardedVariable(shards, layout=layout)


LAYOUTS = st.tuples(st.sampled_from([Layout.div, Layout.mod]), st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 20),
    saved=LAYOUTS,
    restored=LAYOUTS,
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_a_variable_of_n_shards_becomes_one_of_m(
    tmp_path_factory, num_rows, saved, restored, dtype
):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    values = np.arange(num_rows * 3).reshape(num_rows, 3).astype(kind)
    source = variable(values, saved[0](num_rows, saved[1]))
    target = variable(np.zeros_like(values), restored[0](num_rows, restored[1]))
    path = round_trip(tmp_path_factory.mktemp("nm"), source, target)
    np.testing.assert_array_equal(np.asarray(target), values)
    plain = np.zeros_like(values)
    Checkpoint(x=plain).restore(path)
    np.testing.assert_array_equal(plain, values)
    whole = [shards for shards in range(saved[1]) if source.layout.shard_sizes[shards]]
    assert len(list(path.glob("*.safetensors"))) == max(1, len(whole))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 30), columns=st.booleans(), live=st.booleans())
def test_row_ranges_on_n_hosts_restore_on_m(
    tmp_path_factory, hosted_table, data, num_rows, columns, live
):
    cuts = st.lists(st.integers(0, num_rows), max_size=8)
    bounds = [[0, *sorted(data.draw(cuts)), num_rows] for _ in range(2)]
    table = np.arange(num_rows * 4, dtype=np.float32).reshape(num_rows, 4)
    source = hosted_table(table, bounds[0], columns=columns, slot=table + 0.5)
    target = hosted_table(np.zeros_like(table), bounds[1], live=live, slot=np.zeros_like(table))
    path = round_trip(tmp_path_factory.mktemp("hosts"), source, target)
    np.testing.assert_array_equal(target.tensors["users"], table)
    np.testing.assert_array_equal(target.tensors["users/accumulator"], table + 0.5)
    assert target.log[-1] == "commit"
    assert "abort" not in target.log
    hosts = len([1 for a, b in zip(bounds[0], bounds[0][1:], strict=False) if a != b])
    assert sorted(file.name for file in path.glob("*.safetensors")) == [
        f"x.users-{host:05d}-of-{hosts:05d}.safetensors" for host in range(hosts)
    ]


def test_boxes_of_one_tensor_in_one_file_have_readable_keys(tmp_path, hosted_table, rows):
    path = Checkpoint(x=hosted_table(rows, [0, 8], columns=True)).save(tmp_path, 0)
    with safetensors.safe_open(path / "x.users-00000-of-00001.safetensors", "np") as file:
        assert set(file.keys()) == {"x/users", "x/users[0:8, 1:3]", "__checksums__"}
        np.testing.assert_array_equal(file.get_tensor("x/users[0:8, 1:3]"), rows[:, 1:])


def test_names_that_no_file_system_likes(tmp_path):
    names = ["a b", "a_b", "A_B", "ä", ".hidden", "x" * 300, "__checksums__", "a\\b"]
    value = {name: np.full(2, index) for index, name in enumerate(names)}
    path = Checkpoint(**value).save(tmp_path, 0)
    target = {name: np.zeros(2, int) for name in names}
    assert Checkpoint(**target).restore(path) == 0
    for index, name in enumerate(names):
        assert target[name].tolist() == [index, index]
    assert len({file.name.casefold() for file in path.iterdir()}) == len(names) + 1
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", file.name) for file in path.iterdir())


def test_keys_that_look_like_others(tmp_path):
    value = {"a": np.array(["p"]), "a.bytes": np.array([1]), "a.offsets": np.array([2])}
    target = {"a": np.array(["_"]), "a.bytes": np.array([0]), "a.offsets": np.array([0])}
    round_trip(tmp_path, value, target)
    assert {name: array[0] for name, array in target.items()} == {
        "a": "p", "a.bytes": 1, "a.offsets": 2,
    }  # fmt: skip


def test_steps_latest_and_root(tmp_path):
    root = tmp_path / "a" / "b"
    assert steps(root) == []
    with pytest.raises(ShardcoreOSError, match=re.escape(f"root {root} holds no step")):
        latest(root)
    array = np.zeros(2)
    checkpoint = Checkpoint(x=array)
    for step in (7, 123_456_789, 0):
        array[:] = step
        assert checkpoint.save(str(root), np.int64(step)) == root / f"step-{step:08d}"
    (root / "step-9").mkdir()
    (root / "notes").mkdir()
    assert steps(root) == [0, 7, 123_456_789]
    assert latest(root) == root / "step-123456789"
    array[:] = -1
    assert checkpoint.restore(root) == 123_456_789
    assert array.tolist() == [123_456_789] * 2
    assert checkpoint.restore(root / "step-00000007") == 7
    assert array.tolist() == [7, 7]
    moved = (root / "step-00000007").rename(tmp_path / "kept")
    assert checkpoint.restore(moved) == 7


def test_a_file_is_no_root(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(ShardcoreOSError, match=f"root {tmp_path}/f cannot be listed"):
        steps(tmp_path / "f")


def test_inspect(tmp_path, hosted_table, rows):
    table = hosted_table(rows, [0, 4, 8])
    path = Checkpoint(table=table, step=np.array(5)).save(tmp_path, 12)
    info = inspect(tmp_path)
    assert (info.path, info.step) == (path, 12)
    assert info.objects["table"].metadata == table.metadata
    tensor = info.objects["table"].tensors["users"]
    assert (tensor.shape, tensor.dtype, tensor.num_boxes) == ((8, 3), "float32", 2)
    assert info.num_bytes == sum(file.stat().st_size for file in path.glob("*.safetensors"))
    lines = str(info).splitlines()
    assert lines[0].startswith(f"step 12: 3 files, {info.num_bytes:,} bytes, written by shardcore ")
    assert "  users  float32 [8, 3], boxes: 2" in lines
    assert "  (the object)  int64 [], boxes: 1" in lines


def test_an_object_without_tensors(tmp_path):
    path = Checkpoint(x={}).save(tmp_path, 1)
    assert [file.name for file in path.iterdir()] == ["manifest.json"]
    verify(path)
    assert Checkpoint(x={}).restore(path) == 1


def test_repr():
    assert repr(Checkpoint(a=np.zeros(1), b=[])) == "Checkpoint(a, b)"


loop: list[object] = []
loop.append(loop)


@pytest.mark.parametrize(
    ("objects", "error", "message"),
    [
        ({}, ShardcoreValueError, "Checkpoint needs at least one named object"),
        (
            {"a/b": np.zeros(1)},
            ShardcoreValueError,
            "object names must be non-empty, printable and without '/', got 'a/b'",
        ),
        (
            {"x": 3},
            ShardcoreTypeError,
            "object 'x' must be Checkpointable, an array, a ShardedVariable, or a nested dict, "
            "list, tuple or dataclass of these, got int",
        ),
        (
            {"x": {"a": [None]}},
            ShardcoreTypeError,
            "object 'x', tensor 'a/0' must be Checkpointable, an array, a ShardedVariable, or a "
            "nested dict, list, tuple or dataclass of these, got NoneType",
        ),
        ({"x": loop}, ShardcoreValueError, "object 'x', tensor '0' contains itself"),
        (
            {"x": {1: np.zeros(1)}},
            ShardcoreValueError,
            "object 'x' must have non-empty strings without '/' as keys, got 1",
        ),
        (
            {"x": {"a/b": np.zeros(1)}},
            ShardcoreValueError,
            "object 'x' must have non-empty strings without '/' as keys, got 'a/b'",
        ),
        (
            {"x": np.ma.masked_array([1.0], [True])},
            ShardcoreTypeError,
            "object 'x' is a masked array, whose mask would be lost",
        ),
        (
            {"x": np.zeros(2, "complex128")},
            ShardcoreTypeError,
            "object 'x' has dtype complex128, which a checkpoint cannot hold: must be one of bool",
        ),
        (
            {"x": [np.zeros(2, "datetime64[s]")]},
            ShardcoreTypeError,
            "object 'x', tensor '0' has dtype datetime64[s], which a checkpoint cannot hold",
        ),
    ],
)
def test_objects_that_cannot_be_saved(objects, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Checkpoint(**objects)


@pytest.mark.parametrize(
    ("root", "step", "error", "message"),
    [
        (3, 1, ShardcoreTypeError, "root must be a path, got int"),
        (b"x", 1, ShardcoreTypeError, "root must be a path, got bytes"),
        ("x", True, ShardcoreTypeError, "step must be an integer, got bool"),
        ("x", 1.0, ShardcoreTypeError, "step must be an integer, got float"),
        ("x", -1, ShardcoreValueError, "step must be in [0, 2**63), got -1"),
        ("x", 1 << 63, ShardcoreValueError, "step must be in [0, 2**63), got 9223372036854775808"),
    ],
)
def test_arguments_of_save(root, step, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Checkpoint(x=np.zeros(1)).save(root, step)


class Odd:
    """An object whose tensors and metadata are given."""

    def __init__(self, *sources, metadata=None):
        self.sources = sources
        self.metadata = {} if metadata is None else metadata

    def checkpoint_metadata(self):
        return self.metadata

    def checkpoint_tensors(self):
        return self.sources

    def checkpoint_restore(self, metadata, tensors, *, slots):
        return RestorePlan({}, live=False)


ALL_FOUR = (Box((0,), (4,)),)


def source(name="t", shape=(4,), boxes=ALL_FOUR, values=None, dtype="float32"):
    array = np.zeros(shape, dtype) if values is None else values
    return TensorSource(
        name, shape, np.dtype(dtype), tuple(enumerate(boxes)), partial(_part, array)
    )


def _part(array, box):
    return array[box.rows.start : box.rows.stop]


@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        (Odd(source(), source()), ShardcoreValueError, "object 'x' has two tensors named 't'"),
        (
            Odd(source(name=3)),
            ShardcoreTypeError,
            "tensor name of object 'x' must be a string, got int",
        ),
        (
            Odd(source(name="\ud800")),
            ShardcoreValueError,
            "tensor name of object 'x' must be valid Unicode, got '\\ud800'",
        ),
        (
            Odd(source(boxes=[Box((0,), (3,))])),
            ShardcoreValueError,
            "tensor 't' of object 'x': boxes cover 3 of 4 elements",
        ),
        (
            Odd(TensorSource("t", (-1,), np.dtype("f4"), (), None)),
            ShardcoreValueError,
            "tensor 't' of object 'x' must have a shape of integers >= 0, got (-1,)",
        ),
        (
            Odd(source(dtype="complex64", values=np.zeros(4, "complex128"))),
            ShardcoreRuntimeError,
            "tensor 't' of object 'x' announced complex64 of shape (4,) for rows [0, 4), "
            "but its read gave complex128 of (4,)",
        ),
        (
            Odd(source(dtype="V8")),
            ShardcoreTypeError,
            "tensor 't' of object 'x' has dtype |V8, which a checkpoint cannot hold",
        ),
        (
            Odd(source(dtype="O", values=np.array(["a", 2, "b", "c"], object))),
            ShardcoreTypeError,
            "tensor 't' of object 'x' must hold strings only, found int at element 1",
        ),
        (
            Odd(metadata=[]),
            ShardcoreTypeError,
            "metadata of object 'x' must be a dict, got list",
        ),
        (
            Odd(metadata={"a": [1, {"b": np.float32(1)}]}),
            ShardcoreTypeError,
            "metadata of object 'x'['a'][1]['b'] must be None, bool, int, float, str, or a list "
            "or dict of these, got float32",
        ),
        (
            Odd(metadata={"a": {1: 2}}),
            ShardcoreTypeError,
            "metadata of object 'x'['a'] must have strings as keys, got 1",
        ),
        (
            Odd(metadata={"lr": float("nan")}),
            ShardcoreValueError,
            "metadata of object 'x'['lr'] must be finite, got nan",
        ),
    ],
)
def test_objects_that_break_the_protocol(tmp_path, odd, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Checkpoint(x=odd).save(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_strings_that_change_while_they_are_saved(tmp_path):
    texts = [["aa", "b"], ["aa", "b"], ["a", "bb"]]

    def read(box):
        return np.array(texts.pop(0), object)

    changing = Odd(TensorSource("t", (2,), np.dtype("O"), ((0, Box((0,), (2,))),), read))
    message = "tensor 't' of object 'x' changed while it was being saved"
    with pytest.raises(ShardcoreRuntimeError, match=message):
        Checkpoint(x=changing).save(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_metadata_comes_back_as_json(tmp_path):
    metadata = {"a": [1, 2.5, None, True, "é"], "b": {"c": {}}}
    Checkpoint(x=Odd(metadata=metadata | {"t": (1, 2)})).save(tmp_path, 1)
    assert inspect(tmp_path).objects["x"].metadata == metadata | {"t": [1, 2]}
