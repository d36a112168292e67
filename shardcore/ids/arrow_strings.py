"""Arrow arrays of strings as rows: their buffers are hashed where they lie, never copied.

A dictionary is hashed once, however many values are in it. pyarrow is not imported here: what needs
it has it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.digests import Kind, hash_integers, hash_spans, hash_views

__all__ = ["hash_arrow", "integers_refused"]

_INTEGERS: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_SPANS: Final = {"string": np.int32, "binary": np.int32}
_LARGE_SPANS: Final = {"large_string": np.int64, "large_binary": np.int64}
_OFFSETS: Final = _SPANS | _LARGE_SPANS
_VIEWS: Final = ("string_view", "binary_view")
_VIEW: Final = 16


def hash_arrow(
    array: Any, name: str, valid: NDArray[np.bool_] | None, kind: Kind, seed: int, buckets: int
) -> NDArray[np.int64]:
    """Return the row of each value of a pyarrow array that is not null; that of a null is any.

    Parameters
    ----------
    array : pyarrow.Array
        Of integers, strings or binary in any of their layouts, or a dictionary of such, which
        holds no null itself.
    name : str
        Its name, for a message.
    valid : ndarray of bool, or None
        Which are not null; None: all.
    kind, seed, buckets : as in `shardcore.ids.digests.hash_words`

    Returns
    -------
    ndarray of int64, shape (values,)

    Raises
    ------
    ShardcoreTypeError
        If it holds something else.
    ShardcoreValueError
        If it is not laid out as Arrow has it.

    Examples
    --------
    >>> import pyarrow
    >>> array = pyarrow.array(["user:7", "user:8", "user:7"])
    >>> hash_arrow(array, "ids", None, "xxh64", 0, 1000)
    array([503, 428, 503])
    >>> hash_arrow(array.dictionary_encode(), "ids", None, "xxh64", 0, 1000)
    array([503, 428, 503])
    """
    given = str(array.type)
    if len(array) == 0:
        return np.empty(0, np.int64)
    if given.startswith("dictionary<"):
        rows = hash_arrow(array.dictionary, name, None, kind, seed, buckets)
        return _rows_of_codes(rows, array.indices, name, valid)
    if given in _INTEGERS:
        if kind == "farmhash64":
            raise ShardcoreTypeError(integers_refused(name, f"pyarrow {given}"))
        filled = array if valid is None else array.fill_null(0)
        return hash_integers(filled.to_numpy(zero_copy_only=False), seed, buckets)
    if given.startswith("fixed_size_binary["):
        array, given = array.cast("binary"), "binary"
    if given in _VIEWS:
        views, buffers = _views(array, valid)
        rows, bad = hash_views(views, buffers, kind, seed, buckets)
    elif given in _OFFSETS:
        data, offsets = _spans(array, _OFFSETS[given])
        rows, bad = hash_spans(data, offsets, kind, seed, buckets)
    else:
        raise ShardcoreTypeError(
            f"{name} must be integers, strings or binary, to be hashed, got pyarrow {given}"
        )
    if bad >= 0:
        raise ShardcoreValueError(
            f"{name} must lie within their buffers, the pyarrow {given} at position {bad} does not"
        )
    return rows


def integers_refused(name: str, got: str) -> str:
    """Return the message for integers that are given to a hash of strings alone."""
    return (
        f"{name} must be str or bytes for kind='farmhash64', got {got}; "
        "TensorFlow hashes the digits of integers: give str(id)"
    )


def _spans(array: Any, offset: type) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    _, offsets, data = array.buffers()
    splits: NDArray[Any] = np.frombuffer(offsets, offset, count=array.offset + len(array) + 1)
    return _bytes(data), splits[array.offset :]


def _views(
    array: Any, valid: NDArray[np.bool_] | None
) -> tuple[NDArray[np.uint8], list[NDArray[np.uint8]]]:
    _, packed, *buffers = array.buffers()
    begin, count = array.offset * _VIEW, len(array) * _VIEW
    views = _bytes(packed)[begin : begin + count]
    if valid is not None:  # a null's view may be anything: here it is an empty string
        views = np.where(valid[:, None], views.reshape(-1, _VIEW), np.uint8(0)).reshape(-1)
    return views, [_bytes(buffer) for buffer in buffers]


def _bytes(buffer: Any) -> NDArray[np.uint8]:
    if buffer is None or buffer.size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def _rows_of_codes(
    rows: NDArray[np.int64], codes: Any, name: str, valid: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    filled = codes if valid is None else codes.fill_null(0)
    places = filled.to_numpy(zero_copy_only=False).astype(np.int64)  # a copy, which is checked
    outside = (places < 0) | (places >= rows.size)
    if valid is not None:
        outside &= valid
        places[~valid] = 0
    if outside.any():
        at = int(np.argmax(outside))
        raise ShardcoreValueError(
            f"{name} must have codes in [0, {rows.size}), the size of their dictionary, "
            f"got {places[at]} at position {at}"
        )
    return rows[places] if rows.size else np.zeros(places.size, np.int64)
