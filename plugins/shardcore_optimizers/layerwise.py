"""LAMB and LARS: steps scaled by the ratio of two norms, each row taken as a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from shardcore.optimizer import LearningRate, SlotSpec
from shardcore_optimizers.adam import Moments
from shardcore_optimizers.row_steps import (
    FormulaSteps,
    hyper_of,
    norm_of,
    number,
    quotient,
)

__all__ = ["LAMB", "LARS"]


def _trust_ratio(xp: Any, weights: Any, steps: Any) -> Any:
    """Return the ratio of two norms, and 1 where one of them is 0."""
    both = (weights > 0) & (steps > 0)
    one = xp.ones_like(weights)
    return xp.where(both, weights / xp.where(both, steps, one), one)


class LAMB(Moments, kw_only=True):
    """LAMB: Adam whose step on a row is as long as the row, for very large batches.

    For each row w with summed gradient g, moments m and v as `Adam`'s, corrected as asked, rate η
    and weight decay λ::

        r = m / (√v + ε) + λ·w           or m / √(v + ε²) + λ·w
        w -= η·|w|/|r|·r                 Euclidean norms over the row; 1 where one of them is 0

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: 0.001, fbgemm 0.01.
    beta_1, beta_2, epsilon, lazy_adam, sum_inside_sqrt, bias_correction
        As `Adam`; in every preset ``bias_correction="global"``, ``sum_inside_sqrt=False`` and
        ε = 1e-6, fbgemm 1e-8.
    decoupled_weight_decay : bool, default False
        False: `weight_decay_factor` is the λ above. True: rows decay before, and λ is 0.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR
    2020, with the identity for φ. ``preset="fbgemm"`` is FBGEMM's ``LAMB`` where no norm is 0.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = LAMB(learning_rate=0.5)
    >>> rows = np.array([[3.0, 4.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, -2.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(3)
    array([[1.232, 5.768]])
    """

    decoupled_weight_decay: bool = False

    decay_in_formula = True
    defaults = {
        "tf": {
            "learning_rate": 0.001,
            "epsilon": 1e-6,
            "sum_inside_sqrt": False,
            "bias_correction": "global",
        },
        "fbgemm": {"learning_rate": 0.01, "epsilon": 1e-8},
    }

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "lamb"

    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and moments."""
        new, first, below = self.moments(xp, grad, grad * grad, slots, step)
        one = xp.ones_like(rows[:, :1])
        steps = quotient(xp, new["momenta"] / (first * one), below)
        steps = steps + self._formula_decay(hyper) * rows
        ratio = _trust_ratio(xp, norm_of(xp, rows), norm_of(xp, steps))
        return rows - (hyper[0] * ratio) * steps, new


class LARS(FormulaSteps):
    """LARS: momentum whose rate is scaled, row by row, to the length of the row.

    For each row w with summed gradient g, momentum m, rate η and weight decay λ::

        local = trust_coefficient·|w| / (|g| + λ·|w| + ε)     Euclidean norms; 1 where one side is 0
        m = momentum·m + η·local·(g + λ·w)
        w -= m

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: 0.01.
    momentum : float, default 0.9
        In [0, 1).
    trust_coefficient : float, default 0.001
        > 0; FBGEMM calls it eta.
    epsilon : float, default 0
        >= 0.
    decoupled_weight_decay : bool, default False
        False: `weight_decay_factor` is the λ above. True: rows decay before, and λ is 0.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017. FBGEMM's
    ``LARS_SGD`` where no norm is 0.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = LARS(learning_rate=0.5, trust_coefficient=0.1)
    >>> rows = np.array([[6.0, 8.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, -3.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows, slots
    (array([[5.6, 8.3]]), {'momenta': array([[ 0.4, -0.3]])})
    """

    learning_rate: LearningRate = 0.01
    momentum: float = 0.9
    trust_coefficient: float = 0.001
    epsilon: float = 0.0
    _: KW_ONLY
    decoupled_weight_decay: bool = False

    hyper_names = hyper_of("lars")
    rules = {
        "momentum": number(at_least=0, below=1),
        "trust_coefficient": number(above=0),
        "epsilon": number(at_least=0),
    }
    decay_in_formula = True

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """A momentum per weight."""
        return (self._slot("momenta", "element"),)

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "lars"

    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and momenta."""
        decay = self._formula_decay(hyper)
        weights = norm_of(xp, rows)
        below = (norm_of(xp, grad) + decay * weights) + self.epsilon
        local = hyper[0] * _trust_ratio(xp, self.trust_coefficient * weights, below)
        momenta = self.momentum * slots["momenta"] + local * (grad + decay * rows)
        return rows - momenta, {"momenta": momenta}
