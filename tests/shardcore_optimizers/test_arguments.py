"""The arguments of first-party optimizers: defaults, presets, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from shardcore import optimizers
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer.slots import SlotSpec
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.update import update_rows

SGD, Adagrad, FTRL, Adam = optimizers.SGD, optimizers.Adagrad, optimizers.FTRL, optimizers.Adam
RowwiseAdagrad, AdagradMomentum = optimizers.RowwiseAdagrad, optimizers.AdagradMomentum


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
