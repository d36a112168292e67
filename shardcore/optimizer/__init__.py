"""The contract of optimizers, and how their parameters and slots are declared.

::

    base              `Optimizer`, and the contract in its docstring
    declaration       what deriving a class from it does
    hyperparameters   numbers and callables that an update is given
    slots             `SlotSpec`: what an optimizer keeps per row or per weight
    slot_values       what slots begin with
    compiled          the same update in C
"""

from __future__ import annotations

from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.compiled import UpdateFunction, get_include, update_prototype
from shardcore.optimizer.hyperparameters import (
    LearningRate,
    check_hyper_parameter,
    check_learning_rate,
    evaluate_learning_rate,
)
from shardcore.optimizer.slot_values import constant_of, fill_slots, initial_slots
from shardcore.optimizer.slots import InitialValue, SlotSpec, initial_value

__all__ = [
    "Optimizer",
    "SlotSpec",
    "InitialValue",
    "initial_value",
    "LearningRate",
    "check_hyper_parameter",
    "check_learning_rate",
    "evaluate_learning_rate",
    "constant_of",
    "fill_slots",
    "initial_slots",
    "UpdateFunction",
    "get_include",
    "update_prototype",
]
