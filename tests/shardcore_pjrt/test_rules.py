"""What ships is what is tested: the programs of a TPU and a GPU, run on CPU devices.

Which lanes, exchanges and layouts are chosen depends on the platform; nothing else does. So random
batches go through the rules of each, beside the backend ``cpu``.
"""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from shardcore_pjrt.backend import PjrtBackend
from shardcore_pjrt.programs import lookup_program, update_program
from shardcore_pjrt.routing.strategy import ONE_HOT_ROWS

import shardcore as sc

RULES = ("tpu", "cuda", "cpu")
OPTIMIZERS = (
    sc.optimizers.SGD(0.1),
    sc.optimizers.Adagrad(0.1),
    sc.optimizers.Adagrad(0.1, use_gradient_accumulation=False),
    sc.optimizers.RowwiseAdagrad(0.1),
    sc.optimizers.Adam(0.1, lazy_adam=False),
)


def features_of(rng):
    """Return features of random tables, every placement among them, and one on two features."""
    made = {}
    for placement in ("row", "column", "replicated", "table"):
        name = f"{placement}{len(made)}"
        table = sc.TableConfig(
            int(rng.integers(1, 3 * ONE_HOT_ROWS)),
            int(rng.choice([1, 3, 8, 20, 64, 130])),
            combiner=str(rng.choice(["sum", "mean", "sqrtn"])),
            name=name,
            placement=placement,
            layout=(None, "div", "mod")[int(rng.integers(0, 3))],
            dtype=str(rng.choice(["float32", "float32", "bfloat16"])),
            max_norm=0.7 if rng.random() < 0.2 else None,
        )
        made[name] = sc.FeatureConfig(table)
    made["again"] = sc.FeatureConfig(made["row0"].table, int(rng.integers(0, 3)))
    return made


def batch_of(rng, features, size):
    """Return ids of ragged, even and empty bags, hot rows first, and weights for some."""
    ids, weights = {}, {}
    for name, feature in features.items():
        lengths = rng.integers(0, 7, size) if rng.random() < 0.6 else np.full(size, 3)
        splits = np.concatenate(([0], np.cumsum(lengths)))
        rows = feature.table.vocabulary_size
        hot = rng.random(splits[-1]) ** 3
        ids[name] = (np.minimum((hot * rows).astype(np.int64), rows - 1), splits)
        weighted = rng.random() < 0.3 and not feature.max_sequence_length
        weights[name] = rng.random(splits[-1]).astype(np.float32) if weighted else None
    return ids, weights


def near(ours, expected, dtype):
    tolerance = 1e-4 if dtype == np.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(ours, np.float32), np.asarray(expected, np.float32), tolerance, tolerance
    )


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("devices", [1, 8])
def test_random_batches(platform, rules, devices):
    rng = np.random.default_rng((devices, RULES.index(rules)))
    size = int(rng.integers(8, 40))
    features, optimizer = features_of(rng), OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    with (
        sc.ShardedEmbedding(features, optimizer, seed=3) as on_cpu,
        sc.ShardedEmbedding(
            features, optimizer, PjrtBackend(platform, devices, rules=rules), seed=3
        ) as on_devices,
    ):
        for _ in range(3):
            ids, weights = batch_of(rng, features, size)
            for engine in (on_cpu, on_devices):
                engine.enqueue(ids, weights)
            expected, ours = on_cpu.dequeue(), on_devices.dequeue()
            gradients = {}
            for name, one in expected.items():
                near(ours[name], one, features[name].table.dtype)
                gradients[name] = rng.standard_normal(one.shape).astype(np.float32)
            on_cpu.apply_gradients(gradients)
            there = jax.device_put(gradients, jax.devices(platform)[0])
            on_devices.apply_gradients(there)
        for name, table in on_cpu.tables.items():
            dtype = table.dtype
            near(on_devices.tables[name][:], table[:], dtype)
            for slot, stored in on_cpu.slots[name].items():
                near(on_devices.slots[name][slot][:], stored[:], dtype)


@pytest.mark.parametrize(
    ("rules", "devices", "rows", "lookup", "update", "packed", "layout"),
    [
        ("tpu", 8, 999, "all_to_all", "all_to_all", 8, "mod"),
        ("tpu", 4, 999, "gather", "gather", 8, "div"),
        ("tpu", 1, ONE_HOT_ROWS, "one_hot", "local", 8, "div"),
        ("cuda", 8, 999, "all_to_all", "all_to_all", 1, "mod"),
        ("cuda", 4, 999, "gather", "gather", 1, "div"),
        ("cuda", 1, ONE_HOT_ROWS, "local", "local", 1, "div"),
        ("cpu", 4, 999, "all_to_all", "gather", 1, "mod"),
    ],
)
def test_rules_choose_the_programs(
    monkeypatch, rules, devices, rows, lookup, update, packed, layout
):
    used = {}
    for module, function in (
        (lookup_program, "lookup_program"),
        (update_program, "update_program"),
    ):
        make = getattr(module, function)

        def seen(mesh, geometry, shape, *others, make=make, function=function):
            used[function] = (shape.exchange, geometry.rows_per_line, geometry.layout.strategy)
            return make(mesh, geometry, shape, *others)

        monkeypatch.setattr(f"shardcore_pjrt.backend.{function}", seen)
    backend = PjrtBackend("cpu", devices, rules=rules)
    table = sc.TableConfig(rows, 16, name="t")
    with sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.SGD(0.1), backend) as engine:
        engine.enqueue(np.zeros((8, 2), np.int64))
        engine.apply_gradients(np.ones((8, 16), np.float32) + 0 * np.asarray(engine.dequeue()))
    assert used == {
        "lookup_program": (lookup, packed, layout),
        "update_program": (update, packed, layout),
    }


def test_rules_are_those_of_a_platform(platform):
    message = "rules must be None or a platform, got 3"
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(message)}$") as info:
        PjrtBackend(platform, 1, rules=3)
    assert isinstance(info.value, TypeError)
    backend = PjrtBackend(platform, 1, lanes=1, rules="tpu")
    assert backend._lanes == 1  # what is said goes before a rule
    backend.close()
