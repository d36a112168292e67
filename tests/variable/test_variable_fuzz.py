"""Generated reads, writes and scatters against plain NumPy: same value, shape, dtype or refusal."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from shardcore.errors import ShardcoreError
from shardcore.sharding.layout import Layout
from shardcore.variable import indexing
from shardcore.variable.variable import ShardedVariable

DTYPES = ["float32", "float64", "float16", "int32", "int64", "bool", "complex64"]
CASES = 220_000
PARTS = 20
# SHARDCORE_TEST_SECONDS is how long samples by chance go on: 3 or more, and all cases are tried.
TRIED = max(1, round(PARTS * min(1.0, float(os.environ.get("SHARDCORE_TEST_SECONDS", "3")) / 3)))
CASES_PER_VARIABLE = 55
OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "min": np.minimum,
    "max": np.maximum,
    "update": None,
}


class Generator:
    """Random variables, indices and values; about one index in six is refused by NumPy."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, stop: int) -> int:
        return int(self.rng.integers(stop))

    def pick(self, options: Any) -> Any:
        return options[self.below(len(options))]

    def values(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        numbers = self.rng.integers(-9, 10, shape)
        if dtype == "complex64":
            return (numbers + 1j * self.rng.integers(-9, 10, shape)).astype(dtype)
        if dtype.startswith("float"):
            return (numbers / 4).astype(dtype)
        return (numbers % 2 == 0) if dtype == "bool" else numbers.astype(dtype)

    def variable(self) -> tuple[np.ndarray, ShardedVariable]:
        rows = self.pick([0, 1, 2, 3, 5, 8, 13, 21])
        shape = (rows, *(self.pick([1, 2, 3, 3, 4, 0]) for _ in range(self.below(4))))
        whole = self.values(shape, self.pick(DTYPES))
        shards = 1 + self.below(5)
        kind = self.below(3)
        if kind == 0:
            layout = Layout.div(rows, shards)
        elif kind == 1:
            layout = Layout.mod(rows, shards)
        else:
            cuts = np.sort(self.rng.integers(0, rows + 1, shards - 1))
            layout = Layout.from_sizes(np.diff([0, *cuts, rows]).tolist())
        arrays = [whole[layout.global_rows(shard)] for shard in range(shards)]
        return whole, ShardedVariable(arrays, layout=layout)

    def integer(self, size: int) -> int:
        if size and self.below(30):
            return self.below(2 * size) - size
        return self.pick([size, -size - 1, 10**6])

    def slice(self, size: int) -> slice:
        def bound() -> int | None:
            return None if self.below(3) == 0 else self.below(4 * size + 5) - 2 * size - 2

        steps = [None, None, None, 1, 2, 3, 7, -1, -1, -2, -3, -7]
        return slice(bound(), bound(), self.pick(steps))

    def integers(self, size: int, shape: tuple[int, ...]) -> Any:
        if size == 0 and self.below(4):
            shape = (*shape[:-1], 0) if shape else (0,)
        array = np.empty(shape, np.int64)
        for place in np.ndindex(*shape):
            array[place] = self.integer(size) if self.below(40) == 0 else self.below(size or 1)
        if self.below(3) == 0:
            array = np.where(self.rng.random(shape) < 0.5, array - size, array)
        kind = self.below(6)
        if kind == 0:
            return array.tolist()
        return array.astype(self.pick([np.int64, np.int32, np.int16, np.int8]))

    def item(self, shape: tuple[int, ...], advanced: tuple[int, ...]) -> tuple[Any, int]:
        """Return an item for the axes `shape` and how many of them it names."""
        kind, size = self.below(20), shape[0]
        if kind < 5:
            return self.slice(size), 1
        if kind < 9:
            integer = self.integer(size)
            return (np.int16(integer) if abs(integer) < 1000 and self.below(3) == 0 else integer), 1
        if kind < 13:
            return self.integers(size, advanced), 1
        if kind < 15:
            axes = 1 + self.below(len(shape))
            sizes = [n + (self.below(40) == 0) for n in shape[:axes]]
            mask = self.rng.random(sizes) < self.pick([0.0, 0.3, 0.7])
            return (mask.tolist() if self.below(3) == 0 and mask.size else mask), axes
        if kind == 15:
            return None, 0
        if kind == 16:
            return self.pick([True, False, np.True_, np.array(False)]), 0
        if kind == 17:
            return np.array(self.integer(size)), 1
        if kind == 18 and self.below(6) == 0:
            bad = [
                1.5,
                "a",
                np.array([0.5]),
                {},
                slice(0.5, None),
                slice(None, None, 0),
                [[0], [0, 1]],
            ]
            return self.pick(bad), 1
        return slice(None), 1

    def index(self, shape: tuple[int, ...]) -> Any:
        advanced = self.pick([(), (1,), (2,), (3,), (2, 1), (0,), (2, 3)])
        items: list[Any] = []
        axis, used_ellipsis = 0, False
        while axis < len(shape) and self.below(5):
            if not used_ellipsis and self.below(6) == 0:
                items.append(Ellipsis)
                used_ellipsis = True
                axis += self.below(len(shape) - axis + 1)
                continue
            # Advanced items of one index broadcast together, but for a rare one.
            own = advanced if self.below(12) else (4,)
            item, axes = self.item(shape[axis:], own)
            items.append(item)
            axis += axes
        if self.below(25) == 0:
            items.append(self.pick([0, None, Ellipsis, slice(None)]))
        return items[0] if len(items) == 1 and self.below(2) else tuple(items)

    def written(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        kind = self.below(14)
        if kind == 0:
            return self.pick([1, -2, 2.5, True, 300, 2**40, 1j, "1", "x", None, [1, 2], 1e300])
        other = self.pick(DTYPES) if kind < 4 else str(dtype)
        shape = tuple(1 if self.below(5) == 0 else size for size in shape)
        if self.below(8) == 0:
            shape = shape[1:] if self.below(2) else (1, *shape)
        if self.below(12) == 0:
            shape = tuple(size + (self.below(2)) for size in shape)
        value = self.values(shape, other)
        return value.tolist() if kind == 4 else value


def outcome(action: Any) -> tuple[Any, type[Exception] | None, Exception | None]:
    """Return what an action gives, or the built-in error that it raises."""
    try:
        return action(), None, None
    except (IndexError, TypeError, ValueError, OverflowError) as error:
        kind = next(
            k for k in (IndexError, TypeError, ValueError, Exception) if isinstance(error, k)
        )
        # A number that does not fit is a ValueError here.
        return None, ValueError if isinstance(error, OverflowError) else kind, error


def passes_over(whole: np.ndarray, index: Any) -> bool:
    """Return whether NumPy takes an index that is out of bounds, as it finds no element.

    Before 2.3 it warned, and gave an empty array. Here such an index is refused, or what NumPy made
    of it: it is asked for parts of the index on the way.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Out of bound index found", DeprecationWarning)
        try:
            whole[index]
        except DeprecationWarning:
            return True
        except Exception:
            return False  # the checks below compare it with ours
    return False


def same(got: Any, expected: Any) -> bool:
    return (
        type(got) is type(expected)
        and got.shape == expected.shape
        and got.dtype == expected.dtype
        and got.tobytes() == expected.tobytes()
    )


def check_read(gen: Generator, whole: np.ndarray, v: ShardedVariable) -> str:
    index = gen.index(whole.shape)
    passed_over = passes_over(whole, index)
    expected, refused, _ = outcome(lambda: whole[index])
    got, error, raised = outcome(lambda: v[index])
    if passed_over and error is IndexError:
        assert isinstance(raised, ShardcoreError), (index, raised)
        return "refused where NumPy passes over it"
    assert error is refused, (whole.shape, v, index, raised)
    if refused:
        assert isinstance(raised, ShardcoreError), (index, raised)
        return "refused read"
    assert same(got, expected), (whole, v, index, got, expected)
    if isinstance(got, np.ndarray) and got.size and gen.below(10) == 0:
        assert not any(np.may_share_memory(got, shard) for shard in v.shards)
    return "read"


def check_write(gen: Generator, whole: np.ndarray, v: ShardedVariable) -> str:
    index = gen.index(whole.shape)
    passed_over, before = passes_over(whole, index), whole.copy()
    probe, refused_index, _ = outcome(lambda: whole[index])
    shape = () if refused_index else np.shape(probe)
    value = gen.written(shape, whole.dtype)
    if np.ndim(value) > len(shape):  # NumPy drops axes of 1, but of no list, and any of no element
        value = (
            np.reshape(np.asarray(value), np.shape(value)[-len(shape) :])
            if (
                np.size(value)
                and set(np.shape(value)[: np.ndim(value) - len(shape)]) == {1}
                and shape
            )
            else np.zeros(shape, whole.dtype)
        )
    _, refused, _ = outcome(lambda: whole.__setitem__(index, value))
    _, error, raised = outcome(lambda: v.__setitem__(index, value))
    if passed_over and error is IndexError:
        assert isinstance(raised, ShardcoreError), (index, raised)
        assert same(v.numpy(), before), (before, v, index, value)
        return "refused where NumPy passes over it"
    # Of an index and a value that are both wrong, the index is told first.
    assert error is (refused_index if refused_index and refused else refused), (
        whole,
        v,
        index,
        value,
        raised,
    )
    if refused:
        assert isinstance(raised, ShardcoreError), (index, raised)
        whole[...] = before
    assert same(v.numpy(), whole), (before, v, index, value)
    return "refused write" if refused else "write"


def expected_scatter(
    whole: np.ndarray, operation: str, columns: tuple[np.ndarray, ...], values: Any
) -> np.ndarray:
    """Apply a scatter to a copy, or raise as the rules of scatters say."""
    array = np.asarray(values)
    if not np.can_cast(array.dtype, whole.dtype, "same_kind"):
        raise TypeError("same_kind")
    ufunc = OPERATIONS[operation]
    if ufunc is not None:
        answer = ufunc(np.ones(1, whole.dtype), np.ones(1, whole.dtype)).dtype
        if not np.can_cast(answer, whole.dtype, "same_kind"):
            raise TypeError("no such operation")
    for column, size in zip(columns, whole.shape, strict=False):
        if column.size and (column.min() < 0 or column.max() >= size):
            raise IndexError("range")
    target = columns[0].shape + whole.shape[len(columns) :]
    cast = np.broadcast_to(array, target).astype(whole.dtype)
    out = whole.copy()
    if ufunc is not None:
        ufunc.at(out, columns, cast)
        return out
    for place in np.ndindex(*columns[0].shape):
        out[tuple(int(column[place]) for column in columns)] = cast[place]
    return out


def check_scatter(gen: Generator, whole: np.ndarray, v: ShardedVariable) -> str:
    shape = gen.pick([(), (0,), (1,), (3,), (6,), (2, 2)])
    if whole.size == 0 or whole.shape[0] == 0:
        shape = (0,)
    operation = gen.pick(list(OPERATIONS))
    nd = operation in ("add", "sub", "update") and gen.below(3) == 0
    axes = 1 + gen.below(whole.ndim) if nd else 1
    columns = tuple(gen.rng.integers(0, max(size, 1), shape) for size in whole.shape[:axes])
    if shape not in ((), (0,)) and gen.below(12) == 0:
        columns[-1][(0,) * len(shape)] = gen.pick([-1, whole.shape[axes - 1]])
    values = gen.written((*shape, *whole.shape[axes:]), whole.dtype)
    if not isinstance(values, np.ndarray):
        values = gen.values((*shape, *whole.shape[axes:]), str(whole.dtype))
    before = whole.copy()
    expected, refused, _ = outcome(lambda: expected_scatter(whole, operation, columns, values))
    if nd:
        scatter, indices = getattr(v, f"scatter_nd_{operation}"), np.stack(columns, axis=-1)
    else:
        scatter, indices = getattr(v, f"scatter_{operation}"), columns[0]
    got, error, raised = outcome(lambda: scatter(indices, values))
    # Where several arguments are wrong, which one is told first is not fixed.
    assert (error is None) == (refused is None), (whole, v, operation, columns, values, raised)
    if refused:
        assert isinstance(raised, ShardcoreError)
        assert same(v.numpy(), before)
        return "refused scatter"
    assert got is v
    # By value: which of 0.0 and -0.0 is the lesser, NumPy answers differently from dtype to dtype.
    np.testing.assert_array_equal(v.numpy(), expected, strict=True)
    whole[...] = v.numpy()
    return "scatter"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(TRIED))
def test_generated_cases_match_numpy(
    part: int, fuzz_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    checks = [check_read, check_read, check_write, check_scatter]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # casts that lose something warn in NumPy, here as there
        for number in range(CASES // PARTS // CASES_PER_VARIABLE):
            gen = Generator(fuzz_seed + number)
            monkeypatch.setattr(indexing, "BLOCK_BYTES", gen.pick([1, 40, 4 << 20]))
            whole, v = gen.variable()
            for _ in range(CASES_PER_VARIABLE):
                counts[gen.pick(checks)(gen, whole, v)] += 1
    assert sum(counts.values()) == CASES // PARTS
    share = {kind: count / sum(counts.values()) for kind, count in counts.items()}
    assert share["read"] > 0.25
    assert share["write"] > 0.1
    assert share["scatter"] > 0.1
    assert min(share["refused read"], share["refused write"], share["refused scatter"]) > 0.01


def test_at_least_200_000_cases_are_generated() -> None:
    assert CASES // PARTS // CASES_PER_VARIABLE * CASES_PER_VARIABLE * PARTS >= 200_000
