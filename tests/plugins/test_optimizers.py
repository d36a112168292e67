"""The first-party optimizers: golden numbers, and compiled equal to NumPy to the last bit."""

from __future__ import annotations

import importlib
import re
import threading

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shardcore import optimizers
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer import SlotSpec, UpdateFunction
from shardcore.store import instruction_set

SGD, Adagrad = optimizers.SGD, optimizers.Adagrad

# Each instruction set includes the ones before it, so all up to the best can run here.
INSTRUCTION_SETS = ("baseline", "v3", "v4")
RUNNABLE = INSTRUCTION_SETS[: INSTRUCTION_SETS.index(instruction_set.NAME) + 1]

VIDEO = np.arange(32, dtype=np.float32).reshape(8, 4)
USER = np.arange(32, dtype=np.float32).reshape(16, 2)
VIDEO_GRAD = np.array([[8, 13, 18, 23], [12, 17, 22, 27]], np.float32)
USER_GRAD = np.array([[2 / 3, 1]] * 3 + [[6, 7]], np.float32)


def compiled(formula: str, dtype: str, name: str) -> UpdateFunction:
    module = importlib.import_module(f"shardcore_optimizers._update_{name}")
    return UpdateFunction.from_capsule(getattr(module, formula)[dtype])


def apply(optimizer, grad, rows, slots=None, step=1, first_row=0):
    """Run the pure form, and check on the way that it changed none of its arguments."""
    slots = optimizer.init(rows) if slots is None else slots
    row_ids = np.arange(first_row, first_row + len(rows))
    before = [array.copy() for array in (grad, rows, *slots.values())]
    result = optimizer.update(grad, rows, slots, optimizer.hyper(), step, row_ids)
    for array, copy in zip((grad, rows, *slots.values()), before, strict=True):
        np.testing.assert_array_equal(array, copy, strict=True)
    assert result[0].dtype == rows.dtype
    return result


# ----------------------------------------------------------------------------- golden numbers


