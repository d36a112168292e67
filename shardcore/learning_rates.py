"""The hyper-parameters of one batch: every callable asked once, whoever shares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MethodType

from shardcore.optimizer import LearningRate, Optimizer, evaluate_learning_rate

__all__ = ["hyper_parameters"]


def hyper_parameters(optimizers: Iterable[Optimizer]) -> dict[Optimizer, tuple[float, ...]]:
    """Return what `Optimizer.hyper` returns for each, with each callable called once for all.

    Tables whose rates follow one schedule thus follow it together, whatever the callable counts.

    Parameters
    ----------
    optimizers : iterable of Optimizer
        Callables are asked in their order. An optimizer with a `hyper` of its own is asked by it.

    Returns
    -------
    dict of optimizer -> tuple of float
        Equal optimizers are one.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If a callable returns no number >= 0 that is finite as float32.

    Examples
    --------
    >>> import shardcore as sc
    >>> rates = iter([0.5, 0.25])
    >>> rate = lambda: next(rates)
    >>> pair = [sc.optimizers.SGD(rate), sc.optimizers.Adagrad(rate)]
    >>> [hyper[0] for hyper in hyper_parameters(pair).values()]
    [0.5, 0.5]
    """
    rates: dict[object, float] = {}
    found: dict[Optimizer, tuple[float, ...]] = {}
    for optimizer in optimizers:
        if optimizer in found:
            continue
        if type(optimizer).hyper is Optimizer.hyper:
            found[optimizer] = tuple(
                _evaluated(getattr(optimizer, name), name, rates) for name in optimizer.hyper_names
            )
        else:
            found[optimizer] = optimizer.hyper()
    return found


def _evaluated(value: LearningRate, argument: str, rates: dict[object, float]) -> float:
    if not callable(value):
        return evaluate_learning_rate(value, argument)
    key = _identity(value)
    if key not in rates:
        rates[key] = evaluate_learning_rate(value, argument)
    return rates[key]


def _identity(function: Callable[[], float]) -> object:
    """Return what two references to one callable have in common; a method is made at each access.

    Callables that are equal without being the same may count apart, so equality does not decide.
    """
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return id(function)
