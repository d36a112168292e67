"""The rules of an optimizer's parameters: numbers that float32 can hold, and learning rates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Final, TypeAlias

import numpy as np

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = [
    "LearningRate",
    "callable_name",
    "check_hyper_parameter",
    "check_learning_rate",
    "evaluate_learning_rate",
    "is_number",
]

LearningRate: TypeAlias = float | Callable[[], float]
"""A number >= 0, or a callable without arguments that is asked for one at every batch."""

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; schedules of array libraries return 0-d arrays."""
    if isinstance(value, bool | np.bool_):
        return False
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return isinstance(value, Real) or (getattr(value, "ndim", None) == 0 and kind in (*"fiu",))


def _check_number(
    value: object,
    rule: str,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return `value` as a float, or raise "<rule>, got <value>"."""
    if not is_number(value):
        raise ShardcoreTypeError(f"{rule}, got {value!r}")
    try:
        number = float(value)  # type: ignore[arg-type]  # a number, as is_number has seen
    except OverflowError:  # an integer beyond float64
        number = math.inf
    if (
        not math.isfinite(number)
        or abs(number) > _FLOAT32_MAX
        or (at_least is not None and number < at_least)
        or (above is not None and number <= above)
        or (at_most is not None and number > at_most)
        or (below is not None and number >= below)
    ):
        raise ShardcoreValueError(f"{rule}, got {value!r}")
    return number


def check_hyper_parameter(
    value: object,
    argument: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """Return a hyper-parameter as a float, or raise an error that names it.

    Parameters
    ----------
    value : number
        As the user gave it. It must be finite in float32, the type most tables work in.
    argument : str
        The name of the user's argument.
    at_least, above : float, optional
        The lowest value accepted, or the value it must exceed.
    at_most, below : float, optional
        The highest value accepted, or the value it must stay below.

    Returns
    -------
    float

    Raises
    ------
    ShardcoreTypeError
        If it is no real number; a bool is none.
    ShardcoreValueError
        If it is not finite as float32, or out of bounds.

    Examples
    --------
    >>> check_hyper_parameter(1, "epsilon", above=0)
    1.0
    >>> check_hyper_parameter(0, "epsilon", above=0)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: epsilon must be a number > 0, finite as float32, got 0
    """
    limits = ((">=", at_least), (">", above), ("<=", at_most), ("<", below))
    bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
    rule = f"{argument} must be a number{' ' * bool(bounds)}{bounds}, finite as float32"
    return _check_number(value, rule, at_least, above, at_most, below)


def check_learning_rate(value: object, argument: str = "learning_rate") -> LearningRate:
    """Return a learning rate: a float >= 0, or the zero-argument callable that was given.

    Parameters
    ----------
    value : number or callable
        A number must be >= 0 and finite as float32. A callable is not called here; it is called by
        `evaluate_learning_rate`, once per batch, in the thread that applies the gradients.
    argument : str
        The name of the user's argument.

    Returns
    -------
    float or callable

    Raises
    ------
    ShardcoreTypeError
        If it is neither a number nor callable without arguments.
    ShardcoreValueError
        If it is negative or not finite as float32.

    Examples
    --------
    >>> check_learning_rate(1)
    1.0
    >>> check_learning_rate(-1)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: learning_rate must be a number >= 0, finite as float32, \
or a zero-argument callable, got -1
    """
    rule = f"{argument} must be a number >= 0, finite as float32, or a zero-argument callable"
    if not callable(value) or is_number(value):
        return _check_number(value, rule, at_least=0)
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise ShardcoreTypeError(f"{rule}, got {callable_name(value)}: {error}") from error
    except ValueError:  # some built-in callables have no signature; calling them shows
        pass
    return value


def evaluate_learning_rate(value: LearningRate, argument: str = "learning_rate") -> float:
    """Return the learning rate of the present batch: the number, or what the callable returns now.

    Raises
    ------
    ShardcoreTypeError
        If the callable returns no real number.
    ShardcoreValueError
        If it returns a negative number or one that is not finite as float32.

    Examples
    --------
    >>> rates = iter([0.5, -0.5])
    >>> rate = check_learning_rate(lambda: next(rates))
    >>> evaluate_learning_rate(rate)
    0.5
    >>> evaluate_learning_rate(rate)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: learning_rate() must return a number >= 0, finite as \
float32, got -0.5
    """
    if not callable(value):
        return float(value)
    rule = f"{argument}() must return a number >= 0, finite as float32"
    return _check_number(value(), rule, at_least=0)


def callable_name(function: Callable[..., object]) -> str:
    """Return where a callable comes from, without its address in memory."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
