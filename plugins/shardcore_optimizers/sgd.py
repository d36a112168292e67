"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardcore.optimizer import LearningRate, Optimizer, UpdateFunction, check_learning_rate
from shardcore_optimizers.kernels import compiled_update

__all__ = ["SGD"]


@dataclass(frozen=True, eq=False, repr=False)
class SGD(Optimizer):
    """Stochastic gradient descent: ``w -= learning_rate * g``.

    Here g is the gradient of a row, summed over all its occurrences in the batch. No slots.

    Parameters
    ----------
    learning_rate : float or callable, default 0.01
        A number >= 0, or a callable without arguments, asked once per batch.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If the learning rate is neither.

    Notes
    -----
    As TensorFlow's ``tf.tpu.experimental.embedding.SGD``.

    Examples
    --------
    >>> import numpy as np
    >>> optimizer = SGD(learning_rate=0.5)
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[1.0, 2.0]]), rows=np.array([[1.0, 1.0]]), slots={},
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows
    array([[0.5, 0. ]])
    """

    learning_rate: LearningRate = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", check_learning_rate(self.learning_rate))

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return ``rows - learning_rate * grad``."""
        del step, row_ids
        (learning_rate,) = hyper
        return rows - learning_rate * grad, slots

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        """Return the compiled update, equal to `update` to the last bit."""
        return compiled_update("sgd", dtype)
