"""Nesterov's momentum, once in NumPy and once in C."""

from acme_optimizer import native
from shardcore.optimizer import (
    LearningRate,
    Optimizer,
    SlotSpec,
    check_hyper_parameter,
    check_learning_rate,
)


class Nesterov(Optimizer):
    """``m = momentum * m + g; w = w - learning_rate * (g + momentum * m)``."""

    learning_rate: LearningRate = 0.01
    momentum: float = 0.9

    hyper_names = ("learning_rate", "momentum")
    slots = (SlotSpec("momenta", "element"),)

    def __post_init__(self):
        check_learning_rate(self.learning_rate)
        check_hyper_parameter(self.momentum, "momentum", at_least=0)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        learning_rate, momentum = hyper
        momenta = momentum * slots["momenta"] + grad
        return rows - learning_rate * (grad + momentum * momenta), {"momenta": momenta}

    def compiled(self, dtype):
        return native.update_function(dtype)
