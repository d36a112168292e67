"""The first-party optimizers: golden numbers, and compiled equal to NumPy to the last bit."""

from __future__ import annotations

import importlib
import json
import re
import threading

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shardcore import optimizers
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.optimizer.slots import SlotSpec
from shardcore.store import instruction_set
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.update import update_rows

SGD, Adagrad, FTRL, Adam = optimizers.SGD, optimizers.Adagrad, optimizers.FTRL, optimizers.Adam
RowwiseAdagrad, AdagradMomentum = optimizers.RowwiseAdagrad, optimizers.AdagradMomentum

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


def assert_near(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_adagrad_momentum_golden_numbers():
    optimizer = AdagradMomentum(0.1, 0.9, True, exponent=3, epsilon=0.1, beta2=0.9)
    rows, slots = apply(optimizer, VIDEO_GRAD, VIDEO[:2])
    assert_near(rows[0], [-0.814465, 0.03939, 0.92832, 1.836617], 2e-6)
    assert_near(slots["accumulators"][0], [6.4, 16.9, 32.4, 52.9])
    assert_near(slots["momenta"][0], [4.286658, 5.055845, 5.640419, 6.12307])
    rows, slots = apply(optimizer, USER_GRAD, USER[:4])
    assert_near(rows[0], [-0.241414, 0.675105], 2e-6)
    assert_near(slots["momenta"][0], [1.270599, 1.709976])
    assert_near(rows[3], [5.262938, 6.222211])


def test_adam_golden_numbers():
    rows, slots = apply(Adam(0.1), VIDEO_GRAD, VIDEO[:2])
    assert_near(rows, VIDEO[:2] - 0.316228)
    assert_near(slots["momenta"][0], [0.8, 1.3, 1.8, 2.3])
    assert_near(slots["velocities"][0], [0.064, 0.169, 0.324, 0.529])
    rows, slots = apply(Adam(0.1), USER_GRAD, USER[:4])
    assert_near(rows, USER[:4] - 0.316228)
    assert_near(slots["momenta"][0], [0.066667, 0.1])


def test_ftrl_golden_numbers():
    rows, slots = apply(FTRL(0.1), VIDEO_GRAD, VIDEO[:2])
    assert_near(rows[0], [-0.099922, 0.875712, 1.864884, 2.858766])
    assert_near(slots["linears"][0], [8, -113.876178, -335.730996, -657.578381], 2e-6)
    rows, _ = apply(FTRL(0.1), USER_GRAD, USER[:4])
    assert_near(rows[0], [-0.090351, 0.603142])
    assert_near(rows[3], [5.584349, 6.584196])


@pytest.mark.parametrize("multiplied", [False, True])
def test_ftrl_is_tensorflows_cpu_kernel(multiplied):
    optimizer = FTRL(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        multiply_linear_by_learning_rate=multiplied,
    )
    rows = np.array([[1, -2, 3]], np.float32)
    new, slots = apply(optimizer, np.array([[0.5, -0.25, 0]], np.float32), rows)
    assert_near(new, [[0.3767247, -0.3629712, 0]])
    assert_near(slots["accumulators"], [[0.35, 0.1625, 0.1]])
    linears = np.array([[-2.2538023, 1.4877025, 0]])
    assert_near(slots["linears"], linears * 0.1 if multiplied else linears)


def test_adagrad_duplicates_one_by_one_in_a_table():
    rows = np.array([[0, 0, 0], [1, -2, 3]], np.float32)
    optimizer = Adagrad(0.1, use_gradient_accumulation=False)
    slots = optimizer.init(rows)
    batch = sort_occurrences(np.array([1, 1]), np.zeros(2, np.int32), None, 2)
    grad = np.array([[0.5, -0.25, 0]], np.float32)
    update_rows(rows, slots, RowUpdate(batch, batch.rows, grad, optimizer, optimizer.hyper(), 1))
    assert_near(rows, [[0, 0, 0], [0.8509348, -1.8852780, 3]])


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


# Every formula with each of its variants; the second half with all common steps around it.
VARIANTS = {
    "sgd": SGD(0.3),
    "momentum": SGD(0.3, momentum=0.5),
    "nesterov": SGD(0.3, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(0.3),
    "adagrad, epsilon": Adagrad(0.3, preset="fbgemm"),
    "rowwise adagrad": RowwiseAdagrad(0.3),
    "rowwise adagrad, max": RowwiseAdagrad(0.3, reduce="max", preset="fbgemm"),
    "adagrad momentum": AdagradMomentum(0.3, 0.5),
    "adagrad momentum, inverse": AdagradMomentum(0.3, 0.5, True, exponent=1, beta2=0.9),
    "ftrl": FTRL(0.3, l1_regularization_strength=0.1, l2_regularization_strength=0.2, beta=0.3),
    "ftrl, multiplied": FTRL(
        0.3, l1_regularization_strength=0.1, multiply_linear_by_learning_rate=True, beta=0.2
    ),
    "adam": Adam(0.3),
    "adam, corrected": Adam(0.3, preset="fbgemm"),
    "adam, by row": Adam(0.3, bias_correction="row"),
    "adamw": optimizers.AdamW(0.3),
    "rowwise adam": optimizers.RowwiseAdam(0.3),
    "rowwise adam, by row": optimizers.RowwiseAdam(0.3, bias_correction="row", preset="tpu"),
    "rmsprop": optimizers.RMSProp(0.3),
    "rmsprop, momentum": optimizers.RMSProp(0.3, momentum=0.5, sum_inside_sqrt=True),
    "lamb": optimizers.LAMB(0.3),
    "lamb, decay": optimizers.LAMB(0.3, weight_decay_factor=0.1, bias_correction="row"),
    "lars": optimizers.LARS(0.3),
    "lars, decay": optimizers.LARS(0.3, weight_decay_factor=0.1, epsilon=1e-3),
}
AROUND = {
    "clipvalue": (-0.75, 0.5),
    "clip_norm": 1.5,
    "weight_decay_factor": 0.01,
    "multiply_weight_decay_factor_by_learning_rate": True,
    "clip_weight_min": -1.0,
    "clip_weight_max": 0.875,
}
for key, plain in list(VARIANTS.items()):
    for decoupled in (True, False):
        parameters = {**plain.parameters(), **AROUND, "decoupled_weight_decay": decoupled}
        kind = "decoupled" if decoupled else "coupled"
        VARIANTS[f"{key}; all steps, {kind}"] = type(plain)(**parameters)
every_variant = pytest.mark.parametrize("variant", VARIANTS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
each_body = pytest.mark.parametrize("body", RUNNABLE)


@pytest.mark.parametrize("shape", [(3, 1), (2, 7), (33, 67), (2, 200)])
@each_body
@each_dtype
@every_variant
def test_compiled_is_the_pure_form_to_the_last_bit(variant, dtype, body, shape):
    optimizer = VARIANTS[variant]
    rng = np.random.default_rng(7)
    rows = rng.standard_normal(shape).astype(dtype)
    slots = {name: slot.astype(dtype) for name, slot in optimizer.init(rows).items()}
    own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
    run, ids = compiled(optimizer.compiled_formula, dtype, body).run, np.arange(len(rows))
    for step in (1, 2, 3, 77_777):
        grad = rng.standard_normal(shape).astype(dtype)
        # Zeros and numbers whose squares underflow are the cases that could divide by zero.
        odd = rng.choice([0.0, -0.0, 1e-30, 2.0**-126, 2.0**-149], shape).astype(dtype)
        grad = np.where(rng.random(shape) < 0.3, odd, grad)
        rows, slots = apply(optimizer, grad, rows, slots, step)
        run(grad, own_rows, own_slots, optimizer.hyper(), step, ids)
        assert own_rows.tobytes() == rows.tobytes()
        for own, array in zip(own_slots, slots.values(), strict=True):
            assert own.tobytes() == array.tobytes()
        assert np.isfinite(rows).all()


@each_body
@each_dtype
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_row_without_gradient_and_history_stays_finite(dtype, body, name):
    """Where a formula divides 0 by 0: slots of zeros and a gradient of zeros."""
    optimizer, rows = VARIANTS[name], np.full((3, 40), 0.5, dtype)
    grad = np.zeros_like(rows)
    slots = {slot.name: np.zeros(slot.shape(*rows.shape), dtype) for slot in optimizer.slots}
    expected, new = apply(optimizer, grad, rows, slots)
    own_slots = [array.copy() for array in slots.values()]
    function = compiled(optimizer.compiled_formula, dtype, body)
    function.run(grad, rows, own_slots, optimizer.hyper(), 1, np.arange(3))
    assert np.isfinite(expected).all()
    assert rows.tobytes() == expected.tobytes()
    for own, array in zip(own_slots, new.values(), strict=True):
        assert own.tobytes() == array.tobytes()


@each_body
@each_dtype
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_is_the_pure_form_on_any_numbers(dtype, body, data):
    optimizer = VARIANTS[data.draw(st.sampled_from(sorted(VARIANTS)))]
    shape = data.draw(st.tuples(st.integers(0, 4), st.integers(1, 70)))
    special = st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 2.0**-126, 2.0**-149])
    elements = st.one_of(st.floats(-1e3, 1e3, width=32), special)
    draw = lambda shape: data.draw(hnp.arrays(dtype, shape, elements=elements))  # noqa: E731
    rows, grad = draw(shape), draw(shape)
    slots = {slot.name: abs(draw(slot.shape(*shape))) for slot in optimizer.slots}
    for name in slots:
        if name.endswith("powers"):  # of a number below 1
            slots[name] = np.minimum(slots[name], np.array(0.875, dtype))
    rate = data.draw(st.sampled_from([0.0, 0.01, 1.0, 7.3]))
    optimizer = type(optimizer)(**{**optimizer.parameters(), "learning_rate": rate})
    own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
    expected, new = apply(optimizer, grad, rows, slots)
    function = compiled(optimizer.compiled_formula, dtype, body)
    function.run(grad, own_rows, own_slots, optimizer.hyper(), 1, np.arange(len(rows)))
    assert own_rows.tobytes() == expected.tobytes()
    for own, array in zip(own_slots, new.values(), strict=True):
        assert own.tobytes() == array.tobytes()
    assert np.isfinite(expected).all()


@each_body
@each_dtype
@pytest.mark.parametrize(
    "optimizer",
    [
        AdagradMomentum(0.1, 0.9, True, exponent=3, epsilon=0.1, beta2=0.9),
        AdagradMomentum(0.1, exponent=0.7),
        FTRL(0.1, learning_rate_power=-0.7, l1_regularization_strength=0.1),
        FTRL(0.1, learning_rate_power=-0.1, multiply_linear_by_learning_rate=True),
    ],
    ids=repr,
)
def test_powers_agree_to_a_few_units_in_the_last_place(optimizer, dtype, body):
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((40, 30)).astype(dtype)
    slots = optimizer.init(rows)
    own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
    run = compiled(optimizer.compiled_formula, dtype, body).run
    for step in (1, 2, 3):
        grad = rng.standard_normal(rows.shape).astype(dtype)
        rows, slots = apply(optimizer, grad, rows, slots, step)
        run(grad, own_rows, own_slots, optimizer.hyper(), step, np.arange(40))
    # Differences of nearby powers cancel: relative to the sizes at work, not to the result.
    limit = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(own_rows, rows, rtol=limit, atol=limit)
    for own, array in zip(own_slots, slots.values(), strict=True):
        np.testing.assert_allclose(own, array, rtol=limit, atol=limit * 10)


@each_body
@every_variant
def test_overflow_and_nan_are_the_same_compiled_and_pure(variant, body):
    optimizer = VARIANTS[variant]
    grad = np.array([[np.inf, -np.inf, np.nan, 1e30, 3e38, 0.0]] * 2, np.float32)
    grad[1, :3] = 1
    rows = np.array([[1, 1, 1, 1, np.nan, np.inf], [1, 1, 1, 1, 1, 1]], np.float32)
    slots = optimizer.init(rows)
    with np.errstate(all="ignore"):
        expected, new = apply(optimizer, grad, rows, slots)
    own_rows, own_slots = rows.copy(), [array.copy() for array in slots.values()]
    function = compiled(optimizer.compiled_formula, "float32", body)
    function.run(grad, own_rows, own_slots, optimizer.hyper(), 1, np.arange(2))
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


# ----------------------------------------------------------------------------- common steps


def test_the_order_of_a_step():
    """Clip by value, clip by norm, decay, update, clamp; the numbers tell each from the others."""
    grad, rows = np.array([[9.0, -4.0]]), np.array([[10.0, -2.0]])
    optimizer = SGD(
        0.5,
        clipvalue=(-4.0, 3.0),
        clip_norm=2.5,
        weight_decay_factor=0.1,
        clip_weight_max=8.0,
    )
    new, _ = apply(optimizer, grad, rows)
    np.testing.assert_allclose(new, [[8.0, -1.8 + 0.5 * 2.0]], rtol=1e-15)
    coupled = SGD(0.5, clipvalue=4.0, weight_decay_factor=0.1, decoupled_weight_decay=False)
    new, _ = apply(coupled, grad, rows)
    np.testing.assert_allclose(new, [[10 - 0.5 * (4 + 1), -2 - 0.5 * (-4 - 0.2)]], rtol=1e-15)
    by_rate = SGD(0.5, weight_decay_factor=0.1, multiply_weight_decay_factor_by_learning_rate=True)
    new, _ = apply(by_rate, grad, rows)
    np.testing.assert_allclose(new, [[9.5 - 4.5, -1.9 + 2.0]], rtol=1e-15)


def test_slots_see_the_clipped_gradient_and_are_not_clamped():
    optimizer = Adagrad(1.0, clipvalue=2.0, clip_weight_min=0.25, clip_weight_max=0.5)
    rows, slots = apply(optimizer, np.array([[-7.0, 1.0]]), np.array([[1.0, 1.0]]))
    assert rows.tolist() == [[0.5, 0.25]]
    np.testing.assert_allclose(slots["accumulators"], [[4.1, 1.1]])


def test_a_decay_of_zero_and_bounds_out_of_reach_change_no_bit():
    rng = np.random.default_rng(2)
    rows, grad = rng.standard_normal((2, 30, 20)).astype(np.float32)
    rows[0, :2] = -0.0, 0.0
    grad[0, :2] = -0.0, 0.0
    far = {"clipvalue": 1e30, "clip_norm": 1e30, "clip_weight_min": -1e30, "clip_weight_max": 1e30}
    for plain in (SGD(0.1), Adagrad(0.1), Adam(0.1), RowwiseAdagrad(0.1)):
        around = type(plain)(**{**plain.parameters(), **far, "weight_decay_factor": 0.0})
        assert around.configured
        (left, left_slots), (right, right_slots) = (
            apply(optimizer, grad, rows) for optimizer in (plain, around)
        )
        assert left.tobytes() == right.tobytes()
        for name, slot in left_slots.items():
            assert slot.tobytes() == right_slots[name].tobytes()


def test_a_rate_of_zero_with_a_decay_times_the_rate_moves_nothing():
    optimizer = optimizers.AdamW(lambda: 0.0)
    rows, _ = apply(optimizer, VIDEO_GRAD, VIDEO[:2])
    np.testing.assert_array_equal(rows, VIDEO[:2])


# ----------------------------------------------------------------------------- edges of formulas


@pytest.mark.parametrize("learning_rate_power", [-0.5, -0.7])
def test_ftrl_with_a_rate_of_zero(learning_rate_power):
    rows, slots = apply(FTRL(0.0, learning_rate_power), VIDEO_GRAD, VIDEO[:2])
    np.testing.assert_array_equal(rows, VIDEO[:2], strict=True)
    assert (slots["linears"] == 0).all()
    multiplied = FTRL(0.0, learning_rate_power, multiply_linear_by_learning_rate=True)
    rows, slots = apply(multiplied, VIDEO_GRAD, VIDEO[:2])
    assert np.isfinite(rows).all()


def test_ftrl_with_zero_accumulators_keeps_rows_without_gradient():
    optimizer = FTRL(0.1, initial_accumulator_value=0, allow_zero_accumulator=True)
    rows, _ = apply(optimizer, np.array([[0.0, 1.0]]), np.array([[3.0, 3.0]]))
    assert rows[0, 0] == 3.0
    assert rows[0, 1] != 3.0


def test_adagrad_with_epsilon_begins_at_zero():
    rows, _ = apply(Adagrad(0.5, preset="fbgemm"), np.array([[0.0, 2.0]]), np.ones((1, 2)))
    np.testing.assert_allclose(rows, [[1.0, 0.5]], rtol=1e-8)


def test_elementwise_is_the_formulas_own():
    class OwnFormula(optimizers.SGD):
        def formula(self, xp, grad, rows, slots, hyper, step):
            return rows - hyper[0] * xp.max(grad, axis=1, keepdims=True), slots

    class OwnUpdate(optimizers.SGD):
        def update(self, grad, rows, slots, hyper, step, row_ids):
            return rows - grad * row_ids[:, None], slots

    for yes in (
        optimizers.SGD(momentum=0.5, clipvalue=1.0, weight_decay_factor=0.1, clip_weight_max=1.0),
        *(optimizers.Adagrad(), optimizers.Adam()),
        *(optimizers.AdamW(lazy_adam=False), optimizers.AdagradMomentum(), optimizers.FTRL()),
        *(optimizers.RMSProp(), optimizers.Adagrad(use_gradient_accumulation=False)),
    ):
        assert yes.elementwise, yes
    for no in (
        *(optimizers.RowwiseAdagrad(), optimizers.RowwiseAdam(), optimizers.LAMB()),
        *(optimizers.LARS(), optimizers.Adam(bias_correction="row"), OwnFormula(), OwnUpdate()),
        *(optimizers.SGD(clip_norm=1.0), optimizers.Custom(lambda *given: given[1:3])),
    ):
        assert not no.elementwise, no


def test_bias_correction_by_row_counts_the_updates_of_the_row():
    """Rows that are touched at steps of their own move as if these steps were 1, 2, 3."""
    rng = np.random.default_rng(5)
    by_row, by_step = (Adam(0.1, bias_correction=kind, preset="tpu") for kind in ("row", "global"))
    left = right = rng.standard_normal((1, 6))
    left_slots, right_slots = by_row.init(left), by_step.init(right)
    for count, step in enumerate((3, 10, 11), start=1):
        grad = rng.standard_normal((1, 6))
        left, left_slots = apply(by_row, grad, left, left_slots, step)
        right, right_slots = apply(by_step, grad, right, right_slots, count)
    np.testing.assert_allclose(left, right, rtol=1e-12)


@pytest.mark.parametrize("name", ["LAMB", "LARS"])
def test_trust_ratio_of_nothing_is_one(name):
    optimizer = getattr(optimizers, name)(0.5)
    rows, _ = apply(optimizer, np.array([[1.0, 2.0]]), np.zeros((1, 2)))
    assert (rows < 0).all()  # a row of zeros gets away from there
    rows, _ = apply(optimizer, np.zeros((1, 2)), np.ones((1, 2)))
    assert rows.tolist() == [[1.0, 1.0]]


# ----------------------------------------------------------------------------- formulas, by hand


def by_hand(optimizer, rows, gradients):
    """Each formula once more, one row after the other in float64, as its source writes it."""
    o, new = optimizer, []
    for row, own in zip(rows.astype(np.float64), np.moveaxis(gradients, 1, 0), strict=True):
        w, m, v = row.copy(), np.zeros_like(row), np.zeros_like(row)
        for t, g in enumerate(own.astype(np.float64), start=1):
            decay, eta = o.weight_decay_factor or 0.0, o.learning_rate
            if o.name in ("Adam", "AdamW", "LAMB", "RowwiseAdam"):
                m = o.beta_1 * m + (1 - o.beta_1) * g
                v = o.beta_2 * v + (1 - o.beta_2) * (
                    np.mean(g**2) if o.name == "RowwiseAdam" else g**2
                )
                adam = m / (1 - o.beta_1**t) / (np.sqrt(v / (1 - o.beta_2**t)) + o.epsilon)
                if o.name == "LAMB":
                    r = adam + decay * w
                    w = w - eta * np.linalg.norm(w) / np.linalg.norm(r) * r
                else:
                    w = w - eta * (adam + decay * w)
            elif o.name == "LARS":
                size = np.linalg.norm(w)
                local = o.trust_coefficient * size / (np.linalg.norm(g) + decay * size)
                m = o.momentum * m + eta * local * (g + decay * w)
                w = w - m
            elif o.name == "RMSProp":
                v = o.rho * v + (1 - o.rho) * g**2
                m = o.momentum * m + g / (np.sqrt(v) + o.epsilon)
                w = w - eta * m
            elif o.name == "RowwiseAdagrad":
                v = v + (np.max(g**2) if o.reduce == "max" else np.mean(g**2))
                w = w - eta * g / (np.sqrt(v) + o.epsilon)
            else:
                raise AssertionError(o.name)
        new.append(w)
    return np.array(new)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adam(0.1, preset="fbgemm"),
        optimizers.AdamW(0.1, weight_decay_factor=0.05),
        optimizers.RowwiseAdam(0.1, preset="fbgemm"),
        optimizers.LAMB(0.1, preset="fbgemm"),
        optimizers.LAMB(0.1, weight_decay_factor=0.3),
        optimizers.LARS(0.5, trust_coefficient=0.1),
        optimizers.LARS(0.5, trust_coefficient=0.1, weight_decay_factor=0.3),
        optimizers.RMSProp(0.1),
        optimizers.RMSProp(0.1, momentum=0.5),
        RowwiseAdagrad(0.1, preset="fbgemm"),
        RowwiseAdagrad(0.1, preset="fbgemm", reduce="max"),
    ],
    ids=repr,
)
def test_formulas_are_those_of_their_sources(optimizer):
    rng = np.random.default_rng(4)
    start = rng.standard_normal((5, 11))
    gradients = rng.standard_normal((4, 5, 11))
    rows, slots = start, optimizer.init(start)
    for step, grad in enumerate(gradients, start=1):
        rows, slots = apply(optimizer, grad, rows, slots, step)
    np.testing.assert_allclose(rows, by_hand(optimizer, start, gradients), rtol=1e-9)


