"""Learning rates that change with the step, ready to be given to an optimizer.

A schedule is a function of the step: the number of batches that were applied before this one, 0 for
the first. So is any callable of one argument, such as a schedule of optax or a lambda: each is a
learning rate as it stands. The engine asks it once per batch with its own step, which a restored
checkpoint sets, in the thread that applies the gradients, however many tables and optimizers share
it. `Schedule.bind` ties a schedule to another count of steps.

Examples
--------
>>> import numpy as np
>>> import shardcore as sc
>>> rate = sc.schedules.Polynomial(1.0, steps=2)
>>> table = sc.TableConfig(4, 1, initializer=sc.initializers.Zeros(), name="t")
>>> e = sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(learning_rate=rate))
>>> for _ in range(3):
...     e.enqueue([[2]])
...     activations = e.dequeue()
...     e.apply_gradients(np.ones((1, 1)))
>>> print(e.tables["t"][2])
[-1.5]
>>> e.close()
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer.hyperparameters import check_hyper_parameter
from shardcore.validation.shapes import as_count

__all__ = [
    "BoundSchedule",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "LinearWarmup",
    "Polynomial",
    "Schedule",
    "Step",
]


class Schedule(ABC):
    """A learning rate as a function of the step: a callable of one argument."""

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, as `at` does."""
        return self.at(step)

    def at(self, step: int) -> float:
        """Return the learning rate of a step.

        Parameters
        ----------
        step : int, >= 0
            How many batches were applied before.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If it is not such an integer.
        """
        return self._at(as_count(step, "step", 0))

    @abstractmethod
    def _at(self, step: int) -> float:
        """Return the learning rate of a checked step."""

    def description(self) -> dict[str, str]:
        """Return the schedule as JSON can hold it, for the configuration of an engine."""
        return {"schedule": repr(self)}

    def bind(self, step: Callable[[], int]) -> BoundSchedule:
        """Return the learning rate as a callable without arguments, which counts steps itself.

        Not needed where the step is the engine's own: it asks a schedule with that.

        Parameters
        ----------
        step : callable
            Returns the present step, as ``lambda: engine.step // 10`` does. The engine need not
            exist yet when it is written down.

        Raises
        ------
        ShardcoreTypeError
            If it is not callable.

        Examples
        --------
        >>> counted = iter([0, 100])
        >>> rate = Step(1.0, every=100, factor=0.1).bind(lambda: next(counted))
        >>> rate(), rate()
        (1.0, 0.1)
        """
        if not callable(step):
            raise ShardcoreTypeError(
                f"step must be a callable that returns the present step, got {step!r}"
            )
        return BoundSchedule(self, step)


@dataclass(frozen=True, eq=False)
class BoundSchedule:
    """A schedule that knows where the step comes from: a callable without arguments.

    Attributes
    ----------
    schedule : Schedule
    step : callable
    """

    schedule: Schedule
    step: Callable[[], int]

    def __call__(self) -> float:
        """Return the learning rate of the present step."""
        return self.schedule.at(self.step())

    def description(self) -> dict[str, str]:
        """Return the schedule as JSON can hold it, for the configuration of an engine."""
        return self.schedule.description()

    def __repr__(self) -> str:
        return f"{self.schedule!r}.bind(...)"


def _check_rate(schedule: Schedule, *names: str) -> None:
    """Keep the named arguments as floats >= 0."""
    for name in names:
        value = check_hyper_parameter(getattr(schedule, name), name, at_least=0)
        object.__setattr__(schedule, name, value)


def _check_steps(schedule: Schedule, name: str) -> None:
    object.__setattr__(schedule, name, as_count(getattr(schedule, name), name))


