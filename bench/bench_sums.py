"""The comparison of two builds' sums: that it sums what it says, and ends where they differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardcore.store.instruction_set import best_module

from .revisions import ROOT
from .sums import compared, kernels_of, main

KERNELS = best_module("shardcore._core.rows")
ROWS = np.random.default_rng(0).random((50, 24), np.float32)
BATCHES = [np.random.default_rng(one).integers(0, 50, 40) for one in range(4)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_two_kernels_are_timed(dtype: Any, weighted: bool) -> None:
    found = compared((KERNELS, KERNELS), ROWS.astype(dtype), BATCHES, 8, weighted, rounds=2)
    base, here, ratio, (low, high) = found
    assert min(base, here) > 0
    assert 0 < low <= ratio <= high


class Other:
    """A kernel whose last sum has another bit."""

    def __getitem__(self, types: Any) -> Any:
        def kernel(*arguments: Any) -> bool:
            done: bool = KERNELS.segment_reduce[types](*arguments)
            arguments[-2][-1, -1] *= 1 + 2e-7
            return done

        return kernel


def test_other_bits_end_the_comparison() -> None:
    other: Any = SimpleNamespace(segment_reduce=Other(), GIVEN_DIVISORS=KERNELS.GIVEN_DIVISORS)
    with pytest.raises(AssertionError, match="not equal"):
        compared((KERNELS, other), ROWS, BATCHES, 8, False, rounds=1)


def test_a_tree_without_kernels_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ImportError):
        kernels_of(tmp_path)


@pytest.mark.skipif(not (ROOT / "setup.py").is_file(), reason="the sources are not beside")
def test_the_command_prints_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    built = [*(ROOT / "shardcore" / "_core").glob("rows_*.so")]
    if not built:
        pytest.skip("nothing is compiled here")
    options = "--quick --dims 3 --rows 60 --ids uniform text --rounds 1"
    assert main([str(ROOT), *options.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| 60 of 3 float32, uniform",
        "| 60 of 3 float32, text",
    ]
