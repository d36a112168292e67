"""Scatters, gathers and puts: equal to the twins and to NumPy, in every instruction set."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore import reference
from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.store.scatter import OPERATIONS, gather_rows, put_rows, scatter_rows

pytestmark = pytest.mark.usefixtures("instruction_set")

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int32", "int64"]
OTHERS = [">f4", ">i8", "int16", "uint8", "uint64", "complex64", "longdouble"]
UFUNCS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "min": np.minimum,
    "max": np.maximum,
}
SHAPES = st.sampled_from([(), (0,), (1,), (15,), (16,), (17,), (64,), (65,), (2, 3), (130,)])

Same = Callable[[Any, Any], None]
Make = Callable[..., Any]


def numbers(make: Make, rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype in FLOATS:
        return make(rng, shape, dtype)
    if np.dtype(dtype).kind in "iu":
        width = min(np.dtype(dtype).itemsize, 8)
        raw = rng.integers(0, 256, (*shape, width), np.uint8)
        return raw.view(np.dtype(dtype)).reshape(shape)
    return make(rng, shape, "float64", False).astype(dtype)


def both_ways(rows: Any, ids: Any, values: Any, op: str) -> tuple[Any, Any]:
    ours, theirs = rows.copy(), rows.copy()
    scatter_rows(ours, ids, values, op)
    reference.scatter_rows(theirs, ids, values, op)
    return ours, theirs


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=SHAPES,
    op=st.sampled_from(OPERATIONS),
    rows=st.sampled_from([0, 1, 5]),
    n=st.sampled_from([0, 1, 3, 90]),
    wide=st.booleans(),
)
def test_scatters_equal_their_twin(
    dtype: str,
    seed: int,
    shape: tuple[int, ...],
    op: str,
    rows: int,
    n: int,
    wide: bool,
    make_rows: Make,
    frozen: Callable[[Any], Any],
    assert_same: Same,
) -> None:
    op = "mul" if op == "div" and dtype in INTEGERS else op
    rng = np.random.default_rng(seed)
    n = n if rows else 0
    table = numbers(make_rows, rng, (rows, *shape), dtype)
    ids = frozen(rng.integers(0, max(rows, 1), n).astype(np.int64 if wide else np.int32))
    values = frozen(numbers(make_rows, rng, (n, *shape), dtype))
    ours, theirs = both_ways(table, ids, values, op)
    assert_same(ours, theirs)
    if op != "update":  # and what NumPy itself has; it is free in the sign of a zero
        numpys = table.copy()
        with np.errstate(all="ignore"):
            UFUNCS[op].at(numpys, ids, values)
        wide = np.longdouble  # NumPy's comparison does not know the NaN of bfloat16
        np.testing.assert_array_equal(ours.astype(wide), numpys.astype(wide))


def divides(dtype: str, op: str) -> bool:
    return op != "div" or np.dtype(dtype).kind not in "iu"


def check_division_is_refused(table: Any, ids: Any, values: Any) -> None:
    before = table.copy()
    message = f"rows of dtype {table.dtype} cannot be divided in place"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(message)}$"):
        scatter_rows(table, ids, values, "div")
    np.testing.assert_array_equal(table, before)


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("op", OPERATIONS)
def test_dtypes_that_numpy_handles(dtype: str, op: str, make_rows: Make) -> None:
    """Against NumPy, one occurrence after the other, and the twin where it has the operation."""
    rng = np.random.default_rng(1)
    table = numbers(make_rows, rng, (5, 3), dtype)
    values = numbers(make_rows, rng, (20, 3), dtype)
    ids = rng.integers(0, 4, 20)
    if not divides(dtype, op):
        check_division_is_refused(table, ids, values)
        return
    expected = table.copy()
    for at, row in zip(ids, values, strict=True):
        with np.errstate(all="ignore"):
            expected[at] = row if op == "update" else UFUNCS[op](expected[at], row)
    ours = table.copy()
    scatter_rows(ours, ids, values, op)
    assert ours.dtype == table.dtype
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(ours[4], table[4])  # no id names it
    assert all((ours[at] != table[at]).any() for at in range(4)) or op in ("min", "max")
    assert (ours != table).any()
    if not (op in ("min", "max") and np.dtype(dtype).kind == "c"):  # the twin has no such order
        np.testing.assert_array_equal(*both_ways(table, ids, values, op), strict=True)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_and_values_of_any_memory_order(
    op: str, dtype: str, make_rows: Make, assert_same: Same
) -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 6, 50)[::-2]
    values = make_rows(rng, (3, 25), dtype).T
    plain = make_rows(rng, (6, 3), dtype)
    theirs = plain.copy()
    reference.scatter_rows(theirs, ids, values, op)
    size = plain.nbytes
    forms = [
        plain.copy(),
        np.asfortranarray(plain),
        np.zeros(size + 1, np.uint8)[1:].view(plain.dtype).reshape(6, 3),
        np.zeros((12, 9), plain.dtype)[::2, ::3],
    ]
    for form in forms:
        form[...] = plain
        scatter_rows(form, ids, values, op)
        assert_same(np.ascontiguousarray(form), theirs)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "int16", ">f8"])
def test_values_that_overlap_the_rows_are_read_first(op: str, dtype: str) -> None:
    plain = np.arange(1, 13).reshape(6, 2).astype(dtype)
    ids = np.array([1, 2, 3, 0, 3])
    if not divides(dtype, op):
        check_division_is_refused(plain, ids, plain[:5])
        return
    theirs = plain.copy()
    reference.scatter_rows(theirs, ids, plain[:5], op)
    ours = plain.copy()
    scatter_rows(ours, ids, ours[:5], op)
    np.testing.assert_array_equal(ours, theirs)


def test_ids_that_overlap_the_rows_are_read_first() -> None:
    rows = np.array([1, 2, 3, 0], np.int64)
    scatter_rows(rows, rows, np.full(4, 100), "add")
    assert rows.tolist() == [101, 102, 103, 100]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *OTHERS, "bool", "S3", "U2", "M8[s]", "O"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (70,), (2, 2)])
def test_gathers_and_puts_equal_their_twins(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    kind = as_dtype(dtype)
    table = rng.integers(0, 100, (7, *shape)).astype("int64").astype(kind)
    values = rng.integers(0, 100, (90, *shape)).astype("int64").astype(kind)
    for ids in (rng.integers(0, 7, 90), rng.integers(0, 7, 180).astype(np.int32)[::2]):
        for rows in (table, np.asfortranarray(table), table[::2][:0]):
            at, new = (ids, values) if rows.shape[0] else (ids[:0], values[:0])
            ours = gather_rows(rows, at)
            np.testing.assert_array_equal(ours, reference.gather_rows(rows, at), strict=True)
            if rows.size:
                assert not np.shares_memory(ours, rows)
            out = np.empty_like(ours)
            assert gather_rows(rows, at, out) is out
            np.testing.assert_array_equal(out, ours)
            mine, its = rows.copy(order="K"), rows.copy()
            put_rows(mine, at, new)
            reference.put_rows(its, at, new)
            np.testing.assert_array_equal(mine, its)


def test_strings_of_any_length_are_gathered_whole() -> None:
    rows = np.array(["a", "b" * 100, ""], np.dtypes.StringDType())
    assert gather_rows(rows, np.array([1, 0])).tolist() == ["b" * 100, "a"]
    put_rows(rows, np.array([2, 2]), np.array(["x", "y" * 50], np.dtypes.StringDType()))
    assert rows.tolist() == ["a", "b" * 100, "y" * 50]


def frozen_rows() -> Any:
    rows = np.zeros((2, 1))
    rows.flags.writeable = False
    return rows


@pytest.mark.parametrize(
    ("rows", "values", "op", "error", "message"),
    [
        (
            np.zeros((2, 1)),
            np.zeros((1, 1)),
            "pow",
            ShardcoreValueError,
            "op must be one of add, sub, mul, div, min, max, update, got 'pow'",
        ),
        (
            frozen_rows(),
            np.zeros((1, 1)),
            "add",
            ShardcoreValueError,
            "rows is read-only and cannot be written to",
        ),
        (
            np.zeros((2, 1), np.int32),
            np.ones((1, 1), np.int32),
            "div",
            ShardcoreTypeError,
            "rows of dtype int32 cannot be divided in place",
        ),
        (
            np.zeros((2, 1), bool),
            np.ones((1, 1), bool),
            "sub",
            ShardcoreTypeError,
            "rows of dtype bool do not take op 'sub'",
        ),
        (
            np.zeros((2, 1), "M8[s]"),
            np.zeros((1, 1), "M8[s]"),
            "mul",
            ShardcoreTypeError,
            "rows of dtype datetime64[s] do not take op 'mul'",
        ),
        (
            np.zeros((2, 1)),
            np.zeros((1, 1), np.float32),
            "add",
            ShardcoreValueError,
            "values must be float64 of shape (1, 1), got float32 of shape (1, 1)",
        ),
        (
            np.zeros((2, 1)),
            np.zeros((2, 1)),
            "update",
            ShardcoreValueError,
            "values must be float64 of shape (1, 1), got float64 of shape (2, 1)",
        ),
    ],
)
def test_bad_scatters_are_refused_and_change_nothing(
    rows: Any, values: Any, op: str, error: Any, message: str
) -> None:
    before = rows.copy()
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        scatter_rows(rows, np.array([0]), values, op)
    np.testing.assert_array_equal(rows, before)


def test_bad_puts_and_gathers_are_refused() -> None:
    one = np.array([0])
    with pytest.raises(ShardcoreValueError, match=r"^rows is read-only and cannot be written to$"):
        put_rows(frozen_rows(), one, np.zeros((1, 1)))
    message = "values must be float64 of shape (1, 1), got float64 of shape (1, 2)"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        put_rows(np.zeros((2, 1)), one, np.zeros((1, 2)))
    message = (
        "out must be C-contiguous, writable float64 of shape (1, 1), got float32 of shape (1, 1)"
    )
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        gather_rows(np.zeros((2, 1)), one, np.zeros((1, 1), np.float32))
    rows = np.zeros((2, 1))
    with pytest.raises(ShardcoreValueError, match=r"^out must not overlap rows$"):
        gather_rows(rows, one, rows[1:])
