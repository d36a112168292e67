"""Which shards the policies make, with the numbers of TensorFlow's own tests.

There the object graph is one more tensor; here the manifest plays its part and is no tensor. Where
TensorFlow counts n shards with the graph in the last of them, there are n shards here too; where
the graph has a shard of its own, there is one less.
"""

from __future__ import annotations

import itertools
import logging
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.checkpoint import (
    MaxShardSizePolicy,
    ShardableTensor,
    ShardByTaskPolicy,
    SliceSpec,
    validate_shards,
)
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError


def tensors(**arrays):
    return [ShardableTensor.from_array(key, array) for key, array in arrays.items()]


def shards_of(policy, given):
    """Shards as {key: [(offset, values)]}, after they were validated."""
    shards = policy(given)
    validate_shards(shards, given, policy.description)
    return [
        {
            key: [(spec.offset, np.asarray(value).tolist()) for spec, value in slices.items()]
            for key, slices in shard.items()
        }
        for shard in shards
    ]


def one_d():
    return tensors(v0=np.arange(4, dtype="f4"), v1=np.arange(4, 8, dtype="i4").reshape(4, 1))


def two_d():
    return tensors(
        v0=np.arange(6, dtype="i4").reshape(3, 2), v1=np.arange(6, 12, dtype="f4").reshape(3, 2, 1)
    )


@pytest.mark.parametrize(("size", "step"), [(4, 1), (8, 2), (10, 2), (16, 4), (18, 4)])
def test_one_axis(size, step):
    starts = range(0, 4, step)
    expected = [{"v0": [((i,), [float(j) for j in range(i, i + step)])]} for i in starts]
    expected += [{"v1": [((i, 0), [[j] for j in range(4 + i, 4 + i + step)])]} for i in starts]
    assert shards_of(MaxShardSizePolicy(size), one_d()) == expected
    assert len(expected) == {4: 8, 8: 4, 10: 4, 16: 2, 18: 2}[size]


@pytest.mark.parametrize("size", [8, 10])
def test_two_axes_cut_into_rows(size):
    assert shards_of(MaxShardSizePolicy(size), two_d()) == [
        {"v0": [((0, 0), [[0, 1]])]},
        {"v0": [((1, 0), [[2, 3]])]},
        {"v0": [((2, 0), [[4, 5]])]},
        {"v1": [((0, 0, 0), [[[6], [7]]])]},
        {"v1": [((1, 0, 0), [[[8], [9]]])]},
        {"v1": [((2, 0, 0), [[[10], [11]]])]},
    ]


def test_two_axes_cut_into_columns():
    assert shards_of(MaxShardSizePolicy(12), two_d()) == [
        {"v0": [((0, 0), [[0], [2], [4]])]},
        {"v0": [((0, 1), [[1], [3], [5]])]},
        {"v1": [((0, 0, 0), [[[6]], [[8]], [[10]]])]},
        {"v1": [((0, 1, 0), [[[7]], [[9]], [[11]]])]},
    ]


def test_the_rest_of_one_tensor_shares_a_shard_with_the_next():
    assert shards_of(MaxShardSizePolicy(16), two_d()) == [
        {"v0": [((0, 0), [[0, 1], [2, 3]])]},
        {"v0": [((2, 0), [[4, 5]])], "v1": [((0, 0, 0), [[[6], [7]]])]},
        {"v1": [((1, 0, 0), [[[8], [9]], [[10], [11]]])]},
    ]


def test_strings_of_equal_length():
    given = tensors(s=np.array([c * 10 for c in "abcd"]))
    expected = [{"s": [((i,), [c * 10])]} for i, c in enumerate("abcd")]
    assert shards_of(MaxShardSizePolicy(10), given) == expected


def test_an_oversize_scalar_comes_last(caplog):
    given = tensors(s=np.array("a" * 10), x=np.zeros(1, "f4"))
    with caplog.at_level(logging.WARNING):
        shards = shards_of(MaxShardSizePolicy(8), given)
    assert shards == [{"x": [((0,), [0.0])]}, {"s": [((), "a" * 10)]}]
    assert [record.getMessage() for record in caplog.records] == [
        "tensor 's': 1 elements are larger than max_shard_size 8, each gets a larger shard of "
        "its own"
    ]


