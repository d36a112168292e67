"""Schedules: their values, their errors, and how an engine asks for dynamic learning rates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pytest

import shardcore as sc
from shardcore import schedules
from shardcore.engine.gradients import hyper_parameters
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.optimizer.base import constant_hyper

S = schedules


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (S.Constant(0.25), {0: 0.25, 10**9: 0.25}),
        (S.LinearWarmup(4, 2.0), {0: 0, 1: 0.5, 3: 1.5, 4: 2, 99: 2}),
        (S.LinearWarmup(4, S.Step(2.0, every=3, factor=0.5), start=1.0),
         {0: 1, 2: 1.5, 4: 2, 6: 2, 7: 1, 10: 0.5}),
        (S.Polynomial(1.0, 10), {0: 1, 5: 0.5, 10: 0, 11: 0}),
        (S.Polynomial(1.0, 10, final=0.5, power=2), {0: 1, 5: 0.625, 10: 0.5, 99: 0.5}),
        (S.Cosine(2.0, 8, final=1.0),
         {0: 2, 2: 1 + (1 + math.cos(math.pi / 4)) / 2, 4: 1.5, 8: 1, 9: 1}),
        (S.Step(3.0, every=5), {0: 3, 4: 3, 5: 0.3, 10: 0.03}),
        (S.Step(3.0, every=1, factor=0), {0: 3, 1: 0}),
        (S.InverseSquareRoot(0.5, 9), {0: 0.5, 9: 0.5, 36: 0.25, 900: 0.05}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values(schedule, expected):
    found = {step: schedule.at(step) for step in expected}
    assert found == pytest.approx(expected, abs=1e-12)
    assert schedule.bind(lambda: np.int64(1))() == schedule.at(1) == schedule(1)
    assert schedule.description() == {"schedule": repr(schedule)}
    assert all(type(rate) is float for rate in found.values())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: S.Constant(-1), ShardcoreValueError,
         "rate must be a number >= 0, finite as float32, got -1"),
        (lambda: S.Constant("x"), ShardcoreTypeError,
         "rate must be a number >= 0, finite as float32, got 'x'"),
        (lambda: S.LinearWarmup(0, 1.0), ShardcoreValueError,
         "steps must be an integer >= 1, got 0"),
        (lambda: S.LinearWarmup(3, -1.0), ShardcoreValueError,
         "then must be a number >= 0, finite as float32, got -1.0"),
        (lambda: S.LinearWarmup(3, 1.0, start=math.nan), ShardcoreValueError,
         "start must be a number >= 0, finite as float32, got nan"),
        (lambda: S.Polynomial(1.0, 2.0), ShardcoreTypeError,
         "steps must be an integer >= 1, got 2.0"),
        (lambda: S.Polynomial(1.0, 2, power=0), ShardcoreValueError,
         "power must be a number > 0, finite as float32, got 0"),
        (lambda: S.Cosine(1.0, 2, final=-0.5), ShardcoreValueError,
         "final must be a number >= 0, finite as float32, got -0.5"),
        (lambda: S.Step(1.0, every=True), ShardcoreTypeError,
         "every must be an integer >= 1, got True"),
        (lambda: S.Step(1.0, every=2, factor=1.5), ShardcoreValueError,
         "factor must be in [0, 1], got 1.5"),
        (lambda: S.InverseSquareRoot(math.inf, 2), ShardcoreValueError,
         "initial must be a number >= 0, finite as float32, got inf"),
        (lambda: S.Cosine(1.0, 2).at(-1), ShardcoreValueError,
         "step must be an integer >= 0, got -1"),
        (lambda: S.Cosine(1.0, 2).bind(lambda: 0.5)(), ShardcoreTypeError,
         "step must be an integer >= 0, got 0.5"),
        (lambda: S.Cosine(1.0, 2).bind(3), ShardcoreTypeError,
         "step must be a callable that returns the present step, got 3"),
        (lambda: S.Cosine(1.0, 2)(-1), ShardcoreValueError,
         "step must be an integer >= 0, got -1"),
    ],
)  # fmt: skip
def test_errors(make, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make()


def test_a_bound_schedule_says_what_it_is():
    assert repr(S.Constant(0.5).bind(lambda: 0)) == "Constant(rate=0.5).bind(...)"


def two_tables(first, second):
    config = {
        name: FeatureConfig(
            TableConfig(2, 1, initializer=sc.initializers.Zeros(), name=name, optimizer=optimizer)
        )
        for name, optimizer in (("a", first), ("b", second))
    }
    return sc.ShardedEmbedding(config)


def step(e):
    e.enqueue({"a": [[1]], "b": [[1]]})
    e.dequeue()
    e.apply_gradients({"a": np.ones((1, 1)), "b": np.ones((1, 1))})


FOUR = S.Polynomial(4.0, steps=4)


class Of:
    """A callable object and a method, both of the step, as others' schedules are."""

    def __call__(self, step):
        return np.array(max(4 - step, 0))

    def at(self, step, /):
        return FOUR.at(step)


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize(
    "rate",
    [FOUR, lambda step: max(4 - step, 0), Of(), Of().at, FOUR.at, None],
    ids=["ours", "lambda", "object", "method", "at", "bound"],
)
def test_a_schedule_follows_the_steps_of_its_engine(rate, pipeline):
    rate = FOUR.bind(lambda: e.step) if rate is None else rate
    table = TableConfig(2, 1, initializer=sc.initializers.Zeros(), name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(rate), pipeline=pipeline)
    seen = []
    for _ in range(5):
        e.enqueue([[1]])
        seen.append(float(e.dequeue()[0, 0]))
        e.apply_gradients(np.ones((1, 1)))
    assert seen == [0, -4, -7, -9, -10]
    e.close()


