"""Rows of strings and integers by 64-bit hashes. The face of ``_core/hashing.pyx``.

Strings come as Python objects, or as Arrow lays them out: spans of one buffer between offsets, or a
view of 16 bytes each. Nothing that a caller may change meanwhile is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore._core import hashing as _hashing
from shardcore.memory import pool

__all__ = ["KINDS", "Kind", "hash_fixed", "hash_integers", "hash_spans", "hash_views", "hash_words"]

Kind: TypeAlias = Literal["xxh64", "farmhash64"]

KINDS: Final[tuple[Kind, ...]] = ("xxh64", "farmhash64")
"""The hashes of strings; the kernel knows each by its place."""

_fused: Any = _hashing.hash_spans
_spans: Final = {np.dtype(np.int32): _fused["int32_t"], np.dtype(np.int64): _fused["int64_t"]}


def hash_words(
    words: list[Any], kind: Kind, seed: int, buckets: int
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each str, by its UTF-8, and of each bytes.

    Parameters
    ----------
    words : list
        That nobody else has: no other thread may change it.
    kind : {"xxh64", "farmhash64"}
    seed : int
        In [0, 2**64); 0 for a kind that has none.
    buckets : int
        In [1, 2**63).

    Returns
    -------
    rows : ndarray of int64, shape (words,)
        Complete if there is no bad word.
    bad : int
        The first position of what is neither str nor bytes; if there is none, of a str with a
        surrogate in it, which has no UTF-8; else -1.

    Examples
    --------
    >>> hash_words(["user:7", b"user:7", "é"], "xxh64", 0, 1000)
    (array([503, 503, 848]), -1)
    """
    count = len(words)
    rows = np.empty(count, np.int64)
    addresses, lengths = pool.empty(count, np.dtype(np.int64)), pool.empty(count, rows.dtype)
    widths = pool.empty(count, np.dtype(np.int8))
    bad = _hashing.find_words(words, addresses, lengths, widths)
    if bad < 0:
        bad = _hash_found(addresses, lengths, widths, kind, seed, buckets, rows)
    return rows, bad


def hash_fixed(
    array: NDArray[Any], kind: Kind, seed: int, buckets: int
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each string of an array of NumPy's kind "U", by its UTF-8, or "S".

    Parameters
    ----------
    array : ndarray of "U" or "S", any shape
    kind, seed, buckets : as in `hash_words`

    Returns
    -------
    rows : ndarray of int64, the shape of `array`
        Complete if there is no bad string.
    bad : int
        The flat position of the first string that has no UTF-8, for it holds a surrogate or what
        is no character, or -1.

    Examples
    --------
    >>> hash_fixed(np.array(["user:7", "é"]), "xxh64", 0, 1000)
    (array([503, 848]), -1)
    """
    unit: Any = np.uint32 if array.dtype.kind == "U" else np.uint8
    own = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    width = own.dtype.itemsize // np.dtype(unit).itemsize
    # One of no width cannot be seen as units: it has as many zeros as one of width 1.
    units = (
        own.reshape(-1).view(unit).reshape(-1, width) if width else np.zeros((own.size, 1), unit)
    )
    rows = np.empty(own.size, np.int64)
    addresses, lengths = pool.empty(own.size, rows.dtype), pool.empty(own.size, rows.dtype)
    _hashing.find_fixed(units, addresses, lengths)
    widths = np.full(own.size, 4 if unit is np.uint32 else 0, np.int8)
    bad = _hash_found(addresses, lengths, widths, kind, seed, buckets, rows)
    return rows.reshape(array.shape), bad


def _hash_found(
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64],
    widths: NDArray[np.int8],
    kind: Kind,
    seed: int,
    buckets: int,
    rows: NDArray[np.int64],
) -> int:
    # Of a code point of 1 byte come 2, of 2 come 3, of 4 come 4.
    room = int(np.max(lengths * (widths + 1), where=widths > 0, initial=1))
    scratch = np.empty(room, np.uint8)
    place = KINDS.index(kind)
    return _hashing.hash_words(addresses, lengths, widths, place, seed, buckets, scratch, rows)


def hash_spans(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int32] | NDArray[np.int64],
    kind: Kind,
    seed: int,
    buckets: int,
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each ``data[offsets[i]:offsets[i + 1]]``.

    Parameters
    ----------
    data : ndarray of uint8, shape (bytes,), C-contiguous
    offsets : ndarray of int32 or int64, shape (n + 1,), C-contiguous, aligned
    kind, seed, buckets : as in `hash_words`

    Returns
    -------
    rows : ndarray of int64, shape (n,)
        Complete if there is no bad span.
    bad : int
        The first position of a span that is not within `data`, or -1.

    Examples
    --------
    >>> data = np.frombuffer(b"user:7user:8", np.uint8)
    >>> hash_spans(data, np.array([0, 6, 12]), "xxh64", 0, 1000)
    (array([503, 428]), -1)
    """
    rows = np.empty(offsets.size - 1, np.int64)
    bad: int = _spans[offsets.dtype](data, offsets, KINDS.index(kind), seed, buckets, rows)
    return rows, bad


def hash_views(
    views: NDArray[np.uint8],
    buffers: Sequence[NDArray[np.uint8]],
    kind: Kind,
    seed: int,
    buckets: int,
) -> tuple[NDArray[np.int64], int]:
    r"""Return the row of each string that a view tells of.

    A view is four little-endian int32. The first is the string's length in bytes; if that is at
    most 12, the string follows. Else there follow its first 4 bytes, the number of the buffer it is
    in and where it starts there: Arrow's layout of string_view and binary_view.

    Parameters
    ----------
    views : ndarray of uint8, shape (16 * n,), C-contiguous
    buffers : sequence of ndarray of uint8, C-contiguous
    kind, seed, buckets : as in `hash_words`

    Returns
    -------
    rows : ndarray of int64, shape (n,)
        Complete if there is no bad view.
    bad : int
        The first position of a view that is not within a buffer, or -1.

    Examples
    --------
    >>> view = np.frombuffer(b"\6\0\0\0" + b"user:7" + bytes(6), np.uint8)
    >>> hash_views(view, [], "xxh64", 0, 1000)
    (array([503]), -1)
    """
    rows = np.empty(views.size // 16, np.int64)
    addresses = np.array([buffer.ctypes.data for buffer in buffers], np.int64)
    sizes = np.array([buffer.size for buffer in buffers], np.int64)
    bad = _hashing.hash_views(views, addresses, sizes, KINDS.index(kind), seed, buckets, rows)
    return rows, bad


def hash_integers(ids: NDArray[Any], seed: int, buckets: int) -> NDArray[np.int64]:
    """Return the row of each integer, which depends on its value alone, not on its dtype.

    Parameters
    ----------
    ids : ndarray of any integer dtype, any shape
    seed, buckets : as in `hash_words`

    Returns
    -------
    ndarray of int64, the shape of `ids`

    Examples
    --------
    >>> hash_integers(np.array([7, 8], np.uint8), 0, 1000)
    array([487, 622])
    """
    wide = np.require(ids, np.int64 if ids.dtype.kind == "i" else np.uint64, ["C", "A"])
    rows = np.empty(wide.size, np.int64)
    _hashing.hash_integers(wide.reshape(-1).view(np.uint64), seed, buckets, rows)
    return rows.reshape(ids.shape)
