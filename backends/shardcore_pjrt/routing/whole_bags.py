"""The bags of all processes as one batch, where each has only its own.

A device has the samples of its process. Of each feature every device has room for as many bags:
those of the process that gives most per device. A process with fewer fills its own up with empty
ones, so the bags of all processes, device by device along the mesh, are a batch like any other.

Bags travel between processes as words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardcore.backend import FeatureBags

__all__ = ["Bags", "packed", "unpacked", "whole_bags"]

Words = NDArray[np.uint32]

_HEAD: Final = 4
"""Words before those of a feature's arrays: bags, ids, and whether there are weights, divisors."""


def packed(features: Sequence[FeatureBags]) -> Words:
    """Return bags as words that `unpacked` reads.

    Parameters
    ----------
    features : sequence of FeatureBags
        Ids below 2**31; weights and divisors float32.

    Examples
    --------
    >>> bags = FeatureBags(np.array([7, 2]), np.array([0, 0, 2]))
    >>> packed([bags])
    array([2, 2, 0, 0, 0, 2, 7, 2], dtype=uint32)
    """
    parts: list[NDArray[Any]] = []
    for bags in features:
        head = bags.num_bags, bags.ids.size, bags.weights is not None, bags.divisors is not None
        parts += [np.array(head, np.int32), np.diff(bags.row_splits).astype(np.int32)]
        parts.append(bags.ids.astype(np.int32, copy=False))
        parts += [
            np.asarray(one, np.float32) for one in (bags.weights, bags.divisors) if one is not None
        ]
    if not parts:
        return np.empty(0, np.uint32)
    return np.concatenate([one.view(np.uint32) for one in parts])


class Bags(NamedTuple):
    """A feature's bags, of one process."""

    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    divisors: NDArray[np.float32] | None


def unpacked(words: Words) -> Iterator[Bags]:
    """Yield the bags of each feature, of words that `packed` returned."""
    at = 0

    def taken(count: int, dtype: type[np.generic]) -> NDArray[Any]:
        nonlocal at
        at += count
        return words[at - count : at].view(dtype)

    while at < words.size:
        bags, ids, weighted, divided = taken(_HEAD, np.int32).tolist()
        yield Bags(
            taken(bags, np.int32),
            taken(ids, np.int32),
            taken(ids, np.float32) if weighted else None,
            taken(bags, np.float32) if divided else None,
        )


def whole_bags(
    given: Sequence[Bags], places: Sequence[Sequence[int]], bags_per_sample: int
) -> FeatureBags:
    """Return one feature's bags of all processes, device by device, filled up with empty ones.

    Parameters
    ----------
    given : sequence of Bags
        Per process.
    places : sequence of sequence of int
        Of the devices of each process, along the mesh.
    bags_per_sample : int

    Examples
    --------
    >>> own = FeatureBags(np.array([7, 2, 5]), np.array([0, 1, 3]))
    >>> first, second = unpacked(packed([own, own]))
    >>> bags = whole_bags([first, second], [[0, 1, 2], [3]], 1)
    >>> bags.ids, np.diff(bags.row_splits)
    (array([7, 2, 5, 7, 2, 5], dtype=int32), array([1, 2, 0, 0, 0, 0, 1, 2]))
    """
    own = most_bags_of_device(
        [bags.lengths.size for bags in given], [len(one) for one in places], bags_per_sample
    )
    devices = sum(len(one) for one in places)
    weighted = any(bags.weights is not None for bags in given)
    divided = any(bags.divisors is not None for bags in given)
    lengths = np.zeros((devices, own), np.int64)
    divisors = np.ones((devices, own), np.float32)
    ids: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * devices
    weights: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * devices
    for bags, at in zip(given, places, strict=True):
        splits = np.concatenate([[0], np.cumsum(bags.lengths, dtype=np.int64)])
        for device, first in zip(at, range(0, len(at) * own, own or 1), strict=False):
            part = slice(first, min(first + own, bags.lengths.size))
            if part.start >= part.stop:
                continue
            n = part.stop - part.start
            lengths[device, :n] = bags.lengths[part]
            if bags.divisors is not None:
                divisors[device, :n] = bags.divisors[part]
            named = slice(int(splits[part.start]), int(splits[part.stop]))
            ids[device] = bags.ids[named]
            if bags.weights is not None:
                weights[device] = bags.weights[named]
            elif weighted:
                weights[device] = np.ones(named.stop - named.start, np.float32)
    row_splits = np.zeros(devices * own + 1, np.int64)
    np.cumsum(lengths, out=row_splits[1:])
    return FeatureBags(
        np.concatenate(ids),
        row_splits,
        np.concatenate(weights) if weighted else None,
        divisors.reshape(-1) if divided else None,
        bags_per_sample,
    )


def most_bags_of_device(bags: Sequence[int], devices: Sequence[int], bags_per_sample: int) -> int:
    """Return for how many bags of a feature a device has room, given the bags of each process.

    Examples
    --------
    >>> most_bags_of_device([6, 9], [1, 2], bags_per_sample=3)
    6
    """
    return max(
        -(-count // (bags_per_sample * own)) * bags_per_sample
        for count, own in zip(bags, devices, strict=True)
    )