def test_different_optimizers_share_one_evaluation_of_one_callable():
    asked = []

    def rate():
        asked.append(len(asked))
        return 0.5 ** len(asked)

    e = two_tables(sc.optimizers.SGD(rate), sc.optimizers.Adagrad(rate))
    for expected in (1, 2, 3):
        step(e)
        assert len(asked) == expected
    np.testing.assert_array_equal(e.tables["a"][1], [-0.5 - 0.25 - 0.125])


class Counter:
    def __init__(self):
        self.asked = 0

    def rate(self):
        self.asked += 1
        return 1.0

    __call__ = rate

    def __eq__(self, other):
        return isinstance(other, Counter)

    __hash__ = None


def test_methods_are_one_callable_and_equal_objects_are_two():
    counter = Counter()
    step(two_tables(sc.optimizers.SGD(counter.rate), sc.optimizers.Adagrad(counter.rate)))
    assert counter.asked == 1
    first, second = Counter(), Counter()
    step(two_tables(sc.optimizers.SGD(first), sc.optimizers.Adagrad(second)))
    assert (first.asked, second.asked) == (1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Own(sc.Optimizer):
    """An optimizer with hyper-parameters of its own."""

    learning_rate: float = 1.0

    def hyper(self):
        return (7.0,)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows - hyper[0], {}


def test_a_hyper_of_ones_own_is_asked():
    own, usual = Own(), sc.optimizers.SGD(0.5)
    assert hyper_parameters([own, usual, own], 3) == {own: (7.0,), usual: usual.hyper()}

    class OfTheStep(Own):
        def hyper(self, step=None):
            return (2.0 * step,)

    assert hyper_parameters([OfTheStep()], 3) == {OfTheStep(): (6.0,)}


def test_parameters_that_are_numbers_are_read_once():
    optimizer = sc.optimizers.SGD(0.5, nesterov=True, momentum=0.25)
    found = constant_hyper(optimizer)
    assert found == optimizer.hyper()
    assert {type(value) for value in found} == {float}
    assert constant_hyper(optimizer) is found
    assert constant_hyper(sc.optimizers.SGD(lambda: 0.5)) is None

    assert constant_hyper(Own()) is None
    engine = two_tables(Own(), optimizer)
    step(engine)
    assert engine.tables["a"].numpy()[:, 0].tolist() == [0, -7]


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_schedule_goes_on_where_a_checkpoint_was_saved(backend, tmp_path):
    asked = []

    def rate(step):
        asked.append(step)
        return 2.0**-step

    def engine():
        table = TableConfig(2, 1, initializer=sc.initializers.Zeros(), name="t")
        config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
        return sc.ShardedEmbedding(config, sc.optimizers.SGD(rate), backend=backend)

    first, second = engine(), engine()
    for _ in range(3):
        step(first)
    assert asked == [0, 1, 2]
    sc.Checkpoint(model=first).save(tmp_path, step=3)
    sc.Checkpoint(model=second).restore(tmp_path)
    step(second)
    step(first)
    assert asked == [0, 1, 2, 3, 3]
    np.testing.assert_array_equal(second.tables["t"][1], [-2 * (1 + 0.5 + 0.25 + 0.125)])
    np.testing.assert_array_equal(second.tables["t"], first.tables["t"])


def test_a_batch_that_is_dropped_or_refused_counts_no_step_of_a_schedule():
    asked = []

    def rate(step):
        asked.append(step)
        return 1.0 if asked != [0, 1] else -1.0

    e = two_tables(sc.optimizers.SGD(rate), sc.optimizers.Adagrad(rate))
    step(e)
    batch = {"a": [[1]], "b": [[1]]}
    e.lookup(batch).drop()
    handle, ones = e.lookup(batch), {"a": np.ones((1, 1)), "b": np.ones((1, 1))}
    message = "learning_rate(1) must return a number >= 0, finite as float32, got -1.0"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        handle.apply_gradients(ones)
    handle.apply_gradients(ones)
    step(e)
    assert asked == [0, 1, 1, 2]


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_rate_that_is_no_number_changes_nothing(pipeline):
    rates = iter([0.5, -1.0, 0.5])
    table = TableConfig(2, 1, initializer=sc.initializers.Zeros(), name="t")
    rate = lambda: next(rates)  # noqa: E731
    with sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(rate), pipeline=pipeline) as e:
        for _ in range(2):
            e.enqueue([[1]])
            e.dequeue()
            if e.step:
                message = "learning_rate() must return a number >= 0, finite as float32, got -1.0"
                with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
                    e.apply_gradients(np.ones((1, 1)))
                assert e.step == 1
            e.apply_gradients(np.ones((1, 1)))
        assert e.step == 2
        np.testing.assert_array_equal(e.tables["t"], [[0], [-1]])
