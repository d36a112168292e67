"""The first-party optimizers pass the suite for optimizers, in all their variants."""

from __future__ import annotations

import pytest

from shardcore import optimizers
from shardcore.testing import OptimizerConformance

AROUND = {
    "clipvalue": 0.9,
    "clip_norm": 1.5,
    "weight_decay_factor": 1e-4,
    "clip_weight_min": -3.0,
    "clip_weight_max": 3.0,
}
ONE_BY_ONE = {"use_gradient_accumulation": False, "stochastic_rounding": True}


class TestFirstParty(OptimizerConformance):
    @pytest.fixture(
        params=[
            optimizers.SGD(0.05, momentum=0.5, **ONE_BY_ONE),
            optimizers.SGD(0.05, momentum=0.5, nesterov=True, **AROUND),
            optimizers.Adagrad(0.5, stochastic_rounding=True, **AROUND),
            optimizers.RowwiseAdagrad(0.5, **ONE_BY_ONE),
            optimizers.RowwiseAdagrad(0.5, reduce="max", preset="fbgemm", **AROUND),
            optimizers.AdagradMomentum(0.1, 0.5),
            optimizers.FTRL(0.5),
            optimizers.FTRL(0.5, multiply_linear_by_learning_rate=True, slot_dtype="table"),
            optimizers.Adam(0.05, lazy_adam=False, stochastic_rounding=True),
            optimizers.Adam(0.05, bias_correction="row", slot_dtype="table"),
            optimizers.AdamW(0.05, weight_decay_factor=1e-4),
            optimizers.RowwiseAdam(0.05, lazy_adam=False),
            optimizers.RMSProp(0.01, momentum=0.5),
            optimizers.LAMB(0.02, weight_decay_factor=1e-3),
            optimizers.LARS(0.5, trust_coefficient=0.02, weight_decay_factor=1e-3),
        ],
        ids=repr,
    )
    def optimizer(self, request):
        return request.param


class TestPowers(OptimizerConformance):
    bitwise = False
    tolerance = 1e-4  # differences of nearby powers cancel

    @pytest.fixture(
        params=[
            optimizers.AdagradMomentum(0.1, 0.5, exponent=3),
            optimizers.FTRL(0.5, learning_rate_power=-0.6),
        ],
        ids=repr,
    )
    def optimizer(self, request):
        return request.param