def test_a_scalar_that_does_not_fit_opens_a_shard():
    given = tensors(a=np.zeros(1, "f8"), b=np.array(1.0), c=np.array(2.0))
    assert [list(shard) for shard in MaxShardSizePolicy(16)(given)] == [["a", "b"], ["c"]]


def pre_sliced():
    spec = SliceSpec((0, 1), (2, 3), (2, 5))
    array = np.array([[1, 2, 3], [6, 7, 8]], "i4")
    return [ShardableTensor.from_array("v", array, slice_spec=spec)]


def test_a_slice_keeps_the_offsets_of_the_full_tensor():
    assert shards_of(MaxShardSizePolicy(8), pre_sliced()) == [
        {"v": [((0, 1), [[1], [6]])]},
        {"v": [((0, 2), [[2, 3]])]},
        {"v": [((1, 2), [[7, 8]])]},
    ]
    assert shards_of(MaxShardSizePolicy(12), pre_sliced()) == [
        {"v": [((0, 1), [[1, 2, 3]])]},
        {"v": [((1, 1), [[6, 7, 8]])]},
    ]
    assert shards_of(MaxShardSizePolicy(24), pre_sliced()) == [
        {"v": [((0, 1), [[1, 2, 3], [6, 7, 8]])]}
    ]
    (shard,) = MaxShardSizePolicy(24)(pre_sliced())
    assert list(shard["v"]) == [SliceSpec((0, 1), (2, 3), (2, 5))]


def test_by_task_there_is_one_shard():
    given = two_d() + pre_sliced()
    (shard,) = ShardByTaskPolicy()(given)
    validate_shards([shard], given, "by task")
    assert list(shard) == ["v0", "v1", "v"]
    assert ShardByTaskPolicy()([]) == []
    assert MaxShardSizePolicy(1)([]) == []


