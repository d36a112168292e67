"""Adam and its kin: per weight, with decoupled decay, and with one second moment per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, Literal

from shardcore.errors import ShardcoreValueError
from shardcore.optimizer import LearningRate, SlotSpec
from shardcore_optimizers._hyper import CORRECTIONS
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

__all__ = ["Adam", "AdamW", "Moments", "RowwiseAdam"]


class Moments(FormulaSteps):
    """Base of Adam, AdamW, RowwiseAdam and LAMB: two moments and the correction of their bias.

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch.
    beta_1, beta_2 : float, default 0.9, 0.999
        In [0, 1).
    epsilon : float
        ε > 0.
    **common
        See the subclasses.
    """

    learning_rate: LearningRate = FROM_PRESET
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = FROM_PRESET
    lazy_adam: bool = True
    sum_inside_sqrt: bool = FROM_PRESET
    _: KW_ONLY
    bias_correction: Literal["none", "global", "row"] = FROM_PRESET

    hyper_names = hyper_of("moments")
    rules = {
        "beta_1": number(at_least=0, below=1),
        "beta_2": number(at_least=0, below=1),
        "epsilon": number(above=0),
        "lazy_adam": flag,
        "sum_inside_sqrt": flag,
        "bias_correction": choice(*CORRECTIONS),
    }
    defaults = {
        "tf": {
            "learning_rate": 0.001,
            "epsilon": 1e-7,
            "sum_inside_sqrt": True,
            "bias_correction": "none",
        },
        "fbgemm": {
            "learning_rate": 0.01,
            "epsilon": 1e-8,
            "sum_inside_sqrt": False,
            "bias_correction": "global",
        },
        "tpu": {"epsilon": 1e-8, "sum_inside_sqrt": False, "bias_correction": "global"},
        "torch": {"epsilon": 1e-8, "sum_inside_sqrt": False, "bias_correction": "global"},
    }
    second_moment = "element"

    def _check_together(self) -> None:
        if not self.lazy_adam and not self.use_gradient_accumulation:
            raise ShardcoreValueError(
                "lazy_adam must be True with use_gradient_accumulation=False: "
                "rows that no occurrence names have no place in its order"
            )

    @property
    def lazy(self) -> bool:
        """Whether only the rows that a batch touches are updated."""
        return self.lazy_adam

    @property
    def correction(self) -> int:
        """The number of `bias_correction` in hyper."""
        return CORRECTIONS.index(self.bias_correction)

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """Two moments, and with ``bias_correction="row"`` the powers of the betas of each row."""
        kind: Literal["row", "element"] = "row" if self.second_moment == "row" else "element"
        moments = (self._slot("momenta", "element"), self._slot("velocities", kind))
        if self.bias_correction != "row":
            return moments
        powers = ("beta_1_powers", "beta_2_powers")
        return (*moments, *(self._slot_of(SlotSpec(name, "row", fill=1.0)) for name in powers))

    def moments(
        self, xp: Any, grad: Any, squares: Any, slots: Mapping[str, Any], step: Any
    ) -> tuple[dict[str, Any], Any, Any]:
        """Return the new slots, the divisor of the first moment, and the divisor of the step."""
        new = {
            "momenta": self.beta_1 * slots["momenta"] + (1 - self.beta_1) * grad,
            "velocities": self.beta_2 * slots["velocities"] + (1 - self.beta_2) * squares,
        }
        first: Any = 1.0
        second = new["velocities"]
        if self.bias_correction == "global":
            first = 1 - self.beta_1**step
            second = second * (1 / (1 - self.beta_2**step))
        elif self.bias_correction == "row":
            new["beta_1_powers"] = self.beta_1 * slots["beta_1_powers"]
            new["beta_2_powers"] = self.beta_2 * slots["beta_2_powers"]
            first = 1 - new["beta_1_powers"]
            second = second * (1 / (1 - new["beta_2_powers"]))
        if self.sum_inside_sqrt:
            return new, first, xp.sqrt(second + self.epsilon * self.epsilon)
        return new, first, xp.sqrt(second) + self.epsilon


class Adam(Moments):
    """Adam: steps by the ratio of two moments of the gradients.

    For each weight w with summed gradient g, rate η and step number t::

        m = beta_1·m + (1 - beta_1)·g
        v = beta_2·v + (1 - beta_2)·g²
        w -= η·m / √(v + ε²)             sum_inside_sqrt
        w -= η·m / (√v + ε)              else

    With ``bias_correction="global"`` m is divided by 1 - beta_1^t and v by 1 - beta_2^t in the
    last line; with ``"row"`` t counts the updates of the row itself. With ``"none"`` pass a rate
    that does so.

    Parameters
    ----------
    learning_rate : float or callable
        η >= 0, or a callable f(step) or f(), asked once per batch. Presets: tf 0.001, fbgemm
        0.01, tpu 0.001, torch 0.001.
    beta_1, beta_2 : float, default 0.9, 0.999
        In [0, 1).
    epsilon : float
        ε > 0. Presets: tf 1e-7, the others 1e-8.
    lazy_adam : bool, default True
        True: rows that no batch touches stay. False: all rows move at every step, also those whose
        gradient is 0.
    sum_inside_sqrt : bool
        Where ε goes. Presets: tf True, the others False.
    bias_correction : {"none", "global", "row"}
        Presets: tf "none", the others "global".
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015. ``preset="tf"`` is
    TensorFlow's ``tf.tpu.experimental.embedding.Adam``; ``"fbgemm"`` FBGEMM's ``ADAM``; ``"torch"``
    ``torch.optim.SparseAdam``, and with ``lazy_adam=False`` ``torch.optim.Adam``. Slots ``momenta``
    and ``velocities``; with ``"row"`` also the powers of the betas, one per row, in the working
    dtype.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = Adam(learning_rate=0.5, preset="fbgemm")
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, -2.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(6), slots["momenta"].round(6)
    (array([[0.5, 1.5]]), array([[ 0.4, -0.2]]))
    """

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "adam"

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
        """Return the new rows and moments."""
        new, first, below = self.moments(xp, grad, grad * grad, slots, step)
        return rows - quotient(xp, _rate(xp, rows, hyper, first) * new["momenta"], below), new


def _rate(xp: Any, rows: Any, hyper: Sequence[Any], first: Any) -> Any:
    """Return the rate over the correction of the first moment, both rounded to the rows' dtype."""
    one = xp.ones_like(rows[:, :1])
    return (hyper[0] * one) / (first * one)