# ----------------------------------------------------------------------------- arguments


def test_defaults_are_tensorflows():
    assert repr(SGD()) == "SGD(learning_rate=0.01)"
    shown = "Adagrad(learning_rate=0.001, initial_accumulator_value=0.1, epsilon=0.0)"
    assert repr(Adagrad()) == shown
    assert Adagrad(1, 2) == Adagrad(learning_rate=1.0, initial_accumulator_value=2.0)
    assert Adagrad().slots == (SlotSpec("accumulators", "element", None, 0.1),)
    assert SGD().slots == ()
    assert SGD().lazy
    momentum = AdagradMomentum().parameters()
    names = ("learning_rate", "momentum", "use_nesterov", "exponent", "beta2", "epsilon")
    assert [momentum[name] for name in names] == [0.001, 0.0, False, 2.0, 1.0, 1e-10]
    assert list(FTRL().parameters().values())[:6] == [0.001, -0.5, 0.0, 0.0, 0.0, 0.1]
    adam = Adam()
    assert [getattr(adam, name) for name in Adam.__match_args__] == [
        *(0.001, 0.9, 0.999, 1e-7),
        *(True, True),
    ]
    assert adam.bias_correction == "none"
    for optimizer in (SGD(), Adagrad(), AdagradMomentum(), FTRL(), Adam()):
        assert optimizer.accumulate
        assert not optimizer.configured
        assert not optimizer.rounds_stochastically
    assert SGD(0.5) != Adagrad(0.5)


