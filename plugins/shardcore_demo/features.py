"""A function's text as a bag of hashed ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import shardcore as sc

__all__ = ["Bags", "hashed_bags", "take_bags", "tokens_of"]

Bags = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Values and row_splits."""

_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def tokens_of(text: str) -> list[str]:
    """Return what stands for a function in its bag, with repetitions.

    These are its words, the pairs of adjacent tokens (words and punctuation), and the parts of the
    words that are put together from several, in lower case. Words in strings and comments count.

    Examples
    --------
    >>> tokens_of("return read_file(x)")
    ['return', 'read_file', 'x', 'return read_file', 'read_file (', '( x', 'x )', ':read', ':file']
    """
    tokens = _TOKEN.findall(text)
    words = [token for token in tokens if token[0] == "_" or token[0].isalnum()]
    parts = [found for word in words if len(found := _PART.findall(word)) > 1]
    return [
        *words,
        *(f"{left} {right}" for left, right in pairwise(tokens)),
        *(f":{part.lower()}" for found in parts for part in found),
    ]


def hashed_bags(texts: Sequence[str], buckets: int) -> Bags:
    """Return one bag of ids per text.

    Parameters
    ----------
    texts : sequence of str
    buckets : int
        Ids are in ``[0, buckets)``.

    Returns
    -------
    values : ndarray of int64
    row_splits : ndarray of int64, shape (len(texts) + 1,)
    """
    bags = [tokens_of(text) for text in texts]
    row_splits = np.concatenate(([0], np.cumsum([len(bag) for bag in bags], dtype=np.int64)))
    return sc.hash_ids([token for bag in bags for token in bag], buckets), row_splits


def take_bags(bags: Bags, chosen: NDArray[Any]) -> Bags:
    """Return the bags of the given numbers, in their order.

    Examples
    --------
    >>> take_bags((np.array([7, 8, 9]), np.array([0, 2, 3])), np.array([1, 0]))
    (array([9, 7, 8]), array([0, 1, 3]))
    """
    values, row_splits = bags
    starts, lengths = row_splits[chosen], np.diff(row_splits)[chosen]
    splits = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)
    return values[positions], splits
