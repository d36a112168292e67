"""An optimizer of a third party."""

from dataclasses import dataclass

from shardcore.optimizer import LearningRate, Optimizer, SlotSpec


@dataclass(frozen=True, eq=False, repr=False)
class HeavyBall(Optimizer):
    learning_rate: LearningRate = 0.01
    momentum: float = 0.9

    hyper_names = ("learning_rate", "momentum")
    slots = (SlotSpec("momenta", "element"),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        learning_rate, momentum = hyper
        momenta = momentum * slots["momenta"] + grad
        return rows - learning_rate * momenta, {"momenta": momenta}
