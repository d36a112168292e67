"""Compiled optimizers equal their pure forms to the last bit, in every instruction set."""

from __future__ import annotations

import importlib
import threading

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from pure_form import apply

from shardcore import optimizers
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.store import instruction_set

SGD, Adagrad, FTRL, Adam = optimizers.SGD, optimizers.Adagrad, optimizers.FTRL, optimizers.Adam
RowwiseAdagrad, AdagradMomentum = optimizers.RowwiseAdagrad, optimizers.AdagradMomentum

# Each instruction set includes the ones before it, so all up to the best can run here.
INSTRUCTION_SETS = ("baseline", "v3", "v4")
RUNNABLE = INSTRUCTION_SETS[: INSTRUCTION_SETS.index(instruction_set.NAME) + 1]


def compiled(formula: str, dtype: str, name: str) -> UpdateFunction:
    module = importlib.import_module(f"shardcore_optimizers._update_{name}")
    return UpdateFunction.from_capsule(getattr(module, formula)[dtype])


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


def _by_row(optimizer):
    return getattr(optimizer, "bias_correction", None) == "row"


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
@pytest.mark.parametrize("name", [name for name in sorted(VARIANTS) if _by_row(VARIANTS[name])])
def test_powers_of_a_row_are_rounded_where_the_pure_form_rounds_them(dtype, body, name):
    """If 1 less a power is not rounded before it divides, a seventh of the factors differ."""
    optimizer, rng = VARIANTS[name], np.random.default_rng(8)
    rows, grad = (rng.standard_normal((1000, 5)).astype(dtype) for _ in range(2))
    slots = {slot.name: rng.uniform(0, 0.875, slot.shape(1000, 5)) for slot in optimizer.slots}
    slots = {name: array.astype(dtype) for name, array in slots.items()}
    expected, new = apply(optimizer, grad, rows, slots)
    own_slots = [array.copy() for array in slots.values()]
    function = compiled(optimizer.compiled_formula, dtype, body)
    function.run(grad, rows, own_slots, optimizer.hyper(), 1, np.arange(1000))
    assert rows.tobytes() == expected.tobytes()
    for own, array in zip(own_slots, new.values(), strict=True):
        assert own.tobytes() == array.tobytes()


@each_body
@each_dtype
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_compiled_is_the_pure_form_on_any_numbers(dtype, body, data):
    """Gradients here are no sums, and have zeros of both signs, all positive to compiled forms."""
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
    expected, new = apply(optimizer, 0 + grad, rows, slots)
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
