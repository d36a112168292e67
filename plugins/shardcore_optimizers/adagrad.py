"""Adagrad: per weight, per row, and with momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, Literal

from shardcore.optimizer import LearningRate, SlotSpec, check_hyper_parameter
from shardcore_optimizers.row_steps import (
    FROM_PRESET,
    FormulaSteps,
    choice,
    flag,
    hyper_of,
    mean_of_squares,
    number,
    per_weight,
    quotient,
)

__all__ = ["Adagrad", "AdagradMomentum", "RowwiseAdagrad"]


def _check_initial(value: float, epsilon: float) -> None:
    """Refuse 0 without an epsilon: the first step would be the rate itself, or undefined."""
    if epsilon == 0:
        check_hyper_parameter(value, "initial_accumulator_value", above=0)


class Adagrad(FormulaSteps):
    """Adagrad: steps shrink with the squares of all gradients that a weight has had.

    For each weight w with summed gradient g, accumulator a and rate η::

        a += g²
        w -= η·g / (√a + ε)

    Where the divisor is 0 (no epsilon, a restored zero, and a gradient of zero or one whose square
    is too small to represent) the step is 0.

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: tf 0.001, fbgemm
        0.01, tpu 0.001, torch 0.01.
    initial_accumulator_value : float
        First value of the slot ``accumulators``, one per weight; > 0, or >= 0 with an epsilon.
        Presets: tf 0.1, fbgemm 0, tpu 0.1, torch 0.
    epsilon : float
        ε >= 0. Presets: tf 0, fbgemm 1e-8, tpu 0, torch 1e-10.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", JMLR 12 (2011); names and defaults as TensorFlow's
    ``tf.tpu.experimental.embedding.Adagrad``; ``preset="fbgemm"`` is FBGEMM's ``EXACT_ADAGRAD``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = Adagrad(learning_rate=0.5, initial_accumulator_value=9.0)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, 0.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows, slots
    (array([[0.6, 1. ]]), {'accumulators': array([[25.,  9.]])})
    """

    learning_rate: LearningRate = FROM_PRESET
    initial_accumulator_value: float = FROM_PRESET
    _: KW_ONLY
    epsilon: float = FROM_PRESET

    hyper_names = hyper_of("adagrad")
    rules = {
        "initial_accumulator_value": number(at_least=0),
        "epsilon": number(at_least=0),
    }
    defaults = {
        "tf": {"learning_rate": 0.001, "initial_accumulator_value": 0.1, "epsilon": 0.0},
        "fbgemm": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-8},
        "torch": {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-10},
    }

    def _check_together(self) -> None:
        _check_initial(self.initial_accumulator_value, self.epsilon)

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """One accumulator per weight."""
        return (self._slot("accumulators", "element", self.initial_accumulator_value),)

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "adagrad"

    @per_weight
    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and accumulators."""
        accumulators = slots["accumulators"] + grad * grad
        moved = quotient(xp, hyper[0] * grad, xp.sqrt(accumulators) + self.epsilon)
        return rows - moved, {"accumulators": accumulators}


