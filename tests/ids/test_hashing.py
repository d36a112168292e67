"""Hash and hash_ids against their definition in plain Python, and every error they raise."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.hashing import Hash, hash_ids
from shardcore.ids.ragged import Ragged
from shardcore.reference.hashing import farmhash64, xxh64

WORD = 2**64 - 1
RULE = "ids must be an array or a sequence of integers, of str or of bytes"


def mixed(x: int, seed: int) -> int:
    z = (x + (seed + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def digested(word: str | bytes, seed: int) -> int:
    return xxh64(word.encode() if isinstance(word, str) else word, seed)


def test_integers_are_mixed_as_splitmix64_published():
    # first three outputs of splitmix64.c from state 0
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    for seed, expected in enumerate(published):
        assert mixed(0, seed) == expected
        assert hash_ids([0], 2**63 - 1, seed).tolist() == [expected % (2**63 - 1)]


@settings(max_examples=60, deadline=None)
@given(
    ids=hnp.arrays(
        st.sampled_from(["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", ">i4"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    buckets=st.integers(1, 2**63 - 1),
    seed=st.integers(0, WORD),
)
def test_integers_equal_the_definition(ids: Any, buckets: int, seed: int):
    hashed = hash_ids(ids, buckets, seed)
    assert hashed.dtype == np.int64
    assert hashed.shape == ids.shape
    assert hashed.ravel().tolist() == [mixed(x, seed) % buckets for x in ids.ravel().tolist()]


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.text(st.characters(exclude_categories=("Cs",))) | st.binary(), max_size=8),
    buckets=st.integers(1, 2**63 - 1),
    seed=st.integers(0, WORD),
)
def test_strings_equal_the_definition(ids: list[str | bytes], buckets: int, seed: int):
    hashed = hash_ids(ids, buckets, seed)
    assert hashed.dtype == np.int64
    assert hashed.tolist() == [digested(word, seed) % buckets for word in ids]


def test_the_value_counts_and_not_how_it_is_held():
    expected = hash_ids(np.array([-1, 5]), 1000)
    for other in ([-1, 5], (np.int8(-1), 5), np.array([-1, 5], np.int8), np.array([-1, 5], object)):
        np.testing.assert_array_equal(hash_ids(other, 1000), expected)
    large = [2**64 - 1, 2**63]
    np.testing.assert_array_equal(hash_ids(large, 1000), hash_ids(np.array(large, np.uint64), 1000))
    assert hash_ids(5, 1000) == expected[1]
    assert hash_ids(np.int16(5), 1000).shape == ()
    words = hash_ids(["a", "b\0", "é"], 1000)
    np.testing.assert_array_equal(hash_ids([b"a", b"b\0", "é".encode()], 1000), words)
    np.testing.assert_array_equal(hash_ids(np.array(["a", "é"]), 1000), words[[0, 2]])
    np.testing.assert_array_equal(hash_ids(np.array([b"a"]), 1000), words[:1])
    np.testing.assert_array_equal(
        hash_ids(np.array(["a", "b\0"], np.dtypes.StringDType()), 1000), words[:2]
    )
    np.testing.assert_array_equal(hash_ids([["a", "é"], ["é", "a"]], 1000), words[[[0, 2], [2, 0]]])


def test_no_ids_give_no_rows():
    for empty in ([], (), np.array([], np.int32), np.array([], "U3"), np.zeros((0, 4), np.uint8)):
        hashed = hash_ids(empty, 10)
        assert hashed.dtype == np.int64
        assert hashed.shape == np.shape(empty)


def test_another_process_agrees():
    program = (
        "from shardcore.ids.hashing import hash_ids; print(hash_ids(['row', 'shard'], 10**9, 3))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == str(hash_ids(["row", "shard"], 10**9, 3))


def test_rows_are_evenly_used():
    for ids in (np.arange(64_000), [str(number) for number in range(64_000)]):
        counts = np.bincount(hash_ids(ids, 64), minlength=64)
        # 63 degrees of freedom: mean 63, deviation 11.2
        assert ((counts - 1000) ** 2 / 1000).sum() < 63 + 6 * 11.2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1], 0), ShardcoreValueError, "buckets must be in [1, 2**63), got 0"),
        (([1], 2**63), ShardcoreValueError, f"buckets must be in [1, 2**63), got {2**63}"),
        (([1], 8.0), ShardcoreTypeError, "buckets must be an integer, got 8.0"),
        (([1], True), ShardcoreTypeError, "buckets must be an integer, got True"),
        (([1], 8, -1), ShardcoreValueError, "seed must be in [0, 2**64), got -1"),
        (([1], 8, 2**64), ShardcoreValueError, f"seed must be in [0, 2**64), got {2**64}"),
        (([1], 8, None), ShardcoreTypeError, "seed must be an integer, got None"),
        (("word", 8), ShardcoreTypeError, f"{RULE}, got the str 'word'"),
        ((b"word", 8), ShardcoreTypeError, f"{RULE}, got the bytes b'word'"),
        ((np.zeros(2), 8), ShardcoreTypeError, f"{RULE}, got dtype float64"),
        ((np.zeros(2, bool), 8), ShardcoreTypeError, f"{RULE}, got dtype bool"),
        (([1, 2.5], 8), ShardcoreTypeError, f"{RULE}, got ids[1] = 2.5"),
        (([1, True], 8), ShardcoreTypeError, f"{RULE}, got ids[1] = True"),
        (([None], 8), ShardcoreTypeError, f"{RULE}, got ids[0] = None"),
        (([["a", "b"], ["c", 3]], 8), ShardcoreTypeError, f"{RULE}, got ids[1, 1] = 3"),
        (([[1, 2], 3], 8), ShardcoreTypeError, f"{RULE}, got ids[0] = [1, 2]"),
        (([3, [1, 2]], 8), ShardcoreTypeError, f"{RULE}, got ids[1] = [1, 2]"),
        (([["a"], ["b", 3]], 8), ShardcoreTypeError, f"{RULE}, got ids[1][1] = 3"),
        (([["a"], [], ["b", None]], 8), ShardcoreTypeError, f"{RULE}, got ids[2][1] = None"),
        (([["a"], [["b"]]], 8), ShardcoreTypeError, f"{RULE}, got ids[1, 0] = ['b']"),
        ((["a", float("nan")], 8), ShardcoreTypeError, f"{RULE}, got ids[1] = nan"),
        ((np.array(["a", None]), 8), ShardcoreTypeError, f"{RULE}, got ids[1] = None"),
        (
            ([["a"], np.array([65, 0x110000], np.uint32).view("U1")], 8),
            ShardcoreValueError,
            "ids[1] must be valid Unicode: ",
        ),
        (
            (bytearray(b"word"), 8),
            ShardcoreTypeError,
            f"{RULE}, got the bytearray bytearray(b'word')",
        ),
        ((Ragged([0.5], [0, 1]), 8), ShardcoreTypeError, f"{RULE}, got dtype float64"),
        (
            (["a", "é\ud800"], 8),
            ShardcoreValueError,
            "ids must be valid Unicode, got ids[1] = 'é\\ud800', whose position 1 is none",
        ),
        (
            (np.array([["a", "\udfff"]]), 8),
            ShardcoreValueError,
            "ids must be valid Unicode, got ids[0, 1], which has no UTF-8",
        ),
        (
            (np.array([65, 0x110000], np.uint32).view("U1"), 8),
            ShardcoreValueError,
            "ids must be valid Unicode, got ids[1], which has no UTF-8",
        ),
        ((None, 8), ShardcoreTypeError, f"{RULE}, got ids = None"),
        (
            ([np.zeros((2, 1)), np.zeros((2, 2))], 8),
            ShardcoreValueError,
            "ids must form one rectangular array: ",
        ),
        (
            ([0, 2**64], 8),
            ShardcoreValueError,
            f"ids must fit into 64 bits, got ids[1] = {2**64}",
        ),
        (
            ([-(2**63) - 1], 8),
            ShardcoreValueError,
            f"ids must fit into 64 bits, got ids[0] = {-(2**63) - 1}",
        ),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(
    arguments: tuple[Any, ...], error: type[Exception], message: str
):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        hash_ids(*arguments)
    if "ids" in message:
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            Hash(8)(arguments[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"buckets": 0}, ShardcoreValueError, "buckets must be in [1, 2**63), got 0"),
        ({"buckets": -3}, ShardcoreValueError, "buckets must be in [1, 2**63), got -3"),
        ({"buckets": 2**63}, ShardcoreValueError, f"buckets must be in [1, 2**63), got {2**63}"),
        ({"buckets": 8.0}, ShardcoreTypeError, "buckets must be an integer, got 8.0"),
        ({"buckets": True}, ShardcoreTypeError, "buckets must be an integer, got True"),
        ({"buckets": "8"}, ShardcoreTypeError, "buckets must be an integer, got '8'"),
        ({"seed": -1}, ShardcoreValueError, "seed must be in [0, 2**64), got -1"),
        ({"seed": 2**64}, ShardcoreValueError, f"seed must be in [0, 2**64), got {2**64}"),
        ({"seed": None}, ShardcoreTypeError, "seed must be an integer, got None"),
        ({"kind": "md5"}, ShardcoreValueError,
         "kind must be one of 'xxh64', 'farmhash64', got 'md5'"),
        ({"kind": None}, ShardcoreTypeError, "kind must be one of 'xxh64', 'farmhash64', got None"),
        ({"kind": "farmhash64", "seed": 3}, ShardcoreValueError,
         "seed must be 0: kind='farmhash64' has none, got 3"),
    ],
)  # fmt: skip
def test_a_hash_refuses_what_breaks_a_rule(
    arguments: dict[str, Any], error: type[Exception], message: str
):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        Hash(**{"buckets": 8, **arguments})


def test_a_hash_is_a_value():
    one, same = Hash(np.int64(1000), np.uint8(3)), Hash(1000, seed=3, kind="xxh64")
    assert one == same
    assert type(one.buckets) is type(one.seed) is int
    assert len({one, same}) == 1
    others = {Hash(1001, 3), Hash(1000, 4), Hash(1000), Hash(1000, kind="farmhash64")}
    assert one not in others
    assert len(others) == 4
    for function in (one, *others):
        for copied in (copy.deepcopy(function), pickle.loads(pickle.dumps(function))):
            assert copied == function
        assert eval(repr(function)) == function
    assert repr(Hash(1000)) == "Hash(1000)"
    assert repr(one) == "Hash(1000, seed=3)"
    assert repr(Hash(7, kind="farmhash64")) == "Hash(7, kind='farmhash64')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.seed = 4


@settings(max_examples=60, deadline=None)
@given(
    bags=st.lists(st.lists(st.text("aé\u4e00\U0001f600", max_size=20), max_size=4), max_size=5),
    seed=st.integers(0, WORD),
    kind=st.sampled_from(["xxh64", "farmhash64"]),
)
def test_bags_of_any_lengths_are_hashed(bags: list[list[str]], seed: int, kind: Any):
    function = Hash(1000, 0 if kind == "farmhash64" else seed, kind)
    expected = [
        [
            (xxh64(word.encode(), seed) if kind == "xxh64" else farmhash64(word.encode())) % 1000
            for word in bag
        ]
        for bag in bags
    ]
    for given_bags in (
        bags,
        tuple(map(tuple, bags)),
        [np.array(bag, object) for bag in bags],
        [np.array(bag, np.dtypes.StringDType()) for bag in bags],
    ):
        found = function(given_bags)
        assert (found.to_lists() if isinstance(found, Ragged) else found.tolist()) == expected
        lengths = set(map(len, bags))
        assert isinstance(found, Ragged) == (len(lengths) > 1)
        if len(lengths) == 1:
            assert found.shape == (len(bags), *lengths)


def test_a_ragged_keeps_its_bags_and_weights():
    found = Hash(1000)(Ragged([7, 8, 7], [0, 2, 2, 3], [0.5, 1.0, 2.0]))
    assert found == Ragged([487, 622, 487], [0, 2, 2, 3], [0.5, 1.0, 2.0])


CHANGED_MEANWHILE = """
import sys, threading, time
from shardcore.ids.hashing import Hash
from shardcore.ids.ragged import Ragged

