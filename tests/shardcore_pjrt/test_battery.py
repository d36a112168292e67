"""Random batches on devices, by the rules of TPUs, GPUs and CPUs, beside the backend `cpu`.

Every placement, optimizer and dtype is in the mix, and tables that lie together. Each run of the
suite tries the same few. ``make battery`` tries as many as ``SHARDCORE_TEST_BATCHES`` says, of the
seed ``SHARDCORE_TEST_SEED``, and prints the seed and how much was compared.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import jax
import numpy as np
import pytest
from shardcore_pjrt.backend import PjrtBackend

import shardcore as sc
from shardcore.optimizer import SlotSpec
from shardcore.plugins import registry

BATCHES = int(os.environ.get("SHARDCORE_TEST_BATCHES") or 0)
PER_ENGINE = 20
PLACEMENTS = ("row", "column", "replicated", "table")
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = tuple(itertools.product(("tpu", "cuda"), (1, 2, 3, 8)))


def heavy_ball(grad, rows, slots, hyper, step, row_ids):
    momenta = slots["momenta"] * 0.5 + grad
    return rows - hyper["learning_rate"] * momenta, {"momenta": momenta}


SETTINGS = {
    "Adagrad": [{}, {"use_gradient_accumulation": False}, {"clip_norm": 1.0}],
    "Adam": [{}, {"lazy_adam": False}, {"bias_correction": "row"}, {"slot_dtype": "table"}],
    "Custom": [
        {"computation": heavy_ball, "slot_specs": (SlotSpec("momenta", "element", fill=0.5),)}
    ],
    "SGD": [
        {},
        {"momentum": 0.5, "nesterov": True, "clipvalue": 1.0, "weight_decay_factor": 0.01},
        {"stochastic_rounding": True},
    ],
}
OPTIMIZERS = tuple(
    getattr(sc.optimizers, name)(learning_rate=0.05, **settings)
    for name in registry.optimizers()
    for settings in SETTINGS.get(name, [{}])
)


def shuffled(rng, things):
    """Yield things without end, each as often as the others, in a new order every time."""
    while True:
        yield from (things[i] for i in rng.permutation(len(things)))


def tables_of(rng, optimizers, dtypes):
    """Return a table of each placement, and one that is like the first, which lies with it."""
    tables = []
    for placement in PLACEMENTS:
        kind = {
            "dim": int(rng.integers(1, 65)) if rng.random() < 0.9 else 130,
            "combiner": str(rng.choice(["sum", "mean", "sqrtn"])),
            "placement": placement,
            "layout": (None, "div", "mod")[int(rng.integers(3))],
            "dtype": next(dtypes),
            "max_norm": 0.7 if rng.random() < 0.2 else None,
            "optimizer": next(optimizers),
        }
        for name in ("row", "row_too") if placement == "row" else (placement,):
            tables.append(sc.TableConfig(int(rng.integers(1, 400)), name=name, **kind))
    return tables


def features_of(rng, tables):
    """Return a feature of every table, and a second one of some."""
    made = {table.name: sc.FeatureConfig(table) for table in tables}
    for table in tables:
        if rng.random() < 0.3:
            made[f"{table.name}_again"] = sc.FeatureConfig(table, int(rng.integers(3)))
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


def compare(rng, platform, devices, rules, tables, batches):
    """Train the same on both backends; compare activations, then all rows and slots."""
    features, size = features_of(rng, tables), int(rng.integers(8, 40))
    with (
        sc.ShardedEmbedding(features, seed=3) as on_cpu,
        sc.ShardedEmbedding(
            features, backend=PjrtBackend(platform, devices, rules=rules), seed=3
        ) as on_devices,
    ):
        for _ in range(batches):
            ids, weights = batch_of(rng, features, size)
            for engine in (on_cpu, on_devices):
                engine.enqueue(ids, weights)
            expected, ours = on_cpu.dequeue(), on_devices.dequeue()
            gradients = {}
            for name, one in expected.items():
                near(ours[name], one, features[name].table, f"activations of {name}")
                gradients[name] = rng.standard_normal(one.shape).astype(np.float32)
            on_cpu.apply_gradients(gradients)
            there = jax.device_put(gradients, jax.devices(platform)[0])
            on_devices.apply_gradients(there)
        for table in tables:
            name = table.name
            near(on_devices.tables[name][:], on_cpu.tables[name][:], table, f"rows of {name}")
            for slot, stored in on_cpu.slots[name].items():
                near(on_devices.slots[name][slot][:], stored[:], table, f"{slot} of {name}")


def near(ours, expected, table, what):
    tolerance = 1e-4 if table.dtype == np.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(ours, np.float32),
        np.asarray(expected, np.float32),
        tolerance,
        tolerance,
        err_msg=f"{what}: {table}",
    )


@pytest.mark.parametrize("rules", ["tpu", "cuda", "cpu"])
@pytest.mark.parametrize("devices", [1, 8])
def test_random_batches(platform, rules, devices):
    rng = np.random.default_rng([devices, *rules.encode()])
    tables = tables_of(rng, shuffled(rng, OPTIMIZERS), shuffled(rng, DTYPES))
    compare(rng, platform, devices, rules, tables, 3)


@pytest.mark.skipif(not BATCHES, reason="SHARDCORE_TEST_BATCHES says how many batches; none here")
@pytest.mark.timeout(36_000)
def test_random_batches_by_the_hundred(platform, fuzz_seed):
    rng = np.random.default_rng(fuzz_seed)
    optimizers, dtypes = shuffled(rng, OPTIMIZERS), shuffled(rng, DTYPES)
    mixes = Counter()
    counts = {name: Counter() for name in ("rules and devices", "placement", "optimizer", "dtype")}
    done, cases = 0, itertools.cycle(DEVICES)
    while done < BATCHES:
        (rules, devices), batches = next(cases), min(PER_ENGINE, BATCHES - done)
        tables = tables_of(rng, optimizers, dtypes)
        print(f"batches {done} to {done + batches - 1}: {devices} devices, rules of {rules}")
        compare(rng, platform, devices, rules, tables, batches)
        done += batches
        counts["rules and devices"][f"{rules} {devices}"] += batches
        for table in tables:
            counts["placement"][table.placement] += batches
            counts["optimizer"][repr(table.optimizer)] += batches
            counts["dtype"][table.dtype.name] += batches
            mixes[table.placement, table.optimizer, table.dtype.name] += batches
    print(f"{done} batches compared, none wrong; of tables' parts of them")
    for what, count in counts.items():
        told = ", ".join(f"{one} {n}" for one, n in sorted(count.items()))
        print(f"  by {what}: {told}")
    every = len(PLACEMENTS) * len(OPTIMIZERS) * len(DTYPES)
    print(f"  {len(mixes)} of {every} combinations of placement, optimizer and dtype")
