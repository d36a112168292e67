"""Optimizers with one fault each, and `FAULTS`: the test that must find it, and with which words.

Not collected by name; `test_conformance.py` runs it. Compiled forms are Python callbacks here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import (
    LearningRate,
    Optimizer,
    SlotSpec,
    UpdateFunction,
    check_hyper_parameter,
    check_learning_rate,
    update_prototype,
)
from shardcore.testing import OptimizerConformance

frozen = dataclass(frozen=True, eq=False, repr=False)


@frozen
class Momentum(Optimizer):
    """Without a fault."""

    learning_rate: LearningRate = 0.05
    momentum: float = 0.5

    hyper_names = ("learning_rate", "momentum")
    slots = (SlotSpec("momenta", "element"),)

    def __post_init__(self):
        check_learning_rate(self.learning_rate)
        check_hyper_parameter(self.momentum, "momentum", at_least=0)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        learning_rate, momentum = hyper
        momenta = momentum * slots["momenta"] + grad
        return rows - learning_rate * momenta, {"momenta": momenta}


class Suite(OptimizerConformance):
    Faulty: type = Momentum

    @pytest.fixture
    def optimizer(self):
        return self.Faulty()


class TestNoFault(Suite):
    pass


class TestGivesNoFixture(OptimizerConformance):
    pass


class TestHidesState(Suite):
    @frozen
    class Faulty(Momentum):
        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "batches", [])


class TestIsEqualToItselfOnly(Suite):
    @frozen
    class Faulty(Momentum):
        __eq__ = object.__eq__
        __hash__ = object.__hash__


class TestShowsAnAddress(Suite):
    @frozen
    class Faulty(Momentum):
        __repr__ = object.__repr__


class TestConfigIsNotJson(Suite):
    @frozen
    class Faulty(Momentum):
        def config(self):
            return {**super().config(), "momentum": np.float32(0.5)}


class TestHyperIsAList(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self):
            return list(super().hyper())


class TestChecksNothing(Suite):
    @frozen
    class Faulty(Momentum):
        def __post_init__(self):
            pass


class TestAsksForTheRateTwice(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self):
            super().hyper()
            return super().hyper()


class TestAsksForTheRateOfTheFirstStep(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self, step=None):
            return super().hyper(0)


class TestHasASlotTwice(Suite):
    @frozen
    class Faulty(Momentum):
        slots = (SlotSpec("momenta", "element"), SlotSpec("momenta", "row"))


class TestStartsWithoutRowIds(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows):
            return {"momenta": np.zeros_like(rows)}


class TestStartsFromTheWholeBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows - rows.mean(axis=0) if len(rows) else rows}


class TestStartsFromTheFirstRow(Suite):
    """Rows that are all alike start as they do alone."""

    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows - rows[:1]}


class TestNumbersTheBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows + np.arange(len(rows), dtype=rows.dtype)[:, None]}


class TestWidens(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            hyper = tuple(map(np.float64, hyper))
            return super().update(grad, rows, slots, hyper, step, row_ids)


class TestChangesRows(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            new, slots = super().update(grad, rows, slots, hyper, step, row_ids)
            rows[...] = new
            return rows, slots


class TestChangesSlots(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            momenta = slots["momenta"]
            momenta *= hyper[1]
            momenta += grad
            return rows - hyper[0] * momenta, {"momenta": momenta}


class TestNamesItsArgumentsOtherwise(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, gradients, weights, state, hyper, t, ids):
            return super().update(gradients, weights, state, hyper, t, ids)


class TestLooksAtTheWholeBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            grad = grad / (1 + np.max(np.abs(grad), initial=0))
            return super().update(grad, rows, slots, hyper, step, row_ids)


class TestDividesByZero(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            with np.errstate(invalid="ignore"):
                grad = grad / np.abs(grad)
            return super().update(grad, rows, slots, hyper, step, row_ids)


class TestClimbs(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            return super().update(-grad, rows, slots, hyper, step, row_ids)


MADE = {}


class Compiled(Momentum):
    """Makes the compiled form of a Python function, once per working dtype."""

    def compiled(self, dtype):
        name = working_dtype(as_dtype(dtype)).name
        key = type(self).__qualname__, name
        if key not in MADE:
            callback = update_prototype(name)(self.function(np.dtype(name).type))
            MADE[key] = UpdateFunction.from_ctypes(callback)
        return MADE[key]

    @staticmethod
    def function(value):
        def update(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
            rate, momentum = value(hyper[0]), value(hyper[1])
            for row in range(count):
                grad = np.ctypeslib.as_array(gradients, (count * dim,))[row * dim : (row + 1) * dim]
                weights = np.ctypeslib.as_array(rows[row], (dim,))
                momenta = np.ctypeslib.as_array(slots[0][row], (dim,))
                momenta[...] = momentum * momenta + grad
                weights -= rate * momenta

        return update


class TestCompiledWithoutFault(Suite):
    @frozen
    class Faulty(Compiled):
        pass


class TestCompiledIgnoresTheMomenta(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            def update(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
                for at in range(count * dim):
                    rows[at // dim][at % dim] -= value(hyper[0]) * gradients[at]

            return update


class TestCompiledForgetsTheRowIds(Suite):
    @frozen
    class Faulty(Compiled):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            rows, slots = super().update(grad, rows, slots, hyper, step, row_ids)
            return rows + (row_ids % 2)[:, None].astype(rows.dtype), slots


class TestCompiledForgetsTheStep(Suite):
    @frozen
    class Faulty(Compiled):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            return super().update(grad / step, rows, slots, hyper, step, row_ids)


class TestCompiledFlushesTinyNumbers(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            right = Compiled.function(value)

            def update(count, dim, rows, slots, *rest):
                right(count, dim, rows, slots, *rest)
                for at in range(count * dim):
                    if abs(rows[at // dim][at % dim]) < 1e-20:
                        rows[at // dim][at % dim] = 0

            return update


class TestCompiledWritesBeyondItsRows(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            right = Compiled.function(value)

            def update(count, dim, rows, *rest):
                right(count, dim, rows, *rest)
                if count:
                    rows[count - 1][dim] = 0

            return update


class TestCompiledChangesTheGradients(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            right = Compiled.function(value)

            def update(count, dim, rows, slots, gradients, *rest):
                right(count, dim, rows, slots, gradients, *rest)
                for at in range(count * dim):
                    gradients[at] = 0

            return update


class TestCompiledSharesScratch(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            right, scratch = Compiled.function(value), {}

            def update(count, dim, rows, slots, gradients, *rest):
                scratch["gradients"] = gradients
                time.sleep(0.002)
                right(count, dim, rows, slots, scratch["gradients"], *rest)

            return update


class TestCompiledForTheWrongDtype(Suite):
    @frozen
    class Faulty(Compiled):
        def compiled(self, dtype):
            return super().compiled("float64")


FAULTS = {
    "TestGivesNoFixture": (
        "test_repr",
        "TestGivesNoFixture must override the fixture 'optimizer': return an optimizer whose "
        "parameters are plain numbers",
    ),
    "TestHidesState": (
        "test_is_a_frozen_dataclass",
        "an optimizer must hold nothing but its parameters",
    ),
    "TestIsEqualToItselfOnly": (
        "test_equality_and_hash",
        "assert Faulty(learni... momentum=0.5) == Faulty(learni... momentum=0.5)",
    ),
    "TestShowsAnAddress": (
        "test_repr",
        "TestShowsAnAddress.Faulty object at 0x",
    ),
    "TestConfigIsNotJson": (
        "test_config_is_ready_for_json",
        "Object of type float32 is not JSON serializable",
    ),
    "TestHyperIsAList": (
        "test_hyper_names_are_parameters",
        "assert <class 'list'> is tuple",
    ),
    "TestChecksNothing": (
        "test_parameters_are_checked",
        "DID NOT RAISE ShardcoreError",
    ),
    "TestAsksForTheRateTwice": (
        "test_learning_rate_is_a_number_or_a_callable",
        "generator raised StopIteration",
    ),
    "TestAsksForTheRateOfTheFirstStep": (
        "test_learning_rate_is_a_number_or_a_callable",
        "assert [0.5, 0.5, 0.5] == [0.125, 0.5, 0.25]",
    ),
    "TestHasASlotTwice": (
        "test_slots_are_declared",
        "len({'momenta'})",
    ),
    "TestStartsWithoutRowIds": (
        "test_init_fills_slots",
        "init() takes 2 positional arguments but 4 were given",
    ),
    "TestStartsFromTheWholeBlock": (
        "test_init_fills_slots",
        "init of a block of 1 rows, not 5: momenta[0, 0] is 0.0, expected",
    ),
    "TestStartsFromTheFirstRow": (
        "test_init_fills_slots",
        "init of a block of 1 rows, not 5: momenta[0, 0] is 0.0, expected",
    ),
    "TestNumbersTheBlock": (
        "test_init_fills_slots",
        "init of a block of 1 rows, not 5: momenta[0, 0] is",
    ),
    "TestWidens": (
        "test_update_keeps_shapes_and_dtypes",
        "assert dtype('float64') == dtype('float32')",
    ),
    "TestChangesRows": (
        "test_update_changes_no_argument",
        "update must not change its arguments: rows[0, 0] is",
    ),
    "TestChangesSlots": (
        "test_update_changes_no_argument",
        "update must not change its arguments: momenta[0, 0] is",
    ),
    "TestNamesItsArgumentsOtherwise": (
        "test_update_by_keyword",
        "update() got an unexpected keyword argument 'grad'",
    ),
    "TestLooksAtTheWholeBlock": (
        "test_a_row_does_not_depend_on_its_block",
        "a block of 1 rows: rows[0, 0] is",
    ),
    "TestDividesByZero": (
        "test_zeros_give_finite_numbers",
        "rows must be finite at step 1",
    ),
    "TestClimbs": (
        "test_converges_on_a_quadratic",
        "after 300 steps the weights must be ten times closer",
    ),
    "TestCompiledIgnoresTheMomenta": (
        "test_in_a_table",
        "step 1: momenta[0, 0] is 0.0, expected",
    ),
    "TestCompiledForgetsTheRowIds": (
        "test_compiled_gives_the_numbers_of_the_pure_form",
        "compiled, 2 rows of dim 1, step 1: rows[0, 0] is",
    ),
    "TestCompiledForgetsTheStep": (
        "test_compiled_gives_the_numbers_of_the_pure_form",
        "compiled, 1 rows of dim 1, step 2: rows[0, 0] is",
    ),
    "TestCompiledFlushesTinyNumbers": (
        "test_compiled_on_zeros_and_tiny_numbers",
        "compiled: rows[0, 0] is 0.0, expected -5.8",
    ),
    "TestCompiledWritesBeyondItsRows": (
        "test_compiled_writes_only_to_its_rows",
        "compiled wrote outside of its rows",
    ),
    "TestCompiledChangesTheGradients": (
        "test_compiled_writes_only_to_its_rows",
        "compiled must not change the gradients: grad[0, 0] is 0.0, expected",
    ),
    "TestCompiledSharesScratch": (
        "test_compiled_from_several_threads",
        "four threads: rows[",
    ),
    "TestCompiledForTheWrongDtype": (
        "test_compiled_works_on_the_working_dtype",
        "the compiled update works on float64, the table on float32",
    ),
}