sys.setswitchinterval(1e-6)
rows_of = Hash(2**62)
COUNT = 300

def fresh(kind):
    return [f"{kind} {at} " * 40 for at in range(COUNT)]

both = [rows_of(fresh(kind)).tolist() for kind in ("one", "two")]
allowed = list(map(set, zip(*both)))
words, stop = fresh("one"), threading.Event()
bags = [words] * 20

def change():
    kinds = 0
    while not stop.is_set():
        kinds += 1
        made = fresh("two" if kinds % 2 else "one")
        words[:] = made[: COUNT // 2] if kinds % 3 else made  # frees what was there

thread = threading.Thread(target=change)
thread.start()
end, calls = time.monotonic() + 1.0, 0
try:
    while time.monotonic() < end:
        if calls % 8:
            lists = [rows_of(words).tolist()]
        else:
            lists = rows_of(bags)  # ragged, where they were changed in between
            lists = lists.to_lists() if isinstance(lists, Ragged) else lists.tolist()
        for found in lists:
            assert len(found) in (COUNT, COUNT // 2)
            assert all(row in rows for row, rows in zip(found, allowed)), "a row of no word"
        calls += 1
finally:
    stop.set()
    thread.join()
assert calls
print("right")
"""


@pytest.mark.slow
def test_a_list_may_be_changed_while_it_is_read():
    done = subprocess.run(
        [sys.executable, "-c", CHANGED_MEANWHILE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


def test_a_str_does_not_grow_by_being_hashed():
    """PyUnicode_AsUTF8AndSize would leave the UTF-8 in each str, for as long as it lives."""
    words = ["é" * 1000, "\u4e00" * 1000, "\U0001f600" * 1000]
    before = [sys.getsizeof(word) for word in words]
    hash_ids(words, 8)
    assert [sys.getsizeof(word) for word in words] == before
    ctypes.pythonapi.PyUnicode_AsUTF8AndSize(ctypes.py_object(words[0]), None)
    assert sys.getsizeof(words[0]) > before[0]


def test_arrays_that_are_not_aligned_or_have_no_width():
    aligned = np.array([7, 8], np.int64)
    unaligned = np.frombuffer(b"x" + aligned.tobytes(), np.uint8)[1:].view(np.int64)
    assert not unaligned.flags.aligned
    np.testing.assert_array_equal(hash_ids(unaligned, 1000), [487, 622])
    np.testing.assert_array_equal(hash_ids(aligned[::-1].astype(">i8"), 1000), [622, 487])
    no_width = np.ndarray(2, np.dtype("U0"), b"")
    assert no_width.dtype.itemsize == 0
    np.testing.assert_array_equal(hash_ids(no_width, 1000), hash_ids(["", ""], 1000))


def test_farmhash64_refuses_integers():
    function = Hash(8, kind="farmhash64")
    rest = "; TensorFlow hashes the digits of integers: give str(id)"
    for ids, got in (
        ([3, 4], "ids[0] = 3"),
        (np.array([3], np.uint8), "dtype uint8"),
        (Ragged([3], [0, 1]), "dtype int64"),
    ):
        text = f"ids must be str or bytes for kind='farmhash64', got {got}{rest}"
        with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
            function(ids)
    assert function([]).tolist() == []
