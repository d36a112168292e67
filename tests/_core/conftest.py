"""What the kernel tests share: the body compiled for each instruction set, and equality."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore._core import cpu
from shardcore.dtypes import as_dtype
from shardcore.store import (
    finite,
    given_bags,
    lookups,
    scatter,
    segment_reduce,
    stored_rows,
    update,
)
from shardcore.store import instruction_set as chosen

RUNNABLE = [
    name
    for name, needs in chosen.NEEDS.items()
    if name in chosen._built() and all(cpu.features()[feature] for feature in needs)
]


@pytest.fixture(scope="module", params=RUNNABLE)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the row kernels in the body compiled for each instruction set this processor has."""
    body = importlib.import_module(f"shardcore._core.rows_{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        for face in (given_bags, finite, lookups, scatter, segment_reduce, stored_rows, update):
            patch.setattr(face, "_kernel", body)
        yield request.param


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Any, Any], None]:
    """Assert equality to the last bit, the sign of zero included; one NaN is as good as another."""

    def check(ours: Any, theirs: Any) -> None:
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        with np.errstate(invalid="ignore"):  # some bit patterns of NaN raise the flag
            no_number = ours != ours
            np.testing.assert_array_equal(no_number, theirs != theirs)
        zero = np.zeros((), ours.dtype)
        left, right = (np.where(no_number, zero, array) for array in (ours, theirs))
        if left.tobytes() != right.tobytes():
            np.testing.assert_array_equal(left, right)
            raise AssertionError("zeros of another sign")

    return check


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Any]:
    """Return numbers of a dtype, large and small, some of them infinite, NaN or negative zero."""

    def make(
        rng: np.random.Generator,
        shape: tuple[int, ...],
        dtype: str,
        special: bool = True,
    ) -> Any:
        numbers = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)
        if special:
            kinds = rng.integers(0, 60, shape)
            for kind, value in enumerate((np.inf, -np.inf, np.nan, -0.0, 0.0, 6e-8)):
                numbers[kinds == kind] = value
        return numbers.astype(as_dtype(dtype))

    return make


@pytest.fixture(scope="session")
def frozen() -> Callable[[Any], Any]:
    """Return the array, read-only."""

    def freeze(array: Any) -> Any:
        array.flags.writeable = False
        return array

    return freeze


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    before = sc.get_num_threads()
    yield sc.set_num_threads
    sc.set_num_threads(before)
