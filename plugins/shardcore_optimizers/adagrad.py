"""Adagrad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardcore.optimizer import (
    LearningRate,
    Optimizer,
    SlotSpec,
    UpdateFunction,
    check_hyper_parameter,
    check_learning_rate,
)
from shardcore_optimizers.kernels import compiled_update

__all__ = ["Adagrad"]


@dataclass(frozen=True, eq=False, repr=False)
class Adagrad(Optimizer):
    """Adagrad: steps shrink with the squares of all gradients a weight has seen.

    For each weight w with summed gradient g and accumulator a::

        a += g * g
        w -= learning_rate * g / sqrt(a)

    There is no epsilon. Where a is 0 (a restored zero, with a gradient of zero or one whose square
    is too small to represent) the step is 0.

    Parameters
    ----------
    learning_rate : float or callable, default 0.001
        A number >= 0, or a callable without arguments, asked once per batch.
    initial_accumulator_value : float, default 0.1
        What the slot ``accumulators``, one value per weight, starts from; > 0.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Notes
    -----
    Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", JMLR 12 (2011); names and defaults as TensorFlow's
    ``tf.tpu.experimental.embedding.Adagrad``.

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

    learning_rate: LearningRate = 0.001
    initial_accumulator_value: float = 0.1

    def __post_init__(self) -> None:
        initial = check_hyper_parameter(
            self.initial_accumulator_value, "initial_accumulator_value", above=0
        )
        object.__setattr__(self, "learning_rate", check_learning_rate(self.learning_rate))
        object.__setattr__(self, "initial_accumulator_value", initial)

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """One accumulator per weight."""
        return (SlotSpec("accumulators", "element", fill=self.initial_accumulator_value),)

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and accumulators."""
        del step, row_ids
        xp = rows.__array_namespace__()
        (learning_rate,) = hyper
        accumulators = slots["accumulators"] + grad * grad
        none = accumulators == 0
        root = xp.where(none, xp.ones_like(accumulators), xp.sqrt(accumulators))
        moved = xp.where(none, xp.zeros_like(rows), (learning_rate * grad) / root)
        return rows - moved, {"accumulators": accumulators}

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        """Return the compiled update, equal to `update` to the last bit."""
        return compiled_update("adagrad", dtype)