def test_positional_order_is_tensorflows():
    assert SGD.__match_args__ == ("learning_rate",)
    assert Adagrad.__match_args__ == ("learning_rate", "initial_accumulator_value")
    assert AdagradMomentum.__match_args__ == (
        *("learning_rate", "momentum", "use_nesterov", "exponent", "beta2", "epsilon"),
    )
    assert FTRL.__match_args__ == (
        *("learning_rate", "learning_rate_power", "l1_regularization_strength"),
        *("l2_regularization_strength", "beta", "initial_accumulator_value"),
    )
    assert Adam.__match_args__ == (
        *("learning_rate", "beta_1", "beta_2", "epsilon", "lazy_adam", "sum_inside_sqrt"),
    )


def test_presets_supply_defaults_and_no_more():
    fbgemm = Adam(preset="fbgemm")
    assert (fbgemm.learning_rate, fbgemm.epsilon) == (0.01, 1e-8)
    assert (fbgemm.sum_inside_sqrt, fbgemm.bias_correction) == (False, "global")
    assert Adam(0.25, epsilon=1e-3, preset="fbgemm").parameters() == {
        **fbgemm.parameters(),
        "learning_rate": 0.25,
        "epsilon": 1e-3,
    }
    assert Adam(0.01, 0.9, 0.999, 1e-8, True, False, bias_correction="global") == fbgemm
    assert SGD(preset="tpu").learning_rate == 0.001
    assert SGD(preset="fbgemm") == SGD()
    assert Adagrad(preset="tpu") == Adagrad()
    assert (
        Adagrad(preset="fbgemm").initial_accumulator_value,
        FTRL(preset="tpu").learning_rate,
    ) == (*(0.0, 0.01),)
    assert AdagradMomentum(preset="tpu").momentum == 0.9
    assert AdagradMomentum(preset="tpu").slots[0].fill == 0.1
    for name in OF_MODULE:
        for preset in ("tf", "fbgemm", "tpu"):
            optimizer = getattr(optimizers, name)(preset=preset)
            assert type(optimizer)(**optimizer.parameters()) == optimizer
            assert "preset" not in optimizer.config()


