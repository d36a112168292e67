"""Whether numbers are finite: found wherever one is not, in any of many arrays, by any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardcore.dtypes import as_dtype
from shardcore.store.finite import all_finite
from shardcore.threads.team import get_num_threads, set_num_threads

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


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones(3, np.int32),
        np.ones(3, np.float16),
        np.ones(3, ">f4"),
        np.ones(6, np.float32)[::2],
        np.asfortranarray(np.ones((2, 3))),
        np.ones(3, as_dtype("bfloat16")),
        [1.0],
    ],
)
def test_what_is_no_plain_array_of_the_working_dtypes_is_not_tested(wrong: Any) -> None:
    text = "^a test must have an array of float32 or float64, C-contiguous$"
    with pytest.raises(TypeError, match=text):
        all_finite([wrong])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 2, 2, 2)])
def test_an_array_of_any_number_of_axes_is_tested(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)
    array.flags.writeable = False
    assert all_finite([array])
    last = np.ones(shape)
    last.reshape(-1)[-1:] = np.inf
    assert all_finite([last]) is (last.size == 0)
