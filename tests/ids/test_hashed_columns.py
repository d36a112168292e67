"""Arrow columns of strings: every layout gives the rows of the strings, and nulls by policy."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.formats import as_ragged
from shardcore.ids.hashing import Hash
from shardcore.ids.ragged import Ragged
from shardcore.reference.hashing import farmhash64, xxh64

PATH = "features['words']"
ROW = 3
HASHES = st.sampled_from([Hash(1000), Hash(2**63 - 1, seed=9), Hash(77, kind="farmhash64")])
WORDS = st.text("aé\u4e00\U0001f600", max_size=20) | st.sampled_from(["user:7", "x" * 40, ""])
TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(),
         pa.binary_view()]  # fmt: skip


class Stream:
    """A column of some library that is not pyarrow, in chunks."""

    def __init__(self, column):
        self.column = column

    def __arrow_c_stream__(self, requested_schema=None):
        return self.column.__arrow_c_stream__(requested_schema)


def row_of(word, function):
    data = word.encode() if isinstance(word, str) else word
    hashed = xxh64(data, function.seed) if function.kind == "xxh64" else farmhash64(data)
    return hashed % function.buckets


def expected(bags, nulls, function):
    """Return what bags with nulls come to, in plain Python."""
    rows = [[None if word is None else row_of(word, function) for word in bag] for bag in bags]
    if nulls == "drop":
        return [[row for row in bag if row is not None] for bag in rows]
    return [[nulls if row is None else row for row in bag] for bag in rows]


def layouts(words):
    """Return a column of words in every layout that there is for it."""
    found = {}
    for kind in TYPES:
        array = pa.array(words, kind)
        around = [pa.array(["before", None], kind), array, pa.array(["y" * 30], kind)]
        found[f"{kind}"] = array
        found[f"{kind} slice"] = pa.concat_arrays(around).slice(2, len(words))
        found[f"{kind} chunks"] = pa.chunked_array([array[:1], array[1:1], array[1:]])
        found[f"{kind} of another library"] = Stream(pa.chunked_array([array[:2], array[2:]]))
    plain = found["string"]
    codes = plain.dictionary_encode()
    found["dictionary"] = codes
    found["dictionary slice"] = pa.concat_arrays([codes[:1], codes])[len(codes[:1]) :]
    found["dictionaries in chunks"] = pa.chunked_array(
        [plain[:1].dictionary_encode(), plain[1:].dictionary_encode()]
    )
    kept = [word for word in words if word is not None]
    places = pa.array([None if word is None else kept.index(word) for word in words], pa.int8())
    views = pa.array([*kept, "unused"], pa.string_view())
    found["dictionary of views"] = pa.DictionaryArray.from_arrays(places, views)
    with_null = pa.array([*kept, None], pa.string())
    places = pa.array([len(kept) if w is None else kept.index(w) for w in words], pa.int64())
    found["null in a dictionary"] = pa.DictionaryArray.from_arrays(places, with_null)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS | st.none(), max_size=6), HASHES)
def test_every_layout_gives_the_rows_of_its_words(words, function):
    for name, leaf in layouts(words).items():
        for nulls in ("drop", ROW):
            ragged, shape = as_ragged(leaf, PATH, nulls, function)
            assert ragged.to_lists() == expected([[w] for w in words], nulls, function), name
            assert shape == (len(words),)
            assert ragged.values.dtype == np.int64
        if None not in words:
            rows = function(leaf)
            assert rows.tolist() == [row_of(word, function) for word in words], name


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(WORDS | st.none(), max_size=3) | st.none(), max_size=5), HASHES)
def test_lists_are_bags(bags, function):
    plain = [bag or [] for bag in bags]
    for kind in (*TYPES, pa.dictionary(pa.int32(), pa.string())):
        for listed in (pa.list_, pa.large_list):
            array = pa.array(bags, listed(kind))
            for leaf in (array, pa.concat_arrays([array, array])[len(bags) :], Stream(array)):
                if isinstance(leaf, Stream):
                    leaf.column = pa.chunked_array([array])
                for nulls in ("drop", ROW):
                    ragged, shape = as_ragged(leaf, PATH, nulls, function)
                    assert ragged.to_lists() == expected(plain, nulls, function)
                    assert shape == (len(bags),)
    if None not in bags and not any(None in bag for bag in bags):
        rows = function(pa.array(bags, pa.list_(pa.string())))
        assert isinstance(rows, Ragged)
        assert rows.to_lists() == expected(plain, ROW, function)


def test_a_null_view_is_not_read():
    views = np.array([[3, 0x636261, 0, 0], [2**31 - 1, 0, 99, -1]], np.int32)
    valid = pa.py_buffer(b"\1")
    array = pa.Array.from_buffers(pa.string_view(), 2, [valid, pa.py_buffer(views)])
    rows = as_ragged(array, PATH, ROW, Hash(1000))[0].values
    assert rows.tolist() == [xxh64(b"abc", 0) % 1000, ROW]


def test_fixed_widths_integers_and_columns_of_nulls_alone():
    function = Hash(1000)
    fixed = pa.array([b"ab", None, b"cd"], pa.binary(2))
    assert as_ragged(fixed, PATH, ROW, function)[0].values.tolist() == [
        xxh64(b"ab", 0) % 1000, ROW, xxh64(b"cd", 0) % 1000,
    ]  # fmt: skip
    for kind in (pa.int8(), pa.uint32(), pa.int64()):
        numbers = pa.array([7, None, 8], kind)
        assert as_ragged(numbers, PATH, ROW, function)[0].values.tolist() == [487, ROW, 622]
        assert function(numbers.drop_null()).tolist() == [487, 622]
    large = pa.array([2**64 - 1], pa.uint64())
    assert function(large).tolist() == function([-1]).tolist()
    for nulls, lists in (("drop", [[], []]), (ROW, [[ROW], [ROW]])):
        for kind in (Hash(1000), Hash(1000, kind="farmhash64")):
            assert as_ragged(pa.nulls(2), PATH, nulls, kind)[0].to_lists() == lists
    assert function(pa.array([], pa.string())).tolist() == []
    assert function(pa.array([[], []])).to_lists() == [[], []]
    empty = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], pa.string()))
    assert as_ragged(empty, PATH, ROW, function)[0].to_lists() == [[ROW]]


def test_a_dictionary_is_hashed_once(monkeypatch):
    from shardcore.ids import arrow_strings

    seen = []
    hash_spans = arrow_strings.hash_spans

    def watched(data, offsets, *rest):
        seen.append(offsets.size - 1)
        return hash_spans(data, offsets, *rest)

    monkeypatch.setattr(arrow_strings, "hash_spans", watched)
    column = pa.array(["a", "b"] * 500).dictionary_encode()
    assert len(set(Hash(10**9)(column).tolist())) == 2
    assert seen == [2]


HINT = "; FeatureConfig(nulls=...) has other policies"
SPANS = [None, pa.py_buffer(np.array([0, 9, 4], np.int32)), pa.py_buffer(b"abcd")]
VIEWS = [None, pa.py_buffer(np.array([40, 0, 0, 0], np.int32)), pa.py_buffer(b"abcd")]
CODES = pa.Array.from_buffers(pa.int8(), 3, [None, pa.py_buffer(np.array([0, -1, 0], np.int8))])
CODED = "must have codes in [0, 1), the size of their dictionary, got"


@pytest.mark.parametrize(
    ("leaf", "nulls", "error", "text"),
    [
        (pa.array(["a", None]), "raise", ShardcoreValueError,
         f"ids must not be null, got a null at position 1{HINT}"),
        (pa.array(["a", None]), None, ShardcoreValueError,
         "ids must not be null, got a null at position 1"),
        (pa.array([["a"], ["b", None]]), "raise", ShardcoreValueError,
         f"values must not be null, got a null at position 2{HINT}"),
        (pa.array([["a"], None]), "raise", ShardcoreValueError,
         f"bags must not be null, got a null at position 1{HINT}"),
        (pa.array([0.5, None]), "drop", ShardcoreTypeError,
         "ids must be integers, strings or binary, to be hashed, got pyarrow double"),
        (pa.array([[True]]), "drop", ShardcoreTypeError,
         "values must be integers, strings or binary, to be hashed, got pyarrow bool"),
        (pa.array([0.5]).dictionary_encode(), "drop", ShardcoreTypeError,
         "ids must be integers, strings or binary, to be hashed, got pyarrow double"),
        (pa.array([[["a"]]]), "drop", ShardcoreTypeError,
         "values must be integers, strings or binary, to be hashed, "
         "got pyarrow list<item: string>"),
        (pa.Array.from_buffers(pa.string(), 2, SPANS), "drop", ShardcoreValueError,
         "ids must lie within their buffers, the pyarrow string at position 0 does not"),
        (pa.Array.from_buffers(pa.string_view(), 1, VIEWS), "drop", ShardcoreValueError,
         "ids must lie within their buffers, the pyarrow string_view at position 0 does not"),
        (pa.DictionaryArray.from_arrays(CODES, pa.array(["a"]), safe=False), "drop",
         ShardcoreValueError, f"ids {CODED} -1 at position 1"),
    ],
)  # fmt: skip
def test_refusals(leaf, nulls, error, text):
    with pytest.raises(error, match=f"^{re.escape(f'{PATH}: {text}')}$"):
        as_ragged(leaf, PATH, nulls, Hash(10))
    if nulls is None:
        with pytest.raises(error, match=f"^{re.escape(text)}$"):
            Hash(10)(leaf)


def test_farmhash64_refuses_columns_of_integers():
    text = (
        "ids must be str or bytes for kind='farmhash64', got pyarrow int64; "
        "TensorFlow hashes the digits of integers: give str(id)"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(text)}$"):
        Hash(10, kind="farmhash64")(pa.array([7]))
