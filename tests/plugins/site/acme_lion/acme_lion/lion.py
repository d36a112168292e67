"""Lion (Chen et al., 2023): steps by the sign of a momentum, with decoupled weight decay."""

from acme_lion import native
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import (
    LearningRate,
    Optimizer,
    SlotSpec,
    UpdateFunction,
    check_hyper_parameter,
    check_learning_rate,
)


class Lion(Optimizer):
    """``w -= rate * (sign(b1 * m + (1 - b1) * g) + decay * w); m = b2 * m + (1 - b2) * g``."""

    learning_rate: LearningRate = 1e-4
    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0

    hyper_names = ("learning_rate", "beta_1", "beta_2", "weight_decay")
    slots = (SlotSpec("momenta", "element"),)

    def __post_init__(self):
        check_learning_rate(self.learning_rate)
        check_hyper_parameter(self.beta_1, "beta_1", at_least=0, below=1)
        check_hyper_parameter(self.beta_2, "beta_2", at_least=0, below=1)
        check_hyper_parameter(self.weight_decay, "weight_decay", at_least=0)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        xp = rows.__array_namespace__()
        rate, beta_1, beta_2, decay = hyper
        momenta = slots["momenta"]
        sign = xp.sign(beta_1 * momenta + (1 - beta_1) * grad)
        return rows - rate * (sign + decay * rows), {
            "momenta": beta_2 * momenta + (1 - beta_2) * grad
        }

    def compiled(self, dtype):
        name = working_dtype(as_dtype(dtype)).name
        return UpdateFunction.from_capsule(getattr(native, name))
