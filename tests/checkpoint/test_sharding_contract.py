"""What a sharding callback is told, and when two callbacks are the same."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from shardcore.checkpoint import (
    MaxShardSizePolicy,
    ShardableTensor,
    ShardByTaskPolicy,
    ShardingCallback,
    SliceSpec,
)
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError


class Custom(ShardingCallback):
    """A callback with attributes, as a user would write it."""

    description = "custom"

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __call__(self, shardable_tensors):
        return []


class Other(Custom):
    pass


class Slotted(ShardingCallback):
    __slots__ = ("__hidden", "shown")

    description = "slotted"

    def __init__(self, shown, hidden=0):
        self.shown = shown
        self.__hidden = hidden

    def __call__(self, shardable_tensors):
        return [self.__hidden]


class OneSlot(ShardingCallback):
    __slots__ = "size"
    description = "one slot"

    def __call__(self, shardable_tensors):
        return []


class Unhashable:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Unhashable) and self.value == other.value

    __hash__ = None


def one_slot(*size):
    callback = OneSlot()
    for value in size:
        callback.size = value
    return callback


@pytest.mark.parametrize(
    "make",
    [
        ShardByTaskPolicy,
        lambda: MaxShardSizePolicy(10),
        Custom,
        lambda: Custom(a=1, b="two"),
        lambda: Custom(a=np.arange(6).reshape(2, 3)),
        lambda: Custom(a=np.array(["x", None, [1]], object)),
        lambda: Custom(a=[1, {"b": {2, 3}}, (4, [5])]),
        lambda: Custom(a=Unhashable(3)),
        lambda: Custom(a=(Unhashable([3]), np.zeros(2))),
        lambda: Custom(a=MaxShardSizePolicy(3)),
        lambda: Slotted(3, 4),
        lambda: one_slot(1),
        one_slot,
    ],
)
def test_equal_callbacks_hash_alike(make):
    assert make() == make()
    assert hash(make()) == hash(make())
    assert len({make(), make()}) == 1
    assert make() != "another thing"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (MaxShardSizePolicy(10), MaxShardSizePolicy(11)),
        (ShardByTaskPolicy(), MaxShardSizePolicy(1)),
        (Custom(a=1), Other(a=1)),
        (Custom(a=1), Custom(b=1)),
        (Custom(a=1), Custom(a=1, b=None)),
        (Custom(a=np.zeros(2)), Custom(a=np.ones(2))),
        (Custom(a=np.zeros(2)), Custom(a=np.zeros(2, "f4"))),
        (Custom(a=np.zeros((2, 1))), Custom(a=np.zeros((1, 2)))),
        (Custom(a=np.zeros(2)), Custom(a=[0.0, 0.0])),
        (Custom(a=[1, 2]), Custom(a=[2, 1])),
        (Custom(a=[1, 2]), Custom(a=(1, 2))),
        (Custom(a={"x": 1}), Custom(a={"x": 2})),
        (Custom(a=Unhashable(1)), Custom(a=Unhashable(2))),
        (Custom(a=Unhashable(1)), Custom(a=1)),
        (Slotted(1, 2), Slotted(1, 3)),
        (Slotted(1), Slotted(2)),
        (one_slot(1), one_slot(2)),
        (one_slot(1), one_slot()),
    ],
)
def test_different_callbacks_are_not_equal(left, right):
    assert left != right
    assert right != left


def test_c7_swapped_values_differ_in_hash_too():
    left, right = Custom(a=1, b=2), Custom(a=2, b=1)
    assert left != right
    assert hash(left) != hash(right)
    assert hash(MaxShardSizePolicy(10)) != hash(MaxShardSizePolicy(11))


def test_a_callback_must_have_a_description_and_be_callable():
    class Silent(ShardingCallback):
        def __call__(self, shardable_tensors):
            return []

    class Idle(ShardingCallback):
        description = "idle"

    for kind in (ShardingCallback, Silent, Idle):
        with pytest.raises(TypeError, match="abstract"):
            kind()


def test_descriptions_of_the_policies():
    assert ShardByTaskPolicy().description == "one shard per host"
    assert MaxShardSizePolicy(1024).description == "shards of at most 1024 bytes"


def test_a_slice_spec_is_a_frozen_record_of_plain_integers():
    spec = SliceSpec([np.int64(0), 1], np.array([2, 3]), (2, 5))
    assert (spec.offset, spec.shape, spec.full_shape) == ((0, 1), (2, 3), (2, 5))
    assert spec == SliceSpec((0, 1), (2, 3), (2, 5))
    assert len({spec, SliceSpec((0, 1), (2, 3), (2, 5)), SliceSpec((0, 1), (2, 2), (2, 5))}) == 2
    assert str(spec) == "[0:2, 1:4] of (2, 5)"
    assert str(SliceSpec.whole(())) == "[] of ()"
    assert SliceSpec.whole((0, 3)) == SliceSpec((0, 0), (0, 3), (0, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.offset = (0, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("01", (1,), (2,)), ShardcoreTypeError, "offset must be a sequence of integers >= 0, "),
        (((0,), (True,), (2,)), ShardcoreTypeError, "shape[0] must be an integer >= 0, got True"),
        (((0,), (1.0,), (2,)), ShardcoreTypeError, "shape[0] must be an integer >= 0, got 1.0"),
        (((-1,), (1,), (2,)), ShardcoreValueError, "offset[0] must be an integer >= 0, got -1"),
        (((0,), (1,), (-2,)), ShardcoreValueError, "full_shape[0] must be an integer >= 0, got -2"),
        (
            ((0,), (1, 1), (2,)),
            ShardcoreValueError,
            "offset, shape and full_shape must have one length, got (0,), (1, 1) and (2,)",
        ),
        (
            ((0, 3), (2, 3), (2, 5)),
            ShardcoreValueError,
            "slice must lie within full_shape (2, 5), spans [3, 6) on axis 1",
        ),
    ],
)
def test_slice_specs_that_are_none(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SliceSpec(*arguments)


def recording(array, spec):
    """A shardable tensor whose reads, given as boxes, are recorded."""
    reads = []

    def read(box):
        reads.append((box.offset, box.shape))
        start = box.offset[0] - spec.offset[0]
        return array[start : start + box.shape[0]]

    return ShardableTensor("t", spec, array.dtype, 2, read), reads


def test_a_tensor_is_read_only_when_asked_and_only_the_rows_asked_for():
    array = np.arange(30.0).reshape(5, 6)
    spec = SliceSpec((10, 2), (5, 6), (20, 9))
    tensor, reads = recording(array, spec)
    assert (tensor.shape, tensor.dtype, tensor.host) == ((5, 6), np.float64, 2)
    part = tensor.slice((12, 3), (2, 4))
    assert (part.shape, part.dtype, part.host, part.nbytes) == ((2, 4), np.float64, 2, 64)
    assert part.slice_spec == SliceSpec((12, 3), (2, 4), (20, 9))
    assert tensor.tensor.slice_spec == spec
    assert reads == []
    np.testing.assert_array_equal(part, array[2:4, 1:5])
    assert reads == [((12, 2), (2, 6))]
    np.testing.assert_array_equal(tensor.read((10, 2), (5, 6)), array)
    np.testing.assert_array_equal(np.asarray(tensor.tensor, np.int32), array)
    assert tensor.read((11, 2), (0, 6)).shape == (0, 6)


def test_what_is_read_cannot_change_the_table():
    array = np.arange(6.0)
    tensor = ShardableTensor.from_array("t", array)
    read = tensor.read((0,), (3,))
    assert np.shares_memory(read, array)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    copied = np.array(tensor.tensor)
    copied[0] = 7
    assert array[0] == 0
    assert array.flags.writeable


def test_blocks_are_bounded_by_the_rows_that_are_read(monkeypatch):
    monkeypatch.setattr("shardcore.checkpoint.reader._BLOCK_BYTES", 100)
    array = np.arange(60.0).reshape(10, 6)
    tensor, reads = recording(array, SliceSpec((5, 0), (10, 6), (15, 6)))
    blocks = list(tensor.slice((6, 1), (5, 1)).blocks())
    assert [block.shape for block in blocks] == [(2, 1), (2, 1), (1, 1)]
    np.testing.assert_array_equal(np.concatenate(blocks), array[1:6, 1:2])
    assert reads == [((6, 0), (2, 6)), ((8, 0), (2, 6)), ((10, 0), (1, 6))]
    assert list(tensor.slice((6, 0), (0, 6)).blocks()) == []


def test_a_scalar_is_a_tensor():
    tensor = ShardableTensor.from_array("t", np.array("text"))
    assert tensor.read((), ()) == "text"
    assert [block.item() for block in tensor.tensor.blocks()] == ["text"]


def test_a_slice_outside_is_refused():
    spec = SliceSpec((0, 1), (2, 3), (2, 5))
    tensor = ShardableTensor.from_array("t", np.zeros((2, 3)), slice_spec=spec)
    message = "slice [0:2, 0:2] must lie within [0:2, 1:4] of tensor 't'"
    for read in (tensor.slice, tensor.read):
        with pytest.raises(ShardcoreValueError, match=re.escape(message)):
            read((0, 0), (2, 2))


def test_arrays_that_are_no_tensor():
    with pytest.raises(ShardcoreTypeError, match="array must be a NumPy array, got list"):
        ShardableTensor.from_array("t", [1, 2])
    message = "array must have the shape (2, 3) of slice_spec, got (3, 2)"
    with pytest.raises(ShardcoreValueError, match=re.escape(message)):
        ShardableTensor.from_array("t", np.zeros((3, 2)), slice_spec=SliceSpec.whole((2, 3)))
