"""Optimizers with one fault each. Their compiled forms are Python callbacks here."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from broken.found_by import found_by

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


@found_by(
    "test_repr",
    "TestGivesNoFixture must override the fixture 'optimizer': return an optimizer whose "
    "parameters are plain numbers",
)
class TestGivesNoFixture(OptimizerConformance):
    pass


@found_by("test_is_a_frozen_dataclass", "an optimizer must hold nothing but its parameters")
class TestHidesState(Suite):
    @frozen
    class Faulty(Momentum):
        def __post_init__(self):
            super().__post_init__()
            object.__setattr__(self, "batches", [])


@found_by(
    "test_equality_and_hash",
    "assert Faulty(learni... momentum=0.5) == Faulty(learni... momentum=0.5)",
)
class TestIsEqualToItselfOnly(Suite):
    @frozen
    class Faulty(Momentum):
        __eq__ = object.__eq__
        __hash__ = object.__hash__


@found_by("test_repr", "TestShowsAnAddress.Faulty object at 0x")
class TestShowsAnAddress(Suite):
    @frozen
    class Faulty(Momentum):
        __repr__ = object.__repr__


@found_by("test_config_is_ready_for_json", "Object of type float32 is not JSON serializable")
class TestConfigIsNotJson(Suite):
    @frozen
    class Faulty(Momentum):
        def config(self):
            return {**super().config(), "momentum": np.float32(0.5)}


@found_by("test_hyper_names_are_parameters", "assert <class 'list'> is tuple")
class TestHyperIsAList(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self):
            return list(super().hyper())


@found_by("test_parameters_are_checked", "DID NOT RAISE ShardcoreError")
class TestChecksNothing(Suite):
    @frozen
    class Faulty(Momentum):
        def __post_init__(self):
            pass


@found_by("test_learning_rate_is_a_number_or_a_callable", "generator raised StopIteration")
class TestAsksForTheRateTwice(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self):
            super().hyper()
            return super().hyper()


@found_by(
    "test_learning_rate_is_a_number_or_a_callable", "assert [0.5, 0.5, 0.5] == [0.125, 0.5, 0.25]"
)
class TestAsksForTheRateOfTheFirstStep(Suite):
    @frozen
    class Faulty(Momentum):
        def hyper(self, step=None):
            return super().hyper(0)


@found_by("test_slots_are_declared", "len({'momenta'})")
class TestHasASlotTwice(Suite):
    @frozen
    class Faulty(Momentum):
        slots = (SlotSpec("momenta", "element"), SlotSpec("momenta", "row"))


@found_by("test_init_fills_slots", "init() takes 2 positional arguments but 4 were given")
class TestStartsWithoutRowIds(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows):
            return {"momenta": np.zeros_like(rows)}


@found_by(
    "test_init_fills_slots", "init of a block of 1 rows, not 5: momenta[0, 0] is 0.0, expected"
)
class TestStartsFromTheWholeBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows - rows.mean(axis=0) if len(rows) else rows}


@found_by(
    "test_init_fills_slots", "init of a block of 1 rows, not 5: momenta[0, 0] is 0.0, expected"
)
class TestStartsFromTheFirstRow(Suite):
    """Rows that are all alike start as they do alone."""

    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows - rows[:1]}


@found_by("test_init_fills_slots", "init of a block of 1 rows, not 5: momenta[0, 0] is")
class TestNumbersTheBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def init(self, rows, row_ids=None, seed=0):
            return {"momenta": rows + np.arange(len(rows), dtype=rows.dtype)[:, None]}


@found_by("test_update_keeps_shapes_and_dtypes", "assert dtype('float64') == dtype('float32')")
class TestWidens(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            hyper = tuple(map(np.float64, hyper))
            return super().update(grad, rows, slots, hyper, step, row_ids)


@found_by("test_update_changes_no_argument", "update must not change its arguments: rows[0, 0] is")
class TestChangesRows(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            new, slots = super().update(grad, rows, slots, hyper, step, row_ids)
            rows[...] = new
            return rows, slots


@found_by(
    "test_update_changes_no_argument", "update must not change its arguments: momenta[0, 0] is"
)
class TestChangesSlots(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            momenta = slots["momenta"]
            momenta *= hyper[1]
            momenta += grad
            return rows - hyper[0] * momenta, {"momenta": momenta}


@found_by("test_update_by_keyword", "update() got an unexpected keyword argument 'grad'")
class TestNamesItsArgumentsOtherwise(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, gradients, weights, state, hyper, t, ids):
            return super().update(gradients, weights, state, hyper, t, ids)


@found_by("test_a_row_does_not_depend_on_its_block", "a block of 1 rows: rows[0, 0] is")
class TestLooksAtTheWholeBlock(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            grad = grad / (1 + np.max(np.abs(grad), initial=0))
            return super().update(grad, rows, slots, hyper, step, row_ids)


@found_by("test_elementwise_is_what_it_says", "elementwise, as 3 rows of 24 columns: rows[")
class TestIsOfItsRow(Suite):
    @frozen
    class Faulty(Momentum):
        elementwise = True

        def update(self, grad, rows, slots, hyper, step, row_ids):
            grad = grad / (1 + abs(grad).max(axis=1, keepdims=True))
            return super().update(grad, rows, slots, hyper, step, row_ids)


@found_by("test_elementwise_is_what_it_says", "elementwise, as 6 rows of 12 columns: rows[")
class TestIsOfItsNumber(Suite):
    @frozen
    class Faulty(Momentum):
        elementwise = True

        def update(self, grad, rows, slots, hyper, step, row_ids):
            grad = grad * (1 + row_ids % 2)[:, None].astype(grad.dtype)
            return super().update(grad, rows, slots, hyper, step, row_ids)


@found_by("test_elementwise_is_what_it_says", "elementwise: slot momenta has a value per row")
class TestHasASlotPerRow(Suite):
    @frozen
    class Faulty(Momentum):
        elementwise = True
        slots = (SlotSpec("momenta", "row"),)


@found_by("test_elementwise_is_what_it_says", "assert <class 'str'> is bool")
class TestIsPerhapsElementwise(Suite):
    @frozen
    class Faulty(Momentum):
        elementwise = "yes"


@found_by("test_zeros_give_finite_numbers", "rows must be finite at step 1")
class TestDividesByZero(Suite):
    @frozen
    class Faulty(Momentum):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            with np.errstate(invalid="ignore"):
                grad = grad / np.abs(grad)
            return super().update(grad, rows, slots, hyper, step, row_ids)


@found_by("test_converges_on_a_quadratic", "after 300 steps the weights must be ten times closer")
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


@found_by("test_in_a_table", "step 1: momenta[0, 0] is 0.0, expected")
class TestCompiledIgnoresTheMomenta(Suite):
    @frozen
    class Faulty(Compiled):
        @staticmethod
        def function(value):
            def update(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
                for at in range(count * dim):
                    rows[at // dim][at % dim] -= value(hyper[0]) * gradients[at]

            return update


@found_by(
    "test_compiled_gives_the_numbers_of_the_pure_form",
    "compiled, 2 rows of dim 1, step 1: rows[0, 0] is",
)
class TestCompiledForgetsTheRowIds(Suite):
    @frozen
    class Faulty(Compiled):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            rows, slots = super().update(grad, rows, slots, hyper, step, row_ids)
            return rows + (row_ids % 2)[:, None].astype(rows.dtype), slots


@found_by(
    "test_compiled_gives_the_numbers_of_the_pure_form",
    "compiled, 1 rows of dim 1, step 2: rows[0, 0] is",
)
class TestCompiledForgetsTheStep(Suite):
    @frozen
    class Faulty(Compiled):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            return super().update(grad / step, rows, slots, hyper, step, row_ids)


@found_by("test_compiled_on_zeros_and_tiny_numbers", "compiled: rows[0, 0] is 0.0, expected -5.8")
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


@found_by("test_compiled_on_zeros_and_tiny_numbers", "compiled: rows[")
class TestCompiledRowByRowKeepsTheSignOfZeros(Suite):
    @frozen
    class Faulty(Compiled):
        def compiled(self, dtype):
            return replace(super().compiled(dtype), row_by_row=True)

        def update(self, grad, rows, slots, hyper, step, row_ids):
            return rows - hyper[0] * grad, slots

        @staticmethod
        def function(value):
            def update(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
                for at in range(count * dim):
                    rows[at // dim][at % dim] -= value(hyper[0]) * value(gradients[at])

            return update


@found_by("test_compiled_writes_only_to_its_rows", "compiled wrote outside of its rows")
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


@found_by(
    "test_compiled_writes_only_to_its_rows",
    "compiled must not change the gradients: grad[0, 0] is 0.0, expected",
)
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


@found_by("test_compiled_from_several_threads", "four threads: rows[")
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


@found_by(
    "test_compiled_works_on_the_working_dtype",
    "the compiled update works on float64, the table on float32",
)
class TestCompiledForTheWrongDtype(Suite):
    @frozen
    class Faulty(Compiled):
        def compiled(self, dtype):
            return super().compiled("float64")
