"""Preset "tpu" against jax-tpu-embedding's own arithmetic, where that library is installed.

Its updates run on SparseCores only: `row_function` runs the part of them that is on one row.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from row_function import RowFunction

from shardcore import optimizers

ROWS, DIM, STEPS = 300, 13, 6

NAMES = ("SGD", "Adagrad", "AdagradMomentum", "Adam", "FTRL")
BOUNDS = {"clip_weight_min": "min_value", "clip_weight_max": "max_value"}

# Units in the last place, of the weights and then of the slots, after a step from the same state:
# 0 where both do the same operations in the same order. Elsewhere theirs raises to a power where
# ours has a root or a quotient, and moves moments by a share of the difference.
DEFAULTS = [
    ("SGD", {}, (0,)),
    ("Adagrad", {}, (0, 0)),
    ("AdagradMomentum", {}, (8, 0, 6)),
    # Theirs rounds the betas to float32: 1 - beta_2 is then 1.3e-5 below 0.001.
    ("Adam", {}, (64, 16, 300)),
    # Betas of float32 leave the correction, 1 - beta_2^t, for which theirs has float32 powers.
    ("Adam", {"beta_1": float(np.float32(0.9)), "beta_2": float(np.float32(0.999))}, (48, 4, 4)),
    ("FTRL", {}, (6, 0, 6)),
]
PENALTIES = {
    "learning_rate": 0.125,
    "l1_regularization_strength": 0.25,
    "l2_regularization_strength": 0.375,
    "beta": 1.0,
}
MOMENTUM = {"learning_rate": 0.125, "momentum": 0.75}
# Every number of these is one of float32, so it is the same number on both sides.
EXACT_NUMBERS = [
    ("SGD", {"learning_rate": 0.25, "clip_weight_min": -0.75, "clip_weight_max": 0.5}, (0,)),
    ("SGD", {"learning_rate": 0.25, "clip_weight_max": 0.5}, (0,)),
    ("Adagrad", {"learning_rate": 0.25, "initial_accumulator_value": 2**-7}, (0, 0)),
    ("Adagrad", {"learning_rate": 0.25, "clip_weight_min": -0.5}, (0, 0)),
    ("AdagradMomentum", {**MOMENTUM, "epsilon": 2**-20}, (8, 0, 6)),
    (
        "AdagradMomentum",
        {**MOMENTUM, "use_nesterov": True, "initial_accumulator_value": 0.0, "epsilon": 2**-20},
        (8, 0, 6),
    ),
    ("AdagradMomentum", {**MOMENTUM, "beta2": 0.9375, "exponent": 1.0}, (8, 0, 6)),
    ("AdagradMomentum", {**MOMENTUM, "exponent": 3.0, "epsilon": 2**-10}, (8, 0, 6)),
    (
        "Adam",
        {"learning_rate": 0.125, "beta_1": 0.5, "beta_2": 0.875, "epsilon": 2**-10},
        (8, 4, 4),
    ),
    ("FTRL", PENALTIES, (8, 0, 6)),
    ("FTRL", {**PENALTIES, "multiply_linear_by_learning_rate": True}, (8, 0, 6)),
    ("FTRL", {"learning_rate": 0.25, "multiply_linear_by_learning_rate": True}, (8, 0, 6)),
    ("FTRL", {"learning_rate": 0.25, "learning_rate_power": -0.75}, (12, 0, 8)),
    ("FTRL", {**PENALTIES, "clip_weight_min": -0.25, "clip_weight_max": 0.25}, (8, 0, 6)),
]


@pytest.fixture(scope="module")
def specs():
    pytest.importorskip("jax", reason="jax is not installed")
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    pytest.importorskip("flax", reason="flax, which jax_tpu_embedding imports, is not installed")
    from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

    return embedding_spec


class TheirStep:
    """The update of one row, as the library lowers it for a TPU; in float64 where asked."""

    def __init__(self, specs, name, options, columns, dtype="float32"):
        import jax

        told = {key: value for key, value in options.items() if key not in BOUNDS}
        self.spec = spec = getattr(specs, f"{name}OptimizerSpec")(**told)
        static = {BOUNDS[key]: value for key, value in options.items() if key in BOUNDS}
        if name == "FTRL":
            static["multiply_linear_by_learning_rate"] = spec.multiply_linear_by_learning_rate
        ids, scalar = (jax.ShapeDtypeStruct(shape, np.int32) for shape in [(8,), ()])
        gains = jax.ShapeDtypeStruct((8,), np.float32)
        table = jax.ShapeDtypeStruct((4, columns), np.float32)
        tables = [table] * (2 + spec.slot_variables_count())  # the weights, slots and gradients
        hyper = [jax.ShapeDtypeStruct((), number.dtype) for number in spec.get_hyperparameters(0)]

        def update(*operands):
            return spec.get_optimizer_primitive().bind(
                *operands,
                max_ids_per_partition=8,
                max_unique_ids_per_partition=8,
                computation_name="row_update",
                **static,
            )

        traced = jax.jit(update).trace(ids, ids, ids, gains, scalar, *tables, *hyper)
        self.of_a_row = RowFunction(traced, dtype)

    def __call__(self, grad, state, step):
        """Return the weights and slots after a step, counted from 1; theirs is from 0."""
        numbers = self.spec.get_hyperparameters(step - 1)
        as_traced = [np.asarray(one, bool if one.dtype == bool else grad.dtype) for one in numbers]
        return self.of_a_row(grad, state, as_traced)


def pure(optimizer, grad, state, step):
    rows, *slots = state
    names = [slot.name for slot in optimizer.slots]
    slots = dict(zip(names, slots, strict=True))
    hyper = optimizer.hyper()
    rows, slots = optimizer.update(grad, rows, slots, hyper, step, np.arange(ROWS))
    return [rows, *(slots[name] for name in names)]


def compiled(optimizer, grad, state, step):
    rows, *slots = (array.copy() for array in state)
    update = optimizer.compiled(rows.dtype)
    update.run(grad, rows, slots, optimizer.hyper(), step, np.arange(ROWS))
    return [rows, *slots]


def beginning(optimizer, dtype):
    """Return random weights with their slots, and gradients whose size differs by row."""
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((ROWS, DIM)).astype(dtype)
    gradients = rng.standard_normal((STEPS, ROWS, DIM)) * 10 ** rng.uniform(-3, 1, (ROWS, 1))
    gradients[rng.random(gradients.shape) < 0.1] = 0
    slots = optimizer.init(rows)
    state = [rows, *(np.array(slots[slot.name]) for slot in optimizer.slots)]
    return state, gradients.astype(dtype)


def sizes(optimizer, before, after):
    """Return the sizes of the largest terms that the new weights and slots are sums of."""
    found = [np.maximum(abs(old), abs(new)) for old, new in zip(before, after, strict=True)]
    moved: float | np.ndarray = 0.0
    if isinstance(optimizer, optimizers.AdagradMomentum):
        moved = optimizer.learning_rate * found[2]
    elif isinstance(optimizer, optimizers.Adam):
        moved = optimizer.learning_rate * found[1] / (np.sqrt(after[2]) + optimizer.epsilon)
    elif isinstance(optimizer, optimizers.FTRL):  # a difference of powers multiplies the weights
        power = after[1] ** optimizer.exponent
        if not optimizer.multiply_linear_by_learning_rate:
            power = power / optimizer.learning_rate
        found[2] = np.maximum(found[2], power * abs(before[0]))
        moved = found[2] / power
    found[0] = np.maximum(found[0], moved).astype(np.float32)
    return found


@pytest.mark.parametrize("form", [pure, compiled])
@pytest.mark.parametrize(("name", "options", "ulps"), DEFAULTS + EXACT_NUMBERS)
def test_every_step_is_sparsecores_to_rounding(name, options, ulps, form, specs):
    theirs = TheirStep(specs, name, options, ROWS * DIM)
    ours = getattr(optimizers, name)(**options, preset="tpu")
    state, gradients = beginning(ours, np.float32)
    worst = np.zeros(len(state))
    for step, grad in enumerate(gradients, start=1):
        after = theirs(grad, state, step)
        own = form(ours, grad, state, step)
        for n, size in enumerate(sizes(ours, state, after)):
            assert own[n].dtype == after[n].dtype == np.float32
            off = abs(own[n].astype(np.float64) - after[n]) / np.spacing(size)
            worst[n] = max(worst[n], off.max())
        state = after
    assert np.all(worst <= ulps), worst


@pytest.mark.parametrize("form", [pure, compiled])
@pytest.mark.parametrize(("name", "options"), [case[:2] for case in EXACT_NUMBERS])
def test_formula_is_sparsecores_in_float64_over_several_steps(name, options, form, specs):
    theirs = TheirStep(specs, name, options, ROWS * DIM, "float64")
    ours = getattr(optimizers, name)(**options, preset="tpu")
    state, gradients = beginning(ours, np.float64)
    own = state
    for step, grad in enumerate(gradients, start=1):
        state, own = theirs(grad, state, step), form(ours, grad, own, step)
    # Adam's rate is corrected in float32 before it gets to the formula.
    rounding = 1e-6 if name == "Adam" else 1e-11
    np.testing.assert_allclose(own[0], state[0], rtol=rounding, atol=rounding, strict=True)
    for slot, expected in zip(own[1:], state[1:], strict=True):
        np.testing.assert_allclose(slot, expected, rtol=1e-11, atol=1e-11, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_sparsecores(name, specs):
    import jax

    kind = getattr(specs, f"{name}OptimizerSpec")
    ours = getattr(optimizers, name)(preset="tpu")
    defaults = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    of_slots = {key for key in defaults if key.startswith("initial_")}
    for key in defaults.keys() - of_slots:
        assert getattr(ours, key) == defaults[key], key
    fills = [
        float(initial(jax.random.key(0), (1, 1), np.float32)[0, 0])
        for initial in kind().slot_variables_initializers()
    ]
    assert [np.float32(slot.fill) for slot in ours.slots] == fills