OF_MODULE = (
    *("Adagrad", "AdagradMomentum", "Adam", "AdamW", "FTRL", "LAMB", "LARS", "RMSProp"),
    *("RowwiseAdagrad", "RowwiseAdam", "SGD"),
)


def test_config_and_repr_show_what_was_asked_for():
    optimizer = Adagrad(0.5, clipvalue=(None, 2), slot_dtype="float16", clip_norm=1)
    config = json.loads(json.dumps(optimizer.config()))
    assert config["clipvalue"] == [None, 2.0]
    assert (config["slot_dtype"], config["clip_norm"]) == ("float16", 1.0)
    shown = repr(optimizer)
    assert shown == (
        "Adagrad(learning_rate=0.5, initial_accumulator_value=0.1, clipvalue=(None, 2.0), "
        "clip_norm=1.0, slot_dtype='float16', epsilon=0.0)"
    )
    assert Adagrad(clipvalue=2) == Adagrad(clipvalue=2.0) != Adagrad(clipvalue=(-2, 2))


def test_clipvalue_gives_bounds():
    for value, bounds in (
        (1.0, (-1.0, 1.0)),
        (0.0, (0.0, 0.0)),
        ((-1, 2), (-1.0, 2.0)),
        ((None, 1.0), (-np.inf, 1.0)),
        ((-3.0, None), (-3.0, np.inf)),
        (None, (-np.inf, np.inf)),
    ):
        optimizer = SGD(clipvalue=value)
        assert (optimizer.clip_gradient_min, optimizer.clip_gradient_max) == bounds


