"""Calls of Python out of graphs of TensorFlow: functions that take arrays, and return them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shardcore.errors import UnavailableError
from shardcore.tf.operation import NAME, calls, register

__all__ = ["library", "run"]

_LIBRARY: Final = "libtensorflow_framework."
_NUMBERS: Final = count(secrets.randbits(62))


def run(
    function: Callable[..., list[NDArray[Any]]], tensors: Sequence[Any], dtypes: Sequence[Any]
) -> list[Any]:
    """Call a function of arrays, at once, or whenever the graph runs that is being made.

    Parameters
    ----------
    function : callable
        Takes arrays, which are not written, and returns a list of them.
    tensors : sequence of tf.Tensor
    dtypes : sequence of tf.DType
        Of what it returns.

    Returns
    -------
    list of tf.Tensor
        In a graph their shapes are not known.

    Examples
    --------
    >>> double = tf.function(lambda one: run(lambda array: [2 * array], [one], [tf.int32])[0])
    >>> double(tf.constant([1, 2])).numpy()
    array([2, 4], dtype=int32)
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(one) for one in function(*map(np.asarray, tensors))]
    if any(one.dtype == tf.string for one in tensors):  # not numbers in a row in memory
        found: list[Any] = tf.numpy_function(function, list(tensors), list(dtypes))
        return found
    number = next(_NUMBERS)
    given = tuple(np.dtype(one.dtype.as_numpy_dtype) for one in tensors)
    results = tuple((np.dtype(one.as_numpy_dtype), one.as_datatype_enum) for one in dtypes)
    calls[number] = function, given, results  # for good, as `tf.numpy_function` keeps its functions
    graph = tf.compat.v1.get_default_graph()
    attributes = {
        "number": tf.compat.v1.AttrValue(i=number),
        "Tin": _types([one.dtype for one in tensors]),
        "Tout": _types(dtypes),
    }
    return list(graph.create_op(NAME, list(tensors), list(dtypes), attrs=attributes).outputs)


def _types(dtypes: Sequence[Any]) -> Any:
    kinds = [one.as_datatype_enum for one in dtypes]
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(type=kinds))


def library(folder: str) -> str:
    """Return the path of TensorFlow's library in its folder, which may have several names.

    Raises
    ------
    UnavailableError
        If it is not there.
    """
    names = sorted(one for one in os.listdir(folder) if one.startswith(_LIBRARY))
    if not names:
        raise UnavailableError(
            f"shardcore.tf needs TensorFlow's functions in C: {_LIBRARY}* was not found in {folder}"
        )
    return os.path.join(folder, names[0])


def _register() -> None:
    """Tell TensorFlow of the operation, unless that was done in this process."""
    if register(os.fsencode(library(tf.sysconfig.get_lib()))):
        tf.no_gradient(NAME)


_register()
