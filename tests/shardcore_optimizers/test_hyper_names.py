"""What each optimizer puts into hyper, in which order: compiled forms read it by place."""

from __future__ import annotations

import pytest
from shardcore_optimizers import shardcore_optimizers
from shardcore_optimizers._hyper import CORRECTIONS, PARTIAL_SUMS

import shardcore as sc

COMMON = (
    *("learning_rate", "clip_gradient_min", "clip_gradient_max", "largest_norm"),
    *("decay", "weight_min", "weight_max", "configured"),
)
MOMENTS = ("beta_1", "beta_2", "epsilon", "sum_inside_sqrt", "correction")
OWN = {
    "Adagrad": ("epsilon",),
    "AdagradMomentum": ("momentum", "use_nesterov", "exponent", "beta2", "epsilon"),
    "Adam": MOMENTS,
    "AdamW": MOMENTS,
    "Custom": (),
    "FTRL": (
        *("exponent", "l1_regularization_strength", "l2_regularization_strength"),
        *("beta", "multiply_linear_by_learning_rate"),
    ),
    "LAMB": MOMENTS,
    "LARS": ("momentum", "trust_coefficient", "epsilon"),
    "RMSProp": ("rho", "momentum", "epsilon", "sum_inside_sqrt"),
    "RowwiseAdagrad": ("epsilon", "takes_max"),
    "RowwiseAdam": MOMENTS,
    "SGD": ("momentum", "nesterov"),
}


def test_every_optimizer_is_here():
    assert sorted(OWN) == sorted(spec.name for spec in shardcore_optimizers())


@pytest.mark.parametrize("name", OWN)
def test_names_of_hyper(name):
    assert getattr(sc.optimizers, name).hyper_names == (*COMMON, *OWN[name])


def test_the_numbers_of_corrections_and_lanes():
    assert CORRECTIONS == ("none", "global", "row")
    assert [sc.optimizers.Adam(bias_correction=name).correction for name in CORRECTIONS] == [
        0,
        1,
        2,
    ]
    assert PARTIAL_SUMS == 8


def test_bits_of_configured():
    bits = {
        1: sc.optimizers.SGD(clipvalue=1),
        2: sc.optimizers.SGD(clip_norm=1),
        4: sc.optimizers.SGD(weight_decay_factor=0.5),
        8: sc.optimizers.SGD(weight_decay_factor=0.5, decoupled_weight_decay=False),
        16: sc.optimizers.SGD(clip_weight_min=-1),
        36: sc.optimizers.AdamW(),
        64: sc.optimizers.LAMB(weight_decay_factor=0.5),
    }
    assert {optimizer.configured: optimizer for optimizer in bits.values()} == bits
