"""Which compiled body runs: the best there is, the one asked for, or a clear error; same bits."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shardcore._core import cpu
from shardcore.dtypes import KIND_OF, as_dtype, row_bytes, working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.store import instruction_set
from shardcore.store.instruction_set import NEEDS, _built, _choose, best_module
from shardcore.store.segment_reduce import TYPE_NAMES

EVERY = dict.fromkeys(NEEDS["v4"], True)
NONE = dict.fromkeys(NEEDS["v4"], False)
WITH_AVX2 = NONE | dict.fromkeys(NEEDS["v3"], True)
BUILT = set(NEEDS)


@pytest.mark.parametrize(
    ("features", "built", "best"),
    [
        (EVERY, BUILT, "v4"),
        (WITH_AVX2, BUILT, "v3"),
        (NONE, BUILT, "baseline"),
        ({}, BUILT, "baseline"),
        (EVERY, {"baseline", "v3"}, "v3"),
        (EVERY, {"baseline"}, "baseline"),
        (EVERY | {"avx512vl": False}, BUILT, "v3"),
    ],
)
@pytest.mark.parametrize("asked", [None, ""])
def test_the_best_that_runs_is_chosen(
    asked: str | None, features: dict[str, bool], built: set[str], best: str
) -> None:
    reason = "the best that is compiled and that this processor has"
    assert _choose(asked, features, built) == (best, reason)


@pytest.mark.parametrize("asked", NEEDS)
def test_the_one_asked_for_is_chosen(asked: str) -> None:
    assert _choose(asked, EVERY, BUILT) == (asked, "asked for by SHARDCORE_INSTRUCTION_SET")


@pytest.mark.parametrize(
    ("asked", "features", "built", "message"),
    [
        (
            "avx9",
            EVERY,
            BUILT,
            "SHARDCORE_INSTRUCTION_SET must be one of v4, v3, baseline, got 'avx9'",
        ),
        (
            "v4",
            WITH_AVX2,
            BUILT,
            "SHARDCORE_INSTRUCTION_SET=v4 needs avx512f, avx512bw, avx512cd, avx512dq, avx512vl, "
            "which this processor lacks",
        ),
        (
            "v3",
            EVERY,
            {"baseline"},
            "SHARDCORE_INSTRUCTION_SET=v3 was not compiled on this platform",
        ),
    ],
)
def test_what_cannot_run_is_refused(
    asked: str, features: dict[str, bool], built: set[str], message: str
) -> None:
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        _choose(asked, features, built)


def in_a_process_with(variable: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from shardcore.store.instruction_set import NAME, best_module\n"
            "print(NAME, best_module('shardcore._core.rows').__name__)",
        ],
        env=os.environ | {"SHARDCORE_INSTRUCTION_SET": variable},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_environment_is_asked_at_import() -> None:
    done = in_a_process_with("baseline")
    assert done.stdout.split() == ["baseline", "shardcore._core.rows_baseline"]
    failed = in_a_process_with("sse1")
    assert failed.returncode != 0
    message = "SHARDCORE_INSTRUCTION_SET must be one of v4, v3, baseline, got 'sse1'"
    assert f"shardcore.errors.ShardcoreValueError: {message}" in failed.stderr


def test_this_processor_has_what_the_chosen_one_needs() -> None:
    features = cpu.features()
    assert set(features) == set(NEEDS["v4"])
    assert instruction_set.NAME in _built()
    assert "baseline" in _built()
    assert all(features[feature] for feature in NEEDS[instruction_set.NAME])
    assert best_module("shardcore._core.rows").__name__.endswith(instruction_set.NAME)


def bodies() -> list[ModuleType]:
    features = cpu.features()
    return [
        importlib.import_module(f"shardcore._core.rows_{name}")
        for name in sorted(_built())
        if all(features[feature] for feature in NEEDS[name])
    ]


def outputs(body: ModuleType, dtype: str, dim: int, index: Any) -> list[bytes]:
    """Return all that the kernels of one body write for one random batch."""
    rng = np.random.default_rng(dim)
    kind, value = KIND_OF[dtype], working_dtype(as_dtype(dtype))
    table = rng.standard_normal((60, dim)).astype(as_dtype(dtype))
    lengths = rng.integers(0, 9, 40)
    splits = np.concatenate(([0], np.cumsum(lengths)))
    ids = rng.integers(0, 60, splits[-1]).astype(index)
    weights = rng.standard_normal(ids.size).astype(value)
    divisors = rng.integers(-3, 4, 40).astype(value)
    gradients = rng.standard_normal((40, dim)).astype(value)
    index_name, value_name = TYPE_NAMES[ids.dtype], TYPE_NAMES[value]
    written: list[Any] = []
    for w in (None, weights):
        for d in (None, divisors):
            out = np.empty((40, dim), value)
            reduce = body.segment_reduce[index_name, value_name]
            reduce(row_bytes(table), kind, ids, splits, w, d, body.GIVEN_DIVISORS, out, False)
            written.append(out)
        for divided in body.DIVIDED.values():
            out = np.empty((40, dim), value)
            assert reduce(row_bytes(table), kind, ids, splits, w, None, divided, out, False)
            written.append(out)
    dots = np.empty(ids.size, value)
    body.row_dots[index_name, value_name](row_bytes(table), kind, ids, splits, gradients, dots)
    written.append(dots)
    runs = np.array([0, 5, 6, ids.size])
    sums = np.empty((3, dim), value)
    sources = (np.arange(ids.size) % 40).astype(np.int32)
    body.accumulate[value_name](gradients, sources, weights, runs, np.empty(dim, value), sums)
    written.append(sums)
    values = rng.standard_normal((ids.size, dim)).astype(table.dtype)
    for operation in body.OPERATIONS.values():
        rows = table.copy()
        body.scatter[index_name](row_bytes(rows), kind, dim, ids, row_bytes(values), operation)
        written.append(rows)
    return [array.tobytes() for array in written]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 7, 16, 63, 64, 65, 80, 144, 200])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_all_bodies_compute_the_same_bits(dtype: str, dim: int, index: Any) -> None:
    first, *others = bodies()
    expected = outputs(first, dtype, dim, index)
    assert len(expected) == 18
    for other in others:
        assert outputs(other, dtype, dim, index) == expected
