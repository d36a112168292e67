"""What first-party optimizers compute: TensorFlow's numbers, formulas by hand, edges of both."""

from __future__ import annotations

import numpy as np
import pytest
from pure_form import apply

from shardcore import optimizers
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.update import update_rows

SGD, Adagrad, FTRL, Adam = optimizers.SGD, optimizers.Adagrad, optimizers.FTRL, optimizers.Adam
RowwiseAdagrad, AdagradMomentum = optimizers.RowwiseAdagrad, optimizers.AdagradMomentum

VIDEO = np.arange(32, dtype=np.float32).reshape(8, 4)
USER = np.arange(32, dtype=np.float32).reshape(16, 2)
VIDEO_GRAD = np.array([[8, 13, 18, 23], [12, 17, 22, 27]], np.float32)
USER_GRAD = np.array([[2 / 3, 1]] * 3 + [[6, 7]], np.float32)


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
