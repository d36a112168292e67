"""RMSProp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from shardcore.optimizer import LearningRate, SlotSpec
from shardcore_optimizers.row_steps import (
    FROM_PRESET,
    FormulaSteps,
    flag,
    hyper_of,
    number,
    per_weight,
    quotient,
)

__all__ = ["RMSProp"]


class RMSProp(FormulaSteps):
    """RMSProp: steps divided by a fading mean of the squares of the gradients.

    For each weight w with summed gradient g and rate η::

        v = rho·v + (1 - rho)·g²
        s = g / (√v + ε)                 or g / √(v + ε²), with ``sum_inside_sqrt``
        w -= η·s                         momentum = 0
        m = momentum·m + s;  w -= η·m    momentum > 0, slot ``momenta``

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: 0.001, fbgemm and torch
        0.01.
    rho : float
        In [0, 1). Presets: 0.9, torch 0.99.
    momentum : float, default 0
        In [0, 1).
    epsilon : float
        ε > 0. Presets: 1e-7, fbgemm and torch 1e-8.
    sum_inside_sqrt : bool, default False
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    Tieleman, Hinton, "Neural Networks for Machine Learning", lecture 6.5, 2012; Keras's names, and
    the arithmetic of ``torch.optim.RMSprop``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = RMSProp(learning_rate=0.5, rho=0.75)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, -2.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(6), slots
    (array([[0., 2.]]), {'velocities': array([[4., 1.]])})
    """

    learning_rate: LearningRate = FROM_PRESET
    rho: float = FROM_PRESET
    momentum: float = 0.0
    epsilon: float = FROM_PRESET
    _: KW_ONLY
    sum_inside_sqrt: bool = False

    hyper_names = hyper_of("rmsprop")
    rules = {
        "rho": number(at_least=0, below=1),
        "momentum": number(at_least=0, below=1),
        "epsilon": number(above=0),
        "sum_inside_sqrt": flag,
    }
    defaults = {
        "tf": {"learning_rate": 0.001, "rho": 0.9, "epsilon": 1e-7},
        "fbgemm": {"learning_rate": 0.01, "epsilon": 1e-8},
        "torch": {"learning_rate": 0.01, "rho": 0.99, "epsilon": 1e-8},
    }

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """``velocities``, and ``momenta`` where there is momentum; a value per weight."""
        velocities = self._slot("velocities", "element")
        return (velocities, self._slot("momenta", "element")) if self.momentum else (velocities,)

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "rmsprop"

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
        """Return the new rows and slots."""
        velocities = self.rho * slots["velocities"] + (1 - self.rho) * (grad * grad)
        if self.sum_inside_sqrt:
            below = xp.sqrt(velocities + self.epsilon * self.epsilon)
        else:
            below = xp.sqrt(velocities) + self.epsilon
        moved = quotient(xp, grad, below)
        new = {"velocities": velocities}
        if self.momentum:
            moved = new["momenta"] = self.momentum * slots["momenta"] + moved
        return rows - hyper[0] * moved, new