class RowwiseAdagrad(FormulaSteps):
    """Adagrad with one accumulator per row: nearly its quality for a fraction of its memory.

    For each row w of dim columns with summed gradient g, accumulator a and rate η::

        a += mean of g²          or the largest of g², with ``reduce="max"``
        w -= η / (√a + ε) · g

    Where the divisor is 0 the step is 0.

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: tf 0.001, fbgemm
        0.01, tpu 0.001, torch 0.01.
    initial_accumulator_value : float
        First value of the slot ``accumulators``, one per row; > 0, or >= 0 with an epsilon.
        Presets: tf 0.1, fbgemm 0, tpu 0.1, torch 0.
    reduce : {"mean", "max"}, default "mean"
        How the squares of a row become one number.
    epsilon : float
        ε >= 0. Presets: tf 0, fbgemm 1e-8, tpu 0, torch 1e-10.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    ``preset="fbgemm"`` is FBGEMM's ``EXACT_ROWWISE_ADAGRAD``; TensorFlow has no such class, its
    preset takes the numbers of Adagrad. ``reduce="max"`` is Monolith's group Adagrad without its
    shrinkage.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = RowwiseAdagrad(learning_rate=0.5, initial_accumulator_value=8.0)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, 0.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows, slots
    (array([[0.5, 1. ]]), {'accumulators': array([[16.]])})
    """

    learning_rate: LearningRate = FROM_PRESET
    initial_accumulator_value: float = FROM_PRESET
    _: KW_ONLY
    reduce: Literal["mean", "max"] = "mean"
    epsilon: float = FROM_PRESET

    hyper_names = hyper_of("rowwise_adagrad")
    rules = {**Adagrad.rules, "reduce": choice("mean", "max")}
    defaults = Adagrad.defaults

    def _check_together(self) -> None:
        _check_initial(self.initial_accumulator_value, self.epsilon)

    @property
    def takes_max(self) -> bool:
        """Whether the largest square of a row counts, not the mean."""
        return self.reduce == "max"

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """One accumulator per row."""
        return (self._slot("accumulators", "row", self.initial_accumulator_value),)

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "rowwise_adagrad"

    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and accumulators."""
        if self.takes_max:
            seen = xp.max(grad * grad, axis=1, keepdims=True)
        else:
            seen = mean_of_squares(xp, grad)
        accumulators = slots["accumulators"] + seen
        below = xp.sqrt(accumulators) + self.epsilon
        scale = quotient(xp, hyper[0] * xp.ones_like(below), below)
        return rows - scale * grad, {"accumulators": accumulators}


class AdagradMomentum(FormulaSteps):
    """Adagrad whose steps have momentum, any root, and, with beta2 < 1, a memory that fades.

    For each weight w with summed gradient g and rate η::

        a = a + g²                       beta2 = 1
        a = beta2·a + (1 - beta2)·g²     beta2 < 1
        s = g·(a + ε)^(-1/exponent)
        m = momentum·m + s
        w -= η·m                         or η·(momentum·m + s), with ``use_nesterov``

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: 0.001, fbgemm 0.01.
    momentum : float
        In [0, 1). Presets: tf 0, fbgemm 0.9, tpu 0.9.
    use_nesterov : bool, default False
    exponent : float, default 2
        > 0; 2 is the square root. Other values than 1 and 2 are powers of the C library in the
        compiled form and of the array library in the pure one, equal to a few units in the last
        place.
    beta2 : float, default 1
        In (0, 1].
    epsilon : float, default 1e-10
        ε > 0, added where the accumulator is used; not its first value.
    initial_accumulator_value : float
        First value of the slot ``accumulators``, >= 0. Presets: tf 0, tpu 0.1.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    As TensorFlow's ``tf.tpu.experimental.embedding.AdagradMomentum``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = AdagradMomentum(learning_rate=0.5, momentum=0.5)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, 0.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(6), slots["accumulators"]
    (array([[0.5, 1. ]]), array([[16.,  0.]]))
    """

    learning_rate: LearningRate = FROM_PRESET
    momentum: float = FROM_PRESET
    use_nesterov: bool = False
    exponent: float = 2.0
    beta2: float = 1.0
    epsilon: float = 1e-10
    _: KW_ONLY
    initial_accumulator_value: float = FROM_PRESET

    hyper_names = hyper_of("adagrad_momentum")
    rules = {
        "momentum": number(at_least=0, below=1),
        "use_nesterov": flag,
        "exponent": number(above=0),
        "beta2": number(above=0, at_most=1),
        "epsilon": number(above=0),
        "initial_accumulator_value": number(at_least=0),
    }
    defaults = {
        "tf": {"learning_rate": 0.001, "momentum": 0.0, "initial_accumulator_value": 0.0},
        "fbgemm": {"learning_rate": 0.01, "momentum": 0.9},
        "tpu": {"momentum": 0.9, "initial_accumulator_value": 0.1},
    }

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """An accumulator and a momentum per weight."""
        return (
            self._slot("accumulators", "element", self.initial_accumulator_value),
            self._slot("momenta", "element"),
        )

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "adagrad_momentum"

    @per_weight
    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows, accumulators and momenta."""
        share = 1.0 if self.beta2 == 1 else 1 - self.beta2
        accumulators = self.beta2 * slots["accumulators"] + share * (grad * grad)
        base = accumulators + self.epsilon
        if self.exponent == 2:
            scaled = quotient(xp, grad, xp.sqrt(base))
        elif self.exponent == 1:
            scaled = quotient(xp, grad, base)
        else:
            none = base == 0
            factor = xp.where(none, xp.ones_like(base), base) ** (-1 / self.exponent)
            scaled = xp.where(none, xp.zeros_like(grad), grad * factor)
        momenta = self.momentum * slots["momenta"] + scaled
        moved = self.momentum * momenta + scaled if self.use_nesterov else momenta
        return rows - hyper[0] * moved, {"accumulators": accumulators, "momenta": momenta}