def test_sgd_golden_numbers():
    rows, slots = apply(SGD(0.1), VIDEO_GRAD, VIDEO[:2])
    expected = [[-0.8, -0.3, 0.2, 0.7], [2.8, 3.3, 3.8, 4.3]]
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-6)
    assert slots == {}
    rows, _ = apply(SGD(0.1), USER_GRAD, USER[:4])
    np.testing.assert_allclose(rows[0], [-0.066667, 0.9], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(rows[3], [5.4, 6.3], rtol=1e-6)


def test_adagrad_golden_numbers():
    rows, slots = apply(Adagrad(0.1), VIDEO_GRAD, VIDEO[:2])
    expected = [-0.099922, 0.90003, 1.900015, 2.900009]
    np.testing.assert_allclose(rows[0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slots["accumulators"][0], [64.1, 169.1, 324.1, 529.1], rtol=1e-6)
    rows, slots = apply(Adagrad(0.1), USER_GRAD, USER[:4])
    np.testing.assert_allclose(rows[0], [-0.090351, 0.904654], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slots["accumulators"][0], [0.544444, 1.1], rtol=1e-5)
    np.testing.assert_allclose(rows[3], [5.900139, 6.900102], rtol=1e-6)
    np.testing.assert_allclose(slots["accumulators"][3], [36.1, 49.1], rtol=1e-6)


def test_adagrad_duplicates_summed_first_differ_from_one_by_one():
    rows = np.array([[1, -2, 3]], np.float32)
    grad = np.array([[0.5, -0.25, 0]], np.float32)
    optimizer = Adagrad(0.1)
    once, slots = apply(optimizer, grad, rows)
    twice, _ = apply(optimizer, grad, once, slots, step=2)
    np.testing.assert_allclose(twice, [[0.8509348, -1.8852780, 3]], rtol=1e-6)
    summed, _ = apply(optimizer, grad + grad, rows)
    np.testing.assert_allclose(summed, [[0.9046537, -1.9154845, 3]], rtol=1e-6)


def test_dynamic_learning_rate():
    steps = iter(range(10))
    optimizer = SGD(lambda: 1 - 0.05 * next(steps))
    weights = np.zeros((1, 1))
    seen = []
    for step in range(1, 11):
        seen.append(float(weights[0, 0]))
        weights, _ = apply(optimizer, np.ones((1, 1)), weights, {}, step)
    expected = [-sum(1 - 0.05 * j for j in range(i)) for i in range(10)]
    np.testing.assert_allclose(seen, expected, rtol=1e-12)
    assert seen[:4] == pytest.approx([0, -1, -1.95, -2.85])


# ----------------------------------------------------------------------------- compiled = pure


@st.composite
def blocks(draw, dtype: str):
    shape = draw(st.tuples(st.integers(0, 5), st.integers(1, 70)))
    width = np.dtype(dtype).itemsize * 8
    # Zeros and numbers whose squares underflow are the cases that could divide by zero.
    plain = st.floats(-1e3, 1e3, width=32)
    special = st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 2.0**-126, 2.0**-149])
    elements = st.one_of(plain, special)
    arrays = hnp.arrays(dtype, shape, elements=elements)
    accumulators = draw(hnp.arrays(dtype, shape, elements=st.one_of(plain, special).map(abs)))
    rate = draw(st.one_of(st.just(0.0), st.floats(0, 10, width=width)))
    return draw(arrays), draw(arrays), accumulators, rate


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_sgd_is_the_pure_form_to_the_last_bit(name, dtype, data):
    grad, rows, _, rate = data.draw(blocks(dtype))
    optimizer = SGD(rate)
    expected, _ = apply(optimizer, grad, rows)
    ids = np.arange(len(rows))
    compiled("sgd", dtype, name).run(grad, rows, [], optimizer.hyper(), 1, ids)
    assert rows.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_adagrad_is_the_pure_form_to_the_last_bit(name, dtype, data):
    grad, rows, accumulators, rate = data.draw(blocks(dtype))
    optimizer = Adagrad(rate)
    expected, slots = apply(optimizer, grad, rows, {"accumulators": accumulators})
    assert np.isfinite(expected).all()
    ids = np.arange(len(rows))
    compiled("adagrad", dtype, name).run(grad, rows, [accumulators], optimizer.hyper(), 1, ids)
    assert rows.tobytes() == expected.tobytes()
    assert accumulators.tobytes() == slots["accumulators"].tobytes()


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("formula", ["sgd", "adagrad"])
def test_compiled_equals_pure_over_several_steps_of_a_large_block(name, dtype, formula):
    rng = np.random.default_rng(7)
    optimizer = {"sgd": SGD, "adagrad": Adagrad}[formula](0.037)
    rows = rng.standard_normal((513, 67)).astype(dtype)
    slots = optimizer.init(rows)
    own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
    ids = np.arange(len(rows))
    for step in range(1, 6):
        grad = rng.standard_normal(rows.shape).astype(dtype)
        rows, slots = apply(optimizer, grad, rows, slots, step)
        run = compiled(formula, dtype, name).run
        run(grad, own_rows, own_slots, optimizer.hyper(), step, ids)
        assert own_rows.tobytes() == rows.tobytes()
        for own, array in zip(own_slots, slots.values(), strict=True):
            assert own.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", RUNNABLE)
def test_overflow_and_nan_are_the_same_compiled_and_pure(name):
    grad = np.array([[np.inf, -np.inf, np.nan, 1e30, 3e38, 0.0]], np.float32)
    rows = np.array([[1, 1, 1, 1, np.nan, np.inf]], np.float32)
    for formula, optimizer in (("sgd", SGD(10.0)), ("adagrad", Adagrad(10.0))):
        slots = optimizer.init(rows)
        with np.errstate(all="ignore"):
            expected, new = apply(optimizer, grad, rows, slots)
        own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
        function = compiled(formula, "float32", name)
        function.run(grad, own_rows, own_slots, optimizer.hyper(), 1, np.arange(1))
        np.testing.assert_array_equal(own_rows, expected, strict=True)
        for own, array in zip(own_slots, new.values(), strict=True):
            np.testing.assert_array_equal(own, array, strict=True)


