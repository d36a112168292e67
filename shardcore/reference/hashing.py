"""Twins of ``_core/hashing.pyx``: 64-bit hashes of strings and integers, and the rows they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["hash_fixed", "hash_integers", "hash_spans", "hash_views", "hash_words"]

_WORD: Final = 2**64 - 1

_P1: Final = 11400714785074694791  # the primes of xxHash's specification
_P2: Final = 14029467366897019727
_P3: Final = 1609587929392839161
_P4: Final = 9650029242287828579
_P5: Final = 2870177450012600261

_K0: Final = 0xC3A5C85C97CB3127  # the primes of FarmHash
_K1: Final = 0xB492B66FBE98F273
_K2: Final = 0x9AE16A3B2F90404F


def _number(data: bytes, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "little")


def _rotated(x: int, left: int) -> int:
    x &= _WORD
    return (x << left | x >> (64 - left)) & _WORD


def _turned(x: int, right: int) -> int:
    return _rotated(x, 64 - right)


def xxh64(data: bytes, seed: int) -> int:
    """Return XXH64 of `data`: steps 1 to 7 of its specification."""

    def mixed(lane: int, word: int) -> int:
        return _rotated(lane + word * _P2, 31) * _P1 & _WORD

    whole = len(data) // 32 * 32
    if whole:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for stripe in range(0, whole, 32):
            for at in range(4):
                lanes[at] = mixed(lanes[at], _number(data, stripe + 8 * at, 8))
        lefts = (1, 7, 12, 18)
        total = sum(_rotated(lane, left) for lane, left in zip(lanes, lefts, strict=True))
        for lane in lanes:
            total = (total ^ mixed(0, lane)) * _P1 + _P4 & _WORD
    else:
        total = seed + _P5
    total = total + len(data) & _WORD
    rest = data[whole:]
    while len(rest) >= 8:
        total = _rotated(total ^ mixed(0, _number(rest, 0, 8)), 27) * _P1 + _P4 & _WORD
        rest = rest[8:]
    if len(rest) >= 4:
        total = _rotated(total ^ _number(rest, 0, 4) * _P1 & _WORD, 23) * _P2 + _P3 & _WORD
        rest = rest[4:]
    for byte in rest:
        total = _rotated(total ^ byte * _P5 & _WORD, 11) * _P1 & _WORD
    total = (total ^ total >> 33) * _P2 & _WORD
    total = (total ^ total >> 29) * _P3 & _WORD
    return total ^ total >> 32


def farmhash64(data: bytes) -> int:
    """Return FarmHash's ``Fingerprint64`` of `data`."""
    size = len(data)

    def word(at: int) -> int:
        return _number(data, at % size, 8)

    def fold(x: int) -> int:
        x &= _WORD
        return x ^ x >> 47

    def join(u: int, v: int, factor: int) -> int:
        return fold((v ^ fold(((u ^ v) & _WORD) * factor)) * factor) * factor & _WORD

    def mix32(at: int, a: int, b: int) -> tuple[int, int]:
        w, x, y, z = (word(at + 8 * i) for i in range(4))
        c = a + w
        return (c + x + y + z) & _WORD, (
            _turned(b + c + z, 21) + _turned(c + x + y, 44) + c
        ) & _WORD

    factor = _K2 + 2 * size & _WORD
    if size == 0:
        return _K2
    if size < 4:
        a, b, c = data[0], data[size >> 1], data[-1]
        return fold((a + (b << 8)) * _K2 ^ (size + (c << 2)) * _K0) * _K2 & _WORD
    if size < 8:
        return join(size + (_number(data, 0, 4) << 3), _number(data, size - 4, 4), factor)
    if size <= 16:
        a, b = word(0) + _K2, word(-8)
        c = _turned(b, 37) * factor + a
        return join(c & _WORD, (_turned(a, 25) + b) * factor & _WORD, factor)
    if size <= 64:
        a, b = word(0) * (_K1 if size <= 32 else _K2), word(8)
        c, d = word(-8) * factor, word(-16) * _K2
        y = _turned(a + b, 43) + _turned(c, 30) + d & _WORD
        z = a + _turned(b + _K2, 18) + c & _WORD
        if size <= 32:
            return join(y, z, factor)
        z = join(y, z, factor)
        e, f = word(16) * factor, word(24)
        g, h = (y + word(-32)) * factor, (z + word(-24)) * factor
        y = _turned(e + f, 43) + _turned(g, 30) + h & _WORD
        return join(y, e + _turned(f + a, 18) + g & _WORD, factor)
    x, y = 81 * _K2 + word(0), 81 * _K1 + 113
    z, v, w = fold(y * _K2 + 113) * _K2, (0, 0), (0, 0)

    def turn(at: int, factor: int, nine: int) -> None:
        nonlocal x, y, z, v, w
        x = (_turned(x + y + v[0] + word(at + 8), 37) * factor & _WORD) ^ nine * w[1] & _WORD
        y = _turned(y + v[1] + word(at + 48), 42) * factor + nine * v[0] + word(at + 40)
        z = _turned(z + w[0], 33) * factor & _WORD
        v = mix32(at, v[1] * factor, x + w[0])
        w = mix32(at + 32, z + w[1], y + word(at + 16))
        x, z = z, x

    beyond = (size - 1) % 64
    for at in range(0, size - 1 - beyond, 64):
        turn(at, _K1, 1)
    factor = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + beyond, w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    turn(size - 64, factor, 9)
    left = join(v[0], w[0], factor) + fold(y) * _K0 + z & _WORD
    return join(left, join(v[1], w[1], factor) + x & _WORD, factor)