def test_by_task_keeps_two_slices_of_one_tensor():
    array = np.arange(4.0).reshape(2, 2)
    given = [
        ShardableTensor.from_array(
            "v", array[:, i : i + 1], slice_spec=SliceSpec((0, i), (2, 1), (2, 2))
        )
        for i in range(2)
    ]
    (shard,) = ShardByTaskPolicy()(given)
    validate_shards([shard], given, "by task")
    assert [spec.offset for spec in shard["v"]] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_c1_a_size_below_a_slice_or_an_element_ends(size, caplog):
    given = tensors(a=np.arange(6, dtype="f4").reshape(2, 3), s=np.array([["abcde", "f"]]))
    shards = shards_of(MaxShardSizePolicy(size), given)
    if size < 4:  # each float is larger
        assert shards == [
            {"s": [((0, 1), [["f"]])]},
            *({"a": [((i // 3, i % 3), [[float(i)]])]} for i in range(6)),
            {"s": [((0, 0), [["abcde"]])]},
        ]
        assert len(caplog.records) == 2
    else:
        pieces = [piece for shard in shards for piece in shard.get("a", [])]
        assert pieces == [((i // 3, i % 3), [[float(i)]]) for i in range(6)]
        assert len(caplog.records) == (size < 5)


def test_c1_slices_that_fit_no_shard_are_taken_apart_without_waste():
    given = tensors(a=np.arange(12, dtype="f4").reshape(4, 3))
    assert shards_of(MaxShardSizePolicy(8), given) == [
        {"a": [((0, 0), [[0.0, 1.0]])]},
        {"a": [((0, 2), [[2.0]]), ((1, 0), [[3.0]])]},
        {"a": [((1, 1), [[4.0, 5.0]])]},
        {"a": [((2, 0), [[6.0], [9.0]])]},  # the rest fits a shard in columns
        {"a": [((2, 1), [[7.0, 8.0]])]},
        {"a": [((3, 1), [[10.0, 11.0]])]},
    ]


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ShardcoreValueError, "max_shard_size must be an integer >= 1, got 0"),
        (-1, ShardcoreValueError, "max_shard_size must be an integer >= 1, got -1"),
        (True, ShardcoreTypeError, "max_shard_size must be an integer >= 1, got True"),
        (1e6, ShardcoreTypeError, "max_shard_size must be an integer >= 1, got 1000000.0"),
        ("1MB", ShardcoreTypeError, "max_shard_size must be an integer >= 1, got '1MB'"),
        (None, ShardcoreTypeError, "max_shard_size must be an integer >= 1, got None"),
    ],
)
def test_c1_sizes_that_are_refused(size, error, message):
    with pytest.raises(error, match=re.escape(message)):
        MaxShardSizePolicy(size)


def test_a_numpy_integer_is_a_size():
    assert MaxShardSizePolicy(np.int32(7)).max_shard_size == 7


def test_c2_tensors_without_elements_are_kept():
    given = tensors(
        first=np.zeros((0, 3)), a=np.arange(4, dtype="f4"), middle=np.zeros((2, 0), "U3"),
        b=np.zeros(4, "f4"), last=np.zeros(0, "i4"),
    )  # fmt: skip
    shards = shards_of(MaxShardSizePolicy(16), given)
    assert [list(shard) for shard in shards] == [["first", "a", "middle"], ["b", "last"]]
    assert [list(shard) for shard in MaxShardSizePolicy(1)(given[:1])] == [["first"]]


def test_c3_strings_are_sized_by_their_own_bytes():
    given = tensors(s=np.array(["a" * 10, "b", "cc", "d" * 7]))
    assert shards_of(MaxShardSizePolicy(10), given) == [
        {"s": [((0,), ["a" * 10])]},
        {"s": [((1,), ["b", "cc", "d" * 7])]},
    ]


def test_c3_bytes_of_text_are_those_of_utf8():
    given = tensors(s=np.array(["ä", "€", "x"], object))
    assert shards_of(MaxShardSizePolicy(5), given) == [
        {"s": [((0,), ["ä", "€"])]},
        {"s": [((2,), ["x"])]},
    ]


@pytest.mark.parametrize("dtype", ["U6", "S6", "T", "O"])
def test_c3_strings_of_two_axes(dtype):
    kind = np.dtypes.StringDType() if dtype == "T" else dtype
    words = [["a" * 4, "b"], ["c" * 2, "d" * 3], ["", "e" * 6]]
    if dtype == "S6":
        words = [[word.encode() for word in row] for row in words]
    given = tensors(s=np.array(words, kind))
    assert shards_of(MaxShardSizePolicy(10), given) == [
        {"s": [((0, 0), words[:2])]},
        {"s": [((2, 0), words[2:])]},
    ]
    assert shards_of(MaxShardSizePolicy(6), given) == [
        {"s": [((0, 0), [[row[0]] for row in words])]},
        {"s": [((0, 1), [[words[0][1]], [words[1][1]]])]},
        {"s": [((2, 1), [[words[2][1]]])]},
    ]


def test_c3_one_long_string_does_not_spoil_the_others(caplog):
    given = tensors(s=np.array(["a", "b" * 50, "cc", "d"]))
    assert shards_of(MaxShardSizePolicy(10), given) == [
        {"s": [((0,), ["a"]), ((2,), ["cc", "d"])]},
        {"s": [((1,), ["b" * 50])]},
    ]
    assert len(caplog.records) == 1


def test_c4_cuts_that_change_axes_are_few_and_known():
    given = tensors(a=np.arange(15, dtype="f4").reshape(3, 5))
    assert [spec.shape for spec, _ in pieces(16, given)] == [(3, 1), (1, 4), (1, 4), (1, 4)]
    given = tensors(a=np.arange(8, dtype="f4").reshape(2, 4))
    assert [spec.shape for spec, _ in pieces(8, given)] == [(2, 1), (2, 1), (1, 2), (1, 2)]
    # As many slices as fit are one piece, not an even share and the rest of the room as another.
    given = tensors(a=np.arange(9, dtype="f4"))
    assert [spec.shape for spec, _ in pieces(16, given)] == [(4,), (4,), (1,)]


def pieces(size, given):
    return [
        item
        for shard in MaxShardSizePolicy(size)(given)
        for slices in shard.values()
        for item in slices.items()
    ]


def test_a_table_is_cut_without_being_read():
    def read(box):
        raise AssertionError("was read")

    rows = 10**9
    table = ShardableTensor("t", SliceSpec.whole((rows, 64)), np.dtype("f4"), 0, read)
    shards = MaxShardSizePolicy(1 << 30)([table])
    validate_shards(shards, [table], "1 GiB")
    assert len(shards) == -(-rows * 256 >> 30)
    assert max(piece.nbytes for _, piece in pieces(1 << 30, [table])) == 1 << 30


def test_many_strings():
    words = np.array([str(i) for i in range(50_000)], object)
    shards = MaxShardSizePolicy(1000)(tensors(s=words))
    totals = [sum(map(len, np.asarray(part))) for shard in shards for part in shard["s"].values()]
    assert sum(totals) == sum(map(len, words))
    assert all(995 < total <= 1000 for total in totals[:-1])


@st.composite
def given_tensors(draw):
    found = []
    for index in range(draw(st.integers(1, 4))):
        full = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        offset = tuple(draw(st.integers(0, size)) for size in full)
        shape = tuple(
            draw(st.integers(0, size - start)) for size, start in zip(full, offset, strict=True)
        )
        spec = SliceSpec(offset, shape, full)
        count = int(np.prod(shape))
        if draw(st.booleans()):
            array = np.arange(count, dtype=draw(st.sampled_from(["u1", "f4", "f8"])))
        else:
            lengths = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
            array = np.array(["x" * length for length in lengths], object)
        found.append(ShardableTensor.from_array(f"t{index}", array.reshape(shape), slice_spec=spec))
    return found


def element_bytes(tensor):
    values = np.asarray(tensor.tensor)
    if values.dtype == object:
        return np.array([len(word) for word in values.reshape(-1)], int).reshape(values.shape)
    return np.full(values.shape, values.itemsize)


@settings(max_examples=150, deadline=None)
@given(given=given_tensors(), size=st.integers(1, 60))
def test_each_element_is_in_exactly_one_shard_of_no_more_than_the_size(given, size):
    shards = MaxShardSizePolicy(size)(given)
    validate_shards(shards, given, "fuzz")
    by_key = {tensor.checkpoint_key: tensor for tensor in given}
    sizes = {key: element_bytes(tensor) for key, tensor in by_key.items()}
    seen = {key: np.zeros(tensor.shape, int) for key, tensor in by_key.items()}
    oversize = []
    for shard in shards:
        total = elements = 0
        for key, slices in shard.items():
            origin = by_key[key].slice_spec.offset
            for spec, value in slices.items():
                at = tuple(
                    slice(o - s, o - s + n)
                    for o, s, n in zip(spec.offset, origin, spec.shape, strict=True)
                )
                seen[key][at] += 1
                total += int(sizes[key][at].sum())
                elements += value.slice_spec.box.size
        assert total <= size or elements == 1
        oversize.append(total > size)
    assert all((counts == 1).all() for counts in seen.values())
    assert oversize == sorted(oversize)  # those of one element come last
    kept = {key for shard in shards for key in shard}
    assert kept == set(by_key)
    again = MaxShardSizePolicy(size)(given)
    assert [{key: list(s) for key, s in shard.items()} for shard in again] == [
        {key: list(s) for key, s in shard.items()} for shard in shards
    ]


@settings(max_examples=60, deadline=None)
@given(given=given_tensors(), size=st.integers(1, 60))
def test_no_two_neighbours_could_have_been_one_shard(given, size):
    shards = MaxShardSizePolicy(size)(given)

    def total(shard):
        by_key = {tensor.checkpoint_key: tensor for tensor in given}
        bytes_of = 0
        for key, slices in shard.items():
            for value in slices.values():
                values = np.asarray(value).reshape(-1)
                one = by_key[key].dtype.itemsize
                bytes_of += sum(map(len, values)) if values.dtype == object else values.size * one
        return bytes_of

    # A shard may hold nothing but empty strings: what follows a full one begins anew.
    totals = [total(shard) for shard in shards if total(shard)]
    for left, right in itertools.pairwise(totals):
        assert left + right > size
