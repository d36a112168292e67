"""Strings as rows of a table: lists, NumPy arrays and Arrow columns, beside pandas and polars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import Sizes

import shardcore as sc

MOST = 1_000_000


def words_of(sizes: Sizes) -> list[str]:
    count = min(sizes.rows, MOST)
    return [f"user:{row * 7919 % count}" for row in range(count)]


def arrow(kind: str) -> Callable[[list[str]], Any]:
    def column(words: list[str]) -> Any:
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        return pyarrow.array(words, getattr(pyarrow, kind)())

    return column


def dictionary(words: list[str]) -> Any:
    return arrow("string")([f"{word[:-2]}" for word in words]).dictionary_encode()


FORMS = {
    "list": list,
    "array": np.array,
    "array of objects": lambda words: np.array(words, object),
    "string": arrow("string"),
    "string_view": arrow("string_view"),
    "dictionary": dictionary,
}


@pytest.mark.benchmark(group="hash strings")
@pytest.mark.parametrize("kind", ["xxh64", "farmhash64"])
@pytest.mark.parametrize("form", FORMS)
def test_strings(benchmark: Callable[..., Any], sizes: Sizes, form: str, kind: Any) -> None:
    given = FORMS[form](words_of(sizes))
    function = sc.Hash(10**6, kind=kind)
    rows = benchmark(function, given)
    words = given if isinstance(given, list) else given.tolist()
    np.testing.assert_array_equal(rows, function(words))


@pytest.mark.benchmark(group="hash strings")
@pytest.mark.parametrize("peer", ["pandas", "polars"])
def test_strings_of_a_peer(benchmark: Callable[..., Any], sizes: Sizes, peer: str) -> None:
    library = pytest.importorskip(peer, reason=f"{peer} is not installed")
    words = words_of(sizes)
    if peer == "pandas":
        objects = np.array(words, object)
        found = benchmark(library.util.hash_array, objects, categorize=False)
    else:
        found = benchmark(library.Series(words).hash)
    assert len(found) == len(words)
    assert len(set(found.tolist() if peer == "pandas" else found.to_list())) == len(set(words))


@pytest.mark.benchmark(group="hash integers")
def test_integers(benchmark: Callable[..., Any], sizes: Sizes) -> None:
    ids = np.arange(min(sizes.rows, MOST))
    rows = benchmark(sc.Hash(10**6), ids)
    assert rows[:2].tolist() == sc.hash_ids([0, 1], 10**6).tolist()
