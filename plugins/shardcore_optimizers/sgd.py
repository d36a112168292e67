"""Stochastic gradient descent."""

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

__all__ = ["SGD"]


class SGD(FormulaSteps):
    """Stochastic gradient descent, with momentum where asked.

    For each weight w with summed gradient g and rate η::

        w -= η·g                                 momentum = 0, no slots
        m = momentum·m + g;  w -= η·m            momentum > 0, slot ``momenta``
        m = momentum·m + g;  w -= η·(g + momentum·m)     with ``nesterov``

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: tf 0.01, fbgemm
        0.01, tpu 0.001, torch 0.001.
    momentum : float, default 0
        In [0, 1).
    nesterov : bool, default False
        Look one step ahead along the momentum, which must be above 0.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    Without momentum as TensorFlow's ``tf.tpu.experimental.embedding.SGD``; momentum as in
    Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep
    learning", ICML 2013, in the form of PyTorch's ``torch.optim.SGD``. Lazy: the momentum of a row
    rests while no batch touches the row.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = SGD(learning_rate=0.5, weight_decay_factor=0.1, clipvalue=1.5)
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[1.0, 2.0]]), rows=np.array([[1.0, 1.0]]), slots={},
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows
    array([[0.4 , 0.15]])
    """

    learning_rate: LearningRate = FROM_PRESET
    _: KW_ONLY
    momentum: float = 0.0
    nesterov: bool = False

    hyper_names = hyper_of("sgd")
    rules = {"momentum": number(at_least=0, below=1), "nesterov": flag}
    defaults = {
        "tf": {"learning_rate": 0.01},
        "tpu": {"learning_rate": 0.001},
        "torch": {"learning_rate": 0.001},
    }

    def _check_together(self) -> None:
        if self.nesterov and not self.momentum:
            raise ShardcoreValueError("nesterov must be False without momentum, got momentum 0")

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """``momenta``, a value per weight, where there is momentum."""
        return (self._slot("momenta", "element"),) if self.momentum else ()

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "momentum_sgd" if self.momentum else "sgd"

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
        """Return the new rows and momenta."""
        if not self.momentum:
            return rows - hyper[0] * grad, slots
        momenta = self.momentum * slots["momenta"] + grad
        moved = grad + self.momentum * momenta if self.nesterov else momenta
        return rows - hyper[0] * moved, {"momenta": momenta}
