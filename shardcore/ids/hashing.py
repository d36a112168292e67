"""Hashing of ids into the rows of a table, always asked for, never done behind one's back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.validation.integers import place_in
from shardcore.validation.shapes import check_rank

__all__ = ["hash_ids"]

HashableIds: TypeAlias = NDArray[Any] | Sequence[Any] | int | np.integer[Any]

_MAX_BUCKETS: Final = 2**63 - 1  # rows are int64
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, made odd
_WORD: Final = 2**64 - 1
_OBJECT_KINDS: Final = "OSUT"  # Python objects, and NumPy's kinds of strings
_RULE: Final = "ids must be an array or a sequence of integers, of str or of bytes"


def hash_ids(ids: HashableIds, buckets: int, seed: int = 0) -> NDArray[np.int64]:
    """Return a row in ``[0, buckets)`` for every id, the same in every process on every platform.

    An integer x, taken modulo 2**64, is mixed by the finaliser of splitmix64::

        z = x + (seed + 1) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z = z ^ (z >> 31)

    all modulo 2**64; a string is digested by BLAKE2b to 8 bytes, read as a little-endian integer,
    with the 8 little-endian bytes of `seed` as the key. The row is the result modulo `buckets`.
    Different ids may share a row.

    Parameters
    ----------
    ids : array or sequence of integers, of str or of bytes, any shape
        An integer's row depends on its value alone, not on its dtype. A str counts as its UTF-8
        bytes. Each distinct string is digested once.
    buckets : int
        Number of rows of the table, in [1, 2**63).
    seed : int, default 0
        In [0, 2**64). Another seed is another hash function.

    Returns
    -------
    ndarray of int64, the shape of `ids`

    Raises
    ------
    ShardcoreTypeError
        If `ids` are neither integers nor strings, or `buckets` or `seed` is no integer.
    ShardcoreValueError
        If `buckets` or `seed` is out of its range, or an id needs more than 64 bits.

    Notes
    -----
    Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; the constants
    are those of Vigna's ``splitmix64.c``. BLAKE2 is RFC 7693.

    Examples
    --------
    >>> hash_ids([[7, 8], [9, 7]], buckets=1000)
    array([[487, 622],
           [228, 487]])
    >>> hash_ids(["user:7", "user:8"], buckets=1000)
    array([202, 730])
    """
    rows = _in_range(buckets, "buckets", 1, _MAX_BUCKETS, "2**63")
    key = _in_range(seed, "seed", 0, _WORD, "2**64")
    array = _as_array(ids)
    if array.dtype == object:
        return _hashed_strings(array, rows, key)
    return _hashed_integers(array, rows, key)


def _in_range(value: object, argument: str, low: int, high: int, bound: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ShardcoreTypeError(f"{argument} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ShardcoreValueError(f"{argument} must be in [{low}, {bound}), got {value}")
    return int(value)


def _as_array(ids: object) -> NDArray[Any]:
    """Return integers as an array of an integer dtype, strings as one of Python objects."""
    if isinstance(ids, str | bytes):
        raise ShardcoreTypeError(f"{_RULE}, got the {type(ids).__name__} {ids!r}")
    kind = np.asarray(ids).dtype.kind if hasattr(ids, "dtype") else "O"
    if kind in "iu":
        return np.asarray(ids)
    if kind not in _OBJECT_KINDS:
        raise ShardcoreTypeError(f"{_RULE}, got dtype {np.asarray(ids).dtype}")
    check_rank(ids, "ids")
    try:
        # Left to itself NumPy would strip trailing NULs and turn large integers into floats.
        array = np.array(ids, dtype=object)
    except ValueError as error:
        raise ShardcoreValueError(f"ids must form one rectangular array: {error}") from error
    return _typed(array)


def _typed(array: NDArray[Any]) -> NDArray[Any]:
    flat = array.ravel().tolist()
    families = {_family(kind) for kind in set(map(type, flat))}
    if families == {"string"}:
        return array
    if families <= {"integer"}:
        for number, value in enumerate(flat):
            if not -(2**63) <= value <= _WORD:
                where = place_in("ids", number, array.shape)
                raise ShardcoreValueError(f"ids must fit into 64 bits, got {where} = {value}")
        words = np.array([int(value) & _WORD for value in flat], np.uint64)
        return words.reshape(array.shape)
    wanted = _family(type(flat[0]))
    odd = (wanted is None or _family(type(value)) != wanted for value in flat)
    number = next(number for number, is_odd in enumerate(odd) if is_odd)
    raise ShardcoreTypeError(
        f"{_RULE}, got {place_in('ids', number, array.shape)} = {shown(flat[number])}"
    )


def _family(kind: type) -> str | None:
    if issubclass(kind, str | bytes):
        return "string"
    return "integer" if issubclass(kind, int | np.integer) and kind is not bool else None


def _hashed_integers(array: NDArray[Any], rows: int, seed: int) -> NDArray[np.int64]:
    z = array.ravel().astype(np.int64 if array.dtype.kind == "i" else np.uint64).view(np.uint64)
    z = z + np.uint64((seed + 1) * _GOLDEN & _WORD)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z % np.uint64(rows)).astype(np.int64).reshape(array.shape)


def _hashed_strings(array: NDArray[Any], rows: int, seed: int) -> NDArray[np.int64]:
    key = seed.to_bytes(8, "little")
    words = array.ravel().tolist()
    table = {}
    for word in set(words):
        data = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word
        digest = hashlib.blake2b(data, digest_size=8, key=key).digest()
        table[word] = int.from_bytes(digest, "little") % rows
    found = map(table.__getitem__, words)
    return np.fromiter(found, np.int64, count=len(words)).reshape(array.shape)
