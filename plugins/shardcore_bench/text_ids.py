"""Ids with the skew of real data: n-grams of the standard library's own source."""

from __future__ import annotations

import re
import sysconfig
import zlib
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["text_ids"]

_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_NOT_THE_LIBRARY: Final = {"site-packages", "dist-packages", "test", "tests"}


def text_ids(draw: np.random.Generator, bags: int, pooling: int, rows: int) -> NDArray[np.int64]:
    """Return ids of so many bags, one after another: 2- and 3-grams of tokens, hashed.

    Each bag is a place in the text: the 2-grams and the 3-grams that begin there, half of each.
    They are the same for one version of Python.
    """
    pairs, triples = _grams()
    half = pooling // 2
    starts = draw.integers(0, len(triples) - pooling, bags)[:, None]
    of_pairs = pairs[starts + np.arange(half)]
    of_triples = triples[starts + np.arange(pooling - half)]
    hashed = np.concatenate((of_pairs, of_triples), axis=1).reshape(-1)
    return (hashed % np.uint64(rows)).astype(np.int64)


@cache
def _grams() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a 64-bit hash of every 2-gram and of every 3-gram, in the order of the text."""
    library = Path(sysconfig.get_paths()["stdlib"])
    codes: dict[str, int] = {}
    tokens: list[int] = []
    for path in sorted(library.rglob("*.py")):
        if _NOT_THE_LIBRARY.isdisjoint(path.relative_to(library).parts):
            for token in _TOKEN.findall(path.read_text(encoding="utf-8", errors="replace")):
                code = codes.get(token)
                if code is None:
                    code = codes[token] = zlib.crc32(token.encode())
                tokens.append(code)
    if len(tokens) < 100_000:
        raise RuntimeError(f"the standard library's source is not in {library}")
    text = np.array(tokens, np.uint64)
    pairs = _mixed(_mixed(text[:-1]) + text[1:])
    return pairs, _mixed(pairs[:-1] + text[2:])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 of every value: a permutation of 64-bit numbers."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)
