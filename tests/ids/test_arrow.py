"""Arrow columns: every layout gives the same bags, and nulls do as their policy says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.formats import as_ragged, dense_shape

PATH = "features['clicks']"
ROW = 300  # of no use to int8


class Stream:
    """A column of some library that is not pyarrow, in chunks."""

    def __init__(self, column):
        self.column = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])

    def __arrow_c_stream__(self, requested_schema=None):
        return self.column.__arrow_c_stream__(requested_schema)


class Piece:
    """The same, in one piece."""

    def __init__(self, array):
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self.array.__arrow_c_array__(requested_schema)


def expected(bags, nulls):
    """Return what bags with nulls come to, in plain Python."""
    if nulls == "drop":
        return [[i for i in bag or [] if i is not None] for bag in bags]
    return [[nulls if i is None else i for i in bag or []] for bag in bags]


def layouts(bags, value):
    """Return the same lists in every layout that there is for them."""
    small = pa.array(bags, pa.list_(value))
    before, after = pa.array([[1, None], None], small.type), pa.array([[7]], small.type)
    found = {
        "list": small,
        "large list": pa.array(bags, pa.large_list(value)),
        "slice": pa.concat_arrays([before, small, after]).slice(2, len(bags)),
        "chunks": pa.chunked_array([small[:1], small[1:1], small[1:]]),
        "one chunk": pa.chunked_array([small]),
        "of another library": Stream(pa.chunked_array([small[:1], small[1:]])),
        "of another library, one piece": Piece(small),
    }
    widths = {len(bag) for bag in bags if bag is not None}
    if len(widths) == 1:
        fixed = pa.array([bags[-1], *bags], pa.list_(value, widths.pop()))
        found["fixed"], found["fixed slice"] = fixed[1:], fixed.slice(1, len(bags))
    if None in bags:  # what lies below a null list is not to be seen
        filled = pa.array([[5] if bag is None else bag for bag in bags], pa.list_(value))
        mask = pa.array([bag is None for bag in bags])
        hidden = pa.ListArray.from_arrays(filled.offsets, filled.values, mask=mask)
        assert hidden.values.to_pylist() == filled.values.to_pylist()
        found["values below nulls"] = hidden
    return found


ID = st.integers(0, 99) | st.none()
EVEN = st.integers(0, 3).flatmap(
    lambda n: st.lists(st.lists(ID, min_size=n, max_size=n) | st.none(), max_size=5)
)
VALUES = st.sampled_from([pa.int8(), pa.int32(), pa.int64(), pa.uint64()])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ID, max_size=4) | st.none(), max_size=6) | EVEN, VALUES)
def test_every_layout_gives_the_same_bags(bags, value):
    for nulls in ("drop", ROW):
        for name, leaf in layouts(bags, value).items():
            ragged, shape = as_ragged(leaf, PATH, nulls)
            assert ragged.to_lists() == expected(bags, nulls), (name, nulls)
            assert shape == (len(bags),)
            assert ragged.row_splits.dtype == np.int64
            assert ragged.values.dtype in (np.int32, np.int64)
            assert dense_shape(leaf) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(ID, max_size=6), VALUES)
def test_integers_are_one_id_per_bag(ids, value):
    array = pa.array(ids, value)
    for nulls in ("drop", ROW):
        bags = expected([[i] for i in ids], nulls)
        for leaf in (array, Piece(array), Stream(array), pa.chunked_array([array[:2], array[2:]])):
            ragged, shape = as_ragged(leaf, PATH, nulls)
            assert ragged.to_lists() == bags
            assert shape == (len(ids),)


def test_columns_of_nulls_alone_and_of_codes():
    assert as_ragged(pa.nulls(2), PATH, "drop")[0].to_lists() == [[], []]
    assert as_ragged(pa.nulls(2), PATH, 7)[0].to_lists() == [[7], [7]]
    assert as_ragged(pa.array([[None], []]), PATH, 7)[0].to_lists() == [[7], []]
    codes = pa.array([5, None, 5]).dictionary_encode()
    assert as_ragged(codes, PATH, "drop")[0].to_lists() == [[5], [], [5]]
    assert as_ragged(codes.slice(1), PATH, 2)[0].to_lists() == [[2], [5]]


@pytest.mark.parametrize("value", [pa.int32(), pa.int64()])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_values_are_not_copied(kind, value):
    array = pa.array([[1, 2], [3], [4, 5]], kind(value))
    address = array.values.buffers()[1].address
    for leaf in (array, pa.chunked_array([array]), Stream(array), Piece(array), array[:2]):
        assert as_ragged(leaf, PATH, "raise")[0].values.ctypes.data == address
    with_a_null = pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 5], pa.int32()), array.values, mask=pa.array([False, False, True])
    )
    assert as_ragged(with_a_null, PATH, "drop")[0].values.tolist() == [1, 2, 3]


HINT = "; FeatureConfig(nulls=...) has other policies"


class Torn:
    def __arrow_c_stream__(self, requested_schema=None):
        raise BufferError("no buffer is left")


@pytest.mark.parametrize(
    ("leaf", "nulls", "error", "text"),
    [
        (pa.array([[1], None, [2]]), "raise", ShardcoreValueError,
         f"bags must not be null, got a null at position 1{HINT}"),
        (Stream(pa.array([[1], [2, None]])), "raise", ShardcoreValueError,
         f"values must not be null, got a null at position 2{HINT}"),
        (pa.array([1, None]), "raise", ShardcoreValueError,
         f"ids must not be null, got a null at position 1{HINT}"),
        (pa.array([1, None]), None, ShardcoreValueError,
         "ids must not be null, got a null at position 1"),
        (pa.array([0.5, None]), "drop", ShardcoreTypeError,
         "ids must be integers, got pyarrow double"),
        (pa.array([["a", None]]), 3, ShardcoreTypeError,
         "values must be integers, got pyarrow string"),
        (pa.array(["a", None]).dictionary_encode(), "drop", ShardcoreTypeError,
         "ids must be integers, got pyarrow dictionary<values=string, indices=int32, ordered=0>"),
        (Stream(pa.array([[True]])), "drop", ShardcoreTypeError,
         "values must be integers, got dtype bool"),
        (pa.array([None, 2**63], pa.uint64()), "drop", ShardcoreValueError,
         "ids[1] = 9223372036854775808 does not fit int64; hash it first with hash_ids"),
        (pa.array([None, 2**63], pa.uint64()), 1, ShardcoreValueError,
         "ids[1] = 9223372036854775808 does not fit int64; hash it first with hash_ids"),
        (Piece(pa.array([{"a": 1}])), "drop", ShardcoreTypeError,
         "a pyarrow array must be a list of integers, got struct<a: int64>"),
        (Torn(), "drop", ShardcoreTypeError,
         f"a {__name__.partition('.')[0]} Torn cannot be read as Arrow: BufferError: "
         "no buffer is left"),
    ],
)  # fmt: skip
def test_refusals(leaf, nulls, error, text):
    with pytest.raises(error, match=f"^{re.escape(f'{PATH}: {text}')}$"):
        as_ragged(leaf, PATH, nulls)


def test_without_pyarrow_lists_name_it_and_integers_are_read_as_numpy():
    code = """
        import sys
        import numpy as np
        sys.modules["pyarrow"] = None  # what importing it finds where it is not installed
        from shardcore.errors import UnavailableError
        from shardcore.ids.formats import as_ragged

        class Column:
            def __init__(self, array):
                self.array = array
            def __arrow_c_stream__(self, requested_schema=None):
                raise AssertionError
            def __array__(self, dtype=None, copy=None):
                return self.array

        Column.__module__ = "polars.series"
        print(as_ragged(Column(np.array([3, 1])), "features")[0].to_lists())
        try:
            as_ragged(Column(np.array([[3], [1]], object)), "features")
        except UnavailableError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "[[3], [1]]",
        "features: a polars Column is read through the package pyarrow, which is not installed; "
        "pip install pyarrow",
    ]
