"""Whole engines on emulated SparseCores, beside the same engine on the cpu."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from shardcore_pjrt.sparsecore.backend import SparseCoreBackend

import shardcore as sc
from shardcore.backend import TableSpec
from shardcore.errors import ShardcoreValueError
from shardcore.initializers import RowId

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


def one_table(optimizer=None, dim=4096, rows=3000):
    table = sc.TableConfig(rows, dim, name="t", combiner="sum", layout="mod", optimizer=optimizer)
    return lambda: sc.FeatureConfig(table)


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[2], OPTIMIZERS[5]], ids=repr)
def test_batches_that_need_several_minibatches(optimizer):
    on_cpu, on_cores = engines(optimizer, of=one_table(dim=1024))
    rng = np.random.default_rng(5)
    with on_cpu, on_cores:
        for most in (200, 3):  # then one of one minibatch, of the same program
            ids = rng.integers(0, 3000, (8, most))
            for engine in (on_cpu, on_cores):
                engine.enqueue(ids)
            assert_near(on_cores.dequeue(), on_cpu.dequeue(), 1e-4)
            gradient = rng.standard_normal((8, 1024)).astype(np.float32)
            on_cpu.apply_gradients(gradient)
            on_cores.apply_gradients(gradient)
        assert_near(on_cores.tables["t"][:], on_cpu.tables["t"][:])


def test_a_batch_too_large_for_the_cores_changes_nothing():
    _, on_cores = engines(sc.optimizers.AdagradMomentum(0.1), of=one_table(dim=8192))
    with on_cores:
        on_cores.build()
        before = on_cores.tables["t"][:]
        told = (
            "table 't': the ids of a batch from bags of one SparseCore to rows of another must be "
            "at most 64 distinct rows in one minibatch, got 250: use smaller batches or more "
            "devices"
        )

        def look_up():
            on_cores.enqueue(np.arange(1000).reshape(1, 1000))
            on_cores.dequeue()

        with pytest.raises(ShardcoreValueError, match=re.escape(told)):
            look_up()
        np.testing.assert_array_equal(on_cores.tables["t"][:], before)


def test_a_gradient_that_is_not_finite_changes_nothing():
    _, on_cores = engines(sc.optimizers.Adam(0.1, preset="tpu"), of=one_table(dim=5, rows=20))
    with on_cores:
        gradient = np.ones((4, 5), np.float32)
        gradient[2, 3] = np.inf
        on_cores.enqueue(np.arange(8).reshape(4, 2))
        before = on_cores.tables["t"][:]
        on_cores.dequeue()

        def apply_and_read():
            on_cores.apply_gradients(jax.device_put(gradient, jax.devices("cpu")[0]))
            on_cores.tables["t"][:]

        with pytest.raises(sc.ShardcoreError, match="gradients must be finite in float32"):
            apply_and_read()
        np.testing.assert_array_equal(on_cores.tables["t"][:], before)
        assert not on_cores.slots["t"]["momenta"][:].any()
        on_cores.enqueue(np.arange(8).reshape(4, 2))
        on_cores.dequeue()
        on_cores.apply_gradients(np.ones((4, 5), np.float32))
        assert (on_cores.tables["t"][:8] != before[:8]).all()


def test_tables_with_other_rates_share_a_stack_and_not_a_call():
    def three():
        rates = {"a": 0.5, "b": 0.25, "c": 0.5}
        return {
            name: sc.FeatureConfig(
                sc.TableConfig(30, 6, name=name, optimizer=sc.optimizers.SGD(rate), combiner="sum")
            )
            for name, rate in rates.items()
        }

    on_cpu, on_cores = engines(None, of=three)
    with on_cpu, on_cores:
        ids = dict.fromkeys("abc", np.arange(12).reshape(6, 2))
        for engine in (on_cpu, on_cores):
            engine.enqueue(ids)
            engine.dequeue()
            engine.apply_gradients(dict.fromkeys("abc", np.ones((6, 6), np.float32)))
        for name in "abc":
            assert_near(on_cores.tables[name][:], on_cpu.tables[name][:])
        assert on_cores.metrics()["stacks"] == 1


def test_a_table_of_no_layout_is_dealt_out():
    backend = SparseCoreBackend("cpu", 2, 2)
    with sc.ShardedEmbedding(features(), sc.optimizers.SGD(0.1), backend) as engine:
        engine.build()
        made = {name: spec.layout for name, spec in backend.specs.items()}
        assert made == dict.fromkeys(["rows", "mod", "wide", "most"], "mod")


def test_a_table_that_is_made_later_starts_a_stack():
    backend = SparseCoreBackend("cpu", 2, 2)
    specs = [TableSpec(name, 20, 5, np.dtype("float32"), RowId(), 0) for name in "abc"]
    backend.create_tables(specs[:2])
    assert backend.counters()["stacks"] == 1
    before = backend.gather("a", None, np.arange(20))
    backend.create_table(specs[2])
    assert backend.counters()["stacks"] == 2
    np.testing.assert_array_equal(backend.gather("a", None, np.arange(20)), before)
    backend.drop_table("a")
    backend.drop_table("b")
    assert backend.counters()["stacks"] == 1


def test_a_checkpoint_moves_between_cpu_and_cores(tmp_path):
    on_cpu, on_cores = engines(sc.optimizers.Adagrad(0.1))
    rng = np.random.default_rng(2)
    with on_cpu, on_cores:
        ids, weights = batch(rng, 8)
        on_cpu.enqueue(ids, weights)
        found = on_cpu.dequeue()
        on_cpu.apply_gradients(jax.tree.map(np.ones_like, dict(found)))
        sc.Checkpoint(e=on_cpu).save(tmp_path, 1)
        assert sc.Checkpoint(e=on_cores).restore(tmp_path) == 1
        for name in on_cpu.tables:
            np.testing.assert_array_equal(on_cores.tables[name][:], on_cpu.tables[name][:])
            for slot in on_cpu.slots[name]:
                np.testing.assert_array_equal(
                    on_cores.slots[name][slot][:], on_cpu.slots[name][slot][:]
                )


def refusal_of(**options):
    with pytest.raises(sc.ShardcoreError) as refused:
        sc.get_backend("pjrt", **options)
    return str(refused.value)


def test_arguments_are_checked(monkeypatch):
    assert refusal_of(strategy="core") == "strategy must be None or 'sparsecore', got 'core'"
    for argument, value in (("lanes", 128), ("exchange", "gather")):
        told = f"{argument} must be None with strategy 'sparsecore', got {value!r}"
        assert refusal_of(strategy="sparsecore", **{argument: value}) == told
    told = (
        "devices must have SparseCores with strategy 'sparsecore', which those of kind 'TPU v5', "
        "'TPU v5p', 'TPU v6 lite', 'TPU7x' have, got 'cpu'"
    )
    assert refusal_of(strategy="sparsecore") == told
    with pytest.raises(ShardcoreValueError) as refused:
        SparseCoreBackend("cpu", 3, 2)
    told = "devices must be a power of two with strategy 'sparsecore', got 3 devices"
    assert str(refused.value) == told


def test_an_absent_package_is_named_with_its_command(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "embedding" in name else find(name)
    )
    with pytest.raises(sc.ShardcoreError) as refused:
        SparseCoreBackend("cpu", 1, 2)
    told = "strategy 'sparsecore' cannot be used here: jax_tpu_embedding is not installed; pip "
    assert str(refused.value).startswith(told)


def test_tables_that_cores_cannot_hold_are_refused_before_they_are_made():
    backend = SparseCoreBackend("cpu", 2, 2)
    with pytest.raises(ShardcoreValueError, match="must have an optimizer that SparseCores have"):
        sc.ShardedEmbedding(one_table()(), sc.optimizers.RowwiseAdagrad(0.1), backend)
    assert backend.specs == {}


def test_a_row_that_is_written_leaves_those_in_its_line():
    backend = SparseCoreBackend("cpu", 1, 2)
    backend.create_table(TableSpec("t", 20, 5, np.dtype("float32"), RowId(), 0))
    rows = np.arange(20)
    expected = backend.gather("t", None, rows)
    expected[3] = 9
    backend.scatter("t", None, np.array([3]), np.full((1, 5), 9, np.float32))
    np.testing.assert_array_equal(backend.gather("t", None, rows), expected)
