"""Numbers from outside: any array read as NumPy, with ids and weights checked for their type.

Torch, JAX and every other library are read through ``__array__`` or DLPack and never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.validation.integers import integers, place_in
from shardcore.validation.shapes import check_rank

__all__ = ["read_array", "read_numbers", "as_ids", "as_floats"]

_INT64: Final = np.iinfo(np.int64)
_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


def read_numbers(numbers: list[Any], name: Callable[[int], str]) -> NDArray[Any]:
    """Return a flat list of Python or NumPy numbers as int64, or as float64 if one is a float.

    NumPy on its own would turn ``True`` into 1 and ``[2**63, -1]`` into floats without a word.

    Parameters
    ----------
    numbers : list
        Integers in int64 range and floats.
    name : callable
        Position -> what to call that entry in a message.

    Raises
    ------
    ShardcoreTypeError
        If an entry is no number, or is a bool.
    ShardcoreValueError
        If an integer does not fit int64.

    Examples
    --------
    >>> read_numbers([3, 1], "ids[{}]".format)
    array([3, 1])
    """
    types = set(map(type, numbers))
    refused = tuple(
        kind
        for kind in types
        if issubclass(kind, bool) or not issubclass(kind, int | float | np.integer | np.floating)
    )
    if refused:
        at = next(i for i, number in enumerate(numbers) if type(number) in refused)
        raise ShardcoreTypeError(f"{name(at)} must be a number, got {shown(numbers[at])}")
    integral = all(issubclass(kind, int | np.integer) for kind in types)
    try:
        return np.array(numbers, dtype=np.int64 if integral else np.float64)
    except OverflowError as error:
        at = next(
            i
            for i, number in enumerate(numbers)
            if isinstance(number, int | np.integer) and not _INT64.min <= number <= _INT64.max
        )
        raise ShardcoreValueError(f"{name(at)} = {numbers[at]} does not fit int64") from error


def read_array(x: object, argument: str) -> NDArray[Any]:
    """Return `x` as a NumPy array, without a copy where its owner allows that.

    Parameters
    ----------
    x : array-like
        An ndarray, an object with ``__array__`` or ``__dlpack__`` (torch, JAX, …), or a regular
        (nested) list or tuple of numbers.
    argument : str
        Its name, for the message.

    Returns
    -------
    ndarray
        Same shape; the dtype is the owner's and not checked.

    Raises
    ------
    ShardcoreTypeError
        If it is none of these, cannot be read from here (it lives on a device, say), is a masked
        array, or a list with something else than numbers.
    ShardcoreValueError
        If a list holds an integer that does not fit int64.

    Examples
    --------
    >>> read_array([[1, 2], [3, 4]], "x").shape
    (2, 2)
    """
    if isinstance(x, np.ma.MaskedArray):
        raise ShardcoreTypeError(
            f"{argument} must not be a masked array: its mask would be lost; "
            "fill it and use sc.Ragged.from_dense(x, padding=...)"
        )
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if isinstance(x, list | tuple):
        return _read_nested(x, argument)
    try:
        if hasattr(x, "__array__"):
            return np.asarray(x)
        if hasattr(x, "__dlpack__"):
            return np.from_dlpack(x)
    except Exception as error:  # whatever the owner raises: it is the reason, and it is passed on
        raise ShardcoreTypeError(
            f"{argument} cannot be read as a NumPy array: {type(error).__name__}: {error}"
        ) from error
    raise ShardcoreTypeError(f"{argument} must be an array, got {type(x).__name__}")


def _read_nested(x: list[Any] | tuple[Any, ...], argument: str) -> NDArray[Any]:
    check_rank(x, argument)
    try:
        objects = np.asarray(x, dtype=object)
    except ValueError as error:
        raise ShardcoreValueError(f"{argument} must be a regular nested list: {error}") from error
    numbers = read_numbers(
        objects.ravel().tolist(), lambda at: place_in(argument, at, objects.shape)
    )
    return numbers.reshape(objects.shape)


def as_ids(array: NDArray[Any], argument: str) -> NDArray[np.int32] | NDArray[np.int64]:
    """Return an array of any integer type as int32 (if it is that) or int64, same shape.

    An empty array holds no id, so its dtype is not asked: ``np.array([])`` is float64.

    Raises
    ------
    ShardcoreTypeError
        If the dtype is no integer type.
    ShardcoreValueError
        If a uint64 does not fit int64.

    Examples
    --------
    >>> as_ids(np.array([3, 1], np.uint8), "ids")
    array([3, 1])
    """
    if array.size == 0 and array.dtype.kind not in "iu":
        return np.empty(array.shape, dtype=np.int64)
    return integers(array, argument)


def as_floats(array: NDArray[Any], argument: str) -> NDArray[Any]:
    """Return real numbers as native C-contiguous floats of their type, integers as float64.

    Raises
    ------
    ShardcoreTypeError
        If the dtype is neither float16, bfloat16, float32 or float64 nor an integer type.

    Examples
    --------
    >>> as_floats(np.array([3, 1]), "weights")
    array([3., 1.])
    """
    if array.dtype.kind in "iu":
        return array.astype(np.float64, order="C")
    if array.dtype.name not in _FLOATS:
        raise ShardcoreTypeError(
            f"{argument} must be float16, bfloat16, float32 or float64, got dtype {array.dtype}"
        )
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