def hash_integers(ids: NDArray[Any], seed: int, buckets: int) -> NDArray[np.int64]:
    """Return the row of each integer: the finaliser of SplitMix64.

    Examples
    --------
    >>> hash_integers(np.array([7, 8]), 0, 1000)
    array([487, 622])
    """

    def row(x: int) -> int:
        z = x + (seed + 1) * 0x9E3779B97F4A7C15 & _WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
        return (z ^ z >> 31) % buckets

    return np.array([row(x) for x in ids.ravel().tolist()], np.int64).reshape(ids.shape)


def _function(kind: str, seed: int, buckets: int) -> Callable[[bytes], int]:
    if kind == "xxh64":
        return lambda data: xxh64(data, seed) % buckets
    return lambda data: farmhash64(data) % buckets


def hash_words(
    words: list[Any], kind: str, seed: int, buckets: int
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each word; and the first that is no str or bytes, or has no UTF-8, or -1.

    Examples
    --------
    >>> hash_words(["user:7", 8], "xxh64", 0, 1000)
    (array([], dtype=int64), 1)
    """
    rows: list[int] = []
    for at, word in enumerate(words):
        if not isinstance(word, str | bytes):
            return np.array([], np.int64), at
    row = _function(kind, seed, buckets)
    for at, word in enumerate(words):
        try:
            rows.append(row(word.encode() if isinstance(word, str) else word))
        except UnicodeEncodeError:
            return np.array(rows, np.int64), at
    return np.array(rows, np.int64), -1


def hash_fixed(
    array: NDArray[Any], kind: str, seed: int, buckets: int
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each string of a "U" or "S" array; and the first without UTF-8, or -1.

    Examples
    --------
    >>> hash_fixed(np.array(["user:7"]), "xxh64", 0, 1000)
    (array([503]), -1)
    """
    if array.dtype.kind == "S":
        words: list[Any] = array.ravel().tolist()
    else:
        words = []
        little = array.ravel().astype(array.dtype.newbyteorder("<"))
        data, width = little.tobytes(), little.dtype.itemsize
        for at in range(little.size):
            points = np.frombuffer(data[at * width : (at + 1) * width], "<u4").tolist()
            while points and not points[-1]:
                points.pop()
            none = any(point > 0x10FFFF for point in points)
            words.append("\ud800" if none else "".join(map(chr, points)))
    rows, bad = hash_words(words, kind, seed, buckets)
    return rows.reshape(array.shape) if bad < 0 else rows, bad


def hash_spans(
    data: NDArray[np.uint8], offsets: NDArray[Any], kind: str, seed: int, buckets: int
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each ``data[offsets[i]:offsets[i + 1]]``; and the first bad span, or -1.

    Examples
    --------
    >>> hash_spans(np.frombuffer(b"user:7", np.uint8), np.array([0, 6]), "xxh64", 0, 1000)
    (array([503]), -1)
    """
    row, text = _function(kind, seed, buckets), data.tobytes()
    rows: list[int] = []
    for at, (start, stop) in enumerate(pairwise(offsets.tolist())):
        if not 0 <= start <= stop <= len(text):
            return np.array(rows, np.int64), at
        rows.append(row(text[start:stop]))
    return np.array(rows, np.int64), -1


def hash_views(
    views: NDArray[np.uint8],
    buffers: Sequence[NDArray[np.uint8]],
    kind: str,
    seed: int,
    buckets: int,
) -> tuple[NDArray[np.int64], int]:
    r"""Return the row of each string that a view tells of; and the first bad view, or -1.

    Examples
    --------
    >>> view = np.frombuffer(b"\6\0\0\0" + b"user:7" + bytes(6), np.uint8)
    >>> hash_views(view, [], "xxh64", 0, 1000)
    (array([503]), -1)
    """
    row, rows = _function(kind, seed, buckets), list[int]()
    for at in range(views.size // 16):
        view = views[16 * at : 16 * at + 16]
        size, _, buffer, start = view.view("<i4").tolist()
        if 0 <= size <= 12:
            rows.append(row(view[4 : 4 + size].tobytes()))
            continue
        held = buffers[buffer].tobytes() if 0 <= buffer < len(buffers) else b""
        if size < 0 or start < 0 or start + size > len(held):
            return np.array(rows, np.int64), at
        rows.append(row(held[start : start + size]))
    return np.array(rows, np.int64), -1
