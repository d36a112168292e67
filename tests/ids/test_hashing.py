"""hash_ids against its definition in plain Python integers, and every error it raises."""

from __future__ import annotations

import hashlib
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
from shardcore.ids.hashing import hash_ids

WORD = 2**64 - 1
RULE = "ids must be an array or a sequence of integers, of str or of bytes"


def mixed(x: int, seed: int) -> int:
    z = (x + (seed + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def digested(word: str | bytes, seed: int) -> int:
    data = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word
    key = seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "little")


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
    ids=st.lists(st.text(st.characters(exclude_categories=())) | st.binary(), max_size=8),
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
        (([[1, 2], [3]], 8), ShardcoreTypeError, f"{RULE}, got ids[0] = [1, 2]"),
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
    with pytest.raises(error, match=re.escape(message)):
        hash_ids(*arguments)
