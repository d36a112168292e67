"""The pure forms are traced and compiled by JAX, hyper-parameters and step among the traced."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore import optimizers as o

AROUND = {
    "clipvalue": (-0.75, 0.5),
    "clip_norm": 1.5,
    "weight_decay_factor": 0.01,
    "multiply_weight_decay_factor_by_learning_rate": True,
    "clip_weight_min": -1.0,
    "clip_weight_max": 0.9,
}


@pytest.mark.parametrize("around", [{}, AROUND], ids=["plain", "all steps"])
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [
        *(o.SGD(0.3), o.SGD(0.3, momentum=0.9, nesterov=True), o.Adagrad(0.3)),
        *(o.RowwiseAdagrad(0.3), o.RowwiseAdagrad(0.3, reduce="max")),
        *(o.AdagradMomentum(0.3, 0.5), o.AdagradMomentum(0.3, 0.5, True, 3, 0.9, 0.1)),
        *(o.FTRL(0.3), o.FTRL(0.3, -0.7, 0.1, multiply_linear_by_learning_rate=True)),
        *(o.Adam(0.3), o.Adam(0.3, preset="fbgemm"), o.Adam(0.3, bias_correction="row")),
        *(o.AdamW(0.3), o.RowwiseAdam(0.3), o.RMSProp(0.3, momentum=0.5)),
        *(o.LAMB(0.3, weight_decay_factor=0.1), o.LARS(0.3, weight_decay_factor=0.1)),
    ],
    ids=repr,
)
def test_traced_and_compiled_by_jax(optimizer, around, decoupled):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    parameters = {**optimizer.parameters(), **around, "decoupled_weight_decay": decoupled}
    optimizer = type(optimizer)(**parameters)
    update = jax.jit(lambda *arguments: optimizer.update(*arguments))
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 13)).astype(np.float32)
    slots = optimizer.init(rows)
    their_rows = jax.numpy.asarray(rows)
    their_slots = optimizer.init(their_rows)
    numbers = np.array(optimizer.hyper(), np.float32)
    ids = np.arange(6, dtype=np.int32)
    for step, rate in ((1, 0.3), (2, 0.3), (3, 0.0)):
        grad = rng.standard_normal(rows.shape).astype(np.float32)
        hyper = (rate, *optimizer.hyper()[1:])
        rows, slots = optimizer.update(grad, rows, slots, hyper, step, ids)
        traced = (np.float32(rate), *numbers[1:])
        their_rows, their_slots = update(grad, their_rows, their_slots, traced, step, ids)
        assert their_rows.dtype == rows.dtype
        np.testing.assert_allclose(their_rows, rows, rtol=5e-5, atol=5e-5)
        for name, slot in slots.items():
            assert their_slots[name].dtype == slot.dtype
            np.testing.assert_allclose(their_slots[name], slot, rtol=1e-4, atol=1e-4)