@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_compiled_works_on_the_working_dtype_of_the_table(optimizer, dtype):
    function = optimizer.compiled(dtype)
    assert function.dtype == (np.float64 if dtype == "float64" else np.float32)
    own = np.ones((2, 3), function.dtype)
    grad = np.full((2, 3), 2, function.dtype)
    slots = list(optimizer.init(own).values())
    expected, _ = apply(optimizer, grad, own)
    function.run(grad, own, slots, optimizer.hyper(), 1, np.arange(2))
    assert own.tobytes() == expected.tobytes()


def test_compiled_from_eight_threads_over_parts_of_a_table():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((800, 33)).astype(np.float32)
    grad = rng.standard_normal(rows.shape).astype(np.float32)
    optimizer = Adagrad(0.1)
    expected, slots = apply(optimizer, grad, rows)
    accumulators = optimizer.init(rows)["accumulators"]
    function, hyper = optimizer.compiled("float32"), optimizer.hyper()

    def work(part):
        ids = np.arange(part.start, part.stop)
        function.run(grad[part], rows[part], [accumulators[part]], hyper, 1, ids)

    parts = [slice(100 * i, 100 * (i + 1)) for i in range(8)]
    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows.tobytes() == expected.tobytes()
    assert accumulators.tobytes() == slots["accumulators"].tobytes()


# ----------------------------------------------------------------------------- edges, messages


def test_zero_learning_rate_moves_nothing():
    for optimizer in (SGD(0), Adagrad(0)):
        rows, slots = apply(optimizer, VIDEO_GRAD, VIDEO[:2])
        np.testing.assert_array_equal(rows, VIDEO[:2], strict=True)
    assert slots["accumulators"][0, 0] == np.float32(0.1) + 64


def test_adagrad_with_a_zero_accumulator_takes_no_step():
    rows = np.ones((1, 4), np.float32)
    grad = np.array([[0, 1e-30, -1e-30, 2]], np.float32)  # the square of 1e-30 is 0 in float32
    zeros = {"accumulators": np.zeros_like(rows)}
    moved, slots = apply(Adagrad(0.5), grad, rows, zeros)
    assert moved.tolist() == [[1.0, 1.0, 1.0, 0.5]]
    assert slots["accumulators"].tolist() == [[0.0, 0.0, 0.0, 4.0]]


def test_learning_rate_is_rounded_to_the_working_dtype():
    grad, rows = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    moved, _ = apply(SGD(0.1), grad, rows)
    assert moved[0, 0] == -np.float32(0.1)
    moved, _ = apply(SGD(0.1), grad.astype(np.float64), rows.astype(np.float64))
    assert moved[0, 0] == -0.1


def test_defaults_are_tensorflows():
    assert repr(SGD()) == "SGD(learning_rate=0.01)"
    assert repr(Adagrad()) == "Adagrad(learning_rate=0.001, initial_accumulator_value=0.1)"
    assert Adagrad(1, 2) == Adagrad(learning_rate=1.0, initial_accumulator_value=2.0)
    assert Adagrad().slots == (SlotSpec("accumulators", "element", None, 0.1),)
    assert SGD().slots == ()
    assert SGD().lazy
    assert Adagrad().config() == {
        "name": "Adagrad",
        "learning_rate": 0.001,
        "initial_accumulator_value": 0.1,
    }
    assert SGD(0.5) != Adagrad(0.5)


@pytest.mark.parametrize("optimizer", [SGD, Adagrad])
def test_learning_rate_messages(optimizer):
    rule = "learning_rate must be a number >= 0, finite as float32, or a zero-argument callable"
    with pytest.raises(ShardcoreValueError, match=re.escape(f"{rule}, got -1")):
        optimizer(-1)
    with pytest.raises(ShardcoreTypeError, match=re.escape(f"{rule}, got '1'")):
        optimizer(learning_rate="1")
    text = "learning_rate() must return a number >= 0, finite as float32, got nan"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        optimizer(lambda: np.nan).hyper()


@pytest.mark.parametrize("value", [0, -0.1, np.nan, np.inf])
def test_adagrad_initial_accumulator_messages(value):
    text = f"initial_accumulator_value must be a number > 0, finite as float32, got {value!r}"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        Adagrad(initial_accumulator_value=value)


def test_arguments_that_do_not_exist_yet_are_refused_by_python():
    with pytest.raises(TypeError, match="clipvalue"):
        SGD(clipvalue=1.0)