class AdamW(Adam, kw_only=True):
    """Adam with decoupled weight decay, its bias corrected.

    `Adam` with other defaults: ``weight_decay_factor=0.01``, multiplied by the learning rate, and
    in every preset ``bias_correction="global"``, ``sum_inside_sqrt=False``.

    Parameters
    ----------
    learning_rate, beta_1, beta_2, epsilon, lazy_adam, sum_inside_sqrt, bias_correction
        As `Adam`.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; the same as
    ``torch.optim.AdamW`` on the touched rows.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = AdamW(learning_rate=0.5)
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[4.0, -2.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(6)
    array([[0.495, 1.495]])
    """

    weight_decay_factor: float | None = 0.01
    multiply_weight_decay_factor_by_learning_rate: bool | None = True

    defaults = {
        **Adam.defaults,
        "tf": {**Adam.defaults["tf"], "sum_inside_sqrt": False, "bias_correction": "global"},
    }


class RowwiseAdam(Moments):
    """Adam with one second moment per row, of the mean of the squares.

    For each row w with summed gradient g, rate η::

        m = beta_1·m + (1 - beta_1)·g
        v = beta_2·v + (1 - beta_2)·mean of g²      one per row
        w -= η·m / √(v + ε²)                        or η·m / (√v + ε)

    Parameters
    ----------
    learning_rate, beta_1, beta_2, epsilon, lazy_adam, sum_inside_sqrt, bias_correction
        As `Adam`.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    ``preset="fbgemm"`` is FBGEMM's ``PARTIAL_ROWWISE_ADAM``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = RowwiseAdam(learning_rate=0.5, preset="fbgemm")
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[7.0, -1.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows.round(6), slots["velocities"].round(6)
    (array([[0.3, 1.1]]), array([[0.025]]))
    """

    second_moment = "row"

    @property
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""
        return "rowwise_adam"

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
        new, first, below = self.moments(xp, grad, mean_of_squares(xp, grad), slots, step)
        moved = quotient(xp, _rate(xp, rows, hyper, first) * new["momenta"], below)
        return rows - moved, new
