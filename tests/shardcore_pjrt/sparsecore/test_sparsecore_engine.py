"""Whole engines on emulated SparseCores, beside the same engine on the cpu."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from shardcore_pjrt.sparsecore.backend import SparseCoreBackend

import shardcore as sc

pytestmark = pytest.mark.usefixtures("emulated")

OPTIMIZERS = [
    sc.optimizers.SGD(0.1),
    sc.optimizers.SGD(0.1, clip_weight_min=-0.02, clip_weight_max=0.03),
    sc.optimizers.Adagrad(0.1),
    sc.optimizers.AdagradMomentum(0.1, preset="tpu"),
    sc.optimizers.AdagradMomentum(0.1, 0.9, beta2=0.9, exponent=3.0, use_nesterov=True),
    sc.optimizers.Adam(0.1, preset="tpu"),
    sc.optimizers.Adam(0.1, sum_inside_sqrt=False),
    sc.optimizers.FTRL(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1),
    sc.optimizers.FTRL(
        lambda step: 0.1 / (1 + step), multiply_linear_by_learning_rate=True, beta=0.5
    ),
]


def features():
    """Return every kind of feature, over tables that are stacked, and one that is alone."""
    rows = sc.TableConfig(97, 12, combiner="mean", name="rows")
    mod = sc.TableConfig(50, 11, combiner="sqrtn", name="mod", layout="mod")
    wide = sc.TableConfig(31, 40, combiner="sum", name="wide", layout="mod")
    most = sc.TableConfig(31, 9, combiner="max", name="most")
    return {
        "bags": sc.FeatureConfig(rows, invalid_ids="drop"),
        "weighted": sc.FeatureConfig(rows),
        "dense": sc.FeatureConfig(mod),
        "sequence": sc.FeatureConfig(mod, max_sequence_length=3),
        "nested": [sc.FeatureConfig(wide), sc.FeatureConfig(most)],
    }


def batch(rng, size):
    lengths = rng.integers(0, 6, size)
    splits = np.concatenate(([0], np.cumsum(lengths)))
    total = int(splits[-1])
    ids = {
        "bags": (rng.integers(-2, 97, total), splits),
        "weighted": (rng.integers(0, 97, total), splits),
        "dense": rng.integers(0, 50, (size, 4)),
        "sequence": (rng.integers(0, 50, total), splits),
        "nested": [(rng.integers(0, 31, total), splits), (rng.integers(0, 31, total), splits)],
    }
    weights = {
        "bags": None,
        "weighted": rng.random(total).astype(np.float32),
        "dense": rng.random((size, 4)).astype(np.float32),
        "sequence": None,
        "nested": [None, None],
    }
    return ids, weights


def assert_near(ours, expected, tolerance=2e-5):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=tolerance, atol=tolerance)


def engines(optimizer, devices=2, cores=2, of=features, **options):
    backend = SparseCoreBackend("cpu", devices, cores)
    return (
        sc.ShardedEmbedding(of(), optimizer, seed=3, **options),
        sc.ShardedEmbedding(of(), optimizer, backend, seed=3, **options),
    )


@pytest.mark.parametrize(
    ("optimizer", "devices", "cores", "sizes"),
    [
        *((optimizer, 2, 2, (8, 5)) for optimizer in OPTIMIZERS),
        (OPTIMIZERS[2], 1, 4, (8, 5, 0, 11)),  # 5 and 11 are no multiples of the cores
        (OPTIMIZERS[3], 4, 2, (5, 0, 5)),
    ],
    ids=str,
)
def test_every_optimizer_and_kind_of_feature(optimizer, devices, cores, sizes):
    on_cpu, on_cores = engines(optimizer, devices, cores)
    rng = np.random.default_rng(1)
    with on_cpu, on_cores:
        for size in sizes:
            ids, weights = batch(rng, size)
            for engine in (on_cpu, on_cores):
                engine.enqueue(ids, weights)
            expected, ours = on_cpu.dequeue(), on_cores.dequeue()
            assert_near(ours, expected)
            gradients = jax.tree.map(
                lambda one: rng.standard_normal(one.shape).astype(np.float32), dict(expected)
            )
            gradients["bags"] = None if size == 5 else gradients["bags"]
            wanted = on_cpu.apply_gradients(gradients, weight_gradients=True)
            found = on_cores.apply_gradients(
                jax.tree.map(lambda one: jax.device_put(one, jax.devices("cpu")[0]), gradients),
                weight_gradients=True,
            )
            assert_near(found, wanted)
        for name in on_cpu.tables:
            assert_near(on_cores.tables[name][:], on_cpu.tables[name][:])
            for slot in on_cpu.slots[name]:
                assert_near(on_cores.slots[name][slot][:], on_cpu.slots[name][slot][:])
        assert on_cores.metrics()["unique_rows"] == on_cpu.metrics()["unique_rows"]
        assert on_cores.metrics()["stacks"] == 2
