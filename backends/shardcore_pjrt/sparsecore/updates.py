"""The optimizers that SparseCores have, as jax-tpu-embedding writes them, and their numbers.

An optimizer with a setting that these formulas have no place for is refused: it would train
another model than it does on other backends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from shardcore import optimizers
from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.optimizer import Optimizer

__all__ = ["OPTIMIZERS", "RowUpdate", "numbers_of", "row_update"]

OPTIMIZERS: Final = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
"""The names of those that are mapped; classes derived from them are not."""


@dataclass(frozen=True)
class RowUpdate:
    """The update of a row, as far as it is compiled into a program.

    Attributes
    ----------
    optimizer : str
        One of `OPTIMIZERS`.
    slots : tuple of str
        Their names, in the order of the operands.
    numbers : int
        How many numbers each call is given.
    options : tuple of (str, value)
        What the call is compiled with: bounds of weights, and a choice of FTRL's.
    """

    optimizer: str
    slots: tuple[str, ...]
    numbers: int
    options: tuple[tuple[str, Any], ...]

    @property
    def minibatched(self) -> bool:
        """Whether the package lowers it for minibatches to a call that the compiler knows.

        AdagradMomentum is not: 0.1.0 gives that call another name, and its operands another order.
        """
        return self.optimizer != "AdagradMomentum"


def row_update(spec: TableSpec) -> RowUpdate:
    """Return the update of a table's rows, or raise if SparseCores cannot do it.

    Raises
    ------
    ShardcoreValueError
        With the setting that they have no place for.

    Examples
    --------
    >>> from shardcore.initializers import Zeros
    >>> adagrad = optimizers.Adagrad(0.1, clip_weight_max=2.0)
    >>> row_update(TableSpec("t", 9, 8, np.dtype("float32"), Zeros(), 0, adagrad))
    RowUpdate(optimizer='Adagrad', slots=('accumulators',), numbers=1, \
options=(('max_value', 2.0),))
    """
    optimizer: Any = spec.optimizer
    name = _name(optimizer)
    if name is None:
        raise ShardcoreValueError(
            f"table {spec.name!r} must have an optimizer that SparseCores have, which are "
            f"{', '.join(OPTIMIZERS)}, got {optimizer!r}"
        )
    for setting, wanted, why in _unmapped(name, optimizer):
        raise ShardcoreValueError(
            f"table {spec.name!r} must have an optimizer with {setting} {wanted} on SparseCores, "
            f"{why}; got {getattr(optimizer, setting)!r}"
        )
    options = {"min_value": optimizer.clip_weight_min, "max_value": optimizer.clip_weight_max}
    if name == "FTRL":
        key = "multiply_linear_by_learning_rate"
        options[key] = optimizer.multiply_linear_by_learning_rate
    return RowUpdate(
        name,
        tuple(slot.name for slot in optimizer.slots),
        len(_NUMBERS[name](optimizer, 1.0, 1)),
        tuple((key, value) for key, value in options.items() if value is not None),
    )


def _name(optimizer: Optimizer | None) -> str | None:
    return next((one for one in OPTIMIZERS if type(optimizer) is getattr(optimizers, one)), None)


def _unmapped(name: str, optimizer: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that there is no place for: which, what it must be, why."""
    if not optimizer.use_gradient_accumulation:
        yield "use_gradient_accumulation", "True", "which sum the gradients of a row"
    for setting in ("clipvalue", "clip_norm"):
        if getattr(optimizer, setting) is not None:
            yield setting, "None", "which do not clip gradients"
    if optimizer.weight_decay_factor:
        yield "weight_decay_factor", "None", "whose formulas have no decay"
    if name == "SGD" and optimizer.momentum:
        yield "momentum", "0", "whose SGD has no slot"
    if name == "Adagrad" and optimizer.epsilon:
        yield "epsilon", "0", "which divide by the root alone"
    if name == "Adam":
        if optimizer.sum_inside_sqrt:
            yield "sum_inside_sqrt", "False", "which add epsilon to the root"
        if optimizer.bias_correction == "row":
            yield "bias_correction", "'none' or 'global'", "which do not count a row's updates"
        if not optimizer.lazy_adam:
            yield "lazy_adam", "True", "which update the rows that a batch names"
    if name == "FTRL" and optimizer.allow_zero_accumulator:
        yield "allow_zero_accumulator", "False", "which would divide 0 by 0"


def numbers_of(
    spec: TableSpec, hyper: Sequence[float], step: int
) -> tuple[np.float32 | np.bool_, ...]:
    """Return the numbers that an update is given, in the order of the operands.

    Parameters
    ----------
    spec : TableSpec
        With an optimizer that `row_update` accepts.
    hyper : sequence of float
        As the engine evaluated it for the batch.
    step : int
        From 1.

    Raises
    ------
    ShardcoreValueError
        If FTRL would divide by a learning rate of 0.

    Examples
    --------
    >>> from shardcore.initializers import Zeros
    >>> adam = optimizers.Adam(0.5, preset="tpu")
    >>> spec = TableSpec("t", 9, 8, np.dtype("float32"), Zeros(), 0, adam)
    >>> [round(float(number), 6) for number in numbers_of(spec, adam.hyper(), 1)]
    [0.158114, 0.9, 0.999, 0.0]
    """
    optimizer: Any = spec.optimizer
    rate = float(hyper[optimizer.hyper_names.index("learning_rate")])
    name = _name(optimizer)
    assert name is not None, "tables with other optimizers are refused"
    if name == "FTRL" and rate == 0 and not optimizer.multiply_linear_by_learning_rate:
        raise ShardcoreValueError(
            f"table {spec.name!r} must have a learning_rate > 0 on SparseCores, whose FTRL divides "
            "by it; got 0"
        )
    return _NUMBERS[name](optimizer, rate, step)


def _floats(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(map(np.float32, numbers))


def _of_adam(optimizer: Any, rate: float, step: int) -> tuple[Any, ...]:
    """Return Adam's numbers: theirs holds the corrections in the rate and in epsilon."""
    first = second = 1.0
    if optimizer.bias_correction == "global":
        first, second = 1 - optimizer.beta_1**step, math.sqrt(1 - optimizer.beta_2**step)
    return _floats(
        rate * second / first, optimizer.beta_1, optimizer.beta_2, optimizer.epsilon * second
    )


def _of_adagrad_momentum(optimizer: Any, rate: float, step: int) -> tuple[Any, ...]:
    told = (optimizer.momentum, optimizer.beta2, optimizer.epsilon, optimizer.exponent)
    return (*_floats(rate, *told), np.bool_(optimizer.use_nesterov))


def _of_ftrl(optimizer: Any, rate: float, step: int) -> tuple[Any, ...]:
    return _floats(
        rate,
        optimizer.learning_rate_power,
        optimizer.l1_regularization_strength,
        optimizer.l2_regularization_strength,
        optimizer.beta,
    )


def _rate_alone(optimizer: Any, rate: float, step: int) -> tuple[Any, ...]:
    return _floats(rate)


_NUMBERS: Final[Mapping[str, Callable[[Any, float, int], tuple[Any, ...]]]] = {
    "SGD": _rate_alone,
    "Adagrad": _rate_alone,
    "AdagradMomentum": _of_adagrad_momentum,
    "Adam": _of_adam,
    "FTRL": _of_ftrl,
}
