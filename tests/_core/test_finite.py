"""Whether numbers are finite: found wherever one is not, in any of many arrays, by any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardcore.store.finite import all_finite
from shardcore.store.threads import get_num_threads, set_num_threads

pytestmark = pytest.mark.usefixtures("instruction_set")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_value_that_is_not_finite_is_found_wherever_it_lies(dtype: str) -> None:
    largest = np.finfo(dtype).max
    for size in (0, 1, 15, 16, 17, 64, 131):
        values = np.resize(np.array([0, -0.0, largest, -largest, 1e-45, 1], dtype), size)
        assert all_finite([values])
        for at in range(size):
            for bad in (np.inf, -np.inf, np.nan, -np.nan):
                kept, values[at] = values[at], bad
                assert not all_finite([values])
                values[at] = kept


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_value_that_is_not_finite_is_found_in_any_piece_of_any_array(
    dtype: str, threads: int
) -> None:
    arrays = [np.ones(shape, dtype) for shape in [(3, 5), (0, 4), (700, 1000), (1, 2, 3)]]
    before = get_num_threads()
    set_num_threads(threads)
    try:
        assert all_finite(arrays)
        assert all_finite([])
        for array in arrays:
            flat = array.reshape(-1)
            for at in {0, (1 << 18) - 1, 1 << 18, flat.size - 1} & set(range(flat.size)):
                flat[at] = np.nan
                assert not all_finite(arrays), (array.shape, at)
                flat[at] = 1
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("wrong", [np.ones(3, np.int32), np.ones(3, np.float16)])
def test_what_is_no_float_of_the_working_dtypes_is_not_tested(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a test must have an array of float32 or float64"):
        all_finite([wrong])