def test_slot_dtype():
    assert Adam(slot_dtype="table").slots[0].storage_dtype("float16") == np.float16
    assert Adam(slot_dtype="float32").slots[0].storage_dtype("float64") == np.float32
    assert Adam().slots[0].storage_dtype("float16") == np.float32
    by_row = Adam(slot_dtype="table", bias_correction="row").slots
    assert [slot.storage_dtype("float16").name for slot in by_row] == [
        *("float16", "float16", "float32", "float32"),
    ]
    rows, batch = (
        np.ones((3, 4), np.float32),
        sort_occurrences(np.array([1]), np.zeros(1, np.int32), None, 3),
    )
    short = Adagrad(0.5, slot_dtype="float16")
    slots = {"accumulators": np.full((3, 4), 0.1, np.float16)}
    gradients = np.full((1, 4), 2.0, np.float32)
    update_rows(rows, slots, RowUpdate(batch, batch.rows, gradients, short, short.hyper(), 1))
    assert slots["accumulators"][1, 0] == np.float16(np.float32(np.float16(0.1)) + 4)
    assert rows[1, 0] < rows[0, 0] == 1


LEARNING_RATE = (
    "learning_rate must be a number >= 0, finite as float32, "
    "or a callable that takes nothing or the step"
)


@pytest.mark.parametrize("name", OF_MODULE)
def test_learning_rate_messages(name):
    optimizer = getattr(optimizers, name)
    with pytest.raises(ShardcoreValueError, match=re.escape(f"{LEARNING_RATE}, got -1")):
        optimizer(-1)
    with pytest.raises(ShardcoreTypeError, match=re.escape(f"{LEARNING_RATE}, got '1'")):
        optimizer(learning_rate="1")
    text = "learning_rate() must return a number >= 0, finite as float32, got nan"
    with pytest.raises(ShardcoreValueError, match=re.escape(text)):
        optimizer(lambda: np.nan).hyper()


