"""The rules of an optimizer's parameters: numbers that float32 can hold, and learning rates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any, Final, SupportsFloat, TypeAlias

import numpy as np

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = [
    "LearningRate",
    "accepts",
    "callable_name",
    "check_hyper_parameter",
    "check_learning_rate",
    "evaluate_learning_rate",
    "is_number",
    "takes_step",
]

LearningRate: TypeAlias = float | Callable[[], SupportsFloat] | Callable[[int], Any]
"""A number >= 0, or a callable that is asked for one at every batch: of nothing, or of the step.

Those of optax are declared to return anything that an array is made of, so `Any`.
"""

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; schedules of array libraries return 0-d arrays.

    TensorFlow's dtypes have a NumPy one, and Keras' are names; a variable of theirs has no `ndim`.
    """
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, Real):
        return True
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None or tuple(shape) != ():
        return False
    try:
        return np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).kind in (*"fiu",)
    except TypeError:  # a dtype that NumPy does not know
        return False


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
    """Return a learning rate: a float >= 0, or the callable that was given.

    Parameters
    ----------
    value : number or callable
        A number must be >= 0 and finite as float32. A callable takes nothing, or one argument: the
        step, which is the number of batches that were applied before, 0 for the first. It is not
        called here; it is called by `evaluate_learning_rate`, once per batch, in the thread that
        applies the gradients.
    argument : str
        The name of the user's argument.

    Returns
    -------
    float or callable

    Raises
    ------
    ShardcoreTypeError
        If it is neither a number nor callable in one of the two ways, or is callable in both.
    ShardcoreValueError
        If it is negative or not finite as float32.

    Examples
    --------
    >>> check_learning_rate(1)
    1.0
    >>> check_learning_rate(-1)
    Traceback (most recent call last):
    shardcore.errors.ShardcoreValueError: learning_rate must be a number >= 0, finite as float32, \
or a callable that takes nothing or the step, got -1
    """
    if not callable(value) or is_number(value):
        return _check_number(value, _rule(argument), at_least=0)
    takes_step(value, argument)
    return value


def takes_step(function: Callable[..., object], argument: str = "learning_rate") -> bool:
    """Return whether a callable learning rate takes the step, by its signature.

    Parameters
    ----------
    function : callable
        Without a signature, as some built-in ones are, it is taken to need nothing.
    argument : str
        The name of the user's argument.

    Raises
    ------
    ShardcoreTypeError
        If it can be called neither without arguments nor with one, or in both ways: which was meant
        cannot be known.

    Examples
    --------
    >>> takes_step(lambda step: 1 / (1 + step)), takes_step(lambda: 0.1)
    (True, False)
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # calling it shows
        return False
    of_nothing, of_step = _refusal(signature), _refusal(signature, 0)
    if of_nothing is not None and of_step is not None:
        raise ShardcoreTypeError(
            f"{_rule(argument)}, got {callable_name(function)}: {of_step}"
        ) from of_step
    if of_nothing is None and of_step is None:
        raise ShardcoreTypeError(
            f"{_rule(argument)}, got {callable_name(function)}{signature}, which takes either: "
            "write lambda: f() or lambda step: f(step) to say which is meant"
        )
    return of_step is None


def accepts(function: Callable[..., object], *arguments: object) -> bool:
    """Return whether a callable can be called with these arguments, by its signature.

    Examples
    --------
    >>> accepts(lambda step=0: step, 1), accepts(lambda: 0, 1)
    (True, False)
    """
    return _refusal(inspect.signature(function), *arguments) is None


def _refusal(signature: inspect.Signature, *arguments: object) -> TypeError | None:
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return error
    return None


def _rule(argument: str) -> str:
    return (
        f"{argument} must be a number >= 0, finite as float32, "
        "or a callable that takes nothing or the step"
    )


def evaluate_learning_rate(
    value: LearningRate, argument: str = "learning_rate", step: int | None = None
) -> float:
    """Return the learning rate of the present batch: the number, or what the callable returns now.

    Parameters
    ----------
    value : number or callable
        As `check_learning_rate` accepts it.
    argument : str
        The name of the user's argument.
    step : int, optional
        How many batches were applied before; needed by a callable that takes it.

    Raises
    ------
    ShardcoreTypeError
        If the callable returns no real number, or takes a step and there is none.
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
    >>> evaluate_learning_rate(lambda step: 0.5**step, step=2)
    0.25
    """
    if not callable(value):
        return float(value)
    ask: Callable[..., Any] = value
    if not takes_step(ask, argument):
        rule = f"{argument}() must return a number >= 0, finite as float32"
        return _check_number(ask(), rule, at_least=0)
    if step is None:
        raise ShardcoreTypeError(
            f"{argument} takes the step, which is not known here: give it, as in hyper(step=0)"
        )
    rule = f"{argument}({step}) must return a number >= 0, finite as float32"
    return _check_number(ask(step), rule, at_least=0)


def callable_name(function: Callable[..., object]) -> str:
    """Return where a callable comes from, without its address in memory."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
