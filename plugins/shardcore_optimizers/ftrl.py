"""FTRL-Proximal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from shardcore.errors import ShardcoreValueError
from shardcore.optimizer import LearningRate, SlotSpec
from shardcore_optimizers.row_steps import (
    FROM_PRESET,
    FormulaSteps,
    flag,
    hyper_of,
    number,
    per_weight,
)

__all__ = ["FTRL"]


class FTRL(FormulaSteps):
    """FTRL-Proximal: sparse weights through an L1 penalty, the classic of click prediction.

    For each weight w with summed gradient g, accumulator a, linear term l, rate η and
    p = -learning_rate_power::

        b = a + g²;  d = b^p - a^p;  a = b
        l += g - d·w/η
        w = (clamp(l, -l1, l1) - l) / ((b^p + beta)/η + 2·l2)

    and with ``multiply_linear_by_learning_rate``, where l is η times as large::

        l += η·g - d·w
        w = (clamp(l, -η·l1, η·l1) - l) / (b^p + 2·η·l2 + beta)

    Where the divisor is 0 the weight stays; with a rate of 0 the first form moves nothing at all,
    neither weights nor slots. The weights follow from the slots alone: the first touch forgets the
    initial embedding except for what ``d·w`` keeps of it, as TensorFlow's does.

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: tf 0.001, fbgemm
        0.01, tpu 0.01.
    learning_rate_power : float, default -0.5
        <= 0. Other values than -0.5 are powers of the C library in the compiled form and of the
        array library in the pure one, equal to a few units in the last place.
    l1_regularization_strength, l2_regularization_strength : float, default 0
        >= 0.
    beta : float, default 0
        >= 0; as much as ``beta / (2·η)`` more of l2.
    initial_accumulator_value : float, default 0.1
        First value of the slot ``accumulators``; > 0, or >= 0 with ``allow_zero_accumulator``.
    multiply_linear_by_learning_rate : bool, default False
    allow_zero_accumulator : bool, default False
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013; as TensorFlow's
    ``tf.tpu.experimental.embedding.FTRL``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = FTRL(learning_rate=1.0, initial_accumulator_value=9.0)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, 0.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows, slots["linears"]
    (array([[-0.4,  0. ]]), array([[2., 0.]]))
    """

    learning_rate: LearningRate = FROM_PRESET
    learning_rate_power: float = -0.5
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    beta: float = 0.0
    initial_accumulator_value: float = 0.1
    _: KW_ONLY
    multiply_linear_by_learning_rate: bool = False
    allow_zero_accumulator: bool = False

    hyper_names = hyper_of("ftrl")
    rules = {
        "learning_rate_power": number(at_most=0),
        "l1_regularization_strength": number(at_least=0),
        "l2_regularization_strength": number(at_least=0),
        "beta": number(at_least=0),
        "initial_accumulator_value": number(at_least=0),
        "multiply_linear_by_learning_rate": flag,
        "allow_zero_accumulator": flag,
    }
    defaults = {
        "tf": {"learning_rate": 0.001},
        "fbgemm": {"learning_rate": 0.01},
        "tpu": {"learning_rate": 0.01},
    }

    def _check_together(self) -> None:
        if not self.initial_accumulator_value and not self.allow_zero_accumulator:
            raise ShardcoreValueError(
                "initial_accumulator_value must be > 0 without allow_zero_accumulator, got 0"
            )

    @property
    def exponent(self) -> float:
        """The power of the accumulators, -learning_rate_power."""
        return -self.learning_rate_power

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """An accumulator and a linear term per weight."""
        return (
            self._slot("accumulators", "element", self.initial_accumulator_value),
            self._slot("linears", "element"),
        )

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "ftrl"

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
        """Return the new rows, accumulators and linear terms."""
        multiplied = self.multiply_linear_by_learning_rate
        l1, l2 = self.l1_regularization_strength, self.l2_regularization_strength
        # Without a branch on the rate's value: where it is 0, compute with 1 and keep the old.
        still = (hyper[0] == 0) * (not multiplied)
        rate = hyper[0] + still
        old, before = slots["linears"], slots["accumulators"]
        squares = before + grad * grad
        after = self._power(xp, squares)
        shift = after - self._power(xp, before)
        if multiplied:
            linears = old + (rate * grad - shift * rows)
            limit = rate * l1
            below = (after + 2 * rate * l2) + self.beta
        else:
            linears = old + (grad - (shift * rows) / rate)
            limit = l1
            below = (after + self.beta) / rate + 2 * l2
        low = xp.zeros_like(linears) - limit
        high = xp.zeros_like(linears) + limit
        clamped = xp.where(linears < low, low, linears)
        above = xp.where(clamped > high, high, clamped) - linears
        none = below == 0
        fresh = xp.where(none, rows, above / xp.where(none, xp.ones_like(below), below))
        return xp.where(still, rows, fresh), {
            "accumulators": xp.where(still, before, squares),
            "linears": xp.where(still, old, linears),
        }

    def _power(self, xp: Any, accumulators: Any) -> Any:
        return xp.sqrt(accumulators) if self.exponent == 0.5 else accumulators**self.exponent
