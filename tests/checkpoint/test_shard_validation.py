"""Every way in which a sharding callback can misbehave is told, and nothing is written then."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.checkpoint import (
    Checkpoint,
    ShardableTensor,
    ShardingCallback,
    SliceSpec,
    TensorSlice,
    validate_shards,
)
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError


def spec(offset, shape, full=(4,)):
    return SliceSpec(offset, shape, full)


class Scripted(ShardingCallback):
    """Returns what `script` makes of the tensors it is given."""

    description = "scripted"

    def __init__(self, script):
        self.script = script

    def __call__(self, shardable_tensors):
        return self.script(*shardable_tensors)


def whole(*tensors):
    return {t.checkpoint_key: {t.slice_spec: t.tensor} for t in tensors}


A, S = SliceSpec.whole((4,)), SliceSpec.whole(())
OTHER = ShardableTensor.from_array("a", np.zeros(4, np.float32))
FAR = ShardableTensor.from_array("a", np.zeros(4, np.float32), host=3)

# Given are "a", float32 of (4,), "e", float64 of (0, 2), and "s", a scalar string.
MISBEHAVIOURS = {
    "nothing": (lambda a, e, s: None, "must return a list of shards, got NoneType"),
    "a shard, no list": (lambda a, e, s: whole(a, e, s), "must return a list of shards, got dict"),
    "a list of lists": (
        lambda a, e, s: [[a]],
        "shards[0] must map checkpoint keys to slices, got list",
    ),
    "no slices": (
        lambda a, e, s: [{"a": a.tensor}],
        "shards[0], tensor 'a' must map slices to values, got TensorSlice",
    ),
    "empty slices": (lambda a, e, s: [{"a": {}}], "shards[0], tensor 'a' has no slices"),
    "empty shard": (lambda a, e, s: [whole(a, e, s), {}], "shards[1] is empty"),
    "text for a slice": (
        lambda a, e, s: [{"a": {"4 0,4": a.tensor}}],
        "shards[0], tensor 'a', slice '4 0,4' must be a SliceSpec, got str",
    ),
    "duplicate": (
        lambda a, e, s: [whole(a, e, s), whole(a)],
        "shards[1], tensor 'a', slice [0:4] of (4,) is in shards[0] already",
    ),
    "duplicate scalar": (
        lambda a, e, s: [whole(a, e, s), whole(s)],
        "shards[1], tensor 's', slice [] of () is in shards[0] already",
    ),
    "overlap": (
        lambda a, e, s: [
            {"a": {p.slice_spec: p}} for p in (a.slice((0,), (3,)), a.slice((2,), (2,)))
        ],
        "tensor 'a', slice [0:4] of (4,) is saved twice in part: [0:3] and [2:4] overlap",
    ),
    "added": (
        lambda a, e, s: [{**whole(a, e, s), "b": {A: a.tensor}}],
        "shards[0], tensor 'b', slice [0:4] of (4,) was not given",
    ),
    "removed": (
        lambda a, e, s: [whole(e, s)],
        "tensor 'a', slice [0:4] of (4,) is missing from the shards",
    ),
    "all removed": (
        lambda a, e, s: [],
        "tensor 'a', slice [0:4] of (4,) is missing from the shards",
    ),
    "removed without elements": (
        lambda a, e, s: [whole(a, s)],
        "tensor 'e', slice [0:0, 0:2] of (0, 2) is missing from the shards",
    ),
    "split without elements": (
        lambda a, e, s: [
            {**whole(a, s), "e": {(p := e.slice((0, i), (0, 1))).slice_spec: p for i in (0, 1)}}
        ],
        "tensor 'e', slice [0:0, 0:2] of (0, 2) has no elements and must be kept whole",
    ),
    "gap": (
        lambda a, e, s: [
            {"a": {(p := a.slice((i,), (1,))).slice_spec: p for i in (0, 1, 3)}, **whole(e, s)}
        ],
        "tensor 'a', slice [0:4] of (4,) is not saved in full: 3 of 4 elements are",
    ),
    "altered full shape": (
        lambda a, e, s: [{"a": {spec((0,), (4,), (5,)): a.tensor}}],
        "shards[0], tensor 'a', slice [0:4] of (5,) has another full shape than the tensor's (4,)",
    ),
    "altered shape": (
        lambda a, e, s: [{"a": {A: np.zeros((4, 1), np.float32)}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) has values of shape (4, 1)",
    ),
    "altered shape of a scalar": (
        lambda a, e, s: [{"s": {S: np.asarray(s.tensor).reshape(1)}}],
        "shards[0], tensor 's', slice [] of () has values of shape (1,)",
    ),
    "altered dtype": (
        lambda a, e, s: [{"a": {A: np.asarray(a.tensor, np.int32)}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) has dtype int32, was float32",
    ),
    "altered host": (
        lambda a, e, s: [{"a": {A: FAR.tensor}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) comes from host 3, was of host 0",
    ),
    "another slice's values": (
        lambda a, e, s: [{"a": {spec((0,), (2,)): a.slice((2,), (2,))}}],
        "shards[0], tensor 'a', slice [0:2] of (4,) has the values of tensor 'a', "
        "slice [2:4] of (4,)",
    ),
    "values of an earlier save": (
        lambda a, e, s: [{"a": {A: OTHER.tensor}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) has the values of a tensor that was not given",
    ),
    "no array": (
        lambda a, e, s: [{"a": {A: [0.0] * 4}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) must be a TensorSlice or a NumPy array, "
        "got list",
    ),
    "the tensor, not its values": (
        lambda a, e, s: [{"a": {A: a}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) must be a TensorSlice or a NumPy array, "
        "got ShardableTensor",
    ),
    "masked": (
        lambda a, e, s: [{"a": {A: np.ma.zeros(4, np.float32)}}],
        "shards[0], tensor 'a', slice [0:4] of (4,) must be a TensorSlice or a NumPy array, "
        "got MaskedArray",
    ),
}


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_c5_a_callback_that_misbehaves_leaves_nothing(tmp_path, name):
    script, problem = MISBEHAVIOURS[name]
    objects = {
        "a": np.arange(4, dtype=np.float32), "e": np.zeros((0, 2)), "s": np.array("text"),
    }  # fmt: skip
    checkpoint = Checkpoint(**objects)
    before = checkpoint.save(tmp_path, 1)
    content = {file.name: file.read_bytes() for file in before.iterdir()}
    message = f"sharding callback 'scripted': {problem}"
    with pytest.raises(ShardcoreRuntimeError, match=f"^{re.escape(message)}$"):
        checkpoint.save(tmp_path, 2, sharding_callback=Scripted(script))
    assert os.listdir(tmp_path) == ["step-00000001"]
    assert {file.name: file.read_bytes() for file in before.iterdir()} == content
    given = [ShardableTensor.from_array(key, array) for key, array in objects.items()]
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        validate_shards(script(*given), given, "scripted")


def test_two_hosts_in_one_shard():
    given = [
        ShardableTensor.from_array(key, np.zeros(2), host=host)
        for key, host in (("a", 0), ("b", 1))
    ]
    message = (
        "sharding callback 'd': shards[0], tensor 'b', slice [0:2] of (2,) is of host 1, "
        "the shard holds slices of host 0"
    )
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        validate_shards([whole(*given)], given, "d")
    validate_shards([whole(tensor) for tensor in given], given, "d")


def test_a_part_must_lie_within_one_slice_that_was_given():
    array = np.arange(6.0)
    given = [
        ShardableTensor.from_array("a", array[i : i + 2], slice_spec=spec((i,), (2,), (6,)))
        for i in (0, 4)
    ]
    message = (
        "sharding callback 'd': shards[0], tensor 'a', slice [1:3] of (6,) does not lie within a "
        "slice that was given: [0:2], [4:6]"
    )
    with pytest.raises(ShardcoreRuntimeError, match=re.escape(message)):
        validate_shards([{"a": {spec((1,), (2,), (6,)): array[1:3]}}], given, "d")


def test_c6_an_unknown_slice_and_a_scalar_are_no_key_error():
    scalar = ShardableTensor.from_array("s", np.array(1.0))
    validate_shards([whole(scalar)], [scalar], "d")
    validate_shards([{"s": {SliceSpec((), (), ()): np.float64(2)}}], [scalar], "d")
    table = ShardableTensor.from_array("a", np.zeros(4))
    with pytest.raises(ShardcoreRuntimeError, match=re.escape("slice [0:1] of (9,) has another")):
        validate_shards([{"a": {spec((0,), (1,), (9,)): np.zeros(1)}}], [table], "d")


def test_a_forged_lazy_slice_is_compared_with_its_place():
    table = ShardableTensor.from_array("a", np.zeros(4))
    other = ShardableTensor.from_array("b", np.zeros(4))
    forged = TensorSlice(other, A)
    with pytest.raises(ShardcoreRuntimeError, match="has the values of tensor 'b', slice"):
        validate_shards([{"a": {A: forged}}, whole(other)], [table, other], "d")


def test_pieces_without_elements_beside_full_ones_are_accepted(tmp_path):
    def script(a):
        cuts = [(0, 2), (2, 0), (2, 2)]
        return [{"a": {(p := a.slice((at,), (n,))).slice_spec: p}} for at, n in cuts]

    array = np.arange(4.0)
    path = Checkpoint(a=array).save(tmp_path, 1, sharding_callback=Scripted(script))
    assert len(list(path.glob("shard-*"))) == 3
    target = np.zeros(4)
    Checkpoint(a=target).restore(path)
    np.testing.assert_array_equal(target, array)


@st.composite
def tilings(draw):
    """Return a shape and boxes that cover it exactly, cut anywhere."""
    full = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes = [((0,) * len(full), full)]
    for _ in range(draw(st.integers(0, 6))):
        offset, shape = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(full) - 1))
        cut = draw(st.integers(0, shape[axis]))
        low, high = list(shape), list(shape)
        low[axis], high[axis] = cut, shape[axis] - cut
        moved = list(offset)
        moved[axis] += cut
        boxes += [(offset, tuple(low)), (tuple(moved), tuple(high))]
    return full, list(dict.fromkeys(boxes))


@settings(max_examples=120, deadline=None)
@given(tiling=tilings(), data=st.data())
def test_any_exact_cover_is_accepted_and_any_other_refused(tiling, data):
    full, boxes = tiling
    tensor = ShardableTensor.from_array("a", np.zeros(full, np.int8))
    parts = [tensor.slice(*box) for box in boxes]
    validate_shards([{"a": {part.slice_spec: part}} for part in parts], [tensor], "d")
    solid = [part for part in parts if part.slice_spec.box.size]
    removed = data.draw(st.sampled_from(solid))
    kept = [part for part in parts if part is not removed]
    problem = "is not saved in full" if len(solid) > 1 or kept else "is missing from the shards"
    with pytest.raises(ShardcoreRuntimeError, match=problem):
        validate_shards([{"a": {part.slice_spec: part}} for part in kept], [tensor], "d")
    at = data.draw(st.integers(0, removed.slice_spec.box.size - 1))
    index = np.unravel_index(at, removed.shape)
    offset = tuple(int(i) + o for i, o in zip(index, removed.slice_spec.offset, strict=True))
    twice = tensor.slice(offset, (1,) * len(full))
    with pytest.raises(ShardcoreRuntimeError, match=r"overlap$|already$"):
        validate_shards([{"a": {p.slice_spec: p}} for p in (*parts, twice)], [tensor], "d")


class Numbered(ShardingCallback):
    def __init__(self, description):
        self._description = description

    @property
    def description(self):
        return self._description

    def __call__(self, shardable_tensors):
        return [whole(*shardable_tensors)]


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            Numbered,
            "sharding_callback must be an instance of ShardingCallback or None, got <class ",
        ),
        (
            whole,
            "sharding_callback must be an instance of ShardingCallback or None, got <function ",
        ),
        (Numbered(3), "description of sharding_callback must be a string, got int"),
    ],
)
def test_what_is_no_callback(tmp_path, callback, message):
    with pytest.raises(ShardcoreTypeError, match=re.escape(message)):
        Checkpoint(a=np.zeros(2)).save(tmp_path / "root", 1, sharding_callback=callback)
    assert not (tmp_path / "root").exists()


def test_an_error_of_the_callback_passes(tmp_path):
    def script(a):
        raise ZeroDivisionError("its own")

    with pytest.raises(ZeroDivisionError, match="its own"):
        Checkpoint(a=np.zeros(2)).save(tmp_path / "root", 1, sharding_callback=Scripted(script))
    assert not (tmp_path / "root").exists()