@pytest.mark.parametrize("value", [0, -0.1, np.nan, np.inf])
def test_adagrad_initial_accumulator_messages(value):
    sign = ">" if value == 0 else ">="
    text = f"initial_accumulator_value must be a number {sign} 0, finite as float32, got {value!r}"
    for kind in (Adagrad, RowwiseAdagrad):
        with pytest.raises(ShardcoreValueError, match=re.escape(text.replace("got 0", "got 0.0"))):
            kind(initial_accumulator_value=value)


FINITE = "finite as float32, got"
ONE_BY_ONE = (
    "must be None with use_gradient_accumulation=False, which sums no gradients to clip, got"
)
REFUSED = [
    (SGD, {"momentum": 1}, f"momentum must be a number >= 0 and < 1, {FINITE} 1"),
    (SGD, {"momentum": -0.1}, f"momentum must be a number >= 0 and < 1, {FINITE} -0.1"),
    (SGD, {"nesterov": True}, "nesterov must be False without momentum, got momentum 0"),
    (SGD, {"nesterov": 1}, "nesterov must be True or False, got 1"),
    (SGD, {"preset": "jax"}, "preset must be 'tf', 'fbgemm', 'tpu' or 'torch', got 'jax'"),
    (SGD, {"clipvalue": -1.0}, f"clipvalue must be a number >= 0, {FINITE} -1.0"),
    (SGD, {"clipvalue": (2, 1)}, "clipvalue[0] must be <= clipvalue[1], got 2 > 1"),
    (SGD, {"clipvalue": (1,)}, "clipvalue must be a number or a tuple (lowest, highest), got (1,)"),
    (SGD, {"clipvalue": [0, 1]},
     "clipvalue must be a number or a tuple (lowest, highest), got [0, 1]"),
    (SGD, {"clipvalue": ("a", 1)}, f"clipvalue[0] must be a number, {FINITE} 'a'"),
    (SGD, {"clip_norm": 0}, f"clip_norm must be a number > 0, {FINITE} 0"),
    (SGD, {"clip_weight_min": 2, "clip_weight_max": 1},
     "clip_weight_min must be <= clip_weight_max, got 2 > 1"),
    (SGD, {"clip_weight_min": "0"}, f"clip_weight_min must be a number, {FINITE} '0'"),
    (SGD, {"weight_decay_factor": -1}, f"weight_decay_factor must be a number >= 0, {FINITE} -1"),
    (SGD, {"use_gradient_accumulation": 1},
     "use_gradient_accumulation must be True or False, got 1"),
    (SGD, {"use_gradient_accumulation": False, "clipvalue": 0.0},
     f"clipvalue {ONE_BY_ONE} 0.0"),
    (SGD, {"use_gradient_accumulation": False, "clipvalue": (None, 1.0)},
     f"clipvalue {ONE_BY_ONE} (None, 1.0)"),
    (SGD, {"use_gradient_accumulation": False, "clip_norm": 1},
     f"clip_norm {ONE_BY_ONE} 1.0"),
    (SGD, {"stochastic_rounding": None}, "stochastic_rounding must be True or False, got None"),
    (SGD, {"decoupled_weight_decay": 0}, "decoupled_weight_decay must be True or False, got 0"),
    (SGD, {"multiply_weight_decay_factor_by_learning_rate": 0},
     "multiply_weight_decay_factor_by_learning_rate must be True or False, got 0"),
    (Adagrad, {"slot_dtype": "int32"},
     "dtype of slot 'slot_dtype' must be a floating dtype, got 'int32'"),
    (Adagrad, {"epsilon": -1e-8}, f"epsilon must be a number >= 0, {FINITE} -1e-08"),
    (RowwiseAdagrad, {"reduce": "sum"}, "reduce must be 'mean' or 'max', got 'sum'"),
    (RowwiseAdagrad, {"reduce": 1}, "reduce must be 'mean' or 'max', got 1"),
    (AdagradMomentum, {"exponent": 0}, f"exponent must be a number > 0, {FINITE} 0"),
    (AdagradMomentum, {"epsilon": 0}, f"epsilon must be a number > 0, {FINITE} 0"),
    (AdagradMomentum, {"beta2": 1.5}, f"beta2 must be a number > 0 and <= 1, {FINITE} 1.5"),
    (FTRL, {"learning_rate_power": 0.5},
     f"learning_rate_power must be a number <= 0, {FINITE} 0.5"),
    (FTRL, {"l1_regularization_strength": -1},
     f"l1_regularization_strength must be a number >= 0, {FINITE} -1"),
    (FTRL, {"l2_regularization_strength": -1},
     f"l2_regularization_strength must be a number >= 0, {FINITE} -1"),
    (FTRL, {"initial_accumulator_value": 0},
     "initial_accumulator_value must be > 0 without allow_zero_accumulator, got 0"),
    (FTRL, {"initial_accumulator_value": -1},
     f"initial_accumulator_value must be a number >= 0, {FINITE} -1"),
    (Adam, {"beta_1": 1}, f"beta_1 must be a number >= 0 and < 1, {FINITE} 1"),
    (Adam, {"beta_2": -0.5}, f"beta_2 must be a number >= 0 and < 1, {FINITE} -0.5"),
    (Adam, {"epsilon": 0}, f"epsilon must be a number > 0, {FINITE} 0"),
    (Adam, {"bias_correction": "local"},
     "bias_correction must be 'none', 'global' or 'row', got 'local'"),
    (Adam, {"lazy_adam": False, "use_gradient_accumulation": False},
     "lazy_adam must be True with use_gradient_accumulation=False: rows that no occurrence names "
     "have no place in its order"),
    (optimizers.LARS, {"trust_coefficient": 0},
     f"trust_coefficient must be a number > 0, {FINITE} 0"),
    (optimizers.RMSProp, {"rho": 1}, f"rho must be a number >= 0 and < 1, {FINITE} 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "arguments", "text"), REFUSED, ids=[f"{k.name} {a}" for k, a, _ in REFUSED]
)
def test_what_breaks_a_rule_is_refused_at_construction(kind, arguments, text):
    with pytest.raises(ShardcoreError, match="^" + re.escape(text) + "$"):
        kind(**arguments)


@pytest.mark.parametrize("kind", [Adagrad, RowwiseAdagrad])
def test_epsilon_of_adagrad_is_added_to_the_root(kind):
    """By hand, in both forms: 3 squared is 9, its root plus 0.5 is 3.5."""
    optimizer = kind(7.0, 0.0, epsilon=0.5)
    rows, grad = np.ones((1, 2)), np.array([[3.0, -3.0]])
    moved, slots = optimizer.update(
        grad, rows, optimizer.init(rows), optimizer.hyper(), 1, np.array([0])
    )
    np.testing.assert_allclose(moved, [[-5.0, 7.0]], rtol=1e-15)
    assert (slots["accumulators"] == 9).all()
    slots = optimizer.init(rows)
    batch = sort_occurrences(np.array([0]), np.array([0], np.int32), None, 1)
    update_rows(rows, slots, RowUpdate(batch, batch.rows, grad, optimizer, optimizer.hyper(), 1))
    np.testing.assert_allclose(rows, [[-5.0, 7.0]], rtol=1e-15)
    assert (slots["accumulators"] == 9).all()


def test_bounds_may_be_equal():
    """A bound above and the same below: each weight, or gradient, becomes that number."""
    rows, grad = np.array([[1.0, -3.0]]), np.array([[0.5, 2.0]])
    for optimizer, expected in (
        (SGD(1.0, clip_weight_min=2, clip_weight_max=2), [[2.0, 2.0]]),
        (SGD(1.0, clipvalue=(0.25, 0.25)), [[0.75, -3.25]]),
        (SGD(1.0, clipvalue=0), [[1.0, -3.0]]),
    ):
        moved, _ = optimizer.update(grad, rows, {}, optimizer.hyper(), 1, np.array([0]))
        np.testing.assert_array_equal(moved, expected)


def test_beta2_of_one_is_legal_and_arguments_that_do_not_exist_are_refused_by_python():
    assert AdagradMomentum(beta2=1) == AdagradMomentum()
    with pytest.raises(TypeError, match="momentums"):
        SGD(momentums=1.0)