@dataclass(frozen=True)
class Constant(Schedule):
    """Always the same: what `LinearWarmup` may lead to.

    Parameters
    ----------
    rate : float, >= 0

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule; so for all schedules.

    Examples
    --------
    >>> Constant(0.5).at(1000)
    0.5
    """

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self, "rate")

    def _at(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Rises on a line from `start` to where another schedule begins, which then goes on from there.

    Step s has ``start + (then.at(0) - start) * s / steps`` for s < steps, else
    ``then.at(s - steps)``. (Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.2.)

    Parameters
    ----------
    steps : int, >= 1
    then : Schedule or float
        A number is a `Constant`.
    start : float, >= 0

    Examples
    --------
    >>> warm = LinearWarmup(4, then=Cosine(1.0, steps=10))
    >>> [warm.at(step) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 0.5]
    """

    steps: int
    then: Schedule | float
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_steps(self, "steps")
        _check_rate(self, "start")
        if not isinstance(self.then, Schedule):
            _check_rate(self, "then")

    def _at(self, step: int) -> float:
        then = self.then if isinstance(self.then, Schedule) else Constant(self.then)
        if step >= self.steps:
            return then.at(step - self.steps)
        return self.start + (then.at(0) - self.start) * step / self.steps


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Falls from `initial` to `final` in `steps`, and stays there.

    ``(initial - final) * (1 - min(s, steps) / steps) ** power + final``, as TensorFlow's
    ``PolynomialDecay``. A power of 1 is a line.

    Parameters
    ----------
    initial : float, >= 0
    steps : int, >= 1
    final : float, >= 0
    power : float, > 0

    Examples
    --------
    >>> [Polynomial(1.0, steps=4, power=2.0).at(step) for step in (0, 2, 4, 5)]
    [1.0, 0.25, 0.0, 0.0]
    """

    initial: float
    steps: int
    final: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _check_steps(self, "steps")
        _check_rate(self, "initial", "final")
        object.__setattr__(self, "power", check_hyper_parameter(self.power, "power", above=0))

    def _at(self, step: int) -> float:
        left: float = (1 - min(step, self.steps) / self.steps) ** self.power
        return (self.initial - self.final) * left + self.final


@dataclass(frozen=True)
class Cosine(Schedule):
    """Falls from `initial` to `final` along half a cosine in `steps`, and stays there.

    ``final + (initial - final) * (1 + cos(π * min(s, steps) / steps)) / 2``. (Loshchilov and
    Hutter, SGDR, 2017, equation 5, without restarts.)

    Parameters
    ----------
    initial : float, >= 0
    steps : int, >= 1
    final : float, >= 0

    Examples
    --------
    >>> [Cosine(1.0, steps=10).at(step) for step in (0, 5, 10, 11)]
    [1.0, 0.5, 0.0, 0.0]
    """

    initial: float
    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_steps(self, "steps")
        _check_rate(self, "initial", "final")

    def _at(self, step: int) -> float:
        along = min(step, self.steps) / self.steps
        return self.final + (self.initial - self.final) * (1 + math.cos(math.pi * along)) / 2


@dataclass(frozen=True)
class Step(Schedule):
    """Multiplied by `factor` every so many steps: ``initial * factor ** (s // every)``.

    Parameters
    ----------
    initial : float, >= 0
    every : int, >= 1
    factor : float, in [0, 1]

    Examples
    --------
    >>> [Step(1.0, every=10, factor=0.5).at(step) for step in (0, 9, 10, 25)]
    [1.0, 1.0, 0.5, 0.25]
    """

    initial: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_steps(self, "every")
        _check_rate(self, "initial")
        factor = check_hyper_parameter(self.factor, "factor", at_least=0)
        if factor > 1:
            raise ShardcoreValueError(f"factor must be in [0, 1], got {factor}")
        object.__setattr__(self, "factor", factor)

    def _at(self, step: int) -> float:
        rate: float = self.initial * self.factor ** (step // self.every)
        return rate


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """Stays at `initial` for `steps`, then falls with the square root of the step.

    ``initial * sqrt(steps / max(s, steps))``. (Raffel et al., T5, 2020, section 3.1.2.)

    Parameters
    ----------
    initial : float, >= 0
    steps : int, >= 1

    Examples
    --------
    >>> [InverseSquareRoot(1.0, steps=100).at(step) for step in (0, 100, 400)]
    [1.0, 1.0, 0.5]
    """

    initial: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self, "steps")
        _check_rate(self, "initial")

    def _at(self, step: int) -> float:
        return self.initial * math.sqrt(self.steps / max(step, self.steps))
