"""The optimizers of SparseCores: the package's own functions of a row against ours; refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
from row_function import RowFunction
from shardcore_pjrt.sparsecore.buffers import BufferShape
from shardcore_pjrt.sparsecore.limits import Limits
from shardcore_pjrt.sparsecore.updates import OPTIMIZERS, numbers_of, row_update

import shardcore as sc
from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import Zeros

ROWS, DIM, STEPS = 40, 13, 5
RATES = {"learning_rate": 0.125}
SETTINGS = [
    ("SGD", {"clip_weight_min": -0.75, "clip_weight_max": 0.5}),
    ("SGD", {"clip_weight_max": 0.5}),
    ("Adagrad", {"clip_weight_min": -0.25}),
    ("AdagradMomentum", {"momentum": 0.75, "use_nesterov": True, "epsilon": 1e-3}),
    ("AdagradMomentum", {"momentum": 0.5, "beta2": 0.875, "exponent": 3.0, "epsilon": 1e-3}),
    ("Adam", {"preset": "tpu", "epsilon": 1e-3}),
    ("Adam", {"sum_inside_sqrt": False, "beta_1": 0.5, "beta_2": 0.75, "epsilon": 1e-3}),
    ("FTRL", {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2, "beta": 1.0}),
    ("FTRL", {"multiply_linear_by_learning_rate": True, "l1_regularization_strength": 0.3}),
    ("FTRL", {"learning_rate_power": -0.75}),
]


def table(optimizer):
    return TableSpec("t", 50, DIM, np.dtype("float32"), Zeros(), 0, optimizer)


def function_of_a_row(spec, columns):
    """Return the private function that our program's call of the package is lowered with."""
    import jax
    from shardcore_pjrt.sparsecore.primitives import DeviceBuffers, update

    rule = row_update(spec)
    shape = BufferShape(8, 8, Limits(256, 128), rule.minibatched)
    ids, scalar = (jax.ShapeDtypeStruct(one, np.int32) for one in [(8,), ()])
    buffers = DeviceBuffers(ids, ids, ids, jax.ShapeDtypeStruct((8,), np.float32), scalar)
    rows = jax.ShapeDtypeStruct((4, columns), np.float32)
    numbers = [
        jax.ShapeDtypeStruct((), number.dtype)
        for number in numbers_of(spec, spec.optimizer.hyper(), 1)
    ]
    traced = jax.jit(update, static_argnums=(4, 5)).trace(
        buffers, (rows,) * (1 + len(rule.slots)), rows, numbers, shape, rule
    )
    return RowFunction(traced)


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_the_package_does_to_a_row_what_our_optimizer_does(name, settings):
    pytest.importorskip("jax_tpu_embedding", reason="jax_tpu_embedding is not installed")
    optimizer = getattr(sc.optimizers, name)(**RATES, **settings)
    spec = table(optimizer)
    theirs = function_of_a_row(spec, ROWS * DIM)
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((ROWS, DIM)).astype(np.float32)
    slots = optimizer.init(rows)
    names = row_update(spec).slots
    state = [rows, *(np.array(slots[one]) for one in names)]
    own = state
    for step in range(1, STEPS + 1):
        gradient = rng.standard_normal(rows.shape).astype(np.float32)
        state = theirs(gradient, state, numbers_of(spec, optimizer.hyper(), step))
        new, slots = optimizer.update(
            gradient,
            own[0],
            dict(zip(names, own[1:], strict=True)),
            optimizer.hyper(),
            step,
            np.arange(ROWS),
        )
        own = [new, *(slots[one] for one in names)]
    for one, other in zip(own, state, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-5, atol=3e-6)


REFUSED = [
    ("SGD", {"momentum": 0.5}, "momentum 0 on SparseCores, whose SGD has no slot; got 0.5"),
    (
        "SGD",
        {"use_gradient_accumulation": False},
        "use_gradient_accumulation True on SparseCores, which sum the gradients of a row; got "
        "False",
    ),
    ("SGD", {"clipvalue": 2.0}, "clipvalue None on SparseCores, which do not clip gradients; "
     "got 2.0"),
    ("Adam", {"clip_norm": 2.0, "preset": "tpu"}, "clip_norm None on SparseCores, which do not "
     "clip gradients; got 2.0"),
    ("FTRL", {"weight_decay_factor": 0.5}, "weight_decay_factor None on SparseCores, whose "
     "formulas have no decay; got 0.5"),
    ("Adagrad", {"preset": "fbgemm"}, "epsilon 0 on SparseCores, which divide by the root alone; "
     "got 1e-08"),
    ("Adam", {}, "sum_inside_sqrt False on SparseCores, which add epsilon to the root; got True"),
    (
        "Adam",
        {"sum_inside_sqrt": False, "bias_correction": "row"},
        "bias_correction 'none' or 'global' on SparseCores, which do not count a row's updates; "
        "got 'row'",
    ),
    ("Adam", {"preset": "tpu", "lazy_adam": False}, "lazy_adam True on SparseCores, which update "
     "the rows that a batch names; got False"),
    ("FTRL", {"allow_zero_accumulator": True}, "allow_zero_accumulator False on SparseCores, which "
     "would divide 0 by 0; got True"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "reason"), REFUSED)
def test_settings_without_a_place_are_refused(name, settings, reason):
    spec = table(getattr(sc.optimizers, name)(0.1, **settings))
    told = f"table 't' must have an optimizer with {reason}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        row_update(spec)


def test_other_optimizers_are_refused():
    class Derived(sc.optimizers.SGD):
        pass

    for optimizer in (sc.optimizers.RowwiseAdagrad(0.1), Derived(0.1)):
        told = (
            "table 't' must have an optimizer that SparseCores have, which are "
            f"{', '.join(OPTIMIZERS)}, got {optimizer!r}"
        )
        with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
            row_update(table(optimizer))


def test_a_rate_of_0_is_refused_where_it_divides():
    told = "table 't' must have a learning_rate > 0 on SparseCores, whose FTRL divides by it; got 0"
    spec = table(sc.optimizers.FTRL(0.0))
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        numbers_of(spec, spec.optimizer.hyper(), 1)
    multiplied = table(sc.optimizers.FTRL(0.0, multiply_linear_by_learning_rate=True))
    assert numbers_of(multiplied, multiplied.optimizer.hyper(), 1)[0] == 0
