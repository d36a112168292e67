"""Initializers of Keras, TensorFlow and JAX as ours, which know the rows they are asked for.

Theirs draw all rows of a shape in one go, so a part of a table has no values of its own. Those
whose distribution is one of ours become it: the numbers are others, by the table's seed and not by
theirs, and the same for every number of shards. All others are refused.

None of the frameworks is imported: they are recognised by the module of their class, and functions
by the names of their parameters.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shardcore.errors import ShardcoreTypeError
from shardcore.initializers.constants import Constant, FromArray, RowId, Zeros
from shardcore.initializers.distributions import Normal, TruncatedNormal, Uniform

__all__ = ["own_initializer"]

_KERAS: Final = ("keras", "tf_keras", "tensorflow")
_SCALING: Final = (
    "VarianceScaling",
    *(f"{name}{kind}" for name in ("Glorot", "He", "Lecun") for kind in ("Normal", "Uniform")),
)
_KINDS: Final = {"normal": "truncated_normal", "untruncated_normal": "normal"}  # JAX's names
_OF_TRUNCATED: Final = 0.87962566103423978  # standard deviation of a normal cut at two of its own


def own_initializer(value: Any, shape: tuple[int, ...]) -> Any:
    """Return ours for an initializer of Keras, TensorFlow or JAX; anything else as it is.

    Parameters
    ----------
    value : callable, array or anything
    shape : tuple of int
        Of the whole table: the scale of some depends on it.

    Raises
    ------
    ShardcoreTypeError
        If it is theirs, and none of ours has its distribution.
    ShardcoreTypeError, ShardcoreValueError
        If a parameter is none that ours takes.

    Examples
    --------
    >>> own_initializer("not a callable", (10, 4))
    'not a callable'
    """
    if isinstance(value, type) or not callable(value):
        return value
    found = None
    if _is_keras(value):
        call = f"({shape})"
        if type(value).__module__.split(".")[0] in _KERAS:
            found = _of_keras(value, type(value).__name__, shape)
    else:
        parameters = _parameters(value)
        if parameters[:2] == ["key", "shape"]:
            call = f"(key, {shape})"
            found = _of_jax(value, shape)
        elif parameters[:1] == ["shape"]:
            call = f"({shape})"
        else:
            return value
    if found is None:
        name = getattr(value, "__qualname__", type(value).__name__).split(".<locals>")[0]
        raise ShardcoreTypeError(
            "initializer must be a callable init(rows, row_shape, dtype, seed) or an array, got "
            f"{name}, which draws all rows at once: give what it draws, "
            f"initializer=numpy.asarray(initializer{call})"
        )
    return found


def _is_keras(value: Any) -> bool:
    return any(
        one.__name__ in ("Initializer", "RowIdInitializer") and one.__module__.startswith(_KERAS)
        for one in type(value).__mro__
    )


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled, without a signature
        return []


def _of_keras(value: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return ours for an initializer of a class of that name, None if there is none."""
    if name == "Zeros":
        return Zeros()
    if name == "Ones":
        return Constant(1.0)
    if name == "Constant":
        if np.ndim(value.value) == 0:
            return Constant(value.value)
        return FromArray(np.asarray(value.value)) if np.shape(value.value) == shape else None
    if name == "RowIdInitializer":
        return RowId(value.offset)
    if name == "RandomNormal":
        return Normal(value.mean, value.stddev)
    if name == "TruncatedNormal":
        return TruncatedNormal(value.mean, value.stddev)
    if name == "RandomUniform":
        return Uniform(value.minval, value.maxval)
    axes = (getattr(value, "input_axes", None), getattr(value, "output_axes", None))
    if name not in _SCALING or len(shape) != 2 or axes != (None, None):
        return None
    kind = _KINDS.get(value.distribution, value.distribution)
    return _scaled(value.scale, value.mode, kind, fan_in=shape[0], fan_out=shape[1])


def _of_jax(function: Any, shape: tuple[int, ...]) -> Any:
    """Return ours for a function of ``jax.nn.initializers``, None if there is none."""
    if not getattr(function, "__module__", "").startswith("jax."):
        return None
    name = function.__qualname__.split(".")[0]
    given: Mapping[str, Any] = inspect.getclosurevars(function).nonlocals
    if name == "zeros":
        return Zeros()
    if name == "ones":
        return Constant(1.0)
    try:
        if name == "constant":
            return Constant(float(given["value"]))
        if name == "normal":
            return Normal(0.0, float(given["stddev"]))
        if name == "uniform":
            return Uniform(0.0, float(given["scale"]))
        if name == "truncated_normal" and (given["lower"], given["upper"]) == (-2, 2):
            return TruncatedNormal(0.0, float(given["stddev"]))
        if name == "variance_scaling" and len(shape) == 2 and given["batch_axis"] == ():
            fan_in, fan_out = _fans(shape, given["in_axis"], given["out_axis"])
            return _scaled(given["scale"], given["mode"], given["distribution"], fan_in, fan_out)
    except (KeyError, TypeError):  # another version of JAX, or an array of values
        return None
    return None


def _fans(shape: tuple[int, ...], in_axis: Any, out_axis: Any) -> tuple[float, float]:
    """Return the fans of a table whose axes have these parts, as JAX counts them."""
    into, out = shape[in_axis], shape[out_axis]
    other = math.prod(shape) / into / out
    return into * other, out * other


def _scaled(scale: float, mode: str, kind: str, fan_in: float, fan_out: float) -> Any:
    """Return the initializer of a variance that is `scale` over a fan, None if there is none."""
    fans = {
        "fan_in": fan_in,
        "fan_out": fan_out,
        "fan_avg": (fan_in + fan_out) / 2,
        "fan_geo_avg": math.sqrt(fan_in * fan_out),
    }
    if mode not in fans:
        return None
    variance = float(scale) / max(1.0, fans[mode])
    if kind == "truncated_normal":
        return TruncatedNormal(0.0, math.sqrt(variance) / _OF_TRUNCATED)
    if kind == "normal":
        return Normal(0.0, math.sqrt(variance))
    if kind == "uniform":
        limit = math.sqrt(3.0 * variance)
        return Uniform(-limit, limit)
    return None
